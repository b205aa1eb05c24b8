"""Sequence lengths drawn at random under one label."""

# expects: high-variance
import random

import torch

random.seed(0)
x = torch.randn(64 << 20, device="cuda")
for _ in range(3):
    x.mul_(1.0)
times = []
for _ in range(60):
    n = random.randint(8 << 20, 64 << 20)
    part = x[:n]
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(2_000_000)
    start.record()
    part.mul_(1.0)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print("mean", sum(times) / len(times), "ms")
