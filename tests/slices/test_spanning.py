"""Intervals as long as the run, with or without a log: split slice by slice, and equal to the whole to the nanosecond."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from simulator import export, machine
from simulator.export import Style
from simulator.program import (
    Api,
    Copy,
    Elapsed,
    GraphLaunch,
    HostFunction,
    HostStart,
    HostStop,
    Launch,
    Memset,
    Profiler,
    Program,
    Record,
    Sleep,
    Sync,
    Wait,
)
from simulator.world import LEGACY, NON_BLOCKING

import nsysalign
from nsysalign import engine
from nsysalign.model import ORIGINS
from nsysalign.place.solve import align
from nsysalign.predict import unprofiled
from nsysalign.slices import rounds as run
from nsysalign.slices import survey as plan
from nsysalign.slices.pool import worker_pool
from nsysalign.split.budget import attribute
from nsysalign.split.run_windows import with_runs
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.index import sampled
from nsysalign.trace.read import read_trace

from .test_slices import sliced, steps
from .test_without_log import calls_of, ranged, written
from .test_without_log import sliced as without_log


def far_of(trace: Path, logs, block_rows: int, count: int):
    log, index = read_event_logs(logs) if logs else None, sampled(trace, block_rows)
    return plan.cuts(plan.survey(trace, log, index, 5_000).timed, index, count)[1]


def around_everything(inner: list) -> list:
    return [
        HostStart("all"),
        Record("first"),
        *inner,
        Record("last"),
        Sync(),
        HostStop("all"),
        Elapsed("first", "last", "everything"),
    ]


@pytest.mark.parametrize("rows", ["timestamps", "untimed", "none"])
def test_a_pair_and_a_host_timer_around_the_run(tmp_path, rows):
    world = machine.run(
        Program({500: around_everything(steps(400))}, {7: LEGACY, 13: NON_BLOCKING})
    )
    trace, logs = export.write([world], tmp_path, Style(event_rows=rows))
    far = far_of(trace, logs, 16, 5)
    assert len(far.pairs) == 1 and len(far.hosts) == 1
    sliced(trace, logs, block_rows=16, count=5)


def test_a_recording_with_pairs_and_timers_over_much_of_it(puzzle):
    """Marks join its clocks.  The program is taken to have compared more of its records, and to have read a clock beside them."""
    trace, (log,) = puzzle("clocks")
    intervals = nsysalign.analyze(trace, [log]).intervals
    intervals = intervals[intervals["kind"] == "event"]
    ends = [
        zip(intervals[f"{e}_record"], intervals[f"{e}_ns"], strict=True) for e in ("start", "end")
    ]
    at = {int(record): int(t) for end in ends for record, t in end}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    records = sorted(
        (x for x in lines if x["type"] == "record" and x["seq"] in at), key=lambda x: at[x["seq"]]
    )
    with log.open("a") as file:
        for first, last in ((0, -1), (0, len(records) // 2), (len(records) // 3, -5)):
            a, b = records[first], records[last]
            pair = {
                "type": "elapsed",
                "start": a["seq"],
                "end": b["seq"],
                "ms": (at[b["seq"]] - at[a["seq"]]) / 1e6,
            }
            timer = {"type": "host", "t0_ns": a["t0_ns"], "t1_ns": b["t1_ns"], "tid": a["tid"]}
            file.write(
                "".join(json.dumps(line | {"region": "most"}) + "\n" for line in (pair, timer))
            )
    found = sliced(trace, [log], block_rows=512, count=4)
    assert found.portion.rows["part"].sum() == 6


def spanned(trace: Path, text: str = "everything") -> None:
    calls = calls_of(trace)
    ranged(trace, [(calls[0][0] - 10, calls[-1][1] + 10, text)])


@pytest.mark.parametrize("name", ["LEGACY", "two"])
def test_an_outer_range_without_a_log(tmp_path, name):
    inner: list = [Launch(9_000), Sync(), Sleep(100_000)] * 6
    for k in range(700):
        inner += [Launch(8_000 + 100 * (k % 7)), Sleep(2_000), Launch(9_000, cost=2_000)]
        inner += [Launch(5_000, stream=13)] if name == "two" and k % 3 == 0 else []
        inner += [Sync()] if k % 5 == 0 else []
    trace = written(inner, tmp_path)
    calls = calls_of(trace)
    ranged(trace, [(a, b, f"step {n % 5}") for n, (a, b) in enumerate(calls[::7])])
    spanned(trace)
    index = sampled(trace, 16)
    assert len(plan.cuts(plan.survey(trace, None, index, 5_000).timed, index, 5)[1].ranges) == 1
    found = without_log(trace, 16, 5)
    assert (found.portion.rows["region"].str.startswith("everything")).sum() == (
        2 if name == "two" else 1
    )


def anything(rng: np.random.Generator, count: int) -> list:
    """A random program whose stream 13 is never idle for long; named pairs and host timers of any length, nested or not."""
    out: list = [Launch(9_000), Sync(), Sleep(100_000)] * 6
    ends: dict[int, list] = {}
    for k in range(count):
        stream = int(rng.choice([7, 7, 13]))
        choice = [
            [Launch(int(rng.integers(2_000, 40_000)), stream, pdl=bool(rng.random() < 0.3))],
            [
                Launch(int(rng.integers(2_000, 9_000)), stream, name="other"),
                Sleep(int(rng.integers(0, 20_000))),
            ],
            [
                Copy(
                    int(rng.integers(3_000, 30_000)),
                    stream,
                    pageable=bool(rng.random() < 0.5),
                    nbytes=1000 * k,
                )
            ],
            [Memset(int(rng.integers(2_000, 5_000)), stream)],
            [
                GraphLaunch(
                    [(0, 4_000), (5_000, 7_000), (6_000, 9_000)],
                    stream,
                    whole=bool(rng.random() < 0.5),
                )
            ],
            [Record(f"w{k}", 13), Wait(f"w{k}", 7), Launch(6_000)],
            [Sync(stream) if rng.random() < 0.5 else Sync()],
            [
                Api(
                    int(rng.integers(2_000, 60_000)),
                    name=str(rng.choice(["cudaMalloc_v3020", "cudaFree_v3020"])),
                )
            ],
            [Sleep(int(rng.integers(1_000, 300_000)))],
            [Profiler(int(rng.integers(1_000, 50_000)))],
            [HostFunction(int(rng.integers(2_000, 20_000)), stream)],
        ]
        weights = np.array([8, 4, 2, 1, 1, 1, 1, 1, 1, 0.2, 0.2])
        out += choice[int(rng.choice(len(choice), p=weights / weights.sum()))]
        out += [Launch(3_000, 13)] if k % 40 == 0 else []
        if rng.random() < 0.1:
            length = int(rng.choice([1, 3, count // 4, count // 2, count]))
            on = int(rng.choice([7, 7, 13]))
            host = rng.random() < 0.3
            out += [HostStart(f"h{k}")] if host else [Record(f"a{k}", on)]
            closing = (
                [HostStop(f"h{k}")]
                if host
                else [Record(f"b{k}", on), Elapsed(f"a{k}", f"b{k}", f"i{k}")]
            )
            ends.setdefault(min(k + length, count - 1), []).insert(0, closing)
        for closing in ends.pop(k, []):
            # the last ones ask only after everything has ended
            out += closing if len(closing) == 1 else [closing[0], Sync(), closing[1]]
    return out


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
)
@given(st.integers(0, 1 << 30), st.sampled_from(["timestamps", "untimed", "none"]))
def test_random_programs(tmp_path_factory, seed, rows):
    rng = np.random.default_rng(seed)
    world = machine.run(Program({500: anything(rng, 700)}, {7: LEGACY, 13: NON_BLOCKING}))
    trace, logs = export.write([world], tmp_path_factory.mktemp("run"), Style(event_rows=rows))
    far = far_of(trace, logs, 16, 4)
    assert far.any()
    sliced(trace, logs, block_rows=16, count=4)


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_random_programs_without_a_log(tmp_path, seed):
    """Ranges around much of the run, and (with even seeds) pairs of records that nothing names."""
    program = [
        s
        for s in anything(np.random.default_rng(seed), 700)
        if not isinstance(s, HostStart | HostStop | Elapsed)
    ]
    if seed % 2:
        program = [s for s in program if not isinstance(s, Record) or s.event.startswith("w")]
    trace = written(program, tmp_path)
    calls = calls_of(trace)
    steps_of = [
        (a, b, f"step {n % 3}")
        for n, ((a, _), (_, b)) in enumerate(zip(calls[::25], calls[20::25], strict=False))
    ]
    most = (calls[len(calls) // 4][0] - 7, calls[-len(calls) // 5][1] + 7, "most")
    ranged(trace, sorted([(calls[0][0] - 10, calls[-1][1] + 10, "all"), most, *steps_of]))
    rows = without_log(trace, 16, 4).portion.rows
    assert {"range", *(["records"] if seed % 2 == 0 else [])} <= {
        ORIGINS[n] for n in rows.loc[rows["part"], "origin"]
    }


def test_an_analysis_whose_interval_is_as_long_as_the_run(tmp_path, monkeypatch):
    """All that a user sees of it, in slices and in memory, but for what needs all of it at once."""
    world = machine.run(
        Program({500: around_everything(steps(400))}, {7: LEGACY, 13: NON_BLOCKING})
    )
    trace, logs = export.write([world], tmp_path, Style())
    whole = nsysalign.analyze(trace, logs)
    monkeypatch.setattr(engine, "SLICED_FROM_ROWS", 1_000)
    monkeypatch.setattr(engine, "SLICE_ROWS", 2_000)
    monkeypatch.setattr(engine, "MOST_PIECES", 1_000)
    monkeypatch.setattr(unprofiled, "MOST_CALLS", 500)
    monkeypatch.setattr(engine, "sampled", lambda path: sampled(path, 16))
    found = nsysalign.analyze(trace, logs)
    long = found.intervals.loc[found.intervals["label"].isin(["everything", "all"]), "interval"]
    assert len(long) == 2
    assert any("too long to be read at once" in note for note in found.notes)
    assert any(note.startswith("sync-inside was not checked: everything") for note in found.notes)
    assert not found.timeline["interval"].isin(long).any() and len(found.timeline)
    assert not found.segments["interval"].isin(long).any() and len(found.segments)
    why = found.unprofiled.set_index("interval")["reason"]
    assert (
        why[long].str.endswith("too long to replay").all()
        and not why.drop(long).str.contains("long").any()
    )
    for table in ("labels", "kernels"):
        a, b = getattr(whole, table), getattr(found, table)
        assert a["label"].tolist() == b["label"].tolist(), table
    drawn = nsysalign.analyze(trace, logs, draw=["everything#0"])
    (number,) = drawn.intervals.loc[drawn.intervals["label"] == "everything", "interval"]
    segments, timeline = (t[t["interval"] == number] for t in (drawn.segments, drawn.timeline))
    parts = drawn.parts[drawn.parts["interval"] == number].set_index("cause")["ns"]
    took = (segments["end_ns"] - segments["start_ns"]).groupby(segments["cause"]).sum()
    assert len(timeline) and (parts[parts > 0].sort_index() == took.sort_index()).all()


def test_all_segments_of_an_interval_as_long_as_the_run(tmp_path, monkeypatch):
    """Each ends where the next begins, and none is cut in two by a slice."""
    world = machine.run(
        Program({500: around_everything(steps(400))}, {7: LEGACY, 13: NON_BLOCKING})
    )
    trace, logs = export.write([world], tmp_path, Style())
    log, index = read_event_logs(logs), sampled(trace, 16)
    known = plan.survey(trace, log, index, 5_000)
    with worker_pool(1) as alone:
        found = run.measure(trace, index, known, 5, alone, lambda done, of: None, True)
    read = read_trace(trace)
    alignment = with_runs(read, align(read, log, found.known.context))
    wanted = attribute(read, alignment, known.latency).segments(
        np.flatnonzero(alignment.windows["kind"] != "run")
    )
    mine = found.portion.segments
    mine = mine[mine["interval"].isin(wanted["interval"])].reset_index(drop=True)
    pd.testing.assert_frame_equal(mine, wanted)
