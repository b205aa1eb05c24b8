"""One pair of events for the whole loop, as many tutorials have it."""

import torch

start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
x = torch.randn(4096, 4096, device="cuda")
times = []
for _ in range(60):
    start.record()
    y = torch.softmax(x, dim=-1) * 2
    end.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
print(f"softmax: {sum(times[10:]) / 50:.4f} ms")
