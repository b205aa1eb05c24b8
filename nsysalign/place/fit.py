"""Where records lie on the trace's clock: one robust linear model.

A *frame* is a set of records whose distances are known: a compared pair, pairs that share records, or a stretch of the events'
own clock.  Where it lies on the trace's clock is one unknown, and everything that its records met is evidence for it:

    trace clock   KKKKK|--busy--R1--ahead--|KKKKK          [call]--idle--R2
    frame                       R1--------- elapsed_time --------------R2

    what a record met  +  latency (linear in the parameters of latency.py)  =  place of the frame  +  place in the frame  +  noise

Latencies and places are fitted together; their covariance gives the error bars.  GPUs are late, never early: on that side the
noise has a heavy tail.  The place of a single frame is eliminated from the equations.  Frames of an event clock share a line:
that clock and the trace's read the same GPU timer, and a piecewise linear function relates them, because the driver's
conversion is corrected from time to time, by parts per million.

    offset (trace - event clock)
      ^        x     x                  x: the next operation's start, minus the time it takes to begin
      |   x       x        x   x
      |  ------------------------- the line
      | o   o o  o   o  o oo  o         o: the previous operation's end, plus how long a record takes after it
      +---------------------------> event clock
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign.place.event_clock import EventClock, hanging_together
from nsysalign.place.latency import (
    CLASSES,
    LATE,
    PARAMETERS,
    LatencyModel,
    assumed,
    spacings,
    weights,
)
from nsysalign.place.surroundings import Surroundings

#: The scatter is taken for this many times larger at first, so that a bad first guess does not decide the result.
_NARROWING = (20.0, 8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0)
#: How far the rates of the two clocks differ from 1, and how much they change from knot to knot of the line.
_RATE, _BEND = 12e-6, 0.1e-6
_KNOT_NS, _MOST_KNOTS = 2_000_000_000, 60
#: Rates are parts per million: pairs form one frame only if they are at most this far apart.
_LONGEST_NS = 10_000_000
_MOST_FRAMES = (
    300  # more, and each is placed by its own edge alone (a log that names one reference for hours)
)
_MOST = 20_000  # records on a line: more add nothing
_AHEAD, _IDLE = CLASSES.index("ahead"), CLASSES.index("idle")
_AT_ONCE = 1 << 14  # rows of a design matrix
#: What is calibrated on one trace is overconfident on the next: error bars of single frames are widened by a factor and by this
#: much.  With event tracing, stamps of consecutive records behind busy streams scatter by up to 0.8 us themselves.
_WIDEN, _WIDEN_NS, _WIDEN_TRACED_NS = 1.3, 300, 550
#: Deep queues hold all records of a frame up alike, by up to this much: 4.5 us between two kernels instead of 2.4.
_DEEP_NS = 2_500


@dataclass(frozen=True)
class Frames:
    """Records whose distances are known: `record` (a position), the `frame` that it is in (a record may be in two), its place
    `at_ns` in there, and by how much that may differ on the trace (`loose_ns`)."""

    record: np.ndarray
    frame: np.ndarray
    at_ns: np.ndarray
    loose_ns: np.ndarray


@dataclass(frozen=True)
class Line:
    """The offset (trace - event clock) of one event clock: values at knots, linear in between, and a shift per frame."""

    base_ns: int  # offset that `mean` counts from
    knots: np.ndarray  # event clock, ns
    frames: np.ndarray  # numbers of the frames, sorted
    mean: np.ndarray  # ns: at the knots, then of the frames
    covariance: np.ndarray  # of `mean`: the error of every place follows from it
    counts: Mapping[str, int]

    def place(self, at: np.ndarray, frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(trace time, its standard deviation) of events at `at` on the event clock."""
        shift, spread = np.empty(len(at)), np.empty(len(at))
        for first in range(0, len(at), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            x = _design(at[some], frame[some], self.knots, self.frames)
            shift[some] = x @ self.mean
            spread[some] = np.sqrt(np.maximum(((x @ self.covariance) * x).sum(axis=1), 0.0))
        return at + self.base_ns + np.rint(shift).astype(np.int64), spread

    @property
    def rate_ppm(self) -> float:
        """How much faster the trace's clock runs than the events' own, overall."""
        span = int(self.knots[-1] - self.knots[0])
        values = self.mean[: len(self.knots)]
        return float(values[-1] - values[0]) / span * 1e6 if span else 0.0


@dataclass(frozen=True)
class Single:
    """How long records take, and where single frames lie: the place of every frame, its standard deviation, and how far it may be
    off if all its records were late alike."""

    model: LatencyModel
    place_ns: np.ndarray
    spread_ns: np.ndarray
    open_ns: np.ndarray


def fit_frames(
    s: Surroundings, f: Frames, tracing: str, known: LatencyModel | None = None
) -> Single:
    """The places of single frames.  `known`: given if it is known how long records take."""
    around, count = s.take(f.record), int(f.frame.max(initial=-1)) + 1
    model = start = known or assumed(
        tracing, spacings(around, f.frame, f.at_ns), around if count else s
    )
    prior, mean = np.linalg.inv(start.covariance), start.vector
    base = np.full(count, np.iinfo(np.int64).min)
    middle = np.zeros(count)
    for widen in _NARROWING:
        seen = model.observe(around)
        group, offset = f.frame[seen.record], seen.known_ns - f.at_ns[seen.record]
        if (
            widen == _NARROWING[0]
        ):  # none is early: the latest place that the records' past suggests
            past = seen.class_ != CLASSES.index("ahead")
            likely = offset + np.rint(seen.x @ mean).astype(np.int64)
            np.maximum.at(base, group[past], likely[past])
        y = (offset - base[group]).astype(float)
        sigma = np.hypot(seen.scale_ns, f.loose_ns[seen.record]) * widen
        weight = (
            weights((middle[group] - y - seen.x @ model.vector) / sigma, LATE[seen.class_])
            / sigma**2
        )
        if known is None:
            sure = weight * seen.certain
            x, rest = (v - _means(group, sure, v, count)[group] for v in (seen.x, y))
            normal = (x * sure[:, None]).T @ x + prior
            vector = np.linalg.solve(normal, prior @ mean - (x * sure[:, None]).T @ rest)
            model = model.fitted(vector, np.linalg.inv(normal), seen.counts)
        expected = y + seen.x @ model.vector
        middle = _means(group, weight, expected, count)
    if known is None:
        model = model.plausible(start)
    x, doubt, apart = (
        _means(group, weight, v, count)
        for v in (seen.x, seen.doubt_ns, (middle[group] - expected) ** 2)
    )
    open_ns = _left_open(group, expected, seen.class_ == _AHEAD, seen.certain, count, middle)
    total = np.bincount(group, weight, count)
    common = ((x @ model.covariance) * x).sum(axis=1) + model.unsure_ns**2
    with np.errstate(divide="ignore"):  # a frame of which nothing is known may lie anywhere
        spread = np.sqrt(1 / total + apart + doubt**2 + common)
    return Single(model, base + np.rint(middle).astype(np.int64), spread, open_ns)


def _left_open(
    group: np.ndarray,
    expected: np.ndarray,
    ahead: np.ndarray,
    certain: np.ndarray,
    count: int,
    middle: np.ndarray,
) -> np.ndarray:
    """How far each frame may lie from its `middle` if all its records were late alike: no earlier than the latest place that
    their past suggests, no later than the earliest that suits what came next.  0 where other causes held that up."""
    low, high = np.full(count, -np.inf), np.full(count, np.inf)
    past = certain & ~ahead
    np.maximum.at(low, group[past], expected[past])
    np.minimum.at(high, group[ahead], expected[ahead])
    open_ = (low < high) & (high <= low + _DEEP_NS)
    with np.errstate(invalid="ignore"):
        return np.where(open_, np.maximum(middle - low, high - middle), 0.0)


def fit_line(
    s: Surroundings, f: Frames, tracing: str, frames: np.ndarray, origin_error_ns: np.ndarray
) -> Line:
    """The line of one event clock.  `frames`: all its frames, sorted, even those that `f` does not name; `origin_error_ns`: per
    frame, how far it may be off against the one before."""
    around = s.take(f.record)
    model = assumed(tracing, spacings(around, f.frame, f.at_ns), around)
    frames = frames if len(frames) <= _MOST_FRAMES else frames[:0]
    knots = _knots(f.at_ns)
    inner = len(knots) + len(frames)
    prior = np.zeros((inner + len(PARAMETERS),) * 2)
    prior[:inner, :inner] = _prior(knots, frames, origin_error_ns)
    prior[inner:, inner:] = np.linalg.inv(model.covariance)
    solution = mean = np.concatenate([np.zeros(inner), model.vector])
    base = None
    for widen in _NARROWING:
        seen = model.observe(around)
        offset = seen.known_ns - f.at_ns[seen.record]
        if base is None:
            base = int(offset[0]) + int(np.median(offset - offset[0] + seen.x @ model.vector))
        y = (offset - base).astype(float)
        line = _design(f.at_ns[seen.record], f.frame[seen.record], knots, frames)
        x = np.concatenate([line, -seen.x], axis=1)
        sigma = seen.scale_ns * widen
        weight = seen.certain * weights((x @ solution - y) / sigma, LATE[seen.class_]) / sigma**2
        normal = (x * weight[:, None]).T @ x + prior
        solution = np.linalg.solve(normal, (x * weight[:, None]).T @ y + prior @ mean)
        covariance = np.linalg.inv(normal)
        model = model.fitted(solution[inner:], covariance[inner:, inner:], seen.counts)
    idle = seen.class_ == _IDLE
    covariance = covariance + _together(
        knots, f.at_ns[seen.record], x, weight * idle, y - x @ solution, covariance
    )
    return Line(base or 0, knots, frames, solution[:inner], covariance[:inner, :inner], seen.counts)


def _together(
    knots: np.ndarray,
    at: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    off: np.ndarray,
    covariance: np.ndarray,
) -> np.ndarray:
    """The covariance that comes on top because calls of a stretch are slow together: what these observations scatter by may be
    common to all of them between two knots."""
    out = np.zeros_like(covariance)
    stretch = np.searchsorted(knots, at, side="right")
    for number in np.unique(stretch[weight > 0]):
        w = weight * (stretch == number)
        moved = covariance @ (w @ x)  # by 1 ns
        out += np.outer(moved, moved) * ((w * off**2).sum() / w.sum())
    return out


def _means(group: np.ndarray, weight: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Weighted means of the values (or rows) of each group, 0 for a group without any."""
    total = np.maximum(np.bincount(group, weight, count), 1e-30)
    if values.ndim == 1:
        return np.bincount(group, weight * values, count) / total
    return np.stack(
        [np.bincount(group, weight * column, count) / total for column in values.T], axis=1
    )


def _knots(t: np.ndarray) -> np.ndarray:
    first, last = int(t.min()), int(t.max())
    count = int(np.clip((last - first) // _KNOT_NS, 1, _MOST_KNOTS)) + 1
    return np.linspace(first, max(last, first + 1), count).astype(np.int64)


def _design(at: np.ndarray, frame: np.ndarray, knots: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Rows: the weight of each knot (linear in between; the first and last pieces extend outwards) and frame in the offset at
    `at`."""
    x = np.zeros((len(at), len(knots) + len(frames)))
    rows = np.arange(len(at))
    k = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    part = (at - knots[k]).astype(float) / (knots[k + 1] - knots[k])
    x[rows, k], x[rows, k + 1] = 1 - part, part
    if len(frames):
        x[rows, len(knots) + np.minimum(np.searchsorted(frames, frame), len(frames) - 1)] = 1.0
    return x


def _prior(knots: np.ndarray, frames: np.ndarray, origin_error: np.ndarray) -> np.ndarray:
    """Prior precision: rates of a few ppm that change little, frames within the rounding of the edge before them."""
    n, m = len(knots), len(frames)
    out = np.zeros((n + m, n + m))
    step = float(knots[1] - knots[0])
    rate = np.zeros((n - 1, n + m))
    rate[np.arange(n - 1), np.arange(n - 1)], rate[np.arange(n - 1), np.arange(1, n)] = (
        -1 / step,
        1 / step,
    )
    out += rate.T @ rate / (_RATE * np.sqrt(n - 1)) ** 2
    bend = np.diff(rate, axis=0)
    out += bend.T @ bend / (_BEND * np.sqrt(step / _KNOT_NS)) ** 2
    for k in range(m):  # against the frame before; the first one is fixed
        row = np.zeros(n + m)
        row[n + k] = 1.0
        error = 1.0
        if k and np.isfinite(origin_error[frames[k]]):
            row[n + k - 1], error = -1.0, max(origin_error[frames[k]] / np.sqrt(3), 1.0)
        out += np.outer(row, row) / error**2
    return out


@dataclass(frozen=True)
class PairPlaces:
    """How long records take; the likeliest start of every pair and its error bar, by what their records met."""

    model: LatencyModel
    start_ns: np.ndarray
    error_ns: np.ndarray


def place_pairs(
    s: Surroundings, pairs: pd.DataFrame, tracing: str, known: LatencyModel | None
) -> PairPlaces:
    """Compared pairs: columns start and end (positions of their records), elapsed_ns.  The error bar covers both the event's own
    stamp, from which elapsed_time counts, and CUPTI's later one."""
    start, end, elapsed = (pairs[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    frame, shift, f = frames_of(start, end, elapsed)
    found = fit_frames(s, f, tracing, known)
    more = found.model.lag_ns(s.take(start)) + (
        _WIDEN_TRACED_NS if found.model.traced else _WIDEN_NS
    )
    error = np.ceil(np.maximum(1.96 * _WIDEN * found.spread_ns, found.open_ns)[frame] + more)
    return PairPlaces(found.model, found.place_ns[frame] + shift, error)


def frames_of(
    start: np.ndarray, end: np.ndarray, elapsed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, Frames]:
    """Frames of pairs given by the positions of their records, and elapsed_time in ns: (frame of every pair, place of its start
    in there, the frames)."""
    order, count = start < end, int(max(start.max(), end.max())) + 1 if len(start) else 0
    one, two = np.where(order, start, end), np.where(order, end, start)
    short = elapsed <= _LONGEST_NS
    root, at = hanging_together(
        count, one[short], two[short], np.where(order, elapsed, -elapsed)[short]
    )
    piece = np.where(short, at[start] // _LONGEST_NS, -1 - np.arange(len(start)))
    _, frame = np.unique(np.stack([root[start], piece]), axis=1, return_inverse=True)
    frame, shift = frame.ravel(), np.where(short, at[start], 0)
    entry = np.stack([np.tile(frame, 2), np.concatenate([start, end])])
    (number, record), first = np.unique(entry, axis=1, return_index=True)
    apart = np.zeros(int(frame.max(initial=-1)) + 1)
    np.maximum.at(apart, frame, np.where(short, 0, elapsed))
    places = np.concatenate([shift, shift + elapsed])[first]
    return frame, shift, Frames(record, number, places, _RATE * apart[number])


@dataclass(frozen=True)
class ClockPlaces:
    """Per record: its trace time by the event clock and its 95 % half-width; `line`: the event clock it is on, -1 for none (its
    place is then 0).  `lines`: these clocks."""

    at_ns: np.ndarray
    error_ns: np.ndarray
    line: np.ndarray
    lines: Mapping[int, Line]


def place_records(
    clock: EventClock,
    s: Surroundings,
    tracing: str,
    known: np.ndarray,
    lines: Mapping[int, Line] | None = None,
) -> ClockPlaces:
    """Places of all records that are on an event clock.  Arrays are per record; those of the clock cover only the first ones,
    the records of the log.  `known`: whose surroundings are (the others are placed, but are no evidence).  `lines`: given if
    they are already known."""
    rows = len(known)
    at, frame = np.zeros(rows, np.int64), np.full(rows, -1)
    at[: len(clock.at_ns)], frame[: len(clock.frame)] = clock.at_ns, clock.frame
    line = np.where(frame >= 0, np.append(clock.line, -1)[frame], -1)
    found: dict[int, Line] = {}
    place, error = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for number in np.unique(line[line >= 0]).tolist():
        mine = line == number
        own = lines.get(number) if lines is not None else None
        if own is None and (mine & known).any():
            record = np.flatnonzero(mine & known)
            record = record[:: -(-len(record) // _MOST)]
            f = Frames(record, frame[record], at[record], np.zeros(len(record)))
            # all its frames, even those without a record here: other records may be placed by the same line
            own = fit_line(
                s, f, tracing, np.flatnonzero(clock.line == number), clock.origin_error_ns
            )
        if own is None:
            line[mine] = -1
            continue
        found[number] = own
        place[mine], spread = own.place(at[mine], frame[mine])
        if not len(own.frames):
            spread = np.hypot(spread, np.minimum(clock.origin_error_ns[frame[mine]], 1e9))
        error[mine] = np.ceil(1.96 * spread).astype(np.int64) + clock.tick_ns
    return ClockPlaces(place, error, line, found)
