"""What holds for every analysis (docs/design.md, section 4, invariants), and short cuts to its
numbers."""

from __future__ import annotations

from pathlib import Path

import nsysalign


def analyze(trace: Path, logs: list[Path]):
    """The code under test."""
    return nsysalign.analyze(trace, events=logs)


def parts(analysis, interval: int) -> dict[str, int]:
    rows = analysis.parts[(analysis.parts.interval == interval) & (analysis.parts.ns != 0)]
    return {cause: int(ns) for cause, ns in zip(rows.cause, rows.ns, strict=True)}


def invariants(analysis) -> None:
    assert (analysis.parts.ns >= 0).all()
    assert (analysis.parts.lower_ns <= analysis.parts.ns).all(), analysis.parts
    assert (analysis.parts.upper_ns >= analysis.parts.ns).all(), analysis.parts
    assert not analysis.parts.duplicated(["interval", "cause"]).any()
    assert analysis.intervals.name.is_unique
    for row in analysis.intervals.itertuples():
        mine = analysis.parts[analysis.parts.interval == row.interval]
        assert mine.ns.sum() == row.elapsed_ns == row.end_ns - row.start_ns
        assert row.start_lower_ns <= row.start_ns <= row.start_upper_ns
        assert row.error_ns >= 0
        pieces = analysis.segments[analysis.segments.interval == row.interval]
        starts, ends = pieces.start_ns.tolist(), pieces.end_ns.tolist()
        if row.elapsed_ns == 0:
            continue
        assert starts[0] == row.start_ns and ends[-1] == row.end_ns
        assert starts[1:] == ends[:-1]
        assert all(a < b for a, b in zip(starts, ends, strict=True))
        for cause, ns in parts(analysis, row.interval).items():
            chosen = pieces[pieces.cause == cause]
            assert (chosen.end_ns - chosen.start_ns).sum() == ns
    assert not analysis.timeline.name.str.contains("record -1", regex=False).any()
    split = analysis.host_ranges[["launch_ns", "copy_ns", "sync_ns", "other_ns", "outside_ns"]]
    assert (split >= 0).all().all() and (split.sum(axis=1) == analysis.host_ranges.host_ns).all()
    ledger(analysis)


def ledger(analysis) -> None:
    """Every interval but a run is in one group, and what groups say adds up to what was measured."""
    elapsed = analysis.measured.set_index("interval")["elapsed_ns"]
    assert [label.name for label in analysis.grouped] == analysis.labels["label"].tolist()
    grouped = [group for label in analysis.grouped for group in label.groups]
    numbers = sorted(n for group in grouped for n in group.intervals.tolist())
    assert numbers == sorted(elapsed.index)
    for label in analysis.grouped:
        assert label.count == sum(group.count for group in label.groups)
        assert label.total_ns == sum(group.total_ns for group in label.groups)
        totals = [group.total_ns for group in label.groups]
        assert totals == sorted(totals, reverse=True)
        for group in label.groups:
            own = elapsed.loc[group.intervals]
            assert group.count == len(own) and group.total_ns == own.sum()
            assert sum(entry.ns for entry in group.entries) == group.total_ns
            assert all(entry.ns > 0 for entry in group.entries)
            assert group.typical in group.intervals
            assert (
                group.typical_ns
                == elapsed.loc[group.typical]
                == own.sort_values().iloc[(len(own) - 1) // 2]
            )
            own_parts = analysis.parts[analysis.parts.interval.isin(group.intervals)]
            sums = own_parts.groupby("cause", observed=True).ns.sum()
            assert group.causes == {cause: ns for cause, ns in sums.items() if ns}
            for cause, (low, high) in group.bounds_ns.items():
                assert low <= group.ns(cause) <= high
