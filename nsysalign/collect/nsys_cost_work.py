"""The work of `nsysalign doctor --calibrate`, in a process of its own: how long the host takes per call, and how fast it is.

    python -m nsysalign.collect.nsys_cost_work OUT.json

OUT gets `{"calls": {kind: [[ns per call, ns of the meter's work], ...]}, "left_out": {kind: why}}`, or `{"error": why}`.
Standard library and torch only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from nsysalign.collect.probe import meter

#: A stream's queue holds about 1,000 launches: a batch never waits for the GPU.
_CALLS, _BATCHES = 50, 12
_STATEMENTS = 60  # of Python between two calls: about the cost of one operator of a model


class _Ready:
    """Functions that prepare a kind of call and return it.  Each call's work on the GPU is shorter than the call."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def tensor(self, *shape: int) -> Any:
        return self.torch.zeros(shape, device="cuda")

    def launch(self) -> Callable[[], object]:
        add = self.tensor(1).add_
        return lambda: add(1)

    def launch_after_python(self) -> Callable[[], object]:
        add = self.tensor(1).add_

        def call() -> None:
            total = 0
            for number in range(_STATEMENTS):
                total += number ^ 3
            add(1)

        return call

    def matmul(self) -> Callable[[], object]:
        a, b, out = (self.tensor(64, 64) for _ in range(3))
        return lambda: self.torch.mm(a, b, out=out)

    def convolution(self) -> Callable[[], object]:
        x, w = self.tensor(1, 8, 16, 16), self.tensor(8, 8, 3, 3)
        return lambda: self.torch.nn.functional.conv2d(x, w, padding=1)

    def memset(self) -> Callable[[], object]:
        return self.torch.empty(256, dtype=self.torch.int8, device="cuda").zero_

    def copy_on_device(self) -> Callable[[], object]:
        source, target = self.tensor(256), self.tensor(256)
        return lambda: target.copy_(source)

    def copy_from_pinned(self) -> Callable[[], object]:
        source, target = self.torch.zeros(256).pin_memory(), self.tensor(256)
        return lambda: target.copy_(source, non_blocking=True)

    def item(self) -> Callable[[], object]:
        return self.tensor(1).item

    def graph(self) -> Callable[[], object]:
        torch, x = self.torch, self.tensor(1)
        captured = torch.cuda.CUDAGraph()
        x.add_(1)
        torch.cuda.synchronize()
        with torch.cuda.graph(captured):
            x.add_(1)
        return lambda: (captured.replay(), x)  # which must be kept: the graph writes to it

    def record(self) -> Callable[[], object]:
        return self.torch.cuda.Event(enable_timing=True).record

    def elapsed_time(self) -> Callable[[], object]:
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        end.record()
        self.torch.cuda.synchronize()
        return lambda: start.elapsed_time(end)

    def synchronize(self) -> Callable[[], object]:
        return self.torch.cuda.synchronize


def kinds(torch: Any) -> dict[str, Callable[[], Callable[[], object]]]:
    """Name -> function that prepares and returns the call."""
    ready = _Ready(torch)
    return {
        "launch": ready.launch,
        "launch after Python": ready.launch_after_python,
        "matmul": ready.matmul,
        "convolution": ready.convolution,
        "memset": ready.memset,
        "copy on the device": ready.copy_on_device,
        "copy from pinned memory": ready.copy_from_pinned,
        "item": ready.item,
        "graph launch": ready.graph,
        "record": ready.record,
        "elapsed_time": ready.elapsed_time,
        "synchronize": ready.synchronize,
    }


def measured(call: Callable[[], object], synchronize: Callable[[], object]) -> list[tuple[float, float]]:
    """(ns per call, ns of the meter's work) of each batch; the first one, which warms up, is left out."""
    clock, found = time.perf_counter_ns, []
    for _ in range(_BATCHES + 1):
        synchronize()
        _, before = meter.measure()
        t0 = clock()
        for _ in range(_CALLS):
            call()
        t1 = clock()
        _, after = meter.measure()
        found.append(((t1 - t0) / _CALLS, (before + after) / 2))
    synchronize()
    return found[1:]


def main(out: str) -> None:
    """Write OUT."""
    result: dict[str, Any] = {"calls": {}, "left_out": {}}
    try:
        import torch

        available = getattr(torch.cuda, "is_available", None)
        if available is not None and not available():
            raise RuntimeError("torch sees no CUDA device here")
        torch.cuda.init()
        with torch.no_grad():
            for name, ready in kinds(torch).items():
                try:
                    result["calls"][name] = measured(ready(), torch.cuda.synchronize)
                except Exception as error:  # a kind that this torch or GPU does not support
                    result["left_out"][name] = type(error).__name__
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    with open(out, "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main(sys.argv[1])
