"""What rules read of an analysis: labels with arrays over their intervals, and single intervals.

label  #  interval
a      0  0   10 host 20 kernel
b      0  1   30 kernel
a      1  2   20 host 20 kernel
a      2  3   40 sync 20 kernel           of another process
b      1  4   10 host 30 kernel
a      3  5   5 api  20 kernel
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.explain import facts as module
from nsysalign.explain.facts import ALLOCATION_CALLS, LOADING_CALLS, Interval
from nsysalign.model import OTHERS_WORKED

from .drawing import analysis, interval
from .drawing import facts as facts_of


def drawn():
    return analysis(
        interval("a", ("host", 10), ("kernel", 20)),
        interval("b", ("kernel", 30), flags=(OTHERS_WORKED,), other={13: 4, 14: 5}),
        interval("a", ("host", 20), ("kernel", 20), issued=15, outside=3),
        interval("a", ("sync", 40), ("kernel", 20), pid=2),
        interval("b", ("host", 10), ("kernel", 30), other={13: 1}),
        interval("a", ("api", 5, "cuModuleLoadData"), ("kernel", 20)),
    )


@pytest.fixture
def facts():
    return facts_of(drawn())


def test_labels_hold_their_intervals_in_time_process_by_process(facts):
    a, b = facts.labels
    assert a.numbers.tolist() == [0, 2, 5, 3] and b.numbers.tolist() == [1, 4]
    assert a.ns("host", "sync").tolist() == [10_000, 20_000, 0, 40_000]
    assert b.share(b.ns("kernel")).tolist() == [1, 0.75]
    assert b.flagged(OTHERS_WORKED).tolist() == [True, False]
    assert a.detail_ns("api", LOADING_CALLS).tolist() == [0, 0, 5_000, 0]
    assert not a.detail_ns("api", ALLOCATION_CALLS).any()
    assert a.detail_ns("api", ("cuModuleLoadData",)).sum() == 5_000
    assert facts.other_ns.tolist() == [0, 9_000, 0, 0, 1_000, 0]


def test_parts_of_an_unknown_cause_are_not_counted():
    table = drawn()
    odd = pd.DataFrame([(0, "new", 9, 9, 9), (77, "host", 9, 9, 9)], columns=frames.PARTS.names)
    more = facts_of(replace(table, parts=pd.concat([odd, table.parts], ignore_index=True)))
    assert more.parts.tolist() == facts_of(table).parts.tolist()


def test_an_interval_of_no_time_has_no_share():
    (label,) = facts_of(analysis(interval("x", ("host", 0)))).labels
    assert label.share(label.ns("host")).tolist() == [0]


@pytest.mark.parametrize(
    ("numbers", "row", "frequency"),
    [
        ([0, 2, 5], 0, "3 of 4"),  # elapsed 30, 40, 60, 25: #0 is the label's row
        ([0, 5], 0, "2 of 4"),  # and not the shorter one
        ([2, 3], 2, "2 of 4"),  # else the lower median of those that have it
        ([2, 3, 5], 2, "3 of 4"),
        ([0, 2, 3, 5], 0, None),
    ],
)
def test_a_case_shows_the_labels_row_if_it_has_the_property(facts, numbers, row, frequency):
    label = facts.labels[0]
    case = label.case(np.isin(label.numbers, numbers))
    assert case.row.number == row
    assert case.finding("info", "").evidence.get("seen_in") == frequency


def test_how_many_of_a_label_it_takes(facts):
    label = facts.labels[0]
    half = np.array([True, False, True, False])
    assert label.case(half, at_least=0.5) and not label.case(half, at_least=0.51)
    assert label.case(np.arange(4) == 2, at_least=0) and not label.case(half & False, at_least=0)


def test_rows_of_one_interval_longest_first():
    told = facts_of(analysis(
        interval("x", ("host", 1, "p")),
        interval("x", ("host", 2, "q"), ("sync", 9), ("host", 5, "r"), other={13: 4, 14: 5}),
        interval("x", ("host", 3, "s")),
    ))  # fmt: skip
    assert [d.detail for d in Interval(told, 1).details("host")] == ["r", "q"]
    assert [stream for stream, _ in Interval(told, 1).other_streams()] == [14, 13]
    assert Interval(told, 1).details("memcpy") == []


def test_stretches_lie_between_operations(monkeypatch):
    """host launch | kernel | kernel | host | kernel | event"""
    pieces = ("host", 1), ("api_launch", 2), ("kernel", 3), ("kernel", 4), ("host", 5), ("kernel", 6), ("event", 7)  # fmt: skip
    told = Interval(facts_of(analysis(interval("x", *pieces))), 0)
    first, second, third = told.stretches
    assert [p.cause for p in first.pieces] == ["host", "api_launch"] and first.before is None
    assert (second.before.ns, second.then.ns, second.ns(("host",))) == (4_000, 6_000, 5_000)
    assert told.words([second.then, third.pieces[0]]) == ["kernel", "event"] and third.then is None
    monkeypatch.setattr(module, "MOST_OPERATIONS", 2)
    assert Interval(told.facts, 0).stretches == [], "too many for objects"


def test_synchronisations_come_in_lots(monkeypatch):
    drawn = [interval("x", ("kernel", k), ("sync", 3), ("host", 2 * k)) for k in range(1, 8)]
    whole = facts_of(analysis(drawn)).synchronised
    assert whole[0].tolist() == [3_000 + 1_000 * k for k in range(1, 8)], "as long as the kernel"
    monkeypatch.setattr(module, "MOST_OPERATIONS", 4)
    assert facts_of(analysis(drawn)).synchronised[0].tolist() == whole[0].tolist()
