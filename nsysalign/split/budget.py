"""Alignment to budgets: the partition of every window, its sums, their bounds, and the tables that
are made of them.

    window          [-----------------------------------)
    stream    KKKKKK  gap  KKKK  gap  KKKK  gap  KKKK  gap
    shared          [gap   KKKK  gap  KKKK  gap  KKKK)        the same for every window: running sums at two times
    own                                              [gap)    ends with the end record, not with an operation

Every gap of a stream is explained once, from its P and N, the operations beside it; a window that
cuts it holds a part of that.  Only what follows the last operation that was issued before a window's
end record is the window's own, and all of a host timer.  A window at either end of its error bar is
a window like all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import FAR, covered, distinct, group, index_type, pick, tile
from nsysalign.memory import trim_memory
from nsysalign.model import (
    CAUSES,
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
    host_pieces_of,
    kernels_issued_inside,
    synchronisation_flags,
)
from nsysalign.split.labels import name_intervals
from nsysalign.split.order import StreamOrder
from nsysalign.split.pieces import (
    CAUSE,
    REF_KINDS,
    WORK,
    Details,
    Pieces,
    Segments,
    join,
    ref_ids,
    words,
)

DISTURBED, INTERVENED = "profiler-disturbed", "intervened"
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
        arrays = self.segment_arrays(which)
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

    def segment_arrays(self, which: np.ndarray) -> Segments:
        """The same as arrays: pieces, joined where they touch and are the same.  The text is only
        made for the rows that are shown."""
        w = next(Windows.places(self.alignment))
        pieces = _pieces_of(self.explainer, w, which, w.start[which], w.end[which])
        same = pieces.end[:-1] == pieces.start[1:]
        for name in ("window", "cause", "ref_kind", "ref", "detail"):
            column = getattr(pieces, name)
            same &= column[1:] == column[:-1]
        count = len(pieces.window)
        first = np.flatnonzero(np.append(True, ~same)[:count])
        last = np.flatnonzero(np.append(~same, True)[:count])
        end, pieces = pieces.end[last], pieces.take(first)
        return Segments(
            interval=pieces.window,
            start=pieces.start,
            ns=end - pieces.start,
            cause=pieces.cause,
            ref_kind=pieces.ref_kind,
            ref_id=ref_ids(self.trace, self.alignment, pieces),
            words=lambda index: words(self.trace, self.alignment, pieces.take(index)),
        )


def _pieces_of(
    explainer: Explainer, w: Windows, window: np.ndarray, start: np.ndarray, end: np.ndarray
) -> Pieces:
    """Tile spans of windows with pieces, exactly."""
    host = w.host[window]
    parts = [stream_pieces(explainer, w, *(c[~host] for c in (window, start, end)))]
    if host.any():
        parts.append(host_pieces_of(explainer, w, *(c[host] for c in (window, start, end))))
    return join(parts)


def split_trace(
    trace: Trace, alignment: Alignment, latency: np.ndarray | None = None
) -> SplitTrace:
    """Partition every window of the alignment (docs/design.md).  `latency`: the usual launch
    latencies (`launch_latency`) where they were measured on more than this trace.

    sum(parts) == elapsed_ns for every window; an AssertionError would be a bug here, never the
    trace's fault.
    """
    windows, count = alignment.windows, len(alignment.windows)
    explainer = Explainer(trace, alignment, launch_latency(trace) if latency is None else latency)
    trim_memory()
    details, places = (
        Details(trace, alignment, explainer.streams.last_on),
        list(Windows.places(alignment)),
    )
    totals = [np.zeros((count, len(CAUSES)), np.int64) for _ in places]
    operations, size = np.zeros((2, count), np.int64)
    own, host = [place.end.copy() for place in places], places[0].host
    for lane, those in group(places[0].lane[~host], np.flatnonzero(~host)).items():
        for begin, place in zip(own, places, strict=True):
            begin[those] = _own_from(explainer, lane, place.take(those))
        _add_shared(explainer, places, own, those, totals, details, size)
        start, end = places[0].start[those], places[0].end[those]
        positions = explainer.streams.positions(lane)
        ended = np.searchsorted(np.sort(explainer.op_end[positions]), start, side="right")
        begun = np.searchsorted(explainer.op_start[positions], end)
        operations[those] = np.where(end > start, begun - ended, 0)
        details.add_moved(positions, spans=(those, start, end))
    executed = [np.empty(0, np.int64)]  # window and operation of what host timers wait for
    waited_for = [np.empty((3, 0), np.int64)]
    for number, (place, begin, total) in enumerate(zip(places, own, totals, strict=True)):
        # a host reading's error bar is too small to matter: the same at every place
        begin[host] = place.start[host] if number == 0 else place.end[host]
        for pieces in _own_pieces(explainer, place, begin):
            slot = pieces.window * len(CAUSES) + pieces.cause
            np.add.at(total.reshape(-1), slot, pieces.end - pieces.start)
            if number == 0:
                details.add(pieces)
                of_host = np.flatnonzero(host[pieces.window])
                size += np.bincount(pieces.window, minlength=count)
                on = (pieces.ref_kind < WORK) & (pieces.cause < WORK)
                ran = of_host[on[of_host]]
                waited_for.append(
                    np.stack([pieces.window, pieces.ref, pieces.end - pieces.start])[:, ran]
                )
                on = of_host[(on & (pieces.detail == 0))[of_host]]
                executed.append(np.unique(pieces.window[on] << 32 | pieces.ref[on]))
        total[host] = totals[0][host]
    both = np.unique(np.concatenate(executed))
    details.add_moved(both & 0xFFFFFFFF, both >> 32)
    operations += np.bincount(both >> 32, minlength=count)
    length = (windows["end_ns"] - windows["start_ns"]).to_numpy()
    wrong = np.flatnonzero(totals[0].sum(axis=1) != length)
    if len(wrong):
        raise AssertionError(
            f"budgets of {len(wrong)} windows do not add up, first: {windows.iloc[wrong[0]].to_dict()}"
        )
    del own, places, begin, place, total
    parts = _parts_table(totals)
    trim_memory()
    return SplitTrace(
        trace,
        alignment,
        explainer,
        parts,
        size,
        details.table(),
        operations,
        np.concatenate(waited_for, axis=1),
    )


def _add_shared(
    explainer: Explainer,
    places: Sequence[Windows],
    own: Sequence[np.ndarray],
    windows: np.ndarray,
    totals: Sequence[np.ndarray],
    details: Details,
    size: np.ndarray,
) -> None:
    """Adds what the windows of one lane share with all others, from their starts to `own`: how much
    of each cause lies before the one and before the other; to `size`, how many pieces."""
    # starts at all places, then ends, of all windows: sorted times, which of these, and of which
    sides = [*(place.start for place in places), *own]
    time = np.concatenate([times[windows] for times in sides])
    order = np.argsort(time)
    time, window = time[order], np.tile(windows, len(sides))[order]
    side = np.repeat(np.arange(len(sides), dtype=np.int8), len(windows))[order]
    del order
    # windows by their starts at the first place; those that are open while a lot lasts
    coming = windows[np.argsort(places[0].start[windows], kind="stable")]
    begin_ns, open_now = places[0].start[coming], coming[:0]
    done = np.zeros(len(CAUSES), np.int64)  # how much of each cause lies before the lot
    for pieces in _explained(explainer, int(places[0].lane[windows[0]]), time[0], time[-1]):
        edges = [pieces.start[0], pieces.end[-1]]
        some = slice(*np.searchsorted(time, edges, side="right"))
        before = np.tile(done, (some.stop - some.start, 1))
        for code in distinct(pieces.cause).tolist():
            of_cause = np.flatnonzero(pieces.cause == code)
            begin, over = pieces.start[of_cause], pieces.end[of_cause]
            before[:, code] += covered(begin, over, time[some])
            done[code] += (over - begin).sum()
        for number, total in enumerate((*totals, *totals)):
            here = np.flatnonzero(side[some] == number)
            sign = 1 if number >= len(totals) else -1
            total[window[some][here]] += sign * before[here]
        begun, stop = np.searchsorted(begin_ns, edges)
        open_now = np.append(open_now[own[0][open_now] > edges[0]], coming[begun:stop])
        spans = (open_now, places[0].start[open_now], own[0][open_now])
        first = np.searchsorted(pieces.end, spans[1], side="right")
        size[open_now] += np.maximum(np.searchsorted(pieces.start, spans[2]) - first, 0)
        details.add(pieces, spans)


def _own_from(explainer: Explainer, lane: int, w: Windows) -> np.ndarray:
    """From when on each window of one lane sees the stream in its own way: from the end of the last
    operation that was issued before its end record, as were all before that; its end where the
    operation behind it was issued before the end record, too."""
    b = explainer.streams.blocks(lane)
    issue = pick(explainer.call_start, explainer.call[b.ref], NEVER)
    issued = np.searchsorted(np.maximum.accumulate(issue), w.close_ns) if len(issue) else 0
    last = np.searchsorted(b.start, w.end)
    until = np.minimum(issued, last)
    following = pick(issue, np.where(last < len(issue), last, -1), NEVER)
    shared = (until == last) & (following > NEVER) & (following < w.close_ns)
    return np.where(shared, w.end, np.clip(pick(b.end, until - 1, NEVER), w.start, w.end))


def _own_pieces(explainer: Explainer, w: Windows, start: np.ndarray) -> Iterator[Pieces]:
    """Pieces of windows from `start` on, in lots during which about as many calls begin; a window
    with more calls than that is cut where some of them begin."""
    calls, left = explainer.call_start, np.flatnonzero(start < w.end)
    edges = calls[::_CALLS]
    cut = tile(start[left], w.end[left], edges[:-1], edges[1:])
    held = np.searchsorted(calls, cut.end) - np.searchsorted(calls, cut.start)
    lot = np.cumsum(held + 1) // _CALLS
    for some in np.split(np.arange(len(lot)), np.flatnonzero(np.diff(lot)) + 1):
        yield _pieces_of(explainer, w, left[cut.piece[some]], cut.start[some], cut.end[some])


def _explained(explainer: Explainer, lane: int, low: int, high: int) -> Iterator[Pieces]:
    """Sorted disjoint pieces of a lane from `low` to `high`, as windows see them that no record
    closes, in lots of a bounded number of blocks, and of calls that were made meanwhile."""
    starts = explainer.streams.blocks(lane).start
    edges = np.concatenate([starts[::_BLOCKS], explainer.call_start[::_CALLS], [low, high]])
    edges = np.unique(edges[(edges >= low) & (edges <= high)])
    whole = (-FAR, FAR, lane, -1, -1, False, FAR, FAR, -1, -1, -1)
    endless = Windows(*(np.array([value]) for value in whole))
    for begin, end in pairwise(edges):
        yield stream_pieces(
            explainer, endless, np.zeros(1, np.int64), np.array([begin]), np.array([end])
        )


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
    windows, lanes, explainer = split.alignment.windows, split.alignment.lanes, split.explainer
    opened, closed, own, process = (
        windows[c].to_numpy() for c in ("open_ns", "close_ns", "end_lane", "process")
    )
    measured = ~windows["kind"].isin(["host", "run"]).to_numpy()
    process_of_lane, stream = (lanes[c].to_numpy() for c in ("process", "stream"))
    rows = [pd.DataFrame({"interval": [], "lane": [], "ns": []}, dtype=np.int64)]
    members, held = explainer.streams.members, 0
    for lane in explainer.streams.by_lane:
        blocks = explainer.streams.blocks(lane)
        call = explainer.call[blocks.ref]
        issue = explainer.call_start[call[call >= 0]]
        if not len(issue):
            continue
        near = measured & (closed > issue.min()) & (opened <= issue.max())
        whole = [number for number, lanes_of in members.items() if lane in lanes_of]
        near &= (own != lane) & ~np.isin(own, whole)
        wanted = np.flatnonzero(near & (process == process_of_lane[lane]))
        order = np.argsort(issue, kind="stable")
        length = np.append(0, np.cumsum((blocks.end - blocks.start)[call >= 0][order]))
        first, last = (np.searchsorted(issue[order], t[wanted]) for t in (opened, closed))
        ns = length[np.maximum(last, first)] - length[first]
        table = pd.DataFrame({"interval": wanted, "lane": lane, "ns": ns})
        rows.append(table[ns > 0])
        held += len(rows[-1])
        if held > _ROWS:
            rows, held = [_busiest(pd.concat(rows))], 0
    out = _busiest(pd.concat(rows, ignore_index=True))
    number, lane = out["interval"].to_numpy(), out["lane"].to_numpy()
    ordered = np.zeros(len(out), dtype=bool)
    event = np.flatnonzero((windows["kind"] == "event").to_numpy()[number])
    if len(event):
        closing = own[number[event]], closed[number[event]]
        ordered[event] = StreamOrder(explainer).ordered(*closing, lane[event])
    out = out.assign(stream=stream[lane], ordered=ordered)
    out = out.sort_values(["interval", "stream"], ignore_index=True)
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
    with_graphs = kernel + total[:, CAUSE["graph"]]
    busy = total[:, :WORK].sum(axis=1)
    if host.any():
        process, start, end = (w[c].to_numpy()[host] for c in ("process", "start_ns", "end_ns"))
        kernel[host], _ = kernels_issued_inside(trace, process, start, end)
        with_graphs[host], outside[host] = kernels_issued_inside(
            trace, process, start, end, ("kernel", "graph")
        )
        busy[host] = busy_inside(trace, process, start, end)
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
        kernel_only_upper_ns=with_graphs,
        kernel_outside_ns=outside,
        gpu_busy_ns=busy,
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
    busy, idle = total[:, :WORK].sum(axis=1), total[:, WORK:].sum(axis=1)
    some_idle = ((kind == "event") | (kind == "nvtx")) & (idle > 0)
    streams = split.explainer.streams
    for device, members in streams.devices.items():
        sets = [number for number, of in streams.members.items() if np.isin(of, members).all()]
        sets = [number for number in sets if number not in streams.devices]
        those = np.flatnonzero(some_idle & np.isin(lane, [*members, *sets]))
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
    ran = np.array(["", OTHERS_RAN, OTHERS_WORKED], dtype=object)
    flags = zip(
        np.array(["", DISTURBED], dtype=object)[disturbed.astype(np.int8)],
        np.array(["", INTERVENED], dtype=object)[intervened.astype(np.int8)],
        ran[(100 * others > idle).astype(np.int8) + (2 * others > idle)],
        windows["remarks"].array,
        synchronisation_flags(split.trace, split.alignment),
        strict=True,
    )
    return [(*filter(None, own), *remarks, *waited) for *own, remarks, waited in flags]
