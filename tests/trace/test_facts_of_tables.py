"""Small facts that line coverage does not see: which row of a label, which side of a clock, which
end of a window."""

from __future__ import annotations

import pandas as pd
import pytest
from handmade import build
from tiny_export import US, P, call, tiny, work

import nsysalign
from nsysalign.place.host_clock import clock_map
from nsysalign.split.labels import label_table


@pytest.mark.parametrize(
    ("lengths", "row"),
    [((40, 10, 30, 20), 3), ((30, 10, 20), 2), ((20, 10), 1), ((5,), 0), ((7, 7, 7, 7), 1)],
)
def test_the_row_of_a_label_is_its_lower_median(lengths, row):
    """Of an even number of runs the shorter of the two in the middle, of equal ones the earlier."""
    runs = [[("kernel", 1_000 * length, "gemm")] for length in lengths]
    intervals = build([("a", "event", "a.py:1", False, runs)]).intervals
    (found,) = label_table(intervals).itertuples()
    assert (found.row_interval, found.row) == (row, f"a#{row}")


def clock(marked: list[tuple[int, int, int]], marks: list[tuple[int, int]]):
    return clock_map(
        clocks=pd.DataFrame({"monotonic_ns": [0], "realtime_ns": [-1], "trace_ns": [-1]}),
        marked=pd.DataFrame(marked, columns=["payload", "before_ns", "after_ns"]),
        marks=pd.DataFrame(marks, columns=["payload", "trace_ns"]),
        session_start_utc_ns=None,
    )


def test_marks_join_the_clocks_between_their_two_readings():
    """
    before 1000 |----- mark -----| after 1400        trace 5300: the offset lies in [3900, 4300]
    before 2000 |-- mark --| after 2200              trace 6250: in [4050, 4250]; both: the middle of [4050, 4250]
    """
    assert clock([(1, 1_000, 1_400)], [(1, 5_300)]).offset_ns.tolist() == [4_100]
    both = clock([(1, 1_000, 1_400), (2, 2_000, 2_200)], [(1, 5_300), (2, 6_250)])
    assert both.offset_ns.tolist() == [4_150] and both.width_ns == 101
    # the one bounds it from below, the other from above
    both = clock([(1, 1_000, 1_400), (2, 2_000, 2_400)], [(1, 5_300), (2, 6_050)])
    assert both.offset_ns.tolist() == [3_975] and both.width_ns == 76


def test_work_of_other_streams_counts_if_it_was_issued_inside(export, log):
    """Before the start record, inside, inside but executed after the end, and after the end
    record."""
    tables = tiny()
    more = [
        (3, 4, 250, 251, 21),
        (44, 45, 142, 144, 22),
        (46, 47, 220, 240, 23),
        (76, 77, 145, 149, 24),
    ]
    for begin, end, start, stop, number in more:
        tables[P + "RUNTIME"].append(call(number, 2, begin, end))
        extra = {"demangledName": 7, "shortName": 7, "graphNodeId": None}
        tables[P + "KERNEL"].append({**work(number, start, stop, **extra), "streamId": 13})
    analysis = nsysalign.analyze(export(tables), [log])
    others = analysis.other_streams
    assert others["stream"].tolist() == [13] and others["ns"].tolist() == [22 * US]
