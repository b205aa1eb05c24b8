"""What an interval would have measured without nsys: the profiled one, replayed without the profiler's cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.attribute.overhead import SPREAD, WAITS, Costs, Overhead, overhead
from nsysalign.attribute.replay import Call, Item, replay
from nsysalign.model import CALL, KIND, Alignment, Trace
from nsysalign.sweep.issue import LaneOperations, lane_operations

#: Replayed per label at most, evenly spread: a label of 10,000 runs says no more than these.
MOST_PER_LABEL = 32
#: How far before an interval the replay may begin, where the stream was busy already.
_MOST_BACK = 300
#: An operation that starts so much later than launches do was held up by something.
_HELD_NS = 10_000
#: The ordinary gap between operations, and before a record, on a stream that has work queued (ns).
_TIGHT_NS, _TIGHT_RECORD_NS = 1_250, 2_500
_RECORD_LATENCY_NS = 4_000


class Prediction(NamedTuple):
    """Of one interval, ns.  `reason` is '' or says why there is no prediction."""

    predicted_ns: int
    lower_ns: int
    upper_ns: int
    reason: str


class Replayer:
    """Everything about a trace that the replay of an interval needs."""

    def __init__(self, trace: Trace, alignment: Alignment, costs: Costs = Costs()) -> None:
        self.trace, self.alignment, self.costs = trace, alignment, costs
        calls, operations = trace.calls, trace.operations
        self.start, self.end, self.kind, self.thread = (
            calls[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "thread")
        )
        self.op_start, self.op_end, self.op_kind, self.op_call = (
            operations[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "call")
        )
        self.outer = calls["outer"].to_numpy() == np.arange(len(calls))
        self.process = calls["process"].to_numpy()
        self.lanes: dict[int, LaneOperations] = lane_operations(
            trace, alignment.operation_lane, len(alignment.lanes)
        )
        known = np.flatnonzero(self.op_call >= 0)
        by_call = known[np.argsort(self.op_call[known], kind="stable")]
        self._by_call, self._call_of = by_call, self.op_call[by_call]
        waits = np.isin(self.kind, [CALL[k] for k in WAITS])
        done = known[self.op_end[known] <= self.end[self.op_call[known]]]
        copies = done[self.op_kind[done] == KIND["memcpy"]]
        waits[self.op_call[copies]] = True
        self.waits = waits
        self.cost = [overhead(trace, waits, costs)]
        self.scales = (1.0, *SPREAD)
        base = self.cost[0]
        self.cost += [
            Overhead(
                np.minimum(np.rint(base.inside * s), self.end - self.start).astype(np.int64),
                np.rint(base.after * s).astype(np.int64),
                waits,
            )
            for s in SPREAD
        ]
        self.latency = self._latencies()

    def _latencies(self) -> dict[int, int]:
        """Ordinary time from the end of the call to the start, per kind of operation, on an idle stream."""
        values: dict[int, list[np.ndarray]] = {}
        for ops in self.lanes.values():
            before = np.concatenate([[np.iinfo(np.int64).min], ops.reach_ns[:-1]])
            idle = before <= ops.issue_ns
            kind = self.op_kind[ops.position]
            for k in np.unique(kind):
                mine = idle & (kind == k)
                values.setdefault(int(k), []).append((ops.start_ns - ops.issued_ns)[mine])
        found = {k: np.concatenate(v) for k, v in values.items()}
        return {k: int(np.median(v)) for k, v in found.items() if len(v)}

    def predict(self, window) -> Prediction:
        """One row of alignment.windows (a named tuple)."""
        calls, items, start_item, end_item, reason = self._scene(window)
        if reason:
            return Prediction(-1, -1, -1, reason)
        results = []
        for cost, scale in zip(self.cost, self.scales, strict=True):
            played = [
                Call(int(self.start[c]), int(self.end[c]), int(cost.inside[c]), int(cost.after[c]), bool(self.waits[c]))
                for c in calls
            ]
            shift_of_call, shift, tail = replay(
                played,
                [
                    Item(
                        i.lane,
                        i.start,
                        i.end,
                        i.call,
                        i.latency,
                        max(i.gap - round(scale * i.device), 0),
                        i.behind,
                        min(round(scale * i.trim), (i.end - i.start) // 2),
                    )
                    for i in items
                ],
            )
            if window.kind == "host":
                results.append(int(window.elapsed_ns) - tail)
            else:
                results.append(int(window.elapsed_ns) - shift[end_item] + shift[start_item])
        low, high = min(results), max(results)
        return Prediction(results[0], low, high, "")

    def _scene(self, w):
        if w.kind == "nvtx":
            return [], [], -1, -1, "an NVTX range is no interval that the program measured"
        own = self.process == w.process
        threads = {int(w.thread), int(w.end_thread)}
        begin = int(w.open_ns)
        if w.kind == "event":
            involved = {int(w.start_lane), int(w.end_lane)}
            for lane in involved:
                ops = self.lanes.get(lane)
                if ops is None:
                    continue
                begin = min(begin, self._begin(ops, int(w.open_ns)))
            for lane in involved:
                ops = self.lanes.get(lane)
                if ops is not None:
                    a, z = np.searchsorted(ops.issue_ns, [begin, w.close_ns])
                    threads |= set(self.thread[self.op_call[ops.position[a:z]]].tolist())
        close = int(w.close_end_ns) if w.kind == "event" else int(w.end_ns)
        a, z = np.searchsorted(self.start, [begin, close])
        here = np.arange(a, z)
        here = here[self.outer[here] & own[here] & np.isin(self.thread[here], list(threads))]
        if w.kind == "host":
            here = here[self.end[here] <= close]
        index = {int(c): n for n, c in enumerate(here)}
        items = []
        lo, hi = np.searchsorted(self._call_of, [a, z])
        for op in self._by_call[lo:hi].tolist():
            number = index.get(int(self.op_call[op]))
            if number is not None:
                items.append((int(self.op_start[op]), int(self.op_end[op]), number, op, int(self.alignment.operation_lane[op])))
        lanes = {i[4] for i in items} | ({int(w.start_lane), int(w.end_lane)} if w.kind == "event" else set())
        for lane in lanes:  # unfinished work from before
            ops = self.lanes.get(lane)
            if ops is None:
                continue
            k = int(np.searchsorted(ops.issue_ns, begin))
            if k and ops.reach_ns[k - 1] > begin:
                op = int(ops.position[ops.reach_from[k - 1]])
                items.append((int(self.op_start[op]), int(self.op_end[op]), -1, op, lane))
        if w.kind == "event":
            records = self.alignment.records["call"].to_numpy()
            for place, record, lane in ((int(w.start_ns), w.start, w.start_lane), (int(w.end_ns), w.end, w.end_lane)):
                items.append((place, place, index.get(int(records[record]), -1), -1, int(lane)))
        items.sort(key=lambda i: (i[4], i[0], i[1]))
        scene, previous = [], None
        for start, end, number, op, lane in items:
            before = previous if previous is not None and previous[4] == lane else None
            scene.append(self._item(start, end, number, op, lane, before, here))
            previous = (start, max(end, before[1]) if before else end, number, op, lane)
        scene = self._dependencies(scene, here)
        marks = [n for n, i in enumerate(scene) if i.op < 0]
        if w.kind != "event":
            return here, scene, -1, -1, ""
        if len(marks) != 2 or scene[marks[0]].call < 0 and False:
            return here, scene, -1, -1, "its records have no call in the trace"
        by = {(scene[n].start, scene[n].lane): n for n in marks}
        return here, scene, by[int(w.start_ns), int(w.start_lane)], by[int(w.end_ns), int(w.end_lane)], ""

    def _begin(self, ops: LaneOperations, open_ns: int) -> int:
        """When to begin: at the call after which the stream was last idle before the interval, for until then the host
        may have been ahead."""
        k = int(np.searchsorted(ops.issue_ns, open_ns)) - 1
        if k < 0 or ops.reach_ns[k] <= open_ns:
            return open_ns
        least = max(k - _MOST_BACK, 0)
        while k > least and ops.reach_ns[k - 1] > ops.issue_ns[k]:
            k -= 1
        return int(ops.issue_ns[k])

    def _item(self, start, end, number, op, lane, before, here) -> "_Scene":
        if number < 0:
            return _Scene(lane, start, end, -1, 0, 0, -1, op, 0)
        call = int(here[number])
        lag, idle = start - int(self.start[call]), before is None or before[1] <= self.start[call]
        if op < 0:
            ordinary = min(lag, _RECORD_LATENCY_NS)
            gap = min(start - before[1], _TIGHT_RECORD_NS) if before else 0
            return _Scene(lane, start, end, number, lag if idle else ordinary, gap, -1, op, 0)
        usual = self.latency.get(int(self.op_kind[op]), 3_000) + int(self.end[call] - self.start[call])
        gap = device = 0
        trim = self.costs.graph_ns if self.op_kind[op] == KIND["graph"] else 0
        if before:
            gap = min(start - before[1], _TIGHT_NS) if before[1] <= self.end[call] else start - before[1]
            if self.op_kind[op] == KIND["kernel"] and gap < 2 * _TIGHT_NS:
                device = int(np.clip(gap - self.costs.device_gap_ns, 0, self.costs.device_ns))
        return _Scene(lane, start, end, number, lag if idle else min(lag, usual), gap, -1, op, device, trim)

    def _dependencies(self, scene, here):
        """What was held up longer than launches take, by work of another stream."""
        out = list(scene)
        for n, item in enumerate(scene):
            if item.op < 0 or item.call < 0:
                continue
            before = scene[n - 1] if n and scene[n - 1].lane == item.lane else None
            call = int(here[item.call])
            ready = max(int(self.end[call]), before.end if before else 0)
            if item.start - ready < _HELD_NS:
                continue
            rivals = [
                m for m, o in enumerate(scene) if o.lane != item.lane and o.op >= 0 and ready < o.end <= item.start + 1_000
            ]
            usual = self.latency.get(int(self.op_kind[item.op]), 3_000) + int(self.end[call] - self.start[call])
            behind = max(rivals, key=lambda m: scene[m].end) if rivals else -2
            out[n] = item._replace(behind=behind, latency=min(item.latency, usual), gap=min(item.gap, _TIGHT_NS))
        return out


class _Scene(NamedTuple):
    lane: int
    start: int
    end: int
    call: int
    latency: int
    gap: int
    behind: int
    op: int
    device: int
    trim: int = 0
