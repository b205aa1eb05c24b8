"""GPU work whose budget is known by construction, as a plain user script: run it under `nsysalign
run`.

Each case prints one JSON line {"case", "cause", "us"}: what dominates the interval and how long
that must be.  Kernels spin for a set number of nanoseconds of the GPU's own clock; host parts are
timed by a host clock around the very call; copies are timed by an event pair behind a delay, where
the host has run ahead and the pair reads the GPU alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import sys
import time

import torch

import nsysalign

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kernels import spin

REPEATS = 10
COPY = 64 << 20


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def gpu_time_us(work) -> float:
    """GPU time of `work` alone: behind a delay long enough that everything is enqueued when it
    starts.

    The least of ten.
    """
    return min(once_us(work) for _ in range(10))


def once_us(work) -> float:
    a, b = event(), event()
    spin(2000)
    a.record()
    work()
    b.record()
    torch.cuda.synchronize()
    return a.elapsed_time(b) * 1e3


def timed(name: str, work, before=lambda: None, repeats: int = REPEATS) -> None:
    """`work` between two events, each repetition in its own region."""
    for _ in range(repeats):
        torch.cuda.synchronize()
        before()
        with nsysalign.region(name):
            a, b = event(), event()
            a.record()
            work()
            b.record()
        torch.cuda.synchronize()
        a.elapsed_time(b)


def known(case: str, cause: str, us: float | list[float]) -> None:
    """`us` may be a list: one value per repetition."""
    print("KNOWN " + json.dumps({"case": case, "cause": cause, "us": us}), flush=True)


def host_busy(us: float) -> None:
    """Keep the host busy: time.sleep is too coarse."""
    end = time.perf_counter_ns() + int(us * 1e3)
    while time.perf_counter_ns() < end:
        pass


def cuda_runtime() -> ctypes.CDLL:
    """The very libcudart that torch has loaded."""
    with open("/proc/self/maps") as maps:
        return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart" in line))


class Stopwatch:
    """Host time of one call, per repetition."""

    def __init__(self, call) -> None:
        self.call, self.us = call, []

    def __call__(self):
        t = time.perf_counter_ns()
        out = self.call()
        self.us.append((time.perf_counter_ns() - t) / 1e3)
        return out


def kernels_and_host(side: torch.cuda.Stream) -> None:
    timed("spin", lambda: spin(200), before=lambda: spin(1000))
    known("spin", "kernel", 200)
    # The way into Python and out of it is the host's, too: 6 us beside torch.cuda._sleep, whose own
    # side is thin, and 20 on a slow machine.  So the host is busy for much longer than that.
    busy = Stopwatch(lambda: host_busy(3000))
    timed("host_busy", lambda: (busy(), torch.cuda._sleep(100_000)))
    known("host_busy", "host", busy.us)
    timed("sync_inside", lambda: (spin(500), torch.cuda.synchronize(), spin(200)))
    known("sync_inside", "kernel", 700)
    runtime, pointer = cuda_runtime(), ctypes.c_void_p()
    malloc = Stopwatch(
        lambda: runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(512 << 20))
    )
    # What ctypes and the profiler take around a call, 3 us or 10, as the same call shows that
    # allocates nothing
    nothing = Stopwatch(
        lambda: runtime.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(0))
    )
    timed(
        "allocation",
        lambda: (malloc(), nothing(), spin(50)),
        before=lambda: runtime.cudaFree(pointer),
    )
    runtime.cudaFree(pointer)
    around = statistics.median(nothing.us)
    known("allocation", "api", [us - around for us in malloc.us])


def copied(case: str, copy) -> None:
    """A copy that needs no host, known by another right before it: 7 % longer for a while when a
    neighbour uses the bus (an H100)."""
    nothing, before = gpu_time_us(lambda: None), []
    timed(case, copy, before=lambda: before.append(once_us(copy)))
    known(case, "memcpy", [us - nothing for us in before])


def copies() -> None:
    device = torch.empty(COPY, dtype=torch.uint8, device="cuda")
    pinned, pageable = (
        torch.empty(COPY, dtype=torch.uint8, pin_memory=True),
        torch.ones(COPY, dtype=torch.uint8),
    )
    device.copy_(pageable)
    copied("pinned", lambda: device.copy_(pinned, non_blocking=True))
    copy = Stopwatch(lambda: device.copy_(pageable))
    timed("pageable", copy)
    known("pageable", "memcpy", copy.us)
    copied("pinned_to_host", lambda: pinned.copy_(device, non_blocking=True))


def other_streams(side: torch.cuda.Stream) -> None:
    begun = []

    def wait_for_side() -> None:
        with torch.cuda.stream(side):
            spin(1000)
        begun.append(time.perf_counter_ns())
        torch.cuda.current_stream().wait_stream(side)
        spin(50)
        begun[-1] = (time.perf_counter_ns() - begun[-1]) / 1e3

    timed("dependency", wait_for_side)
    # the wait begins when the waiting kernel has been issued
    known("dependency", "queued", [1000 - us for us in begun])

    beside = []

    def whole_gpu_beside() -> None:
        with torch.cuda.stream(side):
            spin(1000, whole_gpu=True)
        beside.append(time.perf_counter_ns())

    def whole_gpu_too() -> None:
        spin(100, whole_gpu=True)
        beside[-1] = (time.perf_counter_ns() - beside[-1]) / 1e3

    # the other stream holds every thread slot of the GPU when the timed kernel is issued
    timed("contention", whole_gpu_too, before=whole_gpu_beside)
    known("contention", "queued", [1000 - us for us in beside])

    def two_streams() -> None:
        for _ in range(REPEATS):
            torch.cuda.synchronize()
            with nsysalign.region("two_streams"):
                a, b = event(), event()
                a.record()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    spin(1000)
                    b.record(side)
            torch.cuda.synchronize()
            a.elapsed_time(b)

    two_streams()
    known("two_streams", "kernel", 1000)


def graph_of_spins() -> None:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            torch.cuda._sleep(20_000)
    graph.replay()
    torch.cuda.synchronize()
    timed("graph", graph.replay, before=lambda: spin(1000))
    known("graph", "graph", gpu_time_us(graph.replay) - gpu_time_us(lambda: None))


def main() -> None:
    torch.zeros(1, device="cuda")
    side = torch.cuda.Stream()
    spin(10), spin(10, whole_gpu=True), torch.cuda.synchronize()
    kernels_and_host(side)
    copies()
    other_streams(side)
    graph_of_spins()
    small = torch.ones(64, device="cuda")
    timed("small50", lambda: [small.add_(1) for _ in range(50)])
    timed("item", lambda: (spin(100), small[0].item(), spin(100)))
    known("item", "kernel", 200)
    timed("empty", lambda: None)
    timed("empty_queued", lambda: None, before=lambda: spin(500))


if __name__ == "__main__":
    main()
