"""What a host thread was doing: its outermost CUDA calls, the profiler's work on it, and its NVTX
ranges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nsysalign.intervals import disjoint, distinct, group, index_type, least, ragged
from nsysalign.model import CALL, ISSUING_CALLS, SYNC_CALLS, Trace
from nsysalign.place.own_work import own_calls
from nsysalign.split.pieces import CAUSE

PUSH_POP = 59

_CAUSE_OF_CALL = {
    **dict.fromkeys(SYNC_CALLS, "sync"),
    **dict.fromkeys(ISSUING_CALLS, "api_launch"),
    **dict.fromkeys(("record", "query_event"), "event"),
}

#: Calls of threads that are laid out at once.
CALLS_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class Thread:
    """Sorted disjoint calls of one thread: start, end, cause, position.  In addition the profiler's
    own work on the thread outside calls, and its innermost ranges."""

    start: np.ndarray
    end: np.ndarray
    cause: np.ndarray
    ref: np.ndarray
    over_start: np.ndarray
    over_end: np.ndarray
    over_ref: np.ndarray
    range_start: np.ndarray
    range_end: np.ndarray
    range_ref: np.ndarray


class Threads:
    """Lazily built per globalTid.  `cause_of_calls`: what time in each call is, while nothing is
    issued."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        kind = trace.calls["kind"].to_numpy()
        code = np.full(len(CALL), CAUSE["api"], dtype=np.int8)
        for name, cause in _CAUSE_OF_CALL.items():
            code[CALL[name]] = CAUSE[cause]
        self.cause_of_calls = code[kind] if len(kind) else kind
        every: np.ndarray = np.arange(len(trace.calls), dtype=index_type(len(trace.calls)))
        outermost = (trace.calls["outer"].to_numpy() == every) & ~own_calls(trace)
        outer = every if outermost.all() else every[outermost]
        thread = trace.calls["thread"].to_numpy()
        self._calls = group(thread if outer is every else thread[outer], outer)
        self._overhead = group(trace.overhead["thread"].to_numpy(), np.arange(len(trace.overhead)))
        push_pop = np.flatnonzero(trace.ranges["kind"].to_numpy() == PUSH_POP)
        self._ranges = group(trace.ranges["thread"].to_numpy()[push_pop], push_pop)
        self._built: dict[int, Thread] = {}

    def __getitem__(self, thread: int) -> Thread:
        if thread not in self._built:
            self._built[thread] = self._build(thread)
        return self._built[thread]

    def calls(self, thread: int) -> np.ndarray:
        """Positions of the thread's outermost calls, by start."""
        return self._calls.get(thread, np.empty(0, np.int64))

    def _build(self, thread: int) -> Thread:
        calls, trace = self.calls(thread), self.trace
        start, end = trace.calls["start_ns"].to_numpy(), trace.calls["end_ns"].to_numpy()
        if len(calls) < len(start):
            start, end = start[calls], end[calls]
        which, s, e = disjoint(start, end)
        calls = calls if len(which) == len(calls) else calls[which]
        cause = (
            self.cause_of_calls
            if len(calls) == len(self.cause_of_calls)
            else self.cause_of_calls[calls]
        )
        over_start, over_end, over_ref = self._profiler(thread)
        return Thread(s, e, cause, calls, over_start, over_end, over_ref, *self._innermost(thread))

    def _profiler(self, thread: int) -> tuple[np.ndarray, ...]:
        """The profiler's work on the thread; inside calls, the calls take precedence
        (`gaps.host_pieces`)."""
        over = self._overhead.get(thread, np.empty(0, np.int64))
        table = self.trace.overhead
        o = over[np.argsort(table["start_ns"].to_numpy()[over], kind="stable")]
        part, start, end = disjoint(table["start_ns"].to_numpy()[o], table["end_ns"].to_numpy()[o])
        return start, end, o[part]

    def _innermost(self, thread: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Disjoint pieces of the thread's push/pop ranges, each named by the innermost range."""
        mine = self._ranges.get(thread, np.empty(0, np.int64))
        start, end = (
            self.trace.ranges["start_ns"].to_numpy()[mine],
            self.trace.ranges["end_ns"].to_numpy()[mine],
        )
        order = np.lexsort((-end, start))
        return innermost(start[order], end[order], mine[order])


class Lot(NamedTuple):
    """Stretches of time: `owner`, a position in those that were given, start, end."""

    owner: np.ndarray
    start: np.ndarray
    end: np.ndarray


def in_lots(
    threads: Threads, thread: np.ndarray, start: np.ndarray, end: np.ndarray
) -> Iterator[Lot]:
    """Stretches of threads' time in lots that hold about as many calls; one with more calls than
    that is cut where some of them begin, as another piece begins there anyway."""
    first, count = np.zeros(len(start), np.int64), np.zeros(len(start), np.int64)
    for number in distinct(thread).tolist():
        mine = np.flatnonzero(thread == number)
        first[mine], last = (np.searchsorted(threads[number].start, t[mine]) for t in (start, end))
        count[mine] = np.maximum(last - first[mine], 0)
    if count.sum() <= CALLS_AT_ONCE:
        yield Lot(np.arange(len(start)), start, end)
        return
    owner, place = ragged(np.zeros(len(start), np.int64), np.maximum(-(-count // CALLS_AT_ONCE), 1))
    begin, over = start[owner], end[owner]
    for at in np.flatnonzero(place).tolist():
        call = first[owner[at]] + place[at] * CALLS_AT_ONCE
        begin[at] = over[at - 1] = threads[int(thread[owner[at]])].start[call]
    held = np.minimum(count[owner] - place * CALLS_AT_ONCE, CALLS_AT_ONCE)
    size = np.cumsum(held + 1) // CALLS_AT_ONCE
    for some in np.split(np.arange(len(owner)), np.flatnonzero(np.diff(size)) + 1):
        yield Lot(owner[some], begin[some], over[some])


def innermost(
    start: np.ndarray, end: np.ndarray, name: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For intervals sorted by (start, -end): disjoint pieces, each with the name of the one that
    began last of those that are open.

    outer  [--------------)          [outer)[inner)[outer)
    inner         [----)        ->
    """
    some = np.flatnonzero(end > start)
    start, end, name = start[some], end[some], name[some]
    count = np.arange(len(start))
    while len(start):
        # what outlasts an earlier one (another domain's) hides it to its own end
        reach = -least(-end, count, np.searchsorted(start, end))
        if (reach == end).all():
            break
        end = reach
    # at one time ends come first
    order = np.argsort(np.concatenate([end, start]), kind="stable")
    begins = order >= len(start)
    time, depth = np.concatenate([end, start])[order], np.cumsum(np.where(begins, 1, -1))
    # the innermost one at a depth is the last that began there
    place = depth * (len(order) + 1) + np.arange(len(order))
    opened = np.flatnonzero(begins)
    opened = opened[np.argsort(place[opened])]
    lasts = np.flatnonzero((depth[:-1] > 0) & (np.diff(time) > 0)) if len(order) else opened
    which = order[opened[np.searchsorted(place[opened], place[lasts], side="right") - 1]]
    return time[lasts], time[lasts + 1], name[which - len(start)]
