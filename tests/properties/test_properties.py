"""nsysalign against the simulator's truth on random programs.

`HYPOTHESIS_PROFILE=hunt pytest tests/properties` looks much longer than the suite does.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import check, export, machine, oracle
from simulator.export import Style

from .programs import CORRECTED, host_programs, loops, programs

BLIND = st.sampled_from(["untimed", "none"])


def analysed(worlds, style=Style(), logs=True):  # noqa: B008 (frozen)
    with tempfile.TemporaryDirectory() as folder:
        trace, events = export.write(worlds, Path(folder), style)
        analysis = check.analyze(trace, events if logs else [])
    check.invariants(analysis)
    return analysis


def rows_of(analysis) -> dict:
    """(pid, start record, end record) -> row of the interval."""
    mine = analysis.measured[analysis.measured.kind == "event"]
    return {(r.pid, r.start_record, r.end_record): r for r in mine.itertuples()}


def without_contention(pieces) -> dict[str, int]:
    """True parts with rule 7's share given to launch latency: the split needs a calibrated L."""
    return oracle.parts(
        [
            oracle.Piece(p.start, p.end, "launch_latency") if p.detail == "contention" else p
            for p in pieces
        ]
    )


def parts_without_contention(analysis, interval: int) -> dict[str, int]:
    parts = check.parts(analysis, interval)
    d = analysis.details[analysis.details.interval == interval]
    moved = int(d[(d.cause == "queued") & d.detail.str.contains("contention")].ns.sum())
    parts["queued"] = parts.get("queued", 0) - moved
    parts["launch_latency"] = parts.get("launch_latency", 0) + moved
    return {cause: ns for cause, ns in parts.items() if ns}


def forward(world) -> list:
    """The pairs with a positive distance: records of two streams can come in the other order."""
    return [p for p in world.pairs if p.elapsed_ns > 0]


def true_budget(world, pair):
    return oracle.event_budget(world, *pair.window, pair.end.stream, pair.end)


@given(st.one_of(programs(clock=CORRECTED), loops(clock=CORRECTED)))
def test_budgets_are_exact_where_positions_are(program):
    world = machine.run(program)
    analysis = analysed(world)
    rows = rows_of(analysis)
    assert len(rows) + len(analysis.unaligned) == len(world.pairs)
    for pair in forward(world):
        row = rows[world.pid, pair.start.seq, pair.end.seq]
        assert (row.start_ns, row.end_ns) == pair.window
        assert row.method == "event-trace"
        assert abs(row.clock_residual_ns) == abs(pair.end.t - row.end_ns)
        pieces = true_budget(world, pair)
        assert parts_without_contention(analysis, row.interval) == without_contention(pieces)
        kernels = [o for o in world.ops if o.kind == "kernel" and o.stream == pair.end.stream]
        assert row.kernel_only_ns == oracle.union(kernels, *pair.window)


@given(st.one_of(programs(intervals=8), loops()), BLIND)
def test_bounds_and_kernel_time_hold_without_timestamps(program, event_rows):
    world = machine.run(program)
    analysis = analysed(world, Style(event_rows=event_rows))
    rows = rows_of(analysis)
    assert len(rows) + len(analysis.unaligned) == len(world.pairs)
    for pair in forward(world):
        row = rows.get((world.pid, pair.start.seq, pair.end.seq))
        if row is None:  # only where nothing tells the stream
            assert event_rows == "none" and pair.name in set(analysis.unaligned.name)
            continue
        assert row.start_lower_ns - 64 <= pair.start.t <= row.start_upper_ns + 64
        assert row.start_lower_ns <= row.start_ns <= row.start_upper_ns
        if abs(row.start_ns - pair.start.t) > row.error_ns:
            continue
        mine = analysis.parts[
            (analysis.parts.interval == row.interval) & (analysis.parts.cause == "kernel")
        ]
        lower, upper = int(mine.lower_ns.sum()), int(mine.upper_ns.sum())
        true = oracle.parts(true_budget(world, pair)).get("kernel", 0)
        assert lower - 64 <= true <= upper + 64


@given(host_programs())
def test_host_budgets_are_exact(program):
    world = machine.run(program)
    analysis = analysed(world)
    rows = {r.name: r for r in analysis.measured.itertuples() if r.kind == "host"}
    for h in world.host_intervals:
        row = rows[h.name]
        assert (row.start_ns, row.end_ns) == (h.start, h.end)
        pieces = oracle.host_budget(world, h.start, h.end, h.thread)
        assert check.parts(analysis, row.interval) == oracle.parts(pieces)
        kernels, with_graphs = (
            [o for o in world.ops if o.kind in kinds and h.start <= o.call.start < h.end]
            for kinds in (("kernel",), ("kernel", "graph"))
        )
        assert row.kernel_only_ns == oracle.union(kernels, 0, world.end)
        assert row.kernel_only_upper_ns == oracle.union(with_graphs, 0, world.end)
        assert row.kernel_outside_ns == oracle.union(with_graphs, h.end, world.end)
        assert row.gpu_busy_ns == oracle.union(world.ops, h.start, h.end)
        issued = [o for o in world.ops if h.start <= o.call.start < h.end]
        assert row.gpu_earlier_ns == row.gpu_busy_ns - oracle.union(issued, h.start, h.end)


def between_nodes(analysis, interval):
    """How long a CUDA graph was under way between two of its nodes: its time, and no execution."""
    segments = analysis.segments[analysis.segments["interval"] == interval]
    between = segments[segments["detail"].str.startswith("in a CUDA graph, before")]
    return (between["end_ns"] - between["start_ns"])[between["cause"] == "graph"].sum()


@given(programs(ranges=True, worker=False))
def test_ranges_without_a_log(program):
    world = machine.run(program)
    analysis = analysed(world, logs=False)
    mine = analysis.measured[analysis.measured.kind == "nvtx"]
    found = []
    for r in mine.itertuples():
        parts = sorted(parts_without_contention(analysis, r.interval).items())
        known = parts if r.end_stream >= 0 else r.gpu_busy_ns - between_nodes(analysis, r.interval)
        found.append((r.end_stream, r.start_ns, r.end_ns, known))
    expected = []
    for r in world.ranges:
        inside = [o for o in world.ops if r.start <= o.call.start < r.end]
        streams = {o.stream for o in inside}
        if not inside:
            continue
        start, end = min(o.start for o in inside), max(o.end for o in inside)
        if len(streams) == 1:
            (stream,) = streams
            parts = without_contention(oracle.event_budget(world, start, end, stream, None))
            expected.append((stream, start, end, sorted(parts.items())))
        else:  # one row over all of its streams: busy when any of them is
            on_them = [o for o in world.ops if o.stream in streams]
            expected.append((-1, start, end, oracle.union(on_them, start, end)))
    assert sorted(found, key=str) == sorted(expected, key=str)


def comparable(analysis, shift: int = 0) -> list:
    """Everything that a rewritten trace must not change."""
    out = []
    for r in analysis.measured.itertuples():
        pieces = analysis.segments[analysis.segments.interval == r.interval]
        segments = list(
            zip(pieces.start_ns - shift, pieces.end_ns - shift, pieces.cause, strict=True)
        )
        out.append(
            (
                r.kind,
                r.pid,
                r.start_record,
                r.end_record,
                r.start_ns - shift,
                r.end_ns - shift,
                r.start_lower_ns - shift,
                r.start_upper_ns - shift,
                r.error_ns,
                r.method,
                sorted(check.parts(analysis, r.interval).items()),
                segments,
            )
        )
    return sorted(out)


@settings(max_examples=-(-settings.default.max_examples // 2))  # two analyses each
@given(
    programs(),
    st.sampled_from(["timestamps", "untimed", "none"]),
    st.sampled_from([-900_000_000, 1, 10**12, 86_400 * 10**9]),
    st.booleans(),
    st.integers(0, 99),
)
def test_order_clock_and_names_change_nothing(program, event_rows, shift, clock_lines, seed):
    """Rows in another order, a shifted clock, other names, all at once: the same analysis."""
    world = machine.run(program)
    style = {"event_rows": event_rows, "clock_lines": clock_lines}
    plain = comparable(analysed(world, Style(**style)))
    written = Style(**style, shuffle=seed, shift=shift, rename="zz '\"<b>% ")
    assert comparable(analysed(world, written), shift) == plain


@given(programs())
def test_the_oracle_is_a_partition(program):
    """Of the simulator alone: runs where the pipeline is absent."""
    world = machine.run(program)
    for pair in forward(world):
        pieces = true_budget(world, pair)
        assert sum(p.end - p.start for p in pieces) == pair.elapsed_ns
        assert all(p.end > p.start for p in pieces)
        assert all(a.end == b.start for a, b in itertools.pairwise(pieces))


@given(programs())
def test_the_simulated_machine_obeys_the_order(program):
    """What section 3 says is always true of a record must be true here, or the truth would be
    none."""
    world = machine.run(program)
    for r in world.records:
        assert r.t >= r.call.start
        for o in world.ops:
            if o.stream == r.stream:
                assert o.end <= r.t if o.call.start < r.call.start else r.t <= o.start
        for w in world.waits:
            if w.stream == r.stream and w.call.start < r.call.start:
                assert w.record.t <= r.t
        for c in world.calls:
            if c.kind == "sync_device" and c.start > r.call.start:
                assert r.t <= c.end
