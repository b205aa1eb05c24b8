"""GPU work whose budget is known by construction, as a plain user script: run it under `nsysalign run`.

Each case prints one JSON line {"case", "cause", "us"}: what dominates the interval and how long it must be, measured
independently of nsysalign: by a host clock around the call that causes it, or by an event pair behind a long delay
(the host has run ahead there, so that the pair reads GPU time alone).
"""

from __future__ import annotations

import json
import sys
import time

import torch

import nsysalign

REPEATS = 10


def event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def gpu_time_us(work, repeats: int = 5) -> float:
    """GPU time of `work` alone: behind a delay long enough that everything is enqueued when it starts."""
    values = []
    for _ in range(repeats):
        a, b = event(), event()
        torch.cuda._sleep(4_000_000)
        a.record()
        work()
        b.record()
        torch.cuda.synchronize()
        values.append(a.elapsed_time(b) * 1e3)
    return sorted(values)[len(values) // 2]


def timed(name: str, work, before=lambda: None, stream=None, repeats: int = REPEATS) -> float:
    """Median elapsed time (us) of `work` between two events, each repetition in its own region."""
    values = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        before()
        with nsysalign.region(name):
            a, b = event(), event()
            a.record(stream) if stream else a.record()
            work()
            b.record(stream) if stream else b.record()
        torch.cuda.synchronize()
        values.append(a.elapsed_time(b) * 1e3)
    return sorted(values)[len(values) // 2]


def known(case: str, cause: str, us: float) -> None:
    print("KNOWN " + json.dumps({"case": case, "cause": cause, "us": us}), flush=True)


def spin_for(us: float) -> None:
    """Keep the host busy: time.sleep is too coarse for 300 us."""
    end = time.perf_counter_ns() + int(us * 1e3)
    while time.perf_counter_ns() < end:
        pass


def main() -> None:
    torch.manual_seed(0)
    torch.zeros(1, device="cuda")
    side = torch.cuda.Stream()
    spin = lambda: torch.cuda._sleep(400_000)  # noqa: E731
    long_spin = lambda: torch.cuda._sleep(2_000_000)  # noqa: E731
    spin(), torch.cuda.synchronize()
    one, longer = (
        gpu_time_us(spin) - gpu_time_us(lambda: None),
        gpu_time_us(long_spin) - gpu_time_us(lambda: None),
    )

    timed("spin", spin, before=lambda: torch.cuda._sleep(1_000_000))
    known("spin", "kernel", one)

    timed("host_sleep", lambda: (spin_for(300), spin()))
    known("host_sleep", "host", 300.0)

    timed("sync_inside", lambda: (long_spin(), torch.cuda.synchronize(), spin()))
    known("sync_inside", "kernel", longer + one)

    size = 64 << 20
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pinned_us = gpu_time_us(lambda: device.copy_(pinned, non_blocking=True)) - gpu_time_us(lambda: None)
    timed("pinned", lambda: device.copy_(pinned, non_blocking=True))
    known("pinned", "memcpy", pinned_us)

    pageable = torch.empty(size, dtype=torch.uint8)
    pageable.fill_(1)
    device.copy_(pageable)
    spent = []

    def copy_pageable() -> None:
        t = time.perf_counter_ns()
        device.copy_(pageable)
        spent.append((time.perf_counter_ns() - t) / 1e3)

    timed("pageable", copy_pageable)
    known("pageable", "memcpy", sorted(spent)[len(spent) // 2])

    def wait_for_side() -> None:
        with torch.cuda.stream(side):
            long_spin()
        torch.cuda.current_stream().wait_stream(side)
        spin()

    timed("other_stream", wait_for_side)
    known("other_stream", "queued", longer)

    work = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)
    out, out2 = torch.empty_like(work), torch.empty_like(work)
    torch.mm(work, work, out=out), torch.mm(work, work, out=out2), torch.cuda.synchronize()
    big = gpu_time_us(lambda: torch.mm(work, work, out=out)) - gpu_time_us(lambda: None)

    def fill_the_gpu() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                torch.mm(work, work, out=out2)

    timed("contended", spin, before=fill_the_gpu)
    known("contended", "kernel", one)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            torch.cuda._sleep(20_000)
    graph.replay(), torch.cuda.synchronize()
    graph_us = gpu_time_us(graph.replay) - gpu_time_us(lambda: None)
    timed("graph", graph.replay)
    known("graph", "graph", graph_us)

    spent.clear()

    def allocate() -> None:
        t = time.perf_counter_ns()
        x = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
        spent.append((time.perf_counter_ns() - t) / 1e3)
        spin()
        del x

    timed("allocation", allocate, before=torch.cuda.empty_cache)
    known("allocation", "api", sorted(spent)[len(spent) // 2])

    def two_streams() -> None:
        for _ in range(REPEATS):
            torch.cuda.synchronize()
            with nsysalign.region("two_streams"):
                a, b = event(), event()
                a.record()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    long_spin()
                    b.record(side)
            torch.cuda.synchronize()
            a.elapsed_time(b)

    two_streams()
    known("two_streams", "kernel", longer)

    small = torch.ones(64, device="cuda")

    def launches() -> None:
        for _ in range(50):
            small.add_(1)

    timed("small50", launches)
    timed("item", lambda: (spin(), small[0].item(), spin()))
    timed("empty", lambda: None)
    timed("empty_queued", lambda: None, before=long_spin)
    timed("memset", lambda: device.zero_())
    known("memset", "kernel", gpu_time_us(lambda: device.zero_()) - gpu_time_us(lambda: None))
    chain = [event() for _ in range(21)]
    long_spin()
    for e in chain:
        e.record()
        spin()
    torch.cuda.synchronize()
    for a, b in zip(chain, chain[1:], strict=False):
        a.elapsed_time(b)
    print("contended kernel beside", round(big, 1), "us matmuls", file=sys.stderr)


if __name__ == "__main__":
    main()
