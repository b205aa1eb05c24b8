"""Ranges and processes that use streams by the hundred: what each stream did has a row for the busiest
of them only.

A stream's window holds what its host thread did while the stream was idle: with as many windows as
streams, and as many calls as streams, that is the square of the trace.

    range     [ step                                         ]         600 streams
    windows   step (stream 7)  ... 31 busiest ...  step (all streams)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import group
from nsysalign.model import MOST_STREAMS, ORIGIN, Alignment, Trace

_OF_STREAM = re.compile(r" \(stream -?\d+\)(#\d+)?\Z")


def without_crowds(trace: Trace, alignment: Alignment) -> Alignment:
    """The alignment with at most MOST_STREAMS windows per range and device, and per run: those of the
    streams that worked longest in them.  The last one of such a range is that of the whole device;
    a run has one anyway.  A note says how many there were."""
    ranges = list(_crowds(alignment, ORIGIN["range"], "source"))
    runs = list(_crowds(alignment, ORIGIN["run"], "process"))
    if not ranges and not runs:
        return alignment
    windows, dropped, notes = alignment.windows, [], list(alignment.notes)
    moved = ("region", "start_lane", "end_lane", "start_ns", "start_lower_ns", "start_upper_ns", "end_ns", "elapsed_ns")  # fmt: skip
    columns = {c: np.array(windows[c], object if c == "region" else np.int64) for c in moved}
    busy = _busy_ns(trace, alignment, np.concatenate([of for _, of in (*ranges, *runs)]))
    for device_lane, crowd in ranges:
        ranked = crowd[np.argsort(-busy[crowd], kind="stable")]
        rest = np.sort(ranked[MOST_STREAMS - 1 :])
        begin, end = columns["start_ns"][crowd].min(), columns["end_ns"][crowd].max()
        region = _OF_STREAM.sub(r" (all streams)\1", columns["region"][rest[0]])
        joined = (region, device_lane, device_lane, begin, begin, begin, end, end - begin)
        for column, value in zip(moved, joined, strict=True):
            columns[column][rest[0]] = value
        dropped.append(rest[1:])
    if ranges:
        most = max(len(crowd) for _, crowd in ranges)
        notes.append(
            f"{len(ranges):,} NVTX ranges worked on more than {MOST_STREAMS} streams (up to {most:,}): of each the "
            f"{MOST_STREAMS - 1} streams that worked longest have an interval, and all its streams together one"
        )
    for _, crowd in runs:
        ranked = crowd[np.argsort(-busy[crowd], kind="stable")]
        dropped.append(ranked[MOST_STREAMS:])
        notes.append(
            f"of {len(crowd):,} streams that did work the {MOST_STREAMS} that worked longest have a run of their own; "
            "the run of their GPU holds all of them"
        )
    kept = np.ones(len(windows), dtype=bool)
    kept[np.concatenate(dropped)] = False
    windows = windows.assign(**columns)[kept]
    columns = {c: windows[c].array for c in windows}
    return replace(
        alignment,
        windows=frames.lean(columns, frames.WINDOWS, len(windows)),
        notes=tuple(notes),
    )


def _crowds(alignment: Alignment, origin: int, key: str) -> Iterator[tuple[int, np.ndarray]]:
    """(lane of the whole device, windows) of what has a window on more than MOST_STREAMS streams of one
    device.  `key`: the column that says what is one range, or one process."""
    windows, lanes = alignment.windows, alignment.lanes
    device, stream = (lanes[c].to_numpy() for c in ("device", "stream"))
    lane = windows["end_lane"].to_numpy()
    rows = np.flatnonzero((windows["origin"].to_numpy() == origin) & (lane >= 0))
    rows = rows[stream[lane[rows]] >= 0]
    if len(rows) <= MOST_STREAMS:
        return
    whole = lanes[(lanes["stream"] < 0) & (lanes["context"] < 0)]
    of_device = dict(
        zip(zip(whole["process"], whole["device"], strict=True), whole.index, strict=True)
    )
    table = pd.DataFrame(
        {"process": windows["process"].to_numpy()[rows], "device": device[lane[rows]]}
    )
    table[key] = windows[key].to_numpy()[rows]
    for (_, process, number), places in table.groupby(
        [table[key], table["process"], table["device"]], sort=True
    ).indices.items():
        device_lane = of_device.get((process, number))
        if len(places) > MOST_STREAMS and device_lane is not None:
            yield int(device_lane), rows[places]


def _busy_ns(trace: Trace, alignment: Alignment, rows: np.ndarray) -> np.ndarray:
    """Per window, for these ones: how long operations of its stream that began in it took."""
    windows, out = alignment.windows, np.zeros(len(alignment.windows), np.int64)
    opened, closed, lane = (windows[c].to_numpy()[rows] for c in ("start_ns", "end_ns", "end_lane"))
    start, end = (trace.operations[c].to_numpy() for c in ("start_ns", "end_ns"))
    of_lane = group(alignment.operation_lane, np.arange(len(start)))
    for number, those in group(lane, np.arange(len(rows))).items():
        own = of_lane.get(number, np.empty(0, np.int64))
        took = np.append(0, np.cumsum(end[own] - start[own]))
        first, last = (np.searchsorted(start[own], t[those]) for t in (opened, closed))
        out[rows[those]] = took[np.maximum(last, first)] - took[first]
    return out
