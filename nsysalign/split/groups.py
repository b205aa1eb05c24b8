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
from nsysalign.model import CAUSES, KIND, Alignment, Trace
from nsysalign.split import describe
from nsysalign.split.pieces import CAUSE, DETAIL, DETAILS, OPERATION_REFS, REF, REF_KINDS, Pieces
from nsysalign.split.run_windows import extent, is_part
from nsysalign.tiles import distinct, least, pick, ragged

_NAMED = tuple(CAUSE[c] for c in ("api", "sync", "api_launch", "host", "event", "profiler"))
_SPOKEN = tuple(REF[r] for r in ("api", "nvtx", "overhead"))
#: Limits on pieces processed at once and on slots of a windows-by-keys table: they bound the memory.
_AT_ONCE = 1 << 17
_SLOTS = 1 << 18
#: If windows together hold this many times more pieces than exist, they are summed without laying the pieces out per window.
_PIECES_EACH = 32


#: What rows of a portion's details hold besides `frames.DETAILS`.
PIECES = ("longest_ns", "longest_start_ns", "took_ns")
_NOWHERE = np.iinfo(np.int64).max


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


#: Columns of a table of what a slice's edges may have cut: interval, side (BEGIN or END of what the slice splits), what, the key,
#: and of a piece also its length and start, of a copy what its row in `details` counts for it.
CUT = (
    "interval",
    "side",
    "what",
    *Key._fields,
    "ref_kind",
    "ref_id",
    "ns",
    "start_ns",
    "bytes",
    "took_ns",
)
_CUT_TYPES = dict.fromkeys(CUT, "int64") | dict.fromkeys(
    ("cause", "detail", "direction", "memory", "ref_kind"), "str"
)
BEGIN, END = 0, 1
#: A piece at the edge; a copy or memset, which counts once per row of `details`; an operation that a host window waits for.
PIECE, COPY, RAN = 0, 1, 2


class Groups:
    """Collects pieces per window and key."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.trace, self.alignment = trace, alignment
        self._part = is_part(alignment)
        self._at_edges: list[tuple[int, Pieces]] = []
        self._keys: dict[Key, int] = {}
        self._lock = Lock()
        self._rows: list[
            tuple[np.ndarray, ...]
        ] = []  # window, key, ns, longest, its start, ref_kind, ref
        self._sized: list[
            np.ndarray
        ] = []  # (window, key, operation) of copies and memsets, columns
        self._of_call: dict[int, np.ndarray] = {}
        self._of_size = np.empty(0, dtype=bool)  # per key: whether it belongs to a copy or memset

    def call_keys(self, cause: int) -> np.ndarray:
        """Per number of a call's name (`call_names`): the key under a cause."""
        if cause not in self._of_call:
            keys = [
                self.number(Key(CAUSES[cause], text, "", "", -1)) for text in self._calls_named[1]
            ]
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
            numbers[first : first + _AT_ONCE] = np.searchsorted(
                unique, ids[first : first + _AT_ONCE]
            )
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
        if self._part.any():
            mine = pieces.take(np.flatnonzero(self._part[pieces.window]))
            self._at_edges += [(side, mine.take(self._near(side, mine))) for side in (BEGIN, END)]
        for first in range(0, len(pieces), _AT_ONCE):
            window, lot = self.lot(pieces.take(slice(first, first + _AT_ONCE)))
            owner = np.cumsum(np.concatenate([[False], window[1:] != window[:-1]])[: len(window)])
            self._reduce(
                window[np.flatnonzero(np.diff(owner, prepend=-1))],
                owner,
                np.arange(len(owner)),
                lot,
            )

    def _near(self, side: int, p: Pieces) -> np.ndarray:
        """Positions of the pieces that lie at an edge of their window's extent where another slice continues it, and of those whose
        operation reaches over it."""
        at = self._edges[side][p.window]
        touching = (p.start if side == BEGIN else p.end) == at
        return np.flatnonzero(touching | self._reaches_over(p.ref_kind, p.ref, at))

    @cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of every window's extent; _NOWHERE where no other slice continues it."""
        ends = (self.alignment.windows[c].to_numpy() for c in ("start_ns", "end_ns"))
        found = [
            np.where(self._part & (e != own), e, _NOWHERE)
            for e, own in zip(extent(self.alignment), ends, strict=True)
        ]
        return found[0], found[1]

    def _reaches_over(self, ref_kind: np.ndarray, ref: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Whether operations, with the calls that issued them, begin before these times and end after them."""
        operations, calls = self.trace.operations, self.trace.calls
        of = np.where(np.isin(ref_kind, OPERATION_REFS) & (ref >= 0), ref, -1)
        call = pick(operations["call"].to_numpy(), of, -1)
        begin, over = (pick(operations[c].to_numpy(), of, _NOWHERE) for c in ("start_ns", "end_ns"))
        issue = pick(calls["start_ns"].to_numpy(), call, -_NOWHERE)
        done = pick(calls["end_ns"].to_numpy(), call, -_NOWHERE)
        begin = np.where(call >= 0, np.minimum(begin, issue), begin)
        return (of >= 0) & (begin < at) & (np.maximum(over, done) > at)

    def cut(self) -> pd.DataFrame:
        """What the edges of a slice may have cut, of windows that other slices continue (columns CUT)."""
        found = []
        host = (self.alignment.windows["kind"] == "host").to_numpy()
        for side, p in self._at_edges:
            window, lot = self.lot(p)
            touching = (lot.start if side == BEGIN else lot.start + lot.ns) == self._edges[side][
                window
            ]
            found.append(self._cut(side, PIECE, window[touching], Lot(*(c[touching] for c in lot))))
            ran = np.flatnonzero(
                host[p.window]
                & np.isin(p.ref_kind, OPERATION_REFS)
                & (p.detail == 0)
                & (p.cause < len(KIND))
            )
            none = np.zeros(len(ran), np.int64)
            found.append(
                self._cut(
                    side, RAN, p.window[ran], Lot(none - 1, none, none, p.ref_kind[ran], p.ref[ran])
                )
            )
        for side in (BEGIN, END) if self._part.any() and self._sized else ():
            window, key, operation = np.unique(np.concatenate(self._sized, axis=1), axis=1)
            kind = self.trace.operations["kind"].to_numpy()[operation] + 1
            over = np.flatnonzero(self._reaches_over(kind, operation, self._edges[side][window]))
            none = np.zeros(len(over), np.int64)
            found.append(
                self._cut(
                    side,
                    COPY,
                    window[over],
                    Lot(key[over], none, none, kind[over], operation[over]),
                )
            )
        some = [table for table in found if len(table)]
        return pd.concat(some, ignore_index=True) if some else self._cut(BEGIN, PIECE, *_nothing())

    def _cut(self, side: int, what: int, window: np.ndarray, lot: Lot) -> pd.DataFrame:
        keys = [*self._keys, Key("", "", "", "", -1)]
        spelled = zip(
            Key._fields, zip(*(keys[k] for k in [*lot.key.tolist(), -1]), strict=True), strict=True
        )
        table, copy = self.trace.operations, np.where(what == COPY, lot.ref, -1)
        took = table["end_ns"].to_numpy() - table["start_ns"].to_numpy()
        return pd.DataFrame(
            {
                "interval": window,
                "side": side,
                "what": what,
                **{name: list(values)[:-1] for name, values in spelled},
                "ref_kind": np.array(REF_KINDS, dtype=object)[lot.ref_kind],
                "ref_id": describe.ref_ids(self.trace, self.alignment, lot.ref_kind, lot.ref),
                "ns": lot.ns,
                "start_ns": lot.start,
                "bytes": pick(table["bytes"].to_numpy(), copy, 0),
                "took_ns": pick(took, copy, 0),
            },
            columns=list(CUT),
        ).astype(_CUT_TYPES)

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
        name, copy = (
            self._name_codes(p, named),
            self._copy_codes(p, sized & (p.cause == CAUSE["memcpy"])),
        )
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
                causes,
                text.tolist(),
                direction.tolist(),
                memory.tolist(),
                stream.tolist(),
                strict=True,
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
            self._of_size = np.array(
                [k.cause in ("memcpy", "memset") for k in tuple(self._keys)], dtype=bool
            )
        return self._of_size

    def _note_sizes(
        self, window: np.ndarray, key: np.ndarray, ref_kind: np.ndarray, ref: np.ndarray
    ) -> None:
        sized = np.flatnonzero(self._sized_keys()[key] & np.isin(ref_kind, OPERATION_REFS))
        if len(sized):
            self._sized.append(np.stack([window[sized], key[sized], ref[sized]]))

    def table(self) -> pd.DataFrame:
        """`details` of everything that was added, and what is needed to add up those of several slices: the length and start of
        each row's longest piece, how long its copies took."""
        if not self._rows:
            return frames.empty(frames.DETAILS).assign(
                **dict.fromkeys(PIECES, np.empty(0, np.int64))
            )
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
                "bandwidth_gb_s": np.divide(
                    moved, took, out=np.full(len(at), np.nan), where=took > 0
                ),
            }
        )
        more = zip(PIECES, (longest[at], start[at], took), strict=True)
        return frames.check(out, frames.DETAILS).assign(**dict(more))

    def _sizes(
        self, code: np.ndarray, rank: np.ndarray, keys: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(bytes, duration) of the copies and memsets of every row: an operation with several pieces counts once."""
        moved, took = np.zeros(len(code), np.int64), np.zeros(len(code), np.int64)
        if self._sized:
            window, key, operation = np.unique(np.concatenate(self._sized, axis=1), axis=1)
            at = np.searchsorted(code, window * keys + rank[key])
            table = self.trace.operations
            np.add.at(moved, at, table["bytes"].to_numpy()[operation])
            np.add.at(
                took,
                at,
                table["end_ns"].to_numpy()[operation] - table["start_ns"].to_numpy()[operation],
            )
        return moved, took


def _nothing() -> tuple[np.ndarray, Lot]:
    none = np.empty(0, np.int64)
    return none, Lot(none, none, none, none, none)


def _parts(before: np.ndarray, count: np.ndarray) -> list[slice]:
    """Runs of windows that hold about _AT_ONCE pieces together."""
    if not len(count):
        return []
    number = before // _AT_ONCE
    cuts = np.flatnonzero(np.diff(number)) + 1
    return [slice(int(a), int(b)) for a, b in zip([0, *cuts], [*cuts, len(count)], strict=True)]
