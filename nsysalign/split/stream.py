"""Windows on a stream (kinds event and nvtx): what executed, and why the stream was idle in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nsysalign.issue import FAR
from nsysalign.split.busy import Blocks
from nsysalign.split.gaps import Explainer, Gaps
from nsysalign.split.interior import block_pieces
from nsysalign.split.pieces import Pieces, join, make
from nsysalign.tiles import Columns, pick, tile


@dataclass(frozen=True)
class StreamWindows(Columns):
    """Arrays of equal length: place and lane of each window, and the end record (or the end of the range).

    close_ns: start of the end record's call (nothing issued later belongs to the window); close_end_ns: its end;
    close_thread, close_call: who made it; record: its position in the alignment's records, -1 for none; last_ns: where a window
    ends that other slices continue, else its end.
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
    parts = [make(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), 0)]
    for lane in np.unique(w.lane):
        mine = np.flatnonzero((w.lane == lane) & (w.end > w.start))
        if not len(mine):
            continue
        blocks = explainer.streams.blocks(int(lane))
        cut = tile(w.start[mine], w.end[mine], blocks.start, blocks.end)
        busy = cut.block >= 0
        b = cut.block[busy]
        parts.append(block_pieces(blocks, mine[cut.piece[busy]], b, cut.start[busy], cut.end[busy]))
        idle = ~busy
        if idle.any():
            gaps = _gaps(
                explainer, w, int(lane), mine[cut.piece[idle]], cut.start[idle], cut.end[idle]
            )
            parts.append(explainer.explain(gaps))
    return join(parts)


def edge_pieces(
    explainer: Explainer, w: StreamWindows, lane: int, which: np.ndarray, span: Span
) -> Pieces:
    """The pieces of windows `which` (of one lane) that their own ends cut: the first and last operation that they touch, and
    the idle time before the one and after the other; everything if they touch none.

        window        [------------------------)
        stream     KKKKKKK  KKK  KK  KKKK         first, last: the operations it touches
        edges         [KKK)       [KKK)[idle-)
    """
    b = explainer.streams.blocks(lane)
    start, end, first, last = w.start[which], w.end[which], span.first, span.last
    some = np.flatnonzero(last > first)
    none = np.flatnonzero(last <= first)
    one, two = first[some], last[some] - 1
    window = np.concatenate([which[none], which[some], which[some]])
    low = np.concatenate([start[none], start[some], b.end[two]])
    high = np.concatenate([end[none], b.start[one], end[some]])
    idle = np.flatnonzero(high > low)
    gaps = _gaps(explainer, w, lane, window[idle], low[idle], high[idle])
    more = np.flatnonzero(two > one)
    block = np.concatenate([one, two[more]])
    of = np.concatenate([some, some[more]])
    busy = block_pieces(
        b,
        which[of],
        block,
        np.maximum(b.start[block], start[of]),
        np.minimum(b.end[block], end[of]),
    )
    return join([busy, explainer.explain(gaps)])


class Span(NamedTuple):
    """The blocks of a lane that windows touch: first..last-1."""

    first: np.ndarray
    last: np.ndarray


def span_of(b: Blocks, start: np.ndarray, end: np.ndarray) -> Span:
    return Span(
        np.searchsorted(b.end, start, side="right"), np.searchsorted(b.start, end, side="left")
    )


def _gaps(
    explainer: Explainer,
    w: StreamWindows,
    lane: int,
    window: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> Gaps:
    """P and N of each idle stretch of one lane."""
    blocks = explainer.streams.blocks(lane)
    after = np.searchsorted(blocks.start, start, side="left")
    before = np.searchsorted(blocks.end, start, side="right") - 1
    previous = pick(blocks.operation, before, -1)
    following = pick(blocks.operation, np.where(after < len(blocks.start), after, -1), -1)
    call = pick(explainer.call, following, -1)
    issue = pick(explainer.call_start, call, FAR)
    # an operation that runs inside the window was issued before the end, whether or not the trace has its call
    inside = pick(explainer.op_start, following, FAR) < w.last_ns[window]
    use = (following >= 0) & np.where(call >= 0, issue < w.close_ns[window], inside)
    from_call = use & (call >= 0)
    return Gaps(
        window=window,
        start=start,
        end=end,
        lane=np.full(len(window), lane),
        next=np.where(use, following, -1),
        previous=previous,
        issue_start=np.where(from_call, issue, w.close_ns[window]),
        issue_end=np.where(from_call, pick(explainer.call_end, call, 0), w.close_end_ns[window]),
        issue_thread=np.where(
            from_call, pick(explainer.call_thread, call, 0), w.close_thread[window]
        ),
        issue_call=np.where(from_call, call, w.close_call[window]),
        known=from_call | (~use & (w.close_call[window] >= 0)),
        record=w.record[window],
    )
