"""Where an event clock lies on the trace's clock: one robust linear model.

Distances to reference events put all records of a process and device on one clock (event_clock.py).
Everything that its records met says where that clock lies:

    trace clock   KKKKK|--busy--R1--ahead--|KKKKK          [call]--idle--R2
    event clock                 R1--------- known distance -----------R2

    what a record met + latency (linear in the parameters of latency.py)
        = place on the event clock + offset of the two clocks + noise

Latencies and offsets are fitted together; their covariance gives the error bars.  GPUs are late,
never early: on that side the noise has a heavy tail.  Both clocks read the same GPU timer, and a
piecewise linear function relates them, because the driver's conversion is corrected from time to
time, by parts per million.

    offset (trace - event clock)
      ^        x     x              x: the next operation's start, minus the time it takes to begin
      |   x       x        x   x
      |  ------------------------- the line
      | o   o o  o   o  o oo  o     o: the previous operation's end, plus how long a record takes
      +---------------------------> event clock
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from nsysalign.place.event_clock import EventClock
from nsysalign.place.latency import IDLE, LATE, PARAMETERS, assumed
from nsysalign.place.surroundings import Surroundings

#: The scatter is taken for this many times larger at first, so that a bad first guess does not
#: decide.
_NARROWING = (20.0, 8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0)
#: On their late side observations have a heavy tail (Student's t: outliers soon lose their weight),
#: on the other they keep it (Huber).
_STUDENT, _HUBER = 1.0, 4.0
#: How long records take follows from the spacing of consecutive ones that were queued.  A
#: percentile of at least so many, a short one: if queues are deep, half of them are 0.3 us longer.
_QUEUED_NS, _PROMPT, _ENOUGH = 500, 25, 3
#: How far the rates of the two clocks differ from 1, and how much they change from knot to knot.
_RATE, _BEND = 12e-6, 0.1e-6
_KNOT_NS, _MOST_KNOTS = 2_000_000_000, 60
#: With more frames each is placed by its own edge alone (a log that names one reference for hours).
_MOST_FRAMES = 300
_MOST = 20_000  # records on a line: more add nothing
_AT_ONCE = 1 << 14  # rows of a design matrix


@dataclass(frozen=True)
class Line:
    """The offset (trace - event clock) of one event clock: values at knots, linear in between, and
    a shift per frame."""

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


def fit_line(
    s: Surroundings,
    frame: np.ndarray,
    at: np.ndarray,
    tracing: str,
    frames: np.ndarray,
    origin_error_ns: np.ndarray,
) -> Line:
    """The line of one event clock.  `s`, `frame` and `at` (place on the event clock, ns) of the
    records that tell it; `frames`: all its frames, sorted, even those without such a record;
    `origin_error_ns`: per frame, how far it may be off against the one before."""
    order = np.lexsort((s.behind, s.previous_end, frame))
    one, two = order[:-1], order[1:]
    next_ = (frame[one] == frame[two]) & (s.previous_end[one] == s.previous_end[two])
    next_ &= (s.behind[two] == s.behind[one] + 1) & ~s.waits[one] & ~s.waits[two]
    next_ &= s.previous_end[two] > s.call_end[two] + _QUEUED_NS
    apart = (at[two] - at[one])[next_]
    enough = len(apart) >= _ENOUGH
    model = assumed(tracing, s, float(np.percentile(apart, _PROMPT)) if enough else 0.0)
    frames = frames if len(frames) <= _MOST_FRAMES else frames[:0]
    first, last = int(at.min()), int(at.max())
    count = int(np.clip((last - first) // _KNOT_NS, 1, _MOST_KNOTS)) + 1
    knots = np.linspace(first, max(last, first + 1), count).astype(np.int64)
    inner = len(knots) + len(frames)
    prior = np.zeros((inner + len(PARAMETERS),) * 2)
    prior[:inner, :inner] = _prior(knots, frames, origin_error_ns)
    prior[inner:, inner:] = np.linalg.inv(model.covariance)
    solution = mean = np.concatenate([np.zeros(inner), model.vector])
    base = None
    for widen in _NARROWING:
        seen = model.observe(s)
        offset = seen.known_ns - at[seen.record]
        if base is None:
            base = int(offset[0]) + int(np.median(offset - offset[0] + seen.x @ model.vector))
        y = (offset - base).astype(float)
        line = _design(at[seen.record], frame[seen.record], knots, frames)
        x = np.concatenate([line, -seen.x], axis=1)
        sigma = seen.scale_ns * widen
        z = (x @ solution - y) / sigma  # how far the record lies behind where this expects it
        on_time = np.minimum(1.0, _HUBER / np.maximum(np.abs(z), 1e-9))
        weight = np.where(z * LATE[seen.class_] < 0, on_time, (_STUDENT + 1) / (_STUDENT + z**2))
        weight *= seen.certain / sigma**2
        normal = (x * weight[:, None]).T @ x + prior
        solution = np.linalg.solve(normal, (x * weight[:, None]).T @ y + prior @ mean)
        covariance = np.linalg.inv(normal)
        model = replace(model, vector=solution[inner:], covariance=covariance[inner:, inner:])
    # calls of a stretch are slow together: what they scatter by may be common to all of them
    stretch, off = np.searchsorted(knots, at[seen.record], side="right"), y - x @ solution
    more, weight = np.zeros_like(covariance), weight * (seen.class_ == IDLE)
    for number in np.unique(stretch[weight > 0]):
        w = weight * (stretch == number)
        moved = covariance @ (w @ x)  # by 1 ns
        more += np.outer(moved, moved) * ((w * off**2).sum() / w.sum())
    covariance = (covariance + more)[:inner, :inner]
    return Line(base or 0, knots, frames, solution[:inner], covariance, seen.counts)


def _design(at: np.ndarray, frame: np.ndarray, knots: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Rows: the weight of each knot (linear in between; the first and last pieces extend outwards)
    and frame in the offset at `at`."""
    x = np.zeros((len(at), len(knots) + len(frames)))
    rows = np.arange(len(at))
    k = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    part = (at - knots[k]).astype(float) / (knots[k + 1] - knots[k])
    x[rows, k], x[rows, k + 1] = 1 - part, part
    if len(frames):
        x[rows, len(knots) + np.minimum(np.searchsorted(frames, frame), len(frames) - 1)] = 1.0
    return x


def _prior(knots: np.ndarray, frames: np.ndarray, origin_error: np.ndarray) -> np.ndarray:
    """Prior precision: rates of a few ppm that change little, frames within the rounding of the
    edge before them."""
    n, m = len(knots), len(frames)
    out = np.zeros((n + m, n + m))
    step = float(knots[1] - knots[0])
    rate, k = np.zeros((n - 1, n + m)), np.arange(n - 1)
    rate[k, k], rate[k, k + 1] = -1 / step, 1 / step
    out += rate.T @ rate / (_RATE * np.sqrt(n - 1)) ** 2
    bend = np.diff(rate, axis=0)
    out += bend.T @ bend / (_BEND * np.sqrt(step / _KNOT_NS)) ** 2
    for number in range(m):  # against the frame before; the first one is fixed
        row = np.zeros(n + m)
        row[n + number] = 1.0
        error = 1.0
        if number and np.isfinite(origin_error[frames[number]]):
            row[n + number - 1] = -1.0
            error = max(origin_error[frames[number]] / np.sqrt(3), 1.0)
        out += np.outer(row, row) / error**2
    return out


@dataclass(frozen=True)
class ClockPlaces:
    """Per record: its trace time by the event clock and its 95 % half-width; `line`: the event
    clock it is on, -1 for none (its place is then 0).  `lines`: these clocks."""

    at_ns: np.ndarray
    error_ns: np.ndarray
    line: np.ndarray
    lines: Mapping[int, Line]


def place_records(
    clock: EventClock, s: Surroundings, tracing: str, known: np.ndarray
) -> ClockPlaces:
    """Places of all records that are on an event clock.  Arrays are per record; those of the clock
    cover only the first ones, the records of the log.  `known`: whose surroundings are (the others
    are placed, but are no evidence)."""
    rows = len(known)
    at, frame = np.zeros(rows, np.int64), np.full(rows, -1)
    at[: len(clock.at_ns)], frame[: len(clock.frame)] = clock.at_ns, clock.frame
    line = np.where(frame >= 0, np.append(clock.line, -1)[frame], -1)
    fitted: dict[int, Line] = {}
    place, error = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for number in np.unique(line[line >= 0]).tolist():
        members = line == number
        record = np.flatnonzero(members & known)
        if not len(record):
            line[members] = -1
            continue
        record = record[:: -(-len(record) // _MOST)]
        # all its frames, even those without a known record: others may be placed by the same line
        frames = np.flatnonzero(clock.line == number)
        own = fit_line(
            s.take(record), frame[record], at[record], tracing, frames, clock.origin_error_ns
        )
        fitted[number] = own
        place[members], spread = own.place(at[members], frame[members])
        if not len(own.frames):
            spread = np.hypot(spread, np.minimum(clock.origin_error_ns[frame[members]], 1e9))
        error[members] = np.ceil(1.96 * spread).astype(np.int64) + clock.tick_ns
    return ClockPlaces(place, error, line, fitted)
