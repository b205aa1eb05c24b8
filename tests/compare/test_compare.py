"""Two analyses, label by label: verdicts, what is in one only, and what else differs."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from handmade import build

from nsysalign import frames
from nsysalign.compare.label_changes import Change, compare, judge


def runs(host_us, count=12, seed=0, kernel_us=50):
    random = np.random.default_rng(seed)
    return [
        [("host", int(host_us * 1000 * n), "python"), ("kernel", kernel_us * 1000, "gemm")]
        for n in 1 + 0.01 * random.standard_normal(count)
    ]


def cases(**host_us):
    return [
        (name, "event", "a.py:1", False, runs(us, seed=len(name))) for name, us in host_us.items()
    ]


def test_slower_faster_same_and_in_one_only():
    a = build(cases(forward=100, back=100, step=100, gone=10))
    b = build(cases(forward=140, back=60, step=100, fresh=10))
    found = compare(a, b, names=("old", "new"))
    assert {label.label: label.verdict for label in found.labels} == {
        "forward": "slower",
        "back": "faster",
        "step": "same",
    }
    assert (found.only_before, found.only_after) == (("gone",), ("fresh",))
    forward = found.labels[0]
    assert forward.total.change_ns == pytest.approx(40_000, rel=0.05)
    assert forward.parts["host"].clear and not forward.parts["kernel"].clear
    assert sum(part.change_ns for part in forward.parts.values()) == pytest.approx(
        forward.total.change_ns, abs=1e-3
    )


def test_few_runs_say_nothing():
    a = build([("one", "event", "a.py:1", False, runs(10, count=4))])
    label = compare(a, a).labels[0]
    assert (label.verdict, label.reason) == (
        "unclear",
        "4 and 4 intervals: at least 5 on each side are needed",
    )


#            before  change  low  high
JUDGED = [
    ((100_000, 0, -500, 500), "same"),
    ((100_000, 5000, 1000, 9000), "slower"),
    ((100_000, -5000, -9000, -1000), "faster"),
    ((100_000, 5000, -1000, 11000), "unclear"),
    ((100_000, 1500, 500, 2500), "unclear"),  # clear, but perhaps too small to matter
    ((1000, 40, 30, 50), "same"),  # below the event clock's ticks
]


@pytest.mark.parametrize(("numbers", "verdict"), JUDGED)
def test_verdicts(numbers, verdict):
    before, change, low, high = numbers
    assert judge(Change(before, before + change, change, low, high), 10, 10, 0.02)[0] == verdict


def test_one_labels_answer_does_not_depend_on_the_others():
    a, b = build(cases(forward=100, back=100)), build(cases(forward=103, back=100))
    alone = compare(build(cases(forward=100)), build(cases(forward=103))).labels[0]
    assert compare(a, b).labels[0].total == alone.total


def test_what_else_differs_is_said():
    a = build(cases(forward=100))
    other = replace(a, trace=replace(a.trace, driver_version="590.1"))
    assert "driver differs: A 580.1, B 590.1" in compare(a, other).remarks


def test_two_runs_at_different_clocks_are_not_the_same_conditions():
    a = build(cases(forward=100))
    start, end = int(a.measured["start_ns"].min()), int(a.measured["end_ns"].max())

    def at(mhz, idle=345):  # idle for long before the first interval and after the last
        rows = [(0, *span, n, clock, clock, 2619, 0, -1, -1) for *span, n, clock in (
            (start - 9_000, start - 5_000, 900, idle), (start - 10, end + 10, 40, mhz), (end + 5_000, end + 9_000, 900, idle),
        )]  # fmt: skip
        table = pd.DataFrame(rows, columns=frames.GPU_CLOCKS.names)
        return replace(a, gpu_clocks=frames.check(table, frames.GPU_CLOCKS))

    assert "SM clock differs: A 1980 MHz, B 1755 MHz" in compare(at(1980), at(1755)).remarks
    for same in (
        compare(at(1980), at(1965)),
        compare(at(1980), a),
        compare(at(1980), at(1980, idle=600)),
    ):
        assert not any("SM clock" in remark for remark in same.remarks)


def test_nothing_in_common():
    found = compare(build(cases(a=1)), build(cases(b=1)))
    assert found.labels == () and found.only_before == ("a",)
    assert compare(build([]), build([])).labels == ()
