"""How long the host took to issue each interval: from the start record's call to the end of the end record's call."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nsysalign.model import Analysis, EventLog


class Spans(NamedTuple):
    """Arrays of one entry per row of `analysis.intervals`."""

    host_ns: np.ndarray  # int64, -1 if the log does not say
    same_thread: np.ndarray  # bool; True if the log does not say


def spans(analysis: Analysis, log: EventLog | None) -> Spans:
    """From the log's own readings of CLOCK_MONOTONIC (design: section 5); both records belong to one process."""
    intervals = analysis.intervals
    host, same = np.full(len(intervals), -1, dtype=np.int64), np.ones(len(intervals), dtype=bool)
    if log is None or log.records.empty or intervals.empty:
        return Spans(host, same)
    columns = ("process", "seq", "t0_ns", "t1_ns", "tid")
    known = {
        (p, seq): rest for p, seq, *rest in zip(*(log.records[c].tolist() for c in columns), strict=True)
    }
    # a trace made in a container may call a process by another number than the process itself does
    by_pid = {header.get("pid"): number for number, header in enumerate(log.headers)}
    only = 0 if len(log.headers) == 1 else -1
    keys = ("pid", "start_record", "end_record")
    for row, (pid, start, end) in enumerate(zip(*(intervals[k].tolist() for k in keys), strict=True)):
        process = by_pid.get(pid, only)
        a, b = known.get((process, start)), known.get((process, end))
        if a and b and start >= 0 and end >= 0 and b[1] >= a[0]:
            host[row], same[row] = b[1] - a[0], a[2] == b[2]
    return Spans(host, same)
