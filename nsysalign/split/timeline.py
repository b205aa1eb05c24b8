"""What ran around the intervals that a report can draw: host calls, NVTX ranges, operations,
records and waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, group, index_type, pick
from nsysalign.memory import trim_memory
from nsysalign.model import CALL_KINDS, KIND, OPERATION_KINDS, Evidence, Trace, pid_of, tid_of
from nsysalign.parts import roles
from nsysalign.split.budget import SplitTrace
from nsysalign.split.pieces import call_names, operation_names

#: A page draws about this many intervals, and at most this many rows of each (the rest is counted,
#: not hidden).
MAX_INTERVALS = 200
MAX_ROWS = 3_000
_ALL_ROWS = 120_000
#: A run as a whole has this many rows of each kind for themselves, the longest; the others are
#: blocks of neighbours that are closer than this share of the run.  Runs of this many devices are
#: drawn.
RUN_ROWS, _RUN_PIXELS, MAX_RUNS = 300, 1_000, 4
_MARGIN_NS = 10_000


class _View(NamedTuple):
    """A picture to fill: from `low` to `high`, with so many rows of one kind."""

    interval: int
    process: int
    low: int
    high: int
    most: int | None
    merge: bool = False  # rows that do not fit become blocks instead of being counted only


class _Source(NamedTuple):
    """What pictures show.  `table`: process, start_ns, end_ns and row, sorted by start, and the
    columns of a lane; `columns`: those of `frames.TIMELINE` for rows at some positions."""

    what: str
    table: pd.DataFrame
    lane: list[str]
    columns: Callable[[np.ndarray], dict[str, Any]]


def chosen_intervals(
    evidence: Evidence, findings: pd.DataFrame, wanted: Sequence[int] = ()
) -> list[int]:
    """The requested ones, then every label's median, each finding's example, the slowest and the
    first of every label, at most MAX_INTERVALS."""
    of_labels = roles(evidence).values()
    order = [
        *wanted,
        *(r.median for r in of_labels),
        *(number for number in findings["interval"].tolist() if number >= 0),
        *(r.slowest for r in of_labels),
        *(r.first for r in of_labels),
    ]
    return sorted(list(dict.fromkeys(order))[: max(MAX_INTERVALS, len(wanted))])


class _Rows(NamedTuple):
    """Arrays of equal length; `fits`: what a picture has room for."""

    start: np.ndarray
    end: np.ndarray
    fits: np.ndarray


def split_timeline(split: SplitTrace, which: np.ndarray, evidence: Evidence) -> pd.DataFrame:
    """`frames.TIMELINE` of some intervals, and of the run as a whole: whole devices, not their
    streams, the longest first.  In a run, a row named "37 operations" is a block of that many
    neighbours; its detail says for how long they ran."""
    devices = evidence.runs.drop_duplicates(["pid", "device"])
    runs = devices.nlargest(MAX_RUNS, "elapsed_ns")["interval"].to_numpy(np.int64)
    which = np.setdiff1d(which, runs)
    most = min(MAX_ROWS, _ALL_ROWS // max(len(which), 1))
    views, wholes = [], []
    for number, w in split.alignment.windows.iloc[which].iterrows():
        low, high = min(w.open_ns, w.start_ns), max(w.close_end_ns, w.end_ns)
        views.append(_View(number, w.process, low - _MARGIN_NS, high + _MARGIN_NS, most))
    for number, w in split.alignment.windows.iloc[runs].iterrows():
        # the call that launched the first operation of a run lies before it
        low, high = w.start_ns - 100 * _MARGIN_NS, w.end_ns + _MARGIN_NS
        wholes.append(_View(number, w.process, low, high, RUN_ROWS, merge=True))
    of_trace = _of_trace(split.trace)
    parts = [_drawn(source, views) for source in (*of_trace, _records(split), _waits(split))]
    trim_memory()
    return _together(parts + [_drawn(source, wholes) for source in of_trace])


def everything(trace: Trace) -> pd.DataFrame:
    """All calls, ranges and operations of a trace as one picture (interval -1), for exports."""
    tables = (trace.calls, trace.operations, trace.ranges)
    processes = np.unique(np.concatenate([distinct(t["process"].to_numpy()) for t in tables[:2]]))
    end = max((int(table["end_ns"].max()) for table in tables if len(table)), default=0)
    parts = []
    for process in processes.tolist():
        pid = f" (pid {pid_of(process)})" if len(processes) > 1 else ""
        for source in _of_trace(trace):
            part = _drawn(source, [_View(-1, process, 0, end + 1, None)])
            if len(part):  # else its columns have no type
                parts.append(part.assign(lane=part["lane"] + pid))
    return _together(parts)


def _together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    parts = [part for part in parts if len(part)]
    if not parts:
        return frames.empty(frames.TIMELINE)
    return frames.check(pd.concat(parts, ignore_index=True), frames.TIMELINE)


def _drawn(source: _Source, views: Sequence[_View]) -> pd.DataFrame:
    """The rows of a table in every picture: the longest, of equal ones the first, and what is said
    of the others."""
    start, end, process, ref = (
        source.table[c].to_numpy() for c in ("start_ns", "end_ns", "process", "row")
    )
    # rows that began before a picture may still reach into it
    reach = np.maximum.accumulate(end)
    parts, shown = [], [(np.empty(0, np.int64), 0)]
    for view in views:
        some = slice(np.searchsorted(reach, view.low), np.searchsorted(start, view.high))
        row = np.flatnonzero((end[some] >= view.low) & (process[some] == view.process))
        row = (row + some.start).astype(index_type(len(end)))
        if view.most is not None and len(row) > view.most:
            of_all = len(row) == some.stop - some.start  # views take no memory
            begin, over = (t[some] if of_all else t[row] for t in (start, end))
            ns = over - begin
            least = np.partition(ns, -view.most)[-view.most]
            fits = ns > least
            fits[np.flatnonzero(ns == least)[: view.most - fits.sum()]] = True
            if view.merge:
                del ns
                blocks, row = _merged(source, view, row, _Rows(begin, over, fits))
                parts.append(blocks)
            else:
                row, ns = row[fits], ns[~fits]
                said = {"count": len(ns), "ns": int(ns.sum()), "longest_ns": int(ns.max())}
                where = {"interval": [view.interval], "start_ns": view.low, "end_ns": view.high}
                parts.append(_table(**where, lane_kind="omitted", name=source.what, detail=[said]))
        shown.append((row, view.interval))
    row = np.concatenate([some for some, _ in shown])
    interval = np.repeat([number for _, number in shown], [len(some) for some, _ in shown])
    times = {"start_ns": start[row], "end_ns": end[row], "ref_id": ref[row]}
    parts.append(_table(interval=interval, **times, **source.columns(row)))
    return pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)


def _merged(
    source: _Source, view: _View, row: np.ndarray, rows: _Rows
) -> tuple[pd.DataFrame, np.ndarray]:
    """Blocks of neighbours of one lane among the rows that do not fit, and the rows outside of
    them.  A row that fits ends a block.

    |AAAA|bb|b|b   |CCCC|  ->  |AAAA|3 operations|  |CCCC|
    """
    start, end, fits = rows
    lane = np.zeros(len(row), np.int8)
    several = [c for c in source.lane if any(source.table[c].to_numpy().strides)]
    if several:
        lane = source.table[several].iloc[row].groupby(several).ngroup().to_numpy()
        order = np.argsort(lane.astype(np.min_scalar_type(lane.max())), kind="stable")
        lane, row, start, end, fits = (c[order] for c in (lane, row, start, end, fits))
    joined = (lane[1:] == lane[:-1]) & ~fits[1:] & ~fits[:-1]
    joined &= start[1:] - end[:-1] <= (view.high - view.low) // _RUN_PIXELS
    first = np.flatnonzero(np.append(True, ~joined))
    count = np.diff(first, append=len(row))
    together = np.add.reduceat(end - start, first)[count > 1]
    words = source.columns(row[first[count > 1]])
    words |= {"ref_kind": "", "link": -1, "detail": [{"together_ns": n} for n in together.tolist()]}
    blocks = _table(
        **words | {"name": [f"{n:,} {source.what}" for n in count[count > 1].tolist()]},
        interval=np.full(len(together), view.interval),
        start_ns=start[first[count > 1]],
        end_ns=np.maximum.reduceat(end, first)[count > 1],
    )
    return blocks, np.sort(row[first[count == 1]])


def _table(**columns: Any) -> pd.DataFrame:
    """Columns of frames.TIMELINE, arrays or one value for all rows; none where not given."""
    none = {"lane": "", "kind": "", "ref_kind": "", "ref_id": -1, "link": -1}
    detail = columns.pop("detail", [{}] * len(columns["interval"]))
    return pd.DataFrame(none | columns | {"detail": pd.Series(detail, dtype=object)})


def _of_trace(trace: Trace) -> list[_Source]:
    calls, ranges, operations = trace.calls, trace.ranges, trace.operations

    def of_calls(row: np.ndarray) -> dict[str, Any]:
        kind = np.array(CALL_KINDS, dtype=object)[calls["kind"].to_numpy()[row]]
        lane, name = _threads(calls, row), call_names(trace, row)
        return {"lane_kind": "host", "lane": lane, "kind": kind, "name": name, "ref_kind": "api"}

    def of_ranges(row: np.ndarray) -> dict[str, Any]:
        name, lane = ranges["text"].to_numpy(dtype=object)[row], _threads(ranges, row)
        return {"lane_kind": "nvtx", "lane": lane, "kind": "range", "name": name, "ref_kind": "nvtx"}  # fmt: skip

    def of_operations(row: np.ndarray) -> dict[str, Any]:
        kind = np.array(OPERATION_KINDS, dtype=object)[operations["kind"].to_numpy()[row]]
        return {
            "lane_kind": "stream",
            "lane": _streams(trace, operations.iloc[row]),
            "kind": kind,
            "name": operation_names(trace, row),
            "ref_kind": kind,
            "link": pick(calls["row"].to_numpy(), operations["call"].to_numpy()[row], -1),
            "detail": _operation_details(trace, row),
        }

    return [
        _Source("CUDA calls", calls, ["thread"], of_calls),
        _Source("NVTX ranges", ranges, ["thread"], of_ranges),
        _Source("operations", operations, ["device", "stream"], of_operations),
    ]


def _operation_details(trace: Trace, row: np.ndarray) -> list[dict[str, Any]]:
    """Grid, block, registers and shared memory of kernels, bytes and bandwidth of copies."""
    operations = trace.operations.iloc[row]
    shapes = np.zeros((len(row), 9), np.int64)
    kernels = np.flatnonzero(operations["kind"] == KIND["kernel"])
    if trace.shapes is not None and len(kernels):
        known = np.asarray(trace.shapes(operations["row"].to_numpy()[kernels]))
        shapes[kernels, : known.shape[1]] = known
    columns = (operations[c].tolist() for c in ("bytes", "start_ns", "end_ns"))
    details: list[dict[str, Any]] = []
    for size, start, end, shape in zip(*columns, shapes.tolist(), strict=True):
        detail: dict[str, Any] = {}
        if shape[0]:
            detail |= {"grid": tuple(shape[:3]), "block": tuple(shape[3:6])}
        if shape[6] > 0:
            detail |= {"registers": shape[6], "shared_memory_bytes": max(0, shape[7] + shape[8])}
        if size > 0 and end > start:
            detail |= {"bytes": size, "bandwidth_gb_s": round(size / (end - start), 3)}
        details.append(detail)
    return details


def _records(split: SplitTrace) -> _Source:
    """Records where they were placed: start = end = likeliest place; an arrow from the call that
    made each."""
    table = split.alignment.records
    table = table[["process", "device", "stream", "lane", "call", "seq", "t_ns", "lower_ns", "upper_ns"]][table["problem"] == ""]  # fmt: skip
    table = table[table["lane"] >= 0].sort_values("t_ns", kind="stable")
    table = table.assign(start_ns=table["t_ns"], end_ns=table["t_ns"], row=table["seq"])

    def columns(row: np.ndarray) -> dict[str, Any]:
        some = table.iloc[row]
        bars = zip(some["t_ns"] - some["lower_ns"], some["upper_ns"] - some["t_ns"], strict=True)
        return {
            "lane_kind": "event",
            "lane": _streams(split.trace, some),
            "kind": "record",
            "name": [f"event record {s}" if s >= 0 else "event record" for s in some["seq"]],
            "ref_kind": "event",
            "link": pick(split.trace.calls["row"].to_numpy(), some["call"].to_numpy(), -1),
            "detail": [{"at_most_earlier_ns": low, "at_most_later_ns": high} for low, high in bars],
        }

    return _Source("records", table, ["device", "stream"], columns)


def _waits(split: SplitTrace) -> _Source:
    """Event waits on the stream that waits, from when it reaches the wait to when the record
    releases it.

    waiting stream  | operation |....wait....|  next operation
    recording stream      | operation       |R
    """
    alignment, calls = split.alignment, split.trace.calls
    waits, records = alignment.wait_calls, alignment.records
    waits = waits[(waits["record"] >= 0) & (waits["call"] >= 0) & (waits["lane"] >= 0)]
    record = records.iloc[waits["record"]].reset_index(drop=True)
    call, lane = waits["call"].to_numpy(), waits["lane"].to_numpy()
    issue, reached = (calls[c].to_numpy()[call] for c in ("start_ns", "end_ns"))
    # when the last operation that was issued to the lane before the wait's call ends
    for number, waiting in group(lane, np.arange(len(lane))).items():
        if ops := split.explainer.per_lane.get(number):
            before = np.searchsorted(ops.issue_ns, issue[waiting]) - 1
            reached[waiting] = np.maximum(reached[waiting], pick(ops.reach_ns, before, 0))
    table = alignment.lanes.iloc[lane].reset_index(drop=True)
    table = table.assign(
        start_ns=reached,
        end_ns=np.maximum(record["t_ns"].to_numpy(), reached),
        row=calls["row"].to_numpy()[call],
        seq=record["seq"],
        on=record["stream"],
        inferred=waits["inferred"].to_numpy(),
    )
    table = table[record["problem"] == ""].sort_values("start_ns")

    def columns(row: np.ndarray) -> dict[str, Any]:
        some = table.iloc[row]
        of = [f"record {s}" if s >= 0 else "a record" for s in some["seq"]]
        return {
            "lane_kind": "event",
            "lane": _streams(split.trace, some),
            "kind": "wait",
            "name": [f"waits for {r} of stream {s}" for r, s in zip(of, some["on"], strict=True)],
            "ref_kind": "api",
            "link": some["seq"].to_numpy(),
            "detail": [{"inferred": True} if inferred else {} for inferred in some["inferred"]],
        }

    return _Source("waits", table, ["device", "stream"], columns)


def _threads(table: pd.DataFrame, row: np.ndarray) -> list[str]:
    return [f"thread {tid_of(t)}" for t in table["thread"].to_numpy()[row].tolist()]


def _streams(trace: Trace, rows: pd.DataFrame) -> list[str]:
    several = len(distinct(trace.operations["device"].to_numpy())) > 1
    where = zip(rows["device"], rows["stream"], strict=True)
    return [f"GPU {d} stream {s}" if several and d >= 0 else f"stream {s}" for d, s in where]
