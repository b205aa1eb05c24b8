"""Run by `accelerate launch`: a few steps of a tiny model."""

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
print(accelerator.num_processes, bool(loss < 1e3))
