"""The GPU through torch, and the ways to put a clock around one call (docs/which-number.md).
Worker side; times are nanoseconds.

A mode makes blocks of samples.  Every block begins with one call that is not counted, because
another mode ran before it.  `Device` of tests/measure/simulated.py has the methods of `Cuda`.
"""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from nsysalign.addons.measure.target import Workload, Wrong

NAMES = ("latency", "event", "device", "steady", "graph")
TRITON = ("do_bench", "do_bench_cudagraph")
#: The state of the L2 that these make for themselves; a flush would be part of a throughput.
OWN_L2 = {"steady": "warm", "do_bench": "cold", "do_bench_cudagraph": "warm"}
#: The cache does not replace strictly by age: writing twice its size leaves nothing behind.
FLUSH_FACTOR, _UNKNOWN_L2 = 2, 256 << 20
_TRIAL_CYCLES = 800_000
BLOCK_NS = 60e6
#: The delay kernel lasts this many times as long as the host needs to enqueue the call.
DELAY_FACTOR, LEAST_DELAY_US, LONGEST_DELAY_US = 2.5, 60.0, 200_000.0
STEADY_NS, FILL, MOST_QUEUED = 20e6, 2, 512


class Refused(Exception):
    """A mode that this call cannot be measured in, and why."""


class Cuda:
    """The current device of this process."""

    now = staticmethod(time.perf_counter_ns)

    def __init__(self, free_share: float | None = None) -> None:
        """`free_share`: of the memory that is free now, what torch may take; None is all."""
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device here")
        self.torch = torch
        free, self.total = torch.cuda.mem_get_info()
        if free_share is not None:
            torch.cuda.set_per_process_memory_fraction(free_share * free / self.total)
        properties = torch.cuda.get_device_properties(0)
        self.name = properties.name
        self.l2 = int(getattr(properties, "L2_cache_size", 0)) or _UNKNOWN_L2
        self._buffer: Any = None
        self._cycles_per_us = 0.0

    def describe(self) -> dict[str, Any]:
        """The device as described in the result."""
        versions = {"torch": str(self.torch.__version__), "cuda": str(self.torch.version.cuda)}
        return {"device": self.name, "l2_bytes": self.l2, "total_bytes": self.total, **versions}

    def sync(self) -> None:
        """Wait for everything on the device."""
        self.torch.cuda.synchronize()

    def event(self) -> Any:
        """An event with timing enabled."""
        return self.torch.cuda.Event(enable_timing=True)

    def elapsed_ns(self, start: Any, end: Any) -> float:
        """Nanoseconds between two events that have happened."""
        return start.elapsed_time(end) * 1e6

    def delay(self, us: float) -> None:
        """A kernel that keeps the current stream busy for this long; 0: an empty one."""
        sleep = self.torch.cuda._sleep
        if not self._cycles_per_us:
            start, end = self.event(), self.event()
            sleep(1000)
            start.record()
            sleep(_TRIAL_CYCLES)
            end.record()
            end.synchronize()
            self._cycles_per_us = 1e3 * _TRIAL_CYCLES / max(self.elapsed_ns(start, end), 1e3)
        sleep(int(us * self._cycles_per_us))

    def flush(self) -> None:
        """Overwrite twice the L2 on the current stream."""
        torch = self.torch
        with torch.inference_mode(False), torch.no_grad():
            if self._buffer is None:
                size = FLUSH_FACTOR * self.l2
                self._buffer = torch.empty(size, dtype=torch.int8, device="cuda")
            self._buffer.zero_()

    def capture(self, call: Callable[[], Any]) -> Callable[[], None]:
        """The call captured into a graph.  Raises Refused if that is impossible."""
        torch = self.torch
        graph = torch.cuda.CUDAGraph()
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    call()
            torch.cuda.current_stream().wait_stream(side)
            self.sync()
            with warnings.catch_warnings(record=True) as warned, torch.cuda.graph(graph):
                warnings.simplefilter("always")
                out = call()
            graph.replay()
            self.sync()
        except Exception as error:
            raise Refused(f"not capturable: {_first_line(error)}") from error
        if any("empty" in str(w.message) for w in warned):
            raise Refused("the captured graph is empty: the call's work is on a stream of its own")
        graph.kept = out  # the graph writes into it
        return graph.replay

    def do_bench(self, call: Callable[[], Any], graph: bool) -> list[int]:
        """The repetitions of triton's do_bench, or of its do_bench_cudagraph, ns.  Raises Refused
        where triton is not installed, or cannot do it."""
        try:
            from triton import testing

            time_it = testing.do_bench_cudagraph if graph else testing.do_bench
            return [round(ms * 1e6) for ms in time_it(call, return_mode="all")]
        except ImportError:
            raise Refused("triton is not installed") from None
        except Exception as error:
            raise Refused(f"triton refuses: {_first_line(error)}") from error

    def all_zero(self, inputs: Any) -> bool:
        """Whether there are tensors among the inputs, and none holds anything but zeros."""
        tensors = [value for value in inputs if isinstance(value, self.torch.Tensor)]
        return bool(tensors) and not any(bool(tensor.any()) for tensor in tensors)

    def peak_bytes(self) -> int:
        """The most that torch's allocator has held."""
        return self.torch.cuda.memory_stats().get("reserved_bytes.all.peak", 0)

    def forget(self) -> None:
        """Between two batches of one process: release the memory of the last one."""
        gc.collect()
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


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
        empty_ns, self.floor_ns = (
            median(self._pair(empty_call, 120)[0] for _ in range(25))
            for empty_call in (lambda: None, lambda: gpu.delay(0))
        )
        # behind a delay kernel, an event pair around no work is as short as an empty one
        delay_us = max(LEAST_DELAY_US, min(DELAY_FACTOR * (call_ns / 1e3 + 20), 1e7))
        for _ in range(3):
            gpu.sync()
            between_ns, late = self._pair(self.run, delay_us)
            # late: it waits for the GPU; negative: the clock is wrong, as samples show
            if late or between_ns < 0 or between_ns > (empty_ns + self.floor_ns) / 2:
                return
        raise Wrong(
            "the call does no work on the current stream, where events are recorded: it returned, "
            "and nothing had been enqueued there (does it build the work instead of doing it?)"
        )

    def make(self, name: str, l2: str) -> Mode:
        """Raises Refused if the call cannot be measured in this mode."""
        gpu, took_ns = self.gpu, self.call_ns
        if name in TRITON:
            graph = name == "do_bench_cudagraph"
            first = gpu.do_bench(self.run, graph)  # a refusal comes before anything is measured
            took_ns = max(BLOCK_NS, sum(first))
            return Mode(name, l2, lambda count: gpu.do_bench(self.run, graph), took_ns)
        if name == "latency":
            sample = self._latency
        elif name == "device":
            sample, took_ns = self._device()
        elif name == "steady":
            sample, took_ns = self._steady()
        else:
            call = gpu.capture(self.run) if name == "graph" else self.run

            def sample() -> float:
                return self._pair(call)[0]

        def block(count: int) -> list[int]:
            self.run()
            samples = []
            for _ in range(count):
                if l2 == "cold":
                    gpu.flush()
                gpu.sync()
                samples.append(sample())
            return [round(ns) for ns in samples if ns is not None]

        return Mode(name, l2, block, took_ns)

    def _pair(self, call: Callable[[], Any], delay_us: float = 0) -> tuple[float, bool]:
        """(ns between two events around a call, behind a delay kernel; whether the first had
        happened before all was enqueued)."""
        if delay_us:
            self.gpu.delay(delay_us)
        self.start.record()
        call()
        self.end.record()
        late = self.start.query()
        self.end.synchronize()
        return self.gpu.elapsed_ns(self.start, self.end), late

    def _latency(self) -> float:
        began = self.gpu.now()
        self.run()
        self.gpu.sync()
        return self.gpu.now() - began

    def _device(self) -> tuple[Callable[[], float | None], float]:
        """(one sample, None if it came late; how long one takes)."""
        gpu, enqueued = self.gpu, []
        for _ in range(7):
            gpu.sync()
            began = gpu.now()
            self.run()
            enqueued.append(gpu.now() - began)
        delay_us = max(LEAST_DELAY_US, DELAY_FACTOR * (median(enqueued) / 1e3 + 20))

        def sample() -> float | None:
            nonlocal delay_us
            ns, late = self._pair(self.run, delay_us)
            delay_us = min(LONGEST_DELAY_US, delay_us * (1.1 if late else 1))
            return None if late else ns

        gpu.sync()
        while sum(sample() is None for _ in range(3)) > 1:
            if delay_us * 4 > LONGEST_DELAY_US:
                raise Refused(
                    "the call waits for the GPU (`nsysalign run` says where), or launches more "
                    "than the queue holds: no delay can hide its enqueueing"
                )
            delay_us *= 4
        return sample, self.call_ns + delay_us * 1e3

    def _steady(self) -> tuple[Callable[[], float], float]:
        """(one sample: of one call; how long it takes)."""
        queued = max(2, min(MOST_QUEUED, math.ceil(STEADY_NS / max(self.call_ns, 1_000))))

        def queue() -> None:
            for _ in range(queued):
                self.run()

        def sample() -> float:
            for _ in range(FILL):
                self.run()
            return self._pair(queue)[0] / queued

        return sample, self.call_ns * (queued + FILL)
