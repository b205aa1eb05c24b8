"""The GPU through torch, which is imported when the device is made.  `Device` of
tests/measure/simulated.py has the same methods; times are nanoseconds."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

#: The cache does not replace strictly by age: writing twice its size leaves nothing behind.
FLUSH_FACTOR = 2
_UNKNOWN_L2 = 256 << 20
_TRIAL_CYCLES, _USUAL_CYCLES_PER_US = 800_000, 2_000.0


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
        """A kernel that keeps the current stream busy for this long."""
        sleep = self.torch.cuda._sleep
        if not self._cycles_per_us:
            sleep(1000)
            self.sync()
            took_us = self._pair(lambda: sleep(_TRIAL_CYCLES)) / 1e3
            self._cycles_per_us = _TRIAL_CYCLES / took_us if took_us > 0 else _USUAL_CYCLES_PER_US
        sleep(max(1, int(us * self._cycles_per_us)))

    def _pair(self, work: Callable[[], Any]) -> float:
        start, end = self.event(), self.event()
        start.record()
        work()
        end.record()
        end.synchronize()
        return self.elapsed_ns(start, end)

    def floor(self) -> tuple[float, float]:
        """(an empty pair, a pair around an empty kernel) behind a delay: what the records add."""
        found = []
        for work in (lambda: None, lambda: self.torch.cuda._sleep(0)):
            times = []
            for _ in range(25):
                self.delay(120)
                times.append(self._pair(work))
            found.append(median(times))
        return found[0], found[1]

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
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:160]
