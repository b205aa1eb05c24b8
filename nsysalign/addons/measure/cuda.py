"""The device through torch: clocks, events, a delay kernel, an L2 flush, capture, memory.

Imports torch when it is made.  `Device` of tests/measure/simulated.py has the same methods; times
are nanoseconds.
"""

from __future__ import annotations

import gc
import sys
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

#: The cache does not replace strictly by age: writing twice its size leaves nothing behind.
FLUSH_FACTOR = 2
_UNKNOWN_L2 = 256 << 20
_CYCLES_PER_US = 2_000
_RATE_US = 400


class Refused(Exception):
    """A mode that this call cannot be measured in, and why."""


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160]


class Cuda:
    """The current device of this process."""

    now = staticmethod(time.perf_counter_ns)

    def __init__(self, free_share: float | None = None) -> None:
        """`free_share`: of the memory that is free now, what torch may take; None is all."""
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("torch sees no CUDA device here")
        self.torch = torch
        self._free_at_start, self.total = torch.cuda.mem_get_info()
        if free_share is not None:
            fraction = free_share * self._free_at_start / self.total
            torch.cuda.set_per_process_memory_fraction(fraction)
        properties = torch.cuda.get_device_properties(0)
        self.name = properties.name
        self.l2 = int(getattr(properties, "L2_cache_size", 0)) or _UNKNOWN_L2
        self._buffer: Any = None
        self._cycles_per_us = 0.0

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
        """A kernel that keeps the current stream busy for this long."""
        sleep = self.torch.cuda._sleep
        if not self._cycles_per_us:
            sleep(1000)
            start, end = self.event(), self.event()
            self.sync()
            start.record()
            sleep(_RATE_US * _CYCLES_PER_US)
            end.record()
            self.sync()
            took_us = self.elapsed_ns(start, end) / 1e3
            rate = _RATE_US * _CYCLES_PER_US / took_us if took_us > 0 else _CYCLES_PER_US
            self._cycles_per_us = rate
        sleep(max(1, int(us * self._cycles_per_us)))

    def flush(self) -> None:
        """Overwrite twice the L2 on the current stream."""
        torch = self.torch
        with torch.inference_mode(False), torch.no_grad():
            if self._buffer is None:
                size = FLUSH_FACTOR * self.l2
                self._buffer = torch.empty(size, dtype=torch.int8, device="cuda")
            self._buffer.zero_()

    def floor(self) -> tuple[float, float]:
        """(an empty pair, a pair around an empty kernel) behind a delay: what the records add."""
        out = []
        for work in (lambda: None, lambda: self.torch.cuda._sleep(0)):
            times = []
            for _ in range(25):
                start, end = self.event(), self.event()
                self.delay(120)
                start.record()
                work()
                end.record()
                end.synchronize()
                times.append(self.elapsed_ns(start, end))
            out.append(median(times))
        return out[0], out[1]

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
        except ImportError:
            raise Refused("triton is not installed") from None
        time_it = testing.do_bench_cudagraph if graph else testing.do_bench
        stream = self.torch.cuda.Stream() if graph else self.torch.cuda.current_stream()
        try:
            with self.torch.cuda.stream(stream):  # older ones capture on no default stream
                try:
                    times = time_it(call, return_mode="all")
                except (AssertionError, ValueError):  # and know the mean only
                    times = [time_it(call)]
        except Exception as error:
            raise Refused(f"triton refuses: {_first_line(error)}") from error
        return [round(ms * 1e6) for ms in times]

    def all_zero(self, inputs: Any) -> bool:
        """Whether there are tensors among the inputs, those in lists and dicts too, and none holds
        anything but zeros."""
        tensors, more = [], [inputs]
        while more:
            value = more.pop()
            if isinstance(value, self.torch.Tensor):
                tensors.append(value)
            elif isinstance(value, dict | list | tuple):
                more += value.values() if isinstance(value, dict) else value
        return bool(tensors) and not any(bool(tensor.any()) for tensor in tensors)

    def state(self) -> tuple[int, ...]:
        """Changes when a library or module is loaded, or a segment of GPU memory added.  A kernel
        loaded lazily into memory that the driver already had shows in the slope of the times."""
        try:
            with open("/proc/self/maps", "rb") as maps:
                libraries = len({line.rpartition(b" ")[2] for line in maps if b".so" in line})
        except OSError:
            libraries = 0
        segments = self.torch.cuda.memory_stats().get("segment.all.allocated", 0)
        return len(sys.modules), libraries, segments

    def memory(self) -> dict[str, int]:
        """Bytes: torch's peaks, the device's, and how often the allocator had to free its cache and
        try again."""
        stats = self.torch.cuda.memory_stats()
        free, total = self.torch.cuda.mem_get_info()
        return {
            "peak_allocated": stats.get("allocated_bytes.all.peak", 0),
            "peak_reserved": stats.get("reserved_bytes.all.peak", 0),
            "retries": stats.get("num_alloc_retries", 0),
            "free_at_start": self._free_at_start,
            "free_now": free,
            "total": total,
        }

    def describe(self) -> dict[str, Any]:
        """The device as described in the result."""
        versions = {"torch": str(self.torch.__version__), "cuda": str(self.torch.version.cuda)}
        return {"device": self.name, "l2_bytes": self.l2, "total_bytes": self.total, **versions}

    def blocking_calls(self, call: Callable[[], Any]) -> list[str]:
        """Where the call waits for the GPU, as far as torch reports it: `model.py:12`."""
        cuda = self.torch.cuda
        before = cuda.get_sync_debug_mode()
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                cuda.set_sync_debug_mode("warn")
                call()
        finally:
            cuda.set_sync_debug_mode(before)
        lines = [
            f"{w.filename.rpartition('/')[2]}:{w.lineno}"
            for w in warned
            if "synchroniz" in str(w.message)
        ]
        return list(dict.fromkeys(lines))

    def forget(self) -> None:
        """Between two batches of one process: release the memory of the last one, reset the
        peaks."""
        gc.collect()
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()

    def quiet(self) -> None:
        """Before the timed blocks: collect the setup's garbage, so that it is not collected
        then."""
        gc.collect()
