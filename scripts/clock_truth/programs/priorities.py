"""A small kernel on an urgent stream beside a stream full of large ones."""

import torch

low, high = torch.cuda.Stream(priority=0), torch.cuda.Stream(priority=-1)
large = torch.randn(4096, 4096, dtype=torch.half, device="cuda")
small = torch.randn(256, 256, dtype=torch.half, device="cuda")
torch.mm(large, large), torch.mm(small, small)
torch.cuda.synchronize()
for name, stream in (("urgent", high), ("ordinary", low)):
    background = torch.cuda.Stream(priority=0)
    times = []
    for _ in range(25):
        with torch.cuda.stream(background):
            for _ in range(4):
                torch.mm(large, large)
        with torch.cuda.stream(stream):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            torch.mm(small, small)
            torch.relu_(small)
            end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
        torch.cuda.synchronize()
    print(f"{name}: {sorted(times)[12] * 1e3:.1f} us")
