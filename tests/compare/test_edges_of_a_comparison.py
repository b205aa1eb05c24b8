"""Where a verdict tips over, and what is said besides: one fact per test."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from handmade import build

from nsysalign import frames
from nsysalign.compare.label_changes import Change, compare, judge


def change(low: float, high: float, by: float = 0, before: float = 1_000) -> Change:
    return Change(before, before + by, by, low, high)


@pytest.mark.parametrize(
    ("low", "high", "clear"),
    [
        (0, 5, False),
        (-5, 0, False),
        (0.5, 5, True),
        (-5, -0.5, True),
        (-5, 0.5, False),
        (-0.5, 5, False),
    ],
)
def test_bounds_that_touch_zero_do_not_exclude_it(low, high, clear):
    assert change(low, high).clear is clear


#  2 % of 1 us are 20 ns, less than two ticks: 64 ns matter.  Of 100 us it is 2 us.
EDGES = [
    (1_000, 0, -63, 63, "same"),
    (1_000, 0, -64, 10, "unclear"),  # a bound that reaches what matters does not exclude it
    (1_000, 0, -10, 64, "unclear"),
    (1_000, 64, 1, 130, "slower"),
    (1_000, 63, 1, 130, "unclear"),
    (1_000, 64, 0, 130, "unclear"),
    (1_000, -64, -130, -1, "faster"),
    (1_000, -63, -130, -1, "unclear"),
    (1_000, -64, -130, 0, "unclear"),
    (100_000, 0, -1_999, 1_999, "same"),
    (100_000, 0, -1_999, 2_000, "unclear"),
    (100_000, 2_000, 0.5, 4_000, "slower"),
    (100_000, 1_999, 0.5, 4_000, "unclear"),
    (100_000, -2_000, -4_000, -0.5, "faster"),
    (100_000, -1_999, -4_000, -0.5, "unclear"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "by", "low", "high", "verdict"), EDGES)
def test_where_a_verdict_tips_over(before, by, low, high, verdict):
    assert judge(change(low, high, by, before), 5, 5, 0.02)[0] == verdict


def test_why_it_cannot_be_said():
    """A change that is there but small; one that is large but not clear; one that is exactly as large as what matters."""
    small, scattered, both = change(1, 130, 63), change(-1, 130, 64), change(-1, 130, 63)
    assert judge(small, 5, 5, 0.02)[1] == "a small change: it may or may not matter"
    for unclear in (scattered, both):
        assert (
            judge(unclear, 5, 5, 0.02)[1]
            == "the intervals vary too much to tell; more of them would help"
        )
    assert (
        judge(small, 4, 9, 0.02)[1]
        == judge(small, 4, 9, 9)[1]
        == "4 and 9 intervals: at least 5 on each side are needed"
    )
    assert judge(small, 9, 4, 0.02)[0] == "unclear"


def label(name, *causes, library=False, count=6):
    pieces = [(cause, 10_000, "it") for cause in causes]
    return (name, "event", "a.py:1", library, [pieces] * count)


def test_a_cause_of_one_side_only_is_a_change():
    a, b = build([label("x", "host", "memcpy")]), build([label("x", "host", "kernel")])
    (found,) = compare(a, b).labels
    assert {cause: (c.before_ns, c.after_ns) for cause, c in found.parts.items()} == {
        "kernel": (0, 10_000), "memcpy": (10_000, 0), "host": (10_000, 10_000),
    }  # fmt: skip
    assert (found.kernel_only.before_ns, found.kernel_only.after_ns) == (0, 10_000)
    assert (found.before_count, found.after_count) == (6, 6)


def test_a_librarys_label_that_is_gone_is_not_missing():
    a = build(
        [label("mine", "host"), label("theirs", "host", library=True), label("stays", "host")]
    )
    found = compare(a, build([label("stays", "host"), label("new", "host")]))
    assert (found.only_before, found.missing, found.only_after) == (
        ("mine", "theirs"),
        ("mine",),
        ("new",),
    )
    assert [c.label for c in found.labels] == ["stays"] and found.count("same") == 1


def test_parts_of_intervals_that_nobody_knows_are_not_counted():
    """A table with a row of another interval, and one of another cause: of a newer version, or edited."""
    a = build([label("x", "host", "kernel")])
    odd = pd.DataFrame(
        [(99, "host", 7, 7, 7), (0, "something new", 7, 7, 7)], columns=frames.PARTS.names
    )
    b = replace(a, parts=pd.concat([a.parts, odd], ignore_index=True))
    (found,) = compare(a, b).labels
    assert all(c.before_ns == c.after_ns == 10_000 for c in found.parts.values()) and set(
        found.parts
    ) == {
        "host",
        "kernel",
    }


def clocked(analysis, *stretches):
    """`stretches`: (start, end, samples, MHz) of the SM clock."""
    rows = [
        (0, start, end, count, mhz, mhz, 2619, 0, -1, -1) for start, end, count, mhz in stretches
    ]
    return replace(
        analysis,
        gpu_clocks=frames.check(
            pd.DataFrame(rows, columns=frames.GPU_CLOCKS.names), frames.GPU_CLOCKS
        ),
    )


@pytest.mark.parametrize(("clock", "said"), [(1_940, False), (1_941, False), (1_939, True)])
def test_clocks_that_differ_by_more_than_three_percent(clock, said):
    a = build([label("x", "host")])
    whole = (int(a.measured["start_ns"].min()), int(a.measured["end_ns"].max()))
    remarks = compare(clocked(a, (*whole, 1, 2_000)), clocked(a, (*whole, 1, clock))).remarks
    assert ("SM clock differs: A 2000 MHz, B 1939 MHz" in remarks) is said


def test_samples_that_touch_the_measured_time_are_of_it():
    """
    intervals        |first ... last|
    2000 MHz   [-----]                   ends as the first begins: it counts
    2000 MHz                        [-----]
    500 MHz    [---]                  [---]  over before, begun after: idle, it does not
    """
    a = build([label("x", "host")])
    first, last = int(a.measured["start_ns"].min()), int(a.measured["end_ns"].max())
    idle = [(first - 900, first - 1, 50, 500), (last + 1, last + 900, 50, 500)]
    for near in ((first - 500, first, 1, 2_000), (last, last + 500, 1, 2_000)):
        found = compare(clocked(a, near, *idle), clocked(a, (first, last, 1, 1_000)))
        assert "SM clock differs: A 2000 MHz, B 1000 MHz" in found.remarks


def test_what_differs_is_said_of_the_right_side():
    a, b = build([label("x", "host")]), build([label("x", "host")])
    quiet = a.intervals.assign(flags=pd.Series([()] * len(a.intervals), dtype=object))
    lost = build(
        unaligned=[{"name": "y", "label": "y", "reason": "why", "site": "a.py:1"}]
    ).unaligned
    traced = b.intervals.assign(method=["event-trace", *["bounds"] * 5])
    a = replace(
        a,
        intervals=quiet,
        calibration={"collected_with": [{"torch": "2.9"}, {"torch": "2.9"}, {"pid": 1}, "?"]},
    )
    b = replace(
        b,
        intervals=traced,
        unaligned=lost,
        trace=replace(b.trace, devices=("H100", "H100"), nsys_version=None),
    )
    assert compare(a, b, names=("old", "new")).remarks == (
        "GPU differs: old NVIDIA H200, new H100",
        "nsys differs: old 2024.2.3, new unknown",
        "torch differs: old 2.9, new unknown",
        "event tracing differs: old off, new on",
        "intervals of new disturbed by the profiler's own work: 1",
        "intervals of new that could not be placed and are not compared: 1",
    )
    assert compare(a, a).remarks == ()


def test_the_sides_keep_their_names():
    a = build([label("x", "host")])
    found = compare(a, a, names=("old", "new"), confidence=0.9, threshold=0.1)
    assert (found.before, found.after, found.confidence, found.threshold) == (
        "old",
        "new",
        0.9,
        0.1,
    )


def test_a_label_keeps_its_place_and_its_site():
    a = build([label("b", "host"), label("a", "kernel", library=True)])
    found = compare(a, a, seed=3)
    assert [(c.label, c.site, c.kind, c.library) for c in found.labels] == [
        ("b", "a.py:1", "event", False), ("a", "a.py:1", "event", True),
    ]  # fmt: skip
    assert np.isclose(found.labels[0].total.before_ns, 10_000)
