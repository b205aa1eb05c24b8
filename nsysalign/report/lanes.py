"""The timelines that the page holds: per interval its lanes, relative to the interval's start, in columns.

Names and hover texts repeat thousands of times, so they are numbers into one list of strings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign import frames
from nsysalign.model import CALL_KINDS, CAUSES, OPERATION_KINDS, Analysis
from nsysalign.report.clocks import reason_words
from nsysalign.report.format import bandwidth, bytes_text, duration, quantity, safe_text, words
from nsysalign.report.palette import CALL_LOOK

if TYPE_CHECKING:
    import pandas as pd

#: Longest name kept: C++ templates reach kilobytes, their beginning and end tell them apart.
MAX_NAME = 400


#: What tells a thread's ranges from its calls.
LANE_WORDS = {"nvtx": "NVTX, ", "host": "CUDA calls, ", "event": "records, "}
#: Lanes from top to bottom: ranges, calls, then every stream with its records above it.
LANE_ORDER = {"nvtx": (0, 0), "host": (1, 0), "event": (2, 0), "stream": (2, 1)}


#: Kind of a source -> its number -> (x, lane).
_Sources = Mapping[str, Mapping[int, tuple[int, int]]]


@dataclass
class Strings:
    """A list of distinct strings; `number` adds one."""

    texts: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: Any) -> int:
        text = safe_text(text)
        if len(text) > MAX_NAME:
            text = text[: MAX_NAME - 101] + "…" + text[-100:]
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]


@dataclass(frozen=True)
class Timelines:
    intervals: dict[str, dict[str, Any]]  # number of the interval -> its picture
    strings: list[str]
    left_out: int  # intervals whose picture was there but did not fit


def timelines(analysis: Analysis, priority: list[int], max_bytes: int = 2_000_000) -> Timelines:
    """Pictures of the intervals in `analysis.timeline`, by `priority`, while they fit in `max_bytes`."""
    strings = Strings()
    items = dict(iter(analysis.timeline.groupby("interval", sort=False)))
    # A label with one run names the same interval as median, slowest and first.
    chosen = [number for number in dict.fromkeys([*priority, *map(int, items)]) if number in items]
    rows = analysis.intervals[analysis.intervals["interval"].isin(chosen)]
    windows = {int(row.interval): row for row in rows.itertuples(index=False)}
    segments = analysis.segments[analysis.segments["interval"].isin(chosen)]
    pieces = dict(iter(segments.groupby("interval", sort=False)))
    pictures: dict[str, dict[str, Any]] = {}
    size = 0
    for number in chosen:
        if number not in windows:
            continue
        before = sum(map(len, strings.texts))
        picture = _picture(windows[number], items[number], pieces.get(number), strings)
        size += len(json.dumps(picture, separators=(",", ":"))) + sum(map(len, strings.texts)) - before
        if size > max_bytes and pictures:
            break
        pictures[str(number)] = picture
    return Timelines(pictures, strings.texts, sum(n in windows for n in chosen) - len(pictures))


def _picture(window, items: pd.DataFrame, pieces: pd.DataFrame | None, strings: Strings) -> dict[str, Any]:
    origin = int(window.start_ns)
    drawn = items[items["lane_kind"].isin(list(LANE_ORDER))]
    numbers = _lane_numbers(drawn)
    sources = _sources(drawn, numbers, origin)
    lanes: list[Any] = [None] * len(numbers)
    for key, lane in drawn.groupby(["lane_kind", "lane"], sort=False):
        lanes[numbers[key]] = _lane(*key, lane.sort_values("start_ns"), origin, sources, strings)
    picture: dict[str, Any] = {
        "width": int(window.elapsed_ns),
        "error": int(window.error_ns),
        "lower": int(window.start_lower_ns) - origin,
        "upper": int(window.start_upper_ns) - origin,
        "method": safe_text(window.method),
        "lanes": lanes,
        "omitted": _omitted(items),
        "clock": _clock(items, origin, strings),
    }
    if pieces is not None:
        ordered = pieces.sort_values("start_ns")
        picture["strip"] = {
            "x": (ordered["start_ns"] - origin).tolist(),
            "d": (ordered["end_ns"] - ordered["start_ns"]).tolist(),
            "c": [CAUSES.index(c) if c in CAUSES else len(CAUSES) - 1 for c in ordered["cause"]],
            "n": [strings.number(detail) for detail in ordered["detail"]],
        }
    return picture


def _lane_numbers(items: pd.DataFrame) -> dict[tuple[str, str], int]:
    """Lanes from top to bottom."""
    keys = items[["lane_kind", "lane"]].drop_duplicates().itertuples(index=False, name=None)
    place = lambda key: (LANE_ORDER[key[0]][0], _natural(key[1]), LANE_ORDER[key[0]][1])  # noqa: E731
    return {key: number for number, key in enumerate(sorted(keys, key=place))}


def _sources(items: pd.DataFrame, numbers: Mapping[tuple[str, str], int], origin: int) -> _Sources:
    """Where arrows begin: API calls by rowid, records by their number; each as (x, lane)."""
    places: dict[str, dict[int, tuple[int, int]]] = {}
    for kind, lane_kind, ref_kind in (("call", "host", "api"), ("record", "event", "event")):
        rows = items[(items["lane_kind"] == lane_kind) & (items["ref_kind"] == ref_kind)]
        columns = (rows["ref_id"].tolist(), (rows["start_ns"] - origin).tolist(), rows["lane"].tolist())
        places[kind] = {ref: (x, numbers[(lane_kind, lane)]) for ref, x, lane in zip(*columns, strict=True)}
    return places


def _omitted(items: pd.DataFrame) -> list[str]:
    """What the picture does not hold, in words."""
    rows = items[items["lane_kind"] == "omitted"]
    return [
        f"The {detail['count']:,} shortest {name} near this interval are not in the page "
        f"(none longer than {duration(detail['longest_ns'])}, {duration(detail['ns'])} together)."
        for name, detail in zip(rows["name"], rows["detail"], strict=True)
    ]


def _clock(items: pd.DataFrame, origin: int, strings: Strings) -> dict[str, list[Any]] | None:
    """The SM clock around the interval: both ends of every stretch of equal samples, and what it says."""
    rows = items[items["lane_kind"] == "clock"].sort_values("start_ns")
    if rows.empty:
        return None
    out: dict[str, list[Any]] = {"x": [], "mhz": [], "t": []}
    for start, end, detail in zip(
        rows["start_ns"].tolist(), rows["end_ns"].tolist(), rows["detail"], strict=True
    ):
        said = {key: value for key, value in detail.items() if key not in ("mhz", "reasons")}
        why = reason_words(int(detail.get("reasons", 0)))
        text = strings.number(", ".join([t for t in (hover(said, 0), why) if t]))
        for at in dict.fromkeys((start, end)):
            out["x"].append(at - origin)
            out["mhz"].append(float(detail.get("mhz", 0)))
            out["t"].append(text)
    return out


def _lane(
    kind: str,
    name: str,
    lane: pd.DataFrame,
    origin: int,
    sources: _Sources,
    strings: Strings,
) -> dict[str, Any]:
    starts, ends = lane["start_ns"].to_numpy(), lane["end_ns"].to_numpy()
    depths = _depths(starts, ends)
    data: dict[str, Any] = {
        "kind": str(kind),
        "name": LANE_WORDS.get(str(kind), "") + safe_text(name),
        "rows": max(depths, default=0) + 1,
        "x": (starts - origin).tolist(),
        "d": (ends - starts).tolist(),
        "r": depths if any(depths) else 0,
        "n": [strings.number(n) for n in lane["name"]],
        "t": [
            strings.number(hover(detail, int(duration)))
            for detail, duration in zip(lane["detail"], ends - starts, strict=True)
        ],
        "c": [_look(str(kind), str(k)) for k in lane["kind"]],
    }
    if kind in ("stream", "event"):
        # Waits are released by records, everything else is issued by a call.
        arrows = [
            sources["record" if what == "wait" else "call"].get(int(link), (None, None))
            for what, link in zip(lane["kind"], lane["link"], strict=True)
        ]
        data["ax"], data["al"] = [a[0] for a in arrows], [a[1] for a in arrows]
    return data


def from_segments(analysis: Analysis, number: int) -> pd.DataFrame:
    """A timeline of what an interval's own pieces tell, for analyses whose trace is gone: operations of its
    stream and the calls that the stream waited for."""
    import pandas as pd

    pieces = analysis.segments[(analysis.segments["interval"] == number) & (analysis.segments["ref_id"] >= 0)]
    row = analysis.intervals.loc[analysis.intervals["interval"] == number].iloc[0]
    operations = pieces["ref_kind"].isin(OPERATION_KINDS) & (pieces["cause"] == pieces["ref_kind"])
    calls = pieces["ref_kind"] == "api"
    lanes = ((operations, "stream", f"stream {row['end_stream']}"), (calls, "host", "the issuing thread"))
    parts = []
    for mask, kind, lane in lanes:
        grouped = pieces[mask].groupby(["ref_kind", "ref_id"], as_index=False, sort=False)
        items = grouped.agg(
            start_ns=("start_ns", "min"),
            end_ns=("end_ns", "max"),
            name=("detail", "first"),
            kind=("cause", "first"),
        )
        parts.append(items.assign(lane_kind=kind, lane=lane))
    drawn = pd.concat(parts, ignore_index=True).assign(interval=number, link=-1)
    drawn["detail"] = pd.Series([{}] * len(drawn), dtype=object)
    return frames.check(drawn, frames.TIMELINE)


def _natural(name: str) -> list[tuple[int, str]]:
    """ "stream 7" before "stream 13"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(name))]


def _look(lane_kind: str, kind: str) -> int:
    """The cause whose colour an item wears, as its number in CAUSES; -1 for NVTX ranges."""
    if lane_kind == "nvtx":
        return -1
    if lane_kind == "stream" and kind in OPERATION_KINDS:
        return CAUSES.index(kind)
    if lane_kind == "event":
        return CAUSES.index("queued" if kind == "wait" else "event")
    return CAUSES.index(CALL_LOOK[kind]) if kind in CALL_KINDS else CAUSES.index("api")


def _depths(starts: np.ndarray, ends: np.ndarray) -> list[int]:
    """Rows for items that overlap: each takes the first row that is free when it begins.

    0:  |--------------|  |---|
    1:     |---|  |---|
    """
    free_at: list[int] = []
    depths = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        for row, free in enumerate(free_at):
            if free <= start:
                free_at[row] = end
                break
        else:
            row = len(free_at)
            free_at.append(end)
        depths.append(row)
    return depths


def hover(detail: Any, duration_ns: int) -> str:
    """What an item's hover says beside its name and duration: bytes, bandwidth, grid, whatever is known."""
    if not isinstance(detail, Mapping):
        return safe_text(detail) if detail else ""
    said = []
    for key, value in detail.items():
        if value is None or value == "":
            continue
        if key == "bytes" and isinstance(value, (int, float)):
            if value:
                said += [bytes_text(value), bandwidth(value, duration_ns)]
        elif key.startswith("bandwidth") and "bytes" in detail:
            continue  # said with the bytes
        elif key in ("grid", "block") and isinstance(value, (list, tuple)):
            said.append(f"{key} {' x '.join(str(v) for v in value)}")
        else:
            said.append(f"{words(str(key))} {quantity(str(key), value)}")
    return ", ".join(text for text in said if text)
