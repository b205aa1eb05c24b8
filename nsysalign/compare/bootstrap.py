"""How much a label changed between two runs, with a bootstrap confidence interval.

The statistic is the midmean: the mean over the middle half of the runs, ordered by measured time
(the median where there are fewer than nine).  A cold first run does not move it, and because the
same runs are averaged for every cause, the causes' changes add up to the total's.

The bounds are the change -+ t * s, where s is half the distance between the 16th and the 84th
percentile of the resampled changes: with few runs the outer percentiles are made of resamples that
drew the one cold run several times.  t is Student's, for the side with fewer runs.  Two sets of 5 to
100 runs of the same program (log-normal; with and without one run 100 times slower; two modes) were
told apart at 95 % in 0 to 6 of 100 cases (tests/compare).  Slow drift makes any such interval too
narrow.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from nsysalign.student import t95

#: Random numbers drawn per side and label at most: 25,000 runs need fewer resamples than 10 runs do.
RESAMPLES, FEWEST_RESAMPLES, MOST_DRAWS = 2_000, 200, 6_000_000
#: With fewer runs the middle half still holds a cold run too often when it is resampled.
FEWEST_FOR_HALF = 9
ONE_SIGMA = (NormalDist().cdf(-1), NormalDist().cdf(1))


def middle_half(order: np.ndarray) -> np.ndarray:
    """The middle of positions that are ordered along the last axis: half of them, or the median of
    few.

    12 runs, slowest last:  x x x . . . . . . x x x     6 runs:  x x . . x x     5 runs:  x x . x x
    """
    count = order.shape[-1]
    cut = (count - 1) // 2 if count < FEWEST_FOR_HALF else (count + 1) // 4
    return order[..., cut : count - cut]


def midmean(values: np.ndarray) -> np.ndarray:
    """Mean of every column over the runs (rows) whose first column lies in the middle half."""
    return values[middle_half(np.argsort(values[:, 0], kind="stable"))].mean(axis=0)


def resampled(values: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Midmeans of resampled runs: one row per resample, one column per column of `values`."""
    count = len(values)
    resamples = int(np.clip(MOST_DRAWS // count, FEWEST_RESAMPLES, RESAMPLES))
    ordered = values[np.argsort(values[:, 0], kind="stable")].astype(np.float64)
    out, step = [], max(1, 250_000 // count)
    for begin in range(0, resamples, step):
        size = min(step, resamples - begin)
        # positions in order of measured time: sorting the numbers drawn sorts the resample
        kept = middle_half(np.sort(random.integers(0, count, (size, count)), axis=1))
        out.append(ordered[kept].mean(axis=1))
    return np.concatenate(out)


def _reach(resamples: np.ndarray, runs: int) -> np.ndarray:
    """How far bounds lie from the middle: Student's t times a standard deviation of the resampled
    statistic."""
    low, high = np.quantile(resamples, ONE_SIGMA, axis=0)
    return (high - low) / 2 * t95(runs - 1) * np.sqrt(runs / (runs - 1))


def change(before: np.ndarray, after: np.ndarray, seed: int) -> np.ndarray:
    """(before, after, after - before, low, high) of every column: an array of shape (columns, 5),
    nanoseconds."""
    random = np.random.default_rng(seed)
    first, second = midmean(before), midmean(after)
    a, b = resampled(before, random), resampled(after, random)
    resamples = min(len(a), len(b))
    reach = _reach(b[:resamples] - a[:resamples], max(2, min(len(before), len(after))))
    middle = second - first
    return np.column_stack([first, second, middle, middle - reach, middle + reach])


def level(values: np.ndarray) -> np.ndarray:
    """(midmean and its 95 % bounds) of every column: an array of shape (columns, 3), nanoseconds.
    The spread of a single run is unknown: its bounds are the value itself."""
    middle, reach = midmean(values), 0.0
    if len(values) > 1:
        reach = _reach(resampled(values, np.random.default_rng(0)), len(values))
    return np.column_stack([middle, middle - reach, middle + reach])
