"""The same program on the simulated machine twice: as it is, and with what a profiler adds to every
call.

The second run is analysed, its cost is known exactly, and the replay must find the first one's
intervals.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from properties.programs import host_programs, loops, programs
from simulator import export, machine
from simulator.program import Api, Elapsed, Launch, Program, Record, Sleep, Sync, Timing

from nsysalign import engine
from nsysalign.place.align import align
from nsysalign.place.streams import lane_operations
from nsysalign.predict.replay import FITTED, Overhead
from nsysalign.predict.unprofiled import Predictor

INSIDE, AFTER = 1_700, 900
#: Gaps as the replay takes them for granted on a busy stream; a record is placed to its tick.
TIMING = Timing(op_to_op=1_250, op_to_record=2_500, record_to_op=1_250)


def random_steps(seed: int) -> list:
    """Ten intervals: short and long kernels, other calls, pauses and waits between and inside
    them."""
    pick = random.Random(seed)
    steps: list = []
    for number in range(10):
        body = [
            pick.choice(
                [
                    Launch(pick.choice([900, 3_000, 40_000]), cost=pick.randint(2_000, 4_000)),
                    Launch(1_000, cost=2_500),
                    Api(pick.randint(300, 5_000), name="cudaMalloc_v3020"),
                    Sleep(pick.randint(1_000, 20_000)),
                    Sync(),
                ]
            )
            for _ in range(pick.randint(0, 12))
        ]
        steps += [
            Record(f"a{number}"),
            *body,
            Record(f"b{number}"),
            pick.choice([Sync(), Sleep(3_000)]),
        ]
    return [*steps, Sync(), *(Elapsed(f"a{n}", f"b{n}", f"x{n}#0") for n in range(10))]


def slower(step):
    """The same instruction under the profiler.  A pause is no call: what the machine adds after it
    is taken back."""
    if isinstance(step, Sleep):
        return Sleep(step.ns - AFTER)
    if isinstance(step, Launch | Record):
        return replace(step, cost=step.cost + (INSIDE if isinstance(step, Launch) else 0))
    return replace(step, ns=step.ns + INSIDE) if isinstance(step, Api) else step


def run(steps, **timing):
    return machine.run(Program({500: steps}, timing=replace(TIMING, **timing)))


@pytest.fixture(scope="module", params=[1, 2, 3])
def both(request, tmp_path_factory):
    """(the world without a profiler, the trace with one, its alignment)."""
    steps = random_steps(request.param)
    profiled = run([slower(s) for s in steps], between_calls=TIMING.between_calls + AFTER)
    trace, logs = export.write([profiled], tmp_path_factory.mktemp("simulated"))
    read, log = engine.read_trace(trace), engine.read_event_logs(logs)
    return run(steps), read, align(read, log)


def predicted(both, inside: int, after: int) -> dict[str, int]:
    _, trace, alignment = both
    lanes = lane_operations(trace, alignment.operation_lane)
    predictor = Predictor(trace, alignment, lanes, replace(FITTED, device_ns=0, memset_ns=0))
    named = [trace.names[n] for n in trace.calls["name_id"]]
    costly = np.array(["Launch" in n or "Malloc" in n for n in named])
    predictor.overhead = lambda own: Overhead(inside * costly[own], np.full(len(own), after))
    return {
        w.region: predictor.predict(w).predicted_ns
        for w in alignment.windows.itertuples(index=False)
    }


def test_the_cost_taken_away_gives_the_run_without_it(both):
    alone = {p.name: p.elapsed_ns for p in both[0].pairs}
    found = predicted(both, INSIDE, AFTER)
    assert found.keys() == alone.keys()
    for name, ns in alone.items():
        assert found[name] == pytest.approx(ns, rel=0.005, abs=300), name


def test_no_cost_gives_the_profiled_interval_itself(both):
    profiled = {w.region: w.elapsed_ns for w in both[2].windows.itertuples(index=False)}
    assert predicted(both, 0, 0) == profiled


@settings(settings.get_profile("quick"), max_examples=8)
@given(st.one_of(programs(), loops(), host_programs()))
def test_any_program(program):
    """Several streams, threads, copies, graphs, full queues: no cost moves nothing, some cost never
    gives a negative time, and every prediction has a bar or a reason."""
    with tempfile.TemporaryDirectory() as folder:
        trace, logs = export.write([machine.run(program)], Path(folder))
        read, log = engine.read_trace(trace), engine.read_event_logs(logs)
    alignment = align(read, log)
    lanes = lane_operations(read, alignment.operation_lane)
    none, some = (
        Predictor(read, alignment, lanes, replace(FITTED, device_ns=0, memset_ns=0, graph_ns=g))
        for g in (0, 1_200)
    )
    none.overhead = lambda own: Overhead(np.zeros(len(own), np.int64), np.zeros(len(own), np.int64))
    for window in alignment.windows.itertuples(index=False):
        found, still = some.predict(window), none.predict(window)
        if found.reason:
            assert found[:3] == (-1, -1, -1) and still.reason
            continue
        assert still.predicted_ns == window.elapsed_ns
        assert 0 <= found.lower_ns <= found.predicted_ns <= found.upper_ns
        assert found.lower_ns < found.upper_ns
