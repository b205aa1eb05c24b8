"""One clock for the events of a process and device: where each record lies relative to all others.

record      one call of `event.record()`
reference   an event of nsysalign's own, to which the log states the distances of records
event clock time as `elapsed_time` counts it, in ns from an arbitrary origin
frame       records and references whose distances on the event clock are known exactly
line        frames that rounded distances connect: they share one event clock, and one function (`Line`)
            converts it to the trace's clock.  A line's number is that of its lowest frame.

`elapsed_time` says how far apart two events are, to the tick of the GPU's timer.  Distances to
reference events and the compared pairs themselves are the edges of a graph:

    reference 0 --105.7 ms-- reference 1 --52.2 ms-- reference 2        records connected through edges short
        |  |                     |                       |  |           enough for float32 to name the tick form one
       r1  r2                   r3                      r4 r5           *frame*: their distances are exact

Rounded edges join frames into lines (a reference that is renewed after a pause of 10 s: 0.5 us).
Where the event clock lies on the trace's clock follows from the operations around its records:

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

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign.intervals import Columns, group, pick
from nsysalign.model import EventLog
from nsysalign.place.bounded import Surroundings
from nsysalign.place.latency import IDLE, LATE, PARAMETERS, LatencyModel, Observations, assumed
from nsysalign.place.matched import positions_by_number

#: The tick is determined from distances up to this: float32 milliseconds are 1 ns apart at 16 ms.
_SHORT_MS = 10.0
#: A distance is exact if its rounding is at most this share of a tick, or this many ns: then it names one tick.
_EXACT_TICKS, _EXACT_NS = 0.45, 0.5
_KNOWN_TICKS = (1024, 1000, 512, 500, 256, 128, 64, 32, 16, 8)
#: Rounds of the fit.  In the first ones the scatter is taken to be this many times larger than usual, so that a
#: bad first guess does not decide.
_SCATTER_TIMES = (20.0, 8.0, 4.0, 2.0, 1.0, 1.0, 1.0, 1.0)
#: On their late side observations have a heavy tail (Student's t: outliers soon lose their weight),
#: on the other they keep it (Huber).
_STUDENT, _HUBER = 1.0, 4.0
#: How long records take follows from the spacing of consecutive ones that were queued.  A
#: percentile of at least so many, a short one: if queues are deep, half of them are 0.3 us longer.
_QUEUED_NS, _PROMPT, _ENOUGH = 500, 25, 3
#: How far the rates of the two clocks differ from 1, and how much they change from knot to knot.
_RATE, _BEND = 12e-6, 0.1e-6
_KNOT_NS, _MOST_KNOTS = 2_000_000_000, 60
#: Knots lie at least this far apart.  A slope over less weighs so much in the fit that float64 loses the
#: observations beside it: at 1 ns a deviation of 810 ns became 782.
_LEAST_KNOT_NS = 1_000_000
#: With more frames each is placed by its own edge alone (a log that names one reference for hours).
_MOST_FRAMES = 300
#: Records of a line that are evidence: more add nothing.
_MOST_RECORDS = 20_000
_AT_ONCE = 1 << 14  # rows of a design matrix


@dataclass(frozen=True)
class EventClock:
    """The event clocks of a log: where each record lies, and which frames belong together.

    frame    per record of the log: the number of its frame, -1 if it is on no event clock
    at_ns    per record of the log: its time on the event clock, exact within its frame
    frames   all frames, by their numbers
    tick_ns  the tick of the GPU's timer, 1 if the distances do not show it
    """

    frame: np.ndarray
    at_ns: np.ndarray
    frames: Frames
    tick_ns: int


@dataclass(frozen=True)
class Frames(Columns):
    """Frames of an event clock, and how they are joined to lines (arrays with a value per frame).

    number         the number of the frame
    line           the number of its line, which is that of the line's first (lowest) frame
    joined_to      the number of the frame that it was joined to; -1 for the first frame of a line
    error_ns       how far it may be off against the frame that it was joined to; 0 for the first frame
    from_first_ns  how far it may be off against the first frame: the errors on the way there add up
    origin_ns      the time of its origin on the event clock; that of the first frame is 0

    Frames 1 and 3 were joined to frame 0, and 2 to 3:

        0 --± 500-- 3 --± 30-- 2        joined_to   -1, 0, 3, 0      error_ns       0, 40, 30, 500
        0 --± 40--- 1                   line         0, 0, 0, 0      from_first_ns  0, 40, 530, 500
    """

    number: np.ndarray
    line: np.ndarray
    joined_to: np.ndarray
    error_ns: np.ndarray
    from_first_ns: np.ndarray
    origin_ns: np.ndarray


def rounding_ns(ms: np.ndarray) -> np.ndarray:
    """Return by how many ns each distance may have been rounded: half the spacing of float32 numbers.

    ms: distances in milliseconds
    """
    return np.spacing(np.abs(ms).astype(np.float32)).astype(float) * 0.5e6


def tick_of(ms: np.ndarray) -> int:
    """Return the tick of the GPU's timer in ns: the longest known tick that divides nearly all short
    distances; 1 if none does (there are too few distances, or the timer counts nanoseconds).

    ms: distances in milliseconds
    """
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
    """Known distances between events (arrays of equal length): `end` lies `ms` milliseconds after
    `start`.  Both are numbers of nodes, -1 for none: first come all references, then all records."""

    start: np.ndarray
    end: np.ndarray
    ms: np.ndarray


def event_clock(log: EventLog) -> EventClock | None:
    """Return when each record of a log took place on the event clock of its process (time as `elapsed_time` counts it), by
    the distances that `elapsed_time` gave between records and references (events of nsysalign's own); None if the log
    has no references or records.

    Records that distances connect with each other, but with no reference, are on no event clock: a
    distance between two records alone does not tell where either lies.

    References and records are the nodes of a graph, and distances its edges (module docstring):

        exact distances    node to node     a connected component is a frame.  Its lowest node is its root, and each
                                            node has its time since the root
        rounded distances  frame to frame   a joint: how far apart the two roots are.  Joined frames are a line
    """
    if log.references.empty or log.records.empty:
        return None
    references = len(log.references)
    nodes = references + len(log.records)
    distances = _distances(log)
    tick = tick_of(distances.ms)
    rounding = rounding_ns(distances.ms)
    is_exact = rounding <= max(_EXACT_TICKS * tick, _EXACT_NS)
    root, since_root_ns = connected_nodes(nodes, *_in_ticks(distances.take(is_exact), tick))
    frame = _number_of_frame(root, distances, references)  # per node
    # the same for the roots: `end` lies behind `start`, and each a known time behind its own root
    between = frame[distances.start] != frame[distances.end]
    edges = distances.take(between)
    roots_apart_ns = edges.ms * 1e6 + since_root_ns[edges.start] - since_root_ns[edges.end]
    room_ns = rounding[between] + tick / 2
    joints = _joints(frame[edges.start], frame[edges.end], roots_apart_ns, room_ns)
    frames = _lines_of_frames(joints, frame.max() + 1)
    # a line without any reference is no event clock
    lines_with_reference = frames.line[frame[:references]]
    has_reference = np.isin(frames.line, lines_with_reference)  # per frame
    frame = np.where(pick(has_reference, frame, False), frame, -1)
    at_ns = np.where(frame >= 0, since_root_ns + pick(frames.origin_ns, frame, 0), 0)
    return EventClock(frame[references:], at_ns[references:], frames, tick)


def _number_of_frame(root: np.ndarray, distances: _Distances, references: int) -> np.ndarray:
    """Return, for each node, the number of its frame; -1 for a record that no distance reaches.

    root: per node, the root that exact distances connect it to
    distances: all distances.  A record that only a rounded one reaches is a frame of its own
    references: how many of the nodes are references (the first ones).  One that nothing reaches is a frame, too

    root 0, 0, 2, 3, of which no distance reaches record 3:      frame 0, 0, 1, -1
    """
    reached = np.arange(len(root)) < references
    reached[distances.start] = True
    reached[distances.end] = True
    frame = np.full(len(root), -1)
    _, frame[reached] = np.unique(root[reached], return_inverse=True)
    return frame


def _in_ticks(distances: _Distances, tick: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (start, end, distance in ns) of each distance, rounded to whole ticks.

    tick: the tick of the GPU's timer in ns
    """
    ticks = np.rint(distances.ms * 1e6 / tick)
    return distances.start, distances.end, np.rint(ticks * tick).astype(np.int64)


class _Nodes:
    """The events of a log as the nodes of a graph, by their numbers: first all references, then all records.

    With 2 references, record 3 of the log is node 5.
    """

    def __init__(self, log: EventLog) -> None:
        self.process_of_reference = log.references["process"].to_numpy()
        self.id_of_reference = log.references["id"].to_numpy()
        self.process_of_record = log.records["process"].to_numpy()
        # a record captured into a graph is stamped at every replay: it has no single place.  No line of
        # the log refers to number -2
        self.seq_of_record = np.where(log.records["captured"], -2, log.records["seq"])

    def references(self, rows: pd.DataFrame, column: str) -> np.ndarray:
        """Return the node of the reference that each row of a table names in a column, -1 for none."""
        process = rows["process"].to_numpy()
        number = rows[column].to_numpy()
        return positions_by_number(process, number, self.process_of_reference, self.id_of_reference)

    def records(self, rows: pd.DataFrame, column: str) -> np.ndarray:
        """Return the node of the record that each row of a table names in a column, -1 for none."""
        process = rows["process"].to_numpy()
        number = rows[column].to_numpy()
        record = positions_by_number(process, number, self.process_of_record, self.seq_of_record)
        return np.where(record >= 0, record + len(self.id_of_reference), -1)


def _distances(log: EventLog) -> _Distances:
    """Return every distance (by `elapsed_time`, in ms) between two events that the log states: between references, from
    references to records, and between records.  Distances that are not known (a failed call, a
    record that the log does not have) are left out.

    A line `elapsed` of the log is a pair that the program compared, a line `distance` what nsysalign itself compared
    besides.  Both state up to three distances: from `start` to `end`, and from a reference to each of them.

        start 7, end 8, ms 0.5, reference 0, start_ms 20, end_ms 20.5      7 -> 8, reference 0 -> 7, reference 0 -> 8
    """
    nodes = _Nodes(log)
    references = log.references
    reference = np.arange(len(references))
    previous = nodes.references(references, "previous")
    record = nodes.records(references, "record")
    parts = [
        _Distances(previous, reference, references["ms"].to_numpy()),
        # a reference is an event, and nsysalign's call that recorded it is a record of the log: one moment, two nodes
        _Distances(reference, record, np.zeros(len(references))),
    ]
    succeeded = log.elapsed["error"] == ""
    elapsed = log.elapsed.assign(ms=np.where(succeeded, log.elapsed["ms"], np.nan))
    for rows in (elapsed, log.distances):
        reference = nodes.references(rows, "reference")
        start = nodes.records(rows, "start")
        end = nodes.records(rows, "end")
        parts.append(_Distances(start, end, rows["ms"].to_numpy()))
        parts.append(_Distances(reference, start, rows["start_ms"].to_numpy()))
        parts.append(_Distances(reference, end, rows["end_ms"].to_numpy()))
    distances = _Distances.joined(parts)
    usable = (distances.start >= 0) & (distances.end >= 0)
    usable &= np.isfinite(distances.ms)
    usable &= distances.start != distances.end
    return distances.take(usable)


def connected_nodes(
    count: int, start: np.ndarray, end: np.ndarray, ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the connected components of a graph whose edges are distances in time: for each node, the one of the lowest
    number in its component (its root), and how many ns the node lies after that root (negative: before it).

    count: how many nodes there are
    start, end, ns: per edge, two nodes, of which `end` lies `ns` after `start`

    connected_nodes(4, [1, 3], [2, 1], [5, 7]): node 2 lies 5 ns after 1, node 1 lies 7 ns after 3
        root 0, 1, 1, 1; ns after the root 0, 0, 5, -7

    At first each node is a tree of its own.  In every round each tree is put below the lowest root that
    an edge connects it to, until no edge connects two trees.  An edge within a tree is not looked at again: where
    edges contradict each other, those count that were used first.
    """
    root = np.arange(count)
    after_root = np.zeros(count, dtype=np.int64)
    while True:
        between_trees = np.flatnonzero(root[start] != root[end])
        if not len(between_trees):
            return root, after_root
        start = start[between_trees]
        end = end[between_trees]
        ns = ns[between_trees]
        # per edge, how many ns the root of `end` lies after the root of `start`
        roots_apart = after_root[start] + ns - after_root[end]
        # per node that is a root now: its root after this round, and how many ns it lies after that
        new_root, moved_ns = _below_lowest(count, root[start], root[end], roots_apart)
        after_root = after_root + moved_ns[root]
        root = new_root[root]


def _below_lowest(
    count: int, start: np.ndarray, end: np.ndarray, ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Put each node that edges connect to nodes of lower numbers below the lowest of these (its parent), and so below the
    root of that.  Returns (root, ns) per node: its root, which has no parent itself, and how many ns the node lies after it.
    A node without such edges is its own root.

    count, start, end, ns: nodes and edges, as in `connected_nodes`

    edges 1 -> 2 of 5 ns and 2 -> 3 of 4 ns: 3 goes below 2 and 2 below 1; roots 0, 1, 1, 1; after them 0, 0, 5, 9 ns
    """
    low = np.minimum(start, end)
    high = np.maximum(start, end)
    high_after_low = np.where(start < end, ns, -ns)
    # of the edges of each higher node, the one to its lowest neighbour
    order = np.lexsort((low, high))
    child, first = np.unique(high[order], return_index=True)
    edge = order[first]
    parent = np.arange(count)
    parent[child] = low[edge]
    after_parent = np.zeros(count, dtype=np.int64)
    after_parent[child] = high_after_low[edge]
    # a parent may have a parent: climb until each node's parent is a root
    while (parent[parent] != parent).any():
        after_parent = after_parent + after_parent[parent]
        parent = parent[parent]
    return parent, after_parent


#: (lower frame, higher frame) -> (least, greatest) number of ns by which the origin of the higher frame
#: lies behind the origin of the lower one.
_Joints = dict[tuple[int, int], tuple[float, float]]


def _joints(
    start: np.ndarray, end: np.ndarray, distance: np.ndarray, rounding: np.ndarray
) -> _Joints:
    """Return how far apart the origins of frames are (groups of events whose distances are known exactly): for each pair of
    frames that edges connect, the (least, greatest) distance in ns with which every edge agrees.  An edge that
    contradicts those before it is left out.

    start, end: per edge, the frames that it connects
    distance: per edge, how many ns the origin of `end` lies behind the origin of `start`
    rounding: per edge, by how many ns that distance may be off

    edges 0 -> 1: 100 ± 5 ns, 0 -> 1: 107 ± 5 ns      result {(0, 1): (102, 105)}
    """
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
        if low <= high:  # otherwise the event was recorded again while it was measured
            joints[pair] = (low, high)
    return joints


def _lines_of_frames(joints: _Joints, count: int) -> Frames:
    """Join frames (groups of events whose distances are known exactly) to lines, by what is roughly known of how far apart
    they are.

    joints: as `_joints` returns them
    count: how many frames there are

    Each line grows from its lowest frame.  Of all joints that lead from the line to a frame outside, the most certain
    one is next (Prim's algorithm).
    joints {(0, 2): (100, 110)}, count 3: line 0, 1, 0; joined to -1, -1, 0; error 0, 0, 5; origin 0, 0, 105
    """
    # frame -> (half-width of the joint, frame at its other end, ns by which that lies behind) of each of its joints
    joints_of: dict[int, list[tuple[float, int, float]]] = {}
    for (first, second), (low, high) in joints.items():
        half_width = (high - low) / 2
        middle = (high + low) / 2
        joints_of.setdefault(first, []).append((half_width, second, middle))
        joints_of.setdefault(second, []).append((half_width, first, -middle))
    line = np.full(count, -1)
    joined_to = np.full(count, -1)
    error_ns = np.zeros(count)
    from_first_ns = np.zeros(count)
    origin_ns = np.zeros(count, np.int64)
    for first in range(count):
        if line[first] >= 0:
            continue
        line[first] = first
        # joints that lead from the line to a frame: (half-width, that frame, the frame of the line, ns between them)
        leading = [(half, end, first, apart) for half, end, apart in joints_of.get(first, [])]
        heapq.heapify(leading)
        while leading:
            half_width, frame, nearer, apart = heapq.heappop(leading)
            if line[frame] >= 0:
                continue  # a more certain joint led there
            line[frame] = first
            joined_to[frame] = nearer
            error_ns[frame] = half_width
            from_first_ns[frame] = from_first_ns[nearer] + half_width
            origin_ns[frame] = origin_ns[nearer] + round(apart)
            for half_width, end, apart in joints_of[frame]:
                heapq.heappush(leading, (half_width, end, frame, apart))
    return Frames(np.arange(count), line, joined_to, error_ns, from_first_ns, origin_ns)


# --- where the clock lies on the trace's


@dataclass(frozen=True)
class Line:
    """How one event clock converts to the trace's clock: the offset (trace - event clock) at knots,
    linear between them, and a shift for each frame.

    base 1,000,000 ns, knots 0 and 2 s, offsets there 100 and 300 ns, no shift: an event at 1 s of the event
    clock lies at 1 s + 1,000,000 ns + 200 ns of the trace's clock.
    """

    base_ns: int  # offset that `mean` counts from
    knots: np.ndarray  # event clock, ns
    frames: np.ndarray  # numbers of the frames that have a shift, sorted; may be none
    mean: np.ndarray  # ns: at the knots, then of the frames
    covariance: np.ndarray  # of `mean`: the error of every place follows from it

    def place(self, at: np.ndarray, frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each event, (trace time in ns, its standard deviation in ns).

        at: per event, its time on the event clock in ns
        frame: per event, the number of its frame
        """
        shift, spread = np.empty(len(at)), np.empty(len(at))
        for first in range(0, len(at), _AT_ONCE):
            rows = slice(first, first + _AT_ONCE)
            x = _design(at[rows], frame[rows], self.knots, self.frames)
            shift[rows] = x @ self.mean
            spread[rows] = np.sqrt(np.maximum(((x @ self.covariance) * x).sum(axis=1), 0.0))
        return at + self.base_ns + np.rint(shift).astype(np.int64), spread


def fit_line(
    around: Surroundings,
    frame: np.ndarray,
    at: np.ndarray,
    tracing: str,
    frames_of_line: Frames,
) -> Line | None:
    """Return how one event clock (time as `elapsed_time` counts it) converts to the trace's clock, fitted by least squares
    to the operations that surround its records.

    around: the surroundings of the records that are the evidence
    frame: per record, the number of its frame
    at: per record, its time on the event clock in ns
    tracing: whether CUPTI traced events: "on", "off" or "unknown" (`placed.event_tracing`)
    frames_of_line: all frames of the line, by their numbers; a frame need not have one of the records

    Each observation (`latency.Observations`) is an equation: a record's place on the trace's clock is a time
    that the trace has, plus a latency.

        at + base + offset at the knots + shift of the frame = known_ns + latency
        5,000 + 900,000 + ?            + ?                  = 904,100 + ?            (ns)

    Each ? is a known coefficient times an unknown, or a sum of such, so that offsets, shifts and latencies are found
    together.  The fit is repeated: outliers count less each time.

    The result has the offset (trace - event clock) at knots (times some seconds apart), a shift for each frame (a group of
    records whose distances are known exactly), and their covariance.  With more than _MOST_FRAMES frames it has no shifts.

    The result is None if no observation is certain: distances alone do not tell where a line lies on the trace's clock.
    A program that times nothing by events has one record on the line, the reference's own, and a copy on another stream
    may hold that up.
    """
    with_shift = frames_of_line
    if len(with_shift.number) > _MOST_FRAMES:
        # a matrix with so many unknowns takes too long; the frames' errors go into the error bars (`_error_bar`)
        with_shift = with_shift.take(slice(0))
    knots = _knots(at)
    model = assumed(tracing, around, _queued_spacing(around, frame, at))
    base = _base_ns(model.observe(around), at, model)
    of_line = _design(at, frame, knots, with_shift.number)
    fit = _Fit.before(_prior(knots, with_shift), model)
    for times in _SCATTER_TIMES:
        # what holds a record up may look different after each fit
        observations = fit.model.observe(around)
        if not observations.certain.any():
            return None
        equations = _equations(observations, of_line, at + base)
        fit = fit.with_equations(equations, times)
    # the calls of a stretch between knots are slow together: their errors may not be independent
    stretch = np.searchsorted(knots, at[observations.record], side="right")
    covariance = fit.covariance + fit.common_scatter(equations, stretch)
    size = fit.size  # the unknowns of the line come first
    return Line(base, knots, with_shift.number, fit.solution[:size], covariance[:size, :size])


def _equations(
    observations: Observations, of_line: np.ndarray, without_offset: np.ndarray
) -> _Equations:
    """Return the equation of each observation (`fit_line`), with the unknowns on the left and what is known on the right:

        offset + shift - latency = known_ns - (at + base)

    of_line: per record, the coefficients of offsets and shifts (`_design`)
    without_offset: per record, at + base in ns
    """
    record = observations.record
    return _Equations(
        seen=observations,
        x=np.concatenate([of_line[record], -observations.x], axis=1),
        y=(observations.known_ns - without_offset[record]).astype(float),
    )


def _base_ns(seen: Observations, at: np.ndarray, model: LatencyModel) -> int:
    """Return the usual offset (trace - event clock) in ns, from which the fit counts.  The fit has only small numbers
    then: float64 does not hold a time since 1970 in ns.

    seen: the observations of the records
    at: per record, its time on the event clock in ns
    """
    without_latency = seen.known_ns - at[seen.record]
    latency = seen.x @ model.vector
    first = int(without_latency[0])
    return first + int(np.median(without_latency - first + latency))


def _queued_spacing(around: Surroundings, frame: np.ndarray, at: np.ndarray) -> float:
    """Return how far apart (ns) consecutive records are on the event clock where they waited in a queue
    behind the same operation; 0 if fewer than _ENOUGH pairs of records did.

    around, frame, at: as in `fit_line`
    """
    order = np.lexsort((around.records_before, around.previous_end, frame))
    first, second = order[:-1], order[1:]
    consecutive = frame[first] == frame[second]
    consecutive &= around.previous_end[first] == around.previous_end[second]
    consecutive &= around.records_before[second] == around.records_before[first] + 1
    consecutive &= ~around.wait_before[first] & ~around.wait_before[second]
    consecutive &= around.previous_end[second] > around.call_end[second] + _QUEUED_NS
    apart = (at[second] - at[first])[consecutive]
    return float(np.percentile(apart, _PROMPT)) if len(apart) >= _ENOUGH else 0.0


def _knots(at: np.ndarray) -> np.ndarray:
    """Return at least two knots, evenly spaced from the first record to the last (or beyond it, if that is near), in
    ns on the event clock.

    at: per record, its time on the event clock in ns
    """
    first, last = int(at.min()), int(at.max())
    count = int(np.clip((last - first) // _KNOT_NS, 1, _MOST_KNOTS)) + 1
    return np.linspace(first, max(last, first + _LEAST_KNOT_NS), count).astype(np.int64)


@dataclass(frozen=True)
class _Equations:
    """Equations `x @ unknowns = y`, one per observation; the unknowns are those of `_Fit`.

    seen: the observations
    x: (observations, unknowns): the coefficient of each unknown
    y: per observation, ns
    """

    seen: Observations
    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class _Fit:
    """A fit of several unknowns at once: the line's offset at each knot, the shift of each frame, and
    then the parameters of `model`.

    mean, prior           what is assumed of the unknowns beforehand, and its precision (inverse covariance)
    solution, covariance  the unknowns as they were fitted
    weight                per observation, how much it counted: 1 / variance, less for an outlier
    """

    prior: np.ndarray
    mean: np.ndarray
    model: LatencyModel
    solution: np.ndarray
    covariance: np.ndarray
    weight: np.ndarray

    @classmethod
    def before(cls, prior_of_line: np.ndarray, model: LatencyModel) -> _Fit:
        """Return the fit before anything was observed.

        prior_of_line: precision of the offsets at knots and of the shifts of frames
        """
        size = len(prior_of_line)
        prior = np.zeros((size + len(PARAMETERS),) * 2)
        prior[:size, :size] = prior_of_line
        prior[size:, size:] = np.linalg.inv(model.covariance)
        mean = np.concatenate([np.zeros(size), model.vector])
        return cls(prior, mean, model, solution=mean, covariance=prior, weight=mean[:0])

    @property
    def size(self) -> int:
        """How many of the unknowns describe the line; the others are parameters of the model."""
        return len(self.mean) - len(PARAMETERS)

    def with_equations(self, equations: _Equations, scatter_times: float) -> _Fit:
        """Return the next fit, a round of iteratively reweighted least squares: over all equations, each with its
        weight by this fit, and over what is assumed beforehand.

        scatter_times: how many times larger than usual the scatter of observations is taken to be

        At least one of the observations must be certain: where no equation has a weight, nothing says where the line lies.
        """
        x, y = equations.x, equations.y
        weight = self._weights(equations, scatter_times)
        # the normal equations of least squares
        weighted = (x * weight[:, None]).T
        precision = weighted @ x + self.prior
        solution = np.linalg.solve(precision, weighted @ y + self.prior @ self.mean)
        covariance = np.linalg.inv(precision)
        size = self.size
        model = replace(self.model, vector=solution[size:], covariance=covariance[size:, size:])
        return replace(self, model=model, solution=solution, covariance=covariance, weight=weight)

    def _weights(self, equations: _Equations, scatter_times: float) -> np.ndarray:
        """Return how much each equation counts: 1 / variance, less the farther its record lies from where this fit
        expects it, and 0 for an observation whose class is not certain.

        scatter_times: as in `with_equations`
        """
        seen = equations.seen
        sigma_ns = seen.scale_ns * scatter_times
        # by how many sigma the record lies behind where this fit expects it
        behind = (equations.x @ self.solution - equations.y) / sigma_ns
        # GPUs are late, never early: an outlier on the late side soon loses its weight
        late_weight = (_STUDENT + 1) / (_STUDENT + behind**2)
        early_weight = np.minimum(1.0, _HUBER / np.maximum(np.abs(behind), 1e-9))
        is_late = behind * LATE[seen.class_] >= 0
        weight = np.where(is_late, late_weight, early_weight)
        return weight * (seen.certain / sigma_ns**2)

    def common_scatter(self, equations: _Equations, stretch: np.ndarray) -> np.ndarray:
        """Return the covariance of the unknowns that comes from errors which all observations of a stretch on
        an idle stream share.

        stretch: per observation, the number of the stretch between two knots in which it lies
        """
        x = equations.x
        residual = equations.y - x @ self.solution
        weight = self.weight * (equations.seen.class_ == IDLE)
        covariance = np.zeros_like(self.covariance)
        for number in np.unique(stretch[weight > 0]):
            of_stretch = weight * (stretch == number)
            moved = self.covariance @ (of_stretch @ x)  # the unknowns, by a common error of 1 ns
            variance = (of_stretch * residual**2).sum() / of_stretch.sum()
            covariance += np.outer(moved, moved) * variance
        return covariance


def _design(at: np.ndarray, frame: np.ndarray, knots: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Return a row per event: the weight of each knot, then of each frame's shift, in its offset.

    at: per event, its time on the event clock in ns
    frame: per event, the number of its frame
    knots: ns on the event clock; beyond the first and last knot the outermost pieces are extended
    frames: the frames that have a shift, sorted; may be none
    """
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


def _prior(knots: np.ndarray, frames: Frames) -> np.ndarray:
    """Return what is assumed of a line (how an event clock converts to the trace's clock) before anything is observed: the
    precision (inverse covariance) of its unknowns, a square matrix over the offsets at the knots (ns), then the shifts of
    the frames (ns).  A combination `row @ unknowns` that is assumed to be 0 ± error adds `outer(row, row) / error**2`.

    knots: ns on the event clock, evenly spaced
    frames: the frames that have a shift, by their numbers: all frames of the line, or none

    The two clocks' rates differ by a few ppm and change little.  Each frame lies within its error of the frame that it
    was joined to; the first frame is fixed.
    """
    size = len(knots) + len(frames.number)
    step = float(knots[1] - knots[0])
    # a row per piece between knots: its slope, which is the difference of the clocks' rates there
    slope = np.diff(np.eye(len(knots), size), axis=0) / step
    pieces = len(knots) - 1
    # all pieces have the same rate, but for small changes: so many rows together say that it is 0 ± _RATE
    slope_error = _RATE * np.sqrt(pieces)
    precision = slope.T @ slope / slope_error**2
    # a row per inner knot: how much the slope changes there
    bend = np.diff(slope, axis=0)
    # the change from knot to knot is the sum of many small ones in the time between them
    bend_error = _BEND * np.sqrt(step / _KNOT_NS)
    precision += bend.T @ bend / bend_error**2
    # a row per frame: its shift, less that of the frame that it was joined to
    shift_of_frame = np.eye(size)[len(knots) :]
    nearer = np.searchsorted(frames.number, frames.joined_to)
    for position, joined_to in enumerate(frames.joined_to):
        shift = shift_of_frame[position].copy()
        # the first frame's shift is 0: the offsets at the knots are its offsets
        shift_error = 1.0
        if joined_to >= 0:
            shift -= shift_of_frame[nearer[position]]
            # the standard deviation of what lies anywhere within the error
            shift_error = max(frames.error_ns[position] / np.sqrt(3), 1.0)
        precision += np.outer(shift, shift) / shift_error**2
    return precision


@dataclass(frozen=True)
class ClockPlaces:
    """Where the event clock places each record.

    at_ns: per record, its trace time; 0 if it is on no line
    error_ns: per record, the half-width that contains its place in 95 % of cases
    line: per record, the number of its line; -1 for none
    """

    at_ns: np.ndarray
    error_ns: np.ndarray
    line: np.ndarray


def place_records(
    clock: EventClock | None, around: Surroundings, tracing: str, known: np.ndarray
) -> ClockPlaces:
    """Return where the event clocks place each record on the trace's clock, and how uncertain that is (ns).

    clock: the event clocks of the log's records: when each took place by `elapsed_time`; None if the log has no
        references
    around: the surroundings of all records.  The first ones are the records of the log, in its order; records
        that only the trace shows come after them and are on no event clock
    tracing: whether CUPTI traced events: "on", "off" or "unknown" (`placed.event_tracing`)
    known: per record, whether the trace has its call and its stream, so that what surrounds it is known.  Other
        records are placed as well, but they are no evidence

    For each line, `fit_line` finds the conversion to the trace's clock from the records whose surroundings
    are known; then it places all records of the line.  A line without such records is placed nowhere, and neither is one
    whose records may all have been held up.
    """
    place = np.zeros(len(known), np.int64)
    error = np.zeros(len(known), np.int64)
    if clock is None:
        return ClockPlaces(place, error, np.full(len(known), -1))
    # per record of the log and of the trace alone: its time on the event clock, its frame and its line
    only_in_trace = len(known) - len(clock.at_ns)
    at = np.pad(clock.at_ns, (0, only_in_trace))
    frame = np.pad(clock.frame, (0, only_in_trace), constant_values=-1)
    line = pick(clock.frames.line, frame, -1)
    on_line = np.flatnonzero(line >= 0)
    # a line has all its frames, even those whose records have no known surroundings
    frames_of_line = group(clock.frames.line, clock.frames.number)
    for number, records in group(line[on_line], on_line).items():
        fitted = None
        # the fit takes as long as it has evidence: thousands of records spread over the run are enough
        evidence = _every_nth(records[known[records]])
        if len(evidence):
            frames = clock.frames.take(frames_of_line[number])
            fitted = fit_line(around.take(evidence), frame[evidence], at[evidence], tracing, frames)
        if fitted is None:
            line[records] = -1
            continue
        place[records], deviation = fitted.place(at[records], frame[records])
        error[records] = _error_bar(clock, fitted, deviation, frame[records])
    return ClockPlaces(place, error, line)


def _error_bar(
    clock: EventClock, line: Line, deviation: np.ndarray, frame: np.ndarray
) -> np.ndarray:
    """Return, for each record of a line, the half-width (int64 ns) that holds its place in 95 % of cases.

    deviation: per record, the standard deviation of its place by the fit (ns)
    frame: per record, the number of its frame
    """
    if not len(line.frames):
        # too many frames to fit a shift for each: the frame's error adds to it.  The first frame has no error
        # that tells how far it may be off against the line, which all frames together make: 1 s stands for it
        is_first = clock.frames.joined_to < 0
        frame_error_ns = np.where(is_first, 1e9, clock.frames.from_first_ns)
        deviation = np.hypot(deviation, frame_error_ns[frame])
    return np.ceil(1.96 * deviation).astype(np.int64) + clock.tick_ns


def _every_nth(records: np.ndarray) -> np.ndarray:
    """Return every n-th record, with the smallest n that leaves at most _MOST_RECORDS of them."""
    step = max(1, math.ceil(len(records) / _MOST_RECORDS))
    return records[::step]
