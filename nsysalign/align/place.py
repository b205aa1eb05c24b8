"""The likeliest place of every frame that has no event line: pairs, and the records connected with them.

The distances inside a frame are known, so a frame has one unknown: where its origin lies.  Its density is the product of the
densities of all its records (latency.py), cut at the bounds.  Each observation is a mixture: the calibrated latency, a tail
towards "later than expected" (a GPU can be late, never early), and a broad floor for what the model does not cover, so that
observations that agree outweigh one that does not.  It is evaluated on a grid; the answer is the median, the error bar its 95 %
half-width, widened by the uncertainty of the calibration.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.align.latency import CLASSES, LatencyModel
from nsysalign.align.surroundings import Surroundings
from nsysalign.clocks.events import hanging_together
from nsysalign.effort import together

_STEP_NS, _BELOW_NS, _ABOVE_NS = 40, 8_000, 24_000
_GRID = np.arange(-_BELOW_NS, _ABOVE_NS + 1, _STEP_NS)
_AT_ONCE = 1 << 15  # grid points: their arrays stay in the processor's cache
#: Weights of (calibrated latency, later than that, anything) and the lengths of the tails.
_CORE, _LATE, _FLOOR = 0.72, 0.25, 0.03
_LATE_NS, _FLOOR_NS = 1_800.0, 12_000.0
#: The distance of two records of a frame on the trace may differ from elapsed_time by this much: a constant (p50 55 ns, p95
#: 0.5 us in the recordings), and the rates of the two clocks.
_TIE_NS, _RATE = 120.0, 12e-6
#: Rates are parts per million: pairs form one frame only if they are at most this far apart.
_LONGEST_NS = 10_000_000
#: Densities calibrated on one trace are overconfident on the next: error bars are widened by this factor.  With event
#: tracing, stamps of consecutive records behind busy streams scatter by up to 0.8 us themselves.
_WIDEN, _WIDEN_NS, _WIDEN_TRACED_NS = 1.3, 300, 550


@dataclass(frozen=True)
class Frames:
    """Pairs that share records: `frame` and `shift_ns` (of its start after the frame's origin) of every pair, and the same
    of every `record` (a position) that belongs to one; a record may belong to two.  `apart_ns`: its distance from its frame's
    other records."""

    pair_frame: np.ndarray
    pair_shift_ns: np.ndarray
    record: np.ndarray
    frame: np.ndarray
    shift_ns: np.ndarray
    apart_ns: np.ndarray


def frames_of(start: np.ndarray, end: np.ndarray, elapsed: np.ndarray) -> Frames:
    """Frames of pairs given by the positions of their records, and elapsed_time in ns."""
    order, count = start < end, int(max(start.max(), end.max())) + 1 if len(start) else 0
    one, two = np.where(order, start, end), np.where(order, end, start)
    short = elapsed <= _LONGEST_NS
    root, at = hanging_together(count, one[short], two[short], np.where(order, elapsed, -elapsed)[short])
    piece = np.where(short, at[start] // _LONGEST_NS, -1 - np.arange(len(start)))
    keys = np.stack([root[start], piece])
    _, frame = np.unique(keys, axis=1, return_inverse=True)
    shift = np.where(short, at[start], 0)
    entry = np.stack([np.tile(frame.ravel(), 2), np.concatenate([start, end])])
    _, first = np.unique(entry, axis=1, return_index=True)
    at = np.concatenate([shift, shift + elapsed])[first]
    number, record = entry[:, first]
    middle = np.zeros(frame.max() + 1 if len(frame) else 0)
    np.maximum.at(middle, frame.ravel(), np.where(short, 0, elapsed))
    return Frames(frame.ravel(), shift, record, number, at, middle[number])


def place_pairs(
    s: Surroundings,
    model: LatencyModel,
    frames: Frames,
    start: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(start, error bar) of every pair; `start`: position of its start record, which `lower`, `upper` bound.  int64 trace ns.
    The error bar covers both the event's own stamp, from which elapsed_time counts, and CUPTI's later one."""
    count = int(frames.pair_frame.max()) + 1
    low, high = np.full(count, np.iinfo(np.int64).min), np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(low, frames.pair_frame, lower - frames.pair_shift_ns)
    np.minimum.at(high, frames.pair_frame, upper - frames.pair_shift_ns)
    low, high = np.minimum(low, high), np.maximum(low, high)  # the trace's clock was corrected inside
    origin, spread = _place(s.take(frames.record), model, frames, low, high)
    begin = np.clip(origin[frames.pair_frame] + frames.pair_shift_ns, lower, upper)
    farthest = np.maximum(np.maximum(begin - lower, upper - begin), 1)
    more = model.lag_ns(s.take(start)) + (_WIDEN_TRACED_NS if model.traced else _WIDEN_NS)
    bar = np.minimum(np.ceil(_WIDEN * spread[frames.pair_frame] + more), farthest)
    return begin, bar.astype(np.int64)


def _place(
    s: Surroundings, model: LatencyModel, frames: Frames, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(origin, 95 % half-width) of every frame.  `s`: surroundings of the frames' records."""
    seen = model.observe(s)
    seen = seen.take(np.argsort(frames.frame[seen.record], kind="stable"))
    frame = frames.frame[seen.record]
    wanted = seen.known_ns - frames.shift_ns[seen.record] + np.rint(seen.x @ model.vector).astype(np.int64)
    tie = np.hypot(_TIE_NS, _RATE * frames.apart_ns)
    scale = np.hypot(seen.scale_ns, tie[seen.record])
    # middle of the grid: the latest place that the records' past suggests (being late is common, early is not)
    origin, (place, spread, _) = low.copy(), model.expected(s)
    early = place - 2 * (spread - model.scale["idle"]) - frames.shift_ns
    np.maximum.at(origin, frames.frame, early.astype(np.int64))
    origin = np.clip(origin, low, high)
    # half a step of tolerance: a feasible region narrower than the grid must keep a point
    points = len(_GRID)
    first = np.clip(-((origin - low + _STEP_NS - _BELOW_NS) // _STEP_NS), 0, points)
    stop = np.clip((high + _STEP_NS - origin + _BELOW_NS) // _STEP_NS + 1, 0, points)
    many = np.maximum(stop - first, 0)
    at, half = origin.copy(), (high - low).astype(float)
    begin = np.searchsorted(frame, np.arange(len(origin) + 1))

    def locate(rows: np.ndarray) -> None:
        point = first[rows, None] + np.arange(int(many[rows].max()))
        outside = point >= stop[rows, None]
        grid = _GRID[np.minimum(point, points - 1)]
        log = np.zeros(point.shape)
        own = begin[rows + 1] - begin[rows]
        for k in range(int(own.max(initial=0))):  # the k-th observation of every frame
            has = np.flatnonzero(own > k)
            o = begin[rows[has]] + k
            late = (origin[rows[has]] - wanted[o])[:, None] + grid[has]
            sign = np.where(seen.class_[o] == CLASSES.index("ahead"), -1.0, 1.0)[:, None]
            log[has] += _mixture(late * sign, scale[o, None])
        log[outside] = -np.inf
        p = np.exp(log - log.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        middle, half[rows] = _median_and_half_width(p, _GRID[first[rows]], many[rows])
        at[rows] = np.clip(origin[rows] + middle, low[rows], high[rows])

    for _ in together(locate, _lots(many)):  # no two batches share a frame
        pass
    half[begin[1:] == begin[:-1]] = np.inf  # no record says anything: it may be anywhere
    return at, np.hypot(half, 1.96 * _common(model, seen.x, frame, scale, len(at)))


def _mixture(late: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Logarithm of the density of being this `late`; negative: early."""
    out = _CORE / (scale * 2.5066) * np.exp(-0.5 * (late / scale) ** 2)
    out += _FLOOR / (2 * _FLOOR_NS) * np.exp(-np.abs(late) / _FLOOR_NS)
    out += np.where(late > 0, _LATE / _LATE_NS * np.exp(-np.maximum(late, 0) / _LATE_NS), 0.0)
    return np.log(out)


def _common(
    model: LatencyModel, x: np.ndarray, frame: np.ndarray, scale: np.ndarray, count: int
) -> np.ndarray:
    """Standard deviation of every frame's place due to the calibration's uncertainty (the common shift above all)."""
    weight = 1 / scale**2
    total = np.maximum(np.bincount(frame, weight, count), 1e-30)
    mean = np.stack([np.bincount(frame, weight * column, count) / total for column in x.T], axis=1)
    return np.sqrt(((mean @ model.covariance) * mean).sum(axis=1) + model.unsure_ns**2)


def _lots(count: np.ndarray) -> list[np.ndarray]:
    """Batches of frames with similar numbers of feasible points, as many as fit into the processor's cache together."""
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


def _median_and_half_width(
    p: np.ndarray, origin: np.ndarray, count: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Median, and the half-width around it that holds 95 %, of `count` points one step apart, starting at `origin`."""
    rows = np.arange(len(p))
    below = np.zeros((len(p), p.shape[1] + 1))
    np.cumsum(p, axis=1, out=below[:, 1:])
    k = (below[:, 1:] >= 0.5).argmax(axis=1)
    fraction = (0.5 - below[rows, k]) / np.maximum(p[rows, k], 1e-12)
    off = (fraction - 0.5) * _STEP_NS  # of the median from point k
    low, high = np.zeros(len(p), np.int64), count - 1  # by how many points on both sides
    while (low < high).any():
        m = (low + high) // 2
        inside = below[rows, np.minimum(k + m + 1, count)] - below[rows, np.maximum(k - m, 0)]
        low, high = np.where(inside >= 0.95, low, np.minimum(m + 1, high)), np.where(inside >= 0.95, m, high)
    return np.rint(origin + k * _STEP_NS + off).astype(np.int64), (low + 0.5) * _STEP_NS + np.abs(off)
