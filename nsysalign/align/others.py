"""Windows that need no placing: host timers, NVTX ranges projected on the GPU, and record pairs found in a trace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.align.clock import ClockMap
from nsysalign.align.inferred import Pairs, record_pairs
from nsysalign.align.reasons import Unplaced, unplaced
from nsysalign.model import ORIGIN, UNSURE, EventLog, Trace, pid_of, process_of, thread_of, tid_of
from nsysalign.sweep.tiles import distinct, least


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
        unplaced(
            r or s or "host timer", "the clock of its process could not be tied to the trace's", s, origin, n
        )
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
    thread = np.where(tid >= 0, thread_of(process, tid), _busiest_thread(trace, process, start, end))
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
    best, most = thread_of(process, pid_of(process)), np.zeros(len(process), np.int64)
    for number in distinct(thread):
        mine = at[thread == number]
        count = np.searchsorted(mine, end) - np.searchsorted(mine, start)
        better = (count > most) & ((process_of(number)) == process)
        best, most = np.where(better, number, best), np.where(better, count, most)
    return best


def windows_without_log(
    trace: Trace,
    operation_lane: np.ndarray,
    lanes: pd.DataFrame,
    records: pd.DataFrame,
    waits: pd.DataFrame,
    spread: np.ndarray,
) -> tuple[list[pd.DataFrame], list[str]]:
    """(windows, notes) of a trace that no event log explains: pairs of records, NVTX ranges, last the pairs that are unsure.

    `records`: with lane, thread, t_ns and bounds; `waits`: with the record that each waits for; `spread`: of the places.
    """
    pairs = record_pairs(trace, operation_lane, records, waits)
    found = inferred_windows(records, pairs, spread)
    unsure = np.array(pairs.unsure, dtype=bool)
    ranges = nvtx_windows(trace, operation_lane, lanes)
    windows = [found[~unsure].reset_index(drop=True), ranges, found[unsure].reset_index(drop=True)]
    return windows, _pairing_notes(pairs)


def _pairing_notes(pairs: Pairs) -> list[str]:
    """What was paired on what grounds, and what was left."""
    count, unsure, left = len(pairs.start), sum(pairs.unsure), sum(pairs.left.values())
    if not count and not left:
        return []
    if not count:
        return [f"no interval is inferred from {left:,} records in the trace: {_why_left(pairs)}"]
    doubt = f", {unsure:,} of them unsure (listed last, without findings)" if unsure else ""
    why = _why_left(pairs)
    rest = (
        f"; {left:,} {'record belongs' if left == 1 else 'records belong'} to no pair ({why})" if left else ""
    )
    return [
        f"{count:,} {'interval is' if count == 1 else 'intervals are'} inferred from records in the trace, by their order, "
        f"their events and the waits after them{doubt}: it is not known whether the program compared them{rest}"
    ]


def _why_left(pairs: Pairs) -> str:
    return "; ".join(f"{n:,} {reason}" for reason, n in pairs.left.items())


def inferred_windows(records: pd.DataFrame, pairs: Pairs, spread: np.ndarray) -> pd.DataFrame:
    """Pairs of records as intervals whose length is itself an estimate."""
    start, end = np.array(pairs.start, dtype=np.int64), np.array(pairs.end, dtype=np.int64)
    t = _in_order(records)

    def of(column: str, index: np.ndarray) -> np.ndarray:
        return records[column].to_numpy()[index]

    error = np.rint(1.96 * np.hypot(spread[start], spread[end])).astype(np.int64)
    out = _frame(
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
            "region": [
                f"records of thread {tid_of(x)}{' (unsure)' if u else ''}"
                for x, u in zip(of("thread", start).tolist(), pairs.unsure, strict=True)
            ],
        },
    )
    out["remarks"] = pd.Series([(UNSURE,) if u else () for u in pairs.unsure], dtype=object, index=out.index)
    return out


def _in_order(records: pd.DataFrame) -> np.ndarray:
    """Places of records, none before that of one recorded earlier on its stream: between the same two operations each by
    itself says little of where it lies, their order says which comes first."""
    t, lane, at = (records[c].to_numpy() for c in ("t_ns", "lane", "call_start_ns"))
    out = t.copy()
    for number in np.unique(lane[lane >= 0]).tolist():
        mine = np.flatnonzero((lane == number) & (t > 0))
        mine = mine[np.argsort(at[mine], kind="stable")]
        out[mine] = np.maximum.accumulate(t[mine])
    return out


def nvtx_windows(trace: Trace, operation_lane: np.ndarray, lanes: pd.DataFrame) -> pd.DataFrame:
    """One window per NVTX range and stream with work launched inside the range.

    Inside: by the thread that opened it, or by a thread with no open range of its own (autograd's worker launches the
    backward kernels of a range that the main thread opened).  Window: first start to last end of that work.
    """
    ranges = trace.ranges
    spans = _spans_of_ranges(trace, operation_lane)
    if spans.empty:
        return frames.empty(frames.WINDOWS)
    r = spans["range"].to_numpy()
    texts = ranges["text"].to_numpy(dtype=object)[r]
    several = spans.groupby("range")["lane"].transform("size").to_numpy() > 1
    return _frame(
        len(spans),
        {
            "kind": "nvtx",
            "origin": ORIGIN["range"],
            "source": r,
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


def _spans_of_ranges(trace: Trace, operation_lane: np.ndarray) -> pd.DataFrame:
    """Columns range, lane, start, end: first start and last end of the work of each range on each lane.

    Memory goes with ranges and operations, not with their product: of ranges in ranges each holds the work of all inside.
    """
    ranges, operations, calls = trace.ranges, trace.operations, trace.calls
    issued = np.flatnonzero(operations["call"].to_numpy() >= 0)
    call = operations["call"].to_numpy()[issued]
    issue, thread = calls["start_ns"].to_numpy()[call], calls["thread"].to_numpy()[call]
    process, lane = operations["process"].to_numpy()[issued], operation_lane[issued]
    begin, end = operations["start_ns"].to_numpy()[issued], operations["end_ns"].to_numpy()[issued]
    own = _inside_own_range(trace, issue, thread)
    opened, closed = ranges["start_ns"].to_numpy(), ranges["end_ns"].to_numpy()
    pieces = []

    def add(rows: np.ndarray, which: np.ndarray) -> None:
        for number in distinct(lane[which]).tolist():
            mine = which[lane[which] == number]
            mine = mine[np.argsort(issue[mine], kind="stable")]
            first, last = (np.searchsorted(issue[mine], t[rows]) for t in (opened, closed))
            some = last > first
            extent = first[some], last[some]
            pieces.append(
                pd.DataFrame(
                    {
                        "range": rows[some],
                        "lane": number,
                        "start": least(begin[mine], *extent),
                        "end": -least(-end[mine], *extent),
                    }
                )
            )

    for number in distinct(ranges["thread"].to_numpy()).tolist():  # what the range's thread launched
        add(np.flatnonzero(ranges["thread"].to_numpy() == number), np.flatnonzero(thread == number))
    for number in distinct(ranges["process"].to_numpy()).tolist():  # and threads without ranges of their own
        add(
            np.flatnonzero(ranges["process"].to_numpy() == number), np.flatnonzero((process == number) & ~own)
        )
    if not pieces:
        return pd.DataFrame({"range": [], "lane": [], "start": [], "end": []}, dtype=np.int64)
    whole = pd.concat(pieces, ignore_index=True)
    return whole.groupby(["range", "lane"], as_index=False).agg(start=("start", "min"), end=("end", "max"))


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
