"""Windows on a stream (kinds event, nvtx and run): every gap of a stream is explained once, every
window read off running sums.

    window          [-----------------------------------)
    stream    KKKKKK  gap  KKKK  gap  KKKK  gap  KKKK  gap
    shared          [gap   KKKK  gap  KKKK  gap  KKKK)        the same for every window: running sums at two times
    own                                              [gap)    ends with the end record, not with an operation

A gap has one explanation, from its P and N, the operations beside it; a window that cuts it holds a
part of that.  Only what follows the last operation that was issued before a window's end record is
the window's own.  A window at either end of its error bar is a window like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nsysalign.intervals import FAR, Columns, distinct, group, pick, ragged, tile
from nsysalign.model import CAUSES
from nsysalign.split.busy import Blocks, in_lots
from nsysalign.split.details import Details
from nsysalign.split.gaps import NEVER, Explainer, Gaps
from nsysalign.split.pieces import CAUSE_OF_KIND, Pieces, join, make, none, sums

#: Blocks of a stream that are explained at once, and windows' own ends.
_BLOCKS, _ENDS = 1 << 15, 1 << 14


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
    """`totals`: nanoseconds per window and cause, at each place; `operations` that execute in each
    window at the first place, and about how many pieces it has there (`size`)."""

    totals: list[np.ndarray]
    operations: np.ndarray
    size: np.ndarray


class _Spots(NamedTuple):
    """Spans that hold the blocks or pieces first..last-1, the outer two perhaps cut."""

    span: np.ndarray
    start: np.ndarray
    end: np.ndarray
    first: np.ndarray
    last: np.ndarray


def _spots(pieces: Pieces, start: np.ndarray, end: np.ndarray) -> _Spots:
    """The spans [start, end) that hold any of some sorted disjoint pieces."""
    near = np.flatnonzero((start < pieces.end[-1]) & (end > pieces.start[0]))
    first, last = _held(pieces, start[near], end[near])
    some = np.flatnonzero(last > first)
    near = near[some]
    return _Spots(near, start[near], end[near], first[some], last[some])


def _held(b: Blocks | Pieces, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The blocks or pieces first..last-1, sorted and disjoint, that windows hold, the outer two
    perhaps cut."""
    first = np.searchsorted(b.end, start, side="right")
    last = np.searchsorted(b.start, end, side="left")
    return first, np.where(end > start, np.maximum(last, first), first)


def stream_sums(
    explainer: Explainer, places: Sequence[StreamWindows], details: Details, numbers: np.ndarray
) -> StreamSums:
    """The sums of all windows at every place (as measured, and at the ends of the error bar).  Adds
    the pieces of the first place to `details`, in which the windows have these `numbers`."""
    count = len(numbers)
    totals = [np.zeros((count, len(CAUSES)), np.int64) for _ in places]
    operations, size = np.zeros(count, np.int64), np.ones(count, np.int64)
    own = [np.empty(count, np.int64) for _ in places]
    for lane, windows in sorted(group(places[0].lane, np.arange(count)).items()):
        blocks = explainer.streams.blocks(lane)
        first, last = _held(blocks, places[0].start[windows], places[0].end[windows])
        operations[windows] = _distinct(blocks, first, last)
        size[windows] += 2 * (last - first)
        for begin, place in zip(own, places, strict=True):
            begin[windows] = _own_from(explainer, blocks, place.take(windows))
        spans = [(p.start[windows], begin[windows]) for p, begin in zip(places, own, strict=True)]
        for pieces in _explained(explainer, lane, spans):
            spots = [_spots(pieces, *span) for span in spans]
            ns = pieces.end - pieces.start
            for code in distinct(pieces.cause).tolist():
                running = np.append(0, np.cumsum(np.where(pieces.cause == code, ns, 0)))
                for total, spot in zip(totals, spots, strict=True):
                    total[windows[spot.span], code] += running[spot.last] - running[spot.first]
            for total, spot in zip(totals, spots, strict=True):
                window, before, after = windows[spot.span], spot.first, spot.last - 1
                early, late = spot.start - pieces.start[before], pieces.end[after] - spot.end
                total[window, pieces.cause[before]] -= np.maximum(early, 0)
                total[window, pieces.cause[after]] -= np.maximum(late, 0)
            spot = spots[0]
            details.add_inside(numbers[windows[spot.span]], spot.start, spot.end, pieces)
        details.end_lane(numbers[windows], *spans[0])
    for number, (total, place, begin) in enumerate(zip(totals, places, own, strict=True)):
        ends = np.flatnonzero(begin < place.end)
        for some in np.split(ends, np.arange(_ENDS, len(ends), _ENDS)):
            pieces = _own_pieces(explainer, replace(place.take(some), start=begin[some]))
            total[some] += sums(pieces, len(some))
            if number == 0:
                details.add(replace(pieces, window=numbers[some[pieces.window]]))
    return StreamSums(totals, operations, size)


def stream_pieces(explainer: Explainer, w: StreamWindows) -> Pieces:
    """Tile every window with pieces, exactly."""
    own = np.empty(len(w.start), np.int64)
    parts = [none()]
    for lane, windows in group(w.lane, np.arange(len(own))).items():
        own[windows] = _own_from(explainer, explainer.streams.blocks(lane), w.take(windows))
        start, end = w.start[windows], own[windows]
        for pieces in _explained(explainer, lane, [(start, end)]):
            spot = _spots(pieces, start, end)
            owner, piece = ragged(spot.first, spot.last - spot.first)
            parts.append(
                replace(
                    pieces.take(piece),
                    window=windows[spot.span[owner]],
                    start=np.maximum(pieces.start[piece], spot.start[owner]),
                    end=np.minimum(pieces.end[piece], spot.end[owner]),
                )
            )
    return join([*parts, _own_pieces(explainer, replace(w, start=own))])


def _own_from(explainer: Explainer, b: Blocks, w: StreamWindows) -> np.ndarray:
    """From when on each window of one lane sees the stream in its own way: from the end of the last
    operation that was issued before its end record, as were all before that; its end where the
    operation behind it was issued before the end record, too."""
    issue = pick(explainer.call_start, explainer.call[b.operation], NEVER)
    issued = np.searchsorted(np.maximum.accumulate(issue), w.close_ns) if len(issue) else 0
    _, last = _held(b, w.start, w.end)
    until = np.minimum(issued, last)
    following = pick(issue, np.where(last < len(issue), last, -1), NEVER)
    shared = (until == last) & (following > NEVER) & (following < w.close_ns)
    return np.where(shared, w.end, np.clip(pick(b.end, until - 1, NEVER), w.start, w.end))


def _explained(
    explainer: Explainer, lane: int, spans: Sequence[tuple[np.ndarray, np.ndarray]]
) -> Iterator[Pieces]:
    """Pieces of all gaps and blocks of a lane that spans of time (start, end) touch, in lots of a
    bounded number of blocks and of calls that were made meanwhile; each lot is sorted and
    disjoint."""
    b = explainer.streams.blocks(lane)
    touched = np.zeros(len(b.start) + 1, np.int64)
    since = FAR
    for start, end in spans:
        apart = np.flatnonzero(end > start)
        start, end = start[apart], end[apart]
        since = min(since, int(start.min(initial=FAR)))
        np.add.at(touched, np.searchsorted(b.end, start, side="right"), 1)
        until = np.minimum(np.searchsorted(b.end, end, side="left") + 1, len(b.start))
        np.add.at(touched, until, -1)
    every = np.flatnonzero(np.cumsum(touched[:-1]))
    previous_end = np.append(since, b.end[:-1])
    # one window that no record closes
    endless = StreamWindows(
        *(np.array([n], np.int64) for n in (-FAR, FAR, lane, FAR, FAR, -1, -1, -1))
    )
    for some in np.split(every, np.arange(_BLOCKS, len(every), _BLOCKS)) if len(every) else ():
        yield _block_pieces(b, np.zeros(len(some)), some)
        start, end = previous_end[some], b.start[some]
        apart = np.flatnonzero(end > start)
        if not len(apart):
            continue
        start, end = start[apart], end[apart]
        gaps = _gaps(explainer, endless, lane, np.zeros(len(apart), np.int64), start, end)
        for lot in in_lots(explainer.threads, gaps.issue_thread, start, end):
            part = replace(gaps.take(lot.owner), start=lot.start, end=lot.end)
            pieces = explainer.explain(part)
            yield pieces.take(np.argsort(pieces.start, kind="stable"))


def _own_pieces(explainer: Explainer, w: StreamWindows) -> Pieces:
    """Pieces of windows that each see their stream in their own way."""
    parts, gaps = [none()], []
    for lane in np.unique(w.lane).tolist():
        those = np.flatnonzero((w.lane == lane) & (w.end > w.start))
        blocks = explainer.streams.blocks(lane)
        cut = tile(w.start[those], w.end[those], blocks.start, blocks.end)
        busy, idle = np.flatnonzero(cut.block >= 0), np.flatnonzero(cut.block < 0)
        window = those[cut.piece]
        working = _block_pieces(blocks, window[busy], cut.block[busy])
        parts.append(replace(working, start=cut.start[busy], end=cut.end[busy]))
        gaps.append(_gaps(explainer, w, lane, window[idle], cut.start[idle], cut.end[idle]))
    return join([*parts, explainer.explain(Gaps.joined(gaps))]) if gaps else none()


def _block_pieces(b: Blocks, window: np.ndarray, block: np.ndarray) -> Pieces:
    kind = b.kind[block]
    return make(
        window, b.start[block], b.end[block], CAUSE_OF_KIND[kind], kind + 1, b.operation[block]
    )


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
    previous = pick(blocks.operation, before, -1)
    following = pick(blocks.operation, np.where(after < len(blocks.start), after, -1), -1)
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


def _distinct(b: Blocks, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Operations among the blocks first..last-1 of windows; one in several blocks counts once."""
    count = last - first
    if (b.operation[1:] > b.operation[:-1]).all():
        return count
    order = np.argsort(b.operation, kind="stable")
    same = np.flatnonzero(b.operation[order][1:] == b.operation[order][:-1])
    again, before = order[same + 1], order[same]
    by_place = np.argsort(again)
    again, before = again[by_place], before[by_place]
    low, high = np.searchsorted(again, first), np.searchsorted(again, last)
    owner, place = ragged(low, np.maximum(high - low, 0))
    return count - np.bincount(owner[before[place] >= first[owner]], minlength=len(count))
