"""When there are enough samples: intervals of the median on the effective sample size.  Standard library only.

Repetitions in one process are not independent.  What matters for a median is how long the samples stay on one side of
it: the series of "above the median" (one bit each) has autocorrelations r(k), and n samples are worth

    n / (1 + 2 (r(1) + r(2) + ...))          summed in pairs until a pair is negative (Geyer's initial positive sequence)

The bits are kept in one integer, so that r(k) is a shift, an `and` and a count of ones: microseconds for 20,000 samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

Z95 = NormalDist().inv_cdf(0.975)
#: Samples from which on a percentile's 95 % upper bound is a sample: the smallest n with p**n <= 0.05.
PERCENTILES = {90: 29, 95: 59, 99: 299, 99.9: 2995}
#: Two ticks of the event clock: no median is known more precisely.
RESOLUTION_NS = 64.0
FEWEST = 8


def effective_size(values: Sequence[float]) -> float:
    """How many independent samples these (in order of time) are worth for their median: between 1 and n."""
    n = len(values)
    if n < FEWEST:
        return float(n)
    middle = sorted(values)[n // 2]
    text = "".join("1" if v > middle else "0" for v in values)
    bits, ones = int(text, 2), text.count("1")
    share = ones / n
    variance = share * (1 - share)
    if variance == 0:
        return float(n)  # no sample above the middle: ties, so there is no series to analyse
    total, lag, previous = 0.0, 1, 1.0
    while lag < n // 2:
        pair = _correlation(bits, n, lag, share, variance)
        pair += _correlation(bits, n, lag + 1, share, variance)
        pair = min(pair, previous * 2)  # the sequence must not grow again
        if pair <= 0:
            break
        total += pair
        previous, lag = pair / 2, lag + 2
    return max(1.0, min(float(n), n / (1 + 2 * total)))


def _correlation(bits: int, n: int, lag: int, share: float, variance: float) -> float:
    """Autocorrelation of a series of bits: how much more often than by chance two bits at this distance are both 1."""
    return (((bits >> lag) & bits).bit_count() / (n - lag) - share * share) / variance


def median_bounds(values: Sequence[float], size: float | None = None) -> tuple[float, float, float]:
    """(median, low, high): 95 % by order statistics on the effective sample size.

    Infinite with fewer than six independent samples.
    """
    ordered = sorted(values)
    n = len(ordered)
    if n == 0:
        return math.nan, -math.inf, math.inf
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    size = effective_size(values) if size is None else size
    if size < 6:
        return middle, -math.inf, math.inf
    reach = Z95 / (2 * math.sqrt(size))  # of the rank, as a share of n
    low = ordered[max(0, math.floor((0.5 - reach) * n))]
    high = ordered[min(n - 1, math.ceil((0.5 + reach) * n) - 1)]
    return middle, low, high


def precise(values: Sequence[float], precision: float) -> bool:
    """Whether the median is known within `precision` (a share of it), or within the clock's own resolution."""
    middle, low, high = median_bounds(values)
    return (high - low) / 2 <= max(precision * middle, RESOLUTION_NS)
