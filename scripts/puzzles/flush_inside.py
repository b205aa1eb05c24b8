"""The L2 flush stands between the events instead of before them."""

# expects: fill-inside
import torch

x = torch.randn(1 << 20, device="cuda")
cache = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
times = []
for _ in range(25):
    torch.cuda.synchronize()
    start.record()
    cache.zero_()
    x.mul_(1.0)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(sorted(times)[12], "ms")
