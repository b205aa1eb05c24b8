"""One clock for the events of a process and device: where each record lies relative to all others.

`elapsed_time` says how far apart two events are, to the tick of the GPU's timer.  Distances to
reference events and the compared pairs themselves are the edges of a graph:

    reference 0 --105.7 ms-- reference 1 --52.2 ms-- reference 2        records connected through edges short
        |  |                     |                       |  |           enough for float32 to name the tick form one
       r1  r2                   r3                      r4 r5           *frame*: their distances are exact

Frames are joined by edges that are rounded (a reference renewed after a pause of 10 s: 0.5 us).
Where the clock lies on the trace's, everything says that its records met:

    offset (trace - event clock)
      ^        x     x              x: the next operation's start, minus the time it takes to begin
      |   x       x        x   x
      |  ------------------------- the line, piecewise linear: the driver's conversion is corrected now and then
      | o   o o  o   o  o oo  o     o: the previous operation's end, plus how long a record takes
      +---------------------------> event clock

Latencies (linear in the parameters of latency.py) and offsets are fitted together; their covariance
gives the error bars.  GPUs are late, never early: on that side the noise has a heavy tail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign.intervals import group
from nsysalign.model import EventLog
from nsysalign.place.bounded import Surroundings
from nsysalign.place.latency import IDLE, LATE, PARAMETERS, assumed
from nsysalign.place.matched import numbered

#: The tick is determined from distances up to this: float32 milliseconds are 1 ns apart at 16 ms.
_SHORT_MS = 10.0
#: A distance determines the tick if its rounding is at most this share of it.
_NAMES_TICK = 0.45
_KNOWN_TICKS = (1024, 1000, 512, 500, 256, 128, 64, 32, 16, 8)
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
class EventClock:
    """Per record of the log: `frame`, -1 for a record that no distance reaches; `at_ns`, exact within a
    frame.  Per frame: `origin_error_ns`, how far it may be off against the one before (inf: nothing joins
    them); `line`: which lie on one event clock at all.  `tick_ns`: of the GPU's timer, 1 if it does not show."""

    frame: np.ndarray
    at_ns: np.ndarray
    line: np.ndarray
    origin_error_ns: np.ndarray
    tick_ns: int


def rounding_ns(ms: np.ndarray) -> np.ndarray:
    """Half the spacing of float32 numbers at this value: how much a distance in milliseconds may be
    rounded."""
    return np.spacing(np.abs(ms).astype(np.float32)).astype(float) * 0.5e6


def tick_of(ms: np.ndarray) -> int:
    """The tick of the GPU's timer in ns: the greatest known one of which nearly all short distances
    are multiples; 1 if none shows (too few distances, or a timer that counts nanoseconds)."""
    ms = np.abs(ms[np.isfinite(ms)])
    ns = np.unique(ms[(ms < _SHORT_MS) & (ms > 0)] * 1e6)
    if len(ns) < 8:
        return 1
    for tick in _KNOWN_TICKS:
        off = np.abs(ns - np.rint(ns / tick) * tick)
        if (off <= np.maximum(rounding_ns(ns / 1e6), 0.5) + 0.5).mean() >= 0.98:
            return tick
    return 1


def event_clock(log: EventLog) -> EventClock | None:
    """The event clocks of all processes of a log; None if the log has no references.  Records that
    hang together, but on no reference, are on none: two of them say nothing of a clock."""
    if log.references.empty or log.records.empty:
        return None
    count = len(log.references)
    one, two, ms = _edges(log)
    usable = (one >= 0) & (two >= 0) & np.isfinite(ms) & (one != two)
    one, two, ms = one[usable], two[usable], ms[usable]
    tick, rounding = tick_of(ms), rounding_ns(ms)
    exact = rounding <= max(_NAMES_TICK * tick, 0.5)
    ns = np.rint(np.rint(ms[exact] * 1e6 / tick) * tick).astype(np.int64)
    root, offset = hanging_together(count + len(log.records), one[exact], two[exact], ns)
    reached = np.arange(len(root)) < count
    reached[one] = reached[two] = True
    roots, number = np.unique(root[reached], return_inverse=True)
    frame = np.full(len(root), -1)
    frame[reached] = number
    between = np.flatnonzero(frame[one] != frame[two])
    a, b = one[between], two[between]
    distance = ms[between] * 1e6 + offset[a] - offset[b]
    origin, line, error = _join(
        frame[a], frame[b], distance, rounding[between] + tick / 2, len(roots)
    )
    held = np.isin(line, line[frame[:count]])  # per frame
    frame = np.where((frame >= 0) & held[frame], frame, -1)
    at_ns = np.where(frame >= 0, offset + origin[np.maximum(frame, 0)], 0)
    return EventClock(frame[count:], at_ns[count:], line, error, tick)


def _edges(log: EventLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(one, other, distance in ms) of all pairs of events with a known distance.  Nodes are the
    references, then the records of the log; -1 for a missing one."""
    references, elapsed = log.references, log.elapsed
    own = np.arange(len(references))
    # a record captured into a graph is stamped at every replay: it has no single place
    single = np.where(log.records["captured"], -2, log.records["seq"])
    of_records = log.records["process"].to_numpy(), single
    of_references = references["process"].to_numpy(), references["id"].to_numpy()

    def reference_of(rows: pd.DataFrame, column: str) -> np.ndarray:
        return numbered(rows["process"].to_numpy(), rows[column].to_numpy(), *of_references)

    def record_of(rows: pd.DataFrame, column: str) -> np.ndarray:
        found = numbered(rows["process"].to_numpy(), rows[column].to_numpy(), *of_records)
        return np.where(found >= 0, found + len(own), -1)

    edges = [
        (reference_of(references, "previous"), own, references["ms"].to_numpy()),
        # a reference and its own record are the same node
        (own, record_of(references, "record"), np.zeros(len(own))),
    ]
    told = elapsed.assign(ms=np.where(elapsed["error"] == "", elapsed["ms"], np.nan))
    for rows in (told, log.distances):
        reference = reference_of(rows, "reference")
        start, end = record_of(rows, "start"), record_of(rows, "end")
        edges.append((start, end, rows["ms"].to_numpy()))
        edges.append((reference, start, rows["start_ms"].to_numpy()))
        edges.append((reference, end, rows["end_ms"].to_numpy()))
    one, other, ms = (np.concatenate(column) for column in zip(*edges, strict=True))
    return one, other, ms


def hanging_together(
    count: int, one: np.ndarray, two: np.ndarray, ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(root, distance from it) of each of `count` nodes, given that `two` lies `ns` after `one`.
    Each tree hangs itself on its lowest neighbour until none has a lower one."""
    root, offset = np.arange(count), np.zeros(count, dtype=np.int64)
    while True:
        apart = np.flatnonzero(root[one] != root[two])
        if not len(apart):
            return root, offset
        one, two, ns = one[apart], two[apart], ns[apart]
        a, b, after = root[one], root[two], offset[one] + ns - offset[two]
        low, high, after = np.minimum(a, b), np.maximum(a, b), np.where(a < b, after, -after)
        order = np.lexsort((low, high))
        child, first = np.unique(high[order], return_index=True)
        parent, step = np.arange(count), np.zeros(count, dtype=np.int64)
        parent[child], step[child] = low[order][first], after[order][first]
        while (parent[parent] != parent).any():
            step, parent = step + step[parent], parent[parent]
        offset, root = offset + step[root], parent[root]


def _join(
    a: np.ndarray, b: np.ndarray, distance: np.ndarray, rounding: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(origin, line, error against the frame before) of every frame, from the rounded distances of
    their origins: from frame to frame along the edges with the least rounding."""
    joined: dict[tuple[int, int], tuple[float, float]] = {}
    for p, q, d, r in zip(*(v.tolist() for v in (a, b, distance, rounding)), strict=True):
        p, q, d = (p, q, d) if p < q else (q, p, -d)
        low, high = joined.get((p, q), (-np.inf, np.inf))
        if max(low, d - r) <= min(high, d + r):  # else measured while an event was recorded again
            joined[p, q] = max(low, d - r), min(high, d + r)
    neighbours: dict[int, list[tuple[float, int, float]]] = {}
    for (p, q), (low, high) in joined.items():
        width, middle = (high - low) / 2, (high + low) / 2
        neighbours.setdefault(p, []).append((width, q, middle))
        neighbours.setdefault(q, []).append((width, p, -middle))
    origin, line = np.zeros(count, np.int64), np.full(count, -1)
    error = np.full(count, np.inf)
    for seed in range(count):
        queue = [seed] if line[seed] < 0 else []
        line[queue] = seed
        for here in queue:  # grows while it is walked
            for width, other, apart in sorted(neighbours.get(here, [])):
                if line[other] < 0:
                    line[other], error[other] = seed, width
                    origin[other] = origin[here] + round(apart)
                    queue.append(other)
    return origin, line, error


# --- where the clock lies on the trace's


@dataclass(frozen=True)
class Line:
    """The offset (trace - event clock) of one event clock: values at knots, linear in between, and
    a shift per frame."""

    base_ns: int  # offset that `mean` counts from
    knots: np.ndarray  # event clock, ns
    frames: np.ndarray  # numbers of the frames, sorted
    mean: np.ndarray  # ns: at the knots, then of the frames
    covariance: np.ndarray  # of `mean`: the error of every place follows from it

    def place(self, at: np.ndarray, frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(trace time, its standard deviation) of events at `at` on the event clock."""
        shift, spread = np.empty(len(at)), np.empty(len(at))
        for first in range(0, len(at), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            x = _design(at[some], frame[some], self.knots, self.frames)
            shift[some] = x @ self.mean
            spread[some] = np.sqrt(np.maximum(((x @ self.covariance) * x).sum(axis=1), 0.0))
        return at + self.base_ns + np.rint(shift).astype(np.int64), spread


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
    seen = model.observe(s)
    offset = seen.known_ns - at[seen.record]
    base = int(offset[0]) + int(np.median(offset - offset[0] + seen.x @ model.vector))
    for widen in _NARROWING:
        seen = model.observe(s)
        y = (seen.known_ns - at[seen.record] - base).astype(float)
        line = _design(at[seen.record], frame[seen.record], knots, frames)
        x = np.concatenate([line, -seen.x], axis=1)
        sigma = seen.scale_ns * widen
        z = (x @ solution - y) / sigma  # how far the record lies behind where this expects it
        on_time = np.minimum(1.0, _HUBER / np.maximum(np.abs(z), 1e-9))
        weight = np.where(z * LATE[seen.class_] < 0, on_time, (_STUDENT + 1) / (_STUDENT + z**2))
        weight *= seen.certain / sigma**2
        weighted = (x * weight[:, None]).T
        normal = weighted @ x + prior
        solution = np.linalg.solve(normal, weighted @ y + prior @ mean)
        covariance = np.linalg.inv(normal)
        model = replace(model, vector=solution[inner:], covariance=covariance[inner:, inner:])
    # calls of a stretch are slow together: what they scatter by may be common to all of them
    stretch, off = np.searchsorted(knots, at[seen.record], side="right"), y - x @ solution
    more, weight = np.zeros_like(covariance), weight * (seen.class_ == IDLE)
    for number in np.unique(stretch[weight > 0]):
        w = weight * (stretch == number)
        moved = covariance @ (w @ x)  # by 1 ns
        more += np.outer(moved, moved) * ((w * off**2).sum() / w.sum())
    return Line(base, knots, frames, solution[:inner], (covariance + more)[:inner, :inner])


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
    edge before them; the first one is fixed."""
    n, m = len(knots), len(frames)
    step = float(knots[1] - knots[0])
    rate = np.diff(np.eye(n, n + m), axis=0) / step
    bend = np.diff(rate, axis=0)
    out = rate.T @ rate / (_RATE * np.sqrt(n - 1)) ** 2
    out += bend.T @ bend / (_BEND * np.sqrt(step / _KNOT_NS)) ** 2
    for number in range(m):
        row, error = np.eye(n + m)[n + number], 1.0
        if number and np.isfinite(origin_error[frames[number]]):
            row[n + number - 1] = -1.0
            error = max(origin_error[frames[number]] / np.sqrt(3), 1.0)
        out += np.outer(row, row) / error**2
    return out


@dataclass(frozen=True)
class ClockPlaces:
    """Per record: its trace time by the event clock and its 95 % half-width; `line`: the event
    clock it is on, -1 for none (its place is then 0)."""

    at_ns: np.ndarray
    error_ns: np.ndarray
    line: np.ndarray


def place_records(
    clock: EventClock | None, s: Surroundings, tracing: str, known: np.ndarray
) -> ClockPlaces:
    """Places of all records that are on an event clock.  Arrays are per record; those of the clock
    (None: the log has no references) cover only the first ones, the records of the log.  `known`:
    whose surroundings are (the others are placed, but are no evidence)."""
    place, error = np.zeros((2, len(known)), np.int64)
    line = np.full(len(known), -1)
    if clock is None:
        return ClockPlaces(place, error, line)
    more = len(known) - len(clock.at_ns)
    at, frame = np.pad(clock.at_ns, (0, more)), np.pad(clock.frame, (0, more), constant_values=-1)
    line = np.where(frame >= 0, np.append(clock.line, -1)[frame], -1)
    frames_of, every = group(clock.line, np.arange(len(clock.line))), np.arange(len(line))
    for number, members in group(line[line >= 0], every[line >= 0]).items():
        record = members[known[members]]
        if not len(record):
            line[members] = -1
            continue
        record = record[:: -(-len(record) // _MOST)]
        # all its frames, even those without a known record: others may be placed by the same line
        frames = frames_of[number]
        own = fit_line(
            s.take(record), frame[record], at[record], tracing, frames, clock.origin_error_ns
        )
        place[members], spread = own.place(at[members], frame[members])
        if not len(own.frames):
            spread = np.hypot(spread, np.minimum(clock.origin_error_ns[frame[members]], 1e9))
        error[members] = np.ceil(1.96 * spread).astype(np.int64) + clock.tick_ns
    return ClockPlaces(place, error, line)
