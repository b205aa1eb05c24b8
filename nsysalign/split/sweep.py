"""Windows on a stream (kinds event, nvtx and run): every gap of a stream is explained once, every
window read off running sums.

    window       [--------------------------------)
    stream    KKKKKK  gap  KKKK  gap  KKKK  gap  KKKK  gap
    head         [KK)
    inside          [gap   KKKK  gap  KKKK)               the same for every window: a difference of running sums
    tail                                  [gap  KK)

A gap that no window cuts has one explanation: P and N are the operations beside it.  Only a
window's head and tail depend on it, and what follows the first operation in it that was issued
after its end record.  A window at either end of its error bar is a window like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from nsysalign.issue import FAR
from nsysalign.model import CAUSES
from nsysalign.split.busy import Blocks
from nsysalign.split.details import Details
from nsysalign.split.gaps import NEVER, Explainer, Gaps
from nsysalign.split.pieces import CAUSE_OF_KIND, Pieces, by_cause, join, make, none, sums
from nsysalign.split.threads import in_lots
from nsysalign.tiles import Columns, group, pick, ragged, tile

#: Blocks of a stream that are explained at once, and heads and tails of windows.
_BLOCKS, _EDGES = 1 << 15, 1 << 14


@dataclass(frozen=True)
class StreamWindows(Columns):
    """Arrays of equal length: place and lane of each window, and the end record (or the end of the
    range).

    close_ns: start of the end record's call (nothing issued later belongs to the window);
    close_end_ns: its end; close_thread, close_call: who made it; record: its position in the
    alignment's records, -1 for none; last_ns: where the whole window ends of which this is the head
    or the tail.
    """

    start: np.ndarray
    end: np.ndarray
    lane: np.ndarray
    close_ns: np.ndarray
    close_end_ns: np.ndarray
    close_thread: np.ndarray
    close_call: np.ndarray
    record: np.ndarray
    last_ns: np.ndarray


def stream_pieces(explainer: Explainer, w: StreamWindows) -> Pieces:
    """Tile every window with pieces, exactly."""
    parts, gaps = [none()], []
    for lane in np.unique(w.lane).tolist():
        mine = np.flatnonzero((w.lane == lane) & (w.end > w.start))
        blocks = explainer.streams.blocks(lane)
        cut = tile(w.start[mine], w.end[mine], blocks.start, blocks.end)
        busy = np.flatnonzero(cut.block >= 0)
        window, block = mine[cut.piece[busy]], cut.block[busy]
        parts.append(block_pieces(blocks, window, block, cut.start[busy], cut.end[busy]))
        idle = np.flatnonzero(cut.block < 0)
        window = mine[cut.piece[idle]]
        gaps.append(gaps_of_windows(explainer, w, lane, window, cut.start[idle], cut.end[idle]))
    if gaps:
        parts.append(_explained_once(explainer, Gaps.joined(gaps)))
    return join(parts)


def _explained_once(explainer: Explainer, gaps: Gaps) -> Pieces:
    """Pieces of gaps; what several windows hold in the same way (ranges in ranges) is
    explained once, and copied."""
    _, first, number = np.unique(gaps.start, return_index=True, return_inverse=True)
    like = first[number]
    alike = gaps.next >= 0
    for column in (gaps.lane, gaps.next, gaps.end):
        alike &= column == column[like]
    like = np.where(alike, like, np.arange(len(like)))
    own = np.flatnonzero(like == np.arange(len(like)))
    if len(own) == len(like):
        return explainer.explain(gaps)
    pieces = explainer.explain(replace(gaps.take(own), window=own))
    pieces = pieces.take(np.argsort(pieces.window, kind="stable"))
    begin, end = (np.searchsorted(pieces.window, like, side=side) for side in ("left", "right"))
    owner, at = ragged(begin, end - begin)
    return replace(pieces.take(at), window=gaps.window[owner])


class StreamSums(NamedTuple):
    """`totals`: nanoseconds per window and cause, at each place; `operations` that execute in each
    window at the first place, and about how many pieces it has there (`size`)."""

    totals: list[np.ndarray]
    operations: np.ndarray
    size: np.ndarray


def stream_sums(
    explainer: Explainer, places: Sequence[StreamWindows], details: Details, numbers: np.ndarray
) -> StreamSums:
    """The sums of all windows at every place (as measured, and at the ends of the error bar).  Adds
    the pieces of the first place to `details`, in which the windows have these `numbers`."""
    count, lanes = len(numbers), places[0].lane
    totals = [np.zeros((count, len(CAUSES)), np.int64) for _ in places]
    operations, size = np.zeros(count, np.int64), np.ones(count, np.int64)
    edges: list[list[_Edges]] = [[] for _ in places]
    for lane, windows in sorted(group(lanes, np.arange(count)).items()):
        blocks = explainer.streams.blocks(lane)
        issued = _latest_issue(explainer, blocks)
        inside = []
        for number, w in enumerate(places):
            mine = windows[w.end[windows] > w.start[windows]]
            first, last = span_of(blocks, w.start[mine], w.end[mine])
            # blocks that the window holds whole, issued before its end record as all before them
            until = last - (pick(blocks.end, last - 1, NEVER) > w.end[mine])
            until = np.minimum(until, np.searchsorted(issued, w.close_ns[mine]))
            until = np.maximum(until, first + 1)
            some = np.flatnonzero(until > first + 1)
            inside.append(_Inside(mine[some], first[some] + 1, until[some]))
            if number == 0:
                operations[mine] = _distinct(blocks, first, last)
                size[mine] += 2 * np.maximum(last - first, 0)
            edges[number].append(_edges(w, blocks, mine, first, last, until))
        del issued
        low = min((int(i.low.min()) for i in inside if len(i.low)), default=0)
        high = max((int(i.high.max()) for i in inside if len(i.high)), default=0)
        for begin, stop, pieces in _explained(explainer, lane, low, high):
            running = np.zeros((len(CAUSES), stop - begin + 1), np.int64)
            np.cumsum(
                by_cause(pieces.window, pieces.cause, pieces.end - pieces.start, stop - begin),
                axis=1,
                out=running[:, 1:],
            )
            for number, i in enumerate(inside):
                here = np.flatnonzero((i.low < stop) & (i.high > begin))
                window = i.window[here]
                a, b = (np.clip(t[here], begin, stop) - begin for t in (i.low, i.high))
                totals[number][window] += (running[:, b] - running[:, a]).T
                if number == 0:
                    details.add_inside(numbers[window], a, b, pieces, begin)
        details.end_lane(numbers[inside[0].window], inside[0].low, inside[0].high)
    for number, w in enumerate(places):
        for lot in _lots(edges[number]):
            edge = replace(w.take(lot.of), start=lot.start, end=lot.end)
            pieces = stream_pieces(explainer, edge)
            np.add.at(totals[number], lot.of, sums(pieces, len(lot.of)))
            if number == 0:
                details.add(replace(pieces, window=numbers[lot.of[pieces.window]]))
    return StreamSums(totals, operations, size)


class _Inside(NamedTuple):
    """Windows that hold gaps and blocks low..high-1 of a lane whole; gap j lies before block j."""

    window: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class _Edges(Columns):
    """Heads and tails: the windows that they are of, where they lie, how many blocks they touch."""

    of: np.ndarray
    start: np.ndarray
    end: np.ndarray
    touched: np.ndarray


def _edges(
    w: StreamWindows,
    blocks: Blocks,
    mine: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    until: np.ndarray,
) -> _Edges:
    """Heads (all of windows with nothing inside) and tails of windows of one lane."""
    inner = until > first + 1
    head_end = np.where(inner, pick(blocks.end, np.where(inner, first, -1), 0), w.end[mine])
    tail_start = np.where(inner, pick(blocks.end, np.where(inner, until - 1, -1), 0), w.end[mine])
    tails = np.flatnonzero(tail_start < w.end[mine])
    return _Edges(
        np.concatenate([mine, mine[tails]]),
        np.concatenate([w.start[mine], tail_start[tails]]),
        np.concatenate([head_end, w.end[mine[tails]]]),
        np.concatenate([np.where(inner, 1, last - first), (last - until)[tails]]),
    )


def _lots(edges: list[_Edges]) -> Iterator[_Edges]:
    """The same, of all lanes, some at a time."""
    if not edges:
        return
    every = _Edges.joined(edges)
    lot = np.cumsum(np.maximum(every.touched, 0) + 1) // _EDGES
    for some in np.split(np.arange(len(lot)), np.flatnonzero(np.diff(lot)) + 1):
        yield every.take(some)


def _explained(
    explainer: Explainer, lane: int, low: int, high: int
) -> Iterator[tuple[int, int, Pieces]]:
    """(begin, stop, pieces) of gaps and blocks low..high-1 of a lane, in lots of a bounded number
    of blocks and of calls that were made meanwhile; `window` is the number of the gap or block,
    from `begin`."""
    b, x = explainer.streams.blocks(lane), explainer
    for begin in range(low, high, _BLOCKS):
        stop = min(begin + _BLOCKS, high)
        every = np.arange(begin, stop)
        yield begin, stop, block_pieces(b, every - begin, every)
        start, end = b.end[begin - 1 : stop - 1], b.start[begin:stop]
        at = np.flatnonzero(end > start)
        start, end = start[at], end[at]
        following = b.operation[begin:stop][at].astype(np.int64)
        call = x.call[following].astype(np.int64)
        known = call >= 0
        gaps = Gaps(
            window=at,
            start=start,
            end=end,
            lane=np.full(len(at), lane),
            next=following,
            previous=b.operation[begin - 1 : stop - 1][at].astype(np.int64),
            issue_start=pick(x.call_start, call, FAR),
            issue_end=pick(x.call_end, call, FAR),
            issue_thread=np.where(known, pick(x.call_thread, call, 0), x.faulting[following]),
            issue_call=call,
            known=known | (x.faulting[following] >= 0),
            record=np.full(len(at), -1),
        )
        for lot in in_lots(x.threads, gaps.issue_thread, start, end):
            part = replace(gaps.take(lot.owner), start=lot.start, end=lot.end)
            yield begin, stop, explainer.explain(part)


def block_pieces(b: Blocks, window: np.ndarray, block: np.ndarray, start=None, end=None) -> Pieces:
    """Blocks as pieces of windows, whole or cut."""
    kind = b.kind[block]
    return make(
        window,
        b.start[block] if start is None else start,
        b.end[block] if end is None else end,
        CAUSE_OF_KIND[kind],
        kind + 1,
        b.operation[block],
    )


def span_of(b: Blocks, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The blocks of a lane that windows touch: first..last-1."""
    return np.searchsorted(b.end, start, side="right"), np.searchsorted(b.start, end, side="left")


def gaps_of_windows(
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
    inside = pick(explainer.op_start, following, FAR) < w.last_ns[window]
    use = (following >= 0) & np.where(call >= 0, issue < w.close_ns[window], inside)
    from_call = use & (call >= 0)
    thread = np.where(use, pick(explainer.faulting, following, -1), -1)  # of a page fault
    return Gaps(
        window=window,
        start=start,
        end=end,
        lane=np.full(len(window), lane),
        next=np.where(use, following, -1),
        previous=previous,
        issue_start=np.where(from_call | (thread >= 0), issue, w.close_ns[window]),
        issue_end=np.where(
            from_call | (thread >= 0), pick(explainer.call_end, call, FAR), w.close_end_ns[window]
        ),
        issue_thread=np.where(
            from_call,
            pick(explainer.call_thread, call, 0),
            np.where(thread >= 0, thread, w.close_thread[window]),
        ),
        issue_call=np.where(from_call, call, w.close_call[window]),
        known=from_call | (thread >= 0) | (~use & (w.close_call[window] >= 0)),
        record=w.record[window],
    )


def _latest_issue(explainer: Explainer, b: Blocks) -> np.ndarray:
    """Per block: the latest start of a call that issued an operation up to it."""
    issue = pick(explainer.call_start, explainer.call[b.operation], NEVER)
    return np.maximum.accumulate(issue, out=issue) if len(issue) else issue


def _distinct(b: Blocks, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Operations among the blocks first..last-1 of windows; one in several blocks counts once."""
    count = np.maximum(last - first, 0)
    if (b.operation[1:] > b.operation[:-1]).all():
        return count
    order = np.argsort(b.operation, kind="stable")
    same = np.flatnonzero(b.operation[order][1:] == b.operation[order][:-1])
    again, before = order[same + 1], order[same]
    by_place = np.argsort(again)
    again, before = again[by_place], before[by_place]
    low, high = np.searchsorted(again, first), np.searchsorted(again, last)
    owner, at = ragged(low, np.maximum(high - low, 0))
    return count - np.bincount(owner[before[at] >= first[owner]], minlength=len(count))
