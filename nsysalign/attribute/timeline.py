"""What ran around the intervals that a report can draw: host calls, NVTX ranges and operations near each window."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.attribute.describe import call_names, operation_names
from nsysalign.model import CALL_KINDS, OPERATION_KINDS, Alignment, Analysis, Trace
from nsysalign.sweep.tiles import ragged

#: A page draws about this many intervals, and at most this many rows of each (the rest is counted, not hidden).
MAX_INTERVALS = 200
MAX_ROWS = 3_000
_ALL_ROWS = 120_000
_MARGIN_NS = 10_000


def chosen_intervals(analysis: Analysis) -> list[int]:
    """First, median and slowest of every label, labels in order, at most MAX_INTERVALS."""
    intervals = analysis.intervals
    if intervals.empty:
        return []
    first = intervals.groupby("label")["interval"].min()
    slowest = intervals.loc[intervals.groupby("label")["elapsed_ns"].idxmax()].set_index("label")["interval"]
    chosen: dict[int, None] = {}
    for wanted in (analysis.labels.set_index("label")["row_interval"], first, slowest):
        for label in analysis.labels["label"]:
            if len(chosen) < MAX_INTERVALS:
                chosen[int(wanted[label])] = None
    return sorted(chosen)


def timeline(trace: Trace, alignment: Alignment, analysis: Analysis) -> pd.DataFrame:
    """Rows of `frames.TIMELINE` for the chosen intervals."""
    chosen = np.array(chosen_intervals(analysis), dtype=np.int64)
    if not len(chosen):
        return frames.empty(frames.TIMELINE)
    w = alignment.windows.iloc[chosen]
    lo = np.minimum(w["open_ns"], w["start_ns"]).to_numpy() - _MARGIN_NS
    hi = np.maximum(w["close_end_ns"], w["end_ns"]).to_numpy() + _MARGIN_NS
    process = w["process"].to_numpy()
    parts = [
        _calls(trace, chosen, process, lo, hi),
        _ranges(trace, chosen, process, lo, hi),
        _operations(trace, alignment, chosen, process, lo, hi),
    ]
    out = (
        pd.concat([p for p in parts if len(p)], ignore_index=True)
        if any(len(p) for p in parts)
        else frames.empty(frames.TIMELINE)
    )
    return frames.check(out, frames.TIMELINE)


def _touching(
    start: np.ndarray,
    end: np.ndarray,
    owner_process: np.ndarray,
    process: np.ndarray,
    lo: np.ndarray,
    hi: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(which window, which row) for rows sorted by start that overlap [lo, hi) and belong to the window's process; the
    longest MAX_ROWS of each window."""
    # rows that began before the window may still reach into it: start the search where the running maximum of ends passes lo
    first = (
        np.searchsorted(np.maximum.accumulate(end), lo, side="right")
        if len(end)
        else np.zeros(len(lo), np.int64)
    )
    last = np.searchsorted(start, hi)
    owner, row = ragged(first, np.maximum(last - first, 0))
    keep = (end[row] >= lo[owner]) & (owner_process[row] == process[owner])
    owner, row = owner[keep], row[keep]
    if len(owner):
        order = np.lexsort((-(end - start)[row], owner))
        rank = np.empty(len(owner), np.int64)
        begin = np.searchsorted(owner[order], np.arange(owner.max() + 1))
        rank[order] = np.arange(len(owner)) - begin[owner[order]]
        keep = rank < min(MAX_ROWS, _ALL_ROWS // len(lo))
        owner, row = owner[keep], row[keep]
    return owner, row


def _calls(
    trace: Trace, chosen: np.ndarray, process: np.ndarray, lo: np.ndarray, hi: np.ndarray
) -> pd.DataFrame:
    calls = trace.calls
    owner, row = _touching(
        calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy(), calls["process"].to_numpy(), process, lo, hi
    )
    kind = np.array(CALL_KINDS, dtype=object)[calls["kind"].to_numpy()[row]]
    lanes = [f"thread {t & 0xFFFFFF}" for t in calls["thread"].to_numpy()[row].tolist()]
    return _rows(
        chosen[owner],
        "host",
        lanes,
        kind,
        call_names(trace, row),
        calls,
        row,
        np.full(len(row), "api", object),
        np.full(len(row), -1),
        [{}] * len(row),
    )


def _ranges(
    trace: Trace, chosen: np.ndarray, process: np.ndarray, lo: np.ndarray, hi: np.ndarray
) -> pd.DataFrame:
    ranges = trace.ranges
    owner, row = _touching(
        ranges["start_ns"].to_numpy(),
        ranges["end_ns"].to_numpy(),
        ranges["process"].to_numpy(),
        process,
        lo,
        hi,
    )
    lanes = [f"thread {t & 0xFFFFFF}" for t in ranges["thread"].to_numpy()[row].tolist()]
    text = ranges["text"].to_numpy(dtype=object)[row]
    return _rows(
        chosen[owner],
        "nvtx",
        lanes,
        np.full(len(row), "range", object),
        text,
        ranges,
        row,
        np.full(len(row), "nvtx", object),
        np.full(len(row), -1),
        [{}] * len(row),
    )


def _operations(
    trace: Trace,
    alignment: Alignment,
    chosen: np.ndarray,
    process: np.ndarray,
    lo: np.ndarray,
    hi: np.ndarray,
) -> pd.DataFrame:
    operations = trace.operations
    owner, row = _touching(
        operations["start_ns"].to_numpy(),
        operations["end_ns"].to_numpy(),
        operations["process"].to_numpy(),
        process,
        lo,
        hi,
    )
    kind = np.array(OPERATION_KINDS, dtype=object)[operations["kind"].to_numpy()[row]]
    call = operations["call"].to_numpy()[row]
    link = (
        np.where(call >= 0, trace.calls["row"].to_numpy()[np.maximum(call, 0)], -1)
        if len(trace.calls)
        else call
    )
    several = len(np.unique(operations["device"].to_numpy())) > 1
    where = zip(
        operations["device"].to_numpy()[row].tolist(),
        operations["stream"].to_numpy()[row].tolist(),
        strict=True,
    )
    lanes = [f"GPU {d} stream {s}" if several else f"stream {s}" for d, s in where]
    size, length = (
        operations["bytes"].to_numpy()[row],
        (operations["end_ns"] - operations["start_ns"]).to_numpy()[row],
    )
    detail = [
        {"bytes": int(b), "bandwidth_gb_s": round(b / n, 3)} if b > 0 and n > 0 else {}
        for b, n in zip(size.tolist(), length.tolist(), strict=True)
    ]
    return _rows(
        chosen[owner], "stream", lanes, kind, operation_names(trace, row), operations, row, kind, link, detail
    )


def _rows(interval, lane_kind, lane, kind, name, source, row, ref_kind, link, detail) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "interval": interval,
            "lane_kind": lane_kind,
            "lane": lane,
            "kind": kind,
            "name": name,
            "start_ns": source["start_ns"].to_numpy()[row],
            "end_ns": source["end_ns"].to_numpy()[row],
            "ref_kind": ref_kind,
            "ref_id": source["row"].to_numpy()[row],
            "link": link,
            "detail": pd.Series(detail, dtype=object),
        }
    )
