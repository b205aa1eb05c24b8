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
from functools import cached_property

import numpy as np

from nsysalign.intervals import Columns, distinct, one_of, pick, ragged, tile
from nsysalign.issue_order import FAR, LaneOperations
from nsysalign.model import (
    CALL,
    KIND,
    MIGRATIONS,
    OPERATION_KINDS,
    Alignment,
    Trace,
    process_of,
)
from nsysalign.split.busy import NO_RIVAL, RIVAL_KERNELS, Streams
from nsysalign.split.pieces import CAUSE, DETAIL, REF, Pieces, concatenated, make
from nsysalign.split.threads import Threads

LEGACY_DEFAULT, BLOCKING = 3, 1
NEVER = -FAR  # a time before all others
PAGEABLE = 0  # CUDA_MEMOPR_MEMORY_KIND_PAGEABLE
_COPY_DEVICE_KINDS = (1, 2)  # host-to-device, device-to-host


@dataclass(frozen=True)
class Gaps(Columns):
    """Idle stretches: arrays of equal length.

    window, start, end; lane; next, previous (positions in operations, -1: the end record / none);
    issue_start, issue_end, issue_thread: the call that issues N; known: the trace has that call;
    record: position of the end record in the alignment's records.
    """

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    lane: np.ndarray
    next: np.ndarray
    previous: np.ndarray
    issue_start: np.ndarray
    issue_end: np.ndarray
    issue_thread: np.ndarray
    issue_call: np.ndarray
    known: np.ndarray
    record: np.ndarray


class Explainer:
    """Everything the rules need, built once per trace."""

    def __init__(
        self,
        trace: Trace,
        alignment: Alignment,
        streams: Streams,
        threads: Threads,
        per_lane: dict[int, LaneOperations],
        launch_latency_ns: dict[int, int],
    ) -> None:
        self.trace, self.alignment, self.streams, self.threads = trace, alignment, streams, threads
        self.per_lane, self.launch_latency = per_lane, launch_latency_ns
        operations, calls = trace.operations, trace.calls
        self.kind = operations["kind"].to_numpy()
        self.op_start, self.op_end = (
            operations["start_ns"].to_numpy(),
            operations["end_ns"].to_numpy(),
        )
        self.copy_kind = operations["copy_kind"].to_numpy()
        self.pageable = self.kind == KIND["memcpy"]
        copies = np.flatnonzero(self.pageable)
        copy_kind = self.copy_kind[copies]
        source, target = (operations[c].to_numpy()[copies] for c in ("src_kind", "dst_kind"))
        host_side = np.where(copy_kind == 1, source, target)
        self.pageable[copies] = np.isin(copy_kind, _COPY_DEVICE_KINDS) & (host_side == PAGEABLE)
        self.call = operations["call"].to_numpy()
        self.call_start, self.call_end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
        self.call_thread = calls["thread"].to_numpy()
        self.faulting = faulting_threads(trace)
        self.waits = self._waits_by_lane()
        #: Calls that put something between a stream's operations which the trace does not show.
        self.veils = np.flatnonzero(
            one_of(calls["kind"].to_numpy(), [CALL["host_function"], CALL["stream_memory_op"]])
        )

    def _waits_by_lane(self) -> dict[int, tuple[np.ndarray, ...]]:
        """lane -> (issue of the wait, place of the awaited record, its lane, record, inferred), by
        issue."""
        waits, records = self.alignment.wait_calls, self.alignment.records
        waits = waits[(waits["record"] >= 0) & (waits["lane"] >= 0)]
        out: dict[int, tuple[np.ndarray, ...]] = {}
        for lane, rows in waits.groupby("lane"):
            issue = self.call_start[rows["call"].to_numpy()]
            order = np.argsort(issue, kind="stable")
            record = rows["record"].to_numpy()[order]
            out[int(lane)] = (
                issue[order],
                records["t_ns"].to_numpy()[record],
                records["lane"].to_numpy()[record],
                record,
                rows["inferred"].to_numpy()[order],
            )
        return out

    def explain(self, gaps: Gaps) -> Pieces:
        """Pieces that tile every gap exactly, in no order."""
        start = gaps.start
        # rule 5, P's side: the call of a pageable copy that has finished on the stream but not on
        # the host
        call = pick(self.call, gaps.previous, -1)
        until = np.minimum(pick(self.call_end, call, NEVER), gaps.end)
        staged = pick(self.pageable, gaps.previous, False) & (until > start)
        staged &= pick(self.call_start, call, FAR) <= start
        copy, ref = self._op_ref(gaps.previous), gaps.previous
        staging = make(
            gaps.window, start, until, CAUSE["memcpy"], copy, ref, DETAIL["staging"], where=staged
        )
        parts = [staging]
        start = np.where(staged, until, start)
        left = np.flatnonzero(start < gaps.end)
        gaps, start = gaps.some(left), start[left]
        lost = np.flatnonzero(~gaps.known)  # rule 16
        parts.append(self._unknown(gaps.take(lost), start[lost], DETAIL["no-api-row"]))
        known = np.flatnonzero(gaps.known)
        gaps, start = gaps.some(known), start[known]
        parts += self._host_side(gaps, start)
        parts.append(self._inside_call(gaps, start))
        parts += self._issued(gaps, start)
        return concatenated(parts)

    def _unknown(self, gaps: Gaps, start: np.ndarray, detail: int) -> Pieces:
        return make(
            gaps.window,
            start,
            gaps.end,
            CAUSE["unknown"],
            self._op_ref(gaps.next),
            self._ref(gaps),
            detail,
        )

    def _op_ref(self, operation: np.ndarray) -> np.ndarray:
        """Ref kinds run parallel to operation kinds, one later."""
        return np.where(operation >= 0, pick(self.kind, operation, 0) + 1, REF["event"]).astype(
            np.int8
        )

    def _ref(self, gaps: Gaps) -> np.ndarray:
        return np.where(gaps.next >= 0, gaps.next, gaps.record)

    def _host_side(self, gaps: Gaps, start: np.ndarray) -> list[Pieces]:
        """Rules 10-15: the host has not begun to issue N."""
        end = np.minimum(gaps.end, gaps.issue_start)
        here = np.flatnonzero(end > start)
        return [
            host_pieces(self.threads, int(thread), gaps.window[g], start[g], end[g])
            for thread in distinct(gaps.issue_thread[here]).tolist()
            for g in [here[gaps.issue_thread[here] == thread]]
        ]

    def _inside_call(self, gaps: Gaps, start: np.ndarray) -> Pieces:
        """Rules 9 and 5 (N's side): inside the call that issues N."""
        lo, hi = np.maximum(start, gaps.issue_start), np.minimum(gaps.end, gaps.issue_end)
        here = np.flatnonzero(hi > lo)
        g = gaps.take(here)
        operation = g.next >= 0
        staging = pick(self.pageable, g.next, False)
        cause = np.where(
            operation, np.where(staging, CAUSE["memcpy"], CAUSE["api_launch"]), CAUSE["event"]
        )
        ref_kind = np.where(staging, self._op_ref(g.next), REF["api"])
        ref = np.where(staging, g.next, g.issue_call)
        return make(
            g.window,
            lo[here],
            hi[here],
            cause,
            ref_kind,
            ref,
            np.where(staging, DETAIL["staging"], 0),
        )

    def _issued(self, gaps: Gaps, start: np.ndarray) -> list[Pieces]:
        """Rules 6, 7, 8: N has been issued; it waits for other work, or is on its way."""
        lo = np.maximum(start, gaps.issue_end)
        here = np.flatnonzero(gaps.end > lo)
        g, lo = gaps.some(here), lo[here]
        opaque = self._behind_host_function(self._of_streams(g))
        veiled, open_ = np.flatnonzero(opaque), np.flatnonzero(~opaque)
        parts = [self._unknown(g.take(veiled), lo[veiled], DETAIL["host-function"])]
        g, lo = g.some(open_), lo[open_]
        until, lane, ref_kind, ref, detail = self._dependency(self._of_streams(g))
        held, stop = until > lo, np.minimum(until, g.end)
        parts.append(
            make(g.window, lo, stop, CAUSE["queued"], ref_kind, ref, detail, lane, where=held)
        )
        lo = np.where(held, stop, lo)
        late = self._ordinary(g, lo)
        cause = np.where(g.next >= 0, CAUSE["launch_latency"], CAUSE["event"])
        parts.append(
            make(g.window, lo, late, cause, self._op_ref(g.next), self._ref(g), where=late > lo)
        )
        rest = np.flatnonzero(g.end > np.maximum(late, lo))
        return parts + self._contended(g.take(rest), late[rest])

    def _ordinary(self, g: Gaps, lo: np.ndarray) -> np.ndarray:
        """Until when N may be on its way: the ordinary latency after its call, or after P."""
        previous_end = pick(self.op_end, g.previous, NEVER)
        latency = np.array([self.launch_latency.get(k, 0) for k in range(4)], dtype=np.int64)
        late = np.maximum(g.issue_end, previous_end) + pick(latency, pick(self.kind, g.next, -1), 0)
        return np.where(g.next >= 0, np.clip(late, lo, g.end), g.end)

    def _contended(self, g: Gaps, late: np.ndarray) -> list[Pieces]:
        """Rule 7: past the ordinary latency, while other streams keep the device (or the copy
        engine) busy."""
        parts, own, rival_of = [], self._op_ref(g.next), self._competitor(g.next)
        for number, what in set(zip(g.lane.tolist(), rival_of.tolist(), strict=True)):
            mine = np.flatnonzero((g.lane == number) & (rival_of == what))
            s, e, operation = self.streams.others(number, what)
            cut = tile(late[mine], g.end[mine], s, e)
            n, rival = mine[cut.piece], pick(operation, cut.block, -1)
            busy = rival >= 0
            parts.append(
                make(
                    g.window[n],
                    cut.start,
                    cut.end,
                    np.where(busy, CAUSE["queued"], CAUSE["launch_latency"]),
                    np.where(busy, self._op_ref(rival), own[n]),
                    np.where(busy, rival, g.next[n]),
                    np.where(busy, DETAIL["contention"], 0),
                    pick(self.alignment.operation_lane, rival, -1),
                )
            )
        return parts

    def _of_streams(self, g: Gaps) -> Gaps:
        """Gaps of a whole device as gaps of N's stream: waits apply to the stream on which N was
        issued."""
        if not self.streams.members or not len(g.window):
            return g
        whole = np.isin(g.lane, list(self.streams.members)) & (g.next >= 0)
        lane, previous = g.lane.copy(), g.previous.copy()
        lane[whole] = self.alignment.operation_lane[g.next[whole]]
        for number in np.unique(lane[whole]):
            mine = np.flatnonzero(whole & (lane == number))
            blocks = self.streams.blocks(int(number))
            previous[mine] = pick(
                blocks.operation, np.searchsorted(blocks.end, g.start[mine], side="right") - 1, -1
            )
        return replace(g, lane=lane, previous=previous)

    def _behind_host_function(self, g: Gaps) -> np.ndarray:
        """Whether a host function or stream memory operation was issued between P and N on N's
        stream.

        The trace has no stream for these calls and no end for what they hold up.  A call counts for
        the stream if its thread's previous and next operations were both issued to that stream.
        """
        out = np.zeros(len(g.window), dtype=bool)
        calls = self.veils
        if not len(calls) or not len(g.window):
            return out
        at, thread = self.call_start[calls], self.call_thread[calls]
        previous_issue = pick(self.call_start, pick(self.call, g.previous, -1), NEVER)
        same = pick(self.call_thread, pick(self.call, g.previous, -1), -1) == g.issue_thread
        for number in distinct(thread).tolist():
            mine = np.sort(at[thread == number])
            here = np.flatnonzero((g.issue_thread == number) & (same | (g.previous < 0)))
            between = np.searchsorted(mine, g.issue_start[here]) - np.searchsorted(
                mine, previous_issue[here]
            )
            out[here] = between > 0
        return out

    def _competitor(self, operation: np.ndarray) -> np.ndarray:
        """What other streams must be running for N to be contended: kernels for a kernel or graph
        (RIVAL_KERNELS), copies of its own direction for a copy (the copy kind), nothing for a
        memset (NO_RIVAL)."""
        if not len(operation):
            return operation
        kind = self.kind[operation]
        copies = np.where(kind == KIND["memcpy"], self.copy_kind[operation], NO_RIVAL)
        return np.where(np.isin(kind, [KIND["kernel"], KIND["graph"]]), RIVAL_KERNELS, copies)

    def _dependency(self, g: Gaps) -> tuple[np.ndarray, ...]:
        """Rule 6: until when N is ordered behind other work: (until, lane, ref_kind, ref,
        detail)."""
        n = len(g.window)
        until, lane, ref = np.full(n, NEVER), np.full(n, -1), np.full(n, -1)
        ref_kind, detail = np.zeros(n, np.int8), np.zeros(n, np.int8)
        previous_issue = pick(self.call_start, pick(self.call, g.previous, -1), NEVER)
        for number in distinct(g.lane).tolist():
            mine = np.flatnonzero(g.lane == number)
            if int(number) in self.waits:
                issue, t, other, record, inferred = self.waits[int(number)]
                first = np.searchsorted(issue, previous_issue[mine], side="right")
                last = np.searchsorted(issue, g.issue_start[mine], side="left")
                owner, which = ragged(first, np.maximum(last - first, 0))
                if len(owner):
                    order = np.argsort(
                        t[which], kind="stable"
                    )  # the latest one comes last and is kept
                    at = mine[owner[order]]
                    until[at], lane[at], ref[at] = (
                        t[which][order],
                        other[which][order],
                        record[which][order],
                    )
                    ref_kind[at] = REF["event"]
                    detail[at] = np.where(
                        inferred[which][order], DETAIL["dependency-inferred"], DETAIL["dependency"]
                    )
            for rival in self.default_stream_rivals(int(number)):
                ops = self.per_lane.get(rival)
                if ops is None:
                    continue
                k = np.searchsorted(ops.issue_ns, g.issue_start[mine])
                reach = pick(ops.reach_ns, k - 1, NEVER)
                later = reach > until[mine]
                at = mine[later]
                until[at], lane[at] = reach[later], rival
                ref[at] = ops.position[ops.reach_from[k[later] - 1]]
                ref_kind[at] = self._op_ref(ref[at])
                detail[at] = DETAIL["default-stream-order"]
        return until, lane, ref_kind, ref, detail

    def default_stream_rivals(self, lane: int) -> list[int]:
        """Lanes of the same context that the legacy default stream is implicitly ordered with."""
        process, context, flag = self._lane_columns
        wanted = {LEGACY_DEFAULT: BLOCKING, BLOCKING: LEGACY_DEFAULT}.get(int(flag[lane]))
        if wanted is None:
            return []
        same = (process == process[lane]) & (context == context[lane]) & (flag == wanted)
        return [i for i in np.flatnonzero(same).tolist() if i in self.per_lane]

    @cached_property
    def _lane_columns(self) -> tuple[np.ndarray, ...]:
        return tuple(self.alignment.lanes[c].to_numpy() for c in ("process", "context", "flag"))


def faulting_threads(trace: Trace) -> np.ndarray:
    """Per operation: the thread on which its idle time depends although no call issued it, -1 for
    none.  A page of managed memory that migrates was touched by a kernel or by the host: while
    nothing ran, the host had not touched it.  Which of several threads did is not known."""
    operations, calls = trace.operations, trace.calls
    out = np.full(len(operations), -1, np.int64)
    moved = np.flatnonzero(
        np.isin(operations["copy_kind"].to_numpy(), MIGRATIONS)
        & (operations["call"].to_numpy() < 0)
    )
    if not len(moved):
        return out
    threads, process = distinct(calls["thread"].to_numpy()), operations["process"].to_numpy()
    for number in distinct(process[moved]).tolist():
        own = threads[process_of(threads) == number]
        if len(own) == 1:
            out[moved[process[moved] == number]] = own[0]
    return out


def host_pieces(
    threads: Threads, thread: int, window: np.ndarray, start: np.ndarray, end: np.ndarray
) -> Pieces:
    """What a thread did in the given stretches: calls, profiler work, and outside CUDA its
    innermost NVTX range."""
    t = threads[thread]
    s, e, w = start, end, window
    parts = []
    for begin, over, cause, ref_kind, ref in (
        (t.start, t.end, t.cause, REF["api"], t.ref),
        (t.over_start, t.over_end, CAUSE["profiler"], REF["overhead"], t.over_ref),
    ):
        if not len(begin):
            continue
        cut = tile(s, e, begin, over)
        busy = cut.block >= 0
        b = cut.block[busy]
        causes = cause[b] if isinstance(cause, np.ndarray) else cause
        parts.append(
            make(w[cut.piece[busy]], cut.start[busy], cut.end[busy], causes, ref_kind, ref[b])
        )
        s, e, w = cut.start[~busy], cut.end[~busy], w[cut.piece[~busy]]
    ranged = tile(s, e, t.range_start, t.range_end)
    named = ranged.block >= 0
    ref = np.where(named, t.range_ref[np.maximum(ranged.block, 0)] if len(t.range_ref) else -1, -1)
    kind = np.where(named, REF["nvtx"], 0)
    outside = make(w[ranged.piece], ranged.start, ranged.end, CAUSE["host"], kind, ref)
    return concatenated([*parts, outside])


#: Used if a trace shows no operation of a kind on an idle device (ns).
_FALLBACK_NS = 5_000
_ENOUGH = 5
_AT_ONCE = 1 << 17


def launch_latency(trace: Trace) -> dict[int, int]:
    """Operation kind code -> median latency in ns (0 where operations start before their call
    returns): from the end of the issuing call to the start on the GPU, where the stream and the
    device were otherwise idle (rule 7 asks for it)."""
    samples = [
        s
        for number in distinct(trace.operations["device"].to_numpy())
        for s in _idle(trace, int(number))
    ]
    kinds = np.concatenate([s[0] for s in samples]) if samples else np.empty(0, np.int8)
    values = np.concatenate([s[1] for s in samples]) if samples else np.empty(0, np.int64)
    out = {}
    for name in OPERATION_KINDS:
        mine = values[kinds == KIND[name]]
        out[KIND[name]] = int(np.median(mine)) if len(mine) >= _ENOUGH else _FALLBACK_NS
    return out


def _idle(trace: Trace, device: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(kind, latency) of operations whose call began after everything on the device had ended."""
    operations = trace.operations
    start, end, kind, call = (
        operations[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "call")
    )
    call_start, call_end = trace.calls["start_ns"].to_numpy(), trace.calls["end_ns"].to_numpy()
    reach = np.iinfo(np.int64).min
    for first in range(0, len(start) if len(call_start) else 0, _AT_ONCE):
        here = first + np.flatnonzero(
            operations["device"].to_numpy()[first : first + _AT_ONCE] == device
        )
        if not len(here):
            continue
        before = np.maximum.accumulate(
            np.append(reach, end[here])
        )  # operations are sorted by start
        reach = before[-1]
        # nothing ran on the device from the moment the call began
        idle = here[(call[here] >= 0) & (before[:-1] <= call_start[call[here]])]
        yield kind[idle], np.maximum(start[idle] - call_end[call[idle]], 0)
