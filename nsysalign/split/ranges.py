"""NVTX ranges on the host: how long they took there and what for, next to the time of their work on
the GPU.

    thread   [ aten::item                                   ]
                 [cudaMemcpyAsync] [cudaStreamSynchronize  ]
               ^ outside    copy                sync           the calls of its own thread; the rest is outside of CUDA

A range's time includes that of all ranges inside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import any_open, covered, group
from nsysalign.model import CALL, ORIGIN, OURS, SYNC_CALLS, Alignment, Trace
from nsysalign.split.labels import grouped, plain_region

#: Column -> kinds of calls whose time it holds; calls of all other kinds are `other_ns`.
_KINDS = {
    "launch_ns": ("launch", "graph_launch"),
    "copy_ns": ("memcpy", "memset"),
    "sync_ns": SYNC_CALLS,
}
_SPLIT = (*_KINDS, "other_ns")


@dataclass(frozen=True)
class OnHost:
    """`table`: frames.HOST_RANGES, the longest first.  `notes`: what neither ranges nor calls
    account for."""

    table: pd.DataFrame
    notes: list[str]


def on_host(trace: Trace, alignment: Alignment) -> OnHost:
    """Both are empty if an event log says what was measured."""
    ranges, windows, operations = trace.ranges, alignment.windows, trace.operations
    if (windows["log_process"] >= 0).any():
        return OnHost(frames.empty(frames.HOST_RANGES), [])
    gpu_ns, with_work = _on_gpu(windows, ranges)
    took, call = (
        (operations["end_ns"] - operations["start_ns"]).to_numpy(),
        operations["call"].to_numpy(),
    )
    issued = call >= 0
    said = []
    if idle := len(ranges) - int(with_work.sum()):
        said.append(f"{idle:,} of {len(ranges):,} NVTX ranges, which issued no work to a GPU")
    outside = took[np.flatnonzero(issued)[~_covered(trace)]]
    if len(ranges) and len(outside):
        said.append(f"{_operations(outside)} issued outside of all ranges")
    if not issued.all():
        said.append(f"{_operations(took[~issued])} of which the trace has no launch")
    notes = ["left out of the intervals, but in the run as a whole: " + "; ".join(said)]
    if ranges.empty:
        return OnHost(frames.empty(frames.HOST_RANGES), notes if said else [])
    code, texts = pd.factorize(ranges["text"].to_numpy(dtype=object))
    labels = [plain_region(str(text)) for text in texts]
    same = grouped(labels)
    names = np.array([same.get(label, label) for label in labels], dtype=object)
    rows = pd.DataFrame(
        {
            "label": names[code],
            "count": 1,
            "host_ns": ranges["end_ns"] - ranges["start_ns"],
            "gpu_ns": gpu_ns,
            "with_work": with_work,
        }
        | _inside_calls(trace, ranges)
    )
    groups = rows.groupby("label", sort=False)
    out = groups[["count", "with_work", "gpu_ns", "host_ns", *_SPLIT]].sum()
    out["outside_ns"] = out["host_ns"] - out[list(_SPLIT)].sum(axis=1)
    out = out.reset_index()
    # the lower median: a time that was measured
    out["median_ns"] = groups["host_ns"].quantile(0.5, interpolation="lower").to_numpy()
    out["max_ns"] = groups["host_ns"].max().to_numpy()
    out = out[~out["label"].str.startswith(OURS)]
    out = out.sort_values(["host_ns", "label"], ascending=[False, True], ignore_index=True)
    return OnHost(frames.check(out, frames.HOST_RANGES), notes if said else [])


def _operations(took: np.ndarray) -> str:
    count = len(took)
    return f"{count:,} operation{'s' * int(count != 1)} ({took.sum() / 1e6:,.3f} ms)"


def _inside_calls(trace: Trace, ranges: pd.DataFrame) -> dict[str, np.ndarray]:
    """Per range: how long its thread was in calls of each kind while it lasted."""
    calls = trace.calls
    column = np.full(len(CALL), len(_KINDS), np.int8)
    for number, kinds in enumerate(_KINDS.values()):
        column[[CALL[kind] for kind in kinds]] = number
    outer = np.flatnonzero(calls["outer"].to_numpy() == np.arange(len(calls)))
    begin, over = (calls[c].to_numpy()[outer] for c in ("start_ns", "end_ns"))
    what = column[calls["kind"].to_numpy()[outer]]
    of_thread = group(calls["thread"].to_numpy()[outer], np.arange(len(outer)))
    start, end = (ranges[c].to_numpy() for c in ("start_ns", "end_ns"))
    found = {name: np.zeros(len(ranges), np.int64) for name in _SPLIT}
    for thread, rows in group(ranges["thread"].to_numpy(), np.arange(len(ranges))).items():
        mine = of_thread.get(thread, np.empty(0, np.int64))
        for number, name in enumerate(_SPLIT):
            some = mine[what[mine] == number]
            spent = [covered(begin[some], over[some], t[rows]) for t in (start, end)]
            found[name][rows] = spent[1] - spent[0]
    return found


def _on_gpu(windows: pd.DataFrame, ranges: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Per range: (first start to last end of its work, on whichever streams; 1 where it has any,
    else 0)."""
    mine = windows[windows["origin"] == ORIGIN["range"]]
    spans = mine.groupby("source").agg(start=("start_ns", "min"), end=("end_ns", "max"))
    of_range = spans.reindex(ranges["row"].to_numpy())
    length = (of_range["end"] - of_range["start"]).fillna(0).to_numpy(np.int64)
    return length, of_range["start"].notna().to_numpy(np.int64)


def _covered(trace: Trace) -> np.ndarray:
    """Per operation with a call: whether any range of its process was open when it was issued."""
    operations, ranges = trace.operations, trace.ranges
    issued = np.flatnonzero(operations["call"].to_numpy() >= 0)
    issue = trace.calls["start_ns"].to_numpy()[operations["call"].to_numpy()[issued]]
    of, opened, closed = (ranges[c].to_numpy() for c in ("process", "start_ns", "end_ns"))
    return any_open(of, opened, closed, operations["process"].to_numpy()[issued], issue)
