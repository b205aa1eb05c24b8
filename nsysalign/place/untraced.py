"""What ran while the recorder was not in the process (`Trace.untraced`), set apart from what it saw.

    recorder   [ traced      ]x[ untraced     ]x[ traced                   x: a switch
    intervals    [--]  [--]      [--]  [--]       [--]  [--]
    left out                [----]

Of an interval that lies in an untraced stretch its time is known, and what the log proves of it; there are
no parts.  One that holds a switch was traced for a part of it, and is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import FAR, pick
from nsysalign.model import Alignment, EventLog, Trace, pid_of
from nsysalign.place.host_timers import timed
from nsysalign.place.matched import positions_by_number

TRACED, UNTRACED, SWITCHED = 0, 1, 2


class SetApart(NamedTuple):
    """`log`: without the records and pairs of `untraced`; `timers`: clock readings' differences that ran
    untraced (`host_timers.timed`); `left_out`: pairs that hold a switch; `left_at_ns`: by process of the log,
    when the recorder left it for the first time."""

    log: EventLog
    untraced: EventLog
    timers: pd.DataFrame
    left_out: int
    left_at_ns: dict[int, int]


def set_apart(trace: Trace, log: EventLog | None) -> SetApart | None:
    """Return the log in two parts: what the recorder (nsys) saw, and what ran while it was not in the process; None if it
    was there all the time.

    A record, wait, pair of events or host timer belongs to a part by when it ran.  What ran partly in one and partly in the
    other is in neither; `left_out` counts such pairs of the program.
    """
    if log is None or trace.untraced.empty:
        return None
    pid_of_process = np.array([header.get("pid", -1) for header in log.headers], np.int64)

    def when(rows: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return TRACED, UNTRACED, or SWITCHED (partly this, partly that) for each row of the log (`when_of`).

        start, end: per row, when it began and ended (CLOCK_MONOTONIC, ns)
        """
        return when_of(trace, pid_of_process[rows["process"].to_numpy()], start, end)

    def when_called(rows: pd.DataFrame) -> np.ndarray:
        """Return the same for rows of calls, which the log has with their times."""
        return when(rows, rows["t0_ns"].to_numpy(), rows["t1_ns"].to_numpy())

    records = when_called(log.records)
    waits = when_called(log.waits)
    hosts = when_called(log.hosts)
    pairs = when(log.elapsed, *_spans(log))
    timer_rows = timed(log)
    timer_start = timer_rows["order"].to_numpy(np.int64)  # `order`: the reading at the start, in ns
    timer_end = timer_start + timer_rows["lasted_ns"].to_numpy(np.int64)
    timers = when(timer_rows, timer_start, timer_end)
    of_program = ~log.elapsed["calibration"].to_numpy(bool)
    pid_of_row = pid_of(trace.untraced["process"].to_numpy(np.int64))
    left_at = trace.untraced["start_ns"].groupby(pid_of_row).min()
    return SetApart(
        # its host lines and clock readings stay whole: `traced_windows` takes their windows out when they are placed
        log=replace(
            log,
            records=frames.taken(log.records, records == TRACED),
            waits=frames.taken(log.waits, waits == TRACED),
            elapsed=frames.taken(log.elapsed, pairs == TRACED),
        ),
        untraced=replace(
            log,
            records=frames.taken(log.records, records == UNTRACED),
            waits=frames.taken(log.waits, waits == UNTRACED),
            elapsed=frames.taken(log.elapsed, pairs == UNTRACED),
            hosts=frames.taken(log.hosts, hosts == UNTRACED),
        ),
        timers=timer_rows[timers == UNTRACED].reset_index(drop=True),
        left_out=int((of_program & (pairs == SWITCHED)).sum()),
        left_at_ns={
            process: int(left_at[pid])
            for process, pid in enumerate(pid_of_process.tolist())
            if pid in left_at.index
        },
    )


def _spans(log: EventLog) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each compared pair of the log, (when the call of its first record began, when that of its last
    one ended), whichever of the two is the start; (0, 0) for a pair whose records the log does not hold."""
    records = log.records
    process = log.elapsed["process"].to_numpy()
    logged = records["process"].to_numpy(), records["seq"].to_numpy()
    start = positions_by_number(process, log.elapsed["start"].to_numpy(), *logged)
    end = positions_by_number(process, log.elapsed["end"].to_numpy(), *logged)
    # a record that the log does not hold is -1: it takes the 0 at the end
    call_start = np.append(records["t0_ns"].to_numpy(np.int64), 0)
    call_end = np.append(records["t1_ns"].to_numpy(np.int64), 0)
    complete = (start >= 0) & (end >= 0)
    begin = np.minimum(call_start[start], call_start[end])
    finish = np.maximum(call_end[start], call_end[end])
    return np.where(complete, begin, 0), np.where(complete, finish, 0)


def when_of(trace: Trace, pid: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return, for each stretch of time of a process: TRACED if the recorder saw all of it, UNTRACED if it lies in a
    time in which the recorder was not in the process, SWITCHED if neither.

    pid, start, end: per stretch, its process, and when it begins and ends (ns)

    untraced from 100 to 200 ns; stretches 0 to 90, 120 to 180, 150 to 250:      TRACED, UNTRACED, SWITCHED

    In some untraced times (not `plain`) the recorder was there and cost time, but what it saw is of no use.  A stretch that
    touches one is SWITCHED, also where it lies wholly inside: it was neither traced nor left alone.
    """
    when = np.full(len(start), TRACED)
    pid_of_row = pid_of(trace.untraced["process"].to_numpy(np.int64))
    for process in np.unique(pid_of_row).tolist():
        untraced = trace.untraced[pid_of_row == process]
        stretches = np.flatnonzero(pid == process)
        begin = start[stretches]
        finish = end[stretches]
        # the first untraced time that ends after the stretch begins: no other can hold it.  -1: all end before
        row = np.searchsorted(untraced["end_ns"].to_numpy(np.int64), begin, side="right")
        row = np.where(row < len(untraced), row, -1)
        untraced_start = pick(untraced["start_ns"].to_numpy(np.int64), row, FAR)
        untraced_end = pick(untraced["end_ns"].to_numpy(np.int64), row, FAR)
        is_plain = pick(untraced["plain"].to_numpy(np.int64), row, 0) > 0
        is_inside = (untraced_start <= begin) & (finish <= untraced_end) & is_plain
        is_touched = untraced_start < finish
        when[stretches] = np.select([is_inside, is_touched], [UNTRACED, SWITCHED], TRACED)
    return when


def traced_windows(trace: Trace, alignment: Alignment) -> tuple[Alignment, int]:
    """Return (the alignment without the windows of host timers and ranges of which the recorder did not see all, how many
    of these windows hold a switch).  Windows of pairs stay: they were set apart in the log.
    """
    windows = alignment.windows
    if trace.untraced.empty or windows.empty:
        return alignment, 0
    when = when_of(
        trace,
        pid_of(windows["process"].to_numpy(np.int64)),
        windows["open_ns"].to_numpy(np.int64),
        windows["close_end_ns"].to_numpy(np.int64),
    )
    when = np.where((windows["kind"] == "event").to_numpy(), TRACED, when)
    kept = frames.taken(windows, when == TRACED)
    return replace(alignment, windows=kept), int((when == SWITCHED).sum())


def longest_traced(trace: Trace, process: int, start: int, end: int) -> tuple[int, int]:
    """Return (begin, end) in ns of the longest stretch of a process, between two times, of which the recorder saw all."""
    without = trace.untraced[trace.untraced["process"] == process]
    begins = np.clip([start, *without["end_ns"]], start, end)
    ends = np.clip([*without["start_ns"], end], start, end)
    longest = int((ends - begins).argmax())
    return int(begins[longest]), int(ends[longest])
