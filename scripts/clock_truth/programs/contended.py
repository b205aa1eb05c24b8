"""Two streams that fight for the same multiprocessors, both timed."""

import torch

first, second = torch.cuda.Stream(), torch.cuda.Stream()
large = torch.randn(4096, 4096, dtype=torch.half, device="cuda")
medium = torch.randn(1 << 24, device="cuda")
torch.mm(large, large), medium.sin()
torch.cuda.synchronize()
one, two = [], []
for n in range(30):
    with torch.cuda.stream(first):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(2 + n % 3):
            torch.mm(large, large)
        b.record()
    with torch.cuda.stream(second):
        c, d = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        c.record()
        medium.sin()
        medium.cos()
        d.record()
    torch.cuda.synchronize()
    one.append(a.elapsed_time(b))
    two.append(c.elapsed_time(d))
print(f"first {sorted(one)[15]:.3f} ms, second {sorted(two)[15]:.3f} ms")
