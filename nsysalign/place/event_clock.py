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

from nsysalign.intervals import Columns, group
from nsysalign.model import EventLog
from nsysalign.place.bounded import Surroundings
from nsysalign.place.latency import IDLE, LATE, PARAMETERS, LatencyModel, Observations, assumed
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
_MOST_RECORDS = 20_000  # on a line: more add nothing
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
    """The tick of the GPU's timer in ns: the longest known tick that divides nearly all short distances; 1 if none shows (too few distances, or a timer that counts nanoseconds)."""
    ms = np.abs(ms[np.isfinite(ms)])
    ns = np.unique(ms[(ms < _SHORT_MS) & (ms > 0)] * 1e6)
    if len(ns) < 8:
        return 1
    for tick in _KNOWN_TICKS:
        off = np.abs(ns - np.rint(ns / tick) * tick)
        if (off <= np.maximum(rounding_ns(ns / 1e6), 0.5) + 0.5).mean() >= 0.98:
            return tick
    return 1


@dataclass(frozen=True)
class _Distances(Columns):
    """Known distances between events: arrays of equal length.  Nodes are the references, then the
    records of the log; -1 for a missing one."""

    start: np.ndarray
    end: np.ndarray
    ms: np.ndarray


def event_clock(log: EventLog) -> EventClock | None:
    """The event clocks of all processes of a log; None if the log has no references.  Records that
    hang together, but on no reference, are on none: two of them say nothing of a clock."""
    if log.references.empty or log.records.empty:
        return None
    references = len(log.references)
    nodes = references + len(log.records)
    distances = _distances(log)
    tick = tick_of(distances.ms)
    rounding = rounding_ns(distances.ms)
    exact = rounding <= max(_NAMES_TICK * tick, 0.5)
    root, offset = hanging_together(nodes, *_in_ticks(distances.take(exact), tick))
    frame = _frames(root, distances, references)
    between = np.flatnonzero(frame[distances.start] != frame[distances.end])
    edges = distances.take(between)
    apart = edges.ms * 1e6 + offset[edges.start] - offset[edges.end]
    joints = _joints(frame[edges.start], frame[edges.end], apart, rounding[between] + tick / 2)
    origin, line, error = _joined(joints, frame.max() + 1)
    with_reference = np.isin(line, line[frame[:references]])  # per frame
    frame = np.where((frame >= 0) & with_reference[frame], frame, -1)
    at_ns = np.where(frame >= 0, offset + origin[np.maximum(frame, 0)], 0)
    return EventClock(frame[references:], at_ns[references:], line, error, tick)


def _frames(root: np.ndarray, distances: _Distances, references: int) -> np.ndarray:
    """The number of each node's frame, by the root that exact distances connect it to; -1 for records
    that no distance reaches."""
    reached = np.arange(len(root)) < references
    reached[distances.start] = True
    reached[distances.end] = True
    frame = np.full(len(root), -1)
    _, frame[reached] = np.unique(root[reached], return_inverse=True)
    return frame


def _in_ticks(distances: _Distances, tick: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(start, end, distance in ns): whole ticks."""
    ticks = np.rint(distances.ms * 1e6 / tick)
    return distances.start, distances.end, np.rint(ticks * tick).astype(np.int64)


def _distances(log: EventLog) -> _Distances:
    """Of all pairs of events with a known distance."""
    references = log.references
    reference = np.arange(len(references))
    process_of_reference = references["process"].to_numpy()
    id_of_reference = references["id"].to_numpy()
    process_of_record = log.records["process"].to_numpy()
    # a record captured into a graph is stamped at every replay: it has no single place
    seq_of_record = np.where(log.records["captured"], -2, log.records["seq"])

    def reference_of(rows: pd.DataFrame, column: str) -> np.ndarray:
        process, number = rows["process"].to_numpy(), rows[column].to_numpy()
        return numbered(process, number, process_of_reference, id_of_reference)

    def record_of(rows: pd.DataFrame, column: str) -> np.ndarray:
        process, number = rows["process"].to_numpy(), rows[column].to_numpy()
        record = numbered(process, number, process_of_record, seq_of_record)
        return np.where(record >= 0, record + len(references), -1)

    previous = reference_of(references, "previous")
    record = record_of(references, "record")
    parts = [
        _Distances(previous, reference, references["ms"].to_numpy()),
        # a reference and its own record are the same node
        _Distances(reference, record, np.zeros(len(references))),
    ]
    succeeded = log.elapsed["error"] == ""
    elapsed = log.elapsed.assign(ms=np.where(succeeded, log.elapsed["ms"], np.nan))
    for rows in (elapsed, log.distances):
        reference = reference_of(rows, "reference")
        start, end = record_of(rows, "start"), record_of(rows, "end")
        parts.append(_Distances(start, end, rows["ms"].to_numpy()))
        parts.append(_Distances(reference, start, rows["start_ms"].to_numpy()))
        parts.append(_Distances(reference, end, rows["end_ms"].to_numpy()))
    whole = _Distances.joined(parts)
    seen = (whole.start >= 0) & (whole.end >= 0)
    return whole.take(seen & np.isfinite(whole.ms) & (whole.start != whole.end))


def hanging_together(
    count: int, start: np.ndarray, end: np.ndarray, ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(root, distance from it) of each of `count` nodes, given edges whose `end` lies `ns` after their
    `start`.  Nodes that edges connect form a tree with one root; at first each node is a tree.  Every
    round puts each tree below the lowest root that an edge connects it to, until there is none."""
    root = np.arange(count)
    offset = np.zeros(count, dtype=np.int64)
    while True:
        apart = np.flatnonzero(root[start] != root[end])
        if not len(apart):
            return root, offset
        start, end, ns = start[apart], end[apart], ns[apart]
        start_root, end_root = root[start], root[end]
        # how far the root of the end lies behind that of the start
        behind = offset[start] + ns - offset[end]
        low = np.minimum(start_root, end_root)
        high = np.maximum(start_root, end_root)
        high_behind_low = np.where(start_root < end_root, behind, -behind)
        order = np.lexsort((low, high))
        child, first = np.unique(high[order], return_index=True)
        parent = np.arange(count)
        step = np.zeros(count, dtype=np.int64)
        parent[child] = low[order][first]
        step[child] = high_behind_low[order][first]
        while (parent[parent] != parent).any():
            step = step + step[parent]
            parent = parent[parent]
        offset = offset + step[root]
        root = parent[root]


#: Two frames, the lower number first -> how far the second lies behind the first: between which ns.
_Joints = dict[tuple[int, int], tuple[float, float]]


def _joints(
    start: np.ndarray, end: np.ndarray, distance: np.ndarray, rounding: np.ndarray
) -> _Joints:
    """What rounded distances between the origins of frames leave open of each pair of frames."""
    joints: _Joints = {}
    columns = (start.tolist(), end.tolist(), distance.tolist(), rounding.tolist())
    for frame, neighbour, apart, room in zip(*columns, strict=True):
        pair = (frame, neighbour)
        if frame > neighbour:
            pair = (neighbour, frame)
            apart = -apart
        low, high = joints.get(pair, (-np.inf, np.inf))
        low = max(low, apart - room)
        high = min(high, apart + room)
        if low <= high:  # else measured while an event was recorded again
            joints[pair] = (low, high)
    return joints


def _joined(joints: _Joints, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(origin, line, error against the frame before) of every frame: from frame to frame along the
    joints with the least room."""
    neighbours: dict[int, list[tuple[float, int, float]]] = {}
    for (first, second), (low, high) in joints.items():
        width, middle = (high - low) / 2, (high + low) / 2
        neighbours.setdefault(first, []).append((width, second, middle))
        neighbours.setdefault(second, []).append((width, first, -middle))
    origin = np.zeros(count, np.int64)
    line = np.full(count, -1)
    error = np.full(count, np.inf)
    for seed in range(count):
        queue = [seed] if line[seed] < 0 else []
        line[queue] = seed
        for frame in queue:  # grows while it is walked
            for width, neighbour, apart in sorted(neighbours.get(frame, [])):
                if line[neighbour] < 0:
                    line[neighbour] = seed
                    error[neighbour] = width
                    origin[neighbour] = origin[frame] + round(apart)
                    queue.append(neighbour)
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
            rows = slice(first, first + _AT_ONCE)
            x = _design(at[rows], frame[rows], self.knots, self.frames)
            shift[rows] = x @ self.mean
            spread[rows] = np.sqrt(np.maximum(((x @ self.covariance) * x).sum(axis=1), 0.0))
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
    model = assumed(tracing, s, _queued_spacing(s, frame, at))
    frames = frames if len(frames) <= _MOST_FRAMES else frames[:0]
    knots = _knots(at)
    prior = _prior(knots, frames, origin_error_ns)
    seen = model.observe(s)
    offset = seen.known_ns - at[seen.record]
    base = int(offset[0]) + int(np.median(offset - offset[0] + seen.x @ model.vector))
    fit = _Fit.before(prior, model)
    for widen in _NARROWING:
        seen = fit.model.observe(s)
        place = _design(at[seen.record], frame[seen.record], knots, frames)
        x = np.concatenate([place, -seen.x], axis=1)
        y = (seen.known_ns - at[seen.record] - base).astype(float)
        fit = fit.with_observations(seen, x, y, widen)
    # calls of a stretch are slow together: what they scatter by may be common to all of them
    stretch = np.searchsorted(knots, at[seen.record], side="right")
    covariance = fit.covariance + fit.common_scatter(seen, x, y, stretch)
    size = fit.size
    return Line(base, knots, frames, fit.solution[:size], covariance[:size, :size])


def _queued_spacing(s: Surroundings, frame: np.ndarray, at: np.ndarray) -> float:
    """How far apart (ns) consecutive records behind queued work are on the event clock; 0 if there are
    too few of them."""
    order = np.lexsort((s.behind, s.previous_end, frame))
    first, second = order[:-1], order[1:]
    consecutive = frame[first] == frame[second]
    consecutive &= s.previous_end[first] == s.previous_end[second]
    consecutive &= s.behind[second] == s.behind[first] + 1
    consecutive &= ~s.waits[first] & ~s.waits[second]
    consecutive &= s.previous_end[second] > s.call_end[second] + _QUEUED_NS
    apart = (at[second] - at[first])[consecutive]
    return float(np.percentile(apart, _PROMPT)) if len(apart) >= _ENOUGH else 0.0


def _knots(at: np.ndarray) -> np.ndarray:
    """Knots over the time in which records lie, at least two."""
    first, last = int(at.min()), int(at.max())
    count = int(np.clip((last - first) // _KNOT_NS, 1, _MOST_KNOTS)) + 1
    return np.linspace(first, max(last, first + 1), count).astype(np.int64)


@dataclass(frozen=True)
class _Fit:
    """Offsets at knots and of frames, and behind them the parameters of `model`, as fitted together.
    `prior`: the precision of `mean`, what is known of them beforehand; `weight`: of the observations."""

    prior: np.ndarray
    mean: np.ndarray
    model: LatencyModel
    solution: np.ndarray
    covariance: np.ndarray
    weight: np.ndarray

    @classmethod
    def before(cls, prior_of_line: np.ndarray, model: LatencyModel) -> _Fit:
        """Before anything was observed."""
        size = len(prior_of_line)
        prior = np.zeros((size + len(PARAMETERS),) * 2)
        prior[:size, :size] = prior_of_line
        prior[size:, size:] = np.linalg.inv(model.covariance)
        mean = np.concatenate([np.zeros(size), model.vector])
        return cls(prior, mean, model, solution=mean, covariance=prior, weight=mean[:0])

    @property
    def size(self) -> int:
        """How many of the unknowns are of the line."""
        return len(self.mean) - len(PARAMETERS)

    def with_observations(
        self, seen: Observations, x: np.ndarray, y: np.ndarray, widen: float
    ) -> _Fit:
        """One step: observations `y`, linear in the unknowns by `x`, with weights by how far they lie from
        what the fit expects.  Their scatter is taken for `widen` times larger."""
        sigma = seen.scale_ns * widen
        z = (x @ self.solution - y) / sigma  # how far the record lies behind where this expects it
        on_time = np.minimum(1.0, _HUBER / np.maximum(np.abs(z), 1e-9))
        late = z * LATE[seen.class_] >= 0
        weight = np.where(late, (_STUDENT + 1) / (_STUDENT + z**2), on_time)
        weight *= seen.certain / sigma**2
        weighted = (x * weight[:, None]).T
        normal = weighted @ x + self.prior
        solution = np.linalg.solve(normal, weighted @ y + self.prior @ self.mean)
        covariance = np.linalg.inv(normal)
        size = self.size
        model = replace(self.model, vector=solution[size:], covariance=covariance[size:, size:])
        return replace(self, model=model, solution=solution, covariance=covariance, weight=weight)

    def common_scatter(
        self, seen: Observations, x: np.ndarray, y: np.ndarray, stretch: np.ndarray
    ) -> np.ndarray:
        """The covariance that is due to what the calls of each stretch on an idle stream have in
        common."""
        residual = y - x @ self.solution
        weight = self.weight * (seen.class_ == IDLE)
        covariance = np.zeros_like(self.covariance)
        for number in np.unique(stretch[weight > 0]):
            of_stretch = weight * (stretch == number)
            moved = self.covariance @ (of_stretch @ x)  # by 1 ns
            variance = (of_stretch * residual**2).sum() / of_stretch.sum()
            covariance += np.outer(moved, moved) * variance
        return covariance


def _design(at: np.ndarray, frame: np.ndarray, knots: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Rows: the weight of each knot (linear in between; the first and last pieces extend outwards)
    and frame in the offset at `at`."""
    x = np.zeros((len(at), len(knots) + len(frames)))
    rows = np.arange(len(at))
    knot = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    part = (at - knots[knot]).astype(float) / (knots[knot + 1] - knots[knot])
    x[rows, knot] = 1 - part
    x[rows, knot + 1] = part
    if len(frames):
        number = np.minimum(np.searchsorted(frames, frame), len(frames) - 1)
        x[rows, len(knots) + number] = 1.0
    return x


def _prior(knots: np.ndarray, frames: np.ndarray, origin_error: np.ndarray) -> np.ndarray:
    """Prior precision: rates of a few ppm that change little, frames within the rounding of the
    edge before them; the first one is fixed."""
    size = len(knots) + len(frames)
    step = float(knots[1] - knots[0])
    rate = np.diff(np.eye(len(knots), size), axis=0) / step
    bend = np.diff(rate, axis=0)
    precision = rate.T @ rate / (_RATE * np.sqrt(len(knots) - 1)) ** 2
    precision += bend.T @ bend / (_BEND * np.sqrt(step / _KNOT_NS)) ** 2
    for number, frame in enumerate(frames):
        row = np.eye(size)[len(knots) + number]
        error = 1.0
        if number and np.isfinite(origin_error[frame]):
            row[len(knots) + number - 1] = -1.0
            error = max(origin_error[frame] / np.sqrt(3), 1.0)
        precision += np.outer(row, row) / error**2
    return precision


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
    place = np.zeros(len(known), np.int64)
    error = np.zeros(len(known), np.int64)
    if clock is None:
        return ClockPlaces(place, error, np.full(len(known), -1))
    unlogged = len(known) - len(clock.at_ns)
    at = np.pad(clock.at_ns, (0, unlogged))
    frame = np.pad(clock.frame, (0, unlogged), constant_values=-1)
    line = np.where(frame >= 0, np.append(clock.line, -1)[frame], -1)
    # all its frames, even those without a known record: records may be placed by the same line
    frames_of = group(clock.line, np.arange(len(clock.line)))
    on_line = np.flatnonzero(line >= 0)
    for number, members in group(line[on_line], on_line).items():
        record = members[known[members]]
        if not len(record):
            line[members] = -1
            continue
        record = record[:: -(-len(record) // _MOST_RECORDS)]
        fitted = fit_line(
            s.take(record),
            frame[record],
            at[record],
            tracing,
            frames_of[number],
            clock.origin_error_ns,
        )
        place[members], spread = fitted.place(at[members], frame[members])
        if not len(fitted.frames):
            spread = np.hypot(spread, np.minimum(clock.origin_error_ns[frame[members]], 1e9))
        error[members] = np.ceil(1.96 * spread).astype(np.int64) + clock.tick_ns
    return ClockPlaces(place, error, line)
