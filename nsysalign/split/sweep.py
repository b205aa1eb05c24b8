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
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nsysalign.intervals import FAR, Columns, covered, distinct, group, pick, tile
from nsysalign.model import CAUSES
from nsysalign.split.busy import CALLS_AT_ONCE, Blocks, in_lots
from nsysalign.split.details import Details
from nsysalign.split.gaps import NEVER, Explainer, Gaps
from nsysalign.split.pieces import CAUSE_OF_KIND, Pieces, join, make, none, sums

#: Blocks of a stream that are explained at once.
_BLOCKS = 1 << 15


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
