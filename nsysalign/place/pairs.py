"""Which events a program compared, read from a trace without a log: only pairs that are known.

Numbers of events count the creations of a process.  nsys writes the number for every record by
`cudaEventRecord`, for waits and for queries; none for `cudaEventRecordWithFlags` (torch).

C++, CuPy, numba      the rows name the events of records.  Start and end were created together, their
                      records alternate, and the host waits for each end before the next start:

    [create s][create e]  ...  [record s] work [record e] [wait for e]   [record s] ...

torch                 `elapsed_time` asks both events whether they are done, start first:

    [create s][record s] work [create e][record e]  ...  [query s][query e]   nothing in between

In a process that runs torch, pairs of the first kind are those of libraries (cuDNN's search, DDP's
timers): they are counted, as is everything that can be read in two ways.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.model import CALL, KIND, SYNC_CALLS, EventLog, Trace
from nsysalign.place.host_clock import TOLERANCE_NS, ClockMap
from nsysalign.place.own_work import own_calls
from nsysalign.text import plural

#: What a call does to events.
_CREATE, _DESTROY, _RECORD, _QUERY, _WAIT, _WAIT_ALL, _ORDER, _CAPTURE, _CAPTURED = range(1, 10)
_BY_KIND = {"record": _RECORD, "query_event": _QUERY, "sync_event": _WAIT, "sync_stream": _WAIT,
            "sync_device": _WAIT_ALL, "wait_event": _ORDER}  # fmt: skip
#: cudaEventElapsedTime fails for an event that is not done: it had been waited for.
_BY_NAME = {"EventCreate": _CREATE, "EventDestroy": _DESTROY, "EventElapsedTime": _WAIT_ALL,
            "StreamBeginCapture": _CAPTURE, "StreamEndCapture": _CAPTURED}  # fmt: skip
#: Between the two queries of a comparison lies less than this, and between two comparisons more by
#: this.
_WITHIN_NS, _BETWEEN_NS = 10_000, 400
_NEXT = 2  # a record follows the creation of its event as one of so many calls of the thread
_PINNED = 1  # CUDA_MEMORY_KIND
_FLAGGED = "cudaEventRecordWithFlags"  # what torch.cuda.Event calls

QUERIED, WAITED = "asked by queries", "created together and waited for"


@dataclass
class TracePairs:
    """Compared pairs as calls of their records (positions in `trace.calls`), by the start's call,
    and how each is known; `wait`: the call that waited for the end (-1: unknown); `left`: reason ->
    comparisons that could not be read; `unclear`: what may belong to comparisons, or not;
    `of_libraries`: how many pairs are not the program's; `events`: call of a record -> number of its
    event."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    wait: list[int] = field(default_factory=list)
    how: list[str] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    unclear: Counter[str] = field(default_factory=Counter)
    of_libraries: int = 0
    events: dict[int, int] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What was read, on what grounds, and what is only counted."""
        notes = []
        if self.start:
            how = ", ".join(f"{n:,} {way}" for way, n in Counter(self.how).items())
            notes.append(
                f"read from the trace: {plural(len(self.start), 'compared pair')} of events ({how}); elapsed_time "
                "itself is not in it, the length is estimated from what lies around"
            )
        if self.left:
            why = "; ".join(f"{n:,} {reason}" for reason, n in self.left.items())
            notes.append(
                f"{sum(self.left.values()):,} comparisons of events have no interval: {why}"
            )
        for what, count in self.unclear.items():
            notes.append(f"{count:,} {what}: whether the program compared them is not known")
        if self.of_libraries:
            notes.append(
                f"{plural(self.of_libraries, 'pair')} of events that libraries seem to time for themselves "
                "(cuDNN's search, DDP's timers) have no interval"
            )
        return notes


class EventCall(NamedTuple):
    """An outermost call that concerns events.  `event`: its number, `stream`: of what it records or
    waits for (-1: unknown); `done`: it succeeded; `rank`: of the call among all of its thread;
    `name`: of the function; `pinned`: its thread's call just before copied from or to pinned memory,
    and this is no cudaEventRecordWithFlags; `call`: position in `trace.calls`."""

    role: int
    thread: int
    start: int
    end: int
    event: int
    stream: int
    done: bool
    rank: int
    name: int
    pinned: bool
    call: int


class KnownPair(NamedTuple):
    """The records of two events, and the call that waited for the end (None: not known)."""

    start: EventCall
    end: EventCall
    wait: EventCall | None


def untold(log: EventLog | None) -> bool:
    """Whether no log says what was measured, so that intervals are taken from the trace."""
    return log is None or (log.records.empty and log.hosts[~log.hosts["implicit"].to_numpy()].empty)


def read_pairs(
    trace: Trace,
    log: EventLog,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
    records: pd.DataFrame,
) -> TracePairs:
    """Pairs that the trace shows and no log line does, as positions in `records` (see
    matched.Matched).  Beside a log only how many there are: they are a library's."""
    call, process = records["call"].to_numpy(), records["process"].to_numpy()
    ours = records["log_process"].to_numpy() >= 0
    ours |= np.append(own_calls(trace), False)[call]
    # a record of the log that is not found may be any of those that no log line claims
    lost = process[ours & (call < 0) & ~records["captured"].to_numpy(bool)]
    ours |= np.isin(process, lost)
    begun = records["call_start_ns"].to_numpy()
    for number, rows in log.references.groupby("process"):
        if number in clocks:
            rows = rows.sort_values("t0_ns")
            first, last = (clocks[number].to_trace(rows[c].to_numpy()) for c in ("t0_ns", "t1_ns"))
            near = np.searchsorted(first, begun + TOLERANCE_NS) - 1
            inside = (near >= 0) & (begun <= last[np.maximum(near, 0)] + TOLERANCE_NS)
            ours |= inside & (process == processes[number])
    if not untold(log) and ((call >= 0) & ~ours).sum() < 2:
        return TracePairs()
    event, row = records["event"].to_numpy(), records["event_row"].to_numpy()
    named = {int(c): int(e) for c, e in zip(call, event, strict=True) if c >= 0 and e >= 0}
    keys = ["process", "context", "stream"]
    codes = pd.concat([trace.event_rows[keys], trace.syncs[keys]]).groupby(keys).ngroup().to_numpy()
    of_rows, of_syncs = codes[: len(trace.event_rows)], codes[len(trace.event_rows) :]
    stream, waiting = np.full(len(trace.calls), -1), trace.syncs["call"].to_numpy()
    outer = trace.calls["outer"].to_numpy()
    stream[outer[waiting[waiting >= 0]]] = of_syncs[waiting >= 0]
    stream[call[row >= 0]] = of_rows[row[row >= 0]]
    pairs = pairs_in_trace(trace, named, stream)
    position = {c: n for n, c in enumerate(call.tolist()) if c >= 0}
    ends = [(position[a], position[b]) for a, b in zip(pairs.start, pairs.end, strict=True)]
    kept = [n for n, (a, b) in enumerate(ends) if not (ours[a] or ours[b])]
    if not untold(log):
        return TracePairs(of_libraries=pairs.of_libraries + len(kept))
    return replace(
        pairs,
        start=[ends[n][0] for n in kept],
        end=[ends[n][1] for n in kept],
        wait=[pairs.wait[n] for n in kept],
        how=[pairs.how[n] for n in kept],
    )


def pairs_in_trace(trace: Trace, named: Mapping[int, int], stream: np.ndarray) -> TracePairs:
    """The pairs that a program compared.  `named`: number of the event by the call of its record,
    where event rows say it; `stream`: a number for that of every call that records an event or waits
    for one, as far as it is known (-1)."""
    found = TracePairs()
    # processes with a kernel of ATen's, or a record by cudaEventRecordWithFlags, run torch
    aten, flagged = (
        [n for n, text in trace.names.items() if part in (text or "")]
        for part in ("at::native", _FLAGGED)
    )
    tables = ((trace.operations, aten), (trace.calls, flagged))
    torch = {p for t, names in tables for p in t["process"][np.isin(t["name_id"], names)].unique()}
    pairs: list[tuple[KnownPair, str]] = []
    for process, calls in _event_calls(trace, named, stream).items():
        ordinal = _numbers_are_ordinals(calls)
        found.events |= {c.call: c.event for c in calls if c.role == _RECORD and c.event >= 0}
        together, in_a_row, apart = _created_together(calls) if ordinal else ([], 0, 0)
        if apart and process not in torch:
            found.unclear[
                "pairs of events created apart, the first of which nothing waits for"
            ] += apart
        if in_a_row:
            found.unclear["pairs of events recorded in a row with other work between"] += in_a_row
        if process in torch:
            compared = _compared(calls, ordinal, found)
            pairs += [(pair, QUERIED) for pair in compared]
            told = {c.call for pair in compared for c in (pair.start, pair.end)}
            found.of_libraries += sum(not {p.start.call, p.end.call} & told for p in together)
            continue
        pairs += [(pair, WAITED) for pair in together]
        asked = sum(c.role == _WAIT and c.event >= 0 for c in calls)
        if asked and not ordinal:
            found.unclear["waits for events that the trace numbers in another way"] += asked
        elif asked and not any(c.role == _RECORD and c.event >= 0 for c in calls):
            found.unclear["waits for events whose records the trace does not name"] += asked
    for pair, how in sorted(pairs, key=lambda p: (p[0].start.call, p[0].end.call)):
        found.start.append(pair.start.call)
        found.end.append(pair.end.call)
        found.wait.append(pair.wait.call if pair.wait is not None else -1)
        found.how.append(how)
    return found


def _event_calls(
    trace: Trace, named: Mapping[int, int], stream: np.ndarray
) -> dict[int, list[EventCall]]:
    """By process: its outermost calls that concern events, by time."""
    calls, operations = trace.calls, trace.operations
    kind, outer, thread, name = (
        calls[c].to_numpy() for c in ("kind", "outer", "thread", "name_id")
    )
    names = {n: trace.names.get(n, "") for n in np.unique(name).tolist()}

    def called(text: str, but: str = "\n") -> np.ndarray:
        return np.isin(
            name,
            [n for n, is_called in names.items() if text in is_called and but not in is_called],
        )

    role = np.zeros(len(calls), np.int8)
    for text, value in _BY_KIND.items():
        role[kind == CALL[text]] = value
    for text, value in _BY_NAME.items():
        role[called(text)] = value
    role[called("cudaMemcpy", but="Async")] = _WAIT_ALL
    outermost = outer == np.arange(len(calls))
    role[~outermost] = 0
    event = np.full(len(calls), -1, np.int64)
    asked = trace.syncs[trace.syncs["call"] >= 0]
    event[outer[asked["call"].to_numpy()]] = asked["event"].to_numpy()
    event[list(named)] = list(named.values())
    order = np.flatnonzero(outermost)
    order = order[np.argsort(thread[order], kind="stable")]
    rank = np.zeros(len(calls), np.int64)
    rank[order] = np.arange(len(order))
    pinned = (operations["src_kind"] == _PINNED) | (operations["dst_kind"] == _PINNED)
    copies = operations["call"][(operations["kind"] == KIND["memcpy"]) & pinned].to_numpy()
    copying, after = np.zeros((2, len(calls)), dtype=bool)
    copying[outer[copies[copies >= 0]]] = True
    after[order[1:]] = copying[order[:-1]] & (thread[order[1:]] == thread[order[:-1]])
    after &= ~called(_FLAGGED)
    # a loop that polls one event says nothing new between its first and last call
    rows = order[role[order] > 0]
    same = (role[rows[1:]] == _QUERY) & (role[rows[:-1]] == _QUERY)
    same &= (event[rows[1:]] == event[rows[:-1]]) & (thread[rows[1:]] == thread[rows[:-1]])
    idle = np.append(False, same) & np.append(same, False)
    rows = np.sort(rows[~idle[: len(rows)]])
    start, end, status = (calls[c].to_numpy() for c in ("start_ns", "end_ns", "return_value"))
    columns = (role, thread, start, end, event, stream, status == 0, rank, name, after)
    values = zip(*(c[rows].tolist() for c in columns), rows.tolist(), strict=True)
    found: dict[int, list[EventCall]] = defaultdict(list)
    for process, row in zip(calls["process"].to_numpy()[rows].tolist(), values, strict=True):
        found[process].append(EventCall(*row))
    syncs = trace.syncs[(trace.syncs["call"] < 0) & (trace.syncs["event"] >= 0)]
    syncs = syncs[(syncs["stream"] < 0).to_numpy()]
    if (role == _QUERY).any() or not np.isin(kind, [CALL[k] for k in SYNC_CALLS]).any():
        return found
    # some profilers list the calls that wait, not those that ask: of queries there are only
    # synchronisation rows.  Correlation ids tell whether one followed the other; the thread is that
    # which records, -1 if several do
    for process, own in found.items():
        threads = {c.thread for c in own if c.role == _RECORD}
        asking = threads.pop() if len(threads) == 1 else -1
        for q in syncs[syncs["process"] == process].itertuples():
            times, rank = (q.start_ns, q.end_ns), q.correlation
            own.append(EventCall(_QUERY, asking, *times, q.event, -1, True, rank, -1, False, -1))
        own.sort(key=lambda c: c.start)
    return found


def _numbers_are_ordinals(calls: Sequence[EventCall]) -> bool:
    """Whether event n is the n-th that the process created: no number exceeds the creations seen
    so far, and none is recorded after all events up to it were destroyed."""
    made = destroyed = gone = 0
    for c in calls:
        if c.role == _CREATE:
            made += 1
        elif c.role == _DESTROY:
            destroyed += 1
            gone = made if destroyed >= made else gone
        elif c.event > made or (c.role == _RECORD and 0 <= c.event <= gone):
            return False
    return True


# --- rows that name the events


@dataclass
class _NamedEvents:
    """What rows say of the events of a process, by number: runs of creations, one right after the
    other; records; what waited for an event, a stream (by ("stream", its number)) or all; which
    events order streams."""

    runs: list[list[int]] = field(default_factory=list)
    records: dict[int, list[EventCall]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[tuple[str, int], list[EventCall]] = field(default_factory=lambda: defaultdict(list))
    ordering: set[int] = field(default_factory=set)

    def pair(self, start: int, end: int) -> list[KnownPair]:
        """The records of two events that the host waited for; [] if the two are no pair."""
        starts, ends = self.records.get(start, []), self.records.get(end, [])
        if not starts or len(starts) != len(ends) or {start, end} & self.ordering:
            return []
        in_turn = [c for both in zip(starts, ends, strict=True) for c in both]
        alternate = all(one.start < two.start for one, two in pairwise(in_turn))
        if not alternate or starts[0].thread != ends[0].thread:
            return []
        until = [s.start for s in starts[1:]] + [float("inf")]
        rows = zip(starts, ends, map(self._wait, ends, until), strict=True)
        return [KnownPair(s, e, wait) for s, e, wait in rows if wait is not None]

    def _wait(self, end: EventCall, until: float) -> EventCall | None:
        """The first call that waited for a record, if it returned before a time."""
        found = []
        for key in (("event", end.event), ("stream", end.stream), ("all", 0)):
            calls = self.waits.get(key, [])
            n = bisect_right(calls, end.start, key=lambda c: c.start)
            found += calls[n : n + 1]
        return min((c for c in found if c.end < until), key=lambda c: c.end, default=None)

    def likeness(self, run: list[int], pairs: list[list[KnownPair]]) -> tuple[int, int, int]:
        """How many pairs; with both on one stream; minus the records of the others between them."""
        others = sorted(c.start for number in run for c in self.records.get(number, []))
        between = sum(
            bisect_right(others, pair.end.start - 1) - bisect_right(others, pair.start.start)
            for of_two in pairs
            for pair in of_two[:100]
        )
        on_one = sum(of_two[0].start.stream == of_two[0].end.stream for of_two in pairs)
        return len(pairs), on_one, -between


def _created_together(calls: Sequence[EventCall]) -> tuple[list[KnownPair], int, int]:
    """Pairs of events that were created one after the other, as s, e, s, e ... or as s, s, ...,
    e, e, ...: whichever is likeliest; how many may as well be marks between which something else was
    compared; how many pairs there may be of events that were created apart."""
    events, made, last, in_a_row = _NamedEvents(), 0, None, 0
    for c in calls:
        if c.role == _CREATE:
            made += 1
            follows = last and (c.thread, c.name, c.rank) == (last.thread, last.name, last.rank + 1)
            events.runs[-1].append(made) if follows else events.runs.append([made])
            last = c
        elif c.role == _RECORD and c.event >= 0:
            events.records[c.event].append(c)
        elif c.role == _ORDER:
            events.ordering.add(c.event)
        elif c.role in (_QUERY, _WAIT, _WAIT_ALL) and c.done:
            key = ("event", c.event) if c.event >= 0 else ("stream", c.stream)
            events.waits[("all", 0) if c.role == _WAIT_ALL else key].append(c)
    for first in (0, 1):  # where no run begins with a pair, one may begin with another event
        found: list[KnownPair] = []
        for run in (whole[first:] for whole in events.runs):
            half = len(run) // 2
            ways = [zip(run[0::2], run[1::2], strict=False)]
            if half > 1 and len(run) == 2 * half:
                ways.append(zip(run[:half], run[half:], strict=True))
            candidates = [[pairs for s, e in way if (pairs := events.pair(s, e))] for way in ways]
            best = max(candidates, key=lambda pairs: events.likeness(run, pairs))
            if best is candidates[0] and _are_marks(best):
                in_a_row += len(best)
            else:
                found += [pair for pairs in best for pair in pairs]
        if found or in_a_row:
            return found, in_a_row, 0
    # two events alone, the first of which nothing waits for: a pair, if it serves any purpose
    start, end = sorted(events.records) if len(events.records) == 2 else (-1, -1)
    return [], 0, 0 if ("event", start) in events.waits else len(events.pair(start, end))


def _are_marks(pairs: Sequence[Sequence[KnownPair]]) -> bool:
    """Whether events s, e, s, e ... were recorded once each in this order, with other calls between
    every end and the next start and no wait: ten marks of which the first and last are compared look
    the same."""
    once = [of_two[0] for of_two in pairs if len(of_two) == 1]
    return len(once) == len(pairs) > 1 and all(
        one.end.start < two.start.start
        and two.start.rank - one.end.rank > 1
        and one.wait is not None
        and one.wait.start > two.start.start
        for one, two in pairwise(once)
    )


# --- torch


def _compared(calls: Sequence[EventCall], ordinal: bool, found: TracePairs) -> list[KnownPair]:
    """Pairs of records that torch's elapsed_time compared; adds to `found` what could not be
    read, and the events of records that were told."""
    comparisons, seconds = _comparisons(calls)
    asked_alone = [
        c for n, c in enumerate(calls) if c.role == _QUERY and n not in comparisons.keys() | seconds
    ]
    polled = {c.event for c in calls if c.role == _QUERY and not c.done}
    # PyTorch's allocator of pinned memory records an event right after each copy, by
    # cudaEventRecord, and asks the oldest ones in a row
    polled |= {c.event for c in calls if c.role == _RECORD and c.event >= 0 and c.pinned}
    polled |= {c.event for c in asked_alone}
    batches = _batches(calls, comparisons, polled)
    first = _first_records(calls) if ordinal else {}
    records, latest = _last_records(calls, first, batches, polled)
    found.events |= latest
    captured: set[int] = set()  # records
    capturing: set[int] = set()  # threads
    for n, c in enumerate(calls):
        if c.role == _CAPTURE:
            capturing.add(c.thread)
        elif c.role == _CAPTURED:
            capturing.discard(c.thread)
        elif c.role == _RECORD and c.thread in capturing:
            captured.add(n)
    pairs, of_ddp = [], _by_ddp(calls, comparisons)
    recorders = {c.thread for c in calls if c.role == _RECORD}
    for n, events in comparisons.items():
        one, two = records.get(n, (-1, -1))
        if n in of_ddp:
            found.of_libraries += 1
        elif polled & {*events}:
            found.left["by queries of events that are also polled (a memory allocator's)"] += 1
        elif calls[n].thread >= 0 and calls[n].thread not in recorders:
            found.left["by a thread that records no event (a watchdog's)"] += 1
        elif one < 0 or two < 0:
            found.left["of events whose records cannot be told apart"] += 1
        elif {one, two} & captured:
            found.left["of events recorded into a CUDA graph"] += 1
        elif calls[n].thread < 0 and calls[one].thread != calls[two].thread:
            found.left["by queries of an unknown thread"] += 1
        elif one > two:
            found.left["whose end was recorded before their start"] += 1
        else:
            pairs.append(KnownPair(calls[one], calls[two], None))
    return pairs


def _comparisons(calls: Sequence[EventCall]) -> tuple[dict[int, tuple[int, int]], set[int]]:
    """(position of the first query of a comparison -> the two events, positions of the second
    queries)."""
    runs: list[list[int]] = []
    last: dict[int, list[int]] = {}  # thread -> its latest run of queries, one call after the other
    for n, c in enumerate(calls):
        if c.role == _QUERY:
            run = last.get(c.thread)
            if run and c.rank == calls[run[-1]].rank + 1:
                run.append(n)
            else:
                last[c.thread] = [n]
                runs.append(last[c.thread])
    found, seconds = {}, set()
    for run in runs:
        gaps = [calls[b].start - calls[a].end for a, b in pairwise(run)]
        within, between = gaps[0::2], gaps[1::2]
        regular = not between or np.median(between) >= np.median(within) + _BETWEEN_NS
        if len(run) % 2 or not regular:
            continue
        for one, two, gap in zip(run[0::2], run[1::2], within, strict=True):
            events = calls[one].event, calls[two].event
            if min(events) >= 0 and events[0] != events[1] and gap <= _WITHIN_NS:
                found[one] = events
                seconds.add(two)
    return found, seconds


def _first_records(calls: Sequence[EventCall]) -> dict[int, int]:
    """Position of a record -> number of its event: torch creates an event when it records it for
    the first time.  Creations of several threads at once have no order."""
    made, until, mixed = 0, 0, set()
    created: dict[int, tuple[int, int]] = {}  # thread -> ordinal and rank of its last creation
    found = {}
    for n, c in enumerate(calls):
        if c.role == _CREATE:
            made += 1
            if c.start < until:
                mixed |= {made - 1, made}
            until = max(until, c.end)
            created[c.thread] = made, c.rank
        elif c.role == _RECORD and c.thread in created:
            ordinal, rank = created.pop(c.thread)
            if c.rank - rank <= _NEXT:
                found[n] = ordinal
    return {n: ordinal for n, ordinal in found.items() if ordinal not in mixed}


def _by_ddp(calls: Sequence[EventCall], comparisons: Mapping[int, tuple[int, int]]) -> set[int]:
    """The comparisons (positions of their first queries) of DistributedDataParallel's reducer, which
    times itself (torch/csrc/distributed/c10d/logger.cpp): forward, backward, communication and
    overlap, always these four of five events, one after the other."""
    of_thread: dict[int, list[int]] = defaultdict(list)
    for n in comparisons:
        of_thread[calls[n].thread].append(n)
    found: set[int] = set()
    for asked in of_thread.values():
        for four in zip(asked, asked[1:], asked[2:], asked[3:], strict=False):
            (a, b), (c, d), (e, f), (g, h) = (comparisons[n] for n in four)
            if b == c and e == g and d == h and len({a, b, d, e, f}) == 5:
                found |= {*four}
    return found


def _batches(
    calls: Sequence[EventCall], comparisons: Mapping[int, tuple[int, int]], polled: set[int]
) -> dict[int, dict[int, tuple[int, int]]]:
    """What a thread compares between two of its records, or of anyone's if it records nothing:
    position of the first query -> position and events of each comparison."""
    recorders = {c.thread for c in calls if c.role == _RECORD}
    found: dict[int, dict[int, tuple[int, int]]] = {}
    current: dict[int, dict[int, tuple[int, int]]] = {}
    for n, c in enumerate(calls):
        if c.role == _RECORD:
            current = {t: b for t, b in current.items() if t in recorders and t != c.thread}
        elif n in comparisons and not polled & {*comparisons[n]}:
            if c.thread not in current:
                current[c.thread] = found[n] = {}
            current[c.thread][n] = comparisons[n]
    return found


@dataclass
class _Recorder:
    """A thread that records, since it last compared: the events that it recorded for the first
    time, and its records of unknown events (positions); `compared`: what it compared then."""

    first: set[int] = field(default_factory=set)
    again: list[int] = field(default_factory=list)
    compared: set[int] = field(default_factory=set)

    def told(self, events: set[int]) -> list[int] | None:
        """The events of `again` if now these are compared: those that were compared the last time,
        each recorded once more in the same order, or, the first time, all that were ever recorded,
        in the same order each time.  None: it could be others."""
        rounds = len(self.again) // max(len(events), 1)
        whole = rounds * len(events) == len(self.again)
        again = events == self.compared and not self.first and rounds == 1
        warm_up = events == self.first and not self.compared
        return sorted(events) * rounds if whole and (again or warm_up) else None


def _last_records(
    calls: Sequence[EventCall],
    first: Mapping[int, int],
    batches: Mapping[int, Mapping[int, tuple[int, int]]],
    polled: set[int],
) -> tuple[dict[int, tuple[int, int]], dict[int, int]]:
    """(position of a comparison's first query -> the last records of its two events, -1 where that
    is not known; call of a record -> its event).  `first`: record -> event."""
    found: dict[int, tuple[int, int]] = {}
    told: dict[int, int] = {}
    latest: dict[int, int] = {}  # event -> its last record
    threads: dict[int, _Recorder] = defaultdict(_Recorder)
    before: dict[int, int] = {}  # thread -> its last call
    for n, c in enumerate(calls):
        recorder, known = threads[c.thread], []  # (record, its event)
        if c.role == _RECORD and max(c.event, first.get(n, -1)) >= 0:
            known = [(n, max(c.event, first.get(n, -1)))]
            recorder.first |= {known[0][1]} - polled
        elif c.role == _RECORD:
            recorder.again.append(n)
        elif c.role == _ORDER and recorder.again[-1:] == [before.get(c.thread)]:
            known = [(recorder.again.pop(), c.event)]
        elif n in batches:
            events = {e for pair in batches[n].values() for e in pair}
            again = recorder.told(events)
            if again is None and recorder.again:  # any event may have been recorded again
                latest = {e: record for e, record in latest.items() if calls[record].event >= 0}
            known = [*zip(recorder.again, again or (), strict=False)]
            threads[c.thread] = _Recorder(compared=events)
        latest |= {event: record for record, event in known}
        told |= {calls[record].call: event for record, event in known}
        if n in batches:
            found |= {q: (latest.get(a, -1), latest.get(b, -1)) for q, (a, b) in batches[n].items()}
        before[c.thread] = n
    return found, told
