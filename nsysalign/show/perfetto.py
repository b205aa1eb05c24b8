"""Budgets over operations as trace-event JSON, which Perfetto's UI and chrome://tracing open.

    nsysalign budgets   h2d_t1      [ h2d_t1#4                                   ]      one track per label
                                    [event|host            |launch|kernel|...|event]
    GPU                 stream 7                                  [gemm]
    host                thread 484     [cudaLaunchKernel]

Times are the trace's own, in microseconds with three decimals: exact nanoseconds.  Source of the
format: Google's "Trace Event Format" document.
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

#: Names repeat by the thousand.
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
    """Write the file, compressed if its name ends in .gz; `around` has the columns of
    frames.TIMELINE. Returns notes on what was left out."""
    said: list[str] = []
    opener = functools.partial(gzip.open, compresslevel=5) if str(path).endswith(".gz") else open
    with replacing(path) as temporary, opener(temporary, "wt") as file:
        file.write('{"displayTimeUnit":"ns","otherData":{"producer":"nsysalign"},"traceEvents":[\n')
        events = map(to_json, trace_events(analysis, around, said))
        file.write(next(events))
        file.writelines(",\n" + event for event in events)
        file.write("\n]}\n")
    return said


def trace_events(analysis: Analysis, around: pd.DataFrame, said: list[str]) -> Iterator[Event]:
    """Metadata, budgets, what ran around them, arrows; what is left out is added to `said`."""
    for order, (pid, name) in enumerate(GROUPS.values()):
        yield _meta("process_name", pid, 0, name=name)
        yield _meta("process_sort_index", pid, 0, sort_index=order)
    yield from _budgets(analysis)
    yield from _around(_apart(analysis, around), said)


def _meta(what: str, pid: int, tid: int, **arguments: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


def _piece(track: tuple[int, int], name: str, span: tuple[int, int], cat: str, args: Any) -> Event:
    start, end = span
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "cat": cat, "name": name, "pid": track[0], "tid": track[1], **times, "args": args}  # fmt: skip


def _named(pid: int, tid: int, name: str, rows: list[int]) -> Iterator[Event]:
    """The names of the tracks of a lane, which are numbered from `tid` on."""
    for row in range(max(rows, default=0) + 1):
        text = safe_text(name) + (f" ({row + 1})" if row else "")
        yield _meta("thread_name", pid, tid + row, name=text)
        yield _meta("thread_sort_index", pid, tid + row, sort_index=tid + row)


def _safe(arguments: Mapping[Any, Any]) -> dict[str, Any]:
    """Numbers stay numbers, so that a viewer can add and sort them."""
    return {
        safe_text(key): safe_text(value) if isinstance(value, str) else plain(value)
        for key, value in arguments.items()
        if value is not None and value != ""
    }


def _budgets(analysis: Analysis) -> Iterator[Event]:
    """One track per label; the pieces of an interval stand inside its slice."""
    pid, tid = GROUPS["budget"][0], 0
    pieces = dict(iter(analysis.segments.groupby("interval", sort=False)))
    more: dict[int, dict[str, int]] = {}
    for number, cause, ns in analysis.parts[["interval", "cause", "ns"]].itertuples(index=False):
        more.setdefault(number, {})[f"{cause}_ns"] = ns
    known = analysis.unprofiled.dropna(subset=["predicted_ns"])
    for row in known[["interval", "predicted_ns", "lower_ns", "upper_ns"]].itertuples(index=False):
        number, ns, low, high = map(int, row)
        more.setdefault(number, {}).update(unprofiled_ns=ns, unprofiled_lower_ns=low, unprofiled_upper_ns=high)  # fmt: skip
    ordered = analysis.intervals.sort_values(["start_ns", "elapsed_ns"], ascending=[True, False])
    for label, runs in ordered.groupby("label", sort=False):
        rows = nested_rows(runs["start_ns"].tolist(), runs["end_ns"].tolist(), nest=False)
        yield from _named(pid, tid, label, rows)
        for row, run in zip(rows, runs.itertuples(index=False), strict=True):
            track = (pid, tid + row)
            arguments = {"interval": run.name} | {key: getattr(run, key) for key in _OF_INTERVAL}
            arguments |= more.get(run.interval, {})
            # one name for all of a label, so that a viewer adds them up
            span = (run.start_ns, run.end_ns)
            yield _piece(track, safe_text(label), span, "interval", _safe(arguments))
            if (inner := pieces.get(run.interval)) is None:
                continue
            columns = inner[["start_ns", "end_ns", "cause", "detail"]]
            for start, end, cause, detail in columns.itertuples(index=False):
                name = DISPLAY.get(cause) or safe_text(cause)
                yield _piece(track, name, (start, end), "budget", {"what": safe_text(detail)})
        tid += max(rows) + 1


def _apart(analysis: Analysis, around: pd.DataFrame) -> pd.DataFrame:
    """Streams of several processes can have equal numbers: then a lane carries its process, as in
    `everything`."""
    intervals = analysis.intervals
    if intervals["pid"].nunique() < 2:
        return around
    pid = around["interval"].map(dict(zip(intervals["interval"], intervals["pid"], strict=True)))
    with_process = around["lane"] + " (pid " + pid.fillna(-1).astype("int64").astype(str) + ")"
    return around.assign(lane=around["lane"].where(pid.isna(), with_process))


def _around(around: pd.DataFrame, said: list[str]) -> Iterator[Event]:
    """Calls, ranges, operations, records, each of them once, although it can be in several
    intervals' pictures; and an arrow from each call to what it issued."""
    keys = ["lane_kind", "lane", "ref_kind", "ref_id", "start_ns", "end_ns"]
    rows = around[around["lane_kind"].isin(list(GROUPS))].drop_duplicates(keys)
    calls: dict[int, Event] = {}
    issued: list[tuple[int, Event]] = []
    tid = 0
    for (kind, lane), items in rows.groupby(["lane_kind", "lane"]):
        items = items.sort_values(["start_ns", "end_ns"], ascending=[True, False])
        pid = GROUPS[kind][0]
        tracks = nested_rows(items["start_ns"].tolist(), items["end_ns"].tolist(), nest=True)
        yield from _named(pid, tid, lane, tracks)
        for row, item in zip(tracks, items.itertuples(index=False), strict=True):
            detail = item.detail or {}
            arguments = _safe(detail if isinstance(detail, Mapping) else {"detail": detail})
            span = (item.start_ns, item.end_ns)
            event = _piece((pid, tid + row), safe_text(item.name), span, kind, arguments)
            if item.kind == "record":
                del event["dur"]
                event |= {"ph": "i", "s": "t"}
            elif item.ref_kind == "api" and kind == "host":
                calls[item.ref_id] = event
            elif item.link >= 0 and kind == "stream":
                issued.append((item.link, event))
            yield event
        tid += max(tracks, default=0) + 1
    if len(issued) > MOST_ARROWS:
        said.append(
            f"the arrows from {len(issued):,} calls to their operations (more than {MOST_ARROWS:,})"
        )
        return
    for number, (call, event) in enumerate(issued):
        if call in calls:
            common = {"cat": "issue", "name": "issues", "id": number}
            for end, place in (({"ph": "s"}, calls[call]), ({"ph": "f", "bp": "e"}, event)):
                yield {**end, **common, **{key: place[key] for key in ("pid", "tid", "ts")}}
