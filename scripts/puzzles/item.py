"""`.item()` in a loop: every one waits for the GPU and copies four bytes back."""

# expects: sync-inside
import torch

x = torch.randn(1 << 20, device="cuda")
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
times = []
for _ in range(25):
    torch.cuda.synchronize()
    start.record()
    total = 0.0
    for _ in range(4):
        total += x.sum().item()
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(sorted(times)[12], "ms")
