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

from nsysalign.model import CALL_KINDS, CAUSES, OPERATION_KINDS, Analysis
from nsysalign.report.format import bandwidth, bytes_text, quantity, safe_text, words
from nsysalign.report.palette import CALL_LOOK

if TYPE_CHECKING:
    import pandas as pd

#: Timelines may take this much of the page: it has to open on a login node.
MAX_BYTES = 2_000_000
#: Longest name kept: C++ templates reach kilobytes, their beginning and end tell them apart.
MAX_NAME = 400


#: What tells a thread's ranges from its calls.
LANE_WORDS = {"nvtx": "NVTX, ", "host": "CUDA calls, "}


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


def timelines(analysis: Analysis, priority: list[int], max_bytes: int = MAX_BYTES) -> Timelines:
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
    # Where the call that issued an operation stands, for the arrows.
    hosts = items[(items["lane_kind"] == "host") & (items["ref_kind"] == "api")]
    lane_numbers: dict[tuple[str, str], int] = {}
    order = {"nvtx": 0, "host": 1, "stream": 2}
    keys = items[["lane_kind", "lane"]].drop_duplicates().itertuples(index=False, name=None)
    for key in sorted(keys, key=lambda key: (order.get(key[0], 3), _natural(key[1]))):
        lane_numbers[key] = len(lane_numbers)
    host_lanes = [lane_numbers[("host", lane)] for lane in hosts["lane"]]
    calls = dict(
        zip(
            hosts["ref_id"].tolist(),
            zip((hosts["start_ns"] - origin).tolist(), host_lanes, strict=True),
            strict=True,
        )
    )
    lanes = []
    for (kind, name), lane in items.groupby(["lane_kind", "lane"], sort=False):
        lanes.append(
            (
                lane_numbers[(kind, name)],
                _lane(kind, name, lane.sort_values("start_ns"), origin, calls, strings),
            )
        )
    picture: dict[str, Any] = {
        "width": int(window.elapsed_ns),
        "error": int(window.error_ns),
        "lower": int(window.start_lower_ns) - origin,
        "upper": int(window.start_upper_ns) - origin,
        "method": safe_text(window.method),
        "lanes": [lane for _, lane in sorted(lanes, key=lambda pair: pair[0])],
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


def _lane(
    kind: str,
    name: str,
    lane: pd.DataFrame,
    origin: int,
    calls: Mapping[int, tuple[int, int]],
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
    if kind == "stream":
        arrows = [calls.get(int(link), (None, None)) for link in lane["link"]]
        data["ax"], data["al"] = [a[0] for a in arrows], [a[1] for a in arrows]
    return data


def _natural(name: str) -> list[tuple[int, str]]:
    """ "stream 7" before "stream 13"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(name))]


def _look(lane_kind: str, kind: str) -> int:
    """The cause whose colour an item wears, as its number in CAUSES; -1 for NVTX ranges."""
    if lane_kind == "nvtx":
        return -1
    if lane_kind == "stream" and kind in OPERATION_KINDS:
        return CAUSES.index(kind)
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
                said.append(bytes_text(value))
                if "bandwidth" not in detail:
                    said.append(bandwidth(value, duration_ns))
        elif key in ("grid", "block") and isinstance(value, (list, tuple)):
            said.append(f"{key} {' x '.join(str(v) for v in value)}")
        else:
            said.append(f"{words(str(key))} {quantity(str(key), value)}")
    return ", ".join(text for text in said if text)
