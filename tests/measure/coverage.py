"""How often the 95 % interval of a simulated measurement holds the truth: also `scripts/bench_measure_coverage.py TRIALS`.

A process is a series of 500 repetitions (about what the stopping rule takes of dependent ones) around its own level; levels differ between processes by a normal share.  The truth
is the median over all processes.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from nsysalign.measure.statistics import UNSURE, combined, compared, own_error, within_rows

LEVEL_NS = 1e6
NOISE = 0.01
#: name -> how one process's repetitions scatter around its level (shares of it).
CASES = {
    "independent": lambda r, n: NOISE * r.standard_normal(n),
    "autocorrelation .8": lambda r, n: NOISE * ar(r, n, 0.8),
    "autocorrelation .95": lambda r, n: NOISE * ar(r, n, 0.95),
    "two modes": lambda r, n: NOISE / 2 * r.standard_normal(n) + 0.04 * modes(r, n, 0.25),
    "drift": lambda r, n: (
        NOISE * r.standard_normal(n) + 0.02 * (np.arange(n[1]) / (n[1] - 1) - 0.5)
    ),
    "2 % outliers": lambda r, n: (
        NOISE * r.standard_normal(n) + (r.random(n) < 0.02) * r.exponential(1.0, n)
    ),
}
DIFFER = (0.0, 0.01, 0.03)


def ar(random: np.random.Generator, shape: tuple[int, int], r: float) -> np.ndarray:
    """First-order autoregressive series of unit variance, one per row."""
    rows, n = shape
    noise = random.standard_normal((rows, n + 200)) * np.sqrt(1 - r * r)
    return lfilter([1], [1, -r], noise, axis=1)[:, 200:]


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


def truth(case: str) -> float:
    """The median of a long series around LEVEL_NS."""
    if case in ("independent", "autocorrelation .8", "autocorrelation .95", "drift"):
        return LEVEL_NS  # symmetric
    return LEVEL_NS * (1 + float(np.median(CASES[case](np.random.default_rng(1), (2_000, 1_000)))))


def coverage(
    case: str,
    differ: float,
    trials: int,
    seed: int = 0,
    *,
    few: int = 3,
    most: int = 7,
    n: int = 500,
) -> tuple[float, float]:
    """(share of trials whose interval holds the truth, mean half width as a share).  As the session does: three
    processes, and four more where nobody can say that they do not differ."""
    random = np.random.default_rng([seed, list(CASES).index(case), round(1000 * differ)])
    level = LEVEL_NS * (1 + differ * random.standard_normal((trials * most, 1)))
    samples = level * (1 + CASES[case](random, (trials * most, n)))
    medians = np.median(samples, axis=1).reshape(trials, most)
    halves = within_rows(samples)[0].reshape(trials, most)
    value, reach, scattered = combined(medians[:, :few], halves[:, :few])
    more = scattered > UNSURE
    all_value, all_reach, _ = combined(medians, halves)
    value, reach = np.where(more, all_value, value), np.where(more, all_reach, reach)
    return float((np.abs(value - truth(case)) <= reach).mean()), float((reach / value).mean())


def false_alarms(
    case: str,
    differ: float,
    trials: int,
    seed: int = 0,
    *,
    few: int = 3,
    most: int = 7,
    n: int = 500,
) -> float:
    """The share of A against A that is told apart, decided as the session does: both sides get all processes where one of
    them may differ."""
    random = np.random.default_rng([seed, 1, list(CASES).index(case), round(1000 * differ)])
    level = LEVEL_NS * (1 + differ * random.standard_normal((2 * trials * most, 1)))
    samples = level * (1 + CASES[case](random, (2 * trials * most, n)))
    medians = np.median(samples, axis=1).reshape(2, trials, most)
    halves = within_rows(samples)[0].reshape(2, trials, most)
    more = np.zeros(trials, dtype=bool)
    for side in range(2):
        more |= combined(medians[side, :, :few], halves[side, :, :few])[2] > UNSURE
    _, low, high = compared(*medians[:, :, :few], *(own_error(h[:, :few]) for h in halves))
    _, all_low, all_high = compared(*medians, *(own_error(h) for h in halves))
    low, high = np.where(more, all_low, low), np.where(more, all_high, high)
    return float(((low > 0) | (high < 0)).mean())
