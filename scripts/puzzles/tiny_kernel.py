"""One kernel of a microsecond: the pair of events costs more than what stands between them."""

# expects: event-floor
import torch

x = torch.randn(128, device="cuda")
for _ in range(5):
    x.add_(1)


def pairs():
    return [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(40)]


def timed(work):
    measured = pairs()
    torch.cuda.synchronize()
    torch.cuda._sleep(3_000_000)
    for start, end in measured:
        start.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return sorted(start.elapsed_time(end) for start, end in measured)[20]


print("add", timed(lambda: x.add_(1)), "ms; nothing", timed(lambda: None), "ms")
