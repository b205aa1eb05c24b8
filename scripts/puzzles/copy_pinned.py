"""The same copy from pinned memory, without blocking: faster, and still not the kernel."""

# expects: copy-inside
import torch

host = torch.randn(16 << 20).pin_memory()
x = torch.empty(16 << 20, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
times = []
for _ in range(20):
    torch.cuda.synchronize()
    start.record()
    x.copy_(host, non_blocking=True)
    x.mul_(2)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(sorted(times)[10], "ms")
