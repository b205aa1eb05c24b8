"""The run as a whole: one window per process and device, and per stream where several worked, over
the span of its work.

    stream 7     KKKK    KK            CC
    stream 13        KKKK      KKKK
    device       KKKKKKKKKK    KKKK    CC       busy when any stream is; idle time waits for whatever begins next, on any stream

A device with several streams is a lane of its own behind the lanes of the trace (`stream` -1): its
operations are those of all its streams.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.issue_order import FAR
from nsysalign.model import ORIGIN, Alignment, Trace, pid_of
from nsysalign.windows import windows_frame


def with_runs(trace: Trace, alignment: Alignment) -> Alignment:
    """The alignment with windows of kind run appended."""
    lanes, busy = alignment.lanes, np.asarray(alignment.busy)
    used = lanes[busy].assign(lane=np.flatnonzero(busy))
    devices = used.groupby(["process", "device"], sort=True)["lane"].agg(list)
    extra: list[dict[str, int]] = []
    windows: list[tuple[str, int, list[int]]] = []
    for (process, device), members in devices.items():
        several = len(members) > 1
        where = _whose(int(process), int(device), used)
        lane = len(lanes) + len(extra) if several else members[0]
        if several:
            extra.append(
                {"process": process, "device": device, "context": -1, "stream": -1, "flag": -1}
            )
        windows.append((_named(where), lane, members))
        if several:
            windows += [(_named([*where, _stream(lanes, m)]), m, [m]) for m in members]
    first, last = _spans(trace, alignment.operation_lane, len(lanes))
    spans = ((int(first[members].min()), int(last[members].max())) for _, _, members in windows)
    kept = [
        (name, lane, (start, end))
        for (name, lane, _), (start, end) in zip(windows, spans, strict=True)
        if end > start
    ]
    whole = pd.concat([lanes, pd.DataFrame(extra)], ignore_index=True) if extra else lanes
    whole = frames.check(whole, frames.LANES)
    made = _windows(kept, whole)
    return replace(
        alignment,
        lanes=whole,
        busy=np.append(busy, np.zeros(len(extra), dtype=bool)),
        windows=frames.check(
            pd.concat([alignment.windows, made], ignore_index=True), frames.WINDOWS
        )
        if len(made)
        else alignment.windows,
    )


def devices(lanes: pd.DataFrame) -> dict[int, np.ndarray]:
    """Lanes that stand for a process's whole device, and the lanes of its streams."""
    whole = ((lanes["stream"] < 0) & (lanes["context"] < 0)).to_numpy()
    if not whole.any():
        return {}
    process, device = (lanes[c].to_numpy() for c in ("process", "device"))
    return {
        lane: np.flatnonzero(~whole & (process == process[lane]) & (device == device[lane]))
        for lane in np.flatnonzero(whole).tolist()
    }


def _whose(process: int, device: int, used: pd.DataFrame) -> list[str]:
    words = [f"process {pid_of(process)}"] if used["process"].nunique() > 1 else []
    return [*words, f"GPU {device}"] if used["device"].nunique() > 1 else words


def _stream(lanes: pd.DataFrame, lane: int) -> str:
    """A stream in words: pages of managed memory migrate in no context, on a stream of that name
    only."""
    row = lanes.iloc[lane]
    if row["context"] == row["stream"] == 0:
        return "page migrations"
    return f"stream {int(row['stream'])}"


def _named(where: list[str]) -> str:
    return f"run ({', '.join(where)})" if where else "run"


def _spans(trace: Trace, operation_lane: np.ndarray, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """First start and last end of the work of each lane."""
    first, last = np.full(lanes, FAR), np.full(lanes, -FAR)
    np.minimum.at(first, operation_lane, trace.operations["start_ns"].to_numpy())
    np.maximum.at(last, operation_lane, trace.operations["end_ns"].to_numpy())
    return first, last


def _windows(kept: list[tuple[str, int, tuple[int, int]]], lanes: pd.DataFrame) -> pd.DataFrame:
    """A WINDOWS frame of runs."""
    if not kept:
        return frames.empty(frames.WINDOWS)
    lane = np.array([k[1] for k in kept], dtype=np.int64)
    start, end = (np.array([k[2][n] for k in kept], dtype=np.int64) for n in (0, 1))
    process = lanes["process"].to_numpy()[lane]
    return windows_frame(
        len(kept),
        {
            "kind": "run",
            "process": process,
            "thread": process | pid_of(process),
            "end_thread": process | pid_of(process),
            "start_lane": lane,
            "end_lane": lane,
            "open_ns": start,
            "close_ns": end,
            "close_end_ns": end,
            "elapsed_ns": end - start,
            "start_ns": start,
            "end_ns": end,
            "start_lower_ns": start,
            "start_upper_ns": start,
            "region": [k[0] for k in kept],
            "origin": ORIGIN["run"],
        },
    )
