"""The run as a whole: one window per process and device, and per stream where several worked, over the span of its work.

    stream 7     KKKK    KK            CC
    stream 13        KKKK      KKKK
    device       KKKKKKKKKK    KKKK    CC       busy when any stream is; idle time waits for whatever begins next, on any stream

A device with several streams is a lane of its own behind the lanes of the trace (`stream` -1): its operations are those of
all its streams.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.attribute.pieces import CAUSE
from nsysalign.model import ORIGIN, Alignment, PartialResult, Trace, pid_of
from nsysalign.sweep.issue import EVER
from nsysalign.windows import windows_frame

#: Columns that identify the run a row belongs to.
_WHOSE = ["region", "process", "device", "end_stream"]


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
            extra.append({"process": process, "device": device, "context": -1, "stream": -1, "flag": -1})
        windows.append((_named(where), lane, members))
        if several:
            windows += [(_named([*where, f"stream {int(lanes['stream'].iloc[m])}"]), m, [m]) for m in members]
    spans = [_span(trace, alignment.operation_lane, members, stretch) for _, _, members in windows]
    kept = [(name, lane, span) for (name, lane, _), span in zip(windows, spans, strict=True) if span]
    whole = pd.concat([lanes, pd.DataFrame(extra)], ignore_index=True) if extra else lanes
    whole = frames.check(whole, frames.LANES)
    made = _windows(kept, whole)
    return replace(
        alignment,
        lanes=whole,
        busy=np.append(busy, np.zeros(len(extra), dtype=bool)),
        windows=frames.check(pd.concat([alignment.windows, made], ignore_index=True), frames.WINDOWS)
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


def joined(p: PartialResult) -> PartialResult:
    """Combined portions hold one row of each run per stretch: these become one row with the sum of the budgets, and `unknown`
    for idle time whose end no stretch saw."""
    run = np.flatnonzero((p.rows["kind"] == "run").to_numpy())
    if not len(run):
        return p
    keys = p.rows.iloc[run][_WHOSE]
    whose = keys.groupby(_WHOSE, sort=False).ngroup().to_numpy()
    order = np.argsort(whose, kind="stable")
    first = run[order[np.flatnonzero(np.diff(whose[order], prepend=-1))]]
    rows = p.rows.copy()
    target = first[whose]
    for column in ("kernel_only_ns", "kernel_only_upper_ns", "operations"):
        rows.loc[first, column] = pd.Series(rows[column].to_numpy()[run]).groupby(whose).sum().to_numpy()
    begins = dict.fromkeys(("open_ns", "start_ns", "start_lower_ns", "start_upper_ns"), "min")
    ends = dict.fromkeys(("close_ns", "close_end_ns", "end_ns"), "max")
    for column, how in (begins | ends).items():
        rows.loc[first, column] = pd.Series(rows[column].to_numpy()[run]).groupby(whose).agg(how).to_numpy()
    tables = []
    for table in (p.total, p.low, p.high):
        out = table.copy()
        out[first] = 0
        np.add.at(out, target, table[run])
        tables.append(out)
    # a stream that was idle for longer than a stretch: what its next work waited for was not examined
    rows["elapsed_ns"] = rows["end_ns"] - rows["start_ns"]
    for table in tables:
        table[first, CAUSE["unknown"]] += rows["elapsed_ns"].to_numpy()[first] - tables[0][first].sum(axis=1)
    keep = np.ones(len(rows), dtype=bool)
    keep[np.setdiff1d(run, first)] = False
    place = np.cumsum(keep) - 1
    to = np.arange(len(rows))
    to[run] = target
    others = {name: getattr(p, name) for name in ("other_streams", "durations", "gaps")}
    return replace(
        p,
        rows=rows[keep].reset_index(drop=True),
        total=tables[0][keep],
        low=tables[1][keep],
        high=tables[2][keep],
        details=_details(p.details, place[to], (p.rows["kind"] == "run").to_numpy()),
        **{name: t.assign(interval=place[to][t["interval"].to_numpy()]) for name, t in others.items()},
        size=p.size[keep],
        segments=None if p.segments is None else _segments(p.segments, place[to], rows[keep]),
    )


def _segments(segments: pd.DataFrame, number: np.ndarray, rows: pd.DataFrame) -> pd.DataFrame:
    """Segments of renumbered intervals; the time between the stretches of a run was not seen to its end."""
    out = segments.assign(interval=number[segments["interval"].to_numpy()])
    out = out.sort_values(["interval", "start_ns"], kind="stable", ignore_index=True)
    runs = np.flatnonzero((rows["kind"] == "run").to_numpy())
    missing = []
    for run in runs.tolist():
        mine = out[out["interval"] == run]
        begin = np.append(rows["start_ns"].iat[run], mine["end_ns"].to_numpy())
        end = np.append(mine["start_ns"].to_numpy(), rows["end_ns"].iat[run])
        gap = end > begin
        missing.append(pd.DataFrame({"interval": run, "start_ns": begin[gap], "end_ns": end[gap]}))
    unseen = pd.concat(missing, ignore_index=True) if missing else pd.DataFrame()
    if not len(unseen):
        return out
    unseen = unseen.assign(cause="unknown", ref_kind="", ref_id=-1, detail="")
    both = [frames.check(t, frames.SEGMENTS) for t in (out, unseen)]
    whole = pd.concat(both, ignore_index=True)
    return whole.sort_values(["interval", "start_ns"], kind="stable", ignore_index=True)


def _details(details: pd.DataFrame, number: np.ndarray, run: np.ndarray) -> pd.DataFrame:
    """Details of renumbered intervals, merged per run: the reference is that of the row with the most time."""
    out = details.assign(interval=number[details["interval"].to_numpy()])
    of_run = run[details["interval"].to_numpy()]
    keys = ["interval", "cause", "detail", "direction", "memory", "stream"]
    mine = out[of_run]
    mine = mine.assign(took=mine["bytes"] / mine["bandwidth_gb_s"])  # nanoseconds
    mine = mine.sort_values([*keys, "ns"], ascending=[True] * len(keys) + [False])
    groups = mine.groupby(keys, sort=False)
    whole = groups.first().reset_index()
    for column in ("ns", "bytes", "took"):
        whole[column] = groups[column].sum().to_numpy()
    took = whole["took"].to_numpy()
    whole["bandwidth_gb_s"] = np.divide(whole["bytes"], took, out=np.full(len(whole), np.nan), where=took > 0)
    both = [frames.check(t, frames.DETAILS) for t in (out[~of_run], whole)]
    return pd.concat(both, ignore_index=True)


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
    start, end = trace.operations["start_ns"].to_numpy()[mine], trace.operations["end_ns"].to_numpy()[mine]
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
