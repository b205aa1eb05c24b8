"""Pieces of windows, and what is made of them: segments and words.

piece     a stretch of a window with one cause; pieces are columns of arrays, and tile their window
segment   neighbouring pieces that say the same, joined
cause     what the time went to, as a code: an index of CAUSES
detail    how the cause came about where the cause alone does not say it: an index of DETAILS
ref       what a piece points to: `ref_kind` names the table (an index of REF_KINDS), `ref` the row
lane      a stream of one process: a row of `alignment.lanes`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.causes import CAUSE
from nsysalign.intervals import Columns
from nsysalign.model import KIND, MIGRATIONS, OPERATION_KINDS, Alignment, Trace

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


def points_to_operations(pieces: Pieces) -> np.ndarray:
    """Return, per piece, whether what it points to is a row of the trace's operations: `ref_kind` begins with their kinds."""
    return pieces.ref_kind < WORK


def make(
    spans: Spans,
    cause: Any,
    *,
    ref_kind: Any = REF[""],
    ref: Any = -1,
    detail: Any = 0,
    lane: Any = -1,
) -> Pieces:
    """Return a piece for each span: a stretch of a window's time with its cause, and what it points to.

    spans: the stretches of windows
    cause, ref_kind, ref, detail, lane: the other columns of `Pieces`, each an array with a value per span, or one value
        for all pieces, which takes no memory

    make(spans, CAUSE["host"]): a piece of the cause `host` for each span, which points to nothing
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
    # all kinds of operations are 0 here
    kind = np.where(points_to_operations(pieces), 0, pieces.ref_kind)
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
    copy = "copy " + direction + " " + memory
    migrates = np.isin(copy_kind, MIGRATIONS)
    if not migrates.any():
        return copy
    without_uvm = np.array([text.removeprefix("UVM ") for text in direction], dtype=object)
    return np.where(migrates, "page migration " + without_uvm, copy)


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
    """Return each piece in words, a text each: a prefix by its detail, the name of the operation, call or range that it
    points to, and the stream that it waits for: "contends with gemm (stream 13)", "" for a piece that points to nothing.
    """
    ref = pieces.ref

    def pointing(is_kind: np.ndarray) -> np.ndarray:
        """Return the positions of the pieces of this kind that point to something."""
        return np.flatnonzero(is_kind & (ref >= 0))

    name = np.full(len(ref), "", dtype=object)
    to_operations = pointing(points_to_operations(pieces))
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
