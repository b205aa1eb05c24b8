"""Windows from the log's host lines: regions of the program, timed on the host's clock."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct
from nsysalign.model import ORIGIN, EventLog, Trace, pid_of, process_of, thread_of
from nsysalign.place.host_clock import ClockMap
from nsysalign.windows import Unplaced, unplaced, windows_frame


def host_windows(
    trace: Trace,
    log: EventLog,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
    origin: int = ORIGIN["host"],
) -> tuple[pd.DataFrame, list[Unplaced]]:
    """Host lines of the log on the trace's clock.  Lines that no clock connects to the trace are
    returned with the reason."""
    hosts = log.hosts
    known = np.array(
        [p in clocks and p in processes for p in hosts["process"].tolist()], dtype=bool
    )
    lost = [
        unplaced(
            r or s or "host timer",
            "the clock of its process could not be tied to the trace's",
            s,
            origin,
            n,
        )
        for n, r, s in hosts.loc[~known, ["region", "site"]].itertuples()
    ]
    rows, source = hosts[known].reset_index(drop=True), hosts.index.to_numpy()[known]
    if rows.empty:
        return frames.empty(frames.WINDOWS), lost
    start, end = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    width = np.empty(len(rows), np.int64)
    for number, group in rows.groupby("process"):
        clock, at = clocks[int(number)], group.index.to_numpy()
        # one offset per interval preserves the measured length to the nanosecond
        start[at] = clock.to_trace(group["t0_ns"].to_numpy())
        end[at] = start[at] + (group["t1_ns"] - group["t0_ns"]).to_numpy()
        width[at] = clock.width_ns
    backwards = end < start
    lost += [
        unplaced(r, "its end is before its start", s, origin, int(source[at]))
        for at, r, s in rows.loc[backwards, ["region", "site"]].itertuples()
    ]
    process = np.array([processes[p] for p in rows["process"].tolist()], dtype=np.int64)
    tid = rows["tid"].to_numpy()
    thread = np.where(
        tid >= 0, thread_of(process, tid), _busiest_thread(trace, process, start, end)
    )
    out = host_frame(
        log_process=rows["process"].to_numpy(),
        process=process,
        thread=thread,
        start=start,
        elapsed=end - start,
        width=width,
        region=rows["region"].to_numpy(),
        site=rows["site"].to_numpy(),
        end_site=rows["site"].to_numpy(),
        origin=origin,
        source=source,
    )
    return out[~backwards].reset_index(drop=True), lost


def host_frame(
    *,
    log_process: np.ndarray,
    process: np.ndarray,
    thread: np.ndarray,
    start: np.ndarray,
    elapsed: np.ndarray,
    width: np.ndarray,
    region: np.ndarray,
    site: np.ndarray,
    end_site: np.ndarray,
    origin: int,
    source: np.ndarray,
) -> pd.DataFrame:
    """Windows of kind host: arrays of equal length, times on the trace's clock, `width`: the
    clock's uncertainty."""
    end = start + elapsed
    return windows_frame(
        len(start),
        {
            "kind": "host",
            "log_process": log_process,
            "process": process,
            "thread": thread,
            "end_thread": thread,
            "open_ns": start,
            "close_ns": end,
            "close_end_ns": end,
            "elapsed_ns": elapsed,
            "start_ns": start,
            "end_ns": end,
            "start_lower_ns": start - width,
            "start_upper_ns": start + width,
            "error_ns": width,
            "region": region,
            "site": site,
            "end_site": end_site,
            "origin": origin,
            "source": source,
        },
    )


def _busiest_thread(
    trace: Trace, process: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """For readings without a thread: the thread of the process with the most calls inside; the main
    thread if none has any."""
    calls = trace.calls
    thread, at = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    best, most = thread_of(process, pid_of(process)), np.zeros(len(process), np.int64)
    for number in distinct(thread):
        mine = at[thread == number]
        count = np.searchsorted(mine, end) - np.searchsorted(mine, start)
        better = (count > most) & ((process_of(number)) == process)
        best, most = np.where(better, number, best), np.where(better, count, most)
    return best
