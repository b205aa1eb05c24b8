"""Labels told apart by what their intervals did."""

from __future__ import annotations

from functools import partial

import numpy as np
from cases import drawing
from simulator.world import Range, World

#: Of ranges: there is no log.
analysed = partial(drawing.analysed, logs=False)


def repeated(kinds, times=6, jitter=0):
    """A trace in which ranges of one name do kinds of work in turn: (kernel name, grid,
    microseconds)."""
    made = World(latency=dict.fromkeys(("kernel", "memcpy"), 1_000))
    for k in range(times * len(kinds)):
        name, grid, us = kinds[k % len(kinds)]
        at = 1000 * k
        made.kernel(
            at + 20, at + 20 + us, made.call("launch", at + 2, at + 8), name=name
        ).grid = grid
        made.ranges.append(Range("f", at, at + 900, made.pid))
    return made


def test_sizes_are_told_apart_by_their_blocks(tmp_path):
    sizes = [("gemm", 2**n, 10 * (n + 1)) for n in range(10)]
    analysis = analysed(repeated(sizes), tmp_path)
    assert analysis.labels["label"].tolist() == ["f"], (
        "the label stays, for diff, baseline and confirm"
    )
    (label,) = analysis.grouped
    kinds = {group.work.name: group for group in label.groups}
    assert {name: group.count for name, group in kinds.items()} == {
        f"{2**n:,} block{'s' * (n > 0)}": 6 for n in range(10)
    }
    last = kinds["512 blocks"]
    assert last.typical_ns == last.low_ns == last.high_ns == 100_000
    members = np.concatenate([group.intervals for group in label.groups])
    assert sorted(members.tolist()) == analysis.measured["interval"].tolist()
    assert "outliers" not in set(analysis.findings["rule"]) and "two-modes" not in set(
        analysis.findings["rule"]
    )


def test_another_kernel_that_takes_longer_is_not(tmp_path):
    analysis = analysed(
        repeated([("ns::add<float>(int)", 64, 40), ("ns::mul<float>(int)", 64, 80)]), tmp_path
    )
    (label,) = analysis.grouped
    assert sorted(group.work.name for group in label.groups) == ["add", "mul"]


def test_work_that_the_data_decides_splits_nothing(tmp_path):
    analysis = analysed(
        repeated([("nonzero", n + 1, 10 + n) for n in range(40)], times=1), tmp_path
    )
    (label,) = analysis.grouped
    assert [group.count for group in label.groups] == [40]
