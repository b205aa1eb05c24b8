"""Windows on a host thread (kind host): two readings of a host clock around a region.

In a copy or synchronisation call the time belongs to what the call waits for: first what was issued
inside the interval (its kind), then what was queued before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSE
from nsysalign.intervals import (
    Columns,
    covered,
    disjoint,
    group,
    pick,
    positions,
    ragged,
    tile,
    union,
)
from nsysalign.model import (
    CALL,
    ENQUEUEING_CALLS,
    ISSUING_CALLS,
    KIND,
    SYNC_CALLS,
    Alignment,
    Trace,
)
from nsysalign.place.streams import stream_lane
from nsysalign.split.busy import Blocks, first_of
from nsysalign.split.gaps import NEVER, Explainer, Windows, host_pieces
from nsysalign.split.pieces import DETAIL, REF, WORK, Pieces, Spans, join, make

#: A launch this many times slower than the median of its name, with this many operations
#: unfinished, was blocked.
_SLOW, _QUEUE_DEPTH = 10, 900
_KERNELS_AT_ONCE = 1 << 21
#: Flags of an interval.
BEFORE, AFTER, IDLE = "synchronised-before", "synchronised-after", "idle-before"
NO_WORK = "no-gpu-work"


def host_timer_pieces(explainer: Explainer, windows: Windows, spans: Spans) -> Pieces:
    """Tile spans of windows with pieces, exactly."""
    pieces = _by_thread(explainer, windows, spans)
    is_call = pieces.ref_kind == REF["api"]
    call = np.where(is_call, pieces.ref, -1)
    kind = pick(explainer.trace.calls["kind"].to_numpy(), call, CALL["other"])
    staging = _staging(explainer, call, kind)
    waiting = np.isin(kind, [CALL[name] for name in SYNC_CALLS])
    waiting |= staging | _synchronous_copies(explainer.trace, call, kind)
    launching = ~waiting & np.isin(kind, [CALL[name] for name in ISSUING_CALLS])
    # calls that neither launch nor wait are `api` here (records and queries too); what is no call
    # keeps its cause
    cause = np.where(is_call, CAUSE["api"], pieces.cause).astype(np.int8)
    plain = replace(pieces, cause=cause)
    on_lanes = replace(pieces, lane=pick(_lane_of_calls(explainer), call, -1))
    waits = _Waits(
        explainer=explainer,
        windows=windows,
        pieces=on_lanes.take(waiting),
        kind=kind[waiting],
        staging=staging[waiting],
    )
    launches = _launches(explainer, on_lanes.take(launching))
    return join([plain.take(~(waiting | launching)), launches, waits.explained()])


def _by_thread(explainer: Explainer, windows: Windows, spans: Spans) -> Pieces:
    """What the thread of each window did in its spans."""
    pieces: list[Pieces] = []
    lasting = np.flatnonzero(spans.end > spans.start)
    threads = windows.thread[spans.window[lasting]]
    for thread, rows in group(threads, lasting).items():
        pieces += host_pieces(explainer.threads, thread, spans.take(rows))
    return join(pieces)


def _staging(explainer: Explainer, call: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Bool, per call: a copy that has to stage pageable memory."""
    staging = np.zeros(len(kind), dtype=bool)
    copies = np.flatnonzero(kind == CALL["memcpy"])
    staging[copies] = np.isin(call[copies], explainer.call[explainer.pageable])
    return staging


def _synchronous_copies(trace: Trace, call: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Bool, per call: a copy that is synchronous by its name."""
    synchronous = np.zeros(len(kind), dtype=bool)
    copies = np.flatnonzero(kind == CALL["memcpy"])
    names = pd.Series(trace.calls["name_id"].to_numpy()[call[copies]]).map(trace.names)
    synchronous[copies] = ~names.astype("str").str.contains("Async", regex=False)
    return synchronous


def _lane_of_calls(explainer: Explainer) -> np.ndarray:
    """Per call of the trace, the lane of the first operation that it issued, -1 for none."""
    lane = np.full(len(explainer.trace.calls), -1, dtype=np.int64)
    issued = np.flatnonzero(explainer.call >= 0)[::-1]  # the first one is written last
    lane[explainer.call[issued]] = explainer.alignment.operation_lane[issued]
    return lane


def _launches(explainer: Explainer, pieces: Pieces) -> Pieces:
    """Launches, and among them the ones that a full queue blocks."""
    call = pieces.ref
    duration = explainer.call_end - explainer.call_start
    name = explainer.trace.calls["name_id"].to_numpy()
    usual = np.zeros(len(call))
    for number in np.unique(name[call]):
        usual[name[call] == number] = max(np.median(duration[name == number]), 1)
    slow = duration[call] > _SLOW * usual
    lane = np.where(slow, pieces.lane, -1)
    blocked = np.zeros(len(call), dtype=bool)
    for number in np.unique(lane[lane >= 0]).tolist():
        times = explainer.per_lane[number].times
        rows = np.flatnonzero(lane == number)
        begin = explainer.call_start[call[rows]]
        issued = np.searchsorted(times.issue_ns, begin)
        finished = np.searchsorted(np.sort(times.end_ns), begin, side="right")
        blocked[rows] = issued - finished >= _QUEUE_DEPTH
    return replace(
        pieces,
        cause=np.where(blocked, CAUSE["queued"], CAUSE["api_launch"]).astype(np.int8),
        detail=np.where(blocked, DETAIL["full-queue"], 0).astype(np.int8),
        lane=np.where(blocked, lane, -1),
    )


@dataclass(frozen=True)
class _Executions(Columns):
    """What executes while calls wait for it: the number of the piece, when, and the operation; arrays of
    equal length."""

    piece: np.ndarray
    start: np.ndarray
    end: np.ndarray
    operation: np.ndarray


@dataclass(frozen=True)
class _Waits:
    """Copy and synchronisation calls of host timers.  Per piece, the kind of its call, and whether that
    stages pageable memory."""

    explainer: Explainer
    windows: Windows
    pieces: Pieces
    kind: np.ndarray
    staging: np.ndarray

    def explained(self) -> Pieces:
        """The same time, by what the calls wait for: first what was issued inside the interval, by its
        kind, then what was there before."""
        explainer, pieces = self.explainer, self.pieces
        # the pieces end to end on an axis of their own: blocks of all of them are sorted and disjoint
        length = pieces.end - pieces.start
        base = np.cumsum(length) - length
        shift = base - pieces.start
        blocks, rank_of_block = first_of(self._layers(shift))
        cut = tile(base, base + length, blocks.start, blocks.end)
        operation = pick(blocks.ref, cut.block, -1)
        rank = pick(rank_of_block, cut.block, -1)
        busy = rank >= 0
        earlier = rank == WORK
        staging = self.staging[cut.piece]
        copying = self.kind[cut.piece] == CALL["memcpy"]
        calling = np.where(copying, CAUSE["api_launch"], CAUSE["sync"])
        idle = np.where(staging, CAUSE["memcpy"], calling)
        detail = np.where(staging & ~busy, DETAIL["staging"], 0)
        spans = Spans(
            window=pieces.window[cut.piece],
            start=cut.start - shift[cut.piece],
            end=cut.end - shift[cut.piece],
        )
        return make(
            spans,
            np.where(earlier, CAUSE["queued"], np.where(busy, rank, idle)),
            ref_kind=np.where(busy, pick(explainer.kind, operation, -1), REF["api"]),
            ref=np.where(busy, operation, pieces.ref[cut.piece]),
            detail=np.where(earlier, DETAIL["earlier-work"], detail),
            lane=np.where(earlier, pick(explainer.alignment.operation_lane, operation, -1), -1),
        )

    def _layers(self, shift: np.ndarray) -> list[Blocks]:
        """Blocks of what executes, on the axis of `shift`, in order of priority: the kinds of what was
        issued inside the interval (their codes are in this order), then what was issued before."""
        executions = self._executions()
        operation = executions.operation
        issue = pick(self.explainer.call_start, self.explainer.call[operation], NEVER)
        inside = issue >= self.windows.start[self.pieces.window[executions.piece]]
        rank = np.where(inside, self.explainer.kind[operation], WORK)
        start = executions.start + shift[executions.piece]
        end = executions.end + shift[executions.piece]
        layers = []
        for number in range(WORK + 1):
            rows = np.flatnonzero(rank == number)
            rows = rows[np.argsort(start[rows], kind="stable")]
            position, begin, over = disjoint(start[rows], end[rows])
            layers.append(Blocks(begin, over, operation[rows[position]]))
        return layers

    def _executions(self) -> _Executions:
        """What executes on the streams that the calls wait for.  A call waits only for work issued
        before it."""
        explainer, pieces = self.explainer, self.pieces
        empty = np.empty(0, np.int64)
        parts = [_Executions(empty, empty, empty, empty)]
        for lane, waiting in self._waiting_for_lanes():
            blocks = explainer.streams.blocks(lane)
            cut = tile(pieces.start[waiting], pieces.end[waiting], blocks.start, blocks.end)
            operation = pick(blocks.ref, cut.block, -1)
            piece = waiting[cut.piece]
            issue = pick(explainer.call_start, pick(explainer.call, operation, -1), NEVER)
            issued = issue <= explainer.call_start[pieces.ref[piece]]
            executions = _Executions(piece, cut.start, cut.end, operation)
            parts.append(executions.take((operation >= 0) & issued))
        return _Executions.joined(parts)

    def _waiting_for_lanes(self) -> Iterator[tuple[int, np.ndarray]]:
        """Lanes, and which pieces wait for each: a stream synchronisation or a copy waits for its
        stream, a copy also for the streams that the legacy default stream's order puts before it, any
        other call for all of the process."""
        explainer, pieces = self.explainer, self.pieces
        lanes, syncs = explainer.alignment.lanes, explainer.trace.syncs
        sync = positions(pieces.ref, syncs["call"].to_numpy())
        synchronised = pick(stream_lane(lanes, syncs), sync, -1)
        copying = np.where(self.kind == CALL["memcpy"], pieces.lane, -1)
        stream = np.where(self.kind == CALL["sync_stream"], synchronised, copying)
        process = self.windows.process[pieces.window]
        rivals = {
            lane: explainer.default_stream_rivals(lane)
            for lane in set(copying[copying >= 0].tolist())
        }
        for number, owner in enumerate(lanes["process"].tolist()):
            behind = [lane for lane, before in rivals.items() if number in before]
            of_stream = (stream == number) | np.isin(copying, behind)
            rows = np.flatnonzero(np.where(stream >= 0, of_stream, process == owner))
            if len(rows):
                yield number, rows


def kernels_issued_inside(
    trace: Trace,
    process: np.ndarray,
    open_ns: np.ndarray,
    close_ns: np.ndarray,
    kinds: Sequence[str] = ("kernel",),
) -> tuple[np.ndarray, np.ndarray]:
    """(union of the kernels, or operations of other kinds, that were issued inside, wherever they
    ran; how much of it ran after the end) in ns per window."""
    operations = trace.operations
    of_kinds = np.isin(operations["kind"].to_numpy(), [KIND[kind] for kind in kinds])
    total = np.zeros(len(process), np.int64)
    outside = np.zeros(len(process), np.int64)
    for number, windows in group(process, np.arange(len(process))).items():
        issued, issue = issued_by(trace, number, of_kinds)
        start = operations["start_ns"].to_numpy()[issued]
        end = operations["end_ns"].to_numpy()[issued]
        first = np.searchsorted(issue, open_ns[windows])
        count = np.searchsorted(issue, close_ns[windows]) - first
        with_work = np.flatnonzero(count > 0)
        batch = np.cumsum(count[with_work]) // _KERNELS_AT_ONCE
        for rows in np.split(with_work, np.flatnonzero(np.diff(batch)) + 1):
            owner, kernel = ragged(first[rows], count[rows])
            kernel = kernel[np.lexsort((start[kernel], owner))]
            begin, reach = _added_to_union(owner, start[kernel], end[kernel])
            window = windows[rows[owner]]
            np.add.at(total, window, reach - np.minimum(begin, reach))
            begin = np.maximum(begin, close_ns[window])
            np.add.at(outside, window, np.maximum(reach - begin, 0))
    return total, outside


def _added_to_union(
    owner: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(begin, end) of what each interval adds to the union of its owner's intervals that began before
    it; the intervals are sorted by owner, then start.  What adds nothing ends before it begins."""
    reach = pd.Series(end).groupby(owner).cummax().to_numpy()
    begin = start.copy()
    later = np.flatnonzero(owner[1:] == owner[:-1]) + 1
    begin[later] = np.maximum(begin[later], reach[later - 1])
    return begin, reach


def busy_inside(
    trace: Trace, process: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
) -> np.ndarray:
    """For how long (ns) per window anything of its process executed on a GPU, whoever issued it and
    whenever."""
    operations = trace.operations
    start = operations["start_ns"].to_numpy()
    end = operations["end_ns"].to_numpy()
    busy = np.zeros(len(process), np.int64)
    for number, windows in group(process, np.arange(len(process))).items():
        executes = operations["process"].to_numpy() == number
        block_start, block_end = union(start[executes], end[executes])
        before_end = covered(block_start, block_end, end_ns[windows])
        before_start = covered(block_start, block_end, start_ns[windows])
        busy[windows] = before_end - before_start
    return busy


def issued_by(
    trace: Trace, process: int, wanted: np.ndarray | bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The `wanted` operations (a mask) of a process that a call issued, in the order of these calls, and
    when these began."""
    call = trace.operations["call"].to_numpy()
    of_process = trace.operations["process"].to_numpy() == process
    operations = np.flatnonzero(of_process & (call >= 0) & wanted)
    issue = trace.calls["start_ns"].to_numpy()[call[operations]]
    order = np.argsort(issue, kind="stable")
    return operations[order], issue[order]


def synchronisation_flags(trace: Trace, alignment: Alignment) -> list[tuple[str, ...]]:
    """Per window, the flags that hold; () for other kinds than host: does the program wait for the
    GPU before the first reading, and before the second?

    y sync   |t0   s launch   y sync   |t1      both: launch, kernel and synchronisation
    y sync   |t0   s launch            |t1      only before: the enqueueing
             |t0   s launch   y sync   |t1      only after: and what was queued before
             |t0   s launch            |t1      never: the enqueueing, behind a full queue also other work

    synchronised-before: the thread waited for the GPU after the last work that it issued before the
    window, and not inside an earlier window (a loop that synchronises only after has waited there,
    in its previous repetition). synchronised-after: inside, it waited after the last work that it
    issued there, or issued none and waited. idle-before: everything that its process had issued
    before the window had ended when the window began. no-gpu-work: its process issued nothing inside,
    and nothing of it executed.
    """
    windows = alignment.windows
    rows = np.flatnonzero((windows["kind"] == "host").to_numpy())
    flags: list[tuple[str, ...]] = [()] * len(windows)
    if not len(rows):
        return flags
    timers = windows.iloc[rows]
    before, after = _synchronised(trace, timers)
    idle, silent = _without_work(trace, timers)
    columns = {BEFORE: before, AFTER: after, IDLE: idle, NO_WORK: silent}
    for position, number in enumerate(rows.tolist()):
        flags[number] = tuple(name for name, holds in columns.items() if holds[position])
    return flags


def _synchronised(trace: Trace, timers: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Bool, per window of a host timer: synchronised before, and after."""
    outer = trace.calls[trace.outermost]
    kind = outer["kind"]
    waits = kind.isin([CALL[name] for name in SYNC_CALLS]) & (outer["return_value"] == 0)
    launches = kind.isin([CALL[name] for name in ENQUEUEING_CALLS])
    before = np.zeros(len(timers), dtype=bool)
    after = np.zeros(len(timers), dtype=bool)
    for thread, rows in group(timers["thread"].to_numpy(), np.arange(len(timers))).items():
        start = timers["start_ns"].to_numpy()[rows]
        stop = timers["end_ns"].to_numpy()[rows]
        on_thread = outer["thread"] == thread
        launched = np.sort(outer.loc[launches & on_thread, "start_ns"].to_numpy())
        waited = np.sort(outer.loc[waits & on_thread, "end_ns"].to_numpy())
        # a window that ends where this one starts was closed by the same reading, so its wait
        # also counts for this one
        since = np.maximum(_last(launched, start), _last(np.sort(stop), start - 1))
        before[rows] = _last(waited, start) > since
        after[rows] = _last(waited, stop) > np.maximum(start, _last(launched, stop))
    return before, after


def _without_work(trace: Trace, timers: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Bool, per window of a host timer: its process's work had ended when it began; its process issued
    nothing inside and nothing of it executed."""
    process = timers["process"].to_numpy()
    start = timers["start_ns"].to_numpy()
    stop = timers["end_ns"].to_numpy()
    idle = np.zeros(len(timers), dtype=bool)
    silent = np.zeros(len(timers), dtype=bool)
    for number, rows in group(process, np.arange(len(timers))).items():
        issued, issue = issued_by(trace, number)
        ended = np.maximum.accumulate(trace.operations["end_ns"].to_numpy()[issued])
        before_start = np.searchsorted(issue, start[rows]) - 1
        before_stop = np.searchsorted(issue, stop[rows]) - 1
        idle[rows] = start[rows] >= pick(ended, before_start, NEVER)
        silent[rows] = before_start == before_stop
    return idle, silent & (busy_inside(trace, process, start, stop) == 0)


def _last(times: np.ndarray, until: np.ndarray) -> np.ndarray:
    """The latest of some sorted times that is not later than each of `until`."""
    return np.append(NEVER, times)[np.searchsorted(times, until, side="right")]
