"""An interval without what nsys added to it: an estimate of what each CUDA call cost, from the
profiled trace alone, and a small list scheduler that replays calls and operations without it.

CUPTI stops at the entry and the exit of every call that it records, and keeps a record of every
operation.  Most of that lies inside the call as the trace shows it; the rest arises because the
code after a call finds its caches displaced. The trace cannot show what was added, only how long
things took with it.  So it is a share of the call's own length (a call is slow on a slow or cold
machine, and so are the callbacks in it) and a share of the time outside CUDA after it, up to a
limit: after that long the caches are the program's again.

The shares were fitted to runs with and without nsys of the same programs (torch 2.11, nsys
2024.2.3) on two H200s where the host ran at full speed, and on an H100 and an H200 where both ran
at the same time, in turns, on the same cores (commit 7d32931, scripts/bench_turns.py); that of a
graph's launch was measured by itself.  docs/lab/figures.md shows how well they predict programs and
machines that they were not fitted to; the `..._ERROR`s say how uncertain they are.

    profiled   host    [record][launch A ]  [launch B ]  [record]   what follows costs more, too
               stream      R      |   AAA        |   BBB      R
    replayed   host    [rec][launch]  [launch][rec]
               stream      R    |  AAA   |  BBB  R                  operations take what they took

The host's calls keep their order; each comes earlier by the time saved in the calls before it.  An
operation starts when its call has issued it (with the latency it had), not before its predecessor
on the stream is done, and not before what it was queued behind.  A call that waited for the GPU
returns when what it waited for is done.  Times are differences to the trace: a `shift` is how much
earlier something happens than it did.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nsysalign.model import CALL, KIND, SYNC_CALLS, Trace


@dataclass(frozen=True)
class Costs:
    """Shares and limits (ns).  All were fitted; none is a property of CUDA."""

    launch_share: float = 0.36  # of a call that launches
    attributes_share: float = 0.20  # of one with attributes: longer by itself (cuBLAS)
    memory_share: float = 0.47  # of one that copies or sets
    graph_share: float = 0.52  # of one that launches a graph
    other_share: float = 0.60  # of every other call that does not wait
    inside_most_ns: int = 12_000  # a call in which libraries load is long for other reasons
    wait_ns: int = 1_200  # of a call that waits for the GPU: for its return
    after_share: float = 0.35  # of the time outside CUDA after a call ...
    after_from_ns: int = 2_500  # ... beyond this: tight loops stay in their caches ...
    after_most_ns: int = 12_000  # ... up to this
    call_after_ns: int = 100  # after any call, at least
    device_ns: int = 280  # on the GPU before a kernel that was waiting for its predecessor ...
    memset_ns: int = 1_000  # the same, if its predecessor was a memset
    device_gap_ns: int = 900  # ... whose gap without nsys is at least this
    graph_ns: int = 1_200  # on the GPU around a graph that is traced as a whole


FITTED = Costs()

#: How far a prediction may be off, as shares: of what was taken away inside calls and on the GPU,
#: of what was taken away between calls, of the rest of the time that the host decides, and of the
#: GPU's work.  They are independent: their squares add up. Chosen so that 95 of 100 labels lie
#: within, of workloads and on machines that were left out of the choice (docs/lab/figures.md).
INSIDE_ERROR, AFTER_ERROR, HOST_ERROR, WORK_ERROR = 0.25, 0.75, 0.12, 0.03

#: CUPTI asks for the name of the kernel at the entry of cudaLaunchKernel, before the call begins in
#: the trace.
_ASKED, _WITH_ATTRIBUTES = "cuKernelGetName", "cudaLaunchKernelEx"

PAGEABLE = 0  # CUDA_MEMOPR_MEMORY_KIND_PAGEABLE


class Overhead(NamedTuple):
    """Per call, ns: `inside` it, and `after` it."""

    inside: np.ndarray
    after: np.ndarray


def overhead(trace: Trace, own: np.ndarray, waits: np.ndarray, costs: Costs = FITTED) -> Overhead:
    """Estimate for the outermost calls of a thread, given by their positions in order; the calls
    inside them are part of it.  `waits`: of all calls (`waiting`)."""
    columns = ("start_ns", "end_ns", "kind", "name_id")
    start, end, kind, name = (trace.calls[c].to_numpy()[own] for c in columns)
    asks, with_attributes = (
        np.isin(name, [number for number, text in trace.names.items() if text.startswith(api)])
        for api in (_ASKED, _WITH_ATTRIBUTES)
    )
    length = end - start
    share = np.full(len(kind), costs.other_share)
    share[kind == CALL["launch"]] = costs.launch_share
    share[with_attributes] = costs.attributes_share
    share[np.isin(kind, [CALL["memcpy"], CALL["memset"]])] = costs.memory_share
    share[kind == CALL["graph_launch"]] = costs.graph_share
    inside = np.minimum(share * length, costs.inside_most_ns)
    inside = np.where(waits[own], np.minimum(costs.wait_ns, 0.5 * length), inside)
    gap = np.append(np.maximum(start[1:] - end[:-1], 0), [0] * (len(own) > 0))
    after = costs.call_after_ns + costs.after_share * np.maximum(gap - costs.after_from_ns, 0)
    after = np.minimum(np.minimum(after, costs.after_most_ns), gap)
    asked = np.flatnonzero((kind[1:] == CALL["launch"]) & asks[:-1])
    inside[asked], after[asked] = length[asked], gap[asked]
    return Overhead(np.rint(inside).astype(np.int64), np.rint(after).astype(np.int64))


def waiting(trace: Trace) -> np.ndarray:
    """Which calls are long because they wait for the GPU, or copy pageable memory themselves."""
    calls, operations = trace.calls, trace.operations
    out = np.isin(calls["kind"].to_numpy(), [CALL[k] for k in SYNC_CALLS])
    copies = operations[(operations["kind"] == KIND["memcpy"]) & (operations["call"] >= 0)]
    call = copies["call"].to_numpy()
    done = copies["end_ns"].to_numpy() <= calls["end_ns"].to_numpy()[call]
    pageable = (copies[["src_kind", "dst_kind"]] == PAGEABLE).any(axis=1).to_numpy()
    out[call[done | pageable]] = True
    return out


#: A call that returns this soon after an operation's end was waiting for it (returns took 2 to 26
#: us).
LONGEST_RETURN_NS = 40_000

NOTHING, HIDDEN = -1, -2


class Call(NamedTuple):
    """One outermost call of the threads that issue the interval's work, ns."""

    start: int
    end: int
    inside: int  # what the profiler added to the call itself
    after: int  # and to the code between it and the next call
    waits: bool  # a synchronisation, or a copy that returns when it is done
    back: int = 0  # how long after what it waits for such a call usually returns


class Item(NamedTuple):
    """An operation, or a record (no length), issued by call number `call` (-1: before the first
    one).

    `latency`: from the start of its call to its own start, where the stream is idle; `gap`: from
    its predecessor's end, where the stream is busy, without what the profiler adds there; `behind`:
    the number of the item of another stream that it was queued behind, NOTHING, or HIDDEN for
    something that the trace does not show; `trim`: how much of its own length is the profiler's (at
    most half of it is), `device`: how much of the gap.
    """

    lane: int
    start: int
    end: int
    call: int
    latency: int
    gap: int
    behind: int = NOTHING
    trim: int = 0
    device: int = 0


class Played(NamedTuple):
    """Shifts, ns, never negative: of the end of every item, and of the host after the last call."""

    items: list[int]
    host: int


def replay(
    calls: Sequence[Call], items: Sequence[Item], inside: float = 1, after: float = 1
) -> Played:
    """`calls` are sorted by start; items of one lane run in the order of their starts.  These
    shares of what the profiler added are left out; what it does on the GPU belongs to `inside`."""
    shifts, host = [0] * len(items), 0
    issued: list[list[int]] = [[] for _ in range(len(calls) + 1)]  # by call; first: before all
    for i in sorted(range(len(items)), key=lambda i: (items[i].start, items[i].end)):
        issued[items[i].call + 1].append(i)
    done: list[tuple[int, int]] = []  # (end, item) of what has been placed, sorted
    last: dict[int, tuple[int, int]] = {}  # lane -> (end, shift) of what ends last in it
    for number in range(-1, len(calls)):
        call = calls[number] if number >= 0 else None
        added = 0 if call is None else round(inside * call.inside)
        for i in issued[number + 1]:
            item, shift = items[i], 0
            before = last.get(item.lane)
            if call is not None:
                # as early as its call, its predecessor and what it was queued behind allow
                bounds = [call.start - host + max(item.latency - added, 0)]
                if before is not None:
                    device = min(round(inside * item.device), max(item.gap, 0))
                    bounds.append(before[0] - before[1] + item.gap - device)
                if item.behind >= 0:
                    bounds.append(item.start - shifts[item.behind])
                elif item.behind == HIDDEN:  # whatever held it up still does
                    bounds.append(item.start)
                shift = max(item.start - max(bounds), 0)
            shift += min(round(inside * item.trim), (item.end - item.start) // 2)
            if before is None or item.end - shift >= before[0] - before[1]:
                last[item.lane] = (item.end, shift)
            shifts[i] = shift
            insort(done, (item.end, i))
        if call is None:
            continue
        latest = bisect_right(done, (call.end, len(shifts))) - 1 if call.waits else -1
        if latest >= 0:
            end, shift = done[latest][0], shifts[done[latest][1]]
            if end > max(call.start, call.end - LONGEST_RETURN_NS):
                # it comes earlier by no more than it waited and what it waited for comes earlier
                host = min(host + end - call.start, shift)
            else:  # it found the work done; an earlier call would have waited
                host = min(host, shift + max(call.end - end - call.back, 0))
        host += added + round(after * call.after)
    return Played(shifts, host)
