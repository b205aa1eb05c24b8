"""Processes that use streams by the hundred: only the busiest streams have a run of their own.

A stream's window holds what its host thread did while the stream was idle: with as many windows as
streams, and as many calls as streams, that is the square of the trace.

    run   600 streams   ->   run (stream 7)  ... 32 busiest ...   and the run of their GPU
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsysalign import frames
from nsysalign.intervals import group
from nsysalign.model import MOST_STREAMS, ORIGIN, Alignment, Trace


def without_crowds(trace: Trace, alignment: Alignment) -> Alignment:
    """Return the alignment with runs (the windows of whole streams) of the busiest streams alone, where a process used
    streams by the hundred.

    Each process keeps, for each GPU, the runs of the MOST_STREAMS streams that worked longest.  A
    note says how many streams there were.
    """
    # a crowd: the rows, in `alignment.windows`, of the runs of all streams of one process and device
    crowds = list(_crowds(alignment))
    if not crowds:
        return alignment
    windows = alignment.windows
    notes = list(alignment.notes)
    busy_ns = _busy_ns(trace, alignment, np.concatenate(crowds))
    is_kept = np.ones(len(windows), dtype=bool)
    for crowd in crowds:
        busiest_first = crowd[np.argsort(-busy_ns[crowd], kind="stable")]
        is_kept[busiest_first[MOST_STREAMS:]] = False
        notes.append(
            f"of {len(crowd):,} streams that did work the {MOST_STREAMS} that worked longest have a run of their own; "
            "the run of their GPU holds all of them"
        )
    windows = windows[is_kept]
    columns = {
        name: windows[name].array for name in windows
    }  # not Series: these keep their row numbers
    windows = frames.lean(columns, frames.WINDOWS, len(windows))
    return replace(alignment, windows=windows, notes=tuple(notes))


def _crowds(alignment: Alignment) -> Iterator[np.ndarray]:
    """Yield the windows of a crowd: the runs of all streams of one process and device, where there
    are more than MOST_STREAMS of them."""
    windows, lanes = alignment.windows, alignment.lanes
    is_stream = lanes["stream"].to_numpy() >= 0
    device = lanes["device"].to_numpy()
    lane = windows["end_lane"].to_numpy()
    is_run = windows["origin"].to_numpy() == ORIGIN["run"]
    runs = np.flatnonzero(is_run & (lane >= 0))
    runs = runs[is_stream[lane[runs]]]  # without those of whole devices
    if len(runs) <= MOST_STREAMS:  # then no process has a crowd
        return
    process = windows["process"].to_numpy()
    for process_runs in group(process[runs], runs).values():
        device_of_run = device[lane[process_runs]]
        for device_runs in group(device_of_run, process_runs).values():
            if len(device_runs) > MOST_STREAMS:
                yield device_runs


def _busy_ns(trace: Trace, alignment: Alignment, rows: np.ndarray) -> np.ndarray:
    """Return, per window (measured interval), the sum of the durations (ns) of its stream's operations that began in it.

    rows: the windows that are asked for; all others get 0
    """
    windows = alignment.windows
    opened = windows["start_ns"].to_numpy()
    closed = windows["end_ns"].to_numpy()
    start = trace.operations["start_ns"].to_numpy()
    end = trace.operations["end_ns"].to_numpy()
    by_lane = group(alignment.operation_lane, np.arange(len(start)))
    busy = np.zeros(len(windows), np.int64)
    for lane, on_lane in group(windows["end_lane"].to_numpy()[rows], rows).items():
        operations = by_lane.get(lane, np.empty(0, np.int64))
        begins = start[operations]
        # [n]: how long (ns) the first n operations ran
        ns_of_first = np.append(0, np.cumsum(end[operations] - begins))
        # how many operations begin before the window begins, and before it ends
        before_window = np.searchsorted(begins, opened[on_lane])
        before_end = np.maximum(np.searchsorted(begins, closed[on_lane]), before_window)
        busy[on_lane] = ns_of_first[before_end] - ns_of_first[before_window]
    return busy
