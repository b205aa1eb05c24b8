"""How often the 95 % interval of a simulated measurement holds the truth.

A process is a series of 500 repetitions in blocks of 50 around its own level; levels differ between
processes by a normal share.  The truth is the median over all processes.
"""

from __future__ import annotations

import numpy as np
from scipy.signal import lfilter

from nsysalign.addons.measure.statistics import compared, interval

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


def simulated(case: str, differ: float, trials: int, seed: int, processes: int):
    """(medians, their standard errors) per trial and process."""
    random = np.random.default_rng([seed, list(CASES).index(case), round(1000 * differ)])
    level = LEVEL_NS * (1 + differ * random.standard_normal((trials * processes, 1)))
    samples = level * (1 + CASES[case](random, (trials * processes, REPETITIONS)))
    blocks = np.median(samples.reshape(len(samples), BLOCKS, -1), axis=2)
    errors = blocks.std(axis=1, ddof=1) / np.sqrt(BLOCKS)
    shape = trials, processes
    return np.median(samples, axis=1).reshape(shape), errors.reshape(shape)


def coverage(case: str, differ: float, trials: int, processes: int = 3) -> tuple[float, float]:
    """(share of trials whose interval holds the truth, mean half width as a share)."""
    found = interval(*simulated(case, differ, trials, 0, processes))
    noise = CASES[case](np.random.default_rng(1), (2_000, 1_000))
    truth = LEVEL_NS * (1 + float(np.median(noise)))
    held = np.abs(found.value_ns - truth) <= found.reach_ns
    return float(held.mean()), float((found.reach_ns / found.value_ns).mean())


def false_alarms(case: str, differ: float, trials: int, processes: int = 3) -> float:
    """The share of A against A that is told apart."""
    sides = [simulated(case, differ, trials, seed, processes) for seed in (1, 2)]
    found = compared(*(m for m, _ in sides), *(interval(*side).own_ns for side in sides))
    return float(((found.low > 0) | (found.high < 0)).mean())
