"""The run as a whole: one window per process and device, and per stream where several worked, over the span of its work.

    stream 7     KKKK    KK            CC
    stream 13        KKKK      KKKK
    device       KKKKKKKKKK    KKKK    CC       busy when any stream is; idle time waits for whatever begins next, on any stream

A device with several streams is a lane of its own behind the lanes of the trace (`stream` -1): its operations are those of
all its streams.

Of a long trace each slice has runs of its own, and parts of intervals that are too long to be read at once:

    slices    |        1        |        2        |        3        |
    interval       [-------------------------------------)
    extent         [------------[-----------------[------)            what each slice splits; the sums are added up

A part keeps its own start and end: what began before its extent, and what follows, decides as it does in the whole.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.issue import EVER
from nsysalign.model import ORIGIN, Alignment, Trace, pid_of
from nsysalign.windows import windows_frame


def is_part(alignment: Alignment) -> np.ndarray:
    """Per window: whether other slices continue it."""
    if alignment.part is None:
        return np.zeros(len(alignment.windows), dtype=bool)
    return np.asarray(alignment.part)


def clipped(alignment: Alignment, times: np.ndarray, which: np.ndarray | None = None) -> np.ndarray:
    """Times of windows (of those at `which`), moved into the slice where the window is a part."""
    if alignment.part is None:
        return times
    part = alignment.part if which is None else alignment.part[which]
    return np.where(part, np.clip(times, *alignment.stretch), times)


def extent(alignment: Alignment) -> tuple[np.ndarray, np.ndarray]:
    """(start, end) of every window, ns: of a part, what lies in the slice, which may be nothing."""
    start, end = (alignment.windows[c].to_numpy() for c in ("start_ns", "end_ns"))
    return clipped(alignment, start), clipped(alignment, end)


def with_runs(trace: Trace, alignment: Alignment, stretch: tuple[int, int] = EVER) -> Alignment:
    """The alignment with windows of kind run appended: for the whole trace, or for a stretch [begin, end)."""
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
            windows += [
                (_named([*where, f"stream {int(lanes['stream'].iloc[m])}"]), m, [m])
                for m in members
            ]
    spans = [_span(trace, alignment.operation_lane, members, stretch) for _, _, members in windows]
    kept = [
        (name, lane, span) for (name, lane, _), span in zip(windows, spans, strict=True) if span
    ]
    whole = pd.concat([lanes, pd.DataFrame(extra)], ignore_index=True) if extra else lanes
    whole = frames.check(whole, frames.LANES)
    made = _windows(kept, whole)
    return replace(
        alignment,
        lanes=whole,
        part=np.append(is_part(alignment), np.zeros(len(made), dtype=bool))
        if alignment.part is not None
        else None,
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


def _named(where: list[str]) -> str:
    return f"run ({', '.join(where)})" if where else "run"


def _span(
    trace: Trace, operation_lane: np.ndarray, members: list[int], stretch: tuple[int, int]
) -> tuple[int, int] | None:
    """First start to last end of the work, as far as it lies in the stretch; None if there is none.  If work lies beyond an end
    of the stretch, the span reaches to that end: the next stretch continues from there."""
    mine = np.isin(operation_lane, members)
    start, end = (
        trace.operations["start_ns"].to_numpy()[mine],
        trace.operations["end_ns"].to_numpy()[mine],
    )
    if not len(start):
        return None
    first, last = max(int(start.min()), stretch[0]), min(int(end.max()), stretch[1])
    return (first, last) if last > first else None


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
