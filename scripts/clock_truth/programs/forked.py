"""A process that forks before it touches CUDA: parent and child each measure for themselves."""

import os
import sys

import torch


def measure(name):
    x = torch.randn(2048, 2048, dtype=torch.half, device="cuda")
    torch.mm(x, x)
    times = []
    for _ in range(15):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.mm(x, x)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    print(f"{name}: {sorted(times)[7] * 1e3:.1f} us", flush=True)


child = os.fork()
if child == 0:
    measure("child")
    sys.exit(0)
os.waitpid(child, 0)
measure("parent")
