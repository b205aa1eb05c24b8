"""Windows on a stream (kinds event, nvtx and run): every gap of a stream is explained once, every
window read off running sums.

    window          [-----------------------------------)
    stream    KKKKKK  gap  KKKK  gap  KKKK  gap  KKKK  gap
    shared          [gap   KKKK  gap  KKKK  gap  KKKK)        the same for every window: running sums at two times
    own                                              [gap)    ends with the end record, not with an operation

A gap has one explanation, from its P and N, the operations beside it; a window that cuts it holds a
part of that.  Only what follows the last operation that was issued before a window's end record is
the window's own.  A window at either end of its error bar is a window like all others.

Details: nanoseconds per window and key, and what copies moved.  A key is what a row of them holds
besides its interval and numbers: cause, detail, direction, memory, stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import FAR, Columns, covered, distinct, group, one_of, pick, ragged, tile
from nsysalign.model import CAUSES, KIND, WITH_A_NAME, Alignment, Trace
from nsysalign.split.busy import CALLS_AT_ONCE, Blocks, in_lots
from nsysalign.split.gaps import NEVER, Explainer, Gaps
from nsysalign.split.pieces import (
    CAUSE,
    CAUSE_OF_KIND,
    DETAILS,
    DIRECTION,
    MEMORY,
    OPERATION_REFS,
    REF,
    Pieces,
    host_side,
    join,
    make,
    none,
    sums,
)

#: Blocks of a stream that are explained at once.
_BLOCKS = 1 << 15

_NAMED = tuple(CAUSE[c] for c in WITH_A_NAME)
_SIZED = (CAUSE["memcpy"], CAUSE["memset"])
_ALWAYS = (CAUSE["queued"], CAUSE["unknown"])
#: Pieces that are laid out at once: they bound the memory.
_AT_ONCE = 1 << 17
#: What the text of a key comes from: nothing, a call, a range, the profiler's work, a copy.
_SOURCES = ("", "api", "nvtx", "overhead", "copy")
_COPY = _SOURCES.index("copy")
#: Numbers of texts are smaller, where nothing is damaged; kinds of copies and of memory.
_TEXTS, _KINDS = 1 << 31, 1 << 15


@dataclass(frozen=True)
class StreamWindows(Columns):
    """Arrays of equal length: place and lane of each window, and the end record (or the end of the
    range).

    close_ns: start of the end record's call (nothing issued later belongs to the window);
    close_end_ns: its end; close_thread, close_call: who made it; record: its position in the
    alignment's records, -1 for none.
    """

    start: np.ndarray
    end: np.ndarray
    lane: np.ndarray
    close_ns: np.ndarray
    close_end_ns: np.ndarray
    close_thread: np.ndarray
    close_call: np.ndarray
    record: np.ndarray


class StreamSums(NamedTuple):
    """`totals`: nanoseconds per window and cause, at each place; `operations` that touch each window
    at the first place."""

    totals: list[np.ndarray]
    operations: np.ndarray


def stream_sums(
    explainer: Explainer, places: Sequence[StreamWindows], details: Details, numbers: np.ndarray
) -> StreamSums:
    """The sums of all windows at every place (as measured, and at the ends of the error bar).  Adds
    those of the first place to `details`, in which the windows have these `numbers`."""
    count = len(numbers)
    totals = [np.zeros((count, len(CAUSES)), np.int64) for _ in places]
    operations = np.zeros(count, np.int64)
    own = [np.empty(count, np.int64) for _ in places]
    for lane, windows in sorted(group(places[0].lane, np.arange(count)).items()):
        blocks = explainer.streams.blocks(lane)
        for begin, place in zip(own, places, strict=True):
            begin[windows] = _own_from(explainer, blocks, place.take(windows))
        spans = [(p.start[windows], begin[windows]) for p, begin in zip(places, own, strict=True)]
        low = min(int(start.min()) for start, _ in spans)
        high = max(int(end.max()) for _, end in spans)
        for pieces in _explained(explainer, lane, low, high):
            near = [
                np.flatnonzero((start < pieces.end[-1]) & (end > pieces.start[0]))
                for start, end in spans
            ]
            for code in distinct(pieces.cause).tolist():
                those = pieces.cause == code
                begin, over = pieces.start[those], pieces.end[those]
                for total, some, (start, end) in zip(totals, near, spans, strict=True):
                    before, after = (covered(begin, over, t[some]) for t in (start, end))
                    total[windows[some], code] += after - before
            some, (start, end) = near[0], spans[0]
            details.add_shared(numbers[windows[some]], start[some], end[some], pieces)
        start, end = places[0].start[windows], places[0].end[windows]
        positions = explainer.streams.positions(lane)
        operations[windows] = _touching(explainer, positions, start, end)
        details.add_moved(numbers[windows], start, end, positions)
    for number, (total, place, begin) in enumerate(zip(totals, places, own, strict=True)):
        left = np.flatnonzero(begin < place.end)
        for lot in in_lots(explainer.call_start, begin[left], place.end[left]):
            pieces = _pieces(explainer, place, left[lot.owner], lot.start, lot.end)
            total += sums(pieces, count)
            if number == 0:
                details.add(replace(pieces, window=numbers[pieces.window]))
    return StreamSums(totals, operations)


def _touching(
    explainer: Explainer, positions: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """How many of these operations, sorted by start, touch each window."""
    ended = np.searchsorted(np.sort(explainer.op_end[positions]), start, side="right")
    return np.where(end > start, np.searchsorted(explainer.op_start[positions], end) - ended, 0)


def stream_pieces(explainer: Explainer, w: StreamWindows) -> Pieces:
    """Tile every window with pieces, exactly."""
    return _pieces(explainer, w, np.arange(len(w.start)), w.start, w.end)


def _own_from(explainer: Explainer, b: Blocks, w: StreamWindows) -> np.ndarray:
    """From when on each window of one lane sees the stream in its own way: from the end of the last
    operation that was issued before its end record, as were all before that; its end where the
    operation behind it was issued before the end record, too."""
    issue = pick(explainer.call_start, explainer.call[b.ref], NEVER)
    issued = np.searchsorted(np.maximum.accumulate(issue), w.close_ns) if len(issue) else 0
    last = np.searchsorted(b.start, w.end)
    until = np.minimum(issued, last)
    following = pick(issue, np.where(last < len(issue), last, -1), NEVER)
    shared = (until == last) & (following > NEVER) & (following < w.close_ns)
    return np.where(shared, w.end, np.clip(pick(b.end, until - 1, NEVER), w.start, w.end))


def _explained(explainer: Explainer, lane: int, low: int, high: int) -> Iterator[Pieces]:
    """Sorted disjoint pieces of a lane from `low` to `high`, as windows see them that no record
    closes, in lots of a bounded number of blocks, and of calls that were made meanwhile."""
    starts = explainer.streams.blocks(lane).start
    edges = np.concatenate([starts[::_BLOCKS], explainer.call_start[::CALLS_AT_ONCE], [low, high]])
    edges = np.unique(edges[(edges >= low) & (edges <= high)])
    endless = StreamWindows(
        *(np.array([n], np.int64) for n in (-FAR, FAR, lane, FAR, FAR, -1, -1, -1))
    )
    for begin, end in pairwise(edges):
        yield _pieces(explainer, endless, np.zeros(1, np.int64), np.array([begin]), np.array([end]))


def _pieces(
    explainer: Explainer,
    w: StreamWindows,
    window: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> Pieces:
    """Tile spans of windows, each as its window sees its stream."""
    parts, gaps = [none()], []
    for lane, those in group(w.lane[window], np.arange(len(window))).items():
        blocks = explainer.streams.blocks(lane)
        cut = tile(start[those], end[those], blocks.start, blocks.end)
        busy, idle = np.flatnonzero(cut.block >= 0), np.flatnonzero(cut.block < 0)
        whose, block = window[those[cut.piece]], cut.block[busy]
        kind = explainer.kind[blocks.ref[block]]
        parts.append(
            make(
                whose[busy],
                cut.start[busy],
                cut.end[busy],
                CAUSE_OF_KIND[kind],
                kind + 1,
                blocks.ref[block],
            )
        )
        gaps.append(_gaps(explainer, w, lane, whose[idle], cut.start[idle], cut.end[idle]))
    return join([*parts, explainer.explain(Gaps.joined(gaps))]) if gaps else none()


def _gaps(
    explainer: Explainer,
    w: StreamWindows,
    lane: int,
    window: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> Gaps:
    """P and N of each idle stretch of one lane, as its window sees them: N is the end record where
    nothing else was issued before it."""
    blocks = explainer.streams.blocks(lane)
    after = np.searchsorted(blocks.start, start, side="left")
    before = np.searchsorted(blocks.end, start, side="right") - 1
    previous = pick(blocks.ref, before, -1)
    following = pick(blocks.ref, np.where(after < len(blocks.start), after, -1), -1)
    call = pick(explainer.call, following, -1)
    issue = pick(explainer.call_start, call, FAR)
    # an operation that runs inside the window was issued before the end, whether or not the trace
    # has its call
    inside = pick(explainer.op_start, following, FAR) < w.end[window]
    use = (following >= 0) & np.where(call >= 0, issue < w.close_ns[window], inside)
    from_call = use & (call >= 0)
    fault = np.where(use, pick(explainer.faulting, following, -1), -1)
    sure = from_call | (fault >= 0)
    thread = np.where(fault >= 0, fault, w.close_thread[window])
    return Gaps(
        window=window,
        start=start,
        end=end,
        lane=np.full(len(window), lane),
        next=np.where(use, following, -1),
        previous=previous,
        issue_start=np.where(sure, issue, w.close_ns[window]),
        issue_end=np.where(sure, pick(explainer.call_end, call, FAR), w.close_end_ns[window]),
        issue_thread=np.where(from_call, pick(explainer.call_thread, call, 0), thread),
        issue_call=np.where(from_call, call, w.close_call[window]),
        known=sure | (~use & (w.close_call[window] >= 0)),
        record=w.record[window],
    )


class Details:
    """Collects pieces.  A key is one integer until the table is made."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.trace, self.alignment = trace, alignment
        #: Rows of window, key, ns, bytes, and duration of what moved these.
        self._rows = [np.empty((5, 0), np.int64)]
        #: Window, key, operation: it counts once however many pieces it has.
        self._moves = [np.empty((3, 0), np.int64)]

    def add(self, pieces: Pieces, moves: bool = False) -> None:
        """Whole pieces of windows; `moves`: also what those that copy or set memory moved."""
        pieces = pieces.take(_belongs(pieces))
        key = self._keys(pieces)
        self._sum(pieces.window, key, pieces.end - pieces.start)
        if moves:
            those = one_of(pieces.cause, _SIZED) & (pieces.detail == 0)
            self._moves.append(np.stack([pieces.window, key, pieces.ref])[:, those])

    def add_shared(
        self, window: np.ndarray, start: np.ndarray, end: np.ndarray, pieces: Pieces
    ) -> None:
        """What windows, each from its `start` to its `end`, hold of sorted disjoint pieces."""
        pieces = pieces.take(_belongs(pieces))
        key = self._keys(pieces)
        first = np.searchsorted(pieces.end, start, side="right")
        count = np.maximum(np.searchsorted(pieces.start, end, side="left") - first, 0)
        lot = (np.cumsum(count) - count) // _AT_ONCE
        for some in np.split(np.arange(len(count)), np.flatnonzero(np.diff(lot)) + 1):
            owner, piece = ragged(first[some], count[some])
            owner = some[owner]
            begin = np.maximum(pieces.start[piece], start[owner])
            self._sum(window[owner], key[piece], np.minimum(pieces.end[piece], end[owner]) - begin)

    def add_moved(
        self, window: np.ndarray, start: np.ndarray, end: np.ndarray, operation: np.ndarray
    ) -> None:
        """What the copies and memsets among these operations, sorted by start, moved that touch the
        windows: those that began before its end, without those that were over at its start."""
        kind = self.trace.operations["kind"].to_numpy()[operation]
        operation = operation[(kind == KIND["memcpy"]) | (kind == KIND["memset"])]
        begun, over, kind, size = (
            self.trace.operations[c].to_numpy()[operation]
            for c in ("start_ns", "end_ns", "kind", "bytes")
        )
        keys = self._keys(make(operation, begun, over, CAUSE_OF_KIND[kind], kind + 1, operation))
        for key in distinct(keys).tolist():
            those = keys == key
            begins, ends, by_end = begun[those], over[those], np.argsort(over[those])
            first = np.searchsorted(ends[by_end], start, side="right")
            last = np.searchsorted(begins, end, side="left")
            sums = []
            for value in (size[those], ends - begins):
                started, done = (np.append(0, np.cumsum(v)) for v in (value, value[by_end]))
                sums.append(started[last] - done[first])
            some = np.flatnonzero((end > start) & ((sums[0] > 0) | (sums[1] > 0)))
            rows = (window, np.full(len(window), key), np.zeros(len(window), np.int64), *sums)
            self._rows.append(np.stack(rows)[:, some])

    def table(self) -> pd.DataFrame:
        """`frames.DETAILS` of everything that was added."""
        window, key, operation = np.unique(np.concatenate(self._moves, axis=1), axis=1)
        begun, over, size = (
            self.trace.operations[c].to_numpy()[operation] for c in ("start_ns", "end_ns", "bytes")
        )
        moved = np.stack([window, key, np.zeros(len(key), np.int64), size, over - begun])
        rows, self._rows = np.concatenate([*self._rows, moved], axis=1), []
        if not rows.shape[1]:
            return frames.empty(frames.DETAILS)
        number, keys = pd.factorize(rows[1])
        words = [self._words(key) for key in keys.tolist()]
        kinds = sorted(set(words))
        place = {key: n for n, key in enumerate(kinds)}
        rank = np.array([place[key] for key in words])[number]
        order = np.lexsort((rank, rows[0]))
        code = (rows[0] * len(kinds) + rank)[order]
        first = np.flatnonzero(np.diff(code, prepend=-1))
        ns, size, took = (np.add.reduceat(row[order], first) for row in rows[2:])
        there = np.flatnonzero(ns)
        ns, size, took, code = ns[there], size[there], took[there], code[first[there]]
        cause, detail, direction, memory = (
            pd.array(list(texts), dtype="str").take(code % len(kinds))
            for texts in list(zip(*kinds, strict=True))[:4]
        )
        # bytes per nanosecond are GB per second
        rate = np.divide(size, took, out=np.full(len(ns), np.nan), where=took > 0)
        out = {
            "interval": code // len(kinds),
            "cause": cause,
            "detail": detail,
            "direction": direction,
            "memory": memory,
            "stream": np.array([stream for *_, stream in kinds])[code % len(kinds)],
            "ns": ns,
            "bytes": size,
            "bandwidth_gb_s": rate,
        }
        return frames.check(pd.DataFrame(out, copy=False), frames.DETAILS)

    def _sum(self, window: np.ndarray, key: np.ndarray, ns: np.ndarray) -> None:
        number, keys = pd.factorize(key)
        row, pairs = pd.factorize(window * max(len(keys), 1) + number)
        sums = np.zeros((5, len(pairs)), np.int64)
        sums[0], sums[1] = pairs // max(len(keys), 1), keys[pairs % max(len(keys), 1)]
        np.add.at(sums[2], row, ns)
        self._rows.append(sums)

    def _keys(self, pieces: Pieces) -> np.ndarray:
        """Per piece the number of its key, which `_words` reads back."""
        source, text = np.zeros((2, len(pieces)), np.int64)
        named = one_of(pieces.cause, _NAMED) & (pieces.ref >= 0)
        for number, kind in enumerate(_SOURCES[1:_COPY], 1):
            those = np.flatnonzero(named & (pieces.ref_kind == REF[kind]))
            texts = self._texts[kind][pieces.ref[those]]
            source[those], text[those] = number, np.clip(texts + _TEXTS // 2, 0, _TEXTS - 1)
        copies = (pieces.cause == CAUSE["memcpy"]) & one_of(pieces.ref_kind, OPERATION_REFS)
        copies = np.flatnonzero(copies & (pieces.ref >= 0))
        operations = self.trace.operations
        way = operations["copy_kind"].to_numpy()[pieces.ref[copies]]
        side = host_side(operations, pieces.ref[copies])
        way, side = (np.clip(code, -1, _KINDS - 2) + 1 for code in (way, side))
        source[copies], text[copies] = _COPY, way * _KINDS + side
        lanes = len(self.alignment.lanes) + 1
        key = (pieces.cause.astype(np.int64) * len(DETAILS) + pieces.detail) * lanes
        return ((key + pieces.lane + 1) * len(_SOURCES) + source) * _TEXTS + text

    def _words(self, key: int) -> tuple[str, str, str, str, int]:
        """Cause, detail, direction, memory, stream."""
        key, text = divmod(key, _TEXTS)
        key, source = divmod(key, len(_SOURCES))
        key, lane = divmod(key, len(self.alignment.lanes) + 1)
        cause, detail = divmod(key, len(DETAILS))
        stream = int(self.alignment.lanes["stream"].iloc[lane - 1]) if lane else -1
        words = DETAILS[detail]
        if source == _COPY:
            way, side = (code - 1 for code in divmod(text, _KINDS))
            direction, memory = DIRECTION.get(way, f"kind {way}"), MEMORY.get(side, "unknown")
            return CAUSES[cause], words or "copy", direction, memory, stream
        if source:
            names, unknown = self.trace.names, {"api": "CUDA call", "overhead": "profiler"}
            kind = _SOURCES[source]
            text -= _TEXTS // 2
            words = self._ranges[1][text] if kind == "nvtx" else names.get(text, unknown[kind])
        return CAUSES[cause], words, "", "", stream

    @cached_property
    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """The number of each range's text, and the texts."""
        return pd.factorize(self.trace.ranges["text"].to_numpy(dtype=object))

    @cached_property
    def _texts(self) -> dict[str, np.ndarray]:
        """Numbers of the texts of calls, ranges and the profiler's work."""
        calls, overhead = (t["name_id"].to_numpy() for t in (self.trace.calls, self.trace.overhead))
        return {"api": calls, "nvtx": self._ranges[0], "overhead": overhead}


def _belongs(pieces: Pieces) -> np.ndarray:
    """Which pieces belong in details: copies and memsets, what has a name, waiting, the unknown."""
    there = pieces.ref >= 0
    sized = one_of(pieces.cause, _SIZED) & one_of(pieces.ref_kind, OPERATION_REFS) & there
    kinds = [REF[kind] for kind in _SOURCES[1:_COPY]]
    named = one_of(pieces.cause, _NAMED) & one_of(pieces.ref_kind, kinds) & there
    return np.flatnonzero(sized | named | one_of(pieces.cause, _ALWAYS))
