"""The work of `nsysalign doctor --calibrate`, in a process of its own: how long the host takes per call.

    python -m nsysalign.predict.nsys_cost_work SOCKET

It connects to a Unix socket and talks in lines of JSON: first `{"kinds": [...]}` or `{"error": why}`; then, for each name that it
reads, the time per call of one batch in ns, or why this kind of call is not possible.  It ends when the socket is closed.
Standard library and torch only.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

#: A stream's queue holds about 1,000 launches: a batch never waits for the GPU.
_CALLS = 50
_STATEMENTS = 60  # of Python between two calls: about the cost of one operator of a model
#: Timed one by one on an idle GPU, as the probe times the records of intervals: again and again of one event, and the first one
#: of each event, which creates it, as in most programs.
RECORD, FIRST_RECORD = "record", "first record"
#: Together these say how much of the time of calls nsys adds: what programs consist of.
TYPICAL = ("launch", "launch after Python", "matmul", "convolution", "memset", "copy on the device", "copy from pinned memory", "item")  # fmt: skip


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
        event, stream = self.torch.cuda.Event(enable_timing=True), self.torch.cuda.current_stream()
        return lambda: functools.partial(event.record, stream)

    def first_record(self) -> Callable[[], object]:
        event, stream = self.torch.cuda.Event, self.torch.cuda.current_stream()
        return lambda: functools.partial(event(enable_timing=True).record, stream)

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
        RECORD: ready.record,
        FIRST_RECORD: ready.first_record,
        "elapsed_time": ready.elapsed_time,
        "synchronize": ready.synchronize,
    }


def batch(name: str, call: Callable[[], object], synchronize: Callable[[], object]) -> float:
    """Time per call, ns, of one batch that begins on an idle GPU."""
    clock = time.perf_counter_ns
    synchronize()
    if name in (RECORD, FIRST_RECORD):
        took = []
        for _ in range(_CALLS):
            record = call()
            t0 = clock()
            record()
            took.append(clock() - t0)
            synchronize()
        return statistics.fmean(took) if name == RECORD else float(statistics.median(took))
    t0 = clock()
    for _ in range(_CALLS):
        call()
    took = clock() - t0
    synchronize()
    return took / _CALLS


def answers(torch: Any) -> Callable[[str], float | str]:
    """A function that does one batch of the kind it is given; what cannot be done is told once and again."""
    possible, calls = kinds(torch), {}

    def answer(name: str) -> float | str:
        try:
            if name not in calls:
                calls[name] = possible[name]()
            return batch(name, calls[name], torch.cuda.synchronize)
        except Exception as error:  # a kind that this torch or GPU does not support
            return type(error).__name__

    return answer


def main(address: str, cpu: str) -> None:
    """Answer until the other side closes the socket.  `cpu`: where this thread runs from then on, so that both processes do."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw", encoding="utf-8") as lines:

            def say(what: object) -> None:
                lines.write(json.dumps(what) + "\n")
                lines.flush()

            try:
                import torch

                available = getattr(torch.cuda, "is_available", None)
                if available is not None and not available():
                    raise RuntimeError("torch sees no CUDA device here")
                torch.cuda.init()
                answer = answers(torch)
                say({"kinds": list(kinds(torch))})
            except Exception as error:
                say({"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]})
                return
            os.sched_setaffinity(
                0, {int(cpu)}
            )  # threads that CUDA and nsys have started stay where they are
            with torch.no_grad():
                for line in lines:
                    say(answer(json.loads(line)))


if __name__ == "__main__":
    main(*sys.argv[1:])
