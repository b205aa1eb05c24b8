"""Three regions that overlap, and a total that adds them up."""

# expects: nothing
import torch

x = torch.randn(1 << 24, device="cuda")
for _ in range(3):
    x.add_(1)
torch.cuda.synchronize()
events = [torch.cuda.Event(enable_timing=True) for _ in range(25)]
torch.cuda._sleep(3_000_000)
for event in events:
    event.record()
    x.add_(1)
torch.cuda.synchronize()
times = [events[0].elapsed_time(e) for e in events[1:]]
print("total", sum(times), "ms")
