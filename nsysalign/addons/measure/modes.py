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
from functools import cached_property
from statistics import median
from typing import Any

from nsysalign.addons.measure.cuda import Refused
from nsysalign.addons.measure.failures import NoWork
from nsysalign.addons.measure.target import Workload

NAMES = ("latency", "event", "device", "steady", "graph")
#: triton's, and the state of the L2 that each makes for itself.
TRITON = {"do_bench": "cold", "do_bench_cudagraph": "warm"}
L2 = ("warm", "cold")
BLOCK_NS = 60e6
#: The delay kernel lasts this many times as long as the host needs to enqueue the call.
DELAY_FACTOR, LEAST_DELAY_US, LONGEST_DELAY_US = 2.5, 60.0, 200_000.0
LONGEST_LOOK_US = 10e6
#: This many late samples in a block make the delay longer; isolated ones are left out and counted.
LATE_SHARE = 0.2
STEADY_NS, FILL = 20e6, 2
MOST_QUEUED = 512


def profiled(call: str, l2: str, mode: str = "") -> str:
    """The region of a mode in the profiled worker: "call", "batch=8 cold device"."""
    return " ".join(filter(None, (call, l2 if l2 == "cold" else "", mode)))


@dataclass
class Mode:
    """One mode of one call: its samples so far."""

    name: str
    l2: str
    block: Callable[[int], list[int]]
    call_ns: float
    samples: list[int] = field(default_factory=list)
    spent_ns: int = 0
    late: int = 0
    checked_at: int = 0
    done: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    def size(self) -> int:
        """Samples in a block of about 60 ms."""
        return max(1, min(2_000, int(BLOCK_NS / max(self.call_ns, 1_000))))


class Modes:
    """Makes the modes of one workload on one device.  `call_ns`: about how long a call takes, warm.
    Raises NoWork where the call leaves nothing on the GPU."""

    def __init__(self, gpu: Any, work: Workload, call_ns: float) -> None:
        self.gpu, self.work, self.call_ns = gpu, work, call_ns
        self.start, self.end = gpu.event(), gpu.event()
        self._check_work()

    def make(self, name: str, l2: str) -> Mode:
        """Raises Refused if the call cannot be measured in this mode."""
        gpu, run = self.gpu, self.work.run
        if name in TRITON:
            graph = name == "do_bench_cudagraph"
            first = gpu.do_bench(run, graph)  # a refusal comes before anything is measured
            took_ns = max(BLOCK_NS, sum(first))
            return Mode(name, l2, lambda count: gpu.do_bench(run, graph), took_ns)
        if name == "device":
            return self._device(l2)
        if name == "steady":
            return self._steady()
        if name == "latency":
            return self._single(name, l2, run, self._by_host)
        call = gpu.capture(run) if name == "graph" else run
        return self._single(name, l2, call, self._by_pair)

    @cached_property
    def floor(self) -> tuple[float, float]:
        """(an empty pair, a pair around an empty kernel), ns."""
        return self.gpu.floor()

    def _check_work(self) -> None:
        """Raises NoWork if the call leaves nothing on the current stream: an event pair around it,
        behind a delay kernel, is as short as an empty one."""
        gpu = self.gpu
        delay_us = max(LEAST_DELAY_US, DELAY_FACTOR * (self.call_ns / 1e3 + 20))
        for _ in range(3):
            gpu.sync()
            between_ns, late = self._behind(min(delay_us, LONGEST_LOOK_US), self.work.run)
            # late: it waits for the GPU; negative: the clock is wrong, as samples show
            if late or between_ns < 0 or between_ns > sum(self.floor) / 2:
                return
        raise NoWork(
            "the call does no work on the current stream, where events are recorded: it returned, "
            "and nothing had been enqueued there (does it build the work instead of doing it?)"
        )

    def _behind(self, delay_us: float, call: Callable[[], Any]) -> tuple[float, bool]:
        """(ns of an event pair behind a delay kernel, whether the delay was too short)."""
        self.gpu.delay(delay_us)
        self.start.record()
        call()
        self.end.record()
        late = self.start.query()
        self.end.synchronize()
        return self.gpu.elapsed_ns(self.start, self.end), late

    # --- the modes ---

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

    def _single(
        self, name: str, l2: str, call: Callable[[], Any], time_it: Callable[..., float]
    ) -> Mode:
        """One call after the other, each on an idle GPU."""

        def block(count: int) -> list[int]:
            call()
            values = []
            for _ in range(count):
                if l2 == "cold":
                    self.gpu.flush()
                self.gpu.sync()
                values.append(round(time_it(call)))
            return values

        return Mode(name, l2, block, self.call_ns)

    def _device(self, l2: str) -> Mode:
        gpu, call = self.gpu, self.work.run
        enqueued = []
        for _ in range(7):
            gpu.sync()
            began = gpu.now()
            call()
            enqueued.append(gpu.now() - began)
        gpu.sync()
        delay_us = max(LEAST_DELAY_US, DELAY_FACTOR * (median(enqueued) / 1e3 + 20))
        pair, kernel = map(round, self.floor)
        facts = {"delay_us": delay_us, "empty_pair_ns": pair, "empty_kernel_ns": kernel}
        mode = Mode("device", l2, list, 0.0, facts=facts)

        def one() -> tuple[int, bool]:
            if l2 == "cold":
                gpu.flush()
            ns, late = self._behind(facts["delay_us"], call)
            return round(ns), late

        def block(count: int) -> list[int]:
            call()
            gpu.sync()
            pairs = [one() for _ in range(count)]
            late = sum(was for _, was in pairs)
            mode.late += late
            if late > LATE_SHARE * count and facts["delay_us"] < LONGEST_DELAY_US / 2:
                facts["delay_us"] *= 2
                mode.call_ns = self.call_ns + facts["delay_us"] * 1e3
            return [ns for ns, was in pairs if not was]

        while True:  # refused where no delay outlasts the call
            one()
            began = gpu.now()
            late = sum(one()[1] for _ in range(3))
            took_us, delay_us = (gpu.now() - began) / 3e3, facts["delay_us"]
            if late < 2:
                break
            if delay_us * 4 > LONGEST_DELAY_US or delay_us > 8 * took_us:
                lines = ", ".join(gpu.blocking_calls(call)[:3])
                queue = ", or launches more than the queue holds (about 1,000)"
                why = f" ({lines})" if lines else queue
                raise Refused(f"the call waits for the GPU{why}: no delay can hide its enqueueing")
            facts["delay_us"] *= 4
        mode.block, mode.call_ns = block, self.call_ns + delay_us * 1e3
        return mode

    def _steady(self) -> Mode:
        call, start, end = self.work.run, self.start, self.end
        queued = max(2, min(MOST_QUEUED, math.ceil(STEADY_NS / max(self.call_ns, 1_000))))

        def block(count: int) -> list[int]:
            values = []
            for _ in range(count):
                for _ in range(FILL):
                    call()
                start.record()
                for _ in range(queued):
                    call()
                end.record()
                end.synchronize()
                values.append(round(self.gpu.elapsed_ns(start, end) / queued))
            return values

        taken_ns = self.call_ns * (queued + FILL)
        return Mode("steady", "warm", block, taken_ns, facts={"calls_per_sample": queued})
