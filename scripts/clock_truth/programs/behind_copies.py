"""Measurements while large copies are still under way: on the same stream, on another, in both directions."""

import torch

pinned = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
back = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
pageable = torch.ones(8 << 20, dtype=torch.uint8)
device, other = (torch.empty(64 << 20, dtype=torch.uint8, device="cuda") for _ in range(2))
matrix = torch.randn(1024, 1024, dtype=torch.half, device="cuda")
copies = torch.cuda.Stream()
torch.mm(matrix, matrix)


def same_stream():
    device.copy_(pinned, non_blocking=True)


def to_device():
    with torch.cuda.stream(copies):
        device.copy_(pinned, non_blocking=True)


def to_host():
    with torch.cuda.stream(copies):
        back.copy_(other, non_blocking=True)


def both():
    to_device()
    back.copy_(other, non_blocking=True)


def from_pageable():
    other[: 8 << 20].copy_(pageable)


for before in (same_stream, to_device, to_host, both, from_pageable):
    times = []
    for _ in range(15):
        torch.cuda.synchronize()
        before()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        torch.mm(matrix, matrix)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    print(f"{before.__name__}: {sorted(times)[7] * 1e3:.1f} us")
