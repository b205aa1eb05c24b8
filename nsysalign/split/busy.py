"""When each stream executes what, and what each host thread was doing: sorted disjoint blocks.

Kernels of one stream can overlap (programmatic dependent launch, branches of a graph): blocks are a
union, never a sum.  Where kinds overlap the first of kernel, graph, memcpy, memset names the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

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
from nsysalign.split.pieces import CAUSE

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
    """(what layers cover, the layer of each block): where several overlap the first has the
    word."""
    done, layer_of = layers[0], np.zeros(len(layers[0].start), np.int8)
    for number, layer in enumerate(layers[1:], 1):
        cut = tile(layer.start, layer.end, done.start, done.end)
        free = cut.block < 0
        if not free.any():
            continue
        rest = (cut.start[free], cut.end[free], layer.ref[cut.piece[free]])
        layer_of = np.append(layer_of, np.full(len(rest[0]), number, np.int8))
        both = [np.concatenate(columns) for columns in zip(done, rest, strict=True)]
        order = np.argsort(both[0], kind="stable")
        done, layer_of = Blocks(*(column[order] for column in both)), layer_of[order]
    return done, layer_of


def union_of(table: pd.DataFrame, rows: np.ndarray) -> Blocks:
    """What some rows, sorted by start, cover; the first one has the word."""
    start, end = (table[c].to_numpy() for c in ("start_ns", "end_ns"))
    if len(rows) < len(table):
        start, end = start[rows], end[rows]
    which, start, end = disjoint(start, end)
    return Blocks(start, end, rows[which])


class Streams:
    """Execution by lane, built when it is asked for."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.operations, self.lane_of = trace.operations, alignment.operation_lane
        names = ("process", "device", "context", "stream")
        process, self._device, context, stream = (alignment.lanes[c].to_numpy() for c in names)
        one = stream >= 0
        whole = (stream < 0) & (context == -1)
        #: Lanes that stand for a process's whole device, with those of its streams.
        self.devices = {
            lane: np.flatnonzero(
                one & (process == process[lane]) & (self._device == self._device[lane])
            )
            for lane in np.flatnonzero(whole).tolist()
        }
        #: All that stand for several: these, and the sets of streams of ranges.
        self.members = {**self.devices, **alignment.stream_sets}
        count = len(self.lane_of)
        #: Positions of each lane's operations, by start.
        self.by_lane = group(self.lane_of, np.arange(count, dtype=index_type(count)))
        self._blocks: dict[int, Blocks] = {}
        self._others: dict[tuple[int, int], Blocks] = {}

    def positions(self, lane: int) -> np.ndarray:
        """Positions of the operations of a lane, or of those that it stands for, by start."""
        if lane not in self.members:
            return self.by_lane.get(lane, _NONE)
        return np.flatnonzero(np.isin(self.lane_of, self.members[lane]))

    def blocks(self, lane: int) -> Blocks:
        """When a lane executes what."""
        if lane not in self._blocks:
            own = self.positions(lane)
            kind = self.operations["kind"].to_numpy()[own]
            codes = np.flatnonzero(np.bincount(kind)).tolist()  # in order of priority
            layers = [union_of(self.operations, own[kind == code]) for code in codes or [0]]
            self._blocks[lane] = first_of(layers)[0]
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

    def others(self, lane: int, what: int) -> Blocks:
        """Execution of the other lanes of the device: `what` is RIVAL_KERNELS (graphs included), the
        kind of copies, or NO_RIVAL."""
        key, own = (lane, what), self.members.get(lane, [lane])
        if what == NO_RIVAL or len(self.by_lane) <= len(own):
            return Blocks(_NONE, _NONE, _NONE)
        if key not in self._others:
            if not any(other == lane for other, _ in self._others):
                self._others = {}  # a trace has thousands of streams: one lane is asked at a time
            kind = self.operations["kind"].to_numpy()
            if what == RIVAL_KERNELS:
                wanted = (kind == KIND["kernel"]) | (kind == KIND["graph"])
            else:
                copies = self.operations["copy_kind"].to_numpy() == what
                wanted = (kind == KIND["memcpy"]) & copies
            wanted &= self._device[self.lane_of] == self._device[lane]
            rivals = np.flatnonzero(wanted & ~np.isin(self.lane_of, own))
            self._others[key] = union_of(self.operations, rivals)
        return self._others[key]


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
            over, ranges = (rows.get(thread, _NONE) for rows in (self._overhead, self._ranges))
            begin = self.trace.overhead["start_ns"].to_numpy()[over]
            start, end = (self.trace.ranges[c].to_numpy()[ranges] for c in ("start_ns", "end_ns"))
            order = np.lexsort((-end, start))
            named = innermost(start[order], end[order], ranges[order])
            pauses = self._pauses.get(int(process_of(thread)), _NONE)
            if len(pauses):
                collections = union_of(self.trace.ranges, pauses)
                named, _ = first_of([collections, named])
            self._built[thread] = (
                union_of(self.trace.overhead, over[np.argsort(begin, kind="stable")]),
                named,
            )
        return self._built[thread]


def innermost(start: np.ndarray, end: np.ndarray, name: np.ndarray) -> Blocks:
    """For intervals sorted by (start, -end): disjoint pieces, each with the name of the one that
    began last of those that are open.

    outer  [--------------)          [outer)[inner)[outer)
    inner         [----)        ->
    """
    some = np.flatnonzero(end > start)
    start, end, name = start[some], end[some], name[some]
    count = np.arange(len(start))
    while len(start):
        # what outlasts an earlier one (another domain's) hides it to its own end
        reach = -least(-end, count, np.searchsorted(start, end))
        if (reach == end).all():
            break
        end = reach
    # at one time ends come first
    order = np.argsort(np.concatenate([end, start]), kind="stable")
    begins = order >= len(start)
    time, depth = np.concatenate([end, start])[order], np.cumsum(np.where(begins, 1, -1))
    # the innermost one at a depth is the last that began there
    place = depth * (len(order) + 1) + np.arange(len(order))
    opened = np.flatnonzero(begins)
    opened = opened[np.argsort(place[opened])]
    lasts = np.flatnonzero((depth[:-1] > 0) & (np.diff(time) > 0)) if len(order) else opened
    which = order[opened[np.searchsorted(place[opened], place[lasts], side="right") - 1]]
    return Blocks(time[lasts], time[lasts + 1], name[which - len(start)])
