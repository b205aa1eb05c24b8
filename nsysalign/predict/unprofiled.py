"""What an interval would have measured without nsys, predicted from the profiled trace alone, and
its budget then.

The interval is replayed (`replay`) without what the profiler costs (`overhead`): as estimated, and
with less of it, which says how much depends on each part of the estimate.  The budget is the
profiled one minus what was taken away, by cause; it adds up exactly to the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.causes import CAUSES
from nsysalign.model import KIND, Alignment, Trace
from nsysalign.parts import scale_budget
from nsysalign.place.streams import LaneOperations
from nsysalign.predict.replay import (
    AFTER_ERROR,
    FITTED,
    HIDDEN,
    HOST_ERROR,
    INSIDE_ERROR,
    NOTHING,
    WORK_ERROR,
    Call,
    Costs,
    Item,
    overhead,
    replay,
    waiting,
)
from nsysalign.split.budget import SplitTrace
from nsysalign.trace.nccl import NCCL_KERNEL

#: Intervals replayed per label at most, evenly spread: more would not add anything.  Fewer if they
#: are long.
MOST_PER_LABEL, LEAST_PER_LABEL, CALLS_PER_LABEL = 32, 3, 60_000
_TICK_NS = 64  # the event clock's, at both ends
#: If more of an interval than this is unknown, it is not replayed; the same for NCCL's kernels in it
#: and before it.
_UNKNOWN_SHARE = _WAITING_SHARE = 0.05
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
_RECORD = -1

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


class Scene(NamedTuple):
    """What a replay takes: `calls` by start; `items`, sorted by lane, then start; which of them are
    the two records, -1 for host intervals.  `reason`: the word of why there is nothing to replay;
    '' otherwise."""

    calls: Sequence[Call] = ()
    items: Sequence[Item] = ()
    start: int = -1
    end: int = -1
    reason: str = ""


class _Work(NamedTuple):
    """An operation, or a record (kind _RECORD), before it becomes an Item."""

    lane: int
    start: int
    end: int
    call: int  # number in the scene, -1 for work issued before it begins
    kind: int


class Prediction(NamedTuple):
    """The prediction for one interval, ns; -1 if there is none, for the given `reason`."""

    predicted_ns: int
    lower_ns: int
    upper_ns: int
    reason: str


class Predictions(NamedTuple):
    """`frames.UNPROFILED` and `frames.UNPROFILED_PARTS`."""

    table: pd.DataFrame
    parts: pd.DataFrame


class Predictor:
    """`lanes`: the operations of each (`lane_operations`).  `costs`: what the profiler adds; the
    defaults are the fitted ones."""

    def __init__(
        self,
        trace: Trace,
        alignment: Alignment,
        lanes: Mapping[int, LaneOperations],
        costs: Costs = FITTED,
    ) -> None:
        calls, operations = trace.calls, trace.operations
        self.lanes, self.costs, self.waits = lanes, costs, waiting(trace)
        columns = ("start_ns", "end_ns", "thread")
        self.start, self.end, self.thread = (calls[c].to_numpy() for c in columns)
        self.op_kind, self.op_call = (operations[c].to_numpy() for c in ("kind", "call"))
        self.record_call = alignment.records["call"].to_numpy()
        outer = trace.outermost
        self.of_thread = cache(lambda number: np.flatnonzero(outer & (self.thread == number)))
        self.overhead = lambda own: overhead(trace, own, self.waits, costs)
        # ordinary time from the end of the call to the start, per kind, on an idle stream
        kinds, late = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for ops in lanes.values():
            times = ops.times
            some = np.append(True, times.reach_ns[:-1] <= times.call_start_ns[1:])
            kinds.append(self.op_kind[ops.position[some]])
            late.append((times.start_ns - times.call_end_ns)[some])
        kind, ns = np.concatenate(kinds), np.concatenate(late)
        self.latency = {k: int(np.median(ns[kind == k])) for k in np.unique(kind).tolist()}
        #: How long after the end of what it waited for a waiting call usually returns.
        self.back = _RETURN_NS
        ends, waits = np.sort(operations["end_ns"].to_numpy()), np.flatnonzero(self.waits & outer)
        if len(ends) and len(waits):
            last = np.searchsorted(ends, self.end[waits], side="right") - 1
            last = ends[np.maximum(last, 0)]
            waited = (last > self.start[waits]) & (last <= self.end[waits])
            if waited.any():
                self.back = int(np.median((self.end[waits] - last)[waited]))

    def predict(self, window, working_ns: int = 0) -> Prediction:
        """One row of alignment.windows (a named tuple).  `working_ns`: how long the GPU works in
        it."""
        scene = self.scene(window)
        if scene.reason:
            return Prediction(-1, -1, -1, scene.reason)
        took = []
        for shares in ((1, 1), (1 - INSIDE_ERROR, 1), (1, 1 - AFTER_ERROR)):
            played = replay(scene.calls, scene.items, *shares)
            earlier = played.host
            if scene.start >= 0:
                earlier = played.items[scene.end] - played.items[scene.start]
            took.append(max(int(window.elapsed_ns) - earlier, 0))
        middle, less_inside, less_after = took
        work = min(working_ns, middle)
        errors = (HOST_ERROR * (middle - work), WORK_ERROR * work)
        bar = round(math.hypot(less_inside - middle, less_after - middle, *errors)) + _TICK_NS
        return Prediction(middle, max(middle - bar, 0), middle + bar, "")

    def scene(self, window) -> Scene:
        """The calls of the threads that issue the work of a window, the operations that these calls
        issued, and the two records, in the words of `replay`."""
        if window.kind == "nvtx":
            return Scene(reason="untimed")
        event, opened, close = window.kind == "event", int(window.open_ns), int(window.close_end_ns)
        begin = opened
        if event:
            # after the thread last waited for the GPU: since then the host may have run ahead of it,
            # or would have without the profiler, so that the stream is not idle at the start record
            before = self.of_thread(int(window.thread))
            before = before[: np.searchsorted(self.start[before], opened)]
            waited = before[self.waits[before]]
            begin = int(self.end[waited[-1]]) if len(waited) else 0
            earliest = int(self.start[before[-_MOST_BACK:][0]]) if len(before) else opened
            begin = min(max(begin, earliest, opened - _LONGEST_BACK_NS), opened)
        # the threads of its records, and of what was issued to its streams
        threads = {int(window.thread), int(window.end_thread)}
        for lane in {int(window.start_lane), int(window.end_lane)} & set(self.lanes):
            ops = self.lanes[lane]
            issued = slice(*np.searchsorted(ops.times.call_start_ns, [begin, window.close_ns]))
            threads |= set(self.thread[self.op_call[ops.position[issued]]].tolist())
        parts = []
        for number in threads:
            own = self.of_thread(number)
            first, last = np.searchsorted(self.start[own], [begin, close])
            own, count = own[first : last + 1], last - first  # what follows shows the last pause
            parts.append([c[:count] for c in (own, *self.overhead(own))])
        calls, inside, after = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(calls)
        if not event:
            order = order[self.end[calls[order]] <= close]
        calls = calls[order]
        if len(calls) > MOST_CALLS:
            return Scene(reason="long")
        within = calls[self.start[calls] >= opened]
        overlapping = self.thread[within][1:] != self.thread[within][:-1]
        overlapping &= self.start[within][1:] < self.end[within][:-1]
        # a thread that waits for another one (a synchronisation, autograd) does not compete with it
        overlapping &= ~(self.waits[within][1:] | self.waits[within][:-1])
        if overlapping.sum() > max(2, _OVERLAPPING_SHARE * len(within)):
            return Scene(reason="threads")
        work = self._work(window, calls, begin)
        columns = (
            self.start[calls],
            self.end[calls],
            inside[order],
            after[order],
            self.waits[calls],
        )
        rows = zip(*(column.tolist() for column in columns), strict=True)
        made = [Call(*row)._replace(back=self.back) for row in rows]
        items = [self._item(work, number, made) for number in range(len(work))]
        if not event:
            return Scene(made, items)
        places = {(w.lane, w.start): n for n, w in enumerate(work) if w.kind == _RECORD}
        start = places[int(window.start_lane), int(window.start_ns)]
        end = places[int(window.end_lane), int(window.end_ns)]
        if items[start].call < 0 or items[end].call < 0:
            return Scene(reason="unissued")
        return Scene(made, items, start, end)

    def _work(self, window, calls: np.ndarray, begin: int) -> list[_Work]:
        """What these calls issued, the records, and what is unfinished when the scene begins;
        sorted by lane, then start."""
        number = {call: n for n, call in enumerate(calls.tolist())}
        work = []
        if window.kind == "event":
            for place, record, lane in (
                (window.start_ns, window.start, window.start_lane),
                (window.end_ns, window.end, window.end_lane),
            ):
                call = number.get(int(self.record_call[record]), -1)
                work.append(_Work(int(lane), int(place), int(place), call, _RECORD))
        edges = self.start[calls[[0, -1]]] + [0, 1] if len(calls) else [0, 0]
        lanes = {w.lane for w in work}
        for lane, ops in self.lanes.items():
            times = ops.times
            issued = slice(*np.searchsorted(times.call_start_ns, edges))
            here = ops.position[issued]
            columns = (times.start_ns[issued], times.end_ns[issued], self.op_call[here], self.op_kind[here])  # fmt: skip
            rows = zip(*(column.tolist() for column in columns), strict=True)
            own = [_Work(lane, s, e, number[c], k) for s, e, c, k in rows if c in number]
            work += own
            last = int(np.searchsorted(times.call_start_ns, begin)) - 1
            if (own or lane in lanes) and last >= 0 and times.reach_ns[last] > begin:
                n = np.searchsorted(times.reach_ns, times.reach_ns[last])
                kind = int(self.op_kind[ops.position[n]])
                work.append(_Work(lane, int(times.start_ns[n]), int(times.end_ns[n]), -1, kind))
        return sorted(work, key=lambda w: (w.lane, w.start, w.end))

    def _item(self, work: list[_Work], number: int, calls: Sequence[Call]) -> Item:
        """Latency and gap: the observed value for the one that determined its start, the usual
        value for the other.  The one that did accounts for the whole start, so that nothing moves
        if no cost is removed.  What started much later than launches usually do waited for another
        stream: for the work that ended just before."""
        w = work[number]
        before = work[number - 1] if number and work[number - 1].lane == w.lane else None
        trim = self.costs.graph_ns if w.kind == KIND["graph"] else 0
        if w.call < 0:
            return Item(w.lane, w.start, w.end, -1, 0, 0, trim=trim)
        issue, issued = calls[w.call].start, calls[w.call].end
        latency, gap, usual, tight = w.start - issue, 0, RECORD_LATENCY_NS, _TIGHT_RECORD_NS
        if w.kind != _RECORD:
            usual, tight = self.latency.get(w.kind, _LATENCY_NS) + issued - issue, _TIGHT_NS
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
        if w.kind != _RECORD and w.start - ready >= HELD_NS:
            rivals = [
                (other.end, -n)
                for n, other in enumerate(work)
                if other.lane != w.lane and other.kind != _RECORD
                if ready < other.end <= w.start + 1_000
            ]
            behind = -max(rivals)[1] if rivals else HIDDEN
            latency, gap = min(latency, usual), min(gap, _TIGHT_NS)
        elif w.kind in (KIND["kernel"], KIND["memset"]) and gap < 2 * _TIGHT_NS:
            # what the profiler does before a kernel or a memset that follows closely
            memset = before is not None and before.kind == KIND["memset"]
            most = self.costs.memset_ns if memset else self.costs.device_ns
            device = max(0, min(gap - self.costs.device_gap_ns, most))
        return Item(w.lane, w.start, w.end, w.call, latency, gap, behind, trim, device)


def predict(source: SplitTrace, intervals: pd.DataFrame, labels: pd.DataFrame) -> Predictions:
    """Of all intervals of a label with few, else of its row and others evenly spread.  `intervals`:
    frames.INTERVALS without runs, numbered by their rows."""
    # about how many calls were made while each label's row was open
    begins, windows = source.trace.calls["start_ns"].to_numpy(), source.alignment.windows
    rows = labels["row_interval"].to_numpy()
    opened, closed = (
        np.searchsorted(begins, windows[c].to_numpy()[rows]) for c in ("open_ns", "close_ns")
    )
    most = CALLS_PER_LABEL // np.maximum(closed - opened, 1)
    most = np.clip(most, LEAST_PER_LABEL, MOST_PER_LABEL)
    of_label = intervals.groupby("label", sort=False).indices
    wanted = [rows]
    for label, count in zip(labels["label"], most.tolist(), strict=True):
        numbers = of_label[label]
        spread = np.linspace(0, len(numbers) - 1, count - 1).astype(int)
        wanted.append(numbers[spread] if len(numbers) > count else numbers)
    return predict_intervals(source, np.unique(np.concatenate(wanted)).astype(np.int64))


def predict_intervals(source: SplitTrace, wanted: np.ndarray) -> Predictions:
    """The same for these intervals (ascending numbers).

    Only of traces of nsys.  Where none can be made there is a reason, whose first word, up to the colon, is what a table's
    cell has room for (REASONS). Bars are those of a run on a host that is as fast as this one was.
    """
    trace = source.trace
    if trace.info.recorder != "nsys":  # what others add to a call was not measured
        wanted = wanted[:0]
    windows = source.alignment.windows.iloc[wanted]
    predictor, rows, budgets = None, [], []
    columns = (wanted.tolist(), frames.rows_of(windows), source.budgets(wanted))
    # NCCL's kernels: a replay takes a wait for another rank to be as long as it was
    names = [n for n, name in trace.names.items() if NCCL_KERNEL.search(name)]
    collectives = trace.operations[trace.operations["name_id"].isin(names)]
    of, begun, over = (collectives[c].to_numpy() for c in ("process", "start_ns", "end_ns"))
    for number, window, parts in zip(*columns, strict=True):
        # of an interval and as long a time before it
        waited = np.minimum(over, window.end_ns) - np.maximum(
            begun, 2 * window.start_ns - window.end_ns
        )
        waited_ns = np.maximum(waited, 0)[of == window.process].sum()
        if window.method in ("inferred", "event-trace"):
            reason = window.method
        elif len(trace.os_calls):
            reason = "osrt"
        elif parts[CAUSES.index("unknown")] > _UNKNOWN_SHARE * window.elapsed_ns:
            reason = "unknown"
        elif waited_ns > _WAITING_SHARE * window.elapsed_ns:
            reason = "collectives"
        else:
            lanes = source.explainer.per_lane
            predictor = predictor or Predictor(trace, source.alignment, lanes)
            predicted = predictor.predict(window, int(parts[: len(KIND)].sum()))
            longer = predicted.predicted_ns > window.elapsed_ns
            reason = "longer" if longer else predicted.reason
        if reason:
            rows.append((number, pd.NA, pd.NA, pd.NA, f"{reason}: {REASONS[reason]}"))
            continue
        rows.append((number, *predicted))
        budget = scale_budget(parts, predicted.predicted_ns)
        budgets += [(number, CAUSES[c], int(ns)) for c, ns in enumerate(budget) if ns]
    table = frames.of_rows(rows, frames.UNPROFILED)
    return Predictions(table, frames.of_rows(budgets, frames.UNPROFILED_PARTS))
