"""Small facts that line coverage does not see: which row of a label, which side of a clock, which
end of a window."""

from __future__ import annotations

import pytest
from handmade import build
from tiny_export import US, P, call, tiny, work

import nsysalign
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
