"""The timelines that the page holds, as plain data.

interval  a stretch of time that was measured
item      something that is drawn as a bar or mark: an operation, a call, a range, a record or a wait
lane      a band of the drawing: the items of one stream or thread, all of one kind
row       a line inside a lane, for items that overlap
picture   what the page draws of one interval: its lanes, with times relative to the interval's start
strip     the interval's breakdown into pieces (rows of `frames.SEGMENTS`), each with its cause

Names and hover texts repeat thousands of times.  So pictures hold numbers into one list of strings.
"""

from __future__ import annotations

import math
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
#: Lanes from top to bottom: ranges, calls, then every stream with its records above it.  The first number
#: orders lanes of different names, the second the lanes of one name (a stream's records and the stream).
LANE_ORDER = {"nvtx": (0, 0), "host": (1, 0), "event": (2, 0), "stream": (2, 1)}
_START = attrgetter("start_ns")
#: A record that may lie so much later (ns) has no latest time: nothing that the trace shows came behind it.
_NO_LATEST_NS = 10**15
_DIGITS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
#: JavaScript's numbers are whole up to 2^53, that is eight digits and a bit: longer columns stay
#: lists.
_MOST_DIGITS = 8
#: Shorter columns are as compact as lists, which are readable.
FEWEST = 20


class Strings:
    """Distinct texts, each with a number."""

    def __init__(self) -> None:
        self.size = 0  # characters in all
        self._numbers: dict[str, int] = {}
        self._number_of_original: dict[
            str, int
        ] = {}  # by the text before it was made safe and short

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)

    def number(self, text: str) -> int:
        """Return the number of a text, which is made plain and shortened to MAX_NAME letters."""
        if text not in self._number_of_original:
            plain = safe_text(text)
            if len(plain) > MAX_NAME:
                plain = plain[: MAX_NAME - 101] + "…" + plain[-100:]
            self.size += 0 if plain in self._numbers else len(plain)
            number = self._numbers.setdefault(plain, len(self._numbers))
            self._number_of_original[text] = number
        return self._number_of_original[text]


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
    """Return the pictures of as many intervals as fit in `max_bytes`.

    priority: the numbers of the intervals that come first; after them all others in `analysis.timeline`
    strings: the strings of another analysis on the same page, which grow; None for new ones

    An interval that is not in `analysis.timeline` has no lanes in its picture (None), only its strip: the
    page makes lanes from it.
    """
    if strings is None:
        strings = Strings()
    items = _by_interval(analysis.timeline)  # what lanes show
    chosen = list(dict.fromkeys([*priority, *items]))
    rows = analysis.intervals[analysis.intervals["interval"].isin(chosen)]
    windows = {int(row.interval): row for row in rows.itertuples(index=False)}
    pieces = _by_interval(analysis.segments[analysis.segments["interval"].isin(chosen)])
    pictures: dict[str, dict[str, Any]] = {}
    size = 0
    for number in chosen:
        if number not in windows or not (number in items or number in pieces):
            continue
        strings_before = strings.size
        window = windows[number]
        of_interval = [_with_bounds(item, window) for item in items.get(number, [])]
        picture = _picture(window, of_interval, strings)
        strip_pieces = pieces.get(number)
        if strip_pieces and (window.kind != "run" or len(strip_pieces) <= MOST_RUN_PIECES):
            picture["strip"] = _strip(strip_pieces, int(window.start_ns), strings)
        if number not in items:
            picture["lanes"] = None  # not [], which would say that nothing ran
        size += len(to_json(picture)) + strings.size - strings_before
        if size > max_bytes and pictures:  # the first one comes however large it is
            break  # the strings of this picture stay: a few that no picture uses
        pictures[str(number)] = picture
    return Timelines(pictures, strings.texts, left_out=len(windows) - len(pictures))


def _by_interval(table: pd.DataFrame) -> dict[int, list[Any]]:
    """Return number of the interval -> its rows, as named tuples: they are faster to read than rows of a
    table, and a picture looks at every one of them."""
    columns = {name: listed(table[name], lambda value: value) for name in table.columns}
    row_type = namedtuple("row", columns)
    rows_of: dict[int, list[Any]] = {}
    for values in zip(*columns.values(), strict=True):
        row = row_type._make(values)
        rows_of.setdefault(row.interval, []).append(row)
    return rows_of


def _strip(pieces: list[Any], origin: int, strings: Strings) -> dict[str, Any]:
    """Return the strip: lengths ("d"), causes ("c") and details ("n") of the pieces as short texts, and where
    the first one starts ("x0").  Each piece begins where the one before it ends, so that this tells all
    starts.

    origin: the start of the interval in ns
    """
    pieces = sorted(pieces, key=_START)
    columns = {
        "d": [piece.end_ns - piece.start_ns for piece in pieces],
        "c": [_cause_number(piece.cause) for piece in pieces],
        "n": [strings.number(piece.detail) for piece in pieces],
    }
    texts = {key: packed(np.array(column)) for key, column in columns.items()}
    return {**texts, "x0": pieces[0].start_ns - origin}


def _picture(window: Any, items: list[Any], strings: Strings) -> dict[str, Any]:
    """Return the picture of an interval: its lanes from top to bottom, its width and error (ns), how far off its two
    events can be in words (numbers of strings), and sentences on items that are not in it.

    window: the interval, a row of `frames.INTERVALS`
    items: its rows of `frames.TIMELINE`
    strings: the strings of the page, which grow

    The items of a stream's or records' lane may have an arrow each, from the call or record that they follow (their
    `link`): "ax" is where it begins (ns from the interval's start), "al" the lane, None for no arrow.
    """
    origin = int(window.start_ns)
    items_of_lane: dict[tuple[str, str], list[Any]] = {}
    for item in items:
        if item.lane_kind in LANE_ORDER:
            items_of_lane.setdefault((item.lane_kind, item.lane), []).append(item)
    order = sorted(items_of_lane, key=_lane_place)
    arrow_starts = _arrow_starts(items_of_lane, order, origin)
    lanes = []
    for kind, name in order:
        in_lane = sorted(items_of_lane[kind, name], key=_START)
        lane = _lane(kind, name, in_lane, origin, strings)
        if kind in ("stream", "event"):
            # a wait follows a record, everything else follows a call
            sources = ["event" if item.kind == "wait" else "host" for item in in_lane]
            arrows = [
                arrow_starts.get((source, item.link), (None, None))
                for source, item in zip(sources, in_lane, strict=True)
            ]
            lane["ax"] = [x for x, _ in arrows]
            lane["al"] = [number for _, number in arrows]
        lanes.append(lane)
    return {
        "width": int(window.elapsed_ns),
        "error": int(window.error_ns),
        "bounds": [strings.number(text) for text in _bounds_of_events(window, items)],
        "method": safe_text(window.method),
        "lanes": lanes,
        "omitted": [
            f"The {item.detail['count']:,} shortest {safe_text(item.name)} near this interval are not in the page "
            f"(none longer than {duration(item.detail['longest_ns'])}, {duration(item.detail['ns'])} together)."
            for item in items
            if item.lane_kind == "omitted"
        ],
    }


def _with_bounds(item: Any, window: Any) -> Any:
    """Return an item of an interval, the record that starts it with the closer bounds of the interval's start: by its
    own neighbours and, as `elapsed_time` ties the two records, by those of the end record.

    item: a row of `frames.TIMELINE`
    window: the interval, a row of `frames.INTERVALS`
    """
    if not _is_record(item, window.start_record):
        return item
    earlier_ns, later_ns = (
        item.start_ns - window.start_lower_ns,
        window.start_upper_ns - item.start_ns,
    )
    detail = {
        "at_most_earlier_ns": min(earlier_ns, item.detail.get("at_most_earlier_ns", earlier_ns)),
        "at_most_later_ns": min(later_ns, item.detail.get("at_most_later_ns", later_ns)),
    }
    return item._replace(detail={**item.detail, **detail})


def _is_record(item: Any, record: int) -> bool:
    return record >= 0 and item.ref_kind == "event" and item.ref_id == record


def _bounds_of_events(window: Any, items: list[Any]) -> tuple[str, str]:
    """Return by how much the start event, and the end event, can at most lie elsewhere than they are drawn, in words;
    "" where nothing is stored of it.

    window, items: as in `_picture`; the start record has the bounds of the interval's start

    The bounds are those of the interval's records, so that both texts say what the records on the lanes say.  If the
    start record is not in the picture, the interval has bounds of its start, too: but for events that their own clock
    places, where those say less than the clock.
    """
    places = {window.start_record: window.start_ns, window.end_record: window.end_ns}
    texts = {
        item.ref_id: _bounds_in_words(item, places[item.ref_id])
        for item in items
        if item.lane_kind == "event" and any(_is_record(item, record) for record in places)
    }
    of_start = ""
    if window.method not in ("clock", "exact"):
        detail = {
            "at_most_earlier_ns": window.start_ns - window.start_lower_ns,
            "at_most_later_ns": window.start_upper_ns - window.start_ns,
        }
        of_start = hover(detail, 0)
    return texts.get(window.start_record, of_start), texts.get(window.end_record, "")


def _bounds_in_words(record: Any, place_ns: int) -> str:
    """Return how far from `place_ns` a record can lie at most; where it is stored to lie elsewhere, as the GPU's time
    stamp of the end of an interval can, only how far off that is."""
    off_ns = record.start_ns - place_ns
    if off_ns:
        side = "later" if off_ns > 0 else "earlier"
        return f"by its own time stamp {duration(abs(off_ns))} {side}"
    return hover(record.detail, 0)


def _lane_place(lane: tuple[str, str]) -> tuple[int, Any, int]:
    """Return the key by which lanes (kind, name) are sorted from top to bottom."""
    kind, name = lane
    before_name, after_name = LANE_ORDER[kind]
    return before_name, natural(name), after_name


def _arrow_starts(
    drawn: Mapping[tuple[str, str], list[Any]], order: Sequence[tuple[str, str]], origin: int
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return (kind of lane, number of a call or record) -> where an arrow from it begins: (ns from the
    interval's start, number of its lane).

    drawn: (kind, name) of a lane -> its items
    order: the lanes from top to bottom
    origin: the start of the interval in ns
    """
    source_kind = {"host": "api", "event": "event"}
    return {
        (kind, item.ref_id): (item.start_ns - origin, number)
        for number, (kind, name) in enumerate(order)
        for item in drawn[kind, name]
        if kind in source_kind and item.ref_kind == source_kind[kind]
    }


def _lane(kind: str, name: str, items: list[Any], origin: int, strings: Strings) -> dict[str, Any]:
    """Return what the page draws of one lane: an entry per item in "x" (start), "d" (length), "r" (row), "n"
    (name), "t" (hover text) and "c" (cause whose colour it has, -1 for none).

    items: in the order of their starts
    origin: the start of the interval in ns
    """
    starts = [item.start_ns for item in items]
    ends = [item.end_ns for item in items]
    rows = nested_rows(starts, ends, nest=False)  # per item
    return {
        "kind": kind,
        "name": LANE_WORDS.get(kind, "") + safe_text(name),
        "rows": max(rows, default=0) + 1,
        "x": [start - origin for start in starts],
        "d": [end - start for start, end in zip(starts, ends, strict=True)],
        "r": rows if any(rows) else 0,
        "n": [strings.number(item.name) for item in items],
        "t": [strings.number(hover(item.detail, item.end_ns - item.start_ns)) for item in items],
        "c": [
            -1 if kind == "nvtx" else _cause_number(_cause_of_item(kind, item.kind))
            for item in items
        ],
    }


def _cause_number(cause: str) -> int:
    """Return the number of a cause, that of the last one if it is not known."""
    return CAUSES.index(cause) if cause in CAUSES else len(CAUSES) - 1


def _cause_of_item(lane_kind: str, kind: str) -> str:
    """Return the cause whose colour an item has.

    kind: the kind of the item
    """
    if lane_kind == "stream" and kind in OPERATION_KINDS:
        return kind
    if lane_kind == "event":
        return "queued" if kind == "wait" else "event"
    return CAUSE_OF_CALL[kind] if kind in CALL_KINDS else "api"


def nested_rows(starts: list[int], ends: list[int], *, nest: bool) -> list[int]:
    """Return the row of every item: the first one in which it has room.  Items in one row do not overlap, except
    that with `nest` one may lie wholly inside another.  An item may begin where another ends.

    starts, ends: the times of the items, sorted by start, of equal starts the longest first

        row 0   |------------|  |----|
                  |--| |--|                 inside: same row with `nest`
        row 1          |---------|          partly outside: another row
    """
    open_ends: list[
        list[int]
    ] = []  # per row, the ends of the items that are still open, innermost last
    rows = []
    for start, end in zip(starts, ends, strict=True):
        for row_ends in open_ends:
            while row_ends and row_ends[-1] <= start:
                row_ends.pop()
        with_room = (
            row
            for row, row_ends in enumerate(open_ends)
            if not row_ends or (nest and end <= row_ends[-1])
        )
        row = next(with_room, len(open_ends))
        if row == len(open_ends):
            open_ends.append([])
        open_ends[row].append(end)
        rows.append(row)
    return rows


def hover(detail: Mapping[str, Any], duration_ns: int) -> str:
    """Return what the hover text of an item says besides its name and duration: bytes, bandwidth, grid and
    whatever else is known.

    detail: the item's details by name
    """
    texts = []
    for key, value in detail.items():
        if key == "bytes":
            texts += [bytes_text(value), bandwidth(value, duration_ns)]
        elif key in ("at_most_earlier_ns", "at_most_later_ns"):
            if value < _NO_LATEST_NS:
                texts.append(f"at most {duration(value)} {words(key).split()[-1]}")
        elif key in ("grid", "block"):
            texts.append(f"{key} {' x '.join(map(str, value))}")
        elif not key.startswith("bandwidth"):  # shown with the bytes
            texts.append(f"{words(key)} {quantity(key, value)}")
    return ", ".join(filter(None, texts))


def packed(values: np.ndarray) -> str | list[int]:
    """Return a long column of integers as short text: one letter for the number of digits, then every number
    in that many base-64 digits, the most significant first: [0, 63, 64] -> "2AAA/BA".  `unpack` of the page
    (templates/dom.js) reads it; JSON would take twice as much space.  A column that is short, or has a number
    that is negative or at least 2^48, is returned as a list.
    """
    values = np.asarray(values, dtype=np.int64)
    if len(values) < FEWEST or values.min() < 0 or values.max() >= 1 << (6 * _MOST_DIGITS):
        return values.tolist()
    bits = int(values.max()).bit_length()
    width = max(1, math.ceil(bits / 6))  # digits of each number
    shifts = 6 * np.arange(width - 1, -1, -1)
    digits = (values[:, None] >> shifts) & 63
    return str(width) + _DIGITS[digits].tobytes().decode("ascii")
