"""One clock for the events of a process and device: where each record lies relative to all others.

`elapsed_time` says how far two events are apart, to the tick of the GPU's timer, whatever their streams.  Distances to
reference events (the log's `reference` and `elapsed` lines) and the compared pairs themselves are the edges of a graph:

    reference 0 --105.7 ms-- reference 1 --52.2 ms-- reference 2        records that hang together through edges short
        |  |                     |                       |  |           enough for float32 to name the tick form one
       r1  r2                   r3                      r4 r5           *frame*: their distances are exact

Frames are joined by edges that are rounded (a reference renewed after a pause of 10 s: 0.5 us); several such edges,
each rounded in its own way, say more than one.  Where a frame lies on the trace's clock is `event_line`'s to find.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign.model import EventLog

#: Distances up to here are looked at to find the tick: float32 milliseconds are 1 ns apart at 16 ms.
_SHORT_MS = 10.0
#: A distance names the tick if its rounding is at most this share of one.
_NAMES_TICK = 0.45
_KNOWN_TICKS = (1024, 1000, 512, 500, 256, 128, 64, 32, 16, 8)
#: Two ways between the same events may differ by this many ticks; what differs more was measured while an event was
#: recorded again.
_AGREE_TICKS = 1.5


@dataclass(frozen=True)
class EventClock:
    """Per record of the log (in its order): `frame`, -1 for a record that no distance reaches; `at_ns`: its place on the
    process's event clock, exact within a frame.  Per frame: `origin_error_ns`, by how much its place relative to the
    frame before may be wrong (inf: nothing joins them); `line`: which frames lie on one event clock at all (one number
    per process and device).  `tick_ns`: of the GPU's timer, 1 where it does not show."""

    frame: np.ndarray
    at_ns: np.ndarray
    line: np.ndarray
    origin_error_ns: np.ndarray
    tick_ns: int

    def of_rows(self, rows: np.ndarray) -> EventClock:
        """The same for some of the records, given by their row numbers in the whole log."""
        if len(rows) == len(self.frame):
            return self
        return replace(self, frame=self.frame[rows], at_ns=self.at_ns[rows])


def rounding_ns(ms: np.ndarray) -> np.ndarray:
    """Half the spacing of float32 numbers there: by how much a distance in milliseconds may be rounded."""
    return np.spacing(np.abs(ms).astype(np.float32)).astype(float) * 0.5e6


def tick_of(ms: np.ndarray) -> int:
    """The tick of the GPU's timer in ns: the greatest known one of which nearly all short distances are multiples; 1 where
    none shows (too few distances, or a timer that counts nanoseconds)."""
    ms = np.abs(ms[np.isfinite(ms)])
    ns = np.unique(ms[(ms < _SHORT_MS) & (ms > 0)] * 1e6)
    if len(ns) < 8:
        return 1
    for tick in _KNOWN_TICKS:
        off = np.abs(ns - np.rint(ns / tick) * tick)
        if (off <= np.maximum(rounding_ns(ns / 1e6), 0.5) + 0.5).mean() >= 0.98:
            return tick
    return 1


def event_clock(log: EventLog, start: np.ndarray, end: np.ndarray) -> EventClock | None:
    """The event clocks of all processes of a log.  `start`, `end`: positions in `log.records` of both records of every row
    of `log.elapsed`, -1 for one that is not there.  None where the log has no references."""
    if log.references.empty or log.records.empty:
        return None
    return _Graph(log, start, end).solve()


class _Graph:
    """Nodes: the references, then the records of the log."""

    def __init__(self, log: EventLog, start: np.ndarray, end: np.ndarray) -> None:
        self.references, self.records = log.references, log.records
        keys = pd.MultiIndex.from_frame(self.references[["process", "id"]])
        self._unique = keys[~keys.duplicated()]
        self._node = np.flatnonzero(~keys.duplicated())
        keys = pd.MultiIndex.from_frame(self.records[["process", "seq"]])
        self._record_rows = np.flatnonzero(~keys.duplicated())
        self._record_keys = keys[self._record_rows]
        count = len(self.references)
        good = (log.elapsed["error"] == "").to_numpy()
        edges = [self._links()]
        elapsed = log.elapsed
        known = self._reference_nodes(elapsed)
        for which, column in ((start, "start_ms"), (end, "end_ms")):
            edges.append((known, _beyond(which, count), elapsed[column].to_numpy()))
        ms = np.where(good, elapsed["ms"].to_numpy(), np.nan)
        edges.append((_beyond(start, count), _beyond(end, count), ms))
        edges += [self._own_records(count), *self._distances(log, count)]
        one, two, ms = (np.concatenate([e[k] for e in edges]) for k in range(3))
        usable = (one >= 0) & (two >= 0) & np.isfinite(ms) & (one != two)
        self.one, self.two, self.ms = one[usable], two[usable], ms[usable]
        self.tick = tick_of(self.ms)
        self.rounding = rounding_ns(self.ms)
        self.exact = self.rounding <= max(_NAMES_TICK * self.tick, 0.5)
        self.ns = np.where(self.exact, np.rint(self.ms * 1e6 / self.tick) * self.tick, np.rint(self.ms * 1e6))
        self.ns = self.ns.astype(np.int64)
        self.count = count

    def _links(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        r = self.references
        previous = self._find(r["process"].to_numpy(), r["previous"].to_numpy())
        return previous, np.arange(len(r)), r["ms"].to_numpy()

    def _find(self, process: np.ndarray, number: np.ndarray) -> np.ndarray:
        at = self._unique.get_indexer(pd.MultiIndex.from_arrays([process, number]))
        return np.where(at >= 0, self._node[np.maximum(at, 0)], -1)

    def _reference_nodes(self, rows: pd.DataFrame) -> np.ndarray:
        return self._find(rows["process"].to_numpy(), rows["reference"].to_numpy())

    def _own_records(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """A reference and its own record are one."""
        r = self.references
        record = self._find_record(r["process"].to_numpy(), r["record"].to_numpy())
        return np.arange(len(r)), _beyond(record, count), np.zeros(len(r))

    def _find_record(self, process: np.ndarray, seq: np.ndarray) -> np.ndarray:
        """Positions of records, -1 for none."""
        at = self._record_keys.get_indexer(pd.MultiIndex.from_arrays([process, seq]))
        return np.where(at >= 0, self._record_rows[np.maximum(at, 0)], -1)

    def _distances(self, log: EventLog, count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        d = log.distances
        if d.empty:
            return []
        process, known = d["process"].to_numpy(), self._reference_nodes(d)
        start, end = (_beyond(self._find_record(process, d[c].to_numpy()), count) for c in ("start", "end"))
        return [
            (start, end, d["ms"].to_numpy()),
            (known, start, d["start_ms"].to_numpy()),
            (known, end, d["end_ms"].to_numpy()),
        ]

    def solve(self) -> EventClock:
        root, offset = self._frames()
        count = self.count
        reached = np.zeros(len(root), dtype=bool)
        reached[:count] = True
        touched = np.concatenate([self.one, self.two])
        reached[touched] = True
        roots, frame = np.unique(root[reached], return_inverse=True)
        frames = np.full(len(root), -1)
        frames[reached] = frame
        origin, line, error = self._join(frames, offset, len(roots))
        known = frames >= 0
        at = np.where(known, offset + origin[np.maximum(frames, 0)], 0)
        return EventClock(frames[count:], at[count:], line, error, self.tick)

    def _frames(self) -> tuple[np.ndarray, np.ndarray]:
        """(root, distance from it in ns) of every node, through exact edges only."""
        nodes = self.count + len(self.records)
        parent, offset = np.arange(nodes), np.zeros(nodes, dtype=np.int64)
        # most records hang on a reference directly: these need no search
        direct = np.flatnonzero(self.exact & (self.one < self.count) & (self.two >= self.count))
        child, first = np.unique(self.two[direct], return_index=True)
        parent[child], offset[child] = self.one[direct[first]], self.ns[direct[first]]
        tree = _Tree(parent, offset)
        rest = np.flatnonzero(self.exact & (parent[self.one] != parent[self.two]))
        for k in rest.tolist():
            tree.union(int(self.one[k]), int(self.two[k]), int(self.ns[k]))
        return tree.resolved()

    def _join(
        self, frame: np.ndarray, offset: np.ndarray, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(origin, line, error against the frame before) of every frame, from the rounded edges between them."""
        a, b = frame[self.one], frame[self.two]
        between = np.flatnonzero(a != b)
        # origin of b minus origin of a = ms + offset of one - offset of two, within the rounding
        d = self.ms[between] * 1e6 + offset[self.one[between]] - offset[self.two[between]]
        swap = a[between] > b[between]
        low = np.where(swap, -d, d) - self.rounding[between] - self.tick / 2
        high = np.where(swap, -d, d) + self.rounding[between] + self.tick / 2
        first = np.where(swap, b[between], a[between])
        second = np.where(swap, a[between], b[between])
        joined: dict[tuple[int, int], tuple[float, float]] = {}
        for p, q, lo, hi in zip(first.tolist(), second.tolist(), low.tolist(), high.tolist(), strict=True):
            was = joined.get((p, q), (-np.inf, np.inf))
            now = (max(was[0], lo), min(was[1], hi))
            joined[p, q] = now if now[0] <= now[1] else was  # measured while an event was recorded again
        return _spread(joined, count)


class _Tree:
    """Union-find whose edges have a length."""

    def __init__(self, parent: np.ndarray, offset: np.ndarray) -> None:
        self.parent, self.offset = parent.tolist(), offset.tolist()

    def find(self, node: int) -> tuple[int, int]:
        path, total = [], 0
        while self.parent[node] != node:
            path.append(node)
            node = self.parent[node]
        for step in reversed(path):
            total += self.offset[step]
            self.parent[step], self.offset[step] = node, total
        return node, total

    def union(self, one: int, two: int, length: int) -> None:
        (a, x), (b, y) = self.find(one), self.find(two)
        if a != b:
            self.parent[b], self.offset[b] = a, x + length - y

    def resolved(self) -> tuple[np.ndarray, np.ndarray]:
        found = [self.find(n) for n in range(len(self.parent))]
        return np.array([f[0] for f in found], np.int64), np.array([f[1] for f in found], np.int64)


def _spread(
    joined: dict[tuple[int, int], tuple[float, float]], count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Walk from frame to frame along the edges with the least rounding: (origin, line, error) of each."""
    neighbours: dict[int, list[tuple[float, int, float]]] = {}
    for (p, q), (low, high) in joined.items():
        width, middle = (high - low) / 2, (high + low) / 2
        neighbours.setdefault(p, []).append((width, q, middle))
        neighbours.setdefault(q, []).append((width, p, -middle))
    origin = np.zeros(count, np.int64)
    line, error = np.full(count, -1), np.full(count, np.inf)
    for seed in range(count):
        if line[seed] >= 0:
            continue
        line[seed], queue = seed, [seed]
        while queue:
            here = queue.pop(0)
            for width, other, distance in sorted(neighbours.get(here, [])):
                if line[other] < 0:
                    line[other], error[other] = seed, width
                    origin[other] = origin[here] + round(distance)
                    queue.append(other)
    return origin, line, error


def _beyond(record: np.ndarray, references: int) -> np.ndarray:
    """Nodes of records given by position, -1 for none."""
    return np.where(record >= 0, record + references, -1)
