"""Several devices, contexts and processes, and traces of which a part is missing: right, or
`unknown` with the reason."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from simulator import check, export, machine, oracle, together
from simulator.export import Style
from simulator.program import Elapsed, Launch, Program, Record, Sleep, Sync
from simulator.world import LEGACY, NON_BLOCKING
from thorough import part

from .test_properties import forward, true_budget

ROWS = ["timestamps", "untimed", "none"]


def program(thread: int, kernel: int, *, begin: int = 0, count: int = 4, **more) -> Program:
    """Intervals that no other could be taken for: kernels of their own length, and idle time before
    them."""
    steps: list = [Launch(9_000), Sync(), Sleep(100_000)] * 6
    for k in range(count):
        steps += [
            Record(f"a{k}"),
            Sleep(30_000),
            Launch(kernel + 100 * k),
            Launch(kernel),
            Record(f"b{k}"),
            Sync(),
        ]
        steps += [Elapsed(f"a{k}", f"b{k}", f"t{thread}#{k}"), Sleep(80_000)]
    streams = {7: LEGACY, 13: NON_BLOCKING}
    return Program({thread: steps}, streams, begin=1_000_000_000 + begin, **more)


def right_or_unaligned(worlds, analysis, *, exact: bool, all_of_them: bool = True) -> int:
    """How many were placed; each where it was, with the kernel time that it had."""
    check.invariants(analysis)
    rows = {r.name: r for r in analysis.measured.itertuples() if r.kind == "event"}
    unaligned = dict(zip(analysis.unaligned["name"], analysis.unaligned["reason"], strict=True))
    for world in worlds:
        for pair in forward(world):
            row = rows.get(pair.name)
            if row is None:
                assert unaligned[pair.name], "a reason"
                assert not all_of_them
                continue
            assert (row.device, row.end_stream) == (world.device, pair.end.stream)
            assert row.start_lower_ns - 64 <= pair.start.t <= row.start_upper_ns + 64, pair.name
            true = oracle.parts(true_budget(world, pair)).get("kernel", 0)
            mine = analysis.parts[
                (analysis.parts.interval == row.interval) & (analysis.parts.cause == "kernel")
            ]
            assert mine.lower_ns.sum() - 64 <= true <= mine.upper_ns.sum() + 64, pair.name
            if exact:
                assert row.kernel_only_ns == true
    return len(rows)


def analysed(worlds, style, *, joined: bool, drop=()):
    with tempfile.TemporaryDirectory() as folder:
        write = together.write if joined else export.write
        trace, logs = write(worlds, Path(folder), style, *([drop] if joined else []))
        return check.analyze(trace, logs)


@pytest.mark.parametrize("event_rows", ROWS)
@pytest.mark.parametrize(
    ("device", "known"),
    [(1, True), (1, False), (0, False)],
    ids=["device in the log", "no device in the log", "two contexts on one device"],
)
def test_two_devices_or_contexts_of_one_process(event_rows, device, known):
    """Both work on their default stream, number 7, at the same time, from a thread each.  A log can
    name a device, but no context: where no event row does, the pairs are placed rightly, or
    unaligned with the reason."""
    worlds = [
        machine.run(program(500, 20_000)),
        machine.run(program(501, 47_000, device=device, begin=3_000)),
    ]
    drop = ("device",) if device and not known else ()
    analysis = analysed(worlds, Style(event_rows=event_rows), joined=True, drop=drop)
    sure = known or event_rows != "none"
    placed = right_or_unaligned(
        worlds, analysis, exact=event_rows == "timestamps", all_of_them=sure
    )
    assert placed == (8 if sure else 0)
    assert sure == (
        not any("several contexts have a default stream" in note for note in analysis.notes)
    )


def damaged(world, style, *statements: str):
    with tempfile.TemporaryDirectory() as folder:
        trace, logs = export.write(world, Path(folder), style)
        with closing(sqlite3.connect(trace)) as db:
            for statement in statements:
                db.execute(statement)
            db.commit()
        return check.analyze(trace, logs)


@pytest.mark.parametrize("event_rows", ROWS)
def test_kernels_without_launch_rows(event_rows):
    """Nothing says when they were issued: the kernels are there, the time before them is `unknown`,
    no cause is made up."""
    world = machine.run(program(500, 20_000))
    analysis = damaged(
        world,
        Style(event_rows=event_rows),
        "delete from CUPTI_ACTIVITY_KIND_RUNTIME where nameId in (select id from StringIds where value like 'cudaLaunchKernel%')",
    )
    check.invariants(analysis)
    names = {p.name: p for p in forward(world)}
    assert len(analysis.measured) + len(analysis.unaligned) >= len(names)
    for row in analysis.measured.itertuples():
        parts = check.parts(analysis, row.interval)
        assert "api_launch" not in parts and "launch_latency" not in parts
        if event_rows == "timestamps":
            assert row.kernel_only_ns == oracle.parts(true_budget(world, names[row.name]))["kernel"]
            assert parts["unknown"] > 0
    if event_rows == "timestamps":
        assert len(analysis.measured) == 4


#: (what rows of events there are, where the slice begins): each of both.
SLICES = [("timestamps", 0.35), ("untimed", 0.6), ("none", 0.8), ("none", 0.35)]
EVERY_SLICE = [(rows, share) for share in (0.35, 0.6, 0.8) for rows in ROWS]


@pytest.mark.parametrize(("event_rows", "share"), part(SLICES, EVERY_SLICE))
def test_a_slice_of_a_trace(event_rows, share):
    """Rows that began before a moment are gone, as after a late start of the profiler: what is
    whole is right, what is cut is unaligned with a reason, and no earlier record is taken for a
    later one."""
    world = machine.run(program(500, 20_000, count=8))
    starts = [c.start for c in world.calls]
    cut = int(min(starts) + share * (max(starts) - min(starts)))
    tables = ("RUNTIME", "KERNEL", "CUDA_EVENT", "SYNCHRONIZATION")
    if event_rows == "none":
        tables = tuple(t for t in tables if t != "CUDA_EVENT")
    deletes = []
    for table in tables:
        column = "timestamp" if table == "CUDA_EVENT" else "start"
        if table == "CUDA_EVENT":
            gone = [str(r.call.correlation) for r in world.records if r.call.start < cut]
            deletes.append(
                f"delete from CUPTI_ACTIVITY_KIND_{table} where correlationId in ({','.join(gone)})"
            )
        else:
            deletes.append(f"delete from CUPTI_ACTIVITY_KIND_{table} where {column} < {cut}")
    analysis = damaged(world, Style(event_rows=event_rows), *deletes)
    check.invariants(analysis)
    rows = {r.name: r for r in analysis.measured.itertuples()}
    reasons = dict(zip(analysis.unaligned["name"], analysis.unaligned["reason"], strict=True))
    for pair in forward(world):
        if pair.start.call.start < cut:
            assert pair.name not in rows and reasons[pair.name]
        else:
            row = rows[pair.name]
            assert row.start_lower_ns - 64 <= pair.start.t <= row.start_upper_ns + 64
            if event_rows == "timestamps":
                assert row.kernel_only_ns == oracle.parts(true_budget(world, pair))["kernel"]
