"""Stretches of the log in which a thread hardly ran as ranges of the trace: what it waited for outside of CUDA.

thread    [call)      outside CUDA            [call)
log       t0 [ ran for 1 of 40 ms, the process for 40 ]  t1
after     [ another thread of the process           ]      a range of its own kind, in no label
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import pandas as pd

from nsysalign.intervals import covered, union
from nsysalign.model import NO_THREAD, OFF_CPU, OTHER_THREAD, EventLog, Trace, thread_of
from nsysalign.place.clocks import ClockMap
from nsysalign.place.log_ranges import Described, with_log_ranges

#: A thread did not run where that is so for this share of its time outside of CUDA; the others of its process
#: did where they ran for this share of that, and did not where they ran for less than the rest.
_SHARE = 0.8


def with_off_cpu(
    trace: Trace, log: EventLog | None, clocks: Mapping[int, ClockMap], processes: Mapping[int, int]
) -> Trace:
    """Return the trace with a range on the thread for each stretch of the log in which that hardly ran outside of CUDA,
    though it was there: OTHER_THREAD or NO_THREAD.  Stretches of which neither is known are left out.

    clocks: log process -> its clock; stretches of a process without one are left out
    processes: log process -> globalPid
    """
    if log is None:
        return trace
    return with_log_ranges(trace, log.off_cpu, clocks, processes, OFF_CPU, partial(_waiting, trace))


def _waiting(
    trace: Trace, stretches: pd.DataFrame, process: int, start: np.ndarray, end: np.ndarray
) -> Described:
    """Return (thread, text) of each stretch: OTHER_THREAD or NO_THREAD, '' where neither is known."""
    thread = thread_of(process, stretches["tid"].to_numpy())
    outside_ns = end - start - _in_calls_ns(trace, thread, start, end)
    ran_ns, all_ran_ns = (stretches[name].to_numpy() for name in ("thread_ns", "process_ns"))
    # what ran in calls counts as if it had run outside
    off_ns = outside_ns - ran_ns
    others_ns = all_ran_ns - ran_ns
    is_off = (off_ns > 0) & (off_ns >= _SHARE * outside_ns)
    others_ran = is_off & (others_ns >= _SHARE * off_ns)
    others_did_not = is_off & (others_ns <= (1 - _SHARE) * off_ns)
    return thread, np.select([others_did_not, others_ran], [NO_THREAD, OTHER_THREAD], "")


def _in_calls_ns(
    trace: Trace, thread: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """Return for how long (ns) each thread was in CUDA calls between two times."""
    calls = trace.calls
    inside_ns = np.zeros(len(thread), np.int64)
    for number in np.unique(thread).tolist():
        on_thread = (calls["thread"] == number).to_numpy()
        low, high = union(
            calls["start_ns"].to_numpy()[on_thread], calls["end_ns"].to_numpy()[on_thread]
        )
        rows = np.flatnonzero(thread == number)
        at_end, at_start = (covered(low, high, at[rows]) for at in (end, start))
        inside_ns[rows] = at_end - at_start
    return inside_ns
