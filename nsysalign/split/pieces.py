"""Pieces of windows, and what is made of them: sums, segments, and words.

piece     a stretch of a window with one cause; pieces are columns of arrays, and tile their window
segment   neighbouring pieces that say the same, joined
cause     what the time went to, as a code: an index of CAUSES
detail    how the cause came about where the cause alone does not say it: an index of DETAILS
ref       what a piece points to: `ref_kind` names the table (an index of REF_KINDS), `ref` the row
lane      a stream of one process: a row of `alignment.lanes`
kind      in `Details`: cause, detail, lane and text of a sum, packed into one number
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.causes import CAUSE, CAUSES, WITH_A_NAME
from nsysalign.intervals import Columns, distinct, ragged
from nsysalign.model import KIND, MIGRATIONS, MOST_STREAMS, OPERATION_KINDS, Alignment, Trace

#: What a piece points to: nsys tables by their short names, the log's records, or nothing.
REF_KINDS = (*OPERATION_KINDS, "api", "nvtx", "overhead", "event", "")
REF = {name: code for code, name in enumerate(REF_KINDS)}
#: CAUSES and REF_KINDS both begin with the kinds of operations: a code below WORK is such a kind, and
#: a cause below WORK says that the GPU works.
WORK = len(OPERATION_KINDS)

#: Detail -> how the words of a piece with this detail begin.
_PREFIX = {
    "": "",
    "copy": "",
    "staging": "staging of ",
    "dependency": "waits for ",
    "dependency-inferred": "waits (inferred) for ",
    "default-stream-order": "ordered behind ",
    "contention": "contends with ",
    "full-queue": "launch queue full: ",
    "earlier-work": "earlier work: ",
    "no-api-row": "no API row for ",
    "host-function": "",
    "between-nodes": "in a CUDA graph, before ",
}
DETAILS = tuple(_PREFIX)
DETAIL = {name: code for code, name in enumerate(DETAILS)}

#: CUDA_MEMCPY_KIND and CUDA_MEMOPR_MEMORY_KIND codes in standard terms.
DIRECTION = {
    1: "H2D",
    2: "D2H",
    8: "D2D",
    9: "H2H",
    10: "P2P",
    11: "UVM H2D",
    12: "UVM D2H",
    13: "UVM D2D",
}
MEMORY = {
    0: "pageable",
    1: "pinned",
    2: "device",
    3: "array",
    4: "managed",
    5: "device",
    6: "managed",
}


@dataclass(frozen=True)
class Spans(Columns):
    """Stretches of windows: arrays of equal length; `start` and `end` in ns."""

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class Pieces(Columns):
    """Pieces of windows: arrays of equal length.

    window:     the number of the window
    start, end: ns
    cause:      a code of CAUSES
    ref_kind:   a code of REF_KINDS
    ref:        a position in operations (kernel .. memset), calls (api), ranges (nvtx), overhead, or
                records (event); -1 for none
    detail:     a code of DETAILS
    lane:       the lane that is waited for, -1 for none
    """

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    cause: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray
    detail: np.ndarray
    lane: np.ndarray


def make(
    spans: Spans,
    cause: Any,
    *,
    ref_kind: Any = REF[""],
    ref: Any = -1,
    detail: Any = 0,
    lane: Any = -1,
) -> Pieces:
    """Return a piece for each span, with this cause.

    spans: the stretches of windows
    cause, ref_kind, ref, detail, lane: the other columns of `Pieces`, each an array with a value per span, or one value
        for all pieces, which takes no memory
    """
    count = len(spans.window)

    def column(values: Any, dtype: type) -> np.ndarray:
        if np.ndim(values) == 0:
            return np.broadcast_to(dtype(values), count)
        return np.asarray(values, dtype)

    return Pieces(
        window=column(spans.window, np.int64),
        start=column(spans.start, np.int64),
        end=column(spans.end, np.int64),
        cause=column(cause, np.int8),
        ref_kind=column(ref_kind, np.int8),
        ref=column(ref, np.int64),
        detail=column(detail, np.int8),
        lane=column(lane, np.int64),
    )


def join(parts: list[Pieces]) -> Pieces:
    """Return all pieces of the parts, sorted by window and time."""
    if not parts:
        empty = np.empty(0, np.int64)
        return make(Spans(empty, empty, empty), cause=0)
    whole = Pieces.joined(parts)
    by_time = np.argsort(whole.start, kind="stable")
    by_window = np.argsort(whole.window[by_time], kind="stable")
    return whole.take(by_time[by_window])


@dataclass(frozen=True)
class Segments:
    """Segments of intervals: arrays of equal length, sorted by interval and time."""

    interval: np.ndarray
    start: np.ndarray
    ns: np.ndarray
    cause: np.ndarray  # code into CAUSES
    ref_kind: np.ndarray  # code into REF_KINDS
    ref_id: np.ndarray
    words: Callable[[np.ndarray], np.ndarray]  # positions of segments -> these in words

    def of_cause(self, *causes: str) -> np.ndarray:
        """Return, per segment, whether it has one of these causes."""
        return np.isin(self.cause, [CAUSE[c] for c in causes])

    @cached_property
    def run(self) -> np.ndarray:
        """Per segment, the number of the idle stretch that it belongs to, -1 for work:

        kernel | host launch latency | kernel | sync host launch latency | kernel
          -1   |  0    0      0      |   -1   |  1    1     1      1     |   -1
        """
        idle = self.cause >= WORK
        begins = idle.copy()
        begins[1:] &= ~idle[:-1] | (self.interval[1:] != self.interval[:-1])
        return np.where(idle, np.cumsum(begins) - 1, -1)


def ref_ids(trace: Trace, alignment: Alignment, pieces: Pieces) -> np.ndarray:
    """Return, per piece, the rowid in nsys's table of what it points to (`seq` for records), -1 for
    nothing."""
    out = np.full(len(pieces.ref), -1, dtype=np.int64)
    kind = np.where(pieces.ref_kind < WORK, 0, pieces.ref_kind)  # all kinds of operations are 0
    for code, rowid in (
        (0, trace.operations["row"]),
        (REF["api"], trace.calls["row"]),
        (REF["nvtx"], trace.ranges["row"]),
        (REF["overhead"], trace.overhead["row"]),
        (REF["event"], alignment.records["seq"]),
    ):
        rows = np.flatnonzero((kind == code) & (pieces.ref >= 0))
        out[rows] = rowid.to_numpy()[pieces.ref[rows]]
    return out


def _each(codes: np.ndarray, text: Callable[[int], str]) -> np.ndarray:
    """Return the text of each code.  `text` is called once for each distinct code."""
    distinct_codes, inverse = np.unique(codes, return_inverse=True)
    texts = np.array([text(code) for code in distinct_codes.tolist()], dtype=object)
    return texts[inverse]


def operation_codes(operations: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return (the number of each operation's name, the first operation of each name)."""
    code = np.zeros(len(operations), np.int64)
    for column in ("kind", "name_id", "copy_kind", "src_kind", "dst_kind"):
        numbers, values = pd.factorize(operations[column].to_numpy())
        if len(values) > 1:
            code, _ = pd.factorize(code * len(values) + numbers)
    # numbers are given in order of appearance, so a name appears first where the greatest number so
    # far rises
    greatest = np.maximum.accumulate(code)
    return code, np.flatnonzero(np.diff(greatest, prepend=-1))


def operation_names(trace: Trace, position: np.ndarray) -> np.ndarray:
    """Return operations in words: the names of kernels, the direction and memory of copies.

    position: the positions of the operations
    """
    operations = trace.operations
    kind = operations["kind"].to_numpy()[position]
    name = operations["name_id"].to_numpy()[position]
    out = _each(kind, lambda k: {KIND["graph"]: "CUDA graph", KIND["memset"]: "memset"}.get(k, ""))
    kernels = np.flatnonzero(kind == KIND["kernel"])
    out[kernels] = _each(name[kernels], lambda n: trace.names.get(n, "kernel"))
    copies = np.flatnonzero(kind == KIND["memcpy"])
    if len(copies):
        out[copies] = _copy_names(operations, position[copies])
    return out


def _copy_names(operations: pd.DataFrame, position: np.ndarray) -> np.ndarray:
    """Return copies in words: `copy H2D pinned`, `page migration H2D`.

    position: the positions of the copies in `operations`
    """
    copy_kind = operations["copy_kind"].to_numpy()[position]
    direction = _each(copy_kind, lambda code: DIRECTION.get(code, f"kind {code}"))
    memory = _each(host_side(operations, position), lambda code: MEMORY.get(code, "unknown"))
    without_uvm = pd.Series(direction, dtype=object).str.removeprefix("UVM ").to_numpy()
    copy = "copy " + direction + " " + memory
    return np.where(np.isin(copy_kind, MIGRATIONS), "page migration " + without_uvm, copy)


def host_side(operations: pd.DataFrame, position: np.ndarray) -> np.ndarray:
    """Return, per copy, CUPTI's code of the memory on its host side.

    For a copy that does not begin at the host this is the memory to which it goes.

    position: the positions of the copies in `operations`
    """
    direction = operations["copy_kind"].to_numpy()[position]
    source = operations["src_kind"].to_numpy()[position]
    target = operations["dst_kind"].to_numpy()[position]
    return np.where(direction == 1, source, target)


def call_names(trace: Trace, position: np.ndarray) -> np.ndarray:
    """Return the names of the calls at these positions."""
    names = trace.calls["name_id"].to_numpy()[position]
    return _each(names, lambda n: trace.names.get(n, "CUDA call"))


def words(trace: Trace, alignment: Alignment, pieces: Pieces) -> np.ndarray:
    """Return each piece in words: a prefix by its detail, the name of the operation, call or range that it points to, and
    the stream that it waits for: "contends with gemm (stream 13)", "" for a piece that points to nothing.
    """
    ref = pieces.ref

    def pointing(is_kind: np.ndarray) -> np.ndarray:
        """Return the positions of the pieces of this kind that point to something."""
        return np.flatnonzero(is_kind & (ref >= 0))

    name = np.full(len(ref), "", dtype=object)
    to_operations = pointing(pieces.ref_kind < WORK)
    name[to_operations] = operation_names(trace, ref[to_operations])
    to_calls = pointing(pieces.ref_kind == REF["api"])
    name[to_calls] = call_names(trace, ref[to_calls])
    to_ranges = pointing(pieces.ref_kind == REF["nvtx"])
    name[to_ranges] = trace.ranges["text"].iloc[ref[to_ranges]].to_numpy(dtype=object)
    to_overhead = pointing(pieces.ref_kind == REF["overhead"])
    name_id = trace.overhead["name_id"].to_numpy()[ref[to_overhead]]
    name[to_overhead] = _each(name_id, lambda n: trace.names.get(n, "profiler"))
    name[pieces.ref_kind == REF["event"]] = "event record"
    prefix = _each(pieces.detail, lambda code: _PREFIX[DETAILS[code]])
    prefix[pieces.cause == CAUSE["launch_latency"]] = "on the way: "
    out = prefix + name
    waiting = np.flatnonzero(pieces.lane >= 0)
    stream = alignment.lanes["stream"].to_numpy()[pieces.lane[waiting]]
    out[waiting] += _each(stream, " (stream {})".format)
    return out


@dataclass(frozen=True)
class _Sums(Columns):
    """Sums by window and kind: arrays of equal length.

    ns:   how long the window spent on the kind
    size: how many bytes were moved
    took: how long (ns) moving them took
    """

    window: np.ndarray
    kind: np.ndarray
    ns: np.ndarray
    size: np.ndarray
    took: np.ndarray


def _added_up(
    window: np.ndarray, kind: np.ndarray, *, sort: bool = False, **columns: np.ndarray
) -> _Sums:
    """Return sums by window and kind, in ascending order with `sort`.

    columns: `ns`, `size` and `took` of each row to add; one that is left out is 0
    """
    code, kinds = pd.factorize(kind, sort=sort)
    row, pairs = pd.factorize(window * len(kinds) + code, sort=sort)
    sums = {name: np.zeros(len(pairs), np.int64) for name in ("ns", "size", "took")}
    for name, column in columns.items():
        np.add.at(sums[name], row, column)
    pair_window, pair_code = np.divmod(pairs, max(len(kinds), 1))
    return _Sums(pair_window, kinds[pair_code], **sums)


def _sum_of_first(count: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return, for each count, the sum of that many values from the first one on."""
    running = np.append(0, np.cumsum(values))
    return running[count]


#: By cause and ref_kind, which text names such a piece in `details`: the ref_kind whose text it is;
#: 0 if the piece is no detail; _ANYWAY if it always is one, named by what it waits for or its detail.
_ANYWAY = -1
_LOOK = np.zeros((len(CAUSES), len(REF_KINDS)), np.int8)
for _ref in ("api", "nvtx", "overhead"):
    _LOOK[[CAUSE[c] for c in WITH_A_NAME], REF[_ref]] = REF[_ref]
for _moving in ("memcpy", "memset"):
    _LOOK[CAUSE[_moving], :WORK] = REF[_moving]
_LOOK[[CAUSE["queued"], CAUSE["unknown"]]] = _ANYWAY


#: Two rows of `details` of one interval differ in at least one of these columns.
_WORDS = ["cause", "detail", "direction", "memory", "stream", "operation"]
#: Lanes and times, arrays of equal length -> positions of operations, -1 for none.
LastOn = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Details:
    """Adds up what `frames.DETAILS` says of windows, and makes the table.

    A kind (cause, detail, lane and text) is one number until the table is made.  Pieces and
    operations are either added to the window that each belongs to (`add`, `add_moved`), or shared by
    all windows of a stream, and then the spans of these windows come with them (`add_shared`,
    `add_moved_during`).
    """

    def __init__(self, trace: Trace, alignment: Alignment, last_on: LastOn) -> None:
        """Number all texts that a row of `frames.DETAILS` may have: names of calls, of the profiler's work, of ranges, of
        copies and of operations.

        last_on: `Streams.last_on`
        """
        operations = trace.operations
        kind = operations["kind"].to_numpy()
        self.operations = operations
        self.lanes = alignment.lanes
        self.moves = np.isin(kind, [KIND["memcpy"], KIND["memset"]])
        empty = np.empty(0, np.int64)
        self._sums = [_Sums(empty, empty, empty, empty, empty)]
        #: By number of a text: what `frames.DETAILS` says as detail, direction and memory.
        self._texts = [("", "", "")]
        names = trace.names
        calls = self._numbered(trace.calls["name_id"], lambda n: names.get(n, "CUDA call"))
        overhead = self._numbered(trace.overhead["name_id"], lambda n: names.get(n, "profiler"))
        ranges = self._numbered(trace.ranges["text"], str)
        #: Code of REF_KINDS -> the number of the text of each row of that table.
        self._numbers = {REF["api"]: calls, REF["overhead"]: overhead, REF["nvtx"]: ranges}
        copies = np.flatnonzero(kind == KIND["memcpy"])
        direction, directions = pd.factorize(operations["copy_kind"].to_numpy()[copies])
        memory, memories = pd.factorize(host_side(operations, copies))
        #: Per operation, the number of the text that says what it copies; 0 for all but copies.
        self._moved = np.zeros(len(kind), np.int32)
        self._moved[copies] = len(self._texts) + direction * len(memories) + memory
        self._numbers |= {REF["memcpy"]: self._moved, REF["memset"]: self._moved}
        self._texts += [
            ("copy", DIRECTION.get(code, f"kind {code}"), MEMORY.get(side, "unknown"))
            for code in directions.tolist()
            for side in memories.tolist()
        ]
        code, example = operation_codes(operations)
        #: Per operation, the number of its name as a text, for what was waited for.
        self._operation = (code + len(self._texts)).astype(np.int32)
        self._texts += [(name, "", "") for name in operation_names(trace, example).tolist()]
        self._last_on = last_on
        self._shape = (len(CAUSES), len(DETAILS), len(self.lanes) + 1, len(self._texts))

    def _numbered(self, column: pd.Series, text: Callable[[Any], str]) -> np.ndarray:
        """Return, per row of a column, the number of its text, and add the new texts to `_texts`.

        text: called with each distinct value
        """
        code, values = pd.factorize(column)
        numbers = (code + len(self._texts)).astype(np.int32)
        self._texts += [(text(value), "", "") for value in values.tolist()]
        return numbers

    def add(self, pieces: Pieces) -> None:
        """Add the nanoseconds of pieces to their windows."""
        rows, kind = self._kinds(pieces)
        ns = pieces.end[rows] - pieces.start[rows]
        self._add(_added_up(pieces.window[rows], kind, ns=ns))

    def add_shared(self, pieces: Pieces, spans: Spans) -> None:
        """Add, to the window of each span, the nanoseconds of the pieces that lie in the span.

        pieces: sorted by time and disjoint
        """
        rows, kind = self._kinds(pieces)
        start, end = pieces.start[rows], pieces.end[rows]
        first = np.searchsorted(end, spans.start, side="right")
        stop = np.searchsorted(start, spans.end)
        span, piece = ragged(first, np.maximum(stop - first, 0))
        begin = np.maximum(start[piece], spans.start[span])
        over = np.minimum(end[piece], spans.end[span])
        self._add(_added_up(spans.window[span], kind[piece], ns=over - begin))

    def _kinds(self, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
        """Return (the positions of the pieces that are a detail, the kind of each of these)."""
        look = _LOOK[pieces.cause, pieces.ref_kind]
        is_detail = (look != 0) & ((pieces.ref >= 0) | (look == _ANYWAY))
        rows = np.flatnonzero(is_detail)
        ref = pieces.ref[rows]
        cause = pieces.cause[rows]
        text = np.zeros(len(rows), np.int64)
        for ref_kind, numbers in self._numbers.items():
            with_text = np.flatnonzero(look[rows] == ref_kind)
            text[with_text] = numbers[ref[with_text]]
        waiting = np.flatnonzero(cause == CAUSE["queued"])
        text[waiting] = self._waited_for(pieces, rows[waiting])
        lane_code = pieces.lane[rows] + 1  # 0 for none
        columns = (cause, pieces.detail[rows], lane_code, text)
        return rows, np.ravel_multi_index(columns, self._shape)

    def _waited_for(self, pieces: Pieces, rows: np.ndarray) -> np.ndarray:
        """Return, per piece at these positions, the number of the name of the operation that it waited
        for, 0 where that is not known.

        A piece points to this operation, or to a record of another stream: then it is the last
        operation that had ended on that stream.
        """
        if not len(self._operation):
            return np.zeros(len(rows), np.int64)
        ref_kind, lane = pieces.ref_kind[rows], pieces.lane[rows]
        ref = np.where(ref_kind < WORK, pieces.ref[rows], -1)
        records = np.flatnonzero((ref_kind == REF["event"]) & (lane >= 0))
        if len(records):
            ref[records] = self._last_on(lane[records], pieces.end[rows[records]])
        return np.where(ref >= 0, self._operation[ref], 0)

    def add_moved(self, operation: np.ndarray, window: np.ndarray) -> None:
        """Add the bytes that copies and memsets moved, and how long that took.

        operation, window: arrays of equal length: each operation is added to the window beside it;
                           operations that move nothing are left out
        """
        rows = np.flatnonzero(self.moves[operation])
        operation = operation[rows]
        size, took = self._moved_by(operation)
        self._add(_added_up(window[rows], self._moving_kinds(operation), size=size, took=took))

    def add_moved_during(self, operation: np.ndarray, spans: Spans) -> None:
        """Add, to the window of each span, the bytes moved by copies and memsets that touch the span, and how long (ns)
        they took.

        operation: positions, sorted by start; operations that move nothing are left out
        spans: stretches of windows

        The sum over those that touch a span is the sum over those that began before its end, less the sum over those
        that had ended by its start.
        """
        start = self.operations["start_ns"].to_numpy()
        end = self.operations["end_ns"].to_numpy()
        moving = operation[self.moves[operation]]
        kinds = self._moving_kinds(moving)
        for kind in distinct(kinds).tolist():
            by_start = moving[kinds == kind]
            by_end = by_start[np.argsort(end[by_start])]
            begun = np.searchsorted(start[by_start], spans.end)
            ended = np.searchsorted(end[by_end], spans.start, side="right")
            size_by_start, took_by_start = self._moved_by(by_start)
            size_by_end, took_by_end = self._moved_by(by_end)
            size = _sum_of_first(begun, size_by_start) - _sum_of_first(ended, size_by_end)
            took = _sum_of_first(begun, took_by_start) - _sum_of_first(ended, took_by_end)
            rows = np.flatnonzero((spans.end > spans.start) & ((size > 0) | (took > 0)))
            same_kind = np.full(len(rows), kind)
            self._add(_added_up(spans.window[rows], same_kind, size=size[rows], took=took[rows]))

    def _moving_kinds(self, operation: np.ndarray) -> np.ndarray:
        """Return the kind of each copy or memset, which has no detail and no lane."""
        cause = self.operations["kind"].to_numpy()[operation]
        zero = np.zeros_like(operation)
        return np.ravel_multi_index((cause, zero, zero, self._moved[operation]), self._shape)

    def _moved_by(self, operation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (how many bytes each operation moved, how long (ns) it took)."""
        start = self.operations["start_ns"].to_numpy()[operation]
        end = self.operations["end_ns"].to_numpy()[operation]
        return self.operations["bytes"].to_numpy()[operation], end - start

    def _add(self, sums: _Sums) -> None:
        self._sums.append(self._of_few_streams(sums))

    def _of_few_streams(self, sums: _Sums) -> _Sums:
        """Return the sums, in which at most MOST_STREAMS of each window name a stream.

        The longest ones of a window keep their streams; the others are added up without a stream.
        Otherwise hundreds of streams that wait for each other would have as many sums as there are
        pairs of streams.
        """
        _, _, lane_code, _ = np.unravel_index(sums.kind, self._shape)  # 0 for no lane
        with_lane = np.flatnonzero(lane_code > 0)
        if len(distinct(lane_code[with_lane])) <= MOST_STREAMS:
            return sums
        # by window, the longest sum of each first
        keys = (sums.kind[with_lane], -sums.ns[with_lane], sums.window[with_lane])
        order = with_lane[np.lexsort(keys)]
        window = sums.window[order]
        first_of_window = np.searchsorted(window, window)
        rank = np.arange(len(order)) - first_of_window  # in its window, 0 for the longest
        shorter = order[rank >= MOST_STREAMS]
        step = int(np.prod(self._shape[3:]))  # from the kinds of one lane to those of the next
        kind = sums.kind.copy()
        kind[shorter] -= lane_code[shorter] * step  # the same kind without a lane
        return _added_up(sums.window, kind, sort=True, ns=sums.ns, size=sums.size, took=sums.took)

    def table(self) -> pd.DataFrame:
        """Return `frames.DETAILS` of everything that was added; this can be done once."""
        by_kind = self._of_few_streams(_Sums.joined(self._sums))
        self._sums = []
        kinds = distinct(by_kind.kind)
        words_of_kind = self._described(kinds)
        words = sorted(set(words_of_kind))
        number_of = {word: number for number, word in enumerate(words)}
        number_of_kind = np.array([number_of[word] for word in words_of_kind], np.int64)
        # several kinds may have the same words: these are added up
        number = number_of_kind[np.searchsorted(kinds, by_kind.kind)]
        sums = _added_up(
            by_kind.window, number, sort=True, ns=by_kind.ns, size=by_kind.size, took=by_kind.took
        )
        return _details_table(sums.take(np.flatnonzero(sums.ns != 0)), words)

    def _described(self, kinds: np.ndarray) -> list[tuple[str, str, str, str, int, str]]:
        """Return the columns `_WORDS` of each kind."""
        streams = np.append(self.lanes["stream"], -1)  # lane code 0 takes the -1 at the end
        words = []
        codes = np.transpose(np.unravel_index(kinds, self._shape))
        for cause, detail, lane_code, text in codes.tolist():
            name, direction, memory = self._texts[text]
            operation = name if cause == CAUSE["queued"] else ""
            if (direction and detail) or operation or not text:
                name = DETAILS[detail]
            stream = int(streams[lane_code - 1])
            words.append((CAUSES[cause], name, direction, memory, stream, operation))
        return words


def _details_table(sums: _Sums, words: list[tuple[str, str, str, str, int, str]]) -> pd.DataFrame:
    """Return `frames.DETAILS` of sums.

    words: the columns `_WORDS`; `sums.kind` is an index of these
    """
    columns = pd.DataFrame(words, columns=_WORDS)
    stream = columns.pop("stream").to_numpy(dtype=np.int64)[sums.kind]
    # bytes per nanosecond are GB per second
    unknown = np.full(len(sums.ns), np.nan)
    rate = np.divide(sums.size, sums.took, out=unknown, where=sums.took > 0)
    table = {name: frames.texts(sums.kind, columns[name].tolist()) for name in columns}
    numbers = {"interval": sums.window, "stream": stream, "bytes": sums.size}
    table |= {name: frames.narrow(values) for name, values in numbers.items()}
    table |= {"ns": sums.ns, "bandwidth_gb_s": rate}
    return frames.check(pd.DataFrame(table, copy=False), frames.DETAILS, narrow=True)
