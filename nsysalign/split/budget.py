"""Alignment to budgets: the partition of every window, its sums, their bounds, and what they are
made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import covered
from nsysalign.issue_order import FAR, lane_operations
from nsysalign.memory import trim_memory
from nsysalign.model import KIND, Alignment, Trace
from nsysalign.split import describe
from nsysalign.split.busy import Streams
from nsysalign.split.details import Details
from nsysalign.split.gaps import Explainer, launch_latency
from nsysalign.split.host_windows import (
    host_pieces_of,
    host_sums,
    kernels_issued_inside,
    synchronisation_flags,
)
from nsysalign.split.pieces import CAUSE, Pieces, join
from nsysalign.split.run_windows import devices
from nsysalign.split.sweep import StreamWindows, stream_pieces, stream_sums
from nsysalign.split.threads import Threads


@dataclass(frozen=True)
class Budgets:
    """Per window (row of alignment.windows): ns per cause and their bounds (int64 arrays, windows x
    causes), details, other streams, interval columns; segments of any."""

    total: np.ndarray
    low: np.ndarray
    high: np.ndarray
    details: pd.DataFrame
    other_streams: pd.DataFrame
    columns: pd.DataFrame
    launch_latency: dict[int, int]  # by code of operation kind, ns
    #: About how many segments each window has.
    size: np.ndarray
    #: Segments of the windows with these numbers (ascending).
    segments: Callable[[np.ndarray], pd.DataFrame]
    #: The same segments without text, for rules.
    segment_arrays: Callable[[np.ndarray], describe.Segments]


def attribute(trace: Trace, alignment: Alignment, latency: dict[int, int] | None = None) -> Budgets:
    """Partition every window of the alignment (docs/design.md).  `latency`: the usual launch
    latencies (`launch_latency`) where they were measured on more than this trace.

    sum(parts) == elapsed_ns for every window; an AssertionError would be a bug here, never the
    trace's fault.
    """
    windows = alignment.windows
    streams = Streams(trace, alignment)
    latency = launch_latency(trace) if latency is None else latency
    per_lane = lane_operations(trace, alignment.operation_lane)
    explainer = Explainer(trace, alignment, streams, Threads(trace), per_lane, latency)
    trim_memory()
    details = Details(trace, alignment)
    host = (windows["kind"] == "host").to_numpy()
    on, timers = np.flatnonzero(~host), np.flatnonzero(host)
    shifts = _shifts(windows)

    def pieces(which: np.ndarray) -> Pieces:
        on = which[~host[which]]
        of_stream = stream_pieces(explainer, _stream_windows(alignment, on, shifts[0][on]))
        of_stream = replace(of_stream, window=on[of_stream.window])
        of_host = host_pieces_of(explainer, windows, which[host[which]])
        return join([of_stream, of_host]) if len(of_host) else of_stream

    found = stream_sums(
        explainer, [_stream_windows(alignment, on, s[on]) for s in shifts], details, on
    )
    spent, ran, held = host_sums(explainer, windows, timers, details)
    totals = [spent.copy() for _ in shifts]  # a host reading's error bar is too small to matter
    for total, at_place in zip(totals, found.totals, strict=True):
        total[on] = at_place
    operations, size = ran, held
    operations[on], size[on] = found.operations, found.size
    trim_memory()
    total = totals[0]
    wrong = np.flatnonzero(
        total.sum(axis=1) != (windows["end_ns"] - windows["start_ns"]).to_numpy()
    )
    if len(wrong):
        raise AssertionError(
            f"budgets of {len(wrong)} windows do not add up, first: {windows.iloc[wrong[0]].to_dict()}"
        )
    return Budgets(
        total=total,
        low=np.minimum.reduce(totals),
        high=np.maximum.reduce(totals),
        details=details.table(),
        other_streams=_other_streams(trace, alignment, streams),
        columns=_columns(trace, alignment, streams, total, operations),
        launch_latency=latency,
        size=size,
        segments=lambda which: describe.segments(trace, alignment, pieces(which)),
        segment_arrays=lambda which: describe.segment_arrays(trace, alignment, pieces(which)),
    )


def _stream_windows(alignment: Alignment, which: np.ndarray, shift: np.ndarray) -> StreamWindows:
    w = alignment.windows
    start, end, lane, close, close_end, thread, record = (
        w[c].to_numpy()[which]
        for c in ("start_ns", "end_ns", "end_lane", "close_ns", "close_end_ns", "end_thread", "end")
    )
    event = (w["kind"] == "event").to_numpy()[which]
    calls = np.append(alignment.records["call"].to_numpy(), -1)
    # the work of a range ends with its own last operation: no record closes it
    return StreamWindows(
        start + shift,
        end + shift,
        lane,
        np.where(event, close, FAR),
        np.where(event, close_end, FAR),
        thread,
        np.where(event, calls[record], -1),
        np.where(event, record, -1),
    )


def _shifts(windows: pd.DataFrame) -> list[np.ndarray]:
    """By how much each window is shifted: not at all, and to either end of its error bar if any
    window has one."""
    error = np.where(windows["kind"].to_numpy() == "event", windows["error_ns"].to_numpy(), 0)
    start = windows["start_ns"].to_numpy()
    shifts = [np.zeros(len(windows), np.int64)]
    for sign, edge in ((-1, "start_lower_ns"), (1, "start_upper_ns")):
        reach = np.minimum(error, np.maximum(sign * (windows[edge].to_numpy() - start), 0))
        if reach.any():
            shifts.append(sign * reach)
    return shifts


def _other_streams(trace: Trace, alignment: Alignment, streams: Streams) -> pd.DataFrame:
    """Union of execution, per other stream, of work issued between an interval's ends."""
    windows, lanes = alignment.windows, alignment.lanes
    call_start = trace.calls["start_ns"].to_numpy()
    opened, closed, own, process = (
        windows[c].to_numpy() for c in ("open_ns", "close_ns", "end_lane", "process")
    )
    measured = ~windows["kind"].isin(["host", "run"]).to_numpy()
    calls, processes, stream_of = (
        trace.operations["call"].to_numpy(),
        *(lanes[c].to_numpy() for c in ("process", "stream")),
    )
    rows = [(np.empty(0, np.int64),) * 3]
    for lane in streams.by_lane:
        blocks = streams.blocks(lane)
        call = calls[blocks.operation]
        ok = call >= 0
        issue = call_start[call[ok]]
        if not len(issue):
            continue
        open_ = measured & (closed > issue.min()) & (opened <= issue.max())
        wanted = np.flatnonzero(open_ & (own != lane) & (process == processes[lane]))
        order = np.argsort(issue, kind="stable")
        length = np.append(0, np.cumsum((blocks.end - blocks.start)[ok][order]))
        first = np.searchsorted(issue[order], opened[wanted])
        last = np.searchsorted(issue[order], closed[wanted])
        ns = length[np.maximum(last, first)] - length[first]
        some = ns > 0
        rows.append((wanted[some], np.full(some.sum(), stream_of[lane]), ns[some]))
    columns = (np.concatenate(c) for c in zip(*rows, strict=True))
    out = pd.DataFrame(dict(zip(frames.OTHER_STREAMS.names, columns, strict=True)))
    return frames.check(
        out.sort_values(["interval", "stream"], ignore_index=True), frames.OTHER_STREAMS
    )


def _columns(
    trace: Trace, alignment: Alignment, streams: Streams, total: np.ndarray, operations: np.ndarray
) -> pd.DataFrame:
    """kernel_only_ns and its companions, the number of operations, and the profiler's disturbance,
    per window."""
    windows = alignment.windows
    host, run = (windows["kind"] == "host").to_numpy(), (windows["kind"] == "run").to_numpy()
    kernel = total[:, CAUSE["kernel"]].copy()
    outside = np.zeros(len(windows), np.int64)
    if host.any():
        kernel[host], outside[host] = kernels_issued_inside(
            trace, *(windows[c].to_numpy()[host] for c in ("process", "start_ns", "end_ns"))
        )
    others = _others_worked(alignment, streams, total)
    idle = total[:, len(KIND) :].sum(axis=1)
    return pd.DataFrame(
        {
            "kernel_only_ns": kernel,
            "kernel_only_upper_ns": kernel + total[:, CAUSE["graph"]],
            "kernel_outside_ns": outside,
            "operations": np.where(run, _begun(trace, alignment, streams), operations),
            "disturbed": _disturbed(trace, alignment),
            "synchronised": pd.Series(synchronisation_flags(trace, alignment), dtype=object),
            "others_worked": 2 * others > idle,
            "others_ran": 100 * others > idle,
        }
    )


def _others_worked(alignment: Alignment, streams: Streams, total: np.ndarray) -> np.ndarray:
    """How long other streams of the device executed while a window's stream was idle, ns."""
    windows = alignment.windows
    out = np.zeros(len(windows), np.int64)
    lane, start, end = (windows[c].to_numpy() for c in ("end_lane", "start_ns", "end_ns"))
    on_stream = windows["kind"].isin(["event", "nvtx"]).to_numpy()
    busy = total[:, : len(KIND)].sum(axis=1)
    for number, members in devices(alignment.lanes).items():
        mine = np.flatnonzero(on_stream & np.isin(lane, members) & (end - start > busy))
        blocks = streams.blocks(number)
        before, after = (covered(blocks.start, blocks.end, t[mine]) for t in (start, end))
        out[mine] = after - before - busy[mine]
    return out


def _begun(trace: Trace, alignment: Alignment, streams: Streams) -> np.ndarray:
    """Per window of kind run, the number of operations that begin in it, including those that
    overlap others; 0 for other kinds."""
    windows = alignment.windows
    out, start = np.zeros(len(windows), np.int64), trace.operations["start_ns"].to_numpy()
    lane, begin, end = (windows[c].to_numpy() for c in ("end_lane", "start_ns", "end_ns"))
    for at in np.flatnonzero((windows["kind"] == "run").to_numpy()).tolist():
        mine = start[streams.positions(int(lane[at]))]
        out[at] = np.diff(np.searchsorted(mine, [begin[at], end[at]]))[0]
    return out


def _disturbed(trace: Trace, alignment: Alignment) -> np.ndarray:
    """Whether the profiler worked in the interval's process inside the window: what it does while
    the host runs ahead, before the GPU begins, does not disturb the measurement.  False for runs:
    everything that the profiler did lies in them."""
    windows, overhead = alignment.windows, trace.overhead
    start, end, process = (windows[c].to_numpy() for c in ("start_ns", "end_ns", "process"))
    out = np.zeros(len(windows), dtype=bool)
    for number in np.unique(overhead["process"].to_numpy()):
        mine = overhead["process"].to_numpy() == number
        begun = np.searchsorted(np.sort(overhead["start_ns"].to_numpy()[mine]), end)
        ended = np.searchsorted(np.sort(overhead["end_ns"].to_numpy()[mine]), start, side="right")
        out |= (process == number) & (begun > ended)
    return out & (windows["kind"] != "run").to_numpy()
