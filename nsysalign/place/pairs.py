"""Which pairs of events a program compared, read from a trace without a log: only those that are certain.

event      a CUDA event, named by a number: event n is the n-th event that its process created
record     a call that puts an event into a stream
wait       a call of the host that waits for an event, a stream or the device, or a query that succeeded
pair       two records, of a start event and an end event, between which the program measured the time
run        events that one thread created one right after the other
ordering   an event for which a stream waits: it orders streams and measures nothing

In the rows of a trace, events of `cudaEventRecord`, of waits and of queries have numbers.  The two events of
a pair were created together, their records alternate, and the host waits for each end before the next start:

    [create s][create e]  ...  [record s] work [record e] [wait for e]   [record s] ...

Where two readings are possible, the waits are only counted for a note.  So are all waits in a process that
runs torch: it records by `cudaEventRecordWithFlags`, which leaves no such rows, so that the rows which
there are come from timers of libraries.
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
from nsysalign.place.placed import Placed, columns_of_records
from nsysalign.text import duration, plural

#: What a call does to events: its role.
_NOTHING, _CREATE, _DESTROY, _RECORD, _WAIT, _WAIT_ALL, _ORDER = range(7)
_BY_KIND = {"record": _RECORD, "query_event": _WAIT, "sync_event": _WAIT, "sync_stream": _WAIT,
            "sync_device": _WAIT_ALL, "wait_event": _ORDER}  # fmt: skip
#: cudaEventElapsedTime fails for an event that is not done, so that it counts as a wait.
_BY_NAME = {"EventCreate": _CREATE, "EventDestroy": _DESTROY, "EventElapsedTime": _WAIT_ALL}
_OF_TORCH = {"operations": "at::native", "calls": "cudaEventRecordWithFlags"}
_STREAM = ["process", "context", "stream"]
_OF_CALL = ["process", "thread", "start_ns", "end_ns", "name_id"]
#: So many repetitions of a pair are looked at to tell two orders of events apart; more would say the same.
_ENOUGH_REPETITIONS = 100
#: A wait of the host for an event ends 2 to 6 us after it (99 of 100 of 4,135 waits; once 41 us).
_WAKES_NS = 50_000
EventCall = Any  # a row of _event_calls


class KnownPair(NamedTuple):
    """A record of the start event, the record of the end event that follows it, and the call that waited for
    the end."""

    start: EventCall  # `start.Index` and so on: the position of the call in the trace's calls
    end: EventCall
    wait: EventCall


def windows_of_pairs(
    trace: Trace, records: pd.DataFrame, bounded: Bounded, placed: Placed
) -> tuple[pd.DataFrame, list[str]]:
    """Return the windows (`frames.WINDOWS`) of the pairs that only the trace shows, a row per pair, and notes.  The length
    of such a window is an estimate, because the trace does not have what elapsed_time returned: it reaches from the
    place of the start record to that of the end record.

    records: `Matched.records`
    bounded, placed: the bounds and places of these records

    A start placed at 1,000 ns ±200 and an end at 1,600 ns ±300: a window from 1,000 ns, 600 ns long, ±300.
    """
    pairs, notes = read_pairs(trace, records)
    pairs, notes_on_lost = _placeable(trace, records, bounded, pairs)
    # per pair, the positions of its records, and of the call that waited for its end
    start, end, wait = pairs.T
    time = placed.records["t_ns"].to_numpy().copy()
    # Where nothing ran between the two records, their likeliest places may have the wrong order.  (No record is the end
    # of one pair and the start of another.)
    time[end] = np.maximum(time[end], time[start])
    error = _error_bars(bounded, placed, time)
    # by how much later an end may be, because something ran of which the trace has no row
    unseen = _unseen_work_ns(trace, wait, time[end])
    columns = columns_of_records(records, start, end)
    threads = columns["thread"].tolist()
    earliest = placed.records["lower_ns"].to_numpy()[start]
    # a start is no later than its end, and no earlier than where it was placed
    latest = np.minimum(placed.records["upper_ns"].to_numpy()[start], time[end])
    columns |= {
        "elapsed_ns": time[end] - time[start],
        "start_ns": time[start],
        "end_ns": time[end],
        "start_lower_ns": np.minimum(earliest, time[start]),
        "start_upper_ns": np.maximum(latest, time[start]),
        "error_ns": np.maximum(np.maximum(error[start], error[end]), unseen),
        "method": "inferred",
        "origin": ORIGIN["records"],
        "region": [f"records of thread {tid_of(thread)}" for thread in threads],
    }
    windows = frames.lean(columns, frames.WINDOWS, len(start))
    return windows, notes + notes_on_lost + _notes_on_unseen_work(unseen)


def _placeable(
    trace: Trace, records: pd.DataFrame, bounded: Bounded, pairs: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Return (the pairs whose records can have a place, notes on the others).

    pairs: as `read_pairs` returns them
    """
    if trace.operations.empty and len(pairs):  # their places would be those of the calls
        note = f"{len(pairs):,} compared pairs have no interval: no GPU work was recorded"
        return pairs[:0], [note]
    possible = (bounded.lower <= bounded.upper + CROSSING_NS) & (records["lane"].to_numpy() >= 0)
    start, end, _ = pairs.T
    consistent = possible[start] & possible[end]
    if consistent.all():
        return pairs, []
    lost = int((~consistent).sum())
    note = f"{lost:,} compared pairs have no interval: the trace contradicts itself"
    return pairs[consistent], [note]


def _error_bars(bounded: Bounded, placed: Placed, time: np.ndarray) -> np.ndarray:
    """Return the error bar of each record's place (int64 ns): that which its neighbours give it, but no more than its
    bounds allow.

    time: per record, its place (ns)
    """
    earlier = time - placed.records["lower_ns"].to_numpy()
    later = placed.records["upper_ns"].to_numpy() - time
    room = np.maximum(np.maximum(earlier, later), 1)
    # CUPTI's stamp may be late, so that the bounds which it gives do not limit the error
    error = np.where(bounded.stamped, placed.bar_ns, np.minimum(placed.bar_ns, room))
    return error.astype(np.int64)


def _notes_on_unseen_work(unseen: np.ndarray) -> list[str]:
    """Return a note that work has no rows in the trace, if more than half of the pairs show that.

    unseen: as `_unseen_work_ns` returns it
    """
    if 2 * np.count_nonzero(unseen) <= len(unseen):
        return []
    return [
        f"the host waited for ends of pairs until up to {duration(unseen.max())} after the last work that the trace shows: work "
        "that the GPU launches itself (kernels by kernels, graphs from the device) has no rows"
    ]


def _unseen_work_ns(trace: Trace, wait: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Return by how many ns the end of each pair may be later than its place: until the host's wait for it
    returned, if the trace shows nothing that ran in the meantime; 0 otherwise.  Kernels that kernels
    launch, for one, run without rows in the trace.

    wait: per pair, the position of the call that waited for its end
    end_ns: per pair, the place of its end
    """
    calls = trace.calls
    began = calls["start_ns"].to_numpy()[wait]
    returned = calls["end_ns"].to_numpy()[wait]
    waits = np.isin(calls["kind"].to_numpy()[wait], [CALL[kind] for kind in SYNC_CALLS])
    work_ends = np.sort(trace.operations["end_ns"].to_numpy())
    ended_before = np.searchsorted(work_ends, returned, side="right")  # how many operations
    last_work_end = np.append(0, work_ends)[ended_before]
    idle_ns = returned - np.maximum(last_work_end, end_ns)
    late = waits & (began <= end_ns) & (idle_ns > _WAKES_NS)
    return np.where(late, returned - end_ns, 0)


def read_pairs(trace: Trace, records: pd.DataFrame) -> tuple[np.ndarray, list[str]]:
    """Return the pairs of events that the program compared, as far as the trace tells: (pairs, notes).

    pairs: an int64 array (pairs, 3) in the order of their starts: the positions of start and end in `records`,
        and the position in the trace's calls of the wait for the end
    notes: how many pairs were read and on what grounds, and how many events may or may not be compared

    records: `Matched.records`
    """
    logged = set(records["process"][records["log_process"] >= 0].tolist())
    known_pairs, unclear = _known_pairs(trace, logged)
    record_of_call = {call: record for record, call in enumerate(records["call"].tolist())}
    known_pairs.sort(key=lambda pair: (pair.start.Index, pair.end.Index))
    rows = [
        (record_of_call[pair.start.Index], record_of_call[pair.end.Index], pair.wait.Index)
        for pair in known_pairs
    ]
    notes = []
    if rows:
        notes.append(
            f"read from the trace: {plural(len(rows), 'compared pair')} of events (created together and waited "
            "for); elapsed_time itself is not in it, the length is estimated from what lies around"
        )
    notes += [
        f"{count:,} {events_in_words}: whether the program compared them is not known"
        for events_in_words, count in unclear.items()
        if count
    ]
    return np.array(rows, np.int64).reshape(-1, 3), notes


_IN_TORCH = "waits for events in a process that runs torch (nsysalign run logs what it compares)"
_NOT_NAMED = "waits for events that the trace does not name, or in another way"
_MARKS = "pairs of events recorded in a row with other work between"


def _known_pairs(trace: Trace, logged: set[int]) -> tuple[list[KnownPair], Counter[str]]:
    """Return (the pairs of which it is certain that the program compared them, how many waits or pairs are left of which
    it is not: by what they are, in words: _IN_TORCH, _NOT_NAMED or _MARKS).

    logged: the processes whose events are in a log: what torch compared there is known
    """
    known = list[KnownPair]()
    unclear = Counter[str]()
    torch_processes = _torch_processes(trace)
    for process, calls in _event_calls(trace).groupby("process"):
        event_waits = int(((calls["role"] == _WAIT) & (calls["event"] >= 0)).sum())
        if process in torch_processes:
            unclear[_IN_TORCH] += 0 if process in logged else event_waits
            continue
        events = _events_of_process(calls.itertuples(name="EventCall"))
        if not events or ((calls["role"] == _RECORD) & (calls["event"] < 0)).any():
            unclear[_NOT_NAMED] += event_waits
        if events:
            pairs, marks = events.pairs()
            known += pairs
            unclear[_MARKS] += marks
    return known, unclear


def _torch_processes(trace: Trace) -> set[int]:
    """Return the processes (globalPid) that run torch, as the names of their kernels and calls show."""
    processes = set[int]()
    for table, text in _OF_TORCH.items():
        rows = getattr(trace, table)
        name_ids = [name_id for name_id, name in trace.names.items() if text in (name or "")]
        processes |= {*rows["process"][rows["name_id"].isin(name_ids)].tolist()}
    return processes


def _event_calls(trace: Trace) -> pd.DataFrame:
    """Return the outermost calls that concern events, in the order of time; waits and queries only if they
    succeeded.  The index is the position of the call in the trace's calls.  Columns are those of _OF_CALL and:

    role     what the call does to events (_CREATE to _ORDER; a call that does _NOTHING is left out)
    event    the number of the event that it records or waits for, -1 if it is not known
    stream   a number for its stream, -1 if it is not known
    rank     how many outermost calls its thread made before it

    Columns have the smallest integer types possible, because there may be millions of rows.
    """
    role = _roles(trace)
    rows = np.flatnonzero(role != _NOTHING)
    columns = {name: trace.calls[name].to_numpy()[rows] for name in _OF_CALL}
    columns |= {"role": role[rows], "rank": _ranks(trace)[rows]}
    rows_on_calls = _rows_on_outermost_calls(trace)
    rows_on_calls = rows_on_calls[np.isin(rows_on_calls["call"], rows)]
    # a call that has both rows: that of the record itself (an event row) counts, which comes last
    rows_on_calls = rows_on_calls.drop_duplicates("call", keep="last")
    position = np.searchsorted(rows, rows_on_calls["call"])  # of the row's call among `rows`
    for name in ("event", "stream"):
        numbers = np.full(len(rows), -1, np.int64)
        numbers[position] = rows_on_calls[name]
        columns[name] = frames.narrow(numbers)
    return pd.DataFrame(columns, index=rows, copy=False)


def _rows_on_outermost_calls(trace: Trace) -> pd.DataFrame:
    """Return what CUPTI's rows say of the events and streams of calls: columns call, event and stream (a number for it).
    What a row says of a nested call counts for the outermost call around it."""
    columns = ["call", "event", *_STREAM]
    rows = pd.concat([trace.syncs[columns], trace.event_rows[columns]])
    rows = rows[rows["call"] >= 0]
    # `nested`: how many rows before it the outermost call around a call stands
    rows["call"] -= trace.calls["nested"].to_numpy()[rows["call"]]
    rows["stream"] = rows.groupby(_STREAM).ngroup()
    return rows


def _roles(trace: Trace) -> np.ndarray:
    """Return, for each call of the trace, its role: what it does to events.  The role is _NOTHING if it does
    nothing to them, lies inside another call, or is a wait that failed."""
    calls = trace.calls
    name_id = calls["name_id"].to_numpy()
    role_of_kind = np.array([_BY_KIND.get(kind, _NOTHING) for kind in CALL_KINDS], np.int8)
    role = role_of_kind[calls["kind"].to_numpy()]
    for number in distinct(name_id).tolist():
        name = trace.names.get(number, "")
        roles_by_name = [named_role for text, named_role in _BY_NAME.items() if text in name]
        if roles_by_name:
            role[name_id == number] = roles_by_name[0]
        elif "cudaMemcpy" in name and "Async" not in name:
            role[name_id == number] = _WAIT_ALL
    failed = calls["return_value"].to_numpy() != 0
    role[failed & np.isin(role, (_WAIT, _WAIT_ALL))] = _NOTHING
    role[~trace.outermost] = _NOTHING
    return role


def _ranks(trace: Trace) -> np.ndarray:
    """Return, for each call, how many outermost calls its thread made before it; 0 for a nested call."""
    outer: np.ndarray = np.flatnonzero(trace.outermost).astype(index_type(len(trace.calls)))
    rank = np.zeros(len(trace.calls), outer.dtype)
    for calls in group(trace.calls["thread"].to_numpy()[outer], outer).values():
        rank[calls] = np.arange(len(calls))
    return rank


@dataclass
class _NumberedEvents:
    """What the rows of a trace say about the events of one process.

    runs         numbers of events that were created one right after the other
    records      number of an event -> its records, in the order of time
    waits        what is waited for -> the waits, in the order of time, of which only the first after each
                 record is kept.  The key is ("event", number), ("stream", number) or ("all", 0)
    ordering     numbers of the events for which a stream waits
    recorded_ns  when the latest record so far began, -1 before the first
    """

    runs: list[list[int]] = field(default_factory=list)
    records: dict[int, list[EventCall]] = field(default_factory=lambda: defaultdict(list))
    waits: dict[tuple[str, int], list[EventCall]] = field(default_factory=lambda: defaultdict(list))
    ordering: set[int] = field(default_factory=set)
    recorded_ns: int = -1

    def add_record(self, event: int, call: EventCall) -> None:
        """Add a record of an event.  Calls must be added in the order of their starts."""
        self.records[event].append(call)
        self.recorded_ns = call.start_ns

    def add_wait(self, key: tuple[str, int], call: EventCall) -> None:
        """Add a wait, unless there was one with this key since the latest record: a pair needs only the first
        wait after its end, and a program that polls may wait a million times for one record.  Calls must
        be added in the order of their starts."""
        waits = self.waits[key]
        if not waits or waits[-1].start_ns <= self.recorded_ns:
            waits.append(call)

    def pairs(self) -> tuple[list[KnownPair], int]:
        """Return all pairs of the process, and how many pairs of events were left out because they may be
        marks: events recorded in a row, of which the program may have compared any two."""
        known = list[KnownPair]()
        marks = 0
        # if no run begins with a pair, its first event may be a lone one
        without_first = [run[1:] for run in self.runs]
        for runs in (self.runs, without_first):
            for run in runs:
                pairs, may_be_marks = self._pairs_of_run(run)
                if may_be_marks:
                    marks += len(pairs)
                else:
                    known += [pair for repetitions_of_pair in pairs for pair in repetitions_of_pair]
            if known or marks:
                break
        return known, marks

    def _pairs_of_run(self, run: list[int]) -> tuple[list[list[KnownPair]], bool]:
        """Decide which events of a run are a start and which its end.  Returns the pairs, for each two events all
        their repetitions; and whether these may be marks: events recorded in a row, of which the program may have
        compared any two.

        run: numbers of events that were created one right after the other

        The events of a run are either s, e, s, e, ... or s, s, ..., e, e, ...  That order is taken which
        makes more pairs; if that is equal, more pairs on a single stream; then, fewer records between start
        and end.  Only pairs of the first order may be marks: of marks, which are recorded in the order of their
        creation, that order has fewer records within its pairs.
        """
        half = len(run) // 2
        alternating = self._pairs_of(run[0::2], run[1::2])
        in_halves = self._pairs_of(run[:half], run[half : 2 * half])
        record_times = sorted(call.start_ns for number in run for call in self.records[number])

        def records_within(pair: KnownPair) -> int:
            """Return how many other records of the run lie between the two of a pair."""
            before_end = bisect_right(record_times, pair.end.start_ns - 1)
            return before_end - bisect_right(record_times, pair.start.start_ns)

        def plausibility(pairs: list[list[KnownPair]]) -> tuple[int, int, int]:
            """Return what decides between the two orders, the more important number first."""
            # all repetitions of a pair are made by the same code: the first one tells its streams
            firsts = [repetitions[0] for repetitions in pairs]
            on_one_stream = sum(pair.start.stream == pair.end.stream for pair in firsts)
            records_between = sum(
                records_within(pair)
                for repetitions in pairs
                for pair in repetitions[:_ENOUGH_REPETITIONS]
            )
            return len(pairs), on_one_stream, -records_between

        if plausibility(in_halves) > plausibility(alternating):
            return in_halves, False
        return alternating, _are_marks(alternating)

    def _pairs_of(self, starts: list[int], ends: list[int]) -> list[list[KnownPair]]:
        """Return the repetitions of each start event with the end event of the same place in its list; two events that
        are not a pair are left out.

        starts, ends: numbers of events
        """
        pairs = map(self.pair, starts, ends)
        return [repetitions for repetitions in pairs if repetitions]

    def pair(self, start: int, end: int) -> list[KnownPair]:
        """Return every repetition of a pair of events for which the host waited before the next repetition
        began; [] if the two events are not a pair.

        start, end: numbers of the two events

        They are a pair if their records alternate, start first, and begin on the same thread, and if no
        stream waits for either event, nor the host for the start: it asks what is done, as Open MPI does after each
        of its copies.

        [record s] work [record e] [wait for e]   [record s] work [record e]      one repetition: the host did
                                                                                  not wait for the second end
        """
        starts = self.records[start]
        ends = self.records[end]
        if not starts or len(starts) != len(ends):
            return []
        if start in self.ordering or end in self.ordering:
            return []
        if starts[0].thread != ends[0].thread:
            return []
        alternating = [call for pair in zip(starts, ends, strict=True) for call in pair]
        if any(call.start_ns >= following.start_ns for call, following in pairwise(alternating)):
            return []
        for_start = [self._first_wait(("event", start), call.start_ns) for call in starts]
        if any(
            wait and wait.start_ns < call.start_ns
            for wait, call in zip(for_start, ends, strict=True)
        ):
            return []
        next_starts_ns = [call.start_ns for call in starts[1:]] + [float("inf")]
        known = []
        for start_call, end_call, next_start_ns in zip(starts, ends, next_starts_ns, strict=True):
            keys = (("event", end), ("stream", end_call.stream), ("all", 0))
            first_waits = [self._first_wait(key, end_call.start_ns) for key in keys]
            waits = [wait for wait in first_waits if wait and wait.end_ns < next_start_ns]
            if waits:
                earliest = min(waits, key=lambda wait: wait.end_ns)
                known.append(KnownPair(start_call, end_call, earliest))
        return known

    def _first_wait(self, key: tuple[str, int], after_ns: int) -> EventCall | None:
        """Return the first wait with this key that began after a time (ns), None if there is none."""
        waits = self.waits[key]
        position = bisect_right(waits, after_ns, key=lambda wait: wait.start_ns)
        return waits[position] if position < len(waits) else None


def _events_of_process(calls: Iterable[EventCall]) -> _NumberedEvents | None:
    """Return what the calls of one process say about its events: which were created one right after the other, and their
    records and waits.

    calls: rows of `_event_calls`, in the order of time

    A trace names an event by a number, but not which creation made it: event n is taken for the n-th event that the
    process created (the first is event 1).  None if the calls contradict that: if a number is larger than the number of
    creations so far, or if an event is recorded that must have been destroyed before.
    """
    events = _NumberedEvents()
    last_creation = None
    created = 0
    destroyed = 0
    last_gone = 0  # all events up to this number were destroyed
    for call in calls:
        event = call.event  # -1: the call names none
        role = call.role
        if role == _CREATE:
            created += 1
            if last_creation and _follows(call, last_creation):
                events.runs[-1].append(created)
            else:
                events.runs.append([created])
            last_creation = call
        elif role == _DESTROY:
            destroyed += 1
            # a call does not name the event that it destroys: which are gone is certain only when all are
            if destroyed >= created:
                last_gone = created
        elif event > created or (role == _RECORD and 0 <= event <= last_gone):
            return None
        elif role == _ORDER:
            events.ordering.add(event)
        elif role == _RECORD:
            events.add_record(event, call)
        elif role == _WAIT_ALL:
            events.add_wait(("all", 0), call)
        elif event >= 0:  # what is left are waits for an event
            events.add_wait(("event", event), call)
        else:  # or for a stream
            events.add_wait(("stream", call.stream), call)
    return events


def _follows(call: EventCall, previous: EventCall) -> bool:
    """Return whether a call is the next call of the same thread after another one, by the same name."""
    same_thread = call.thread == previous.thread
    same_name = call.name_id == previous.name_id
    return same_thread and same_name and call.rank == previous.rank + 1


def _are_marks(pairs: Sequence[Sequence[KnownPair]]) -> bool:
    """Return whether pairs of events may be marks, of which any two may have been compared: the events
    s, e, s, e, ... were each recorded once, in this order, with other calls between every end and the next
    start, and without a wait before the next start.

    pairs: for each pair of events, its repetitions
    """
    return len(pairs) > 1 and all(
        len(pair) == len(next_pair) == 1
        and pair[0].end.start_ns < next_pair[0].start.start_ns < pair[0].wait.start_ns
        and next_pair[0].start.rank - pair[0].end.rank > 1
        for pair, next_pair in pairwise(pairs)
    )
