"""Windows on a stream (kinds event and nvtx): what executed, and why the stream was idle in between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.attribute.busy import Streams
from nsysalign.attribute.gaps import Explainer, Gaps
from nsysalign.attribute.pieces import CAUSE, Pieces, join, make
from nsysalign.model import OPERATION_KINDS, Trace
from nsysalign.sweep.tiles import tile

_CAUSE_OF_KIND = np.array([CAUSE[k] for k in OPERATION_KINDS], dtype=np.int8)


@dataclass(frozen=True)
class StreamWindows:
    """Arrays of equal length: place and lane of each window, and the end record (or the end of the range).

    close_ns: start of the end record's call (nothing issued later belongs to the window); close_end_ns: its end;
    close_thread, close_call: who made it; record: its position in the alignment's records, -1 for none.
    """

    start: np.ndarray
    end: np.ndarray
    lane: np.ndarray
    close_ns: np.ndarray
    close_end_ns: np.ndarray
    close_thread: np.ndarray
    close_call: np.ndarray
    record: np.ndarray


def stream_pieces(trace: Trace, streams: Streams, explainer: Explainer, w: StreamWindows) -> Pieces:
    """Tile every window with pieces, exactly."""
    parts = [make(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64), 0)]
    for lane in np.unique(w.lane):
        mine = np.flatnonzero((w.lane == lane) & (w.end > w.start))
        if not len(mine):
            continue
        blocks = streams.blocks(int(lane))
        cut = tile(w.start[mine], w.end[mine], blocks.start, blocks.end)
        busy = cut.block >= 0
        b = cut.block[busy]
        parts.append(
            make(
                mine[cut.piece[busy]],
                cut.start[busy],
                cut.end[busy],
                _CAUSE_OF_KIND[blocks.kind[b]],
                blocks.kind[b] + 1,
                blocks.operation[b],
            )
        )
        idle = ~busy
        if idle.any():
            gaps = _gaps(
                trace, streams, explainer, w, int(lane), mine[cut.piece[idle]], cut.start[idle], cut.end[idle]
            )
            parts.append(explainer.explain(gaps))
    return join(parts)


def _gaps(
    trace: Trace,
    streams: Streams,
    explainer: Explainer,
    w: StreamWindows,
    lane: int,
    window: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> Gaps:
    """P and N of each idle stretch of one lane."""
    blocks = streams.blocks(lane)
    none = np.full(len(window), -1, dtype=np.int64)
    after = np.searchsorted(blocks.start, start, side="left")
    before = np.searchsorted(blocks.end, start, side="right") - 1
    previous = (
        np.where(before >= 0, blocks.operation[np.maximum(before, 0)], -1) if len(blocks.start) else none
    )
    following = (
        np.where(
            after < len(blocks.start), blocks.operation[np.minimum(after, max(len(blocks.start) - 1, 0))], -1
        )
        if len(blocks.start)
        else none
    )
    call = (
        np.where(following >= 0, explainer.call[np.maximum(following, 0)], -1)
        if len(explainer.call)
        else none
    )
    issue = (
        np.where(call >= 0, explainer.call_start[np.maximum(call, 0)], np.iinfo(np.int64).max)
        if len(explainer.call_start)
        else np.full(len(window), np.iinfo(np.int64).max)
    )
    starts_inside = (
        (following >= 0) & (explainer.op_start[np.maximum(following, 0)] < w.end[window])
        if len(explainer.op_start)
        else none >= 0
    )
    # an operation that runs inside the window was issued before the end, whether or not the trace has its call
    use = (following >= 0) & (((call >= 0) & (issue < w.close_ns[window])) | ((call < 0) & starts_inside))
    record = w.record[window]
    next_ = np.where(use, following, -1)
    from_call = use & (call >= 0)
    safe = np.maximum(call, 0)
    issue_start = np.where(from_call, issue, w.close_ns[window])
    issue_end = np.where(
        from_call, explainer.call_end[safe] if len(explainer.call_end) else 0, w.close_end_ns[window]
    )
    thread = np.where(
        from_call, explainer.call_thread[safe] if len(explainer.call_thread) else 0, w.close_thread[window]
    )
    known = from_call | (~use & (w.close_call[window] >= 0))
    return Gaps(
        window,
        start,
        end,
        np.full(len(window), lane),
        next_,
        previous,
        issue_start,
        issue_end,
        thread,
        np.where(from_call, call, w.close_call[window]),
        known,
        record,
    )
