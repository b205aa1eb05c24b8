"""The same work on the GPU every time, whoever watches: where do its events lie to each other?

Kernels that spin on the GPU's own timer, queued behind a long one, so that the host plays no part; two streams.
compare_positions.py compares runs of it: without nsys, under nsys, with event tracing.
"""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from stamps import Stamps

side = torch.cuda.Stream()
stamps = Stamps()
source = torch.ones(16 << 20, dtype=torch.uint8, device="cuda")
target = torch.empty_like(source)


def event():
    return torch.cuda.Event(enable_timing=True)


def block() -> list:
    """Ten events, in the order in which the GPU reaches them."""
    marks = [event() for _ in range(10)]
    torch.cuda._sleep(4_000_000)  # about 2 ms: all of it is queued before any of it runs
    stamps.stamp(10_000)
    marks[0].record()
    stamps.stamp(20_000)
    marks[1].record()
    marks[2].record()  # consecutive
    stamps.stamp(5_000)
    stamps.stamp(5_000)
    marks[3].record()
    target.copy_(source)
    marks[4].record()  # behind a copy
    stamps.stamp(10_000)
    marks[5].record()
    side.wait_event(marks[5])
    with torch.cuda.stream(side):
        stamps.stamp(15_000)
        marks[6].record()  # behind the other stream's event
    torch.cuda.current_stream().wait_event(marks[6])
    marks[7].record()  # behind nothing but a wait
    stamps.stamp(5_000)
    marks[8].record()
    stamps.stamp(40_000)
    marks[9].record()
    return marks


block(), torch.cuda.synchronize()
stamps.read()
every = []
for _ in range(60):
    marks = block()
    torch.cuda.synchronize()
    every.append(marks)
    for one, two in itertools.pairwise(marks):
        one.elapsed_time(two)
    marks[0].elapsed_time(marks[-1])
print(f"{len(every)} blocks, {sorted(m[0].elapsed_time(m[-1]) for m in every)[30] * 1e3:.2f} us")
