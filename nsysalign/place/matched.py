"""Stage 1, matched: which process, call and wait of the trace is which line of the log.

log          what nsysalign's probe wrote in the program: lines about records, waits and comparisons
record       one call of `event.record()`; in the trace a record call, in the log a line
wait         a call that makes a stream wait for an event (`cudaStreamWaitEvent`)
event row    what CUPTI wrote about a record: its event, stream and time stamp
log process  the number of a process in the log; in the trace a process has a globalPid
pair         two records that the program compared by `elapsed_time`

A Python call of `record` contains exactly one record call of its thread.  So records are matched per
thread and in order, by which call lies inside which in time.  The n-th call need not be the n-th record,
because the trace also has record calls that no Python code made (the pinned-memory allocator, NCCL, DDP).

This stage finds where the clock of each process lies on the trace's clock, which call each record of the
log made, which other record calls there are, what event rows say about them, and which records the
program compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.errors import EventLogError
from nsysalign.intervals import FAR, distinct, group, pick, positions
from nsysalign.model import (
    CALL,
    EventLog,
    Trace,
    pid_of,
    process_of,
    thread_of,
    tid_of,
)
from nsysalign.place.clocks import ONE_CLOCK, ClockMap, Times, clock_map, refine
from nsysalign.text import duration

#: A map this accurate needs no refinement on the record calls.
_SHARP_NS = 2_000
#: A map by which fewer records than this share contain a call is wrong.
_FEW_HITS = 0.9
#: A length in ms beyond this is none; within it, nanoseconds fit into 64 bits.
_LONGEST_MS = 1e12
#: How far a map by the first calls alone may be off: as far as `refine` searches.
_BY_FIRST_CALLS_NS = 20_000_000
#: By how much the host's clock may have been set between the trace's start and the log's.
_CLOCK_SET_NS = 10_000_000_000
#: A wait whose event nothing names is for one of so many records of its thread before it.
_LOOK_BACK = 16


@dataclass(frozen=True)
class Matched:
    """The log's lines found in the trace.

    processes  log process -> globalPid
    clocks     log process -> its clock
    records    first the records of the log, then the record calls of the trace that are not in the log.
               From the log: log_process, seq, tid, device, stream_handle, stream_id, captured, region,
               site.  From the trace: process, thread, call (-1: not found), call_start_ns, call_end_ns,
               event, event_sync, timestamp_ns, event_row (position in trace.event_rows, -1: none).
               problem: why the record has no place, "" if it may have one
    waits      a row per wait: call, sync (position in trace.syncs), process, event, event_sync, stream_id,
               log_process, seq.  The next stage adds record (position in `records`, -1: unknown), and
               inferred (whether that is an inference)
    pairs      the comparisons of the log: start and end are positions in `records`; elapsed_ns
    compared_ns  per record, when the first elapsed_time on it had returned (FAR: unknown)
    unaligned  the comparisons that cannot be a pair, with the reason (-1: the log does not have the record)
    """

    processes: Mapping[int, int]
    clocks: Mapping[int, ClockMap]
    records: pd.DataFrame
    waits: pd.DataFrame
    pairs: pd.DataFrame
    compared_ns: np.ndarray
    unaligned: pd.DataFrame
    notes: list[str]


def positions_by_number(
    process: np.ndarray, number: np.ndarray, processes: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """Return, for each pair of `process` and `number`, its first position among the pairs of `processes` and
    `numbers`; -1 if it is not among them."""
    position = np.full(len(process), -1)
    rows_of_process = group(processes, np.arange(len(processes)))
    for owner, asked in group(process, np.arange(len(process))).items():
        rows = rows_of_process.get(owner, np.empty(0, np.int64))
        place = positions(number[asked], numbers[rows])
        position[asked] = pick(rows, place, -1)
    return position


def match(trace: Trace, log: EventLog) -> Matched:
    """Return the log's lines with what the trace has of each.  Raises EventLogError if the log belongs to
    another run."""
    processes, notes = match_processes(trace, log)
    of_log = match_records(trace, log, processes)
    clocks = of_log.clocks
    records = _all_records(trace, log, processes, of_log.call, of_log.thread)
    pairs, unaligned = logged_pairs(log, records)
    waits = match_waits(trace, log, processes, clocks)
    # when the first successful elapsed_time on each record had returned
    compared = np.full(len(records), FAR)
    for number, rows in pairs[pairs["t1_ns"] >= 0].groupby("process"):
        if clock := clocks.get(int(number)):
            returned = clock.to_trace(rows["t1_ns"].to_numpy()) + clock.width_ns
            for column in ("start", "end"):
                np.minimum.at(compared, rows[column].to_numpy(), returned)
    return Matched(
        processes=processes,
        clocks=clocks,
        records=records,
        waits=waits,
        pairs=pairs,
        compared_ns=compared,
        unaligned=unaligned,
        notes=notes + of_log.notes,
    )


def match_processes(trace: Trace, log: EventLog) -> tuple[dict[int, int], list[str]]:
    """Return which process of the trace each process of the log is (log process -> globalPid), and notes.  Processes are
    matched by their pid; a log without a pid belongs to the only process of the trace.

    Notes say which processes of the log have no rows in the trace, and which processes of the trace recorded
    events but have no log.  Raises EventLogError if the log belongs to another run (`other_runs`).
    """
    columns = (trace.calls["process"], trace.operations["process"])
    processes = np.unique(np.concatenate([distinct(column.to_numpy()) for column in columns]))
    # the lower bits of a pid -> globalPid, which holds only these of it
    process_of_pid = {int(pid_of(process)): process for process in processes.tolist()}
    timed = pd.concat([table[["process", "tid", "t0_ns"]] for table in (log.records, log.hosts)])
    strangers = other_runs(trace, log, timed)
    matched = dict[int, int]()
    notes = list[str]()
    for number, header in enumerate(log.headers):
        pid = header.get("pid")
        if number in strangers:
            notes.append(strangers[number])
        elif isinstance(pid, int) and _pid_bits(pid) in process_of_pid:
            matched[number] = process_of_pid[_pid_bits(pid)]
        elif pid is None and len(process_of_pid) == 1:
            matched[number] = next(iter(process_of_pid.values()))
        elif (timed["process"] == number).any():
            pids = ", ".join(str(known_pid) for known_pid in sorted(process_of_pid)) or "none"
            name = pid if pid is not None else f"#{number}"
            notes.append(
                f"process {name} of the event log has no CUDA rows in the trace (it has: {pids})"
            )
    if log.headers:  # without any log there is nothing to miss
        notes += _notes_on_missing_logs(trace, set(matched.values()))
    return matched, notes


def _pid_bits(pid: int) -> int:
    """Return the bits of a pid that a globalPid holds: as many as a globalTid holds of a tid."""
    return tid_of(pid)


def _notes_on_missing_logs(trace: Trace, with_log: set[int]) -> list[str]:
    """Return a note for each process that recorded CUDA events but has no event log.

    with_log: the processes (globalPid) that have one
    """
    is_record = trace.calls["kind"].to_numpy() == CALL["record"]
    threads = distinct(trace.calls["thread"].to_numpy()[is_record])
    recording = {process_of(int(thread)) for thread in threads}
    return [
        f"process {pid_of(process)} recorded CUDA events but has no event log: started without the probe "
        "(python -I, -E or -S, a cleaned environment, or not Python)"
        for process in sorted(recording - with_log)
    ]


def other_runs(trace: Trace, log: EventLog, timed: pd.DataFrame) -> dict[int, str]:
    """Return log process -> a message, for the processes that belong to another run: by the wall clock all
    their records lie outside the trace, by more than _CLOCK_SET_NS.  (A pid proves nothing, because pids
    repeat.)  Raises EventLogError if all processes of the log belong to another run.

    timed: what the log timed, with columns process, tid and t0_ns
    """
    session_start = trace.info.session_start_utc_ns
    calls = trace.calls
    # without a wall clock of the trace, or without calls whose times are known, nothing can be compared
    if session_start is None or calls.empty or int(calls["end_ns"].max()) <= 0:
        return {}
    # the first reading of both clocks by each process
    clocks = log.clocks[log.clocks["realtime_ns"] > 0].drop_duplicates("process")
    clocks = clocks.sort_values("process")
    wall_minus_monotonic = (clocks["realtime_ns"] - clocks["monotonic_ns"]).to_numpy()
    strangers = {}
    compared = 0
    for number, offset in zip(clocks["process"].tolist(), wall_minus_monotonic, strict=True):
        of_process = timed.loc[timed["process"] == number, "t0_ns"]
        if of_process.empty:
            continue
        compared += 1
        on_trace = of_process + (offset - session_start)  # trace time, by the wall clock
        before_ns = int(calls["start_ns"].min() - on_trace.max())
        after_ns = int(on_trace.min() - calls["end_ns"].max())
        if max(before_ns, after_ns) > _CLOCK_SET_NS:
            strangers[number] = _message_on_other_run(
                log.headers[number].get("pid"), before_ns, after_ns
            )
    # every process of the log was compared and is a stranger
    if strangers and len(strangers) == compared == len(log.headers):
        hint = "use the events-PID.jsonl of the run that made this trace"
        raise EventLogError(next(iter(strangers.values())), hint)
    return strangers


def _message_on_other_run(pid: object, before_ns: int, after_ns: int) -> str:
    """Return the message that the log of a process belongs to another run.

    pid: the process by its log's header
    before_ns, after_ns: how long before the trace's beginning its last record lies, and how long after the trace's end
        its first record; one of the two is negative
    """
    process = f" of process {pid}" if isinstance(pid, int) else ""
    when = "after the trace ends" if after_ns > before_ns else "before the trace begins"
    apart = duration(max(before_ns, after_ns))
    return f"the event log{process} belongs to another run: its records lie {apart} {when}"


@dataclass(frozen=True)
class _Thread:
    """A thread of one process of the log."""

    records: np.ndarray  # its records in the order of time, as positions in the log
    calls: np.ndarray  # the record calls that it may have made, as positions in the trace's calls
    times: Times  # the times of both


class _MatchedRecords(NamedTuple):
    """The records of the log in the trace."""

    call: np.ndarray  # per record of the log, the position of its call in the trace; -1: not found
    thread: np.ndarray  # per record of the log, its globalTid; -1: not known
    clocks: dict[int, ClockMap]  # log process -> its clock
    notes: list[str]


def match_records(trace: Trace, log: EventLog, processes: Mapping[int, int]) -> _MatchedRecords:
    """Find the call in the trace of each record of the log (a Python call of `event.record()`), and the clock of each
    process.  In a process without a clock nothing is found.

    processes: log process -> globalPid

    With the clock of its process, each record of the log gets the record call of its thread that lies inside
    it in time.

    log      t0 [ event.record() ] t1        (on the clock of the process)
    trace          [ record call ]           the call of this record
    """
    call = np.full(len(log.records), -1, dtype=np.int64)
    thread = np.full(len(log.records), -1, dtype=np.int64)
    tid = log.records["tid"].to_numpy(np.int64)
    clocks: dict[int, ClockMap] = {}
    notes: list[str] = []
    for number, process in processes.items():
        logged = np.flatnonzero(log.records["process"] == number)
        threads = _threads(trace, log, logged, process)
        clock = _clock_of(trace, log, number)
        if clock is None:  # line up the first record calls and refine that
            clock = _clock_by_first_calls(threads)
            if clock is None:
                continue
            notes.append(
                "no clock line of the event log fits the trace, so the clocks were aligned on the record "
                "calls alone"
            )
        clock, calls_of_threads = _refined_if_inaccurate(clock, threads)
        clocks[number] = clock
        for recorder, call_of_record in zip(threads, calls_of_threads, strict=True):
            rows = recorder.records
            call[rows] = call_of_record
            by_tid = thread_of(process, tid[rows])
            by_call = pick(trace.calls["thread"].to_numpy(), call_of_record, -1)
            thread[rows] = np.where(tid[rows] >= 0, by_tid, by_call)
    return _MatchedRecords(call, thread, clocks, notes)


def _refined_if_inaccurate(
    clock: ClockMap, threads: Sequence[_Thread]
) -> tuple[ClockMap, list[np.ndarray]]:
    """Return (the clock of a process, for each thread the calls of its records: positions in the trace, -1 for none).

    The clock is refined on the record calls if it is not accurate, or if less than nine in ten records contain a call.
    """
    calls = _calls_inside(clock, threads)
    hits = sum(np.count_nonzero(calls_of_records >= 0) for calls_of_records in calls)
    records = sum(len(recorder.records) for recorder in threads)
    if clock.width_ns > _SHARP_NS or hits < _FEW_HITS * records:
        clock = refine(clock, [recorder.times for recorder in threads])
        calls = _calls_inside(clock, threads)
    return clock, calls


def _calls_inside(clock: ClockMap, threads: Sequence[_Thread]) -> list[np.ndarray]:
    """Return, for each thread, the call of each of its records: the position in the trace of the thread's record call
    that lies inside the record in time; -1 for none."""
    return [pick(thread.calls, clock.contained(*thread.times), -1) for thread in threads]


def _threads(trace: Trace, log: EventLog, logged: np.ndarray, process: int) -> list[_Thread]:
    """Return the threads of one process that recorded events, by the log.

    logged: the records of the process, as positions in the log
    process: its globalPid
    """
    calls = trace.calls
    is_record = calls["kind"].to_numpy() == CALL["record"]
    record_calls = np.flatnonzero(is_record & trace.outermost)
    caller = calls["thread"].to_numpy()[record_calls]
    begin = log.records["t0_ns"].to_numpy(np.int64)
    end = log.records["t1_ns"].to_numpy(np.int64)
    tid_of_record = log.records["tid"].to_numpy(np.int64)[logged]
    threads = []
    for tid in np.unique(tid_of_record).tolist():
        records = logged[tid_of_record == tid]
        records = records[np.argsort(begin[records], kind="stable")]
        calls_of_thread = record_calls[positions_on_thread(caller, process, tid)]
        times = Times(
            python_start=begin[records],
            python_end=end[records],
            record_start=calls["start_ns"].to_numpy()[calls_of_thread],
            record_end=calls["end_ns"].to_numpy()[calls_of_thread],
        )
        threads.append(_Thread(records, calls_of_thread, times))
    return threads


def _clock_of(trace: Trace, log: EventLog, number: int) -> ClockMap | None:
    """Return the clock of one process of the log, None if neither log nor trace tells it."""
    if trace.info.monotonic:
        return ONE_CLOCK
    clocks = log.clocks[log.clocks["process"] == number]
    marks = log.marked[log.marked["process"] == number].merge(trace.marks, on="payload")
    return clock_map(clocks, marks, trace.info.session_start_utc_ns)


def _clock_by_first_calls(threads: Sequence[_Thread]) -> ClockMap | None:
    """Return a rough clock that puts the first record of some thread at the thread's first record call; None
    if no thread has both."""
    for recorder in threads:
        if len(recorder.records) and len(recorder.calls):
            at_ns = recorder.times.python_start[:1]
            offset_ns = recorder.times.record_start[:1] - at_ns
            return ClockMap(at_ns, offset_ns, _BY_FIRST_CALLS_NS)
    return None


def positions_on_thread(thread: np.ndarray, process: int, tid: int) -> np.ndarray:
    """Return the positions in `thread` at which it is one certain thread.

    thread: globalTids
    process, tid: the thread by its globalPid and tid.  With tid -1 (the log does not name the thread) it is
        the only thread of the process; if the process has several, there are no positions
    """
    if tid >= 0:
        return np.flatnonzero(thread == thread_of(process, tid))
    rows = np.flatnonzero(process_of(thread) == process)
    return rows[:0] if len(distinct(thread[rows])) > 1 else rows


def _all_records(
    trace: Trace,
    log: EventLog,
    processes: Mapping[int, int],
    call: np.ndarray,
    thread: np.ndarray,
) -> pd.DataFrame:
    """Return `Matched.records`: a row for each record of the log, then one for each record call of the trace
    that is not in the log.

    processes: log process -> globalPid
    call, thread: per record of the log, the position of its call (-1: not found) and its thread (globalTid)

    row        0 .. n-1 of the log                 n .. of the trace alone
    columns    seq, site, ... from the log         seq -1, site "", ...
               call, event, ... from the trace, where the record's call was found
    """
    calls = trace.calls
    is_record = (calls["kind"].to_numpy() == CALL["record"]) & trace.outermost
    only_in_trace = np.setdiff1d(np.flatnonzero(is_record), call)  # positions of calls
    process_of_logged = np.full(len(call), -1)
    for number, process in processes.items():
        process_of_logged[log.records["process"].to_numpy() == number] = process
    process_of_others = calls["process"].to_numpy()[only_in_trace]
    thread_of_others = calls["thread"].to_numpy()[only_in_trace]
    columns = _columns_of_log(log, len(only_in_trace)) | {
        "process": np.concatenate([process_of_logged, process_of_others]),
        "thread": np.concatenate([thread, thread_of_others]),
        "call": np.concatenate([call, only_in_trace]),
    }
    columns |= {"problem": _problems(log, columns)} | _columns_of_trace(trace, columns["call"])
    # there may be millions: numbers take the fewest bytes that hold them
    lean = {
        name: column if column.dtype == object else frames.narrow(column, name)
        for name, column in columns.items()
    }
    return pd.DataFrame(lean, index=range(len(columns["call"])), copy=False)


def _columns_of_trace(trace: Trace, call: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the trace says of each record, as columns by name: its event row, and what that says; and the times
    (ns) of its call.  -1, and 0 for times, where nothing is said.

    call: per record, the position of its call, -1 for none
    """
    calls, event_rows = trace.calls, trace.event_rows
    event_row = positions(call, event_rows["call"].to_numpy())
    event_row = np.where(call >= 0, event_row, -1)
    columns = {"event_row": event_row}
    for name, absent in (("event", -1), ("event_sync", -1), ("timestamp_ns", 0)):
        columns[name] = pick(event_rows[name].to_numpy(), event_row, absent)
    for name in ("start_ns", "end_ns"):
        columns[f"call_{name}"] = pick(calls[name].to_numpy(), call, 0)
    return columns


def _columns_of_log(log: EventLog, padding: int) -> dict[str, np.ndarray]:
    """Return what the log says of each of its records, as columns of `Matched.records` by name, which go on for `padding`
    further records of which it says nothing: with -1, False or ""."""
    logged = log.records.rename(columns={"process": "log_process"})
    columns: dict[str, np.ndarray] = {}
    for name in ("log_process", "seq", "tid", "device", "stream_handle", "stream_id"):
        columns[name] = np.concatenate([logged[name].to_numpy(), np.full(padding, -1)])
    columns["captured"] = np.concatenate([logged["captured"].to_numpy(), np.zeros(padding, bool)])
    for name in ("region", "site"):
        nameless = np.full(padding, "", dtype=object)
        columns[name] = np.concatenate([logged[name].to_numpy(dtype=object), nameless])
    return columns


def _problems(log: EventLog, records: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return, for each record, why it has no place: a text, "" if it may have one.  Of several reasons the last one
    stays: that its process was killed explains why its call is not in the trace.

    records: columns of `Matched.records` by name: captured, process, call, log_process and tid
    """
    captured = records["captured"]
    without_process = (records["process"] < 0) & ~captured
    without_call = (records["call"] < 0) & ~captured & ~without_process
    number = records["log_process"]
    problem = np.where(captured, "captured into a CUDA graph", "").astype(object)
    problem[without_call] = (
        "its record call is not in the trace (rows dropped, or recorded outside the profiled time)"
    )
    problem[without_call & (records["tid"] < 0)] = (
        "its record call is not in the trace, or the record names no thread (tid) and several recorded"
    )
    for process, header in enumerate(log.headers):
        pid = header.get("pid")
        problem[without_process & (number == process)] = (
            f"process {pid} has no CUDA rows in the trace"
        )
        if header.get("ended") == "killed":
            problem[without_call & (number == process)] = (
                f"process {pid} was killed, crashed or executed another program "
                "before its rows were written"
            )
    return problem


def match_waits(
    trace: Trace, log: EventLog, processes: Mapping[int, int], clocks: Mapping[int, ClockMap]
) -> pd.DataFrame:
    """Return a row per wait-event call of the trace (outermost calls only), with what the trace and the log say
    about it: int64 columns, -1 where something is not known.

    call         the position of the call in the trace's calls
    sync         the position of its row in trace.syncs
    process      its process (globalPid)
    event        the event that it waits for, as that row has it: an event is recorded again and again
    event_sync   the record of the event that it waits for, as that row has it
    stream_id    the stream that waits, as the log has it
    log_process, seq   the record that it waits for, as the log has it: its process there and its number

    processes: log process -> globalPid
    clocks: log process -> its clock
    """
    calls, syncs = trace.calls, trace.syncs
    is_wait = calls["kind"].to_numpy() == CALL["wait_event"]
    call = np.flatnonzero(is_wait & trace.outermost)
    sync = positions(call, syncs["call"].to_numpy())
    columns = {
        "call": call,
        "sync": sync,
        "process": calls["process"].to_numpy()[call],
        "event": pick(syncs["event"].to_numpy(), sync, -1),
        "event_sync": pick(syncs["event_sync"].to_numpy(), sync, -1),
    }
    columns |= _waits_of_log(trace, log, call, processes, clocks)
    return pd.DataFrame(columns, dtype="int64")


def _waits_of_log(
    trace: Trace,
    log: EventLog,
    call: np.ndarray,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
) -> dict[str, np.ndarray]:
    """Return what the log says about each wait-event call: the columns stream_id, log_process and seq of
    `match_waits`, -1 for a call that is in no log.

    call: the positions of the calls in the trace
    processes, clocks: as in `match_waits`

    A call belongs to the log's wait of the same thread inside which it lies in time.
    """
    thread = trace.calls["thread"].to_numpy()[call]
    call_start = trace.calls["start_ns"].to_numpy()[call]
    call_end = trace.calls["end_ns"].to_numpy()[call]
    stream_id = np.full(len(call), -1)
    log_process = np.full(len(call), -1)
    seq = np.full(len(call), -1)
    logged = log.waits[log.waits["process"].isin([*clocks])].sort_values("t0_ns")
    for (number, tid), waits in logged.groupby(["process", "tid"]):
        on_thread = positions_on_thread(thread, processes[int(number)], int(tid))
        inside = clocks[int(number)].contained(
            waits["t0_ns"].to_numpy(),
            waits["t1_ns"].to_numpy(),
            call_start[on_thread],
            call_end[on_thread],
        )
        with_call = waits[inside >= 0]
        row = on_thread[inside[inside >= 0]]  # the position in `call` of each of these
        stream_id[row] = with_call["stream_id"]
        seq[row] = with_call["record"]
        log_process[row] = number
    return {"stream_id": stream_id, "log_process": log_process, "seq": seq}


def awaited_records(
    trace: Trace, waits: pd.DataFrame, records: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Return for which record of an event each wait of a stream (cudaStreamWaitEvent) waits: (record, inferred).
    `record`: per wait, the position in `records` of that record, -1 if it is unknown; `inferred`: bool, per wait,
    whether that is an inference.

    waits, records: as in `Matched`, with the column lane

    The trace's eventSyncId tells the record, or else the log does.  Where neither does, it is inferred: it is
    the latest record of the same event before the wait (DDP's reducer records many events and then waits
    for each), or else the latest record of the same thread that the wait can be for.
    """
    if waits.empty:
        return np.empty(0, np.int64), np.empty(0, bool)
    record = _named_records(waits, records)
    unnamed = record < 0
    record = np.where(unnamed, _latest_of_event(trace, waits, records), record)
    # those still without a record: by the records of the same thread
    calls = waits["call"].to_numpy()
    thread = trace.calls["thread"].to_numpy()[calls]
    call_start = trace.calls["start_ns"].to_numpy()[calls]
    for number, rows in group(thread, np.arange(len(waits))).items():
        without_record = rows[record[rows] < 0]
        of_thread = np.flatnonzero((records["thread"] == number) & (records["call"] >= 0))
        latest = _latest_possible_record(
            waits.iloc[without_record], call_start[without_record], records.iloc[of_thread]
        )
        record[without_record] = pick(of_thread, latest, -1)
    return record, unnamed & (record >= 0)


def _latest_of_event(trace: Trace, waits: pd.DataFrame, records: pd.DataFrame) -> np.ndarray:
    """Return, for each wait, the position of the latest record of its event before it; -1 if there is none, or if
    the event is not known."""
    call_start = trace.calls["start_ns"].to_numpy()[waits["call"].to_numpy()]
    asked = waits[["process", "event"]].assign(wait=np.arange(len(waits)), time=call_start)
    asked = asked[asked["event"] >= 0].astype("int64").sort_values("time")
    record = np.full(len(waits), -1)
    if asked.empty:
        return record
    made = records[["process", "event"]].assign(
        record=np.arange(len(records)), time=records["call_start_ns"]
    )
    made = made[(records["call"] >= 0) & (made["event"] >= 0)].astype("int64").sort_values("time")
    latest = pd.merge_asof(asked, made, on="time", by=["process", "event"])
    latest = latest.dropna(subset="record")
    record[latest["wait"].to_numpy()] = latest["record"].to_numpy().astype(np.int64)
    return record


def _named_records(waits: pd.DataFrame, records: pd.DataFrame) -> np.ndarray:
    """Return, for each wait, the position of the record that it waits for: by eventSyncId, or else by the log;
    -1 if neither tells it."""
    record = np.full(len(waits), -1)
    for process, number, usable in (
        ("process", "event_sync", records["call"] >= 0),
        ("log_process", "seq", records["log_process"] >= 0),
    ):
        rows = np.flatnonzero(usable & (records[number] >= 0))
        position = positions_by_number(
            waits[process].to_numpy(),
            waits[number].to_numpy(),
            records[process].to_numpy()[rows],
            records[number].to_numpy()[rows],
        )
        record = np.where(record < 0, pick(rows, position, -1), record)
    return record


def _latest_possible_record(
    waits: pd.DataFrame, call_start: np.ndarray, records: pd.DataFrame
) -> np.ndarray:
    """Return, for each wait, the position in `records` of the latest record before it that it can be for; -1 if there is
    none among the last `_LOOK_BACK`.  It can be neither for a record of another event, nor for a record on the stream that
    waits: then nothing would have to wait.

    records   A (lane 1)   B (lane 2)   wait of lane 2      B lies on lane 2 itself: the wait is for A

    waits, records: the waits and records of one thread
    call_start: per wait, when its call began (ns)
    """
    order = np.argsort(records["call_start_ns"].to_numpy(), kind="stable")
    time = records["call_start_ns"].to_numpy()[order]
    event = records["event"].to_numpy()[order]
    lane = records["lane"].to_numpy()[order]
    wait_event = waits["event"].to_numpy()
    wait_lane = waits["lane"].to_numpy()

    def cannot_be(candidate: np.ndarray) -> np.ndarray:
        """Return, for each wait, whether it cannot be for a record (-1: there is none, which is no contradiction)."""
        record_event = pick(event, candidate, -1)
        record_lane = pick(lane, candidate, -1)
        is_another_event = (record_event >= 0) & (wait_event >= 0) & (record_event != wait_event)
        is_on_waiting_lane = (record_lane >= 0) & (record_lane == wait_lane)
        return is_another_event | is_on_waiting_lane

    # each wait looks at the latest record before it, and steps back from one that it cannot be for
    candidate = np.searchsorted(time, call_start, side="right") - 1  # in the order of time
    for _ in range(_LOOK_BACK - 1):
        impossible = cannot_be(candidate)
        if not impossible.any():
            break
        candidate = np.where(impossible, candidate - 1, candidate)
    candidate = np.where(cannot_be(candidate), -1, candidate)
    return pick(order, candidate, -1)


def logged_pairs(log: EventLog, records: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the comparisons by `elapsed_time` that the log has, in two tables (`pairs` and `unaligned` of `Matched`):
    those of which both records are known and elapsed_time succeeded, with the positions of their records in start and
    end, and their length elapsed_ns; and all others, with the reason why they are no pair.

    records: `Matched.records`
    """
    compared = log.elapsed
    # the records of the log come first, so that a position among them is a position in `records`
    logged_count = int((records["log_process"].to_numpy() >= 0).sum())
    logged = records.iloc[:logged_count]
    logged_process, logged_seq = logged["log_process"].to_numpy(), logged["seq"].to_numpy()
    process = compared["process"].to_numpy()
    start = positions_by_number(process, compared["start"].to_numpy(), logged_process, logged_seq)
    end = positions_by_number(process, compared["end"].to_numpy(), logged_process, logged_seq)
    # without a length elapsed_time failed: such a comparison is refused below
    elapsed_ms = np.nan_to_num(compared["ms"].to_numpy(np.float64), nan=0.0)
    elapsed_ms = np.clip(elapsed_ms, -_LONGEST_MS, _LONGEST_MS)
    elapsed_ns = np.rint(elapsed_ms * 1e6).astype(np.int64)
    pairs = compared[["process", "region", "site", "t1_ns", "calibration"]].assign(
        elapsed_ns=elapsed_ns,
        start=frames.narrow(start),
        end=frames.narrow(end),
        source=frames.narrow(np.arange(len(compared))),
    )
    # of several reasons the last one stays: what CUDA itself says about it
    reason = np.full(len(pairs), "", dtype=object)
    reason[(start < 0) | (end < 0)] = "a record of the pair was not seen by the probe"
    reason[elapsed_ns < 0] = "negative elapsed_time: the end was recorded before the start"
    error = compared["error"].to_numpy(dtype=object)
    failed = error != ""
    reason[failed] = "elapsed_time failed: " + error[failed]
    refused = reason != ""
    return frames.taken(pairs, ~refused), pairs[refused].assign(reason=reason[refused])
