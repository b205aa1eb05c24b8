"""Windows on a stream (kinds event, nvtx and run): every gap of a stream is explained once, every
window read off running sums.

    window          [-----------------------------------)
    stream    KKKKKK  gap  KKKK  gap  KKKK  gap  KKKK  gap
    shared          [gap   KKKK  gap  KKKK  gap  KKKK)        the same for every window: running sums at two times
    own                                              [gap)    ends with the end record, not with an operation

A gap has one explanation, from its P and N, the operations beside it; a window that cuts it holds a
part of that.  Only what follows the last operation that was issued before a window's end record is
the window's own.  A window at either end of its error bar is a window like all others.

Details: nanoseconds per window and kind, and what copies moved.  A kind is what a row of them holds
besides its interval and numbers: cause, detail, direction, memory, stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import (
    FAR,
    Columns,
    covered,
    distinct,
    group,
    one_of,
    pick,
    ragged,
    tile,
)
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
    REF_KINDS,
    Pieces,
    host_side,
    join,
    make,
    none,
    sums,
)

#: Blocks of a stream that are explained at once: they bound the memory.
_BLOCKS = 1 << 13
#: By cause and what a piece points to: what names it as a detail; 0, it is none; _ANYWAY, it is
#: one whatever it points to.
_ANYWAY = -1
_LOOK = np.zeros((len(CAUSES), len(REF_KINDS)), np.int8)
for _ref in ("api", "nvtx", "overhead"):
    _LOOK[[CAUSE[c] for c in WITH_A_NAME], REF[_ref]] = REF[_ref]
for _moving in ("memcpy", "memset"):
    _LOOK[CAUSE[_moving], OPERATION_REFS] = REF[_moving]
_LOOK[[CAUSE["queued"], CAUSE["unknown"]]] = _ANYWAY


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

    @classmethod
    def of(cls, alignment: Alignment) -> StreamWindows:
        """Of all windows; the work of a range ends with its own last operation: no record closes
        it."""
        w, call = alignment.windows, np.append(alignment.records["call"].to_numpy(), -1)
        names = ("start_ns", "end_ns", "end_lane", "close_ns", "close_end_ns", "end_thread", "end")
        start, end, lane, close, close_end, thread, record = (w[c].to_numpy() for c in names)
        if len(event := (w["kind"] == "event").to_numpy()) and not event.all():
            close, close_end = (np.where(event, t, FAR) for t in (close, close_end))
            record = np.where(event, record, -1)
        return cls(start, end, lane, close, close_end, thread, call[record], record)

    def shifted(self, by: np.ndarray) -> StreamWindows:
        return replace(self, start=self.start + by, end=self.end + by)


class Sums(NamedTuple):
    """Of every window, 0 where it was not asked for: nanoseconds per cause, at each place;
    operations that touch it at the first place; about how many pieces it has."""

    totals: list[np.ndarray]
    operations: np.ndarray
    size: np.ndarray


def stream_sums(
    explainer: Explainer, places: Sequence[StreamWindows], which: np.ndarray, details: Details
) -> Sums:
    """The sums of the windows `which` at every place (as measured, and at the ends of the error
    bar).  Adds those of the first place to `details`."""
    count = len(places[0].start)
    totals = [np.zeros((count, len(CAUSES)), np.int64) for _ in places]
    operations, own = np.zeros(count, np.int64), [place.end.copy() for place in places]
    for lane, windows in sorted(group(places[0].lane[which], which).items()):
        blocks, positions = explainer.streams.blocks(lane), explainer.streams.positions(lane)
        for begin, place in zip(own, places, strict=True):
            begin[windows] = _own_from(explainer, blocks, place.take(windows))
        _add_shared(explainer, places, own, windows, totals, details)
        start, end = places[0].start[windows], places[0].end[windows]
        ended = np.searchsorted(np.sort(explainer.op_end[positions]), start, side="right")
        begun = np.searchsorted(explainer.op_start[positions], end)
        operations[windows] = np.where(end > start, begun - ended, 0)
        details.add_moved(windows, start, end, positions)
    for number, (place, begin) in enumerate(zip(places, own, strict=True)):
        left = which[begin[which] < place.end[which]]
        for lot in in_lots(explainer.call_start, begin[left], place.end[left]):
            pieces = _pieces(explainer, place, left[lot.owner], lot.start, lot.end)
            totals[number] += sums(pieces, count)
            if number == 0:
                details.add_pieces(pieces)
    size = np.zeros(count, np.int64)
    size[which] = 1 + 2 * operations[which]
    return Sums(totals, operations, size)


def _add_shared(
    explainer: Explainer,
    places: Sequence[StreamWindows],
    own: Sequence[np.ndarray],
    windows: np.ndarray,
    totals: Sequence[np.ndarray],
    details: Details,
) -> None:
    """Adds what the windows of one lane share with all others, from their starts to `own`: how much
    of each cause lies before the one and before the other."""
    # starts, then ends, of all windows at all places: sorted times, of which place and window
    sides, of = [], np.repeat(np.arange(len(places), dtype=np.int8), len(windows))
    for times in ([place.start for place in places], own):
        time = np.concatenate([t[windows] for t in times])
        order = np.argsort(time)
        sides.append((time[order], of[order], np.tile(windows, len(places))[order]))
    # windows by their starts at the first place; those that are open while a lot lasts
    coming = windows[np.argsort(places[0].start[windows], kind="stable")]
    begin_ns, open_now = places[0].start[coming], coming[:0]
    done = np.zeros(len(CAUSES), np.int64)  # how much of each cause lies before the lot
    low, high = int(sides[0][0][0]), int(sides[1][0][-1])
    for pieces in _explained(explainer, int(places[0].lane[windows[0]]), low, high):
        edges = [pieces.start[0], pieces.end[-1]]
        some = [slice(*np.searchsorted(time, edges, side="right")) for time, *_ in sides]
        before = [np.tile(done, (s.stop - s.start, 1)) for s in some]
        for code in distinct(pieces.cause).tolist():
            of_cause = np.flatnonzero(pieces.cause == code)
            begin, over = pieces.start[of_cause], pieces.end[of_cause]
            for (time, *_), s, ns in zip(sides, some, before, strict=True):
                ns[:, code] += covered(begin, over, time[s])
            done[code] += (over - begin).sum()
        for sign, (_, of, window), s, ns in zip((-1, 1), sides, some, before, strict=True):
            for number, total in enumerate(totals):
                here = np.flatnonzero(of[s] == number)
                total[window[s][here]] += sign * ns[here]
        begun, stop = np.searchsorted(begin_ns, edges)
        open_now = np.append(open_now[own[0][open_now] > edges[0]], coming[begun:stop])
        details.add_within(open_now, places[0].start[open_now], own[0][open_now], pieces)


def stream_pieces(explainer: Explainer, w: StreamWindows, which: np.ndarray) -> Pieces:
    """Tile these windows with pieces, exactly."""
    return _pieces(explainer, w, which, w.start[which], w.end[which])


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
    endless = StreamWindows(*np.array([[-FAR], [FAR], [lane], [FAR], [FAR], [-1], [-1], [-1]]))
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
        busy, idle, whose = cut.block >= 0, np.flatnonzero(cut.block < 0), window[those[cut.piece]]
        ref = blocks.ref[cut.block[busy]]
        what = (CAUSE_OF_KIND[explainer.kind[ref]], explainer.ref_kind(ref), ref)
        parts.append(make(whose[busy], cut.start[busy], cut.end[busy], *what))
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
    """Collects nanoseconds of windows by kind, which is one number until the table is made."""

    def __init__(self, trace: Trace, alignment: Alignment) -> None:
        self.operations, self.lanes = trace.operations, alignment.lanes
        self.moves = one_of(trace.operations["kind"].to_numpy(), [KIND["memcpy"], KIND["memset"]])
        #: Rows of window, kind, ns, bytes, and duration of what moved these.
        self._rows = [np.empty((5, 0), np.int64)]
        #: Detail, direction and memory by number, and for what pieces point to, these numbers.
        self._texts = [("", "", "")]
        self._numbers = {REF["memset"]: np.broadcast_to(np.int32(0), len(self.moves))}
        names = trace.names
        for ref, table, unnamed in (("api", trace.calls, "CUDA call"), ("overhead", trace.overhead, "profiler")):  # fmt: skip
            code, ids = pd.factorize(table["name_id"].to_numpy())
            self._name(REF[ref], code, [(names.get(n, unnamed), "", "") for n in ids.tolist()])
        code, texts = pd.factorize(trace.ranges["text"].to_numpy(dtype=object))
        self._name(REF["nvtx"], code, [(text, "", "") for text in texts])
        copies = np.flatnonzero(trace.operations["kind"].to_numpy() == KIND["memcpy"])
        way, ways = pd.factorize(trace.operations["copy_kind"].to_numpy()[copies])
        side, sides = pd.factorize(host_side(trace.operations, copies))
        code = np.zeros(len(self.moves), np.int32)
        code[copies] = way * len(sides) + side
        words = [
            ("copy", DIRECTION.get(way, f"kind {way}"), MEMORY.get(side, "unknown"))
            for way in ways.tolist()
            for side in sides.tolist()
        ]
        self._name(REF["memcpy"], code, words)
        self._shape = (len(CAUSES), len(DETAILS), len(self.lanes) + 1, len(self._texts))

    def _name(self, ref_kind: int, code: np.ndarray, texts: list[tuple[str, str, str]]) -> None:
        self._numbers[ref_kind] = (code + len(self._texts)).astype(np.int32)
        self._texts += texts

    def _listed(self, pieces: Pieces) -> tuple[np.ndarray, np.ndarray]:
        """Which pieces are details, and the number of the kind of each."""
        look = _LOOK[pieces.cause, pieces.ref_kind]
        rows = np.flatnonzero((look != 0) & ((pieces.ref >= 0) | (look == _ANYWAY)))
        look, ref, text = look[rows], pieces.ref[rows], np.zeros(len(rows), np.int64)
        for ref_kind, numbers in self._numbers.items():
            own = np.flatnonzero(look == ref_kind)
            text[own] = numbers[ref[own]]
        columns = (c[rows] for c in (pieces.cause, pieces.detail, pieces.lane + 1))
        return rows, np.ravel_multi_index((*columns, text), self._shape)

    def add_pieces(self, pieces: Pieces) -> None:
        """What these pieces of windows are."""
        rows, kind = self._listed(pieces)
        self.add(pieces.window[rows], kind, (pieces.end - pieces.start)[rows])

    def add_within(self, window, start, end, pieces: Pieces) -> None:
        """What of these pieces, sorted and disjoint, lies in each window."""
        rows, kind = self._listed(pieces)
        begin, over = pieces.start[rows], pieces.end[rows]
        first, last = np.searchsorted(over, start, side="right"), np.searchsorted(begin, end)
        owner, piece = ragged(first, np.maximum(last - first, 0))
        ns = np.minimum(over[piece], end[owner]) - np.maximum(begin[piece], start[owner])
        self.add(window[owner], kind[piece], ns)

    def add(self, window, kind, ns, size=0, took=0) -> None:
        """Nanoseconds of windows; and bytes that were moved, and how long what moved them took."""
        kinds, values = pd.factorize(kind)
        row, pairs = pd.factorize(window * len(values) + kinds)
        sums = np.zeros((5, len(pairs)), np.int64)
        sums[0], sums[1] = pairs // max(len(values), 1), values[pairs % max(len(values), 1)]
        for total, column in zip(sums[2:], (ns, size, took), strict=True):
            if np.ndim(column):
                np.add.at(total, row, column)
        self._rows.append(sums)

    def add_moved(self, window, start, end, operation) -> None:
        """What the copies and memsets among these operations, sorted by start, moved that touch the
        windows: those that began before its end, without those that were over at its start."""
        operation = operation[self.moves[operation]]
        kinds, size, begun, over = self._moved(operation)
        for kind in distinct(kinds).tolist():
            those = np.flatnonzero(kinds == kind)
            ended = those[np.argsort(over[those])]
            first = np.searchsorted(over[ended], start, side="right")
            last = np.searchsorted(begun[those], end)
            moved, took = (
                np.append(0, np.cumsum(v[those]))[last] - np.append(0, np.cumsum(v[ended]))[first]
                for v in (size, over - begun)
            )
            some = np.flatnonzero((end > start) & ((moved > 0) | (took > 0)))
            self.add(window[some], np.full(len(some), kind), 0, moved[some], took[some])

    def add_executed(self, window: np.ndarray, operation: np.ndarray) -> None:
        """The same where it is known which operation executes in which window."""
        some = self.moves[operation]
        kinds, size, begun, over = self._moved(operation[some])
        self.add(window[some], kinds, 0, size, over - begun)

    def _moved(self, operation: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of copies and memsets: kind, bytes, start, end."""
        names = ("kind", "bytes", "start_ns", "end_ns")
        kind, size, begun, over = (self.operations[c].to_numpy()[operation] for c in names)
        pieces = make(operation, begun, over, CAUSE_OF_KIND[kind], kind + 1, operation)
        return self._listed(pieces)[1], size, begun, over

    def table(self) -> pd.DataFrame:
        """`frames.DETAILS` of everything that was added, once."""
        rows, self._rows = np.concatenate(self._rows, axis=1), []
        kinds = distinct(rows[1])
        words = [self._words(kind) for kind in kinds.tolist()]
        ordered = sorted(set(words))
        place = {word: n for n, word in enumerate(ordered)}
        rank = np.array([place[word] for word in words], np.int64)
        # rows of one interval and kind are added up
        key = rows[0] * len(ordered) + rank[np.searchsorted(kinds, rows[1])]
        row, pairs = pd.factorize(key, sort=True)
        ns, size, took = (np.zeros(len(pairs), np.int64) for _ in range(3))
        for total, column in zip((ns, size, took), rows[2:], strict=True):
            np.add.at(total, row, column)
        del rows, key, row
        some = np.flatnonzero(ns != 0)
        interval, kind = np.divmod(pairs[some], max(len(ordered), 1))
        named = pd.DataFrame(ordered, columns=["cause", "detail", "direction", "memory", "stream"])
        stream = named.pop("stream").to_numpy(dtype=np.int64)[kind]
        size, took = size[some], took[some]
        # bytes per nanosecond are GB per second
        rate = np.divide(size, took, out=np.full(len(some), np.nan), where=took > 0)
        table = {name: frames.texts(kind, named[name].tolist()) for name in named}
        numbers = {"interval": interval, "stream": stream, "bytes": size}
        table |= {name: frames.narrow(values) for name, values in numbers.items()}
        table |= {"ns": ns[some], "bandwidth_gb_s": rate}
        return frames.check(pd.DataFrame(table, copy=False), frames.DETAILS, narrow=True)

    def _words(self, kind: int) -> tuple[str, str, str, str, int]:
        """Cause, detail, direction, memory, stream."""
        cause, detail, lane, text = (int(n) for n in np.unravel_index(kind, self._shape))
        words, direction, memory = self._texts[text]
        stream = int(self.lanes["stream"].iloc[lane - 1]) if lane else -1
        words = DETAILS[detail] if (direction and detail) or not text else words
        return CAUSES[cause], words, direction, memory, stream
