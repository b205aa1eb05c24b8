"""A small model trained on all GPUs of the machine; every rank times its steps and the parts of some.

torchrun --nproc-per-node 2 ddp_train.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(rank)
model = nn.Sequential(
    nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
).cuda()
model = DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loss_function = nn.CrossEntropyLoss()
batches = [torch.randn(256, 1024).pin_memory() for _ in range(4)]
steps = []
for step in range(40):
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
    marks[0].record()
    inputs = batches[step % 4].cuda(non_blocking=True)
    targets = torch.randint(0, 10, (256,), device="cuda")
    loss = loss_function(model(inputs), targets)
    marks[1].record()
    loss.backward()
    marks[2].record()
    optimizer.step()
    optimizer.zero_grad()
    marks[3].record()
    steps.append(marks)
    if step % 10 == 9:
        total = loss.detach().clone()
        dist.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {total.item() / dist.get_world_size():.3f}", flush=True)
torch.cuda.synchronize()
for name, a, b in (("forward", 0, 1), ("backward", 1, 2), ("update", 2, 3), ("step", 0, 3)):
    times = sorted(marks[a].elapsed_time(marks[b]) for marks in steps)
    if rank == 0:
        print(f"{name}: {times[20]:.3f} ms", flush=True)
dist.barrier()
dist.destroy_process_group()
