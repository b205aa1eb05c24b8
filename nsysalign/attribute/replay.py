"""One interval played again without what the profiler added: a small list scheduling of its calls and operations.

    profiled   host    [record][launch A ]  [launch B ]  [record]        every call costs c more, the code after it too
               stream      R      |   AAA        |   BBB      R
    replayed   host    [rec][launch]  [launch][rec]
               stream      R    |  AAA   |  BBB  R                       durations of operations stay as recorded

The host's calls keep their order; each one comes earlier by what the calls before it no longer cost.  An operation starts
when its call has issued it (with the latency it had), not before its predecessor on the stream is done, and not before
what it was queued behind.  A call that waited for the GPU returns when what it waited for is done.  Times are differences
to the trace: `shift` is how much earlier something happens than it did.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

#: A call that returns this soon after an operation ended was waiting for it (ns): sync returns took 2 to 26 us.
_LONGEST_RETURN_NS = 40_000


@dataclass(frozen=True)
class Call:
    """One outermost call of the threads that issue the interval's work, in order of start."""

    start: int
    end: int
    inside: int  # what the profiler added to the call itself
    after: int  # and to the code between this call and the next one
    waits: bool  # a synchronisation, or a copy that returns when it is done


@dataclass(frozen=True)
class Item:
    """An operation, or a record (no length), issued by call number `call` (-1: before the first one).

    `latency`: the ordinary time from the start of its call to its own start on an idle stream; `gap`: the ordinary time
    from its predecessor's end, without what the profiler adds on the device.  `behind`: the number of the item of another
    stream that it was queued behind, -1 for none, -2 for something that the trace does not show.  `trim`: how much of its
    own length is the profiler's.
    """

    lane: int
    start: int
    end: int
    call: int
    latency: int
    gap: int
    behind: int = -1
    trim: int = 0


def replay(calls: Sequence[Call], items: Sequence[Item]) -> tuple[list[int], list[int], int]:
    """(shift of every call's start, shift of every item's end, host's shift after the last call), all in ns >= 0.

    `items` are sorted by start on the GPU; every item's call comes before its execution.  No cost anywhere gives zeros.
    """
    call_shift, tail = [0] * len(calls), 0
    shifts, starts = [0] * len(items), [0] * len(items)
    order = sorted(range(len(items)), key=lambda i: (items[i].call, items[i].start, items[i].end))
    by_end: list[tuple[int, int]] = []  # (end, item) of what has been placed
    last: dict[int, tuple[int, int]] = {}  # lane -> (end, shift) of the last one placed
    position = 0
    host = 0
    for number in range(-1, len(calls)):
        if number >= 0:
            call_shift[number] = host
        while position < len(order) and items[order[position]].call == number:
            i = order[position]
            position += 1
            shifts[i] = _place(items, i, calls, host, last, shifts)
            starts[i] = shifts[i]
            by_end.append((items[i].end, i))
        if number < 0:
            continue
        call = calls[number]
        if call.waits:
            by_end.sort()
            done = bisect_right(by_end, (call.end, len(items))) - 1
            if done >= 0 and by_end[done][0] > max(call.start, call.end - _LONGEST_RETURN_NS):
                # it returns as long after the end as it did, less what the profiler added to the return
                awaited = shifts[by_end[done][1]]
                waited = by_end[done][0] - call.start
                host = min(host + waited, awaited) + call.inside
            else:
                host += call.inside
        else:
            host += call.inside
        host += call.after
        tail = host
    return call_shift, shifts, tail


def _place(
    items: Sequence[Item],
    i: int,
    calls: Sequence[Call],
    host: int,
    last: dict[int, tuple[int, int]],
    shifts: list[int],
) -> int:
    """How much earlier item i ends: the earliest time that its call, its predecessor and its dependency allow."""
    item = items[i]
    earliest = None
    if item.call >= 0:
        call = calls[item.call]
        earliest = call.start - host + max(item.latency - call.inside, 0)
    before = last.get(item.lane)
    if before is not None:
        ready = before[0] - before[1] + item.gap
        earliest = ready if earliest is None else max(earliest, ready)
    if item.behind >= 0:
        behind = item.start - shifts[item.behind]
        earliest = behind if earliest is None else max(earliest, behind)
    elif item.behind == -2:  # it waited for what we cannot see: it still does
        earliest = item.start
    shift = 0 if earliest is None else item.start - earliest
    shift = max(shift, 0) + item.trim
    reach = last.get(item.lane)
    if reach is None or item.end - shift >= reach[0] - reach[1]:
        last[item.lane] = (item.end, shift)
    return shift
