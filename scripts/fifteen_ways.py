"""Fifteen ways to time a kernel with events, and what nsysalign finds of each.

    python scripts/fifteen_ways.py --build                        compile the C++ way (once, without nsys)
    nsysalign run -o RUN scripts/fifteen_ways.py made.json        needs a GPU; cupy, numba, cuda.core, triton
    python scripts/fifteen_ways.py --check RUN made.json          a table in Markdown

Every way runs in an NVTX range of its name, so that the check assigns an interval by the time at
which it lies, not by what nsysalign says of it.  `made` is what the program was told itself: a
value is right if it is the one that the program got, to the nanosecond.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

REPEAT = 5
CPP = r"""
#include <cuda_runtime.h>
float timed(int64_t queue) {
  cudaEvent_t a, b; float ms; cudaStream_t s = (cudaStream_t)queue;
  static void *p = nullptr; if (!p) cudaMalloc(&p, 1 << 24);
  cudaEventCreate(&a); cudaEventCreate(&b);
  cudaEventRecord(a, s); cudaMemsetAsync(p, 0, 1 << 24, s); cudaEventRecord(b, s);
  cudaEventSynchronize(b); cudaEventElapsedTime(&ms, a, b);
  cudaEventDestroy(a); cudaEventDestroy(b); return ms;
}
"""


def extension():
    from torch.utils.cpp_extension import load_inline

    return load_inline(
        "fifteen_ways_cpp", [CPP], functions=["timed"], with_cuda=True, extra_cflags=["-O0"]
    )


def ways() -> dict:
    """Name -> a function that returns the times (ms) that it was told, or None if nobody tells it
    any."""
    import torch
    from torch.cuda import Event

    x = torch.randn(1 << 22, device="cuda")

    def work():
        return (x * 2).sum()

    def times(make, record=lambda e: e.record(), value=lambda a, b: a.elapsed_time(b), do=work):
        out = []
        for _ in range(REPEAT):
            a, b = make(), make()
            a = record(a) or a
            do()
            b = record(b) or b
            torch.cuda.synchronize()
            out.append(value(a, b))
        return out

    def event():
        return Event(enable_timing=True)

    class Sub(Event):
        pass

    def in_a_thread():
        out: list[float] = []
        thread = threading.Thread(target=lambda: out.extend(times(event)))
        thread.start()
        thread.join()
        return out

    def reused():
        a, b = event(), event()
        each = iter([a, b] * REPEAT)
        return times(lambda: next(each))

    def in_a_graph():
        a, b = (Event(enable_timing=True, external=True) for _ in range(2))
        graph = torch.cuda.CUDAGraph()
        work()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            a.record()
            work()
            b.record()
        out = []
        for _ in range(REPEAT):
            graph.replay()
            torch.cuda.synchronize()
            out.append(a.elapsed_time(b))
        return out

    def torch_stream():
        stream = torch.Stream(device="cuda")
        options = {"device": "cuda", "enable_timing": True}

        def do():
            with stream:
                work()

        return times(
            lambda: torch.Event(**options), lambda e: stream.record_event(e) and None, do=do
        )

    def cupy_events():
        import cupy

        y = cupy.ones(1 << 22, cupy.float32)
        value = cupy.cuda.get_elapsed_time
        return times(cupy.cuda.Event, lambda e: e.record(), value, lambda: y * 2)

    def numba_events():
        import numpy

        numpy.row_stack = numpy.vstack  # an older numba asks for it, a newer numpy lacks it
        from numba import cuda

        @cuda.jit
        def kernel(values):
            values[cuda.grid(1)] += 1

        data = cuda.to_device(numpy.zeros(1024, "float32"))
        return times(cuda.event, value=cuda.event_elapsed_time, do=lambda: kernel[8, 128](data))

    def cuda_core():
        try:
            from cuda.core import Device, EventOptions
        except ImportError:
            from cuda.core.experimental import Device, EventOptions
        device = Device()
        device.set_current()
        stream = device.create_stream()
        torchs = torch.cuda.ExternalStream(int(stream.handle))

        def do():
            with torch.cuda.stream(torchs):
                work()

        try:  # its name since cuda.core 1.0
            options = EventOptions(timing_enabled=True)
        except TypeError:
            options = EventOptions(enable_timing=True)
        record = lambda _: stream.record(options=options)  # noqa: E731
        return times(lambda: None, record, lambda a, b: b - a, do)

    def cpp():
        timed = extension().timed
        return [timed(torch.cuda.current_stream().cuda_stream) for _ in range(REPEAT)]

    def do_bench():
        from triton.testing import do_bench

        return do_bench(work, warmup=1, rep=2, return_mode="all")

    def autotuner():
        import triton
        import triton.language as tl

        @triton.autotune([triton.Config({"B": b}) for b in (256, 1024)], key=["n"])
        @triton.jit
        def double(p, n, B: tl.constexpr):
            at = tl.program_id(0) * B + tl.arange(0, B)
            tl.store(p + at, tl.load(p + at, at < n) * 2, at < n)

        double[lambda meta: (triton.cdiv(x.numel(), meta["B"]),)](x, x.numel())

    def inductor():
        a = torch.randn(512, 512, device="cuda", dtype=torch.float16)
        torch.compile(lambda a: torch.relu(a @ a), mode="max-autotune-no-cudagraphs")(a)

    def cudnn():
        torch.backends.cudnn.benchmark = True
        image = torch.randn(8, 16, 64, 64, device="cuda")
        torch.nn.Conv2d(16, 32, 3, device="cuda")(image)

    work()
    return {
        "torch.cuda.Event": lambda: times(event),
        "a subclass of it": lambda: times(lambda: Sub(enable_timing=True)),
        "blocking": lambda: times(lambda: Event(enable_timing=True, blocking=True)),
        "recorded again": reused,
        "in a thread": in_a_thread,
        "captured in a graph": in_a_graph,
        "torch.Event": lambda: times(lambda: torch.Event(device="cuda", enable_timing=True)),
        "torch.Stream": torch_stream,
        "CuPy": cupy_events,
        "numba": numba_events,
        "cuda.core": cuda_core,
        "C++ by load_inline": cpp,
        "triton do_bench": do_bench,
        "triton's autotuner": autotuner,
        "Inductor max-autotune": inductor,
        "cuDNN's search": cudnn,
    }


def make(out: Path) -> None:
    import torch

    made = {}
    for name, way in ways().items():
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_push(f"way: {name}")
        try:
            made[name] = way()
        except Exception as error:
            made[name] = f"{type(error).__name__}: {error}"[:200]
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
    out.write_text(json.dumps(made, indent=1))


def check(run: Path, made: dict) -> None:
    import sqlite3

    import nsysalign

    query = """SELECT coalesce(text, (SELECT value FROM StringIds WHERE id = textId)), start, end
               FROM NVTX_EVENTS WHERE coalesce(text, (SELECT value FROM StringIds WHERE id = textId))
               LIKE 'way: %'"""
    with closing(sqlite3.connect(run / "trace.sqlite")) as db:
        ranges = {
            text.removeprefix("way: "): (start, end) for text, start, end in db.execute(query)
        }
    analysis = nsysalign.load(run)
    rows = analysis.intervals
    rows = rows[rows["kind"] == "event"]
    print("| way | told the program | found | same value | library's | placed by | bar, us |")
    print("|---|---|---|---|---|---|---|")
    for name, told in made.items():
        if isinstance(told, str) or name not in ranges:
            print(f"| {name} | failed: {told} | | | | | |")
            continue
        start, end = ranges[name]
        inside = rows[(rows["start_ns"] >= start) & (rows["end_ns"] <= end)]
        values = Counter(inside["elapsed_ns"].tolist())
        same = (values & Counter(round(ms * 1e6) for ms in told or [])).total()
        methods = ", ".join(f"{n} {m}" for m, n in Counter(inside["method"].tolist()).items())
        bar = f"{inside['error_ns'].median() / 1e3:.2f}" if len(inside) else ""
        cells = (name, len(told) if told else "not told", len(inside), same if told else "")
        print(f"| {' | '.join(map(str, (*cells, int(inside['library'].sum()), methods, bar)))} |")
    print(analysis.unaligned.to_string() if len(analysis.unaligned) else "nothing was left out")


if __name__ == "__main__":
    if sys.argv[1] == "--build":
        extension()
    elif sys.argv[1] == "--check":
        check(Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()))
    else:
        make(Path(sys.argv[1]))
