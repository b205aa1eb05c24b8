"""Details of windows without their pieces: per window and key, the sum and the longest piece.  A
key is what a row of `details` holds besides its interval and numbers: cause, detail, direction,
memory, stream.

Pieces of a window's head and tail come as they are (`add`).  What lies inside comes once for all
windows (`add_inside`): few pieces are laid out window by window; of windows that hold more pieces
than there are keys, each key is a difference of running sums, so that outer ranges cost no more
than the ranges in them.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import CAUSES, KIND, Alignment, Trace
from nsysalign.split import describe
from nsysalign.split.pieces import CAUSE, DETAIL, DETAILS, OPERATION_REFS, REF, REF_KINDS, Pieces
from nsysalign.tiles import distinct, least, one_of, ragged, rising

_NAMED = tuple(CAUSE[c] for c in ("api", "sync", "api_launch", "host", "event", "profiler"))
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


class _Lot(NamedTuple):
    """Pieces that belong in details, in the order of `at` (a window, or a place on the stream):
    arrays of equal length. `key` is a number of `Details`; `sized`: of a copy or memset, which
    counts once however many pieces it has."""

    at: np.ndarray
    key: np.ndarray
    start: np.ndarray
    ns: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray
    sized: np.ndarray


class Details:
    """Collects pieces per window and key."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.trace, self.alignment = trace, alignment
        self._keys: dict[Key, int] = {}
        self._spelled: dict[int, int] = {}  # code of a piece -> number of its key
        #: Columns window, key, ns, longest, its start, ref_kind, ref.
        self._rows: list[tuple[np.ndarray, ...]] = []
        #: Window, key and operation of copies and memsets; place, key and operation of those on the
        #: present lane.
        self._sized: list[np.ndarray] = []
        self._on_lane: list[np.ndarray] = []
        #: Window, key, bytes and duration of copies and memsets inside windows, and the first and
        #: last of them.
        self._sizes: list[np.ndarray] = []

    def add(self, pieces: Pieces) -> None:
        """Whole pieces of windows, sorted by window."""
        lot = self._lot(pieces)
        sized = np.flatnonzero(lot.sized)
        self._sized.append(np.stack([lot.at[sized], lot.key[sized], lot.ref[sized]]))
        new = np.flatnonzero(np.diff(lot.at, prepend=-1))
        self._laid_out(lot.at[new], new, np.append(new[1:], len(lot.at)), lot)

    def add_inside(
        self, window: np.ndarray, low: np.ndarray, high: np.ndarray, pieces: Pieces, begin: int
    ) -> None:
        """Adds to each window the pieces whose `window`, a place on the lane counted from `begin`,
        is in [low, high)."""
        lot = self._lot(pieces)
        sized = np.flatnonzero(lot.sized)
        self._on_lane.append(np.stack([begin + lot.at[sized], lot.key[sized], lot.ref[sized]]))
        first, last = np.searchsorted(lot.at, low), np.searchsorted(lot.at, high)
        count = last - first
        whole = np.flatnonzero(count == len(lot.at))
        if len(whole) and len(lot.at):
            one = _reduced(np.zeros(len(lot.at), np.int64), np.arange(len(lot.at)), lot)
            each = len(one.longest)
            self._keep(
                np.repeat(window[whole], each),
                np.tile(one.ns, len(whole)),
                np.tile(one.longest, len(whole)),
                lot,
            )
            count = np.where(count == len(lot.at), 0, count)
        many = np.zeros(len(count), dtype=bool)
        if count.sum() > _PIECES_EACH * (len(count) + len(lot.at)):
            many = count > len(distinct(lot.key))
            self._by_key(window[many], first[many], last[many], lot)
        some = np.flatnonzero(~many & (count > 0))
        self._laid_out(window[some], first[some], last[some], lot)

    def end_lane(self, window: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
        """Sums up the copies and memsets inside windows (numbers of gaps and blocks low..high-1),
        once a lane is through."""
        at, key, operation = _joined(self._on_lane)
        self._on_lane = []
        order = np.lexsort((at, key))  # stable: pieces at one place stay in the order of time
        at, key, operation = at[order], key[order], operation[order]
        # the pieces that one operation has under one key follow each other: it counts where it
        # begins, or where a window does
        new = np.concatenate([[True], (np.diff(key) != 0) | (np.diff(operation) != 0)])[: len(key)]
        moved, took = (np.append(0, np.cumsum(np.where(new, v, 0))) for v in self._size(operation))
        for number in np.unique(key).tolist():
            base, end = np.searchsorted(key, [number, number + 1])
            first, last = (base + np.searchsorted(at[base:end], t) for t in (low, high))
            some = np.flatnonzero(last > first)
            first, last = first[some], last[some]
            begun = np.where(new[first], 0, self._size(operation[first]))
            self._sizes.append(
                np.stack(
                    [
                        window[some],
                        np.full(len(some), number),
                        moved[last] - moved[first] + begun[0],
                        took[last] - took[first] + begun[1],
                        operation[first],
                        operation[last - 1],
                    ]
                )
            )

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
        moved, took = self._summed(code[at], rank)
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

    def _summed(self, code: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Bytes and duration of the copies and memsets of every row, given by window and key: int64
        array (2, rows).  One that has pieces in a window's head or tail and inside it counts
        once."""
        out = np.zeros((2, len(code)), np.int64)
        inside = _joined(self._sizes, 6)
        row = np.searchsorted(code, inside[0] * len(rank) + rank[inside[1]])
        for total, ns in zip(out, inside[2:4], strict=True):
            np.add.at(total, row, ns)
        window, key, operation = _joined(self._sized)
        at = np.searchsorted(code, window * len(rank) + rank[key])
        counted = np.concatenate([np.stack([row, end]) for end in inside[4:]], axis=1)
        pair, done = (a * (1 << 31) + b for a, b in ((at, operation), counted))
        pair = np.setdiff1d(pair, done)
        for total, ns in zip(out, self._size(pair & ((1 << 31) - 1)), strict=True):
            np.add.at(total, pair >> 31, ns)
        return out

    # -- keys
    # ----------------------------------------------------------------------------------------------------------

    def _lot(self, p: Pieces) -> _Lot:
        """The pieces that belong in details."""
        p = p.take(np.flatnonzero(one_of(p.cause, (*_SIZED, *_NAMED, *_ALWAYS))))
        sized = one_of(p.cause, _SIZED) & one_of(p.ref_kind, OPERATION_REFS) & (p.ref >= 0)
        named = one_of(p.cause, _NAMED) & one_of(p.ref_kind, _SPOKEN)
        use = np.flatnonzero(sized | named | one_of(p.cause, _ALWAYS))
        if not rising(p.window[use]):
            use = use[np.argsort(p.window[use], kind="stable")]
        p, sized, named = p.take(use), sized[use], named[use]
        return _Lot(
            p.window,
            self._numbers(p, named, sized),
            p.start,
            p.end - p.start,
            p.ref_kind,
            p.ref,
            sized,
        )

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

    def _laid_out(self, window: np.ndarray, first: np.ndarray, last: np.ndarray, lot: _Lot) -> None:
        """One row per window and key, of windows that hold pieces first..last-1 of the lot each."""
        count = last - first
        part = (np.cumsum(count) - count) // _AT_ONCE
        for some in np.split(np.arange(len(count)), np.flatnonzero(np.diff(part)) + 1):
            owner, at = ragged(first[some], count[some])
            if len(at):
                rows = _reduced(owner, at, lot)
                self._keep(window[some][rows.owner], rows.ns, rows.longest, lot)

    def _by_key(self, window: np.ndarray, first: np.ndarray, last: np.ndarray, lot: _Lot) -> None:
        """The same by running sums over the pieces of each key."""
        if not len(window):
            return
        order = np.argsort(lot.key, kind="stable")
        keys = distinct(lot.key)
        place = (
            lot.key[order] * (len(order) + 1) + order
        )  # rising: by key, then by place in the lot
        total = np.append(0, np.cumsum(lot.ns[order]))
        by_length = np.lexsort((lot.start[order], -lot.ns[order]))
        rank = np.empty(len(order), np.int64)
        rank[by_length] = np.arange(len(order))
        for begin in range(0, len(window), max(_AT_ONCE // len(keys), 1)):
            some = slice(begin, begin + max(_AT_ONCE // len(keys), 1))
            a, b = (
                np.searchsorted(place, keys * (len(order) + 1) + t[some, None]).ravel()
                for t in (first, last)
            )
            there = np.flatnonzero((b > a) & (total[b] > total[a]))
            a, b = a[there], b[there]
            longest = order[by_length[least(rank, a, b)]]
            self._keep(np.repeat(window[some], len(keys))[there], total[b] - total[a], longest, lot)

    def _keep(self, window: np.ndarray, ns: np.ndarray, longest: np.ndarray, lot: _Lot) -> None:
        """Rows with the `longest` piece of each."""
        columns = (lot.key, ns, lot.ns, lot.start, lot.ref_kind, lot.ref)
        self._rows.append((window, *(c if c is ns else c[longest] for c in columns)))


class _Rows(NamedTuple):
    """Per owner and key: the sum, and the position of the longest piece in the lot, of equal ones
    the first."""

    owner: np.ndarray
    ns: np.ndarray
    longest: np.ndarray


def _reduced(owner: np.ndarray, at: np.ndarray, lot: _Lot) -> _Rows:
    """Rows of the pieces `at` of a lot, which belong to owners (ascending)."""
    key, ns = lot.key[at], lot.ns[at]
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
    start, earliest = lot.start[at[is_longest]], np.full(slots, np.iinfo(np.int64).max)
    np.minimum.at(earliest, code[is_longest], start)
    is_longest = is_longest[start == earliest[code[is_longest]]]
    which = np.zeros(slots, np.int64)
    which[code[is_longest][::-1]] = is_longest[::-1]
    there = np.flatnonzero(total)
    which = which[there]
    return _Rows(owner[which], total[there].astype(np.int64), at[which])


def _joined(parts: list[np.ndarray], rows: int = 3) -> np.ndarray:
    return np.concatenate([np.empty((rows, 0), np.int64), *parts], axis=1)
