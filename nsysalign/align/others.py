"""Windows that need no placing: host timers, NVTX ranges projected on the GPU, and record pairs found in a trace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.align.clock import ClockMap
from nsysalign.align.unplaced import Unplaced, unplaced
from nsysalign.model import ORIGIN, EventLog, Trace
from nsysalign.sweep.tiles import distinct, ragged


def _frame(count: int, columns: dict[str, object]) -> pd.DataFrame:
    """A WINDOWS frame: what is not given holds the value for "none"."""
    default: dict[str, object] = {
        "log_process": -1,
        "start": -1,
        "end": -1,
        "start_lane": -1,
        "end_lane": -1,
        "error_ns": 0,
        "method": "exact",
        "region": "",
        "site": "",
        "end_site": "",
        "library": False,
        "source": -1,
    }
    out = pd.DataFrame(
        {k: columns.get(k, v) for k, v in default.items()}
        | {k: v for k, v in columns.items() if k not in default},
        index=range(count),
    )
    out["clock_residual_ns"] = pd.array([pd.NA] * count, dtype="Int64")
    out["callers"] = pd.Series([()] * count, dtype=object, index=out.index)
    out["remarks"] = pd.Series([()] * count, dtype=object, index=out.index)
    return frames.check(out, frames.WINDOWS)


def host_windows(
    trace: Trace,
    log: EventLog,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
    origin: int = ORIGIN["host"],
) -> tuple[pd.DataFrame, list[Unplaced]]:
    """Host lines of the log on the trace's clock.  What the clocks cannot connect is returned with the reason."""
    hosts = log.hosts
    known = np.array([p in clocks and p in processes for p in hosts["process"].tolist()], dtype=bool)
    lost = [
        unplaced(r or s or "host timer", "no clock connects its process with the trace", s, origin, n)
        for n, r, s in hosts.loc[~known, ["region", "site"]].itertuples()
    ]
    rows, source = hosts[known].reset_index(drop=True), hosts.index.to_numpy()[known]
    if rows.empty:
        return frames.empty(frames.WINDOWS), lost
    start, end = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    width = np.empty(len(rows), np.int64)
    for number, group in rows.groupby("process"):
        clock, at = clocks[int(number)], group.index.to_numpy()
        # one offset per interval keeps the measured length to the nanosecond
        start[at] = clock.to_trace(group["t0_ns"].to_numpy())
        end[at] = start[at] + (group["t1_ns"] - group["t0_ns"]).to_numpy()
        width[at] = clock.width_ns
    backwards = end < start
    lost += [
        unplaced(r, "its end is before its start", s, origin, int(source[at]))
        for at, r, s in rows.loc[backwards, ["region", "site"]].itertuples()
    ]
    process = np.array([processes[p] for p in rows["process"].tolist()], dtype=np.int64)
    tid = rows["tid"].to_numpy()
    thread = np.where(tid >= 0, process | (tid & 0xFFFFFF), _busiest_thread(trace, process, start, end))
    out = host_frame(
        log_process=rows["process"].to_numpy(),
        process=process,
        thread=thread,
        start=start,
        elapsed=end - start,
        width=width,
        region=rows["region"].to_numpy(),
        site=rows["site"].to_numpy(),
        end_site=rows["site"].to_numpy(),
        origin=origin,
        source=source,
    )
    return out[~backwards].reset_index(drop=True), lost


def host_frame(
    *,
    log_process: np.ndarray,
    process: np.ndarray,
    thread: np.ndarray,
    start: np.ndarray,
    elapsed: np.ndarray,
    width: np.ndarray,
    region: np.ndarray,
    site: np.ndarray,
    end_site: np.ndarray,
    origin: int,
    source: np.ndarray,
) -> pd.DataFrame:
    """Windows of kind host: arrays of equal length, times on the trace's clock, `width` the clock's uncertainty."""
    end = start + elapsed
    return _frame(
        len(start),
        {
            "kind": "host",
            "log_process": log_process,
            "process": process,
            "thread": thread,
            "end_thread": thread,
            "open_ns": start,
            "close_ns": end,
            "close_end_ns": end,
            "elapsed_ns": elapsed,
            "start_ns": start,
            "end_ns": end,
            "start_lower_ns": start - width,
            "start_upper_ns": start + width,
            "error_ns": width,
            "region": region,
            "site": site,
            "end_site": end_site,
            "origin": origin,
            "source": source,
        },
    )


def _busiest_thread(trace: Trace, process: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For readings without a thread: the thread of the process with the most calls inside; the main thread where none has any."""
    calls = trace.calls
    thread, at = calls["thread"].to_numpy(), calls["start_ns"].to_numpy()
    best, most = process | ((process >> 24) & 0xFFFFFF), np.zeros(len(process), np.int64)
    for number in distinct(thread):
        mine = at[thread == number]
        count = np.searchsorted(mine, end) - np.searchsorted(mine, start)
        better = (count > most) & ((number & ~0xFFFFFF) == process)
        best, most = np.where(better, number, best), np.where(better, count, most)
    return best


def inferred_windows(records: pd.DataFrame, spread: np.ndarray) -> pd.DataFrame:
    """Consecutive records of one thread and stream, two by two, as intervals whose length is itself an estimate: nobody
    says that the program compared them.  `records`: with lane, thread, t_ns and bounds; `spread`: of their places."""
    at = np.flatnonzero(
        (records["lane"].to_numpy() >= 0)
        & (records["call"].to_numpy() >= 0)
        & (records["t_ns"].to_numpy() > 0)
    )
    order = at[
        np.lexsort(
            (
                records["call_start_ns"].to_numpy()[at],
                records["lane"].to_numpy()[at],
                records["thread"].to_numpy()[at],
            )
        )
    ]
    key = records[["thread", "lane"]].to_numpy()[order]
    new = np.concatenate([[True], (key[1:] != key[:-1]).any(axis=1)]) if len(order) else np.empty(0, bool)
    first = np.flatnonzero(new)
    rank = np.arange(len(order)) - first[np.cumsum(new) - 1] if len(order) else np.empty(0, np.int64)
    one = np.flatnonzero((rank[:-1] % 2 == 0) & ~new[1:]) if len(order) else np.empty(0, np.int64)
    start, end = order[one], order[one + 1]
    t = records["t_ns"].to_numpy()
    end = end[t[end] >= t[start]] if len(start) else end
    start = start[t[order[one + 1]] >= t[start]] if len(start) else start

    def of(column: str, index: np.ndarray) -> np.ndarray:
        return records[column].to_numpy()[index]

    error = np.rint(1.96 * np.hypot(spread[start], spread[end])).astype(np.int64)
    return _frame(
        len(start),
        {
            "kind": "event",
            "process": of("process", start),
            "thread": of("thread", start),
            "end_thread": of("thread", end),
            "start": start,
            "end": end,
            "start_lane": of("lane", start),
            "end_lane": of("lane", end),
            "open_ns": of("call_start_ns", start),
            "close_ns": of("call_start_ns", end),
            "close_end_ns": of("call_end_ns", end),
            "elapsed_ns": t[end] - t[start],
            "start_ns": t[start],
            "end_ns": t[end],
            "start_lower_ns": np.minimum(of("lower_ns", start), t[start]),
            "start_upper_ns": np.maximum(np.minimum(of("upper_ns", start), t[end]), t[start]),
            "error_ns": error,
            "method": "inferred",
            "origin": ORIGIN["records"],
            "region": [f"records of thread {x & 0xFFFFFF}" for x in of("thread", start).tolist()],
        },
    )


def nvtx_windows(trace: Trace, operation_lane: np.ndarray, lanes: pd.DataFrame) -> pd.DataFrame:
    """One window per NVTX range and stream with work launched inside the range.

    Inside: by the thread that opened it, or by a thread with no open range of its own (autograd's worker launches the
    backward kernels of a range that the main thread opened).  Window: first start to last end of that work.
    """
    ranges, operations, calls = trace.ranges, trace.operations, trace.calls
    issued = np.flatnonzero(operations["call"].to_numpy() >= 0)
    call = operations["call"].to_numpy()[issued]
    issue, thread = calls["start_ns"].to_numpy()[call], calls["thread"].to_numpy()[call]
    process = operations["process"].to_numpy()[issued]
    own = _inside_own_range(trace, issue, thread)
    pieces = []
    for number in np.unique(ranges["process"].to_numpy()):
        mine = np.flatnonzero(process == number)
        mine = mine[np.argsort(issue[mine], kind="stable")]
        rows = np.flatnonzero(ranges["process"].to_numpy() == number)
        first = np.searchsorted(issue[mine], ranges["start_ns"].to_numpy()[rows])
        last = np.searchsorted(issue[mine], ranges["end_ns"].to_numpy()[rows])
        owner, at = ragged(first, np.maximum(last - first, 0))
        at = mine[at]
        same = thread[at] == ranges["thread"].to_numpy()[rows][owner]
        keep = same | ~own[at]
        pieces.append(pd.DataFrame({"range": rows[owner][keep], "operation": issued[at][keep]}))
    inside = (
        pd.concat(pieces, ignore_index=True)
        if pieces
        else pd.DataFrame({"range": [], "operation": []}, dtype=np.int64)
    )
    if inside.empty:
        return frames.empty(frames.WINDOWS)
    inside["lane"] = operation_lane[inside["operation"].to_numpy()]
    inside["start"] = operations["start_ns"].to_numpy()[inside["operation"].to_numpy()]
    inside["end"] = operations["end_ns"].to_numpy()[inside["operation"].to_numpy()]
    spans = inside.groupby(["range", "lane"], as_index=False).agg(start=("start", "min"), end=("end", "max"))
    r = spans["range"].to_numpy()
    texts = ranges["text"].to_numpy(dtype=object)[r]
    several = spans.groupby("range")["lane"].transform("size").to_numpy() > 1
    return _frame(
        len(spans),
        {
            "kind": "nvtx",
            "origin": ORIGIN["range"],
            "process": ranges["process"].to_numpy()[r],
            "thread": ranges["thread"].to_numpy()[r],
            "end_thread": ranges["thread"].to_numpy()[r],
            "start_lane": spans["lane"].to_numpy(),
            "end_lane": spans["lane"].to_numpy(),
            "open_ns": ranges["start_ns"].to_numpy()[r],
            "close_ns": ranges["end_ns"].to_numpy()[r],
            "close_end_ns": ranges["end_ns"].to_numpy()[r],
            "elapsed_ns": (spans["end"] - spans["start"]).to_numpy(),
            "start_ns": spans["start"].to_numpy(),
            "end_ns": spans["end"].to_numpy(),
            "start_lower_ns": spans["start"].to_numpy(),
            "start_upper_ns": spans["start"].to_numpy(),
            "region": [
                _on_stream(t, s, n)
                for t, s, n in zip(
                    texts, several, lanes["stream"].to_numpy()[spans["lane"]].tolist(), strict=True
                )
            ],
        },
    )


def _on_stream(text: str, several: bool, stream: int) -> str:
    if not several:
        return text
    name, mark, number = text.rpartition("#")
    return f"{name} (stream {stream})#{number}" if mark and number.isdigit() else f"{text} (stream {stream})"


def _inside_own_range(trace: Trace, issue: np.ndarray, thread: np.ndarray) -> np.ndarray:
    """Whether each launching thread had a range of its own open at the time."""
    out = np.zeros(len(issue), dtype=bool)
    ranges = trace.ranges
    for number in np.unique(ranges["thread"].to_numpy()):
        mine = ranges["thread"].to_numpy() == number
        here = np.flatnonzero(thread == number)
        opened = np.searchsorted(np.sort(ranges["start_ns"].to_numpy()[mine]), issue[here], side="right")
        closed = np.searchsorted(np.sort(ranges["end_ns"].to_numpy()[mine]), issue[here], side="right")
        out[here] = opened > closed
    return out
