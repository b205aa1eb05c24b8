"""How often the 95 % interval of a simulated measurement holds the truth.

A process is a series of 500 repetitions (about what the stopping rule takes of dependent ones)
around its own level; levels differ between processes by a normal share.  The truth is the median
over all processes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.signal import lfilter

from nsysalign.addons.measure.statistics import UNSURE, combined, compared, within_rows

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


class Trials(NamedTuple):
    """Per trial and process: the median and half its interval's width, ns."""

    medians: np.ndarray
    halves: np.ndarray


def simulated(case: str, differ: float, trials: int, seed: int, most: int, n: int) -> Trials:
    """`trials` measurements of `most` processes with `n` repetitions each."""
    random = np.random.default_rng([seed, list(CASES).index(case), round(1000 * differ)])
    level = LEVEL_NS * (1 + differ * random.standard_normal((trials * most, 1)))
    samples = level * (1 + CASES[case](random, (trials * most, n)))
    shape = trials, most
    medians, halves = np.median(samples, axis=1), within_rows(samples).half_ns
    return Trials(medians.reshape(shape), halves.reshape(shape))


def coverage(
    case: str, differ: float, trials: int, *, few: int = 3, most: int = 7, n: int = 500
) -> tuple[float, float]:
    """(share of trials whose interval holds the truth, mean half width as a share).  As the session
    does: three processes, and four more where nobody can say that they do not differ."""
    medians, halves = simulated(case, differ, trials, 0, most, n)
    three, seven = combined(medians[:, :few], halves[:, :few]), combined(medians, halves)
    more = three.scattered > UNSURE
    value = np.where(more, seven.value_ns, three.value_ns)
    reach = np.where(more, seven.reach_ns, three.reach_ns)
    return float((np.abs(value - truth(case)) <= reach).mean()), float((reach / value).mean())


def false_alarms(
    case: str, differ: float, trials: int, *, few: int = 3, most: int = 7, n: int = 500
) -> float:
    """The share of A against A that is told apart, decided as the session does: both sides get all
    processes where one of them may differ."""
    sides = [simulated(case, differ, trials, seed, most, n) for seed in (1, 2)]
    more = np.zeros(trials, dtype=bool)
    for medians, halves in sides:
        more |= combined(medians[:, :few], halves[:, :few]).scattered > UNSURE

    def told(count: int) -> np.ndarray:
        medians = [m[:, :count] for m, _ in sides]
        own = [combined(m[:, :count], h[:, :count]).own_ns for m, h in sides]
        found = compared(*medians, *own)
        return (found.low > 0) | (found.high < 0)

    return float(np.where(more, told(most), told(few)).mean())
