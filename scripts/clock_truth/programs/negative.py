"""The events mixed up: the end is recorded before the start, in one stream and across two."""

import torch

side = torch.cuda.Stream()
x = torch.randn(1024, 1024, dtype=torch.half, device="cuda")
torch.mm(x, x)
torch.cuda.synchronize()
times = []
for n in range(30):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    end.record(side if n % 2 else None)
    torch.mm(x, x)
    start.record()
    torch.cuda.synchronize()
    times.append(start.elapsed_time(end))
    good = torch.cuda.Event(enable_timing=True)
    good.record()
    good.synchronize()
    start.elapsed_time(good)
print(f"median {sorted(times)[15] * 1e3:.1f} us")
