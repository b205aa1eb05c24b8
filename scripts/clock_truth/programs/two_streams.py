"""The first event on one stream, the second on another that waits for it."""

import torch

side = torch.cuda.Stream()
x = torch.randn(2048, 2048, dtype=torch.half, device="cuda")
torch.mm(x, x)
torch.cuda.synchronize()
waiting, free = [], []
for _ in range(25):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.mm(x, x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.relu(x)
        end.record()
    torch.cuda.synchronize()
    waiting.append(start.elapsed_time(end))
for _ in range(25):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.mm(x, x)
    with torch.cuda.stream(side):
        torch.relu(x)
        end.record(side)
    torch.cuda.synchronize()
    free.append(start.elapsed_time(end))
print(f"waiting {sorted(waiting)[12] * 1e3:.1f} us, free {sorted(free)[12] * 1e3:.1f} us")
