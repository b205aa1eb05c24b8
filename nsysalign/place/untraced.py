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
from nsysalign.model import Alignment, EventLog, Trace, pid_of
from nsysalign.place.host_timers import timed
from nsysalign.place.matched import numbered

TRACED, UNTRACED, SWITCHED = 0, 1, 2


class SetApart(NamedTuple):
    """`log`: without the records and pairs of `untraced`; `timers`: clock readings' differences that ran
    untraced (`host_timers.timed`); `left_out`: pairs that hold a switch."""

    log: EventLog
    untraced: EventLog
    timers: pd.DataFrame
    left_out: int


def set_apart(trace: Trace, log: EventLog | None) -> SetApart | None:
    """The log in two; None where the recorder was in the process all the time."""
    if log is None or trace.untraced.empty:
        return None
    pids = [header.get("pid", -1) for header in log.headers]
    pid = np.array(pids, np.int64)

    def when(rows: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        return when_of(trace, pid[rows["process"].to_numpy()], start, end)

    records, elapsed = log.records, log.elapsed
    called = [rows[["t0_ns", "t1_ns"]].to_numpy() for rows in (records, log.waits, log.hosts)]
    of_records, of_waits, of_hosts = (
        when(rows, times[:, 0], times[:, 1])
        for rows, times in zip((records, log.waits, log.hosts), called, strict=True)
    )
    of_pairs = when(elapsed, *_spans(log))
    timers = timed(log)
    begin = timers["order"].to_numpy(np.int64)
    of_timers = when(timers, begin, begin + timers["lasted_ns"].to_numpy(np.int64))
    of_program = ~elapsed["calibration"].to_numpy(bool)
    return SetApart(
        log=replace(
            log,
            records=frames.taken(records, of_records == TRACED),
            waits=frames.taken(log.waits, of_waits == TRACED),
            elapsed=frames.taken(elapsed, of_pairs == TRACED),
        ),
        untraced=replace(
            log,
            records=frames.taken(records, of_records == UNTRACED),
            waits=frames.taken(log.waits, of_waits == UNTRACED),
            elapsed=frames.taken(elapsed, of_pairs == UNTRACED),
            hosts=frames.taken(log.hosts, of_hosts == UNTRACED),
        ),
        timers=timers[of_timers == UNTRACED].reset_index(drop=True),
        left_out=int((of_program & (of_pairs == SWITCHED)).sum()),
    )


def _spans(log: EventLog) -> tuple[np.ndarray, np.ndarray]:
    """From the call of each compared pair's first record to the return of the last one's, in either
    order; of a pair whose records the log does not hold both are 0."""
    records, process = log.records, log.elapsed["process"].to_numpy()
    logged = records["process"].to_numpy(), records["seq"].to_numpy()
    start, end = (numbered(process, log.elapsed[c].to_numpy(), *logged) for c in ("start", "end"))
    seen = (start >= 0) & (end >= 0)
    first, last = (np.append(records[c].to_numpy(np.int64), 0) for c in ("t0_ns", "t1_ns"))
    begin, over = np.minimum(first[start], first[end]), np.maximum(last[start], last[end])
    return np.where(seen, begin, 0), np.where(seen, over, 0)


def when_of(trace: Trace, pid: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """TRACED, UNTRACED or SWITCHED for each stretch of time of a process: whether the recorder saw all
    of it, or none of it and was not there, or neither."""
    out = np.full(len(start), TRACED)
    owner = pid_of(trace.untraced["process"].to_numpy(np.int64))
    for process in np.unique(owner).tolist():
        without = trace.untraced[owner == process]
        begins, ends, plain = (
            without[c].to_numpy(np.int64) for c in ("start_ns", "end_ns", "plain")
        )
        mine = np.flatnonzero(pid == process)
        # the first that ends behind the beginning
        place = np.searchsorted(ends, start[mine], side="right")
        begins, ends = np.append(begins, np.iinfo(np.int64).max), np.append(ends, 0)
        inside = (begins[place] <= start[mine]) & (end[mine] <= ends[place])
        touched = begins[place] < end[mine]
        alone = inside & (np.append(plain, 0)[place] > 0)
        out[mine] = np.select([alone, touched], [UNTRACED, SWITCHED], TRACED)
    return out


def traced_windows(trace: Trace, alignment: Alignment) -> tuple[Alignment, int]:
    """Without the windows of host timers and ranges of which the recorder did not see all, and how many
    of them held a switch.  (Those of pairs were set apart in the log.)"""
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
    """The longest stretch of a process, between these times, of which the recorder saw all."""
    without = trace.untraced[trace.untraced["process"] == process]
    begins = np.clip([start, *without["end_ns"]], start, end)
    ends = np.clip([*without["start_ns"], end], start, end)
    longest = int((ends - begins).argmax())
    return int(begins[longest]), int(ends[longest])
