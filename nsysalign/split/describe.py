"""Pieces as the tables users read: segments and details, with references into nsys's own tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import CAUSES, KIND, MIGRATIONS, OPERATION_KINDS, Alignment, Trace
from nsysalign.split.pieces import CAUSE, DETAIL, OPERATION_REFS, REF, REF_KINDS, Pieces
from nsysalign.tiles import one_of

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


def operation_names(trace: Trace, position: np.ndarray) -> np.ndarray:
    """Operations in words: kernel names; direction and memory of copies."""
    operations = trace.operations
    kind, name = operations["kind"].to_numpy()[position], operations["name_id"].to_numpy()[position]
    out = np.full(len(position), "", dtype=object)
    for code in np.unique(name[kind == KIND["kernel"]]):
        out[(kind == KIND["kernel"]) & (name == code)] = trace.names.get(int(code), "kernel")
    out[kind == KIND["graph"]] = "CUDA graph"
    out[kind == KIND["memset"]] = "memset"
    copies = np.flatnonzero(kind == KIND["memcpy"])
    if len(copies):
        direction, memory = copy_words(trace, position[copies])
        pages = np.isin(operations["copy_kind"].to_numpy()[position[copies]], MIGRATIONS)
        out[copies] = np.where(
            pages,
            "page migration "
            + pd.Series(direction, dtype=object).str.removeprefix("UVM ").to_numpy(),
            "copy " + direction + " " + memory,
        )
    return out


def copy_words(trace: Trace, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(direction, memory on the host side) of operations, '' for operations other than copies."""
    operations = trace.operations
    kind, copy = (
        operations["kind"].to_numpy()[position],
        operations["copy_kind"].to_numpy()[position],
    )
    side = np.where(
        copy == 1,
        operations["src_kind"].to_numpy()[position],
        operations["dst_kind"].to_numpy()[position],
    )
    is_copy = kind == KIND["memcpy"]
    direction, memory = (
        np.full(len(position), "", dtype=object),
        np.full(len(position), "", dtype=object),
    )
    for code in np.unique(copy[is_copy]):
        direction[is_copy & (copy == code)] = DIRECTION.get(int(code), f"kind {code}")
    for code in np.unique(side[is_copy]):
        memory[is_copy & (side == code)] = MEMORY.get(int(code), "unknown")
    return direction, memory


def call_names(trace: Trace, position: np.ndarray) -> np.ndarray:
    ids, inverse = np.unique(trace.calls["name_id"].to_numpy()[position], return_inverse=True)
    return (
        np.array([trace.names.get(int(i), "CUDA call") for i in ids], dtype=object)[inverse]
        if len(ids)
        else np.empty(0, object)
    )


def ref_names(trace: Trace, kind: np.ndarray, ref: np.ndarray) -> np.ndarray:
    out = np.full(len(ref), "", dtype=object)
    mask = np.isin(kind, OPERATION_REFS) & (ref >= 0)
    out[mask] = operation_names(trace, ref[mask])
    mask = (kind == REF["api"]) & (ref >= 0)
    out[mask] = call_names(trace, ref[mask])
    mask = (kind == REF["nvtx"]) & (ref >= 0)
    out[mask] = trace.ranges["text"].to_numpy(dtype=object)[ref[mask]]
    mask = (kind == REF["overhead"]) & (ref >= 0)
    out[mask] = np.array(
        [
            trace.names.get(int(i), "profiler")
            for i in trace.overhead["name_id"].to_numpy()[ref[mask]]
        ],
        dtype=object,
    )
    mask = kind == REF["event"]
    out[mask] = "event record"
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
    prefix = np.full(len(names), "", dtype=object)
    for code, text in _PREFIX.items():
        prefix[detail == code] = text
    prefix[(cause == CAUSE["launch_latency"])] = "on the way: "
    out = prefix + names
    on = lane >= 0
    if on.any():
        streams = alignment.lanes["stream"].to_numpy()[lane[on]]
        out[on] = out[on] + np.array([f" (stream {s})" for s in streams.tolist()], dtype=object)
    return out
