"""Details gathered from pieces without keeping the pieces: per window and key, the sum and the longest piece.  A key is what a
row of `details` holds besides its interval and numbers: cause, detail, direction, memory, stream.  Pieces come in any number of
batches; what a batch adds to a window's key becomes one row, and the rows are merged at the end.
"""

from __future__ import annotations

from functools import cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.attribute import describe
from nsysalign.attribute.pieces import CAUSE, DETAIL, DETAILS, OPERATION_REFS, REF, REF_KINDS, Pieces
from nsysalign.model import CAUSES, Alignment, Trace
from nsysalign.sweep.tiles import distinct, least, ragged

_NAMED = tuple(CAUSE[c] for c in ("api", "sync", "api_launch", "host", "event", "profiler"))
_SPOKEN = tuple(REF[r] for r in ("api", "nvtx", "overhead"))
#: Limits on pieces processed at once and on slots of a windows-by-keys table: they bound the memory.
_AT_ONCE = 1 << 17
_SLOTS = 1 << 18
#: If windows together hold this many times more pieces than exist, they are summed without laying the pieces out per window.
_PIECES_EACH = 32


class Key(NamedTuple):
    cause: str
    detail: str
    direction: str
    memory: str
    stream: int


class Lot(NamedTuple):
    """Pieces that belong in details: arrays of equal length.  `key` is a number of `Groups`."""

    key: np.ndarray
    start: np.ndarray
    ns: np.ndarray
    ref_kind: np.ndarray
    ref: np.ndarray


class Groups:
    """Collects pieces per window and key."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.trace, self.alignment = trace, alignment
        self._keys: dict[Key, int] = {}
        self._lock = Lock()
        self._rows: list[tuple[np.ndarray, ...]] = []  # window, key, ns, longest, its start, ref_kind, ref
        self._sized: list[np.ndarray] = []  # (window, key, operation) of copies and memsets, columns
        self._of_call: dict[int, np.ndarray] = {}
        self._of_size = np.empty(0, dtype=bool)  # per key: whether it belongs to a copy or memset

    def call_keys(self, cause: int) -> np.ndarray:
        """Per number of a call's name (`call_names`): the key under a cause."""
        if cause not in self._of_call:
            keys = [self.number(Key(CAUSES[cause], text, "", "", -1)) for text in self._calls_named[1]]
            self._of_call[cause] = np.array(keys, dtype=np.int64)
        return self._of_call[cause]

    @property
    def call_names(self) -> np.ndarray:
        """Number of the name of every call."""
        return self._calls_named[0]

    @cached_property
    def _calls_named(self) -> tuple[np.ndarray, list[str]]:
        ids = self.trace.calls["name_id"].to_numpy()
        unique = distinct(ids)
        kind = np.int16 if len(unique) < np.iinfo(np.int16).max else np.int32
        texts = [self.trace.names.get(int(i), "CUDA call") for i in unique]
        numbers = np.empty(len(ids), kind)
        for first in range(0, len(ids), _AT_ONCE):
            numbers[first : first + _AT_ONCE] = np.searchsorted(unique, ids[first : first + _AT_ONCE])
        return numbers, texts

    @cached_property
    def range_texts(self) -> np.ndarray:
        """Number of the text of every NVTX range; equal texts share a number."""
        return pd.factorize(self.trace.ranges["text"].to_numpy(dtype=object))[0]

    def range_keys(self) -> np.ndarray:
        """Key for the time inside each NVTX range and outside CUDA."""
        texts, first = np.unique(self.range_texts, return_index=True)
        words = self.trace.ranges["text"].to_numpy(dtype=object)[first]
        keys = np.array([self.number(Key("host", w, "", "", -1)) for w in words], dtype=np.int64)
        return keys[self.range_texts] if len(texts) else np.empty(0, np.int64)

    def number(self, key: Key) -> int:
        with self._lock:  # chunks are explained ahead by another thread
            return self._keys.setdefault(key, len(self._keys))

    def add(self, pieces: Pieces) -> None:
        """Whole pieces, sorted by window and time."""
        for first in range(0, len(pieces), _AT_ONCE):
            window, lot = self.lot(pieces.take(slice(first, first + _AT_ONCE)))
            owner = np.cumsum(np.concatenate([[False], window[1:] != window[:-1]])[: len(window)])
            self._reduce(
                window[np.flatnonzero(np.diff(owner, prepend=-1))], owner, np.arange(len(owner)), lot
            )

    def add_ranges(
        self, window: np.ndarray, low: np.ndarray, high: np.ndarray, index: np.ndarray, lot: Lot
    ) -> None:
        """Adds to each window the pieces of the batch with an index in [low, high); `index` is sorted."""
        first, last = np.searchsorted(index, low), np.searchsorted(index, high)
        count = np.maximum(last - first, 0)
        some = np.flatnonzero(count)
        window, first, count = window[some], first[some], count[some]
        if count.sum() > _PIECES_EACH * (len(window) + len(index)):
            sized = self._sized_keys()[lot.key]
            self._reduce_by_key(window, first, first + count, sized, lot)
            keep = np.flatnonzero(sized)
            first, last = (np.searchsorted(keep, edge) for edge in (first, first + count))
            count, lot = last - first, Lot(*(column[keep] for column in lot))
        before = np.cumsum(count) - count
        for part in _parts(before, count):
            self._reduce(window[part], *ragged(first[part], count[part]), lot)

    def lot(self, p: Pieces) -> tuple[np.ndarray, Lot]:
        """(windows, batch) of the pieces that belong in details."""
        operation = np.isin(p.ref_kind, OPERATION_REFS) & (p.ref >= 0)
        sized = operation & np.isin(p.cause, [CAUSE["memcpy"], CAUSE["memset"]])
        named = np.isin(p.cause, _NAMED) & np.isin(p.ref_kind, _SPOKEN)
        use = np.flatnonzero(sized | named | np.isin(p.cause, [CAUSE["queued"], CAUSE["unknown"]]))
        p = p.take(use)
        return p.window, Lot(
            self._keys_of(p, named[use], sized[use]), p.start, p.end - p.start, p.ref_kind, p.ref
        )

    def _keys_of(self, p: Pieces, named: np.ndarray, sized: np.ndarray) -> np.ndarray:
        if not len(p):
            return np.empty(0, np.int64)
        name, copy = self._name_codes(p, named), self._copy_codes(p, sized & (p.cause == CAUSE["memcpy"]))
        columns = [p.cause, p.detail, np.where(named, p.ref_kind, 0), p.lane, name, copy, sized]
        code = np.zeros(len(p), np.int64)
        for column in columns:
            numbers, values = pd.factorize(column.astype(np.int64, copy=False))
            code = pd.factorize(code * len(values) + numbers)[0]
        _, example = np.unique(code, return_index=True)
        keys = self._spelled(p.take(example), named[example], sized[example])
        return np.array([self.number(key) for key in keys], dtype=np.int64)[code]

    def _name_codes(self, p: Pieces, named: np.ndarray) -> np.ndarray:
        out = np.full(len(p), -1, dtype=np.int64)
        for kind, numbers in (
            ("api", lambda: self.call_names),
            ("nvtx", lambda: self.range_texts),
            ("overhead", lambda: self.trace.overhead["name_id"].to_numpy()),
        ):
            mine = named & (p.ref_kind == REF[kind]) & (p.ref >= 0)
            if mine.any():
                out[mine] = numbers()[p.ref[mine]]
        return out

    def _copy_codes(self, p: Pieces, copies: np.ndarray) -> np.ndarray:
        out = np.full(len(p), -1, dtype=np.int64)
        at = p.ref[copies]
        kind, source, target = (
            self.trace.operations[c].to_numpy()[at].astype(np.int64)
            for c in ("copy_kind", "src_kind", "dst_kind")
        )
        out[copies] = (kind * 1024 + source) * 1024 + target
        return out

    def _spelled(self, p: Pieces, named: np.ndarray, sized: np.ndarray) -> list[Key]:
        text = np.array(DETAILS, dtype=object)[p.detail]
        text[named] = describe.ref_names(self.trace, p.ref_kind[named], p.ref[named])
        copies = sized & (p.cause == CAUSE["memcpy"])
        text[copies & (p.detail == DETAIL[""])] = "copy"
        direction, memory = np.full(len(p), "", dtype=object), np.full(len(p), "", dtype=object)
        direction[copies], memory[copies] = describe.copy_words(self.trace, p.ref[copies])
        stream = np.append(self.alignment.lanes["stream"].to_numpy(), -1)[p.lane]
        causes = [CAUSES[c] for c in p.cause.tolist()]
        return [
            Key(*k)
            for k in zip(
                causes, text.tolist(), direction.tolist(), memory.tolist(), stream.tolist(), strict=True
            )
        ]

    def _reduce(self, windows: np.ndarray, owner: np.ndarray, at: np.ndarray, lot: Lot) -> None:
        """One row per window and key of the pieces `at` of a batch, which belong to windows[owner], ascending."""
        if not len(at):
            return
        key, ns = lot.key[at], lot.ns[at]
        low, high = int(key.min()), int(key.max())
        if self._sized_keys()[low : high + 1].any():
            self._note_sizes(windows[owner], key, lot.ref_kind[at], lot.ref[at])
        # a trace has a key for every text of a range, a batch few of them, which follow each other
        code, slots = owner * (high - low + 1) + (key - low), int(owner[-1] + 1) * (high - low + 1)
        if slots > _SLOTS + 4 * len(code):
            code, values = pd.factorize(code)
            slots = len(values)
        # sums of nanoseconds below 2**53 are exact in float64
        total = np.bincount(code, ns, slots)
        longest = np.zeros(slots, np.int64)
        np.maximum.at(longest, code, ns)
        is_longest = np.flatnonzero(ns == longest[code])
        start, first = lot.start[at[is_longest]], np.full(slots, np.iinfo(np.int64).max)
        np.minimum.at(first, code[is_longest], start)
        is_longest = is_longest[start == first[code[is_longest]]]
        which = np.zeros(slots, np.int64)
        which[code[is_longest][::-1]] = is_longest[::-1]
        there = np.flatnonzero(total)
        window, at = windows[owner[which[there]]], at[which[there]]
        self._rows.append(
            (
                window,
                lot.key[at],
                total[there].astype(np.int64),
                lot.ns[at],
                lot.start[at],
                lot.ref_kind[at],
                lot.ref[at],
            )
        )

    def _reduce_by_key(
        self, window: np.ndarray, low: np.ndarray, high: np.ndarray, leave: np.ndarray, lot: Lot
    ) -> None:
        """The same as `_reduce` for windows that hold pieces low..high-1 of the lot each, without laying them out: an outer
        window holds the pieces of all windows nested in it."""
        for key in distinct(lot.key[~leave]).tolist():
            mine = np.flatnonzero(lot.key == key)
            first, last = np.searchsorted(mine, low), np.searchsorted(mine, high)
            total = np.append(0, np.cumsum(lot.ns[mine]))
            some = np.flatnonzero((last > first) & (total[last] > total[first]))
            first, last = first[some], last[some]
            order = np.lexsort((lot.start[mine], -lot.ns[mine]))
            rank = np.empty(len(mine), np.int64)
            rank[order] = np.arange(len(mine))
            at = mine[order[least(rank, first, last)]]
            self._rows.append(
                (
                    window[some],
                    lot.key[at],
                    total[last] - total[first],
                    lot.ns[at],
                    lot.start[at],
                    lot.ref_kind[at],
                    lot.ref[at],
                )
            )

    def _sized_keys(self) -> np.ndarray:
        """Per key, whether it belongs to copies or memsets, whose operations are counted one by one."""
        if len(self._of_size) != len(self._keys):
            self._of_size = np.array([k.cause in ("memcpy", "memset") for k in tuple(self._keys)], dtype=bool)
        return self._of_size

    def _note_sizes(self, window: np.ndarray, key: np.ndarray, ref_kind: np.ndarray, ref: np.ndarray) -> None:
        sized = np.flatnonzero(self._sized_keys()[key] & np.isin(ref_kind, OPERATION_REFS))
        if len(sized):
            self._sized.append(np.stack([window[sized], key[sized], ref[sized]]))

    def table(self) -> pd.DataFrame:
        """`details` of everything that was added."""
        if not self._rows:
            return frames.empty(frames.DETAILS)
        window, key, ns, longest, start, ref_kind, ref = (
            np.concatenate(c) for c in zip(*self._rows, strict=True)
        )
        keys = list(self._keys)
        self._rows = []
        rank = np.empty(len(keys), np.int64)
        rank[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
        code = window * len(keys) + rank[key]
        order = np.lexsort((start, -longest, code))
        first = np.flatnonzero(np.concatenate([[True], np.diff(code[order]) > 0]))
        at = order[first]
        moved, took = self._sizes(code[at], rank, len(keys))
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
                "bandwidth_gb_s": np.divide(moved, took, out=np.full(len(at), np.nan), where=took > 0),
            }
        )
        return frames.check(out, frames.DETAILS)

    def _sizes(self, code: np.ndarray, rank: np.ndarray, keys: int) -> tuple[np.ndarray, np.ndarray]:
        """(bytes, duration) of the copies and memsets of every row: an operation with several pieces counts once."""
        moved, took = np.zeros(len(code), np.int64), np.zeros(len(code), np.int64)
        if self._sized:
            window, key, operation = np.unique(np.concatenate(self._sized, axis=1), axis=1)
            at = np.searchsorted(code, window * keys + rank[key])
            table = self.trace.operations
            np.add.at(moved, at, table["bytes"].to_numpy()[operation])
            np.add.at(
                took, at, table["end_ns"].to_numpy()[operation] - table["start_ns"].to_numpy()[operation]
            )
        return moved, took


def _parts(before: np.ndarray, count: np.ndarray) -> list[slice]:
    """Runs of windows that hold about _AT_ONCE pieces together."""
    if not len(count):
        return []
    number = before // _AT_ONCE
    cuts = np.flatnonzero(np.diff(number)) + 1
    return [slice(int(a), int(b)) for a, b in zip([0, *cuts], [*cuts, len(count)], strict=True)]
