"""From samples to numbers: intervals that are valid for dependent repetitions and for processes that differ.  The estimate of a
duration is the mean of the processes' medians, with a 95 % interval from Student's t: this does not depend on how long
repetitions influence each other, and processes may differ.  Three medians can agree by chance, so the interval is never
narrower than what the repetitions within the processes allow: order statistics of the median on the effective sample size
(stop.py), of the samples minus their linear trend.  scipy provides the quantiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import stdtrit  # not scipy.stats, which takes a second to import

from nsysalign.measure.stop import FEWEST, PERCENTILES, RESOLUTION_NS, Z95

CONFIDENCE = 0.95
#: Far outliers, as in box plots: beyond the middle half by this many times its width.
OUTLIER = 3.0
#: Processes differ if their medians scatter this many times wider than their own samples explain.
DIFFER = 2.0
#: From this ratio on a difference cannot be excluded, and more processes are run.  By simulation (tests/measure): with 2 the
#: intervals of processes that differ by 1 % hold the truth in 91 to 94 of 100 cases, with 0.8 in 93.5 to 95; smaller
#: differences only widen the interval.
UNSURE = 0.8


@dataclass(frozen=True)
class Estimate:
    """One mode of one batch.  Nanoseconds; `low` and `high` are the 95 % interval, infinite if nothing bounds it."""

    value: float
    low: float
    high: float
    medians: tuple[float, ...]
    samples: int
    effective: float
    mean: float
    std: float
    least: float
    most: float
    outliers: int
    differ: bool
    unsure: bool
    percentiles: Mapping[float, tuple[float, bool]] = field(
        default_factory=dict
    )  # value, whether there are enough samples for it
    own_ns: float = 0.0  # standard error of `value` due to the repetitions alone

    @property
    def share(self) -> float:
        """Half the interval's width as a share of the value."""
        return (self.high - self.low) / 2 / self.value if self.value > 0 else math.inf

    def mapped(self, scale: float) -> tuple[float, float, float]:
        """(scale / value, low, high): a throughput from a time."""
        if self.value <= 0:
            return math.nan, math.nan, math.nan
        low = scale / self.high if math.isfinite(self.high) else 0.0
        return scale / self.value, low, scale / self.low if self.low > 0 else math.inf


def within(values: np.ndarray) -> tuple[float, float]:
    """(half the width of one process's interval for its median, effective sample size)."""
    half, size = within_rows(np.asarray(values, dtype=np.float64)[None, :])
    return float(half[0]), float(size[0])


def within_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same of many processes of n samples each: values of shape (processes, n); the trend is taken out.

    Infinite with fewer than six independent samples.
    """
    n = values.shape[1]
    if n < FEWEST:
        return np.full(len(values), np.inf), np.full(len(values), float(n))
    level = np.sort(detrended := values - _trends(values), axis=1)
    size = effective_sizes(detrended, level[:, n // 2])
    reach = Z95 / (2 * np.sqrt(size))
    low, high = (_quantile(level, np.clip(0.5 + side * reach, 0, 1)) for side in (-1, 1))
    return np.where(size < 6, np.inf, (high - low) / 2), size


def _quantile(ordered: np.ndarray, share: np.ndarray) -> np.ndarray:
    """One quantile per ordered row, between samples linear."""
    at = share * (ordered.shape[1] - 1)
    below = np.floor(at).astype(np.int64)
    above = np.minimum(below + 1, ordered.shape[1] - 1)
    rows = np.arange(len(ordered))
    return ordered[rows, below] + (at - below) * (ordered[rows, above] - ordered[rows, below])


def _trends(values: np.ndarray) -> np.ndarray:
    """Per row a straight line through the medians of 16 stretches (Theil and Sen's slope), zero on average."""
    n = values.shape[1]
    groups = min(16, n // 4)
    if groups < 3:
        return np.zeros_like(values)
    middles = np.column_stack(
        [np.median(part, axis=1) for part in np.array_split(values, groups, axis=1)]
    )
    first, second = np.triu_indices(groups, 1)
    slopes = np.median((middles[:, second] - middles[:, first]) / (second - first), axis=1)
    at = np.arange(n) * groups / n
    return slopes[:, None] * (at - at.mean())


def effective_sizes(values: np.ndarray, middles: np.ndarray) -> np.ndarray:
    """stop.effective_size of every row; `middles`: each row's upper median."""
    n = values.shape[1]
    above = (values > middles[:, None]).astype(np.float64)
    share = above.mean(axis=1)
    variance = share * (1 - share)
    known = variance > 0
    lags = (n // 2 + 1) // 2 * 2
    both = np.fft.irfft(np.abs(np.fft.rfft(above, 2 * n, axis=1)) ** 2, 2 * n, axis=1)[
        :, 1 : lags + 1
    ]
    both = np.round(both) / (n - np.arange(1, lags + 1))
    r = (both - (share**2)[:, None]) / np.where(known, variance, 1.0)[:, None]
    pairs = np.minimum.accumulate(np.minimum(r[:, 0::2] + r[:, 1::2], 2.0), axis=1)
    total = np.where(pairs > 0, pairs, 0.0).sum(axis=1)
    return np.where(known, np.clip(n / (1 + 2 * total), 1.0, n), float(n))


def combined(medians: np.ndarray, halves: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(value, half the interval's width, how many times wider the processes scatter than their samples explain) of many measurements at once: `medians` and
    `halves` (`within_rows`) have the shape (measurements, processes)."""
    count = medians.shape[1]
    floor = np.sqrt((halves**2).sum(axis=1)) / count
    reach, scattered = floor, np.zeros(len(medians))
    if count > 1:
        scatter = medians.std(axis=1, ddof=1)
        between = scatter / math.sqrt(count) * float(stdtrit(count - 1, 0.5 + CONFIDENCE / 2))
        own = np.sqrt((halves**2).mean(axis=1)) / Z95
        scattered = scatter / np.maximum(own, RESOLUTION_NS / 4)
        reach = np.where(np.isfinite(floor), np.maximum(between, floor), between)
    return (
        medians.mean(axis=1),
        np.maximum(reach, RESOLUTION_NS / 4),
        scattered,
    )  # half a tick: no median is known more precisely


def own_error(halves: np.ndarray) -> np.ndarray:
    """Standard error of the mean of some processes' medians due to their repetitions alone, ns: `halves`
    (`within_rows`) has the shape (measurements, processes).  At least half a tick of the clock, also if it is unknown."""
    count = halves.shape[1]
    error = np.sqrt((halves**2).sum(axis=1)) / count / Z95
    tick = RESOLUTION_NS / 4 / math.sqrt(count)
    return np.where(np.isfinite(error), np.maximum(error, tick), tick)


def estimate(
    processes: Sequence[Sequence[float]], percentiles: Sequence[float] = (50, 90, 99)
) -> Estimate:
    """The estimate of one mode from the samples of each process, in order of time.  Raises ValueError if there are none."""
    arrays = [np.asarray(p, dtype=np.float64) for p in processes if len(p)]
    if not arrays:
        raise ValueError("no samples")
    medians = np.array([float(np.median(a)) for a in arrays])
    inner = [within(a) for a in arrays]
    halves = np.array([[h for h, _ in inner]])
    values, reaches, scattered = combined(medians[None, :], halves)
    value, reach = float(values[0]), float(reaches[0])
    pooled = np.concatenate(arrays)
    return Estimate(
        value, max(0.0, value - reach), value + reach, tuple(medians.tolist()), len(pooled), float(sum(s for _, s in inner)),
        float(pooled.mean()), float(pooled.std(ddof=1)) if len(pooled) > 1 else 0.0, float(pooled.min()), float(pooled.max()),
        outliers(pooled), bool(scattered[0] > DIFFER), bool(scattered[0] > UNSURE), quantiles(pooled, percentiles),
        float(own_error(halves)[0]),
    )  # fmt: skip


def outliers(values: np.ndarray) -> int:
    """The number of far outliers.  They are counted, never removed."""
    low, high = np.quantile(values, [0.25, 0.75])
    width = max(float(high - low), RESOLUTION_NS)
    return int(((values < low - OUTLIER * width) | (values > high + OUTLIER * width)).sum())


def quantiles(values: np.ndarray, percentiles: Sequence[float]) -> dict[float, tuple[float, bool]]:
    """Percentile -> (sample, whether there are enough samples to bound it from above at 95 %); otherwise it means "at
    least"."""
    out = {}
    for p in percentiles:
        wanted = PERCENTILES.get(p) or (
            math.ceil(math.log(0.05) / math.log(p / 100)) if p > 50 else 1
        )
        out[p] = (float(np.quantile(values, p / 100, method="higher")), len(values) >= wanted)
    return out


@dataclass(frozen=True)
class Difference:
    """b / a - 1 with its 95 % interval, and the verdict about it."""

    ratio: float
    low: float
    high: float
    verdict: str  # faster, slower, unclear


def difference(a: Estimate, b: Estimate) -> Difference:
    """How much longer b takes than a.  A verdict needs two processes on each side."""
    ratio = b.value / a.value - 1 if a.value > 0 else math.nan
    if min(len(a.medians), len(b.medians)) < 2 or a.value <= 0 or b.value <= 0:
        return Difference(ratio, -math.inf, math.inf, "unclear")
    own = [np.array([e.own_ns]) for e in (a, b)]
    found, low, high = (
        float(x[0]) for x in compared(np.array([a.medians]), np.array([b.medians]), own[0], own[1])
    )
    return Difference(
        found, low, high, "slower" if low > 0 else "faster" if high < 0 else "unclear"
    )


def compared(
    a: np.ndarray, b: np.ndarray, own_a: np.ndarray, own_b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(b / a - 1, lower, upper end of its interval) of many comparisons at once, by Welch's t over the logarithms of the
    processes' medians, whose shapes are (comparisons, processes of a) and (comparisons, processes of b), ns.  `own_a`, `own_b`:
    standard errors due to the repetitions alone (`own_error`): closer agreement between processes is chance."""
    logs = [np.log(x) for x in (a, b)]
    errors = [
        np.maximum(x.var(axis=1, ddof=1) / x.shape[1], (own / m.mean(axis=1)) ** 2)
        for x, m, own in zip(logs, (a, b), (own_a, own_b), strict=True)
    ]
    total = errors[0] + errors[1]
    freedom = total**2 / sum(v**2 / (x.shape[1] - 1) for v, x in zip(errors, logs, strict=True))
    reach = np.sqrt(total) * stdtrit(np.maximum(1.0, freedom), 0.5 + CONFIDENCE / 2)
    middle = logs[1].mean(axis=1) - logs[0].mean(axis=1)
    return np.expm1(middle), np.expm1(middle - reach), np.expm1(middle + reach)
