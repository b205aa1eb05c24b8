"""Details of windows without their pieces: per window and key, the sum and the longest piece.  A
key is what a row of `details` holds besides its interval and numbers: cause, detail, direction,
memory, stream.

Pieces that are a window's own come as they are (`add`).  What windows share comes once for all of
them (`add_inside`): few pieces are laid out window by window; of windows that hold more pieces than
there are keys, each key is a difference of running sums, so that outer ranges cost no more than the
ranges in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import Columns, distinct, least, one_of, ragged
from nsysalign.model import CAUSES, KIND, WITH_A_NAME, Alignment, Trace
from nsysalign.split.pieces import (
    CAUSE,
    DETAIL,
    DETAILS,
    OPERATION_REFS,
    REF,
    REF_KINDS,
    Pieces,
    copy_words,
    ref_ids,
    ref_names,
)

_NAMED = tuple(CAUSE[c] for c in WITH_A_NAME)
_SIZED = (CAUSE["memcpy"], CAUSE["memset"])
_ALWAYS = (CAUSE["queued"], CAUSE["unknown"])
#: Pieces, and pairs of a window and a key, that are laid out at once: they bound the memory.
_AT_ONCE = 1 << 17
#: Windows that together hold this many times more pieces than there are get them by key.
_PIECES_EACH = 4
#: Ids of names are at most this large, where nothing is damaged.
_FEW = 1 << 24


class Key(NamedTuple):
    cause: str
    detail: str
    direction: str
    memory: str
    stream: int


@dataclass(frozen=True)
class _Lot(Columns):
    """Pieces that belong in details: arrays of equal length.  `key` is a number of `Details`;
    `moves`: executes a copy or memset."""

    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    key: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray
    moves: np.ndarray


@dataclass(frozen=True)
class _Sums(Columns):
    """Per window and key: the sum, and the longest piece: how long it lasts, from when on, what it
    refers to."""

    window: np.ndarray
    key: np.ndarray
    ns: np.ndarray
    longest: np.ndarray
    start: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray


@dataclass(frozen=True)
class _Moved(Columns):
    """Per window and key: bytes and duration of copies and memsets."""

    window: np.ndarray
    key: np.ndarray
    size: np.ndarray
    ns: np.ndarray


class Details:
    """Collects pieces per window and key."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.trace, self.alignment = trace, alignment
        self._keys: dict[Key, int] = {}
        self._number_of: dict[int, int] = {}  # code of a piece -> number of its key
        self._sums: list[_Sums] = []
        self._moved: list[_Moved] = []
        #: Columns window, key, copy or memset: it counts once however many pieces it has.
        self._moves: list[np.ndarray] = [np.empty((3, 0), np.int64)]
        #: Pieces of copies and memsets of the present lane.
        self._on_lane: list[_Lot] = []

    def add(self, pieces: Pieces) -> None:
        """Whole pieces of windows, sorted by window."""
        lot = self._lot(pieces)
        moves = np.flatnonzero(lot.moves)
        self._moves.append(np.stack([lot.window[moves], lot.key[moves], lot.ref[moves]]))
        new = np.flatnonzero(np.diff(lot.window, prepend=-1))
        self._lay_out(lot.window[new], new, np.diff(np.append(new, len(lot.key))), lot)

    def add_inside(
        self, window: np.ndarray, start: np.ndarray, end: np.ndarray, pieces: Pieces
    ) -> None:
        """Adds to each window the pieces, sorted and disjoint, that are between its `start` and
        `end`, and parts of the two that these cut."""
        lot = self._lot(pieces)
        self._on_lane.append(lot.take(lot.moves))
        first = np.searchsorted(lot.end, start, side="right")
        last = np.maximum(np.searchsorted(lot.start, end, side="left"), first)
        count = last - first
        many = np.zeros(len(count), dtype=bool)
        if count.sum() > _PIECES_EACH * (len(count) + len(lot.key)):
            many = count > 2 + len(distinct(lot.key))
            self._by_key(window[many], first[many] + 1, last[many] - 1, lot)
            # the outer two, which may be cut
            outer = np.repeat(np.flatnonzero(many), 2)
            cut = np.stack([first[many], last[many] - 1], axis=1).ravel()
            self._lay_out(window[outer], cut, np.ones_like(cut), lot, start[outer], end[outer])
        few = np.flatnonzero(~many & (count > 0))
        self._lay_out(window[few], first[few], count[few], lot, start[few], end[few])

    def end_lane(self, window: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
        """Sums up the copies and memsets between the windows' `start` and `end`, once a lane is
        through: the pieces of one may lie in several lots."""
        if not self._on_lane:
            return
        lot, self._on_lane = _Lot.joined(self._on_lane), []
        for number in distinct(lot.key).tolist():
            of_key = lot.take(lot.key == number)
            # the pieces that one operation has under one key follow each other: it counts where
            # it begins, or where a window does
            new = np.diff(of_key.ref, prepend=-1) != 0
            size = self._size(of_key.ref)
            running = np.zeros((2, len(new) + 1), np.int64)
            np.cumsum(np.where(new, size, 0), axis=1, out=running[:, 1:])
            first = np.searchsorted(of_key.end, start, side="right")
            last = np.searchsorted(of_key.start, end, side="left")
            some = np.flatnonzero((last > first) & (end > start))
            first, last = first[some], last[some]
            begun = np.where(new[first], 0, size[:, first])
            moved, took = running[:, last] - running[:, first] + begun
            self._moved.append(_Moved(window[some], np.full(len(some), number), moved, took))

    def table(self) -> pd.DataFrame:
        """`frames.DETAILS` of everything that was added."""
        if not self._sums:
            return frames.empty(frames.DETAILS)
        sums, self._sums = _Sums.joined(self._sums), []
        rank = np.empty(len(self._keys), np.int64)
        rank[sorted(range(len(rank)), key=list(self._keys).__getitem__)] = np.arange(len(rank))
        code = sums.window * len(rank) + rank[sums.key]
        order = np.lexsort((sums.start, -sums.longest, code))
        first = np.flatnonzero(np.diff(code[order], prepend=-1))
        row = sums.take(order[first])
        own = np.unique(np.concatenate(self._moves, axis=1), axis=1)
        every = _Moved.joined([*self._moved, _Moved(*own[:2], *self._size(own[2]))])
        place = np.searchsorted(code[order[first]], every.window * len(rank) + rank[every.key])
        moved, took = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
        np.add.at(moved, place, every.size)
        np.add.at(took, place, every.ns)
        texts = [np.array(c, dtype=object)[row.key] for c in zip(*self._keys, strict=True)]
        out = pd.DataFrame(
            {
                "interval": row.window,
                **dict(zip(Key._fields, texts, strict=True)),
                "ns": np.add.reduceat(sums.ns[order], first),
                "ref_kind": np.array(REF_KINDS, dtype=object)[row.ref_kind],
                "ref_id": ref_ids(self.trace, self.alignment, row.ref_kind, row.ref),
                "bytes": moved,
                # bytes per nanosecond are GB per second
                "bandwidth_gb_s": np.divide(
                    moved, took, out=np.full(len(first), np.nan), where=took > 0
                ),
            }
        )
        return frames.check(out, frames.DETAILS)

    def _size(self, operation: np.ndarray) -> np.ndarray:
        """Bytes and duration of operations: int64 array (2, operations)."""
        start, end, moved = (
            self.trace.operations[c].to_numpy()[operation] for c in ("start_ns", "end_ns", "bytes")
        )
        return np.stack([moved, end - start]).astype(np.int64, copy=False)

    # -- keys

    def _lot(self, pieces: Pieces) -> _Lot:
        """The pieces that belong in details."""
        cause, kind = pieces.cause, pieces.ref_kind
        sized = one_of(cause, _SIZED) & one_of(kind, OPERATION_REFS) & (pieces.ref >= 0)
        named = one_of(cause, _NAMED) & one_of(kind, [REF[k] for k in ("api", "nvtx", "overhead")])
        use = np.flatnonzero(sized | named | one_of(cause, _ALWAYS))
        pieces, sized, named = pieces.take(use), sized[use], named[use]
        key, moves = self._numbers(pieces, named, sized), sized & (pieces.detail == DETAIL[""])
        place = (pieces.window, pieces.start, pieces.end)
        return _Lot(*place, key, pieces.ref_kind, pieces.ref, moves)

    def _numbers(self, pieces: Pieces, named: np.ndarray, sized: np.ndarray) -> np.ndarray:
        """The number of every piece's key."""
        text = np.zeros(len(pieces), np.int64)
        for kind in ("api", "nvtx", "overhead"):
            those = np.flatnonzero(named & (pieces.ref_kind == REF[kind]) & (pieces.ref >= 0))
            text[those] = self._texts[kind][pieces.ref[those]] + 1
        copy = np.flatnonzero(sized & (pieces.cause == CAUSE["memcpy"]))
        text[copy] = self._texts["copy"][pieces.ref[copy]] + 1
        most = 2 + max(int(numbers.max(initial=0)) for numbers in self._texts.values())
        code = (pieces.cause.astype(np.int64) * len(DETAILS) + pieces.detail) * 2 + sized
        code = (code * (len(self.alignment.lanes) + 1) + pieces.lane + 1) * most + text
        code = code * len(REF_KINDS) + np.where(named, pieces.ref_kind, 0)
        number, codes = pd.factorize(code)
        # numbers are given in order of appearance
        example = np.flatnonzero(np.diff(np.maximum.accumulate(number), prepend=-1))
        unseen = np.array([c not in self._number_of for c in codes.tolist()], dtype=bool)
        if unseen.any():
            new = example[unseen]
            keys = self._keys_of(pieces.take(new), named[new], sized[new])
            for one, key in zip(codes[unseen].tolist(), keys, strict=True):
                self._number_of[one] = self._keys.setdefault(key, len(self._keys))
        return np.array([self._number_of[c] for c in codes.tolist()], dtype=np.int64)[number]

    @cached_property
    def _texts(self) -> dict[str, np.ndarray]:
        """Numbers of the names of calls, of the texts of ranges, of the names of the profiler's
        work, and per operation of the direction of a copy and the memory on both sides."""
        trace = self.trace
        columns = {
            "api": trace.calls["name_id"].to_numpy(),
            "nvtx": pd.factorize(trace.ranges["text"].to_numpy(dtype=object))[0],
            "overhead": trace.overhead["name_id"].to_numpy(),
        }
        out = {
            kind: n if -1 <= n.min(initial=0) <= n.max(initial=0) < _FEW else pd.factorize(n)[0]
            for kind, n in columns.items()
        }
        copies = np.flatnonzero(trace.operations["kind"].to_numpy() == KIND["memcpy"])
        code = np.zeros(len(copies), np.int64)
        for column in ("copy_kind", "src_kind", "dst_kind"):
            number, values = pd.factorize(trace.operations[column].to_numpy()[copies])
            code = code * len(values) + number
        out["copy"] = np.zeros(len(trace.operations), np.int32)
        out["copy"][copies] = code
        return out

    def _keys_of(self, pieces: Pieces, named: np.ndarray, sized: np.ndarray) -> list[Key]:
        text = np.array(DETAILS, dtype=object)[pieces.detail]
        text[named] = ref_names(self.trace, pieces.ref_kind[named], pieces.ref[named])
        copies = sized & (pieces.cause == CAUSE["memcpy"])
        text[copies & (pieces.detail == DETAIL[""])] = "copy"
        direction, memory = np.full((2, len(pieces)), "", dtype=object)
        direction[copies], memory[copies] = copy_words(self.trace, pieces.ref[copies])
        stream = np.append(self.alignment.lanes["stream"].to_numpy(), -1)[pieces.lane]
        cause = np.array(CAUSES, dtype=object)[pieces.cause]
        columns = (c.tolist() for c in (cause, text, direction, memory, stream))
        return [Key(*row) for row in zip(*columns, strict=True)]

    # -- sums

    def _lay_out(
        self,
        window: np.ndarray,
        first: np.ndarray,
        count: np.ndarray,
        lot: _Lot,
        start: np.ndarray | None = None,
        end: np.ndarray | None = None,
    ) -> None:
        """One row per window and key, of windows that hold so many pieces of the lot from the
        `first` on, as far as these lie between `start` and `end`."""
        part = (np.cumsum(count) - count) // _AT_ONCE
        for some in np.split(np.arange(len(count)), np.flatnonzero(np.diff(part)) + 1):
            owner, piece = ragged(first[some], count[some])
            if not len(piece):
                continue
            begin, over, key = lot.start[piece], lot.end[piece], lot.key[piece]
            if start is not None and end is not None:
                begin = np.maximum(begin, start[some][owner])
                over = np.minimum(over, end[some][owner])
            ns = over - begin
            low = int(key.min())
            keys = int(key.max()) - low + 1
            # a trace has a key for every text of a range, a lot few of them
            code, slots = owner * keys + (key - low), (int(owner[-1]) + 1) * keys
            if slots > 2 * _AT_ONCE + 4 * len(code):
                code, used = pd.factorize(code)
                slots = len(used)
            # sums of nanoseconds below 2**53 are exact in float64
            total = np.bincount(code, ns, slots).astype(np.int64)
            # the longest piece, of equal ones that which begins first
            most, since = np.zeros(slots, np.int64), np.full(slots, np.iinfo(np.int64).max)
            np.maximum.at(most, code, ns)
            longest = np.flatnonzero(ns == most[code])
            np.minimum.at(since, code[longest], begin[longest])
            longest = longest[begin[longest] == since[code[longest]]]
            which = np.zeros(slots, np.int64)
            which[code[longest][::-1]] = longest[::-1]
            there = np.flatnonzero(total)
            n = which[there]
            self._keep(window[some][owner[n]], total[there], ns[n], begin[n], lot.take(piece[n]))

    def _by_key(self, window: np.ndarray, first: np.ndarray, last: np.ndarray, lot: _Lot) -> None:
        """The same of windows that hold the pieces first..last-1 whole, by running sums over the
        pieces of each key."""
        order = np.argsort(lot.key, kind="stable")
        keys, ns, start = distinct(lot.key), (lot.end - lot.start)[order], lot.start[order]
        # rising: by key, then by place in the lot
        place = lot.key[order] * (len(order) + 1) + order
        total = np.append(0, np.cumsum(ns))
        by_length = np.lexsort((start, -ns))
        rank = np.empty(len(order), np.int64)
        rank[by_length] = np.arange(len(order))
        at_once = max(_AT_ONCE // len(keys), 1)
        for begin in range(0, len(window), at_once):
            some = slice(begin, begin + at_once)
            low, high = (
                np.searchsorted(place, keys * (len(order) + 1) + t[some, None]).ravel()
                for t in (first, last)
            )
            there = np.flatnonzero((high > low) & (total[high] > total[low]))
            low, high = low[there], high[there]
            n = by_length[least(rank, low, high)]
            whose = np.repeat(window[some], len(keys))[there]
            self._keep(whose, total[high] - total[low], ns[n], start[n], lot.take(order[n]))

    def _keep(
        self, window: np.ndarray, ns: np.ndarray, most: np.ndarray, start: np.ndarray, longest: _Lot
    ) -> None:
        """Rows, with their longest pieces as they came, which last `most` from `start` on."""
        columns = (window, longest.key, ns, most, start, longest.ref_kind, longest.ref)
        self._sums.append(_Sums(*columns))
