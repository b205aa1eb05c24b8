"""Alignment to budgets: the partition of every window, its sums, their bounds, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.effort import trim_memory
from nsysalign.issue import EVER, lane_operations
from nsysalign.model import CAUSES, KIND, Alignment, SegmentArrays, Trace
from nsysalign.split import describe
from nsysalign.split.busy import Streams
from nsysalign.split.gaps import Explainer, launch_latency
from nsysalign.split.groups import Groups
from nsysalign.split.host_windows import (
    HostWindows,
    host_window_pieces,
    kernels_issued_inside,
    synchronisation_flags,
)
from nsysalign.split.pieces import CAUSE, Pieces, join
from nsysalign.split.run_windows import clipped, devices, extent, is_part
from nsysalign.split.stream import StreamWindows, stream_pieces
from nsysalign.split.sums import begun_before, host_sums, stream_sums
from nsysalign.split.threads import Threads
from nsysalign.tiles import covered


@dataclass(frozen=True)
class Budgets:
    """Per window (row of alignment.windows): ns per cause and their bounds (int64 arrays, windows x causes), details, other
    streams, interval columns; `segments` of any.  Of a part (`attribute.run_windows`), `low` and `high` are the parts at either end of
    the error bar: they become bounds when those of all slices have been added up."""

    total: np.ndarray
    low: np.ndarray
    high: np.ndarray
    details: pd.DataFrame
    other_streams: pd.DataFrame
    columns: pd.DataFrame
    launch_latency: dict[int, int]  # by code of operation kind, ns
    #: Segments of the windows with these numbers (ascending).
    segments: Callable[[np.ndarray], pd.DataFrame]
    #: The same segments without text, for rules.
    segment_arrays: Callable[[np.ndarray], SegmentArrays]
    #: About how many segments each window has.
    size: np.ndarray
    #: The pieces of parts that a slice's edges may have cut (`groups.CUT`).
    cut: pd.DataFrame


def attribute(trace: Trace, alignment: Alignment, latency: dict[int, int] | None = None) -> Budgets:
    """Partition every window of the alignment (docs/design.md, section 4).  `latency`: how long launches take where the device is
    idle (`launch_latency`); given if `trace` is only part of the evidence.

    sum(parts) == elapsed_ns for every window; an AssertionError would be a bug here, never the trace's fault.
    """
    windows = alignment.windows
    lane_device = alignment.lanes["device"].to_numpy()
    streams = Streams(trace, alignment.operation_lane, lane_device, devices(alignment.lanes))
    threads = Threads(trace)
    per_lane = lane_operations(trace, alignment.operation_lane)
    latency = launch_latency(trace) if latency is None else latency
    trim_memory()
    explainer = Explainer(trace, alignment, streams, threads, per_lane, latency)
    groups = Groups(trace, alignment)
    host, part, (start, end) = (
        (windows["kind"] == "host").to_numpy(),
        is_part(alignment),
        extent(alignment),
    )
    shifts = [np.zeros(len(windows), np.int64), *_shifts(windows, both=bool(part.any()))]

    def host_pieces(which: np.ndarray, begin: np.ndarray, over: np.ndarray) -> Pieces:
        more = (windows[c].to_numpy()[which] for c in ("thread", "process", "start_ns"))
        return _renumber(host_window_pieces(explainer, HostWindows(begin, over, *more)), which)

    def pieces(which: np.ndarray) -> Pieces:
        on = which[~host[which]]
        at = stream_pieces(explainer, _stream_windows(alignment, on, shifts[0][on]))
        rest = which[host[which]]
        return join([_renumber(at, on), host_pieces(rest, start[rest], end[rest])])

    totals = [np.zeros((len(windows), len(CAUSES)), np.int64) for _ in shifts]
    operations, size = np.zeros(len(windows), np.int64), np.zeros(len(windows), np.int64)
    on = np.flatnonzero(~host)
    places = [_stream_windows(alignment, on, shift[on]) for shift in shifts]
    found, operations[on], size[on] = stream_sums(explainer, places, groups, on)
    for total, here in zip(totals, found, strict=True):
        total[on] = here
    operations -= begun_before(explainer, alignment)
    spent, ran, pieces_each = host_sums(
        threads, windows, (start, end), np.flatnonzero(host), host_pieces, groups
    )
    for total in totals:  # the error bar of a host reading is too small to matter
        total += spent
    operations, size = operations + ran, size + pieces_each
    trim_memory()
    _refuse_other_sums(totals[0], windows, start, end)
    cut, details = groups.cut(), groups.table()
    trim_memory()
    low, high = _bounds(totals, part)
    return Budgets(
        total=totals[0],
        low=low,
        high=high,
        details=details,
        other_streams=_other_streams(trace, alignment, streams),
        columns=_columns(trace, alignment, streams, totals[0], operations),
        launch_latency=latency,
        segments=lambda which: describe.segments(trace, alignment, pieces(which)),
        segment_arrays=lambda which: describe.segment_arrays(trace, alignment, pieces(which)),
        size=size,
        cut=cut,
    )


def _bounds(totals: list[np.ndarray], part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) of the sums at all places; of parts, those at either end."""
    low, high = np.minimum.reduce(totals), np.maximum.reduce(totals)
    if part.any():
        low[part], high[part] = totals[1][part], totals[2][part]
    return low, high


def _refuse_other_sums(
    total: np.ndarray, windows: pd.DataFrame, start: np.ndarray, end: np.ndarray
) -> None:
    """Raises AssertionError if the parts of a window do not add up to its time."""
    wrong = np.flatnonzero(total.sum(axis=1) != end - start)
    if len(wrong):
        raise AssertionError(
            f"budgets of {len(wrong)} windows do not add up, first: {windows.iloc[wrong[0]].to_dict()}"
        )


def _renumber(p: Pieces, index: np.ndarray) -> Pieces:
    return replace(p, window=index[p.window]) if len(index) else p


def _stream_windows(alignment: Alignment, which: np.ndarray, shift: np.ndarray) -> StreamWindows:
    w = alignment.windows
    start, end, lane, close, close_end, thread, record = (
        w[c].to_numpy()[which]
        for c in ("start_ns", "end_ns", "end_lane", "close_ns", "close_end_ns", "end_thread", "end")
    )
    event = (w["kind"] == "event").to_numpy()[which]
    call = (
        np.where(event, alignment.records["call"].to_numpy()[np.maximum(record, 0)], -1)
        if len(alignment.records)
        else np.full(len(which), -1)
    )
    # the work of a range ends with its own last operation: no record closes it
    far = np.int64(1) << 62
    return StreamWindows(
        clipped(alignment, start + shift, which),
        clipped(alignment, end + shift, which),
        lane,
        np.where(event, close, far),
        np.where(event, close_end, far),
        thread,
        call,
        np.where(event, record, -1),
        end + shift,
    )


def _shifts(windows: pd.DataFrame, *, both: bool) -> list[np.ndarray]:
    """By how much each window is shifted to either end of its error bar; none if no window has an error bar, unless `both` are
    wanted."""
    error = np.where(windows["kind"].to_numpy() == "event", windows["error_ns"].to_numpy(), 0)
    start = windows["start_ns"].to_numpy()
    shifts = []
    for sign, edge in ((-1, "start_lower_ns"), (1, "start_upper_ns")):
        reach = np.minimum(error, np.maximum(sign * (windows[edge].to_numpy() - start), 0))
        if both or reach.any():
            shifts.append(sign * reach)
    return shifts


def _other_streams(trace: Trace, alignment: Alignment, streams: Streams) -> pd.DataFrame:
    """Union of execution, per other stream, of work issued between an interval's ends; of parts, what runs in the slice."""
    windows, lanes, part = alignment.windows, alignment.lanes, is_part(alignment)
    calls = trace.calls
    rows = []
    for lane, of_parts in product(streams.by_lane, (False, True)):
        wanted = np.flatnonzero(
            ~windows["kind"].isin(["host", "run"]).to_numpy()
            & (part == of_parts)
            & (windows["end_lane"].to_numpy() != lane)
            & (windows["process"].to_numpy() == lanes["process"].iloc[lane])
        )
        if not len(wanted):
            continue
        blocks = streams.blocks(lane)
        call = trace.operations["call"].to_numpy()[blocks.operation]
        ok = call >= 0
        begin, over = blocks.start[ok], blocks.end[ok]
        if of_parts:
            begin, over = (np.clip(t, *alignment.stretch) for t in (begin, over))
        issue = calls["start_ns"].to_numpy()[call[ok]]
        order = np.argsort(issue, kind="stable")
        length = np.append(0, np.cumsum((over - begin)[order]))
        first = np.searchsorted(issue[order], windows["open_ns"].to_numpy()[wanted])
        last = np.searchsorted(issue[order], windows["close_ns"].to_numpy()[wanted])
        ns = length[np.maximum(last, first)] - length[first]
        some = ns > 0
        rows.append(
            pd.DataFrame(
                {
                    "interval": wanted[some],
                    "stream": np.int64(lanes["stream"].iloc[lane]),
                    "ns": ns[some],
                }
            )
        )
    out = pd.concat(rows, ignore_index=True) if rows else frames.empty(frames.OTHER_STREAMS)
    return frames.check(
        out.sort_values(["interval", "stream"], ignore_index=True), frames.OTHER_STREAMS
    )


def _columns(
    trace: Trace, alignment: Alignment, streams: Streams, total: np.ndarray, operations: np.ndarray
) -> pd.DataFrame:
    """kernel_only_ns and its companions, the number of operations, and the profiler's disturbance, per window."""
    windows, part = alignment.windows, is_part(alignment)
    host, run = (windows["kind"] == "host").to_numpy(), (windows["kind"] == "run").to_numpy()
    kernel = total[:, CAUSE["kernel"]].copy()
    outside = np.zeros(len(windows), np.int64)
    for mine, stretch in ((host & ~part, EVER), (host & part, alignment.stretch)):
        if mine.any():
            process, start, end = (
                windows[c].to_numpy()[mine] for c in ("process", "start_ns", "end_ns")
            )
            kernel[mine], outside[mine] = kernels_issued_inside(trace, process, start, end, stretch)
    others, idle = _others_worked(alignment, streams, total)
    most = others_worked(others, idle)
    flags, launched, waited = synchronisation_flags(trace, alignment)
    return pd.DataFrame(
        {
            "kernel_only_ns": kernel,
            "kernel_only_upper_ns": kernel + total[:, CAUSE["graph"]],
            "kernel_outside_ns": outside,
            "operations": np.where(run, _begun(trace, alignment, streams), operations),
            "disturbed": _disturbed(trace, alignment),
            "synchronised": pd.Series(flags, dtype=object),
            "others_worked": most,
            "others_ran": 100 * others > idle,
            "others_ns": others,
            "launched_ns": launched,
            "waited_ns": waited,
        }
    )


def _others_worked(
    alignment: Alignment, streams: Streams, total: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(how long other streams of the device executed while a window's stream was idle, how long it was)."""
    windows, lanes = alignment.windows, alignment.lanes
    out = np.zeros(len(windows), np.int64)
    lane, on_stream = (
        windows["end_lane"].to_numpy(),
        windows["kind"].isin(["event", "nvtx"]).to_numpy(),
    )
    start, end = extent(alignment)
    idle = (end - start) - total[:, : len(KIND)].sum(axis=1)
    for number, members in devices(lanes).items():
        mine = np.flatnonzero(on_stream & np.isin(lane, members) & (idle > 0))
        if not len(mine):
            continue
        blocks = streams.blocks(number)
        device = [covered(blocks.start, blocks.end, t[mine]) for t in (start, end)]
        out[mine] = (device[1] - device[0]) - total[mine][:, : len(KIND)].sum(axis=1)
    return out, idle


def others_worked(others: np.ndarray, idle: np.ndarray) -> np.ndarray:
    """Whether the others executed through most of the idle time."""
    return (idle > 0) & (2 * others > idle)


def _begun(trace: Trace, alignment: Alignment, streams: Streams) -> np.ndarray:
    """Per window of kind run, the number of operations that begin in it, including those that overlap others; 0 for other
    kinds."""
    windows = alignment.windows
    out, start = np.zeros(len(windows), np.int64), trace.operations["start_ns"].to_numpy()
    for at in np.flatnonzero((windows["kind"] == "run").to_numpy()).tolist():
        lane = int(windows["end_lane"].iloc[at])
        mine = start[streams.positions(lane)]
        first, last = np.searchsorted(
            mine, [windows["start_ns"].iloc[at], windows["end_ns"].iloc[at]]
        )
        out[at] = last - first
    return out


def _disturbed(trace: Trace, alignment: Alignment) -> np.ndarray:
    """Whether the profiler worked in the interval's process inside the window: what it does while the host runs ahead, before
    the GPU begins, does not disturb the measurement."""
    windows, (start, end) = alignment.windows, extent(alignment)
    out = np.zeros(len(windows), dtype=bool)
    overhead = trace.overhead
    for process in np.unique(overhead["process"].to_numpy()):
        mine = overhead["process"].to_numpy() == process
        begun = np.searchsorted(np.sort(overhead["start_ns"].to_numpy()[mine]), end)
        ended = np.searchsorted(np.sort(overhead["end_ns"].to_numpy()[mine]), start, side="right")
        out |= (windows["process"].to_numpy() == process) & (begun > ended)
    out &= ~is_part(alignment) | (end > start)
    return (
        out & (windows["kind"] != "run").to_numpy()
    )  # everything the profiler did lies in the run
