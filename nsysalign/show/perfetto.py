"""Budgets over operations as trace-event JSON, which Perfetto's UI and chrome://tracing open.

    nsysalign budgets   h2d_t1      [ h2d_t1#4                                   ]      one track per label
                                    [event|host            |launch|kernel|...|event]
    GPU                 stream 7                                  [gemm]
    host                thread 484     [cudaLaunchKernel]

track  a line of the viewer, named by numbers of a process (pid) and thread (tid), which here only order it
slice  a bar on a track
event  an object of the file: a slice, a mark, one end of an arrow, or the name of a track
around the operations, calls, ranges and records near intervals (frames.TIMELINE)

Times are the trace's own, in microseconds with three decimals, which makes them exact to the nanosecond.
The format is described in Google's "Trace Event Format" document.
"""

from __future__ import annotations

import functools
import gzip
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nsysalign.causes import DISPLAY
from nsysalign.files import replacing
from nsysalign.model import Analysis
from nsysalign.show.timeline_rows import nested_rows
from nsysalign.store.objects import plain, to_json
from nsysalign.text import safe_text as _safe_text

if TYPE_CHECKING:
    import pandas as pd

#: The same as in `text`, with a cache, because names repeat by the thousand.
safe_text = functools.lru_cache(maxsize=65_536)(_safe_text)
#: Process rows of the viewer, in this order.
GROUPS = {
    "budget": (1, "nsysalign budgets"),
    "event": (2, "event records"),
    "stream": (3, "GPU"),
    "nvtx": (4, "NVTX"),
    "host": (5, "host, CUDA calls"),
}
#: Arrows cost two events each, and a viewer cannot show more than this well.
MOST_ARROWS = 100_000
_OF_INTERVAL = ("elapsed_ns", "kernel_only_ns", "error_ns", "method", "site")
Event = dict[str, Any]


def write(analysis: Analysis, around: pd.DataFrame, path: str | os.PathLike[str]) -> list[str]:
    """Write the file, compressed if its name ends in .gz, and return notes on what was left out.

    around: a table with the columns of frames.TIMELINE
    """
    notes: list[str] = []
    opener = functools.partial(gzip.open, compresslevel=5) if str(path).endswith(".gz") else open
    with replacing(path) as temporary, opener(temporary, "wt") as file:
        file.write('{"displayTimeUnit":"ns","otherData":{"producer":"nsysalign"},"traceEvents":[\n')
        events = map(to_json, trace_events(analysis, around, notes))
        file.write(next(events))
        file.writelines(",\n" + event for event in events)
        file.write("\n]}\n")
    return notes


def trace_events(analysis: Analysis, around: pd.DataFrame, notes: list[str]) -> Iterator[Event]:
    """Yield all events of the file: names of tracks, budgets, what ran around them, and arrows.

    around: `frames.TIMELINE`
    notes: what is left out is added to this list
    """
    for order, (pid, name) in enumerate(GROUPS.values()):
        yield _meta("process_name", pid, 0, name=name)
        yield _meta("process_sort_index", pid, 0, sort_index=order)
    yield from _budgets(analysis)
    yield from _around(_apart(analysis, around), notes)


def _meta(what: str, pid: int, tid: int, **arguments: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


def _piece(track: tuple[int, int], name: str, span: tuple[int, int], cat: str, args: Any) -> Event:
    start, end = span
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "cat": cat, "name": name, "pid": track[0], "tid": track[1], **times, "args": args}  # fmt: skip


def _named(pid: int, tid: int, name: str, rows: list[int]) -> Iterator[Event]:
    """Yield the names of the tracks of one lane.

    tid: the number of its first track
    rows: the rows of its items: the lane has a track for each row
    """
    for row in range(max(rows, default=0) + 1):
        text = safe_text(name) + (f" ({row + 1})" if row else "")
        yield _meta("thread_name", pid, tid + row, name=text)
        yield _meta("thread_sort_index", pid, tid + row, sort_index=tid + row)


def _safe(arguments: Mapping[Any, Any]) -> dict[str, Any]:
    """Return arguments as JSON can hold them, without empty ones.  Numbers stay numbers, so that a viewer can
    add and sort them."""
    return {
        safe_text(key): safe_text(value) if isinstance(value, str) else plain(value)
        for key, value in arguments.items()
        if value is not None and value != ""
    }


def _budgets(analysis: Analysis) -> Iterator[Event]:
    """Yield the budgets: for each label its tracks, on them a slice per interval, and inside that a slice for each
    of its pieces.

    A label has one track, or several where its intervals overlap.
    """
    pid, _ = GROUPS["budget"]
    first_track = 0
    pieces_of = dict(iter(analysis.segments.groupby("interval", sort=False)))
    numbers_of = _numbers_of_intervals(analysis)
    ordered = analysis.intervals.sort_values(["start_ns", "elapsed_ns"], ascending=[True, False])
    for label, intervals in ordered.groupby("label", sort=False):
        starts, ends = intervals["start_ns"].tolist(), intervals["end_ns"].tolist()
        rows = nested_rows(starts, ends, nest=False)
        yield from _named(pid, first_track, label, rows)
        for row, interval in zip(rows, intervals.itertuples(index=False), strict=True):
            track = (pid, first_track + row)
            yield _interval_slice(interval, track, numbers_of.get(interval.interval, {}))
            if interval.interval in pieces_of:
                yield from _pieces_of_interval(pieces_of[interval.interval], track)
        first_track += max(rows) + 1


def _interval_slice(interval: Any, track: tuple[int, int], numbers: Mapping[str, int]) -> Event:
    """Return the slice of an interval.

    interval: a row of `frames.INTERVALS`
    track: (pid, tid)
    numbers: name -> ns, its parts and the like

    All intervals of a label have the label as their name, so that a viewer adds them up.
    """
    arguments = {"interval": interval.name}
    arguments |= {key: getattr(interval, key) for key in _OF_INTERVAL}
    arguments |= numbers
    span = (interval.start_ns, interval.end_ns)
    return _piece(track, safe_text(interval.label), span, "interval", _safe(arguments))


def _numbers_of_intervals(analysis: Analysis) -> dict[int, dict[str, int]]:
    """Return number of the interval -> name -> ns: its parts, and what it would have measured without nsys."""
    numbers_of: dict[int, dict[str, int]] = {}
    for number, cause, ns in analysis.parts[["interval", "cause", "ns"]].itertuples(index=False):
        numbers_of.setdefault(number, {})[f"{cause}_ns"] = ns
    predicted = analysis.unprofiled.dropna(subset=["predicted_ns"])
    predicted = predicted[["interval", "predicted_ns", "lower_ns", "upper_ns"]]
    for row in predicted.itertuples(index=False):
        number, ns, low, high = map(int, row)
        numbers = numbers_of.setdefault(number, {})
        numbers["unprofiled_ns"] = ns
        numbers["unprofiled_lower_ns"] = low
        numbers["unprofiled_upper_ns"] = high
    return numbers_of


def _pieces_of_interval(pieces: pd.DataFrame, track: tuple[int, int]) -> Iterator[Event]:
    """Yield a slice for each piece of an interval on its track (pid, tid)."""
    columns = pieces[["start_ns", "end_ns", "cause", "detail"]]
    for start, end, cause, detail in columns.itertuples(index=False):
        name = DISPLAY.get(cause) or safe_text(cause)
        yield _piece(track, name, (start, end), "budget", {"what": safe_text(detail)})


def _apart(analysis: Analysis, around: pd.DataFrame) -> pd.DataFrame:
    """Return `around` with the process in the name of each lane if there are several processes, because their
    streams can have equal numbers."""
    intervals = analysis.intervals
    if intervals["pid"].nunique() < 2:
        return around
    pid = around["interval"].map(dict(zip(intervals["interval"], intervals["pid"], strict=True)))
    with_process = around["lane"] + " (pid " + pid.fillna(-1).astype("int64").astype(str) + ")"
    return around.assign(lane=around["lane"].where(pid.isna(), with_process))


def _around(around: pd.DataFrame, notes: list[str]) -> Iterator[Event]:
    """Yield what ran around the intervals: a slice for each call, range and operation, a mark for each record,
    then an arrow from each call to each operation that it issued.

    around: `frames.TIMELINE`; an item that is in the pictures of several intervals comes only once
    notes: gets a note if there are no arrows, because there would be more than MOST_ARROWS
    """
    keys = ["lane_kind", "lane", "ref_kind", "ref_id", "start_ns", "end_ns"]
    rows = around[around["lane_kind"].isin(list(GROUPS))].drop_duplicates(keys)
    event_of_call: dict[int, Event] = {}
    issued: list[tuple[int, Event]] = []  # (a call, an operation that it issued)
    first_track = 0
    for (kind, lane), items in rows.groupby(["lane_kind", "lane"]):
        items = items.sort_values(["start_ns", "end_ns"], ascending=[True, False])
        pid, _ = GROUPS[kind]
        tracks = nested_rows(items["start_ns"].tolist(), items["end_ns"].tolist(), nest=True)
        yield from _named(pid, first_track, lane, tracks)
        for row, item in zip(tracks, items.itertuples(index=False), strict=True):
            event = _item_event(item, (pid, first_track + row), kind)
            if item.kind == "record":
                pass  # a mark, to which no arrow leads
            elif item.ref_kind == "api" and kind == "host":
                event_of_call[item.ref_id] = event
            elif item.link >= 0 and kind == "stream":
                issued.append((item.link, event))
            yield event
        first_track += max(tracks, default=0) + 1
    if len(issued) > MOST_ARROWS:
        notes.append(
            f"the arrows from {len(issued):,} calls to their operations (more than {MOST_ARROWS:,})"
        )
        return
    for number, (call, operation) in enumerate(issued):
        if call in event_of_call:
            yield _arrow_end({"ph": "s"}, number, event_of_call[call])
            yield _arrow_end({"ph": "f", "bp": "e"}, number, operation)


def _item_event(item: Any, track: tuple[int, int], kind: str) -> Event:
    """Return the slice of an item, or its mark if it is a record.

    item: a row of `frames.TIMELINE`
    track: (pid, tid)
    kind: the kind of its lane
    """
    detail = item.detail or {}
    arguments = _safe(detail if isinstance(detail, Mapping) else {"detail": detail})
    span = (item.start_ns, item.end_ns)
    event = _piece(track, safe_text(item.name), span, kind, arguments)
    if item.kind == "record":
        del event["dur"]
        event |= {"ph": "i", "s": "t"}
    return event


def _arrow_end(phase: dict[str, str], number: int, place: Event) -> Event:
    """Return one end of an arrow: its phase (start or finish), its number, and the slice at which it is."""
    at = {key: place[key] for key in ("pid", "tid", "ts")}
    return {**phase, "cat": "issue", "name": "issues", "id": number, **at}
