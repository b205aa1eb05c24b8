"""Which process, call and row of the trace is which of the log.

Record calls are matched per thread, by time containment, in order: the trace holds record calls
that no Python code made (the pinned-memory allocator, NCCL, DDP), so the n-th call is not the n-th
record.  A Python call of `record` contains exactly one record call of its own thread.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign.errors import EventLogError
from nsysalign.intervals import distinct
from nsysalign.model import CALL, EventLog, Trace, pid_of, process_of, thread_of, tid_of
from nsysalign.place.host_clock import ClockMap, clock_map, contained, refine

#: A map this accurate needs no refinement on the record calls.
_SHARP_NS = 2_000
#: By how much the host's clock may have been set between the trace's start and the log's.
_CLOCK_SET_NS = 10_000_000_000


class Lookup:
    """Positions of (process, number), counted from `first`; of equal ones the first counts, -1 for
    a missing one."""

    def __init__(self, process: np.ndarray, number: np.ndarray, *, first: int = 0) -> None:
        keys = pd.MultiIndex.from_arrays([process, number])
        self._position = np.flatnonzero(~keys.duplicated())
        self._keys, self._first = keys[self._position], first

    def __call__(self, rows: pd.DataFrame, column: str) -> np.ndarray:
        """Positions of what a column of `rows` (which has a column `process`) refers to."""
        if rows.empty or not len(self._keys):
            return np.full(len(rows), -1)
        wanted = pd.MultiIndex.from_arrays([rows["process"].to_numpy(), rows[column].to_numpy()])
        at = self._keys.get_indexer(wanted)
        return np.where(at >= 0, self._position[np.maximum(at, 0)] + self._first, -1)


def match_processes(trace: Trace, log: EventLog) -> tuple[dict[int, int], list[str]]:
    """log process -> globalPid, by pid, else by the thread ids that made record calls; notes.

    Raises EventLogError if the log belongs to another run.
    """
    calls = trace.calls
    threads = distinct(calls["thread"].to_numpy()[calls["kind"].to_numpy() == CALL["record"]])
    every = [distinct(t["process"].to_numpy()) for t in (calls, trace.operations)]
    by_pid = {int(pid_of(p)): int(p) for p in np.unique(np.concatenate(every)).tolist()}
    tids: dict[int, set[int]] = {}
    for table in (log.records, log.hosts):
        for number, own in table.groupby("process")["tid"].unique().items():
            tids.setdefault(int(number), set()).update(own.tolist())
    matched, notes, others = {}, [], other_runs(trace, log)
    for number, header in enumerate(log.headers):
        if number in others:
            notes.append(others[number])
            continue
        pid = header.get("pid")
        if isinstance(pid, int) and tid_of(pid) in by_pid:
            matched[number] = by_pid[tid_of(pid)]
            continue
        own = {tid_of(t) for t in tids.get(number, ()) if t >= 0}
        candidates = {process_of(int(t)) for t in threads if tid_of(int(t)) in own}
        if len(candidates) == 1:
            matched[number] = candidates.pop()
        elif not own and len(by_pid) == 1 and not isinstance(pid, int):
            matched[number] = next(iter(by_pid.values()))
        elif number in tids:
            known = ", ".join(str(p) for p in sorted(by_pid)) or "none"
            name = pid if pid is not None else f"#{number}"
            notes.append(
                f"process {name} of the event log has no CUDA rows in the trace (it has: {known})"
            )
    if log.headers:
        recording = {process_of(int(t)) for t in threads}
        notes += [
            f"process {pid_of(process)} recorded CUDA events but has no event log: started without the probe "
            "(python -I, -E or -S, a cleaned environment, or not Python)"
            for process in sorted(recording - set(matched.values()))
        ]
    return matched, notes


def other_runs(trace: Trace, log: EventLog) -> dict[int, str]:
    """Processes of the log whose records all lie outside the trace by the wall clock -> the message
    about them; process ids repeat (in a container every run may be process 7).

    {} if either side does not know the wall clock.  Raises EventLogError if the log holds no other
    process.
    """
    session, calls = trace.info.session_start_utc_ns, trace.calls
    if session is None or calls.empty or int(calls["end_ns"].max()) <= 0:
        return {}
    first, last = session + int(calls["start_ns"].min()), session + int(calls["end_ns"].max())
    clocks = (
        log.clocks[log.clocks["realtime_ns"] > 0].drop_duplicates("process").set_index("process")
    )
    offset = (clocks["realtime_ns"] - clocks["monotonic_ns"]).to_dict()
    times = pd.concat([t[["process", "t0_ns"]] for t in (log.records, log.hosts)])
    spans = times.groupby("process")["t0_ns"].agg(["min", "max"])
    others, known = {}, 0
    for number, begin, end in spans.itertuples():
        if number not in offset:
            continue
        known += 1
        begin, end = int(begin) + int(offset[number]), int(end) + int(offset[number])
        away = max(begin - last, first - end)
        if away > _CLOCK_SET_NS:
            when = "after the trace ends" if begin > last else "before the trace begins"
            pid, s = log.headers[number].get("pid"), away // 1_000_000_000
            whose = f" of process {pid}" if isinstance(pid, int) else ""
            long = (
                f"{s} s"
                if s < 7_200
                else f"{s // 3600} h"
                if s < 172_800
                else f"{s // 86_400} days"
            )
            others[int(number)] = (
                f"the event log{whose} belongs to another run: its records lie {long} {when}"
            )
    if others and len(others) == known == len(log.headers):
        hint = "use the events-PID.jsonl of the run that made this trace"
        raise EventLogError(next(iter(others.values())), hint)
    return others


def match_records(
    trace: Trace, log: EventLog, processes: Mapping[int, int]
) -> tuple[pd.DataFrame, dict[int, ClockMap], list[str]]:
    """Positions in `calls` for every record of the log (a frame indexed like log.records with
    columns call and thread); clock maps by log process; notes."""
    calls = trace.calls
    thread, start, end = (calls[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    is_record = np.flatnonzero(
        (calls["kind"].to_numpy() == CALL["record"])
        & (calls["outer"].to_numpy() == np.arange(len(calls)))
    )
    call, of = np.full((2, len(log.records)), -1, dtype=np.int64)
    clocks: dict[int, ClockMap] = {}
    notes: list[str] = []
    records, lines, marked = (
        t.groupby("process").indices for t in (log.records, log.clocks, log.marked)
    )
    t0, t1, tids = (log.records[c].to_numpy() for c in ("t0_ns", "t1_ns", "tid"))
    for number, process in processes.items():
        mine = records.get(number, np.empty(0, np.int64))
        groups = []  # per thread: its records by time, and the record calls that it may have made
        for tid in np.unique(tids[mine]).tolist():
            rows = mine[tids[mine] == tid]
            rows = rows[np.argsort(t0[rows], kind="stable")]
            groups.append((tid, rows, is_record[of_thread(thread[is_record], process, tid)]))
        arrays = [(t0[rows], t1[rows], start[p], end[p]) for _, rows, p in groups]
        clock = clock_map(
            clocks=log.clocks.iloc[lines.get(number, [])],
            marked=log.marked.iloc[marked.get(number, [])],
            marks=trace.marks,
            session_start_utc_ns=trace.info.session_start_utc_ns,
        )
        if clock is None:  # line up the first record calls and let refine() do the rest
            first = next((a for a in arrays if len(a[0]) and len(a[2])), None)
            if first is None:
                continue
            at, begun = first[0][:1], first[2][:1]
            clock = ClockMap(at, begun - at, "record calls", 20_000_000)
            notes.append(
                "no clock line of the event log fits the trace, so the clocks were aligned on the record "
                "calls alone"
            )

        def inside(near: ClockMap, a: tuple) -> np.ndarray:
            return contained(near.to_trace(a[0]), near.to_trace(a[1]), a[2], a[3])

        hits, total = sum((inside(clock, a) >= 0).sum() for a in arrays), max(len(mine), 1)
        if clock.width_ns > _SHARP_NS or (len(mine) and hits / total < 0.9):
            clock = refine(clock, arrays)
        clocks[number] = clock
        for (tid, rows, positions), a in zip(groups, arrays, strict=True):
            at, until = inside(clock, a), clock.to_trace(a[1])
            if len(positions):  # nobody's, if the next call, of another thread, lies inside as well
                this, after = np.maximum(at, 0), np.minimum(at + 1, len(positions) - 1)
                two = (at >= 0) & (at + 1 < len(positions)) & (a[3][after] <= until)
                at = np.where(two & (thread[positions[after]] != thread[positions[this]]), -1, at)
            call[rows] = np.append(positions, -1)[at]
            of[rows] = thread_of(process, tid) if tid >= 0 else np.append(thread, -1)[call[rows]]
    return pd.DataFrame({"call": call, "thread": of}, index=log.records.index), clocks, notes


def of_thread(thread: np.ndarray, process: int, tid: int) -> np.ndarray:
    """Positions of what a thread of a process did, among the threads (globalTid) of all; of any of
    the process where a log leaves out which (-1)."""
    return np.flatnonzero(
        thread == thread_of(process, tid) if tid >= 0 else process_of(thread) == process
    )
