"""Host timers: windows of kind host, measured by two readings of a host clock around some code.

    thread    |t0       [launch)       [synchronise                    )       |t1
    stream               [A            )[B                        )
    split     |host     |launch|host   |A |B                      |sync|host    |

piece     a stretch of a window with one cause; pieces tile the window
issued    by when the host began the call that launches an operation
waiting   of a call: a synchronisation, or a copy that returns only when it is done (one that is synchronous, or that
          stages pageable memory)

A window of this kind is split by what its thread did.  The time in a call that waits belongs to
what the call waits for: to work that was issued inside the window, by its kind, before work that
was queued before the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSE
from nsysalign.intervals import (
    Columns,
    batches,
    covered,
    disjoint,
    distinct,
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
    OPERATION_KINDS,
    SYNC_CALLS,
    Alignment,
    Trace,
)
from nsysalign.place.streams import stream_lane
from nsysalign.split.busy import Blocks, first_of
from nsysalign.split.gaps import BEFORE_ALL, LEGACY_DEFAULT, Explainer, Windows, host_pieces
from nsysalign.split.pieces import DETAIL, REF, WORK, Pieces, Spans, join, make

#: A launch was blocked by a full queue if it took this many times longer than the median of its
#: name while at least this many operations of its stream had been issued and had not finished.
_SLOW, _QUEUE_DEPTH = 10, 900
#: The queue holds as many of a graph as ever waited in it, to this share; so many launches at least say so.
_FULL, _FEW_GRAPHS = 0.9, 3
_TO_HOST = 2  # the kind of a copy from a device to the host
#: Kernels in windows that are held at once.
_KERNELS_AT_ONCE = 1 << 21
#: Flags of an interval.
BEFORE, AFTER, IDLE = "synchronised-before", "synchronised-after", "idle-before"
NO_WORK = "no-gpu-work"


def host_timer_pieces(explainer: Explainer, windows: Windows, spans: Spans) -> Pieces:
    """Return what the time of host timers (windows between two readings of a host clock) went into: pieces of time, each
    with a cause, that tile these spans of windows exactly, sorted by window and time.

    Each span is tiled by what its thread did.  Of the pieces in calls, those of calls that wait (synchronisations, and
    copies that block the host) are then split by what they wait for, launches are told from launches that a full queue
    blocked, and all others have the cause `api`.

    thread   |t0       [launch)       [synchronise                    )       |t1
    stream              [A            )[B                        )
    pieces   |host     |launch|host   |A |B                      |sync|host    |
    """
    pieces = _pieces_of_threads(explainer, windows, spans)
    # per piece: the call in which it lies, -1 for none, and whether that waits or launches
    is_call = pieces.ref_kind == REF["api"]
    call = np.where(is_call, pieces.ref, -1)
    kind = pick(explainer.trace.calls["kind"].to_numpy(), call, CALL["other"])
    staging = _is_staging(explainer, call, kind)
    waiting = np.isin(kind, [CALL[name] for name in SYNC_CALLS])
    waiting |= staging | _is_synchronous_copy(
        explainer.trace, call, kind
    )  # copies that block the host
    launching = ~waiting & np.isin(kind, [CALL[name] for name in ISSUING_CALLS])
    first = pick(_first_of_calls(explainer), call, -1)
    with_lane = replace(pieces, lane=pick(explainer.alignment.operation_lane, first, -1))
    waits = _Waits(
        explainer=explainer,
        windows=windows,
        pieces=with_lane.take(waiting),
        kind=kind[waiting],
        staging=staging[waiting],
        copies_back_ns=_begin_of_copies_back(explainer, first)[waiting],
    )
    launches = _launches_with_cause(explainer, with_lane.take(launching))
    # calls that neither launch nor wait are `api`, also records and queries, which have the cause `event` in a gap of
    # a stream; pieces outside of calls keep their causes
    cause = np.where(is_call, CAUSE["api"], pieces.cause).astype(np.int8)
    remaining = replace(pieces, cause=cause).take(~(waiting | launching))
    return join([remaining, launches, waits.explained()])


def _pieces_of_threads(explainer: Explainer, windows: Windows, spans: Spans) -> Pieces:
    """Return pieces that tile these spans by what the thread of each window did."""
    pieces: list[Pieces] = []
    lasting = np.flatnonzero(spans.end > spans.start)
    threads = windows.thread[spans.window[lasting]]
    for thread, rows in group(threads, lasting).items():
        pieces += host_pieces(explainer.threads, thread, spans.take(rows))
    return join(pieces)


def _is_staging(explainer: Explainer, call: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Return, per call, whether it is a copy that has to stage pageable memory.

    call, kind: positions of calls and codes of their kinds, arrays of equal length
    """
    staging = np.zeros(len(kind), dtype=bool)
    copies = np.flatnonzero(kind == CALL["memcpy"])
    staging[copies] = np.isin(call[copies], explainer.call[explainer.pageable])
    return staging


def _is_synchronous_copy(trace: Trace, call: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """Return, per call, whether it is a copy that is synchronous by its name.

    call, kind: positions of calls and codes of their kinds, arrays of equal length
    """
    synchronous = np.zeros(len(kind), dtype=bool)
    copies = np.flatnonzero(kind == CALL["memcpy"])
    name_id = trace.calls["name_id"].to_numpy()[call[copies]]
    names = pd.Series(name_id).map(trace.names)
    synchronous[copies] = ~names.astype("str").str.contains("Async", regex=False)
    return synchronous


def _first_of_calls(explainer: Explainer) -> np.ndarray:
    """Return, per call of the trace, the first operation that it issued, -1 for none."""
    first = np.full(len(explainer.trace.calls), -1, dtype=np.int64)
    issued = np.flatnonzero(explainer.call >= 0)
    last_to_first = np.flip(issued)  # of several operations of a call the first is written last
    first[explainer.call[last_to_first]] = last_to_first
    return first


def _begin_of_copies_back(explainer: Explainer, first: np.ndarray) -> np.ndarray:
    """Return, per call, when it begins to copy from a device to the host, before which there is nothing to stage: the data
    come from the device.  BEFORE_ALL for calls that do not copy so.

    first: the first operation of each call, -1 for none
    """
    is_back = pick(explainer.copy_kind == _TO_HOST, first, False)
    return np.where(is_back, pick(explainer.op_start, first, BEFORE_ALL), BEFORE_ALL)


def _launches_with_cause(explainer: Explainer, pieces: Pieces) -> Pieces:
    """Return these pieces of time in launch calls with their cause: `queued` if a full queue blocked the call, and
    `api_launch` otherwise.

    pieces: stretches of launch calls; `ref` is the call, `lane` the lane that it launches to

    A full queue blocked a call that took _SLOW times as long as usual while _QUEUE_DEPTH operations or more
    were issued to its lane and had not ended; of a CUDA graph fewer (`_blocked_graphs`).

    A launch of 5 us that usually takes 4 us: api_launch.  One of 2 ms behind 1,000 waiting kernels: queued.
    """
    call = pieces.ref
    pending = _pending(explainer, call, pieces.lane)
    blocked = _took_long(explainer, call) & (pending >= _QUEUE_DEPTH)
    blocked |= _blocked_graphs(explainer, call, pending)
    return replace(
        pieces,
        cause=np.where(blocked, CAUSE["queued"], CAUSE["api_launch"]).astype(np.int8),
        detail=np.where(blocked, DETAIL["full-queue"], 0).astype(np.int8),
        lane=np.where(blocked, pieces.lane, -1),
    )


def _pending(explainer: Explainer, call: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """Return, per call, how many operations had been issued to its lane when it began, and had not ended; 0 without a lane.

    call, lane: positions of calls and the lanes to which they launch, -1 for none
    """
    pending = np.zeros(len(call), np.int64)
    for number in np.unique(lane[lane >= 0]).tolist():
        times = explainer.per_lane[number].times
        rows = np.flatnonzero(lane == number)
        begin = explainer.call_start[call[rows]]
        issued = np.searchsorted(times.call_start_ns, begin)  # how many by then; these are sorted
        ended = np.searchsorted(np.sort(times.end_ns), begin, side="right")
        pending[rows] = issued - ended
    return pending


def _blocked_graphs(explainer: Explainer, call: np.ndarray, pending: np.ndarray) -> np.ndarray:
    """Return, per call, whether it launches a CUDA graph and was blocked by a full queue.

    call:    positions of calls
    pending: as `_pending` returns it

    How many graphs the queue holds depends on their nodes, which a trace of whole graphs does not tell.  It was full where
    all launches of a graph behind as many operations as ever took _SLOW times as long as the quickest tenth did.

    launches   0.2, 0.2, 0.2, 17, 17, 17 ms        behind 0, 5, 10, 15, 15, 15 operations: the last three
    """
    blocked = np.zeros(len(call), dtype=bool)
    launches_graph = explainer.call_kind[call] == CALL["graph_launch"]
    if not (launches_graph & (pending > 0)).any():
        return blocked
    graph = explainer.graph_of_call[call]
    duration_ns = explainer.call_end[call] - explainer.call_start[call]
    for launches in group(graph[graph >= 0], np.flatnonzero(graph >= 0)).values():
        behind_most = launches[pending[launches] > _FULL * pending[launches].max()]
        quick_ns = np.quantile(duration_ns[launches], 0.1)
        all_slow = (duration_ns[behind_most] > _SLOW * quick_ns).all()
        if all_slow and len(distinct(call[behind_most])) >= _FEW_GRAPHS:
            blocked[behind_most] = True
    return blocked


def _took_long(explainer: Explainer, call: np.ndarray) -> np.ndarray:
    """Return, per call, whether it took _SLOW times as long as the median of all calls of its name.

    call: positions of calls
    """
    duration_ns = explainer.call_end - explainer.call_start
    name_of_call = explainer.trace.calls["name_id"].to_numpy()
    name = name_of_call[call]
    usual_ns = np.zeros(len(call))
    for number in np.unique(name):
        median_ns = np.median(duration_ns[name_of_call == number])
        usual_ns[name == number] = max(median_ns, 1)
    return duration_ns[call] > _SLOW * usual_ns


@dataclass(frozen=True)
class _Executions(Columns):
    """Stretches in which an operation executes while a call waits for it: arrays of equal length.

    piece:      the position of the call's piece
    start, end: ns
    operation:  its position
    """

    piece: np.ndarray
    start: np.ndarray
    end: np.ndarray
    operation: np.ndarray


@dataclass(frozen=True)
class _Waits:
    """Stretches of calls that wait, in host timers.

    pieces:  the stretches; `ref` is the call, `lane` the lane of the operation that it issued
    kind:    per piece, the code of the call's kind
    staging: per piece, whether the call is a copy that stages pageable memory
    copies_back_ns: as `_begin_of_copies_back` returns it, per piece
    """

    explainer: Explainer
    windows: Windows
    pieces: Pieces
    kind: np.ndarray
    staging: np.ndarray
    copies_back_ns: np.ndarray

    def explained(self) -> Pieces:
        """Return pieces that tile the time in these calls by what the calls wait for: work that was issued inside the
        window, by its kind; else work that was queued before the window; else, while no such work executes, the call
        itself.

        sync      [ call waits                    )
        earlier   [A    )
        inside          [B       )   [C      )
        result    [queued)[kernel)[sync)[kernel)[sync)      A names queued, B and C their kernels
        """
        pieces = self.pieces
        # host timers can be nested, so that pieces of several windows overlap in time.  Laid end to end on an axis of
        # their own they do not: what executes during all of them is one row of sorted, disjoint blocks
        length = pieces.end - pieces.start
        axis_start = np.cumsum(length) - length
        shift = axis_start - pieces.start
        blocks, layer_of_block = first_of(self._layers(shift))
        tiles = tile(axis_start, axis_start + length, blocks.start, blocks.end)
        spans = Spans(
            window=pieces.window[tiles.span],
            start=tiles.start - shift[tiles.span],
            end=tiles.end - shift[tiles.span],
        )
        busy = np.flatnonzero(tiles.block >= 0)
        idle = np.flatnonzero(tiles.block < 0)
        block = tiles.block[busy]
        while_busy = self._for_work(spans.take(busy), blocks.ref[block], layer_of_block[block])
        while_idle = self._for_call(spans.take(idle), tiles.span[idle])
        return join([while_busy, while_idle])

    def _for_work(self, spans: Spans, operation: np.ndarray, layer: np.ndarray) -> Pieces:
        """Return a piece for each stretch in which a call waits for an operation that executes.

        operation: its position
        layer:     the code of its kind, or WORK if it was issued before the window
        """
        is_earlier = layer == WORK
        lane = self.explainer.alignment.operation_lane[operation]
        return make(
            spans,
            np.where(is_earlier, CAUSE["queued"], layer),  # codes of causes begin with the kinds
            ref_kind=self.explainer.kind[operation],
            ref=operation,
            detail=np.where(is_earlier, DETAIL["earlier-work"], 0),
            lane=np.where(is_earlier, lane, -1),
        )

    def _for_call(self, spans: Spans, piece: np.ndarray) -> Pieces:
        """Return a piece for each stretch in which a call waits while no work executes that it waits for.

        piece: the position, in `pieces`, of the call's piece
        """
        staging = self.staging[piece] & (spans.start >= self.copies_back_ns[piece])
        copying = self.kind[piece] == CALL["memcpy"]
        cause_without_staging = np.where(copying, CAUSE["api_launch"], CAUSE["sync"])
        return make(
            spans,
            np.where(staging, CAUSE["memcpy"], cause_without_staging),
            ref_kind=REF["api"],
            ref=self.pieces.ref[piece],
            detail=np.where(staging, DETAIL["staging"], 0),
        )

    def _layers(self, shift: np.ndarray) -> list[Blocks]:
        """Return the stretches (blocks) in which something executes for which the calls wait, as layers in order of
        priority: a layer for each kind of work (kernels, copies, ...) that was issued inside the window, in the order of
        the kinds' codes, and a last one for work that was issued before.  The blocks of a layer are disjoint.

        shift: per piece, what takes its times to the axis on which all pieces lie end to end
        """
        executions = self._executions()
        operation = executions.operation
        issue = pick(self.explainer.call_start, self.explainer.call[operation], BEFORE_ALL)
        window = self.pieces.window[executions.piece]
        is_inside = issue >= self.windows.start[window]
        layer_of = np.where(is_inside, self.explainer.kind[operation], WORK)
        start = executions.start + shift[executions.piece]
        end = executions.end + shift[executions.piece]
        layers = []
        for number in range(WORK + 1):
            rows = np.flatnonzero(layer_of == number)
            by_start = rows[np.argsort(start[rows], kind="stable")]
            # where operations of a layer overlap, the first names the block
            place, block_start, block_end = disjoint(start[by_start], end[by_start])
            layers.append(Blocks(block_start, block_end, operation[by_start[place]]))
        return layers

    def _executions(self) -> _Executions:
        """Return what executes on the lanes that the calls wait for, of the work that was issued
        before each call."""
        empty = np.empty(0, np.int64)
        parts = [_Executions(empty, empty, empty, empty)]
        parts += [self._on_lane(lane, waiting) for lane, waiting in self._waiting_for_lanes()]
        for lane, copying in self._copies_in_unknown_order():
            executions = self._on_lane(lane, copying)
            end = self.explainer.op_end[executions.operation]
            # what still runs when the copy begins did not hold it up
            parts.append(executions.take(end <= self.copies_back_ns[executions.piece]))
        return _Executions.joined(parts)

    def _on_lane(self, lane: int, waiting: np.ndarray) -> _Executions:
        """Return what executes on a lane during these pieces, of the work that was issued before the call of each."""
        explainer, pieces = self.explainer, self.pieces
        blocks = explainer.streams.blocks(lane)
        tiles = tile(pieces.start[waiting], pieces.end[waiting], blocks.start, blocks.end)
        operation = pick(blocks.ref, tiles.block, -1)
        piece = waiting[tiles.span]
        issue = pick(explainer.call_start, pick(explainer.call, operation, -1), BEFORE_ALL)
        issued_before = issue <= explainer.call_start[pieces.ref[piece]]
        executions = _Executions(piece, tiles.start, tiles.end, operation)
        return executions.take((operation >= 0) & issued_before)

    def _copies_in_unknown_order(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each legacy default stream (its lane) with the positions of the pieces in copies to the host on streams of its
        context that may be ordered behind it: the trace does not say whether they are blocking.

        stream 15        call [ waits             )copy     )
        default stream   AAAAAAAAAAAAAAAAAAAAAAAAAA            the copy begins when A has ended: it waited for A
        """
        lanes = self.explainer.alignment.lanes
        flag = lanes["flag"].to_numpy()
        process, context = lanes["process"].to_numpy(), lanes["context"].to_numpy()
        lane = self.pieces.lane
        is_unknown = (self.copies_back_ns > BEFORE_ALL) & (pick(flag, lane, 0) < 0)
        for number in np.flatnonzero(flag == LEGACY_DEFAULT).tolist():
            in_context = (process[lane] == process[number]) & (context[lane] == context[number])
            rows = np.flatnonzero(is_unknown & in_context)
            if len(rows):
                yield number, rows

    def _waiting_for_lanes(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each lane (stream) with the positions of the pieces whose calls wait for it.

        A stream synchronisation and a copy wait for their stream; a copy waits also for the streams
        that the order of the legacy default stream puts before it.  Any other call waits for all
        streams of the process; so does one of these whose stream is not known.
        """
        explainer, pieces = self.explainer, self.pieces
        lanes, syncs = explainer.alignment.lanes, explainer.trace.syncs
        # per piece, the lane of its copy, and the lane for which it waits; -1 for none
        row_in_syncs = positions(pieces.ref, syncs["call"].to_numpy())  # of its call; -1 for none
        synchronised = pick(stream_lane(lanes, syncs), row_in_syncs, -1)
        copying = np.where(self.kind == CALL["memcpy"], pieces.lane, -1)
        waited_for = np.where(self.kind == CALL["sync_stream"], synchronised, copying)
        is_lane_known = waited_for >= 0
        process = self.windows.process[pieces.window]
        # lane of copies -> the lanes for which these copies wait by the legacy default stream's order
        also_waited_for = {
            lane: explainer.default_stream_partners(lane)
            for lane in set(copying[copying >= 0].tolist())
        }
        for number, lane_process in enumerate(lanes["process"].tolist()):
            copies_wait = [lane for lane, waited in also_waited_for.items() if number in waited]
            for_lane = waited_for == number
            if copies_wait:
                for_lane |= np.isin(copying, copies_wait)
            for_process = process == lane_process
            rows = np.flatnonzero(np.where(is_lane_known, for_lane, for_process))
            if len(rows):
                yield number, rows


def kernels_issued_inside(
    trace: Trace,
    process: np.ndarray,
    open_ns: np.ndarray,
    close_ns: np.ndarray,
    kinds: Sequence[str] = ("kernel",),
) -> tuple[np.ndarray, np.ndarray]:
    """Return, per window, (for how long the kernels ran that were issued inside it, how long of that
    lay after its end), both in ns.

    Kernels count wherever they ran; where several of a window ran at once, the time counts once.  While two
    run, the time is that of the one that began first.

    process:           per window, its process
    open_ns, close_ns: per window, when it begins and ends
    kinds:             the kinds of operations that count as kernels

    window, t1 at 70 us    [ launch A  launch B  )
    GPU                          A [0   60 us)
                                      B [40    100 us)      ran for 100 us, of which 30 behind t1
    """
    operations = trace.operations
    is_kernel = np.isin(operations["kind"].to_numpy(), [KIND[kind] for kind in kinds])
    total = np.zeros(len(process), np.int64)
    outside = np.zeros(len(process), np.int64)
    for number, windows in group(process, np.arange(len(process))).items():
        kernels, issue_ns = issued_by(trace, number, is_kernel)
        start = operations["start_ns"].to_numpy()[kernels]
        end = operations["end_ns"].to_numpy()[kernels]
        # kernels first, first + 1, ... first + count - 1, in the order of issue, were issued inside the window
        first = np.searchsorted(issue_ns, open_ns[windows])
        count = np.maximum(np.searchsorted(issue_ns, close_ns[windows]) - first, 0)
        for rows in batches(count, _KERNELS_AT_ONCE):
            # pairs of a window (a position in `rows`) and a kernel, sorted by window, then by start.  `row` is sorted
            # as `ragged` returns it: sorting by start inside each window leaves it as it is
            row, kernel = ragged(first[rows], count[rows])
            by_start = np.lexsort((start[kernel], row))
            kernel = kernel[by_start]
            # what each kernel adds to the time of those before it in its window; nothing if stop <= begin
            begin, stop = _added_to_union(row, start[kernel], end[kernel])
            window = windows[rows[row]]
            np.add.at(total, window, np.maximum(stop - begin, 0))
            begin_outside = np.maximum(begin, close_ns[window])
            np.add.at(outside, window, np.maximum(stop - begin_outside, 0))
    return total, outside


def earlier_work(
    trace: Trace,
    process: np.ndarray,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    busy_ns: np.ndarray,
) -> np.ndarray:
    """Return, per window, how long (ns) only work executed that was issued before the window: what
    `busy_inside` counts, without the time of what was issued inside.

    process:          per window, its process
    start_ns, end_ns: per window, when it begins and ends
    busy_ns:          per window, as `busy_inside` returns it

    window      [ launch B         )
    GPU      AAAAAAAAAA  BBBBB          A was launched before: 7 of the 12 busy ns
    """
    ran_ns, after_end_ns = kernels_issued_inside(
        trace, process, start_ns, end_ns, kinds=OPERATION_KINDS
    )
    # of what has no call in the trace nobody knows when it was issued
    without_call = trace.operations["call"].to_numpy() < 0
    unknown_ns = busy_inside(trace, process, start_ns, end_ns, without_call)
    return np.maximum(busy_ns - (ran_ns - after_end_ns) - unknown_ns, 0)


def _added_to_union(
    owner: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (begin, end) of what each interval adds to the union of its owner's earlier intervals.

    An interval that adds nothing gets an end that is not later than its begin.

    owner, start, end: arrays of equal length, sorted by owner, then start

    [0, 60), [40, 100), [50, 70) of one owner:      begin 0, 60, 100; end 60, 100, 100
    """
    reach = pd.Series(end).groupby(owner).cummax().to_numpy()  # the latest end so far
    begin = start.copy()
    not_first = np.flatnonzero(owner[1:] == owner[:-1]) + 1
    begin[not_first] = np.maximum(begin[not_first], reach[not_first - 1])
    return begin, reach


def busy_inside(
    trace: Trace,
    process: np.ndarray,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    wanted: np.ndarray | bool = True,
) -> np.ndarray:
    """Return, per window, how long (ns) anything of its process executed on a GPU, whichever thread
    issued it and whenever.

    process:          per window, its process
    start_ns, end_ns: per window, when it begins and ends
    wanted:           per operation of the trace, whether it counts; True for all
    """
    operations = trace.operations
    start = operations["start_ns"].to_numpy()
    end = operations["end_ns"].to_numpy()
    busy = np.zeros(len(process), np.int64)
    for number, windows in group(process, np.arange(len(process))).items():
        executes = (operations["process"].to_numpy() == number) & wanted
        block_start, block_end = union(start[executes], end[executes])
        before_end = covered(block_start, block_end, end_ns[windows])
        before_start = covered(block_start, block_end, start_ns[windows])
        busy[windows] = before_end - before_start
    return busy


def issued_by(
    trace: Trace, process: int, wanted: np.ndarray | bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return (operations of a process in the order in which they were issued, when that was).

    Operations of which the trace has no call are left out.

    wanted: per operation of the trace, whether it may be among them; True for all
    """
    call = trace.operations["call"].to_numpy()
    of_process = trace.operations["process"].to_numpy() == process
    operations = np.flatnonzero(of_process & (call >= 0) & wanted)
    issue = trace.calls["start_ns"].to_numpy()[call[operations]]
    order = np.argsort(issue, kind="stable")
    return operations[order], issue[order]


def synchronisation_flags(trace: Trace, alignment: Alignment) -> list[tuple[str, ...]]:
    """Return, per window, the flags of a host timer: whether the program waits for the GPU before the
    first reading of the clock, and before the second.  () for other windows.

    where the thread launches and waits            waits              what the timer measures
    [synchronise)   |t0 [launch) [synchronise) |t1     before and after   launch, kernel and synchronisation
    [synchronise)   |t0 [launch)               |t1     before only        the enqueueing
                    |t0 [launch) [synchronise) |t1     after only         also what was queued before
                    |t0 [launch)               |t1     never              the enqueueing; behind a full queue other work

    synchronised-before   after the last work that the thread issued before the window, it waited for
                          the GPU.  A wait inside an earlier window does not count: in a loop that waits
                          only at the end of each timer, all timers but the first would have the flag
    synchronised-after    inside the window the thread waited, after the last work that it issued there
                          if it issued any
    idle-before           all work that the process had issued before the window had ended when the
                          window began
    no-gpu-work           the process issued no work inside the window, and none executed
    """
    windows = alignment.windows
    rows = np.flatnonzero((windows["kind"] == "host").to_numpy())
    flags: list[tuple[str, ...]] = [()] * len(windows)
    if not len(rows):
        return flags
    timers = windows.iloc[rows]
    before, after = _is_synchronised(trace, timers)
    idle, without_work = _without_work(trace, timers)
    columns = {BEFORE: before, AFTER: after, IDLE: idle, NO_WORK: without_work}
    for position, number in enumerate(rows.tolist()):
        flags[number] = tuple(name for name, holds in columns.items() if holds[position])
    return flags


def _is_synchronised(trace: Trace, timers: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return two bool arrays with a value per host timer: whether its thread waited for the GPU before the window after the
    last work that it had issued (synchronised-before), and whether it did inside the window (synchronised-after; see
    `synchronisation_flags`).

    timers: rows of `alignment.windows`
    """
    outer = trace.calls[trace.outermost]
    kind = outer["kind"]
    is_wait = kind.isin([CALL[name] for name in SYNC_CALLS]) & (outer["return_value"] == 0)
    is_launch = kind.isin([CALL[name] for name in ENQUEUEING_CALLS])
    before = np.zeros(len(timers), dtype=bool)
    after = np.zeros(len(timers), dtype=bool)
    for thread, rows in group(timers["thread"].to_numpy(), np.arange(len(timers))).items():
        start = timers["start_ns"].to_numpy()[rows]
        stop = timers["end_ns"].to_numpy()[rows]
        on_thread = outer["thread"] == thread
        launches = np.sort(outer.loc[is_launch & on_thread, "start_ns"].to_numpy())
        waits = np.sort(outer.loc[is_wait & on_thread, "end_ns"].to_numpy())
        # before: the last wait is later than the last launch, and than the end of the last earlier window
        # of the thread.  A window that ends at `start` was closed by the reading that opens this one: a wait
        # before that reading counts for both, so that such a window is not an earlier one (start - 1)
        last_window_end = _latest_until(np.sort(stop), start - 1)
        last_launch = _latest_until(launches, start)
        before[rows] = _latest_until(waits, start) > np.maximum(last_launch, last_window_end)
        # after: the last wait is inside the window, and later than the last launch
        last_launch = _latest_until(launches, stop)
        after[rows] = _latest_until(waits, stop) > np.maximum(start, last_launch)
    return before, after


def _without_work(trace: Trace, timers: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return, per host timer, (whether it is idle-before, whether it has no-gpu-work).

    timers: rows of `alignment.windows`
    """
    process = timers["process"].to_numpy()
    start = timers["start_ns"].to_numpy()
    stop = timers["end_ns"].to_numpy()
    idle = np.zeros(len(timers), dtype=bool)
    issues_none = np.zeros(len(timers), dtype=bool)
    for number, rows in group(process, np.arange(len(timers))).items():
        issued, issue = issued_by(trace, number)
        # per operation, when it and all that were issued before it have ended
        ended = np.maximum.accumulate(trace.operations["end_ns"].to_numpy()[issued])
        # the last operation that was issued before the window begins, and before it ends; -1 for none
        before_start = np.searchsorted(issue, start[rows]) - 1
        before_stop = np.searchsorted(issue, stop[rows]) - 1
        idle[rows] = start[rows] >= pick(ended, before_start, BEFORE_ALL)
        issues_none[rows] = before_start == before_stop
    return idle, issues_none & (busy_inside(trace, process, start, stop) == 0)


def _latest_until(times: np.ndarray, until: np.ndarray) -> np.ndarray:
    """Return, per time of `until`, the latest of the sorted `times` that is not later, or BEFORE_ALL."""
    count = np.searchsorted(times, until, side="right")
    return np.append(BEFORE_ALL, times)[count]
