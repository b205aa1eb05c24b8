"""When each stream executes what, and what each host thread does when: sorted disjoint blocks.

    operations  [kernel A )              [memcpy   )
                     [kernel B )             [kernel C )
    blocks      [A        )[B  )         [mc)[C        )

block     a stretch of time with one reason; the blocks of a lane or thread are sorted by time and
          never overlap
lane      a stream of one process, by its number in `alignment.lanes`; some lanes stand for several
          streams: those of a whole device, or those on which the work of a range ran
position  the row of something in its table of the trace

Kernels of one stream can overlap (programmatic dependent launch, branches of a graph), so blocks
are a union, never a sum.  Where operations of several kinds overlap, the block is of the first kind
in the order kernel, graph, memcpy, memset.
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
    OFF_CPU,
    OPERATOR_RANGE,
    PAUSE,
    PUSH_POP,
    SYNC_CALLS,
    Alignment,
    Trace,
    process_of,
)
from nsysalign.place.ranges import own_calls

#: The kind of operations that compete with one for the device: these two, or the code of a kind of
#: copies (>= 0), for a copy engine.
RIVAL_KERNELS, NO_RIVAL = -2, -1
_CAUSE_OF_CALL = {
    **dict.fromkeys(SYNC_CALLS, "sync"),
    **dict.fromkeys(ISSUING_CALLS, "api_launch"),
    **dict.fromkeys(("record", "query_event"), "event"),
}
_NONE = np.empty(0, np.int64)


class Blocks(NamedTuple):
    """Sorted, disjoint stretches of time: arrays of equal length.

    start, end: int64 ns
    ref:        what each stretch is: a position in operations, calls, overhead or ranges
    """

    start: np.ndarray
    end: np.ndarray
    ref: np.ndarray

    def between(self, low: int, high: int) -> Blocks:
        """Return those that are open at some time between two times (ns)."""
        first = np.searchsorted(self.end, low, side="right")
        stop = np.searchsorted(self.start, high)
        return Blocks(self.start[first:stop], self.end[first:stop], self.ref[first:stop])


def first_of(layers: Sequence[Blocks]) -> tuple[Blocks, np.ndarray]:
    """Lay several rows of blocks (stretches of time) on top of each other, and return (the blocks that are seen from above,
    the number of each block's layer): where layers overlap, the first one counts.

    layers: at least one; each is sorted by time and disjoint, and so is the result

    layer 0       [A  )          [B )
    layer 1    [C        )    [D )
    result     [C)[A  )[C)    [D)[B )      layers 1, 0, 1, 1, 0
    """
    visible = layers[0]
    layer_of = np.zeros(len(visible.start), np.int8)
    for number, layer in enumerate(layers[1:], 1):
        # the parts of this layer's blocks that no earlier layer covers
        tiles = tile(layer.start, layer.end, visible.start, visible.end)
        uncovered = np.flatnonzero(tiles.block < 0)
        if not len(uncovered):
            continue
        start = np.concatenate([visible.start, tiles.start[uncovered]])
        end = np.concatenate([visible.end, tiles.end[uncovered]])
        ref = np.concatenate([visible.ref, layer.ref[tiles.span[uncovered]]])
        layer_of = np.append(layer_of, np.full(len(uncovered), number, np.int8))
        order = np.argsort(start, kind="stable")
        visible = Blocks(start[order], end[order], ref[order])
        layer_of = layer_of[order]
    return visible, layer_of


class Times(NamedTuple):
    """When each row of a table begins and ends (ns)."""

    start: np.ndarray
    end: np.ndarray


def times_of(table: pd.DataFrame) -> Times:
    """Return the times of a table with the columns start_ns and end_ns."""
    return Times(table["start_ns"].to_numpy(), table["end_ns"].to_numpy())


def union_of(times: Times, rows: np.ndarray) -> Blocks:
    """Return the blocks that rows of a table cover together.

    times: of all rows
    rows:  positions in the table, sorted by start; where rows overlap, the first names the block
    """
    start, end = times
    if len(rows) < len(start):
        start = start[rows]
        end = end[rows]
    place, block_start, block_end = disjoint(start, end)
    return Blocks(block_start, block_end, rows[place])


def _streams_of_devices(lanes: pd.DataFrame) -> dict[int, np.ndarray]:
    """Return, for each lane that stands for a process's whole device, the lanes of its streams.

    lanes: `alignment.lanes`
    """
    process = lanes["process"].to_numpy()
    device = lanes["device"].to_numpy()
    stream = lanes["stream"].to_numpy()
    is_device = (stream < 0) & (lanes["context"].to_numpy() == -1)
    streams_of = {}
    for lane in np.flatnonzero(is_device).tolist():
        on_device = (process == process[lane]) & (device == device[lane])
        streams_of[lane] = np.flatnonzero((stream >= 0) & on_device)
    return streams_of


class Streams:
    """The blocks that each lane executes, made when they are asked for the first time."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        """Group the operations of a trace by lane; blocks are made later."""
        self.operations = trace.operations
        self._times = times_of(trace.operations)
        #: Per operation, its lane.
        self.lane_of = alignment.operation_lane
        lanes = alignment.lanes
        #: Per lane, its device.
        self._device = lanes["device"].to_numpy()
        #: Each lane that stands for a process's whole device -> the lanes of its streams.
        self.devices = _streams_of_devices(lanes)
        #: Each lane that stands for several streams -> the lanes of these: whole devices, and the
        #: sets of streams on which the work of ranges ran.
        self.members = {**self.devices, **alignment.stream_sets}
        count = len(self.lane_of)
        #: Lane -> the positions of its operations, sorted by start.
        self.by_lane = group(self.lane_of, np.arange(count, dtype=index_type(count)))
        self._blocks: dict[int, Blocks] = {}
        #: Lane and kind of rivals -> the blocks of these rivals.
        self._rivals: dict[tuple[int, int], Blocks] = {}

    def positions(self, lane: int) -> np.ndarray:
        """Return the positions of a lane's operations, sorted by start.

        For a lane that stands for several streams these are the operations of all of them.
        """
        if lane not in self.members:
            return self.by_lane.get(lane, _NONE)
        return np.flatnonzero(np.isin(self.lane_of, self.members[lane]))

    def blocks(self, lane: int) -> Blocks:
        """Return the blocks that a lane executes; `ref` is a position in operations."""
        if lane not in self._blocks:
            positions = self.positions(lane)
            kind = self.operations["kind"].to_numpy()[positions]
            codes = np.flatnonzero(np.bincount(kind)).tolist()  # in order of priority
            layers = [union_of(self._times, positions[kind == code]) for code in codes or [0]]
            self._blocks[lane], _ = first_of(layers)
        return self._blocks[lane]

    def lanes_on(self, device: int) -> list[int]:
        """Return the lanes of a device's streams, and those that stand for a set of these streams.

        device: the lane that stands for the whole device, which is not among them
        """
        streams = self.devices[device]
        sets = [
            lane
            for lane, members in self.members.items()
            if lane not in self.devices and np.isin(members, streams).all()
        ]
        return [*streams.tolist(), *sets]

    def last_on(self, lanes: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Return, for each lane and time, the operation of the last block that had ended by then.

        lanes, at: arrays of equal length; the times are in ns

        The operations are positions, -1 where no block had ended.
        """
        out = np.full(len(lanes), -1, np.int64)
        for lane, rows in group(lanes, np.arange(len(lanes))).items():
            blocks = self.blocks(lane)
            last = np.searchsorted(blocks.end, at[rows], side="right") - 1
            out[rows] = pick(blocks.ref, last, -1)
        return out

    def rivals(self, lane: int, kind: int) -> Blocks:
        """Return the blocks of one kind that the other lanes of a lane's device execute.

        kind: RIVAL_KERNELS for kernels and graphs, the code of a kind of copies, or NO_RIVAL for
              no blocks at all
        """
        members = self.members.get(lane, [lane])
        if kind == NO_RIVAL or len(self.by_lane) <= len(members):
            return Blocks(_NONE, _NONE, _NONE)
        if (lane, kind) not in self._rivals:
            if not any(number == lane for number, _ in self._rivals):
                # only one lane's rivals are kept: a trace may have thousands of streams, and they
                # are asked for one after the other
                self._rivals = {}
            competes = self._of_kind(kind) & (self._device[self.lane_of] == self._device[lane])
            positions = np.flatnonzero(competes & ~np.isin(self.lane_of, members))
            self._rivals[lane, kind] = union_of(self._times, positions)
        return self._rivals[lane, kind]

    def _of_kind(self, kind: int) -> np.ndarray:
        """Return, per operation, whether it is of a kind of rivals.

        kind: RIVAL_KERNELS for kernels and graphs, else the code of a kind of copies
        """
        operation_kind = self.operations["kind"].to_numpy()
        if kind == RIVAL_KERNELS:
            return (operation_kind == KIND["kernel"]) | (operation_kind == KIND["graph"])
        copies = self.operations["copy_kind"].to_numpy() == kind
        return (operation_kind == KIND["memcpy"]) & copies


class Threads:
    """What each host thread does when, made when it is asked for.  Threads are given by globalTid."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._times = times_of(trace.calls)
        codes = [CAUSE[_CAUSE_OF_CALL.get(kind, "api")] for kind in CALL_KINDS]
        #: Per call, the code of the cause of the time in it.
        self.cause = np.array(codes, dtype=np.int8)[trace.calls["kind"].to_numpy()]
        outer: np.ndarray = np.flatnonzero(trace.outermost & ~own_calls(trace)).astype(
            index_type(len(trace.calls))
        )
        #: Thread -> positions of what happened on it.
        self._calls = group(trace.calls["thread"].to_numpy()[outer], outer)
        self._overhead = group(trace.overhead["thread"].to_numpy(), np.arange(len(trace.overhead)))
        kind = trace.ranges["kind"].to_numpy()
        nested = np.flatnonzero(np.isin(kind, (PUSH_POP, OPERATOR_RANGE, FRAME_RANGE)))
        pauses = np.flatnonzero(kind == PAUSE)
        self._ranges = group(trace.ranges["thread"].to_numpy()[nested], nested)
        #: Process -> positions of its garbage collections, during which none of its threads runs
        #: Python.
        self._pauses = group(trace.ranges["process"].to_numpy()[pauses], pauses)
        #: Thread -> positions of stretches in which it hardly ran.
        off = np.flatnonzero(kind == OFF_CPU)
        self._off_cpu = group(trace.ranges["thread"].to_numpy()[off], off)
        #: Thread -> (stretches of the profiler's own work, its innermost ranges), made when they are first asked for.
        self._built: dict[int, tuple[Blocks, Blocks]] = {}

    def calls(self, thread: int, low: int, high: int) -> Blocks:
        """Return the outermost calls of a thread that are open at some time between two times (ns).

        Outermost calls never overlap.
        """
        rows = self._calls.get(thread, _NONE)
        # calls are sorted by start; in the type of `rows`, all of which would be converted otherwise, at each call
        begun = np.searchsorted(self._times.start, [low, high]).astype(rows.dtype)
        first, stop = np.searchsorted(rows, begun)
        # the last call that began before `low` may still be open then
        return union_of(self._times, rows[max(first - 1, 0) : stop])

    def beside_calls(self, thread: int) -> tuple[Blocks, Blocks]:
        """Return (when the profiler itself worked on a thread, the innermost range at every time).

        The profiler works inside calls too; there the call is what counts.  Ranges are NVTX ranges,
        operators, Python frames, and the garbage collections of the process, which come before all
        other ranges.
        """
        if thread not in self._built:
            self._built[thread] = (self._profiler_of(thread), self._ranges_of(thread))
        return self._built[thread]

    def _profiler_of(self, thread: int) -> Blocks:
        """Return when the profiler itself worked on a thread."""
        rows = self._overhead.get(thread, _NONE)
        times = times_of(self.trace.overhead)
        return union_of(times, rows[np.argsort(times.start[rows], kind="stable")])

    def _ranges_of(self, thread: int) -> Blocks:
        """Return the innermost range of a thread at every time.

        Where a garbage collection and another range are open, it is the garbage collection.  That the thread hardly ran
        counts where no other range is open.
        """
        rows = self._ranges.get(thread, _NONE)
        start = self.trace.ranges["start_ns"].to_numpy()[rows]
        end = self.trace.ranges["end_ns"].to_numpy()[rows]
        order = np.lexsort((-end, start))
        ranges = innermost(start[order], end[order], rows[order])
        pauses = self._pauses.get(int(process_of(thread)), _NONE)
        off = self._off_cpu.get(thread, _NONE)
        if not len(pauses) and not len(off):
            return ranges
        times = times_of(self.trace.ranges)
        blocks, _ = first_of([union_of(times, pauses), ranges, union_of(times, off)])
        return blocks


def innermost(start: np.ndarray, end: np.ndarray, name: np.ndarray) -> Blocks:
    """Return which of several nested intervals is the innermost one at every time: sorted, disjoint blocks, each with the
    name of the open interval that began last.

    outer    [--------------------)
    inner           [------)
    result   [outer)[inner )[outer)

    start, end: ns, sorted by start, of equal starts the longest first
    name:       what each interval is (the `ref` of its blocks)
    """
    lasting = np.flatnonzero(end > start)
    start = start[lasting]
    end = end[lasting]
    name = name[lasting]
    end = _nested_ends(start, end)  # one of another domain may outlast the one around it
    around = _smallest_around(start, end)
    # changes: at its start an interval becomes the innermost one, at its end the one around it (-1: none) does.
    # Several may come at one time: ends first, then starts, and of the ends the outermost interval's last.  The
    # sort below is stable, and inner intervals start later, so the ends are put in reversed order
    time = np.concatenate([end[::-1], start])
    new_innermost = np.concatenate([around[::-1], np.arange(len(start))])
    order = np.argsort(time, kind="stable")
    time, new_innermost = time[order], new_innermost[order]
    # a block lasts from one change to the next
    lasts = time[1:] > time[:-1]
    blocks = np.flatnonzero((new_innermost[:-1] >= 0) & lasts)
    return Blocks(time[blocks], time[blocks + 1], name[new_innermost[blocks]])


def _smallest_around(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return, per interval, the position of the smallest other interval that contains it, -1 for none.

    start, end: ns, properly nested, sorted by start, of equal starts the longest first

    [0, 9) [1, 5) [2, 4) [6, 8):      around them -1, 0, 1, 0
    """
    number = np.arange(len(start))
    ended = np.searchsorted(np.sort(end), start, side="right")  # how many had ended by each start
    depth = number - ended  # in how many others each one lies
    around = np.full(len(start), -1)
    at_depth = group(depth, number)
    for level in range(1, len(at_depth)):
        inner, outer = at_depth[level], at_depth[level - 1]
        around[inner] = outer[np.searchsorted(outer, inner) - 1]  # the last one that began before
    return around


def _nested_ends(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return ends with which the intervals are properly nested, each no earlier than it was.

    An interval that begins inside another one and outlasts it (one of another domain) hides it up
    to its own end: the other one is treated as if it ended there too.

    [0, 10) [5, 15):      ends 15, 15

    start, end: ns, sorted by start, of equal starts the longest first; none is empty
    """
    number = np.arange(len(start))
    while True:
        begun_before_end = np.searchsorted(start, end)
        # of each interval and those that begin inside it, the latest end
        latest = -least(-end, number, begun_before_end)
        if (latest == end).all():
            return end
        end = latest
