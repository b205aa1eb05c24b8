"""The ways to put a clock around one call.  Worker side.

    latency   idle GPU; host clock around call and synchronise: what one request waits
    event     idle GPU; record, call, record, synchronise: what most benchmarks write
    device    behind a delay kernel that outlasts the enqueueing: GPU time only
    steady    calls queued one behind the other, events at both ends: throughput
    graph     the call captured, replayed between two records on an idle GPU
    do_bench  triton's own, which overwrites the L2; do_bench_cudagraph, which does not

A mode makes blocks of samples (int nanoseconds each).  Every block begins with one call that is not
counted, because another mode ran before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from nsysalign.addons.measure.device import Refused
from nsysalign.addons.measure.target import Workload, Wrong

NAMES = ("latency", "event", "device", "steady", "graph")
#: The state of the L2 that these make for themselves; a flush would be part of a throughput.
OWN_L2 = {"steady": "warm", "do_bench": "cold", "do_bench_cudagraph": "warm"}
TRITON = ("do_bench", "do_bench_cudagraph")
L2 = ("warm", "cold")
BLOCK_NS = 60e6
#: The delay kernel lasts this many times as long as the host needs to enqueue the call.
DELAY_FACTOR, LEAST_DELAY_US, LONGEST_DELAY_US = 2.5, 60.0, 200_000.0
#: This many late samples in a block make the delay longer; isolated ones are left out.
LATE_SHARE = 0.2
STEADY_NS, FILL, MOST_QUEUED = 20e6, 2, 512


@dataclass
class Mode:
    """One mode of one call: how it makes so many samples, and its blocks so far."""

    name: str
    l2: str
    block: Callable[[int], list[int]]
    call_ns: float
    blocks: list[list[int]] = field(default_factory=list)
    spent_ns: int = 0

    def size(self) -> int:
        """Samples in a block of about 60 ms."""
        return max(1, min(2_000, int(BLOCK_NS / max(self.call_ns, 1_000))))


class Modes:
    """Makes the modes of one workload on one device.  `call_ns`: about how long a call takes, warm.
    Raises Wrong where the call leaves nothing on the GPU."""

    def __init__(self, gpu: Any, work: Workload, call_ns: float) -> None:
        self.gpu, self.run, self.call_ns = gpu, work.run, call_ns
        self.start, self.end = gpu.event(), gpu.event()
        empty_ns, self.floor_ns = gpu.floor()
        # behind a delay kernel, an event pair around no work is as short as an empty one
        delay_us = max(LEAST_DELAY_US, min(DELAY_FACTOR * (call_ns / 1e3 + 20), 1e7))
        for _ in range(3):
            gpu.sync()
            between_ns, late = self._behind(delay_us)
            # late: it waits for the GPU; negative: the clock is wrong, as samples show
            if late or between_ns < 0 or between_ns > (empty_ns + self.floor_ns) / 2:
                return
        raise Wrong(
            "the call does no work on the current stream, where events are recorded: it returned, "
            "and nothing had been enqueued there (does it build the work instead of doing it?)"
        )

    def make(self, name: str, l2: str) -> Mode:
        """Raises Refused if the call cannot be measured in this mode."""
        if name in TRITON:
            graph = name == "do_bench_cudagraph"
            first = self.gpu.do_bench(
                self.run, graph
            )  # a refusal comes before anything is measured
            took_ns = max(BLOCK_NS, sum(first))
            return Mode(name, l2, lambda count: self.gpu.do_bench(self.run, graph), took_ns)
        if name == "device":
            return self._device(l2)
        if name == "steady":
            return self._steady()
        call = self.gpu.capture(self.run) if name == "graph" else self.run
        time_it = self._by_host if name == "latency" else self._by_pair

        def block(count: int) -> list[int]:
            call()
            samples = []
            for _ in range(count):
                if l2 == "cold":
                    self.gpu.flush()
                self.gpu.sync()
                samples.append(round(time_it(call)))
            return samples

        return Mode(name, l2, block, self.call_ns)

    def _by_host(self, call: Callable[[], Any]) -> float:
        now, sync = self.gpu.now, self.gpu.sync
        began = now()
        call()
        sync()
        return now() - began

    def _by_pair(self, call: Callable[[], Any]) -> float:
        start, end = self.start, self.end
        start.record()
        call()
        end.record()
        end.synchronize()
        return self.gpu.elapsed_ns(start, end)

    def _behind(self, delay_us: float) -> tuple[float, bool]:
        """(ns of an event pair behind a delay kernel, whether the delay was too short)."""
        self.gpu.delay(delay_us)
        self.start.record()
        self.run()
        self.end.record()
        late = self.start.query()
        self.end.synchronize()
        return self.gpu.elapsed_ns(self.start, self.end), late

    def _device(self, l2: str) -> Mode:
        gpu, enqueued = self.gpu, []
        for _ in range(7):
            gpu.sync()
            began = gpu.now()
            self.run()
            enqueued.append(gpu.now() - began)
        gpu.sync()
        delay_us = max(LEAST_DELAY_US, DELAY_FACTOR * (median(enqueued) / 1e3 + 20))

        def pairs(count: int) -> tuple[list[int], int]:
            """(samples, how many others came late)."""
            samples = []
            for _ in range(count):
                if l2 == "cold":
                    gpu.flush()
                ns, late = self._behind(delay_us)
                samples += [] if late else [round(ns)]
            return samples, count - len(samples)

        def block(count: int) -> list[int]:
            nonlocal delay_us
            self.run()
            gpu.sync()
            samples, late = pairs(count)
            if late > LATE_SHARE * count and delay_us < LONGEST_DELAY_US / 2:
                delay_us *= 2
            return samples

        pairs(1)
        while pairs(3)[1] > 1:
            if delay_us * 4 > LONGEST_DELAY_US:
                raise Refused(
                    "the call waits for the GPU (`nsysalign run` says where), or launches more "
                    "than the queue holds: no delay can hide its enqueueing"
                )
            delay_us *= 4
        return Mode("device", l2, block, self.call_ns + delay_us * 1e3)

    def _steady(self) -> Mode:
        queued = max(2, min(MOST_QUEUED, math.ceil(STEADY_NS / max(self.call_ns, 1_000))))

        def queue() -> None:
            for _ in range(queued):
                self.run()

        def block(count: int) -> list[int]:
            samples = []
            for _ in range(count):
                for _ in range(FILL):
                    self.run()
                samples.append(round(self._by_pair(queue) / queued))
            return samples

        return Mode("steady", "warm", block, self.call_ns * (queued + FILL))
