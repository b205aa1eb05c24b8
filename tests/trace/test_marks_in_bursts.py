"""The marks that join the log's clock with the trace's come in bursts, one every few seconds."""

from __future__ import annotations

import pandas as pd

from nsysalign.place.clocks import clock_map

SECOND = 1_000_000_000


def clock(*marks: tuple[int, int, int]):
    """`marks`: (before, after, trace) each; one clock line."""
    clocks = pd.DataFrame({"monotonic_ns": [0], "realtime_ns": [-1], "trace_ns": [7_000]})
    return clock_map(
        clocks, pd.DataFrame(marks, columns=["before_ns", "after_ns", "trace_ns"]), None
    )


def test_each_burst_is_a_point_of_the_map():
    """
    log     1000 |-|-|       5 s |-|-|      each burst within a second; drift of 1 us in 5 s
    trace     +4000            +5000        between the two: a line
    """
    found = clock(
        (1_000, 1_200, 5_100), (2_000, 2_200, 6_100),
        (5 * SECOND, 5 * SECOND + 200, 5 * SECOND + 5_100), (5 * SECOND + 900, 5 * SECOND + 1_100, 5 * SECOND + 6_000),
    )  # fmt: skip
    assert found.at_ns.tolist() == [1_000, 5 * SECOND]
    assert found.offset_ns.tolist() == [4_000, 5_000] and found.width_ns == 101
    asked = [0, 1_000, (5 * SECOND + 1_000) // 2, 5 * SECOND, 9 * SECOND]
    moved = [int(t) - at for t, at in zip(found.to_trace(asked), asked, strict=True)]
    assert moved == [4_000, 4_000, 4_500, 5_000, 5_000], "constant outside"


def test_a_slow_mark_is_wide_and_still_good():
    """One mark took 3 us: the offset lies in [3000, 6000]."""
    found = clock((1_000, 4_000, 7_000))
    assert (found.offset_ns.tolist(), found.width_ns) == ([4_500], 1_501)


def test_a_burst_in_which_the_clock_stepped_is_of_no_use():
    """Offsets in [3900, 4100] and in [8900, 9100], 5 us apart: nobody knows which.  The later burst
    stands."""
    stepped = (1_000, 1_200, 5_100), (2_000, 2_200, 11_100)
    late = (5 * SECOND, 5 * SECOND + 200, 5 * SECOND + 4_100)
    assert clock(*stepped, late).at_ns.tolist() == [5 * SECOND]
    only = clock(*stepped)
    assert only.at_ns.tolist() == [0] and only.offset_ns.tolist() == [7_000], "that of a clock line"
