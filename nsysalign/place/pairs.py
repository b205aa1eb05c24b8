"""Which events a program compared, read from the trace.

torch's `elapsed_time` first asks both events whether they are done, start first; nsys records these
two calls with the numbers of the events:

    host   [record s] launch [record e]  ...  [query s][query e]   0.1 to 1 us apart, nothing between

Numbers count the events that a process created, its libraries' included.  Record calls carry none
unless CUPTI wrote rows of them, so they are told by order:

    [create][record]          torch creates an event when it records it first: the n-th creation
    [record][wait of a stream or of the host for event n]
    [record][record] ... [query a][query b]     recorded again: as many records as events that are
                                                asked for, in the order in which those were created

Programs that ask cudaEventElapsedTime without a query (C++, CuPy, numba, cuDNN) wait for the end
event first: `[create s][create e] ... [record s] work [record e] [synchronize e]` is a pair, too,
and so are two such events for which nothing ever waits (the program waits for the device): they can
be good for nothing else.  For this, CUPTI's rows must name them (nsys writes such for
`cudaEventRecord`, not for torch's `cudaEventRecordWithFlags`).
Newer exports hold the call itself, which proves a comparison, but not of which events.
What only orders work, polls (`event.query()` in a loop, NCCL's watchdog, caching allocators) and
what can be read in two ways is none; how many there are of these is said.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from nsysalign.intervals import group
from nsysalign.model import CALL, SYNC_CALLS, Trace
from nsysalign.text import plural

#: What a call does to events.
_NONE, _CREATE, _RECORD, _QUERY, _WAIT, _ORDER, _ELAPSED, _CAPTURE, _CAPTURED = range(9)
_BY_KIND = {"record": _RECORD, "query_event": _QUERY, "sync_event": _WAIT, "wait_event": _ORDER}
_BY_NAME = {
    "EventCreate": _CREATE,
    "EventElapsedTime": _ELAPSED,
    "StreamBeginCapture": _CAPTURE,
    "StreamEndCapture": _CAPTURED,
}
#: Between the two queries of a comparison lies less than this, and between two comparisons more by
#: this.
_WITHIN_NS, _BETWEEN_NS = 10_000, 400
_NEXT = 2  # a record follows the creation of its event as one of so many calls of the thread

QUERIED, ELAPSED, WAITED = "asked by queries", "asked by cudaEventElapsedTime", "waited for"
UNASKED = "around work, of events that nothing waits for"


@dataclass
class TracePairs:
    """Compared pairs as calls of their records (positions in `trace.calls`), by the start's call,
    and how each is known; `left`: reason -> comparisons that could not be read; `numbers`: call of
    a record -> number of its event in its process."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    how: list[str] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    numbers: dict[int, int] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What was read, on what grounds, and what could not be."""
        said, left = [], sum(self.left.values())
        if self.start:
            how = ", ".join(f"{n:,} {way}" for way, n in Counter(self.how).items())
            said.append(
                f"read from the trace: {plural(len(self.start), 'compared pair')} of events ({how}); elapsed_time "
                "itself is not in it, the length is estimated from what lies around"
            )
        if left:
            why = "; ".join(f"{n:,} {reason}" for reason, n in self.left.items())
            said.append(f"{left:,} comparisons of events have no interval: {why}")
        return said

    def take(self, which: list[int]) -> TracePairs:
        """Some of the pairs."""
        start, end = ([column[n] for n in which] for column in (self.start, self.end))
        return TracePairs(start, end, [self.how[n] for n in which], self.left, self.numbers)

    def add(self, start: int, end: int, how: str) -> None:
        self.start.append(start)
        self.end.append(end)
        self.how.append(how)


#: Whether a thread issued work between two times.
Works = Callable[[int, int, int], bool]


class _Row(NamedTuple):
    """An outermost call that concerns events.  `event`: its number, -1 unknown; `rank`: of the call
    among all of its thread; `driver`: made by the driver API."""

    role: int
    thread: int
    start: int
    end: int
    event: int
    done: bool
    rank: int
    driver: bool
    call: int


def pairs_in_trace(trace: Trace, known: Mapping[int, int]) -> TracePairs:
    """The pairs that a program compared.  `known`: number of the event by the call of its record,
    where event rows say it."""
    calls = trace.calls
    kind, outer = calls["kind"].to_numpy(), calls["outer"].to_numpy()
    role = np.zeros(len(calls), np.int8)
    for name, value in _BY_KIND.items():
        role[kind == CALL[name]] = value
    name = calls["name_id"].to_numpy()
    names = {i: trace.names.get(i, "") for i in np.unique(name).tolist()}
    for part, value in _BY_NAME.items():
        role[np.isin(name, [i for i, text in names.items() if part in text])] = value
    role[outer != np.arange(len(calls))] = _NONE
    event = np.full(len(calls), -1, np.int64)
    asked = trace.syncs[trace.syncs["call"] >= 0]
    event[outer[asked["call"].to_numpy()]] = asked["event"].to_numpy()
    for call, number in known.items():
        event[call] = number
    thread = calls["thread"].to_numpy()
    outermost = np.flatnonzero(outer == np.arange(len(calls)))
    order = outermost[np.argsort(thread[outermost], kind="stable")]
    rank = np.zeros(len(calls), np.int64)
    rank[order] = np.arange(len(order))
    # a loop that polls one event says nothing new between its first and last call
    rows = order[role[order] > 0]
    same = (role[rows[1:]] == _QUERY) & (role[rows[:-1]] == _QUERY)
    same &= (event[rows[1:]] == event[rows[:-1]]) & (thread[rows[1:]] == thread[rows[:-1]])
    idle = np.zeros(len(rows), dtype=bool)
    idle[1:-1] = same[:-1] & same[1:]
    rows = np.sort(rows[~idle])
    columns = [role, thread, calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy(), event]
    driver = [i for i, text in names.items() if text.startswith("cuEvent")]
    columns += [calls["return_value"].to_numpy() == 0, rank, np.isin(name, driver)]
    table = [
        _Row(*values)
        for values in zip(*(c[rows].tolist() for c in columns), rows.tolist(), strict=True)
    ]
    out = TracePairs()
    of_process = defaultdict(list)
    for row, process in zip(table, calls["process"].to_numpy()[rows].tolist(), strict=True):
        of_process[process].append(row)
    if not (role == _QUERY).any():
        for process, members in of_process.items():
            of_process[process] = _with_unlisted(members, trace, process)
    issued = np.unique(outer[trace.operations["call"].to_numpy()[trace.operations["call"] >= 0]])
    starts = group(thread[issued], calls["start_ns"].to_numpy()[issued])

    def works(of: int, since: int, until: int) -> bool:
        times = starts.get(of, np.empty(0, np.int64))
        return bool(np.searchsorted(times, since) < np.searchsorted(times, until))

    for members in of_process.values():
        _read(members, works, out)
    order_ = sorted(range(len(out.start)), key=lambda n: (out.start[n], out.end[n]))
    return out.take(order_)


def _with_unlisted(rows: list[_Row], trace: Trace, process: int) -> list[_Row]:
    """The calls of a process with the queries of which the trace holds the synchronisation row
    alone: some profilers list the calls that wait, not those that ask.  Correlation ids tell
    whether one followed the other; the thread is that which records, -1 if several do."""
    threads = {row.thread for row in rows if row.role == _RECORD}
    thread = threads.pop() if len(threads) == 1 else -1
    syncs = trace.syncs
    syncs = syncs[(syncs["call"] < 0) & (syncs["event"] >= 0) & (syncs["stream"] < 0)]
    syncs = syncs[syncs["process"] == process]
    if not np.isin(trace.calls["kind"], [CALL[k] for k in SYNC_CALLS]).any():
        return rows
    more = [
        _Row(_QUERY, thread, row.start_ns, row.end_ns, row.event, True, row.correlation, False, -1)
        for row in syncs.itertuples()
    ]
    return sorted(rows + more, key=lambda row: row.start)


def _born(rows: list[_Row]) -> dict[int, int]:
    """Position of a record -> number of its event, for first records of events that are created
    right before (a creation that another follows is no such, nor one during another thread's)."""
    made, born = 0, {}  # born: ordinal of the creation -> record
    mixed, until = set(), 0  # ordinals of creations at the same time; when the last one ended
    open_: dict[
        int, tuple[int, int]
    ] = {}  # thread -> its last creation: ordinal (0: of several), rank
    seen = [(0, 0)]  # creations so far, and by how much a number is ahead of them, at least
    # until a number confirms the count, each raises it: events were made before the trace began
    begun_before, numbers = True, set()
    for n, row in enumerate(rows):
        if row.role == _CREATE:
            made += 1
            if row.start < until:
                mixed |= {made - 1, made}
            until = max(until, row.end)
            several = row.rank - open_.get(row.thread, (0, -99))[1] <= _NEXT
            open_[row.thread] = 0 if several else made, row.rank
            continue
        ordinal, rank = open_.get(row.thread, (0, 0))
        if row.role == _RECORD and ordinal and row.rank - rank <= _NEXT:
            born[ordinal] = n
        elif row.event >= 0 and row.role in (_QUERY, _WAIT, _ORDER):
            numbers.add(row.event)
            if row.event - made > seen[-1][1]:
                if begun_before and seen[-1][0] == made > 0:
                    seen.pop()
                seen.append((made, row.event - made))
            else:
                begun_before = False
        open_.pop(row.thread, None)
    # events created out of sight (by libraries, before the trace) push numbers up, at unknown times
    asked, out = np.array(sorted(numbers), np.int64), {}
    for (first, low), (last, high) in zip(seen, [*seen[1:], (made, seen[-1][1])], strict=True):
        split = np.arange(first, max(last, first + 1))  # creations up to here came before them
        between = np.searchsorted(asked, split + high, side="right")
        split = split[between == np.searchsorted(asked, split + low, side="right")]
        for ordinal in range(first + 1, last + 1):
            if ordinal not in born or ordinal in mixed or not len(split):
                continue
            if low == high or split[-1] < ordinal:
                out[born[ordinal]] = ordinal + high
            elif split[0] >= ordinal:
                out[born[ordinal]] = ordinal + low
    return out


def _comparisons(rows: list[_Row]) -> dict[int, tuple[int, ...]]:
    """Positions of the queries of comparisons -> the two events, none for the second query of
    each."""
    out: dict[int, tuple[int, ...]] = {}
    last: dict[int, list[int]] = {}  # thread -> the queries of a run, one call after the other
    exact = any(row.role == _ELAPSED for row in rows)

    def close(run: list[int], then: _Row | None) -> None:
        gaps = [rows[b].start - rows[a].end for a, b in pairwise(run)]
        if exact and not (len(run) == 2 and then is not None and then.role == _ELAPSED):
            return
        within, between = gaps[0::2], gaps[1::2]
        regular = not between or np.median(between) >= np.median(within) + _BETWEEN_NS
        if len(run) % 2 or not regular:
            return
        for n, gap in zip(range(0, len(run), 2), within, strict=True):
            one, two = rows[run[n]], rows[run[n + 1]]
            known = one.done and two.done and min(one.event, two.event) >= 0
            if known and one.event != two.event and gap <= _WITHIN_NS:
                out[run[n]], out[run[n + 1]] = (one.event, two.event), ()

    for n, row in enumerate(rows):
        run = last.setdefault(row.thread, [])
        follows = run and row.rank == rows[run[-1]].rank + 1
        if not (row.role == _QUERY and follows):
            close(run, row if follows else None)
            run.clear()
        if row.role == _QUERY:
            run.append(n)
    for run in last.values():
        close(run, None)
    return out


def _together(
    rows: list[_Row], compared: Mapping[int, tuple[int, ...]]
) -> dict[int, list[tuple[int, ...]]]:
    """What a thread compares between two of its records: position of the first query -> the
    events."""
    out: dict[int, list[tuple[int, ...]]] = {}
    current: dict[int, list[tuple[int, ...]]] = {}
    for n, row in enumerate(rows):
        if row.role == _RECORD:
            current.pop(row.thread, None)
        elif compared.get(n):
            if row.thread not in current:
                current[row.thread] = out[n] = []
            current[row.thread].append(compared[n])
    return out


def _read(rows: list[_Row], works: Works, out: TracePairs) -> None:
    """The pairs of one process, whose calls on events these are, by time."""
    told = {n: row.event for n, row in enumerate(rows) if row.role == _RECORD and row.event >= 0}
    number = _born(rows)  # nsys writes event rows of some records only, unless told to trace them
    if any(number.get(n, event) != event for n, event in told.items()):
        number = {}
    number |= told
    compared = _comparisons(rows)
    together = _together(rows, compared)
    seen = _Seen(number, {row.thread for row in rows if row.role == _RECORD})
    captured: set[int] = set()  # records
    capturing: set[int] = set()  # threads
    before: dict[int, int] = {}  # thread -> its last call on events
    for n, row in enumerate(rows):
        if row.role in (_CAPTURE, _CAPTURED):
            (capturing.add if row.role == _CAPTURE else capturing.discard)(row.thread)
        elif row.role == _RECORD:
            if row.thread in capturing:
                captured.add(n)
            seen.record(n, row.thread)
        elif row.role == _ORDER and row.event >= 0:
            seen.order(row.event, before.get(row.thread, -1), row.thread)
        elif n in compared:
            if n in together:
                seen.ask(together[n], row.thread)
            if not compared[n]:
                continue
            one, two = (seen.latest.get(event, -1) for event in compared[n])
            if one < 0 or two < 0:
                out.left["of events whose records cannot be told apart"] += 1
            elif one in captured or two in captured:
                out.left["of events recorded into a CUDA graph"] += 1
            elif row.thread < 0 and rows[one].thread != rows[two].thread:
                out.left["by queries of an unknown thread"] += 1
            elif one > two:
                out.left["whose end was recorded before their start"] += 1
            else:
                out.add(rows[one].call, rows[two].call, QUERIED)
        elif row.role == _QUERY:
            seen.others.add(row.event)
        before[row.thread] = n
    _waited(rows, told, compared, works, out)
    out.numbers.update({rows[n].call: event for n, event in number.items()})


@dataclass
class _Seen:
    """What is known of the events of a process at one moment.  `number`: position of a record ->
    its event; `latest`: event -> its last record; `fresh`: records for which no comparison has
    asked since; `loose`: thread -> records of unknown events; `others`: events that are polled or
    order work."""

    number: dict[int, int]
    recorders: set[int]
    latest: dict[int, int] = field(default_factory=dict)
    fresh: set[int] = field(default_factory=set)
    loose: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    others: set[int] = field(default_factory=set)

    def _name(self, record: int, event: int) -> None:
        self.number[record] = event
        self.latest[event] = record
        self.fresh.add(record)

    def record(self, n: int, thread: int) -> None:
        if n in self.number:
            self._name(n, self.number[n])
        else:
            self.loose[thread].append(n)

    def order(self, event: int, before: int, thread: int) -> None:
        """A stream waits for the event; `before`: the thread's call on events just before."""
        if self.loose[thread] and self.loose[thread][-1] == before:
            self._name(self.loose[thread].pop(), event)
        self.others.add(event)

    def ask(self, pairs: list[tuple[int, ...]], thread: int) -> None:
        """A thread compares these events: say which of the records of unknown events are theirs."""
        latest, wanted = self.latest, list(dict.fromkeys(e for pair in pairs for e in pair))
        stale = [e for e in wanted if latest.get(e, -1) not in self.fresh]
        anyone = thread not in self.recorders
        records = sorted(
            n for t, found in self.loose.items() if anyone or t == thread for n in found
        )
        if len(records) > len(stale):  # some of those told by their creation were recorded again
            stale = [e for e in wanted if e in stale or latest[e] < records[-1]]
        if stale and all(e in latest for e in stale):  # older ones are not theirs
            oldest = min(latest[e] for e in stale)
            records = [n for n in records if n > oldest]
        names: list[int] = []
        if records and stale:
            # a start that all others are compared with may be older than they are
            ends = {pair[-1] for pair in pairs}
            compared = {e: {f for p in pairs if e in p for f in p} for e in stale}
            hubs = [e for e in stale if e not in ends and ends <= compared[e]]
            hubs.sort(key=lambda e: latest.get(e, -1))
            older = hubs[: max(len(stale) - len(records), 0)] if len(wanted) > 2 else []
            again = len(records) % len(stale) == 0 and not self.others
            if len(records) == len(stale) - len(older) or again:
                names = sorted(e for e in stale if e not in older)
            else:
                for event in stale:
                    if not (self.others and latest.get(event, -1) in self.fresh):
                        latest.pop(event, None)
        for record, event in zip(records[len(records) - len(names) :], names, strict=True):
            self._name(record, event)
        for event in wanted:
            self.fresh.discard(latest.get(event, -1))
        for t in self.loose:
            if anyone or t == thread:
                self.loose[t] = []


def _creations(rows: list[_Row]) -> tuple[int, set[int]]:
    """(how many events were created, ordinals of the creations that follow another: the end's)."""
    made, seconds = 0, set()
    last: dict[int, int] = {}  # thread -> rank
    for row in rows:
        if row.role == _CREATE:
            made += 1
            if row.rank - last.get(row.thread, -99) <= _NEXT:
                seconds.add(made)
            last[row.thread] = row.rank
    return made, seconds


def _waited_by_nobody(
    rows: list[_Row], told: Mapping[int, int], seconds: set[int]
) -> dict[int, int]:
    """End -> start of records, one after the other, of two events that were created together and
    that nothing waits for or asks: they order no work."""
    others = {row.event for row in rows if row.role != _RECORD}
    out: dict[int, int] = {}
    last: dict[int, int] = {}  # thread -> its last record
    for n, row in enumerate(rows):
        if row.role == _RECORD:
            start = last.get(row.thread, -1)
            one, two = told.get(start, -1), told.get(n, -1)
            if 0 <= one == two - 1 and two in seconds and not {one, two} & others:
                out[n] = start
            last[row.thread] = n
    return out


def _waited(
    rows: list[_Row],
    told: Mapping[int, int],
    compared: Mapping[int, tuple[int, ...]],
    works: Works,
    out: TracePairs,
) -> None:
    """Pairs of programs that wait for the end event and then ask for the time without a query: the
    last record before the wait and, last in first out, one before it that nothing waited for.  Both
    events were created together, the end's after the start's.  `told`: numbers that event rows say;
    `compared`: queries of comparisons."""
    asked = {event for pair in compared.values() for event in pair}
    exact = any(row.role == _ELAPSED for row in rows)
    made, seconds = _creations(rows)
    ahead = max((row.event for row in rows if row.role != _RECORD), default=0) - made
    nobody = {} if exact or ahead > 0 else _waited_by_nobody(rows, told, seconds)
    ends = {n + max(ahead, 0) for n in seconds}
    open_: dict[int, list[int]] = defaultdict(list)  # thread -> records that nothing waited for
    ended: dict[int, tuple[int, int]] = {}  # thread -> a pair whose time is not asked for yet
    before: dict[int, int] = {}

    def awaits_the_start(row: _Row, start: int) -> bool:
        alone = {row.event, row.event + 1, row.event + 2} & ends == {row.event + 1}
        return told.get(start) == row.event if told else alone

    for n, row in enumerate(rows):
        stack = open_[row.thread]
        last = before.get(row.thread, -1)
        if n in nobody:
            start = stack.pop()
            if works(row.thread, rows[start].start, row.start):
                out.add(rows[start].call, row.call, UNASKED)
        elif row.role == _RECORD:
            stack.append(n)
        elif row.role == _ORDER and stack and stack[-1] == last:
            stack.pop()
        elif row.role == _WAIT and stack and stack[-1] == last and row.event not in asked:
            if len(stack) > 1 and awaits_the_start(row, stack[-2]):
                continue  # [synchronize s][synchronize e]
            end = stack.pop()
            start = stack.pop() if stack else -1
            if start >= 0 and told:
                together = told.get(end) == row.event and abs(told.get(start, -9) - row.event) == 1
            else:
                together = start >= 0 and row.event in ends
            # OpenACC's runtime, which orders its copies in this way, has other calls in between, or
            # events that it created one by one
            created = row.event in ends or told.get(start, -1) in ends
            at_once = row.rank == rows[end].rank + 1 and created
            together &= exact or not row.driver or at_once
            if together and (exact or works(row.thread, rows[start].start, rows[end].start)):
                ended[row.thread] = start, end
                out.numbers[rows[end].call] = row.event
                if not exact:
                    out.add(rows[start].call, rows[end].call, WAITED)
        elif row.role == _ELAPSED and row.thread in ended:
            start, end = ended.pop(row.thread)
            out.add(rows[start].call, rows[end].call, ELAPSED)
        elif row.role == _ELAPSED and row.done and last not in compared:
            # of two events that were ever created, each recorded once since, there is one pair
            if made == 2 and ahead <= 0 and len(stack) == sum(map(len, open_.values())) == 2:
                out.add(rows[stack[0]].call, rows[stack[1]].call, ELAPSED)
            else:
                out.left["by cudaEventElapsedTime, whose events the trace does not name"] += 1
            open_.clear()
        before[row.thread] = n
