"""The likeliest place of every interval inside what is feasible, with an error bar.

For each compared pair the density of its start is the product of what both records' neighbours say (latency.py), cut
at the bounds.  Each observation is a mixture: the calibrated latency, a tail towards "later than expected" (a GPU can
be late, never early), and a broad floor for what the model does not know, so that two observations that agree beat
one that does not.  Evaluated on a grid; the answer is the median, the error bar its 95 % half-width widened by the
calibration's own uncertainty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.align.latency import Evidence, LatencyModel
from nsysalign.effort import together

_STEP_NS = 40
_BELOW_NS = 8_000
_ABOVE_NS = 24_000
_GRID = np.arange(-_BELOW_NS, _ABOVE_NS + 1, _STEP_NS)
_POINTS = len(_GRID)
_AT_ONCE = 1 << 15  # grid points: their arrays stay in the processor's cache
#: Weights of (calibrated latency, later than that, anything) and the tail lengths.
_CORE, _LATE, _FLOOR = 0.72, 0.25, 0.03
_LATE_NS = 1_800.0
_FLOOR_NS = 12_000.0
#: The clocks' disagreement across a pair (p50 55 ns, p95 0.5 us in the recordings).
_PAIR_NS = 120.0


@dataclass(frozen=True)
class Placed:
    start_ns: np.ndarray
    error_ns: np.ndarray


def place_pairs(
    e: Evidence,
    model: LatencyModel,
    start: np.ndarray,
    end: np.ndarray,
    elapsed: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
) -> Placed:
    """Place pairs given by positions in the evidence; `lower`, `upper` bound the start.  int64 trace ns."""
    out, bar = np.empty(len(start), np.int64), np.empty(len(start), np.int64)
    a, b = e.take(start), e.take(end)
    origin = _origin(model, a, b, elapsed, lower, upper)
    middle = np.clip(origin, lower, upper)
    # half a step of grace: a feasible region narrower than the grid must keep a point
    first = np.clip(-((origin - lower + _STEP_NS - _BELOW_NS) // _STEP_NS), 0, _POINTS)
    stop = np.clip((upper + _STEP_NS - origin + _BELOW_NS) // _STEP_NS + 1, 0, _POINTS)
    count = np.maximum(stop - first, 0)
    none = count == 0
    out[none], spread = middle[none], (upper - lower).astype(float)

    def place(rows: np.ndarray) -> None:
        at, half = _on_grid(
            model, a.take(rows), b.take(rows), origin[rows], elapsed[rows], first[rows], count[rows]
        )
        out[rows] = np.clip(origin[rows] + at, lower[rows], upper[rows])
        spread[rows] = half

    for _ in together(place, _lots(count)):  # no two lots share a pair
        pass
    lag = model.lag_ns(a) + model.lag_ns(b)
    bar = np.minimum(
        np.sqrt(spread**2 + (1.96 * _systematic(model, a, b)) ** 2 + (0.5 * lag) ** 2),
        _reach(out, lower, upper),
    ).astype(np.int64)
    return Placed(out, np.maximum(bar, 1))


def _lots(count: np.ndarray) -> list[np.ndarray]:
    """Pairs with about as many feasible points each, as many as fit into the processor's cache together."""
    order = np.argsort(count, kind="stable")
    order = order[count[order] > 0]
    lots, at = [], 0
    while at < len(order):
        size = max(
            _AT_ONCE // int(count[order[min(at + _AT_ONCE // int(count[order[at]]), len(order)) - 1]]), 1
        )
        lots.append(order[at : at + size])
        at += size
    return lots


def _on_grid(
    model: LatencyModel,
    a: Evidence,
    b: Evidence,
    origin: np.ndarray,
    elapsed: np.ndarray,
    first: np.ndarray,
    count: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(median of the start after its origin, half-width that holds 95 %) of pairs over their feasible grid points."""
    point = first[:, None] + np.arange(int(count.max()))
    outside = point >= (first + count)[:, None]
    point[outside] = _POINTS - 1
    # what the end says about the start is as good as the tie between the two
    tie = np.hypot(_PAIR_NS, model.lag_ns(a) + model.lag_ns(b))
    p, log = _density(model, a, origin, point, np.zeros(len(tie)))
    other, more = _density(model, b, origin + elapsed, point, tie)
    p *= other
    log += more
    log[outside] = -np.inf
    p *= np.exp(log - log.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return _median_and_half_width(p, _GRID[first], count)


def _reach(at: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The truth cannot be farther than the farther bound."""
    return np.maximum(np.maximum(at - lower, upper - at), 1).astype(float)


def _origin(
    model: LatencyModel, a: Evidence, b: Evidence, elapsed: np.ndarray, lower: np.ndarray, upper: np.ndarray
) -> np.ndarray:
    """Middle of the grid: the later of both records' earliest likely places (being late is common, early is not)."""
    low_a = _expected(model, a)
    low_b = _expected(model, b) - elapsed
    return np.clip(np.maximum(low_a, low_b), lower, np.maximum(upper, lower)).astype(np.int64)


def _expected(model: LatencyModel, e: Evidence) -> np.ndarray:
    idle = model.idle_at(e) - 2 * (model.idle_scale(e) - model.scale["idle"])
    return np.rint(np.where(model.is_busy(e), model.busy_at(e), idle)).astype(np.int64)


def _density(
    model: LatencyModel, e: Evidence, origin: np.ndarray, point: np.ndarray, blur: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """p(observations of a record | it lies at origin + _GRID[point]), up to a constant per record: (a factor, the
    logarithm of another), both of the shape of `point`."""
    busy = model.is_busy(e)
    at = np.where(busy, model.busy_at(e), model.idle_at(e))
    scale = np.hypot(np.where(busy, model.busy_scale(e), model.idle_scale(e)), blur)
    density, log = np.ones(point.shape), np.zeros(point.shape)
    known = np.flatnonzero(~e.waits)
    _multiply(density, known, _mixture((origin - at)[known], point, known, scale[known]))
    # a stream that waits for another comes later by an unknown time: only "not before" is left
    waits = np.flatnonzero(e.waits)
    log[waits] += np.minimum(((origin - at)[waits, None] + _GRID[point[waits]] + 500) / 1_000.0, 0.0)
    ahead = model.ahead_at(e) - origin  # > 0 at a point: farther ahead of the next start than usual
    queued = model.is_queued_ahead(e)
    tight = np.flatnonzero(queued)
    scale = np.hypot(model.scale["ahead"], blur)[tight]
    _multiply(density, tight, _mixture(-ahead[tight], point, tight, scale, backwards=True))
    return density, log


def _multiply(density: np.ndarray, rows: np.ndarray, factor: np.ndarray) -> None:
    """Factors as small as a float can be must not vanish when they meet: only their shape counts."""
    if len(rows):
        factor /= factor.max(axis=1, keepdims=True)
        if len(rows) == len(density):
            density *= factor
        else:
            density[rows] *= factor


def _mixture(
    place: np.ndarray, point: np.ndarray, rows: np.ndarray, scale: np.ndarray, *, backwards: bool = False
) -> np.ndarray:
    """Density of a latency u = place + grid away from the expected one; u > 0 is later (`backwards`: u < 0 is)."""
    point = point if len(rows) == len(point) else point[rows]
    u = place[:, None] + _GRID[point]
    out = u / scale[:, None]
    out *= out
    out *= -0.5
    np.exp(out, out=out)
    out *= (_CORE / (scale * 2.5066))[:, None]
    # exp(-(place + grid) / tail) = exp(-place / tail) exp(-grid / tail): the second for all pairs alike
    late = u < 0 if backwards else u > 0
    sign = -1.0 if backwards else 1.0
    tail = _LATE / _LATE_NS * _tail(place, point, _LATE_NS, sign)
    out += np.where(late, tail, 0.0)
    out += (
        _FLOOR
        / (2 * _FLOOR_NS)
        * np.where(u > 0, _tail(place, point, _FLOOR_NS, 1.0), _tail(place, point, _FLOOR_NS, -1.0))
    )
    return np.maximum(out, 1e-300, out=out)


def _tail(place: np.ndarray, point: np.ndarray, length: float, sign: float) -> np.ndarray:
    """exp(-sign (place + grid) / length), where that is at most 1."""
    # farther back no point of the grid is on this side of the expected place: nobody looks at the value
    reach = sign * place
    reach = np.maximum(reach, -(_ABOVE_NS if sign > 0 else _BELOW_NS) - 1.0)
    return np.exp(-reach / length)[:, None] * np.exp(-sign * _GRID / length)[point]


def _median_and_half_width(
    p: np.ndarray, origin: np.ndarray, count: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Median, and the half-width around it that holds 95 %, of `count` points a step apart from `origin` on."""
    rows = np.arange(len(p))
    below = np.zeros((len(p), p.shape[1] + 1))
    np.cumsum(p, axis=1, out=below[:, 1:])
    k = (below[:, 1:] >= 0.5).argmax(axis=1)
    fraction = (0.5 - below[rows, k]) / np.maximum(p[rows, k], 1e-12)
    off = (fraction - 0.5) * _STEP_NS  # of the median from point k
    # grow symmetrically: the points by their distance alternate between both sides until one side ends
    left, right = k, count - 1 - k
    right_first = off >= 0

    def taken(m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many points left and right of k are among the m next ones."""
        to_right = np.where(right_first, (m + 1) // 2, m // 2)
        to_left = m - to_right
        to_right = np.where(to_left > left, m - left, np.minimum(to_right, right))
        return m - to_right, to_right

    low, high = np.zeros(len(p), np.int64), count - 1
    while (low < high).any():
        m = (low + high) // 2
        to_left, to_right = taken(m)
        enough = below[rows, k + to_right + 1] - below[rows, k - to_left] >= 0.95
        low, high = np.where(enough, low, np.minimum(m + 1, high)), np.where(enough, m, high)
    to_left, to_right = taken(low)
    before, _ = taken(np.maximum(low - 1, 0))
    distance = np.where(to_left > before, to_left * _STEP_NS + off, to_right * _STEP_NS - off)
    distance = np.where(low == 0, np.abs(off), distance)
    return np.rint(origin + k * _STEP_NS + off).astype(np.int64), distance + _STEP_NS / 2


def _systematic(model: LatencyModel, a: Evidence, b: Evidence) -> np.ndarray:
    """Standard deviation of the place from the calibration's uncertainty (the common shift above all)."""
    variance = np.diag(model.covariance)
    idle, busy = variance[0], variance[3]
    one = np.where(model.is_busy(a), busy, idle)
    two = np.where(model.is_busy(b), busy, idle)
    return np.hypot(np.sqrt(np.minimum(one, two)), model.unsure_ns)
