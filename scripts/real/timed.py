"""What the drivers measure where there is a GPU."""

import torch


def pairs(count: int = 20) -> bool:
    """Time small kernels by events, in this process and on its current device."""
    x = torch.ones(512, 512, device="cuda")
    times = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        x.mul_(1.0).add_(0.0)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return min(times) > 0
