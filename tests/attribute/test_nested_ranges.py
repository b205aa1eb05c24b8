"""NVTX ranges in ranges, thousands deep: exact, and no memory for every pair of a range and an
operation."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator import check, export
from simulator.world import Range, World

from nsysalign import engine
from nsysalign.intervals import least
from nsysalign.place.projected_ranges import _spans_of_ranges
from nsysalign.split import budget
from nsysalign.trace.read import read_trace


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=40), st.data())
def test_the_least_of_every_stretch(values, data):
    stretches = data.draw(
        st.lists(
            st.tuples(st.integers(0, len(values) - 1), st.integers(1, len(values))).filter(
                lambda p: p[0] < p[1]
            )
        )
    )
    first, last = (np.array([s[k] for s in stretches], dtype=np.int64) for k in (0, 1))
    found = least(np.array(values), first, last)
    assert found.tolist() == [min(values[a:z]) for a, z in stretches]


def nested(count: int) -> World:
    """Kernel k is launched inside `count - k` ranges, which all end together."""
    world = World()
    for k in range(count):
        t = 10_000 + 20_000 * k
        world.ranges.append(
            Range(f"depth {k % 5}", t - 1000, 20_000 * count + 20_000 - k, world.pid)
        )
        world.kernel(t + 6_000, t + 12_000 + k % 7, world.call("launch", t, t + 4_000))
    world.end = 20_000 * count + 30_000
    return world


def test_rules_ask_for_the_segments_of_all_labels_together(tmp_path, monkeypatch):
    """A label per depth, each with a finding of its own."""
    asked = []
    arrays = budget.segment_arrays
    monkeypatch.setattr(engine, "MOST_PIECES", 10)
    monkeypatch.setattr(budget, "segment_arrays", lambda *a: asked.append(a) or arrays(*a))
    world = nested(60)
    for n, each in enumerate(world.ranges):
        each.text = "in" * (n + 1)
    analysis = check.analyze(export.write(world, tmp_path)[0], [])
    assert set(analysis.findings["rule"]) >= {"host-gap", "many-tiny-kernels"}
    assert len(analysis.findings) > 100 and len(asked) < 10


def test_ranges_inside_a_hundred_others_are_left_out(tmp_path):
    """3,000 of them took 22 s and 1.9 GB: their intervals' rows grow with the square."""
    analysis = check.analyze(export.write(nested(140), tmp_path)[0], [])
    check.invariants(analysis)
    ranges = analysis.intervals[analysis.intervals["kind"] == "nvtx"]
    assert len(ranges) == 100 and ranges["elapsed_ns"].max() > 139 * 20_000
    assert "40 NVTX ranges lie inside 100 others of their thread, or more, and have" in "".join(
        analysis.notes
    )


@pytest.mark.parametrize("count", [1000])
def test_memory_goes_with_the_ranges(tmp_path, count):
    trace = read_trace(export.write(nested(count), tmp_path)[0])
    lane = np.zeros(len(trace.operations), np.int64)
    _spans_of_ranges(trace, lane)  # what is imported and made once
    tracemalloc.start()
    spans = _spans_of_ranges(trace, lane)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(spans) == count
    assert peak < 8 * count * count / 4, (
        "less than half a column of a row per range and operation inside"
    )
