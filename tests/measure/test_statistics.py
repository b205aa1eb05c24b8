"""Intervals: how often they hold the truth, on simulated processes of every kind that was seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsysalign.addons.measure.statistics import (
    difference,
    effective_sizes,
    estimate,
    precise,
    within_rows,
)

from .coverage import CASES, DIFFER, ar, coverage, false_alarms


@pytest.mark.parametrize("differ", DIFFER)
@pytest.mark.parametrize("case", CASES)
def test_95_percent_intervals_hold_the_truth_93_to_99_times_of_100(case, differ):
    held, width = coverage(case, differ, 1_000)
    assert 0.93 <= held <= 0.99
    assert width < (0.012 if differ < 0.02 else 0.04)  # and are of use


@pytest.mark.parametrize("r", [0.0, 0.8, 0.95])
def test_the_effective_size_of_the_median_is_that_of_the_series_of_signs(r):
    """Signs of a normal series with correlation c agree by 2/pi asin(c): the sum over lags is
    known."""
    theory = 1 + 2 * sum(2 / math.pi * math.asin(r**k) for k in range(1, 400))
    rows = ar(np.random.default_rng(0), (60, 4_000), r)
    found = 4_000 / sizes(rows)
    assert np.median(found) == pytest.approx(theory, rel=0.25)


def sizes(rows):
    return effective_sizes(rows, np.sort(rows, axis=1)[:, rows.shape[1] // 2])


def test_equal_samples_and_two_values_are_no_trouble():
    half, size = within_rows(np.full((1, 100), 5.0))
    assert (half[0], size[0]) == (0.0, 100.0) and precise([5.0] * 100, 0.005)
    # better than independent counts as independent
    assert sizes(np.array([[1.0, 2.0] * 50]))[0] == 100


def test_few_samples_bound_nothing():
    e = estimate([[5.0, 6.0]])
    assert (e.low_ns, e.high_ns) == (0.0, math.inf)
    assert not precise([1.0] * 5, 0.5)
    with pytest.raises(ValueError, match="no samples"):
        estimate([[], []])


def test_equal_medians_are_no_certainty_beyond_the_clock():
    """Three medians on the same tick: half a tick is left."""
    e = estimate([[32_000.0] * 50] * 3)
    assert (e.value_ns, e.low_ns, e.high_ns) == (32_000, 31_984, 32_016)


def test_percentiles_say_whether_they_have_their_samples():
    """The largest of n is above the 99th percentile with 95 %: n = 299; of 90: 29."""
    few, enough = estimate([np.arange(298.0)]), estimate([np.arange(299.0)])
    assert not few.p99_bounded and (enough.p99_ns, enough.p99_bounded) == (296.0, True)


def test_outliers_are_counted_and_kept():
    values = np.r_[np.random.default_rng(0).normal(1e6, 1e3, 500), 5e6, 6e6]
    e = estimate([values])
    assert (e.outliers, e.max_ns, e.samples) == (2, 6e6, 502)


def test_the_same_program_twice_is_seldom_told_apart():
    """A against A: at most 1 in 20, whatever the repetitions are like; deviations 0.45 % of all,
    1.1 % of a case."""
    found = {c: [false_alarms(c, differ, 200, n=200) for differ in (0.0, 0.01)] for c in CASES}
    assert np.mean(list(found.values())) <= 0.05 + 3 * 0.0045, found
    assert max(map(np.mean, found.values())) <= 0.05 + 4 * 0.011, found


def test_processes_that_agree_by_chance_are_no_difference():
    """Two sides whose three medians agree to a nanosecond, and whose repetitions leave 0.5 %
    open."""
    noise = 1e4 * np.random.default_rng(8).standard_normal((3, 101))
    noise -= np.median(noise, axis=1, keepdims=True)
    a, b = (estimate(list(level + noise + np.arange(3)[:, None])) for level in (1e6, 1.0015e6))
    assert b.medians[0] - a.medians[0] == pytest.approx(1_500) and a.own_ns > 500
    found = difference(a, b)
    assert found.low < 0 < found.high


def test_a_true_difference_is_found_and_its_size_is_right():
    random = np.random.default_rng(6)

    def make(level):
        return estimate(
            [
                level
                * (1 + 0.002 * random.standard_normal())
                * (1 + 0.01 * random.standard_normal(300))
                for _ in range(5)
            ]
        )

    found = difference(make(1e6), make(1.05e6))
    assert 0 < found.low < 0.05 < found.high
    assert difference(make(1e6), make(0.9e6)).high < 0


def test_one_process_each_tells_nothing_about_others():
    one = [estimate([[1e6 + k for k in range(100)]]), estimate([[2e6 + k for k in range(100)]])]
    assert difference(*one)[1:] == (-math.inf, math.inf)
