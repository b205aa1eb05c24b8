"""What ran around the intervals that a report can draw: host calls, NVTX ranges, operations,
records and waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import examples, frames
from nsysalign.intervals import distinct, group, pick, ragged
from nsysalign.issue_order import lane_operations
from nsysalign.model import (
    CALL_KINDS,
    KIND,
    OPERATION_KINDS,
    Alignment,
    Evidence,
    Trace,
    pid_of,
    tid_of,
)
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
_STRETCH = 1 << 12


@dataclass(frozen=True)
class _Views:
    """The views to fill: one window of host and GPU time per chosen interval."""

    interval: np.ndarray
    process: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    most: int | None  # rows of one kind that a picture holds, None for all
    merge: bool = False  # rows that do not fit become blocks instead of being counted only


def chosen_intervals(
    evidence: Evidence, findings: pd.DataFrame, wanted: Sequence[int] = ()
) -> list[int]:
    """The requested ones, then every label's median, each finding's example, the slowest and the
    first of every label, at most MAX_INTERVALS."""
    roles = examples.roles(evidence).values()
    shown = (number for number in findings["interval"].tolist() if number >= 0)
    order = [
        *wanted,
        *(r.median for r in roles),
        *shown,
        *(r.slowest for r in roles),
        *(r.first for r in roles),
    ]
    return sorted(list(dict.fromkeys(order))[: max(MAX_INTERVALS, len(wanted))])


def split_timeline(split: SplitTrace, which: np.ndarray, evidence: Evidence) -> pd.DataFrame:
    """`frames.TIMELINE` of some intervals, and of the run as a whole."""
    runs, windows = whole_runs(evidence), split.alignment.windows
    which = np.setdiff1d(which, runs)
    rows = windows.iloc[which].assign(interval=which)
    drawn = timeline(split.trace, split.alignment, rows, evidence)
    whole = overview(split.trace, windows.iloc[runs].assign(interval=runs))
    return pd.concat([part for part in (drawn, whole) if len(part)] or [drawn])


def timeline(
    trace: Trace, alignment: Alignment, windows: pd.DataFrame, evidence: Evidence
) -> pd.DataFrame:
    """Rows of `frames.TIMELINE` for some intervals: their `windows`, with a column `interval`."""
    if windows.empty:
        return frames.empty(frames.TIMELINE)
    w, chosen = windows, windows["interval"].to_numpy()
    views = _Views(
        chosen,
        w["process"].to_numpy(),
        np.minimum(w["open_ns"], w["start_ns"]).to_numpy() - _MARGIN_NS,
        np.maximum(w["close_end_ns"], w["end_ns"]).to_numpy() + _MARGIN_NS,
        min(MAX_ROWS, _ALL_ROWS // len(chosen)),
    )
    parts = _of_trace(trace, views)
    parts += [part for make in (_records, _waits) for part in make(trace, alignment, views)]
    parts.append(_before(trace, alignment, windows))
    device = evidence.intervals["device"].to_numpy()[chosen]
    parts.append(clock_rows(evidence.gpu_clocks, chosen, device, views.lo, views.hi))
    return _together(parts)


def whole_runs(evidence: Evidence) -> np.ndarray:
    """Numbers of the runs that are drawn: whole devices, not their streams, the longest first."""
    devices = evidence.runs.drop_duplicates(["pid", "device"])
    return devices.nlargest(MAX_RUNS, "elapsed_ns")["interval"].to_numpy(np.int64)


def overview(trace: Trace, windows: pd.DataFrame) -> pd.DataFrame:
    """Rows of `frames.TIMELINE` for whole runs: their `windows`, with a column `interval`.  A row
    named "37 operations" is a block of that many neighbours, its detail says for how long they
    ran."""
    number, process, lo, hi = (
        windows[c].to_numpy() for c in ("interval", "process", "start_ns", "end_ns")
    )
    # the call that launched the first operation lies before it
    views = _Views(number, process, lo - 100 * _MARGIN_NS, hi + _MARGIN_NS, RUN_ROWS, merge=True)
    return _together(_of_trace(trace, views))


def everything(trace: Trace) -> pd.DataFrame:
    """All calls, ranges and operations of a trace as one picture (interval -1), for exports."""
    processes = np.unique(
        np.concatenate([distinct(t["process"].to_numpy()) for t in (trace.calls, trace.operations)])
    )
    tables = (trace.calls, trace.operations, trace.ranges)
    end = max((int(table["end_ns"].max()) for table in tables if len(table)), default=0)
    parts = []
    for process in processes:
        views = _Views(
            np.array([-1]), np.array([process]), np.array([0]), np.array([end + 1]), None
        )
        pid = f" (pid {pid_of(int(process))})" if len(processes) > 1 else ""
        parts += [
            part.assign(lane=part["lane"] + pid) for part in _of_trace(trace, views) if len(part)
        ]
    return _together(parts)


def _together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    parts = [part for part in parts if len(part)]
    if not parts:
        return frames.empty(frames.TIMELINE)
    return frames.check(pd.concat(parts, ignore_index=True), frames.TIMELINE)


def _touching(table: pd.DataFrame, views: _Views) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which picture, which row, which of these do not fit) for rows sorted by start that overlap a
    picture of their process.  The longest `views.most` of each picture fit."""
    start, end, process = (table[c].to_numpy() for c in ("start_ns", "end_ns", "process"))
    # rows that began before the window may still reach into it: start the search where the running
    # maximum of ends passes lo
    first = _first_reaching(end, views.lo)
    last = np.searchsorted(start, views.hi)
    owner, row = ragged(first, np.maximum(last - first, 0))
    keep = (end[row] >= views.lo[owner]) & (process[row] == views.process[owner])
    owner, row = owner[keep], row[keep]
    if views.most is None or not len(owner):
        return owner, row, np.zeros(len(owner), bool)
    order = np.lexsort((-(end - start)[row], owner))
    rank = np.empty(len(owner), np.int64)
    begin = np.searchsorted(owner[order], np.arange(owner.max() + 1))
    rank[order] = np.arange(len(owner)) - begin[owner[order]]
    return owner, row, rank >= views.most


def _first_reaching(end: np.ndarray, lo: np.ndarray) -> np.ndarray:
    """Per lo: the first position whose running maximum of ends is at least lo (len(end) if there is
    none)."""
    if not len(end):
        return np.zeros(len(lo), np.int64)
    # first the maximum of every stretch: the running maximum of millions of rows is only needed at
    # a few of them
    begins = np.arange(0, len(end), _STRETCH)
    reach = np.maximum.accumulate(np.maximum.reduceat(end, begins))
    out = np.full(len(lo), len(end))
    for n, number in enumerate(np.searchsorted(reach, lo).tolist()):
        if number < len(begins):
            stretch = end[begins[number] : begins[number] + _STRETCH]
            out[n] = begins[number] + int((stretch >= lo[n]).argmax())
    return out


def _of_trace(trace: Trace, views: _Views) -> list[pd.DataFrame]:
    """Calls, ranges and operations, and for each of these what the pictures do not hold."""
    calls, ranges, operations = trace.calls, trace.ranges, trace.operations
    parts: list[pd.DataFrame] = []

    def fitting(table: pd.DataFrame, what: str) -> tuple[np.ndarray, np.ndarray]:
        owner, row, lost = _touching(table, views)
        if views.merge:
            part, lost = _merged(trace, views, table, owner, row, lost, what)
        else:
            part = _omitted(views, table, owner[lost], row[lost], what)
        parts.append(part)
        return views.interval[owner[~lost]], row[~lost]

    at, row = fitting(calls, "CUDA calls")
    kind = np.array(CALL_KINDS, dtype=object)[calls["kind"].to_numpy()[row]]
    parts.append(
        _rows(
            at, "host", _thread_words(calls, row), kind, call_names(trace, row), calls, row, "api"
        )
    )
    at, row = fitting(ranges, "NVTX ranges")
    text = ranges["text"].to_numpy(dtype=object)[row]
    parts.append(_rows(at, "nvtx", _thread_words(ranges, row), "range", text, ranges, row, "nvtx"))
    at, row = fitting(operations, "operations")
    link = _call_rows(trace, operations["call"].to_numpy()[row])
    parts.append(_operation_rows(trace, at, "stream", row, link=link))
    return parts


def _operation_rows(
    trace: Trace, interval: np.ndarray, lane_kind: str, row: np.ndarray, **link: Any
) -> pd.DataFrame:
    operations = trace.operations
    kind = np.array(OPERATION_KINDS, dtype=object)[operations["kind"].to_numpy()[row]]
    lanes, names = _stream_words(trace, operations, row), operation_names(trace, row)
    detail = _operation_details(trace, row)
    return _rows(
        interval, lane_kind, lanes, kind, names, operations, row, kind, detail=detail, **link
    )


def _before(trace: Trace, alignment: Alignment, windows: pd.DataFrame) -> pd.DataFrame:
    """Per interval with a stream: the operation of its end's stream that ended last, of those that
    began before it.

    stream   |  first  |  | this one |      |start ... end|
    """
    start, end = (trace.operations[c].to_numpy() for c in ("start_ns", "end_ns"))
    row = np.full(len(windows), -1, np.int64)
    lane, begin = (windows[c].to_numpy() for c in ("end_lane", "start_ns"))
    for number, which in group(lane, np.arange(len(lane))).items():
        mine = np.flatnonzero(alignment.operation_lane == number)
        reach = np.maximum.accumulate(end[mine])
        count = np.searchsorted(start[mine], begin[which])
        some = np.flatnonzero(count)
        row[which[some]] = mine[np.searchsorted(reach, reach[count[some] - 1])]
    return _operation_rows(trace, windows["interval"].to_numpy()[row >= 0], "before", row[row >= 0])


def _operation_details(trace: Trace, row: np.ndarray) -> list[dict[str, Any]]:
    """Grid and block of kernels, bytes and bandwidth of copies."""
    operations = trace.operations
    shapes = np.zeros((len(row), 6), np.int64)
    kernels = np.flatnonzero(operations["kind"].to_numpy()[row] == KIND["kernel"])
    if trace.shapes is not None and len(kernels):
        shapes[kernels] = trace.shapes(operations["row"].to_numpy()[row[kernels]])
    columns = [operations[c].to_numpy()[row].tolist() for c in ("bytes", "start_ns", "end_ns")]
    details = []
    for size, start, end, shape in zip(*columns, shapes.tolist(), strict=True):
        detail: dict[str, Any] = {}
        if shape[0]:
            detail = {"grid": tuple(shape[:3]), "block": tuple(shape[3:])}
        if size > 0 and end > start:
            detail |= {"bytes": size, "bandwidth_gb_s": round(size / (end - start), 3)}
        details.append(detail)
    return details


def _records(trace: Trace, alignment: Alignment, views: _Views) -> list[pd.DataFrame]:
    """Records where they were placed: start = end = likeliest place; an arrow from the call that
    made each."""
    records = alignment.records
    records = records[(records["problem"] == "") & (records["lane"] >= 0)].sort_values("t_ns")
    if records.empty:
        return []
    table = records.assign(
        start_ns=records["t_ns"], end_ns=records["t_ns"], row=records["seq"]
    ).reset_index(drop=True)
    owner, row, lost = _touching(table, views)
    owner, row = owner[~lost], row[~lost]
    t = table["t_ns"].to_numpy()[row]
    before = (t - table["lower_ns"].to_numpy()[row]).tolist()
    after = (table["upper_ns"].to_numpy()[row] - t).tolist()
    detail = [
        {"at_most_earlier_ns": a, "at_most_later_ns": b} for a, b in zip(before, after, strict=True)
    ]
    seq = table["seq"].to_numpy()[row]
    names = [f"event record {s}" if s >= 0 else "event record" for s in seq.tolist()]
    lanes, link = _stream_words(trace, table, row), _call_rows(trace, table["call"].to_numpy()[row])
    at = views.interval[owner]
    return [
        _rows(at, "event", lanes, "record", names, table, row, "event", link=link, detail=detail)
    ]


def _waits(trace: Trace, alignment: Alignment, views: _Views) -> list[pd.DataFrame]:
    """Event waits on the stream that waits, from when it reaches the wait to when the record
    releases it.

    waiting stream  | operation |....wait....|  next operation
    recording stream      | operation       |R
    """
    waits, records, calls = alignment.wait_calls, alignment.records, trace.calls
    waits = waits[(waits["record"] >= 0) & (waits["call"] >= 0) & (waits["lane"] >= 0)]
    if waits.empty or records.empty or calls.empty:
        return []
    record = records.iloc[waits["record"].to_numpy()]
    call, lane = waits["call"].to_numpy(), waits["lane"].to_numpy()
    reached = np.maximum(
        calls["end_ns"].to_numpy()[call], _stream_free(trace, alignment, lane, call)
    )
    table = pd.DataFrame(
        {
            "start_ns": reached,
            "end_ns": np.maximum(record["t_ns"].to_numpy(), reached),
            **{c: alignment.lanes[c].to_numpy()[lane] for c in ("process", "device", "stream")},
            "row": calls["row"].to_numpy()[call],
            "seq": record["seq"].to_numpy(),
            "on": record["stream"].to_numpy(),
            "inferred": waits["inferred"].to_numpy(),
            "problem": record["problem"].to_numpy(),
        }
    )
    table = table[table["problem"] == ""].sort_values("start_ns").reset_index(drop=True)
    if table.empty:
        return []
    owner, row, lost = _touching(table, views)
    owner, row = owner[~lost], row[~lost]
    seq, on = table["seq"].to_numpy()[row], table["on"].to_numpy()[row]
    names = [
        f"waits for {f'record {s}' if s >= 0 else 'a record'} of stream {o}"
        for s, o in zip(seq.tolist(), on.tolist(), strict=True)
    ]
    detail = [{"inferred": True} if i else {} for i in table["inferred"].to_numpy()[row].tolist()]
    at, lanes = views.interval[owner], _stream_words(trace, table, row)
    return [_rows(at, "event", lanes, "wait", names, table, row, "api", link=seq, detail=detail)]


def _stream_free(
    trace: Trace, alignment: Alignment, lane: np.ndarray, call: np.ndarray
) -> np.ndarray:
    """When the last operation that was issued to each lane before the wait's call ends; 0 where
    there is none."""
    free, made = np.zeros(len(lane), np.int64), trace.calls["start_ns"].to_numpy()[call]
    per_lane = lane_operations(trace, alignment.operation_lane)
    for number, waiting in group(lane, np.arange(len(lane))).items():
        if number in per_lane:
            before = np.searchsorted(per_lane[number].issue_ns, made[waiting]) - 1
            free[waiting] = pick(per_lane[number].reach_ns, before, 0)
    return free


def _call_rows(trace: Trace, call: np.ndarray) -> np.ndarray:
    """Positions in `calls` as rowids of the nsys table, -1 stays -1."""
    if not len(trace.calls):
        return np.full(len(call), -1)
    return np.where(call >= 0, trace.calls["row"].to_numpy()[np.maximum(call, 0)], -1)


def _thread_words(table: pd.DataFrame, row: np.ndarray) -> list[str]:
    return [f"thread {tid_of(t)}" for t in table["thread"].to_numpy()[row].tolist()]


def _stream_words(trace: Trace, table: pd.DataFrame, row: np.ndarray) -> list[str]:
    several = len(distinct(trace.operations["device"].to_numpy())) > 1
    where = zip(*(table[c].to_numpy()[row].tolist() for c in ("device", "stream")), strict=True)
    return [f"GPU {d} stream {s}" if several and d >= 0 else f"stream {s}" for d, s in where]


def _merged(
    trace: Trace,
    views: _Views,
    table: pd.DataFrame,
    owner: np.ndarray,
    row: np.ndarray,
    lost: np.ndarray,
    what: str,
) -> tuple[pd.DataFrame, np.ndarray]:
    """(neighbours of one lane among the rows that do not fit, as one row each; which rows these
    are).  A row that fits ends a block, and one that has no neighbours fits.

    |AAAA|bb|b|b   |CCCC|  ->  |AAAA|3 operations|  |CCCC|
    """
    if not lost.any():
        return frames.empty(frames.TIMELINE), lost
    on_gpu = table is trace.operations
    keys = [table[c].to_numpy()[row] for c in (("device", "stream") if on_gpu else ("thread",))]
    start, end = (table[c].to_numpy()[row] for c in ("start_ns", "end_ns"))
    order = np.lexsort((start, *keys, owner))
    owner, row, start, end, out = (v[order] for v in (owner, row, start, end, lost))
    new = np.ones(len(row), bool)
    new[1:] = start[1:] - end[:-1] > (views.hi - views.lo)[owner[1:]] // _RUN_PIXELS
    new[1:] |= ~out[1:] | ~out[:-1] | (owner[1:] != owner[:-1])
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    first = np.flatnonzero(new)
    count = np.diff([*first, len(row)])
    many = count > 1
    busy = np.add.reduceat(end - start, first)[many]
    until = np.maximum.reduceat(end, first)[many]
    merged = np.empty(len(lost), bool)
    merged[order] = np.repeat(many, count)
    first, count = first[many], count[many]
    head = row[first]
    lanes = _stream_words(trace, table, head) if on_gpu else _thread_words(table, head)
    kinds = {"CUDA calls": CALL_KINDS, "operations": OPERATION_KINDS}.get(what)
    kind = np.array(kinds, dtype=object)[table["kind"].to_numpy()[head]] if kinds else "range"
    lane = "stream" if on_gpu else "host" if kinds else "nvtx"
    names = [f"{n:,} {what}" for n in count.tolist()]
    detail = [{"together_ns": ns} for ns in busy.tolist()]
    at = views.interval[owner[first]]
    return _table(at, lane, lanes, kind, names, start[first], until, detail), merged


def _omitted(
    views: _Views, table: pd.DataFrame, owner: np.ndarray, row: np.ndarray, what: str
) -> pd.DataFrame:
    """One row per picture that says how many rows it does not hold, and how long these are
    together."""
    if not len(owner):
        return frames.empty(frames.TIMELINE)
    size = len(views.interval)
    count = np.bincount(owner, minlength=size)
    length = (table["end_ns"] - table["start_ns"]).to_numpy()[row]
    total = np.bincount(owner, weights=length, minlength=size).astype(np.int64)
    longest = np.zeros(size, np.int64)
    np.maximum.at(longest, owner, length)
    at = np.flatnonzero(count)
    detail = [
        {"count": int(count[i]), "ns": int(total[i]), "longest_ns": int(longest[i])} for i in at
    ]
    return _table(views.interval[at], "omitted", "", "", what, views.lo[at], views.hi[at], detail)


def _rows(
    interval, lane_kind, lane, kind, name, source, row, ref_kind, *, link=-1, detail=None
) -> pd.DataFrame:
    start, end, ref = (source[c].to_numpy()[row] for c in ("start_ns", "end_ns", "row"))
    detail = detail if detail is not None else [{}] * len(row)
    return _table(interval, lane_kind, lane, kind, name, start, end, detail, ref_kind, ref, link)


def _table(
    interval, lane_kind, lane, kind, name, start, end, detail, ref_kind="", ref_id=-1, link=-1
) -> pd.DataFrame:
    """Columns of frames.TIMELINE in their order, arrays or one value for all rows."""
    values = (interval, lane_kind, lane, kind, name, start, end, ref_kind, ref_id, link)
    return pd.DataFrame(
        {**dict(zip(_COLUMNS, values, strict=True)), "detail": pd.Series(detail, dtype=object)}
    )


_COLUMNS = (
    "interval", "lane_kind", "lane", "kind", "name", "start_ns", "end_ns", "ref_kind", "ref_id", "link",
)  # fmt: skip


def clock_rows(
    clocks: pd.DataFrame, interval: np.ndarray, device: np.ndarray, lo: np.ndarray, hi: np.ndarray
) -> pd.DataFrame:
    """Rows of frames.TIMELINE (lane_kind `clock`): the stretches of each interval's GPU in [lo,
    hi), and the ones before and after, because an interval is usually shorter than the time between
    two samples.  `device` -1: the only GPU, if there is exactly one."""
    sampled = np.unique(clocks["device"].to_numpy())
    if len(sampled) == 1:
        device = np.where(device < 0, sampled[0], device)
    parts = []
    for number in sampled.tolist():
        rows = clocks[clocks["device"].to_numpy() == number]
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        at = np.flatnonzero(device == number)
        first = np.maximum(np.searchsorted(end, lo[at]) - 1, 0)
        last = np.minimum(np.searchsorted(start, hi[at], side="right"), len(rows) - 1)
        owner, row = ragged(first, last - first + 1)
        parts.append(_clock_rows(rows, row, interval[at][owner], number))
    return pd.concat(parts, ignore_index=True) if parts else frames.empty(frames.TIMELINE)


def _clock_rows(
    rows: pd.DataFrame, row: np.ndarray, interval: np.ndarray, device: int
) -> pd.DataFrame:
    columns = ("sm_min_mhz", "sm_max_mhz", "mem_mhz", "reasons", "temperature_c", "power_mw")
    detail = []
    for least, most, memory, reasons, temperature, power in zip(
        *(rows[c].to_numpy()[row].tolist() for c in columns), strict=True
    ):
        known = {"mem_mhz": memory, "reasons": reasons, "temperature_celsius": temperature}
        told = {"mhz": (least + most) / 2} | {k: v for k, v in known.items() if v >= 0}
        detail.append(told | {"power_w": power / 1e3} if power >= 0 else told)
    start, end = (rows[c].to_numpy()[row] for c in ("start_ns", "end_ns"))
    return _table(interval, "clock", f"GPU {device}", "clock", "SM clock", start, end, detail)
