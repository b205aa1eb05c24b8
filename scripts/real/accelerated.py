"""Run by `accelerate launch`: a few steps of a tiny model; with --gpu each process times some
kernels besides."""

import sys

import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(8, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(5):
    loss = model(torch.ones(4, 8, device=accelerator.device)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
if "--gpu" in sys.argv:
    import timed

    timed.pairs()
print(accelerator.num_processes, bool(loss < 1e3))
