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
        call, start, end = (
            operations[c].to_numpy()[self.position] for c in ("call", "start_ns", "end_ns")
        )
        issue, issued = (calls[c].to_numpy()[call] for c in ("start_ns", "end_ns"))
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
    every = pd.concat([places, trace.event_rows[columns], named[columns]])
    # every process has a legacy default stream, whether or not a row names it
    with_default = every.loc[every["stream"] == DEFAULT_STREAM, "process"].to_numpy()
    silent = np.setdiff1d(distinct(trace.calls["process"].to_numpy()), with_default)
    default = {"process": silent, "context": 1, "stream": DEFAULT_STREAM, "device": 0}
    # the device of an operation is certain, the stream table may not know it
    every = pd.concat([every, pd.DataFrame(default)]).sort_values("device", kind="stable")
    lanes = every.drop_duplicates(_KEYS, keep="last").sort_values(_KEYS)
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
    process, context, flag = (streams.lanes[c].to_numpy() for c in ("process", "context", "flag"))
    of_lane = dict(streams.per_lane)
    partner = {LEGACY_DEFAULT: BLOCKING, BLOCKING: LEGACY_DEFAULT}
    for number in lanes.tolist():
        other = (flag == partner.get(int(flag[number]))) & (process == process[number])
        members = np.flatnonzero(other & (context == context[number]))
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
    lane, notes = np.full(len(records), -1), dict[str, None]()
    handle, named = records["stream_handle"], records["stream_id"]
    default = (handle == 0) | ((handle < 0) & (named == DEFAULT_STREAM))
    known = records.assign(default=default, named=named.where(~default, DEFAULT_STREAM))
    known = known[(known["process"] >= 0) & (known["log_process"] >= 0)]
    for process, those in known.groupby("process"):
        own = streams.lanes[streams.lanes["process"] == process]
        working = own[streams.busy[own.index]]
        legacy = own[own["flag"] == LEGACY_DEFAULT]
        legacy = own[own["stream"] == DEFAULT_STREAM] if legacy.empty else legacy
        ids = those.loc[~those["default"] & (those["named"] >= 0), "named"].unique()
        shift = _stream_offset(own, ids, waits[waits["process"] == process])
        groups = those.groupby(["default", "named", "device"]).groups
        for (is_default, number, device), rows in groups.items():
            of_id = own[:0] if shift is None else own[own["stream"] == number + shift]
            some = legacy if is_default else of_id if number >= 0 else working
            there = some[some["device"] == device]
            some = there if len(there) else some
            if is_default:  # a log names no context: of several that which alone did work
                used = some[streams.busy[some.index]]
                some = used if len(used) else some[:1]
            if len(some) == 1:
                lane[rows] = some.index[0]
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


def _stream_offset(own: pd.DataFrame, ids: np.ndarray, waits: pd.DataFrame) -> int | None:
    """CUPTI streamId minus cuStreamGetId's answer, decided on the trace."""
    known = (waits["lane"] >= 0) & (waits["stream_id"] >= 0)
    certain = waits[known & (waits["stream_id"] != DEFAULT_STREAM)]
    difference = own["stream"].reindex(certain["lane"]).to_numpy() - certain["stream_id"]
    usual = difference.mode()
    if len(usual) and abs(usual[0]) <= 2:
        return int(usual[0])
    # whether the stream did work is no evidence here: users do record on idle streams by mistake
    hits = {o: int(np.isin(ids + o, own["stream"]).sum()) for o in STREAM_OFFSETS}
    best = max(STREAM_OFFSETS, key=lambda o: hits[o])  # of equal ones the first: under profilers
    return best if hits[best] else None


def _lane_before(
    trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame, waits: pd.DataFrame
) -> np.ndarray:
    """For records of libraries that a stream waits for, the stream of the last operation that their
    thread issued before: NCCL, for one, records behind its kernel.  -1 for all others, and where that
    is the waiting stream itself.  An inference, as is what these waits wait for."""
    out = np.full(len(records), -1)
    record = waits["record"].to_numpy()
    unknown = waits["inferred"].to_numpy() & (record >= 0)
    unknown &= pick(records["lane"].to_numpy(), record, -1) < 0
    unknown &= pick(records["log_process"].to_numpy(), record, 0) < 0
    waiting, record = waits["lane"].to_numpy()[unknown], record[unknown]
    call = trace.operations["call"].to_numpy()
    issued = np.flatnonzero(call >= 0)
    begun, thread = (trace.calls[c].to_numpy()[call[issued]] for c in ("start_ns", "thread"))
    recorded, recorder = (records[c].to_numpy()[record] for c in ("call_start_ns", "thread"))
    for number, those in group(recorder, np.arange(len(record))).items():
        own = np.flatnonzero(thread == number)
        own = own[np.argsort(begun[own], kind="stable")]
        last = np.searchsorted(begun[own], recorded[those]) - 1
        lane = pick(operation_lane[issued[own]], last, -1)
        out[record[those]] = np.where(lane == waiting[those], -1, lane)
    return out


def lane_of_thread(trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame) -> np.ndarray:
    """The stream of the operations that each record's thread issued just before and just after, if
    both are the same; -1 otherwise.  This is an inference and is reported as one."""
    call = trace.operations["call"].to_numpy()
    issued = call >= 0
    begun, thread = (trace.calls[c].to_numpy()[call[issued]] for c in ("start_ns", "thread"))
    work = pd.DataFrame({"time": begun, "thread": thread, "lane": operation_lane[issued]})
    asked = records[records["call"] >= 0].rename(columns={"call_start_ns": "time"})
    asked, work = (rows.sort_values("time", kind="stable") for rows in (asked, work))
    before, after = (
        pd.merge_asof(asked[["time", "thread"]], work, on="time", by="thread", direction=way)[
            "lane"
        ]
        for way in ("backward", "forward")
    )
    out = np.full(len(records), -1, dtype=np.int64)
    out[asked.index] = before.where(before == after, -1)
    return out
