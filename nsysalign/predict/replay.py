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
    shifts, host = [0] * len(items), 0
    issued: list[list[int]] = [[] for _ in range(len(calls) + 1)]  # by call; first: before all
    for i in sorted(range(len(items)), key=lambda i: (items[i].start, items[i].end)):
        issued[items[i].call + 1].append(i)
    done: list[tuple[int, int]] = []  # (end, item) of what has been placed, sorted
    last: dict[int, tuple[int, int]] = {}  # lane -> (end, shift) of what ends last in it
    for number in range(-1, len(calls)):
        call = calls[number] if number >= 0 else None
        for i in issued[number + 1]:
            item = items[i]
            # as early as its call, its predecessor and what it was queued behind allow
            bounds = [] if call is None else [call.start - host + max(item.latency - call.inside, 0)]  # fmt: skip
            if item.lane in last:
                end, shift = last[item.lane]
                bounds.append(end - shift + item.gap)
            if item.behind >= 0:
                bounds.append(item.start - shifts[item.behind])
            elif item.behind == HIDDEN:  # whatever held it up still does
                bounds.append(item.start)
            shift = 0 if call is None else max(item.start - max(bounds), 0)
            shift += item.trim
            if item.lane not in last or item.end - shift >= last[item.lane][0] - last[item.lane][1]:
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
        host += call.inside + call.after
    return Played(shifts, host)
