"""A trace in slices says what the whole says, to the nanosecond."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from simulator import export, machine
from simulator.export import Style
from simulator.program import (
    Api,
    Elapsed,
    HostStart,
    HostStop,
    Launch,
    Program,
    Record,
    Sleep,
    Sync,
    Wait,
)
from simulator.world import LEGACY, NON_BLOCKING

from nsysalign.place.solve import align
from nsysalign.slices import one as work
from nsysalign.slices import rounds as run
from nsysalign.slices import survey as plan
from nsysalign.slices.pool import worker_pool
from nsysalign.split.budget import attribute
from nsysalign.split.partial import partial_result
from nsysalign.split.run_windows import with_runs
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.index import FOREVER, sampled
from nsysalign.trace.read import read_trace

from .compare import same

TESTS = Path(__file__).parents[1]


def sliced(trace: Path, logs, *, block_rows: int, count: int, hosts_ns: int = 0) -> run.Whole:
    """The trace in about `count` slices, compared with the whole that was given the same knowledge."""
    log, index = read_event_logs(logs), sampled(trace, block_rows)
    known = plan.survey(trace, log, index, most_calls=5_000)
    assert known is not None
    with worker_pool(1) as alone:
        found = run.measure(trace, index, known, count, alone, lambda done, of: None)
    assert found is not None, "it can be cut"
    read = read_trace(trace)
    alignment = with_runs(read, align(read, log, found.known.context))
    same(
        partial_result(read, alignment, attribute(read, alignment, known.latency), log),
        found.portion,
        hosts_ns=hosts_ns,
    )
    assert found.lost == read.lost
    return found


def slices_of(trace: Path, logs, block_rows: int, count: int) -> int:
    log, index = read_event_logs(logs), sampled(trace, block_rows)
    slices, far = plan.cuts(plan.survey(trace, log, index, 5_000).timed, index, count)
    return 0 if far.any() else len(slices)


@pytest.mark.parametrize(
    ("name", "block_rows", "count"),
    [
        ("clocks", 512, 7),
        ("host_timers", 64, 4),
        ("contention", 64, 3),
        ("too_early", 64, 3),
        ("launch_blocking", 64, 4),
        ("dobench", 64, 3),
        ("small_launches", 64, 4),
        ("other_stream", 64, 3),
    ],
)
def test_recordings(puzzle, name, block_rows, count):
    trace, logs = puzzle(name)
    assert slices_of(trace, logs, block_rows, count) >= 3
    sliced(trace, logs, block_rows=block_rows, count=count)


def test_rows_that_came_late(tmp_path):
    """nsys 2026 wrote buffers of this recording seconds after those that follow them in time; clocks are joined on record
    calls, slice by slice."""
    files = {}
    for end in ("sqlite", "events.jsonl"):
        packed = TESTS / "data" / f"truth_event_timestamps.{end}.xz"
        files[end] = tmp_path / f"trace.{end}"
        files[end].write_bytes(lzma.decompress(packed.read_bytes()))
    sliced(files["sqlite"], [files["events.jsonl"]], block_rows=128, count=2, hosts_ns=2_000)


def turned(trace: Path, *statements: str) -> None:
    with closing(sqlite3.connect(trace)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def test_rows_in_any_order(puzzle):
    """Every seventh call and every fifth kernel at the end of its table: blocks that span the whole run."""
    trace, logs = puzzle("clocks")
    for table, every in (("CUPTI_ACTIVITY_KIND_RUNTIME", 7), ("CUPTI_ACTIVITY_KIND_KERNEL", 5)):
        turned(
            trace,
            f"create table moved as select * from {table} order by rowid / 2000 % {every} = 3, rowid",
            f"drop table {table}",
            f"alter table moved rename to {table}",
        )
    sliced(trace, logs, block_rows=256, count=3)


def test_what_was_lost_is_counted_once(puzzle):
    trace, logs = puzzle("clocks")
    turned(
        trace,
        'update CUPTI_ACTIVITY_KIND_RUNTIME set start = 0, "end" = 0 where rowid % 5000 = 17',
        'update CUPTI_ACTIVITY_KIND_KERNEL set "end" = start - 5 where rowid % 1000 = 4',
    )
    found = sliced(trace, logs, block_rows=512, count=6)
    assert all(count > 3 for count in found.lost.values())


def test_streams_that_the_survey_did_not_see(puzzle, monkeypatch):
    trace, logs = puzzle("clocks")
    with closing(sqlite3.connect(trace)) as db:
        last = db.execute("select max(rowid) from CUPTI_ACTIVITY_KIND_KERNEL").fetchone()[0]
    # work on a stream of its own at the very end, and no table that names streams
    turned(
        trace,
        f"update CUPTI_ACTIVITY_KIND_KERNEL set streamId = 99 where rowid > {last - 40}",
        "drop table if exists TARGET_INFO_CUDA_STREAM",
    )
    log, index = read_event_logs(logs), sampled(trace, 512)
    known = plan.survey(trace, log, index, 5_000)
    assert 99 not in set(known.context.lanes["stream"])
    found = sliced(trace, logs, block_rows=512, count=6)
    assert 99 in set(found.known.context.lanes["stream"][found.known.context.busy])


def test_more_is_read_where_an_interval_needs_it(tmp_path, monkeypatch):
    """The host runs ahead by hundreds of launches: what an interval measures runs long after its records were made, behind
    work that was issued long before them."""
    ahead: list = [Launch(9_000), Sync(), Sleep(100_000)] * 6
    for k in range(500):
        ahead += [Record(f"a{k}"), Launch(60_000 + 100 * (k % 7), cost=3_000), Record(f"b{k}")]
        ahead += [Sync(), Sleep(50_000)] if k % 250 == 249 else []
    ahead += [Elapsed(f"a{k}", f"b{k}", f"step#{k}") for k in range(500)]
    trace, logs = export.write([machine.run(Program({500: ahead}, {7: LEGACY}))], tmp_path, Style())
    said = []
    monkeypatch.setattr(run, "work", lambda job: said.append(work.work(job)) or said[-1])
    sliced(trace, logs, block_rows=16, count=4)
    assert any(isinstance(s, work.Narrow) for s in said)
    assert sum(isinstance(s, work.Done) for s in said) >= 4


def steps(count: int) -> list:
    out: list = [Launch(9_000), Sync(), Sleep(100_000)] * 6
    for k in range(count):
        out += [HostStart(f"h{k}"), Record(f"a{k}"), Launch(12_000 + 100 * (k % 7))]
        out += (
            [Launch(30_000, stream=13), Record(f"w{k}", 13), Wait(f"w{k}", 7)] if k % 3 == 0 else []
        )
        out += [Api(5_000), Launch(8_000), Record(f"b{k}")]
        out += [Sync()] if k % 4 else []
        out += [Elapsed(f"a{k}", f"b{k}", f"step#{k}"), HostStop(f"h{k}"), Sleep(20_000)]
    return out


@pytest.mark.parametrize("rows", ["timestamps", "untimed", "none"])
def test_programs_with_several_streams_that_never_quite_drain(tmp_path, monkeypatch, rows):
    """Events, host timers and waits, each slice its own, and none read more than once."""
    world = machine.run(Program({500: steps(400)}, {7: LEGACY, 13: NON_BLOCKING}))
    trace, logs = export.write([world], tmp_path, Style(event_rows=rows))
    said = []
    monkeypatch.setattr(run, "work", lambda job: said.append(work.work(job)) or said[-1])
    sliced(trace, logs, block_rows=64, count=6)
    assert len(said) == 6 and all(isinstance(s, work.Done) for s in said)
    kinds = [set(s.portion.rows["kind"]) for s in said]
    assert all({"event", "host"} <= kind for kind in kinds)


def test_two_processes_in_one_trace(tmp_path):
    """One begins late: slices before it have never seen it."""
    streams = {7: LEGACY, 13: NON_BLOCKING}
    programs = [
        Program({500: steps(300)}, streams),
        Program({600: steps(200)}, streams, begin=1_004_000_000, pid=78),
    ]
    trace, logs = export.write([machine.run(p) for p in programs], tmp_path, Style())
    found = sliced(trace, logs, block_rows=64, count=3)
    assert found.portion.rows["pid"].nunique() == 2


def test_an_interval_as_long_as_the_run_is_not_cut(tmp_path):
    inner = steps(150)
    whole = [
        Record("first"),
        *inner,
        Record("last"),
        Sync(),
        Elapsed("first", "last", "everything"),
    ]
    world = machine.run(Program({500: whole}, {7: LEGACY, 13: NON_BLOCKING}))
    trace, logs = export.write([world], tmp_path, Style())
    log, index = read_event_logs(logs), sampled(trace, 64)
    known = plan.survey(trace, log, index, 5_000)
    assert plan.cuts(known.timed, index, 5) is None


def test_blocks_of_an_excerpt_hold_all_that_touches_it(puzzle):
    trace, _ = puzzle("clocks")
    whole = read_trace(trace).calls
    index = sampled(trace, 256)
    low, high = int(whole["start_ns"].quantile(0.4)), int(whole["start_ns"].quantile(0.5))
    some = read_trace(trace, index.excerpt([(low, high)])).calls
    inside = whole[(whole["end_ns"] >= low) & (whole["start_ns"] <= high)]
    assert some["row"].tolist() == inside["row"].tolist()
    assert len(some) < 0.2 * len(whole)
    every = read_trace(trace, index.excerpt([(-FOREVER, FOREVER)])).calls
    assert every.drop(columns="outer").equals(whole.drop(columns="outer"))
    assert np.array_equal(every["outer"], whole["outer"])
