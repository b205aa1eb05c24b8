"""When each stream executes what, and what each host thread was doing: sorted disjoint blocks.

Kernels of one stream can overlap (programmatic dependent launch, branches of a graph): blocks are a
union, never a sum.  Where kinds overlap the first of kernel, graph, memcpy, memset names the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSE
from nsysalign.intervals import disjoint, group, index_type, least, pick, tile
from nsysalign.model import (
    CALL_KINDS,
    FRAME_RANGE,
    ISSUING_CALLS,
    KIND,
    OPERATOR_RANGE,
    PAUSE,
    PUSH_POP,
    SYNC_CALLS,
    Alignment,
    Trace,
    process_of,
)
from nsysalign.place.ranges import own_calls

#: What competes with an operation: kernels, copies of a kind (its code, >= 0), nothing.
RIVAL_KERNELS, NO_RIVAL = -2, -1
_CAUSE_OF_CALL = {
    **dict.fromkeys(SYNC_CALLS, "sync"),
    **dict.fromkeys(ISSUING_CALLS, "api_launch"),
    **dict.fromkeys(("record", "query_event"), "event"),
}
_NONE = np.empty(0, np.int64)


class Blocks(NamedTuple):
    """Sorted disjoint stretches; `ref`: the position of what each is in its table (operations,
    calls, overhead, ranges)."""

    start: np.ndarray
    end: np.ndarray
    ref: np.ndarray


def first_of(layers: Sequence[Blocks]) -> tuple[Blocks, np.ndarray]:
    """(what layers cover, the layer of each block): where several overlap the first
    names the block."""
    covered = layers[0]
    layer_of = np.zeros(len(covered.start), np.int8)
    for number, layer in enumerate(layers[1:], 1):
        cut = tile(layer.start, layer.end, covered.start, covered.end)
        free = np.flatnonzero(cut.block < 0)
        if not len(free):
            continue
        start = np.concatenate([covered.start, cut.start[free]])
        end = np.concatenate([covered.end, cut.end[free]])
        ref = np.concatenate([covered.ref, layer.ref[cut.piece[free]]])
        layer_of = np.append(layer_of, np.full(len(free), number, np.int8))
        order = np.argsort(start, kind="stable")
        covered = Blocks(start[order], end[order], ref[order])
        layer_of = layer_of[order]
    return covered, layer_of


def union_of(table: pd.DataFrame, rows: np.ndarray) -> Blocks:
    """What rows of a table, sorted by start, cover; where several overlap the first names the block."""
    start, end = table["start_ns"].to_numpy(), table["end_ns"].to_numpy()
    if len(rows) < len(table):
        start, end = start[rows], end[rows]
    position, start, end = disjoint(start, end)
    return Blocks(start, end, rows[position])


class Streams:
    """Execution by lane, built when it is asked for."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.operations = trace.operations
        self.lane_of = alignment.operation_lane
        lanes = alignment.lanes
        process = lanes["process"].to_numpy()
        stream = lanes["stream"].to_numpy()
        self._device = lanes["device"].to_numpy()
        is_device = (stream < 0) & (lanes["context"].to_numpy() == -1)

        def streams_of(lane: int) -> np.ndarray:
            on_device = (process == process[lane]) & (self._device == self._device[lane])
            return np.flatnonzero((stream >= 0) & on_device)

        #: Lanes that stand for a process's whole device, with those of its streams.
        self.devices = {lane: streams_of(lane) for lane in np.flatnonzero(is_device).tolist()}
        #: All that stand for several: these, and the sets of streams of ranges.
        self.members = {**self.devices, **alignment.stream_sets}
        count = len(self.lane_of)
        #: Positions of each lane's operations, by start.
        self.by_lane = group(self.lane_of, np.arange(count, dtype=index_type(count)))
        self._blocks: dict[int, Blocks] = {}
        #: By lane and kind of rivals.
        self._rivals: dict[tuple[int, int], Blocks] = {}

    def positions(self, lane: int) -> np.ndarray:
        """Positions of the operations of a lane, or of those that it stands for, by start."""
        if lane not in self.members:
            return self.by_lane.get(lane, _NONE)
        return np.flatnonzero(np.isin(self.lane_of, self.members[lane]))

    def blocks(self, lane: int) -> Blocks:
        """When a lane executes what."""
        if lane not in self._blocks:
            positions = self.positions(lane)
            kind = self.operations["kind"].to_numpy()[positions]
            codes = np.flatnonzero(np.bincount(kind)).tolist()  # in order of priority
            layers = [union_of(self.operations, positions[kind == code]) for code in codes or [0]]
            self._blocks[lane], _ = first_of(layers)
        return self._blocks[lane]

    def last_on(self, lanes: np.ndarray, at: np.ndarray) -> np.ndarray:
        """The operation of each lane that was the last to end, up to each time (arrays of equal length);
        -1 for none."""
        out = np.full(len(lanes), -1, np.int64)
        for lane, rows in group(lanes, np.arange(len(lanes))).items():
            blocks = self.blocks(lane)
            last = np.searchsorted(blocks.end, at[rows], side="right") - 1
            out[rows] = pick(blocks.ref, last, -1)
        return out

    def rivals(self, lane: int, kind: int) -> Blocks:
        """What the other lanes of the device execute of a kind: RIVAL_KERNELS (graphs included), the
        code of a kind of copies, or NO_RIVAL."""
        members = self.members.get(lane, [lane])
        if kind == NO_RIVAL or len(self.by_lane) <= len(members):
            return Blocks(_NONE, _NONE, _NONE)
        if (lane, kind) not in self._rivals:
            if not any(number == lane for number, _ in self._rivals):
                self._rivals = {}  # a trace has thousands of streams: one lane is asked at a time
            competes = self._of_kind(kind) & (self._device[self.lane_of] == self._device[lane])
            positions = np.flatnonzero(competes & ~np.isin(self.lane_of, members))
            self._rivals[lane, kind] = union_of(self.operations, positions)
        return self._rivals[lane, kind]

    def _of_kind(self, kind: int) -> np.ndarray:
        """Bool, per operation: a kernel or graph for RIVAL_KERNELS, else a copy of this kind."""
        operation_kind = self.operations["kind"].to_numpy()
        if kind == RIVAL_KERNELS:
            return (operation_kind == KIND["kernel"]) | (operation_kind == KIND["graph"])
        copies = self.operations["copy_kind"].to_numpy() == kind
        return (operation_kind == KIND["memcpy"]) & copies


class Threads:
    """Threads by globalTid, built when they are asked for."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        codes = [CAUSE[_CAUSE_OF_CALL.get(kind, "api")] for kind in CALL_KINDS]
        #: The cause of the time in each call.
        self.cause = np.array(codes, dtype=np.int8)[trace.calls["kind"].to_numpy()]
        outer: np.ndarray = np.flatnonzero(trace.outermost & ~own_calls(trace)).astype(
            index_type(len(trace.calls))
        )
        self._calls = group(trace.calls["thread"].to_numpy()[outer], outer)
        self._overhead = group(trace.overhead["thread"].to_numpy(), np.arange(len(trace.overhead)))
        kind = trace.ranges["kind"].to_numpy()
        nested = np.flatnonzero(np.isin(kind, (PUSH_POP, OPERATOR_RANGE, FRAME_RANGE)))
        pauses = np.flatnonzero(kind == PAUSE)
        self._ranges = group(trace.ranges["thread"].to_numpy()[nested], nested)
        #: By process: no thread of it runs Python meanwhile.
        self._pauses = group(trace.ranges["process"].to_numpy()[pauses], pauses)
        self._built: dict[int, tuple[Blocks, Blocks]] = {}

    def calls(self, thread: int, low: int, high: int) -> Blocks:
        """The outermost calls of a thread that are open between two times; they never overlap."""
        rows, start = self._calls.get(thread, _NONE), self.trace.calls["start_ns"].to_numpy()
        # of the type of `rows`: all of them would be converted, each time
        among = np.searchsorted(start, [low, high]).astype(rows.dtype)
        first, last = np.searchsorted(rows, among)
        return union_of(self.trace.calls, rows[max(first - 1, 0) : last])

    def beside_calls(self, thread: int) -> tuple[Blocks, Blocks]:
        """The profiler's own work on a thread, inside calls, too (the calls take precedence), and
        its innermost ranges (operators and Python frames, too): garbage collections of its process,
        before NVTX ranges."""
        if thread not in self._built:
            self._built[thread] = (self._profiler_of(thread), self._ranges_of(thread))
        return self._built[thread]

    def _profiler_of(self, thread: int) -> Blocks:
        """When the profiler itself worked on a thread."""
        rows = self._overhead.get(thread, _NONE)
        start = self.trace.overhead["start_ns"].to_numpy()[rows]
        return union_of(self.trace.overhead, rows[np.argsort(start, kind="stable")])

    def _ranges_of(self, thread: int) -> Blocks:
        """The innermost range of a thread at every time, a garbage collection before an NVTX range."""
        rows = self._ranges.get(thread, _NONE)
        start = self.trace.ranges["start_ns"].to_numpy()[rows]
        end = self.trace.ranges["end_ns"].to_numpy()[rows]
        order = np.lexsort((-end, start))
        ranges = innermost(start[order], end[order], rows[order])
        pauses = self._pauses.get(int(process_of(thread)), _NONE)
        if not len(pauses):
            return ranges
        blocks, _ = first_of([union_of(self.trace.ranges, pauses), ranges])
        return blocks


def innermost(start: np.ndarray, end: np.ndarray, name: np.ndarray) -> Blocks:
    """For intervals sorted by (start, -end): disjoint pieces, each with the name of the one that
    began last of those that are open.

    outer  [--------------)          [outer)[inner)[outer)
    inner         [----)        ->
    """
    lasting = np.flatnonzero(end > start)
    start, end, name = start[lasting], end[lasting], name[lasting]
    count = np.arange(len(start))
    while len(start):
        # what outlasts an earlier one (another domain's) hides it to its own end
        reach = -least(-end, count, np.searchsorted(start, end))
        if (reach == end).all():
            break
        end = reach
    # at one time ends come first
    order = np.argsort(np.concatenate([end, start]), kind="stable")
    time = np.concatenate([end, start])[order]
    begins = order >= len(start)
    depth = np.cumsum(np.where(begins, 1, -1))
    # the innermost one at a depth is the last that began there
    place = depth * (len(order) + 1) + np.arange(len(order))
    opened = np.flatnonzero(begins)
    opened = opened[np.argsort(place[opened])]
    if not len(order):
        return Blocks(time, time, name)
    # a piece reaches from a time to the next one, where an interval is open in between
    edge = np.flatnonzero((depth[:-1] > 0) & (np.diff(time) > 0))
    last_opened = opened[np.searchsorted(place[opened], place[edge], side="right") - 1]
    return Blocks(time[edge], time[edge + 1], name[order[last_opened] - len(start)])
