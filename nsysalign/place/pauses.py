"""Garbage collections of the log as ranges of the trace: what the host did while it was outside CUDA.

thread   [ step                                   ]
log             t0 [ collection ] t1
after           [ garbage collection ]                 a range of its own kind, in no label
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import PAUSE, EventLog, Trace, pid_of, thread_of
from nsysalign.place.clocks import ClockMap

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
    if log is None or log.collections.empty:
        return trace
    parts = [trace.ranges]
    for number, collections in log.collections.groupby("process"):
        clock = clocks.get(int(number))
        if clock is None:
            continue
        process = processes[int(number)]
        start = clock.to_trace(collections["t0_ns"].to_numpy())
        end = clock.to_trace(collections["t1_ns"].to_numpy())
        # a clock that is corrected meanwhile may turn start and end round
        columns = {
            "start_ns": start,
            "end_ns": np.maximum(end, start),
            "thread": thread_of(process, pid_of(process)),
            "process": process,
            "text": GARBAGE_COLLECTION,
            "kind": PAUSE,
            "row": -1,
        }
        parts.append(pd.DataFrame(columns))
    ranges = pd.concat(parts, ignore_index=True)
    ranges = ranges.sort_values("start_ns", kind="stable", ignore_index=True)
    return replace(trace, ranges=frames.check(ranges, frames.RANGES))
