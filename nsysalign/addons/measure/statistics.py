"""From samples to numbers: how processes differ decides, not how repetitions do.

The value is the mean of the processes' medians, its 95 % interval Student's t over them: valid
however repetitions depend on each other.  Medians can agree by chance, so an interval is never
narrower than the scatter of consecutive blocks inside the processes allows.  One process bounds
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nsysalign.student import Z95, t95

#: Samples from which on the 99th percentile's 95 % upper bound is a sample: 0.99**n <= 0.05.
FEWEST_P99 = 299
#: Two ticks of the event clock; no median is known more precisely than to half of one.
RESOLUTION_NS, TICK_NS = 64.0, 16.0
#: Fewer blocks of one process say nothing of its scatter.
FEWEST_BLOCKS = 4


@dataclass(frozen=True)
class Estimate:
    """One mode of one batch, ns.  `low_ns` and `high_ns` are the 95 % interval, 0 and infinite for
    one process; `own_ns`: the value's standard error due to the repetitions alone; `medians`: one
    per process; `sm_mhz`: the median clock, NaN where unknown."""

    value_ns: float
    low_ns: float
    high_ns: float
    own_ns: float
    medians: tuple[float, ...]
    p90_ns: float = math.nan
    p99_ns: float = math.nan
    mean_ns: float = math.nan
    samples: int = 0
    sm_mhz: float = math.nan

    @property
    def processes(self) -> int:
        """How many processes it is of."""
        return len(self.medians)

    @property
    def share(self) -> float:
        """Half the interval's width as a share of the value."""
        return (self.high_ns - self.low_ns) / 2 / self.value_ns if self.value_ns > 0 else math.inf


def standard_error(blocks: Sequence[Sequence[float]]) -> float:
    """Of one process's median, ns, from the medians of its consecutive blocks; infinite for few."""
    if len(blocks) < FEWEST_BLOCKS:
        return math.inf
    return float(np.std([np.median(b) for b in blocks], ddof=1)) / math.sqrt(len(blocks))


def interval(medians: Sequence[float], errors: Sequence[float]) -> Estimate:
    """From the medians of processes and their standard errors."""
    count, value, reach = len(medians), float(np.mean(medians)), math.inf
    error = math.hypot(*(max(e if e < math.inf else 0.0, TICK_NS) for e in errors)) / count
    if count > 1:
        deviation = float(np.std(medians, ddof=1)) / math.sqrt(count)
        reach = max(deviation * t95(count - 1), Z95 * error)
    return Estimate(value, max(0.0, value - reach), value + reach, error, tuple(medians))


def estimate(processes: Sequence[Sequence[Sequence[float]]]) -> Estimate:
    """The estimate of one mode, from the blocks of samples of each process.  Raises ValueError if
    there are no samples."""
    kept = [[np.asarray(b, dtype=np.float64) for b in blocks if len(b)] for blocks in processes]
    kept = [blocks for blocks in kept if blocks]
    if not kept:
        raise ValueError("no samples")
    medians = [float(np.median(np.concatenate(blocks))) for blocks in kept]
    pooled = np.concatenate([block for blocks in kept for block in blocks])
    p90, p99 = np.quantile(pooled, [0.9, 0.99], method="higher").tolist()
    return replace(
        interval(medians, list(map(standard_error, kept))),
        p90_ns=p90, p99_ns=p99, mean_ns=float(pooled.mean()), samples=len(pooled),
    )  # fmt: skip


class Difference(NamedTuple):
    """b / a - 1 with its 95 % interval."""

    ratio: float
    low: float
    high: float


def difference(a: Estimate, b: Estimate) -> Difference:
    """How much longer b takes than a: Welch's t over the logarithms of the processes' medians,
    whose variances are never below what the repetitions alone leave open.  Bounds need two
    processes on each side."""
    if min(a.processes, b.processes) < 2 or a.value_ns <= 0 or b.value_ns <= 0:
        ratio = b.value_ns / a.value_ns - 1 if a.value_ns > 0 else math.nan
        return Difference(ratio, -math.inf, math.inf)
    middles, errors, freedom = [], [], 0.0
    for side in (a, b):
        logs, count = np.log(side.medians), side.processes
        middles.append(logs.mean())
        errors.append(max(logs.var(ddof=1) / count, (side.own_ns / side.value_ns) ** 2))
        freedom += errors[-1] ** 2 / (count - 1)
    total, middle = sum(errors), middles[1] - middles[0]
    reach = math.sqrt(total) * t95(max(1.0, total**2 / freedom))
    return Difference(*np.expm1([middle, middle - reach, middle + reach]).tolist())
