"""When each stream executes what: sorted disjoint blocks per lane with one operation and one cause
each.

Kernels of one stream can overlap (programmatic dependent launch, branches of a graph): blocks are a
union, never a sum.  Where kinds overlap the first of kernel, graph, memcpy, memset names the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nsysalign.intervals import disjoint, group, index_type, tile
from nsysalign.model import KIND, Alignment, Trace
from nsysalign.split.run_windows import devices

#: What competes with an operation: kernels, copies of a kind (its code, >= 0), nothing.
RIVAL_KERNELS, NO_RIVAL = -2, -1
_PRIORITY = ("kernel", "graph", "memcpy", "memset")


@dataclass(frozen=True)
class Blocks:
    """Disjoint execution of one lane: start, end, operation (position in Trace.operations),
    kind."""

    start: np.ndarray
    end: np.ndarray
    operation: np.ndarray
    kind: np.ndarray


def lane_blocks(trace: Trace, positions: np.ndarray) -> Blocks:
    """Blocks of the operations at `positions` (sorted by start)."""
    if not len(positions):
        none = np.empty(0, np.int64)
        return Blocks(none, none, none, none.astype(np.int8))
    whole = len(positions) == len(trace.operations)
    start, end, kind = (
        trace.operations[c].to_numpy() if whole else trace.operations[c].to_numpy()[positions]
        for c in ("start_ns", "end_ns", "kind")
    )
    done: Blocks | None = None
    for name in _PRIORITY:
        this = kind == KIND[name]
        if not this.any():
            continue
        if this.all():
            which, s, e = disjoint(start, end)
            which = positions if len(which) == len(positions) else positions[which]
        else:
            which, s, e = disjoint(start[this], end[this])
            which = positions[this][which]
        block = Blocks(s, e, which, np.broadcast_to(np.int8(KIND[name]), len(s)))
        done = block if done is None else _under(done, block)
    assert done is not None  # every operation is of some kind
    return done


def _under(top: Blocks, low: Blocks) -> Blocks:
    """`top`, and the parts of `low` that it does not cover."""
    if (
        len(top.start)
        and len(low.start)
        and (top.end[-1] <= low.start[0] or low.end[-1] <= top.start[0])
    ):
        free = np.arange(len(low.start))
        s, e = low.start, low.end
    else:
        cut = tile(low.start, low.end, top.start, top.end)
        outside = cut.block < 0
        free, s, e = cut.piece[outside], cut.start[outside], cut.end[outside]
    start = np.concatenate([top.start, s])
    order = np.argsort(start, kind="stable")
    return Blocks(
        start[order],
        np.concatenate([top.end, e])[order],
        np.concatenate([top.operation, low.operation[free]])[order],
        np.concatenate([top.kind, low.kind[free]])[order],
    )


class Streams:
    """Lazily built views of the trace's lanes."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.trace = trace
        #: For lanes that stand for several, the lanes they stand for.
        self.members = devices(alignment.lanes)
        self.operation_lane = alignment.operation_lane
        self.lane_device = alignment.lanes["device"].to_numpy()
        self._blocks: dict[int, Blocks] = {}
        self._others: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    @cached_property
    def by_lane(self) -> dict[int, np.ndarray]:
        """Positions of each lane's operations, by start."""
        count = len(self.operation_lane)
        return group(self.operation_lane, np.arange(count, dtype=index_type(count)))

    def blocks(self, lane: int) -> Blocks:
        if lane not in self._blocks:
            self._blocks[lane] = lane_blocks(self.trace, self.positions(lane))
        return self._blocks[lane]

    def positions(self, lane: int) -> np.ndarray:
        """Positions of the operations of a lane, or of those that it stands for, by start."""
        if lane not in self.members:
            return self.by_lane.get(lane, np.empty(0, np.int64))
        return np.flatnonzero(np.isin(self.operation_lane, self.members[lane]))

    def others(self, lane: int, what: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Disjoint (start, end, operation) of the other lanes of the device: `what` is
        RIVAL_KERNELS (graphs included), the kind of copies, or NO_RIVAL."""
        key, own = (lane, what), self.members.get(lane, [lane])
        if what == NO_RIVAL or len(self.by_lane) <= len(own):
            none = np.empty(0, np.int64)
            return none, none, none
        if key not in self._others:
            if not any(other == lane for other, _ in self._others):
                self._others = {}  # a trace has thousands of streams: one lane is asked at a time
            operations = self.trace.operations
            kind = operations["kind"].to_numpy()
            if what == RIVAL_KERNELS:
                wanted = (kind == KIND["kernel"]) | (kind == KIND["graph"])
            else:
                wanted = (kind == KIND["memcpy"]) & (operations["copy_kind"].to_numpy() == what)
            same_device = self.lane_device[self.operation_lane] == self.lane_device[lane]
            positions = np.flatnonzero(wanted & same_device & ~np.isin(self.operation_lane, own))
            which, s, e = disjoint(
                operations["start_ns"].to_numpy()[positions],
                operations["end_ns"].to_numpy()[positions],
            )
            self._others[key] = (s, e, positions[which])
        return self._others[key]
