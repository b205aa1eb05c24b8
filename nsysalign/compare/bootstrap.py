"""How much a label changed between two runs, with a bootstrap confidence interval.

The statistic is the midmean: the mean over the middle half of the runs, ordered by measured time.  A cold first run does
not move it, and because the same runs are averaged for every cause, the causes' changes add up to the total's.

Percentile intervals of few runs are too narrow; they are expanded by the t quantile (Hesterberg 2015, "What teachers
should know about the bootstrap", section 5.3).  The runs are taken as independent: slow drift makes any interval too narrow.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

RESAMPLES = 2_000
#: Random numbers drawn per side and label at most: 25,000 runs need fewer resamples than 10.
MOST_DRAWS = 6_000_000
FEWEST_RESAMPLES = 200


def middle_half(order: np.ndarray) -> np.ndarray:
    """The middle half of positions that are ordered along the last axis; at least one.

        10 runs, slowest last:  x x . . . . . . x x        3 runs:  x . x        2 runs:  . .
    """
    count = order.shape[-1]
    cut = (count + 1) // 4
    return order[..., cut : count - cut] if count - 2 * cut >= 1 else order


def midmean(values: np.ndarray) -> np.ndarray:
    """Mean of every column over the runs (rows) whose first column lies in the middle half."""
    return values[middle_half(np.argsort(values[:, 0], kind="stable"))].mean(axis=0)


def resampled(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Midmeans of resampled runs: one row per resample, one column per column of `values`."""
    count = len(values)
    resamples = int(np.clip(MOST_DRAWS // count, FEWEST_RESAMPLES, RESAMPLES))
    ordered = values[np.argsort(values[:, 0], kind="stable")].astype(np.float64)
    out = np.empty((resamples, values.shape[1]))
    step = max(1, 500_000 // count)
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        # positions in order of measured time: sorting the numbers drawn sorts the resample
        drawn = np.sort(random.integers(0, count, (size, count)), axis=1)
        kept = middle_half(drawn)
        # how often each run is among the kept ones, as a matrix product instead of a gather of size x count x columns
        weights = np.zeros((size, count))
        np.add.at(weights, (np.repeat(np.arange(size), kept.shape[1]), kept.ravel()), 1.0)
        out[begin : begin + size] = weights @ ordered / kept.shape[1]
    return out


def tails(confidence: float, count: int) -> tuple[float, float]:
    """The two percentiles (0 to 1) of the resamples that bound `confidence` for `count` runs, expanded for few."""
    wanted = 0.5 + confidence / 2
    if count < 2:
        return 0.0, 1.0
    tail = 1 - NormalDist().cdf(np.sqrt(count / (count - 1)) * student_t(wanted, count - 1))
    return float(tail), float(1 - tail)


def student_t(probability: float, freedom: int) -> float:
    """Quantile of Student's t: exact for 1 and 2 degrees of freedom, else Cornish and Fisher's expansion (error < 2 % at
    3, < 0.1 % from 6 on)."""
    if freedom == 1:
        return float(np.tan(np.pi * (probability - 0.5)))
    if freedom == 2:
        a = 2 * probability - 1
        return float(a * np.sqrt(2 / (1 - a * a)))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def change(before: np.ndarray, after: np.ndarray, confidence: float, seed: int) -> np.ndarray:
    """(before, after, after - before, low, high) of every column: an array of shape (columns, 5), nanoseconds."""
    random = np.random.default_rng(seed)
    first, second = midmean(before), midmean(after)
    a, b = resampled(before, random), resampled(after, random)
    resamples = min(len(a), len(b))
    difference = b[:resamples] - a[:resamples]
    low, high = np.quantile(difference, tails(confidence, min(len(before), len(after))), axis=0)
    middle = second - first
    # the expanded ends of few runs can lie on one side of the point when most runs are equal
    return np.column_stack([first, second, middle, np.minimum(low, middle), np.maximum(high, middle)])
