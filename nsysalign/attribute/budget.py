"""Alignment to budgets: the partition of every window, its sums, their bounds, and what they are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.attribute import describe
from nsysalign.attribute.busy import Streams
from nsysalign.attribute.gaps import Explainer
from nsysalign.attribute.host import HostWindows, host_window_pieces, kernels_issued_inside
from nsysalign.attribute.launch import launch_latency
from nsysalign.attribute.pieces import CAUSE, REF_KINDS, Pieces, join, make, sums
from nsysalign.attribute.stream import StreamWindows, stream_pieces
from nsysalign.attribute.synchronised import synchronisation_flags
from nsysalign.attribute.threads import Threads
from nsysalign.model import CAUSES, KIND, Alignment, Trace
from nsysalign.sweep.issue import lane_operations


@dataclass(frozen=True)
class Budgets:
    """Per window (row of alignment.windows): parts, segments, details, other streams, and interval columns."""

    parts: pd.DataFrame
    segments: pd.DataFrame
    details: pd.DataFrame
    other_streams: pd.DataFrame
    columns: pd.DataFrame
    launch_latency_ns: dict[str, int]


def attribute(trace: Trace, alignment: Alignment) -> Budgets:
    """Partition every window of the alignment (design section 4).

    sum(parts) == elapsed_ns for every window; AssertionError would be a bug of ours, never the trace's fault.
    """
    windows = alignment.windows
    lane_device = alignment.lanes["device"].to_numpy()
    streams, threads = Streams(trace, alignment.operation_lane, lane_device), Threads(trace)
    per_lane = lane_operations(trace, alignment.operation_lane, len(alignment.lanes))
    latency = launch_latency(trace, per_lane)
    explainer = Explainer(trace, alignment, streams, threads, per_lane, latency)
    host = (windows["kind"] == "host").to_numpy()
    on_stream, on_host = np.flatnonzero(~host), np.flatnonzero(host)

    def pieces(shift: np.ndarray) -> Pieces:
        at = stream_pieces(trace, streams, explainer, _stream_windows(alignment, on_stream, shift[on_stream]))
        w = HostWindows(
            *(windows[c].to_numpy()[on_host] for c in ("start_ns", "end_ns", "thread", "process"))
        )
        ho = host_window_pieces(trace, alignment, streams, threads, explainer, per_lane, w)
        return join([_renumber(at, on_stream), _renumber(ho, on_host)])

    chosen = pieces(np.zeros(len(windows), np.int64))
    total = sums(chosen, len(windows))
    elapsed = windows["elapsed_ns"].to_numpy()
    if not np.array_equal(total.sum(axis=1), elapsed):
        wrong = np.flatnonzero(total.sum(axis=1) != elapsed)
        raise AssertionError(
            f"budgets of {len(wrong)} windows do not add up, first: {windows.iloc[wrong[0]].to_dict()}"
        )
    low, high = _bounds(windows, total, lambda shift: sums(pieces(shift), len(windows)))
    used = total.any(axis=0) | high.any(axis=0)
    window, cause = np.nonzero(np.broadcast_to(used, total.shape))
    names = np.array(CAUSES, dtype=object)
    parts = pd.DataFrame(
        {
            "interval": window,
            "cause": names[cause],
            "ns": total[window, cause],
            "lower_ns": low[window, cause],
            "upper_ns": high[window, cause],
        }
    )
    return Budgets(
        parts=frames.check(parts, frames.PARTS),
        segments=describe.segments(trace, alignment, chosen),
        details=describe.details(trace, alignment, chosen),
        other_streams=_other_streams(trace, alignment, streams),
        columns=_columns(trace, alignment, total, chosen),
        launch_latency_ns={k: latency[KIND[k]] for k in KIND},
    )


def _renumber(p: Pieces, index: np.ndarray) -> Pieces:
    return make(
        index[p.window] if len(index) else p.window,
        p.start,
        p.end,
        p.cause,
        p.ref_kind,
        p.ref,
        p.detail,
        p.lane,
    )


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
    # the work of a range ends with an operation: nothing closes it but its own last one
    far = np.int64(1) << 62
    return StreamWindows(
        start + shift,
        end + shift,
        lane,
        np.where(event, close, far),
        np.where(event, close_end, far),
        thread,
        call,
        np.where(event, record, -1),
    )


def _bounds(windows: pd.DataFrame, total: np.ndarray, at) -> tuple[np.ndarray, np.ndarray]:
    """Least and most of every part when the window lies at either end of its error bar."""
    error = np.where(windows["kind"].to_numpy() == "event", windows["error_ns"].to_numpy(), 0)
    start = windows["start_ns"].to_numpy()
    low, high = total, total
    for sign, edge in ((-1, "start_lower_ns"), (1, "start_upper_ns")):
        reach = np.minimum(error, np.maximum(sign * (windows[edge].to_numpy() - start), 0))
        if reach.any():
            shifted = at(sign * reach)
            low, high = np.minimum(low, shifted), np.maximum(high, shifted)
    return low, high


def _other_streams(trace: Trace, alignment: Alignment, streams: Streams) -> pd.DataFrame:
    """Union of execution, per other stream, of work issued between an interval's ends."""
    windows, lanes = alignment.windows, alignment.lanes
    calls = trace.calls
    rows = []
    for lane in streams.by_lane:
        blocks = streams.blocks(lane)
        call = trace.operations["call"].to_numpy()[blocks.operation]
        ok = call >= 0
        issue = calls["start_ns"].to_numpy()[call[ok]]
        order = np.argsort(issue, kind="stable")
        length = np.append(0, np.cumsum((blocks.end - blocks.start)[ok][order]))
        wanted = np.flatnonzero(
            (windows["kind"] != "host").to_numpy()
            & (windows["end_lane"].to_numpy() != lane)
            & (windows["process"].to_numpy() == lanes["process"].iloc[lane])
        )
        first = np.searchsorted(issue[order], windows["open_ns"].to_numpy()[wanted])
        last = np.searchsorted(issue[order], windows["close_ns"].to_numpy()[wanted])
        ns = length[np.maximum(last, first)] - length[first]
        some = ns > 0
        rows.append(
            pd.DataFrame(
                {"interval": wanted[some], "stream": np.int64(lanes["stream"].iloc[lane]), "ns": ns[some]}
            )
        )
    out = pd.concat(rows, ignore_index=True) if rows else frames.empty(frames.OTHER_STREAMS)
    return frames.check(out.sort_values(["interval", "stream"], ignore_index=True), frames.OTHER_STREAMS)


def _columns(trace: Trace, alignment: Alignment, total: np.ndarray, chosen: Pieces) -> pd.DataFrame:
    """kernel_only_ns and its companions, the number of operations, and the profiler's disturbance, per window."""
    windows = alignment.windows
    host = (windows["kind"] == "host").to_numpy()
    kernel = total[:, CAUSE["kernel"]].copy()
    outside = np.zeros(len(windows), np.int64)
    if host.any():
        kernel[host], outside[host] = kernels_issued_inside(
            trace,
            windows["process"].to_numpy()[host],
            windows["start_ns"].to_numpy()[host],
            windows["end_ns"].to_numpy()[host],
        )
    on_gpu = np.isin(chosen.ref_kind, [REF_KINDS.index(k) for k in ("kernel", "graph", "memcpy", "memset")])
    executing = (
        on_gpu
        & np.isin(chosen.cause, [CAUSE[k] for k in ("kernel", "graph", "memcpy", "memset")])
        & (chosen.detail == 0)
    )
    pairs = np.unique(np.stack([chosen.window[executing], chosen.ref[executing]]), axis=1)
    operations = (
        np.bincount(pairs[0], minlength=len(windows)) if pairs.size else np.zeros(len(windows), np.int64)
    )
    return pd.DataFrame(
        {
            "kernel_only_ns": kernel,
            "kernel_only_upper_ns": kernel + total[:, CAUSE["graph"]],
            "kernel_outside_ns": outside,
            "operations": operations.astype(np.int64),
            "disturbed": _disturbed(trace, windows),
            "synchronised": pd.Series(synchronisation_flags(trace, alignment), dtype=object),
        }
    )


def _disturbed(trace: Trace, windows: pd.DataFrame) -> np.ndarray:
    """Whether the profiler worked in the interval's process while its calls were made."""
    out = np.zeros(len(windows), dtype=bool)
    overhead = trace.overhead
    for process in np.unique(overhead["process"].to_numpy()):
        mine = overhead["process"].to_numpy() == process
        begun = np.searchsorted(
            np.sort(overhead["start_ns"].to_numpy()[mine]), windows["close_end_ns"].to_numpy()
        )
        ended = np.searchsorted(
            np.sort(overhead["end_ns"].to_numpy()[mine]), windows["open_ns"].to_numpy(), side="right"
        )
        out |= (windows["process"].to_numpy() == process) & (begun > ended)
    return out
