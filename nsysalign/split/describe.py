"""Pieces as the tables users read: segments and details, with references into nsys's own tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import one_of
from nsysalign.model import CAUSES, KIND, MIGRATIONS, OPERATION_KINDS, Alignment, Trace
from nsysalign.split.pieces import CAUSE, DETAIL, OPERATION_REFS, REF, REF_KINDS, Pieces

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


def merged(p: Pieces) -> Pieces:
    """Joins touching pieces with the same cause, reference and detail: these are the segments."""
    same = np.zeros(len(p), dtype=bool)
    same[1:] = (
        (p.window[1:] == p.window[:-1])
        & (p.end[:-1] == p.start[1:])
        & (p.cause[1:] == p.cause[:-1])
        & (p.ref_kind[1:] == p.ref_kind[:-1])
        & (p.ref[1:] == p.ref[:-1])
        & (p.detail[1:] == p.detail[:-1])
    )
    first = np.flatnonzero(~same)
    last = np.append(first[1:], len(p)) - 1
    return replace(p.take(first), end=p.end[last]) if len(p) else p


def segments(trace: Trace, alignment: Alignment, p: Pieces) -> pd.DataFrame:
    """Pieces as the table `segments` that users read."""
    if not len(p):
        return frames.empty(frames.SEGMENTS)
    p = merged(p)
    return frames.check(
        pd.DataFrame(
            {
                "interval": p.window,
                "start_ns": p.start,
                "end_ns": p.end,
                "cause": np.array(CAUSES, dtype=object)[p.cause],
                "ref_kind": np.array(REF_KINDS, dtype=object)[p.ref_kind],
                "ref_id": ref_ids(trace, alignment, p.ref_kind, p.ref),
                "detail": words(trace, alignment, p),
            }
        ),
        frames.SEGMENTS,
    )


@dataclass(frozen=True)
class Segments:
    """Segments of some intervals, for rules: arrays of equal length, sorted by interval and
    time."""

    interval: np.ndarray
    ns: np.ndarray
    cause: np.ndarray  # code into CAUSES
    ref_id: np.ndarray
    words: Callable[[np.ndarray], np.ndarray]  # the segments at these positions in words

    def __len__(self) -> int:
        return len(self.ns)

    def of_cause(self, *causes: str) -> np.ndarray:
        """Mask of the segments with one of these causes."""
        return one_of(self.cause, [CAUSE[c] for c in causes])

    @cached_property
    def run(self) -> np.ndarray:
        """The number of the idle stretch, -1 for work:

        kernel | host launch latency | kernel | sync host launch latency | kernel
          -1   |  0    0      0      |   -1   |  1    1     1      1     |   -1
        """
        idle = ~self.of_cause(*OPERATION_KINDS)
        begins = idle.copy()
        begins[1:] &= ~idle[:-1] | (self.interval[1:] != self.interval[:-1])
        return np.where(idle, np.cumsum(begins) - 1, -1)

    def each(self) -> Iterator[Segments]:
        """Those of every interval that has any."""
        edges = [*np.flatnonzero(np.diff(self.interval, prepend=-1)).tolist(), len(self)]
        for begin, end in pairwise(edges):
            some = slice(begin, end)
            yield Segments(
                interval=self.interval[some],
                ns=self.ns[some],
                cause=self.cause[some],
                ref_id=self.ref_id[some],
                words=partial(self._words_after, begin),
            )

    def _words_after(self, begin: int, index: np.ndarray) -> np.ndarray:
        return self.words(begin + index)


def segment_arrays(trace: Trace, alignment: Alignment, p: Pieces) -> Segments:
    """The same as arrays; the text is only made for the rows that are shown."""
    p = merged(p)
    return Segments(
        p.window,
        p.end - p.start,
        p.cause,
        ref_ids(trace, alignment, p.ref_kind, p.ref),
        lambda index: words(trace, alignment, p.take(index)),
    )


def ref_ids(trace: Trace, alignment: Alignment, kind: np.ndarray, ref: np.ndarray) -> np.ndarray:
    """Positions to rowids of the nsys tables (seq for records)."""
    out = np.full(len(ref), -1, dtype=np.int64)
    tables = [
        (np.isin(kind, OPERATION_REFS), trace.operations, "row"),
        (kind == REF["api"], trace.calls, "row"),
        (kind == REF["nvtx"], trace.ranges, "row"),
        (kind == REF["overhead"], trace.overhead, "row"),
        (kind == REF["event"], alignment.records, "seq"),
    ]
    for mask, frame, column in tables:
        mask = mask & (ref >= 0)
        out[mask] = frame[column].to_numpy()[ref[mask]]
    return out


def _each(codes: np.ndarray, text: Callable[[int], str]) -> np.ndarray:
    """The text of each code, asked for once per code."""
    values, inverse = np.unique(codes, return_inverse=True)
    return np.array([text(code) for code in values.tolist()], dtype=object)[inverse]


def operation_names(trace: Trace, position: np.ndarray) -> np.ndarray:
    """Operations in words: kernel names; direction and memory of copies."""
    operations = trace.operations
    kind, name = (operations[c].to_numpy()[position] for c in ("kind", "name_id"))
    out = _each(kind, lambda k: {KIND["graph"]: "CUDA graph", KIND["memset"]: "memset"}.get(k, ""))
    kernels, copies = (np.flatnonzero(kind == KIND[k]) for k in ("kernel", "memcpy"))
    out[kernels] = _each(name[kernels], lambda n: trace.names.get(n, "kernel"))
    if len(copies):
        direction, memory = copy_words(trace, position[copies])
        pages = np.isin(operations["copy_kind"].to_numpy()[position[copies]], MIGRATIONS)
        way = pd.Series(direction, dtype=object).str.removeprefix("UVM ").to_numpy()
        out[copies] = np.where(pages, "page migration " + way, "copy " + direction + " " + memory)
    return out


def copy_words(trace: Trace, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(direction, memory on the host side) of copies."""
    copy, source, target = (
        trace.operations[c].to_numpy()[position] for c in ("copy_kind", "src_kind", "dst_kind")
    )
    side = np.where(copy == 1, source, target)
    return (
        _each(copy, lambda code: DIRECTION.get(code, f"kind {code}")),
        _each(side, lambda code: MEMORY.get(code, "unknown")),
    )


def call_names(trace: Trace, position: np.ndarray) -> np.ndarray:
    """Names of calls."""
    names = trace.calls["name_id"].to_numpy()[position]
    return _each(names, lambda n: trace.names.get(n, "CUDA call"))


def ref_names(trace: Trace, kind: np.ndarray, ref: np.ndarray) -> np.ndarray:
    """What pieces point to, in words."""
    out = np.full(len(ref), "", dtype=object)
    ranges, overhead = trace.ranges["text"], trace.overhead["name_id"].to_numpy()
    for kinds, named in (
        (OPERATION_REFS, lambda at: operation_names(trace, at)),
        ((REF["api"],), lambda at: call_names(trace, at)),
        ((REF["nvtx"],), lambda at: ranges.to_numpy(dtype=object)[at]),
        (
            (REF["overhead"],),
            lambda at: _each(overhead[at], lambda n: trace.names.get(n, "profiler")),
        ),
    ):
        mine = np.flatnonzero(np.isin(kind, kinds) & (ref >= 0))
        if len(mine):
            out[mine] = named(ref[mine])
    out[kind == REF["event"]] = "event record"
    return out


_PREFIX = {
    DETAIL["staging"]: "staging of ",
    DETAIL["dependency"]: "waits for ",
    DETAIL["dependency-inferred"]: "waits (inferred) for ",
    DETAIL["default-stream-order"]: "ordered behind ",
    DETAIL["contention"]: "contends with ",
    DETAIL["full-queue"]: "launch queue full: ",
    DETAIL["earlier-work"]: "earlier work: ",
    DETAIL["no-api-row"]: "no API row for ",
}


def words(trace: Trace, alignment: Alignment, p: Pieces) -> np.ndarray:
    """Each piece in words."""
    cause, kind, ref, detail, lane = p.cause, p.ref_kind, p.ref, p.detail, p.lane
    names = ref_names(trace, kind, ref)
    prefix = _each(detail, lambda code: _PREFIX.get(code, ""))
    prefix[(cause == CAUSE["launch_latency"])] = "on the way: "
    out = prefix + names
    on = lane >= 0
    if on.any():
        streams = alignment.lanes["stream"].to_numpy()[lane[on]]
        out[on] += _each(streams, " (stream {})".format)
    return out
