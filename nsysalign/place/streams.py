"""Stage 2, on streams: the lane of every operation, record and wait ("lane": a stream as the analysis
numbers them).

A record's stream is exact where CUPTI wrote an event row.  Otherwise the log's `cuStreamGetId`
answer is used; for created streams it is one more than CUPTI's streamId under a profiler and equal
in a plain run, so the offset is determined from the trace itself: by wait lines that have a wait
call with a stream, then by which offset names streams that did work; finally, the bounds of the
pairs refute a wrong one.

After it is known on which stream each record lies, or that the trace does not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, group, index_type, pick, rising
from nsysalign.model import DEFAULT_STREAM, Trace
from nsysalign.place.matched import Matched

LEGACY_DEFAULT, BLOCKING = 3, 1  # TARGET_INFO_CUDA_STREAM.flag
#: CUPTI's streamId minus cuStreamGetId's answer: -1 under every profiler tried, 0 in a plain run.
STREAM_OFFSETS = (-1, 0)
#: A handle stands for a stream if at least this share of its records point to it.
_MOST_SAY = 0.6


class LaneOperations:
    """The operations of one lane in the order in which they were issued; rarely needed columns are
    computed on first use.

        issued (host)    [op A]     [op B]        [op C]
        runs (stream)       AAAAAAAA   BBBB          CC

    The order is that of the starts of the outermost API calls of the same process, not of
    correlation ids.
    """

    def __init__(
        self,
        position: np.ndarray,
        calls: tuple[np.ndarray, np.ndarray, np.ndarray],
        start: np.ndarray,
        end: np.ndarray,
    ) -> None:
        self.position = position  # in Trace.operations
        self._calls = calls  # the issuing call of every operation; start and end of every call
        self.start_ns = start
        self.end_ns = end

    @cached_property
    def issue_ns(self) -> np.ndarray:
        """Start of the issuing call."""
        call, start, _ = self._calls
        return start[call[self.position]]

    @cached_property
    def issued_ns(self) -> np.ndarray:
        """Its end."""
        call, _, end = self._calls
        return end[call[self.position]]

    @cached_property
    def reach_ns(self) -> np.ndarray:
        """Prefix maximum of end_ns."""
        return self.end_ns if rising(self.end_ns) else np.maximum.accumulate(self.end_ns)

    @cached_property
    def reach_from(self) -> np.ndarray:
        """Which operation reached that far first."""
        if bool((self.end_ns[1:] > self.end_ns[:-1]).all()):
            return np.arange(len(self.end_ns), dtype=index_type(len(self.end_ns)))
        reach = self.reach_ns
        new = np.concatenate([[True], reach[1:] > reach[:-1]])
        return np.maximum.accumulate(np.where(new, np.arange(len(reach)), 0))

    @cached_property
    def first_ns(self) -> np.ndarray:
        """Suffix minimum of start_ns."""
        return (
            self.start_ns
            if rising(self.start_ns)
            else np.minimum.accumulate(self.start_ns[::-1])[::-1]
        )

    @cached_property
    def _by_issued(self) -> tuple[np.ndarray, np.ndarray]:
        if rising(self.issued_ns):
            return self.issued_ns, self.reach_ns
        order = np.argsort(self.issued_ns, kind="stable")
        return self.issued_ns[order], np.maximum.accumulate(self.end_ns[order])

    @property
    def by_issued_ns(self) -> np.ndarray:
        """issued_ns sorted."""
        return self._by_issued[0]

    @property
    def by_issued_reach(self) -> np.ndarray:
        """The prefix maximum of end_ns in the order of by_issued_ns."""
        return self._by_issued[1]


def lane_operations(trace: Trace, operation_lane: np.ndarray) -> dict[int, LaneOperations]:
    """Per lane, the operations with a known issuing call.  Those without a call cannot be ordered
    and are left out."""
    operations, calls = trace.operations, trace.calls
    call = operations["call"].to_numpy()
    known: np.ndarray = np.arange(len(call), dtype=index_type(len(call)))
    if (call < 0).any():
        known = known[call >= 0]
    call_start, call_end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    start, end = operations["start_ns"].to_numpy(), operations["end_ns"].to_numpy()
    out = {}
    for lane, position in group(
        operation_lane[known], known
    ).items():  # by start, as operations are
        issue = call_start[call[position]]
        if not rising(issue):
            order = np.argsort(issue, kind="stable")
            position, issue = position[order], issue[order]
        whole = len(position) == len(start) and rising(position)
        out[lane] = LaneOperations(
            position,
            (call, call_start, call_end),
            start if whole else start[position],
            end if whole else end[position],
        )
    return out


@dataclass(frozen=True)
class Streams:
    """`lanes`: frames.LANES; the lane of every operation; the lanes on which work ran; per lane its
    operations by issue."""

    lanes: pd.DataFrame
    operation_lane: np.ndarray
    busy: np.ndarray
    per_lane: dict[int, LaneOperations]


def in_legacy_order(trace: Trace, streams: Streams, lanes: np.ndarray) -> dict[int, LaneOperations]:
    """Of these lanes: the operations of each and of all that it is implicitly ordered with.  The
    legacy default stream waits for all work of blocking streams issued before, and they for it."""
    process, context, flag = (streams.lanes[c].to_numpy() for c in ("process", "context", "flag"))
    of_lane = dict(streams.per_lane)
    partner = {LEGACY_DEFAULT: BLOCKING, BLOCKING: LEGACY_DEFAULT}
    for number in lanes.tolist():
        other = (flag == partner.get(int(flag[number]))) & (process == process[number])
        members = np.flatnonzero(other & (context == context[number]))
        if len(np.intersect1d(members, list(streams.per_lane))):
            together = np.isin(streams.operation_lane, [number, *members.tolist()])
            merged = lane_operations(trace, np.where(together, number, -1))
            of_lane[number] = merged[number]
    return of_lane


@dataclass(frozen=True)
class OnStreams:
    """`Matched.records` and `Matched.waits` with a column lane (-1: not known), and notes."""

    records: pd.DataFrame
    waits: pd.DataFrame
    notes: list[str]


def streams_of(trace: Trace) -> Streams:
    """All streams that a trace names."""
    keys = ["process", "context", "stream"]
    places, of_place = _places(trace.operations, [*keys, "device"])
    parts = [
        places,
        trace.event_rows[[*keys, "device"]],
        trace.streams[trace.streams["process"] >= 0][[*keys, "device"]],
    ]
    every = pd.concat([p.drop_duplicates() for p in parts], ignore_index=True)
    # every process has a legacy default stream, whether or not a row names it
    named = every.loc[every["stream"] == DEFAULT_STREAM, "process"].to_numpy()
    silent = np.setdiff1d(distinct(trace.calls["process"].to_numpy()), named)
    default = {"process": silent, "context": 1, "stream": DEFAULT_STREAM, "device": 0}
    every = pd.concat([every, pd.DataFrame(default)], ignore_index=True)
    # the device of an operation is certain, the stream table may not know it: keep the first
    lanes = (
        every.sort_values("device", ascending=False, kind="stable")
        .drop_duplicates(keys)
        .sort_values(keys, ignore_index=True)
    )
    flags = trace.streams.drop_duplicates(keys).set_index(keys)["flag"]
    flag = flags.reindex(pd.MultiIndex.from_frame(lanes[keys])).fillna(-1).astype("int64")
    lanes = frames.check(lanes.assign(flag=flag.to_numpy()), frames.LANES)
    lane = stream_lane(lanes, places).astype(np.int64)
    # of a single place: an array without memory
    lane = np.broadcast_to(lane[0], len(of_place)) if len(lane) == 1 else lane[of_place]
    return Streams(lanes, lane, np.isin(lanes.index, lane), lane_operations(trace, lane))


def on_streams(
    trace: Trace, matched: Matched, streams: Streams, offset: int | None, *, logged: bool
) -> OnStreams:
    """Records on the streams that event rows name, else the log with its streams numbered by
    `offset` (None: as they seem to be), else the work around them.  `logged`: there is a log."""
    waits, records = matched.waits, matched.records
    sync = waits["sync"].to_numpy()
    waits = waits.assign(lane=pick(stream_lane(streams.lanes, trace.syncs), sync, -1))
    row = records["event_row"].to_numpy()
    exact = pick(stream_lane(streams.lanes, trace.event_rows), row, -1)
    lane, notes = lane_of_log(streams, records, waits, offset, exact >= 0)
    lane = np.where(exact >= 0, exact, lane)
    if logged:
        lane = lane_by_work(trace, streams.operation_lane, records, lane)
    else:
        beside = lane_of_thread(trace, streams.operation_lane, records)
        start, end = (np.array(e, np.int64) for e in (matched.read.start, matched.read.end))
        beside[np.concatenate([start, end])] = -1
        lane = lane_of_pairs(trace, streams.operation_lane, records, lane, start, end)
        lane = np.where(lane >= 0, lane, beside)
    return OnStreams(records.assign(lane=lane), waits, notes)


def _places(rows: pd.DataFrame, columns: list[str]) -> tuple[pd.DataFrame, np.ndarray]:
    """(rows with distinct values of the columns, by first appearance; the index of each row among
    them)."""
    code = np.broadcast_to(np.int64(0), len(rows))
    for column in columns:
        values = rows[column].to_numpy()
        if any(values.strides):
            numbers, distinct_values = pd.factorize(values)
            code = pd.factorize(code * len(distinct_values) + numbers)[0]
    if not any(code.strides):
        return rows[columns].iloc[:1], code
    first = np.unique(code, return_index=True)[1]
    return rows[columns].iloc[first], code


def stream_lane(lanes: pd.DataFrame, rows: pd.DataFrame) -> np.ndarray:
    """Lane of rows with process, context and stream; -1 for none."""
    keys = ["process", "context", "stream"]
    if lanes.empty or rows.empty:
        return np.full(len(rows), -1)
    return pd.MultiIndex.from_frame(lanes[keys]).get_indexer(pd.MultiIndex.from_frame(rows[keys]))


def lane_of_log(
    streams: Streams,
    records: pd.DataFrame,
    waits: pd.DataFrame,
    offset: int | None,
    settled: np.ndarray,
) -> tuple[np.ndarray, list[str]]:
    """Lane of every record from what Python knew about its stream, -1 if that is ambiguous; notes.

    `offset`: CUPTI's streamId minus cuStreamGetId's answer; None determines it from the waits and
    the streams that did work.  `settled`: records with a lane from an event row; they get no note.
    """
    lane = np.full(len(records), -1, dtype=np.int64)
    notes: list[str] = []
    process, number = records["process"].to_numpy(), records["log_process"].to_numpy()
    columns = ("stream_handle", "stream_id", "device")
    handle, stream_id, device = (records[c].to_numpy() for c in columns)
    default = (handle == 0) | ((handle < 0) & (stream_id == DEFAULT_STREAM))
    for one in np.unique(process[(process >= 0) & (number >= 0)]).tolist():
        own = streams.lanes[streams.lanes["process"] == one]
        here = (process == one) & (number >= 0)
        rows = np.flatnonzero(here & default)
        lane[rows] = _default_lane(own, streams.busy, device[rows])
        if (lane[rows[~settled[rows]]] < 0).any() and len(_default_lanes(own)) > 1:
            notes.append(
                "several contexts have a default stream that did work, and the event log does not say which one is meant: "
                "its records are unaligned (nsysalign run --accurate tells them apart)"
            )
        rows = np.flatnonzero(here & ~default & (stream_id >= 0))
        if len(rows):
            shift = offset
            if shift is None:
                ids = np.unique(stream_id[rows])
                shift = _stream_offset(own, ids, waits[waits["process"] == one])
            if shift is None:
                notes.append(
                    "streams of the event log could not be told apart in the trace: their records are unaligned"
                )
            else:
                lane[rows] = _lookup(own, stream_id[rows] + shift, device[rows])
        working = own.index.to_numpy()[streams.busy[own.index.to_numpy()]]
        if len(working) == 1:  # only one stream did anything
            lane[here & ~default & (stream_id < 0)] = working[0]
    return lane, notes


def _default_lane(own: pd.DataFrame, busy: np.ndarray, device: np.ndarray) -> np.ndarray:
    """The legacy default stream of each row's device (-1: not known); -1 if several could be meant.
    A log does not name contexts.  If only one of several default streams did work, that one is
    taken.
    """

    def only(lanes: pd.DataFrame) -> int:
        working = lanes.index[busy[lanes.index.to_numpy()]]
        if len(working) > 1 or lanes.empty:
            return -1
        return int(working[0] if len(working) else lanes.index[0])

    legacy = _default_lanes(own)
    of_device = {int(d): only(lanes) for d, lanes in legacy.groupby("device")} | {-1: only(legacy)}
    fallback = int(legacy.index[0]) if len(legacy) == 1 else -1
    return np.array([of_device.get(max(d, -1), fallback) for d in device.tolist()], dtype=np.int64)


def _default_lanes(own: pd.DataFrame) -> pd.DataFrame:
    unflagged = (own["flag"] < 0) & (own["stream"] == DEFAULT_STREAM)
    legacy = own[(own["flag"] == LEGACY_DEFAULT) | unflagged]
    return own[own["stream"] == DEFAULT_STREAM] if legacy.empty else legacy


def _lookup(own: pd.DataFrame, stream: np.ndarray, device: np.ndarray) -> np.ndarray:
    """The lane of each stream id, if there is one only, on that device if it is known."""
    out = np.full(len(stream), -1, dtype=np.int64)
    for s, d in set(zip(stream.tolist(), device.tolist(), strict=True)):
        lanes = own[own["stream"] == s]
        if len(lanes) > 1 and d >= 0:
            lanes = lanes[lanes["device"] == d]
        if len(lanes) == 1:
            out[(stream == s) & (device == d)] = lanes.index[0]
    return out


def _stream_offset(own: pd.DataFrame, ids: np.ndarray, waits: pd.DataFrame) -> int | None:
    """CUPTI streamId minus cuStreamGetId's answer, decided on the trace."""
    known = (waits["lane"] >= 0) & (waits["stream_id"] >= 0)
    certain = waits[known & (waits["stream_id"] != DEFAULT_STREAM)]
    named = own["stream"].reindex(certain["lane"]).to_numpy()
    difference = named - certain["stream_id"].to_numpy()
    values, counts = np.unique(difference[np.isfinite(difference)], return_counts=True)
    if len(values) and abs(int(values[counts.argmax()])) <= 2:
        return int(values[counts.argmax()])
    # whether the stream did work is no evidence here: users do record on idle streams by mistake
    existing = set(own["stream"].tolist())
    hits = {o: sum(int(i + o) in existing for i in ids) for o in STREAM_OFFSETS}
    best = max(STREAM_OFFSETS, key=lambda o: hits[o])  # of equal ones the first: under profilers
    return best if hits[best] else None


def lane_of_thread(trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame) -> np.ndarray:
    """The stream of the operations that each record's thread issued just before and just after, if
    both are the same; -1 otherwise.  This is an inference and is reported as one."""
    out = np.full(len(records), -1, dtype=np.int64)
    thread, begun = records["thread"].to_numpy(), records["call_start_ns"].to_numpy()
    known = records["call"].to_numpy() >= 0
    for number, (when, on) in _issued_by(trace, operation_lane, thread).items():
        own = np.flatnonzero((thread == number) & known)
        issued = np.concatenate([[-1], on, [-1]])
        k = np.searchsorted(when, begun[own])
        out[own] = np.where(issued[k] == issued[k + 1], issued[k], -1)
    return out


def _issued_by(
    trace: Trace, operation_lane: np.ndarray, thread: np.ndarray
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Of these threads: when they issued operations, and the lanes of these."""
    call = trace.operations["call"].to_numpy()
    issued = np.flatnonzero(call >= 0)
    by, begun = (trace.calls[c].to_numpy() for c in ("thread", "start_ns"))
    of_thread = group(by[call[issued]], issued)
    out = {}
    for number in np.intersect1d(thread, list(of_thread)).tolist():
        when = begun[call[of_thread[number]]]
        order = np.argsort(when, kind="stable")
        out[number] = when[order], operation_lane[of_thread[number][order]]
    return out


def lane_of_pairs(
    trace: Trace,
    operation_lane: np.ndarray,
    records: pd.DataFrame,
    lane: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
) -> np.ndarray:
    """The same with a lane for records of pairs (positions of their starts and ends) that have
    none: the only one on which the start's thread issued work between the two; if it issued none,
    that of its work around them."""
    lane = lane.copy()
    thread, begun = records["thread"].to_numpy(), records["call_start_ns"].to_numpy()
    for number, (when, on) in _issued_by(trace, operation_lane, thread[start]).items():
        changes = np.cumsum(np.diff(on, prepend=on[:1]) != 0)
        own = np.flatnonzero(thread[start] == number)
        first, last = (np.searchsorted(when, begun[side[own]]) for side in (start, end))
        inner = (last <= first) & (first > 0) & (first < len(when))
        first, last = first - inner, last + inner
        own, first, last = (x[last > first] for x in (own, first, last))
        only = changes[last - 1] == changes[first]
        for side in (start[own[only]], end[own[only]]):
            lane[side] = np.where(lane[side] >= 0, lane[side], on[first[only]])
    return lane


def lane_by_work(
    trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame, lane: np.ndarray
) -> np.ndarray:
    """The same with a lane for created streams that the log names by their handle only: the lane of
    the thread's work just before and just after, if most of the handle's records agree."""
    handle, process = records["stream_handle"].to_numpy(), records["log_process"].to_numpy()
    unknown = np.flatnonzero((lane < 0) & (handle > 0) & (process >= 0))
    if not len(unknown):
        return lane
    out, beside = lane.copy(), lane_of_thread(trace, operation_lane, records)[unknown]
    for rows in records.iloc[unknown].groupby(["log_process", "stream_handle"]).indices.values():
        votes = pd.Series(beside[rows])
        votes = votes[votes >= 0].value_counts()
        if len(votes) and votes.iloc[0] >= _MOST_SAY * votes.sum():
            out[unknown[rows]] = votes.index[0]
    return out
