"""What the tool itself did in the program's process: marked by NVTX ranges of its own, and counted
nowhere.

    thread   [ nsysalign:calibration          ]
               [launch] [record] [synchronise]        these calls, and what they launched
    GPU             spin_kernel

The operations are left out, so they are in no table, no idle stretch and no busy time.  The
thread's time in the range is the cause `profiler`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import any_open
from nsysalign.model import OURS, Alignment, Trace

#: The number of the name that the tool's own stretches have among the names of the trace.
_NAME = -2


def own_ranges(trace: Trace) -> pd.DataFrame:
    """The tool's own NVTX ranges (`frames.RANGES`)."""
    return trace.ranges[trace.ranges["text"].str.startswith(OURS).to_numpy(dtype=bool)]


def own_calls(trace: Trace) -> np.ndarray:
    """Bool, per call of the trace: made by the tool itself."""
    calls, ranges = trace.calls, own_ranges(trace)
    if ranges.empty:
        return np.zeros(len(calls), dtype=bool)
    thread, start, end = (ranges[c].to_numpy() for c in ("thread", "start_ns", "end_ns"))
    return any_open(thread, start, end, calls["thread"].to_numpy(), calls["start_ns"].to_numpy())


def without_own_work(trace: Trace, alignment: Alignment) -> tuple[Trace, Alignment]:
    """Both without the operations that the tool launched; what it did on the host is among the
    profiler's work."""
    ranges = own_ranges(trace)
    if ranges.empty or trace.calls.empty:
        return trace, alignment
    call = trace.operations["call"].to_numpy()
    kept = (call < 0) | ~own_calls(trace)[call]
    lane = alignment.operation_lane[kept]
    spent = ranges[["start_ns", "end_ns", "thread", "process"]].assign(name_id=_NAME, row=-1)
    overhead = pd.concat([trace.overhead, spent], ignore_index=True)
    return replace(
        trace,
        operations=trace.operations[kept].reset_index(drop=True),
        overhead=frames.check(overhead, frames.OVERHEAD),
        names={**trace.names, _NAME: str(ranges["text"].iloc[0])},
    ), replace(
        alignment,
        operation_lane=lane,
        busy=np.isin(alignment.lanes.index, lane),
    )
