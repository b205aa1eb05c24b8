"""Budgets over operations as trace-event JSON, which Perfetto's UI and chrome://tracing open.

    nsysalign budgets   h2d_t1      [ h2d_t1#4                                   ]      one track per label
                                    [event|host            |launch|kernel|...|event]
    GPU                 stream 7                                  [gemm]
    host                thread 484     [cudaLaunchKernel]

track  a line of the viewer, named by numbers of a process (pid) and thread (tid), which here only order it
slice  a bar on a track
budget the time of an interval, split by cause into segments; its causes' times are its parts
lane   a stream, a host thread or the like: where something ran; it is drawn on one track or several
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
    yield from _budget_events(analysis)
    yield from _events_around(_with_process_in_lanes(analysis, around), notes)


def _meta(what: str, pid: int, tid: int, **arguments: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


def _slice(track: tuple[int, int], name: str, span: tuple[int, int], cat: str, args: Any) -> Event:
    """Return a slice on a track (pid, tid), over a span (start, end) in ns."""
    start, end = span
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "cat": cat, "name": name, "pid": track[0], "tid": track[1], **times, "args": args}  # fmt: skip


def _track_names(pid: int, tid: int, name: str, rows: list[int]) -> Iterator[Event]:
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


def _budget_events(analysis: Analysis) -> Iterator[Event]:
    """Yield the events of all budgets, which say for what an interval's time was spent: for each label the names of its
    tracks, on these a slice per interval, and inside that a slice for each of its segments (a stretch of one cause).

    A label has one track, or several where its intervals overlap.
    """
    pid, _ = GROUPS["budget"]
    first_track = 0
    segments_of_interval = dict(iter(analysis.segments.groupby("interval", sort=False)))
    times_of_interval = _times_of_intervals(analysis)  # shown with the slice of each
    # where intervals of one label begin together, a longer one comes before what lies inside it
    ordered = analysis.intervals.sort_values(["start_ns", "elapsed_ns"], ascending=[True, False])
    for label, intervals in ordered.groupby("label", sort=False):
        starts, ends = intervals["start_ns"].tolist(), intervals["end_ns"].tolist()
        rows = nested_rows(starts, ends, nest=False)
        yield from _track_names(pid, first_track, label, rows)
        for row, interval in zip(rows, intervals.itertuples(index=False), strict=True):
            track = (pid, first_track + row)
            number = interval.interval
            yield _interval_slice(interval, track, times_of_interval.get(number, {}))
            if number in segments_of_interval:
                yield from _segment_slices(segments_of_interval[number], track)
        first_track += max(rows) + 1


def _interval_slice(interval: Any, track: tuple[int, int], times: Mapping[str, int]) -> Event:
    """Return the slice of an interval.

    interval: a row of `frames.INTERVALS`
    track: (pid, tid)
    times: name -> ns, its parts and the like

    All intervals of a label have the label as their name, so that a viewer adds them up.
    """
    arguments = {"interval": interval.name}
    arguments |= {key: getattr(interval, key) for key in _OF_INTERVAL}
    arguments |= times
    span = (interval.start_ns, interval.end_ns)
    return _slice(track, safe_text(interval.label), span, "interval", _safe(arguments))


def _times_of_intervals(analysis: Analysis) -> dict[int, dict[str, int]]:
    """Return number of the interval -> name -> ns: its parts, and what it would have measured without nsys."""
    times_of_interval: dict[int, dict[str, int]] = {}
    for number, cause, ns in analysis.parts[["interval", "cause", "ns"]].itertuples(index=False):
        times_of_interval.setdefault(number, {})[f"{cause}_ns"] = ns
    predicted = analysis.unprofiled.dropna(subset=["predicted_ns"])
    predicted = predicted[["interval", "predicted_ns", "lower_ns", "upper_ns"]]
    for row in predicted.itertuples(index=False):
        number, ns, low, high = map(int, row)
        times = times_of_interval.setdefault(number, {})
        times["unprofiled_ns"] = ns
        times["unprofiled_lower_ns"] = low
        times["unprofiled_upper_ns"] = high
    return times_of_interval


def _segment_slices(segments: pd.DataFrame, track: tuple[int, int]) -> Iterator[Event]:
    """Yield a slice for each segment of an interval on its track (pid, tid)."""
    columns = segments[["start_ns", "end_ns", "cause", "detail"]]
    for start, end, cause, detail in columns.itertuples(index=False):
        name = DISPLAY.get(cause) or safe_text(cause)
        yield _slice(track, name, (start, end), "budget", {"what": safe_text(detail)})


def _with_process_in_lanes(analysis: Analysis, around: pd.DataFrame) -> pd.DataFrame:
    """Return `around` with the process in the name of each lane if there are several processes, because their
    streams can have equal numbers."""
    intervals = analysis.intervals
    if intervals["pid"].nunique() < 2:
        return around
    pid = around["interval"].map(dict(zip(intervals["interval"], intervals["pid"], strict=True)))
    with_process = around["lane"] + " (pid " + pid.fillna(-1).astype("int64").astype(str) + ")"
    return around.assign(lane=around["lane"].where(pid.isna(), with_process))


def _events_around(around: pd.DataFrame, notes: list[str]) -> Iterator[Event]:
    """Yield what ran around the intervals: a slice for each call, range and operation, a mark for each record,
    then an arrow from each call to each operation that it issued.

    around: `frames.TIMELINE`, a row per item (call, range, operation or record) and interval near which it lies
    notes: what is left out is added: all arrows, if there were more than MOST_ARROWS

    An item near several intervals is drawn only once.  An item of `ref_kind` "api" is a call, with the id `ref_id`; the
    `link` of an operation is the id of the call that issued it, -1 if that is not known.
    """
    keys = ["lane_kind", "lane", "ref_kind", "ref_id", "start_ns", "end_ns"]
    items = around[around["lane_kind"].isin(list(GROUPS))].drop_duplicates(keys)
    # id of a call -> its slice; ids are rows of one table of the trace: no two processes share one
    event_of_call: dict[int, Event] = {}
    issued: list[tuple[int, Event]] = []  # (id of a call, the slice of an operation that it issued)
    first_track = 0  # of the lane; counted on over all lanes, so that no two tracks have one number
    for (lane_kind, lane), of_lane in items.groupby(["lane_kind", "lane"]):
        of_lane = of_lane.sort_values(["start_ns", "end_ns"], ascending=[True, False])
        # viewers show lanes of a kind together, as if they were a process: `pid` is the number of that
        pid, _ = GROUPS[lane_kind]
        starts, ends = of_lane["start_ns"].tolist(), of_lane["end_ns"].tolist()
        rows = nested_rows(starts, ends, nest=True)
        yield from _track_names(pid, first_track, lane, rows)
        for row, item in zip(rows, of_lane.itertuples(index=False), strict=True):
            event = _item_event(item, (pid, first_track + row), lane_kind)
            is_mark = item.kind == "record"  # no arrow leads to a mark, nor from one
            if item.ref_kind == "api" and lane_kind == "host" and not is_mark:
                event_of_call[item.ref_id] = event
            elif item.link >= 0 and lane_kind == "stream" and not is_mark:
                issued.append((item.link, event))
            yield event
        first_track += max(rows, default=0) + 1
    if len(issued) > MOST_ARROWS:
        notes.append(
            f"the arrows from {len(issued):,} calls to their operations (more than {MOST_ARROWS:,})"
        )
        return
    for number, (call, operation) in enumerate(issued):
        if call in event_of_call:
            # of the format: "s" starts an arrow, "f" finishes it, at the slice that encloses the time ("bp": "e")
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
    event = _slice(track, safe_text(item.name), span, kind, arguments)
    if item.kind == "record":
        del event["dur"]
        event |= {"ph": "i", "s": "t"}
    return event


def _arrow_end(phase: dict[str, str], number: int, place: Event) -> Event:
    """Return one end of an arrow: its phase (start or finish), its number, and the slice at which it is."""
    at = {key: place[key] for key in ("pid", "tid", "ts")}
    return {**phase, "cat": "issue", "name": "issues", "id": number, **at}
