"""The run as a whole: one window per process and device, and per stream where several worked, over
the span of its work.

    stream 7     KKKK    KK            CC
    stream 13        KKKK      KKKK
    device       KKKKKKKKKK    KKKK    CC       busy when any stream is; idle time waits for whatever begins next, on any stream

A device with several streams is a lane of its own behind the lanes of the trace (`stream` -1): its
operations are those of all its streams.  What is said of runs is in `explain/runs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import group, index_type
from nsysalign.model import ORIGIN, Alignment, Trace, pid_of
from nsysalign.place.untraced import longest_traced


def _is_in_longest_turn(trace: Trace) -> np.ndarray:
    """Return, per operation, whether it lies in the longest stretch of its process that the recorder saw (bool).  A
    recorder that attaches in turns sees only parts of the run: the longest one stands for it.
    """
    operations = trace.operations
    process = operations["process"].to_numpy(np.int64)
    start = operations["start_ns"].to_numpy(np.int64)
    end = operations["end_ns"].to_numpy(np.int64)
    inside = np.zeros(len(operations), dtype=bool)
    for number in np.unique(process).tolist():
        of_process = process == number
        first, last = longest_traced(trace, number, start[of_process].min(), end[of_process].max())
        inside |= of_process & (start >= first) & (end <= last)
    return inside


class _Run(NamedTuple):
    """All work of a process on one lane."""

    #: By which it differs from the other runs: `process 17`, `GPU 0`, `stream 7`.
    words: Sequence[str]
    lane: int
    #: globalPid.
    process: int
    #: The first start and the last end of the work.
    start_ns: int
    end_ns: int


def with_runs(trace: Trace, alignment: Alignment) -> Alignment:
    """Return the alignment with a window for all that each process did on each device (a run), and one for each stream
    of a device that several streams used.  A run reaches from the first start to the last end of its work.

    A device with several streams becomes a lane of its own, behind all other lanes.

    A recorder that attaches in turns leaves stretches of the program untraced; then a run holds the longest stretch
    (turn) between these alone.

    Lanes 0 and 1 are streams 7 and 13 of one GPU: the runs "run" on the new lane 2, "run (stream 7)" and
    "run (stream 13)".
    """
    lanes = alignment.lanes
    used = _used_lanes(trace, alignment)
    is_traced_in_turns = len(trace.untraced) > 0
    # the runs, and the process and device of each lane that is added for them
    runs, of_devices = _runs_of_devices_and_streams(used, len(lanes), is_traced_in_turns)
    if not runs:
        return alignment
    windows = _windows_of_runs(runs)
    if len(alignment.windows):  # pandas 2 warns of empty tables
        windows = pd.concat([alignment.windows, windows], ignore_index=True)
    device_lanes = pd.DataFrame(of_devices, columns=["process", "device"])
    # -1: a device is no stream of a context
    device_lanes = device_lanes.assign(context=-1, stream=-1, flag=-1).astype("int64")
    lanes = pd.concat([lanes, device_lanes], ignore_index=True)
    # `busy` says of a stream whether operations ran on it; a device's lane has none itself, as they are its streams'
    busy = np.append(alignment.busy, np.zeros(len(of_devices), dtype=bool))
    columns = {
        name: windows[name].array for name in windows
    }  # not Series: these keep their row numbers
    return replace(
        alignment,
        lanes=frames.check(lanes, frames.LANES),
        busy=busy,
        windows=frames.lean(columns, frames.WINDOWS, len(windows)),
    )


def _runs_of_devices_and_streams(
    used: pd.DataFrame, lane_count: int, is_traced_in_turns: bool
) -> tuple[list[_Run], list[tuple[int, int]]]:
    """Return (the runs of all devices and streams on which work ran, (process, device) of each new lane).

    used:       the lanes on which work ran, as `_used_lanes` returns them; its index is their numbers
    lane_count: how many lanes there are; the new ones come behind them
    is_traced_in_turns: whether stretches of the program were not traced; `used` holds the longest traced one alone
    """
    runs: list[_Run] = []
    of_devices: list[tuple[int, int]] = []
    for (process, device), streams in _busiest_first(used):
        # a name says only what tells it from the others
        words = [f"process {pid_of(process)}"] if used["process"].nunique() > 1 else []
        words += [f"GPU {device}"] if used["device"].nunique() > 1 else []
        words += ["its longest traced turn"] if is_traced_in_turns else []
        start, end = streams["start"].min(), streams["end"].max()
        if len(streams) == 1:
            lane_of_stream = streams.index[0]
            runs.append(_Run(words, lane_of_stream, process, start, end))
            continue
        lane_of_device = lane_count + len(of_devices)
        runs.append(_Run(words, lane_of_device, process, start, end))
        of_devices.append((process, device))
        for lane_of_stream, stream in zip(streams.index, frames.rows_of(streams), strict=True):
            name = [*words, _stream_name(stream)]
            runs.append(_Run(name, lane_of_stream, process, stream.start, stream.end))
    return [run for run in runs if run.end_ns > run.start_ns], of_devices


def _used_lanes(trace: Trace, alignment: Alignment) -> pd.DataFrame:
    """Return `alignment.lanes` on which work ran, with the columns start, end and ns: the first start,
    the last end and the sum of the durations of its operations (ns)."""
    start, end = (trace.operations[name].to_numpy() for name in ("start_ns", "end_ns"))
    lane = alignment.operation_lane
    if len(trace.untraced):
        seen = _is_in_longest_turn(trace)
        start, end, lane = start[seen], end[seen], lane[seen]
    positions: np.ndarray = np.arange(len(lane), dtype=index_type(len(lane)))
    spans = [
        (number, start[rows].min(), end[rows].max(), (end[rows] - start[rows]).sum())
        for number, rows in sorted(group(lane, positions).items())
        if alignment.busy[number]
    ]
    numbers, *columns = np.array(spans, np.int64).reshape(-1, 4).T
    used = alignment.lanes.iloc[numbers]
    return used.assign(**dict(zip(("start", "end", "ns"), columns, strict=True)))


def _busiest_first(used: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    """Return ((process, device), its rows of `used`) by process, the device that worked most first.

    used: the lanes on which work ran, as `_used_lanes` returns them
    """
    devices = list(used.groupby(["process", "device"], sort=True))
    return sorted(devices, key=lambda item: (item[0][0], -item[1]["ns"].sum()))


def _stream_name(stream: Any) -> str:
    """Return what a stream is called in the name of its run.  `stream`: a row of `alignment.lanes`."""
    if stream.context == stream.stream == 0:  # pages of managed memory migrate without a context
        return "page migrations"
    return f"stream {stream.stream}"


def _windows_of_runs(runs: Sequence[_Run]) -> pd.DataFrame:
    """Return `frames.WINDOWS` with a row per run, called "run" or, where there are several, "run (GPU 0, stream 7)".

    A run is a window of the main thread of its process.  Its time is exact, as it begins and ends with operations of the
    trace.  Columns that are not given are those of a window without records: `frames.lean` fills them with "none".
    """
    names = [f"run ({', '.join(run.words)})" if run.words else "run" for run in runs]
    lane = np.array([run.lane for run in runs], np.int64)
    process = np.array([run.process for run in runs], np.int64)
    start = np.array([run.start_ns for run in runs], np.int64)
    end = np.array([run.end_ns for run in runs], np.int64)
    main_thread = process | pid_of(process)  # a globalTid: the main thread has its process's number
    columns = {
        "kind": "run",
        "origin": ORIGIN["run"],
        "region": np.array(names, object),
        "process": process,
        "elapsed_ns": end - start,
        "method": "exact",
        "error_ns": 0,
        "thread": main_thread,
        "end_thread": main_thread,
        "start_lane": lane,
        "end_lane": lane,
        "open_ns": start,
        "start_ns": start,
        "start_lower_ns": start,
        "start_upper_ns": start,
        "close_ns": end,
        "close_end_ns": end,
        "end_ns": end,
    }
    return frames.lean(columns, frames.WINDOWS, len(runs))
