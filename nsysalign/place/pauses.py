"""Garbage collections of the log as ranges of the trace: what the host did while it was outside CUDA.

thread   [ step                                   ]
log             t0 [ collection ] t1
after           [ garbage collection ]                 a range of its own kind, in no label
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign.model import PAUSE, EventLog, Trace, pid_of, thread_of
from nsysalign.place.clocks import ClockMap
from nsysalign.place.log_ranges import Described, with_log_ranges

#: What idle time that a collection covers is called, in details and in words.
GARBAGE_COLLECTION = "garbage collection"


def with_pauses(
    trace: Trace, log: EventLog | None, clocks: Mapping[int, ClockMap], processes: Mapping[int, int]
) -> Trace:
    """Return the trace with the log's garbage collections among its NVTX ranges: each is a range called "garbage
    collection" on the main thread of its process, from its start to its end in trace time.

    clocks: log process -> its clock; collections of a process without one are left out
    processes: log process -> globalPid
    """
    if log is None:
        return trace
    return with_log_ranges(trace, log.collections, clocks, processes, PAUSE, _on_main_thread)


def _on_main_thread(
    collections: pd.DataFrame, process: int, start: np.ndarray, end: np.ndarray
) -> Described:
    return thread_of(process, pid_of(process)), GARBAGE_COLLECTION
