"""What lies between the first and the last operation of a window, once for all windows and all their error bars.

    window A   [------------------------------------)
    window A'     [------------------------------------)      the same, later by its error bar
    stream        KKKK  gap  KKKK  gap  KKKK  gap  KKKK
    edge       |      |                           |    |      cut by the window: stream.py
    interior           ^^^^^^^^^^^^^^^^^^^^^^^^^^^            the same for every window

A gap that no window cuts has one explanation: P and N are the operations beside it.  So every gap is explained once,
in chunks that fit into the processor's cache, and windows take differences of running sums.  Nearly all gaps are plain (below)
and need only the issuing call and the thread's calls; `gaps.Explainer` explains the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from nsysalign.issue import FAR
from nsysalign.model import CAUSES, KIND, OPERATION_KINDS
from nsysalign.split.busy import Blocks
from nsysalign.split.gaps import NEVER, Explainer, Gaps, host_pieces
from nsysalign.split.groups import Groups, Lot
from nsysalign.split.pieces import CAUSE, REF, Pieces, by_cause, make
from nsysalign.tiles import pick, ragged, tile

_AT_ONCE = 1 << 18
_CAUSE_OF_KIND = np.array([CAUSE[k] for k in OPERATION_KINDS], dtype=np.int8)


@dataclass(frozen=True)
class Chunk:
    """Gaps and blocks first..last-1 of a lane; gap j lies before block j.  Running sums per cause (row), one column more than
    there are gaps; batches with the gap (or block) of each of their pieces, ascending."""

    first: int
    last: int
    gaps: np.ndarray
    blocks: np.ndarray
    in_gaps: list[tuple[np.ndarray, Lot]]
    in_blocks: list[tuple[np.ndarray, Lot]]


class Interior:
    """The gaps and blocks of one lane."""

    def __init__(self, lane: int, blocks: Blocks, explainer: Explainer, groups: Groups) -> None:
        self.lane, self.blocks, self.explainer, self.groups = lane, blocks, explainer, groups
        self._veils = np.sort(explainer.call_start[explainer.veils])
        self._waits = explainer.waits[lane][0] if lane in explainer.waits else np.empty(0, np.int64)
        held_up = len(explainer.waits) or len(explainer.veils)
        self._ordered = bool(explainer.default_stream_rivals(lane)) or bool(
            lane in explainer.streams.members and held_up
        )
        self._alone = not len(explainer.streams.others_of(lane))
        self._latency = np.array(
            [explainer.launch_latency.get(k, 0) for k in range(4)], dtype=np.int64
        )

    def prepare(self) -> None:
        """Build what chunks share before several threads ask for it."""
        self._activity_keys  # noqa: B018
        if len(self.explainer.trace.ranges):
            self._range_keys  # noqa: B018
        self.groups.call_keys(CAUSE["api_launch"])

    def chunk(self, first: int, last: int, *, with_lots: bool) -> Chunk:
        """Blocks first..last-1 and the gaps before each of them (first > 0)."""
        b = self.blocks
        size = last - first
        gaps, in_gaps = self._gaps(first, last, with_lots)
        kind = b.kind[first:last]
        busy = by_cause(
            np.arange(size), _CAUSE_OF_KIND[kind], b.end[first:last] - b.start[first:last], size
        )
        in_blocks = []
        if with_lots:
            moved = first + np.flatnonzero((kind == KIND["memcpy"]) | (kind == KIND["memset"]))
            if len(moved):
                in_blocks.append(self.groups.lot(block_pieces(b, moved, moved)))
        return Chunk(first, last, _running(gaps), _running(busy), in_gaps, in_blocks)

    def _gaps(
        self, first: int, last: int, with_lots: bool
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, Lot]]]:
        b, x = self.blocks, self.explainer
        start, end = b.end[first - 1 : last - 1], b.start[first:last]
        previous, following = b.operation[first - 1 : last - 1], b.operation[first:last]
        call = x.call[following]
        safe = np.maximum(call, 0)
        some = len(x.call_start) > 0
        issue, issued = (
            (x.call_start[safe], x.call_end[safe]) if some else (NEVER + 0 * end, NEVER + 0 * end)
        )
        # rules 7 and 8: until `late` the operation is on its way
        late = np.maximum(issued, x.op_end[previous]) + self._latency[x.kind[following]]
        special = (call < 0) | x.pageable[previous] | x.pageable[following]
        if not self._alone:
            special |= late < end
        before = pick(x.call_start, x.call[previous], NEVER)
        for held, after in ((self._waits, True), (self._veils, False)):
            if len(held):
                done = np.searchsorted(held, before, side="right" if after else "left")
                special |= done < np.searchsorted(held, issue)
        if self._ordered:
            special[:] = True
        open_ = end > start
        plain, odd = np.flatnonzero(open_ & ~special), np.flatnonzero(open_ & special)
        sums = np.zeros((len(CAUSES), last - first), np.int64)
        lots: list[tuple[np.ndarray, Lot]] = []
        if len(odd):
            pieces = x.explain(
                self._as_gaps(first, odd, start, end, previous, following, call, issue, issued)
            )
            sums += by_cause(pieces.window, pieces.cause, pieces.end - pieces.start, sums.shape[1])
            if with_lots:
                window, lot = self.groups.lot(pieces)
                lots.append((first + window, lot))
        if len(plain):
            if len(plain) < len(start):
                start, end, call, issue, issued = (
                    v[plain] for v in (start, end, call, issue, issued)
                )
            lots += self._plain(first, plain, start, end, call, issue, issued, sums, with_lots)
        return sums, lots

    def _plain(
        self, first, at, start, end, call, issue, issued, sums, with_lots
    ) -> list[tuple[np.ndarray, Lot]]:
        """Rules 8 to 15 for gaps `at` that wait for nothing but their own launch; adds to `sums`."""
        lots = []
        low, high = np.maximum(start, issued), end
        sums[CAUSE["launch_latency"], at] += np.maximum(high - low, 0)
        low, high = np.maximum(start, issue), np.minimum(end, issued)
        inside = np.flatnonzero(high > low)
        ns = (high - low)[inside]
        sums[CAUSE["api_launch"], at[inside]] += ns
        if with_lots and len(inside):
            key = self.groups.call_keys(CAUSE["api_launch"])[self.groups.call_names[call[inside]]]
            lots.append((first + at[inside], _lot(key, low[inside], ns, REF["api"], call[inside])))
        high = np.minimum(end, issue)
        outside = np.flatnonzero(high > start)
        thread = self.explainer.call_thread[call[outside]]
        one = not len(thread) or (thread == thread[0]).all()
        for number in thread[:1].tolist() if one else np.unique(thread).tolist():
            mine = outside if one else outside[thread == number]
            lots += self._host(number, first, at[mine], start[mine], high[mine], sums, with_lots)
        return lots

    def _host(self, thread, first, at, start, end, sums, with_lots) -> list[tuple[np.ndarray, Lot]]:
        """Rules 10 to 15: what the thread did in sorted disjoint stretches."""
        t = self.explainer.threads[thread]
        lots = []
        if len(t.over_start):  # few stretches contain work of the profiler
            seen = np.searchsorted(t.over_end, start, side="right") < np.searchsorted(
                t.over_start, end
            )
            some = np.flatnonzero(seen)
            pieces = host_pieces(self.explainer.threads, thread, at[some], start[some], end[some])
            sums += by_cause(pieces.window, pieces.cause, pieces.end - pieces.start, sums.shape[1])
            if with_lots and len(some):
                window, lot = self.groups.lot(pieces)
                lots.append((first + window, lot))
            at, start, end = at[~seen], start[~seen], end[~seen]
        a, b = (
            np.searchsorted(t.end, start, side="right"),
            np.searchsorted(t.start, end, side="left"),
        )
        count = np.maximum(b - a, 0)
        owner, block = ragged(a, count)
        low, high = np.maximum(t.start[block], start[owner]), np.minimum(t.end[block], end[owner])
        ns = high - low
        busy = by_cause(owner, t.cause[block], ns, len(at))
        busy[CAUSE["host"]] = (end - start) - busy.sum(axis=0)
        for cause in np.flatnonzero(busy.any(axis=1)).tolist():
            sums[cause, at] += busy[cause]
        if not with_lots:
            return []
        call = t.ref[block]
        if len(call):
            key = self._activity_keys[self.groups.call_names[call]]
            lots.append((first + at[owner], _lot(key, low, ns, REF["api"], call)))
        if len(t.range_start):
            lots += self._named(t, first, at, start, end, count, low, high)
        return lots

    def _named(self, t, first, at, start, end, count, low, high) -> list[tuple[np.ndarray, Lot]]:
        """Time outside calls and inside an NVTX range: the parts of stretches between their calls [low, high).

        stretch   [---------------)
        calls        [--)  [--)         count of them, laid out flat
        free      [-)   [--)  [---)
        """
        opens = np.cumsum(count + 1) - count - 1  # each stretch has one free piece more than calls
        inner = np.ones(len(low) + len(start), dtype=bool)
        inner[opens] = False
        s, e = np.empty(len(inner), np.int64), np.empty(len(inner), np.int64)
        s[opens], s[inner] = start, high
        inner[opens] = True
        inner[opens + count] = False
        e[opens + count], e[inner] = end, low
        owner = np.repeat(np.arange(len(start)), count + 1)
        some = np.flatnonzero(e > s)
        s, e, owner = s[some], e[some], owner[some]
        named = tile(s, e, t.range_start, t.range_end)
        has = named.block >= 0
        ref = t.range_ref[named.block[has]]
        low, ns = named.start[has], (named.end - named.start)[has]
        return [
            (
                first + at[owner[named.piece[has]]],
                _lot(self._range_keys[ref], low, ns, REF["nvtx"], ref),
            )
        ]

    @cached_property
    def _range_keys(self) -> np.ndarray:
        return self.groups.range_keys()

    @cached_property
    def _activity_keys(self) -> np.ndarray:
        """Per name of a call: the key of time spent in it; a call's cause follows from its name."""
        name, cause = self.groups.call_names, self.explainer.threads.cause_of_calls
        of_name = np.zeros(int(name.max(initial=-1)) + 1, np.int8)
        for first in range(0, len(name), _AT_ONCE):
            of_name[name[first : first + _AT_ONCE]] = cause[first : first + _AT_ONCE]
        out = np.zeros(len(of_name), np.int64)
        for code in np.unique(of_name).tolist():
            out[of_name == code] = self.groups.call_keys(code)[of_name == code]
        return out

    def _as_gaps(self, first, at, start, end, previous, following, call, issue, issued) -> Gaps:
        """Gaps for the explainer; their "window" is their place in the chunk."""
        known = call[at] >= 0
        none = np.full(len(at), -1)
        return Gaps(
            window=at,
            start=start[at],
            end=end[at],
            lane=np.full(len(at), self.lane),
            next=following[at].astype(np.int64),
            previous=previous[at].astype(np.int64),
            issue_start=np.where(known, issue[at], FAR),
            issue_end=np.where(known, issued[at], FAR),
            issue_thread=np.where(
                known, pick(self.explainer.call_thread, np.maximum(call[at], 0), 0), 0
            ),
            issue_call=np.where(known, call[at], -1),
            known=known,
            record=none,
        )


def block_pieces(b: Blocks, window: np.ndarray, block: np.ndarray, start=None, end=None) -> Pieces:
    """Blocks as pieces of windows, whole or cut."""
    kind = b.kind[block]
    return make(
        window,
        b.start[block] if start is None else start,
        b.end[block] if end is None else end,
        _CAUSE_OF_KIND[kind],
        kind + 1,
        b.operation[block],
    )


def _lot(key: np.ndarray, start: np.ndarray, ns: np.ndarray, ref_kind: int, ref: np.ndarray) -> Lot:
    return Lot(key, start, ns, np.broadcast_to(np.int8(ref_kind), len(key)), ref)


def _running(sums: np.ndarray) -> np.ndarray:
    out = np.zeros((len(sums), sums.shape[1] + 1), np.int64)
    np.cumsum(sums, axis=1, out=out[:, 1:])
    return out
