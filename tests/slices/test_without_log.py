"""A trace without an event log in slices says what the whole says: NVTX ranges, pairs of records, ranges on the host."""

from __future__ import annotations

import lzma
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from simulator import export, machine
from simulator.export import Style
from simulator.program import Launch, Program, Record, Sleep, Sync
from simulator.world import LEGACY, NON_BLOCKING

import nsysalign
from nsysalign import engine
from nsysalign.model import ORIGIN
from nsysalign.place.context import FromTrace
from nsysalign.place.inferred import pairing_notes, pairs_of
from nsysalign.place.solve import align
from nsysalign.slices import one as work
from nsysalign.slices import rounds as run
from nsysalign.slices import survey as plan
from nsysalign.slices.pool import worker_pool
from nsysalign.split.budget import attribute
from nsysalign.split.partial import partial_result
from nsysalign.split.ranges import host_ranges, left_out
from nsysalign.split.run_windows import with_runs
from nsysalign.trace.index import FOREVER, sampled
from nsysalign.trace.read import read_trace

from .compare import same

TESTS = Path(__file__).parents[1]


def sliced(trace: Path, block_rows: int, count: int, *, busy: bool = True) -> run.Whole:
    """The trace in about `count` slices, compared with the whole that was given the same knowledge.  `busy`: no stream is idle for
    longer than what is read around a slice."""
    index = sampled(trace, block_rows)
    known = plan.survey(trace, None, index, most_calls=5_000)
    assert known is not None and len(plan.cuts(known.timed, index, count)[0]) >= 3
    with worker_pool(1) as alone:
        found = run.measure(trace, index, known, count, alone, lambda done, of: None)
    assert found is not None, "it can be cut"
    read = read_trace(trace)
    context = replace(found.known.context, from_trace=FromTrace((-FOREVER, FOREVER)))
    alignment = with_runs(read, align(read, None, context))
    whole = partial_result(read, alignment, attribute(read, alignment, known.latency), None)
    notes = (*whole.notes, *pairing_notes(pairs_of(alignment.marks)))
    same(replace(whole, notes=notes), found.portion)
    assert host_ranges(whole.on_host).equals(host_ranges(found.portion.on_host))
    assert left_out(whole.on_host) == left_out(found.portion.on_host)
    assert found.lost == read.lost
    ran = [p.durations.groupby(["kernel", "kind", "ns"]) for p in (whole, found.portion)]
    for column in ("count", *(("idle_before_ns",) if busy else ())):
        assert ran[0][column].sum().equals(ran[1][column].sum()), column
    return found


def unpacked(name: str, folder: Path) -> Path:
    target = folder / "trace.sqlite"
    target.write_bytes(lzma.decompress((TESTS / "data" / f"{name}.sqlite.xz").read_bytes()))
    return target


@pytest.mark.parametrize(
    ("name", "origins"),
    [
        ("globaltimer_h100", {"records", "range"}),
        (
            "graph_loop_h100",
            {"records", "range"},
        ),  # threads record long before and after they issue work
        ("behind_copies_h100", {"records", "range"}),
        ("truth_random4", {"records"}),
    ],
)
def test_recordings(tmp_path, name, origins):
    found = sliced(unpacked(name, tmp_path), 64, 4, busy=False)
    codes = set(found.portion.rows["origin"]) - {ORIGIN["run"]}
    assert codes == {ORIGIN[what] for what in origins}


def written(program: list, folder: Path) -> Path:
    world = machine.run(Program({500: program}, {7: LEGACY, 13: NON_BLOCKING}))
    return export.write([world], folder, Style())[0]


def ranged(trace: Path, ranges: list[tuple[int, int | None, str]]) -> None:
    """NVTX ranges of the only thread: (start, end, text)."""
    with closing(sqlite3.connect(trace)) as db:
        thread = db.execute("select globalTid from CUPTI_ACTIVITY_KIND_RUNTIME limit 1").fetchone()[
            0
        ]
        db.executemany(
            'insert into NVTX_EVENTS (start, "end", globalTid, eventType, text) values (?, ?, ?, 59, ?)',
            [(start, end, thread, text) for start, end, text in ranges],
        )
        db.commit()


def calls_of(trace: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(trace)) as db:
        return db.execute(
            'select start, "end" from CUPTI_ACTIVITY_KIND_RUNTIME order by start'
        ).fetchall()


def test_work_of_a_range_that_runs_long_after_its_slice(tmp_path, monkeypatch):
    """The host runs ahead by hundreds of launches: a range's kernels run where only later slices look."""
    program: list = [Launch(9_000), Sync(), Sleep(100_000)] * 6
    for _ in range(4):
        program += [Launch(90_000, cost=3_000) for _ in range(400)] + [Sync()]
    trace = written(program, tmp_path)
    calls = calls_of(trace)
    ranged(trace, [(a, b, f"step {n % 5}") for n, (a, b) in enumerate(calls[::3])])
    said = []
    monkeypatch.setattr(run, "work", lambda job: said.append((job, work.work(job))) or said[-1][1])
    found = sliced(trace, 16, 8)
    assert (found.portion.rows["kind"] == "nvtx").sum() > 500
    slices = {job.slice for job, _ in said}
    assert len(said) > len(slices), "some were read again"


def test_a_start_whose_end_lies_in_another_slice(tmp_path, monkeypatch):
    """What a slice takes for pairs by itself is corrected by the records of all slices."""
    program: list = [Launch(9_000), Sync(), Sleep(100_000)] * 6
    for k in range(205):
        program += [Record(f"outer{k}")] if k % 20 == 0 else []
        program += [Record(f"a{k}"), *[Launch(8_000), Sleep(2_000)] * 12, Record(f"b{k}")]
        program += [Record(f"end of outer{k}")] if k % 20 == 19 else []
        program += [Sync()]
    trace = written(program, tmp_path)
    given = []

    def noting(job):
        given.append(job.context.from_trace.pairs)
        return work.work(job)

    monkeypatch.setattr(run, "work", noting)
    monkeypatch.setattr(
        work, "narrow", lambda *a: False
    )  # which would have it look further by itself
    found = sliced(trace, 16, 4)
    assert (found.portion.rows["kind"] == "event").sum() >= 120 and "1 record belongs" in str(
        found.portion.notes
    )
    assert (found.portion.rows["elapsed_ns"] > 2_000_000).sum() >= 10
    assert any(pairs is not None for pairs in given), "a slice was given other pairs than it saw"


def test_ranges_never_closed_end_with_the_last_one(tmp_path):
    program: list = [Launch(9_000), Sync(), Sleep(100_000)] * 800
    trace = written(program, tmp_path)
    calls = calls_of(trace)
    ranged(trace, [(a, b, "step") for a, b in calls[::4]])
    ranged(trace, [(calls[-9][0], None, "open")])  # the process was killed in it
    found = sliced(trace, 16, 4)
    opened = found.portion.rows[found.portion.rows["region"] == "open"]
    assert len(opened) == 1 and opened["close_ns"].iloc[0] == max(b for a, b in calls[::4])


def test_a_range_as_long_as_the_run_is_not_cut(tmp_path):
    trace = written([Launch(9_000), Sync(), Sleep(100_000)] * 200, tmp_path)
    calls = calls_of(trace)
    ranged(trace, [(calls[0][0], calls[-1][1], "everything")])
    index = sampled(trace, 16)
    assert plan.cuts(plan.survey(trace, None, index, 5_000).timed, index, 6) is None


def test_the_analysis_is_the_same_in_slices(tmp_path, monkeypatch):
    """Everything that a user sees, but for what a long trace leaves out on purpose."""
    trace = unpacked("globaltimer_h100", tmp_path)
    whole = nsysalign.analyze(trace)
    cut = []
    monkeypatch.setattr(engine, "measure", lambda *a: cut.append(run.measure(*a)) or cut[-1])
    monkeypatch.setattr(engine, "SLICED_FROM_ROWS", 1_000)
    monkeypatch.setattr(engine, "SLICE_ROWS", 6_000)
    monkeypatch.setattr(engine, "sampled", lambda path: sampled(path, 64))
    found = nsysalign.analyze(trace)
    assert cut and cut[0] is not None
    ranges = [a.intervals[a.intervals["kind"] == "nvtx"] for a in (whole, found)]
    assert len(ranges[0]) > 500 and ranges[0].reset_index(drop=True).equals(
        ranges[1].reset_index(drop=True)
    )
    assert whole.host_ranges.equals(found.host_ranges)
    assert len(found.timeline) and set(found.timeline["interval"]) == set(
        whole.timeline["interval"]
    )
    said = {note for note in whole.notes if note.startswith(("left out", "1,062"))}
    assert said and said <= set(found.notes)
