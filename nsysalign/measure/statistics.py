"""From samples to numbers: intervals that hold for dependent repetitions and for processes that differ.

The estimate of a duration is the mean of the processes' medians, its 95 % interval Student's t over them: how long
repetitions depend on each other does not matter then, and processes may differ.  Three medians can agree by chance, so the
interval is never narrower than what the repetitions within the processes allow: order statistics of the median on the
effective sample size (stop.py), of the samples less their linear trend.

scipy has the quantiles and slopes; where it is missing, nothing here can be imported, and the samples are kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from nsysalign.measure.stop import FEWEST, PERCENTILES, RESOLUTION_NS, Z95, effective_size

CONFIDENCE = 0.95
#: Far outliers, as box plots have them: so many times the middle half's width beyond it.
OUTLIER = 3.0
#: Processes differ where their medians scatter so many times wider than their own samples explain.
DIFFER = 2.0


@dataclass(frozen=True)
class Estimate:
    """One mode of one batch.  Nanoseconds; `low` and `high` are the 95 % interval, infinite where nothing bounds it."""

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
    percentiles: Mapping[float, tuple[float, bool]] = field(default_factory=dict)  # value, whether it has its samples

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
    """(half the width of one process's interval for its median, effective sample size), the trend taken out."""
    n = len(values)
    if n < FEWEST:
        return math.inf, float(n)
    level = values - _trend(values)
    size = effective_size(level.tolist())
    if size < 6:
        return math.inf, size
    reach = Z95 / (2 * math.sqrt(size))
    low, high = np.quantile(level, [max(0.0, 0.5 - reach), min(1.0, 0.5 + reach)])
    return max(float(high - low) / 2, 0.0), size


def _trend(values: np.ndarray) -> np.ndarray:
    """A straight line through the medians of 16 stretches (Theil and Sen), zero on average."""
    n = len(values)
    groups = min(16, n // 4)
    if groups < 3:
        return np.zeros(n)
    middles = [float(np.median(part)) for part in np.array_split(values, groups)]
    slope = stats.theilslopes(middles, np.arange(groups)).slope
    at = np.arange(n) * groups / n
    return slope * (at - at.mean())


def estimate(processes: Sequence[Sequence[float]], percentiles: Sequence[float] = (50, 90, 99)) -> Estimate:
    """The estimate of one mode from the samples of each process, in order of time.  ValueError where there are none."""
    arrays = [np.asarray(p, dtype=np.float64) for p in processes if len(p)]
    if not arrays:
        raise ValueError("no samples")
    medians = np.array([float(np.median(a)) for a in arrays])
    inner = [within(a) for a in arrays]
    floor = math.sqrt(sum(h * h for h, _ in inner)) / len(inner)
    count = len(medians)
    value = float(medians.mean())
    reach, differ = floor, False
    if count > 1:
        scatter = float(medians.std(ddof=1))
        between = scatter / math.sqrt(count) * float(stats.t.ppf(0.5 + CONFIDENCE / 2, count - 1))
        own = math.sqrt(sum(h * h for h, _ in inner) / count) / Z95 if math.isfinite(floor) else math.inf
        differ = scatter > DIFFER * max(own, RESOLUTION_NS / 4)
        reach = max(between, floor if math.isfinite(floor) else 0.0)
    reach = max(reach, RESOLUTION_NS / 4)  # half a tick: no median is known better
    pooled = np.concatenate(arrays)
    return Estimate(
        value, max(0.0, value - reach), value + reach, tuple(medians.tolist()), len(pooled), float(sum(s for _, s in inner)),
        float(pooled.mean()), float(pooled.std(ddof=1)) if len(pooled) > 1 else 0.0, float(pooled.min()), float(pooled.max()),
        outliers(pooled), differ, quantiles(pooled, percentiles),
    )  # fmt: skip


def outliers(values: np.ndarray) -> int:
    """How many lie far outside.  They are counted, never removed."""
    low, high = np.quantile(values, [0.25, 0.75])
    width = max(float(high - low), RESOLUTION_NS)
    return int(((values < low - OUTLIER * width) | (values > high + OUTLIER * width)).sum())


def quantiles(values: np.ndarray, percentiles: Sequence[float]) -> dict[float, tuple[float, bool]]:
    """Percentile -> (sample, whether there are samples enough to bound it from above at 95 %); else it is "at least"."""
    out = {}
    for p in percentiles:
        wanted = PERCENTILES.get(p) or (math.ceil(math.log(0.05) / math.log(p / 100)) if p > 50 else 1)
        out[p] = (float(np.quantile(values, p / 100, method="higher")), len(values) >= wanted)
    return out


@dataclass(frozen=True)
class Difference:
    """b / a - 1 with its 95 % interval, and the verdict about it."""

    ratio: float
    low: float
    high: float
    verdict: str  # faster, slower, cannot say


def difference(a: Estimate, b: Estimate) -> Difference:
    """How much longer b takes than a: Welch's t over the logarithms of the processes' medians, never narrower than the
    repetitions allow.  A verdict needs two processes on each side."""
    ratio = b.value / a.value - 1 if a.value > 0 else math.nan
    if min(len(a.medians), len(b.medians)) < 2 or a.value <= 0 or b.value <= 0:
        return Difference(ratio, -math.inf, math.inf, "cannot say")
    logs = [np.log(e.medians) for e in (a, b)]
    means = [float(x.mean()) for x in logs]
    errors = [max(float(x.var(ddof=1)) / len(x), (_own(e) / e.value) ** 2) for x, e in zip(logs, (a, b), strict=True)]
    total = sum(errors)
    if total <= 0:
        return Difference(ratio, ratio, ratio, "cannot say")
    freedom = total**2 / sum(v * v / (len(x) - 1) for v, x in zip(errors, logs, strict=True))
    reach = math.sqrt(total) * float(stats.t.ppf(0.5 + CONFIDENCE / 2, max(1.0, freedom)))
    low, high = (math.exp(means[1] - means[0] + side * reach) - 1 for side in (-1, 1))
    verdict = "slower" if low > 0 else "faster" if high < 0 else "cannot say"
    return Difference(math.exp(means[1] - means[0]) - 1, low, high, verdict)


def _own(e: Estimate) -> float:
    """Standard error that half a tick of the clock leaves."""
    return RESOLUTION_NS / 4 / math.sqrt(len(e.medians))
