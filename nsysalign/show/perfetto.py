"""Budgets over operations as trace-event JSON, which Perfetto's UI and chrome://tracing open.

    nsysalign budgets   h2d_t1      [ h2d_t1#4                                   ]      one track per label
                                    [event|host            |launch|kernel|...|event]
    GPU                 stream 7                                  [gemm]
    host                thread 484     [cudaLaunchKernel]
    GPU clocks          SM clock, GPU 0   1980 MHz (counters)

Times are the trace's own, in microseconds with three decimals: exact nanoseconds.  Source of the
format: Google's "Trace Event Format" document.
"""

from __future__ import annotations

import functools
import gzip
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from nsysalign.files import replacing
from nsysalign.model import Analysis
from nsysalign.show.palette import LOOKS
from nsysalign.store.objects import encoded, plain
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
CLOCKS = (6, "GPU clocks")
#: Arrows cost two events each, and a viewer cannot show more than this well.
MOST_ARROWS = 100_000


def write(analysis: Analysis, around: pd.DataFrame, path: str | os.PathLike[str]) -> list[str]:
    """Write the file, compressed if its name ends in .gz; `around` has the columns of
    frames.TIMELINE. Returns notes on what was left out."""
    said: list[str] = []
    with replacing(path) as temporary, _opened(temporary, str(path).endswith(".gz")) as file:
        file.write('{"displayTimeUnit":"ns","otherData":{"producer":"nsysalign"},"traceEvents":[\n')
        events = (encoded(event).decode("ascii") for event in trace_events(analysis, around, said))
        file.write(next(events))
        file.writelines(",\n" + event for event in events)
        file.write("\n]}\n")
    return said


def _opened(path: Path, compressed: bool) -> TextIO:
    if compressed:
        return gzip.open(path, "wt", encoding="ascii", compresslevel=5)
    return path.open("w", encoding="ascii")


def trace_events(
    analysis: Analysis, around: pd.DataFrame, said: list[str]
) -> Iterator[dict[str, Any]]:
    """Metadata, budgets, what ran around them, arrows; what is left out is added to `said`."""
    for order, (pid, name) in enumerate(GROUPS.values()):
        yield meta("process_name", pid, 0, name=name)
        yield meta("process_sort_index", pid, 0, sort_index=order)
    if len(analysis.gpu_clocks):
        yield meta("process_name", CLOCKS[0], 0, name=CLOCKS[1])
        yield meta("process_sort_index", CLOCKS[0], 0, sort_index=len(GROUPS))
    yield from _budgets(analysis)
    yield from _clocks(analysis)
    yield from _around(_apart(analysis, around), said)


def meta(what: str, pid: int, tid: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


def piece(
    pid: int, tid: int, name: str, start: int, end: int, category: str, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start / 1000,
        "dur": (end - start) / 1000,
        "args": arguments,
    }


def _budgets(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """One track per label; the pieces of an interval stand inside its slice."""
    pid = GROUPS["budget"][0]
    pieces = dict(iter(analysis.segments.groupby("interval", sort=False)))
    parts: dict[int, dict[str, int]] = {}
    for number, cause, ns in zip(
        *(analysis.parts[c].tolist() for c in ("interval", "cause", "ns")), strict=True
    ):
        parts.setdefault(number, {})[f"{cause}_ns"] = ns
    known = analysis.unprofiled.dropna(subset=["predicted_ns"])
    predicted = {
        number: {"unprofiled_ns": ns, "unprofiled_lower_ns": low, "unprofiled_upper_ns": high}
        for number, ns, low, high in known[["interval", "predicted_ns", "lower_ns", "upper_ns"]]
        .astype("int64")
        .itertuples(index=False)
    }
    tid = 0
    for label, runs in analysis.intervals.sort_values(
        ["start_ns", "elapsed_ns"], ascending=[True, False]
    ).groupby("label", sort=False):
        rows = nested_rows(runs["start_ns"].tolist(), runs["end_ns"].tolist(), nest=False)
        for row in range(max(rows) + 1):
            yield meta(
                "thread_name",
                pid,
                tid + row,
                name=safe_text(label) + (f" ({row + 1})" if row else ""),
            )
            yield meta("thread_sort_index", pid, tid + row, sort_index=tid + row)
        for row, run in zip(rows, runs.itertuples(index=False), strict=True):
            keys = ("elapsed_ns", "kernel_only_ns", "error_ns", "method", "site")
            arguments = {"interval": run.name} | {key: plain(getattr(run, key)) for key in keys}
            arguments |= parts.get(run.interval, {}) | predicted.get(run.interval, {})
            arguments = {
                key: safe_text(value) if isinstance(value, str) else value
                for key, value in arguments.items()
            }
            yield piece(
                pid,
                tid + row,
                safe_text(label),  # one name, so that a viewer adds them up
                run.start_ns,
                run.end_ns,
                "interval",
                arguments,
            )
            inner = pieces.get(run.interval)
            if inner is None:
                continue
            columns = (inner[c].tolist() for c in ("start_ns", "end_ns", "cause", "detail"))
            for start, end, cause, detail in zip(*columns, strict=True):
                name = LOOKS[cause].short if cause in LOOKS else safe_text(cause)
                yield piece(pid, tid + row, name, start, end, "budget", {"what": safe_text(detail)})
        tid += max(rows) + 1


def _clocks(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """SM clock and power as counters: a counter keeps its value until the next one, like the clock
    as far as is known."""
    names = ("device", "start_ns", "sm_max_mhz", "power_mw")
    for device, start, mhz, power in zip(
        *(analysis.gpu_clocks[n].tolist() for n in names), strict=True
    ):
        common = {"ph": "C", "pid": CLOCKS[0], "tid": 0, "ts": start / 1000}
        yield {**common, "name": f"SM clock, GPU {device}", "args": {"MHz": mhz}}
        if power >= 0:
            yield {**common, "name": f"power, GPU {device}", "args": {"W": power / 1000}}


def _apart(analysis: Analysis, around: pd.DataFrame) -> pd.DataFrame:
    """Streams of several processes can have equal numbers: then a lane carries its process, as in
    `everything`."""
    intervals = analysis.intervals
    if intervals["pid"].nunique() < 2:
        return around
    pid = around["interval"].map(dict(zip(intervals["interval"], intervals["pid"], strict=True)))
    mine = pid.notna()
    lane = around["lane"].where(
        ~mine, around["lane"] + " (pid " + pid.fillna(-1).astype("int64").astype(str) + ")"
    )
    return around.assign(lane=lane)


def _around(around: pd.DataFrame, said: list[str]) -> Iterator[dict[str, Any]]:
    """Calls, ranges, operations, records; each of them once, although it can be in several
    intervals' pictures."""
    keys = ["lane_kind", "lane", "ref_kind", "ref_id", "start_ns", "end_ns"]
    rows = around[around["lane_kind"].isin(list(GROUPS))].drop_duplicates(keys)
    sources: dict[tuple[str, int], tuple[int, int, int]] = {}
    targets: list[tuple[tuple[str, int], int, int, int]] = []
    tid = 0
    for (kind, lane), items in rows.groupby(["lane_kind", "lane"]):
        items = items.sort_values(["start_ns", "end_ns"], ascending=[True, False])
        pid, starts, ends = GROUPS[kind][0], items["start_ns"].tolist(), items["end_ns"].tolist()
        tracks = nested_rows(starts, ends, nest=True)
        for row in range(max(tracks, default=0) + 1):
            yield meta(
                "thread_name",
                pid,
                tid + row,
                name=safe_text(lane) + (f" ({row + 1})" if row else ""),
            )
        columns = (
            items[c].tolist() for c in ("kind", "name", "ref_kind", "ref_id", "link", "detail")
        )
        for track, start, end, what, name, ref_kind, ref, link, detail in zip(
            tracks, starts, ends, *columns, strict=True
        ):
            arguments = _arguments(detail)
            at = (pid, tid + track, start)
            if what == "record":
                yield {
                    "ph": "i",
                    "s": "t",
                    "cat": kind,
                    "name": safe_text(name),
                    "pid": at[0],
                    "tid": at[1],
                    "ts": start / 1000,
                    "args": arguments,
                }
                continue
            yield piece(at[0], at[1], safe_text(name), start, end, kind, arguments)
            if ref_kind == "api" and kind == "host":
                sources[("call", ref)] = at
            elif link >= 0 and kind == "stream":
                targets.append((("call", link), *at))
        tid += max(tracks, default=0) + 1
    if len(targets) > MOST_ARROWS:
        said.append(
            f"the arrows from {len(targets):,} calls to their operations (more than {MOST_ARROWS:,})"
        )
        return
    yield from _arrows(sources, targets)


def _arguments(detail: Any) -> dict[str, Any]:
    """What is known about an item: numbers stay numbers, so that a viewer can add and sort them."""
    if not isinstance(detail, Mapping):
        return {"detail": safe_text(detail)} if detail else {}
    said = {
        safe_text(key): plain(value)
        for key, value in detail.items()
        if value is not None and value != ""
    }
    return {
        key: safe_text(value) if isinstance(value, str) else value for key, value in said.items()
    }


def _arrows(sources: dict, targets: Iterable[tuple]) -> Iterator[dict[str, Any]]:
    for number, (key, pid, tid, start) in enumerate(targets):
        if key not in sources:
            continue
        at = sources[key]
        common = {"cat": "issue", "name": "issues", "id": number}
        yield {"ph": "s", **common, "pid": at[0], "tid": at[1], "ts": at[2] / 1000}
        yield {"ph": "f", "bp": "e", **common, "pid": pid, "tid": tid, "ts": start / 1000}


def nested_rows(starts: list[int], ends: list[int], *, nest: bool) -> list[int]:
    """A row for every item (sorted by start, then longest first) such that the items of a row nest
    or do not touch; without `nest` they must not overlap at all.

        row 0   |------------|  |----|
                  |--| |--|                 inside: same row with `nest`
        row 1          |---------|          partly outside: another row
    """
    stacks: list[list[int]] = []
    rows = []
    for start, end in zip(starts, ends, strict=True):
        for stack in stacks:
            while stack and stack[-1] <= start:
                stack.pop()
        free = (row for row, stack in enumerate(stacks) if not stack or (nest and end <= stack[-1]))
        row = next(free, len(stacks))
        if row == len(stacks):
            stacks.append([])
        stacks[row].append(end)
        rows.append(row)
    return rows
