"""The ways to put a clock around one call.  Worker side; standard library only.

    latency   idle GPU; host clock around call and synchronise: what one request waits
    event     idle GPU; record, call, record, synchronise: what most benchmarks write
    device    behind a delay kernel that outlasts the enqueueing: GPU time only
    steady    calls queued one behind the other, events at both ends: throughput
    graph     the call captured, replayed between two records on an idle GPU
    transfer  as latency, with the inputs copied in and the outputs back

A mode makes blocks of samples (int nanoseconds each).  Every block begins with one call that is not counted, because another
mode ran before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from nsysalign.measure.cuda import Refused
from nsysalign.measure.failures import NoWork
from nsysalign.measure.target import Workload

NAMES = ("latency", "event", "device", "steady", "graph", "transfer")
BLOCK_NS = 60e6
#: The delay kernel lasts this many times as long as the host needs to enqueue the call.
DELAY_FACTOR, LEAST_DELAY_US, LONGEST_DELAY_US = 2.5, 60.0, 200_000.0
LONGEST_LOOK_US = 10e6
#: This many late samples in a row make the delay longer; isolated ones are left out and counted.
LATE_SHARE = 0.2
STEADY_NS, FILL = 20e6, 2
MOST_QUEUED, MOST_SETS = 512, 64
#: A synchronisation that takes this much longer than on an idle GPU has waited for work.
WAITED_NS = 20_000
#: And so much of the call, or it does not matter.
WAITED_SHARE = 0.005
#: How often that is looked at where it seems so, and how long the host sleeps, at least, until all work has ended.
LOOKS, PAUSE_S = 5, 0.002
ELSEWHERE = (
    "the call's work, or a part of it, is not on the current stream, where the events are recorded"
)
L2 = ("warm", "cold")


def mode_key(name: str, l2: str) -> str:
    """A mode's name; `event/cold` with a cold L2."""
    return name if l2 == "warm" else f"{name}/{l2}"


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
    caveats: list[str] = field(default_factory=list)
    checked_at: int = 0
    done: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name; `event/cold` with a cold L2."""
        return mode_key(self.name, self.l2)

    def size(self) -> int:
        """Samples in a block of about 60 ms."""
        return max(1, min(2_000, int(BLOCK_NS / max(self.call_ns, 1_000))))


class Modes:
    """Makes the modes of one workload on one device.  `call_ns`: about how long a call takes, warm."""

    def __init__(self, gpu: Any, work: Workload, call_ns: float) -> None:
        self.gpu, self.work, self.call_ns = gpu, work, call_ns
        self.start, self.end = gpu.event(), gpu.event()
        self._floor: tuple[float, float] | None = None
        self.elsewhere = self._looked()

    def make(self, name: str, l2: str) -> Mode:
        """Raises Refused if the call cannot be measured in this mode."""
        if self.elsewhere and name not in ("latency", "transfer"):
            raise Refused(ELSEWHERE)
        return getattr(self, f"_{name}")(l2)

    @property
    def floor(self) -> tuple[float, float]:
        """(an empty pair, a pair around an empty kernel), ns."""
        if self._floor is None:
            self._floor = self.gpu.floor()
        return self._floor

    def _looked(self) -> bool:
        """Whether work of the call is where no event sees it; NoWork where it leaves none on the GPU.

        One call is enough where the GPU is still busy when it returns.  What waits for the GPU, what takes the host
        longer than the GPU, and what does nothing there is told apart behind a delay kernel.
        """
        gpu, run, end = self.gpu, self.work.run, self.end
        idle = median(self._synchronise() for _ in range(5))
        run()
        began = gpu.now()
        end.record()
        end.synchronize()
        pending = gpu.now() - began
        if self._synchronise() > idle + self._matters_ns and self._left_behind():
            return True
        return pending <= idle + WAITED_NS and self._nothing_there(idle)

    def _synchronise(self) -> int:
        began = self.gpu.now()
        self.gpu.sync()
        return self.gpu.now() - began

    def _left_behind(self) -> bool:
        """Whether the GPU works on after an event behind the call, each time.  With nothing to wait for, the first
        synchronisation after a call takes longer than one in a loop, on a slow host by tens of microseconds (seen on an
        H100), so each is compared with one that comes when all work has ended."""
        waits: dict[bool, list[int]] = {True: [], False: []}
        for ended in (False, True) * (LOOKS if self.call_ns < 10e6 else 2):
            self.work.run()
            if ended:
                self.gpu.sleep(PAUSE_S + 2 * self.call_ns / 1e9)
            self.end.record()
            self.end.synchronize()
            waits[ended].append(self._synchronise())
        return min(waits[False]) > max(waits[True]) + self._matters_ns

    @property
    def _matters_ns(self) -> float:
        return max(WAITED_NS, WAITED_SHARE * self.call_ns)

    def _nothing_there(self, idle: float) -> bool:
        """Of a call behind which the GPU was idle at once: whether its work is elsewhere; NoWork where there is none."""
        gpu, start, end = self.gpu, self.start, self.end
        delay_us = max(LEAST_DELAY_US, DELAY_FACTOR * (self.call_ns / 1e3 + 20))
        for _ in range(3):
            gpu.sync()
            gpu.delay(min(delay_us, LONGEST_LOOK_US))
            start.record()
            self.work.run()
            end.record()
            late = start.query()
            end.synchronize()
            if not late:
                break
        between = gpu.elapsed_ns(start, end)
        if late or between < 0 or between > sum(self.floor) / 2:
            return False  # it waits for the GPU; the clock is wrong, as its samples will show; it is short
        return self._elsewhere(idle)

    def _before(self, l2: str) -> Callable[[], None]:
        gpu = self.gpu
        if l2 == "warm":
            return gpu.sync

        def flushed() -> None:
            gpu.flush()
            gpu.sync()

        return flushed

    def _latency(self, l2: str) -> Mode:
        return self._by_host("latency", l2, self.work.run)

    def _transfer(self, l2: str) -> Mode:
        return self._by_host(
            "transfer", l2, self.gpu.with_transfer(self.work.call, self.work.inputs)
        )

    def _by_host(self, name: str, l2: str, call: Callable[[], Any]) -> Mode:
        now, sync, before = self.gpu.now, self.gpu.sync, self._before(l2)

        def block(count: int) -> list[int]:
            out = []
            call()
            for _ in range(count):
                before()
                began = now()
                call()
                sync()
                out.append(now() - began)
            return out

        return Mode(name, l2, block, self.call_ns)

    def _event(self, l2: str) -> Mode:
        return Mode("event", l2, self._pairs(self.work.run, self._before(l2)), self.call_ns)

    def _graph(self, l2: str) -> Mode:
        replay = self.gpu.capture(self.work.run)
        return Mode("graph", l2, self._pairs(replay, self._before(l2)), self.call_ns)

    def _pairs(
        self, call: Callable[[], Any], before: Callable[[], None]
    ) -> Callable[[int], list[int]]:
        gpu, start, end = self.gpu, self.start, self.end

        def block(count: int) -> list[int]:
            out = []
            call()
            for _ in range(count):
                before()
                start.record()
                call()
                end.record()
                end.synchronize()
                out.append(round(gpu.elapsed_ns(start, end)))
            return out

        return block

    def _device(self, l2: str) -> Mode:
        gpu, call, start, end = self.gpu, self.work.run, self.start, self.end
        delay_us = self._delay_us()
        mode = Mode("device", l2, list, self.call_ns + delay_us * 1e3)

        def one() -> tuple[int, bool]:
            if l2 == "cold":
                gpu.flush()
            gpu.delay(mode.facts["delay_us"])
            start.record()
            call()
            end.record()
            late = start.query()
            end.synchronize()
            return round(gpu.elapsed_ns(start, end)), late

        def block(count: int) -> list[int]:
            call()
            gpu.sync()
            found = [one() for _ in range(count)]
            late = sum(was for _, was in found)
            mode.late += late
            if late > LATE_SHARE * count and mode.facts["delay_us"] < LONGEST_DELAY_US / 2:
                mode.facts["delay_us"] *= 2
                mode.call_ns = self.call_ns + mode.facts["delay_us"] * 1e3
            return [ns for ns, was in found if not was]

        mode.block = block
        mode.facts |= {
            "delay_us": delay_us,
            "empty_pair_ns": round(self.floor[0]),
            "empty_kernel_ns": round(self.floor[1]),
        }
        self._outlasts(mode, one)
        return mode

    def _delay_us(self) -> float:
        """Long enough for the host to enqueue the call meanwhile."""
        took = []
        for _ in range(7):
            self.gpu.sync()
            began = self.gpu.now()
            self.work.run()
            took.append(self.gpu.now() - began)
        self.gpu.sync()
        return max(LEAST_DELAY_US, DELAY_FACTOR * (median(took) / 1e3 + 20))

    def _outlasts(self, mode: Mode, one: Callable[[], tuple[int, bool]]) -> None:
        """Refused where no delay outlasts the call."""
        while True:
            one()
            began = self.gpu.now()
            tried = [one() for _ in range(3)]
            took_us = (self.gpu.now() - began) / 3e3
            if sum(late for _, late in tried) < 2:
                break
            if (
                mode.facts["delay_us"] * 4 > LONGEST_DELAY_US
                or mode.facts["delay_us"] > 8 * took_us
            ):
                raise Refused(self._blocks())
            mode.facts["delay_us"] *= 4
        mode.call_ns = self.call_ns + mode.facts["delay_us"] * 1e3

    def _blocks(self) -> str:
        where = self.gpu.blocking_calls(self.work.run)
        if where:
            return f"the call waits for the GPU ({', '.join(where[:3])}): no delay can hide its enqueueing"
        return "the call waits for the GPU, or launches more than the queue holds (about 1,000): no delay can hide its enqueueing"

    def _elsewhere(self, idle: float) -> bool:
        """Nothing on the current stream.  Another stream's work shows in how long a synchronisation takes, or else NoWork."""
        waits = []
        for _ in range(15 if self.call_ns < 10e6 else 3):
            self.gpu.sync()
            self.work.run()
            waits.append(self._synchronise())
        if median(waits) > idle + 3_000:
            return True
        raise NoWork(
            "the call does no work on the GPU: it returned, and nothing had been enqueued (does it build the work instead of doing it?)"
        )

    def _steady(self, l2: str) -> Mode:
        gpu, start, end = self.gpu, self.start, self.end
        calls = self._rotating() if l2 == "cold" else [self.work.run]
        queued = max(2, min(MOST_QUEUED, math.ceil(STEADY_NS / max(self.call_ns, 1_000))))
        many = len(calls)

        def block(count: int) -> list[int]:
            out = []
            for _ in range(count):
                for k in range(FILL):
                    calls[k % many]()
                start.record()
                for k in range(queued):
                    calls[k % many]()
                end.record()
                end.synchronize()
                out.append(round(gpu.elapsed_ns(start, end) / queued))
            return out

        mode = Mode("steady", l2, block, self.call_ns * (queued + FILL))
        mode.facts["calls_per_sample"] = queued
        return mode

    def _rotating(self) -> list[Callable[[], Any]]:
        """The call on sets of inputs that together are twice the L2, so that each is cold when it comes again."""
        size = self.gpu.bytes_of(self.work.inputs)
        if not size:
            raise Refused(
                "a cold L2 in mode steady needs inputs that can be rotated: hand them over with nsysalign.Workload"
            )
        sets = max(2, math.ceil(2 * self.gpu.l2 / size) + 1)
        if sets > MOST_SETS:
            raise Refused(
                f"its inputs are so small that {sets:,} copies would be needed to leave the L2"
            )
        call = self.work.call
        return [
            lambda given=given: call(*given) for given in self.gpu.copies(self.work.inputs, sets)
        ]
