"""Why a stream was idle: the table of docs/design.md, rules 5 to 16, for all idle stretches at
once.

    host     ...[ a0  call that issues N  a1 )
    stream   PPPPP|-- gap ---------------------|NNNN
                  host: rules 10-15 | 9 | 6, 7, 8

P ran before, N runs next; N is the end record where nothing else was issued before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSE
from nsysalign.intervals import FAR, Columns, distinct, group, pick, ragged, tile
from nsysalign.model import CALL, KIND, MIGRATIONS, OPERATION_KINDS, Alignment, Trace, process_of
from nsysalign.place.streams import lane_operations
from nsysalign.split.busy import NO_RIVAL, RIVAL_KERNELS, Blocks, Streams, Threads
from nsysalign.split.pieces import DETAIL, REF, Pieces, Spans, host_side, join, make

LEGACY_DEFAULT, BLOCKING = 3, 1
NEVER = -FAR  # a time before all others
PAGEABLE = 0  # CUDA_MEMOPR_MEMORY_KIND_PAGEABLE
_COPY_DEVICE_KINDS = (1, 2)  # host-to-device, device-to-host
#: Latency of a launch if a trace shows too few of its kind on an idle device (ns).
_FALLBACK_NS, _ENOUGH = 5_000, 5
#: A record that the stream reaches this long after an operation's end was held up by something else.
_RIGHT_BEHIND_NS = 20_000
#: A node of a graph that begins later after the one before it waits for what is not in the trace: a host
#: node, a wait for an event.
NODE_GAP_NS = 10_000
#: What a thread does beside calls, by what such a piece points to.
_CAUSE_BESIDE_CALLS = {"overhead": CAUSE["profiler"], "nvtx": CAUSE["host"]}


@dataclass(frozen=True)
class Windows(Columns):
    """Arrays of equal length: the place of each window, its lane, or the thread of a host timer, and its
    end record (or the end of the range).

    close_ns: start of the end record's call (nothing issued later belongs to the window);
    close_end_ns: its end; close_thread, close_call: the thread and call that made it; record: its
    position in the alignment's records, -1 for none.
    """

    start: np.ndarray
    end: np.ndarray
    lane: np.ndarray
    thread: np.ndarray
    process: np.ndarray
    host: np.ndarray
    close_ns: np.ndarray
    close_end_ns: np.ndarray
    close_thread: np.ndarray
    close_call: np.ndarray
    record: np.ndarray

    @classmethod
    def measured(cls, alignment: Alignment) -> Windows:
        """All windows where they were placed.  Only a window of kind event is closed by a record: the
        work of a range ends with its own last operation."""
        windows = alignment.windows
        kind = windows["kind"].to_numpy()
        close_ns = windows["close_ns"].to_numpy()
        close_end_ns = windows["close_end_ns"].to_numpy()
        record = windows["end"].to_numpy()
        closed = kind == "event"
        if not closed.all():
            close_ns = np.where(closed, close_ns, FAR)
            close_end_ns = np.where(closed, close_end_ns, FAR)
            record = np.where(closed, record, -1)
        calls = np.append(alignment.records["call"].to_numpy(), -1)
        return cls(
            start=windows["start_ns"].to_numpy(),
            end=windows["end_ns"].to_numpy(),
            lane=windows["end_lane"].to_numpy(),
            thread=windows["thread"].to_numpy(),
            process=windows["process"].to_numpy(),
            host=kind == "host",
            close_ns=close_ns,
            close_end_ns=close_end_ns,
            close_thread=windows["end_thread"].to_numpy(),
            close_call=calls[record],
            record=record,
        )

    @classmethod
    def endless(cls, lane: int) -> Windows:
        """One window over all of a lane that no record closes."""
        return cls(
            start=np.array([-FAR]),
            end=np.array([FAR]),
            lane=np.array([lane]),
            thread=np.array([-1]),
            process=np.array([-1]),
            host=np.array([False]),
            close_ns=np.array([FAR]),
            close_end_ns=np.array([FAR]),
            close_thread=np.array([-1]),
            close_call=np.array([-1]),
            record=np.array([-1]),
        )

    @classmethod
    def places(cls, alignment: Alignment) -> Iterator[Windows]:
        """All windows as measured, then at either end of their error bars if any of them has a bar."""
        windows, measured = alignment.windows, cls.measured(alignment)
        yield measured
        closed = windows["kind"].to_numpy() == "event"
        error = np.where(closed, windows["error_ns"].to_numpy(), 0)
        for sign, edge in ((-1, "start_lower_ns"), (1, "start_upper_ns")):
            room = sign * (windows[edge].to_numpy() - measured.start)
            shift = sign * np.minimum(error, np.maximum(room, 0))
            if shift.any():
                yield replace(measured, start=measured.start + shift, end=measured.end + shift)


@dataclass(frozen=True)
class Gaps(Columns):
    """Idle stretches: arrays of equal length.

    window, start, end; lane; next, previous (positions in operations, -1: the end record / none);
    stream, before: the same lane and P, but of a whole device N's own stream and P there;
    issue_start, issue_end, issue_thread, issue_call: the call that issues N; known: the trace has that
    call; ref: what N is, an operation or the end record (its position in the alignment's records).
    """

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    lane: np.ndarray
    next: np.ndarray
    previous: np.ndarray
    stream: np.ndarray
    before: np.ndarray
    issue_start: np.ndarray
    issue_end: np.ndarray
    issue_thread: np.ndarray
    issue_call: np.ndarray
    known: np.ndarray
    ref: np.ndarray


class _Tiling:
    """Gaps that are tiled with pieces, from the left: what has no piece yet begins at `since`.

    gap      [----------------------------)
    pieces   [memcpy)[host    )[api_launch)
                               ^ since, before the last of them
    """

    def __init__(self, gaps: Gaps) -> None:
        self.gaps = gaps
        self.since = gaps.start
        self.pieces: list[Pieces] = []

    def advance(self, until: np.ndarray) -> Spans:
        """What lies before `until` and has no piece yet: the positions of gaps (`window`), and where.
        It counts as tiled from then on."""
        stop = np.minimum(np.maximum(until, self.since), self.gaps.end)
        gap = np.flatnonzero(stop > self.since)
        spans = Spans(gap, self.since[gap], stop[gap])
        self.since = stop
        return spans

    def give(self, until: np.ndarray, cause: Any, **reference: Any) -> None:
        """A piece of this cause for what lies before `until` and has none yet.  `reference`: as in
        `Pieces`, for each gap or for all of them."""
        spans = self.advance(until)
        gap = spans.window

        def of_gaps(values: Any) -> Any:
            return values if np.ndim(values) == 0 else values[gap]

        columns = {name: of_gaps(values) for name, values in reference.items()}
        spans = replace(spans, window=self.gaps.window[gap])
        self.pieces.append(make(spans, of_gaps(cause), **columns))


@dataclass(frozen=True)
class _Behind(Columns):
    """Until when something is ordered behind other work (NEVER: it is not), and behind which: as in
    `Pieces`."""

    until: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray
    detail: np.ndarray
    lane: np.ndarray

    @classmethod
    def nobody(cls, size: int) -> _Behind:
        """So many rows that are ordered behind nothing."""
        return cls(
            until=np.full(size, NEVER),
            ref_kind=np.zeros(size, np.int64),
            ref=np.full(size, -1),
            detail=np.zeros(size, np.int64),
            lane=np.full(size, -1),
        )

    def put(self, rows: np.ndarray, behind: _Behind) -> None:
        """These rows become those of `behind`; of several for one row the last counts."""
        for name, column in vars(self).items():
            column[rows] = getattr(behind, name)

    def reference(self) -> dict[str, np.ndarray]:
        """What a piece that waits points to."""
        return {name: column for name, column in vars(self).items() if name != "until"}


class Explainer:
    """Everything the rules need, built once per trace.  `latency`: see `launch_latency`."""

    def __init__(self, trace: Trace, alignment: Alignment, latency: np.ndarray) -> None:
        self.trace = trace
        self.alignment = alignment
        self.launch_latency = latency
        self.streams = Streams(trace, alignment)
        self.threads = Threads(trace)
        self.per_lane = lane_operations(trace, alignment.operation_lane)
        operations, calls = trace.operations, trace.calls
        self.kind = operations["kind"].to_numpy()
        self.copy_kind = operations["copy_kind"].to_numpy()
        self.call = operations["call"].to_numpy()
        self.op_start = operations["start_ns"].to_numpy()
        self.op_end = operations["end_ns"].to_numpy()
        self.call_start = calls["start_ns"].to_numpy()
        self.call_end = calls["end_ns"].to_numpy()
        self.call_thread = calls["thread"].to_numpy()
        self.call_kind = calls["kind"].to_numpy()
        self.pageable = self._copies_of_pageable_memory()
        self.faulting = faulting_threads(trace)
        waits = alignment.wait_calls
        known = waits[(waits["record"] >= 0) & (waits["lane"] >= 0)]
        #: Per lane: when its waits were issued, and the records that they wait for.
        self._waits = {int(lane): self._waits_of(rows) for lane, rows in known.groupby("lane")}
        veils = np.isin(calls["kind"], [CALL["host_function"], CALL["stream_memory_op"]])
        #: Per thread, starts of calls that put something between a stream's operations which the
        #: trace does not show.
        self._veils = group(self.call_thread[veils], self.call_start[veils])

    def _copies_of_pageable_memory(self) -> np.ndarray:
        """Bool, per operation: a copy between the device and pageable memory of the host."""
        pageable = self.kind == KIND["memcpy"]
        copies = np.flatnonzero(pageable)
        with_host = np.isin(self.copy_kind[copies], _COPY_DEVICE_KINDS)
        memory = host_side(self.trace.operations, copies)
        pageable[copies] = with_host & (memory == PAGEABLE)
        return pageable

    def _waits_of(self, waits: pd.DataFrame) -> tuple[np.ndarray, _Behind]:
        """When waits of one lane were issued, in order, and behind what each of them puts the lane."""
        records = self.alignment.records
        issue = self.call_start[waits["call"].to_numpy()]
        order = np.argsort(issue, kind="stable")
        record = waits["record"].to_numpy()[order]
        inferred = waits["inferred"].to_numpy()[order]
        operation = self._ended_before(record)
        behind = _Behind(
            until=records["t_ns"].to_numpy()[record],
            ref_kind=pick(self.kind, operation, REF["event"]),
            ref=np.where(operation >= 0, operation, record),
            detail=np.where(inferred, DETAIL["dependency-inferred"], DETAIL["dependency"]),
            lane=records["lane"].to_numpy()[record],
        )
        return issue[order], behind

    def _ended_before(self, records: np.ndarray) -> np.ndarray:
        """The operation right behind which each of these records lies on its own stream, -1 for
        none: what a wait for the record waits for."""
        table = self.alignment.records
        lane = table["lane"].to_numpy()[records]
        call = table["call"].to_numpy()[records]
        time = table["t_ns"].to_numpy()[records]
        operation = np.full(len(records), -1)
        for number, rows in group(lane, np.arange(len(records))).items():
            ops = self.per_lane.get(number)
            if ops is None:
                continue
            recorded = pick(self.call_start, call[rows], NEVER)
            issued = np.searchsorted(ops.times.issue_ns, recorded)
            reach = pick(ops.times.reach_ns, issued - 1, NEVER)
            farthest = np.searchsorted(ops.times.reach_ns, reach)
            last = ops.position[np.minimum(farthest, len(ops.position) - 1)]
            operation[rows] = np.where(time[rows] - reach <= _RIGHT_BEHIND_NS, last, -1)
        return operation

    def explain(self, gaps: Gaps) -> list[Pieces]:
        """Pieces that tile every gap exactly, in no order: rule by rule, each from where the one
        before ended."""
        tiling = _Tiling(gaps)
        self._give_staging_of_previous(tiling)  # rule 5, P's side
        # rule 16
        unknown = np.where(gaps.known, NEVER, FAR)
        next_kind = pick(self.kind, gaps.next, REF["event"])
        next_is = {"ref_kind": next_kind, "ref": gaps.ref}
        tiling.give(unknown, CAUSE["unknown"], **next_is, detail=DETAIL["no-api-row"])
        self._give_host(tiling)  # rules 10 to 15
        # rule 6 before 5: while its stream waits for other work, a pageable copy stages nothing
        behind = self._dependency(gaps)
        staging = pick(self.pageable, gaps.next, False)
        held = np.where(staging, np.minimum(behind.until, gaps.issue_end), NEVER)
        tiling.give(held, CAUSE["queued"], **behind.reference())
        # rules 9 and 5 (N's side): inside the call that issues N
        is_operation = gaps.next >= 0
        launching = np.where(is_operation, CAUSE["api_launch"], CAUSE["event"])
        tiling.give(
            gaps.issue_end,
            np.where(staging, CAUSE["memcpy"], launching),
            ref_kind=np.where(staging, next_kind, REF["api"]),
            ref=np.where(staging, gaps.next, gaps.issue_call),
            detail=np.where(staging, DETAIL["staging"], 0),
        )
        # N has been issued, and waits for other work (rule 6), or something that is not in the trace
        opaque = np.where(self._behind_host_function(gaps), FAR, NEVER)
        tiling.give(opaque, CAUSE["unknown"], **next_is, detail=DETAIL["host-function"])
        tiling.give(behind.until, CAUSE["queued"], **behind.reference())
        # rule 8: it is on its way for the ordinary latency after its call, or after P
        ready = np.maximum(gaps.issue_end, pick(self.op_end, gaps.previous, NEVER))
        usual = pick(self.launch_latency, pick(self.kind, gaps.next, -1), 0)
        in_graph = self.in_one_graph(gaps.previous, gaps.next)
        in_graph |= self.in_one_graph(gaps.before, gaps.next)
        begins = np.where(
            in_graph, np.maximum(ready + usual, gaps.start + NODE_GAP_NS), ready + usual
        )
        arrival = np.where(is_operation, begins, FAR)
        underway = np.where(is_operation, CAUSE["launch_latency"], CAUSE["event"])
        cause = np.where(in_graph, CAUSE["graph"], underway)
        between = np.where(in_graph, DETAIL["between-nodes"], 0)
        tiling.give(arrival, cause, **next_is, detail=between)
        return tiling.pieces + self._contended(gaps, tiling.since, in_graph)

    def in_one_graph(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Whether two operations (positions, -1 for none) are nodes of one launch of a CUDA graph."""
        call = pick(self.call, after, -1)
        kind = pick(self.call_kind, call, -1)
        return (kind == CALL["graph_launch"]) & (call == pick(self.call, before, -1))

    def _give_staging_of_previous(self, tiling: _Tiling) -> None:
        """Rule 5: the call of a pageable copy that has finished on the stream but not on the host."""
        previous = tiling.gaps.previous
        call = pick(self.call, previous, -1)
        staged = pick(self.pageable, previous, False)
        staged &= pick(self.call_start, call, FAR) <= tiling.since
        until = np.where(staged, pick(self.call_end, call, NEVER), NEVER)
        detail = DETAIL["staging"]
        tiling.give(until, CAUSE["memcpy"], ref_kind=REF["memcpy"], ref=previous, detail=detail)

    def _give_host(self, tiling: _Tiling) -> None:
        """Rules 10 to 15: the host has not begun to issue N."""
        gaps = tiling.gaps
        spans = tiling.advance(gaps.issue_start)
        thread = gaps.issue_thread[spans.window]
        spans = replace(spans, window=gaps.window[spans.window])
        for number, rows in group(thread, np.arange(len(thread))).items():
            tiling.pieces += host_pieces(self.threads, number, spans.take(rows))

    def _contended(self, gaps: Gaps, since: np.ndarray, in_graph: np.ndarray) -> list[Pieces]:
        """Rule 7: past that, while other streams keep the device busy (kernels for a kernel or
        graph), or the copy engine (copies of its own direction for a copy)."""
        pieces, left = [], np.flatnonzero(since < gaps.end)
        kind = pick(self.kind, gaps.next, -1)
        direction = pick(self.copy_kind, gaps.next, -1)
        copies = np.where(kind == KIND["memcpy"], direction, NO_RIVAL)
        kernels = np.isin(kind, [KIND["kernel"], KIND["graph"]])
        rival_kind = np.where(kernels, RIVAL_KERNELS, copies)
        for lane, on_lane in group(gaps.lane[left], left).items():
            for rivals, rows in group(rival_kind[on_lane], on_lane).items():
                blocks = self.streams.rivals(lane, rivals)
                cut = tile(since[rows], gaps.end[rows], blocks.start, blocks.end)
                rival = pick(blocks.ref, cut.block, -1)
                gap = rows[cut.piece]
                spans = Spans(gaps.window[gap], cut.start, cut.end)
                pieces.append(self._behind_rivals(spans, rival, gaps.next[gap], in_graph[gap]))
        return pieces

    def _behind_rivals(
        self, spans: Spans, rival: np.ndarray, following: np.ndarray, in_graph: np.ndarray
    ) -> Pieces:
        """Pieces that wait for an operation of another lane (`rival`, -1: for none) before the
        `following` one."""
        busy = rival >= 0
        alone = np.where(in_graph, CAUSE["unknown"], CAUSE["launch_latency"])
        between = np.where(in_graph, DETAIL["between-nodes"], 0)
        ref = np.where(busy, rival, following)
        return make(
            spans,
            np.where(busy, CAUSE["queued"], alone),
            ref_kind=self.kind[ref],
            ref=ref,
            detail=np.where(busy, DETAIL["contention"], between),
            lane=pick(self.alignment.operation_lane, rival, -1),
        )

    def _behind_host_function(self, gaps: Gaps) -> np.ndarray:
        """Whether a host function or stream memory operation was issued between P and N on N's
        stream.

        The trace has no stream for these calls and no end for what they hold up.  A call counts for
        the stream if its thread's previous and next operations were both issued to that stream.
        """
        out = np.zeros(len(gaps.window), dtype=bool)
        for number, veils in self._veils.items():
            rows = np.flatnonzero(gaps.issue_thread == number)
            before = gaps.before[rows]
            previous = pick(self.call, before, -1)
            on_thread = pick(self.call_thread, previous, -1) == number
            first = np.searchsorted(veils, pick(self.call_start, previous, NEVER))
            between = np.searchsorted(veils, gaps.issue_start[rows]) > first
            out[rows] = between & (on_thread | (before < 0))
        return out

    def _dependency(self, gaps: Gaps) -> _Behind:
        """Rule 6: behind what each N is ordered, the latest of all."""
        latest = _Behind.nobody(len(gaps.window))
        for stream in distinct(gaps.stream).tolist():
            rows = np.flatnonzero(gaps.stream == stream)
            if stream in self._waits:
                self._put_waits(latest, gaps, stream, rows)
            for rival in self.default_stream_rivals(stream):
                self._put_default_stream(latest, gaps, rival, rows)
        return latest

    def _put_waits(self, latest: _Behind, gaps: Gaps, stream: int, rows: np.ndarray) -> None:
        """What gaps of a stream wait for: waits that were issued to it between P and N."""
        issue, behind = self._waits[stream]
        previous_call = pick(self.call, gaps.before[rows], -1)
        previous_issue = pick(self.call_start, previous_call, NEVER)
        first = np.searchsorted(issue, previous_issue, side="right")
        last = np.searchsorted(issue, gaps.issue_start[rows], side="left")
        owner, wait = ragged(first, np.maximum(last - first, 0))
        # the latest one comes last and is kept
        order = np.argsort(behind.until[wait], kind="stable")
        latest.put(rows[owner[order]], behind.take(wait[order]))

    def _put_default_stream(
        self, latest: _Behind, gaps: Gaps, rival: int, rows: np.ndarray
    ) -> None:
        """What gaps wait for by the order of the legacy default stream: operations of the lane `rival`
        that were issued before, if they end later than what is known already."""
        ops = self.per_lane[rival]
        issued = np.searchsorted(ops.times.issue_ns, gaps.issue_start[rows])
        reach = pick(ops.times.reach_ns, issued - 1, NEVER)
        later = reach > latest.until[rows]
        reach = reach[later]
        operation = ops.position[np.searchsorted(ops.times.reach_ns, reach)]
        behind = _Behind(
            until=reach,
            ref_kind=self.kind[operation],
            ref=operation,
            detail=np.full(len(reach), DETAIL["default-stream-order"]),
            lane=np.full(len(reach), rival),
        )
        latest.put(rows[later], behind)

    def default_stream_rivals(self, lane: int) -> list[int]:
        """Lanes of the same context that the legacy default stream is implicitly ordered with."""
        lanes = self.alignment.lanes
        process = lanes["process"].to_numpy()
        context = lanes["context"].to_numpy()
        flag = lanes["flag"].to_numpy()
        partner = {LEGACY_DEFAULT: BLOCKING, BLOCKING: LEGACY_DEFAULT}.get(flag[lane])
        in_context = (process == process[lane]) & (context == context[lane])
        rivals = np.flatnonzero(in_context & (flag == partner))
        return [number for number in rivals.tolist() if number in self.per_lane]


def stream_pieces(explainer: Explainer, windows: Windows, spans: Spans) -> Pieces:
    """Tile spans of windows on streams with pieces, exactly, each as its window sees its stream."""
    pieces, gaps = [], []
    for lane, rows in group(windows.lane[spans.window], np.arange(len(spans.window))).items():
        blocks = explainer.streams.blocks(lane)
        cut = tile(spans.start[rows], spans.end[rows], blocks.start, blocks.end)
        tiles = Spans(spans.window[rows[cut.piece]], cut.start, cut.end)
        busy = np.flatnonzero(cut.block >= 0)
        idle = np.flatnonzero(cut.block < 0)
        operation = blocks.ref[cut.block[busy]]
        kind = explainer.kind[operation]  # codes of causes begin with the kinds of operations
        pieces.append(make(tiles.take(busy), kind, ref_kind=kind, ref=operation))
        gaps.append(_gaps(explainer, windows, lane, tiles.take(idle)))
    return join([*pieces, *explainer.explain(Gaps.joined(gaps))] if gaps else [])


def _gaps(explainer: Explainer, windows: Windows, lane: int, idle: Spans) -> Gaps:
    """P and N of each idle stretch of one lane, as its window sees them: N is the end record where
    nothing else was issued before it."""
    blocks, window = explainer.streams.blocks(lane), idle.window
    close_ns, close_call = windows.close_ns[window], windows.close_call[window]
    previous = _block_before(blocks, idle.start)
    after = np.searchsorted(blocks.start, idle.start, side="left")
    following = pick(blocks.ref, np.where(after < len(blocks.start), after, -1), -1)
    call = pick(explainer.call, following, -1)
    issue = pick(explainer.call_start, call, FAR)
    # an operation that runs inside the window was issued before the end, whether or not the trace
    # has its call
    inside = pick(explainer.op_start, following, FAR) < windows.end[window]
    use = (following >= 0) & np.where(call >= 0, issue < close_ns, inside)
    from_call = use & (call >= 0)
    fault = np.where(use, pick(explainer.faulting, following, -1), -1)
    sure = from_call | (fault >= 0)
    thread = np.where(fault >= 0, fault, windows.close_thread[window])
    operation = np.where(use, following, -1)
    stream, before = np.full(len(window), lane), previous
    if lane in explainer.streams.members:
        # waits apply to the stream on which N was issued
        before = previous.copy()
        stream[use] = explainer.alignment.operation_lane[operation[use]]
        for number, rows in group(stream[use], np.flatnonzero(use)).items():
            before[rows] = _block_before(explainer.streams.blocks(number), idle.start[rows])
    return Gaps(
        window=window,
        start=idle.start,
        end=idle.end,
        lane=np.full(len(window), lane),
        next=operation,
        previous=previous,
        stream=stream,
        before=before,
        issue_start=np.where(sure, issue, close_ns),
        issue_end=np.where(sure, pick(explainer.call_end, call, FAR), windows.close_end_ns[window]),
        issue_thread=np.where(from_call, pick(explainer.call_thread, call, 0), thread),
        issue_call=np.where(from_call, call, close_call),
        known=sure | (~use & (close_call >= 0)),
        ref=np.where(use, following, windows.record[window]),
    )


def _block_before(blocks: Blocks, time: np.ndarray) -> np.ndarray:
    """The operation of the last block that had ended at each time, -1 for none."""
    return pick(blocks.ref, np.searchsorted(blocks.end, time, side="right") - 1, -1)


def faulting_threads(trace: Trace) -> np.ndarray:
    """Per operation: the thread on which its idle time depends although no call issued it, -1 for
    none.  A page of managed memory that migrates was touched by a kernel or by the host: while
    nothing ran, the host had not touched it.  Which of several threads did is not known."""
    operations = trace.operations
    out = np.full(len(operations), -1, np.int64)
    pages = np.isin(operations["copy_kind"].to_numpy(), MIGRATIONS)
    moved = np.flatnonzero(pages & (operations["call"].to_numpy() < 0))
    if not len(moved):
        return out
    process = operations["process"].to_numpy()
    threads = distinct(trace.calls["thread"].to_numpy())
    for number in distinct(process[moved]).tolist():
        candidates = threads[process_of(threads) == number]
        if len(candidates) == 1:
            out[moved[process[moved] == number]] = candidates[0]
    return out


def host_pieces(threads: Threads, thread: int, spans: Spans) -> list[Pieces]:
    """What a thread did in these spans (at least one), in no order: calls, profiler work, and outside CUDA
    its innermost NVTX range."""
    calls = threads.calls(thread, spans.start.min(), spans.end.max())
    profiler, ranges = threads.beside_calls(thread)
    pieces = []
    # what a layer leaves is looked for in the next
    for ref_kind, blocks in (("api", calls), ("overhead", profiler), ("nvtx", ranges)):
        if not len(blocks.start):
            continue
        cut = tile(spans.start, spans.end, blocks.start, blocks.end)
        tiles = Spans(spans.window[cut.piece], cut.start, cut.end)
        busy = np.flatnonzero(cut.block >= 0)
        ref = blocks.ref[cut.block[busy]]
        cause = threads.cause[ref] if ref_kind == "api" else _CAUSE_BESIDE_CALLS[ref_kind]
        pieces.append(make(tiles.take(busy), cause, ref_kind=REF[ref_kind], ref=ref))
        spans = tiles.take(np.flatnonzero(cut.block < 0))
    return [*pieces, make(spans, CAUSE["host"])]


def launch_latency(trace: Trace) -> np.ndarray:
    """Median latency in ns by the code of the operation's kind (0 where operations start before
    their call returns): from the end of the issuing call to the start on the GPU, where the stream
    and the device were otherwise idle (rule 7 asks for it)."""
    operations = trace.operations
    start = operations["start_ns"].to_numpy()
    end = operations["end_ns"].to_numpy()
    kind = operations["kind"].to_numpy()
    call = operations["call"].to_numpy()
    device = operations["device"].to_numpy()
    call_start = trace.calls["start_ns"].to_numpy()
    call_end = trace.calls["end_ns"].to_numpy()
    alone = np.zeros(len(start), dtype=bool)
    for number in distinct(device).tolist():
        rows = np.flatnonzero(device == number)
        # nothing ran on the device from the moment the call began
        before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[rows])[:-1])
        alone[rows] = (call[rows] >= 0) & (before <= pick(call_start, call[rows], 0))
    latency = np.maximum(start[alone] - call_end[call[alone]], 0)
    of_kinds = [latency[kind[alone] == code] for code in range(len(OPERATION_KINDS))]
    usual = [np.median(ns) if len(ns) >= _ENOUGH else _FALLBACK_NS for ns in of_kinds]
    return np.array(usual, dtype=np.int64)
