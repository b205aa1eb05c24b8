"""A small MLP trained with DistributedDataParallel, 20 steps timed by events.

torchrun --nproc-per-node 2 scripts/puzzles/ddp.py
"""

# expects: host-gap
import os
import statistics

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
model = nn.Sequential(
    nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
).cuda()
model = DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss_function = nn.CrossEntropyLoss()
inputs = torch.randn(256, 1024, device="cuda")
targets = torch.randint(0, 10, (256,), device="cuda")

pairs = []
for _ in range(20):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    optimizer.zero_grad()
    loss = loss_function(model(inputs), targets)
    loss.backward()
    optimizer.step()
    end.record()
    pairs.append((start, end))
torch.cuda.synchronize()
times = [start.elapsed_time(end) for start, end in pairs]
if rank == 0:
    print(f"ddp step: median {statistics.median(times):.3f} ms of {len(times)}", flush=True)
dist.destroy_process_group()
