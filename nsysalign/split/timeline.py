"""What ran around the intervals that a report can draw: host calls, NVTX ranges, operations,
records and waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import examples, frames
from nsysalign.intervals import distinct, group, pick, ragged
from nsysalign.model import CALL_KINDS, KIND, OPERATION_KINDS, Evidence, Trace, pid_of, tid_of
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


class _Views(NamedTuple):
    """The pictures to fill: one window of host and GPU time per chosen interval."""

    interval: np.ndarray
    process: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    most: int | None  # rows of one kind that a picture holds, None for all
    merge: bool = False  # rows that do not fit become blocks instead of being counted only


class _Touching(NamedTuple):
    """Rows of a table that overlap pictures: which picture, which row, and whether it does not fit
    there (the longest do): arrays of equal length."""

    view: np.ndarray
    row: np.ndarray
    lost: np.ndarray


def chosen_intervals(
    evidence: Evidence, findings: pd.DataFrame, wanted: Sequence[int] = ()
) -> list[int]:
    """The requested ones, then every label's median, each finding's example, the slowest and the
    first of every label, at most MAX_INTERVALS."""
    roles = examples.roles(evidence).values()
    order = [
        *wanted,
        *(r.median for r in roles),
        *(number for number in findings["interval"].tolist() if number >= 0),
        *(r.slowest for r in roles),
        *(r.first for r in roles),
    ]
    return sorted(list(dict.fromkeys(order))[: max(MAX_INTERVALS, len(wanted))])


def split_timeline(split: SplitTrace, which: np.ndarray, evidence: Evidence) -> pd.DataFrame:
    """`frames.TIMELINE` of some intervals, and of the run as a whole: whole devices, not their
    streams, the longest first.  In a run, a row named "37 operations" is a block of that many
    neighbours; its detail says for how long they ran."""
    trace, windows = split.trace, split.alignment.windows
    devices = evidence.runs.drop_duplicates(["pid", "device"])
    runs = devices.nlargest(MAX_RUNS, "elapsed_ns")["interval"].to_numpy(np.int64)
    which = np.setdiff1d(which, runs)
    parts: list[pd.DataFrame] = []
    if len(which):
        w = windows.iloc[which]
        views = _Views(
            which,
            w["process"].to_numpy(),
            np.minimum(w["open_ns"], w["start_ns"]).to_numpy() - _MARGIN_NS,
            np.maximum(w["close_end_ns"], w["end_ns"]).to_numpy() + _MARGIN_NS,
            min(MAX_ROWS, _ALL_ROWS // len(which)),
        )
        parts += _of_trace(trace, views)
        parts += [_records(split, views), _waits(split, views), _before(split, which)]
        device = evidence.intervals["device"].to_numpy()[which]
        parts.append(clock_rows(evidence.gpu_clocks, which, device, views.lo, views.hi))
    process, start, end = (windows[c].to_numpy()[runs] for c in ("process", "start_ns", "end_ns"))
    # the call that launched the first operation lies before it
    begin, over = start - 100 * _MARGIN_NS, end + _MARGIN_NS
    parts += _of_trace(trace, _Views(runs, process, begin, over, RUN_ROWS, merge=True))
    return _together(parts)


def everything(trace: Trace) -> pd.DataFrame:
    """All calls, ranges and operations of a trace as one picture (interval -1), for exports."""
    tables = (trace.calls, trace.operations, trace.ranges)
    processes = np.unique(np.concatenate([distinct(t["process"].to_numpy()) for t in tables[:2]]))
    end = max((int(table["end_ns"].max()) for table in tables if len(table)), default=0)
    parts = []
    for process in processes:
        interval, of, begin, until = (np.array([n]) for n in (-1, process, 0, end + 1))
        views = _Views(interval, of, begin, until, None)
        pid = f" (pid {pid_of(int(process))})" if len(processes) > 1 else ""
        drawn = [part for part in _of_trace(trace, views) if len(part)]
        parts += [part.assign(lane=part["lane"] + pid) for part in drawn]
    return _together(parts)


def _together(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    parts = [part for part in parts if len(part)]
    if not parts:
        return frames.empty(frames.TIMELINE)
    return frames.check(pd.concat(parts, ignore_index=True), frames.TIMELINE)


def _touching(table: pd.DataFrame, views: _Views) -> _Touching:
    """Rows, sorted by start, that overlap a picture of their process."""
    start, end, process = (table[c].to_numpy() for c in ("start_ns", "end_ns", "process"))
    # rows that began before the window may still reach into it: start the search where the running
    # maximum of ends passes lo
    first = np.searchsorted(np.maximum.accumulate(end), views.lo)
    last = np.searchsorted(start, views.hi)
    view, row = ragged(first, np.maximum(last - first, 0))
    keep = (end[row] >= views.lo[view]) & (process[row] == views.process[view])
    view, row = view[keep], row[keep]
    if views.most is None:
        return _Touching(view, row, np.zeros(len(view), dtype=bool))
    order = np.lexsort((start[row] - end[row], view))
    rank = np.empty(len(view), np.int64)
    rank[order] = np.arange(len(view)) - np.searchsorted(view[order], view[order])
    return _Touching(view, row, rank >= views.most)


def _of_trace(trace: Trace, views: _Views) -> list[pd.DataFrame]:
    """Calls, ranges and operations, and for each of these what the pictures do not hold."""
    parts: list[pd.DataFrame] = []
    for table, words, what in (
        (trace.calls, _call_words, "CUDA calls"),
        (trace.ranges, _range_words, "NVTX ranges"),
        (trace.operations, _operation_words, "operations"),
    ):
        touching = _touching(table, views)
        if views.merge and touching.lost.any():
            blocks, lost = _merged(table, views, touching)
            head = words(trace, blocks["row"].to_numpy())
            names = [f"{n:,} {what}" for n in blocks["count"].tolist()]
            details = [{"together_ns": ns} for ns in blocks["ns"].tolist()]
            head |= {"name": names, "detail": details, "ref_kind": "", "link": -1}
            where = {c: blocks[c].to_numpy() for c in ("interval", "start_ns", "end_ns")}
            parts.append(_table(**head, **where, ref_id=-1))
        else:
            lost = touching.lost
            parts.append(_omitted(views, table, touching, what))
        row = touching.row[~lost]
        parts.append(_rows(table, row, views.interval[touching.view[~lost]], **words(trace, row)))
    return parts


def _call_words(trace: Trace, row: np.ndarray) -> dict[str, Any]:
    kind = np.array(CALL_KINDS, dtype=object)[trace.calls["kind"].to_numpy()[row]]
    lane, name = _threads(trace.calls, row), call_names(trace, row)
    return {"lane_kind": "host", "lane": lane, "kind": kind, "name": name, "ref_kind": "api"}


def _range_words(trace: Trace, row: np.ndarray) -> dict[str, Any]:
    name, lane = trace.ranges["text"].to_numpy(dtype=object)[row], _threads(trace.ranges, row)
    return {"lane_kind": "nvtx", "lane": lane, "kind": "range", "name": name, "ref_kind": "nvtx"}


def _operation_words(trace: Trace, row: np.ndarray) -> dict[str, Any]:
    """Operations, with grid, block, registers and shared memory of kernels, bytes and bandwidth of
    copies."""
    operations = trace.operations
    code, call = (operations[c].to_numpy()[row] for c in ("kind", "call"))
    shapes = np.zeros((len(row), 9), np.int64)
    kernels = np.flatnonzero(code == KIND["kernel"])
    if trace.shapes is not None and len(kernels):
        known = np.asarray(trace.shapes(operations["row"].to_numpy()[row[kernels]]))
        shapes[kernels, : known.shape[1]] = known
    columns = [operations[c].to_numpy()[row].tolist() for c in ("bytes", "start_ns", "end_ns")]
    details: list[dict[str, Any]] = []
    for size, start, end, shape in zip(*columns, shapes.tolist(), strict=True):
        detail: dict[str, Any] = (
            {"grid": tuple(shape[:3]), "block": tuple(shape[3:6])} if shape[0] else {}
        )
        if shape[6] > 0:
            detail |= {"registers": shape[6], "shared_memory_bytes": max(0, shape[7] + shape[8])}
        if size > 0 and end > start:
            detail |= {"bytes": size, "bandwidth_gb_s": round(size / (end - start), 3)}
        details.append(detail)
    kind = np.array(OPERATION_KINDS, dtype=object)[code]
    return {
        "lane_kind": "stream",
        "lane": _streams(trace, operations, row),
        "kind": kind,
        "name": operation_names(trace, row),
        "ref_kind": kind,
        "link": _call_rows(trace, call),
        "detail": details,
    }


def _before(split: SplitTrace, which: np.ndarray) -> pd.DataFrame:
    """Per interval with a stream: the operation of its end's stream that ended last, of those that
    began before it.

    stream   |  first  |  | this one |      |start ... end|
    """
    explainer, windows = split.explainer, split.alignment.windows
    row = np.full(len(which), -1, np.int64)
    lane, begin = (windows[c].to_numpy()[which] for c in ("end_lane", "start_ns"))
    for number, intervals in group(lane, np.arange(len(lane))).items():
        own = np.flatnonzero(split.alignment.operation_lane == number)
        reach = np.maximum.accumulate(explainer.op_end[own])
        count = np.searchsorted(explainer.op_start[own], begin[intervals])
        some = np.flatnonzero(count)
        row[intervals[some]] = own[np.searchsorted(reach, reach[count[some] - 1])]
    which, row = which[row >= 0], row[row >= 0]
    words = _operation_words(split.trace, row) | {"lane_kind": "before", "link": -1}
    return _rows(split.trace.operations, row, which, **words)


def _records(split: SplitTrace, views: _Views) -> pd.DataFrame:
    """Records where they were placed: start = end = likeliest place; an arrow from the call that
    made each."""
    records = split.alignment.records
    placed = np.flatnonzero((records["problem"] == "") & (records["lane"] >= 0))
    placed = placed[np.argsort(records["t_ns"].to_numpy()[placed], kind="stable")]
    columns = ("process", "device", "stream", "call", "seq", "t_ns", "lower_ns", "upper_ns")
    table = pd.DataFrame({c: records[c].to_numpy()[placed] for c in columns}, copy=False)
    table = table.assign(start_ns=table["t_ns"], end_ns=table["t_ns"], row=table["seq"])
    view, row, lost = _touching(table, views)
    some = table.iloc[row[~lost]]
    bars = zip(*(some[c].tolist() for c in ("t_ns", "lower_ns", "upper_ns")), strict=True)
    return _rows(
        some,
        np.arange(len(some)),
        views.interval[view[~lost]],
        lane_kind="event",
        lane=_streams(split.trace, some),
        kind="record",
        name=[f"event record {s}" if s >= 0 else "event record" for s in some["seq"].tolist()],
        ref_kind="event",
        link=_call_rows(split.trace, some["call"].to_numpy()),
        detail=[
            {"at_most_earlier_ns": t - lower, "at_most_later_ns": upper - t}
            for t, lower, upper in bars
        ],
    )


def _waits(split: SplitTrace, views: _Views) -> pd.DataFrame:
    """Event waits on the stream that waits, from when it reaches the wait to when the record
    releases it.

    waiting stream  | operation |....wait....|  next operation
    recording stream      | operation       |R
    """
    alignment, calls = split.alignment, split.trace.calls
    waits, records = alignment.wait_calls, alignment.records
    waits = waits[(waits["record"] >= 0) & (waits["call"] >= 0) & (waits["lane"] >= 0)]
    record = records.iloc[waits["record"].to_numpy()].reset_index(drop=True)
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
    view, row, lost = _touching(table, views)
    some = table.iloc[row[~lost]]
    return _rows(
        some,
        np.arange(len(some)),
        views.interval[view[~lost]],
        lane_kind="event",
        lane=_streams(split.trace, some),
        kind="wait",
        name=[
            f"waits for {f'record {s}' if s >= 0 else 'a record'} of stream {on}"
            for s, on in zip(some["seq"].tolist(), some["on"].tolist(), strict=True)
        ],
        ref_kind="api",
        link=some["seq"].to_numpy(),
        detail=[{"inferred": True} if inferred else {} for inferred in some["inferred"].tolist()],
    )


def _call_rows(trace: Trace, call: np.ndarray) -> np.ndarray:
    """Positions in `calls` as rowids of the nsys table, -1 stays -1."""
    return pick(trace.calls["row"].to_numpy(), call, -1)


def _threads(table: pd.DataFrame, row: np.ndarray) -> list[str]:
    return [f"thread {tid_of(t)}" for t in table["thread"].to_numpy()[row].tolist()]


def _streams(trace: Trace, table: pd.DataFrame, row: np.ndarray | slice = slice(None)) -> list[str]:
    several = len(distinct(trace.operations["device"].to_numpy())) > 1
    where = zip(*(table[c].to_numpy()[row].tolist() for c in ("device", "stream")), strict=True)
    return [f"GPU {d} stream {s}" if several and d >= 0 else f"stream {s}" for d, s in where]


def _merged(
    table: pd.DataFrame, views: _Views, touching: _Touching
) -> tuple[pd.DataFrame, np.ndarray]:
    """(blocks of neighbours of one lane among the rows that do not fit: the first row, how many,
    how long they ran; which rows these are).  A row that fits ends a block, and one that has no
    neighbours fits.

    |AAAA|bb|b|b   |CCCC|  ->  |AAAA|3 operations|  |CCCC|
    """
    lane = ["device", "stream"] if "stream" in table else ["thread"]
    keys = [touching.view, *(table[c].to_numpy()[touching.row] for c in lane)]
    order = np.lexsort((table["start_ns"].to_numpy()[touching.row], *keys[::-1]))
    view, row, lost = (column[order] for column in touching)
    start, end = (table[c].to_numpy()[row] for c in ("start_ns", "end_ns"))
    new = np.ones(len(row), dtype=bool)
    new[1:] = start[1:] - end[:-1] > (views.hi - views.lo)[view[1:]] // _RUN_PIXELS
    new[1:] |= ~lost[1:] | ~lost[:-1]
    for key in keys:
        new[1:] |= key[order][1:] != key[order][:-1]
    first = np.flatnonzero(new)
    count = np.diff([*first, len(row)])
    blocks = pd.DataFrame(
        {
            "interval": views.interval[view[first]],
            "row": row[first],
            "start_ns": start[first],
            "end_ns": np.maximum.reduceat(end, first),
            "ns": np.add.reduceat(end - start, first),
            "count": count,
        }
    )
    merged = np.empty(len(row), dtype=bool)
    merged[order] = np.repeat(count > 1, count)
    return blocks[count > 1], merged


def _omitted(views: _Views, table: pd.DataFrame, touching: _Touching, what: str) -> pd.DataFrame:
    """One row per picture that says how many rows it does not hold, and how long these are
    together."""
    start, end = (table[c].to_numpy()[touching.row[touching.lost]] for c in ("start_ns", "end_ns"))
    lost = pd.Series(end - start).groupby(touching.view[touching.lost]).agg(["size", "sum", "max"])
    view = lost.index.to_numpy(np.int64)
    return _table(
        interval=views.interval[view],
        lane_kind="omitted",
        name=what,
        start_ns=views.lo[view],
        end_ns=views.hi[view],
        detail=[
            {"count": count, "ns": ns, "longest_ns": longest}
            for count, ns, longest in zip(*(lost[c].tolist() for c in lost), strict=True)
        ],
    )


def _rows(
    source: pd.DataFrame, row: np.ndarray, interval: np.ndarray, **columns: Any
) -> pd.DataFrame:
    """Rows with the times and rowids of a table's rows."""
    start, end, ref = (source[c].to_numpy()[row] for c in ("start_ns", "end_ns", "row"))
    return _table(interval=interval, start_ns=start, end_ns=end, ref_id=ref, **columns)


def _table(**columns: Any) -> pd.DataFrame:
    """Columns of frames.TIMELINE, arrays or one value for all rows; none where not given."""
    none = {"lane": "", "kind": "", "ref_kind": "", "ref_id": -1, "link": -1}
    columns.setdefault("detail", [{}] * len(columns["interval"]))
    detail = pd.Series(columns.pop("detail"), dtype=object)
    return pd.DataFrame(none | columns | {"detail": detail})


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
        stretches = clocks[clocks["device"].to_numpy() == number]
        start, end = stretches["start_ns"].to_numpy(), stretches["end_ns"].to_numpy()
        own = np.flatnonzero(device == number)
        first = np.maximum(np.searchsorted(end, lo[own]) - 1, 0)
        last = np.minimum(np.searchsorted(start, hi[own], side="right"), len(stretches) - 1)
        owner, row = ragged(first, last - first + 1)
        details = []
        for s in stretches.iloc[row].itertuples(index=False):
            known = {
                "mem_mhz": s.mem_mhz,
                "reasons": s.reasons,
                "temperature_celsius": s.temperature_c,
            }
            detail = {"mhz": (s.sm_min_mhz + s.sm_max_mhz) / 2}
            detail |= {name: value for name, value in known.items() if value >= 0}
            details.append(detail | ({"power_w": s.power_mw / 1e3} if s.power_mw >= 0 else {}))
        parts.append(
            _table(
                interval=interval[own][owner],
                lane_kind="clock",
                lane=f"GPU {number}",
                kind="clock",
                name="SM clock",
                start_ns=start[row],
                end_ns=end[row],
                detail=details,
            )
        )
    return _together(parts)
