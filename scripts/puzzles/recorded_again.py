"""One end event for two pairs: the second record moved it, so the first pair is not what was
meant."""

# expects: no-result
import torch

x = torch.randn(1 << 24, device="cuda")
x.add_(1)
first, second, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
times = []
for _ in range(20):
    torch.cuda.synchronize()
    first.record()
    x.add_(1)
    end.record()
    end.synchronize()
    first.record()
    x.mul_(2)
    end.synchronize()
    torch.cuda.synchronize()
    times.append(first.elapsed_time(end))
print(sorted(times)[10], "ms")
