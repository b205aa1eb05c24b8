"""Replays one interval without what the profiler added: a small list scheduler for its calls and
operations.

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
from typing import NamedTuple

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
    something that the trace does not show; `trim`: how much of its own length is the profiler's,
    `device`: how much of the gap, which a replay takes out of it before.
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


def replay(calls: Sequence[Call], items: Sequence[Item]) -> Played:
    """`calls` are sorted by start; items of one lane run in the order of their starts."""
    shifts = [0] * len(items)
    issued: list[list[int]] = [
        [] for _ in range(len(calls) + 1)
    ]  # by call; the first list: before all
    for i in sorted(range(len(items)), key=lambda i: (items[i].start, items[i].end)):
        issued[items[i].call + 1].append(i)
    done: list[tuple[int, int]] = []  # (end, item) of what has been placed, sorted
    last: dict[int, tuple[int, int]] = {}  # lane -> (end, shift) of what ends last in it
    host = 0
    for number in range(-1, len(calls)):
        for i in issued[number + 1]:
            shifts[i] = _place(items[i], calls, host, last, shifts)
            insort(done, (items[i].end, i))
        if number < 0:
            continue
        call = calls[number]
        if call.waits:
            host = _waited(call, host, done, shifts)
        host += call.inside + call.after
    return Played(shifts, host)


def _waited(call: Call, host: int, done: list[tuple[int, int]], shifts: list[int]) -> int:
    """The host's shift when a call that waits for the GPU returns, without the call's own cost."""
    last = bisect_right(done, (call.end, len(shifts))) - 1
    if last < 0:
        return host
    end, shift = done[last][0], shifts[done[last][1]]
    if end > max(call.start, call.end - LONGEST_RETURN_NS):
        # it comes earlier by no more than it waited and what it waited for comes earlier
        return min(host + end - call.start, shift)
    # it found the work done; an earlier call would have waited
    return min(host, shift + max(call.end - end - call.back, 0))


def _place(
    item: Item,
    calls: Sequence[Call],
    host: int,
    last: dict[int, tuple[int, int]],
    shifts: list[int],
) -> int:
    """How much earlier an item ends: as early as its call, its predecessor and what it was queued
    behind allow."""
    bounds = []
    if item.call >= 0:
        call = calls[item.call]
        bounds.append(call.start - host + max(item.latency - call.inside, 0))
    if item.lane in last:
        end, shift = last[item.lane]
        bounds.append(end - shift + item.gap)
    if item.behind >= 0:
        bounds.append(item.start - shifts[item.behind])
    elif item.behind == HIDDEN:  # whatever held it up still does
        bounds.append(item.start)
    shift = (max(item.start - max(bounds), 0) if item.call >= 0 else 0) + item.trim
    if item.lane not in last or item.end - shift >= last[item.lane][0] - last[item.lane][1]:
        last[item.lane] = (item.end, shift)
    return shift
