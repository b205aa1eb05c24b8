"""One clock for the events of a process and device: where each record lies relative to all others.

`elapsed_time` says how far apart two events are, to the tick of the GPU's timer, whatever their
streams.  Distances to reference events (the log's `reference` and `elapsed` lines) and the compared
pairs themselves are the edges of a graph:

    reference 0 --105.7 ms-- reference 1 --52.2 ms-- reference 2        records connected through edges short
        |  |                     |                       |  |           enough for float32 to name the tick form one
       r1  r2                   r3                      r4 r5           *frame*: their distances are exact

Frames are joined by edges that are rounded (a reference renewed after a pause of 10 s: 0.5 us);
several such edges, each rounded differently, say more than one.  `align.fit` finds out where a
frame lies on the trace's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.model import EventLog
from nsysalign.place.match import Lookup

#: The tick is determined from distances up to this: float32 milliseconds are 1 ns apart at 16 ms.
_SHORT_MS = 10.0
#: A distance determines the tick if its rounding is at most this share of it.
_NAMES_TICK = 0.45
_KNOWN_TICKS = (1024, 1000, 512, 500, 256, 128, 64, 32, 16, 8)


@dataclass(frozen=True)
class EventClock:
    """Per record of the log: `frame`, -1 for a record that no distance reaches; `at_ns`: its place
    on the process's event clock, exact within a frame.  Per frame: `origin_error_ns`, how far its
    place relative to the previous frame may be off (inf: nothing joins them); `line`: which frames
    lie on one event clock at all (one number per process and device).  `tick_ns`: tick of the GPU's
    timer, 1 if it does not show."""

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
    """The event clocks of all processes of a log; None if the log has no references."""
    if log.references.empty or log.records.empty:
        return None
    count = len(log.references)
    one, two, ms = _edges(log)
    usable = (one >= 0) & (two >= 0) & np.isfinite(ms) & (one != two)
    one, two, ms = one[usable], two[usable], ms[usable]
    swap = one > two
    one, two, ms = np.where(swap, two, one), np.where(swap, one, two), np.where(swap, -ms, ms)
    tick, rounding = tick_of(ms), rounding_ns(ms)
    exact = rounding <= max(_NAMES_TICK * tick, 0.5)
    ns = np.rint(ms * 1e6)
    ns[exact] = np.rint(ms[exact] * 1e6 / tick) * tick
    root, offset = hanging_together(
        count + len(log.records), one[exact], two[exact], ns[exact].astype(np.int64)
    )
    reached = np.zeros(len(root), dtype=bool)
    reached[:count] = True
    reached[one], reached[two] = True, True
    roots, number = np.unique(root[reached], return_inverse=True)
    frame = np.full(len(root), -1)
    frame[reached] = number
    between = np.flatnonzero(frame[one] != frame[two])
    a, b = one[between], two[between]
    distance = ms[between] * 1e6 + offset[a] - offset[b]
    origin, line, error = _join(
        frame[a], frame[b], distance, rounding[between] + tick / 2, len(roots)
    )
    at = np.where(frame >= 0, offset + origin[np.maximum(frame, 0)], 0)
    return EventClock(frame[count:], at[count:], line, error, tick)


def _edges(log: EventLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(one, other, distance in ms) of all pairs of events with a known distance.  Nodes are the
    references, then the records of the log; -1 for a missing one."""
    references, elapsed, distances = log.references, log.elapsed, log.distances
    own = np.arange(len(references))
    # a record captured into a graph is stamped at every replay: it has no single place
    single = np.where(log.records["captured"], -2, log.records["seq"])
    record_of = Lookup(log.records["process"].to_numpy(), single, first=len(own))
    reference_of = Lookup(references["process"].to_numpy(), references["id"].to_numpy())
    told = np.where(elapsed["error"] == "", elapsed["ms"].to_numpy(), np.nan)
    edges = [
        (reference_of(references, "previous"), own, references["ms"].to_numpy()),
        # a reference and its own record are the same node
        (own, record_of(references, "record"), np.zeros(len(own))),
    ]
    for rows, ms in ((elapsed, told), (distances, distances["ms"].to_numpy())):
        known = reference_of(rows, "reference")
        start, end = record_of(rows, "start"), record_of(rows, "end")
        edges.append((start, end, ms))
        edges.append((known, start, rows["start_ms"].to_numpy()))
        edges.append((known, end, rows["end_ms"].to_numpy()))
    one, other, ms = (np.concatenate(column) for column in zip(*edges, strict=True))
    return one, other, ms


def hanging_together(
    count: int, one: np.ndarray, two: np.ndarray, ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(root, distance from it) of each of `count` nodes, given that `two` lies `ns` after `one`,
    with one < two."""
    parent, offset = np.arange(count), np.zeros(count, dtype=np.int64)
    child, first = np.unique(two, return_index=True)  # the first edge that leads back is the path
    parent[child], offset[child] = one[first], ns[first]
    while (parent[parent] != parent).any():
        offset, parent = offset + offset[parent], parent[parent]
    above: dict[int, tuple[int, int]] = {}  # root -> what it hangs on, and how far behind that

    def top(node: int) -> tuple[int, int]:
        root, length = int(parent[node]), int(offset[node])
        while root in above:
            root, length = above[root][0], length + above[root][1]
        return root, length

    # few edges join components that still have different roots
    for k in np.flatnonzero(parent[one] != parent[two]).tolist():
        (a, x), (b, y) = top(one[k]), top(two[k])
        if a != b:
            above[b] = a, x + int(ns[k]) - y
    roots = {root: top(root) for root in above}
    for root, (highest, length) in roots.items():
        members = parent == root
        offset[members] += length
        parent[members] = highest
    return parent, offset


def _join(
    a: np.ndarray, b: np.ndarray, distance: np.ndarray, rounding: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(origin, line, error against the frame before) of every frame, from the rounded distances of
    their origins: from frame to frame along the edges with the least rounding."""
    swap = a > b
    a, b, distance = np.where(swap, b, a), np.where(swap, a, b), np.where(swap, -distance, distance)
    joined: dict[tuple[int, int], tuple[float, float]] = {}
    for p, q, d, r in zip(*(v.tolist() for v in (a, b, distance, rounding)), strict=True):
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
