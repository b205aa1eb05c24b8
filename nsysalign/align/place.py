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

_STEP_NS = 40
_BELOW_NS = 8_000
_ABOVE_NS = 24_000
_CHUNK = 4_000  # pairs at once: bounds the memory
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
    for first in range(0, len(start), _CHUNK):
        s = slice(first, first + _CHUNK)
        a, b = e.take(start[s]), e.take(end[s])
        origin = _origin(model, a, b, elapsed[s], lower[s], upper[s])
        grid = np.arange(-_BELOW_NS, _ABOVE_NS + 1, _STEP_NS)
        # what the end says about the start is as good as the tie between the two
        lag = model.lag_ns(a) + model.lag_ns(b)
        tie = np.hypot(_PAIR_NS, lag)
        density = _log_density(model, a, origin, grid, np.zeros(len(lag)))
        density += _log_density(model, b, origin + elapsed[s], grid, tie)
        x = origin[:, None] + grid[None, :]
        # half a step of grace: a feasible region narrower than the grid must keep a point
        inside = (x >= lower[s][:, None] - _STEP_NS) & (x <= upper[s][:, None] + _STEP_NS)
        density = np.where(inside, density, -np.inf)
        none = ~inside.any(axis=1)
        density[none] = 0.0
        p = np.exp(density - density.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        at, half = _median_and_half_width(p, grid)
        middle = np.clip(origin, lower[s], upper[s])
        chosen = np.where(none, middle, np.clip(origin + at, lower[s], upper[s]))
        out[s] = chosen
        spread = np.where(none, upper[s] - lower[s], half)
        bar[s] = np.minimum(
            np.sqrt(spread**2 + (1.96 * _systematic(model, a, b)) ** 2 + (0.5 * lag) ** 2),
            _reach(chosen, lower[s], upper[s]),
        )
    return Placed(out, np.maximum(bar, 1))


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


def _log_density(
    model: LatencyModel, e: Evidence, origin: np.ndarray, grid: np.ndarray, blur: np.ndarray
) -> np.ndarray:
    """log p(observations of a record | it lies at origin + grid), up to a constant; shape (records, grid)."""
    busy = model.is_busy(e)
    at = np.where(busy, model.busy_at(e), model.idle_at(e))
    # at the change-over the later of two uncertain places counts: widen there
    near = np.exp(-(((model.busy_at(e) - model.idle_at(e)) / 800.0) ** 2)) * 300.0 * (e.previous_end > 0)
    scale = np.sqrt(np.where(busy, model.busy_scale(e), model.idle_scale(e)) ** 2 + near**2 + blur**2)
    u = (origin - at)[:, None] + grid[None, :]
    behind = _mixture(u, scale[:, None])
    # a stream that waits for another comes later by an unknown time: only "not before" is left
    waiting = np.where(u > -500, 0.0, (u + 500) / 1_000.0)
    density = np.where(e.waits[:, None], waiting, behind)
    queued = model.is_queued_ahead(e)
    ahead = (model.ahead_at(e) - origin)[:, None] - grid[
        None, :
    ]  # > 0: farther ahead of the next start than usual
    tight = _mixture(ahead, np.hypot(model.scale["ahead"], blur)[:, None])
    # not queued: the next operation came when its launch arrived; only "not too close" is known
    loose = np.where(ahead > -300, 0.0, (ahead + 300) / 100.0)
    has_next = e.next_is_kernel & (e.next_start < (np.int64(1) << 61))
    return density + np.where(queued[:, None], tight, np.where(has_next[:, None], loose, 0.0))


def _mixture(u: np.ndarray, scale: np.ndarray | float) -> np.ndarray:
    """log density of a latency u ns away from the expected one; u > 0 is later."""
    core = _CORE * np.exp(-0.5 * (u / scale) ** 2) / (scale * 2.5066)
    late = _LATE * np.where(u > 0, np.exp(-np.maximum(u, 0) / _LATE_NS), 0.0) / _LATE_NS
    floor = _FLOOR * np.exp(-np.abs(u) / _FLOOR_NS) / (2 * _FLOOR_NS)
    return np.log(np.maximum(core + late + floor, 1e-300))


def _median_and_half_width(p: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Median and the half-width around it that holds 95 %."""
    cumulative = np.cumsum(p, axis=1)
    k = (cumulative >= 0.5).argmax(axis=1)
    rows = np.arange(len(p))
    before = np.where(k > 0, cumulative[rows, np.maximum(k - 1, 0)], 0.0)
    fraction = (0.5 - before) / np.maximum(p[rows, k], 1e-12)
    median = grid[k] + (fraction - 0.5) * _STEP_NS
    # grow symmetrically: mass within h of the median, for all h at once
    distance = np.abs(grid[None, :] - median[:, None])
    order = np.argsort(distance, axis=1)
    mass = np.cumsum(np.take_along_axis(p, order, axis=1), axis=1)
    reach = (mass >= 0.95).argmax(axis=1)
    half = np.take_along_axis(distance, np.take_along_axis(order, reach[:, None], axis=1), axis=1)[:, 0]
    return np.rint(median).astype(np.int64), half + _STEP_NS / 2


def _systematic(model: LatencyModel, a: Evidence, b: Evidence) -> np.ndarray:
    """Standard deviation of the place from the calibration's uncertainty (the common shift above all)."""
    variance = np.diag(model.covariance)
    idle, busy = variance[0], variance[3]
    one = np.where(model.is_busy(a), busy, idle)
    two = np.where(model.is_busy(b), busy, idle)
    return np.sqrt(np.minimum(one, two))
