"""Pieces of windows: flat arrays of what each stretch of time was; and what they become: sums,
segments, and words with references into nsys's own tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import Columns, distinct, ragged
from nsysalign.model import (
    CAUSES,
    KIND,
    MIGRATIONS,
    MOST_STREAMS,
    OPERATION_KINDS,
    WITH_A_NAME,
    Alignment,
    Trace,
)

CAUSE = {name: code for code, name in enumerate(CAUSES)}
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
class Pieces(Columns):
    """Arrays of equal length.  `ref` is a position: in operations (kernel .. memset), calls (api),
    ranges (nvtx), overhead, or records (event); `stream` the lane waited for (queued), -1
    otherwise."""

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    cause: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray
    detail: np.ndarray
    lane: np.ndarray


_TYPES = dict.fromkeys(("cause", "ref_kind", "detail"), np.int8)


def make(
    window, start, end, cause, ref_kind=REF[""], ref=-1, detail=0, lane=-1, *, where=None
) -> Pieces:
    """Pieces from arrays or constants (which take no memory); `where`: only the rows of the arrays
    that this mask, or these positions, select."""
    given = (window, start, end, cause, ref_kind, ref, detail, lane)
    if where is not None:
        given = tuple(value if np.ndim(value) == 0 else value[where] for value in given)
    columns = {}
    for name, value in zip(Pieces.__dataclass_fields__, given, strict=True):
        dtype = _TYPES.get(name, np.int64)
        constant = np.ndim(value) == 0
        columns[name] = (
            np.broadcast_to(dtype(value), len(given[0])) if constant else np.asarray(value, dtype)
        )
    return Pieces(**columns)


def join(parts: list[Pieces]) -> Pieces:
    """All pieces of some parts, sorted by window and time."""
    nothing = np.empty(0, np.int64)
    whole = Pieces.joined(parts or [make(nothing, nothing, nothing, cause=0)])
    order = np.argsort(whole.start, kind="stable")
    return whole.take(order[np.argsort(whole.window[order], kind="stable")])


@dataclass(frozen=True)
class Segments:
    """Segments of some intervals: arrays of equal length, sorted by interval and time."""

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
    for of, rowid in (
        (0, trace.operations["row"]),
        (REF["api"], trace.calls["row"]),
        (REF["nvtx"], trace.ranges["row"]),
        (REF["overhead"], trace.overhead["row"]),
        (REF["event"], alignment.records["seq"]),
    ):
        those = np.flatnonzero((kind == of) & (pieces.ref >= 0))
        out[those] = rowid.to_numpy()[pieces.ref[those]]
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
    kind, name = (operations[c].to_numpy()[position] for c in ("kind", "name_id"))
    out = _each(kind, lambda k: {KIND["graph"]: "CUDA graph", KIND["memset"]: "memset"}.get(k, ""))
    kernels, copies = (np.flatnonzero(kind == KIND[k]) for k in ("kernel", "memcpy"))
    out[kernels] = _each(name[kernels], lambda n: trace.names.get(n, "kernel"))
    if len(copies):
        copy = operations["copy_kind"].to_numpy()[position[copies]]
        direction = _each(copy, lambda code: DIRECTION.get(code, f"kind {code}"))
        side = host_side(operations, position[copies])
        memory = _each(side, lambda code: MEMORY.get(code, "unknown"))
        way = pd.Series(direction, dtype=object).str.removeprefix("UVM ").to_numpy()
        moved = "copy " + direction + " " + memory
        out[copies] = np.where(np.isin(copy, MIGRATIONS), "page migration " + way, moved)
    return out


def host_side(operations: pd.DataFrame, position: np.ndarray) -> np.ndarray:
    """CUPTI's code of the memory on the host side of copies."""
    copy, source, target = (
        operations[c].to_numpy()[position] for c in ("copy_kind", "src_kind", "dst_kind")
    )
    return np.where(copy == 1, source, target)


def call_names(trace: Trace, position: np.ndarray) -> np.ndarray:
    """Names of calls."""
    names = trace.calls["name_id"].to_numpy()[position]
    return _each(names, lambda n: trace.names.get(n, "CUDA call"))


def words(trace: Trace, alignment: Alignment, pieces: Pieces) -> np.ndarray:
    """Each piece in words."""
    kind, ref = pieces.ref_kind, pieces.ref
    name = np.full(len(ref), "", dtype=object)
    operations = np.flatnonzero((kind < WORK) & (ref >= 0))
    name[operations] = operation_names(trace, ref[operations])
    api, nvtx, overhead = (
        np.flatnonzero((kind == REF[of]) & (ref >= 0)) for of in ("api", "nvtx", "overhead")
    )
    name[api] = call_names(trace, ref[api])
    name[nvtx] = trace.ranges["text"].iloc[ref[nvtx]].to_numpy(dtype=object)
    work = trace.overhead["name_id"].to_numpy()[ref[overhead]]
    name[overhead] = _each(work, lambda n: trace.names.get(n, "profiler"))
    name[kind == REF["event"]] = "event record"
    prefix = _each(pieces.detail, lambda code: _PREFIX[DETAILS[code]])
    prefix[pieces.cause == CAUSE["launch_latency"]] = "on the way: "
    out = prefix + name
    on = np.flatnonzero(pieces.lane >= 0)
    streams = alignment.lanes["stream"].to_numpy()[pieces.lane[on]]
    out[on] += _each(streams, " (stream {})".format)
    return out


def _added_up(rows: np.ndarray) -> np.ndarray:
    """Rows of window, kind and sums with those of one window and kind as one."""
    pairs, row = np.unique(rows[:2], axis=1, return_inverse=True)
    out = np.concatenate([pairs, np.zeros((len(rows) - 2, pairs.shape[1]), np.int64)])
    for total, column in zip(out[2:], rows[2:], strict=True):
        np.add.at(total, row.ravel(), column)
    return out


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

    What is added is in windows already, or it is what all windows of a stream share: then the spans
    of these (their numbers, starts and ends) are given beside it.
    """

    def __init__(self, trace: Trace, alignment: Alignment, last_on: LastOn) -> None:
        """`last_on`: the last operations of lanes that had ended at some times."""
        names, operations = trace.names, trace.operations
        kind = operations["kind"].to_numpy()
        self.operations, self.lanes = operations, alignment.lanes
        self.moves = np.isin(kind, [KIND["memcpy"], KIND["memset"]])
        #: Rows of window, kind, ns, bytes, and duration of what moved these.
        self._rows = [np.empty((5, 0), np.int64)]
        #: Detail, direction and memory by number, and for what pieces point to, these numbers.
        self._texts = [("", "", "")]
        self._numbers = {}
        for ref, column, name in (
            ("api", trace.calls["name_id"], lambda n: names.get(n, "CUDA call")),
            ("overhead", trace.overhead["name_id"], lambda n: names.get(n, "profiler")),
            ("nvtx", trace.ranges["text"], str),
        ):
            code, values = pd.factorize(column)
            self._numbers[REF[ref]] = (code + len(self._texts)).astype(np.int32)
            self._texts += [(name(value), "", "") for value in values.tolist()]
        copies = np.flatnonzero(kind == KIND["memcpy"])
        way, ways = pd.factorize(operations["copy_kind"].to_numpy()[copies])
        side, sides = pd.factorize(host_side(operations, copies))
        #: The same for operations that move something.
        self._moved = np.zeros(len(kind), np.int32)
        self._moved[copies] = len(self._texts) + way * len(sides) + side
        self._numbers |= dict.fromkeys((REF["memcpy"], REF["memset"]), self._moved)
        self._texts += [
            ("copy", DIRECTION.get(way, f"kind {way}"), MEMORY.get(side, "unknown"))
            for way in ways.tolist()
            for side in sides.tolist()
        ]
        code, example = operation_codes(operations)
        #: The number of each operation's name, for what was waited for.
        self._operation = (code + len(self._texts)).astype(np.int32)
        self._texts += [(name, "", "") for name in operation_names(trace, example).tolist()]
        self._last_on = last_on
        self._shape = (len(CAUSES), len(DETAILS), len(self.lanes) + 1, len(self._texts))

    def add(self, pieces: Pieces, spans: tuple[np.ndarray, ...] = ()) -> None:
        """Nanoseconds of pieces.  With `spans`: what of these pieces, sorted and disjoint, lies in
        each."""
        look = _LOOK[pieces.cause, pieces.ref_kind]
        rows = np.flatnonzero((look != 0) & ((pieces.ref >= 0) | (look == _ANYWAY)))
        look, ref, text = look[rows], pieces.ref[rows], np.zeros(len(rows), np.int64)
        for ref_kind, numbers in self._numbers.items():
            own = np.flatnonzero(look == ref_kind)
            text[own] = numbers[ref[own]]
        waits = np.flatnonzero(pieces.cause[rows] == CAUSE["queued"])
        text[waits] = self._waited_for(pieces, rows[waits])
        columns = (c[rows] for c in (pieces.cause, pieces.detail, pieces.lane + 1))
        kind = np.ravel_multi_index((*columns, text), self._shape)
        window, begin, over = (c[rows] for c in (pieces.window, pieces.start, pieces.end))
        if spans:
            window, start, end = spans
            first, last = np.searchsorted(over, start, side="right"), np.searchsorted(begin, end)
            owner, piece = ragged(first, np.maximum(last - first, 0))
            window, kind = window[owner], kind[piece]
            begin, over = (
                np.maximum(begin[piece], start[owner]),
                np.minimum(over[piece], end[owner]),
            )
        self._sum(window, kind, over - begin)

    def _waited_for(self, pieces: Pieces, rows: np.ndarray) -> np.ndarray:
        """The number of the name of the operation that each piece waited for, 0 where it is not known: it
        points to it, or to a record, behind the last operation of that stream."""
        ref = np.where(pieces.ref_kind[rows] < WORK, pieces.ref[rows], -1)
        of_record = np.flatnonzero(
            (pieces.ref_kind[rows] == REF["event"]) & (pieces.lane[rows] >= 0)
        )
        if len(of_record):
            lanes, ends = pieces.lane[rows[of_record]], pieces.end[rows[of_record]]
            ref[of_record] = self._last_on(lanes, ends)
        return np.where(ref >= 0, self._operation[ref], 0) if len(self._operation) else ref * 0

    def add_moved(self, operation, window=None, spans: tuple[np.ndarray, ...] = ()) -> None:
        """Bytes that the copies and memsets among these operations moved in the window beside each,
        and how long that took.  With `spans`: of operations sorted by start, those that touch each:
        which began before its end, without those that were over at its start."""
        some = np.flatnonzero(self.moves[operation])
        operation = operation[some]
        names = ("kind", "bytes", "start_ns", "end_ns")
        code, size, begun, over = (self.operations[c].to_numpy()[operation] for c in names)
        nothing = np.zeros_like(operation)  # no detail, no lane
        columns = (code, nothing, nothing, self._moved[operation])
        kinds = np.ravel_multi_index(columns, self._shape)
        if not spans:
            self._sum(window[some], kinds, 0, size, over - begun)
            return
        window, start, end = spans
        for kind in distinct(kinds).tolist():
            those = np.flatnonzero(kinds == kind)
            ended = those[np.argsort(over[those])]
            first = np.searchsorted(over[ended], start, side="right")
            last = np.searchsorted(begun[those], end)
            moved, took = (
                np.append(0, np.cumsum(v[those]))[last] - np.append(0, np.cumsum(v[ended]))[first]
                for v in (size, over - begun)
            )
            some = np.flatnonzero((end > start) & ((moved > 0) | (took > 0)))
            self._sum(window[some], np.full(len(some), kind), 0, moved[some], took[some])

    def _sum(self, window, kind, ns, size=0, took=0) -> None:
        kinds, values = pd.factorize(kind)
        row, pairs = pd.factorize(window * len(values) + kinds)
        sums = np.zeros((5, len(pairs)), np.int64)
        sums[0], sums[1] = pairs // max(len(values), 1), values[pairs % max(len(values), 1)]
        for total, column in zip(sums[2:], (ns, size, took), strict=True):
            if np.ndim(column):
                np.add.at(total, row, column)
        self._rows.append(self._of_few_streams(sums))

    def _of_few_streams(self, sums: np.ndarray) -> np.ndarray:
        """The same rows; of those of a window that name a stream, the longest MOST_STREAMS go on naming
        it: with hundreds of streams that wait for each other they are the square of these."""
        lane = np.unravel_index(sums[1], self._shape)[2]
        named = np.flatnonzero(lane > 0)
        if len(distinct(lane[named])) <= MOST_STREAMS:
            return sums
        order = named[np.lexsort((sums[1][named], -sums[2][named], sums[0][named]))]
        window = sums[0][order]
        rank = np.arange(len(order)) - np.searchsorted(window, window)
        nameless = order[rank >= MOST_STREAMS]
        step = int(np.prod(self._shape[3:]))  # between kinds of one stream and the next
        sums[1, nameless] -= lane[nameless] * step
        return _added_up(sums)

    def table(self) -> pd.DataFrame:
        """`frames.DETAILS` of everything that was added, once."""
        rows, self._rows = np.concatenate(self._rows, axis=1), []
        rows = self._of_few_streams(rows)
        kinds = distinct(rows[1])
        streams, words = np.append(self.lanes["stream"], -1), []
        for cause, detail, lane, text in np.transpose(
            np.unravel_index(kinds, self._shape)
        ).tolist():
            name, direction, memory = self._texts[text]
            operation = name if cause == CAUSE["queued"] else ""
            name = DETAILS[detail] if (direction and detail) or operation or not text else name
            stream = int(streams[lane - 1])
            words.append((CAUSES[cause], name, direction, memory, stream, operation))
        ordered = sorted(set(words))
        place = {word: n for n, word in enumerate(ordered)}
        rank = np.array([place[word] for word in words], np.int64)
        # rows of one interval and kind are added up
        key = rows[0] * len(ordered) + rank[np.searchsorted(kinds, rows[1])]
        row, pairs = pd.factorize(key, sort=True)
        ns, size, took = (np.zeros(len(pairs), np.int64) for _ in range(3))
        for total, column in zip((ns, size, took), rows[2:], strict=True):
            np.add.at(total, row, column)
        del rows, key, row
        some = np.flatnonzero(ns != 0)
        interval, kind = np.divmod(pairs[some], max(len(ordered), 1))
        named = pd.DataFrame(ordered, columns=_WORDS)
        stream = named.pop("stream").to_numpy(dtype=np.int64)[kind]
        size, took = size[some], took[some]
        # bytes per nanosecond are GB per second
        rate = np.divide(size, took, out=np.full(len(some), np.nan), where=took > 0)
        table = {name: frames.texts(kind, named[name].tolist()) for name in named}
        numbers = {"interval": interval, "stream": stream, "bytes": size}
        table |= {name: frames.narrow(values) for name, values in numbers.items()}
        table |= {"ns": ns[some], "bandwidth_gb_s": rate}
        return frames.check(pd.DataFrame(table, copy=False), frames.DETAILS, narrow=True)
