"""NVTX ranges on the host: how long they took there and what for, next to the time of their work on the GPU.

    thread   [ aten::item                                   ]
                 [cudaMemcpyAsync] [cudaStreamSynchronize  ]
               ^ outside    copy                sync           the calls of its own thread; the rest is outside of CUDA

A range's time includes that of all ranges inside it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.attribute.labels import grouped, plain_region
from nsysalign.model import CALL, ORIGIN, SYNC_CALLS, Alignment, Trace
from nsysalign.sweep.tiles import any_open, covered, group

#: Column -> kinds of calls whose time it holds; calls of all other kinds are `other_ns`.
_KINDS = {
    "launch_ns": ("launch", "graph_launch"),
    "copy_ns": ("memcpy", "memset"),
    "sync_ns": SYNC_CALLS,
}
_SPLIT = (*_KINDS, "other_ns")


def host_ranges(trace: Trace, alignment: Alignment) -> pd.DataFrame:
    """`frames.HOST_RANGES`, the longest first; empty if an event log says what was measured."""
    ranges, windows = trace.ranges, alignment.windows
    if ranges.empty or (windows["log_process"] >= 0).any():
        return frames.empty(frames.HOST_RANGES)
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    rows = pd.DataFrame({"host_ns": end - start, "count": 1} | _inside_calls(trace))
    rows["outside_ns"] = rows["host_ns"] - rows[list(_SPLIT)].sum(axis=1)
    rows["gpu_ns"], rows["with_work"] = _on_gpu(windows, len(ranges))
    code, texts = pd.factorize(ranges["text"].to_numpy(dtype=object))
    labels = [plain_region(str(text)) for text in texts]
    same = grouped(labels)
    rows["label"] = np.array([same.get(label, label) for label in labels], dtype=object)[code]
    groups = rows.groupby("label", sort=False)
    out = groups[["count", "with_work", "gpu_ns", "host_ns", *_SPLIT, "outside_ns"]].sum().reset_index()
    # the lower median: a time that was measured
    out["median_ns"] = groups["host_ns"].quantile(0.5, interpolation="lower").to_numpy()
    out["max_ns"] = groups["host_ns"].max().to_numpy()
    out = out.sort_values(["host_ns", "label"], ascending=[False, True], ignore_index=True)
    return frames.check(out, frames.HOST_RANGES)


def left_out(trace: Trace, alignment: Alignment) -> list[str]:
    """What neither ranges nor calls account for, in one note: [] if nothing is missing, or if an event log says what was
    measured."""
    ranges, windows, operations = trace.ranges, alignment.windows, trace.operations
    if trace.blocks or (windows["log_process"] >= 0).any():
        return []
    said = []
    took = (operations["end_ns"] - operations["start_ns"]).to_numpy()
    call = operations["call"].to_numpy()
    if len(ranges):
        idle = len(ranges) - int(_on_gpu(windows, len(ranges))[1].sum())
        if idle:
            said.append(f"{idle:,} of {len(ranges):,} NVTX ranges, which issued no work to a GPU")
        outside = np.flatnonzero(call >= 0)[~_covered(trace)]
        if len(outside):
            said.append(f"{_operations(outside, took)} issued outside of all ranges")
    lost = np.flatnonzero(call < 0)
    if len(lost):
        said.append(f"{_operations(lost, took)} of which the trace has no launch")
    return [f"left out of the intervals, but in the run as a whole: {'; '.join(said)}"] if said else []


def _operations(which: np.ndarray, took: np.ndarray) -> str:
    ms = took[which].sum() / 1e6
    return f"{len(which):,} operation{'s' * (len(which) != 1)} ({ms:,.3f} ms)"


def _inside_calls(trace: Trace) -> dict[str, np.ndarray]:
    """Per range: how long its thread was in calls of each kind while it lasted."""
    ranges, calls = trace.ranges, trace.calls
    column = np.full(len(CALL), len(_KINDS), np.int8)
    for number, kinds in enumerate(_KINDS.values()):
        column[[CALL[kind] for kind in kinds]] = number
    outer = np.flatnonzero(calls["outer"].to_numpy() == np.arange(len(calls)))
    begin, over = (calls[c].to_numpy()[outer] for c in ("start_ns", "end_ns"))
    what = column[calls["kind"].to_numpy()[outer]]
    of_thread = group(calls["thread"].to_numpy()[outer], np.arange(len(outer)))
    start, end = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    found = {name: np.zeros(len(ranges), np.int64) for name in _SPLIT}
    for thread, rows in group(ranges["thread"].to_numpy(), np.arange(len(ranges))).items():
        mine = of_thread.get(thread, np.empty(0, np.int64))
        for number, name in enumerate(_SPLIT):
            some = mine[what[mine] == number]
            spent = [covered(begin[some], over[some], t[rows]) for t in (start, end)]
            found[name][rows] = spent[1] - spent[0]
    return found


def _on_gpu(windows: pd.DataFrame, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Per range: (first start to last end of its work, on whichever streams; 1 where it has any, else 0)."""
    mine = windows[windows["origin"] == ORIGIN["range"]]
    spans = mine.groupby("source").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    length, there = np.zeros(count, np.int64), np.zeros(count, np.int64)
    at = spans.index.to_numpy(np.int64)
    length[at], there[at] = (spans["end"] - spans["start"]).to_numpy(), 1
    return length, there


def _covered(trace: Trace) -> np.ndarray:
    """Per operation with a call: whether any range of its process was open when it was issued."""
    operations, ranges = trace.operations, trace.ranges
    issued = np.flatnonzero(operations["call"].to_numpy() >= 0)
    issue = trace.calls["start_ns"].to_numpy()[operations["call"].to_numpy()[issued]]
    of, opened, closed = (ranges[c].to_numpy() for c in ("process", "start_ns", "end_ns"))
    return any_open(of, opened, closed, operations["process"].to_numpy()[issued], issue)
