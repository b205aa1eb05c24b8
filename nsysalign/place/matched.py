"""Stage 1, matched: which process, call and wait of the trace is which line of the log.

Record calls are matched per thread, by time containment, in order: the trace holds record calls
that no Python code made (the pinned-memory allocator, NCCL, DDP), so the n-th call is not the n-th
record.  A Python call of `record` contains exactly one record call of its own thread.

After it is known where each process's clock lies on the trace's, which call each record of the log
made, which other record calls there are, what event rows say of them, which record each wait waits
for, and which records the program compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
#: By how much the host's clock may have been set between the trace's start and the log's.
_CLOCK_SET_NS = 10_000_000_000
#: A wait whose event nothing names is for one of so many records of its thread before it.
_LOOK_BACK = 16


@dataclass(frozen=True)
class Matched:
    """The log's lines found in the trace.

    `processes`: log process -> globalPid; `clocks`: log process -> clock.
    `records`: those of the log, then the record calls of the trace that no line of it made:
    log_process, seq, tid, device, stream_handle, stream_id, captured, region, site (of the log), process,
    thread, call (-1: not found), call_start_ns, call_end_ns, problem (why it has no place, or ""),
    event, event_sync, timestamp_ns and event_row (position in trace.event_rows, -1: none).
    `waits`: stream waits by call: sync (position in trace.syncs), process, event, event_sync,
    stream_id, log_process, seq; once their streams are known record (position in `records`, -1
    unknown) and inferred.
    `pairs`: comparisons of the log, as positions in `records`, with elapsed_ns; `asked_ns`: per
    record, when elapsed_time on it had returned (FAR: unknown); `unaligned`: the comparisons that can
    be no pair (-1: a record that was not seen), with the reason.
    """

    processes: Mapping[int, int]
    clocks: Mapping[int, ClockMap]
    records: pd.DataFrame
    waits: pd.DataFrame
    pairs: pd.DataFrame
    asked_ns: np.ndarray
    unaligned: pd.DataFrame
    notes: list[str]


def numbered(
    process: np.ndarray, number: np.ndarray, processes: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """Where each number of a process stands first among the numbers of processes, -1 for one that
    does not."""
    out = np.full(len(process), -1)
    known = group(processes, np.arange(len(processes)))
    for owner, asked in group(process, np.arange(len(process))).items():
        rows = known.get(owner, np.empty(0, np.int64))
        out[asked] = pick(rows, positions(number[asked], numbers[rows]), -1)
    return out


def match(trace: Trace, log: EventLog) -> Matched:
    """Raises EventLogError if the log belongs to another run."""
    processes, notes = match_processes(trace, log)
    call, thread, clocks, clock_notes = match_records(trace, log, processes)
    records = _all_records(trace, log, processes, call, thread)
    pairs, unaligned = logged_pairs(log, records)
    waits = match_waits(trace, log, processes, clocks)
    # when the first successful elapsed_time on each record had returned
    asked = np.full(len(records), FAR)
    for number, rows in pairs[pairs["t1_ns"] >= 0].groupby("process"):
        if clock := clocks.get(int(number)):
            returned = clock.to_trace(rows["t1_ns"].to_numpy()) + clock.width_ns
            for column in ("start", "end"):
                np.minimum.at(asked, rows[column].to_numpy(), returned)
    return Matched(processes, clocks, records, waits, pairs, asked, unaligned, notes + clock_notes)


def match_processes(trace: Trace, log: EventLog) -> tuple[dict[int, int], list[str]]:
    """log process -> globalPid, by pid (a log that names none is of the only process); notes.  Raises
    EventLogError if the log belongs to another run."""
    calls = trace.calls
    threads = distinct(calls["thread"].to_numpy()[calls["kind"].to_numpy() == CALL["record"]])
    with_rows = [distinct(t["process"].to_numpy()) for t in (calls, trace.operations)]
    by_pid = {int(pid_of(p)): int(p) for p in np.unique(np.concatenate(with_rows)).tolist()}
    timed = pd.concat([t[["process", "tid", "t0_ns"]] for t in (log.records, log.hosts)])
    strangers = other_runs(trace, log, timed)
    matched, notes = {}, []
    for number, header in enumerate(log.headers):
        pid = header.get("pid")
        if number in strangers:
            notes.append(strangers[number])
        elif isinstance(pid, int) and tid_of(pid) in by_pid:
            matched[number] = by_pid[tid_of(pid)]
        elif pid is None and len(by_pid) == 1:
            (matched[number],) = by_pid.values()
        elif (timed["process"] == number).any():
            known = ", ".join(str(p) for p in sorted(by_pid)) or "none"
            name = pid if pid is not None else f"#{number}"
            notes.append(
                f"process {name} of the event log has no CUDA rows in the trace (it has: {known})"
            )
    recording = {process_of(int(t)) for t in threads} if log.headers else set()
    notes += [
        f"process {pid_of(process)} recorded CUDA events but has no event log: started without the probe "
        "(python -I, -E or -S, a cleaned environment, or not Python)"
        for process in sorted(recording - set(matched.values()))
    ]
    return matched, notes


def other_runs(trace: Trace, log: EventLog, timed: pd.DataFrame) -> dict[int, str]:
    """Processes of the log whose records all lie outside the trace by the wall clock -> the message
    about them: process ids repeat.  Raises EventLogError if the log holds no other process."""
    session, calls = trace.info.session_start_utc_ns, trace.calls
    if session is None or calls.empty or int(calls["end_ns"].max()) <= 0:
        return {}
    clocks = log.clocks[log.clocks["realtime_ns"] > 0].drop_duplicates("process")
    offset = (clocks["realtime_ns"] - clocks["monotonic_ns"]).set_axis(clocks["process"])
    spans = timed[timed["process"].isin(offset.index)].groupby("process")["t0_ns"]
    spans = spans.agg(["min", "max"]).add(offset, axis=0).dropna() - session
    early = int(calls["start_ns"].min()) - spans["max"]
    late = spans["min"] - int(calls["end_ns"].max())
    strangers = {}
    for number, before, after in zip(spans.index.tolist(), early, late, strict=True):
        if max(before, after) > _CLOCK_SET_NS:
            pid = log.headers[number].get("pid")
            process = f" of process {pid}" if isinstance(pid, int) else ""
            when = "after the trace ends" if after > before else "before the trace begins"
            strangers[number] = (
                f"the event log{process} belongs to another run: its records lie "
                f"{duration(max(before, after))} {when}"
            )
    if strangers and len(strangers) == len(spans) == len(log.headers):
        hint = "use the events-PID.jsonl of the run that made this trace"
        raise EventLogError(next(iter(strangers.values())), hint)
    return strangers


@dataclass(frozen=True)
class _Thread:
    """A thread of a log's process: its records by time (positions in the log), the record calls of the
    trace that it may have made (positions in calls), and the times of both."""

    records: np.ndarray
    calls: np.ndarray
    times: Times


def match_records(
    trace: Trace, log: EventLog, processes: Mapping[int, int]
) -> tuple[np.ndarray, np.ndarray, dict[int, ClockMap], list[str]]:
    """Per record of the log its call (-1: not found) and its thread; clock maps by log process;
    notes."""
    call = np.full(len(log.records), -1, dtype=np.int64)
    thread = np.full(len(log.records), -1, dtype=np.int64)
    tid = log.records["tid"].to_numpy(np.int64)
    clocks: dict[int, ClockMap] = {}
    notes: list[str] = []
    for number, process in processes.items():
        logged = np.flatnonzero(log.records["process"] == number)
        threads = _threads(trace, log, logged, process)
        clock = _clock_of(trace, log, number)
        if clock is None:  # line up the first record calls and let refine() do the rest
            clock = _first_calls(threads)
            if clock is None:
                continue
            notes.append(
                "no clock line of the event log fits the trace, so the clocks were aligned on the record "
                "calls alone"
            )
        inside = [clock.contained(*member.times) for member in threads]
        hits = sum((position >= 0).sum() for position in inside)
        if clock.width_ns > _SHARP_NS or hits < 0.9 * len(logged):
            clock = refine(clock, [member.times for member in threads])
            inside = [clock.contained(*member.times) for member in threads]
        clocks[number] = clock
        for member, position in zip(threads, inside, strict=True):
            rows = member.records
            call[rows] = np.append(member.calls, -1)[position]
            by_tid = thread_of(process, tid[rows])
            by_call = pick(trace.calls["thread"].to_numpy(), call[rows], -1)
            thread[rows] = np.where(tid[rows] >= 0, by_tid, by_call)
    return call, thread, clocks, notes


def _threads(trace: Trace, log: EventLog, logged: np.ndarray, process: int) -> list[_Thread]:
    """The threads of a process whose records are `logged` (positions in the log)."""
    calls = trace.calls
    is_record = calls["kind"].to_numpy() == CALL["record"]
    record_calls = np.flatnonzero(is_record & trace.outermost)
    callers = calls["thread"].to_numpy()[record_calls]
    begin = log.records["t0_ns"].to_numpy(np.int64)
    end = log.records["t1_ns"].to_numpy(np.int64)
    tids = log.records["tid"].to_numpy(np.int64)[logged]
    threads = []
    for tid in np.unique(tids).tolist():
        records = logged[tids == tid]
        records = records[np.argsort(begin[records], kind="stable")]
        made = record_calls[of_thread(callers, process, tid)]
        times = (
            begin[records],
            end[records],
            calls["start_ns"].to_numpy()[made],
            calls["end_ns"].to_numpy()[made],
        )
        threads.append(_Thread(records, made, times))
    return threads


def _clock_of(trace: Trace, log: EventLog, number: int) -> ClockMap | None:
    """The clock of a process of the log by what log and trace say of it; None if they say nothing."""
    if trace.info.monotonic:
        return ONE_CLOCK
    clocks = log.clocks[log.clocks["process"] == number]
    marks = log.marked[log.marked["process"] == number].merge(trace.marks, on="payload")
    return clock_map(clocks, marks, trace.info.session_start_utc_ns)


def _first_calls(threads: Sequence[_Thread]) -> ClockMap | None:
    """A rough clock on which the first record of a thread lies at its first record call; None if there
    is no such thread."""
    for member in threads:
        if len(member.records) and len(member.calls):
            called, _, begun, _ = member.times
            return ClockMap(called[:1], begun[:1] - called[:1], 20_000_000)
    return None


def of_thread(thread: np.ndarray, process: int, tid: int) -> np.ndarray:
    """Positions of what a thread of a process did, among the threads (globalTid) of all; where a log
    leaves out which (-1), of the only one of its process, and nothing if there are several."""
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
    """`Matched.records` from the calls and threads of the log's records."""
    calls, rows, logged = trace.calls, trace.event_rows, log.records
    is_record = (calls["kind"].to_numpy() == CALL["record"]) & trace.outermost
    unlogged = np.setdiff1d(np.flatnonzero(is_record), call)
    count = len(call) + len(unlogged)
    columns: dict[str, np.ndarray] = {}
    for name in ("process", "seq", "tid", "device", "stream_handle", "stream_id"):
        unknown = np.full(len(unlogged), -1)
        columns[name] = np.concatenate([logged[name].to_numpy(), unknown])
    not_captured = np.zeros(len(unlogged), dtype=bool)
    columns["captured"] = np.concatenate([logged["captured"].to_numpy(), not_captured])
    for name in ("region", "site"):
        nameless = np.full(len(unlogged), "", dtype=object)
        columns[name] = np.concatenate([logged[name].to_numpy(dtype=object), nameless])
    columns["log_process"] = number = columns["process"]
    columns["process"] = np.full(count, -1)
    for log_process, process in processes.items():
        columns["process"][number == log_process] = process
    columns["process"][len(call) :] = calls["process"].to_numpy()[unlogged]
    callers = calls["thread"].to_numpy()[unlogged]
    columns["thread"] = np.concatenate([thread, callers])
    columns["call"] = call = np.concatenate([call, unlogged])
    columns["problem"] = _problems(log, columns)
    columns["event_row"] = row = np.where(call >= 0, positions(call, rows["call"].to_numpy()), -1)
    for name, absent in (("event", -1), ("event_sync", -1), ("timestamp_ns", 0)):
        columns[name] = pick(rows[name].to_numpy(), row, absent)
    for name in ("start_ns", "end_ns"):
        columns[f"call_{name}"] = pick(calls[name].to_numpy(), call, 0)
    lean = {n: v if v.dtype == object else frames.narrow(v, n) for n, v in columns.items()}
    return pd.DataFrame(lean, index=range(count), copy=False)


def _problems(log: EventLog, records: Mapping[str, np.ndarray]) -> np.ndarray:
    """Why records have no place, "" where they may have one."""
    captured = records["captured"]
    absent = (records["process"] < 0) & ~captured
    lost = (records["call"] < 0) & ~captured & ~absent
    number = records["log_process"]
    out = np.where(captured, "captured into a CUDA graph", "").astype(object)
    out[lost] = (
        "its record call is not in the trace (rows dropped, or recorded outside the profiled time)"
    )
    out[lost & (records["tid"] < 0)] = (
        "its record call is not in the trace, or the record names no thread (tid) and several recorded"
    )
    for process, header in enumerate(log.headers):
        pid = header.get("pid")
        out[absent & (number == process)] = f"process {pid} has no CUDA rows in the trace"
        if header.get("ended") == "killed":
            out[lost & (number == process)] = (
                f"process {pid} was killed, crashed or executed another program "
                "before its rows were written"
            )
    return out


def match_waits(
    trace: Trace, log: EventLog, processes: Mapping[int, int], clocks: Mapping[int, ClockMap]
) -> pd.DataFrame:
    """Every stream-wait-event call with what the trace and the log say about it (`Matched.waits`
    without `record` and `inferred`)."""
    calls, syncs = trace.calls, trace.syncs
    call = np.flatnonzero((calls["kind"].to_numpy() == CALL["wait_event"]) & trace.outermost)
    sync = positions(call, syncs["call"].to_numpy())
    stream_id, log_process, seq = np.full((3, len(call)), -1)
    thread = calls["thread"].to_numpy()[call]
    begun = calls["start_ns"].to_numpy()[call]
    ended = calls["end_ns"].to_numpy()[call]
    logged = log.waits[log.waits["process"].isin([*clocks])].sort_values("t0_ns")
    for (number, tid), rows in logged.groupby(["process", "tid"]):
        made = of_thread(thread, processes[int(number)], int(tid))
        t0, t1 = rows["t0_ns"].to_numpy(), rows["t1_ns"].to_numpy()
        position = clocks[int(number)].contained(t0, t1, begun[made], ended[made])
        rows = rows[position >= 0]
        wait = made[position[position >= 0]]
        stream_id[wait] = rows["stream_id"]
        seq[wait] = rows["record"]
        log_process[wait] = number
    columns = {
        "call": call,
        "sync": sync,
        "process": calls["process"].to_numpy()[call],
        "event": pick(syncs["event"].to_numpy(), sync, -1),
        "event_sync": pick(syncs["event_sync"].to_numpy(), sync, -1),
        "stream_id": stream_id,
        "log_process": log_process,
        "seq": seq,
    }
    return pd.DataFrame(columns, dtype="int64")


def awaited(
    trace: Trace, waits: pd.DataFrame, records: pd.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """(position in `records` of what each wait waits for, -1 unknown; which of them are inferred): by
    eventSyncId, else by the log, else the latest record of the same event before the wait (DDP's reducer
    records many, then waits for each), else the latest record of the same thread that it can be (both
    inferred).  Both tables have the column lane."""
    record = _named_records(waits, records)
    unsure = record < 0
    calls = waits["call"].to_numpy()
    begun = trace.calls["start_ns"].to_numpy()[calls]
    asked = waits[["process", "event"]].assign(wait=np.arange(len(waits)), time=begun)
    asked = asked.astype("int64").sort_values("time")
    asked = asked[(asked["event"] >= 0) & unsure[asked["wait"].to_numpy()]]
    made = records[["process", "event"]].assign(
        record=np.arange(len(records)), time=records["call_start_ns"]
    )
    made = made[(records["call"] >= 0) & (made["event"] >= 0)].astype("int64").sort_values("time")
    if len(asked):
        joined = pd.merge_asof(asked, made, on="time", by=["process", "event"])
        joined = joined.dropna(subset="record")
        record[joined["wait"].to_numpy()] = joined["record"].to_numpy().astype(np.int64)
    thread = trace.calls["thread"].to_numpy()[calls]
    for number, rows in group(thread, np.arange(len(waits))).items():
        left = rows[record[rows] < 0]
        on_thread = np.flatnonzero((records["thread"] == number) & (records["call"] >= 0))
        record[left] = _latest(waits.iloc[left], begun[left], records.iloc[on_thread], on_thread)
    return record, unsure & (record >= 0)


def _named_records(waits: pd.DataFrame, records: pd.DataFrame) -> np.ndarray:
    """Position in `records` of what each wait waits for by eventSyncId, else by the log; -1 where
    neither says it."""
    record = np.full(len(waits), -1)
    for process, number, usable in (
        ("process", "event_sync", records["call"] >= 0),
        ("log_process", "seq", records["log_process"] >= 0),
    ):
        rows = np.flatnonzero(usable & (records[number] >= 0))
        position = numbered(
            waits[process].to_numpy(),
            waits[number].to_numpy(),
            records[process].to_numpy()[rows],
            records[number].to_numpy()[rows],
        )
        record = np.where(record < 0, pick(rows, position, -1), record)
    return record


def _latest(
    waits: pd.DataFrame, begun: np.ndarray, records: pd.DataFrame, position: np.ndarray
) -> np.ndarray:
    """Per wait the `position` of the latest of its thread's records that it can wait for, -1 for none
    among the last `_LOOK_BACK`: not a record of another event, and not one of the waiting stream, for
    which nothing would have to wait."""
    order = np.argsort(records["call_start_ns"].to_numpy(), kind="stable")
    event = records["event"].to_numpy()[order]
    lane = records["lane"].to_numpy()[order]
    time = records["call_start_ns"].to_numpy()[order]
    wanted, waiting = waits["event"].to_numpy(), waits["lane"].to_numpy()
    place = np.searchsorted(time, begun, side="right") - 1
    impossible = np.ones(len(place), dtype=bool)
    for _ in range(_LOOK_BACK):
        record_event, record_lane = pick(event, place, -1), pick(lane, place, -1)
        impossible = (record_event >= 0) & (wanted >= 0) & (record_event != wanted)
        impossible |= (record_lane >= 0) & (record_lane == waiting)
        if not impossible.any():
            break
        place = np.where(impossible, place - 1, place)
    return pick(position[order], np.where(impossible, -1, place), -1)


def logged_pairs(log: EventLog, records: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(`Matched.pairs`, `Matched.unaligned`): the elapsed lines as positions in `records`."""
    asked = log.elapsed
    # those of the log come first: positions among them are positions in `records`
    logged = records.iloc[: (records["log_process"].to_numpy() >= 0).sum()]
    known = logged["log_process"].to_numpy(), logged["seq"].to_numpy()
    process = asked["process"].to_numpy()
    start = numbered(process, asked["start"].to_numpy(), *known)
    end = numbered(process, asked["end"].to_numpy(), *known)
    elapsed = np.rint(asked["ms"].fillna(0.0).clip(-1e12, 1e12) * 1e6).astype(np.int64).to_numpy()
    numbers = {"start": start, "end": end, "source": np.arange(len(asked))}
    pairs = asked[["process", "region", "site", "t1_ns", "calibration"]].assign(
        elapsed_ns=elapsed, **{name: frames.narrow(values) for name, values in numbers.items()}
    )
    reason = np.full(len(pairs), "", dtype=object)
    reason[(start < 0) | (end < 0)] = "a record of the pair was not seen by the probe"
    reason[elapsed < 0] = "negative elapsed_time: the end was recorded before the start"
    failed = (asked["error"] != "").to_numpy()
    reason[failed] = ("elapsed_time failed: " + asked["error"].astype(str)).to_numpy()[failed]
    bad = reason != ""
    return frames.taken(pairs, ~bad), pairs[bad].assign(reason=reason[bad])
