"""Intervals: how often they hold the truth, on simulated processes of every kind that was seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nsysalign.addons.measure.statistics import (
    FEWEST_P99,
    difference,
    estimate,
    standard_error,
)

from .coverage import CASES, DIFFER, coverage, false_alarms


@pytest.mark.parametrize("differ", DIFFER)
@pytest.mark.parametrize("case", CASES)
def test_95_percent_intervals_hold_the_truth_and_a_vs_a_is_seldom_told_apart(case, differ):
    """Deviations of 1,000 trials: 0.7 %."""
    held, width = coverage(case, differ, 1_000)
    assert held >= 0.93
    assert width < (0.02 if differ == 0 else 0.04)  # and are of use
    assert false_alarms(case, differ, 1_000) <= 0.05 + 3 * 0.007


def test_one_process_bounds_nothing_whatever_its_repetitions_say():
    e = estimate([[[5.0, 6.0]]])
    assert (e.low_ns, e.high_ns, e.share) == (0.0, math.inf, math.inf)
    one, two = ([[[level + k for k in range(20)]] * 8] for level in (1e6, 2e6))
    assert difference(estimate(one), estimate(two))[1:] == (-math.inf, math.inf)
    with pytest.raises(ValueError, match="no samples"):
        estimate([[[]], []])


def test_equal_medians_are_no_certainty_beyond_the_clock():
    """Three medians on the same tick: half a tick each is left."""
    e = estimate([[[32_000.0] * 50] * 8] * 3)
    assert e.value_ns == 32_000 and e.high_ns - e.value_ns == pytest.approx(
        16 * 1.96 / 3**0.5, 0.01
    )


def test_processes_that_agree_by_chance_are_no_certainty():
    """Medians that agree to a nanosecond, of blocks that scatter by 1 %."""
    noise = 1e4 * np.random.default_rng(8).standard_normal((3, 8, 1))
    noise -= np.median(noise, axis=1, keepdims=True)
    a, b = (estimate((level + noise).tolist()) for level in (1e6, 1.0015e6))
    assert a.own_ns > 1_000 and a.high_ns - a.value_ns > 1.9 * a.own_ns
    found = difference(a, b)
    assert found.low < 0 < found.high


def test_percentiles_say_whether_they_have_their_samples():
    """The largest of n is above the 99th percentile with 95 %: n = 299."""
    assert FEWEST_P99 == 299 and estimate([[np.arange(299.0)]]).p99_ns == 296.0


def test_few_blocks_say_nothing_of_a_process():
    assert standard_error([[1.0], [2.0], [3.0]]) == math.inf
    assert standard_error([[1.0], [2.0], [3.0], [4.0]]) == pytest.approx(0.6455, abs=1e-4)


def test_a_true_difference_is_found_and_its_size_is_right():
    random = np.random.default_rng(6)

    def make(level):
        levels = level * (1 + 0.002 * random.standard_normal((5, 1, 1)))
        return estimate(levels * (1 + 0.01 * random.standard_normal((5, 8, 40))))

    found = difference(make(1e6), make(1.05e6))
    assert 0 < found.low < 0.05 < found.high
    assert difference(make(1e6), make(0.9e6)).high < 0
