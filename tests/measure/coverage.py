"""How often the 95 % interval of a simulated measurement holds the truth.

A process is a series of 500 repetitions in blocks of 50 around its own level; levels differ between
processes by a normal share.  The truth is the median over all processes.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from nsysalign.addons.measure.statistics import Estimate, difference, interval

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
