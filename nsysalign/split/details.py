"""What pieces went to by name: the calls, ranges, copies and operations behind the causes.

    pieces of interval 7       cause       points to                rows of `frames.DETAILS`
    [0, 3) us                  api_launch  call 12, cuLaunchKernel  api_launch  cuLaunchKernel        5 us
    [3, 5) us                  api_launch  call 13, cuLaunchKernel
    [5, 9) us, a dependency    queued      gemm on stream 13        queued      dependency, on gemm   4 us
    [9, 12) us                 kernel      operation 3              none: kernels are named by groups

sum       what an interval spent on one key: a row of `_Sums`
key       cause, detail, lane and text of a sum, packed into one number (`_Keys`)
text      a name that a row may have ("cuLaunchKernel"), or a copy's direction and memory; given by its
          number in `_Texts`, of which 0 is no text
lane      a stream of one process: a row of `alignment.lanes`

`Details` is told of pieces and of copies batch by batch, and makes the table at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.causes import CAUSE, CAUSES, WITH_A_NAME
from nsysalign.intervals import FAR, Columns, distinct, ragged
from nsysalign.model import KIND, MOST_STREAMS, Alignment, Trace
from nsysalign.split.pieces import (
    DETAILS,
    DIRECTION,
    MEMORY,
    REF,
    Pieces,
    Spans,
    host_side,
    operation_codes,
    operation_names,
    points_to_operations,
)

_WITH_A_NAME = [CAUSE[name] for name in WITH_A_NAME]
_MOVING = [CAUSE["memcpy"], CAUSE["memset"]]
_QUEUED, _UNKNOWN = CAUSE["queued"], CAUSE["unknown"]
#: Instead of a text's number: _NO_TEXT for a row of `frames.DETAILS` that has no text, _NO_ROW for a piece that is
#: in no row of it.
_NO_TEXT, _NO_ROW = 0, -1
#: Lanes and times, arrays of equal length -> positions of operations, -1 for none.
LastOn = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _Text(NamedTuple):
    """What `frames.DETAILS` says as detail, or as the operation that was waited for; and of copies."""

    name: str
    direction: str = ""
    memory: str = ""


class _Texts:
    """All texts that a row of `frames.DETAILS` may have, by number.

    texts:         number -> text
    of_calls, of_overhead, of_ranges, of_operations: per row of that table of the trace, the number of
                   its name as a text
    of_copies:     per operation, the number of the text that says what it copies; 0 for all but copies
    """

    def __init__(self, trace: Trace) -> None:
        self.texts = [_Text("")]
        names = trace.names
        operations = trace.operations
        self.of_calls = self._add_column(
            trace.calls["name_id"], lambda n: names.get(n, "CUDA call")
        )
        self.of_overhead = self._add_column(
            trace.overhead["name_id"], lambda n: names.get(n, "profiler")
        )
        self.of_ranges = self._add_column(trace.ranges["text"], str)
        self.of_copies = self._add_copies(operations)
        name_of_operation, example = operation_codes(operations)
        self.of_operations = self._add(
            name_of_operation, [_Text(name) for name in operation_names(trace, example).tolist()]
        )

    def _add(self, code: np.ndarray, texts: list[_Text]) -> np.ndarray:
        """Append these texts, and return the number of the text of each code: an index of them."""
        numbers = (code + len(self.texts)).astype(np.int32)
        self.texts += texts
        return numbers

    def _add_column(self, column: pd.Series, name: Callable[[Any], str]) -> np.ndarray:
        """Append a text for each distinct value of a column, and return the number of each row's text."""
        code, values = pd.factorize(column)
        return self._add(code, [_Text(name(value)) for value in values.tolist()])

    def _add_copies(self, operations: pd.DataFrame) -> np.ndarray:
        """Append a text for each direction and memory of copies, and return `of_copies`."""
        copies = np.flatnonzero(operations["kind"].to_numpy() == KIND["memcpy"])
        direction, directions = pd.factorize(operations["copy_kind"].to_numpy()[copies])
        memory, memories = pd.factorize(host_side(operations, copies))
        texts = [
            _Text(
                "copy", DIRECTION.get(copy_kind, f"kind {copy_kind}"), MEMORY.get(side, "unknown")
            )
            for copy_kind in directions.tolist()
            for side in memories.tolist()
        ]
        numbers = np.full(len(operations), _NO_TEXT, np.int32)
        numbers[copies] = self._add(direction * len(memories) + memory, texts)
        return numbers


class _Keys:
    """Packs cause, detail, lane and text into one number, by which sums are added up and sorted."""

    def __init__(self, lane_count: int, text_count: int) -> None:
        # one more than there are lanes: no lane (-1) is packed as 0
        self._shape = (len(CAUSES), len(DETAILS), lane_count + 1, text_count)

    def pack(self, cause: Any, detail: Any, lane: Any, text: Any) -> np.ndarray:
        """Return the key of each combination: arrays of equal length, or one value for all."""
        return np.ravel_multi_index((cause, detail, lane + 1, text), self._shape)

    def unpack(self, key: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (cause, detail, lane, text) of each key."""
        cause, detail, lane_plus_one, text = np.unravel_index(key, self._shape)
        return cause, detail, lane_plus_one - 1, text


@dataclass(frozen=True)
class _Sums(Columns):
    """Sums by window and key: arrays of equal length.

    ns:        how long the window spent on the key
    bytes:     how many bytes copies and memsets of the key moved
    moving_ns: how long these copies and memsets took, also outside the window
    """

    window: np.ndarray
    key: np.ndarray
    ns: np.ndarray
    bytes: np.ndarray
    moving_ns: np.ndarray


class _Words(NamedTuple):
    """Columns of `frames.DETAILS`: two rows of one interval differ in at least one of them."""

    cause: str
    detail: str
    direction: str
    memory: str
    stream: int
    operation: str


def _added_up(
    window: np.ndarray, key: np.ndarray, *, sort: bool = False, **columns: np.ndarray
) -> _Sums:
    """Return sums by window and key, in ascending order with `sort`.

    columns: `ns`, `bytes` and `moving_ns` of each row to add; one that is left out is 0

    window 7, 7, 8; key 2, 2, 2; ns 3, 2, 4:      window 7, 8; key 2, 2; ns 5, 4
    """
    code, keys = pd.factorize(key, sort=sort)
    row, pairs = pd.factorize(window * len(keys) + code, sort=sort)
    sums = {name: np.zeros(len(pairs), np.int64) for name in ("ns", "bytes", "moving_ns")}
    for name, column in columns.items():
        np.add.at(sums[name], row, column)
    pair_window, pair_code = np.divmod(pairs, max(len(keys), 1))
    return _Sums(pair_window, keys[pair_code], **sums)


def _sum_of_first(count: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return, for each count, the sum of that many values from the first one on."""
    running = np.append(0, np.cumsum(values))
    return running[count]


class Details:
    """Adds up what `frames.DETAILS` says of windows, and makes the table.

    Pieces and operations are either added to the window that each belongs to (`add`, `add_moved`), or
    shared by all windows of a stream, and then the spans of these windows come with them (`add_shared`,
    `add_moved_during`).
    """

    def __init__(self, trace: Trace, alignment: Alignment, last_on: LastOn) -> None:
        """Begin without sums.  last_on: `Streams.last_on`"""
        self._operations = trace.operations
        kind = trace.operations["kind"].to_numpy()
        self._moves = np.isin(kind, [KIND["memcpy"], KIND["memset"]])
        self._last_on = last_on
        self._stream_of_lane = alignment.lanes["stream"].to_numpy()
        self._texts = _Texts(trace)
        # of ranges that the program did not open: none lies around a window
        of_program = trace.program_ranges
        self._range_start = np.where(of_program, trace.ranges["start_ns"].to_numpy(), FAR)
        self._range_end = trace.ranges["end_ns"].to_numpy()
        # a run is all that a program did: what lies around it is the program's
        is_run = (alignment.windows["kind"] == "run").to_numpy()
        self._opened = np.where(is_run, -FAR, alignment.windows["open_ns"].to_numpy())
        self._closed = alignment.windows["close_ns"].to_numpy()
        self._keys = _Keys(len(alignment.lanes), len(self._texts.texts))
        empty = np.empty(0, np.int64)
        self._sums = [_Sums(empty, empty, empty, empty, empty)]

    # --- pieces: nanoseconds

    def add(self, pieces: Pieces) -> None:
        """Add the nanoseconds of pieces to their windows."""
        rows, key = self._keys_of(pieces)
        tells = ~self._lie_in_range_around(pieces, rows, pieces.window[rows])
        rows, key = rows[tells], key[tells]
        ns = pieces.end[rows] - pieces.start[rows]
        self._add(_added_up(pieces.window[rows], key, ns=ns))

    def add_shared(self, pieces: Pieces, spans: Spans) -> None:
        """Add, to the window of each span, the nanoseconds of the pieces that lie in the span.

        pieces: sorted by time and disjoint
        """
        rows, key = self._keys_of(pieces)
        start, end = pieces.start[rows], pieces.end[rows]
        # of each span, the pieces that touch it: `first` and those behind it, before `stop`
        first = np.searchsorted(end, spans.start, side="right")
        stop = np.searchsorted(start, spans.end)
        span, piece = ragged(first, np.maximum(stop - first, 0))
        tells = ~self._lie_in_range_around(pieces, rows[piece], spans.window[span])
        span, piece = span[tells], piece[tells]
        # what of the piece lies in the span
        begin = np.maximum(start[piece], spans.start[span])
        over = np.minimum(end[piece], spans.end[span])
        self._add(_added_up(spans.window[span], key[piece], ns=over - begin))

    def _keys_of(self, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
        """Return (the positions of the pieces that are a row of `details`, the key of each of these)."""
        text = self._texts_of(pieces)
        rows = np.flatnonzero(text != _NO_ROW)
        key = self._keys.pack(
            pieces.cause[rows], pieces.detail[rows], pieces.lane[rows], text[rows]
        )
        return rows, key

    def _lie_in_range_around(
        self, pieces: Pieces, piece: np.ndarray, window: np.ndarray
    ) -> np.ndarray:
        """Return, per position of a piece, whether that goes by the name of an NVTX range that lies around the whole window beside it: that
        is what the window is a part of, and not what the CPU did in it.

        range    [ flush 4 MB                     ]
        windows     [  )  [  ) [ step )                    around all three: their time outside of calls has no name
        range                   [load]                     in the third one: that was in "load"
        """
        around = pieces.ref_kind[piece] == REF["nvtx"]
        rows = np.flatnonzero(around)
        ranges, windows = pieces.ref[piece[rows]], window[rows]
        begins_before = self._range_start[ranges] <= self._opened[windows]
        around[rows] = begins_before & (self._closed[windows] <= self._range_end[ranges])
        return around

    def _texts_of(self, pieces: Pieces) -> np.ndarray:
        """Return, per piece (a stretch of time with one cause), the number of the text by which it goes in the table of
        details, an index of `_Texts.texts`.

        Calls, ranges and the profiler's work go by their names, copies by what they copy, waiting by the
        operation that was waited for.  Unknown time is in the table without a text (_NO_TEXT); pieces of all other causes
        are not in it (_NO_ROW).
        """
        text = np.full(len(pieces.cause), _NO_ROW, np.int64)
        points_somewhere = pieces.ref >= 0
        has_name = points_somewhere & np.isin(pieces.cause, _WITH_A_NAME)
        for ref_kind, text_of_row in (
            ("api", self._texts.of_calls),
            ("nvtx", self._texts.of_ranges),
            ("overhead", self._texts.of_overhead),
        ):
            rows = np.flatnonzero(has_name & (pieces.ref_kind == REF[ref_kind]))
            text[rows] = text_of_row[pieces.ref[rows]]
        points_to_operation = points_somewhere & points_to_operations(pieces)
        moving = np.flatnonzero(points_to_operation & np.isin(pieces.cause, _MOVING))
        text[moving] = self._texts.of_copies[pieces.ref[moving]]
        waiting = np.flatnonzero(pieces.cause == _QUEUED)
        text[waiting] = self._waited_for(pieces.take(waiting))
        text[pieces.cause == _UNKNOWN] = _NO_TEXT
        return text

    def _waited_for(self, pieces: Pieces) -> np.ndarray:
        """Return, per piece that waits, the number of the name of the operation that it waits for; _NO_TEXT
        where that is not known.

        A piece points to this operation, or to a record of another stream: then it is the last
        operation that had ended on that stream.
        """
        if not len(self._operations):
            return np.full(len(pieces.ref), _NO_TEXT)
        operation = np.where(points_to_operations(pieces), pieces.ref, -1)
        records = np.flatnonzero((pieces.ref_kind == REF["event"]) & (pieces.lane >= 0))
        if len(records):
            operation[records] = self._last_on(pieces.lane[records], pieces.end[records])
        return np.where(operation >= 0, self._texts.of_operations[operation], _NO_TEXT)

    # --- copies and memsets: bytes

    def add_moved(self, operation: np.ndarray, window: np.ndarray) -> None:
        """Add the bytes that copies and memsets moved, and how long that took.

        operation, window: arrays of equal length: each operation is added to the window beside it;
                           operations that move nothing are left out
        """
        rows = np.flatnonzero(self._moves[operation])
        moving = operation[rows]
        size, took_ns = self._moved_by(moving)
        self._add(_added_up(window[rows], self._moving_keys(moving), bytes=size, moving_ns=took_ns))

    def add_moved_during(self, operation: np.ndarray, spans: Spans) -> None:
        """Add, to the window of each span (stretch of its time), the bytes moved by copies and memsets that touch the span,
        and how long (ns) they took: all bytes of each, also of one that lies in the span only in part.

        operation: positions, sorted by start; operations that move nothing are left out
        spans: stretches of windows
        """
        moving = operation[self._moves[operation]]
        # the key of a copy says what is copied: the bytes of all copies with one key are added up
        keys = self._moving_keys(moving)
        for key in distinct(keys).tolist():
            size, took_ns = self._moved_during(moving[keys == key], spans)
            is_touched = (spans.end > spans.start) & ((size > 0) | (took_ns > 0))
            rows = np.flatnonzero(is_touched)
            self._add(
                _added_up(
                    spans.window[rows],
                    np.full(len(rows), key),
                    bytes=size[rows],
                    moving_ns=took_ns[rows],
                )
            )

    def _moved_during(self, copies: np.ndarray, spans: Spans) -> tuple[np.ndarray, np.ndarray]:
        """Return, for each span, (how many bytes were moved by the copies that touch it, how long (ns) these took).

        copies: positions of operations, sorted by start

        copies    [A )  [B )  [C )  [D )
        span              [     )            touched: B and C = (A, B, C, begun before its end)
                                                                less (A, ended by its start)
        """
        start = self._operations["start_ns"].to_numpy()
        end = self._operations["end_ns"].to_numpy()
        by_end = copies[np.argsort(end[copies])]
        begun = np.searchsorted(start[copies], spans.end)  # per span, how many copies
        ended = np.searchsorted(end[by_end], spans.start, side="right")
        bytes_by_start, ns_by_start = self._moved_by(copies)
        bytes_by_end, ns_by_end = self._moved_by(by_end)
        size = _sum_of_first(begun, bytes_by_start) - _sum_of_first(ended, bytes_by_end)
        took_ns = _sum_of_first(begun, ns_by_start) - _sum_of_first(ended, ns_by_end)
        return size, took_ns

    def _moving_keys(self, operation: np.ndarray) -> np.ndarray:
        """Return the key of each copy or memset, which has no detail and no lane."""
        cause = self._operations["kind"].to_numpy()[operation]  # the codes of kinds are causes, too
        text = self._texts.of_copies[operation]
        return self._keys.pack(cause, detail=DETAILS.index(""), lane=-1, text=text)

    def _moved_by(self, operation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (how many bytes each operation moved, how long (ns) it took)."""
        start = self._operations["start_ns"].to_numpy()[operation]
        end = self._operations["end_ns"].to_numpy()[operation]
        return self._operations["bytes"].to_numpy()[operation], end - start

    # --- the table

    def _add(self, sums: _Sums) -> None:
        self._sums.append(self._of_few_streams(sums))

    def _of_few_streams(self, sums: _Sums) -> _Sums:
        """Return the sums (how long each window waited for what on which stream, and so on), in which at most MOST_STREAMS
        of each window name a stream.

        The longest ones of a window keep their streams; the others are added up without a stream.
        Otherwise hundreds of streams that wait for each other would have as many sums as there are
        pairs of streams.
        """
        cause, detail, lane, text = self._keys.unpack(sums.key)
        with_lane = np.flatnonzero(lane >= 0)
        if len(distinct(lane[with_lane])) <= MOST_STREAMS:
            return sums
        # sorted by window, then the longest first (np.lexsort sorts by its last key first)
        window, ns, key = sums.window[with_lane], sums.ns[with_lane], sums.key[with_lane]
        order = np.lexsort((key, -ns, window))
        sorted_window = window[order]
        first_of_window = np.searchsorted(sorted_window, sorted_window)
        rank = np.arange(len(order)) - first_of_window  # in its window, 0 for the longest
        too_many = with_lane[order[rank >= MOST_STREAMS]]
        lane = lane.copy()
        lane[too_many] = -1
        return _added_up(
            sums.window,
            self._keys.pack(cause, detail, lane, text),
            sort=True,
            ns=sums.ns,
            bytes=sums.bytes,
            moving_ns=sums.moving_ns,
        )

    def table(self) -> pd.DataFrame:
        """Return `frames.DETAILS` of everything that was added: a row for each window and what it spent time on, with the
        sums of nanoseconds and bytes.  This can be done once.

        A copy that ran only while kernels did has bytes, but no time, as kernels count before copies: it has no row.
        """
        by_key = self._of_few_streams(_Sums.joined(self._sums))
        self._sums = []
        keys = distinct(by_key.key)
        words_of_keys = self._words(keys)
        # several keys may have the same words: these are added up, by the position of the words in `words`
        words = sorted(set(words_of_keys))
        position = {row: place for place, row in enumerate(words)}
        position_of_key = np.array([position[row] for row in words_of_keys], np.int64)
        by_words = _added_up(
            by_key.window,
            position_of_key[np.searchsorted(keys, by_key.key)],
            sort=True,
            ns=by_key.ns,
            bytes=by_key.bytes,
            moving_ns=by_key.moving_ns,
        )
        return _table(by_words.take(np.flatnonzero(by_words.ns != 0)), words)

    def _words(self, keys: np.ndarray) -> list[_Words]:
        """Return what the table says of each key."""
        words = []
        for cause, detail, lane, text in np.transpose(self._keys.unpack(keys)).tolist():
            name, direction, memory = self._texts.texts[text]
            stream = int(self._stream_of_lane[lane]) if lane >= 0 else -1
            operation = name if cause == _QUEUED else ""
            is_staging = bool(direction and detail)
            # how it came about; else what the text says, a name or "copy"
            is_reason = is_staging or operation or text == _NO_TEXT
            shown = DETAILS[detail] if is_reason else name
            words.append(_Words(CAUSES[cause], shown, direction, memory, stream, operation))
        return words


def _table(sums: _Sums, words: list[_Words]) -> pd.DataFrame:
    """Return `frames.DETAILS` of sums.

    words: what the rows say; here `sums.key` is a position in this list
    """
    columns = pd.DataFrame(words, columns=_Words._fields)
    stream = columns.pop("stream").to_numpy(dtype=np.int64)[sums.key]
    # bytes per nanosecond are GB per second
    unknown = np.full(len(sums.ns), np.nan)
    rate = np.divide(sums.bytes, sums.moving_ns, out=unknown, where=sums.moving_ns > 0)
    table = {name: frames.texts(sums.key, columns[name].tolist()) for name in columns}
    numbers = {"interval": sums.window, "stream": stream, "bytes": sums.bytes}
    table |= {name: frames.narrow(values) for name, values in numbers.items()}
    table |= {"ns": sums.ns, "bandwidth_gb_s": rate}
    return frames.check(pd.DataFrame(table, copy=False), frames.DETAILS, narrow=True)
