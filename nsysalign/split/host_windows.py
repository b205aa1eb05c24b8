"""Windows on a host thread (kind host): two readings of a host clock around a region.

In a copy or synchronisation call the time belongs to what the call waits for: first what was issued
inside the interval (its kind), then what was queued before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.intervals import Columns, disjoint, pick, ragged, tile, union
from nsysalign.model import (
    CALL,
    CAUSES,
    ENQUEUEING_CALLS,
    ISSUING_CALLS,
    KIND,
    SYNC_CALLS,
    Alignment,
    Trace,
)
from nsysalign.split.details import Details
from nsysalign.split.gaps import NEVER, Explainer, host_pieces
from nsysalign.split.pieces import (
    CAUSE,
    DETAIL,
    OPERATION_REFS,
    REF,
    Pieces,
    join,
    make,
    none,
    sums,
)
from nsysalign.split.threads import in_lots

_WAITING = (*SYNC_CALLS, "memcpy")
_RANKED = ("kernel", "graph", "memcpy", "memset")  # otherwise: earlier work
#: A launch this many times slower than the median of its name, with this many operations
#: unfinished, was blocked.
_SLOW, _QUEUE_DEPTH = 10, 900
_KERNELS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class HostWindows(Columns):
    """Arrays of equal length; `opened`: where the window starts of which this is a part."""

    start: np.ndarray
    end: np.ndarray
    thread: np.ndarray
    process: np.ndarray
    opened: np.ndarray


def _host_windows(windows: pd.DataFrame, which: np.ndarray) -> HostWindows:
    columns = ("start_ns", "end_ns", "thread", "process", "start_ns")
    return HostWindows(*(windows[c].to_numpy()[which] for c in columns))


def host_pieces_of(explainer: Explainer, windows: pd.DataFrame, which: np.ndarray) -> Pieces:
    """The pieces of these windows of kind host."""
    if not len(which):
        return none()
    pieces = host_window_pieces(explainer, _host_windows(windows, which))
    return replace(pieces, window=which[pieces.window])


class HostSums(NamedTuple):
    """Per window, 0 for those of other kinds: nanoseconds per cause, operations that the host waits
    for in it, pieces."""

    total: np.ndarray
    operations: np.ndarray
    size: np.ndarray


def host_sums(
    explainer: Explainer, windows: pd.DataFrame, which: np.ndarray, details: Details
) -> HostSums:
    """The sums of the windows `which`, of kind host, some at a time.  Adds their pieces to
    `details`."""
    count = len(windows)
    total, size = np.zeros((count, len(CAUSES)), np.int64), np.zeros(count, np.int64)
    ran = [np.empty(0, np.int64)]
    w = _host_windows(windows, which)
    for lot in in_lots(explainer.threads, w.thread, w.start, w.end):
        pieces = host_window_pieces(
            explainer, replace(w.take(lot.owner), start=lot.start, end=lot.end)
        )
        pieces = replace(pieces, window=which[lot.owner[pieces.window]])
        total += sums(pieces, count)
        size += np.bincount(pieces.window, minlength=count)
        details.add(pieces)
        on = np.isin(pieces.ref_kind, OPERATION_REFS) & (pieces.cause < len(KIND))
        on &= pieces.detail == 0
        ran.append(np.unique(pieces.window[on] << 32 | pieces.ref[on]))
    each = np.unique(np.concatenate(ran)) >> 32
    return HostSums(total, np.bincount(each, minlength=count), size)


def host_window_pieces(explainer: Explainer, w: HostWindows) -> Pieces:
    """Tile every window with pieces, exactly."""
    window, calls = np.arange(len(w.start)), explainer.trace.calls
    raw = [
        host_pieces(explainer.threads, int(t), window[g], w.start[g], w.end[g])
        for t in np.unique(w.thread)
        for g in [np.flatnonzero((w.thread == t) & (w.end > w.start))]
    ]
    pieces = join([none(), *raw])
    is_call = pieces.ref_kind == REF["api"]
    kind = np.full(len(pieces), CALL["other"], dtype=np.int8)
    kind[is_call] = calls["kind"].to_numpy()[pieces.ref[is_call]]
    waiting = is_call & np.isin(kind, [CALL[k] for k in _WAITING])
    copies = np.flatnonzero(is_call & (kind == CALL["memcpy"]))
    # a copy call waits if it has to stage pageable memory or is not asynchronous
    waiting[copies] = _blocks(explainer, pieces.ref[copies])
    launching = is_call & ~waiting & np.isin(kind, [CALL[k] for k in ISSUING_CALLS])
    # calls that neither launch nor wait are `api` here (records and queries too); the rest keeps
    # its cause
    rest = replace(pieces, cause=np.where(is_call, CAUSE["api"], pieces.cause).astype(np.int8))
    return join(
        [
            rest.take(~(waiting | launching)),
            _launches(explainer, pieces.take(launching)),
            _waits(explainer, w, pieces.take(waiting), kind[waiting]),
        ]
    )


def _launches(explainer: Explainer, p: Pieces) -> Pieces:
    calls, call = explainer.trace.calls, p.ref
    blocked, lane = np.zeros(len(p), dtype=bool), np.full(len(p), -1, dtype=np.int64)
    if len(p):
        duration = calls["end_ns"].to_numpy() - calls["start_ns"].to_numpy()
        name = calls["name_id"].to_numpy()
        for n in np.unique(name[call]):
            mine = name[call] == n
            blocked[mine] = duration[call[mine]] > _SLOW * max(
                float(np.median(duration[name == n])), 1.0
            )
        lane = np.where(blocked, _lane_of_calls(explainer)[call], -1)
        for number in np.unique(lane[lane >= 0]):
            ops = explainer.per_lane.get(int(number))
            mine = np.flatnonzero(lane == number)
            at = explainer.call_start[call[mine]]
            unfinished = (
                np.searchsorted(ops.issue_ns, at)
                - np.searchsorted(np.sort(ops.end_ns), at, side="right")
                if ops
                else np.zeros(len(mine))
            )
            blocked[mine] &= unfinished >= _QUEUE_DEPTH
        blocked &= lane >= 0
    cause = np.where(blocked, CAUSE["queued"], CAUSE["api_launch"])
    detail = np.where(blocked, DETAIL["full-queue"], 0)
    return make(
        p.window, p.start, p.end, cause, REF["api"], call, detail, np.where(blocked, lane, -1)
    )


def _lane_of_calls(explainer: Explainer) -> np.ndarray:
    """Lane of the (first) operation that each call issued, -1 for none."""
    out = np.full(len(explainer.call_start), -1, dtype=np.int64)
    have = np.flatnonzero(explainer.call >= 0)[::-1]
    out[explainer.call[have]] = explainer.alignment.operation_lane[have]
    return out


def _waits(explainer: Explainer, w: HostWindows, p: Pieces, kind: np.ndarray) -> Pieces:
    """Copy and synchronisation calls, by what they wait for."""
    call = p.ref
    # lay the pieces end to end on an axis of their own, so that blocks of all of them are sorted
    # and disjoint
    length = p.end - p.start
    base = np.cumsum(length) - length
    shift = base - p.start
    piece, op, s, e = _waited_for(explainer, w, p, kind)
    inside = (
        pick(explainer.call_start, pick(explainer.call, op, -1), NEVER) >= w.opened[p.window[piece]]
    )
    # kind codes are kernel, graph, memcpy, memset: already in order of priority
    rank = np.where(inside, pick(explainer.kind, op, 0), len(_RANKED))
    taken_s, taken_e = np.empty(0, np.int64), np.empty(0, np.int64)
    parts = []
    for r, cause in enumerate((*_RANKED, "queued")):
        mine = np.flatnonzero(rank == r)
        if not len(mine):
            continue
        mine = mine[np.argsort(s[mine] + shift[piece[mine]], kind="stable")]
        which, begin, stop = disjoint(s[mine] + shift[piece[mine]], e[mine] + shift[piece[mine]])
        cut = tile(begin, stop, taken_s, taken_e)
        free = cut.block < 0
        m = mine[which][cut.piece[free]]
        back, ref = shift[piece[m]], op[m]
        earlier = cause == "queued"
        lane = explainer.alignment.operation_lane[ref] if earlier else -1
        start, end = cut.start[free] - back, cut.end[free] - back
        detail = np.full(len(ref), DETAIL["earlier-work" if earlier else ""])
        parts.append(
            make(
                p.window[piece[m]],
                start,
                end,
                CAUSE[cause],
                explainer.kind[ref] + 1,
                ref,
                detail,
                lane,
            )
        )
        taken_s, taken_e = union(np.concatenate([taken_s, begin]), np.concatenate([taken_e, stop]))
    rest = tile(base, base + length, taken_s, taken_e)
    free = rest.block < 0
    n = rest.piece[free]
    copies = kind[n] == CALL["memcpy"]
    staged = copies & _issues_pageable(explainer, call[n])
    causes = np.where(staged, CAUSE["memcpy"], np.where(copies, CAUSE["api_launch"], CAUSE["sync"]))
    start, end = rest.start[free] - shift[n], rest.end[free] - shift[n]
    detail = np.where(staged, DETAIL["staging"], 0)
    return join([*parts, make(p.window[n], start, end, causes, REF["api"], call[n], detail)])


def _waited_for(
    explainer: Explainer, w: HostWindows, p: Pieces, kind: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(piece, operation, start, end): what executes meanwhile on the streams that calls wait for; a
    call waits only for work issued before it."""
    owner, lane = _lanes_waited_for(explainer, p.ref, kind, w.process[p.window])
    found = [(np.empty(0, np.int64),) * 4]
    for number in np.unique(lane):
        mine = np.flatnonzero(lane == number)
        blocks = explainer.streams.blocks(int(number))
        cut = tile(p.start[owner[mine]], p.end[owner[mine]], blocks.start, blocks.end)
        busy = cut.block >= 0
        operation = blocks.operation[cut.block[busy]].astype(np.int64)
        found.append((owner[mine[cut.piece[busy]]], operation, cut.start[busy], cut.end[busy]))
    piece, op, s, e = (np.concatenate(column) for column in zip(*found, strict=True))
    issue = pick(explainer.call_start, pick(explainer.call, op, -1), NEVER)
    before = issue <= pick(explainer.call_start, p.ref[piece], NEVER)
    return piece[before], op[before], s[before], e[before]


def _lanes_waited_for(
    explainer: Explainer, call: np.ndarray, kind: np.ndarray, process: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Flat (piece, lane): the stream of a stream synchronisation or copy, otherwise all streams of
    the process."""
    lanes, syncs = explainer.alignment.lanes, explainer.trace.syncs
    own = _lane_of_calls(explainer)[call] if len(call) else call
    syncs = syncs[syncs["call"] >= 0].drop_duplicates("call").set_index("call")
    known = syncs.reindex(call)
    index = lanes.reset_index().set_index(["process", "context", "stream"])["index"]
    keys = list(
        zip(
            known["process"].fillna(-1),
            known["context"].fillna(-1),
            known["stream"].fillna(-1),
            strict=True,
        )
    )
    by_row = (
        index.reindex(keys).fillna(-1).to_numpy().astype(np.int64)
        if len(keys)
        else np.empty(0, np.int64)
    )
    one = np.where(kind == CALL["memcpy"], own, np.where(kind == CALL["sync_stream"], by_row, -1))
    of_process = {
        int(p): np.flatnonzero(lanes["process"].to_numpy() == p) for p in np.unique(process)
    }
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


def _blocks(explainer: Explainer, call: np.ndarray) -> np.ndarray:
    """Whether copy calls wait for their stream: pageable memory, or a name without Async."""
    trace = explainer.trace
    names = trace.calls["name_id"].to_numpy()[call]
    synchronous = np.array(
        [i for i in np.unique(names) if "Async" not in trace.names.get(int(i), "")]
    )
    return _issues_pageable(explainer, call) | np.isin(names, synchronous)


def _issues_pageable(explainer: Explainer, call: np.ndarray) -> np.ndarray:
    issuing = np.unique(explainer.call[explainer.pageable])
    return np.isin(call, issuing[issuing >= 0])


def kernels_issued_inside(
    trace: Trace, process: np.ndarray, open_ns: np.ndarray, close_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(union of the kernels issued inside, wherever they ran; how much of it ran after the end) per
    window."""
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
        start, end = (operations[c].to_numpy()[k] for c in ("start_ns", "end_ns"))
        some = np.flatnonzero(last > first)
        held = np.cumsum(last[some] - first[some]) // _KERNELS_AT_ONCE
        for w in np.split(some, np.flatnonzero(np.diff(held)) + 1):
            owner, at = ragged(first[w], last[w] - first[w])
            at = at[np.lexsort((start[at], owner))]
            reach = pd.Series(end[at]).groupby(owner).cummax().to_numpy()
            # what each kernel adds to the union of those that began before it
            begin = start[at]
            later = np.flatnonzero(owner[1:] == owner[:-1]) + 1
            begin[later] = np.maximum(begin[later], reach[later - 1])
            np.add.at(total, mine[w[owner]], reach - np.minimum(begin, reach))
            begin = np.maximum(begin, close_ns[mine[w[owner]]])
            np.add.at(outside, mine[w[owner]], np.maximum(reach - begin, 0))
    return total, outside


#: Flags of an interval.
BEFORE, AFTER, IDLE = "synchronised-before", "synchronised-after", "idle-before"


def synchronisation_flags(trace: Trace, alignment: Alignment) -> list[tuple[str, ...]]:
    """Per window, the flags that hold; () for other kinds than host: does the program wait for the
    GPU before the first reading, and before the second?

    y sync   |t0   s launch   y sync   |t1      both: launch, kernel and synchronisation
    y sync   |t0   s launch            |t1      only before: the enqueueing
             |t0   s launch   y sync   |t1      only after: and what was queued before
             |t0   s launch            |t1      never: the enqueueing, behind a full queue also other work

    synchronised-before: the thread waited for the GPU after the last work that it issued before the
    window, and not inside an earlier window (a loop that synchronises only after has waited there,
    in its previous repetition). synchronised-after: inside, it waited after the last work that it
    issued there, or issued none and waited. idle-before: everything that its process had issued
    before the window had ended when the window began.
    """
    w, calls = alignment.windows, trace.calls
    host = np.flatnonzero((w["kind"] == "host").to_numpy())
    if not len(host):
        return [()] * len(w)
    outer = np.flatnonzero(calls["outer"].to_numpy() == np.arange(len(calls)))
    kind, begin, end, of = (
        calls[c].to_numpy()[outer] for c in ("kind", "start_ns", "end_ns", "thread")
    )
    syncs = np.isin(kind, [CALL[k] for k in SYNC_CALLS])
    syncs &= calls["return_value"].to_numpy()[outer] == 0
    launches = np.isin(kind, [CALL[k] for k in ENQUEUEING_CALLS])
    columns = ("start_ns", "end_ns", "thread", "process")
    opened, closed, thread, process = (w[c].to_numpy() for c in columns)
    flags = np.zeros((len(w), 3), dtype=bool)
    for number in np.unique(thread[host]).tolist():
        at = host[thread[host] == number]
        a, b, ends = opened[at], closed[at], np.sort(closed[at])
        launched = np.sort(begin[launches & (of == number)])
        waited = np.sort(end[syncs & (of == number)])
        # a window that ends where this one starts was closed by the same reading, so its wait
        # also counts for this one
        since = np.maximum(_last(launched, a), _last(ends, a - 1))
        flags[at, 0] = _last(waited, a) > since
        flags[at, 1] = _last(waited, b) > np.maximum(a, _last(launched, b))
    call = trace.operations["call"].to_numpy()
    for number in np.unique(process[host]).tolist():
        at = host[process[host] == number]
        mine = np.flatnonzero((trace.operations["process"].to_numpy() == number) & (call >= 0))
        issue = calls["start_ns"].to_numpy()[call[mine]]
        order = np.argsort(issue, kind="stable")
        done = np.maximum.accumulate(trace.operations["end_ns"].to_numpy()[mine[order]])
        before = np.searchsorted(issue[order], opened[at]) - 1
        flags[at, 2] = opened[at] >= pick(done, before, NEVER)
    names = np.array([BEFORE, AFTER, IDLE], dtype=object)
    return [tuple(names[row]) for row in flags]


def _last(times: np.ndarray, until: np.ndarray) -> np.ndarray:
    """The latest of some sorted times that is not later than each of `until`."""
    return np.append(NEVER, times)[np.searchsorted(times, until, side="right")]
