"""Random programs for the simulator (hypothesis strategies)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st
from simulator.program import (
    Api,
    Copy,
    Elapsed,
    GraphLaunch,
    HostStart,
    HostStop,
    Launch,
    Memset,
    Pop,
    Profiler,
    Program,
    Push,
    Record,
    Sleep,
    Sync,
    Timing,
    Wait,
)
from simulator.world import BLOCKING, D2H, H2D, LEGACY, NON_BLOCKING

STREAMS = {
    7: LEGACY,
    13: NON_BLOCKING,
    17: BLOCKING,
    21: NON_BLOCKING,
}  # far apart: see test_streams.py
MAIN, WORKER = 500, 501

short = st.integers(1_000, 60_000)
cost = st.integers(2_000, 15_000)
stream = st.sampled_from([7, 7, 7, 13, 17, 21])
copy_stream = st.sampled_from([7, 7, 13])


@dataclass(frozen=True)
class WaitFor:
    """A record on one stream and another stream's wait for it, made one after the other."""

    recorded: int
    waiting: int
    number: int

    def steps(self) -> list:
        name = f"wait{self.number}"
        return [Record(name, self.recorded), Wait(name, self.waiting)]


nodes = st.lists(
    st.tuples(st.integers(0, 20_000), st.integers(500, 10_000)), min_size=1, max_size=4
)
launches = st.builds(Launch, ns=short, stream=stream, cost=cost, pdl=st.booleans())
copies = st.builds(
    Copy,
    ns=short,
    stream=copy_stream,
    pageable=st.booleans(),
    direction=st.sampled_from([H2D, D2H]),
    before=short,
    after=cost,
)
graphs = st.builds(GraphLaunch, nodes=nodes, stream=stream, whole=st.booleans())
syncs = st.one_of(st.just(Sync()), st.builds(Sync, stream=stream))
other_calls = st.one_of(
    st.builds(Api, ns=short, nested=st.booleans()),
    st.builds(Api, ns=cost, name=st.just("cudaEventQuery_v3020"), kind=st.just("query_event")),
    st.builds(Api, ns=cost, name=st.just("cudaStreamQuery_v3020"), kind=st.just("query_stream")),
)
waits = st.builds(WaitFor, recorded=stream, waiting=stream, number=st.integers(0, 5))
work = st.one_of(launches, launches, copies, graphs, st.builds(Memset, ns=short, stream=stream))
host = st.one_of(other_calls, syncs, st.builds(Sleep, short), st.builds(Profiler, short))
strange_record = st.builds(
    Record, event=st.sampled_from(["library0", "library1"]), stream=stream, logged=st.just(False)
)
step = st.one_of(work, work, host, waits, strange_record)

timings = st.builds(
    Timing,
    launch_latency=st.integers(500, 4_000),
    op_to_record=st.integers(1_000, 5_000),
    call_to_record=st.integers(3_500, 7_000),
    record_to_record=st.integers(1_000, 2_000),
    record_to_op=st.integers(1_400, 1_600),
    queue_depth=st.sampled_from([1_021, 8]),
    contention=st.booleans(),
    tick_phase=st.integers(0, 31),
).map(lambda t: replace(t, copy_latency=t.launch_latency))
EXACT, CORRECTED = (
    st.just(0),
    st.sampled_from([0, 300]),
)  # CUPTI's clock against that of elapsed_time


def _flat(steps: list) -> list:
    return [s for step in steps for s in (step.steps() if isinstance(step, WaitFor) else [step])]


@st.composite
def programs(draw, *, intervals=4, worker=True, ranges=False, clock=EXACT, pid=500, device=0):
    """Some event intervals with random work inside and between, another thread's work at the same
    time."""
    main: list = []
    asked: list = []
    for i in range(draw(st.integers(1, intervals))):
        start = draw(stream)
        end = draw(st.sampled_from([start, start, 7]))
        body = _flat(draw(st.lists(step, max_size=6)))
        if ranges:
            body = [Push(f"range {i}"), *body, Pop()]
        chain = asked and draw(st.booleans())
        before = (
            asked[-1][1] if chain else f"a{i}"
        )  # a chain shares the record between two intervals
        main += _flat(draw(st.lists(step, max_size=3)))
        main += [] if chain else [Record(before, start)]
        main += [*body, Record(f"b{i}", end)]
        asked.append((before, f"b{i}"))
    main += [Sync(), *(Elapsed(a, b, f"case{i}#0") for i, (a, b) in enumerate(asked))]
    threads = {MAIN: main}
    if worker and draw(st.booleans()):
        threads[WORKER] = draw(st.lists(st.one_of(launches, host), max_size=6))
    timing = replace(draw(timings), clock_error=draw(clock))
    return Program(threads, STREAMS, timing, pid=pid, device=device)


@st.composite
def loops(draw, *, clock=EXACT):
    """Threads that record the same two events again and again, on streams that they may share."""
    threads: dict[int, list] = {}
    for tid in (MAIN, WORKER)[: draw(st.integers(1, 2))]:
        steps: list = []
        for i in range(draw(st.integers(1, 5))):
            on = draw(stream)
            body = _flat(draw(st.lists(step, max_size=4)))
            done = draw(st.sampled_from([Sync(), Sync(event=f"end{tid}"), Sync(stream=on)]))
            pair = [Record(f"start{tid}", on), *body, Record(f"end{tid}", on)]
            steps += [*pair, done, Elapsed(f"start{tid}", f"end{tid}", f"loop{tid}#{i}")]
        threads[tid] = steps
    return Program(threads, STREAMS, replace(draw(timings), clock_error=draw(clock)))


@st.composite
def host_programs(draw):
    """Pairs of host timestamps around random work of one thread."""
    main: list = []
    for i in range(draw(st.integers(1, 3))):
        main += draw(st.lists(st.one_of(work, host), max_size=3))
        body = draw(st.lists(st.one_of(work, host), max_size=5))
        main += [
            HostStart(f"host{i}#0"),
            *body,
            *draw(st.sampled_from([[], [Sync()]])),
            HostStop(f"host{i}#0"),
        ]
    return Program({MAIN: [*main, Sync()]}, STREAMS, draw(timings))
