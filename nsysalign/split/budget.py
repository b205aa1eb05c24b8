"""Alignment to budgets: the partition of every window, its sums, their bounds, and the tables that
are made of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import covered, index_type
from nsysalign.memory import trim_memory
from nsysalign.model import (
    CAUSES,
    KIND,
    ORIGIN,
    OTHERS_RAN,
    OTHERS_WORKED,
    Alignment,
    EventLog,
    Trace,
    pid_of,
    tid_of,
)
from nsysalign.place.lag import compared_pairs
from nsysalign.split.gaps import Explainer, launch_latency
from nsysalign.split.host_timers import (
    HostWindows,
    host_pieces_of,
    host_sums,
    kernels_issued_inside,
    synchronisation_flags,
)
from nsysalign.split.labels import name_intervals
from nsysalign.split.pieces import CAUSE, Pieces, Segments, join, segment_arrays, segments
from nsysalign.split.sweep import Details, StreamWindows, stream_pieces, stream_sums

DISTURBED, INTERVENED = "profiler-disturbed", "intervened"


@dataclass(frozen=True)
class SplitTrace:
    """A trace, where its intervals lie (rows of alignment.windows) and what they are made of:
    `parts` (`frames.PARTS`: of every window the same causes, one after the other), `details`, and
    about how many segments each window has (`size`).  Intervals are given by their
    numbers, ascending."""

    trace: Trace
    alignment: Alignment
    explainer: Explainer
    parts: pd.DataFrame
    size: np.ndarray
    details: pd.DataFrame
    operations: np.ndarray  # how many touch each window of a stream

    def budgets(self, which: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Nanoseconds of some windows, by cause: int64 (windows, causes)."""
        count = max(len(self.alignment.windows), 1)
        ns = self.parts["ns"].to_numpy().reshape(count, -1)[which]
        out = np.zeros((len(CAUSES), len(ns)), np.int64).T
        causes = self.parts["cause"].iloc[: len(self.parts) // count]
        out[:, [CAUSE[cause] for cause in causes]] = ns
        return out

    def segments(self, which: np.ndarray) -> pd.DataFrame:
        """`frames.SEGMENTS` of some intervals."""
        return segments(self.trace, self.alignment, self._pieces(which))

    def segment_arrays(self, which: np.ndarray) -> Segments:
        """The same without text, for rules."""
        return segment_arrays(self.trace, self.alignment, self._pieces(which))

    def _pieces(self, which: np.ndarray) -> Pieces:
        windows = self.alignment.windows
        host = (windows["kind"] == "host").to_numpy()[which]
        on, timers = which[~host], which[host]
        parts = [stream_pieces(self.explainer, StreamWindows.of(self.alignment), on)]
        if len(timers):
            w = HostWindows.of(windows)
            parts.append(host_pieces_of(self.explainer, w, timers, w.start[timers], w.end[timers]))
        return join(parts)


def split_trace(
    trace: Trace, alignment: Alignment, latency: dict[int, int] | None = None
) -> SplitTrace:
    """Partition every window of the alignment (docs/design.md).  `latency`: the usual launch
    latencies (`launch_latency`) where they were measured on more than this trace.

    sum(parts) == elapsed_ns for every window; an AssertionError would be a bug here, never the
    trace's fault.
    """
    windows = alignment.windows
    latency = launch_latency(trace) if latency is None else latency
    explainer = Explainer(trace, alignment, latency)
    trim_memory()
    details = Details(trace, alignment)
    host = (windows["kind"] == "host").to_numpy()
    unshifted = StreamWindows.of(alignment)
    places = [unshifted.shifted(shift) for shift in _shifts(windows)]
    totals, operations, size = stream_sums(explainer, places, np.flatnonzero(~host), details)
    if host.any():  # a host reading's error bar is too small to matter
        on_host = host_sums(explainer, windows, np.flatnonzero(host), details)
        totals = [total + on_host.totals[0] for total in totals]
        operations, size = operations + on_host.operations, size + on_host.size
    length = (windows["end_ns"] - windows["start_ns"]).to_numpy()
    wrong = np.flatnonzero(totals[0].sum(axis=1) != length)
    if len(wrong):
        raise AssertionError(
            f"budgets of {len(wrong)} windows do not add up, first: {windows.iloc[wrong[0]].to_dict()}"
        )
    del unshifted, places
    parts = _parts_table(totals)
    trim_memory()
    return SplitTrace(trace, alignment, explainer, parts, size, details.table(), operations)


def _shifts(windows: pd.DataFrame) -> Iterator[np.ndarray]:
    """By how much each window is shifted: not at all, and to either end of its error bar if any
    window has one."""
    error = np.where(windows["kind"].to_numpy() == "event", windows["error_ns"].to_numpy(), 0)
    start = windows["start_ns"].to_numpy()
    yield np.zeros(len(windows), np.int64)
    for sign, edge in ((-1, "start_lower_ns"), (1, "start_upper_ns")):
        reach = np.minimum(error, np.maximum(sign * (windows[edge].to_numpy() - start), 0))
        if reach.any():
            yield sign * reach


def _parts_table(totals: list[np.ndarray]) -> pd.DataFrame:
    """`frames.PARTS`: a row per interval and cause that occurs at all.  `totals`: ns per window and
    cause where the windows are, and at the ends of their error bars; it is emptied."""
    causes = np.flatnonzero(np.logical_or.reduce([total.any(axis=0) for total in totals]))
    count, ns = len(totals[0]), totals[0].take(causes, axis=1)
    lower, upper = ns.copy(), ns.copy()
    del totals[0]
    while totals:
        shifted = totals.pop()
        for number, cause in enumerate(causes.tolist()):
            np.minimum(lower[:, number], shifted[:, cause], out=lower[:, number])
            np.maximum(upper[:, number], shifted[:, cause], out=upper[:, number])
    table = {
        "interval": np.repeat(np.arange(count, dtype=index_type(count)), len(causes)),
        "cause": frames.texts(
            np.tile(np.arange(len(causes), dtype=np.int8), count), [CAUSES[c] for c in causes]
        ),
        "ns": ns.ravel(),
        "lower_ns": lower.ravel(),
        "upper_ns": upper.ravel(),
    }
    return frames.check(pd.DataFrame(table, copy=False), frames.PARTS, narrow=True)


def other_streams(split: SplitTrace) -> pd.DataFrame:
    """`frames.OTHER_STREAMS`: union of execution, per other stream, of work issued between an
    interval's ends."""
    windows, lanes, explainer = split.alignment.windows, split.alignment.lanes, split.explainer
    opened, closed, own, process = (
        windows[c].to_numpy() for c in ("open_ns", "close_ns", "end_lane", "process")
    )
    measured = ~windows["kind"].isin(["host", "run"]).to_numpy()
    process_of_lane, stream = (lanes[c].to_numpy() for c in ("process", "stream"))
    rows = [frames.empty(frames.OTHER_STREAMS)]
    for lane in explainer.streams.by_lane:
        blocks = explainer.streams.blocks(lane)
        call = explainer.call[blocks.ref]
        issue = explainer.call_start[call[call >= 0]]
        if not len(issue):
            continue
        near = measured & (closed > issue.min()) & (opened <= issue.max())
        wanted = np.flatnonzero(near & (own != lane) & (process == process_of_lane[lane]))
        order = np.argsort(issue, kind="stable")
        length = np.append(0, np.cumsum((blocks.end - blocks.start)[call >= 0][order]))
        first, last = (np.searchsorted(issue[order], t[wanted]) for t in (opened, closed))
        ns = length[np.maximum(last, first)] - length[first]
        table = pd.DataFrame({"interval": wanted, "stream": stream[lane], "ns": ns})
        rows.append(table[ns > 0])
    out = pd.concat(rows).sort_values(["interval", "stream"], ignore_index=True)
    return frames.check(out, frames.OTHER_STREAMS)


def intervals_table(split: SplitTrace, by_log: ByLog) -> pd.DataFrame:
    """`frames.INTERVALS`, named and without findings."""
    trace, alignment, total = split.trace, split.alignment, split.budgets()
    w, records, lanes = alignment.windows, alignment.records, alignment.lanes
    if w.empty:
        return frames.empty(frames.INTERVALS)
    lane_stream, lane_device, seq = (
        np.append(column.to_numpy(), -1)
        for column in (lanes["stream"], lanes["device"], records["seq"])
    )
    start_lane, end_lane = w["start_lane"].to_numpy(), w["end_lane"].to_numpy()
    kind = w["kind"].to_numpy(dtype=object)
    host = kind == "host"
    kernel, outside = total[:, CAUSE["kernel"]].copy(), np.zeros(len(w), np.int64)
    if host.any():
        kernel[host], outside[host] = kernels_issued_inside(
            trace, *(w[c].to_numpy()[host] for c in ("process", "start_ns", "end_ns"))
        )
    names, labels = name_intervals(w)
    out = w.drop(columns=["start", "end", "start_lane", "end_lane"]).assign(
        interval=np.arange(len(w)),
        name=names,
        label=labels,
        pid=pid_of(w["process"].to_numpy()),
        tid=tid_of(w["thread"].to_numpy()),
        start_record=seq[w["start"].to_numpy()],
        end_record=seq[w["end"].to_numpy()],
        device=lane_device[end_lane],
        start_stream=lane_stream[start_lane],
        end_stream=lane_stream[end_lane],
        kernel_only_ns=kernel,
        kernel_only_upper_ns=kernel + total[:, CAUSE["graph"]],
        kernel_outside_ns=outside,
        operations=split.operations,
        idle_at_most_ns=by_log.idle_at_most_ns,
        flags=pd.Series(_flags(split, total, by_log.intervened), dtype=object),
        findings=pd.Series([()] * len(w), dtype=object),
    )
    return frames.lean({c: out[c].array for c in out}, frames.INTERVALS, len(out))


class ByLog(NamedTuple):
    """What the event log alone says, per window: how long the GPU can have been idle because of the
    CPU (`place.lag`; NA where it does not say), and whether `nsysalign confirm` did something before
    the start record."""

    idle_at_most_ns: pd.Series
    intervened: np.ndarray


def by_the_log(alignment: Alignment, log: EventLog | None) -> ByLog:
    """The log is not needed any more once this is known."""
    windows, intervened = alignment.windows, np.zeros(len(alignment.windows), dtype=bool)
    if log is None:
        return ByLog(pd.Series(pd.NA, windows.index, dtype="Int64"), intervened)
    if log.records["intervened"].any():
        asked = log.records.loc[log.records["intervened"], ["process", "seq"]]
        seq = np.append(alignment.records["seq"].to_numpy(), -1)[windows["start"]]
        starts = pd.MultiIndex.from_arrays([windows["log_process"], seq])
        intervened = starts.isin(pd.MultiIndex.from_frame(asked))
    proven = compared_pairs(log, alignment.clock)["idle_at_most_ns"]
    source = windows["source"].where(windows["origin"] == ORIGIN["pair"], -1)
    return ByLog(proven.reindex(source).set_axis(windows.index), intervened)


def _flags(split: SplitTrace, total: np.ndarray, intervened: np.ndarray) -> list[tuple[str, ...]]:
    """Per window, what is to be known about its number besides its parts."""
    windows = split.alignment.windows
    kind, start, end, process, lane = (
        windows[c].to_numpy() for c in ("kind", "start_ns", "end_ns", "process", "end_lane")
    )
    # how long other streams of the device executed while a window's stream was idle
    others = np.zeros(len(windows), np.int64)
    busy, idle = (total[:, some].sum(axis=1) for some in (slice(len(KIND)), slice(len(KIND), None)))
    some_idle = ((kind == "event") | (kind == "nvtx")) & (idle > 0)
    for device, members in split.explainer.streams.members.items():
        those = np.flatnonzero(some_idle & np.isin(lane, members))
        blocks = split.explainer.streams.blocks(device)
        before, after = (covered(blocks.start, blocks.end, t[those]) for t in (start, end))
        others[those] = after - before - busy[those]
    # Whether the profiler worked in the interval's process inside the window: what it does while
    # the host runs ahead, before the GPU begins, does not disturb the measurement.  Everything that
    # it did lies in a run.
    disturbed = np.zeros(len(windows), dtype=bool)
    for number, rows in split.trace.overhead.groupby("process"):
        begins, ends = (np.sort(rows[c].to_numpy()) for c in ("start_ns", "end_ns"))
        working = np.searchsorted(begins, end) > np.searchsorted(ends, start, side="right")
        disturbed |= (process == number) & (kind != "run") & working
    ran = np.where(2 * others > idle, OTHERS_WORKED, np.where(100 * others > idle, OTHERS_RAN, ""))
    flags = zip(
        np.where(disturbed, DISTURBED, "").tolist(),
        np.where(intervened, INTERVENED, "").tolist(),
        ran.tolist(),
        windows["remarks"].array,
        synchronisation_flags(split.trace, split.alignment),
        strict=True,
    )
    return [(*filter(None, own), *remarks, *waited) for *own, remarks, waited in flags]
