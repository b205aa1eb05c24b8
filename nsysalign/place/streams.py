"""Stage 2, on streams: the lane of every operation, record and wait ("lane": a stream as the analysis
numbers them).

A record's stream is exact where CUPTI wrote an event row.  Otherwise the log's `cuStreamGetId`
answer is used; for created streams it is one more than CUPTI's streamId under a profiler and equal
in a plain run: which, say wait lines that have a wait call with a stream, else the streams that
the trace names.

After it is known on which stream each record lies, or that the trace does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, group, index_type, pick, rising
from nsysalign.model import DEFAULT_STREAM, Trace
from nsysalign.place.matched import Matched, awaited

LEGACY_DEFAULT, BLOCKING = 3, 1  # TARGET_INFO_CUDA_STREAM.flag
#: CUPTI's streamId minus cuStreamGetId's answer: -1 under every profiler tried, 0 in a plain run.
STREAM_OFFSETS = (-1, 0)
_KEYS = ["process", "context", "stream"]


class LaneTimes(NamedTuple):
    """Of each operation of a lane: start and end of the call that issued it, its own, and how far it
    and those issued before it reach (the prefix maximum of `end_ns`)."""

    issue_ns: np.ndarray
    issued_ns: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    reach_ns: np.ndarray


@dataclass(frozen=True)
class LaneOperations:
    """The operations of one lane in the order of the starts of the outermost calls that issued them:
    `position` in Trace.operations.

        issued (host)    [op A]     [op B]        [op C]
        runs (stream)       AAAAAAAA   BBBB          CC
    """

    trace: Trace
    position: np.ndarray

    @cached_property
    def times(self) -> LaneTimes:
        """Made for lanes that are asked for only: they take as much memory as the trace's own rows."""
        operations, calls = self.trace.operations, self.trace.calls
        call = operations["call"].to_numpy()[self.position]
        start = operations["start_ns"].to_numpy()[self.position]
        end = operations["end_ns"].to_numpy()[self.position]
        issue = calls["start_ns"].to_numpy()[call]
        issued = calls["end_ns"].to_numpy()[call]
        reach = end if rising(end) else np.maximum.accumulate(end)
        return LaneTimes(issue, issued, start, end, reach)


def lane_operations(trace: Trace, operation_lane: np.ndarray) -> dict[int, LaneOperations]:
    """Per lane, the operations with a known issuing call.  Those without a call cannot be ordered
    and are left out."""
    call, begun = trace.operations["call"].to_numpy(), trace.calls["start_ns"].to_numpy()
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
    """`lanes`: frames.LANES; the lane of every operation; the lanes on which work ran; per lane its
    operations by issue."""

    lanes: pd.DataFrame
    operation_lane: np.ndarray
    busy: np.ndarray
    per_lane: dict[int, LaneOperations]


def streams_of(trace: Trace) -> Streams:
    """All streams that a trace names."""
    columns = [*_KEYS, "device"]
    code = trace.operations.groupby(columns, sort=False).ngroup().to_numpy()
    places = trace.operations[columns].iloc[np.unique(code, return_index=True)[1]]
    named = trace.streams[trace.streams["process"] >= 0]
    streams = pd.concat([places, trace.event_rows[columns], named[columns]])
    # every process has a legacy default stream, whether or not a row names it
    with_default = streams.loc[streams["stream"] == DEFAULT_STREAM, "process"].to_numpy()
    silent = np.setdiff1d(distinct(trace.calls["process"].to_numpy()), with_default)
    default = {"process": silent, "context": 1, "stream": DEFAULT_STREAM, "device": 0}
    # the device of an operation is certain, the stream table may not know it
    streams = pd.concat([streams, pd.DataFrame(default)]).sort_values("device", kind="stable")
    lanes = streams.drop_duplicates(_KEYS, keep="last").sort_values(_KEYS)
    flags = named[[*_KEYS, "flag"]].drop_duplicates(_KEYS)
    lanes = lanes.merge(flags, how="left", on=_KEYS).fillna({"flag": -1}).astype({"flag": "int64"})
    lanes = frames.check(lanes, frames.LANES)
    lane = stream_lane(lanes, places).astype(np.int64)
    # of a single place: an array without memory
    lane = np.broadcast_to(lane[0], len(code)) if len(lane) == 1 else lane[code]
    return Streams(lanes, lane, np.isin(lanes.index, lane), lane_operations(trace, lane))


def stream_lane(lanes: pd.DataFrame, rows: pd.DataFrame) -> np.ndarray:
    """Lane of rows with process, context and stream; -1 for none."""
    index = pd.MultiIndex.from_frame(lanes[_KEYS])
    return index.get_indexer(pd.MultiIndex.from_frame(rows[_KEYS]))


def in_legacy_order(trace: Trace, streams: Streams, lanes: np.ndarray) -> dict[int, LaneOperations]:
    """Of these lanes: the operations of each and of all that it is implicitly ordered with.  The
    legacy default stream waits for all work of blocking streams issued before, and they for it."""
    process = streams.lanes["process"].to_numpy()
    context = streams.lanes["context"].to_numpy()
    flag = streams.lanes["flag"].to_numpy()
    of_lane = dict(streams.per_lane)
    partner = {LEGACY_DEFAULT: BLOCKING, BLOCKING: LEGACY_DEFAULT}
    for number in lanes.tolist():
        in_context = (process == process[number]) & (context == context[number])
        members = np.flatnonzero(in_context & (flag == partner.get(int(flag[number]))))
        if len(np.intersect1d(members, list(streams.per_lane))):
            together = np.isin(streams.operation_lane, [number, *members.tolist()])
            of_lane[number] = lane_operations(trace, np.where(together, number, -1))[number]
    return of_lane


def on_streams(trace: Trace, matched: Matched, streams: Streams, *, logged: bool) -> Matched:
    """The same whose records and waits have a column lane (-1: not known): that which event rows
    name, else the log, else (`logged`: there is none) that of the work around them; and whose waits
    have the records that they wait for."""
    records = matched.records
    of_wait = stream_lane(streams.lanes, trace.syncs)
    waits = matched.waits.assign(lane=pick(of_wait, matched.waits["sync"].to_numpy(), -1))
    exact = stream_lane(streams.lanes, trace.event_rows)
    exact = pick(exact, records["event_row"].to_numpy(), -1)
    if logged:
        lane, notes = _lane_of_log(streams, records, waits, exact >= 0)
    else:
        lane, notes = lane_of_thread(trace, streams.operation_lane, records), []
    records = records.assign(lane=np.where(exact >= 0, exact, lane))
    record, inferred = awaited(trace, waits, records)
    waits = waits.assign(record=record, inferred=inferred)
    if logged:
        lane = _lane_before(trace, streams.operation_lane, records, waits)
        records = records.assign(lane=np.where(records["lane"] >= 0, records["lane"], lane))
    return replace(matched, records=records, waits=waits, notes=matched.notes + notes)


def _lane_of_log(
    streams: Streams, records: pd.DataFrame, waits: pd.DataFrame, settled: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Lane of every record from what Python knew about its stream, -1 if that is ambiguous; notes.
    `settled`: records with a lane from an event row; they get no note."""
    lane = np.full(len(records), -1)
    notes = dict[str, None]()
    handle, stream_id = records["stream_handle"], records["stream_id"]
    default = (handle == 0) | ((handle < 0) & (stream_id == DEFAULT_STREAM))
    known = records.assign(default=default, named=stream_id.where(~default, DEFAULT_STREAM))
    known = known[(known["process"] >= 0) & (known["log_process"] >= 0)]
    for process, members in known.groupby("process"):
        lanes = streams.lanes[streams.lanes["process"] == process]
        ids = members.loc[~members["default"] & (members["named"] >= 0), "named"].unique()
        shift = _stream_offset(lanes, ids, waits[waits["process"] == process])
        groups = members.groupby(["default", "named", "device"]).groups
        for (is_default, number, device), rows in groups.items():
            candidates = _candidates(streams, lanes, is_default, number, shift)
            on_device = candidates[candidates["device"] == device]
            if len(on_device):
                candidates = on_device
            if is_default:
                # a log names no context: of several the one which alone did work
                used = candidates[streams.busy[candidates.index]]
                candidates = used if len(used) else candidates[:1]
            if len(candidates) == 1:
                lane[rows] = candidates.index[0]
            elif is_default and not settled[rows].all():
                notes[
                    "several contexts have a default stream that did work, and the event log does not say which one is "
                    "meant: its records are unaligned (nsysalign run --accurate tells them apart)"
                ] = None
            elif number >= 0 and shift is None:
                notes[
                    "streams of the event log could not be told apart in the trace: their records are unaligned"
                ] = None
    return lane, [*notes]


def _candidates(
    streams: Streams, lanes: pd.DataFrame, is_default: bool, number: int, shift: int | None
) -> pd.DataFrame:
    """The `lanes` of a process that the log may mean: by default streams, by cuStreamGetId's answer
    (`number`, -1: the log has none), or those on which work ran."""
    if is_default:
        legacy = lanes[lanes["flag"] == LEGACY_DEFAULT]
        return lanes[lanes["stream"] == DEFAULT_STREAM] if legacy.empty else legacy
    if number < 0:
        return lanes[streams.busy[lanes.index]]
    return lanes[:0] if shift is None else lanes[lanes["stream"] == number + shift]


def _stream_offset(lanes: pd.DataFrame, ids: np.ndarray, waits: pd.DataFrame) -> int | None:
    """CUPTI streamId minus cuStreamGetId's answer, decided on the trace."""
    known = (waits["lane"] >= 0) & (waits["stream_id"] >= 0)
    certain = waits[known & (waits["stream_id"] != DEFAULT_STREAM)]
    difference = lanes["stream"].reindex(certain["lane"]).to_numpy() - certain["stream_id"]
    usual = difference.mode()
    if len(usual) and abs(usual[0]) <= 2:
        return int(usual[0])
    # whether the stream did work is no evidence here: users do record on idle streams by mistake
    hits = {o: int(np.isin(ids + o, lanes["stream"]).sum()) for o in STREAM_OFFSETS}
    best = max(STREAM_OFFSETS, key=lambda o: hits[o])  # of equal ones the first: under profilers
    return best if hits[best] else None


def _lane_before(
    trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame, waits: pd.DataFrame
) -> np.ndarray:
    """For records of libraries that a stream waits for, the stream of the last operation that their
    thread issued before: NCCL, for one, records behind its kernel.  -1 for all others, and where that
    is the waiting stream itself.  An inference, as is what these waits wait for."""
    lane_of_record = np.full(len(records), -1)
    record = waits["record"].to_numpy()
    unknown = waits["inferred"].to_numpy() & (record >= 0)
    unknown &= pick(records["lane"].to_numpy(), record, -1) < 0
    unknown &= pick(records["log_process"].to_numpy(), record, 0) < 0
    waiting = waits["lane"].to_numpy()[unknown]
    record = record[unknown]
    call = trace.operations["call"].to_numpy()
    issued = np.flatnonzero(call >= 0)
    begun = trace.calls["start_ns"].to_numpy()[call[issued]]
    thread = trace.calls["thread"].to_numpy()[call[issued]]
    recorded = records["call_start_ns"].to_numpy()[record]
    recorder = records["thread"].to_numpy()[record]
    for number, rows in group(recorder, np.arange(len(record))).items():
        launches = np.flatnonzero(thread == number)
        launches = launches[np.argsort(begun[launches], kind="stable")]
        last = np.searchsorted(begun[launches], recorded[rows]) - 1
        lane = pick(operation_lane[issued[launches]], last, -1)
        lane_of_record[record[rows]] = np.where(lane == waiting[rows], -1, lane)
    return lane_of_record


def lane_of_thread(trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame) -> np.ndarray:
    """The stream of the operations that each record's thread issued just before and just after, if
    both are the same; -1 otherwise.  This is an inference and is reported as one."""
    call = trace.operations["call"].to_numpy()
    issued = call >= 0
    work = pd.DataFrame(
        {
            "time": trace.calls["start_ns"].to_numpy()[call[issued]],
            "thread": trace.calls["thread"].to_numpy()[call[issued]],
            "lane": operation_lane[issued],
        },
        dtype="int64",  # as `asked`: the trace keeps small ids in less
    )
    work = work.sort_values("time", kind="stable")
    asked = records[records["call"] >= 0].rename(columns={"call_start_ns": "time"})
    asked = asked.sort_values("time", kind="stable")[["time", "thread"]].astype("int64")
    before = pd.merge_asof(asked, work, on="time", by="thread", direction="backward")["lane"]
    after = pd.merge_asof(asked, work, on="time", by="thread", direction="forward")["lane"]
    lane = np.full(len(records), -1, dtype=np.int64)
    lane[asked.index] = before.where(before == after, -1)
    return lane
