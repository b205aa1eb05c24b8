"""Now and then a garbage collection (here: a busy host) falls between record and launch."""

# expects: host-gap
import torch

x = torch.randn(1 << 20, device="cuda")
for _ in range(5):
    x.mul_(1.0)
times = []
for k in range(80):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    if k % 27 == 20:
        sum(range(20_000))
    x.mul_(1.0)
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print("mean", sum(times) / len(times), "ms")
