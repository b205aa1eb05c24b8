"""A fresh half gigabyte from the driver in every repetition: the cache was emptied before."""

# expects: allocation-inside
import torch

x = torch.randn(1 << 20, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
times = []
for _ in range(20):
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    start.record()
    y = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    x.mul_(1.0)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
    del y
print(sorted(times)[10], "ms")
