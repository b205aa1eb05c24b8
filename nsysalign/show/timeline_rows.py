"""The timelines that the page holds: per interval its lanes, relative to the interval's start, in
columns.  Names and hover texts repeat thousands of times, so they are numbers into one list of
strings.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign.causes import CAUSE_OF_CALL, CAUSES
from nsysalign.model import CALL_KINDS, OPERATION_KINDS, Analysis
from nsysalign.store.objects import listed, to_json
from nsysalign.text import bandwidth, bytes_text, duration, natural, quantity, safe_text, words

if TYPE_CHECKING:
    import pandas as pd

#: Longest name kept: C++ templates reach kilobytes; their beginning and end distinguish them.
MAX_NAME = 400
#: Most pieces of a whole run's breakdown that its picture holds: with more of them, it has none.
MOST_RUN_PIECES = 2_000
#: Distinguishes a thread's ranges from its calls.
LANE_WORDS = {"nvtx": "NVTX, ", "host": "CUDA calls, ", "event": "records, "}
#: Lanes from top to bottom: ranges, calls, then every stream with its records above it.
LANE_ORDER = {"nvtx": (0, 0), "host": (1, 0), "event": (2, 0), "stream": (2, 1)}
_START = attrgetter("start_ns")
_DIGITS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
#: JavaScript's numbers are whole up to 2^53, that is eight digits and a bit: longer columns stay
#: lists.
_MOST_DIGITS = 8
#: Shorter columns are as compact as lists, which are readable.
FEWEST = 20


class Strings:
    """Distinct strings by number."""

    def __init__(self) -> None:
        self.size = 0  # characters in all
        self._numbers: dict[str, int] = {}
        self._known: dict[str, int] = {}  # by the text as it came

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)

    def number(self, text: str) -> int:
        if text not in self._known:
            plain = safe_text(text)
            if len(plain) > MAX_NAME:
                plain = plain[: MAX_NAME - 101] + "…" + plain[-100:]
            self.size += 0 if plain in self._numbers else len(plain)
            self._known[text] = self._numbers.setdefault(plain, len(self._numbers))
        return self._known[text]


@dataclass(frozen=True)
class Timelines:
    intervals: dict[str, dict[str, Any]]  # number of the interval -> its picture
    strings: list[str]
    left_out: int  # intervals with a picture that did not fit


def timelines(
    analysis: Analysis,
    priority: Sequence[int],
    max_bytes: int = 2_000_000,
    strings: Strings | None = None,
) -> Timelines:
    """Pictures of intervals by `priority`, then of all others in `analysis.timeline`, while they fit
    in `max_bytes`.  One that is not in that table has only its parts: the page derives lanes.
    `strings`: those of another analysis on the same page, which are added to."""
    strings = strings or Strings()
    items = _by_interval(analysis.timeline)
    chosen = list(dict.fromkeys([*priority, *items]))
    rows = analysis.intervals[analysis.intervals["interval"].isin(chosen)]
    windows = {int(row.interval): row for row in rows.itertuples(index=False)}
    pieces = _by_interval(analysis.segments[analysis.segments["interval"].isin(chosen)])
    pictures: dict[str, dict[str, Any]] = {}
    size = 0
    for number in chosen:
        if number not in windows or not (number in items or number in pieces):
            continue
        before, window = strings.size, windows[number]
        picture = _picture(window, items.get(number, []), strings)
        own = pieces.get(number)
        if own and (window.kind != "run" or len(own) <= MOST_RUN_PIECES):
            picture["strip"] = _strip(own, int(window.start_ns), strings)
        if number not in items:
            picture["lanes"] = None
        size += len(to_json(picture)) + strings.size - before
        if size > max_bytes and pictures:
            break
        pictures[str(number)] = picture
    return Timelines(pictures, strings.texts, len(windows) - len(pictures))


def _by_interval(table: pd.DataFrame) -> dict[int, list[Any]]:
    """The rows of each interval: plain tuples, because a picture looks at every one of them."""
    plain = {name: listed(table[name], lambda value: value) for name in table.columns}
    row = namedtuple("row", plain)
    found: dict[int, list[Any]] = {}
    for values in map(row._make, zip(*plain.values(), strict=True)):
        found.setdefault(values.interval, []).append(values)
    return found


def _strip(pieces: list[Any], origin: int, strings: Strings) -> dict[str, Any]:
    """The breakdown as short text: pieces adjoin, so that the first one's start tells all others'."""
    pieces = sorted(pieces, key=_START)
    columns = {
        "d": [piece.end_ns - piece.start_ns for piece in pieces],
        "c": [_cause(piece.cause) for piece in pieces],
        "n": [strings.number(piece.detail) for piece in pieces],
    }
    texts = {key: packed(np.array(column)) for key, column in columns.items()}
    return {**texts, "x0": pieces[0].start_ns - origin}


def _picture(window: Any, items: list[Any], strings: Strings) -> dict[str, Any]:
    """`window`: a row of `frames.INTERVALS`; `items`: of `frames.TIMELINE`."""
    origin = int(window.start_ns)
    drawn: dict[tuple[str, str], list[Any]] = {}
    for item in items:
        if item.lane_kind in LANE_ORDER:
            drawn.setdefault((item.lane_kind, item.lane), []).append(item)
    order = sorted(drawn, key=lambda k: (LANE_ORDER[k[0]][0], natural(k[1]), LANE_ORDER[k[0]][1]))
    # Where arrows begin: API calls by rowid, records by their number; each as (x, lane).
    begins = {
        (kind, item.ref_id): (item.start_ns - origin, number)
        for number, (kind, lane) in enumerate(order)
        for item in drawn[kind, lane]
        if (kind, item.ref_kind) in (("host", "api"), ("event", "event"))
    }
    lanes = []
    for kind, lane in order:
        inside = sorted(drawn[kind, lane], key=_START)
        lanes.append(_lane(kind, lane, inside, origin, strings))
        if kind in ("stream", "event"):  # waits are released by records, all else by a call
            sources = ("event" if item.kind == "wait" else "host" for item in inside)
            links = zip(sources, (item.link for item in inside), strict=True)
            arrows = zip(*(begins.get(link, (None, None)) for link in links), strict=True)
            lanes[-1]["ax"], lanes[-1]["al"] = map(list, arrows)
    return {
        "width": int(window.elapsed_ns),
        "error": int(window.error_ns),
        "lower": int(window.start_lower_ns) - origin,
        "upper": int(window.start_upper_ns) - origin,
        "method": safe_text(window.method),
        "lanes": lanes,
        "omitted": [
            f"The {item.detail['count']:,} shortest {safe_text(item.name)} near this interval are not in the page "
            f"(none longer than {duration(item.detail['longest_ns'])}, {duration(item.detail['ns'])} together)."
            for item in items
            if item.lane_kind == "omitted"
        ],
    }


def _lane(kind: str, name: str, items: list[Any], origin: int, strings: Strings) -> dict[str, Any]:
    starts, ends = [item.start_ns for item in items], [item.end_ns for item in items]
    depths = nested_rows(starts, ends, nest=False)
    return {
        "kind": kind,
        "name": LANE_WORDS.get(kind, "") + safe_text(name),
        "rows": max(depths, default=0) + 1,
        "x": [start - origin for start in starts],
        "d": [end - start for start, end in zip(starts, ends, strict=True)],
        "r": depths if any(depths) else 0,
        "n": [strings.number(item.name) for item in items],
        "t": [strings.number(hover(item.detail, item.end_ns - item.start_ns)) for item in items],
        "c": [-1 if kind == "nvtx" else _cause(_look(kind, item.kind)) for item in items],
    }


def _cause(cause: str) -> int:
    return CAUSES.index(cause) if cause in CAUSES else len(CAUSES) - 1


def _look(lane_kind: str, kind: str) -> str:
    """The cause whose colour an item has."""
    if lane_kind == "stream" and kind in OPERATION_KINDS:
        return kind
    if lane_kind == "event":
        return "queued" if kind == "wait" else "event"
    return CAUSE_OF_CALL[kind] if kind in CALL_KINDS else "api"


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


def hover(detail: Mapping[str, Any], duration_ns: int) -> str:
    """An item's hover text in addition to its name and duration: bytes, bandwidth, grid, whatever
    is known."""
    said = []
    for key, value in detail.items():
        if key == "bytes":
            said += [bytes_text(value), bandwidth(value, duration_ns)]
        elif key in ("grid", "block"):
            said.append(f"{key} {' x '.join(map(str, value))}")
        elif not key.startswith("bandwidth"):  # shown with the bytes
            said.append(f"{words(key)} {quantity(key, value)}")
    return ", ".join(filter(None, said))


def packed(values: np.ndarray) -> str | list[int]:
    """A long column as short text: its width, then every number in that many base-64 digits, the
    most significant first: [0, 63, 64] -> "2AAA/BA".  The page's `unpack` (templates/dom.js) reads
    it; JSON would take twice as much.  A list if it is short or does not fit (negative, beyond
    2^48)."""
    values = np.asarray(values, dtype=np.int64)
    if len(values) < FEWEST or values.min() < 0 or values.max() >= 1 << (6 * _MOST_DIGITS):
        return values.tolist()
    width = max(1, -(-int(values.max()).bit_length() // 6))
    shifts = 6 * np.arange(width - 1, -1, -1)
    digits = (values[:, None] >> shifts) & 63
    return str(width) + _DIGITS[digits].tobytes().decode("ascii")
