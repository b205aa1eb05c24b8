"""Stretches of the log (a garbage collection, a thread that hardly ran) as ranges of the trace, in no label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import Trace
from nsysalign.place.clocks import ClockMap

#: (stretches of one process, its globalPid, their starts and ends in trace time) -> (thread, text) of each.
Described = tuple[np.ndarray | int, np.ndarray | str]
Describe = Callable[[pd.DataFrame, int, np.ndarray, np.ndarray], Described]


def with_log_ranges(
    trace: Trace,
    stretches: pd.DataFrame,
    clocks: Mapping[int, ClockMap],
    processes: Mapping[int, int],
    kind: int,
    describe: Describe,
) -> Trace:
    """Return the trace with a range of this kind for each stretch among its NVTX ranges; those with the text '' are left
    out.

    stretches: process (of the log), t0_ns and t1_ns (of its clock), and what `describe` reads
    clocks: log process -> its clock; stretches of a process without one are left out
    processes: log process -> globalPid
    """
    if stretches.empty:
        return trace
    parts = [trace.ranges]
    for number, of_process in stretches.groupby("process"):
        clock = clocks.get(int(number))
        if clock is None:
            continue
        process = processes[int(number)]
        start = clock.to_trace(of_process["t0_ns"].to_numpy())
        # a clock that is corrected meanwhile may turn start and end round
        end = np.maximum(clock.to_trace(of_process["t1_ns"].to_numpy()), start)
        thread, text = describe(of_process, process, start, end)
        columns = {"start_ns": start, "end_ns": end, "thread": thread, "process": process}
        made = pd.DataFrame(columns | {"text": text, "kind": kind, "row": -1})
        parts.append(made[made["text"] != ""])
    ranges = pd.concat(parts, ignore_index=True)
    ranges = ranges.sort_values("start_ns", kind="stable", ignore_index=True)
    return replace(trace, ranges=frames.check(ranges, frames.RANGES))
