"""Details: nanoseconds per window and key, and what copies moved.  A key is what a row holds besides
its interval and numbers: cause, detail, direction, memory, stream."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, one_of, ragged
from nsysalign.model import CAUSES, KIND, WITH_A_NAME, Alignment, Trace
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
    make,
)

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
