"""From an alignment to budgets: split every window into pieces, add these up, bound the sums, and
make tables of them.

    window          [-----------------------------------)
    stream    KKKKKK  gap  KKKK  gap  KKKK  gap  KKKK  gap
    shared          [gap   KKKK  gap  KKKK  gap  KKKK)        the same for every window: running sums at two times
    tail                                             [gap)    ends with the end record, not with an operation

window    a measured interval on the timeline of the GPU: a row of `alignment.windows`
lane      a stream of one process, by its number: a row of `alignment.lanes`; some lanes stand for
          several streams (`Streams.members`)
block     a stretch in which a lane executes something; the blocks of a lane never overlap
gap       a stretch between two blocks; the operation before it is called P, the one after it N
piece     a stretch of a window with one cause; pieces tile the window
tail      the end of a window, after the last operation that was issued before its end record
place     where a window lies: as it was measured, or moved to one end of its error bar
issued    by when the host began the call that launches an operation, not by when it executes

Every gap is explained once, from its P and N, and each window that cuts the gap takes its share of
that explanation.  Only the tail is explained for each window alone.  A host timer is all tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.causes import CAUSE, CAUSES
from nsysalign.intervals import batches, covered, group, index_type, pick, tile
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
from nsysalign.split.details import Details
from nsysalign.split.gaps import BEFORE_ALL, Explainer, Windows, launch_latency, stream_pieces
from nsysalign.split.host_timers import (
    busy_inside,
    earlier_work,
    host_timer_pieces,
    kernels_issued_inside,
    synchronisation_flags,
)
from nsysalign.split.labels import name_intervals
from nsysalign.split.order import StreamOrder
from nsysalign.split.pieces import (
    REF_KINDS,
    WORK,
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
_MOST_ROWS_HELD = 1 << 20


class Executed(NamedTuple):
    """For how long operations executed in windows: arrays of equal length."""

    window: np.ndarray
    #: Its position in the trace's operations.
    operation: np.ndarray
    ns: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Executed]) -> Executed:
        """Return the stretches of all parts."""
        empty = np.empty(0, np.int64)
        columns = zip(cls(empty, empty, empty), *parts, strict=True)
        return cls(*map(np.concatenate, columns))


@dataclass(frozen=True)
class SplitTrace:
    """A trace with all its windows split by cause.

    Methods take windows by their numbers (rows of `alignment.windows`), in ascending order.
    """

    trace: Trace
    alignment: Alignment
    explainer: Explainer
    #: `frames.PARTS`: every window has a row for each of the same causes, in the same order.
    parts: pd.DataFrame
    #: Per window, roughly how many segments it has.
    size: np.ndarray
    #: `frames.DETAILS`.
    details: pd.DataFrame
    #: Per window, how many operations touch it.
    operations: np.ndarray
    #: In host timers: the operations for which calls waited while these executed.
    waited_for: Executed

    def budgets(self, windows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return how long (ns) these windows spent on each cause: int64 (windows, causes)."""
        count = max(len(self.alignment.windows), 1)
        ns = self.parts["ns"].to_numpy().reshape(count, -1)[windows]
        out = np.zeros((len(CAUSES), len(ns)), np.int64).T  # each cause lies in one piece of memory
        causes = self.parts["cause"].iloc[: len(self.parts) // count]
        out[:, [CAUSE[cause] for cause in causes]] = ns
        return out

    def segments(self, windows: np.ndarray) -> pd.DataFrame:
        """Return `frames.SEGMENTS` of these windows."""
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
        """Return the segments of these windows as arrays, sorted by window and time: what each window was made of, one
        stretch of time with one cause after the other.

        windows: their numbers, rising

        A segment joins neighbouring pieces that touch and say the same.  Its words are made only
        when they are asked for, as a page shows few of the rows.

        pieces     [kernel A)[host)[host)[kernel B)
        segments   [kernel A)[host      )[kernel B)
        """
        places = Windows.measured(self.alignment)
        spans = Spans(windows, places.start[windows], places.end[windows])
        pieces = _pieces_of(self.explainer, places, spans)
        # per piece but the last: whether the next one continues it
        continued = pieces.end[:-1] == pieces.start[1:]
        for column in (pieces.window, pieces.cause, pieces.ref_kind, pieces.ref, pieces.detail):
            continued &= column[1:] == column[:-1]
        count = len(pieces.window)  # may be 0
        is_first = np.append(True, ~continued)[:count]
        is_last = np.append(~continued, True)[:count]
        firsts = pieces.take(np.flatnonzero(is_first))
        end = pieces.end[np.flatnonzero(is_last)]
        return Segments(
            interval=firsts.window,
            start=firsts.start,
            ns=end - firsts.start,
            cause=firsts.cause,
            ref_kind=firsts.ref_kind,
            ref_id=ref_ids(self.trace, self.alignment, firsts),
            words=lambda index: words(self.trace, self.alignment, firsts.take(index)),
        )


def _pieces_of(explainer: Explainer, windows: Windows, spans: Spans) -> Pieces:
    """Return pieces that tile these spans of windows exactly, sorted by window and time."""
    host = windows.host[spans.window]
    parts = [stream_pieces(explainer, windows, spans.take(~host))]
    if host.any():
        parts.append(host_timer_pieces(explainer, windows, spans.take(host)))
    return join(parts)


def split_trace(
    trace: Trace, alignment: Alignment, latency: np.ndarray | None = None
) -> SplitTrace:
    """Return the trace with every window (measured interval) of the alignment split by cause: how long it spent on kernels,
    copies, launches, waiting, and so on, and what these were.  The rules are in docs/design.md.

    latency: the usual launch latencies (int64 ns, by the code of a kind of operation): those of several traces
             together, or None to measure them in this one (`launch_latency`)

    The parts of a window add up to its elapsed_ns exactly.  An AssertionError says that they do
    not: a bug here, never the trace's fault.
    """
    usual = launch_latency(trace) if latency is None else latency
    explainer = Explainer(trace, alignment, usual)
    trim_memory()  # what making the explainer has freed
    partition = _Partition(explainer)
    # what a lane did is explained once for all its windows; only the last part of each window, which ends with a
    # record and not with an operation, is explained for this window alone
    partition.add_shared()
    partition.add_tails()
    partition.check()
    parts = _parts_table(partition.take_totals())
    trim_memory()  # what the totals took
    return SplitTrace(
        trace=trace,
        alignment=alignment,
        explainer=explainer,
        parts=parts,
        size=partition.size,
        details=partition.details.table(),
        operations=partition.operations,
        waited_for=Executed.joined(partition.waited_for),
    )


class _Partition:
    """Adds up what the windows of an alignment are made of.

    Nanoseconds by cause are added up at every place of the windows: as measured, then at either
    end of their error bars.  All else that `SplitTrace` holds is added up as measured only.
    """

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
        self.waited_for: list[Executed] = []

    def add_shared(self) -> None:
        """Add the shared part of all windows of streams, from start to tail, lane by lane."""
        on_streams = np.flatnonzero(~self.host)
        lanes = self.places[0].lane[on_streams]
        for lane, windows in group(lanes, on_streams).items():
            for tail, place in zip(self.tails, self.places, strict=True):
                tail[windows] = _tail_start(self.explainer, lane, place.take(windows))
            self._add_lane(lane, windows)
            self._add_operations(lane, windows)

    def _add_lane(self, lane: int, windows: np.ndarray) -> None:
        """Add the shared part of these windows of one lane, from their starts to their tails."""
        starts = [place.start for place in self.places]
        sums = RunningSums(windows, starts, self.tails, self.totals)
        measured = _SpansByStart(windows, starts[0], self.tails[0])
        for pieces in _explained(self.explainer, lane, sums.low, sums.high):
            sums.add(pieces)
            spans = measured.touched(pieces.start[0], pieces.end[-1])
            first = np.searchsorted(pieces.end, spans.start, side="right")
            last = np.searchsorted(pieces.start, spans.end)
            self.size[spans.window] += np.maximum(last - first, 0)
            self.details.add_shared(pieces, spans)

    def _add_operations(self, lane: int, windows: np.ndarray) -> None:
        """Count the operations of the lane that touch each window, and add the bytes they moved."""
        explainer = self.explainer
        spans = Spans(windows, self.places[0].start[windows], self.places[0].end[windows])
        positions = explainer.streams.positions(lane)
        ends = np.sort(explainer.op_end[positions])
        over = np.searchsorted(ends, spans.start, side="right")  # before the window
        begun = np.searchsorted(explainer.op_start[positions], spans.end)  # before its end
        self.operations[windows] = np.where(spans.end > spans.start, begun - over, 0)
        self.details.add_moved_during(positions, spans)

    def add_tails(self) -> None:
        """Add the tail of every window, which is the whole of a host timer.

        Host timers are explained only where they were measured: the error of reading a host clock is too small to
        matter.  At the other places they have no tail, and the totals of where they were measured.
        """
        executed = [np.empty(0, np.int64)]
        for number, place in enumerate(self.places):
            is_measured = number == 0  # else moved to an end of the error bars
            tail, total = self.tails[number], self.totals[number]
            tail[self.host] = place.start[self.host] if is_measured else place.end[self.host]
            for pieces in _tail_pieces(self.explainer, place, tail):
                slot = pieces.window * len(CAUSES) + pieces.cause
                np.add.at(total.reshape(-1), slot, pieces.end - pieces.start)
                if is_measured:
                    self.size += np.bincount(pieces.window, minlength=len(self.size))
                    self.details.add(pieces)
                    executed.append(self._executed(pieces))
            if not is_measured:
                total[self.host] = self.totals[0][self.host]
        window, operation = _unpacked(np.unique(np.concatenate(executed)))
        self.details.add_moved(operation, window)
        self.operations += np.bincount(window, minlength=len(self.operations))

    def _executed(self, pieces: Pieces) -> np.ndarray:
        """Return the pairs of a host timer and an operation that executed while the timer waited
        for it, each pair once and packed (`_packed`).

        Work that was queued before the window is left out of the pairs, but not of `waited_for`,
        to which all pieces that execute are added.
        """
        executes = (pieces.ref_kind < WORK) & (pieces.cause < WORK)
        executes &= self.host[pieces.window]
        executing = pieces.take(np.flatnonzero(executes))
        ns = executing.end - executing.start
        self.waited_for.append(Executed(executing.window, executing.ref, ns))
        inside = executing.take(executing.detail == 0)
        return np.unique(_packed(inside.window, inside.ref))

    def check(self) -> None:
        """Raise an AssertionError if the parts of any window do not add up to its length."""
        windows = self.explainer.alignment.windows
        length = (windows["end_ns"] - windows["start_ns"]).to_numpy()
        wrong = np.flatnonzero(self.totals[0].sum(axis=1) != length)
        if len(wrong):
            first = windows.iloc[wrong[0]].to_dict()
            raise AssertionError(f"budgets of {len(wrong)} windows do not add up, first: {first}")

    def take_totals(self) -> list[np.ndarray]:
        """Return the totals by place, and drop them here with the places to free their memory."""
        totals = self.totals
        self.totals, self.places, self.tails = [], [], []
        return totals


def _packed(window: np.ndarray, operation: np.ndarray) -> np.ndarray:
    """Return each pair of a window and an operation as one number, by which pairs can be sorted and found equal."""
    return window << 32 | operation


def _unpacked(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (window, operation) of pairs that `_packed` made."""
    return pairs >> 32, pairs & 0xFFFFFFFF


class RunningSums:
    """Adds up how much of each cause lies between the start and the end of each window of a lane.

    lane                   KKKK    KKKK    KKKK    KKKK          10 us a letter
    window                        [start     end)
    kernels up to here             40        80                  80 - 40 = 40 us of kernels in the window

    The pieces of the lane are added once (`add`), from left to right, however many windows share them.
    Where the start of a window is passed, the sums up to it are subtracted from the window's total; where
    its end is passed, the sums up to it are added.
    """

    def __init__(
        self,
        windows: np.ndarray,
        starts: Sequence[np.ndarray],
        ends: Sequence[np.ndarray],
        totals: Sequence[np.ndarray],
    ) -> None:
        """windows: the numbers of the windows on the lane
        starts, ends: by place, the times (ns) of all windows; only those of `windows` are read
        totals: by place, ns of each cause, int64 (all windows, causes); the sums are added to these

        A place is where the windows lie: as measured, or moved to one end of their error bars.
        """
        self._readings = list[_Reading]()
        for start, end, total in zip(starts, ends, totals, strict=True):
            self._readings.append(_Reading(windows, start, total, sign=-1))
            self._readings.append(_Reading(windows, end, total, sign=1))
        #: The first and the last time (ns) at which sums are read.
        self.low = min(reading.time[0] for reading in self._readings)
        self.high = max(reading.time[-1] for reading in self._readings)
        #: How much (ns) of each cause lies before the next pieces.
        self._before = np.zeros(len(CAUSES), np.int64)

    def add(self, pieces: Pieces) -> None:
        """Add pieces, which follow those added before, and read the sums at all times that they cover.

        pieces: of one stretch of the lane: sorted by time, each begins where the one before it ended
        """
        covers = [reading.during(pieces.start[0], pieces.end[-1]) for reading in self._readings]
        # the sums at all these times at once: those of the first reading, then of the second, and so on
        times = [reading.time[rows] for reading, rows in zip(self._readings, covers, strict=True)]
        sums = self._up_to(pieces, np.concatenate(times))
        for reading, rows in zip(self._readings, covers, strict=True):
            count = rows.stop - rows.start
            reading.total[reading.window[rows]] += reading.sign * sums[:count]
            sums = sums[count:]
        np.add.at(self._before, pieces.cause, pieces.end - pieces.start)

    def _up_to(self, pieces: Pieces, times: np.ndarray) -> np.ndarray:
        """Return how much (ns) of each cause lies before each time: int64 (times, causes).

        pieces: those that cover all the times; the ones before them are in `_before`
        """
        sums = np.tile(self._before, (len(times), 1))
        for cause in np.flatnonzero(np.bincount(pieces.cause)).tolist():
            rows = np.flatnonzero(pieces.cause == cause)
            sums[:, cause] += covered(pieces.start[rows], pieces.end[rows], times)
        return sums


class _Reading:
    """The times at which running sums are read: the starts or the ends of windows at one place.

    window, time: arrays of equal length, sorted by time
    total:        int64 (all windows, causes), to which each reading is added
    sign:         -1 for starts (the reading is subtracted), 1 for ends
    """

    def __init__(
        self, windows: np.ndarray, edge: np.ndarray, total: np.ndarray, *, sign: int
    ) -> None:
        """edge: the start or the end (ns) of every window; only those of `windows` are read"""
        order = np.argsort(edge[windows])
        self.window = windows[order]
        self.time = edge[self.window]
        self.total = total
        self.sign = sign

    def during(self, low: int, high: int) -> slice:
        """Return the rows whose times are later than `low` and not later than `high`."""
        first, stop = np.searchsorted(self.time, [low, high], side="right").tolist()
        return slice(first, stop)


class _SpansByStart:
    """Finds the windows that touch each of several stretches of time, which come from left to right.

    stretches   [1         )[2          )[3         )
    window 0       [    )                              touches 1
    window 1           [         )                     touches 1 and 2
    """

    def __init__(self, windows: np.ndarray, start: np.ndarray, end: np.ndarray) -> None:
        """windows: the windows to find; start, end: times (ns) of every window there is"""
        self.start = start
        self.end = end
        self.by_start = windows[np.argsort(start[windows], kind="stable")]
        #: Those that had begun by the end of the last stretch, and touched it.
        self.open = windows[:0]

    def touched(self, low: int, high: int) -> Spans:
        """Return the whole windows that touch the stretch from `low` to `high` (ns), as spans.

        low: where the stretch that was asked for before ended
        """
        first, stop = np.searchsorted(self.start[self.by_start], [low, high])
        still_open = self.open[self.end[self.open] > low]
        self.open = np.append(still_open, self.by_start[first:stop])
        return Spans(self.open, self.start[self.open], self.end[self.open])


def _tail_start(explainer: Explainer, lane: int, windows: Windows) -> np.ndarray:
    """Return, for each window (measured interval) of one lane (stream), when (ns) its tail begins: its last part, after the
    last operation that was issued before the window's end record.  What the lane does before the tail is explained once
    for all windows.  A block is a stretch in which the lane executes something.

    The tail begins at the end of the last block up to which all were issued before the window's
    end record.  If the first block behind the window was issued before the end record too, the window's last
    gap waits for that block, and has the same explanation for every window: it needs no tail, and its own end
    is returned.

    window   [---------------------------)
    lane       AAAA   BBBB                  CCC        C issued before the end record: no tail
                          ^ the tail begins            C issued after it: a tail from B's end on

    A window's `close_ns` is a time of the host, at which it began to issue the end record; `end` is a time of the
    GPU, at which the lane reached the record.
    """
    blocks = explainer.streams.blocks(lane)
    # per block, when the host issued it, by the operation `ref` that names it; BEFORE_ALL without a call in the trace
    issue = pick(explainer.call_start, explainer.call[blocks.ref], BEFORE_ALL)
    # how many blocks, from the first one on, were issued before the end record; by the latest issue so far, as a
    # lane that stands for several streams does not run its blocks in the order of issue
    latest_issue = np.maximum.accumulate(issue)
    issued = np.searchsorted(latest_issue, windows.close_ns) if len(issue) else 0
    # how many begin before the window's end
    blocks_begun = np.searchsorted(blocks.start, windows.end)
    before_tail = np.minimum(issued, blocks_begun)
    last_end = pick(blocks.end, before_tail - 1, BEFORE_ALL)
    start = np.clip(last_end, windows.start, windows.end)
    # the first block behind the window
    behind = np.where(blocks_begun < len(issue), blocks_begun, -1)
    issue_behind = pick(issue, behind, BEFORE_ALL)
    is_issued = (issue_behind > BEFORE_ALL) & (issue_behind < windows.close_ns)
    has_no_tail = (before_tail == blocks_begun) & is_issued
    return np.where(has_no_tail, windows.end, start)


def _tail_pieces(explainer: Explainer, windows: Windows, start: np.ndarray) -> Iterator[Pieces]:
    """Yield pieces of windows from `start` to their ends, by cause, in batches that bound the memory.

    About _CALLS calls begin during the windows of a batch.  A window during which more of them
    begin is cut, so that it comes in several batches.

    start: when (ns) the tail of each window begins
    """
    calls = explainer.call_start
    with_tail = np.flatnonzero(start < windows.end)
    edges = calls[::_CALLS]
    tiles = tile(start[with_tail], windows.end[with_tail], edges[:-1], edges[1:])
    spans = Spans(with_tail[tiles.span], tiles.start, tiles.end)
    held = np.searchsorted(calls, spans.end) - np.searchsorted(calls, spans.start)
    for rows in batches(held + 1, _CALLS):
        yield _pieces_of(explainer, windows, spans.take(rows))


def _explained(explainer: Explainer, lane: int, low: int, high: int) -> Iterator[Pieces]:
    """Yield sorted, disjoint pieces of a lane from `low` to `high` (ns), in batches that bound the
    memory: each holds at most _BLOCKS blocks, and at most _CALLS calls begin during it.

    The pieces are those that a window would have that no record closes.
    """
    starts = explainer.streams.blocks(lane).start
    edges = np.concatenate([starts[::_BLOCKS], explainer.call_start[::_CALLS], [low, high]])
    edges = np.unique(edges[(edges >= low) & (edges <= high)])
    endless = Windows.endless(lane)
    for begin, end in pairwise(edges):
        span = Spans(np.zeros(1, np.int64), np.array([begin]), np.array([end]))
        yield stream_pieces(explainer, endless, span)


def _parts_table(totals: list[np.ndarray]) -> pd.DataFrame:
    """Return `frames.PARTS`: a row for each interval and each cause that occurs in any interval, with its ns as measured
    and the least and most ns over all places.

    totals: how long each window spent on each cause (ns), int64 (windows, causes): first where the windows were
            measured, then with the windows moved to the ends of their error bars (their other places); the list is
            emptied on the way to free its memory

    host 40 us as measured, 30 and 45 us at the ends of the error bar:  ns 40,000, lower_ns 30,000, upper_ns 45,000
    """
    occurs = np.logical_or.reduce([total.any(axis=0) for total in totals])
    causes = np.flatnonzero(occurs)
    ns = totals.pop(0).take(causes, axis=1)
    count = len(ns)
    lower, upper = ns.copy(), ns.copy()
    while totals:
        moved = totals.pop()
        for number, cause in enumerate(causes.tolist()):
            np.minimum(lower[:, number], moved[:, cause], out=lower[:, number])
            np.maximum(upper[:, number], moved[:, cause], out=upper[:, number])
    # the intervals one after the other, each with all causes
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
    """Return at most MOST_STREAMS rows of each interval: the streams that worked longest."""
    if table["lane"].nunique() <= MOST_STREAMS:
        return table
    table = table.sort_values(["ns", "lane"], ascending=[False, True])
    return table[table.groupby("interval").cumcount() < MOST_STREAMS]


def other_streams(split: SplitTrace) -> pd.DataFrame:
    """Return `frames.OTHER_STREAMS`: for each interval, how long (ns) other streams than its own executed work that
    was issued inside it, and whether the interval's end record is ordered behind that work.

    Each interval has rows for the MOST_STREAMS lanes that worked longest.  Lanes of different contexts may be called by
    the same number of a stream: these share a row.
    """
    tables = [pd.DataFrame({"interval": [], "lane": [], "ns": []}, dtype=np.int64)]
    rows_held = 0
    for lane in split.explainer.streams.by_lane:
        worked = _work_issued_inside(split, lane)
        tables.append(worked[worked["ns"] > 0])
        rows_held += len(tables[-1])
        if rows_held > _MOST_ROWS_HELD:  # then only the busiest streams so far are kept
            tables = [_busiest(pd.concat(tables))]
            rows_held = 0
    table = _busiest(pd.concat(tables, ignore_index=True))
    if table.empty:  # as of every program that works on one stream
        return frames.empty(frames.OTHER_STREAMS)
    stream = split.alignment.lanes["stream"].to_numpy()[table["lane"].to_numpy()]
    table = table.assign(stream=stream, ordered=_ordered_behind(split, table))
    by_stream = table.groupby(["interval", "stream"], sort=True, as_index=False)
    table = by_stream.agg(ns=("ns", "sum"), ordered=("ordered", "all"))
    return frames.check(table, frames.OTHER_STREAMS)


def _work_issued_inside(split: SplitTrace, lane: int) -> pd.DataFrame:
    """Return how long (ns) one lane (stream) executed work that was issued inside intervals on other lanes.

    lane: the number of a stream's lane

    The table has the columns interval, lane and ns: a row for each interval of the lane's process
    that ends on another lane and during which some work may have been issued; ns may be 0.

    host       |open   launch A on this lane    launch B on this lane   close|   launch C on this lane
    result     how long A and B ran, whenever that was
    """
    issue, executed_before = _executed_by_issue(split.explainer, lane)
    if not len(issue):
        return pd.DataFrame({"interval": [], "lane": [], "ns": []}, dtype=np.int64)
    windows = split.alignment.windows
    opened = windows["open_ns"].to_numpy()
    closed = windows["close_ns"].to_numpy()
    near = (closed > issue[0]) & (opened <= issue[-1])
    interval = np.flatnonzero(near & _ends_on_another_lane(split, lane))
    # blocks first, first + 1, ... stop - 1, in the order of issue, were issued inside the interval
    first = np.searchsorted(issue, opened[interval])
    stop = np.searchsorted(issue, closed[interval])
    stop = np.maximum(stop, first)  # a window that closes before it opens holds nothing
    # `stop` may be the number of all blocks: the running sum has one value more than there are blocks
    ns = executed_before[stop] - executed_before[first]
    return pd.DataFrame({"interval": interval, "lane": lane, "ns": ns})


def _executed_by_issue(explainer: Explainer, lane: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (when each block of a lane was issued, in rising order; how long all blocks before
    that one in this order executed, and last the sum of all).

    Blocks of which the trace has no call are left out.  The second array is longer by one.
    """
    blocks = explainer.streams.blocks(lane)
    call = explainer.call[blocks.ref]
    issued = np.flatnonzero(call >= 0)
    issue = explainer.call_start[call[issued]]
    order = np.argsort(issue, kind="stable")
    length = blocks.end[issued] - blocks.start[issued]
    before = np.append(0, np.cumsum(length[order]))
    return issue[order], before


def _ends_on_another_lane(split: SplitTrace, lane: int) -> np.ndarray:
    """Return, per window, whether it belongs to the process of a lane but ends on another one.

    False for host timers and runs, which hold the work of all streams, and for windows on a lane
    that stands for several streams with this one among them.
    """
    windows = split.alignment.windows
    members = split.explainer.streams.members
    sets_with_lane = [number for number, streams in members.items() if lane in streams]
    elsewhere = ~np.isin(windows["end_lane"].to_numpy(), [lane, *sets_with_lane])
    elsewhere &= ~windows["kind"].isin(["host", "run"]).to_numpy()
    process = split.alignment.lanes["process"].to_numpy()[lane]
    return elsewhere & (windows["process"].to_numpy() == process)


def _ordered_behind(split: SplitTrace, table: pd.DataFrame) -> np.ndarray:
    """Return, per row, whether the interval's end record is ordered behind all work that was issued
    to the row's lane before the record.  False for intervals that no record ends.

    table: columns interval and lane
    """
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
    """Return `frames.INTERVALS`: a row per window in the order of the windows, with its name and label, its streams and
    records by their numbers, its flags, and how long work ran in it; the column `findings` is empty.

    A window is made of positions (lane 4, record 17); an interval has what a user knows: stream 7 of device 0, and the
    record's `seq` of the log.

    idle_at_most_ns: per window, as `idle_by_the_log` returns it
    """
    windows, lanes = split.alignment.windows, split.alignment.lanes
    if windows.empty:
        return frames.empty(frames.INTERVALS)
    total = split.budgets()
    # by position of a lane or record; a window without one has -1, which takes the -1 at the end of these
    stream = np.append(lanes["stream"].to_numpy(), -1)
    device = np.append(lanes["device"].to_numpy(), -1)
    seq = np.append(split.alignment.records["seq"].to_numpy(), -1)
    start_lane = windows["start_lane"].to_numpy()
    end_lane = windows["end_lane"].to_numpy()
    start_record = windows["start"].to_numpy()
    end_record = windows["end"].to_numpy()
    names, labels = name_intervals(windows)
    # not Series: these keep their row numbers
    columns = {name: windows[name].array for name in windows} | {
        "interval": np.arange(len(windows)),
        "name": pd.Series(names, dtype="str").array,
        "label": pd.Series(labels, dtype="str").array,
        "pid": pid_of(windows["process"].to_numpy()),
        "tid": tid_of(windows["thread"].to_numpy()),
        "start_record": seq[start_record],
        "end_record": seq[end_record],
        "device": device[end_lane],
        "start_stream": stream[start_lane],
        "end_stream": stream[end_lane],
        "operations": split.operations,
        "idle_at_most_ns": idle_at_most_ns.array,
        "flags": pd.Series(_flags(split, total), dtype=object).array,
        "findings": pd.Series([()] * len(windows), dtype=object).array,
    }
    columns |= _work_inside(split, total)
    return frames.lean(columns, frames.INTERVALS, len(windows))


def _work_inside(split: SplitTrace, total: np.ndarray) -> dict[str, np.ndarray]:
    """Return five columns of `frames.INTERVALS` (int64 ns, a value per window):

    kernel_only_ns        for how long kernels executed
    kernel_only_upper_ns  for how long kernels and graphs did
    kernel_outside_ns     for how long these did after the window's end
    gpu_busy_ns           for how long any work executed
    gpu_earlier_ns        for how long of that only work did that was issued before

    total: ns by cause, int64 (windows, causes)

    For a window on a stream these are sums of its budget, which holds what its stream executed from its start to its
    end: nothing lies outside, and none of it counts as earlier work, whenever it was issued; both are 0.
    For a host timer, the first three are about the work that was issued inside it, wherever that ran.
    """
    windows = split.alignment.windows
    kernel = total[:, CAUSE["kernel"]].copy()
    with_graphs = kernel + total[:, CAUSE["graph"]]
    outside = np.zeros(len(windows), np.int64)
    busy = _busy_ns(total)
    earlier = np.zeros(len(windows), np.int64)
    is_timer = (windows["kind"] == "host").to_numpy()
    if is_timer.any():
        timers = windows[is_timer]
        process = timers["process"].to_numpy()
        start = timers["start_ns"].to_numpy()
        end = timers["end_ns"].to_numpy()
        kernel[is_timer], _ = kernels_issued_inside(split.trace, process, start, end)
        # what lies outside is of kernels and graphs, too
        with_graphs[is_timer], outside[is_timer] = kernels_issued_inside(
            split.trace, process, start, end, kinds=("kernel", "graph")
        )
        busy[is_timer] = busy_inside(split.trace, process, start, end)
        earlier[is_timer] = earlier_work(split.trace, process, start, end, busy[is_timer])
    return {
        "kernel_only_ns": kernel,
        "kernel_only_upper_ns": with_graphs,
        "kernel_outside_ns": outside,
        "gpu_busy_ns": busy,
        "gpu_earlier_ns": earlier,
    }


def idle_by_the_log(alignment: Alignment, log: EventLog | None) -> pd.Series:
    """Return, per window, for how long (ns) the GPU can at most have been idle because of the CPU.

    This is what the event log says by itself (`place.lag`); NA where it does not say, and for all
    windows where `log` is None.
    """
    windows = alignment.windows
    if log is None:
        return pd.Series(pd.NA, windows.index, dtype="Int64")
    proven = compared_pairs(log, alignment.clock)["idle_at_most_ns"]
    source = windows["source"].where(windows["origin"] == ORIGIN["pair"], -1)
    return proven.reindex(source).set_axis(windows.index)


def _flags(split: SplitTrace, total: np.ndarray) -> list[tuple[str, ...]]:
    """Return, per window, its flags: words about how far its time can be trusted.  They say whether the
    profiler disturbed it, whether other streams worked while its own was idle (for more than half of the idle time, or
    for more than a hundredth), what was remarked when it was placed, and of a host timer whether it waits for the GPU:
    ("profiler-disturbed", "synchronised-after"), () for most.

    total: ns by cause, int64 (windows, causes)
    """
    windows = split.alignment.windows
    idle = _idle_ns(total)
    others_worked = _others_worked(split, total)
    columns = zip(
        _disturbed(split).tolist(),
        (2 * others_worked > idle).tolist(),
        (100 * others_worked > idle).tolist(),
        windows["remarks"].array,
        synchronisation_flags(split.trace, split.alignment),
        strict=True,
    )
    flags = []
    for disturbed, for_half, for_hundredth, remarks, synchronised in columns:
        words_of_window = []
        if disturbed:
            words_of_window.append(DISTURBED)
        if for_half:
            words_of_window.append(OTHERS_WORKED)
        elif for_hundredth:
            words_of_window.append(OTHERS_RAN)
        flags.append((*words_of_window, *remarks, *synchronised))
    return flags


def _busy_ns(total: np.ndarray) -> np.ndarray:
    """Return, per window, how long (ns) work executed.  `total`: int64 (windows, causes)."""
    kinds_of_work = total[:, :WORK]  # the first causes are the kinds of operations
    return kinds_of_work.sum(axis=1)


def _idle_ns(total: np.ndarray) -> np.ndarray:
    """Return, per window, how long (ns) no work executed.  `total`: int64 (windows, causes)."""
    reasons_for_idleness = total[:, WORK:]  # all causes behind the kinds of operations
    return reasons_for_idleness.sum(axis=1)


def _others_worked(split: SplitTrace, total: np.ndarray) -> np.ndarray:
    """Return, per window, how long (ns) other streams of its device executed while the window's own
    stream was idle: the time in which the device was busy minus that of the window's own work.

    0 for windows of kind host or run.

    total: ns by cause, int64 (windows, causes)

    window         [                    )       100 us, of which its stream works 30 us
    whole device   [ busy         )             busy for 70 us of it: others worked for 40 us
    """
    windows = split.alignment.windows
    streams = split.explainer.streams
    kind = windows["kind"].to_numpy()
    lane = windows["end_lane"].to_numpy()
    start = windows["start_ns"].to_numpy()
    end = windows["end_ns"].to_numpy()
    busy = _busy_ns(total)
    on_stream = (kind == "event") | (kind == "nvtx")
    has_idle = on_stream & (_idle_ns(total) > 0)
    worked = np.zeros(len(windows), np.int64)
    for device in streams.devices:  # each is a lane that stands for a process's whole device
        rows = np.flatnonzero(has_idle & np.isin(lane, streams.lanes_on(device)))
        blocks = streams.blocks(device)
        busy_before_end = covered(blocks.start, blocks.end, end[rows])
        busy_before_start = covered(blocks.start, blocks.end, start[rows])
        worked[rows] = busy_before_end - busy_before_start - busy[rows]
    return worked


def _disturbed(split: SplitTrace) -> np.ndarray:
    """Return, per window, whether the profiler itself worked in the window's process inside it.

    What the profiler does while the host runs ahead, before the GPU begins, lies outside and does
    not disturb the measurement.  False for runs, in which everything that it did lies.
    """
    windows = split.alignment.windows
    process = windows["process"].to_numpy()
    measured = windows["kind"].to_numpy() != "run"
    start = windows["start_ns"].to_numpy()
    end = windows["end_ns"].to_numpy()
    disturbed = np.zeros(len(windows), dtype=bool)
    for number, rows in split.trace.overhead.groupby("process"):
        begins = np.sort(rows["start_ns"].to_numpy())
        ends = np.sort(rows["end_ns"].to_numpy())
        begun = np.searchsorted(begins, end)  # how many have begun before the window's end
        over = np.searchsorted(ends, start, side="right")  # how many are over by its start
        disturbed |= measured & (process == number) & (begun > over)
    return disturbed
