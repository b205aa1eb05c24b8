"""A synchronisation in the middle: the GPU idles until the host has come back."""

# expects: sync-inside
import torch

x = torch.randn(1 << 20, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
times = []
for _ in range(25):
    torch.cuda.synchronize()
    start.record()
    x.add_(1)
    torch.cuda.synchronize()
    x.add_(1)
    torch.cuda.synchronize()
    x.add_(1)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(sorted(times)[12], "ms")
