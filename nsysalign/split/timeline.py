"""What ran around the intervals that a report can draw: CUDA calls, NVTX ranges, operations, records
and waits.

picture   of one interval: a stretch of time of one process, with rows of `frames.TIMELINE`
view      a picture that is still to be filled
noun      which rows: "CUDA calls", "NVTX ranges", "operations", "records" or "waits"
room      how many rows of one noun a picture holds; the longest fit
block     in the picture of a run: neighbours that do not fit, drawn as one row
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, group, index_type, largest, pick
from nsysalign.memory import trim_memory
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
from nsysalign.parts import roles
from nsysalign.split.budget import SplitTrace
from nsysalign.split.pieces import call_names, operation_names

#: A page draws about this many intervals.
MAX_INTERVALS = 200
#: Groups of a label whose typical interval is drawn, those with most time.
MOST_KINDS = 8
#: A picture has at most this many rows of one noun, and all pictures together have at most _ALL_ROWS;
#: the rest is counted, not hidden.
MAX_ROWS = 3_000
_ALL_ROWS = 120_000
#: The picture of a run draws the RUN_ROWS longest rows of each noun by themselves, and the others in
#: blocks of neighbours that are closer than the run's length divided by _RUN_PIXELS.  Runs of
#: MAX_RUNS devices are drawn.
RUN_ROWS, _RUN_PIXELS, MAX_RUNS = 300, 1_000, 4
#: A picture shows this much time before and after its interval.
_MARGIN_NS = 10_000
#: The picture of a run begins this much earlier than its first operation: the call that launched it lies there.
_LAUNCH_BEFORE_NS = 1_000_000
#: Noun -> the table of `Trace` that has these rows.
_SOURCES = {"CUDA calls": "calls", "NVTX ranges": "ranges", "operations": "operations"}
_LANE = ("thread", "device", "stream")


class _View(NamedTuple):
    """A picture that is still to be filled, from `low` to `high` (ns)."""

    interval: int
    process: int
    low: int
    high: int
    room: int
    merge: bool = False  # rows that do not fit become blocks instead of being counted only


def chosen_intervals(
    evidence: Evidence, findings: pd.DataFrame, wanted: Sequence[int] = ()
) -> list[int]:
    """Return the intervals to draw, in ascending order.

    These are the wanted ones, then the median of every label, the example of each finding, the typical one of
    each group (the MOST_KINDS longest of a label), the slowest of every label and its first, up to MAX_INTERVALS.
    """
    longest = evidence.groups.sort_values("total_ns", ascending=False, kind="stable")
    kinds = longest.groupby("label", sort=False).head(MOST_KINDS)
    of_labels = roles(evidence).values()
    by_importance = [
        *wanted,
        *(r.median for r in of_labels),
        *(number for number in findings["interval"].tolist() if number >= 0),
        *kinds["typical"].tolist(),
        *(r.slowest for r in of_labels),
        *(r.first for r in of_labels),
    ]
    distinct_intervals = list(dict.fromkeys(by_importance))
    return sorted(distinct_intervals[: max(MAX_INTERVALS, len(wanted))])


class _Fitted(NamedTuple):
    """When rows of a picture begin and end (ns), and whether the picture has room for each: arrays of equal length."""

    start: np.ndarray
    end: np.ndarray
    fits: np.ndarray


def split_timeline(split: SplitTrace, intervals: np.ndarray, evidence: Evidence) -> pd.DataFrame:
    """Return `frames.TIMELINE`: what a page draws of intervals, and of the longest runs of whole devices.  It has a row for
    each call, range and operation around each of them, and for each record and wait around an interval.  The picture of a
    run draws the longest rows by themselves: records are points, of which none is longer.

    intervals: the numbers of the intervals to draw

    In the picture of a run, a row named "37 operations" is a block of that many neighbours; its
    detail says for how long they ran.
    """
    windows, trace = split.alignment.windows, split.trace
    devices = evidence.runs.drop_duplicates(["pid", "device"])
    longest = devices.sort_values("elapsed_ns", ascending=False, kind="stable").head(MAX_RUNS)
    drawn_runs = longest["interval"].to_numpy(np.int64)
    measured = np.setdiff1d(intervals, drawn_runs)
    room = min(MAX_ROWS, _ALL_ROWS // max(len(measured), 1))
    views, views_of_runs = [], []
    times = ("process", "open_ns", "start_ns", "end_ns", "close_end_ns")
    drawn_windows = frames.rows_of(windows.iloc[measured], *times)
    for number, window in zip(measured.tolist(), drawn_windows, strict=True):
        low = min(window.open_ns, window.start_ns) - _MARGIN_NS
        high = max(window.close_end_ns, window.end_ns) + _MARGIN_NS
        views.append(_View(number, window.process, low, high, room))
    windows_of_runs = frames.rows_of(windows.iloc[drawn_runs], *times)
    for number, window in zip(drawn_runs.tolist(), windows_of_runs, strict=True):
        low = window.start_ns - _LAUNCH_BEFORE_NS
        high = window.end_ns + _MARGIN_NS
        views_of_runs.append(_View(number, window.process, low, high, RUN_ROWS, merge=True))
    sources = [(noun, getattr(trace, name)) for noun, name in _SOURCES.items()]
    parts = [
        _rows_of_pictures(trace, noun, table, views)
        for noun, table in (*sources, *_records_and_waits(split))
    ]
    trim_memory()  # what the pictures of intervals took: those of runs look at whole tables
    parts += [_rows_of_pictures(trace, noun, table, views_of_runs) for noun, table in sources]
    filled = [part for part in parts if len(part)]
    return pd.concat(filled or parts[:1], ignore_index=True)


def everything(trace: Trace) -> pd.DataFrame:
    """Return all calls, ranges and operations of a trace as one picture (interval -1), for exports."""
    tables = (trace.calls, trace.operations, trace.ranges)
    processes = np.unique(np.concatenate([distinct(t["process"].to_numpy()) for t in tables[:2]]))
    end = max((int(table["end_ns"].max()) for table in tables if len(table)), default=0)
    room = max(map(len, tables))
    parts = [frames.empty(frames.TIMELINE)]
    for process in processes.tolist():
        pid = f" (pid {pid_of(process)})" if len(processes) > 1 else ""
        view = _View(-1, process, 0, end + 1, room)
        for noun, name in _SOURCES.items():
            part = _rows_of_pictures(trace, noun, getattr(trace, name), [view])
            parts.append(part.assign(lane=part["lane"] + pid))
    return pd.concat(parts, ignore_index=True)


def _rows_of_pictures(
    trace: Trace, noun: str, table: pd.DataFrame, views: Sequence[_View]
) -> pd.DataFrame:
    """Return `frames.TIMELINE`, what a page draws of one table (such as all operations) in its pictures, a row per bar.

    A picture draws the longest rows, of equally long ones the first.  Rows that do not fit become
    blocks, or are counted.

    noun:  what the rows are called
    table: columns process, start_ns, end_ns and row, and thread or device and stream; sorted by
           start
    views: the pictures: which process and stretch of time each shows, and for how many rows it has room
    """
    start = table["start_ns"].to_numpy()
    end = table["end_ns"].to_numpy()
    bars = _Bars(table["process"].to_numpy(), start, end, np.maximum.accumulate(end))
    tables, counts = [], []
    rows_of_view = []  # of each picture, the rows that are drawn by themselves
    for view in views:
        rows = _rows_in(view, bars)
        if len(rows) > view.room:
            fitted = _fitted(rows, start, end, view.room)
            if view.merge:
                blocks, rows = _blocks_of_neighbours(trace, noun, table, view, rows, fitted)
                tables.append(blocks)
            else:
                lengths = fitted.end - fitted.start
                counts.append((view, _count_of_left_out(lengths[~fitted.fits])))
                rows = rows[fitted.fits]
        rows_of_view.append(rows)
    if counts:
        tables.append(_rows_on_left_out(noun, counts))
    drawn_alone = np.concatenate([np.empty(0, np.int64), *rows_of_view])
    if not tables and not len(drawn_alone):
        return frames.empty(frames.TIMELINE)
    intervals = np.array([view.interval for view in views], np.int64)
    drawn_rows = _timeline_table(
        interval=np.repeat(intervals, [len(rows) for rows in rows_of_view]),
        start_ns=start[drawn_alone],
        end_ns=end[drawn_alone],
        ref_id=table["row"].to_numpy()[drawn_alone],
        **_columns_in_words(trace, noun, table, drawn_alone),
    )
    return pd.concat([*tables, drawn_rows], ignore_index=True) if tables else drawn_rows


def _fitted(rows: np.ndarray, start: np.ndarray, end: np.ndarray, room: int) -> _Fitted:
    """Return when these rows of a table begin and end, and which of them fit into a picture.

    rows:       positions, rising; more than `room`
    start, end: per row of the table (ns)
    """
    # a slice takes no memory
    is_contiguous = rows[-1] - rows[0] + 1 == len(rows)
    position = slice(rows[0], rows[-1] + 1) if is_contiguous else rows
    row_start, row_end = start[position], end[position]
    return _Fitted(row_start, row_end, _is_among_longest(row_end - row_start, room))


class _Bars(NamedTuple):
    """Per row of a table that is drawn, sorted by start: its process and times (ns), and the latest end of it and
    all rows before it."""

    process: np.ndarray
    start: np.ndarray
    end: np.ndarray
    latest_end: np.ndarray


def _rows_in(view: _View, bars: _Bars) -> np.ndarray:
    """Return the positions of the rows of a table that lie in a picture, at least in part."""
    # rows that began before may still reach into it
    first = np.searchsorted(bars.latest_end, view.low)
    stop = np.searchsorted(bars.start, view.high)
    reaches = bars.end[first:stop] >= view.low
    of_process = bars.process[first:stop] == view.process
    row = np.flatnonzero(reaches & of_process)
    return (row + first).astype(index_type(len(bars.start)))


def _is_among_longest(ns: np.ndarray, count: int) -> np.ndarray:
    """Return, per duration, whether it is one of the `count` longest; of equal ones the first count."""
    is_among = np.zeros(len(ns), dtype=bool)
    is_among[largest(ns, count)] = True
    return is_among


def _count_of_left_out(ns: np.ndarray) -> dict[str, int]:
    """Return what a picture says of rows that it leaves out.  `ns`: their durations."""
    return {"count": len(ns), "ns": int(ns.sum()), "longest_ns": int(ns.max())}


def _rows_on_left_out(noun: str, counts: Sequence[tuple[_View, dict[str, int]]]) -> pd.DataFrame:
    """Return `frames.TIMELINE` with a row for each picture that leaves rows out."""
    return _timeline_table(
        interval=[view.interval for view, _ in counts],
        start_ns=[view.low for view, _ in counts],
        end_ns=[view.high for view, _ in counts],
        lane_kind="omitted",
        name=noun,
        detail=[detail for _, detail in counts],
    )


def _blocks_of_neighbours(
    trace: Trace,
    noun: str,
    table: pd.DataFrame,
    view: _View,
    positions: np.ndarray,
    fitted: _Fitted,
) -> tuple[pd.DataFrame, np.ndarray]:
    """Join neighbouring rows of a picture for which there is no room to blocks.  Returns (`frames.TIMELINE` of the blocks,
    the positions of the rows that are in no block).

    |AAAA|bb|b|b   |CCCC|  ->  |AAAA|3 operations|  |CCCC|        A and C fit, b does not

    A block holds neighbours on one lane that do not fit and lie no more than a pixel apart; a row that fits ends it.
    A row that does not fit and has no such neighbour is in no block: it is drawn by itself, beyond the room.

    noun:      what the rows of the table are called
    positions: the rows, in the table; sorted by start
    fitted:    per row, its times and whether it fits
    """
    lane = _lane_numbers(table, positions)
    by_lane = np.argsort(lane, kind="stable")
    lane, positions = lane[by_lane], positions[by_lane]
    start, end, fits = (column[by_lane] for column in fitted)
    pixel_ns = (view.high - view.low) // _RUN_PIXELS
    # per row but the first: whether it joins the row before it
    joins = (lane[1:] == lane[:-1]) & ~fits[1:] & ~fits[:-1]
    joins &= start[1:] - end[:-1] <= pixel_ns
    # chains of rows that join each other: the first row of each, and how many rows it has
    first = np.flatnonzero(np.append(True, ~joins))
    count = np.diff(first, append=len(positions))
    is_block = count > 1
    ran_ns = np.add.reduceat(end - start, first)[is_block]
    latest_end = np.maximum.reduceat(end, first)[is_block]
    words = _columns_in_words(trace, noun, table, positions[first[is_block]])
    words |= {"ref_kind": "", "link": -1}
    words["detail"] = [{"together_ns": ns} for ns in ran_ns.tolist()]
    words["name"] = [f"{size:,} {noun}" for size in count[is_block].tolist()]
    blocks = _timeline_table(
        **words,
        interval=np.full(len(ran_ns), view.interval),
        start_ns=start[first[is_block]],
        end_ns=latest_end,
    )
    return blocks, np.sort(positions[first[~is_block]])


def _lane_numbers(table: pd.DataFrame, row: np.ndarray) -> np.ndarray:
    """Return, per row at these positions, a number that is equal for rows of the same lane, in the smallest
    integer type."""
    columns = [name for name in table if name in _LANE and any(table[name].to_numpy().strides)]
    if not columns:  # all columns have one value: there is one lane
        return np.zeros(len(row), np.int8)
    lane = table[columns].iloc[row].groupby(columns).ngroup().to_numpy()
    return lane.astype(np.min_scalar_type(lane.max()))


def _timeline_table(**columns: Any) -> pd.DataFrame:
    """Return `frames.TIMELINE` of these columns: arrays, or one value for all rows.

    A column that is left out says that there is nothing: '', -1 or {}.
    """
    default = {"lane": "", "kind": "", "ref_kind": "", "ref_id": -1, "link": -1}
    detail = columns.pop("detail", [{}] * len(columns["interval"]))
    columns = default | columns | {"detail": pd.Series(detail, dtype=object)}
    table = pd.DataFrame({name: columns[name] for name in frames.TIMELINE.names})
    return frames.check(table, frames.TIMELINE)


def _columns_in_words(
    trace: Trace, noun: str, table: pd.DataFrame, row: np.ndarray
) -> dict[str, Any]:
    """Return the columns of `frames.TIMELINE` that say where rows are drawn, and in which words: lane_kind, lane, kind,
    name, detail and what they point to.

    noun: what the rows of the table are called: "CUDA calls", "NVTX ranges", "operations", "records" or "waits"
    row:  their positions in the table
    """
    rows = table.iloc[row]
    if noun == "CUDA calls":
        kind = np.array(CALL_KINDS, object)[rows["kind"]]
        words = {"lane_kind": "host", "kind": kind, "ref_kind": "api"}
        words["name"] = call_names(trace, row)
    elif noun == "NVTX ranges":
        words = {"lane_kind": "nvtx", "kind": "range", "ref_kind": "nvtx"}
        words["name"] = rows["text"].to_numpy(dtype=object)
    elif noun == "operations":
        kind = np.array(OPERATION_KINDS, object)[rows["kind"]]
        words = {"lane_kind": "stream", "kind": kind, "ref_kind": kind}
        words["name"] = operation_names(trace, row)
        words["detail"] = _operation_details(trace, rows)
    elif noun == "records":
        words = _columns_of_records(rows)
    else:
        words = _columns_of_waits(rows)
    if noun in ("operations", "records"):  # the call that issued each
        words["link"] = pick(trace.calls["row"].to_numpy(), rows["call"].to_numpy(), -1)
    return words | {"lane": _lanes_in_words(trace, rows)}


def _lanes_in_words(trace: Trace, rows: pd.DataFrame) -> list[str]:
    """Return the lane in which each row is drawn: its thread or its stream, in words."""
    if "thread" in rows:
        return [f"thread {tid}" for tid in tid_of(rows["thread"].to_numpy()).tolist()]
    name_devices = len(distinct(trace.operations["device"].to_numpy())) > 1
    return [
        f"GPU {device} stream {stream}" if name_devices and device >= 0 else f"stream {stream}"
        for device, stream in zip(rows["device"], rows["stream"], strict=True)
    ]


def _columns_of_records(records: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of `frames.TIMELINE` for event records, as `_records_and_waits` makes them."""
    earlier = records["t_ns"] - records["lower_ns"]
    later = records["upper_ns"] - records["t_ns"]
    return {
        "lane_kind": "event",
        "kind": "record",
        "ref_kind": "event",
        "name": [f"event record {seq}" if seq >= 0 else "event record" for seq in records["seq"]],
        "detail": [
            {"at_most_earlier_ns": low, "at_most_later_ns": high}
            for low, high in zip(earlier, later, strict=True)
        ],
    }


def _columns_of_waits(waits: pd.DataFrame) -> dict[str, Any]:
    """Return the columns of `frames.TIMELINE` for event waits, as `_records_and_waits` makes them."""
    records = [f"record {seq}" if seq >= 0 else "a record" for seq in waits["seq"]]
    streams = waits["recorded_on"].tolist()
    return {
        "lane_kind": "event",
        "kind": "wait",
        "ref_kind": "api",
        "link": waits["seq"].to_numpy(),
        "name": [
            f"waits for {record} of stream {stream}"
            for record, stream in zip(records, streams, strict=True)
        ],
        "detail": [{"inferred": True} if inferred else {} for inferred in waits["inferred"]],
    }


def _operation_details(trace: Trace, operations: pd.DataFrame) -> list[dict[str, Any]]:
    """Return, per operation, its details by name: grid, block, registers and shared memory of a
    kernel, bytes and bandwidth (GB/s) of a copy.  A detail that is not known is left out."""
    # per operation: three numbers of its grid, three of its block, its registers, its static and its
    # dynamic shared memory; 0 or -1 for what the trace does not have
    shapes = np.zeros((len(operations), 9), np.int64)
    kernels = np.flatnonzero(operations["kind"] == KIND["kernel"])
    if trace.shapes is not None and len(kernels):
        known_shapes = np.asarray(trace.shapes(operations["row"].to_numpy()[kernels]))
        shapes[kernels, : known_shapes.shape[1]] = known_shapes
    sizes = operations["bytes"].tolist()
    lengths = (operations["end_ns"] - operations["start_ns"]).tolist()
    details: list[dict[str, Any]] = []
    for size, ns, shape in zip(sizes, lengths, shapes.tolist(), strict=True):
        registers, static_bytes, dynamic_bytes = shape[6:]
        detail: dict[str, Any] = {}
        if shape[0]:
            detail |= {"grid": tuple(shape[:3]), "block": tuple(shape[3:6])}
        if registers > 0:
            shared_bytes = max(0, static_bytes + dynamic_bytes)
            detail |= {"registers": registers, "shared_memory_bytes": shared_bytes}
        if size > 0 and ns > 0:
            detail |= {"bytes": size, "bandwidth_gb_s": round(size / ns, 3)}
        details.append(detail)
    return details


def _records_and_waits(split: SplitTrace) -> list[tuple[str, pd.DataFrame]]:
    """Return the nouns "records" and "waits", each with a table of its rows, sorted by start; without those that have
    no rows."""
    tables = (("records", _records(split.alignment)), ("waits", _waits(split)))
    return [(noun, table) for noun, table in tables if len(table)]


def _records(alignment: Alignment) -> pd.DataFrame:
    """Return the records that have a place and a stream; each is a point at its likeliest place."""
    columns = ["process", "device", "stream", "call", "seq", "t_ns", "lower_ns", "upper_ns"]
    is_placed = (alignment.records["problem"] == "") & (alignment.records["lane"] >= 0)
    records = alignment.records[columns][is_placed].sort_values("t_ns", kind="stable")
    return records.assign(start_ns=records["t_ns"], end_ns=records["t_ns"], row=records["seq"])


def _waits(split: SplitTrace) -> pd.DataFrame:
    """Return the waits of streams for records, a row each, on the stream that waits: from when the stream
    reaches it (`start_ns`) to when the record releases it (`end_ns`).

    waiting stream  | operation |....wait....|  next operation
    recording stream      | operation       |R
    """
    alignment, calls = split.alignment, split.trace.calls
    waits = alignment.wait_calls
    waits = waits[(waits["record"] >= 0) & (waits["call"] >= 0) & (waits["lane"] >= 0)]
    if waits.empty:
        return waits
    record = alignment.records.iloc[waits["record"]].reset_index(drop=True)
    call = waits["call"].to_numpy()
    lane = waits["lane"].to_numpy()
    reached_ns = _when_reached_ns(split, call, lane)
    table = alignment.lanes.iloc[lane].reset_index(drop=True)
    table = table.assign(
        start_ns=reached_ns,
        end_ns=np.maximum(record["t_ns"].to_numpy(), reached_ns),
        row=calls["row"].to_numpy()[call],
        seq=record["seq"],
        recorded_on=record["stream"],
        inferred=waits["inferred"].to_numpy(),
    )
    return table[record["problem"] == ""].sort_values("start_ns")


def _when_reached_ns(split: SplitTrace, call: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """Return when (ns) a stream reaches each wait: when the wait's call has returned, and all operations have ended that
    were issued to the stream before it.

    call, lane: per wait, the position of its call, and the lane of the stream
    """
    issue_ns = split.trace.calls["start_ns"].to_numpy()[call]
    reached_ns = split.trace.calls["end_ns"].to_numpy()[call]
    for number, rows in group(lane, np.arange(len(lane))).items():
        if operations := split.explainer.per_lane.get(number):
            times = operations.times
            last = np.searchsorted(times.call_start_ns, issue_ns[rows]) - 1
            all_ended_ns = pick(times.reach_ns, last, 0)
            reached_ns[rows] = np.maximum(reached_ns[rows], all_ended_ns)
    return reached_ns
