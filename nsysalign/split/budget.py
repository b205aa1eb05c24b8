"""Alignment to budgets: the partition of every window, its sums, their bounds, and the tables that
are made of them.

    window          [-----------------------------------)
    stream    KKKKKK  gap  KKKK  gap  KKKK  gap  KKKK  gap
    shared          [gap   KKKK  gap  KKKK  gap  KKKK)        the same for every window: running sums at two times
    tail                                             [gap)    ends with the end record, not with an operation

Every gap of a stream is explained once, from its P and N, the operations beside it; a window that
cuts it holds a part of that.  Only its tail, which follows the last operation that was issued before
its end record, is a window's alone; a host timer is all tail.  A window at either end of its error bar
is a window like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.causes import CAUSE, CAUSES
from nsysalign.intervals import covered, distinct, group, index_type, pick, tile
from nsysalign.memory import trim_memory
from nsysalign.model import (
    MOST_STREAMS,
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
from nsysalign.split.gaps import NEVER, Explainer, Windows, launch_latency, stream_pieces
from nsysalign.split.host_timers import (
    busy_inside,
    host_timer_pieces,
    kernels_issued_inside,
    synchronisation_flags,
)
from nsysalign.split.labels import name_intervals
from nsysalign.split.order import StreamOrder
from nsysalign.split.pieces import (
    REF_KINDS,
    WORK,
    Details,
    Pieces,
    Segments,
    Spans,
    join,
    ref_ids,
    words,
)

DISTURBED = "profiler-disturbed"
#: Blocks of a stream, and calls of threads, that are explained at once: they bound the memory.
_BLOCKS, _CALLS = 1 << 13, 1 << 17
#: Rows of other streams that are held at once, beyond what is kept.
_ROWS = 1 << 20


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
    #: What host timers waited for while it ran: window, operation and nanoseconds (3, n).
    waited_for: np.ndarray

    def budgets(self, windows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Nanoseconds of windows, by cause: int64 (windows, causes)."""
        count = max(len(self.alignment.windows), 1)
        ns = self.parts["ns"].to_numpy().reshape(count, -1)[windows]
        out = np.zeros((len(CAUSES), len(ns)), np.int64).T
        causes = self.parts["cause"].iloc[: len(self.parts) // count]
        out[:, [CAUSE[cause] for cause in causes]] = ns
        return out

    def segments(self, windows: np.ndarray) -> pd.DataFrame:
        """`frames.SEGMENTS` of these windows."""
        arrays = self.segment_arrays(windows)
        table = {
            "interval": arrays.interval,
            "start_ns": arrays.start,
            "end_ns": arrays.start + arrays.ns,
            "cause": np.array(CAUSES, dtype=object)[arrays.cause],
            "ref_kind": np.array(REF_KINDS, dtype=object)[arrays.ref_kind],
            "ref_id": arrays.ref_id,
            "detail": arrays.words(np.arange(len(arrays.ns))),
        }
        return frames.check(pd.DataFrame(table), frames.SEGMENTS)

    def segment_arrays(self, windows: np.ndarray) -> Segments:
        """The same as arrays: pieces, joined where they touch and are the same.  The text is only
        made for the rows that are shown."""
        places = Windows.measured(self.alignment)
        spans = Spans(windows, places.start[windows], places.end[windows])
        pieces = _pieces_of(self.explainer, places, spans)
        continues = pieces.end[:-1] == pieces.start[1:]
        for column in (pieces.window, pieces.cause, pieces.ref_kind, pieces.ref, pieces.detail):
            continues &= column[1:] == column[:-1]
        count = len(pieces.window)
        first = np.flatnonzero(np.append(True, ~continues)[:count])
        last = np.flatnonzero(np.append(~continues, True)[:count])
        end = pieces.end[last]
        pieces = pieces.take(first)
        return Segments(
            interval=pieces.window,
            start=pieces.start,
            ns=end - pieces.start,
            cause=pieces.cause,
            ref_kind=pieces.ref_kind,
            ref_id=ref_ids(self.trace, self.alignment, pieces),
            words=lambda index: words(self.trace, self.alignment, pieces.take(index)),
        )


def _pieces_of(explainer: Explainer, windows: Windows, spans: Spans) -> Pieces:
    """Tile spans of windows with pieces, exactly."""
    host = windows.host[spans.window]
    parts = [stream_pieces(explainer, windows, spans.take(~host))]
    if host.any():
        parts.append(host_timer_pieces(explainer, windows, spans.take(host)))
    return join(parts)


def split_trace(
    trace: Trace, alignment: Alignment, latency: np.ndarray | None = None
) -> SplitTrace:
    """Partition every window of the alignment (docs/design.md).  `latency`: the usual launch
    latencies (`launch_latency`) where they were measured on more than this trace.

    sum(parts) == elapsed_ns for every window; an AssertionError would be a bug here, never the
    trace's fault.
    """
    usual = launch_latency(trace) if latency is None else latency
    explainer = Explainer(trace, alignment, usual)
    trim_memory()
    partition = _Partition(explainer)
    partition.add_shared()
    partition.add_tails()
    partition.check()
    parts = _parts_table(partition.take_totals())
    trim_memory()
    return SplitTrace(
        trace,
        alignment,
        explainer,
        parts,
        partition.size,
        partition.details.table(),
        partition.operations,
        np.concatenate(partition.waited_for, axis=1),
    )


class _Partition:
    """What is added up over the windows of an alignment: at every place that they may have (as measured,
    then at the ends of their error bars) nanoseconds by cause; as measured, all that `SplitTrace` has."""

    def __init__(self, explainer: Explainer) -> None:
        trace, alignment = explainer.trace, explainer.alignment
        count = len(alignment.windows)
        self.explainer = explainer
        self.places = list(Windows.places(alignment))
        self.host = self.places[0].host
        #: Per place, where each window's tail begins.
        self.tails = [place.end.copy() for place in self.places]
        #: Per place, nanoseconds (windows, causes).
        self.totals = [np.zeros((count, len(CAUSES)), np.int64) for _ in self.places]
        self.details = Details(trace, alignment, explainer.streams.last_on)
        self.size = np.zeros(count, np.int64)
        self.operations = np.zeros(count, np.int64)
        self.waited_for = [np.empty((3, 0), np.int64)]

    def add_shared(self) -> None:
        """What windows of streams share with all others, lane by lane."""
        on_streams = np.flatnonzero(~self.host)
        lanes = self.places[0].lane[on_streams]
        for lane, windows in group(lanes, on_streams).items():
            for tail, place in zip(self.tails, self.places, strict=True):
                tail[windows] = _tail_start(self.explainer, lane, place.take(windows))
            self._add_lane(lane, windows)
            self._add_operations(lane, windows)

    def _add_lane(self, lane: int, windows: np.ndarray) -> None:
        """Adds what windows of one lane hold from their starts to their tails."""
        measured = _SpansByStart(windows, self.places[0].start, self.tails[0])
        sums = RunningSums(self.explainer, lane, windows, self.totals)
        for pieces in sums.between([place.start for place in self.places], self.tails):
            spans = measured.touched(pieces.start[0], pieces.end[-1])
            first = np.searchsorted(pieces.end, spans.start, side="right")
            last = np.searchsorted(pieces.start, spans.end)
            self.size[spans.window] += np.maximum(last - first, 0)
            self.details.add_shared(pieces, spans)

    def _add_operations(self, lane: int, windows: np.ndarray) -> None:
        """How many operations of the lane touch each window, and what these moved."""
        explainer = self.explainer
        spans = Spans(windows, self.places[0].start[windows], self.places[0].end[windows])
        positions = explainer.streams.positions(lane)
        ended = np.sort(explainer.op_end[positions])
        before = np.searchsorted(ended, spans.start, side="right")
        begun = np.searchsorted(explainer.op_start[positions], spans.end)
        self.operations[windows] = np.where(spans.end > spans.start, begun - before, 0)
        self.details.add_moved_during(positions, spans)

    def add_tails(self) -> None:
        """What windows do not share with others; of host timers all."""
        executed = [np.empty(0, np.int64)]
        for number, place in enumerate(self.places):
            tail, total = self.tails[number], self.totals[number]
            # a host reading's error bar is too small to matter: the same at every place
            tail[self.host] = place.end[self.host] if number else place.start[self.host]
            for pieces in _tail_pieces(self.explainer, place, tail):
                slot = pieces.window * len(CAUSES) + pieces.cause
                np.add.at(total.reshape(-1), slot, pieces.end - pieces.start)
                if number == 0:
                    self.size += np.bincount(pieces.window, minlength=len(self.size))
                    self.details.add(pieces)
                    executed.append(self._executed(pieces))
            total[self.host] = self.totals[0][self.host]
        pairs = np.unique(np.concatenate(executed))
        window = pairs >> 32
        self.details.add_moved(pairs & 0xFFFFFFFF, window)
        self.operations += np.bincount(window, minlength=len(self.operations))

    def _executed(self, pieces: Pieces) -> np.ndarray:
        """Windows of host timers and the operations that executed in them, without earlier work, as one
        number each.  What they waited for, earlier work too, is kept."""
        executes = (pieces.ref_kind < WORK) & (pieces.cause < WORK)
        pieces = pieces.take(np.flatnonzero(executes & self.host[pieces.window]))
        ns = pieces.end - pieces.start
        self.waited_for.append(np.stack([pieces.window, pieces.ref, ns]))
        inside = pieces.detail == 0
        return np.unique(pieces.window[inside] << 32 | pieces.ref[inside])

    def check(self) -> None:
        """Whether the parts of every window add up to it."""
        windows = self.explainer.alignment.windows
        length = (windows["end_ns"] - windows["start_ns"]).to_numpy()
        wrong = np.flatnonzero(self.totals[0].sum(axis=1) != length)
        if len(wrong):
            first = windows.iloc[wrong[0]].to_dict()
            raise AssertionError(f"budgets of {len(wrong)} windows do not add up, first: {first}")

    def take_totals(self) -> list[np.ndarray]:
        """The totals, which are given up here with the places: they take much memory."""
        totals = self.totals
        self.totals, self.places, self.tails = [], [], []
        return totals


class RunningSums:
    """How much of each cause lies between times of one lane, for windows that no record closes: the
    difference of running sums at the two.

        lane     KKKK  gap  KKKK   gap   KKKK  gap  KKKK
        batches  [1                )[2                 )[3          explained one after the other
        window        [start                end)

    Adds to `totals`, one array (windows, causes) for each place that the windows may have.
    """

    def __init__(
        self,
        explainer: Explainer,
        lane: int,
        windows: np.ndarray,
        totals: Sequence[np.ndarray],
    ) -> None:
        self.explainer = explainer
        self.lane = lane
        self.windows = windows
        self.totals = totals
        #: How much of each cause lies before the batch.
        self.before_batch = np.zeros(len(CAUSES), np.int64)

    def between(self, starts: Sequence[np.ndarray], ends: Sequence[np.ndarray]) -> Iterator[Pieces]:
        """Adds what lies between start and end, for each place (arrays of all windows).  Yields the
        pieces of each batch: there is never more than one of them in memory."""
        readings = []
        for total, start, end in zip(self.totals, starts, ends, strict=True):
            readings.append(_Reading(self.windows, start, total, sign=-1))
            readings.append(_Reading(self.windows, end, total, sign=1))
        low = min(reading.time[0] for reading in readings)
        high = max(reading.time[-1] for reading in readings)
        for pieces in _explained(self.explainer, self.lane, low, high):
            during = [reading.during(pieces.start[0], pieces.end[-1]) for reading in readings]
            times = [reading.time[rows] for reading, rows in zip(readings, during, strict=True)]
            sums = self._before(pieces, np.concatenate(times))
            for reading, rows in zip(readings, during, strict=True):
                count = rows.stop - rows.start
                reading.total[reading.window[rows]] += reading.sign * sums[:count]
                sums = sums[count:]
            yield pieces

    def _before(self, pieces: Pieces, times: np.ndarray) -> np.ndarray:
        """How much of each cause lies before each time inside a batch: (times, causes)."""
        before = np.tile(self.before_batch, (len(times), 1))
        for cause in distinct(pieces.cause).tolist():
            rows = np.flatnonzero(pieces.cause == cause)
            start, end = pieces.start[rows], pieces.end[rows]
            before[:, cause] += covered(start, end, times)
            self.before_batch[cause] += (end - start).sum()
        return before


class _Reading:
    """The starts (sign -1) or ends (1) of windows at one place, by time: there running sums are read, and
    added to `total`."""

    def __init__(
        self, windows: np.ndarray, edge: np.ndarray, total: np.ndarray, *, sign: int
    ) -> None:
        order = np.argsort(edge[windows])
        self.window = windows[order]
        self.time = edge[self.window]
        self.total = total
        self.sign = sign

    def during(self, low: int, high: int) -> slice:
        """The rows after `low`, up to `high`."""
        return slice(*np.searchsorted(self.time, [low, high], side="right").tolist())


class _SpansByStart:
    """Spans of windows that are asked for from left to right."""

    def __init__(self, windows: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
        self.start = start
        self.end = end
        self.coming = windows[np.argsort(start[windows], kind="stable")]
        self.open = windows[:0]

    def touched(self, low: int, high: int) -> Spans:
        """The spans that have begun before `high` and are not over at `low`, where the last stretch
        that was asked for ended."""
        first, stop = np.searchsorted(self.start[self.coming], [low, high])
        lasting = self.open[self.end[self.open] > low]
        self.open = np.append(lasting, self.coming[first:stop])
        return Spans(self.open, self.start[self.open], self.end[self.open])


def _tail_start(explainer: Explainer, lane: int, windows: Windows) -> np.ndarray:
    """Where the tail of each window of one lane begins, in which it sees the stream in its own way: at
    the end of the last operation that was issued before its end record, as were all before that; at
    its own end where the operation behind that was issued before the end record, too."""
    blocks = explainer.streams.blocks(lane)
    issue = pick(explainer.call_start, explainer.call[blocks.ref], NEVER)
    issued = np.searchsorted(np.maximum.accumulate(issue), windows.close_ns) if len(issue) else 0
    begun = np.searchsorted(blocks.start, windows.end)
    last = np.minimum(issued, begun)
    following = pick(issue, np.where(begun < len(issue), begun, -1), NEVER)
    no_tail = (last == begun) & (following > NEVER) & (following < windows.close_ns)
    start = np.clip(pick(blocks.end, last - 1, NEVER), windows.start, windows.end)
    return np.where(no_tail, windows.end, start)


def _tail_pieces(explainer: Explainer, windows: Windows, start: np.ndarray) -> Iterator[Pieces]:
    """Pieces of windows from `start` on, in batches during which about as many calls begin; a window
    with more calls than that is cut where some of them begin."""
    calls = explainer.call_start
    with_tail = np.flatnonzero(start < windows.end)
    edges = calls[::_CALLS]
    cut = tile(start[with_tail], windows.end[with_tail], edges[:-1], edges[1:])
    spans = Spans(with_tail[cut.piece], cut.start, cut.end)
    held = np.searchsorted(calls, spans.end) - np.searchsorted(calls, spans.start)
    batch = np.cumsum(held + 1) // _CALLS
    for rows in np.split(np.arange(len(batch)), np.flatnonzero(np.diff(batch)) + 1):
        yield _pieces_of(explainer, windows, spans.take(rows))


def _explained(explainer: Explainer, lane: int, low: int, high: int) -> Iterator[Pieces]:
    """Sorted disjoint pieces of a lane from `low` to `high`, as windows see them that no record
    closes, in batches of a bounded number of blocks, and of calls that were made meanwhile."""
    starts = explainer.streams.blocks(lane).start
    edges = np.concatenate([starts[::_BLOCKS], explainer.call_start[::_CALLS], [low, high]])
    edges = np.unique(edges[(edges >= low) & (edges <= high)])
    endless = Windows.endless(lane)
    for begin, end in pairwise(edges):
        span = Spans(np.zeros(1, np.int64), np.array([begin]), np.array([end]))
        yield stream_pieces(explainer, endless, span)


def _parts_table(totals: list[np.ndarray]) -> pd.DataFrame:
    """`frames.PARTS`: a row per interval and cause that occurs at all.  `totals`: ns per window and
    cause where the windows are, and at the ends of their error bars; the list is emptied."""
    causes = np.flatnonzero(np.logical_or.reduce([total.any(axis=0) for total in totals]))
    ns = totals.pop(0).take(causes, axis=1)
    count = len(ns)
    lower, upper = ns.copy(), ns.copy()
    while totals:
        shifted = totals.pop()
        for number, cause in enumerate(causes.tolist()):
            np.minimum(lower[:, number], shifted[:, cause], out=lower[:, number])
            np.maximum(upper[:, number], shifted[:, cause], out=upper[:, number])
    code = np.tile(np.arange(len(causes), dtype=np.int8), count)
    table = {
        "interval": np.repeat(np.arange(count, dtype=index_type(count)), len(causes)),
        "cause": frames.texts(code, [CAUSES[cause] for cause in causes]),
        "ns": ns.ravel(),
        "lower_ns": lower.ravel(),
        "upper_ns": upper.ravel(),
    }
    return frames.check(pd.DataFrame(table, copy=False), frames.PARTS, narrow=True)


def _busiest(table: pd.DataFrame) -> pd.DataFrame:
    """Of each interval at most MOST_STREAMS rows, those of the streams that worked longest."""
    if table["lane"].nunique() <= MOST_STREAMS:
        return table
    table = table.sort_values(["ns", "lane"], ascending=[False, True])
    return table[table.groupby("interval").cumcount() < MOST_STREAMS]


def other_streams(split: SplitTrace) -> pd.DataFrame:
    """`frames.OTHER_STREAMS`: union of execution, per other stream, of work issued between an
    interval's ends, of the MOST_STREAMS that worked longest; and whether its end is ordered behind
    that."""
    tables = [pd.DataFrame({"interval": [], "lane": [], "ns": []}, dtype=np.int64)]
    held = 0
    for lane in split.explainer.streams.by_lane:
        table = _work_issued_inside(split, lane)
        tables.append(table[table["ns"] > 0])
        held += len(tables[-1])
        if held > _ROWS:
            tables = [_busiest(pd.concat(tables))]
            held = 0
    table = _busiest(pd.concat(tables, ignore_index=True))
    stream = split.alignment.lanes["stream"].to_numpy()[table["lane"].to_numpy()]
    table = table.assign(stream=stream, ordered=_ordered_behind(split, table))
    table = table.sort_values(["interval", "stream"], ignore_index=True)
    return frames.check(table, frames.OTHER_STREAMS)


def _work_issued_inside(split: SplitTrace, lane: int) -> pd.DataFrame:
    """Columns interval, lane and ns: how long a lane executed what was issued inside the intervals of
    its process that lie elsewhere."""
    explainer, windows = split.explainer, split.alignment.windows
    blocks = explainer.streams.blocks(lane)
    call = explainer.call[blocks.ref]
    issue = explainer.call_start[call[call >= 0]]
    if not len(issue):
        return pd.DataFrame({"interval": [], "lane": [], "ns": []}, dtype=np.int64)
    opened = windows["open_ns"].to_numpy()
    closed = windows["close_ns"].to_numpy()
    members = explainer.streams.members
    lanes_with_it = [number for number, streams in members.items() if lane in streams]
    elsewhere = ~np.isin(windows["end_lane"].to_numpy(), [lane, *lanes_with_it])
    elsewhere &= ~windows["kind"].isin(["host", "run"]).to_numpy()
    process = split.alignment.lanes["process"].to_numpy()[lane]
    elsewhere &= windows["process"].to_numpy() == process
    near = (closed > issue.min()) & (opened <= issue.max())
    interval = np.flatnonzero(elsewhere & near)
    order = np.argsort(issue, kind="stable")
    issue = issue[order]
    length = (blocks.end - blocks.start)[call >= 0][order]
    executed = np.append(0, np.cumsum(length))
    first = np.searchsorted(issue, opened[interval])
    last = np.searchsorted(issue, closed[interval])
    ns = executed[np.maximum(last, first)] - executed[first]
    return pd.DataFrame({"interval": interval, "lane": lane, "ns": ns})


def _ordered_behind(split: SplitTrace, table: pd.DataFrame) -> np.ndarray:
    """Bool, per row of interval and lane: whether the end record of the interval is ordered behind what
    was issued to the lane before."""
    windows = split.alignment.windows
    ordered = np.zeros(len(table), dtype=bool)
    interval = table["interval"].to_numpy()
    rows = np.flatnonzero((windows["kind"] == "event").to_numpy()[interval])
    if len(rows):
        end_lane = windows["end_lane"].to_numpy()[interval[rows]]
        close_ns = windows["close_ns"].to_numpy()[interval[rows]]
        lane = table["lane"].to_numpy()[rows]
        ordered[rows] = StreamOrder(split.explainer).ordered(end_lane, close_ns, lane)
    return ordered


def intervals_table(split: SplitTrace, idle_at_most_ns: pd.Series) -> pd.DataFrame:
    """`frames.INTERVALS`, named and without findings.  idle_at_most_ns: `idle_by_the_log`."""
    windows, lanes = split.alignment.windows, split.alignment.lanes
    if windows.empty:
        return frames.empty(frames.INTERVALS)
    total = split.budgets()
    # position -1: none
    stream = np.append(lanes["stream"].to_numpy(), -1)
    device = np.append(lanes["device"].to_numpy(), -1)
    seq = np.append(split.alignment.records["seq"].to_numpy(), -1)
    start_lane = windows["start_lane"].to_numpy()
    end_lane = windows["end_lane"].to_numpy()
    names, labels = name_intervals(windows)
    table = windows.drop(columns=["start", "end", "start_lane", "end_lane"]).assign(
        interval=np.arange(len(windows)),
        name=names,
        label=labels,
        pid=pid_of(windows["process"].to_numpy()),
        tid=tid_of(windows["thread"].to_numpy()),
        start_record=seq[windows["start"].to_numpy()],
        end_record=seq[windows["end"].to_numpy()],
        device=device[end_lane],
        start_stream=stream[start_lane],
        end_stream=stream[end_lane],
        operations=split.operations,
        idle_at_most_ns=idle_at_most_ns,
        flags=pd.Series(_flags(split, total), dtype=object),
        findings=pd.Series([()] * len(windows), dtype=object),
        **_work_inside(split, total),
    )
    columns = {name: table[name].array for name in table}
    return frames.lean(columns, frames.INTERVALS, len(table))


def _work_inside(split: SplitTrace, total: np.ndarray) -> dict[str, np.ndarray]:
    """How much executed in each window, by column of `frames.INTERVALS`: of a stream by its budget
    (`total`), of a host timer what was issued inside it."""
    windows = split.alignment.windows
    kernel = total[:, CAUSE["kernel"]].copy()
    with_graphs = kernel + total[:, CAUSE["graph"]]
    outside = np.zeros(len(windows), np.int64)
    busy = total[:, :WORK].sum(axis=1)
    host = (windows["kind"] == "host").to_numpy()
    if host.any():
        timers = windows[host]
        process = timers["process"].to_numpy()
        start = timers["start_ns"].to_numpy()
        end = timers["end_ns"].to_numpy()
        kinds = ("kernel", "graph")
        kernel[host], _ = kernels_issued_inside(split.trace, process, start, end)
        with_graphs[host], outside[host] = kernels_issued_inside(
            split.trace, process, start, end, kinds
        )
        busy[host] = busy_inside(split.trace, process, start, end)
    return {
        "kernel_only_ns": kernel,
        "kernel_only_upper_ns": with_graphs,
        "kernel_outside_ns": outside,
        "gpu_busy_ns": busy,
    }


def idle_by_the_log(alignment: Alignment, log: EventLog | None) -> pd.Series:
    """Int64, per window: how long the GPU can have been idle because of the CPU, by the event log alone
    (`place.lag`); NA where it does not say."""
    windows = alignment.windows
    if log is None:
        return pd.Series(pd.NA, windows.index, dtype="Int64")
    proven = compared_pairs(log, alignment.clock)["idle_at_most_ns"]
    source = windows["source"].where(windows["origin"] == ORIGIN["pair"], -1)
    return proven.reindex(source).set_axis(windows.index)


def _flags(split: SplitTrace, total: np.ndarray) -> list[tuple[str, ...]]:
    """Per window, what is to be known about its number besides its parts."""
    windows = split.alignment.windows
    idle = total[:, WORK:].sum(axis=1)
    worked = _others_worked(split, total)
    columns = zip(
        _disturbed(split).tolist(),
        (2 * worked > idle).tolist(),
        (100 * worked > idle).tolist(),
        windows["remarks"].array,
        synchronisation_flags(split.trace, split.alignment),
        strict=True,
    )
    flags = []
    for disturbed, for_long, at_all, remarks, synchronised in columns:
        texts = [DISTURBED] * disturbed
        if for_long:
            texts.append(OTHERS_WORKED)
        elif at_all:
            texts.append(OTHERS_RAN)
        flags.append((*texts, *remarks, *synchronised))
    return flags


def _others_worked(split: SplitTrace, total: np.ndarray) -> np.ndarray:
    """Per window, for how long (ns) other streams of its device executed while its own were idle."""
    windows = split.alignment.windows
    streams = split.explainer.streams
    kind = windows["kind"].to_numpy()
    lane = windows["end_lane"].to_numpy()
    busy = total[:, :WORK].sum(axis=1)
    has_idle = total[:, WORK:].sum(axis=1) > 0
    has_idle &= (kind == "event") | (kind == "nvtx")
    worked = np.zeros(len(windows), np.int64)
    for device, members in streams.devices.items():
        sets = [
            number
            for number, lanes in streams.members.items()
            if number not in streams.devices and np.isin(lanes, members).all()
        ]
        rows = np.flatnonzero(has_idle & np.isin(lane, [*members, *sets]))
        blocks = streams.blocks(device)
        before = covered(blocks.start, blocks.end, windows["start_ns"].to_numpy()[rows])
        after = covered(blocks.start, blocks.end, windows["end_ns"].to_numpy()[rows])
        worked[rows] = after - before - busy[rows]
    return worked


def _disturbed(split: SplitTrace) -> np.ndarray:
    """Bool, per window: whether the profiler worked in its process inside it: what it does while the
    host runs ahead, before the GPU begins, does not disturb the measurement.  Everything that it did
    lies in a run."""
    windows = split.alignment.windows
    process = windows["process"].to_numpy()
    measured = windows["kind"].to_numpy() != "run"
    start = windows["start_ns"].to_numpy()
    end = windows["end_ns"].to_numpy()
    disturbed = np.zeros(len(windows), dtype=bool)
    for number, rows in split.trace.overhead.groupby("process"):
        begun = np.searchsorted(np.sort(rows["start_ns"].to_numpy()), end)
        over = np.searchsorted(np.sort(rows["end_ns"].to_numpy()), start, side="right")
        disturbed |= measured & (process == number) & (begun > over)
    return disturbed
