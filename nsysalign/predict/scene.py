"""What the replay of one interval needs from the trace: the calls of the threads that issue its
work, the operations that these calls issued, and the two records, in the words of `replay`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

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
    """`calls`: positions in Trace.calls, by start.  `items`: sorted by lane, then start.  `start`,
    `end`: the items that are the records, -1 for host intervals.  `reason`: why there is nothing to
    replay; '' otherwise."""

    calls: np.ndarray = np.empty(0, np.int64)
    items: Sequence[Item] = ()
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
    kind: int  # of the operation, RECORD for a record


class Scenes:
    """Everything about a trace from which scenes are cut."""

    def __init__(self, trace: Trace, alignment: Alignment, waits: np.ndarray, costs: Costs) -> None:
        calls, operations = trace.calls, trace.operations
        self.alignment, self.costs, self.waits = alignment, costs, waits
        self.start, self.end, self.thread, self.process = (
            calls[c].to_numpy() for c in ("start_ns", "end_ns", "thread", "process")
        )
        self.op_start, self.op_end, self.op_kind, self.op_call = (
            operations[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "call")
        )
        self.outer = trace.outermost
        self.lanes = lane_operations(trace, alignment.operation_lane)
        known = np.flatnonzero(self.op_call >= 0)
        self._by_call = known[np.argsort(self.op_call[known], kind="stable")]
        self._call_of = self.op_call[self._by_call]
        self._of_thread = cache(lambda thread: np.flatnonzero(self.outer & (self.thread == thread)))
        # ordinary time from the end of the call to the start, per kind, on an idle stream
        idle = [
            pd.Series((ops.start_ns - ops.issued_ns)[some], self.op_kind[ops.position[some]])
            for ops in self.lanes.values()
            if (some := np.append(True, ops.reach_ns[:-1] <= ops.issue_ns[1:])).any()
        ]
        medians = pd.concat(idle).groupby(level=0).median() if idle else {}
        self._latency = {int(kind): int(ns) for kind, ns in medians.items()}
        #: How long after the end of what it waited for a waiting call usually returns.
        self.back = _RETURN_NS
        ends, waiting = np.sort(self.op_end), np.flatnonzero(waits & self.outer)
        if len(ends) and len(waiting):
            last = np.searchsorted(ends, self.end[waiting], side="right") - 1
            last = ends[np.maximum(last, 0)]
            waited = (last > self.start[waiting]) & (last <= self.end[waiting])
            if waited.any():
                self.back = int(np.median((self.end[waiting] - last)[waited]))

    def of(self, window) -> Scene:
        """The scene of one row of alignment.windows (a named tuple)."""
        if window.kind == "nvtx":
            return Scene(reason=said("untimed"))
        event, opened, close = window.kind == "event", int(window.open_ns), int(window.close_end_ns)
        begin = self._begin(int(window.thread), opened) if event else opened
        # the threads that issue its work: those of its records, and of what was issued to its
        # streams
        threads = {int(window.thread), int(window.end_thread)}
        for lane in {int(window.start_lane), int(window.end_lane)} & set(self.lanes):
            ops = self.lanes[lane]
            first, last = np.searchsorted(ops.issue_ns, [begin, window.close_ns])
            threads |= set(self.thread[self.op_call[ops.position[first:last]]].tolist())
        here = np.arange(*np.searchsorted(self.start, [begin, close]))
        wanted = self.outer[here] & (self.process[here] == window.process)
        wanted &= np.isin(self.thread[here], list(threads)) & (event | (self.end[here] <= close))
        here = here[wanted]
        if len(here) > MOST_CALLS:
            return Scene(reason=said("long"))
        inside = here[self.start[here] >= opened]
        overlapping = self.thread[inside][1:] != self.thread[inside][:-1]
        overlapping &= self.start[inside][1:] < self.end[inside][:-1]
        # a thread that waits for another one (a synchronisation, autograd) does not compete with it
        overlapping &= ~(self.waits[inside][1:] | self.waits[inside][:-1])
        if overlapping.sum() > max(2, _OVERLAPPING_SHARE * len(inside)):
            return Scene(reason=said("threads"))
        work = self._work(window, here, begin)
        items = [self._item(work, number, here) for number in range(len(work))]
        if not event:
            return Scene(here, items)
        places = {(w.lane, w.start): n for n, w in enumerate(work) if w.kind == RECORD}
        start = places[int(window.start_lane), int(window.start_ns)]
        end = places[int(window.end_lane), int(window.end_ns)]
        if items[start].call < 0 or items[end].call < 0:
            return Scene(reason=said("unissued"))
        return Scene(here, items, start, end)

    def _begin(self, thread: int, open_ns: int) -> int:
        """When to begin: after the thread last waited for the GPU.  Since then the host may have
        run ahead of the GPU, or would have without the profiler; this decides whether the stream is
        idle at the start record."""
        before = self._of_thread(thread)
        before = before[: np.searchsorted(self.start[before], open_ns)]
        waited = before[self.waits[before]]
        begin = int(self.end[waited[-1]]) if len(waited) else 0
        earliest = int(self.start[before[-_MOST_BACK:][0]]) if len(before) else open_ns
        return min(max(begin, earliest, open_ns - _LONGEST_BACK_NS), open_ns)

    def _work(self, window, here: np.ndarray, begin: int) -> list[_Work]:
        """What these calls issued, the records, and what is unfinished when the scene begins;
        sorted by lane, then start."""
        number = {call: n for n, call in enumerate(here.tolist())}
        lane_of = self.alignment.operation_lane

        def operation(position: int, call: int) -> _Work:
            times = int(self.op_start[position]), int(self.op_end[position])
            return _Work(
                int(lane_of[position]), *times, call, position, int(self.op_kind[position])
            )

        edges = (here[0], here[-1] + 1) if len(here) else (0, 0)
        issued = slice(*np.searchsorted(self._call_of, edges))
        pairs = zip(self._by_call[issued].tolist(), self._call_of[issued].tolist(), strict=True)
        work = [operation(position, number[call]) for position, call in pairs if call in number]
        if window.kind == "event":
            calls = self.alignment.records["call"].to_numpy()
            for place, record, lane in (
                (window.start_ns, window.start, window.start_lane),
                (window.end_ns, window.end, window.end_lane),
            ):
                call = number.get(int(calls[record]), -1)
                work.append(_Work(int(lane), int(place), int(place), call, RECORD, RECORD))
        for lane in {w.lane for w in work} & set(self.lanes):
            ops = self.lanes[lane]
            last = int(np.searchsorted(ops.issue_ns, begin)) - 1
            if last >= 0 and ops.reach_ns[last] > begin:
                work.append(operation(int(ops.position[ops.reach_from[last]]), -1))
        return sorted(work, key=lambda w: (w.lane, w.start, w.end))

    def _item(self, work: list[_Work], number: int, here: np.ndarray) -> Item:
        """Latency and gap: the observed value for the one that determined its start, the usual
        value for the other.  The one that did accounts for the whole start, so that nothing moves
        if no cost is removed.  What started much later than launches usually do waited for another
        stream: for the work that ended just before."""
        w = work[number]
        before = work[number - 1] if number and work[number - 1].lane == w.lane else None
        trim = self.costs.graph_ns if w.kind == KIND["graph"] else 0
        if w.call < 0:
            return Item(w.lane, w.start, w.end, -1, 0, 0, trim=trim)
        issue, issued = int(self.start[here[w.call]]), int(self.end[here[w.call]])
        latency, gap, usual, tight = w.start - issue, 0, RECORD_LATENCY_NS, _TIGHT_RECORD_NS
        if w.kind != RECORD:
            usual, tight = self._latency.get(w.kind, _LATENCY_NS) + issued - issue, _TIGHT_NS
        if before:
            gap = w.start - before.end
            latency = min(latency, usual) if before.end > issue else latency
            gap = min(gap, tight) if before.end <= issued else gap
            by_host, by_stream = issue + latency, before.end + gap
            missing = w.start - max(by_host, by_stream)
            if by_host >= by_stream:
                latency += missing
            else:
                gap += missing
        behind, device = NOTHING, 0
        ready = max(issued, before.end if before else 0)
        if w.kind != RECORD and w.start - ready >= HELD_NS:
            rivals = [
                n
                for n, other in enumerate(work)
                if other.lane != w.lane
                and other.kind != RECORD
                and ready < other.end <= w.start + 1_000
            ]
            behind = max(rivals, key=lambda n: work[n].end) if rivals else HIDDEN
            latency, gap = min(latency, usual), min(gap, _TIGHT_NS)
        elif w.kind in (KIND["kernel"], KIND["memset"]) and gap < 2 * _TIGHT_NS:
            # what the profiler does before a kernel or a memset that follows closely
            memset = before is not None and before.kind == KIND["memset"]
            most = self.costs.memset_ns if memset else self.costs.device_ns
            device = max(0, min(gap - self.costs.device_gap_ns, most))
        return Item(w.lane, w.start, w.end, w.call, latency, gap, behind, trim, device)
