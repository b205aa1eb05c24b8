"""The timelines that the page holds: per interval its lanes, relative to the interval's start, in
columns.

Names and hover texts repeat thousands of times, so they are numbers into one list of strings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from nsysalign import frames
from nsysalign.answer import reason_words
from nsysalign.model import CALL_KINDS, CAUSES, OPERATION_KINDS, Analysis
from nsysalign.show.pack import packed
from nsysalign.show.palette import CALL_LOOK
from nsysalign.store.objects import listed
from nsysalign.text import bandwidth, bytes_text, duration, natural, quantity, safe_text, words

if TYPE_CHECKING:
    import pandas as pd

#: Longest name kept: C++ templates reach kilobytes; their beginning and end distinguish them.
MAX_NAME = 400


#: Distinguishes a thread's ranges from its calls.
LANE_WORDS = {"nvtx": "NVTX, ", "host": "CUDA calls, ", "event": "records, "}
#: Lanes from top to bottom: ranges, calls, then every stream with its records above it.
LANE_ORDER = {"nvtx": (0, 0), "host": (1, 0), "event": (2, 0), "stream": (2, 1)}


_START = attrgetter("start_ns")
_CAUSE = {cause: number for number, cause in enumerate(CAUSES)}
_Row = TypeVar("_Row", bound=tuple)
#: Kind of a source -> its number -> (x, lane).
_Sources = Mapping[str, Mapping[int, tuple[int, int]]]


class _Item(NamedTuple):
    """A row of `frames.TIMELINE`."""

    lane_kind: str
    lane: str
    kind: str
    name: str
    start_ns: int
    end_ns: int
    ref_kind: str
    ref_id: int
    link: int
    detail: Any


class _Piece(NamedTuple):
    """A row of `frames.SEGMENTS`."""

    start_ns: int
    end_ns: int
    cause: str
    detail: str


@dataclass
class Strings:
    """A list of distinct strings; `number` adds one."""

    texts: list[str] = field(default_factory=list)
    size: int = 0  # characters in all
    _numbers: dict[str, int] = field(default_factory=dict)
    _seen: dict[Any, int] = field(default_factory=dict)  # by the text as it came

    def number(self, text: Any) -> int:
        known = self._seen.get(text)
        return known if known is not None else self._seen.setdefault(text, self._add(text))

    def _add(self, text: Any) -> int:
        text = safe_text(text)
        if len(text) > MAX_NAME:
            text = text[: MAX_NAME - 101] + "…" + text[-100:]
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
            self.size += len(text)
        return self._numbers[text]


@dataclass(frozen=True)
class Timelines:
    intervals: dict[str, dict[str, Any]]  # number of the interval -> its picture
    strings: list[str]
    left_out: int  # intervals with a picture that did not fit


#: Most pieces of a whole run's budget that its picture holds: with more of them, it has none.
MOST_RUN_PIECES = 2_000


def timelines(analysis: Analysis, priority: list[int], max_bytes: int = 2_000_000) -> Timelines:
    """Pictures of intervals by `priority`, then of all others in `analysis.timeline`, while they fit
    in `max_bytes`.  One that is not in that table has only its parts: the page derives lanes."""
    strings = Strings()
    items = _by_interval(analysis.timeline, _Item)
    # A label with one run names the same interval as median, slowest and first.
    chosen = list(dict.fromkeys([*priority, *items]))
    rows = analysis.intervals[analysis.intervals["interval"].isin(chosen)]
    windows = {int(row.interval): row for row in rows.itertuples(index=False)}
    pieces = _by_interval(analysis.segments[analysis.segments["interval"].isin(chosen)], _Piece)
    pictures: dict[str, dict[str, Any]] = {}
    size = 0
    for number in chosen:
        if number not in windows or not (number in items or number in pieces):
            continue
        before = strings.size
        window, mine = windows[number], pieces.get(number)
        if window.kind == "run":
            mine = mine if mine and len(mine) <= MOST_RUN_PIECES else None
        picture = _picture(window, items.get(number, []), mine, strings)
        if number not in items:
            picture["lanes"] = None
        elif window.kind == "run":
            picture["lanes"] = [_packed_lane(lane) for lane in picture["lanes"]]
        size += len(json.dumps(picture, separators=(",", ":"))) + strings.size - before
        if size > max_bytes and pictures:
            break
        pictures[str(number)] = picture
    return Timelines(pictures, strings.texts, len(windows) - len(pictures))


def _by_interval(table: pd.DataFrame, kind: type[_Row]) -> dict[int, list[_Row]]:
    """The rows of each interval: plain tuples, because a picture looks at every one of them."""

    def values(name: str) -> list[Any]:
        return listed(table[name], lambda value: value)

    rows = zip(*map(values, kind._fields), strict=True)
    found: dict[int, list[_Row]] = {}
    for number, row in zip(values("interval"), rows, strict=True):
        found.setdefault(number, []).append(kind._make(row))
    return found


def _picture(
    window, items: list[_Item], pieces: list[_Piece] | None, strings: Strings
) -> dict[str, Any]:
    origin = int(window.start_ns)
    drawn: dict[tuple[str, str], list[_Item]] = {}
    for item in items:
        if item.lane_kind in LANE_ORDER:
            drawn.setdefault((item.lane_kind, item.lane), []).append(item)
    numbers = {key: number for number, key in enumerate(sorted(drawn, key=_place))}
    sources = _sources(drawn, numbers, origin)
    lanes: list[Any] = [None] * len(numbers)
    for key, lane in drawn.items():
        lanes[numbers[key]] = _lane(*key, sorted(lane, key=_START), origin, sources, strings)
    picture: dict[str, Any] = {
        "width": int(window.elapsed_ns),
        "error": int(window.error_ns),
        "lower": int(window.start_lower_ns) - origin,
        "upper": int(window.start_upper_ns) - origin,
        "method": safe_text(window.method),
        "lanes": lanes,
        "omitted": _omitted(items),
        "before": _before(items, origin),
        "clock": _clock(items, origin, strings),
    }
    if pieces is not None:
        pieces = sorted(pieces, key=_START)
        columns = {
            "x": [piece.start_ns for piece in pieces],
            "d": [piece.end_ns - piece.start_ns for piece in pieces],
            "c": [_CAUSE.get(piece.cause, len(CAUSES) - 1) for piece in pieces],
            "n": [strings.number(piece.detail) for piece in pieces],
        }
        # short text: pieces adjoin, so that the first one's start tells all others'
        first = columns.pop("x")[:1] or [origin]
        picture["strip"] = {key: packed(np.array(column)) for key, column in columns.items()}
        picture["strip"]["x0"] = first[0] - origin
    return picture


def _place(key: tuple[str, str]) -> tuple[Any, ...]:
    """Lanes from top to bottom."""
    kind, lane = key
    return (LANE_ORDER[kind][0], natural(lane), LANE_ORDER[kind][1])


def _sources(
    drawn: Mapping[tuple[str, str], list[_Item]],
    numbers: Mapping[tuple[str, str], int],
    origin: int,
) -> _Sources:
    """Where arrows begin: API calls by rowid, records by their number; each as (x, lane)."""
    places: dict[str, dict[int, tuple[int, int]]] = {"call": {}, "record": {}}
    origins = {("host", "api"): places["call"], ("event", "event"): places["record"]}
    for key, lane in drawn.items():
        for item in lane:
            if (found := origins.get((item.lane_kind, item.ref_kind))) is not None:
                found[item.ref_id] = (item.start_ns - origin, numbers[key])
    return places


def _omitted(items: list[_Item]) -> list[str]:
    """What the picture leaves out, in words."""
    return [
        f"The {item.detail['count']:,} shortest {item.name} near this interval are not in the page "
        f"(none longer than {duration(item.detail['longest_ns'])}, {duration(item.detail['ns'])} together)."
        for item in items
        if item.lane_kind == "omitted"
    ]


def _before(items: list[_Item], origin: int) -> dict[str, str] | None:
    """What the stream did before the start event: the evidence that a copy before it is not
    inside."""
    for item in items:
        if item.lane_kind == "before":
            size = item.detail.get("bytes", 0) if isinstance(item.detail, Mapping) else 0
            what = safe_text(item.name)[:MAX_NAME] + (f", {bytes_text(size)}" if size else "")
            gap = origin - item.end_ns
            when = f"ended {duration(gap)} earlier" if gap >= 0 else f"ran on for {duration(-gap)}"
            return {"lane": safe_text(item.lane), "what": what, "when": when}
    return None


def _clock(items: list[_Item], origin: int, strings: Strings) -> dict[str, list[Any]] | None:
    """The SM clock around the interval: both ends of every stretch of equal samples, and a note on
    it."""
    samples = sorted((item for item in items if item.lane_kind == "clock"), key=_START)
    if not samples:
        return None
    out: dict[str, list[Any]] = {"x": [], "mhz": [], "t": []}
    for item in samples:
        said = {key: value for key, value in item.detail.items() if key not in ("mhz", "reasons")}
        why = reason_words(int(item.detail.get("reasons", 0)))
        text = strings.number(", ".join([t for t in (hover(said, 0), why) if t]))
        for at in dict.fromkeys((item.start_ns, item.end_ns)):
            out["x"].append(at - origin)
            out["mhz"].append(float(item.detail.get("mhz", 0)))
            out["t"].append(text)
    return out


def _lane(
    kind: str, name: str, items: list[_Item], origin: int, sources: _Sources, strings: Strings
) -> dict[str, Any]:
    depths = _depths((item.start_ns, item.end_ns) for item in items)
    data: dict[str, Any] = {
        "kind": kind,
        "name": LANE_WORDS.get(kind, "") + safe_text(name),
        "rows": max(depths, default=0) + 1,
        "x": [item.start_ns - origin for item in items],
        "d": [item.end_ns - item.start_ns for item in items],
        "r": depths if any(depths) else 0,
        "n": [strings.number(item.name) for item in items],
        "t": [strings.number(hover(item.detail, item.end_ns - item.start_ns)) for item in items],
        "c": [_look(kind, item.kind) for item in items],
    }
    if kind in ("stream", "event"):
        # Waits are released by records, everything else is issued by a call.
        arrows = [
            sources["record" if item.kind == "wait" else "call"].get(item.link, (None, None))
            for item in items
        ]
        data["ax"], data["al"] = [a[0] for a in arrows], [a[1] for a in arrows]
    return data


def _packed_lane(lane: dict[str, Any]) -> dict[str, Any]:
    """Columns of a long lane as short text (pack.py); "x" counts from "x0", and 0 stands for no
    call in "ax" and "al"."""
    first = min([*lane["x"], *(x for x in lane.get("ax", ()) if x is not None)])
    moved = {"x": [x - first for x in lane["x"]]}
    if "ax" in lane:
        moved["ax"] = [0 if x is None else x - first + 1 for x in lane["ax"]]
        moved["al"] = [0 if number is None else number + 1 for number in lane["al"]]
    moved["c"] = [number + 1 for number in lane["c"]]
    plain = {key: lane[key] for key in ("d", "n", "t")} | ({"r": lane["r"]} if lane["r"] else {})
    columns = {key: packed(np.array(column)) for key, column in (moved | plain).items()}
    return lane | columns | {"x0": first}


def from_segments(analysis: Analysis, number: int) -> pd.DataFrame:
    """A timeline from an interval's own pieces, for analyses whose trace is no longer there:
    operations of its stream and the calls that the stream waited for."""
    import pandas as pd

    pieces = analysis.segments[
        (analysis.segments["interval"] == number) & (analysis.segments["ref_id"] >= 0)
    ]
    row = analysis.intervals.loc[analysis.intervals["interval"] == number].iloc[0]
    operations = pieces["ref_kind"].isin(OPERATION_KINDS) & (pieces["cause"] == pieces["ref_kind"])
    calls = pieces["ref_kind"] == "api"
    lanes = (
        (operations, "stream", f"stream {row['end_stream']}"),
        (calls, "host", "the issuing thread"),
    )
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


def with_segments(analysis: Analysis, number: int) -> Analysis:
    """The analysis with such a timeline and the clock around it; the same one if the interval has
    no pieces."""
    import pandas as pd

    from nsysalign.split.timeline import clock_rows

    drawn = from_segments(analysis, number)
    if drawn.empty:
        return analysis
    row = analysis.intervals[analysis.intervals["interval"] == number]
    columns = (row[c].to_numpy() for c in ("interval", "device", "start_ns", "end_ns"))
    tables = [analysis.timeline, drawn, clock_rows(analysis.gpu_clocks, *columns)]
    timeline = pd.concat([table for table in tables if len(table)], ignore_index=True)
    return replace(analysis, timeline=timeline)


def _look(lane_kind: str, kind: str) -> int:
    """The cause whose colour an item has, as its number in CAUSES; -1 for NVTX ranges."""
    if lane_kind == "nvtx":
        return -1
    if lane_kind == "stream" and kind in OPERATION_KINDS:
        return CAUSES.index(kind)
    if lane_kind == "event":
        return CAUSES.index("queued" if kind == "wait" else "event")
    return CAUSES.index(CALL_LOOK[kind]) if kind in CALL_KINDS else CAUSES.index("api")


def _depths(items: Iterable[tuple[int, int]]) -> list[int]:
    """Rows for items that overlap: each takes the first row that is free when it begins.

    0:  |--------------|  |---|
    1:     |---|  |---|
    """
    free_at: list[int] = []
    depths = []
    for start, end in items:
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
    """An item's hover text in addition to its name and duration: bytes, bandwidth, grid, whatever
    is known."""
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
            continue  # shown with the bytes
        elif key in ("grid", "block") and isinstance(value, (list, tuple)):
            said.append(f"{key} {' x '.join(str(v) for v in value)}")
        else:
            said.append(f"{words(str(key))} {quantity(str(key), value)}")
    return ", ".join(text for text in said if text)
