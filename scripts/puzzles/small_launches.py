"""Fifty tiny kernels between two events: what is measured is how fast the host launches."""

# expects: many-tiny-kernels
import statistics

import torch

x = torch.zeros(1024, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
times = []
for _ in range(20):
    torch.cuda.synchronize()
    start.record()
    for _ in range(50):
        x.add_(1)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end) * 1e3)

print(f"50 tiny kernels: median {statistics.median(times):.1f} us of {len(times)}")
