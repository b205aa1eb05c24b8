"""Why a stream was idle: the table of design section 4, rules 5 to 16, for all idle stretches at once.

    host     ...[ a0  call that issues N  a1 )
    stream   PPPPP|-- gap ---------------------|NNNN
                  host: rules 10-15 | 9 | 6, 7, 8

P ran before, N runs next; N is the end record where nothing else was issued before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.attribute.busy import NO_RIVAL, RIVAL_KERNELS, Streams
from nsysalign.attribute.pieces import CAUSE, DETAIL, REF, Pieces, join, make
from nsysalign.attribute.threads import Threads
from nsysalign.model import KIND, Alignment, Trace
from nsysalign.sweep.issue import LaneOperations
from nsysalign.sweep.tiles import ragged, tile

LEGACY_DEFAULT, BLOCKING = 3, 1
PAGEABLE = 0  # CUDA_MEMOPR_MEMORY_KIND_PAGEABLE
_COPY_DEVICE_KINDS = (1, 2)  # host-to-device, device-to-host


@dataclass(frozen=True)
class Gaps:
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

    def take(self, index: np.ndarray) -> Gaps:
        return Gaps(**{f: getattr(self, f)[index] for f in self.__dataclass_fields__})


class Explainer:
    """Everything the rules look at, built once per trace."""

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
        self.op_start, self.op_end = operations["start_ns"].to_numpy(), operations["end_ns"].to_numpy()
        self.copy_kind = operations["copy_kind"].to_numpy()
        host_side = np.where(
            self.copy_kind == 1, operations["src_kind"].to_numpy(), operations["dst_kind"].to_numpy()
        )
        self.pageable = (
            (self.kind == KIND["memcpy"])
            & np.isin(self.copy_kind, _COPY_DEVICE_KINDS)
            & (host_side == PAGEABLE)
        )
        self.call = operations["call"].to_numpy()
        self.call_start, self.call_end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
        self.call_thread = calls["thread"].to_numpy()
        self.waits = self._waits_by_lane()

    def _waits_by_lane(self) -> dict[int, tuple[np.ndarray, ...]]:
        """lane -> (issue of the wait, place of the awaited record, its lane, record, inferred), by issue."""
        waits, records = self.alignment.wait_calls, self.alignment.records
        waits = waits[(waits["record"] >= 0) & (waits["lane"] >= 0)]
        out = {}
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
        """Pieces that tile every gap exactly."""
        parts: list[Pieces] = []
        start = gaps.start.copy()
        # rule 5, P's side: the call of a pageable copy that has ended on the stream but not on the host
        previous_call = (
            np.where(gaps.previous >= 0, self.call[np.maximum(gaps.previous, 0)], -1)
            if len(self.call)
            else np.full(len(start), -1)
        )
        staged = (
            (gaps.previous >= 0) & self.pageable[np.maximum(gaps.previous, 0)] & (previous_call >= 0)
            if len(self.call)
            else np.zeros(len(start), bool)
        )
        until = (
            np.where(staged, np.minimum(self.call_end[np.maximum(previous_call, 0)], gaps.end), start)
            if len(self.call_end)
            else start
        )
        from_call = self.call_start[np.maximum(previous_call, 0)] if len(self.call_start) else start
        front = staged & (until > start) & (from_call <= start)
        parts.append(
            make(
                gaps.window[front],
                start[front],
                until[front],
                CAUSE["memcpy"],
                self._op_ref(gaps.previous[front]),
                gaps.previous[front],
                DETAIL["staging"],
            )
        )
        start[front] = until[front]
        left = start < gaps.end
        gaps = gaps.take(np.flatnonzero(left))
        start = start[left]
        unknown = ~gaps.known  # rule 16
        parts.append(
            make(
                gaps.window[unknown],
                start[unknown],
                gaps.end[unknown],
                CAUSE["unknown"],
                self._op_ref(gaps.next[unknown]),
                gaps.next[unknown],
                DETAIL["no-api-row"],
            )
        )
        gaps, start = gaps.take(np.flatnonzero(~unknown)), start[~unknown]
        parts += self._host_side(gaps, start)
        parts.append(self._inside_call(gaps, start))
        parts += self._issued(gaps, start)
        return join([p for p in parts if len(p)] or parts[:1])

    def _op_ref(self, operation: np.ndarray) -> np.ndarray:
        """Ref kinds run parallel to operation kinds, one later."""
        if not len(self.kind):
            return np.zeros(len(operation), np.int8)
        return np.where(operation >= 0, self.kind[np.maximum(operation, 0)] + 1, REF["event"]).astype(np.int8)

    def _ref(self, gaps: Gaps) -> np.ndarray:
        return np.where(gaps.next >= 0, gaps.next, gaps.record)

    def _host_side(self, gaps: Gaps, start: np.ndarray) -> list[Pieces]:
        """Rules 10-15: the host has not begun to issue N."""
        end = np.minimum(gaps.end, gaps.issue_start)
        here = np.flatnonzero(end > start)
        return [
            host_pieces(self.threads, int(thread), gaps.window[g], start[g], end[g])
            for thread in np.unique(gaps.issue_thread[here])
            for g in [here[gaps.issue_thread[here] == thread]]
        ]

    def _inside_call(self, gaps: Gaps, start: np.ndarray) -> Pieces:
        """Rules 9 and 5 (N's side): inside the call that issues N."""
        lo, hi = np.maximum(start, gaps.issue_start), np.minimum(gaps.end, gaps.issue_end)
        here = np.flatnonzero(hi > lo)
        g = gaps.take(here)
        operation = g.next >= 0
        staging = operation & (self.pageable[np.maximum(g.next, 0)] if len(self.pageable) else False)
        cause = np.where(operation, np.where(staging, CAUSE["memcpy"], CAUSE["api_launch"]), CAUSE["event"])
        ref_kind = np.where(staging, self._op_ref(g.next), REF["api"])
        ref = np.where(staging, g.next, g.issue_call)
        return make(
            g.window, lo[here], hi[here], cause, ref_kind, ref, np.where(staging, DETAIL["staging"], 0)
        )

    def _issued(self, gaps: Gaps, start: np.ndarray) -> list[Pieces]:
        """Rules 6, 7, 8: N is issued; it waits for others, or is on its way."""
        lo = np.maximum(start, gaps.issue_end)
        here = np.flatnonzero(gaps.end > lo)
        g, lo = gaps.take(here), lo[here]
        parts = []
        until, lane, ref_kind, ref, detail = self._dependency(g)
        held = until > lo
        stop = np.minimum(until, g.end)
        parts.append(
            make(
                g.window[held],
                lo[held],
                stop[held],
                CAUSE["queued"],
                ref_kind[held],
                ref[held],
                detail[held],
                lane[held],
            )
        )
        lo = np.where(held, stop, lo)
        cause = np.where(g.next >= 0, CAUSE["launch_latency"], CAUSE["event"])
        # rule 7: past the ordinary latency, while other streams keep the device (or the copy engine) busy
        previous_end = (
            np.where(g.previous >= 0, self.op_end[np.maximum(g.previous, 0)], np.iinfo(np.int64).min)
            if len(self.op_end)
            else np.full(len(lo), np.iinfo(np.int64).min)
        )
        kind = self.kind[np.maximum(g.next, 0)] if len(self.kind) else np.zeros(len(lo), np.int8)
        latency = np.array([self.launch_latency.get(k, 0) for k in range(4)], dtype=np.int64)[kind]
        late = np.maximum(np.maximum(g.issue_end, previous_end) + latency, lo)
        late = np.where(g.next >= 0, np.minimum(late, g.end), g.end)
        ordinary = late > lo
        parts.append(
            make(
                g.window[ordinary],
                lo[ordinary],
                late[ordinary],
                cause[ordinary],
                self._op_ref(g.next)[ordinary],
                self._ref(g)[ordinary],
            )
        )
        rest = np.flatnonzero(g.end > np.maximum(late, lo))
        rival_of = self._competitor(g.next[rest])
        for number, what in set(zip(g.lane[rest].tolist(), rival_of.tolist(), strict=True)):
            mine = rest[(g.lane[rest] == number) & (rival_of == what)]
            if what == NO_RIVAL:
                parts.append(
                    make(
                        g.window[mine],
                        late[mine],
                        g.end[mine],
                        CAUSE["launch_latency"],
                        self._op_ref(g.next[mine]),
                        g.next[mine],
                    )
                )
                continue
            s, e, operation = self.streams.others(number, what)
            cut = tile(late[mine], g.end[mine], s, e)
            n, busy = mine[cut.piece], cut.block >= 0
            rival = operation[np.maximum(cut.block, 0)] if len(operation) else cut.block
            parts.append(
                make(
                    g.window[n],
                    cut.start,
                    cut.end,
                    np.where(busy, CAUSE["queued"], CAUSE["launch_latency"]),
                    np.where(busy, self._op_ref(rival), self._op_ref(g.next[n])),
                    np.where(busy, rival, g.next[n]),
                    np.where(busy, DETAIL["contention"], 0),
                    np.where(
                        busy,
                        self.alignment.operation_lane[np.maximum(rival, 0)] if len(self.kind) else -1,
                        -1,
                    ),
                )
            )
        return parts

    def _competitor(self, operation: np.ndarray) -> np.ndarray:
        """What other streams must run for N to be contended: kernels for a kernel or graph (RIVAL_KERNELS), copies of
        its own direction for a copy (the copy kind), nothing for a memset (NO_RIVAL)."""
        if not len(operation):
            return operation
        kind = self.kind[operation]
        copies = np.where(kind == KIND["memcpy"], self.copy_kind[operation], NO_RIVAL)
        return np.where(np.isin(kind, [KIND["kernel"], KIND["graph"]]), RIVAL_KERNELS, copies)

    def _dependency(self, g: Gaps) -> tuple[np.ndarray, ...]:
        """Rule 6: until when N is ordered behind other work: (until, lane, ref_kind, ref, detail)."""
        n = len(g.window)
        low = np.iinfo(np.int64).min
        until, lane, ref = np.full(n, low), np.full(n, -1), np.full(n, -1)
        ref_kind, detail = np.zeros(n, np.int8), np.zeros(n, np.int8)
        previous_issue = np.full(n, low)
        has = g.previous >= 0
        if len(self.call):
            c = self.call[np.maximum(g.previous, 0)]
            ok = has & (c >= 0)
            previous_issue[ok] = self.call_start[c[ok]]
        for number in np.unique(g.lane):
            mine = np.flatnonzero(g.lane == number)
            if int(number) in self.waits:
                issue, t, other, record, inferred = self.waits[int(number)]
                first = np.searchsorted(issue, previous_issue[mine], side="right")
                last = np.searchsorted(issue, g.issue_start[mine], side="left")
                owner, which = ragged(first, np.maximum(last - first, 0))
                if len(owner):
                    order = np.argsort(t[which], kind="stable")  # the latest one comes last and stays
                    at = mine[owner[order]]
                    until[at], lane[at], ref[at] = t[which][order], other[which][order], record[which][order]
                    ref_kind[at] = REF["event"]
                    detail[at] = np.where(
                        inferred[which][order], DETAIL["dependency-inferred"], DETAIL["dependency"]
                    )
            for rival in self._default_stream_rivals(int(number)):
                ops = self.per_lane.get(rival)
                if ops is None:
                    continue
                k = np.searchsorted(ops.issue_ns, g.issue_start[mine])
                reach = np.where(k > 0, ops.reach_ns[np.maximum(k - 1, 0)], low)
                later = reach > until[mine]
                at = mine[later]
                until[at], lane[at] = reach[later], rival
                ref[at] = ops.position[ops.reach_from[k[later] - 1]]
                ref_kind[at] = self._op_ref(ref[at])
                detail[at] = DETAIL["default-stream-order"]
        return until, lane, ref_kind, ref, detail

    def _default_stream_rivals(self, lane: int) -> list[int]:
        """Lanes that the legacy default stream is implicitly ordered with, in the same context."""
        lanes = self.alignment.lanes
        flag = int(lanes["flag"].iloc[lane])
        wanted = {LEGACY_DEFAULT: BLOCKING, BLOCKING: LEGACY_DEFAULT}.get(flag)
        if wanted is None:
            return []
        same = (
            (lanes["process"] == lanes["process"].iloc[lane])
            & (lanes["context"] == lanes["context"].iloc[lane])
            & (lanes["flag"] == wanted)
        )
        return [int(i) for i in np.flatnonzero(same.to_numpy()) if int(i) in self.per_lane]


def host_pieces(
    threads: Threads, thread: int, window: np.ndarray, start: np.ndarray, end: np.ndarray
) -> Pieces:
    """What a thread did in the given stretches: calls, profiler work, and outside CUDA its innermost NVTX range."""
    t = threads[thread]
    cut = tile(start, end, t.start, t.end)
    busy = cut.block >= 0
    b = np.maximum(cut.block, 0)
    inside = make(
        window[cut.piece[busy]],
        cut.start[busy],
        cut.end[busy],
        t.cause[b[busy]],
        t.ref_kind[b[busy]],
        t.ref[b[busy]],
    )
    s, e, w = cut.start[~busy], cut.end[~busy], window[cut.piece[~busy]]
    ranged = tile(s, e, t.range_start, t.range_end)
    named = ranged.block >= 0
    ref = np.where(named, t.range_ref[np.maximum(ranged.block, 0)] if len(t.range_ref) else -1, -1)
    outside = make(
        w[ranged.piece], ranged.start, ranged.end, CAUSE["host"], np.where(named, REF["nvtx"], 0), ref
    )
    return join([inside, outside])
