"""Where the events' own clock lies on the trace's clock.

Event clock and trace clock read the same GPU timer; a piecewise linear function relates them, because the driver's conversion
is corrected from time to time, by parts per million.  The unknown is therefore one offset with a slow drift, and every record
is evidence for it: a record queued behind a kernel is stamped 0.89 us after that kernel's end, on an H100 and on an H200 alike.

    offset (trace - event clock)
      ^        x     x                  x: the next operation's start, minus the time it takes to begin
      |   x       x        x   x
      |  ------------------------- the line
      | o   o o  o   o  o oo  o         o: the previous operation's end, plus how long a record takes after it
      +---------------------------> event clock

How long records take was measured by switching event tracing on and off in turn, which does not affect the event clock,
and by reading the driver's memory that holds the events' stamps (H200s and an H100; docs/accuracy.md).  With tracing
CUPTI stamps every event a second time, 1.27 us after the event's own stamp: records are twice as far apart, and the place
of a record is that second stamp, the one that nsys shows.  Everything therefore follows from the spacing of records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from nsysalign.align.latency import CLASSES, LATE, LatencyModel, assumed, spacing, weights
from nsysalign.align.surroundings import Surroundings
from nsysalign.clocks.events import EventClock

#: Spacing of consecutive records behind work, without event tracing and with it (ns).
SPACING_NS, TRACED_SPACING_NS = 1_290, 2_545
#: By class of observation (latency.py; CUPTI's own stamps equal the event's to the tick, or are late): how far single
#: observations scatter (ns), and how far a whole class may be off on a GPU that was never calibrated.
CLASSES_OF_LINE = (*CLASSES, "stamp")
_SCATTER = np.array([80.0, 160.0, 350.0, 20.0])
_UNSEEN = np.array([60.0, 120.0, 600.0, 5.0])
_QUICK_NS, _TRACED_QUICK_NS = 6_000, 4_000  # calls on an idle stream that took longer were interrupted
#: On which side late observations lie; calls on idle streams were chosen to be quick: they have tails on both sides.
_LATE = np.array([*LATE[:2], 0, -1])
#: Distance between the knots at which the line may bend; how far rates differ from 1, and how much they change from knot to
#: knot.
_KNOT_NS, _MOST_KNOTS = 2_000_000_000, 60
_RATE, _BEND = 12e-6, 0.1e-6
_MOST_FRAMES = (
    300  # beyond this (a log that names one reference for hours) each frame is placed by its own edge alone
)
_MOST = 20_000  # observations: more add nothing
_AT_ONCE = 1 << 14  # rows of a design matrix


@dataclass(frozen=True)
class Offsets:
    """What single records say about the offset: arrays of equal length.  `class_`: position in CLASSES_OF_LINE."""

    record: np.ndarray
    class_: np.ndarray
    offset_ns: np.ndarray  # the record's expected trace time, minus its time on the event clock


def observe(
    s: Surroundings, model: LatencyModel, stamp: np.ndarray, at: np.ndarray, known: np.ndarray
) -> Offsets:
    """Observations of the records whose place `at` on the event clock is `known`.  `stamp`: CUPTI's timestamp, 0 if there is
    none."""
    seen = model.observe(s)
    first = np.where(seen.class_ == CLASSES.index("ahead"), s.ahead[seen.record], s.behind[seen.record]) == 0
    alone = ~s.previous_is_node[seen.record] | (seen.class_ != CLASSES.index("busy"))
    quick = (s.call_end - s.call_start)[seen.record] < (_TRACED_QUICK_NS if model.traced else _QUICK_NS)
    seen = seen.take(
        seen.certain & first & known[seen.record] & (quick | (seen.class_ != CLASSES.index("idle"))) & alone
    )
    place = seen.known_ns + np.rint(seen.x @ model.vector).astype(np.int64)
    stamped = np.flatnonzero(known & (stamp > 0))
    return Offsets(
        np.concatenate([seen.record, stamped]),
        np.concatenate([seen.class_, np.full(len(stamped), len(CLASSES))]),
        np.concatenate([place - at[seen.record], stamp[stamped] - at[stamped]]),
    )


@dataclass(frozen=True)
class ClockPlaces:
    """Per record: its trace time by the event clock and its 95 % half-width; `line`: the event clock it is on, -1 for none (its
    place is then 0).  `lines`: these clocks."""

    at_ns: np.ndarray
    error_ns: np.ndarray
    line: np.ndarray
    lines: Mapping[int, EventLine]
    spacing_ns: int


def place_records(
    clock: EventClock,
    s: Surroundings,
    tracing: str,
    stamp: np.ndarray,
    lane: np.ndarray,
    lines: Mapping[int, EventLine] | None = None,
) -> ClockPlaces:
    """Places of all records that are on an event clock.  Arrays are per record; those of the clock cover only the first ones,
    the records of the log.  `lane`: -1 for records whose surroundings are unknown (they are placed, but are no evidence).
    `lines`: given if they are already known."""
    rows = len(lane)
    at, frame = np.zeros(rows, np.int64), np.full(rows, -1)
    at[: len(clock.at_ns)], frame[: len(clock.frame)] = clock.at_ns, clock.frame
    line = np.where(frame >= 0, np.append(clock.line, -1)[frame], -1)
    known = (line >= 0) & (lane >= 0)
    order = np.lexsort((s.call_start, lane))
    order = order[known[order]]
    one, two = order[:-1], order[1:]
    same = lane[one] == lane[two]
    one, two = one[same], two[same]
    apart = spacing(s, one, two, at[two] - at[one])
    model = assumed(tracing, apart, np.empty(0))
    found: dict[int, EventLine] = {}
    place, error = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for number in np.unique(line[line >= 0]).tolist():
        mine = line == number
        own = lines.get(number) if lines is not None else None
        if own is None:
            seen = observe(s, model, stamp, at, known & mine)
            # all its frames, even those without a record here: other records may be placed by the same line
            own = fit(clock.origin_error_ns, np.flatnonzero(clock.line == number), at, frame, seen)
        if own is None:
            line[mine] = -1
            continue
        found[number] = own
        place[mine], spread = own.place(at[mine], frame[mine])
        if not len(own.frames):
            spread = np.hypot(spread, np.minimum(clock.origin_error_ns[frame[mine]], 1e9))
        error[mine] = np.ceil(1.96 * spread).astype(np.int64) + clock.tick_ns
    return ClockPlaces(place, error, line, found, round(model.value["spacing_ns"]))


@dataclass(frozen=True)
class EventLine:
    """The offset (trace - event clock) of one event clock: values at knots, linear in between; a shift per frame; and the
    covariance of all of these, from which the error of every place follows."""

    base_ns: int  # offset that `mean` counts from
    knots: np.ndarray  # event clock, ns
    frames: np.ndarray  # numbers of the frames, sorted
    mean: np.ndarray  # ns: at the knots, then of the frames
    covariance: np.ndarray
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


def fit(
    origin_error_ns: np.ndarray, frames: np.ndarray, at: np.ndarray, frame: np.ndarray, seen: Offsets
) -> EventLine | None:
    """The line of one event clock.  `frames`: its frames, sorted; `at`, `frame`: of every record; `seen`: the observations.
    None if there are no observations.

    A linear model with known noise: offset = line(knots) + shift(frame) + class + noise, where the shifts are known to within
    their rounding and the classes to within the differences between GPUs; the noise has the tails of Student's t.
    """
    if not len(seen.record):
        return None
    seen = _thinned(seen)
    if len(frames) > _MOST_FRAMES:
        frames = frames[:0]
    t, f = at[seen.record], frame[seen.record]
    knots = _knots(t)
    base = _first_guess(seen)
    y = (seen.offset_ns - base).astype(float)
    line = _design(t, f, knots, frames)
    classes = np.eye(len(CLASSES_OF_LINE))[seen.class_]
    x = np.concatenate([line, classes], axis=1)
    prior = _prior(knots, frames, origin_error_ns)
    scatter = _SCATTER[seen.class_]
    mean = np.zeros(x.shape[1])
    for widen in (20.0, 8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0):
        sigma = scatter * widen
        weight = weights((x @ mean - y) / sigma, _LATE[seen.class_]) / sigma**2
        normal = (x * weight[:, None]).T @ x + prior
        mean = np.linalg.solve(normal, (x * weight[:, None]).T @ y)
    inner = line.shape[1]
    covariance = np.linalg.inv(normal)[:inner, :inner]
    counts = dict(
        zip(CLASSES_OF_LINE, np.bincount(seen.class_, minlength=len(CLASSES_OF_LINE)).tolist(), strict=True)
    )
    return EventLine(base, knots, frames, mean[:inner], covariance, counts)


def _thinned(seen: Offsets) -> Offsets:
    """At most _MOST of them, evenly."""
    if len(seen.record) <= _MOST:
        return seen
    keep = np.unique(np.linspace(0, len(seen.record) - 1, _MOST).astype(np.int64))
    return Offsets(seen.record[keep], seen.class_[keep], seen.offset_ns[keep])


def _first_guess(seen: Offsets) -> int:
    """The median offset of the best class present."""
    best = seen.class_ == seen.class_[_UNSEEN[seen.class_].argmin()]
    return int(np.median(seen.offset_ns[best] - seen.offset_ns[0])) + int(seen.offset_ns[0])


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
    """Prior precision: rates of a few ppm that change little, frames within the rounding of the edge before them, classes."""
    n, m = len(knots), len(frames)
    out = np.zeros((n + m + len(_UNSEEN),) * 2)
    step = float(knots[1] - knots[0])
    rate = np.zeros((n - 1, len(out)))
    rate[np.arange(n - 1), np.arange(n - 1)], rate[np.arange(n - 1), np.arange(1, n)] = -1 / step, 1 / step
    out += rate.T @ rate / (_RATE * np.sqrt(n - 1)) ** 2
    bend = np.diff(rate, axis=0)
    out += bend.T @ bend / (_BEND * np.sqrt(step / _KNOT_NS)) ** 2
    for k in range(m):  # against the frame before; the first one is fixed
        row = np.zeros(len(out))
        row[n + k] = 1.0
        error = 1.0
        if k and np.isfinite(origin_error[frames[k]]):
            row[n + k - 1], error = -1.0, max(origin_error[frames[k]] / np.sqrt(3), 1.0)
        out += np.outer(row, row) / error**2
    out[n + m :, n + m :] += np.diag(1 / _UNSEEN**2)
    return out
