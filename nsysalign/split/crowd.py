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
    """The alignment with at most MOST_STREAMS windows of streams per run of a GPU: those of the streams
    that worked longest.  A note says how many there were."""
    crowds = list(_crowds(alignment))
    if not crowds:
        return alignment
    windows, notes = alignment.windows, list(alignment.notes)
    busy = _busy_ns(trace, alignment, np.concatenate(crowds))
    kept = np.ones(len(windows), dtype=bool)
    for crowd in crowds:
        ranked = crowd[np.argsort(-busy[crowd], kind="stable")]
        kept[ranked[MOST_STREAMS:]] = False
        notes.append(
            f"of {len(crowd):,} streams that did work the {MOST_STREAMS} that worked longest have a run of their own; "
            "the run of their GPU holds all of them"
        )
    windows = windows[kept]
    columns = {c: windows[c].array for c in windows}
    return replace(
        alignment,
        windows=frames.lean(columns, frames.WINDOWS, len(windows)),
        notes=tuple(notes),
    )


def _crowds(alignment: Alignment) -> Iterator[np.ndarray]:
    """The windows of the streams of each process and device that has more than MOST_STREAMS of them."""
    windows, lanes = alignment.windows, alignment.lanes
    is_stream = lanes["stream"].to_numpy() >= 0
    device = lanes["device"].to_numpy()
    lane = windows["end_lane"].to_numpy()
    is_run = windows["origin"].to_numpy() == ORIGIN["run"]
    rows = np.flatnonzero(is_run & (lane >= 0))
    rows = rows[is_stream[lane[rows]]]
    if len(rows) <= MOST_STREAMS:
        return
    processes = windows["process"].to_numpy()
    for of_process in group(processes[rows], rows).values():
        for of_device in group(device[lane[of_process]], of_process).values():
            if len(of_device) > MOST_STREAMS:
                yield of_device


def _busy_ns(trace: Trace, alignment: Alignment, rows: np.ndarray) -> np.ndarray:
    """Per window, for these rows: how long operations of its stream that began in it took."""
    windows = alignment.windows
    opened = windows["start_ns"].to_numpy()
    closed = windows["end_ns"].to_numpy()
    start = trace.operations["start_ns"].to_numpy()
    end = trace.operations["end_ns"].to_numpy()
    by_lane = group(alignment.operation_lane, np.arange(len(start)))
    busy = np.zeros(len(windows), np.int64)
    for lane, on_lane in group(windows["end_lane"].to_numpy()[rows], rows).items():
        operations = by_lane.get(lane, np.empty(0, np.int64))
        took = np.append(0, np.cumsum(end[operations] - start[operations]))
        first = np.searchsorted(start[operations], opened[on_lane])
        last = np.searchsorted(start[operations], closed[on_lane])
        busy[on_lane] = took[np.maximum(last, first)] - took[first]
    return busy
