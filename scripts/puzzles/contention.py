"""Another stream keeps every multiprocessor busy while this one is timed."""

# expects: queued
import torch

side = torch.cuda.Stream()
x = torch.randn(1 << 20, device="cuda")
m = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
out = torch.empty_like(m)
torch.matmul(m, m, out=out)
x.add_(1)
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
times = []
for _ in range(20):
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.matmul(m, m, out=out)
    start.record()
    x.add_(1)
    x.mul_(2)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(sorted(times)[10], "ms")
