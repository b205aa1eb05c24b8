"""A device that exists only in arithmetic, for tests with a known truth: launches, GPU time, clock,
memory, failures.

Time is virtual: `now()` is this process's simulated host clock, which launching, waiting and
reading advance.  A function under test asks `device()` for it:

    def make(batch):
        gpu = device()
        gpu.allocate(100 << 20)
        return lambda: [gpu.launch(20_000) for _ in range(5)]
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from nsysalign.addons.measure.clocks import Refused

LAUNCH_NS, RECORD_NS, READ_NS, LATENCY_NS = 4_000, 3_000, 45, 6_000
#: GPU-only distances (facts of an H200): record to record, and what a kernel's launch adds between
#: two.
SPACING_NS, GAP_NS, GRAPH_NS = 1_300, 1_300, 7_000
TOTAL = 80 << 30

_device: Device | None = None


class OutOfMemoryError(RuntimeError):
    """Named like torch's."""


def device() -> Device:
    """The one device of this process."""
    global _device
    if _device is None:
        _device = Device()
    return _device


class Event:
    """Stamped when the device reaches it."""

    def __init__(self, gpu: Device) -> None:
        self._gpu, self.at = gpu, 0.0

    def record(self) -> None:
        """Record on the stream, behind the work already there."""
        gpu = self._gpu
        gpu.host += RECORD_NS
        self.at = gpu.busy_until = max(
            gpu.busy_until + SPACING_NS, gpu.host + LATENCY_NS - RECORD_NS
        )

    def query(self) -> bool:
        return self._gpu.host >= self.at

    def synchronize(self) -> None:
        self._gpu.host = max(self._gpu.host, self.at) + 2_000


class Device:
    """One stream, and another that events do not see.  `noise` is the relative deviation of kernel
    times."""

    name, l2, total = "simulated device", 50 << 20, TOTAL

    def __init__(self, free_share: float | None = None, seed: int = 0) -> None:
        global _device
        self.host = 1e9
        self.busy_until = self.elsewhere_until = 0.0
        self.limit = TOTAL * (free_share or 1.0)
        self.allocated = self.peak = 0
        self.noise = self.drift_per_s = 0.0
        self.cold_factor = 1.0
        self._cold = False
        self._captured: list[float] | None = None
        self.random = random.Random(seed)
        _device = self

    # --- what a program does ---

    def launch(self, gpu_ns: float) -> None:
        if self._captured is not None:
            self._captured.append(gpu_ns)
            return
        self.host += LAUNCH_NS
        self._execute(gpu_ns, GAP_NS)

    def launch_elsewhere(self, gpu_ns: float) -> None:
        """A kernel of this length on another stream, for which only `sync` waits."""
        self.host += LAUNCH_NS
        self.elsewhere_until = max(self.elsewhere_until, self.host + LATENCY_NS) + gpu_ns

    def work_on_the_host(self, ns: float) -> None:
        self.host += ns

    def _execute(self, gpu_ns: float, gap: float) -> None:
        factor = 1 + self.noise * self.random.gauss(0, 1) + self.drift_per_s * (self.host / 1e9 - 1)
        factor *= self.cold_factor if self._cold else 1
        self._cold = False
        start = max(self.busy_until + gap, self.host + LATENCY_NS)
        self.busy_until = start + gpu_ns * factor

    def allocate(self, size: int) -> None:
        """Raises what torch raises above the limit."""
        if self.allocated + size > self.limit:
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size / 2**30:.2f} GiB.")
        self.allocated += size
        self.peak = max(self.peak, self.allocated)

    def wait(self) -> None:
        """A synchronisation by the program itself."""
        if self._captured is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.sync()

    # --- the backend's methods ---

    def now(self) -> int:
        """The host's clock; reading it takes time."""
        self.host += READ_NS
        return int(self.host)

    def sync(self) -> None:
        self.host = max(self.host, self.busy_until, self.elsewhere_until) + 2_000

    def event(self) -> Event:
        return Event(self)

    def elapsed_ns(self, start: Event, end: Event) -> float:
        """In ticks of 32 ns."""
        return round((end.at - start.at) / 32) * 32

    def delay(self, us: float) -> None:
        self.host += LAUNCH_NS
        self.busy_until = max(self.busy_until + GAP_NS, self.host + LATENCY_NS) + us * 1e3

    def flush(self) -> None:
        self.host += LAUNCH_NS
        self.busy_until = max(self.busy_until, self.host + LATENCY_NS) + 40_000
        self._cold = True

    def capture(self, call: Callable[[], Any]) -> Callable[[], None]:
        """Kernels are noted instead of launched, and replayed with short gaps."""
        call()
        self.sync()
        self._captured = []
        try:
            call()
        except Exception as error:
            raise Refused(f"not capturable: {error}") from error
        finally:
            kernels, self._captured = self._captured or [], None
        if not kernels:
            raise Refused("the captured graph is empty: the call's work is on a stream of its own")

        def replay() -> None:
            self.host += GRAPH_NS
            for ns in kernels:
                self._execute(ns, 700)

        return replay

    def do_bench(self, call: Callable[[], Any], graph: bool) -> list[int]:
        """As triton's: cold pairs behind a flush that hides launches, or warm from a graph."""
        start, end, out = self.event(), self.event(), []
        replay = self.capture(call) if graph else call
        for _ in range(10):
            if graph:
                self.sync()
                began = self.host + LATENCY_NS
                replay()
                out.append(round(self.busy_until - began - GRAPH_NS))
                continue
            self.flush()
            start.record()
            replay()
            end.record()
            end.synchronize()
            out.append(round(self.elapsed_ns(start, end)))
        return out

    def all_zero(self, inputs: Sequence[Any]) -> bool:
        return bool(inputs) and all(getattr(v, "zero", False) for v in inputs)

    def peak_bytes(self) -> int:
        return self.peak

    def describe(self) -> dict[str, Any]:
        versions = {"torch": "", "cuda": ""}
        return {"device": self.name, "l2_bytes": self.l2, "total_bytes": TOTAL, **versions}

    def forget(self) -> None:
        self.allocated = self.peak = 0
