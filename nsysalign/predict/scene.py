"""What the replay of one interval needs from the trace: the calls of the threads that issue its
work, the operations that these calls issued, and the two records, in the words of `replay`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nsysalign.model import KIND, Alignment, Trace
from nsysalign.place.streams import lane_operations
from nsysalign.predict.costs import Costs
from nsysalign.predict.replay import HIDDEN, NOTHING, Item

#: How far before an interval the replay may begin: in calls, and in time.
_MOST_BACK, _LONGEST_BACK_NS = 200, 50_000_000
#: Longer intervals are not replayed.
MOST_CALLS = 20_000
#: An operation that starts this much later than launches usually do was held up by something.
HELD_NS = 10_000
#: The ordinary gap between operations, and before a record, on a stream that has work queued;
#: record latency on an idle one.
_TIGHT_NS, _TIGHT_RECORD_NS, RECORD_LATENCY_NS = 1_250, 2_500, 4_000
#: Used where a trace shows no operation of a kind on an idle stream, no call that waited.
_LATENCY_NS, _RETURN_NS = 3_000, 2_500
#: If more of the calls than this overlap with another thread's, their order without nsys is a
#: guess.
_OVERLAPPING_SHARE = 0.05
RECORD = -1

#: Why an interval has no prediction.  The word is what a cell of a table has room for.
REASONS = {
    "untimed": "it is an NVTX range, which the program did not time",
    "inferred": "its pair of events was inferred from the trace",
    "event-trace": "event timestamps were traced too, and what that costs was not measured",
    "osrt": "operating system calls were traced too, and what that costs was not measured",
    "unknown": "the trace does not say what much of it was",
    "collectives": "it waits for other ranks in collectives, and one trace does not say how long "
    "without nsys",
    "long": f"more than {MOST_CALLS:,} calls: too long to replay",
    "threads": "several threads issue its work at once: their order without nsys is not known",
    "unissued": "the trace has no call for one of its records",
    "longer": "its replay without nsys came out longer than what was measured under it",
}


def said(word: str) -> str:
    """A reason as tables keep it: the word, a colon, the sentence."""
    return f"{word}: {REASONS[word]}"


class Scene(NamedTuple):
    """`calls`: positions in Trace.calls, by start.  `items`: sorted by lane, then start, with what
    nsys added on the GPU (`device`, between it and its predecessor; `trim`, of its own length).
    `start`, `end`: the items that are the records, -1 for host intervals.  `reason`: why there is
    nothing to replay; '' otherwise."""

    calls: np.ndarray = np.empty(0, np.int64)
    items: Sequence[Item] = ()
    device: Sequence[int] = ()
    trim: Sequence[int] = ()
    start: int = -1
    end: int = -1
    reason: str = ""


class _Work(NamedTuple):
    """An operation or a record before it becomes an Item."""

    lane: int
    start: int
    end: int
    call: int  # number in the scene, -1 for work issued before it begins
    operation: int  # position in operations, RECORD for a record


class Scenes:
    """Everything about a trace from which scenes are cut."""

    def __init__(self, trace: Trace, alignment: Alignment, waits: np.ndarray, costs: Costs) -> None:
        calls, operations = trace.calls, trace.operations
        self.alignment, self.costs = alignment, costs
        self.start, self.end, self.thread, self.process = (
            calls[c].to_numpy() for c in ("start_ns", "end_ns", "thread", "process")
        )
        self.op_start, self.op_end, self.op_kind, self.op_call = (
            operations[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "call")
        )
        self.waits = waits
        self.outer = calls["outer"].to_numpy() == np.arange(len(calls))
        self.lanes = lane_operations(trace, alignment.operation_lane)
        known = np.flatnonzero(self.op_call >= 0)
        self._by_call = known[np.argsort(self.op_call[known], kind="stable")]
        self._call_of = self.op_call[self._by_call]
        self._latency = self._latencies()
        self.back = self._back()
        self._of_thread: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def _latencies(self) -> dict[int, int]:
        """Ordinary time from the end of the call to the start, per kind of operation, on an idle
        stream."""
        values: dict[int, list[np.ndarray]] = {}
        for ops in self.lanes.values():
            before = np.concatenate([[np.iinfo(np.int64).min], ops.reach_ns[:-1]])
            idle = before <= ops.issue_ns
            kind = self.op_kind[ops.position]
            for k in np.unique(kind[idle]):
                values.setdefault(int(k), []).append(
                    (ops.start_ns - ops.issued_ns)[idle & (kind == k)]
                )
        return {k: int(np.median(np.concatenate(v))) for k, v in values.items()}

    def _back(self) -> int:
        """How long after the end of what it waited for a waiting call usually returns."""
        ends, calls = np.sort(self.op_end), np.flatnonzero(self.waits & self.outer)
        if not len(ends) or not len(calls):
            return _RETURN_NS
        last = ends[np.maximum(np.searchsorted(ends, self.end[calls], side="right") - 1, 0)]
        waited = (last > self.start[calls]) & (last <= self.end[calls])
        return int(np.median((self.end[calls] - last)[waited])) if waited.any() else _RETURN_NS

    def of(self, window) -> Scene:
        """The scene of one row of alignment.windows (a named tuple)."""
        if window.kind == "nvtx":
            return Scene(reason=said("untimed"))
        event = window.kind == "event"
        begin = (
            self._begin(int(window.thread), int(window.open_ns)) if event else int(window.open_ns)
        )
        close = int(window.close_end_ns)
        first, last = (int(i) for i in np.searchsorted(self.start, [begin, close]))
        here = np.arange(first, last)
        here = here[
            self.outer[here]
            & (self.process[here] == window.process)
            & np.isin(self.thread[here], self._threads(window, begin))
        ]
        if not event:
            here = here[self.end[here] <= close]
        if len(here) > MOST_CALLS:
            return Scene(reason=said("long"))
        if self._overlap(here, int(window.open_ns)):
            return Scene(reason=said("threads"))
        work = self._work(window, here, first, last, begin)
        before = [
            work[n - 1] if n and work[n - 1].lane == w.lane else None for n, w in enumerate(work)
        ]
        items = [self._item(w, b, here) for w, b in zip(work, before, strict=True)]
        items = self._dependencies(work, items, here)
        device = [self._device(w, i, b) for w, i, b in zip(work, items, before, strict=True)]
        trim = [
            self.costs.graph_ns
            if w.operation >= 0 and self.op_kind[w.operation] == KIND["graph"]
            else 0
            for w in work
        ]
        if not event:
            return Scene(here, items, device, trim)
        places = {(w.lane, w.start): n for n, w in enumerate(work) if w.operation == RECORD}
        start, end = (
            (int(window.start_lane), int(window.start_ns)),
            (int(window.end_lane), int(window.end_ns)),
        )
        if any(items[places[p]].call < 0 for p in (start, end)):
            return Scene(reason=said("unissued"))
        return Scene(here, items, device, trim, places[start], places[end])

    def _begin(self, thread: int, open_ns: int) -> int:
        """When to begin: after the thread last waited for the GPU.  Since then the host may have
        run ahead of the GPU, or would have without the profiler; this decides whether the stream is
        idle at the start record."""
        if thread not in self._of_thread:
            mine = np.flatnonzero(self.outer & (self.thread == thread))
            self._of_thread[thread] = mine, mine[self.waits[mine]]
        mine, waiting = self._of_thread[thread]
        k = int(np.searchsorted(self.start[mine], open_ns))
        w = int(np.searchsorted(self.start[waiting], open_ns)) - 1
        begin = int(self.end[waiting[w]]) if w >= 0 else open_ns - _LONGEST_BACK_NS
        earliest = int(self.start[mine[max(k - _MOST_BACK, 0)]]) if k else open_ns
        return min(max(begin, earliest, open_ns - _LONGEST_BACK_NS), open_ns)

    def _threads(self, window, begin: int) -> list[int]:
        """The threads that issue the interval's work: those of its records, and of what was issued
        to its streams."""
        threads = {int(window.thread), int(window.end_thread)}
        for lane in {int(window.start_lane), int(window.end_lane)} & set(self.lanes):
            ops = self.lanes[lane]
            a, z = np.searchsorted(ops.issue_ns, [begin, window.close_ns])
            threads |= set(self.thread[self.op_call[ops.position[a:z]]].tolist())
        return sorted(threads)

    def _overlap(self, here: np.ndarray, open_ns: int) -> bool:
        inside = here[self.start[here] >= open_ns]
        both = self.thread[inside][1:] != self.thread[inside][:-1]
        overlapping = both & (self.start[inside][1:] < self.end[inside][:-1])
        # a thread that waits for another one (a synchronisation, autograd) does not compete with it
        overlapping &= ~(self.waits[inside][1:] | self.waits[inside][:-1])
        return int(overlapping.sum()) > max(2, _OVERLAPPING_SHARE * len(inside))

    def _work(self, window, here: np.ndarray, first: int, last: int, begin: int) -> list[_Work]:
        number = {int(c): n for n, c in enumerate(here)}
        lane_of = self.alignment.operation_lane
        lo, hi = np.searchsorted(self._call_of, [first, last])
        work = [
            _Work(int(lane_of[op]), int(self.op_start[op]), int(self.op_end[op]), number[call], op)
            for op, call in zip(
                self._by_call[lo:hi].tolist(), self._call_of[lo:hi].tolist(), strict=True
            )
            if call in number
        ]
        if window.kind == "event":
            calls = self.alignment.records["call"].to_numpy()
            work += [
                _Work(int(lane), int(at), int(at), number.get(int(calls[record]), -1), RECORD)
                for at, record, lane in (
                    (window.start_ns, window.start, window.start_lane),
                    (window.end_ns, window.end, window.end_lane),
                )
            ]
        for lane in {w.lane for w in work} & set(
            self.lanes
        ):  # work that is unfinished when the scene begins
            ops = self.lanes[lane]
            k = int(np.searchsorted(ops.issue_ns, begin))
            if k and ops.reach_ns[k - 1] > begin:
                op = int(ops.position[ops.reach_from[k - 1]])
                work.append(_Work(lane, int(self.op_start[op]), int(self.op_end[op]), -1, op))
        return sorted(work, key=lambda w: (w.lane, w.start, w.end))

    def _item(self, w: _Work, before: _Work | None, here: np.ndarray) -> Item:
        """Latency and gap: the observed value for the one that determined its start, the usual
        value for the other.  The one that did accounts for the whole start, so that nothing moves
        if no cost is removed."""
        if w.call < 0:
            return Item(w.lane, w.start, w.end, -1, 0, 0)
        call = int(here[w.call])
        issue, issued = int(self.start[call]), int(self.end[call])
        latency = w.start - issue
        if before is None:
            return Item(w.lane, w.start, w.end, w.call, latency, 0)
        usual = RECORD_LATENCY_NS if w.operation == RECORD else self._usual(w, here)
        gap = w.start - before.end
        if before.end > issue:
            latency = min(latency, usual)
        if before.end <= issued:
            gap = min(gap, _TIGHT_RECORD_NS if w.operation == RECORD else _TIGHT_NS)
        by_host, by_stream = issue + latency, before.end + gap
        missing = w.start - max(by_host, by_stream)
        if by_host >= by_stream:
            latency += missing
        else:
            gap += missing
        return Item(w.lane, w.start, w.end, w.call, latency, gap)

    def _usual(self, w: _Work, here: np.ndarray) -> int:
        call = int(here[w.call])
        return self._latency.get(int(self.op_kind[w.operation]), _LATENCY_NS) + int(
            self.end[call] - self.start[call]
        )

    def _dependencies(self, work: list[_Work], items: list[Item], here: np.ndarray) -> list[Item]:
        """Operations that started much later than launches usually do waited for another stream:
        for the work that ended just before."""
        out = list(items)
        for n, w in enumerate(work):
            if w.call < 0 or w.operation == RECORD:
                continue
            before = work[n - 1].end if n and work[n - 1].lane == w.lane else 0
            ready = max(int(self.end[here[w.call]]), before)
            if w.start - ready < HELD_NS:
                continue
            rivals = [
                m
                for m, o in enumerate(work)
                if o.lane != w.lane and o.operation >= 0 and ready < o.end <= w.start + 1_000
            ]
            out[n] = items[n]._replace(
                behind=max(rivals, key=lambda m: work[m].end) if rivals else HIDDEN,
                latency=min(items[n].latency, self._usual(w, here)),
                gap=min(items[n].gap, _TIGHT_NS),
            )
        return out

    def _device(self, w: _Work, item: Item, before: _Work | None) -> int:
        """What the profiler does on the GPU before a kernel or a memset that follows closely."""
        kernel, memset = KIND["kernel"], KIND["memset"]
        if (
            item.behind != NOTHING
            or w.operation < 0
            or self.op_kind[w.operation] not in (kernel, memset)
        ):
            return 0
        if item.call < 0 or item.gap >= 2 * _TIGHT_NS:
            return 0
        after_memset = (
            before is not None
            and before.operation >= 0
            and self.op_kind[before.operation] == memset
        )
        most = self.costs.memset_ns if after_memset else self.costs.device_ns
        return max(0, min(item.gap - self.costs.device_gap_ns, most))
