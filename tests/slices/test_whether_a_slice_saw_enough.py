"""A slice answers only where its excerpt shows all that its intervals depend on: before them and after them."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from nsysalign.slices.one import narrow
from nsysalign.trace.index import FOREVER, Excerpt

MS = 1_000_000
BEGIN, END = 1_000 * MS, 1_100 * MS  # of the excerpt


def enough(windows, *, calls=(), operations=(), spans=((BEGIN, END),)) -> bool:
    """`windows`: (start, end); `calls`: (start, number); `operations`: (start, end, number), their calls not there."""
    frame = pd.DataFrame(windows, columns=["start_ns", "end_ns"], dtype="int64")
    frame["open_ns"] = frame["start_ns"]
    trace = SimpleNamespace(
        calls=pd.DataFrame(calls, columns=["start_ns", "correlation"], dtype="int64").assign(
            process=1
        ),
        operations=pd.DataFrame(
            operations, columns=["start_ns", "end_ns", "correlation"], dtype="int64"
        ).assign(process=1, call=-1),
    )
    return not narrow(trace, SimpleNamespace(windows=frame), Excerpt(spans, {}))


@pytest.mark.parametrize(
    ("end", "fine"), [(END - MS, True), (END - 100_000, True), (END - 99_999, False), (END, False)]
)
def test_what_ends_near_the_end_of_the_excerpt_could_have_been_cut(end, fine):
    """
    excerpt  [1000 ms                    1100)
    window            |1010 ---------- end|         100 us are kept free behind it
    """
    assert enough([(BEGIN + 10 * MS, end)]) is fine


def test_each_window_has_the_end_of_its_own_span():
    """
    excerpt  [1000      1100)            [2000      2100)
    windows      |1050-1060|                 |2050-2060|
                    |1050 ------- 1101|                        opened in the first span, past its end
    """
    spans = ((BEGIN, END), (2 * BEGIN, 2 * BEGIN + 100 * MS))
    both = [(BEGIN + 50 * MS, BEGIN + 60 * MS), (2 * BEGIN + 50 * MS, 2 * BEGIN + 60 * MS)]
    assert enough(both, spans=spans)
    assert not enough([(BEGIN + 50 * MS, BEGIN + 101 * MS), both[1]], spans=spans)


#: number of the call -> whether the slice saw enough
ISSUED = [(4, False), (5, False), (6, True), (8, True)]


@pytest.mark.parametrize(("number", "fine"), ISSUED)
def test_an_operation_that_was_issued_before_the_excerpt_is_missing_its_call(number, fine):
    """
    calls      4     [5  6  7                 )      5 is the first that was read
    window              |1010 ------ 1050|
    work                   #1020-1030                its call is not in the trace: made before 5, or lost later
    """
    calls = [(BEGIN + MS * k, k) for k in (5, 6, 7)]
    work = [(BEGIN + 20 * MS, BEGIN + 30 * MS, number)]
    assert enough([(BEGIN + 10 * MS, BEGIN + 50 * MS)], calls=calls, operations=work) is fine


@pytest.mark.parametrize(
    ("start", "end", "fine"),
    [
        (20, 30, False),
        (5, 11, False),
        (49, 60, False),
        (2, 9, True),
        (50, 60, True),
        (5, 80, False),
    ],
)
def test_only_inside_an_interval_does_it_matter(start, end, fine):
    """
    window      |10 ------------ 50|
    work    2-9       20-30      |50-60       over before it begins, or begun when it is over
    """
    work = [(BEGIN + start * MS, BEGIN + end * MS, 1)]
    window = [(BEGIN + 10 * MS, BEGIN + 50 * MS)]
    assert enough(window, calls=[(BEGIN, 5)], operations=work) is fine


def test_a_long_interval_reaches_over_short_ones_that_begin_later():
    """
    |10 ------------------------------- 90|
        |20-30|      #40-45   issued before the excerpt
    """
    windows = [(BEGIN + 10 * MS, BEGIN + 90 * MS), (BEGIN + 20 * MS, BEGIN + 30 * MS)]
    work = [(BEGIN + 40 * MS, BEGIN + 45 * MS, 1)]
    assert not enough(windows, calls=[(BEGIN, 5)], operations=work)
    assert enough(windows[1:], calls=[(BEGIN, 5)], operations=work)


def test_before_the_beginning_of_the_trace_nothing_was_issued():
    work = [(BEGIN + 20 * MS, BEGIN + 30 * MS, 1)]
    window = [(BEGIN + 10 * MS, BEGIN + 50 * MS)]
    assert enough(window, calls=[(BEGIN, 5)], operations=work, spans=((-FOREVER, END),))


def test_a_slice_without_intervals_is_never_too_small():
    assert enough([], operations=[(BEGIN, END, 1)])
