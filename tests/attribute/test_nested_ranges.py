"""NVTX ranges in ranges, thousands deep: exact, and no memory for every pair of a range and an
operation."""

from __future__ import annotations

from simulator import check, export
from simulator.world import Range, World


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


def test_ranges_inside_a_hundred_others_are_left_out(tmp_path):
    """3,000 of them took 22 s and 1.9 GB: their intervals' rows grow with the square."""
    analysis = check.analyze(export.write(nested(140), tmp_path)[0], [])
    check.invariants(analysis)
    ranges = analysis.intervals[analysis.intervals["kind"] == "nvtx"]
    assert len(ranges) == 100 and ranges["elapsed_ns"].max() > 139 * 20_000
    assert "40 NVTX ranges lie inside 100 others of their thread, or more, and have" in "".join(
        analysis.notes
    )
