"""What ran around the intervals that a report can draw: host calls, NVTX ranges, operations,
records and waits."""

from __future__ import annotations

from collections.abc import Sequence
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
#: What pictures show of a trace, by what its rows are called, and tables of `Trace`.
_SOURCES = {"CUDA calls": "calls", "NVTX ranges": "ranges", "operations": "operations"}
_LANE = ("thread", "device", "stream")


class _View(NamedTuple):
    """A picture to fill: from `low` to `high`, with so many rows of one kind."""

    interval: int
    process: int
    low: int
    high: int
    most: int
    merge: bool = False  # rows that do not fit become blocks instead of being counted only


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
    trace = split.trace
    sources = [(what, getattr(trace, name)) for what, name in _SOURCES.items()]
    parts = [_drawn(trace, *source, views) for source in (*sources, *_events(split))]
    trim_memory()
    parts += [_drawn(trace, *source, wholes) for source in sources]
    return pd.concat(parts, ignore_index=True)


def everything(trace: Trace) -> pd.DataFrame:
    """All calls, ranges and operations of a trace as one picture (interval -1), for exports."""
    tables = (trace.calls, trace.operations, trace.ranges)
    processes = np.unique(np.concatenate([distinct(t["process"].to_numpy()) for t in tables[:2]]))
    end = max((int(table["end_ns"].max()) for table in tables if len(table)), default=0)
    most = max(map(len, tables))
    parts = [frames.empty(frames.TIMELINE)]
    for process in processes.tolist():
        pid = f" (pid {pid_of(process)})" if len(processes) > 1 else ""
        for what, name in _SOURCES.items():
            view = _View(-1, process, 0, end + 1, most)
            part = _drawn(trace, what, getattr(trace, name), [view])
            parts.append(part.assign(lane=part["lane"] + pid))
    return pd.concat(parts, ignore_index=True)


def _drawn(trace: Trace, what: str, table: pd.DataFrame, views: Sequence[_View]) -> pd.DataFrame:
    """The rows of a table in every picture: the longest, of equal ones the first, and what is said
    of the others.  `table`: process, start_ns, end_ns and row, sorted by start, and `thread` or
    device and stream."""
    start, end, process, ref = (
        table[c].to_numpy() for c in ("start_ns", "end_ns", "process", "row")
    )
    # rows that began before a picture may still reach into it
    reach = np.maximum.accumulate(end)
    blocks, omitted, rows = [], [], [np.empty(0, np.int64)]
    for view in views:
        some = slice(np.searchsorted(reach, view.low), np.searchsorted(start, view.high))
        row = np.flatnonzero((end[some] >= view.low) & (process[some] == view.process))
        row = (row + some.start).astype(index_type(len(end)))
        if len(row) > view.most:
            of_all = len(row) == some.stop - some.start  # views take no memory
            begin, over = (t[some] if of_all else t[row] for t in (start, end))
            ns = over - begin
            least = np.partition(ns, -view.most)[-view.most]
            fits = ns > least
            fits[np.flatnonzero(ns == least)[: view.most - fits.sum()]] = True
            if view.merge:
                del ns
                merged, row = _merged(trace, what, table, view, row, _Rows(begin, over, fits))
                blocks.append(merged)
            else:
                row, ns = row[fits], ns[~fits]
                said = {"count": len(ns), "ns": int(ns.sum()), "longest_ns": int(ns.max())}
                omitted.append((view.interval, view.low, view.high, said))
        rows.append(row)
    if omitted:
        number, low, high, details = zip(*omitted, strict=True)
        where = {"interval": number, "start_ns": low, "end_ns": high}
        blocks.append(_table(**where, lane_kind="omitted", name=what, detail=details))
    row = np.concatenate(rows)
    interval = np.repeat([-1, *(view.interval for view in views)], [len(some) for some in rows])
    times = {"start_ns": start[row], "end_ns": end[row], "ref_id": ref[row]}
    own = _table(interval=interval, **times, **_described(trace, what, table, row))
    return pd.concat([*blocks, own], ignore_index=True)


def _merged(
    trace: Trace, what: str, table: pd.DataFrame, view: _View, row: np.ndarray, rows: _Rows
) -> tuple[pd.DataFrame, np.ndarray]:
    """Blocks of neighbours of one lane among the rows that do not fit, and the rows outside of
    them.  A row that fits ends a block.

    |AAAA|bb|b|b   |CCCC|  ->  |AAAA|3 operations|  |CCCC|
    """
    start, end, fits = rows
    lane = np.zeros(len(row), np.int8)
    several = [c for c in table if c in _LANE and any(table[c].to_numpy().strides)]
    if several:
        lane = table[several].iloc[row].groupby(several).ngroup().to_numpy()
        order = np.argsort(lane.astype(np.min_scalar_type(lane.max())), kind="stable")
        lane, row, start, end, fits = (c[order] for c in (lane, row, start, end, fits))
    joined = (lane[1:] == lane[:-1]) & ~fits[1:] & ~fits[:-1]
    joined &= start[1:] - end[:-1] <= (view.high - view.low) // _RUN_PIXELS
    first = np.flatnonzero(np.append(True, ~joined))
    count = np.diff(first, append=len(row))
    together = np.add.reduceat(end - start, first)[count > 1]
    words = _described(trace, what, table, row[first[count > 1]])
    words |= {"ref_kind": "", "link": -1, "detail": [{"together_ns": n} for n in together.tolist()]}
    words["name"] = [f"{n:,} {what}" for n in count[count > 1].tolist()]
    blocks = _table(
        **words,
        interval=np.full(len(together), view.interval),
        start_ns=start[first[count > 1]],
        end_ns=np.maximum.reduceat(end, first)[count > 1],
    )
    return blocks, np.sort(row[first[count == 1]])


def _table(**columns: Any) -> pd.DataFrame:
    """`frames.TIMELINE` from arrays, or one value for all rows; none where not given."""
    none = {"lane": "", "kind": "", "ref_kind": "", "ref_id": -1, "link": -1}
    detail = columns.pop("detail", [{}] * len(columns["interval"]))
    table = pd.DataFrame(none | columns | {"detail": pd.Series(detail, dtype=object)})
    return frames.check(table, frames.TIMELINE)


def _described(trace: Trace, what: str, table: pd.DataFrame, row: np.ndarray) -> dict[str, Any]:
    """Columns of `frames.TIMELINE` for some rows of a table: where they are drawn, and in which
    words."""
    rows = table.iloc[row]
    if "thread" in rows:
        lane = [f"thread {tid}" for tid in tid_of(rows["thread"].to_numpy()).tolist()]
    else:
        several = len(distinct(trace.operations["device"].to_numpy())) > 1
        lane = [
            f"GPU {device} stream {stream}" if several and device >= 0 else f"stream {stream}"
            for device, stream in zip(rows["device"], rows["stream"], strict=True)
        ]
    if what == "CUDA calls":
        kind = np.array(CALL_KINDS, object)[rows["kind"]]
        words = {"lane_kind": "host", "kind": kind, "ref_kind": "api"}
        words["name"] = call_names(trace, row)
    elif what == "NVTX ranges":
        words = {"lane_kind": "nvtx", "kind": "range", "ref_kind": "nvtx"}
        words["name"] = rows["text"].to_numpy(dtype=object)
    elif what == "operations":
        kind = np.array(OPERATION_KINDS, object)[rows["kind"]]
        words = {"lane_kind": "stream", "kind": kind, "ref_kind": kind}
        words["name"] = operation_names(trace, row)
        words["detail"] = _operation_details(trace, rows)
    elif what == "records":
        words = {"lane_kind": "event", "kind": "record", "ref_kind": "event"}
        words["name"] = [f"event record {s}" if s >= 0 else "event record" for s in rows["seq"]]
        bars = zip(rows["t_ns"] - rows["lower_ns"], rows["upper_ns"] - rows["t_ns"], strict=True)
        words["detail"] = [
            {"at_most_earlier_ns": low, "at_most_later_ns": high} for low, high in bars
        ]
    else:
        words = {"lane_kind": "event", "kind": "wait", "ref_kind": "api"}
        words["link"] = rows["seq"].to_numpy()
        of = [f"record {s}" if s >= 0 else "a record" for s in rows["seq"]]
        on = rows["on"].tolist()
        words["name"] = [f"waits for {r} of stream {s}" for r, s in zip(of, on, strict=True)]
        words["detail"] = [{"inferred": True} if inferred else {} for inferred in rows["inferred"]]
    if what in ("operations", "records"):  # the call that issued each
        words["link"] = pick(trace.calls["row"].to_numpy(), rows["call"].to_numpy(), -1)
    return words | {"lane": lane}


def _operation_details(trace: Trace, operations: pd.DataFrame) -> list[dict[str, Any]]:
    """Grid, block, registers and shared memory of kernels, bytes and bandwidth of copies."""
    shapes = np.zeros((len(operations), 9), np.int64)
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


def _events(split: SplitTrace) -> list[tuple[str, pd.DataFrame]]:
    """Records where they were placed (start = end = likeliest place), and event waits on the stream
    that waits, from when it reaches the wait to when the record releases it.

    waiting stream  | operation |....wait....|  next operation
    recording stream      | operation       |R
    """
    alignment, calls = split.alignment, split.trace.calls
    columns = ["process", "device", "stream", "call", "seq", "t_ns", "lower_ns", "upper_ns"]
    placed = (alignment.records["problem"] == "") & (alignment.records["lane"] >= 0)
    records = alignment.records[columns][placed].sort_values("t_ns", kind="stable")
    records = records.assign(start_ns=records["t_ns"], end_ns=records["t_ns"], row=records["seq"])
    waits = alignment.wait_calls
    waits = waits[(waits["record"] >= 0) & (waits["call"] >= 0) & (waits["lane"] >= 0)]
    record = alignment.records.iloc[waits["record"]].reset_index(drop=True)
    call, lane = waits["call"].to_numpy(), waits["lane"].to_numpy()
    issue, reached = (calls[c].to_numpy()[call] for c in ("start_ns", "end_ns"))
    # when the last operation that was issued to the lane before the wait's call ends
    for number, waiting in group(lane, np.arange(len(lane))).items():
        if ops := split.explainer.per_lane.get(number):
            before = np.searchsorted(ops.times.issue_ns, issue[waiting]) - 1
            reached[waiting] = np.maximum(reached[waiting], pick(ops.times.reach_ns, before, 0))
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
    return [("records", records), ("waits", table)]
