"""Which events a program compared, read from a trace without a log: only pairs that are known.

Rows name the events of records by `cudaEventRecord`, of waits and of queries by numbers, which count the
creations of a process.  Start and end were created together, their records alternate, and the host waits
for each end before the next start:

    [create s][create e]  ...  [record s] work [record e] [wait for e]   [record s] ...

What can be read in two ways is counted, as are waits in a process that runs torch: it records by
`cudaEventRecordWithFlags`, which leaves no such rows, and the rows that there are come from timers of libraries.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, group, index_type
from nsysalign.model import CALL, CALL_KINDS, ORIGIN, SYNC_CALLS, Trace, tid_of
from nsysalign.place.bounded import CROSSING_NS, Bounded
from nsysalign.place.placed import Placed, recorded_by
from nsysalign.text import duration, plural

#: What a call does to events.
_CREATE, _DESTROY, _RECORD, _WAIT, _WAIT_ALL, _ORDER = range(1, 7)
_BY_KIND = {"record": _RECORD, "query_event": _WAIT, "sync_event": _WAIT, "sync_stream": _WAIT,
            "sync_device": _WAIT_ALL, "wait_event": _ORDER}  # fmt: skip
#: cudaEventElapsedTime fails for an event that is not done: it had been waited for.
_BY_NAME = {"EventCreate": _CREATE, "EventDestroy": _DESTROY, "EventElapsedTime": _WAIT_ALL}
_OF_TORCH = {"operations": "at::native", "calls": "cudaEventRecordWithFlags"}
_STREAM = ["process", "context", "stream"]
_OF_CALL = ["process", "thread", "start_ns", "end_ns", "name_id"]
#: A wait of the host for an event ends 2 to 6 us after it (99 of 100 of 4,135 waits; once 41 us).
_WAKES_NS = 50_000
EventCall = Any  # a row of _event_calls


class KnownPair(NamedTuple):
    """The records of two events, and the call that waited for the end."""

    start: EventCall
    end: EventCall
    wait: EventCall


def windows_of_pairs(
    trace: Trace, records: pd.DataFrame, bounded: Bounded, placed: Placed
) -> tuple[pd.DataFrame, list[str]]:
    """Windows of the pairs that only the trace shows, whose length is itself an estimate; notes.
    `records`: `Matched.records`."""
    pairs, notes = read_pairs(trace, records)
    possible = (bounded.lower <= bounded.upper + CROSSING_NS) & (records["lane"].to_numpy() >= 0)
    consistent = possible[pairs[:, 0]] & possible[pairs[:, 1]]
    if not consistent.all():
        lost = int((~consistent).sum())
        notes.append(f"{lost:,} compared pairs have no interval: the trace contradicts itself")
    start, end, wait = pairs[consistent].T
    time = placed.records["t_ns"].to_numpy().copy()
    time[end] = np.maximum(time[end], time[start])  # between the same operations the order is known
    lower = placed.records["lower_ns"].to_numpy()
    upper = placed.records["upper_ns"].to_numpy()
    room = np.maximum(np.maximum(time - lower, upper - time), 1)
    # a stamp of CUPTI's may be late
    error = np.where(bounded.stamped, placed.bar_ns, np.minimum(placed.bar_ns, room))
    error = error.astype(np.int64)
    unseen = _unseen_work(trace, wait, time[end])
    if 2 * np.count_nonzero(unseen) > len(unseen):
        notes.append(
            f"the host waited for ends of pairs until up to {duration(unseen.max())} after the last work that the trace shows: work "
            "that the GPU launches itself (kernels by kernels, graphs from the device) has no rows"
        )
    columns = recorded_by(records, start, end)
    threads = columns["thread"].tolist()
    latest_start = np.maximum(np.minimum(upper[start], time[end]), time[start])
    columns |= {
        "elapsed_ns": time[end] - time[start],
        "start_ns": time[start],
        "end_ns": time[end],
        "start_lower_ns": np.minimum(lower[start], time[start]),
        "start_upper_ns": latest_start,
        "error_ns": np.maximum(np.maximum(error[start], error[end]), unseen),
        "method": "inferred",
        "origin": ORIGIN["records"],
        "region": [f"records of thread {tid_of(thread)}" for thread in threads],
    }
    return frames.lean(columns, frames.WINDOWS, len(start)), notes


def _unseen_work(trace: Trace, wait: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """By how much (ns) ends may be later than their places: the host waited for them (the calls `wait`)
    until long after, and nothing ran that the trace shows (kernels launched by kernels have no rows)."""
    calls = trace.calls
    began = calls["start_ns"].to_numpy()[wait]
    returned = calls["end_ns"].to_numpy()[wait]
    waits = np.isin(calls["kind"].to_numpy()[wait], [CALL[kind] for kind in SYNC_CALLS])
    done = np.sort(trace.operations["end_ns"].to_numpy())
    last = np.append(0, done)[np.searchsorted(done, returned, side="right")]
    idle = returned - np.maximum(last, end_ns)
    late = waits & (began <= end_ns) & (idle > _WAKES_NS)
    return np.where(late, returned - end_ns, 0)


def read_pairs(trace: Trace, records: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """The pairs that the program compared, a row each, by their starts: positions of both records
    (`records`: `Matched.records`), and the call that waited for the end; and notes: what was read, on what
    grounds, and what may belong to comparisons, or not."""
    known, unclear, of_torch = list[KnownPair](), Counter[str](), set[int]()
    for table, text in _OF_TORCH.items():
        rows = getattr(trace, table)
        names = [n for n, name in trace.names.items() if text in (name or "")]
        of_torch |= {*rows["process"][rows["name_id"].isin(names)].tolist()}
    for process, calls in _event_calls(trace).groupby("process"):
        asked = int(((calls["role"] == _WAIT) & (calls["event"] >= 0)).sum())
        if process in of_torch:
            unclear[
                "waits for events in a process that runs torch (nsysalign run logs what it compares)"
            ] += asked
            continue
        events = _named_events(calls.itertuples(name="EventCall"))
        if not events or ((calls["role"] == _RECORD) & (calls["event"] < 0)).any():
            unclear["waits for events that the trace does not name, or in another way"] += asked
        if events:
            pairs, marks = events.pairs()
            known += pairs
            unclear["pairs of events recorded in a row with other work between"] += marks
    position = {call: n for n, call in enumerate(records["call"].tolist())}
    known.sort(key=lambda pair: (pair.start.Index, pair.end.Index))
    read = [(position[s.Index], position[e.Index], wait.Index) for s, e, wait in known]
    notes = [
        f"read from the trace: {plural(len(read), 'compared pair')} of events (created together and waited "
        "for); elapsed_time itself is not in it, the length is estimated from what lies around"
    ] * bool(read)
    notes += [
        f"{count:,} {events}: whether the program compared them is not known"
        for events, count in unclear.items()
        if count
    ]
    return np.array(read, np.int64).reshape(-1, 3), notes


def _event_calls(trace: Trace) -> pd.DataFrame:
    """Outermost calls that concern events (waits and queries: those that succeeded), by time, with their
    positions as index.  `event`: the number of what it records or waits for, `stream`: a number for its
    stream (-1: unknown); `rank`: of the call among all of its thread.  Columns are narrow: there may be
    millions of rows."""
    role = _roles(trace)
    rows = np.flatnonzero(role)
    columns = {name: trace.calls[name].to_numpy()[rows] for name in _OF_CALL}
    columns |= {"role": role[rows], "rank": _ranks(trace)[rows]}
    named_columns = ["call", "event", *_STREAM]
    named = pd.concat([trace.syncs[named_columns], trace.event_rows[named_columns]])
    named = named[named["call"] >= 0]
    named["call"] -= trace.calls["nested"].to_numpy()[named["call"]]
    named["stream"] = named.groupby(_STREAM).ngroup()
    named = named[np.isin(named["call"], rows)].drop_duplicates("call", keep="last")
    place = np.searchsorted(rows, named["call"])
    for name in ("event", "stream"):
        numbers = np.full(len(rows), -1, np.int64)
        numbers[place] = named[name]
        columns[name] = frames.narrow(numbers)
    return pd.DataFrame(columns, index=rows, copy=False)


def _roles(trace: Trace) -> np.ndarray:
    """Per call: what it does to events; 0: nothing, it lies in another call, or its wait failed."""
    calls, name_id = trace.calls, trace.calls["name_id"].to_numpy()
    of_kind = np.array([_BY_KIND.get(kind, 0) for kind in CALL_KINDS], np.int8)
    role = of_kind[calls["kind"].to_numpy()]
    for number in distinct(name_id).tolist():
        name = trace.names.get(number, "")
        roles = [value for text, value in _BY_NAME.items() if text in name]
        roles += [_WAIT_ALL] * ("cudaMemcpy" in name and "Async" not in name)
        if roles:
            role[name_id == number] = roles[0]
    failed = calls["return_value"].to_numpy() != 0
    role[failed & np.isin(role, (_WAIT, _WAIT_ALL))] = 0
    role[~trace.outermost] = 0
    return role


def _ranks(trace: Trace) -> np.ndarray:
    """Per outermost call: how many its thread made before it."""
    outer: np.ndarray = np.flatnonzero(trace.outermost).astype(index_type(len(trace.calls)))
    rank = np.zeros(len(trace.calls), outer.dtype)
    for calls in group(trace.calls["thread"].to_numpy()[outer], outer).values():
        rank[calls] = np.arange(len(calls))
    return rank


@dataclass
class _NamedEvents:
    """What rows say of the events of a process, by number: runs of creations, one right after the
    other; records; what waited for an event, a stream (by ("stream", its number)) or all, the first
    behind each record; which events order streams."""

    runs: list[list[int]] = field(default_factory=list)
    records: dict[int, list[EventCall]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[tuple[str, int], list[EventCall]] = field(default_factory=lambda: defaultdict(list))
    ordering: set[int] = field(default_factory=set)
    recorded_ns: int = -1  # the latest record began

    def add_record(self, event: int, call: EventCall) -> None:
        """Of calls in the order of their starts."""
        self.records[event].append(call)
        self.recorded_ns = call.start_ns

    def add_wait(self, key: tuple[str, int], call: EventCall) -> None:
        """The same.  A program that polls waits a million times for one record: a pair is closed by the
        first wait behind its end."""
        waits = self.waits[key]
        if not waits or waits[-1].start_ns <= self.recorded_ns:
            waits.append(call)

    def pairs(self) -> tuple[list[KnownPair], int]:
        """Pairs of events that were created one after the other; how many may as well be marks between
        which something else was compared."""
        known, marks = list[KnownPair](), 0
        # where no run begins with a pair, one may begin with another event
        for runs in (self.runs, [run[1:] for run in self.runs]):
            for run in runs:
                pairs, alike = self._of_run(run)
                marks += alike * len(pairs)
                known += [] if alike else [pair for recorded in pairs for pair in recorded]
            if known or marks:
                break
        return known, marks

    def _of_run(self, run: list[int]) -> tuple[list[list[KnownPair]], bool]:
        """Pairs s, e, s, e ... or s, s, ..., e, e, ...: the way with most pairs, most of them on one
        stream, fewest other records in between; whether they look like marks."""
        half = len(run) // 2
        times = sorted(call.start_ns for number in run for call in self.records[number])
        ways = []
        for starts, ends in ((run[0::2], run[1::2]), (run[:half], run[half : 2 * half])):
            events = zip(starts, ends, strict=False)
            pairs = [known for start, end in events if (known := self.pair(start, end))]
            on_a_stream = sum(known[0].start.stream == known[0].end.stream for known in pairs)
            between = sum(
                bisect_right(times, pair.end.start_ns - 1)
                - bisect_right(times, pair.start.start_ns)
                for known in pairs
                for pair in known[:100]
            )
            ways.append(((len(pairs), on_a_stream, -between), pairs))
        _, best = max(ways, key=lambda way: way[0])
        return best, best is ways[0][1] and _are_marks(best)

    def pair(self, start: int, end: int) -> list[KnownPair]:
        """The records of two events that the host waited for; [] if the two are no pair."""
        starts, ends, known = self.records[start], self.records[end], []
        in_turn = [call for pair in zip(starts, ends, strict=False) for call in pair]
        if (
            not len(starts) == len(ends) > 0
            or {start, end} & self.ordering
            or any(call.start_ns >= next_.start_ns for call, next_ in pairwise(in_turn))
            or starts[0].thread != ends[0].thread
        ):
            return []
        until = [call.start_ns for call in starts[1:]] + [float("inf")]
        for s, e, next_ns in zip(starts, ends, until, strict=True):
            waits = []  # the first for the event, its stream, and all
            for key in (("event", end), ("stream", e.stream), ("all", 0)):
                calls = self.waits[key]
                after = bisect_right(calls, e.start_ns, key=lambda call: call.start_ns)
                waits += [call for call in calls[after : after + 1] if call.end_ns < next_ns]
            if waits:
                known.append(KnownPair(s, e, min(waits, key=lambda call: call.end_ns)))
        return known


def _named_events(calls: Iterable[EventCall]) -> _NamedEvents | None:
    """None unless event n is the n-th that the process created: a number exceeds the creations seen so
    far, or is recorded after all events up to it were destroyed."""
    events, last = _NamedEvents(), None
    made = destroyed = gone = 0
    for call in calls:
        event, role = call.event, call.role
        if role == _CREATE:
            made += 1
            kind = (call.thread, call.name_id, call.rank)
            follows = last and kind == (last.thread, last.name_id, last.rank + 1)
            events.runs[-1].append(made) if follows else events.runs.append([made])
            last = call
        elif role == _DESTROY:
            destroyed += 1
            gone = made if destroyed >= made else gone
        elif event > made or (role == _RECORD and 0 <= event <= gone):
            return None
        elif role == _ORDER:
            events.ordering.add(event)
        elif role == _RECORD:
            events.add_record(event, call)
        else:
            key = ("event", event) if event >= 0 else ("stream", call.stream)
            events.add_wait(("all", 0) if role == _WAIT_ALL else key, call)
    return events


def _are_marks(pairs: Sequence[Sequence[KnownPair]]) -> bool:
    """Whether events s, e, s, e ... were recorded once each in this order, with other calls between
    every end and the next start and no wait: ten marks of which the first and last are compared look
    the same."""
    return len(pairs) > 1 and all(
        len(pair) == len(next_pair) == 1
        and pair[0].end.start_ns < next_pair[0].start.start_ns < pair[0].wait.start_ns
        and next_pair[0].start.rank - pair[0].end.rank > 1
        for pair, next_pair in pairwise(pairs)
    )
