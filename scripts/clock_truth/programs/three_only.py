"""Three measurements and no more."""

import torch

a = torch.randn(1024, 1024, device="cuda")
for n in range(3):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    b = a @ a
    end.record()
    torch.cuda.synchronize()
    print(n, start.elapsed_time(end), "ms")
