"""Windows on a host thread (kind host): two readings of a host clock around a region.

In a copy or synchronisation call the time belongs to what the call waits for: first what was issued
inside the interval (its kind), then what was queued before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign.intervals import covered, disjoint, group, pick, positions, ragged, tile, union
from nsysalign.model import (
    CALL,
    ENQUEUEING_CALLS,
    ISSUING_CALLS,
    KIND,
    SYNC_CALLS,
    Alignment,
    Trace,
)
from nsysalign.place.streams import stream_lane
from nsysalign.split.busy import Blocks, first_of
from nsysalign.split.gaps import NEVER, Explainer, Windows, host_pieces
from nsysalign.split.pieces import (
    CAUSE,
    DETAIL,
    REF,
    WORK,
    Pieces,
    join,
    make,
)

#: A launch this many times slower than the median of its name, with this many operations
#: unfinished, was blocked.
_SLOW, _QUEUE_DEPTH = 10, 900
_KERNELS_AT_ONCE = 1 << 21
#: Flags of an interval.
BEFORE, AFTER, IDLE = "synchronised-before", "synchronised-after", "idle-before"
NO_WORK = "no-gpu-work"


def host_pieces_of(
    explainer: Explainer, w: Windows, window: np.ndarray, start: np.ndarray, end: np.ndarray
) -> Pieces:
    """Tile spans of windows with pieces, exactly."""
    calls, parts = explainer.trace.calls, []
    some = np.flatnonzero(end > start)
    for thread, those in group(w.thread[window[some]], some).items():
        spans = (window[those], start[those], end[those])
        parts += host_pieces(explainer.threads, thread, *spans)
    pieces = join(parts)
    is_call = pieces.ref_kind == REF["api"]
    call = np.where(is_call, pieces.ref, -1)
    kind = pick(calls["kind"].to_numpy(), call, CALL["other"])
    # a copy call waits if it has to stage pageable memory or is not asynchronous
    copies = np.flatnonzero(kind == CALL["memcpy"])
    waiting = np.isin(kind, [CALL[k] for k in SYNC_CALLS])
    names = pd.Series(calls["name_id"].to_numpy()[call[copies]]).map(explainer.trace.names)
    synchronous = ~names.astype("str").str.contains("Async", regex=False)
    staging = np.zeros(len(kind), dtype=bool)
    staging[copies] = np.isin(call[copies], explainer.call[explainer.pageable])
    waiting[copies] = staging[copies] | synchronous
    launching = ~waiting & np.isin(kind, [CALL[k] for k in ISSUING_CALLS])
    # calls on the lane of the (first) operation that each issued
    lane_of = np.full(len(calls), -1, dtype=np.int64)
    issued = np.flatnonzero(explainer.call >= 0)[::-1]
    lane_of[explainer.call[issued]] = explainer.alignment.operation_lane[issued]
    on_lanes = replace(pieces, lane=pick(lane_of, call, -1))
    # calls that neither launch nor wait are `api` here (records and queries too); the rest keeps
    # its cause
    rest = replace(pieces, cause=np.where(is_call, CAUSE["api"], pieces.cause).astype(np.int8))
    return join(
        [
            rest.take(~(waiting | launching)),
            _launches(explainer, on_lanes.take(launching)),
            _waits(explainer, w, on_lanes.take(waiting), kind[waiting], staging[waiting]),
        ]
    )


def _launches(explainer: Explainer, p: Pieces) -> Pieces:
    """Launches, and those among them that a full queue blocks."""
    duration = explainer.call_end - explainer.call_start
    name = explainer.trace.calls["name_id"].to_numpy()
    usual = np.zeros(len(p.ref))
    for number in np.unique(name[p.ref]):
        usual[name[p.ref] == number] = max(np.median(duration[name == number]), 1)
    slow = duration[p.ref] > _SLOW * usual
    lane = np.where(slow, p.lane, -1)
    blocked = np.zeros(len(p.ref), dtype=bool)
    for number in np.unique(lane[lane >= 0]).tolist():
        ops, those = explainer.per_lane[number], np.flatnonzero(lane == number)
        begin = explainer.call_start[p.ref[those]]
        finished = np.searchsorted(np.sort(ops.times.end_ns), begin, side="right")
        blocked[those] = np.searchsorted(ops.times.issue_ns, begin) - finished >= _QUEUE_DEPTH
    return replace(
        p,
        cause=np.where(blocked, CAUSE["queued"], CAUSE["api_launch"]).astype(np.int8),
        detail=np.where(blocked, DETAIL["full-queue"], 0).astype(np.int8),
        lane=np.where(blocked, lane, -1),
    )


def _waits(
    explainer: Explainer, w: Windows, p: Pieces, kind: np.ndarray, staging: np.ndarray
) -> Pieces:
    """Copy and synchronisation calls, by what they wait for.  `staging`: copies of pageable
    memory."""
    # lay the pieces end to end on an axis of their own, so that blocks of all of them are sorted
    # and disjoint
    base = np.cumsum(p.end - p.start) - (p.end - p.start)
    shift = base - p.start
    piece, start, end, operation = _waited_for(explainer, w, p, kind)
    issue = pick(explainer.call_start, explainer.call[operation], NEVER)
    inside = issue >= w.start[p.window[piece]]
    # kind codes are kernel, graph, memcpy, memset: already in order of priority; then what was
    # there before
    rank = np.where(inside, explainer.kind[operation], WORK)
    layers = []
    for number in range(WORK + 1):
        those = np.flatnonzero(rank == number)
        those = those[np.argsort(start[those] + shift[piece[those]], kind="stable")]
        which, begin, over = disjoint(*(t[those] + shift[piece[those]] for t in (start, end)))
        layers.append(Blocks(begin, over, operation[those[which]]))
    blocks, rank = first_of(layers)
    cut = tile(base, base + p.end - p.start, blocks.start, blocks.end)
    ref, rank = pick(blocks.ref, cut.block, -1), pick(rank, cut.block, -1)
    busy, before = rank >= 0, rank == WORK
    copies, staged = kind[cut.piece] == CALL["memcpy"], staging[cut.piece]
    idle = np.where(staged, CAUSE["memcpy"], np.where(copies, CAUSE["api_launch"], CAUSE["sync"]))
    detail = np.where(staged & ~busy, DETAIL["staging"], 0)
    return make(
        p.window[cut.piece],
        cut.start - shift[cut.piece],
        cut.end - shift[cut.piece],
        np.where(before, CAUSE["queued"], np.where(busy, rank, idle)),
        np.where(busy, pick(explainer.kind, ref, -1), REF["api"]),
        np.where(busy, ref, p.ref[cut.piece]),
        np.where(before, DETAIL["earlier-work"], detail),
        np.where(before, pick(explainer.alignment.operation_lane, ref, -1), -1),
    )


def _waited_for(explainer: Explainer, w: Windows, p: Pieces, kind: np.ndarray) -> list[np.ndarray]:
    """What executes on the streams that calls wait for: number of the piece of `p`, start, end,
    operation.  A call waits only for work issued before it.  A stream synchronisation or a copy
    waits for its stream, a copy also for the streams that the legacy default stream's order puts
    before it, others for all of the process."""
    lanes, syncs = explainer.alignment.lanes, explainer.trace.syncs
    of_stream = pick(stream_lane(lanes, syncs), positions(p.ref, syncs["call"].to_numpy()), -1)
    copying = np.where(kind == CALL["memcpy"], p.lane, -1)
    one = np.where(kind == CALL["sync_stream"], of_stream, copying)
    rivals = {n: explainer.default_stream_rivals(n) for n in set(copying[copying >= 0].tolist())}
    parts = [[np.empty(0, np.int64)] * 4]
    for number, own in enumerate(lanes["process"].tolist()):
        behind = np.isin(copying, [lane for lane, before in rivals.items() if number in before])
        of_process = w.process[p.window] == own
        waiting = np.flatnonzero(np.where(one >= 0, (one == number) | behind, of_process))
        if not len(waiting):
            continue
        blocks = explainer.streams.blocks(number)
        cut = tile(p.start[waiting], p.end[waiting], blocks.start, blocks.end)
        operation, piece = pick(blocks.ref, cut.block, -1), waiting[cut.piece]
        issue = pick(explainer.call_start, pick(explainer.call, operation, -1), NEVER)
        some = (operation >= 0) & (issue <= explainer.call_start[p.ref[piece]])
        parts.append([column[some] for column in (piece, cut.start, cut.end, operation)])
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def kernels_issued_inside(
    trace: Trace,
    process: np.ndarray,
    open_ns: np.ndarray,
    close_ns: np.ndarray,
    kinds: Sequence[str] = ("kernel",),
) -> tuple[np.ndarray, np.ndarray]:
    """(union of the kernels, or operations of other kinds, that were issued inside, wherever they
    ran; how much of it ran after the end) in ns per window."""
    operations = trace.operations
    of_kinds = np.isin(operations["kind"].to_numpy(), [KIND[kind] for kind in kinds])
    total, outside = np.zeros((2, len(process)), np.int64)
    for number, windows in group(process, np.arange(len(process))).items():
        own, issue = issued_by(trace, number, of_kinds)
        first, last = (np.searchsorted(issue, t[windows]) for t in (open_ns, close_ns))
        start, end = (operations[c].to_numpy()[own] for c in ("start_ns", "end_ns"))
        some = np.flatnonzero(last > first)
        held = np.cumsum(last[some] - first[some]) // _KERNELS_AT_ONCE
        for part in np.split(some, np.flatnonzero(np.diff(held)) + 1):
            owner, kernel = ragged(first[part], last[part] - first[part])
            kernel = kernel[np.lexsort((start[kernel], owner))]
            reach = pd.Series(end[kernel]).groupby(owner).cummax().to_numpy()
            # what each kernel adds to the union of those that began before it
            begin, window = start[kernel], windows[part[owner]]
            later = np.flatnonzero(owner[1:] == owner[:-1]) + 1
            begin[later] = np.maximum(begin[later], reach[later - 1])
            np.add.at(total, window, reach - np.minimum(begin, reach))
            begin = np.maximum(begin, close_ns[window])
            np.add.at(outside, window, np.maximum(reach - begin, 0))
    return total, outside


def busy_inside(
    trace: Trace, process: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
) -> np.ndarray:
    """For how long (ns) per window anything of its process executed on a GPU, whoever issued it and
    whenever."""
    operations = trace.operations
    start, end = (operations[c].to_numpy() for c in ("start_ns", "end_ns"))
    whose = operations["process"].to_numpy()
    busy = np.zeros(len(process), np.int64)
    for number, windows in group(process, np.arange(len(process))).items():
        executes = whose == number
        blocks = union(start[executes], end[executes])
        before_end = covered(*blocks, end_ns[windows])
        busy[windows] = before_end - covered(*blocks, start_ns[windows])
    return busy


def issued_by(
    trace: Trace, process: int, which: np.ndarray | bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Operations of a process that a call issued, in the order of these calls, and when these
    began."""
    call = trace.operations["call"].to_numpy()
    own = np.flatnonzero((trace.operations["process"].to_numpy() == process) & (call >= 0) & which)
    issue = trace.calls["start_ns"].to_numpy()[call[own]]
    order = np.argsort(issue, kind="stable")
    return own[order], issue[order]


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
    outer = calls[trace.outermost]
    waits = outer["kind"].isin([CALL[k] for k in SYNC_CALLS]) & (outer["return_value"] == 0)
    launches = outer["kind"].isin([CALL[k] for k in ENQUEUEING_CALLS])
    opened, closed, thread, process = (
        w[c].to_numpy() for c in ("start_ns", "end_ns", "thread", "process")
    )
    flags = np.zeros((len(w), 4), dtype=bool)
    for number, windows in group(thread[host], host).items():
        start, stop = opened[windows], closed[windows]
        own = outer["thread"] == number
        launched = np.sort(outer.loc[launches & own, "start_ns"].to_numpy())
        waited = np.sort(outer.loc[waits & own, "end_ns"].to_numpy())
        # a window that ends where this one starts was closed by the same reading, so its wait
        # also counts for this one
        since = np.maximum(_last(launched, start), _last(np.sort(stop), start - 1))
        flags[windows, 0] = _last(waited, start) > since
        flags[windows, 1] = _last(waited, stop) > np.maximum(start, _last(launched, stop))
    for number, windows in group(process[host], host).items():
        issued, issue = issued_by(trace, number)
        done = np.maximum.accumulate(trace.operations["end_ns"].to_numpy()[issued])
        before = np.searchsorted(issue, opened[windows]) - 1
        flags[windows, 2] = opened[windows] >= pick(done, before, NEVER)
        last = np.searchsorted(issue, closed[windows]) - 1
        flags[windows, 3] = last == before
    busy = busy_inside(trace, process[host], opened[host], closed[host])
    flags[host, 3] &= busy == 0
    names = np.array([BEFORE, AFTER, IDLE, NO_WORK], dtype=object)
    out: list[tuple[str, ...]] = [()] * len(w)
    for number in host.tolist():
        out[number] = tuple(names[flags[number]])
    return out


def _last(times: np.ndarray, until: np.ndarray) -> np.ndarray:
    """The latest of some sorted times that is not later than each of `until`."""
    return np.append(NEVER, times)[np.searchsorted(times, until, side="right")]
