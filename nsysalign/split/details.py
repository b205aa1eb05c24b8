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
from nsysalign.split import describe
from nsysalign.split.pieces import CAUSE, DETAIL, DETAILS, OPERATION_REFS, REF, REF_KINDS, Pieces

_NAMED = tuple(CAUSE[c] for c in WITH_A_NAME)
_SPOKEN = tuple(REF[r] for r in ("api", "nvtx", "overhead"))
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


class Details:
    """Collects pieces per window and key."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.trace, self.alignment = trace, alignment
        self._keys: dict[Key, int] = {}
        self._spelled: dict[int, int] = {}  # code of a piece -> number of its key
        #: Columns window, key, ns, longest, its start, ref_kind, ref.
        self._rows: list[tuple[np.ndarray, ...]] = []
        #: Columns window, key, bytes and duration of copies and memsets.
        self._moved: list[np.ndarray] = []
        #: Columns window, key, copy or memset, which counts once however many pieces it has; and
        #: pieces of those on the present lane.
        self._moves: list[np.ndarray] = []
        self._on_lane: list[_Lot] = []

    def add(self, pieces: Pieces) -> None:
        """Whole pieces of windows, sorted by window."""
        lot = self._lot(pieces)
        moves = np.flatnonzero(lot.moves)
        self._moves.append(np.stack([lot.window[moves], lot.key[moves], lot.ref[moves]]))
        new = np.flatnonzero(np.diff(lot.window, prepend=-1))
        self._laid_out(lot.window[new], new, np.diff(np.append(new, len(lot.key))), lot)

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
            at = np.stack([first[many], last[many] - 1], axis=1).ravel()
            self._laid_out(window[outer], at, np.ones_like(at), lot, start[outer], end[outer])
        few = np.flatnonzero(~many & (count > 0))
        self._laid_out(window[few], first[few], count[few], lot, start[few], end[few])

    def end_lane(self, window: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
        """Sums up the copies and memsets between the windows' `start` and `end`, once a lane is
        through."""
        if not self._on_lane:
            return
        lot, self._on_lane = _Lot.joined(self._on_lane), []
        for number in distinct(lot.key).tolist():
            mine = lot.take(lot.key == number)
            # the pieces that one operation has under one key follow each other: it counts where
            # it begins, or where a window does
            new = np.diff(mine.ref, prepend=-1) != 0
            size = self._size(mine.ref)
            running = np.zeros((2, len(new) + 1), np.int64)
            np.cumsum(np.where(new, size, 0), axis=1, out=running[:, 1:])
            first = np.searchsorted(mine.end, start, side="right")
            last = np.searchsorted(mine.start, end, side="left")
            some = np.flatnonzero((last > first) & (end > start))
            first, last = first[some], last[some]
            begun = np.where(new[first], 0, size[:, first])
            moved, took = running[:, last] - running[:, first] + begun
            self._moved.append(np.stack([window[some], np.full(len(some), number), moved, took]))

    def table(self) -> pd.DataFrame:
        """`frames.DETAILS` of everything that was added."""
        if not self._rows:
            return frames.empty(frames.DETAILS)
        window, key, ns, longest, start, ref_kind, ref = (
            np.concatenate(c) for c in zip(*self._rows, strict=True)
        )
        self._rows = []
        keys = list(self._keys)
        rank = np.empty(len(keys), np.int64)
        rank[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
        code = window * len(keys) + rank[key]
        order = np.lexsort((start, -longest, code))
        first = np.flatnonzero(np.concatenate([[True], np.diff(code[order]) > 0]))
        at = order[first]
        moved, took = self._sizes(code[at], rank)
        spelled = [np.array(c, dtype=object)[key[at]] for c in zip(*keys, strict=True)]
        out = pd.DataFrame(
            {
                "interval": window[at],
                **dict(zip(Key._fields, spelled, strict=True)),
                "ns": np.add.reduceat(ns[order], first),
                "ref_kind": np.array(REF_KINDS, dtype=object)[ref_kind[at]],
                "ref_id": describe.ref_ids(self.trace, self.alignment, ref_kind[at], ref[at]),
                "bytes": moved,
                # bytes per nanosecond are GB per second
                "bandwidth_gb_s": np.divide(
                    moved, took, out=np.full(len(at), np.nan), where=took > 0
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

    def _sizes(self, code: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Bytes and duration of the copies and memsets of every row, given by window and key: int64
        array (2, rows)."""
        own = np.unique(_joined(self._moves, 3), axis=1)
        moved = np.concatenate([own[:2], self._size(own[2])])
        window, key, *sizes = _joined([*self._moved, moved], 4)
        row = np.searchsorted(code, window * len(rank) + rank[key])
        out = np.zeros((2, len(code)), np.int64)
        for total, size in zip(out, sizes, strict=True):
            np.add.at(total, row, size)
        return out

    # -- keys
    # ----------------------------------------------------------------------------------------------------------

    def _lot(self, p: Pieces) -> _Lot:
        """The pieces that belong in details."""
        p = p.take(np.flatnonzero(one_of(p.cause, (*_SIZED, *_NAMED, *_ALWAYS))))
        sized = one_of(p.cause, _SIZED) & one_of(p.ref_kind, OPERATION_REFS) & (p.ref >= 0)
        named = one_of(p.cause, _NAMED) & one_of(p.ref_kind, _SPOKEN)
        use = np.flatnonzero(sized | named | one_of(p.cause, _ALWAYS))
        p, sized, named = p.take(use), sized[use], named[use]
        key, moves = self._numbers(p, named, sized), sized & (p.detail == DETAIL[""])
        return _Lot(p.window, p.start, p.end, key, p.ref_kind, p.ref, moves)

    def _numbers(self, p: Pieces, named: np.ndarray, sized: np.ndarray) -> np.ndarray:
        """The number of every piece's key."""
        text = np.zeros(len(p), np.int64)
        for kind in ("api", "nvtx", "overhead"):
            mine = np.flatnonzero(named & (p.ref_kind == REF[kind]) & (p.ref >= 0))
            if len(mine):
                text[mine] = self._texts[kind][p.ref[mine]] + 1
        copy = np.flatnonzero(sized & (p.cause == CAUSE["memcpy"]))
        if len(copy):
            text[copy] = self._copies[p.ref[copy]] + 1
        code = (p.cause.astype(np.int64) * len(DETAILS) + p.detail) * 2 + sized
        code = (code * (len(self.alignment.lanes) + 1) + p.lane + 1) * self._most + text
        code = code * len(REF_KINDS) + np.where(named, p.ref_kind, 0)
        number, codes = pd.factorize(code)
        # numbers are given in order of appearance
        example = np.flatnonzero(np.diff(np.maximum.accumulate(number), prepend=-1))
        unseen = np.array([c not in self._spelled for c in codes.tolist()], dtype=bool)
        if unseen.any():
            new = example[unseen]
            keys = self._keys_of(p.take(new), named[new], sized[new])
            for one, key in zip(codes[unseen].tolist(), keys, strict=True):
                self._spelled[one] = self._keys.setdefault(key, len(self._keys))
        return np.array([self._spelled[c] for c in codes.tolist()], dtype=np.int64)[number]

    @cached_property
    def _texts(self) -> dict[str, np.ndarray]:
        """Numbers of the names of calls, of the texts of ranges and of the names of the profiler's
        work."""
        trace = self.trace
        columns = {
            "api": trace.calls["name_id"].to_numpy(),
            "nvtx": pd.factorize(trace.ranges["text"].to_numpy(dtype=object))[0],
            "overhead": trace.overhead["name_id"].to_numpy(),
        }
        return {
            kind: n if -1 <= n.min(initial=0) <= n.max(initial=0) < _FEW else pd.factorize(n)[0]
            for kind, n in columns.items()
        }

    @cached_property
    def _copies(self) -> np.ndarray:
        """Per operation, a number for the direction of a copy and the memory on both sides."""
        operations = self.trace.operations
        copies = np.flatnonzero(operations["kind"].to_numpy() == KIND["memcpy"])
        code = np.zeros(len(copies), np.int64)
        for column in ("copy_kind", "src_kind", "dst_kind"):
            number, values = pd.factorize(operations[column].to_numpy()[copies])
            code = code * len(values) + number
        out = np.zeros(len(operations), np.int32)
        out[copies] = code
        return out

    @cached_property
    def _most(self) -> int:
        """Greater than all of these numbers."""
        every = (*self._texts.values(), self._copies)
        return 2 + max(int(numbers.max(initial=0)) for numbers in every)

    def _keys_of(self, p: Pieces, named: np.ndarray, sized: np.ndarray) -> list[Key]:
        text = np.array(DETAILS, dtype=object)[p.detail]
        text[named] = describe.ref_names(self.trace, p.ref_kind[named], p.ref[named])
        copies = sized & (p.cause == CAUSE["memcpy"])
        text[copies & (p.detail == DETAIL[""])] = "copy"
        direction, memory = np.full(len(p), "", dtype=object), np.full(len(p), "", dtype=object)
        direction[copies], memory[copies] = describe.copy_words(self.trace, p.ref[copies])
        stream = np.append(self.alignment.lanes["stream"].to_numpy(), -1)[p.lane]
        cause = np.array(CAUSES, dtype=object)[p.cause]
        columns = (c.tolist() for c in (cause, text, direction, memory, stream))
        return [Key(*row) for row in zip(*columns, strict=True)]

    # -- sums
    # ----------------------------------------------------------------------------------------------------------

    def _laid_out(
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
            owner, at = ragged(first[some], count[some])
            if not len(at):
                continue
            begin, over = lot.start[at], lot.end[at]
            if start is not None and end is not None:
                begin = np.maximum(begin, start[some][owner])
                over = np.minimum(over, end[some][owner])
            rows = _reduced(owner, lot.key[at], begin, over - begin)
            n = rows.longest
            whose = window[some][owner[n]]
            self._keep(whose, rows.ns, (over - begin)[n], begin[n], lot.take(at[n]))

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
            a, b = (
                np.searchsorted(place, keys * (len(order) + 1) + t[some, None]).ravel()
                for t in (first, last)
            )
            there = np.flatnonzero((b > a) & (total[b] > total[a]))
            a, b = a[there], b[there]
            n = by_length[least(rank, a, b)]
            whose = np.repeat(window[some], len(keys))[there]
            self._keep(whose, total[b] - total[a], ns[n], start[n], lot.take(order[n]))

    def _keep(
        self, window: np.ndarray, ns: np.ndarray, most: np.ndarray, start: np.ndarray, longest: _Lot
    ) -> None:
        """Rows, with their longest pieces as they came, which last `most` from `start` on."""
        self._rows.append((window, longest.key, ns, most, start, longest.ref_kind, longest.ref))


class _Rows(NamedTuple):
    """Per owner and key: the sum, and the position of the longest piece, of equal ones the
    first."""

    ns: np.ndarray
    longest: np.ndarray


def _reduced(owner: np.ndarray, key: np.ndarray, start: np.ndarray, ns: np.ndarray) -> _Rows:
    """Rows of pieces that belong to owners (ascending)."""
    low, keys = int(key.min()), int(key.max()) - int(key.min()) + 1
    # a trace has a key for every text of a range, a lot few of them
    code, slots = owner * keys + (key - low), (int(owner[-1]) + 1) * keys
    if slots > 2 * _AT_ONCE + 4 * len(code):
        code, used = pd.factorize(code)
        slots = len(used)
    # sums of nanoseconds below 2**53 are exact in float64
    total = np.bincount(code, ns, slots)
    longest = np.zeros(slots, np.int64)
    np.maximum.at(longest, code, ns)
    is_longest = np.flatnonzero(ns == longest[code])
    earliest = np.full(slots, np.iinfo(np.int64).max)
    np.minimum.at(earliest, code[is_longest], start[is_longest])
    is_longest = is_longest[start[is_longest] == earliest[code[is_longest]]]
    which = np.zeros(slots, np.int64)
    which[code[is_longest][::-1]] = is_longest[::-1]
    there = np.flatnonzero(total)
    return _Rows(total[there].astype(np.int64), which[there])


def _joined(parts: list[np.ndarray], rows: int) -> np.ndarray:
    return np.concatenate([np.empty((rows, 0), np.int64), *parts], axis=1)
