"""One kernel of a microsecond: the pair of events costs more than what stands between them."""

# expects: launch-latency
import torch

x = torch.randn(128, device="cuda")
for _ in range(5):
    x.add_(1)


def pairs():
    return [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(40)]


empty, add = pairs(), pairs()
torch.cuda.synchronize()
torch.cuda._sleep(5_000_000)
for start, end in empty:
    start.record()
    end.record()
for start, end in add:
    start.record()
    x.add_(1)
    end.record()
torch.cuda.synchronize()
for name, measured in (("nothing", empty), ("add", add)):
    print(name, sorted(start.elapsed_time(end) for start, end in measured)[20], "ms")
