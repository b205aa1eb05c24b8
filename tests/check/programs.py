"""Programs that cheat, and programs that look as if: of each thread a list of instructions."""

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
JOIN = [Record("side", 13), Wait("side", 7)]
CAPTURE = Api(30_000, name="cudaStreamEndCapture_v10000")
GRAPH = GraphLaunch([(0, 90_000), (95_000, 9_000)])
REDUCE = Launch(300_000, 13, name="ncclDevKernel_AllReduce_Sum_f32")
TWO_STREAMS = [Record("a"), Record("c", 13), ADD, ASIDE, Record("b"), Record("d", 13), Sync()]


def timed(*repetitions, before=(), label="work", gap=0) -> list:
    """The instructions of a loop that times each repetition with a pair of events of its own."""
    steps = []
    for number, work in enumerate(repetitions):
        steps += [*before, Record("a"), *work, Record("b"), Sync()]
        steps += [Sleep(gap)] * bool(gap) + [Elapsed("a", "b", f"{label}#{number}")]
    return steps


def again(*work, times=6, **more) -> list:
    """The same in every repetition."""
    return timed(*[work] * times, **more)


def program(*threads) -> Program:
    """Each thread a list of instructions."""
    return Program(dict(enumerate(threads, 500)), streams=STREAMS)


#: The check that finds it -> what it does -> its threads.
CHEATS = {
    "never-launched": {"a graph is captured and never launched": [again(ADD, CAPTURE)]},
    "escaped-work": {
        "all work on a side stream": [again(ASIDE)],
        "half of the work on a side stream": [again(ADD, ASIDE)],
        "a graph on a side stream": [again(ADD, GraphLaunch([(0, 200_000)], 13))],
        "a side stream that waits, but is not waited for": [
            again(ADD, Record("f"), Wait("f", 13), ASIDE)
        ],
        "a side stream that is joined too early": [again(Launch(9_000, 13), *JOIN, ASIDE, ADD)],
        "a copy alone, on a side stream": [again(Copy(400_000, 13, direction=D2D))],
        "two side streams, one of them joined": [
            again(ADD, Launch(9_000, 13), *JOIN, Launch(300_000, 14))
        ],
        "half of it by another thread, on a side stream": [again(ADD, HELPED, times=12)],
        "half of it by another thread, after a first repetition that takes long": [
            timed([ADD, Sleep(90_000_000), HELPED], *[[ADD, HELPED]] * 40, gap=100_000)
        ],
    },
    "work-left-out": {
        "a result kept from the first repetition": [
            timed([GEMM], *[[]] * 7) + again(ADD, times=4, label="other")
        ],
        "kept from the third repetition on": [timed(*[[GEMM, ADD]] * 3, *[[]] * 9)],
        "a kept result that is copied out": [timed([GEMM, BACK], *[[BACK]] * 7)],
        "a kept result and a memset": [timed([GEMM], *[[Memset(2_000)]] * 7)],
        "work in every second repetition": [timed(*[[GEMM], []] * 6)],
        "in every second repetition only a copy, after a warm-up": [
            timed(*[[GEMM, BACK]] * 3, *[[GEMM, BACK], [BACK]] * 4)
        ],
    },
    "smaller-work": {
        "a smaller grid after the warm-up": [timed(*[[GEMM]] * 2, *[[SMALL]] * 8)],
        "fewer bytes after the first copy": [
            timed([BACK], *[[Copy(2_000, direction=D2D, nbytes=1 << 20)]] * 8)
        ],
    },
    "filled-again": {
        "what it times runs after the flush, untimed": [again(WARM, before=[FLUSH, WARM])],
        "what it times runs after a fill by a kernel, untimed": [again(WARM, before=[FILL, WARM])],
    },
    "nothing-inside": {"nothing is ever launched inside": [[GEMM, Sync(), *again()]]},
}

#: The check that may say something without failing, '' for none -> what it does -> its threads.
HONEST = {
    "": {
        "a graph is captured in the first repetition, and launched then": [
            timed([CAPTURE, GRAPH], *[[GRAPH]] * 6)
        ],
        "one kernel, many times": [again(GEMM, times=10)],
        "a graph": [again(GRAPH, times=8)],
        "a side stream that is joined": [again(ADD, ASIDE, *JOIN, ADD)],
        "a side stream joined through another one": [
            again(ASIDE, Record("x", 13), Wait("x", 14), Record("y", 14), Wait("y", 7))
        ],
        "work on a side stream before the start": [again(ADD, before=[ASIDE])],
        "two streams, each with events of its own": [
            [
                step
                for n in range(6)
                for step in (
                    *TWO_STREAMS, Elapsed("a", "b", f"main#{n}"), Elapsed("c", "d", f"side#{n}"),
                )
            ]
        ],
        "another thread works beside": [again(GEMM, times=8), [ASIDE, Sleep(20_000)] * 8],
        "another thread works beside, now and then": [
            again(GEMM, times=40, gap=30_000), [ASIDE, Sleep(700_000)] * 12,
        ],
        "another thread works, and is waited for": [again(ADD, HELPED, *JOIN, times=12)],
        "a warm-up that tries algorithms": [
            timed([SMALL, ADD, GEMM, ADD, GEMM], *[[GEMM]] * 9)
        ],
        "a loop over sizes": [timed(*[[GEMM]] * 5, *[[SMALL]] * 5)],
        "sizes that fall, once each": [
            timed(*[[Launch(9_000 * n, grid=8 * n)] for n in range(9, 0, -1)])
        ],
        "a last batch that is smaller": [timed(*[[GEMM]] * 9, [SMALL])],
        "a long prompt, then other kernels": [
            timed([GEMM, ADD], *[[Launch(5_000, name="gemv", grid=8), ADD]] * 9)
        ],
        "a flush as large as the L2": [again(GEMM, before=[FLUSH])],
        "a memset that is smaller than the L2": [
            again(WARM, before=[Memset(9_000, nbytes=1 << 25), WARM])
        ],
        "a fill as large as the L2": [again(GEMM, before=[FILL])],
        "a small fill, then two like calls, of which the second is timed": [
            again(WARM, before=[SMALL_FILL, WARM])
        ],
        "a flush, then other work before the start": [again(WARM, before=[FLUSH, ADD])],
        "a gradient set to zero, then two like batches, of which the second is timed": [
            again(GEMM, before=[FLUSH, GEMM])
        ],
    },
    "escaped-work": {
        "the next batch is copied meanwhile": [again(GEMM, Copy(900_000, 13, nbytes=1 << 24))],
        "collectives that are waited for later": [again(GEMM, REDUCE)],
        "once in a while a side stream is late": [timed(*[[GEMM]] * 7, [GEMM, ASIDE])],
    },
    "nothing-inside": {
        "work every fourth time": [timed(*[[], [], [], [GEMM]] * 4)],
        "work every second time, but not in turn": [timed(*[[GEMM], [GEMM], [], []] * 4)],
        "the events' own time beside others": [[*again(label="floor"), *again(GEMM)]],
    },
}  # fmt: skip
