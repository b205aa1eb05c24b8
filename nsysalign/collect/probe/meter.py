"""How fast the host currently is: the time of a fixed piece of work, measured while nothing is being timed.

A host is not always equally fast: cores are shared, clocks change.  Two runs of a program, or two parts of one run, can differ
by half for that reason alone.  The work is the same in every run, under nsys or not, and calls nothing that nsys traces; it
runs in C without a line of Python, so that no tracer, debugger or coverage tool slows it down.  The shortest of three tries
counts: the first one warms the caches, and an interrupt hits at most one of them.  It takes 17 us (23 after a pause; measured
on a Xeon) at most every 50 ms, after an `elapsed_time` when no pair is open in any thread.  When the probe calibrates it is
read twenty times in a row.
"""

from __future__ import annotations

from typing import Any

from . import rawtime as time
from .layout import METER

#: Identifies the work: times of different kinds of work cannot be compared.
WORK = 1
EVERY_NS = 50_000_000
_TRIES = 3
_sum, _numbers = sum, range(500)  # the program may replace them


def measure() -> tuple[int, int]:
    """Do the work.  Returns when it began (CLOCK_MONOTONIC) and how long it took, ns."""
    clock = time.perf_counter_ns
    best, began = -1, 0
    for _ in range(_TRIES):
        t0 = clock()
        _sum(_numbers)
        took = clock() - t0
        if best < 0 or took < best:
            best, began = took, t0
    return began, best


def read(rt: Any) -> int:
    """Do the work and log it.  Returns when it began."""
    began, took = measure()
    rt.write(METER, 0, next(rt.count), t0=began, t1=began + took, a=WORK)
    return began
