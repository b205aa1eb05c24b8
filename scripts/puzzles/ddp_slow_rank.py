"""DistributedDataParallel with one slow rank: every rank measures the same step time, and only one
is to blame.

Rank 1 sleeps 5 ms on the host before its forward pass (a slow data loader); the all-reduces make
the others wait for it.  Events alone say that all ranks are equally slow.

One trace per rank, then compared:
    torchrun --nproc-per-node 2 --no-python nsysalign run -q scripts/puzzles/ddp_slow_rank.py
    nsysalign analyze nsysalign-runs/ddp_slow_rank-*
One trace of all ranks:
    nsysalign run -- torchrun --nproc-per-node 2 scripts/puzzles/ddp_slow_rank.py
    nsysalign analyze --ranks nsysalign-runs/ddp_slow_rank-003
Expected: rank 0 waits about 5 ms of every step for rank 1, the last to arrive in nearly all
collectives; rank 1's budget has 5 ms of host more.
"""

import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SLOW_RANK, SLEEP_S, STEPS = 1, 0.005, 30

rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8)), nn.Linear(2048, 10)).cuda()
model = DistributedDataParallel(model, device_ids=[local_rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loss_function = nn.CrossEntropyLoss()
inputs = torch.randn(512, 2048, device="cuda")
targets = torch.randint(0, 10, (512,), device="cuda")


def step():
    if rank == SLOW_RANK:
        time.sleep(SLEEP_S)
    optimizer.zero_grad()
    loss_function(model(inputs), targets).backward()
    optimizer.step()


for _ in range(5):
    step()
torch.cuda.synchronize()
dist.barrier()
times = []
for _ in range(STEPS):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    step()
    end.record()
    end.synchronize()  # the host does not run ahead: a slow rank stays slow
    times.append(start.elapsed_time(end))
print(f"rank {rank}: median step {statistics.median(times):.3f} ms of {STEPS}", flush=True)
dist.destroy_process_group()
