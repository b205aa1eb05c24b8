"""Pieces of windows: flat arrays of what each stretch of time was; and what they become: sums,
segments, and words with references into nsys's own tables."""

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
#: Both begin with the kinds of operations: a code below this is that of a kind.
WORK = len(OPERATION_KINDS)

#: How a cause came about, where the cause alone does not say it; and how the words of such a piece
#: begin.
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
    """Stretches of windows: arrays of equal length."""

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class Pieces(Columns):
    """Arrays of equal length.  `ref` is a position: in operations (kernel .. memset), calls (api),
    ranges (nvtx), overhead, or records (event); `lane`: the stream waited for (queued), -1
    otherwise."""

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
    """A piece for each span, from arrays or from constants (which take no memory)."""
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
    """All pieces of the parts, sorted by window and time."""
    if not parts:
        empty = np.empty(0, np.int64)
        return make(Spans(empty, empty, empty), cause=0)
    whole = Pieces.joined(parts)
    order = np.argsort(whole.start, kind="stable")
    return whole.take(order[np.argsort(whole.window[order], kind="stable")])


@dataclass(frozen=True)
class Segments:
    """Segments of intervals: arrays of equal length, sorted by interval and time."""

    interval: np.ndarray
    start: np.ndarray
    ns: np.ndarray
    cause: np.ndarray  # code into CAUSES
    ref_kind: np.ndarray  # code into REF_KINDS
    ref_id: np.ndarray
    words: Callable[[np.ndarray], np.ndarray]  # the segments at these positions in words

    def of_cause(self, *causes: str) -> np.ndarray:
        """Mask of the segments with one of these causes."""
        return np.isin(self.cause, [CAUSE[c] for c in causes])

    @cached_property
    def run(self) -> np.ndarray:
        """The number of the idle stretch, -1 for work:

        kernel | host launch latency | kernel | sync host launch latency | kernel
          -1   |  0    0      0      |   -1   |  1    1     1      1     |   -1
        """
        idle = self.cause >= WORK
        begins = idle.copy()
        begins[1:] &= ~idle[:-1] | (self.interval[1:] != self.interval[:-1])
        return np.where(idle, np.cumsum(begins) - 1, -1)


def ref_ids(trace: Trace, alignment: Alignment, pieces: Pieces) -> np.ndarray:
    """What pieces point to: rowids of the nsys tables (seq for records), -1 for nothing."""
    out = np.full(len(pieces.ref), -1, dtype=np.int64)
    kind = np.where(pieces.ref_kind < WORK, 0, pieces.ref_kind)
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
    """The text of each code, asked for once per code."""
    values, inverse = np.unique(codes, return_inverse=True)
    return np.array([text(code) for code in values.tolist()], dtype=object)[inverse]


def operation_codes(operations: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """(number of each operation's name, one operation per name)."""
    code = np.zeros(len(operations), np.int64)
    for column in ("kind", "name_id", "copy_kind", "src_kind", "dst_kind"):
        numbers, values = pd.factorize(operations[column].to_numpy())
        if len(values) > 1:
            code = pd.factorize(code * len(values) + numbers)[0]
    # numbers are given in order of appearance: a name's first operation is where the number exceeds
    # all before it
    return code, np.flatnonzero(np.diff(np.maximum.accumulate(code), prepend=-1))


def operation_names(trace: Trace, position: np.ndarray) -> np.ndarray:
    """Operations in words: kernel names; direction and memory of copies."""
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
    """Direction and memory of copies in words."""
    code = operations["copy_kind"].to_numpy()[position]
    direction = _each(code, lambda code: DIRECTION.get(code, f"kind {code}"))
    memory = _each(host_side(operations, position), lambda code: MEMORY.get(code, "unknown"))
    to_and_fro = pd.Series(direction, dtype=object).str.removeprefix("UVM ").to_numpy()
    copy = "copy " + direction + " " + memory
    return np.where(np.isin(code, MIGRATIONS), "page migration " + to_and_fro, copy)


def host_side(operations: pd.DataFrame, position: np.ndarray) -> np.ndarray:
    """CUPTI's code of the memory on the host side of copies."""
    direction = operations["copy_kind"].to_numpy()[position]
    source = operations["src_kind"].to_numpy()[position]
    target = operations["dst_kind"].to_numpy()[position]
    return np.where(direction == 1, source, target)


def call_names(trace: Trace, position: np.ndarray) -> np.ndarray:
    """Names of calls."""
    names = trace.calls["name_id"].to_numpy()[position]
    return _each(names, lambda n: trace.names.get(n, "CUDA call"))


def words(trace: Trace, alignment: Alignment, pieces: Pieces) -> np.ndarray:
    """Each piece in words."""
    ref = pieces.ref

    def that_point_to(kinds: np.ndarray) -> np.ndarray:
        return np.flatnonzero(kinds & (ref >= 0))

    name = np.full(len(ref), "", dtype=object)
    operations = that_point_to(pieces.ref_kind < WORK)
    name[operations] = operation_names(trace, ref[operations])
    calls = that_point_to(pieces.ref_kind == REF["api"])
    name[calls] = call_names(trace, ref[calls])
    ranges = that_point_to(pieces.ref_kind == REF["nvtx"])
    name[ranges] = trace.ranges["text"].iloc[ref[ranges]].to_numpy(dtype=object)
    overhead = that_point_to(pieces.ref_kind == REF["overhead"])
    work = trace.overhead["name_id"].to_numpy()[ref[overhead]]
    name[overhead] = _each(work, lambda n: trace.names.get(n, "profiler"))
    name[pieces.ref_kind == REF["event"]] = "event record"
    prefix = _each(pieces.detail, lambda code: _PREFIX[DETAILS[code]])
    prefix[pieces.cause == CAUSE["launch_latency"]] = "on the way: "
    out = prefix + name
    waits = np.flatnonzero(pieces.lane >= 0)
    streams = alignment.lanes["stream"].to_numpy()[pieces.lane[waits]]
    out[waits] += _each(streams, " (stream {})".format)
    return out


@dataclass(frozen=True)
class _Sums(Columns):
    """What was added up by window and kind: arrays of equal length.  ns; bytes (`size`), and for how
    long (ns) these were moved (`took`)."""

    window: np.ndarray
    kind: np.ndarray
    ns: np.ndarray
    size: np.ndarray
    took: np.ndarray


def _added_up(
    window: np.ndarray, kind: np.ndarray, *, sort: bool = False, **columns: np.ndarray
) -> _Sums:
    """The sums of columns (of `_Sums`, 0 where they are left out) by window and kind, with `sort` in
    ascending order."""
    code, kinds = pd.factorize(kind, sort=sort)
    row, pairs = pd.factorize(window * len(kinds) + code, sort=sort)
    sums = {name: np.zeros(len(pairs), np.int64) for name in ("ns", "size", "took")}
    for name, column in columns.items():
        np.add.at(sums[name], row, column)
    number, code = np.divmod(pairs, max(len(kinds), 1))
    return _Sums(number, kinds[code], **sums)


def _first(count: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The sums of the first so many values."""
    return np.append(0, np.cumsum(values))[count]


#: By cause and what a piece points to: what names it as a detail; 0, it is none; _ANYWAY, it is
#: one whatever it points to.
_ANYWAY = -1
_LOOK = np.zeros((len(CAUSES), len(REF_KINDS)), np.int8)
for _ref in ("api", "nvtx", "overhead"):
    _LOOK[[CAUSE[c] for c in WITH_A_NAME], REF[_ref]] = REF[_ref]
for _moving in ("memcpy", "memset"):
    _LOOK[CAUSE[_moving], :WORK] = REF[_moving]
_LOOK[[CAUSE["queued"], CAUSE["unknown"]]] = _ANYWAY


#: What tells rows of `details` of one interval apart.
_WORDS = ["cause", "detail", "direction", "memory", "stream", "operation"]
#: Lanes and times, arrays of equal length -> positions of operations, -1 for none.
LastOn = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Details:
    """Collects nanoseconds of windows by kind, which is one number until the table is made.

    Pieces and operations that are added are in windows already, or all windows of a stream share them:
    then the spans of the windows come with them.
    """

    def __init__(self, trace: Trace, alignment: Alignment, last_on: LastOn) -> None:
        """`last_on`: the last operations of lanes that had ended at some times."""
        operations = trace.operations
        kind = operations["kind"].to_numpy()
        self.operations = operations
        self.lanes = alignment.lanes
        self.moves = np.isin(kind, [KIND["memcpy"], KIND["memset"]])
        empty = np.empty(0, np.int64)
        self._sums = [_Sums(empty, empty, empty, empty, empty)]
        #: Detail, direction and memory by number, and for what pieces point to, these numbers.
        self._texts = [("", "", "")]
        names = trace.names
        calls = self._numbered(trace.calls["name_id"], lambda n: names.get(n, "CUDA call"))
        overhead = self._numbered(trace.overhead["name_id"], lambda n: names.get(n, "profiler"))
        ranges = self._numbered(trace.ranges["text"], str)
        self._numbers = {REF["api"]: calls, REF["overhead"]: overhead, REF["nvtx"]: ranges}
        copies = np.flatnonzero(kind == KIND["memcpy"])
        direction, directions = pd.factorize(operations["copy_kind"].to_numpy()[copies])
        memory, memories = pd.factorize(host_side(operations, copies))
        #: The number of each operation that moves something.
        self._moved = np.zeros(len(kind), np.int32)
        self._moved[copies] = len(self._texts) + direction * len(memories) + memory
        self._numbers |= {REF["memcpy"]: self._moved, REF["memset"]: self._moved}
        self._texts += [
            ("copy", DIRECTION.get(code, f"kind {code}"), MEMORY.get(side, "unknown"))
            for code in directions.tolist()
            for side in memories.tolist()
        ]
        code, example = operation_codes(operations)
        #: The number of each operation's name, for what was waited for.
        self._operation = (code + len(self._texts)).astype(np.int32)
        self._texts += [(name, "", "") for name in operation_names(trace, example).tolist()]
        self._last_on = last_on
        self._shape = (len(CAUSES), len(DETAILS), len(self.lanes) + 1, len(self._texts))

    def _numbered(self, column: pd.Series, text: Callable[[Any], str]) -> np.ndarray:
        """The number of the text of each row."""
        code, values = pd.factorize(column)
        numbers = (code + len(self._texts)).astype(np.int32)
        self._texts += [(text(value), "", "") for value in values.tolist()]
        return numbers

    def add(self, pieces: Pieces) -> None:
        """Nanoseconds of pieces in their windows."""
        rows, kind = self._kinds(pieces)
        ns = pieces.end[rows] - pieces.start[rows]
        self._add(_added_up(pieces.window[rows], kind, ns=ns))

    def add_shared(self, pieces: Pieces, spans: Spans) -> None:
        """Nanoseconds of what lies in each span of these pieces, which are sorted and disjoint."""
        rows, kind = self._kinds(pieces)
        start, end = pieces.start[rows], pieces.end[rows]
        first = np.searchsorted(end, spans.start, side="right")
        last = np.searchsorted(start, spans.end)
        span, piece = ragged(first, np.maximum(last - first, 0))
        begin = np.maximum(start[piece], spans.start[span])
        over = np.minimum(end[piece], spans.end[span])
        self._add(_added_up(spans.window[span], kind[piece], ns=over - begin))

    def _kinds(self, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
        """(the pieces that are a detail, the kind of each of them)."""
        look = _LOOK[pieces.cause, pieces.ref_kind]
        rows = np.flatnonzero((look != 0) & ((pieces.ref >= 0) | (look == _ANYWAY)))
        look, ref = look[rows], pieces.ref[rows]
        cause = pieces.cause[rows]
        text = np.zeros(len(rows), np.int64)
        for ref_kind, numbers in self._numbers.items():
            named = np.flatnonzero(look == ref_kind)
            text[named] = numbers[ref[named]]
        waits = np.flatnonzero(cause == CAUSE["queued"])
        text[waits] = self._waited_for(pieces, rows[waits])
        columns = (cause, pieces.detail[rows], pieces.lane[rows] + 1, text)
        return rows, np.ravel_multi_index(columns, self._shape)

    def _waited_for(self, pieces: Pieces, rows: np.ndarray) -> np.ndarray:
        """The number of the name of the operation that each piece waited for, 0 where it is not known: it
        points to it, or to a record, behind the last operation of that stream."""
        if not len(self._operation):
            return np.zeros(len(rows), np.int64)
        ref_kind, lane = pieces.ref_kind[rows], pieces.lane[rows]
        ref = np.where(ref_kind < WORK, pieces.ref[rows], -1)
        records = np.flatnonzero((ref_kind == REF["event"]) & (lane >= 0))
        if len(records):
            ref[records] = self._last_on(lane[records], pieces.end[rows[records]])
        return np.where(ref >= 0, self._operation[ref], 0)

    def add_moved(self, operation: np.ndarray, window: np.ndarray) -> None:
        """Bytes that the copies and memsets among these operations moved, each in the window beside
        it, and how long that took."""
        rows = np.flatnonzero(self.moves[operation])
        operation = operation[rows]
        size, took = self._moved_by(operation)
        self._add(_added_up(window[rows], self._moving_kinds(operation), size=size, took=took))

    def add_moved_during(self, operation: np.ndarray, spans: Spans) -> None:
        """The same of operations sorted by start, for each span that they touch: what began before the
        end of the span, without what was over at its start."""
        operation = operation[self.moves[operation]]
        kinds = self._moving_kinds(operation)
        for kind in distinct(kinds).tolist():
            begun = operation[kinds == kind]
            end = self.operations["end_ns"].to_numpy()
            ended = begun[np.argsort(end[begun])]
            first = np.searchsorted(end[ended], spans.start, side="right")
            last = np.searchsorted(self.operations["start_ns"].to_numpy()[begun], spans.end)
            size_begun, took_begun = self._moved_by(begun)
            size_ended, took_ended = self._moved_by(ended)
            size = _first(last, size_begun) - _first(first, size_ended)
            took = _first(last, took_begun) - _first(first, took_ended)
            rows = np.flatnonzero((spans.end > spans.start) & ((size > 0) | (took > 0)))
            constant = np.full(len(rows), kind)
            self._add(_added_up(spans.window[rows], constant, size=size[rows], took=took[rows]))

    def _moving_kinds(self, operation: np.ndarray) -> np.ndarray:
        """The kinds of copies and memsets: no detail, no lane."""
        cause = self.operations["kind"].to_numpy()[operation]
        zero = np.zeros_like(operation)
        return np.ravel_multi_index((cause, zero, zero, self._moved[operation]), self._shape)

    def _moved_by(self, operation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(bytes, ns) of operations."""
        start = self.operations["start_ns"].to_numpy()[operation]
        end = self.operations["end_ns"].to_numpy()[operation]
        return self.operations["bytes"].to_numpy()[operation], end - start

    def _add(self, sums: _Sums) -> None:
        self._sums.append(self._of_few_streams(sums))

    def _of_few_streams(self, sums: _Sums) -> _Sums:
        """The same sums, of which the longest MOST_STREAMS of each window that name a stream still name
        it; shorter ones are added up without a stream.  Hundreds of streams that wait for each other
        would have as many sums as pairs of streams."""
        lane = np.unravel_index(sums.kind, self._shape)[2]
        named = np.flatnonzero(lane > 0)
        if len(distinct(lane[named])) <= MOST_STREAMS:
            return sums
        by_length = (sums.kind[named], -sums.ns[named], sums.window[named])
        order = named[np.lexsort(by_length)]
        window = sums.window[order]
        rank = np.arange(len(order)) - np.searchsorted(window, window)
        nameless = order[rank >= MOST_STREAMS]
        step = int(np.prod(self._shape[3:]))  # between kinds of one stream and the next
        kind = sums.kind.copy()
        kind[nameless] -= lane[nameless] * step
        return _added_up(sums.window, kind, sort=True, ns=sums.ns, size=sums.size, took=sums.took)

    def table(self) -> pd.DataFrame:
        """`frames.DETAILS` of everything that was added, once."""
        sums = self._of_few_streams(_Sums.joined(self._sums))
        self._sums = []
        kinds = distinct(sums.kind)
        described = self._described(kinds)
        words = sorted(set(described))
        place = {word: number for number, word in enumerate(words)}
        number = np.array([place[word] for word in described], np.int64)
        # rows of one interval and the same words are added up
        number = number[np.searchsorted(kinds, sums.kind)]
        sums = _added_up(sums.window, number, sort=True, ns=sums.ns, size=sums.size, took=sums.took)
        return _details_table(sums.take(np.flatnonzero(sums.ns != 0)), words)

    def _described(self, kinds: np.ndarray) -> list[tuple[str, str, str, str, int, str]]:
        """The columns `_WORDS` of each kind."""
        streams = np.append(self.lanes["stream"], -1)
        words = []
        for cause, detail, lane, text in np.transpose(
            np.unravel_index(kinds, self._shape)
        ).tolist():
            name, direction, memory = self._texts[text]
            operation = name if cause == CAUSE["queued"] else ""
            if (direction and detail) or operation or not text:
                name = DETAILS[detail]
            stream = int(streams[lane - 1])
            words.append((CAUSES[cause], name, direction, memory, stream, operation))
        return words


def _details_table(sums: _Sums, words: list[tuple[str, str, str, str, int, str]]) -> pd.DataFrame:
    """`frames.DETAILS` of sums whose kind is the number of their `words`."""
    named = pd.DataFrame(words, columns=_WORDS)
    stream = named.pop("stream").to_numpy(dtype=np.int64)[sums.kind]
    # bytes per nanosecond are GB per second
    unknown = np.full(len(sums.ns), np.nan)
    rate = np.divide(sums.size, sums.took, out=unknown, where=sums.took > 0)
    table = {name: frames.texts(sums.kind, named[name].tolist()) for name in named}
    numbers = {"interval": sums.window, "stream": stream, "bytes": sums.size}
    table |= {name: frames.narrow(values) for name, values in numbers.items()}
    table |= {"ns": sums.ns, "bandwidth_gb_s": rate}
    return frames.check(pd.DataFrame(table, copy=False), frames.DETAILS, narrow=True)
