"""Which API call made which record: per thread, by time containment, in order.

The trace holds record calls that no Python code made (the pinned-memory allocator, NCCL, DDP), so the n-th call is not the n-th
record.  A Python call of `record` contains exactly one record call of its own thread.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign.model import CALL, EventLog, Trace, TraceInfo, pid_of, process_of, thread_of, tid_of
from nsysalign.place.belongs import Seen, other_runs
from nsysalign.place.host_clock import ClockMap, clock_map, contained, refine
from nsysalign.tiles import distinct

#: A map this accurate needs no refinement on the record calls.
_SHARP_NS = 2_000


def look(trace: Trace) -> Seen:
    """The processes and threads of a trace."""
    calls = trace.calls
    recording = calls["thread"].to_numpy()[calls["kind"].to_numpy() == CALL["record"]]
    processes = [distinct(t["process"].to_numpy()) for t in (calls, trace.operations)]
    return Seen(
        frozenset(np.concatenate(processes).tolist()),
        frozenset(distinct(recording).tolist()),
        int(calls["start_ns"].min()) if len(calls) else 0,
        int(calls["end_ns"].max()) if len(calls) else 0,
    )


def match_processes(
    seen: Seen, session_start_utc_ns: int | None, log: EventLog
) -> tuple[dict[int, int], list[str]]:
    """log process -> globalPid, by pid, else by the thread ids that made record calls.

    Raises EventLogError if the log belongs to another run.
    """
    threads, processes = sorted(seen.recorders), sorted(seen.processes)
    by_pid = {int(pid_of(p)): int(p) for p in processes}
    found, notes = {}, []
    tids = {
        int(p): set(g.tolist()) for p, g in log.records.groupby("process")["tid"].unique().items()
    }
    host_tids = {
        int(p): set(g.tolist()) for p, g in log.hosts.groupby("process")["tid"].unique().items()
    }
    others = other_runs(seen, session_start_utc_ns, log)
    for number, header in enumerate(log.headers):
        if number in others:
            notes.append(others[number])
            continue
        pid = header.get("pid")
        if isinstance(pid, int) and tid_of(pid) in by_pid:
            found[number] = by_pid[tid_of(pid)]
            continue
        mine = {tid_of(t) for t in tids.get(number, set()) | host_tids.get(number, set()) if t >= 0}
        candidates = {process_of(int(t)) for t in threads if tid_of(int(t)) in mine}
        if len(candidates) == 1:
            found[number] = candidates.pop()
        elif not mine and len(processes) == 1 and not isinstance(pid, int):
            found[number] = int(processes[0])
        elif number in tids or number in host_tids:
            known = ", ".join(str(p) for p in sorted(by_pid)) or "none"
            notes.append(
                f"process {pid if pid is not None else f'#{number}'} of the event log has no CUDA rows in the trace (it has: {known})"
            )
    if log.headers:
        recording = {process_of(int(t)) for t in threads}
        for process in sorted(recording - set(found.values())):
            notes.append(
                f"process {pid_of(process)} recorded CUDA events but has no event log: started without the probe "
                "(python -I, -E or -S, a cleaned environment, or not Python)"
            )
    return found, notes


def process_clock(
    log: EventLog, number: int, marks: pd.DataFrame, info: TraceInfo
) -> ClockMap | None:
    """The clock map of one process of the log; None if nothing connects its clock with the trace's."""
    return clock_map(
        clocks=log.clocks[log.clocks["process"] == number],
        marked=log.marked[log.marked["process"] == number],
        marks=marks,
        session_start_utc_ns=info.session_start_utc_ns,
    )


def match_records(
    trace: Trace, log: EventLog, processes: Mapping[int, int]
) -> tuple[pd.DataFrame, dict[int, ClockMap], list[str]]:
    """Positions in `calls` for every record and wait of the log.

    Returns (frame indexed like log.records with columns call, thread; clock maps by log process; notes).
    """
    calls = trace.calls
    kind, thread = calls["kind"].to_numpy(), calls["thread"].to_numpy()
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    is_record = np.flatnonzero(
        (kind == CALL["record"]) & (calls["outer"].to_numpy() == np.arange(len(calls)))
    )
    out = pd.DataFrame({"call": -1, "thread": -1}, index=log.records.index, dtype=np.int64)
    clocks: dict[int, ClockMap] = {}
    notes: list[str] = []
    for number, process in processes.items():
        mine = log.records[log.records["process"] == number]
        clock = process_clock(log, number, trace.marks, trace.info)
        groups = []
        for tid, rows in mine.groupby("tid"):
            positions = is_record[of_thread(thread[is_record], process, int(tid))]
            order = np.argsort(rows["t0_ns"].to_numpy(), kind="stable")
            groups.append(
                (
                    rows.index.to_numpy()[order],
                    rows["t0_ns"].to_numpy()[order],
                    rows["t1_ns"].to_numpy()[order],
                    positions,
                    thread_of(process, int(tid)) if tid >= 0 else -1,
                )
            )
        arrays = [(t0, t1, start[p], end[p]) for _, t0, t1, p, _ in groups]
        if clock is None:
            # nothing connects the clocks: line up the first record calls and let refine() do the rest
            clock = _guess(arrays)
            if clock is None:
                continue
            notes.append(
                "no clock line of the event log fits the trace, so the clocks were aligned on the record calls alone"
            )
        if clock.width_ns > _SHARP_NS or _share(clock, arrays) < 0.9:
            clock = refine(clock, arrays)
        clocks[number] = clock
        for index, t0, t1, positions, asked in groups:
            lo, hi = clock.to_trace(t0), clock.to_trace(t1)
            found = contained(lo, hi, start[positions], end[positions])
            found[_other_thread_too(found, hi, end[positions], thread[positions])] = -1
            out.loc[index, "call"] = call = np.append(positions, -1)[found]
            out.loc[index, "thread"] = asked if asked >= 0 else np.append(thread, -1)[call]
    return out, clocks, notes


def of_thread(thread: np.ndarray, process: int, tid: int) -> np.ndarray:
    """Positions of what a thread of a process did, among the threads (globalTid) of all; of any of the process where a log
    leaves out which (-1)."""
    return np.flatnonzero(
        thread == thread_of(process, tid) if tid >= 0 else process_of(thread) == process
    )


def _other_thread_too(
    found: np.ndarray, hi: np.ndarray, end: np.ndarray, thread: np.ndarray
) -> np.ndarray:
    """Of calls found by containment: whether the next call, of another thread, lies before `hi` as well."""
    following = found + 1
    have = (found >= 0) & (following < len(end))
    after, at = np.where(have, following, 0), np.maximum(found, 0)
    return have & (thread[after] != thread[at]) & (end[after] <= hi) if len(end) else have


def _share(clock: ClockMap, arrays: list[tuple]) -> float:
    total = sum(len(a[0]) for a in arrays)
    hits = sum(
        int((contained(clock.to_trace(t0), clock.to_trace(t1), c0, c1) >= 0).sum())
        for t0, t1, c0, c1 in arrays
    )
    return hits / total if total else 1.0


def _guess(arrays: list[tuple]) -> ClockMap | None:
    for t0, _, c0, _ in arrays:
        if len(t0) and len(c0):
            return ClockMap(t0[:1], c0[:1] - t0[:1], "record calls", 20_000_000)
    return None
