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
from typing import NamedTuple

import numpy as np

from nsysalign.intervals import FAR, Columns, distinct, group, pick, ragged, tile
from nsysalign.model import CALL, KIND, MIGRATIONS, OPERATION_KINDS, Alignment, Trace, process_of
from nsysalign.place.streams import lane_operations
from nsysalign.split.busy import NO_RIVAL, RIVAL_KERNELS, Streams, Threads
from nsysalign.split.pieces import (
    CAUSE,
    DETAIL,
    REF,
    Pieces,
    host_side,
    join,
    make,
)

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


@dataclass(frozen=True)
class Windows(Columns):
    """Arrays of equal length: place of each window, its lane, or the thread of a host timer, and the
    end record (or the end of the range).

    close_ns: start of the end record's call (nothing issued later belongs to the window);
    close_end_ns: its end; close_thread, close_call: who made it; record: its position in the
    alignment's records, -1 for none.
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
    def places(cls, alignment: Alignment) -> Iterator[Windows]:
        """All windows as measured, and at either end of their error bars if any has one.  The work
        of a range ends with its own last operation: no record closes it."""
        w, calls = alignment.windows, np.append(alignment.records["call"].to_numpy(), -1)
        kind = w["kind"].to_numpy()
        names = ("start_ns", "end_ns", "end_lane", "thread", "process")
        start, end, lane, of_timer, process = (w[c].to_numpy() for c in names)
        close, close_end, thread, record = (
            w[c].to_numpy() for c in ("close_ns", "close_end_ns", "end_thread", "end")
        )
        if len(w) and not (event := kind == "event").all():
            close, close_end = (np.where(event, t, FAR) for t in (close, close_end))
            record = np.where(event, record, -1)
        who = (kind == "host", close, close_end, thread, calls[record], record)
        measured = cls(start, end, lane, of_timer, process, *who)
        yield measured
        error = np.where(kind == "event", w["error_ns"].to_numpy(), 0)
        for sign, edge in ((-1, "start_lower_ns"), (1, "start_upper_ns")):
            reach = np.minimum(error, np.maximum(sign * (w[edge].to_numpy() - start), 0))
            if reach.any():
                yield replace(measured, start=start + sign * reach, end=end + sign * reach)


@dataclass(frozen=True)
class Gaps(Columns):
    """Idle stretches: arrays of equal length.

    window, start, end; lane; next, previous (positions in operations, -1: the end record / none);
    stream, before: the same lane and P, but of a whole device N's own stream and P there;
    issue_start, issue_end, issue_thread: the call that issues N; known: the trace has that call;
    ref: what N is, an operation or the end record (its position in the alignment's records).
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


class _Behind(NamedTuple):
    """Until when something is ordered behind other work (NEVER: it is not), and behind what: as in
    `Pieces`."""

    until: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray
    detail: np.ndarray
    lane: np.ndarray


class Explainer:
    """Everything the rules need, built once per trace.  `latency`: see `launch_latency`."""

    def __init__(self, trace: Trace, alignment: Alignment, latency: np.ndarray) -> None:
        self.trace, self.alignment, self.launch_latency = trace, alignment, latency
        self.streams, self.threads = Streams(trace, alignment), Threads(trace)
        self.per_lane = lane_operations(trace, alignment.operation_lane)
        operations, calls = trace.operations, trace.calls
        self.kind, self.copy_kind, self.call, self.op_start, self.op_end = (
            operations[c].to_numpy() for c in ("kind", "copy_kind", "call", "start_ns", "end_ns")
        )
        self.call_start, self.call_end, self.call_thread, self.call_kind = (
            calls[c].to_numpy() for c in ("start_ns", "end_ns", "thread", "kind")
        )
        self.pageable = self.kind == KIND["memcpy"]
        copies = np.flatnonzero(self.pageable)
        between = np.isin(self.copy_kind[copies], _COPY_DEVICE_KINDS)
        self.pageable[copies] = between & (host_side(operations, copies) == PAGEABLE)
        self.faulting = faulting_threads(trace)
        waits, records = alignment.wait_calls, alignment.records
        #: Per lane: when its waits were issued, and the records that they wait for.
        self._waits: dict[int, tuple[np.ndarray, _Behind]] = {}
        for lane, rows in waits[(waits["record"] >= 0) & (waits["lane"] >= 0)].groupby("lane"):
            issue = self.call_start[rows["call"].to_numpy()]
            order = np.argsort(issue, kind="stable")
            record, inferred = (rows[c].to_numpy()[order] for c in ("record", "inferred"))
            until, of_record = (records[c].to_numpy()[record] for c in ("t_ns", "lane"))
            detail = np.where(inferred, DETAIL["dependency-inferred"], DETAIL["dependency"])
            operation = self._ended_before(record)
            kind = pick(self.kind, operation, REF["event"])
            ref = np.where(operation >= 0, operation, record)
            behind = _Behind(until, kind, ref, detail, of_record)
            self._waits[int(lane)] = issue[order], behind
        veils = np.isin(calls["kind"], [CALL["host_function"], CALL["stream_memory_op"]])
        #: Per thread, starts of calls that put something between a stream's operations which the
        #: trace does not show.
        self._veils = group(self.call_thread[veils], self.call_start[veils])

    def _ended_before(self, records: np.ndarray) -> np.ndarray:
        """The operation right behind which each of these records lies on its own stream, -1 for
        none: what a wait for the record waits for."""
        table = self.alignment.records
        lane, call, time = (table[c].to_numpy()[records] for c in ("lane", "call", "t_ns"))
        operation = np.full(len(records), -1)
        for number, those in group(lane, np.arange(len(records))).items():
            if (ops := self.per_lane.get(number)) is None:
                continue
            issued = np.searchsorted(ops.times.issue_ns, pick(self.call_start, call[those], NEVER))
            reach = pick(ops.times.reach_ns, issued - 1, NEVER)
            last = ops.position[
                np.minimum(np.searchsorted(ops.times.reach_ns, reach), len(ops.position) - 1)
            ]
            operation[those] = np.where(time[those] - reach <= _RIGHT_BEHIND_NS, last, -1)
        return operation

    def explain(self, gaps: Gaps) -> list[Pieces]:
        """Pieces that tile every gap exactly, in no order: rule by rule, each from where the one
        before ended."""
        parts, since = [], gaps.start
        own = pick(self.kind, gaps.next, REF["event"])

        def give(until, cause, ref_kind, ref, detail=0, lane=-1) -> None:
            """What is left of every gap, up to `until`, has this cause."""
            nonlocal since
            stop = np.minimum(np.maximum(until, since), gaps.end)
            some = np.flatnonzero(stop > since)
            what = (cause, ref_kind, ref, detail, lane)
            parts.append(make(gaps.window, since, stop, *what, where=some))
            since = stop

        # rule 5, P's side: the call of a pageable copy that has finished on the stream but not on
        # the host
        call = pick(self.call, gaps.previous, -1)
        staged = pick(self.pageable, gaps.previous, False)
        staged &= pick(self.call_start, call, FAR) <= since
        until = np.where(staged, pick(self.call_end, call, NEVER), NEVER)
        give(until, CAUSE["memcpy"], REF["memcpy"], gaps.previous, DETAIL["staging"])
        # rule 16
        give(
            np.where(gaps.known, NEVER, FAR), CAUSE["unknown"], own, gaps.ref, DETAIL["no-api-row"]
        )
        # rules 10 to 15: the host has not begun to issue N
        until = np.minimum(np.maximum(gaps.issue_start, since), gaps.end)
        before = np.flatnonzero(until > since)
        for thread, those in group(gaps.issue_thread[before], before).items():
            spans = (gaps.window[those], since[those], until[those])
            parts += host_pieces(self.threads, thread, *spans)
        since = until
        # rule 6 before 5: while its stream waits for other work, a pageable copy stages nothing
        behind, staging = self._dependency(gaps), pick(self.pageable, gaps.next, False)
        held = np.where(staging, np.minimum(behind.until, gaps.issue_end), NEVER)
        give(held, CAUSE["queued"], *behind[1:])
        # rules 9 and 5 (N's side): inside the call that issues N
        operation = gaps.next >= 0
        cause = np.where(operation, CAUSE["api_launch"], CAUSE["event"])
        give(
            gaps.issue_end,
            np.where(staging, CAUSE["memcpy"], cause),
            np.where(staging, own, REF["api"]),
            np.where(staging, gaps.next, gaps.issue_call),
            np.where(staging, DETAIL["staging"], 0),
        )
        # N has been issued, and waits for other work (rule 6), or something that is not in the trace
        opaque = np.where(self._behind_host_function(gaps), FAR, NEVER)
        give(opaque, CAUSE["unknown"], own, gaps.ref, DETAIL["host-function"])
        give(behind.until, CAUSE["queued"], *behind[1:])
        # rule 8: it is on its way for the ordinary latency after its call, or after P
        late = np.maximum(gaps.issue_end, pick(self.op_end, gaps.previous, NEVER))
        late += pick(self.launch_latency, pick(self.kind, gaps.next, -1), 0)
        in_graph = self.in_one_graph(gaps.previous, gaps.next)
        in_graph |= self.in_one_graph(gaps.before, gaps.next)
        late = np.where(in_graph, np.maximum(late, gaps.start + NODE_GAP_NS), late)
        cause = np.where(operation, CAUSE["launch_latency"], CAUSE["event"])
        cause = np.where(in_graph, CAUSE["graph"], cause)
        detail = np.where(in_graph, DETAIL["between-nodes"], 0)
        give(np.where(operation, late, FAR), cause, own, gaps.ref, detail)
        return parts + self._contended(gaps, since, in_graph)

    def in_one_graph(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """Whether two operations (positions, -1 for none) are nodes of one launch of a CUDA graph."""
        call = pick(self.call, after, -1)
        kind = pick(self.call_kind, call, -1)
        return (kind == CALL["graph_launch"]) & (call == pick(self.call, before, -1))

    def _contended(self, gaps: Gaps, since: np.ndarray, in_graph: np.ndarray) -> list[Pieces]:
        """Rule 7: past that, while other streams keep the device busy (kernels for a kernel or
        graph), or the copy engine (copies of its own direction for a copy)."""
        parts, left = [], np.flatnonzero(since < gaps.end)
        kind, copy = (pick(of, gaps.next, -1) for of in (self.kind, self.copy_kind))
        copies = np.where(kind == KIND["memcpy"], copy, NO_RIVAL)
        rival_of = np.where(np.isin(kind, [KIND["kernel"], KIND["graph"]]), RIVAL_KERNELS, copies)
        for lane, on_lane in group(gaps.lane[left], left).items():
            for what, those in group(rival_of[on_lane], on_lane).items():
                others = self.streams.others(lane, what)
                cut = tile(since[those], gaps.end[those], others.start, others.end)
                rival, gap = pick(others.ref, cut.block, -1), those[cut.piece]
                busy = rival >= 0
                ref, inside = np.where(busy, rival, gaps.next[gap]), in_graph[gap]
                alone = np.where(inside, CAUSE["unknown"], CAUSE["launch_latency"])
                between = np.where(inside, DETAIL["between-nodes"], 0)
                columns = (
                    np.where(busy, CAUSE["queued"], alone),
                    self.kind[ref],
                    ref,
                    np.where(busy, DETAIL["contention"], between),
                    pick(self.alignment.operation_lane, rival, -1),
                )
                parts.append(make(gaps.window[gap], cut.start, cut.end, *columns))
        return parts

    def _behind_host_function(self, gaps: Gaps) -> np.ndarray:
        """Whether a host function or stream memory operation was issued between P and N on N's
        stream.

        The trace has no stream for these calls and no end for what they hold up.  A call counts for
        the stream if its thread's previous and next operations were both issued to that stream.
        """
        out = np.zeros(len(gaps.window), dtype=bool)
        for number, veils in self._veils.items():
            those = np.flatnonzero(gaps.issue_thread == number)
            previous = pick(self.call, gaps.before[those], -1)
            same = pick(self.call_thread, previous, -1) == number
            first = np.searchsorted(veils, pick(self.call_start, previous, NEVER))
            between = np.searchsorted(veils, gaps.issue_start[those]) > first
            out[those] = between & (same | (gaps.before[those] < 0))
        return out

    def _dependency(self, gaps: Gaps) -> _Behind:
        """Rule 6: behind what each N is ordered, the latest of all."""
        out = _Behind(*np.array([[NEVER], [0], [-1], [0], [-1]]).repeat(len(gaps.window), axis=1))
        previous_issue = pick(self.call_start, pick(self.call, gaps.before, -1), NEVER)
        for number in distinct(gaps.stream).tolist():
            those = np.flatnonzero(gaps.stream == number)
            if number in self._waits:
                issue, behind = self._waits[number]
                first = np.searchsorted(issue, previous_issue[those], side="right")
                last = np.searchsorted(issue, gaps.issue_start[those], side="left")
                owner, which = ragged(first, np.maximum(last - first, 0))
                # the latest one comes last and is kept
                order = np.argsort(behind.until[which], kind="stable")
                for column, values in zip(out, behind, strict=True):
                    column[those[owner[order]]] = values[which[order]]
            for rival in self.default_stream_rivals(number):
                ops = self.per_lane[rival]
                issued = np.searchsorted(ops.times.issue_ns, gaps.issue_start[those])
                reach = pick(ops.times.reach_ns, issued - 1, NEVER)
                later = reach > out.until[those]
                ref = ops.position[np.searchsorted(ops.times.reach_ns, reach[later])]
                detail = DETAIL["default-stream-order"]
                ordered = (reach[later], self.kind[ref], ref, detail, rival)
                for column, values in zip(out, ordered, strict=True):
                    column[those[later]] = values
        return out

    def default_stream_rivals(self, lane: int) -> list[int]:
        """Lanes of the same context that the legacy default stream is implicitly ordered with."""
        process, context, flag = (
            self.alignment.lanes[c].to_numpy() for c in ("process", "context", "flag")
        )
        wanted = {LEGACY_DEFAULT: BLOCKING, BLOCKING: LEGACY_DEFAULT}.get(flag[lane])
        same = (process == process[lane]) & (context == context[lane]) & (flag == wanted)
        return [i for i in np.flatnonzero(same).tolist() if i in self.per_lane]


def stream_pieces(
    explainer: Explainer,
    w: Windows,
    window: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> Pieces:
    """Tile spans of windows on streams with pieces, exactly, each as its window sees its stream."""
    parts, gaps = [], []
    for lane, those in group(w.lane[window], np.arange(len(window))).items():
        blocks = explainer.streams.blocks(lane)
        cut = tile(start[those], end[those], blocks.start, blocks.end)
        busy, idle = np.flatnonzero(cut.block >= 0), np.flatnonzero(cut.block < 0)
        whose = window[those[cut.piece]]
        ref = blocks.ref[cut.block[busy]]
        what = (explainer.kind[ref], explainer.kind[ref], ref)
        parts.append(make(whose[busy], cut.start[busy], cut.end[busy], *what))
        gaps.append(_gaps(explainer, w, lane, whose[idle], cut.start[idle], cut.end[idle]))
    return join([*parts, *explainer.explain(Gaps.joined(gaps))] if gaps else [])


def _gaps(
    explainer: Explainer,
    w: Windows,
    lane: int,
    window: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> Gaps:
    """P and N of each idle stretch of one lane, as its window sees them: N is the end record where
    nothing else was issued before it."""
    blocks = explainer.streams.blocks(lane)
    after = np.searchsorted(blocks.start, start, side="left")
    before = np.searchsorted(blocks.end, start, side="right") - 1
    previous = pick(blocks.ref, before, -1)
    following = pick(blocks.ref, np.where(after < len(blocks.start), after, -1), -1)
    call = pick(explainer.call, following, -1)
    issue = pick(explainer.call_start, call, FAR)
    # an operation that runs inside the window was issued before the end, whether or not the trace
    # has its call
    inside = pick(explainer.op_start, following, FAR) < w.end[window]
    use = (following >= 0) & np.where(call >= 0, issue < w.close_ns[window], inside)
    from_call = use & (call >= 0)
    fault = np.where(use, pick(explainer.faulting, following, -1), -1)
    sure = from_call | (fault >= 0)
    thread = np.where(fault >= 0, fault, w.close_thread[window])
    operation = np.where(use, following, -1)
    stream, on_stream = np.full(len(window), lane), previous
    if lane in explainer.streams.members:
        # waits apply to the stream on which N was issued
        on_stream = previous.copy()
        stream[use] = explainer.alignment.operation_lane[operation[use]]
        for number, those in group(stream[use], np.flatnonzero(use)).items():
            own = explainer.streams.blocks(number)
            before = np.searchsorted(own.end, start[those], side="right") - 1
            on_stream[those] = pick(own.ref, before, -1)
    return Gaps(
        window=window,
        start=start,
        end=end,
        lane=np.full(len(window), lane),
        next=operation,
        previous=previous,
        stream=stream,
        before=on_stream,
        issue_start=np.where(sure, issue, w.close_ns[window]),
        issue_end=np.where(sure, pick(explainer.call_end, call, FAR), w.close_end_ns[window]),
        issue_thread=np.where(from_call, pick(explainer.call_thread, call, 0), thread),
        issue_call=np.where(from_call, call, w.close_call[window]),
        known=sure | (~use & (w.close_call[window] >= 0)),
        ref=np.where(use, following, w.record[window]),
    )


def faulting_threads(trace: Trace) -> np.ndarray:
    """Per operation: the thread on which its idle time depends although no call issued it, -1 for
    none.  A page of managed memory that migrates was touched by a kernel or by the host: while
    nothing ran, the host had not touched it.  Which of several threads did is not known."""
    operations, calls = trace.operations, trace.calls
    out = np.full(len(operations), -1, np.int64)
    pages = np.isin(operations["copy_kind"].to_numpy(), MIGRATIONS)
    moved = np.flatnonzero(pages & (operations["call"].to_numpy() < 0))
    if len(moved):
        threads, process = distinct(calls["thread"].to_numpy()), operations["process"].to_numpy()
        for number in distinct(process[moved]).tolist():
            own = threads[process_of(threads) == number]
            if len(own) == 1:
                out[moved[process[moved] == number]] = own[0]
    return out


def host_pieces(
    threads: Threads, number: int, window: np.ndarray, start: np.ndarray, end: np.ndarray
) -> list[Pieces]:
    """What a thread did in the given stretches, of which there is one at least, in no order: calls,
    profiler work, and outside CUDA its innermost NVTX range."""
    (profiler, ranges), parts = threads.beside_calls(number), []
    for ref_kind, blocks, usual in (
        ("api", threads.calls(number, start.min(), end.max()), "api"),
        ("overhead", profiler, "profiler"),
        ("nvtx", ranges, "host"),
    ):
        if not len(blocks.start):
            continue
        cut = tile(start, end, blocks.start, blocks.end)
        busy, idle = np.flatnonzero(cut.block >= 0), np.flatnonzero(cut.block < 0)
        ref = blocks.ref[cut.block[busy]]
        cause = threads.cause[ref] if ref_kind == "api" else CAUSE[usual]
        what = (cause, REF[ref_kind], ref)
        parts.append(make(window[cut.piece[busy]], cut.start[busy], cut.end[busy], *what))
        start, end, window = cut.start[idle], cut.end[idle], window[cut.piece[idle]]
    return [*parts, make(window, start, end, CAUSE["host"])]


def launch_latency(trace: Trace) -> np.ndarray:
    """Median latency in ns by the code of the operation's kind (0 where operations start before
    their call returns): from the end of the issuing call to the start on the GPU, where the stream
    and the device were otherwise idle (rule 7 asks for it)."""
    start, end, kind, call, device = (
        trace.operations[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "call", "device")
    )
    call_start, call_end = (trace.calls[c].to_numpy() for c in ("start_ns", "end_ns"))
    idle = np.zeros(len(start), dtype=bool)
    for number in distinct(device).tolist():
        those = np.flatnonzero(device == number)
        # nothing ran on the device from the moment the call began
        before = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end[those])[:-1])
        idle[those] = (call[those] >= 0) & (before <= pick(call_start, call[those], 0))
    latency = np.maximum(start[idle] - call_end[call[idle]], 0)
    of_kinds = [latency[kind[idle] == code] for code in range(len(OPERATION_KINDS))]
    usual = [np.median(ns) if len(ns) >= _ENOUGH else _FALLBACK_NS for ns in of_kinds]
    return np.array(usual, dtype=np.int64)
