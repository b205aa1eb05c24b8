"""The run as a whole: one window per process and device, and per stream where several worked, over
the span of its work.

    stream 7     KKKK    KK            CC
    stream 13        KKKK      KKKK
    device       KKKKKKKKKK    KKKK    CC       busy when any stream is; idle time waits for whatever begins next, on any stream

A device with several streams is a lane of its own behind the lanes of the trace (`stream` -1): its
operations are those of all its streams.  What is said of runs is in `explain/runs`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import ORIGIN, Alignment, Trace, pid_of


def with_runs(trace: Trace, alignment: Alignment) -> Alignment:
    """The alignment with windows of kind run appended."""
    lanes, busy = alignment.lanes, np.asarray(alignment.busy)
    work = trace.operations[["start_ns", "end_ns"]]
    spans = work.assign(ns=work["end_ns"] - work["start_ns"]).groupby(alignment.operation_lane)
    used = lanes[busy].join(
        spans.agg(start=("start_ns", "min"), end=("end_ns", "max"), ns=("ns", "sum"))
    )
    devices: list[tuple[int, int]] = []  # lanes that stand for several
    rows = []
    by_device = used.groupby(["process", "device"], sort=True)
    # of a process the device that works most comes first
    for (process, device), own in sorted(
        by_device, key=lambda group: (group[0][0], -group[1]["ns"].sum())
    ):
        words = [f"process {pid_of(process)}"] if used["process"].nunique() > 1 else []
        words += [f"GPU {device}"] if used["device"].nunique() > 1 else []
        lane, start, end = own.index[0], own["start"].min(), own["end"].max()
        if len(own) > 1:
            lane = len(lanes) + len(devices)
            devices.append((process, device))
        rows.append((words, lane, process, start, end))
        for stream in own.itertuples() if len(own) > 1 else ():
            # pages of managed memory migrate in no context, on a stream of that name only
            pages = stream.context == stream.stream == 0
            name = "page migrations" if pages else f"stream {stream.stream}"
            rows.append(([*words, name], stream.Index, process, stream.start, stream.end))
    rows = [row for row in rows if row[-1] > row[-2]]
    if not rows:
        return alignment
    texts, *numbers = zip(*rows, strict=True)
    lane, of, begin, over = (np.array(column, np.int64) for column in numbers)
    region = [f"run ({', '.join(text)})" if text else "run" for text in texts]
    columns = {"kind": "run", "origin": ORIGIN["run"], "region": np.array(region, object)}
    columns |= {"process": of, "elapsed_ns": over - begin}
    columns |= dict.fromkeys(("thread", "end_thread"), of | pid_of(of))
    columns |= dict.fromkeys(("start_lane", "end_lane"), lane)
    columns |= dict.fromkeys(("open_ns", "start_ns", "start_lower_ns", "start_upper_ns"), begin)
    columns |= dict.fromkeys(("close_ns", "close_end_ns", "end_ns"), over)
    columns |= {"method": "exact", "error_ns": 0}
    of_runs = frames.lean(columns, frames.WINDOWS, len(rows))
    windows = of_runs  # pandas 2 warns of empty tables
    if len(alignment.windows):
        windows = pd.concat([alignment.windows, of_runs], ignore_index=True)
    more = pd.DataFrame(devices, columns=["process", "device"]).assign(
        context=-1, stream=-1, flag=-1
    )
    lanes = pd.concat([lanes, more.astype("int64")], ignore_index=True)
    return replace(
        alignment,
        lanes=frames.check(lanes, frames.LANES),
        busy=np.append(busy, np.zeros(len(devices), dtype=bool)),
        windows=frames.lean({c: windows[c].array for c in windows}, frames.WINDOWS, len(windows)),
    )
