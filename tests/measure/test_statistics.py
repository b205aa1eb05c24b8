"""Intervals: how often they hold the truth, on simulated processes of every kind that was seen.

A process is a series of 500 repetitions in blocks of 50 around its own level; levels differ between
processes by a normal share.  The truth is the median over all processes.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from thorough import part

from nsysalign.addons.measure.statistics import (
    FEWEST_P99,
    Estimate,
    difference,
    estimate,
    interval,
    standard_error,
)

LEVEL_NS, NOISE, REPETITIONS, BLOCKS = 1e6, 0.01, 500, 10
#: name -> how one process's repetitions scatter around its level (shares of it).
CASES = {
    "independent": lambda r, n: NOISE * r.standard_normal(n),
    "autocorrelation .95": lambda r, n: NOISE * ar(r, n, 0.95),
    "two modes": lambda r, n: NOISE / 2 * r.standard_normal(n) + 0.04 * modes(r, n, 0.25),
    "drift": lambda r, n: (
        NOISE * r.standard_normal(n) + 0.02 * (np.arange(n[1]) / (n[1] - 1) - 0.5)
    ),
    "2 % outliers": lambda r, n: (
        NOISE * r.standard_normal(n) + (r.random(n) < 0.02) * r.exponential(1.0, n)
    ),
}
DIFFER = (0.0, 0.01)


def ar(random: np.random.Generator, shape: tuple[int, int], r: float) -> np.ndarray:
    """First-order autoregressive series of unit variance, one per row."""
    rows, n = shape
    noise = random.standard_normal((rows, n + 200)) * np.sqrt(1 - r * r)
    series = np.empty_like(noise)
    value = np.zeros(rows)
    for k in range(n + 200):
        value = r * value + noise[:, k]
        series[:, k] = value
    return series[:, 200:]


def modes(random: np.random.Generator, shape: tuple[int, int], share: float) -> np.ndarray:
    """1 in the slow mode, which lasts ten repetitions on average and takes this share of them."""
    rows, n = shape
    change = random.random((rows, n))
    out = np.empty((rows, n))
    slow = random.random(rows) < share
    for k in range(n):
        slow = np.where(slow, change[:, k] >= 0.1, change[:, k] < 0.1 * share / (1 - share))
        out[:, k] = slow
    return out


def simulated(case: str, differ: float, trials: int, seed: int, processes: int) -> list[Estimate]:
    """An estimate per trial, of so many processes."""
    random = np.random.default_rng([seed, list(CASES).index(case), round(1000 * differ)])
    level = LEVEL_NS * (1 + differ * random.standard_normal((trials * processes, 1)))
    samples = level * (1 + CASES[case](random, (trials * processes, REPETITIONS)))
    blocks = np.median(samples.reshape(len(samples), BLOCKS, -1), axis=2)
    errors = blocks.std(axis=1, ddof=1) / np.sqrt(BLOCKS)
    medians, errors = (x.reshape(trials, -1).tolist() for x in (np.median(samples, axis=1), errors))
    return [interval(*of) for of in zip(medians, errors, strict=True)]


def coverage(case: str, differ: float, trials: int) -> tuple[float, float]:
    """(share of trials whose interval holds the truth, mean half width as a share)."""
    estimates = simulated(case, differ, trials, 0, 3)
    noise = CASES[case](np.random.default_rng(1), (2_000, 1_000))
    truth = LEVEL_NS * (1 + float(np.median(noise)))
    held = [e.low_ns <= truth <= e.high_ns for e in estimates]
    return float(np.mean(held)), float(np.mean([e.share for e in estimates]))


def false_alarms(case: str, differ: float, trials: int) -> float:
    """The share of A against A that is told apart."""
    sides = [simulated(case, differ, trials, seed, 3) for seed in (1, 2)]
    changes = [difference(a, b) for a, b in zip(*sides, strict=True)]
    return float(np.mean([change.low > 0 or change.high < 0 for change in changes]))


@pytest.mark.parametrize("differ", DIFFER)
@pytest.mark.parametrize("case", CASES)
def test_95_percent_intervals_hold_the_truth_and_a_vs_a_is_seldom_told_apart(case, differ):
    """A share of 5 % deviates by 0.7 % in 1,000 trials, by 1.1 % in 400."""
    trials = part(400, 1_000)
    deviation = math.sqrt(0.05 * 0.95 / trials)
    held, width = coverage(case, differ, trials)
    assert held >= 0.95 - 3 * deviation
    assert width < (0.02 if differ == 0 else 0.04)  # and are of use
    assert false_alarms(case, differ, trials) <= 0.05 + 3 * deviation


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
