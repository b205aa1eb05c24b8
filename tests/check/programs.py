"""Programs that cheat, and programs that look as if: each a list of repetitions, each of these a
list of what it launches."""

from __future__ import annotations

from simulator.program import (
    Api,
    Copy,
    Elapsed,
    GraphLaunch,
    Launch,
    Memset,
    Program,
    Record,
    Sleep,
    Sync,
    Wait,
)
from simulator.world import D2D, LEGACY, NON_BLOCKING

STREAMS = {7: LEGACY, 13: NON_BLOCKING, 14: NON_BLOCKING}
GEMM = Launch(80_000, name="gemm", grid=512)
SMALL = Launch(20_000, name="gemm", grid=128)
ADD = Launch(3_000, name="add", grid=8)
ASIDE = Launch(300_000, 13, name="gemm", grid=512)
BACK = Copy(20_000, direction=D2D, nbytes=1 << 24)
FLUSH = Memset(40_000, nbytes=1 << 28)
FILL = Launch(60_000, name="elementwise_kernel<4, at::native::FillFunctor<unsigned char>>")
SMALL_FILL = Launch(2_000, name="elementwise_kernel<4, at::native::FillFunctor<float>>")
WARM = Launch(9_000, name="axpy", grid=64)
HELPED = Launch(300_000, 13, name="gemm", grid=512, by=900)
_WAIT_FOR_SIDE = [Record("side", 13), Wait("side", 7)]


def timed(*repetitions, before=(), label="work", stream=7, gap=0) -> list:
    """The instructions of a loop that times each repetition with a pair of events of its own."""
    steps = []
    for number, work in enumerate(repetitions):
        steps += [*before, Record("a", stream), *work, Record("b", stream), Sync()]
        steps += [Sleep(gap)] * bool(gap) + [Elapsed("a", "b", f"{label}#{number}")]
    return steps


def program(*threads, **more) -> Program:
    """Each thread a list of instructions."""
    return Program(dict(enumerate(threads, 500)), streams=STREAMS, **more)


CAPTURE = Api(30_000, name="cudaStreamEndCapture_v10000")
#: What it does -> (program, the check that finds it).
CHEATS = {
    "a graph is captured and never launched": (
        program(timed(*[[ADD, CAPTURE]] * 6)),
        "never-launched",
    ),
    "all work on a side stream": (program(timed(*[[ASIDE]] * 6)), "escaped-work"),
    "half of the work on a side stream": (program(timed(*[[ADD, ASIDE]] * 6)), "escaped-work"),
    "a graph on a side stream": (
        program(timed(*[[ADD, GraphLaunch([(0, 200_000)], 13)]] * 6)),
        "escaped-work",
    ),
    "a side stream that waits, but is not waited for": (
        program(timed(*[[ADD, Record("f"), Wait("f", 13), ASIDE]] * 6)),
        "escaped-work",
    ),
    "a side stream that is joined too early": (
        program(timed(*[[Launch(9_000, 13), *_WAIT_FOR_SIDE, ASIDE, ADD]] * 6)),
        "escaped-work",
    ),
    "a copy alone, on a side stream": (
        program(timed(*[[Copy(400_000, 13, direction=D2D)]] * 6)),
        "escaped-work",
    ),
    "two side streams, one of them joined": (
        program(timed(*[[ADD, Launch(9_000, 13), *_WAIT_FOR_SIDE, Launch(300_000, 14)]] * 6)),
        "escaped-work",
    ),
    "a result kept from the first repetition": (
        program(timed([GEMM], *[[]] * 7) + timed(*[[ADD]] * 4, label="other")),
        "work-left-out",
    ),
    "kept from the third repetition on": (
        program(timed(*[[GEMM, ADD]] * 3, *[[]] * 9)),
        "work-left-out",
    ),
    "a kept result that is copied out": (
        program(timed([GEMM, BACK], *[[BACK]] * 7)),
        "work-left-out",
    ),
    "a kept result and a memset": (program(timed([GEMM], *[[Memset(2_000)]] * 7)), "work-left-out"),
    "a smaller grid after the warm-up": (
        program(timed(*[[GEMM]] * 2, *[[SMALL]] * 8)),
        "smaller-work",
    ),
    "fewer bytes after the first copy": (
        program(timed([BACK], *[[Copy(2_000, direction=D2D, nbytes=1 << 20)]] * 8)),
        "smaller-work",
    ),
    "faster than the memory": (
        program(timed(*[[Copy(100_000, direction=D2D, nbytes=1 << 30)]] * 4)),
        "impossible-rate",
    ),
    "half of it by another thread, on a side stream": (
        program(timed(*[[ADD, HELPED]] * 12)),
        "escaped-work",
    ),
    "what it times runs after the flush, untimed": (
        program(timed(*[[WARM]] * 6, before=[FLUSH, WARM])),
        "filled-again",
    ),
    "what it times runs after a fill by a kernel, untimed": (
        program(timed(*[[WARM]] * 6, before=[FILL, WARM])),
        "filled-again",
    ),
    "half of it by another thread, after a first repetition that takes long": (
        program(timed([ADD, Sleep(90_000_000), HELPED], *[[ADD, HELPED]] * 40, gap=100_000)),
        "escaped-work",
    ),
    "work in every second repetition": (
        program(timed(*[[GEMM] if n % 2 == 0 else [] for n in range(12)])),
        "work-left-out",
    ),
    "in every second repetition only a copy, after a warm-up": (
        program(timed(*[[GEMM, BACK]] * 3, *[[BACK] if n % 2 else [GEMM, BACK] for n in range(9)])),
        "work-left-out",
    ),
    "nothing is ever launched inside": (
        program([GEMM, Sync(), *timed(*[[]] * 8)]),
        "nothing-inside",
    ),
}

#: What it does -> (program, checks that may say something without failing).
HONEST = {
    "a graph is captured in the first repetition, and launched then": (
        program(timed([CAPTURE, GraphLaunch([(0, 90_000)])], *[[GraphLaunch([(0, 90_000)])]] * 6)),
        (),
    ),
    "one kernel, many times": (program(timed(*[[GEMM]] * 10)), ()),
    "a side stream that is joined": (
        program(timed(*[[ADD, ASIDE, *_WAIT_FOR_SIDE, ADD]] * 6)),
        (),
    ),
    "a side stream joined through another one": (
        program(
            timed(*[[ASIDE, Record("x", 13), Wait("x", 14), Record("y", 14), Wait("y", 7)]] * 6)
        ),
        (),
    ),
    "work on a side stream before the start": (
        program(timed(*[[ADD]] * 6, before=[ASIDE])),
        (),
    ),
    "two streams, each with events of its own": (
        program(
            [
                step
                for n in range(6)
                for step in (
                    *(
                        Record("a"),
                        Record("c", 13),
                        ADD,
                        ASIDE,
                        Record("b"),
                        Record("d", 13),
                        Sync(),
                    ),
                    *(Elapsed("a", "b", f"main#{n}"), Elapsed("c", "d", f"side#{n}")),
                )
            ]
        ),
        (),
    ),
    "another thread works beside": (
        program(timed(*[[GEMM]] * 8), [ASIDE, Sleep(20_000)] * 8),
        (),
    ),
    "another thread works beside, now and then": (
        program(timed(*[[GEMM]] * 40, gap=30_000), [ASIDE, Sleep(700_000)] * 12),
        (),
    ),
    "another thread works, and is waited for": (
        program(timed(*[[ADD, HELPED, *_WAIT_FOR_SIDE]] * 12)),
        (),
    ),
    "the next batch is copied meanwhile": (
        program(timed(*[[GEMM, Copy(900_000, 13, nbytes=1 << 24)]] * 6)),
        ("escaped-work",),
    ),
    "collectives that are waited for later": (
        program(timed(*[[GEMM, Launch(300_000, 13, name="ncclDevKernel_AllReduce_Sum_f32")]] * 6)),
        ("escaped-work",),
    ),
    "once in a while a side stream is late": (
        program(timed(*[[GEMM]] * 7, [GEMM, ASIDE])),
        ("escaped-work",),
    ),
    "a warm-up that tries algorithms": (
        program(timed([SMALL, ADD, GEMM, ADD, GEMM], *[[GEMM]] * 9)),
        (),
    ),
    "a loop over sizes": (program(timed(*[[GEMM]] * 5, *[[SMALL]] * 5)), ()),
    "sizes that fall, once each": (
        program(timed(*[[Launch(9_000 * n, grid=8 * n)] for n in range(9, 0, -1)])),
        (),
    ),
    "a last batch that is smaller": (program(timed(*[[GEMM]] * 9, [SMALL])), ()),
    "a long prompt, then other kernels": (
        program(timed([GEMM, ADD], *[[Launch(5_000, name="gemv", grid=8), ADD]] * 9)),
        (),
    ),
    "work every fourth time": (
        program(timed(*[[GEMM] if n % 4 == 3 else [] for n in range(16)])),
        ("nothing-inside",),
    ),
    "work every second time, but not in turn": (
        program(timed(*[[GEMM] if n % 4 < 2 else [] for n in range(16)])),
        ("nothing-inside",),
    ),
    "the events' own time beside others": (
        program([*timed(*[[]] * 8, label="floor"), *timed(*[[GEMM]] * 8)]),
        ("nothing-inside",),
    ),
    "a flush as large as the L2": (program(timed(*[[GEMM]] * 5, before=[FLUSH])), ()),
    "a fill as large as the L2": (program(timed(*[[GEMM]] * 5, before=[FILL])), ()),
    "a small fill, then two like calls, of which the second is timed": (
        program(timed(*[[WARM]] * 5, before=[SMALL_FILL, WARM])),
        (),
    ),
    "a flush, then other work before the start": (
        program(timed(*[[WARM]] * 5, before=[FLUSH, ADD])),
        (),
    ),
    "a gradient set to zero, then two like batches, of which the second is timed": (
        program(timed(*[[GEMM]] * 5, before=[FLUSH, GEMM])),
        (),
    ),
    "a memset that is smaller than the L2": (
        program(timed(*[[GEMM]] * 5, before=[Memset(9_000, nbytes=1 << 25)])),
        ("small-flush",),
    ),
    "small copies from the L2": (
        program(timed(*[[Copy(4_000, direction=D2D, nbytes=1 << 24)]] * 5)),
        (),
    ),
    "a graph": (program(timed(*[[GraphLaunch([(0, 50_000), (60_000, 9_000)])]] * 8)), ()),
}
