"""Stage 2, on streams: the lane of every operation, record and wait.

lane        the number of a stream in this analysis: its row in the table `lanes`; -1 for not known
operation   a kernel, copy or other piece of work on the GPU, issued (launched) by a call of the host
record      one call of `event.record()`
wait        a call that makes a stream wait for an event (`cudaStreamWaitEvent`)
event row   what CUPTI wrote about a record or wait: its event and stream

A record's stream is certain where CUPTI wrote an event row.  Otherwise the answer of `cuStreamGetId` in
the log is used.  For created streams that answer is one more than CUPTI's streamId under a profiler, and
equal to it in a plain run.  Which of the two holds follows from waits whose stream both log and trace
name, or else from the streams that the trace names.

This stage finds on which stream each record lies, or that the trace does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, group, index_type, pick, positions, rising
from nsysalign.model import DEFAULT_STREAM, Trace
from nsysalign.place.matched import Matched, awaited_records

LEGACY_DEFAULT, BLOCKING = 3, 1  # TARGET_INFO_CUDA_STREAM.flag
#: CUPTI's streamId minus cuStreamGetId's answer: -1 under every profiler tried, 0 in a plain run.
STREAM_OFFSETS = (-1, 0)
#: What waits tell may be an offset that was not seen so far, but hardly a larger one.
_LARGEST_OFFSET = 2
_KEYS = ["process", "context", "stream"]


class LaneTimes(NamedTuple):
    """Times of each operation of a lane (int64 ns), in the order in which their calls began.

    operation                  A    B    C
    call_start_ns              10   20   30      when the call began that issued it: rising
    call_end_ns                14   26   33      when that call ended: not always rising
    start_ns                   16   28   50      when it started on the GPU
    end_ns                     45   40   60      when it ended there
    reach_ns                   45   45   60      the latest `end_ns` of it and all operations before it
    """

    call_start_ns: np.ndarray
    call_end_ns: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    reach_ns: np.ndarray


@dataclass(frozen=True)
class LaneOperations:
    """The operations of one lane, in the order in which the outermost calls that issued them began.

    position: their rows in Trace.operations

        issued (host)    [op A]     [op B]        [op C]
        runs (stream)       AAAAAAAA   BBBB          CC
    """

    trace: Trace
    position: np.ndarray

    @cached_property
    def times(self) -> LaneTimes:
        """The times of these operations.  They take as much memory as the trace's own rows, so that they are
        made only for lanes that are asked for."""
        operations, calls = self.trace.operations, self.trace.calls
        call = operations["call"].to_numpy()[self.position]
        start = operations["start_ns"].to_numpy()[self.position]
        end = operations["end_ns"].to_numpy()[self.position]
        return LaneTimes(
            call_start_ns=calls["start_ns"].to_numpy()[call],
            call_end_ns=calls["end_ns"].to_numpy()[call],
            start_ns=start,
            end_ns=end,
            reach_ns=end if rising(end) else np.maximum.accumulate(end),
        )


def lane_operations(trace: Trace, operation_lane: np.ndarray) -> dict[int, LaneOperations]:
    """Return lane -> its operations in the order of issue.  An operation whose call is not known cannot be
    ordered and is left out.

    operation_lane: per operation of the trace, its lane
    """
    call = trace.operations["call"].to_numpy()
    begun = trace.calls["start_ns"].to_numpy()
    known: np.ndarray = np.flatnonzero(call >= 0).astype(index_type(len(call)))
    out = {}
    for lane, position in group(operation_lane[known], known).items():
        issue = begun[call[position]]
        if not rising(issue):
            position = position[np.argsort(issue, kind="stable")]
        out[lane] = LaneOperations(trace, position)
    return out


@dataclass(frozen=True)
class Streams:
    """The streams of a trace."""

    lanes: pd.DataFrame  # frames.LANES: a row per stream
    operation_lane: np.ndarray  # per operation of the trace, its lane
    busy: np.ndarray  # bool, per lane: whether any operation ran on it
    per_lane: dict[int, LaneOperations]  # lane -> its operations in the order of issue


def streams_of(trace: Trace) -> Streams:
    """Return all streams of a trace, each with a number (its lane), and the stream on which each operation ran.

    Process 1 worked on streams 13 and 14 of context 1: lanes 0, 1 and 2 are its streams 7 (the legacy default stream,
    which every process has), 13 and 14.
    """
    columns = [*_KEYS, "device"]
    # operations of one stream have the same code; `streams` has a row per code
    code = trace.operations.groupby(columns, sort=False).ngroup().to_numpy()
    _, first_of_code = np.unique(code, return_index=True)
    streams = trace.operations[columns].iloc[first_of_code]
    lanes = _lanes(trace, streams)
    lane_of_code = stream_lane(lanes, streams).astype(np.int64)
    if len(lane_of_code) == 1:  # an array that repeats one value takes no memory
        operation_lane = np.broadcast_to(lane_of_code[0], len(code))
    else:
        operation_lane = lane_of_code[code]
    busy = np.isin(lanes.index, operation_lane)
    return Streams(lanes, operation_lane, busy, lane_operations(trace, operation_lane))


def _lanes(trace: Trace, with_work: pd.DataFrame) -> pd.DataFrame:
    """Return `frames.LANES`: a row for each stream that operations, event rows or the stream table of a trace name, and
    for the legacy default stream of every process, whether or not a row names it.

    with_work: the streams of operations, with columns process, context, stream and device
    """
    columns = [*_KEYS, "device"]
    in_stream_table = trace.streams[trace.streams["process"] >= 0]
    of_events = trace.event_rows[columns].drop_duplicates()
    device_of: dict[tuple[int, ...], int] = {}
    for table in (with_work, of_events, in_stream_table):
        for process, context, stream, device in frames.rows_of(table, *columns):
            key = (process, context, stream)
            # the device of an operation is certain; the stream table may not know it (-1)
            device_of[key] = max(device, device_of.get(key, device))
    with_default = {process for process, _, stream in device_of if stream == DEFAULT_STREAM}
    for process in distinct(trace.calls["process"].to_numpy()).tolist():
        if process not in with_default:
            device_of[process, 1, DEFAULT_STREAM] = 0
    flag_of: dict[tuple[int, ...], int] = {}
    for process, context, stream, flag in frames.rows_of(in_stream_table, *_KEYS, "flag"):
        flag_of.setdefault((process, context, stream), flag)
    lanes = [(*key, flag_of.get(key, -1), device_of[key]) for key in sorted(device_of)]
    table = pd.DataFrame(lanes, columns=[*_KEYS, "flag", "device"])
    return frames.check(table, frames.LANES)


def stream_lane(lanes: pd.DataFrame, rows: pd.DataFrame) -> np.ndarray:
    """Return the lane of each row, -1 for none.

    rows: a table with columns process, context and stream
    """
    of_lanes: np.ndarray = np.zeros(len(lanes), np.int64)  # one number for all three columns
    of_rows: np.ndarray = np.zeros(len(rows), np.int64)
    is_known: np.ndarray = np.ones(len(rows), bool)
    for name in _KEYS:
        values = distinct(lanes[name].to_numpy())
        place = positions(rows[name].to_numpy(), values)
        is_known &= place >= 0
        of_lanes = of_lanes * len(values) + np.searchsorted(values, lanes[name].to_numpy())
        of_rows = of_rows * len(values) + place
    return np.where(is_known, positions(of_rows, of_lanes), -1)


def in_legacy_order(trace: Trace, streams: Streams, lanes: np.ndarray) -> dict[int, LaneOperations]:
    """Return lane (stream) -> its operations; for each of the given lanes together with the operations of all lanes
    that CUDA orders it with implicitly.  The legacy default stream waits for all work that was issued
    to blocking streams before, and blocking streams wait for its work.

    Lane 0 is the default stream, 1 and 2 are blocking streams of its context: lane 0 has the operations of all three;
    lane 1 those of 0 and 1.  A stream of another kind (non-blocking, or of unknown flag) has its own alone.

    lanes: numbers of lanes
    """
    process = streams.lanes["process"].to_numpy()
    context = streams.lanes["context"].to_numpy()
    flag = streams.lanes["flag"].to_numpy()
    of_lane = dict(streams.per_lane)
    ordered_with = {LEGACY_DEFAULT: BLOCKING, BLOCKING: LEGACY_DEFAULT}
    for number in lanes.tolist():
        if int(flag[number]) not in ordered_with:
            continue
        in_context = (process == process[number]) & (context == context[number])
        partners = np.flatnonzero(in_context & (flag == ordered_with[int(flag[number])]))
        if any(partner in streams.per_lane for partner in partners.tolist()):
            of_lane[number] = _as_one_lane(trace, streams, [number, *partners.tolist()])
    return of_lane


def _as_one_lane(trace: Trace, streams: Streams, lanes: list[int]) -> LaneOperations:
    """Return the operations of several lanes in one order of issue."""
    is_of_these = np.isin(streams.operation_lane, lanes)
    return lane_operations(trace, np.where(is_of_these, 0, -1))[0]


def on_streams(trace: Trace, matched: Matched, streams: Streams, *, logged: bool) -> Matched:
    """Return `matched` with what is known about streams in three more columns: `lane`, on which stream each record and
    wait is (-1: not known); `record`, which record each wait waits for (-1: not known); and `inferred`, whether
    that is an inference.

    logged: whether there is a log of what Python recorded

    A record's lane comes from its event row.  A record without one has its lane from the log; without a
    log it has the lane of the work that its thread issued around it.  With the lanes known, the record that
    each wait waits for is found.  That in turn tells the lane of further records: those of libraries, which
    the log does not have.
    """
    records = matched.records
    lane_of_sync = stream_lane(streams.lanes, trace.syncs)
    lane_of_wait = pick(lane_of_sync, matched.waits["sync"].to_numpy(), -1)
    waits = matched.waits.assign(lane=lane_of_wait)
    lane_of_event_row = stream_lane(streams.lanes, trace.event_rows)
    by_event_row = pick(lane_of_event_row, records["event_row"].to_numpy(), -1)
    notes: list[str] = []
    if logged:
        likely, notes = _lanes_by_log(streams, records, waits, by_event_row >= 0)
    else:
        likely = lane_of_thread(trace, streams.operation_lane, records)
    lane = np.where(by_event_row >= 0, by_event_row, likely)
    records = records.assign(lane=lane)
    record, inferred = awaited_records(trace, waits, records)
    waits = waits.assign(record=record, inferred=inferred)
    if logged:
        lane_before = _lane_before(trace, streams.operation_lane, records, waits)
        records = records.assign(lane=np.where(lane >= 0, lane, lane_before))
    return replace(matched, records=records, waits=waits, notes=matched.notes + notes)


def _lanes_by_log(
    streams: Streams, records: pd.DataFrame, waits: pd.DataFrame, has_event_row: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Return the lane of each record by what the log (of nsysalign's probe in the program) says about its stream, and
    notes on streams that could not be told apart.  A lane is a row of `streams.lanes`, which are the streams of the trace;
    it is -1 for a record that may be on several of them, or is on none.

    records: `Matched.records`, numbered from 0
    waits: `Matched.waits` with the column lane
    has_event_row: bool, per record: whether CUPTI wrote down its stream (an event row), which counts more than the result

    The log numbers streams by itself.  If it has streams 14 and 15 where the trace has 13 and 14, the offset is -1
    (`_stream_offset`), and records on the log's stream 14 get the lane of the trace's stream 13.
    """
    lane = np.full(len(records), -1)
    notes: list[str] = []
    is_default = _is_default_stream(records)
    # a default stream has this number in the trace, whichever the log gives it
    stream_id = records["stream_id"].where(~is_default, DEFAULT_STREAM)
    logged = records.assign(is_default=is_default, stream_id=stream_id)
    # records that the log has, of processes that the trace has
    logged = logged[(logged["log_process"] >= 0) & (logged["process"] >= 0)]
    for process, of_process in logged.groupby("process"):
        lanes = streams.lanes[streams.lanes["process"] == process]
        was_created = ~of_process["is_default"] & (of_process["stream_id"] >= 0)
        created_ids = of_process.loc[was_created, "stream_id"].unique()
        offset = _stream_offset(lanes, created_ids, waits[waits["process"] == process])
        # the records of each stream of the log, as positions in `records`
        records_of_stream = of_process.groupby(["is_default", "stream_id", "device"]).groups
        for (of_default, logged_id, device), rows in records_of_stream.items():
            candidates = _lanes_with_id(streams, lanes, of_default, logged_id, offset)
            candidates = _likeliest_lanes(streams, candidates, of_default, device)
            if len(candidates) == 1:
                lane[rows] = candidates.index[0]  # a lane is a row of `lanes`
            # notes on what concerns whole streams; each record without a lane is refused with its own reason as well
            elif of_default and not has_event_row[rows].all():
                notes.append(_SEVERAL_DEFAULTS)
            elif logged_id >= 0 and offset is None:
                notes.append(_NOT_TOLD_APART)
    return lane, list(dict.fromkeys(notes))  # each note once


def _is_default_stream(records: pd.DataFrame) -> pd.Series:
    """Return, for each record, whether the log says that it is on a default stream: that has the handle 0.  A log without
    handles (-1) shows it by the number of the stream."""
    handle = records["stream_handle"]
    without_handle = handle < 0
    return (handle == 0) | (without_handle & (records["stream_id"] == DEFAULT_STREAM))


_SEVERAL_DEFAULTS = (
    "several contexts have a default stream that did work, and the event log does not say which one is "
    "meant: its records are unaligned (nsysalign run --accurate tells them apart)"
)
_NOT_TOLD_APART = (
    "streams of the event log could not be told apart in the trace: their records are unaligned"
)


def _likeliest_lanes(
    streams: Streams, candidates: pd.DataFrame, is_default: bool, device: int
) -> pd.DataFrame:
    """Return those of the candidates (rows of `streams.lanes`) that are on the device which the log names, or
    all if none is.

    A log does not name the context.  Of several default streams it means the only one on which work ran; if
    work ran on none, the first.
    """
    on_device = candidates[candidates["device"] == device]
    if len(on_device):
        candidates = on_device
    if not is_default:
        return candidates
    with_work = candidates[streams.busy[candidates.index]]
    return with_work if len(with_work) else candidates[:1]


def _lanes_with_id(
    streams: Streams, lanes: pd.DataFrame, is_default: bool, logged_id: int, offset: int | None
) -> pd.DataFrame:
    """Return the rows of `lanes` that the log may mean by a stream: none, one or several.

    lanes: the lanes of one process
    is_default: whether the log says that it is the default stream
    logged_id: the answer of cuStreamGetId in the log; -1: it has none, so that it may be any lane on which
        work ran
    offset: what to add to that answer for CUPTI's streamId, None if that is not known (`_stream_offset`)
    """
    if is_default:
        legacy = lanes[lanes["flag"] == LEGACY_DEFAULT]
        return lanes[lanes["stream"] == DEFAULT_STREAM] if legacy.empty else legacy
    if logged_id < 0:
        return lanes[streams.busy[lanes.index]]
    return lanes[:0] if offset is None else lanes[lanes["stream"] == logged_id + offset]


def _stream_offset(lanes: pd.DataFrame, logged_ids: np.ndarray, waits: pd.DataFrame) -> int | None:
    """Return CUPTI's streamId minus the answer of cuStreamGetId in one process; None if the trace does not
    tell.

    lanes: the lanes of the process
    logged_ids: all answers of cuStreamGetId in its log, without those for default streams
    waits: its waits, with the columns lane and stream_id (the answer in the log)
    """
    # waits of which both tell the stream: the trace by its lane, the log by its number
    has_both = (waits["lane"] >= 0) & (waits["stream_id"] >= 0)
    certain = waits[has_both & (waits["stream_id"] != DEFAULT_STREAM)]
    stream_in_trace = lanes["stream"].reindex(certain["lane"]).to_numpy()
    difference = stream_in_trace - certain["stream_id"]
    usual = difference.mode()
    # a much larger difference than STREAM_OFFSETS is no offset: these waits were matched wrongly
    if len(usual) and abs(usual[0]) <= _LARGEST_OFFSET:
        return int(usual[0])
    # whether the stream did work is no evidence here: users do record on idle streams by mistake
    hits = {
        offset: int(np.isin(logged_ids + offset, lanes["stream"]).sum())
        for offset in STREAM_OFFSETS
    }
    # of equal ones the first of STREAM_OFFSETS: the offset under a profiler, and a trace was recorded by one
    best = max(STREAM_OFFSETS, key=lambda offset: hits[offset])
    return best if hits[best] else None


def _lane_before(
    trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame, waits: pd.DataFrame
) -> np.ndarray:
    """Return, for each record of a library for which a wait waits, the lane of the operation that its thread issued
    last before it; -1 for all other records, and where that is not known.

    thread    [launch on lane 3] [record R]           R has lane 3
    lane 5                          wait for R        unless lane 3 itself waits for R

    operation_lane: per operation of the trace, its lane
    records: with the column lane
    waits: with the columns lane, record and inferred

    NCCL, for one, records an event right after it launched its kernel.  Only records count that have no lane, that
    the log does not have (a library made them), and for which a wait was inferred to wait.  If the lane were the one
    that waits, nothing would have to wait: then it is -1, too.  The result is an inference, as that wait's record is.
    """
    inferred = waits[waits["inferred"] & (waits["record"] >= 0)]
    # the records that these wait for, those that a library made without a known lane
    record_of_wait = inferred["record"].to_numpy()
    without_lane = records["lane"].to_numpy()[record_of_wait] < 0
    of_library = records["log_process"].to_numpy()[record_of_wait] < 0
    is_wanted = without_lane & of_library
    record = record_of_wait[is_wanted]
    waiting_lane = inferred["lane"].to_numpy()[is_wanted]
    thread = records["thread"].to_numpy()[record]
    call_start = records["call_start_ns"].to_numpy()[record]
    lane = _last_issued(trace, operation_lane, thread, call_start)
    lane_of_record = np.full(len(records), -1)
    # of several waits for a record the last one decides
    lane_of_record[record] = np.where(lane == waiting_lane, -1, lane)
    return lane_of_record


def _last_issued(
    trace: Trace, operation_lane: np.ndarray, thread: np.ndarray, time_ns: np.ndarray
) -> np.ndarray:
    """Return, for each thread and time, the lane of the last operation that the thread had issued by then; -1 for none.

    operation_lane: per operation of the trace, its lane
    """
    call = trace.operations["call"].to_numpy()
    operations = np.flatnonzero(call >= 0)
    issuing_thread = trace.calls["thread"].to_numpy()[call[operations]]
    issue_ns = trace.calls["start_ns"].to_numpy()[call[operations]]
    lane = np.full(len(thread), -1)
    for number, rows in group(thread, np.arange(len(thread))).items():
        by_thread = np.flatnonzero(issuing_thread == number)
        by_thread = by_thread[np.argsort(issue_ns[by_thread], kind="stable")]
        last = np.searchsorted(issue_ns[by_thread], time_ns[rows]) - 1  # -1: none before
        lane[rows] = pick(operation_lane[operations[by_thread]], last, -1)
    return lane


def lane_of_thread(trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame) -> np.ndarray:
    """Return, for each record, the lane (stream) of the operations that its thread issued just before and just after
    it, if both are on one lane; -1 otherwise.  This is an inference, for traces without a log.

    thread   [launch on lane 3] [record] [launch on lane 3] [record] [launch on lane 5]      lanes 3 and -1

    operation_lane: per operation of the trace, its lane
    """
    call = trace.operations["call"].to_numpy()
    issued = call >= 0
    work = pd.DataFrame(
        {
            "time": trace.calls["start_ns"].to_numpy()[call[issued]],
            "thread": trace.calls["thread"].to_numpy()[call[issued]],
            "lane": operation_lane[issued],
        },
        dtype="int64",  # merge_asof joins equal types only; the trace keeps small numbers in fewer bits
    )
    work = work.sort_values("time", kind="stable")
    # sorted, but each row keeps the record's position in `records` as its index
    with_call = records[records["call"] >= 0].rename(columns={"call_start_ns": "time"})
    with_call = with_call[["time", "thread"]].astype("int64").sort_values("time", kind="stable")

    def lane_issued(direction: str) -> pd.Series:
        """Return the lane of the thread's nearest operation in one direction of time, missing if there is none."""
        nearest = pd.merge_asof(with_call, work, on="time", by="thread", direction=direction)
        return nearest["lane"]

    before = lane_issued("backward")
    after = lane_issued("forward")
    lane = np.full(len(records), -1, dtype=np.int64)
    lane[with_call.index] = before.where(before == after, -1)  # a missing one equals nothing
    return lane
