"""Windows on a host thread (kind host): two readings of a host clock around a region.

In a copy or synchronisation call the time belongs to what the call waits for: first what was issued inside the
interval (its kind), then what was queued before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.attribute.busy import Streams
from nsysalign.attribute.gaps import Explainer, host_pieces
from nsysalign.attribute.pieces import CAUSE, DETAIL, REF, Pieces, join, make
from nsysalign.attribute.threads import Threads
from nsysalign.model import CALL, ISSUING_CALLS, KIND, SYNC_CALLS, Alignment, Trace
from nsysalign.sweep.issue import LaneOperations
from nsysalign.sweep.tiles import disjoint, ragged, tile, union

_WAITING = (*SYNC_CALLS, "memcpy")
_RANKED = ("kernel", "graph", "memcpy", "memset")  # then: earlier work
#: A launch this many times slower than the median of its name, with this many operations unfinished, was blocked.
_SLOW, _QUEUE_DEPTH = 10, 900
_KERNELS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class HostWindows:
    """Arrays of equal length."""

    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    process: np.ndarray


def host_window_pieces(
    trace: Trace,
    alignment: Alignment,
    streams: Streams,
    threads: Threads,
    explainer: Explainer,
    per_lane: dict[int, LaneOperations],
    w: HostWindows,
) -> Pieces:
    """Tile every window with pieces, exactly."""
    window = np.arange(len(w.start))
    raw = [
        host_pieces(threads, int(t), window[g], w.start[g], w.end[g])
        for t in np.unique(w.thread)
        for g in [np.flatnonzero((w.thread == t) & (w.end > w.start))]
    ]
    none = make(window[:0], w.start[:0], w.end[:0], 0)
    pieces = join([none, *raw])
    is_call = pieces.ref_kind == REF["api"]
    kind = np.full(len(pieces), CALL["other"], dtype=np.int8)
    kind[is_call] = trace.calls["kind"].to_numpy()[pieces.ref[is_call]]
    waiting = is_call & np.isin(kind, [CALL[k] for k in _WAITING])
    copies = np.flatnonzero(is_call & (kind == CALL["memcpy"]))
    # a copy call waits when it has to stage pageable memory, or when it is not an asynchronous one
    waiting[copies] = _blocks(trace, explainer, pieces.ref[copies])
    launching = is_call & ~waiting & np.isin(kind, [CALL[k] for k in ISSUING_CALLS])
    parts = [_select(pieces, ~(waiting | launching), is_call)]
    parts.append(_launches(trace, alignment, per_lane, pieces, np.flatnonzero(launching)))
    parts.append(_waits(trace, alignment, streams, explainer, w, pieces, np.flatnonzero(waiting), kind))
    return join(parts)


def _select(p: Pieces, mask: np.ndarray, is_call: np.ndarray) -> Pieces:
    """Calls that neither launch nor wait are `api` here (records and queries too); the rest keeps its cause."""
    cause = np.where(is_call, CAUSE["api"], p.cause)
    return make(
        p.window[mask],
        p.start[mask],
        p.end[mask],
        cause[mask],
        p.ref_kind[mask],
        p.ref[mask],
        p.detail[mask],
        p.lane[mask],
    )


def _launches(
    trace: Trace, alignment: Alignment, per_lane: dict[int, LaneOperations], p: Pieces, here: np.ndarray
) -> Pieces:
    calls = trace.calls
    call = p.ref[here]
    blocked = np.zeros(len(here), dtype=bool)
    lane = np.full(len(here), -1, dtype=np.int64)
    if len(here):
        duration = calls["end_ns"].to_numpy() - calls["start_ns"].to_numpy()
        name = calls["name_id"].to_numpy()
        for n in np.unique(name[call]):
            mine = name[call] == n
            blocked[mine] = duration[call[mine]] > _SLOW * max(float(np.median(duration[name == n])), 1.0)
        lane = np.where(blocked, _lane_of_calls(trace, alignment)[call], -1)
        for number in np.unique(lane[lane >= 0]):
            ops = per_lane.get(int(number))
            mine = np.flatnonzero(lane == number)
            at = calls["start_ns"].to_numpy()[call[mine]]
            unfinished = (
                np.searchsorted(ops.issue_ns, at) - np.searchsorted(np.sort(ops.end_ns), at, side="right")
                if ops
                else np.zeros(len(mine))
            )
            blocked[mine] &= unfinished >= _QUEUE_DEPTH
        blocked &= lane >= 0
    cause = np.where(blocked, CAUSE["queued"], CAUSE["api_launch"])
    return make(
        p.window[here],
        p.start[here],
        p.end[here],
        cause,
        REF["api"],
        call,
        np.where(blocked, DETAIL["full-queue"], 0),
        np.where(blocked, lane, -1),
    )


def _lane_of_calls(trace: Trace, alignment: Alignment) -> np.ndarray:
    """Lane of the (first) operation that each call issued, -1 for none."""
    out = np.full(len(trace.calls), -1, dtype=np.int64)
    call = trace.operations["call"].to_numpy()
    have = np.flatnonzero(call >= 0)[::-1]
    out[call[have]] = alignment.operation_lane[have]
    return out


def _waits(
    trace: Trace,
    alignment: Alignment,
    streams: Streams,
    explainer: Explainer,
    w: HostWindows,
    p: Pieces,
    here: np.ndarray,
    kind: np.ndarray,
) -> Pieces:
    """Copy and synchronisation calls, by what they wait for."""
    call = p.ref[here]
    owner, lane = _lanes_waited_for(trace, alignment, call, kind[here], w.process[p.window[here]])
    # lay the pieces end to end on an axis of their own, so that blocks of all of them are sorted and disjoint
    length = p.end[here] - p.start[here]
    base = np.cumsum(length) - length
    operation, start, end = _running(streams, lane, p.start[here][owner], p.end[here][owner])
    piece, op, s, e = owner[operation[0]], operation[1], start, end
    issued = explainer.call[op] if len(op) else op
    issue = (
        np.where(issued >= 0, explainer.call_start[np.maximum(issued, 0)], np.iinfo(np.int64).min)
        if len(op)
        else op
    )
    covered = (
        issue <= explainer.call_start[call[piece]] if len(op) else np.zeros(0, bool)
    )  # only what was issued before is waited for
    piece, op, s, e, issue = piece[covered], op[covered], s[covered], e[covered], issue[covered]
    inside = issue >= w.start[p.window[here][piece]]
    rank = np.where(inside, explainer.kind[op] if len(op) else 0, len(_RANKED))
    # kind codes are kernel, graph, memcpy, memset: already in order of priority
    taken_s, taken_e = np.empty(0, np.int64), np.empty(0, np.int64)
    parts = []
    for r in range(len(_RANKED) + 1):
        mine = np.flatnonzero(rank == r)
        if not len(mine):
            continue
        order = np.argsort(s[mine] - p.start[here][piece[mine]] + base[piece[mine]], kind="stable")
        mine = mine[order]
        shift = base[piece[mine]] - p.start[here][piece[mine]]
        vs, ve = s[mine] + shift, e[mine] + shift
        reach = np.maximum.accumulate(ve)
        vs[1:] = np.maximum(vs[1:], reach[:-1])
        ok = ve > vs
        cut = tile(vs[ok], ve[ok], taken_s, taken_e)
        free = cut.block < 0
        m = mine[ok][cut.piece[free]]
        back = p.start[here][piece[m]] - base[piece[m]]
        cause = CAUSE[_RANKED[r]] if r < len(_RANKED) else CAUSE["queued"]
        detail = 0 if r < len(_RANKED) else DETAIL["earlier-work"]
        other = -1 if r < len(_RANKED) else alignment.operation_lane[op[m]]
        parts.append(
            make(
                p.window[here][piece[m]],
                cut.start[free] + back,
                cut.end[free] + back,
                cause,
                explainer.kind[op[m]] + 1,
                op[m],
                detail,
                other,
            )
        )
        taken_s, taken_e = union(np.concatenate([taken_s, vs[ok]]), np.concatenate([taken_e, ve[ok]]))
    rest = tile(base, base + length, taken_s, taken_e)
    free = rest.block < 0
    n = rest.piece[free]
    back = p.start[here][n] - base[n]
    copies = kind[here][n] == CALL["memcpy"]
    staged = copies & _issues_pageable(trace, explainer, call[n])
    causes = np.where(staged, CAUSE["memcpy"], np.where(copies, CAUSE["api_launch"], CAUSE["sync"]))
    parts.append(
        make(
            p.window[here][n],
            rest.start[free] + back,
            rest.end[free] + back,
            causes,
            REF["api"],
            call[n],
            np.where(staged, DETAIL["staging"], 0),
        )
    )
    return join(parts)


def _lanes_waited_for(
    trace: Trace, alignment: Alignment, call: np.ndarray, kind: np.ndarray, process: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Flat (piece, lane): the stream of a stream synchronisation or copy, all of the process's otherwise."""
    lanes = alignment.lanes
    own = _lane_of_calls(trace, alignment)[call] if len(call) else call
    syncs = trace.syncs[trace.syncs["call"] >= 0].drop_duplicates("call").set_index("call")
    known = syncs.reindex(call)
    index = lanes.reset_index().set_index(["process", "context", "stream"])["index"]
    keys = list(
        zip(known["process"].fillna(-1), known["context"].fillna(-1), known["stream"].fillna(-1), strict=True)
    )
    by_row = (
        index.reindex(keys).fillna(-1).to_numpy().astype(np.int64) if len(keys) else np.empty(0, np.int64)
    )
    one = np.where(kind == CALL["memcpy"], own, np.where(kind == CALL["sync_stream"], by_row, -1))
    of_process = {int(p): np.flatnonzero(lanes["process"].to_numpy() == p) for p in np.unique(process)}
    count = (
        np.where(one >= 0, 1, np.array([len(of_process[int(p)]) for p in process], dtype=np.int64))
        if len(call)
        else call
    )
    owner, number = ragged(np.zeros(len(call), np.int64), count)
    every = np.array(
        [
            one[i] if one[i] >= 0 else of_process[int(process[i])][k]
            for i, k in zip(owner.tolist(), number.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    return owner, every


def _running(
    streams: Streams, lane: np.ndarray, start: np.ndarray, end: np.ndarray
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray, np.ndarray]:
    """((query, operation), start, end): what executes on each lane inside each query."""
    query, operation, s, e = (
        [np.empty(0, np.int64)],
        [np.empty(0, np.int64)],
        [np.empty(0, np.int64)],
        [np.empty(0, np.int64)],
    )
    for number in np.unique(lane):
        mine = np.flatnonzero(lane == number)
        blocks = streams.blocks(int(number))
        cut = tile(start[mine], end[mine], blocks.start, blocks.end)
        busy = cut.block >= 0
        query.append(mine[cut.piece[busy]])
        operation.append(blocks.operation[cut.block[busy]])
        s.append(cut.start[busy])
        e.append(cut.end[busy])
    return (np.concatenate(query), np.concatenate(operation)), np.concatenate(s), np.concatenate(e)


def _blocks(trace: Trace, explainer: Explainer, call: np.ndarray) -> np.ndarray:
    """Whether copy calls wait for their stream: pageable memory, or a name without Async."""
    names = trace.calls["name_id"].to_numpy()[call]
    synchronous = np.array([i for i in np.unique(names) if "Async" not in trace.names.get(int(i), "")])
    return _issues_pageable(trace, explainer, call) | np.isin(names, synchronous)


def _issues_pageable(trace: Trace, explainer: Explainer, call: np.ndarray) -> np.ndarray:
    issuing = np.unique(explainer.call[explainer.pageable])
    return np.isin(call, issuing[issuing >= 0])


def kernels_issued_inside(
    trace: Trace, process: np.ndarray, open_ns: np.ndarray, close_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(union of the kernels issued inside, wherever they ran; how much of it ran after the end) per window."""
    operations, calls = trace.operations, trace.calls
    total, outside = np.zeros(len(process), np.int64), np.zeros(len(process), np.int64)
    kernels = np.flatnonzero(
        (operations["kind"].to_numpy() == KIND["kernel"]) & (operations["call"].to_numpy() >= 0)
    )
    for number in np.unique(process):
        k = kernels[operations["process"].to_numpy()[kernels] == number]
        issue = calls["start_ns"].to_numpy()[operations["call"].to_numpy()[k]]
        order = np.argsort(issue, kind="stable")
        k, issue = k[order], issue[order]
        mine = np.flatnonzero(process == number)
        first, last = np.searchsorted(issue, open_ns[mine]), np.searchsorted(issue, close_ns[mine])
        start, end = operations["start_ns"].to_numpy()[k], operations["end_ns"].to_numpy()[k]
        some = np.flatnonzero(last > first)
        for lot in _lots(last[some] - first[some], start, end):
            w = some[lot]
            total[mine[w]], outside[mine[w]] = _unions(first[w], last[w], start, end, close_ns[mine[w]])
    return total, outside


def _lots(count: np.ndarray, start: np.ndarray, end: np.ndarray) -> list[np.ndarray]:
    """Positions of windows that hold `count` kernels each, in lots for `_unions`: what is laid out flat fits into memory,
    and what is laid end to end into int64."""
    if not len(count):
        return []
    most = max((1 << 62) // (int(end.max()) - int(start.min()) + 1), 1)
    size, number = np.cumsum(count) // _KERNELS_AT_ONCE, np.arange(len(count)) // most
    return np.split(np.arange(len(count)), np.flatnonzero(np.diff(size) | np.diff(number)) + 1)


def _unions(
    first: np.ndarray, last: np.ndarray, start: np.ndarray, end: np.ndarray, close_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(length of the union of the intervals first..last-1, how much of it lies after `close_ns`) per window."""
    owner, at = ragged(first, last - first)
    s, e = start[at], end[at]
    order = np.lexsort((s, owner))
    s, e = s[order], e[order]
    # a shift that keeps owners apart makes one running maximum do for all
    shift = owner * (int(end.max()) - int(start.min()) + 1) - int(start.min())
    which, begin, stop = disjoint(s + shift, e + shift)
    owner, begin, stop = owner[which], begin - shift[which], stop - shift[which]
    total, outside = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
    np.add.at(total, owner, stop - begin)
    np.add.at(outside, owner, np.maximum(stop - np.maximum(begin, close_ns[owner]), 0))
    return total, outside
