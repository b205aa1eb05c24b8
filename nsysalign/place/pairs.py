"""Which events a program compared, read from a trace without a log: only pairs that are known.

Rows name the events of records by `cudaEventRecord`, of waits and of queries by numbers, which count the
creations of a process.  Start and end were created together, their records alternate, and the host waits
for each end before the next start:

    [create s][create e]  ...  [record s] work [record e] [wait for e]   [record s] ...

torch records by `cudaEventRecordWithFlags`, of which there are no such rows.  In a process that runs it
pairs are those of libraries (cuDNN's search, DDP's timers): they are counted, as is everything that can be
read in two ways.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.model import CALL, EventLog, Trace
from nsysalign.text import plural

#: What a call does to events.
_CREATE, _DESTROY, _RECORD, _WAIT, _WAIT_ALL, _ORDER = range(1, 7)
_BY_KIND = {"record": _RECORD, "query_event": _WAIT, "sync_event": _WAIT, "sync_stream": _WAIT,
            "sync_device": _WAIT_ALL, "wait_event": _ORDER}  # fmt: skip
#: cudaEventElapsedTime fails for an event that is not done: it had been waited for.
_BY_NAME = {"EventCreate": _CREATE, "EventDestroy": _DESTROY, "EventElapsedTime": _WAIT_ALL}
_OF_TORCH = {"operations": "at::native", "calls": "cudaEventRecordWithFlags"}


@dataclass
class TracePairs:
    """Compared pairs by their starts: positions of both records, and the call that waited for the
    end; `unclear`: what may belong to comparisons, or not; `of_libraries`: how many pairs are not the
    program's."""

    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    wait: list[int] = field(default_factory=list)
    unclear: Counter[str] = field(default_factory=Counter)
    of_libraries: int = 0

    @property
    def notes(self) -> list[str]:
        """What was read, on what grounds, and what is only counted."""
        notes = [
            f"{count:,} {what}: whether the program compared them is not known"
            for what, count in self.unclear.items()
        ]
        if self.start:
            pairs = plural(len(self.start), "compared pair")
            notes[:0] = [
                f"read from the trace: {pairs} of events (created together and waited for); elapsed_time itself "
                "is not in it, the length is estimated from what lies around"
            ]
        if self.of_libraries:
            notes.append(
                f"{plural(self.of_libraries, 'pair')} of events that libraries seem to time for themselves "
                "(cuDNN's search, DDP's timers) have no interval"
            )
        return notes


class EventCall(NamedTuple):
    """An outermost call that concerns events.  `event`: its number, `stream`: of what it records or
    waits for (-1: unknown); `rank`: of the call among all of its thread; `name`: of the function;
    `call`: position in `trace.calls`."""

    role: int
    thread: int
    start: int
    end: int
    event: int
    stream: int
    rank: int
    name: int
    call: int


class KnownPair(NamedTuple):
    """The records of two events, and the call that waited for the end."""

    start: EventCall
    end: EventCall
    wait: EventCall


def untold(log: EventLog | None) -> bool:
    """Whether no log says what was measured, so that intervals are taken from the trace."""
    return log is None or (log.records.empty and log.hosts[~log.hosts["implicit"].to_numpy()].empty)


def read_pairs(trace: Trace, records: pd.DataFrame) -> TracePairs:
    """The pairs that the program compared, as positions in `records` (matched.Matched)."""
    found, pairs = TracePairs(), []
    of_torch = set()
    for table, text in _OF_TORCH.items():
        rows = getattr(trace, table)[["name_id", "process"]]
        names = [number for number, name in trace.names.items() if text in (name or "")]
        of_torch |= {*rows["process"][rows["name_id"].isin(names)].unique().tolist()}
    for process, calls in _event_calls(trace, records).items():
        asked = sum(c.role == _WAIT and c.event >= 0 for c in calls)
        if not _numbers_are_ordinals(calls):
            if asked:
                found.unclear["waits for events that the trace numbers in another way"] += asked
            continue
        together = _created_together(calls, found.unclear)
        if process in of_torch:
            found.of_libraries += len(together)
            what = "waits for events in a process that runs torch (nsysalign run logs what it compares)"
        else:
            pairs += together
            unnamed = any(c.role == _RECORD and c.event < 0 for c in calls)
            what = "waits for events whose records the trace does not name" if unnamed else ""
        if asked and what:
            found.unclear[what] += asked
    position = {call: n for n, call in enumerate(records["call"].tolist()) if call >= 0}
    for pair in sorted(pairs, key=lambda pair: (pair.start.call, pair.end.call)):
        found.start.append(position[pair.start.call])
        found.end.append(position[pair.end.call])
        found.wait.append(pair.wait.call)
    return found


def _event_calls(trace: Trace, records: pd.DataFrame) -> dict[int, list[EventCall]]:
    """By process: its outermost calls that concern events, by time; of waits and queries those that
    succeeded."""
    calls, syncs = trace.calls, trace.syncs
    kind, thread, name = (calls[c].to_numpy() for c in ("kind", "thread", "name_id"))
    role = np.zeros(len(calls), np.int8)
    for text, value in _BY_KIND.items():
        role[kind == CALL[text]] = value
    texts = {number: trace.names.get(number, "") for number in np.unique(name).tolist()}
    waiting_copies = [n for n, t in texts.items() if "cudaMemcpy" in t and "Async" not in t]
    role[np.isin(name, waiting_copies)] = _WAIT_ALL
    for text, value in _BY_NAME.items():
        role[np.isin(name, [n for n, t in texts.items() if text in t])] = value
    role[np.isin(role, [_WAIT, _WAIT_ALL]) & (calls["return_value"].to_numpy() != 0)] = 0
    outermost = np.flatnonzero(trace.outermost)
    rank = np.zeros(len(calls), np.int64)
    rank[outermost[np.argsort(thread[outermost], kind="stable")]] = np.arange(len(outermost))
    event, stream = np.full((2, len(calls)), -1)
    keys = ["process", "context", "stream"]
    codes = pd.concat([trace.event_rows[keys], syncs[keys]]).groupby(keys).ngroup().to_numpy()
    called = syncs["call"].to_numpy()
    of_sync = called - calls["nested"].to_numpy()[called]
    event[of_sync] = syncs["event"].to_numpy()
    stream[of_sync] = codes[len(trace.event_rows) :]
    named = records[(records["call"] >= 0) & (records["event"] >= 0)]
    event[named["call"]] = named["event"]
    stream[named["call"]] = codes[named["event_row"]]
    rows = outermost[role[outermost] > 0]
    columns = (role, thread, calls["start_ns"], calls["end_ns"], event, stream, rank, name)
    values = zip(*(np.asarray(c)[rows].tolist() for c in columns), rows.tolist(), strict=True)
    found: dict[int, list[EventCall]] = defaultdict(list)
    for process, row in zip(calls["process"].to_numpy()[rows].tolist(), values, strict=True):
        found[process].append(EventCall(*row))
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


def _created_together(calls: Sequence[EventCall], unclear: Counter[str]) -> list[KnownPair]:
    """Pairs of events that were created one after the other, as s, e, s, e ... or as s, s, ...,
    e, e, ...: whichever is likeliest.  Counts in `unclear` what may as well be marks between which
    something else was compared, and pairs of events that were created apart."""
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
        elif c.role in (_WAIT, _WAIT_ALL):
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
            break
    if in_a_row:
        unclear["pairs of events recorded in a row with other work between"] += in_a_row
    elif not found and len(events.records) == 2:
        # two events alone, the first of which nothing waits for: a pair, if it serves any purpose
        start, end = sorted(events.records)
        apart = [] if ("event", start) in events.waits else events.pair(start, end)
        if apart:
            what = "pairs of events created apart, the first of which nothing waits for"
            unclear[what] += len(apart)
    return found


def _are_marks(pairs: Sequence[Sequence[KnownPair]]) -> bool:
    """Whether events s, e, s, e ... were recorded once each in this order, with other calls between
    every end and the next start and no wait: ten marks of which the first and last are compared look
    the same."""
    once = [of_two[0] for of_two in pairs if len(of_two) == 1]
    return len(once) == len(pairs) > 1 and all(
        one.end.start < two.start.start
        and two.start.rank - one.end.rank > 1
        and one.wait.start > two.start.start
        for one, two in pairwise(once)
    )
