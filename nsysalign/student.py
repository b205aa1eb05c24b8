"""Student's t: how many standard deviations a 95 % interval reaches, for any degrees of freedom.

The one function of scipy that this package would need, which is 110 MB; it agrees with
`scipy.special.stdtrit` to 1e-9 of its value (tests/test_student.py)."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

#: Of all intervals, and where their upper side lies.
CONFIDENCE = 0.95
UPPER = 0.5 + CONFIDENCE / 2
Z95 = NormalDist().inv_cdf(UPPER)
#: From here on the normal quantile and the first term of its correction are exact to 1e-12.
MANY = 1e6
_TINY = 1e-300


@lru_cache(maxsize=4096)
def t95(freedom: float) -> float:
    """The 97.5 % quantile of Student's t; `freedom` need not be whole.  Raises ValueError below 1,
    where no interval of two samples and more lies."""
    if not freedom >= 1:
        raise ValueError(f"{freedom} degrees of freedom: an interval needs at least 1")
    if freedom > MANY:
        return Z95 + (Z95**3 + Z95) / (4 * freedom)
    t = Z95
    for _ in range(
        50
    ):  # Newton's: above the normal quantile the tail is convex, so no step goes too far
        step = (_beyond(t, freedom) - (1 - UPPER)) / _density(t, freedom)
        t += step
        if abs(step) < 1e-12 * t:
            break
    return t


def _density(t: float, freedom: float) -> float:
    half = freedom / 2
    scale = math.exp(math.lgamma(half + 0.5) - math.lgamma(half)) / math.sqrt(freedom * math.pi)
    return scale * math.exp(-(half + 0.5) * math.log1p(t * t / freedom))


def _beyond(t: float, freedom: float) -> float:
    """The share of the distribution above t > 0: half of what the incomplete beta function leaves
    at x = t**2 / (freedom + t**2) with parameters 1/2 and freedom/2."""
    a, b, x = 0.5, freedom / 2, t * t / (freedom + t * t)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return 0.5 * (1 - front * _fraction(a, b, x) / a)
    return 0.5 * front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or _TINY)
    value = d
    for n in range(1, 1000):
        even = n * (b - n) * x / ((a + 2 * n - 1) * (a + 2 * n))
        odd = -(a + n) * (a + b + n) * x / ((a + 2 * n) * (a + 2 * n + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d or _TINY)
            c = 1 + term / c or _TINY
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value
