"""Forks of the log as ranges of the trace, in no label and the name of no idle time: that follows the fork."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign.model import FORK, EventLog, Trace, thread_of
from nsysalign.place.clocks import ClockMap
from nsysalign.place.log_ranges import Described, with_log_ranges


def with_forks(
    trace: Trace, log: EventLog | None, clocks: Mapping[int, ClockMap], processes: Mapping[int, int]
) -> Trace:
    """Return the trace with a range on the thread that forked for each fork of the log.

    clocks: log process -> its clock; forks of a process without one are left out
    processes: log process -> globalPid
    """
    if log is None:
        return trace
    return with_log_ranges(trace, log.forks, clocks, processes, FORK, _on_thread)


def _on_thread(forks: pd.DataFrame, process: int, start: np.ndarray, end: np.ndarray) -> Described:
    return thread_of(process, forks["tid"].to_numpy()), "fork"
