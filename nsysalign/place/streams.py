"""Streams as the analysis numbers them ("lanes"), and the lane of every record and wait.

A record's stream is exact where CUPTI wrote an event row.  Otherwise the log's `cuStreamGetId`
answer is used; for created streams it is one more than CUPTI's streamId under a profiler and equal
in a plain run, so the offset is determined from the trace itself: by wait lines that have a wait
call with a stream, then by which offset names streams that did work; finally, the bounds of the
pairs refute a wrong one.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, group
from nsysalign.model import CALL, DEFAULT_STREAM, Trace

LEGACY_DEFAULT = 3  # TARGET_INFO_CUDA_STREAM.flag
#: CUPTI's streamId minus cuStreamGetId's answer: -1 under every profiler tried, 0 in a plain run.
STREAM_OFFSETS = (-1, 0)
#: A handle stands for a stream if at least this share of its records point to it.
_MOST_SAY = 0.6


def build_lanes(trace: Trace) -> tuple[pd.DataFrame, np.ndarray]:
    """(lanes, lane of every operation)."""
    keys = ["process", "context", "stream"]
    operations = trace.operations
    places, of_place = _places(operations, [*keys, "device"])
    parts = [
        places,
        trace.event_rows[[*keys, "device"]],
        trace.streams[trace.streams["process"] >= 0][[*keys, "device"]],
    ]
    every = pd.concat([p.drop_duplicates() for p in parts], ignore_index=True)
    # every process has a legacy default stream, whether or not a row names it
    processes = distinct(trace.calls["process"].to_numpy())
    silent = np.setdiff1d(
        processes, every.loc[every["stream"] == DEFAULT_STREAM, "process"].to_numpy()
    )
    every = pd.concat(
        [
            every,
            pd.DataFrame({"process": silent, "context": 1, "stream": DEFAULT_STREAM, "device": 0}),
        ],
        ignore_index=True,
    )
    # the device of an operation is certain, the stream table may not know it: keep the first
    lanes = (
        every.sort_values("device", ascending=False, kind="stable")
        .drop_duplicates(keys)
        .sort_values(keys, ignore_index=True)
    )
    flags = trace.streams.drop_duplicates(keys).set_index(keys)["flag"]
    index = pd.MultiIndex.from_frame(lanes[keys])
    lanes["flag"] = flags.reindex(index).fillna(-1).astype("int64").to_numpy()
    return frames.check(lanes, frames.LANES), _lanes_of(lanes, places, of_place)


def _lanes_of(lanes: pd.DataFrame, places: pd.DataFrame, of_place: np.ndarray) -> np.ndarray:
    """Lane of every operation, from that of every distinct place."""
    lane = stream_lane(lanes, places).astype(np.int64)
    return np.broadcast_to(lane[0], len(of_place)) if len(lane) == 1 else lane[of_place]


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


def lane_of_event_rows(
    trace: Trace, lanes: pd.DataFrame, records: pd.DataFrame
) -> tuple[np.ndarray, pd.DataFrame]:
    """For every record: lane from its CUPTI event row (-1 for none), and that row's event,
    event_sync, timestamp_ns."""
    columns = ["event", "event_sync", "timestamp_ns"]
    none = pd.DataFrame(
        {"event": -1, "event_sync": -1, "timestamp_ns": 0}, index=records.index, dtype=np.int64
    )
    rows = trace.event_rows.drop_duplicates(["process", "correlation"])
    if rows.empty or records.empty or trace.calls.empty:
        return np.full(len(records), -1), none
    calls = trace.calls
    call = records["call"].to_numpy()
    known = call >= 0
    correlation = np.where(known, calls["correlation"].to_numpy()[np.maximum(call, 0)], -1)
    process = np.where(known, calls["process"].to_numpy()[np.maximum(call, 0)], -1)
    at = pd.MultiIndex.from_frame(rows[["process", "correlation"]]).get_indexer(
        pd.MultiIndex.from_arrays([process, correlation])
    )
    hit = (at >= 0) & known
    lane_of_row = stream_lane(lanes, rows)
    out = none.copy()
    for column in columns:
        out[column] = np.where(
            hit, rows[column].to_numpy()[np.maximum(at, 0)], none[column].to_numpy()
        )
    return np.where(hit, lane_of_row[np.maximum(at, 0)], -1), out


def lane_of_log(
    lanes: pd.DataFrame,
    records: pd.DataFrame,
    waits: pd.DataFrame,
    offset: int | None,
    settled: np.ndarray,
    busy: np.ndarray,
) -> tuple[np.ndarray, list[str]]:
    """Lane of every record from what Python knew about its stream; -1 if that is ambiguous.

    `records`: columns log_process, process (globalPid), stream_handle, stream_id, device.  `waits`:
    matched waits with columns stream_id, lane, process_id.  `offset`: CUPTI's streamId minus
    cuStreamGetId's answer; None determines it from the waits and the streams that did work.
    `settled`: records with a lane from an event row; they get no note.  `busy`: the lanes on which
    work ran.
    """
    lane = np.full(len(records), -1, dtype=np.int64)
    notes: list[str] = []
    from_log = records["log_process"].to_numpy() >= 0
    for process in np.unique(records["process"].to_numpy()):
        if process < 0:
            continue
        here = np.flatnonzero((records["process"].to_numpy() == process) & from_log)
        rows = records.iloc[here]
        own = lanes[lanes["process"] == process]
        handle, stream_id, device = (
            rows[c].to_numpy() for c in ("stream_handle", "stream_id", "device")
        )
        default = (handle == 0) | ((handle < 0) & (stream_id == DEFAULT_STREAM))
        lane[here[default]] = _default_lane(own, busy, device[default])
        open_here = here[default & ~settled[here]]
        if (lane[open_here] < 0).any() and len(_default_lanes(own)) > 1:
            notes.append(
                "several contexts have a default stream that did work, and the event log does not say which one is meant: "
                "its records are unaligned (nsysalign run --accurate tells them apart)"
            )
        created = ~default & (stream_id >= 0)
        if created.any():
            shift = (
                offset
                if offset is not None
                else _stream_offset(
                    own, np.unique(stream_id[created]), waits[waits["process_id"] == process]
                )
            )
            if shift is None:
                notes.append(
                    "streams of the event log could not be told apart in the trace: their records are unaligned"
                )
            else:
                lane[here[created]] = _lookup(own, stream_id[created] + shift, device[created])
        unknown = ~default & ~created
        if unknown.any() and busy[own.index.to_numpy()].sum() == 1:  # only one stream did anything
            lane[here[unknown]] = own.index.to_numpy()[busy[own.index.to_numpy()]][0]
    return lane, notes


def busy_lanes(lanes: pd.DataFrame, operation_lane: np.ndarray) -> np.ndarray:
    """The lanes on which work ran."""
    return np.bincount(operation_lane[operation_lane >= 0], minlength=len(lanes)) > 0


def _default_lane(own: pd.DataFrame, busy: np.ndarray, device: np.ndarray) -> np.ndarray:
    """The legacy default stream of each row's device (-1: not known); -1 if several could be meant.
    A log does not name contexts.  If only one of several default streams did work, that one is
    taken.
    """
    legacy = _default_lanes(own)
    only = _only(legacy, busy)
    of_device = {int(d): _only(lanes, busy) for d, lanes in legacy.groupby("device")}
    fallback = int(legacy.index[0]) if len(legacy) == 1 else -1
    return np.array(
        [of_device.get(int(d), fallback) if d >= 0 else only for d in device], dtype=np.int64
    )


def _default_lanes(own: pd.DataFrame) -> pd.DataFrame:
    legacy = own[
        (own["flag"] == LEGACY_DEFAULT) | ((own["flag"] < 0) & (own["stream"] == DEFAULT_STREAM))
    ]
    return own[own["stream"] == DEFAULT_STREAM] if legacy.empty else legacy


def _only(lanes: pd.DataFrame, busy: np.ndarray) -> int:
    """The only lane that did work; -1 if several did and nothing tells them apart."""
    working = lanes.index[busy[lanes.index.to_numpy()]]
    if len(working) > 1 or lanes.empty:
        return -1
    return int(working[0] if len(working) else lanes.index[0])


def _lookup(own: pd.DataFrame, stream: np.ndarray, device: np.ndarray) -> np.ndarray:
    by_stream = own.groupby("stream").indices
    position = own.index.to_numpy()
    lane_device = own["device"].to_numpy()
    out = np.full(len(stream), -1, dtype=np.int64)
    for s, d in set(zip(stream.tolist(), device.tolist(), strict=True)):
        candidates = by_stream.get(s, np.empty(0, np.int64))
        if len(candidates) > 1 and d >= 0:
            candidates = candidates[lane_device[candidates] == d]
        if len(candidates) == 1:
            out[(stream == s) & (device == d)] = position[candidates[0]]
    return out


def _stream_offset(own: pd.DataFrame, ids: np.ndarray, waits: pd.DataFrame) -> int | None:
    """CUPTI streamId minus cuStreamGetId's answer, decided on the trace."""
    stream_of = own["stream"]
    certain = waits[
        (waits["lane"] >= 0) & (waits["stream_id"] >= 0) & (waits["stream_id"] != DEFAULT_STREAM)
    ]
    if len(certain):
        differences = (
            stream_of.reindex(certain["lane"]).to_numpy() - certain["stream_id"].to_numpy()
        )
        values, counts = np.unique(
            differences[np.isfinite(differences)].astype(np.int64), return_counts=True
        )
        if len(values) and abs(int(values[counts.argmax()])) <= 2:
            return int(values[counts.argmax()])
    # whether the stream did work is no evidence here: users do record on idle streams by mistake
    existing = set(stream_of.tolist())
    named = {o: sum(int(i + o) in existing for i in ids) for o in STREAM_OFFSETS}
    best = max(
        STREAM_OFFSETS, key=lambda o: named[o]
    )  # the first, seen under every profiler, wins a tie
    return best if named[best] else None


def lane_of_thread(trace: Trace, operation_lane: np.ndarray, records: pd.DataFrame) -> np.ndarray:
    """For records that are not in the log: the stream of the operations that their thread issued
    just before and just after, if both are the same; -1 otherwise.  This is an inference and is
    reported as one."""
    out = np.full(len(records), -1, dtype=np.int64)
    call = trace.operations["call"].to_numpy()
    have = np.flatnonzero(call >= 0)
    thread, at = (
        trace.calls["thread"].to_numpy()[call[have]],
        trace.calls["start_ns"].to_numpy()[call[have]],
    )
    for number in np.unique(records["thread"].to_numpy()):
        mine = have[thread == number]
        order = np.argsort(at[thread == number], kind="stable")
        mine, when = mine[order], at[thread == number][order]
        here = np.flatnonzero(
            (records["thread"].to_numpy() == number) & (records["call"].to_numpy() >= 0)
        )
        k = np.searchsorted(when, records["call_start_ns"].to_numpy()[here])
        issued = np.concatenate([[-1], operation_lane[mine], [-1]])
        before, after = issued[k], issued[k + 1]
        out[here] = np.where(before == after, before, -1)
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
    call = trace.operations["call"].to_numpy()
    issued = np.flatnonzero(call >= 0)
    issued = issued[np.argsort(call[issued], kind="stable")]  # calls are sorted by start
    thread, begun = records["thread"].to_numpy(), records["call_start_ns"].to_numpy()
    by_thread = group(trace.calls["thread"].to_numpy()[call[issued]], issued)
    for number in np.intersect1d(thread[start], list(by_thread)).tolist():
        work, own = by_thread[number], np.flatnonzero(thread[start] == number)
        when, on = trace.calls["start_ns"].to_numpy()[call[work]], operation_lane[work]
        changes = np.cumsum(np.diff(on, prepend=on[:1]) != 0)
        first, last = (np.searchsorted(when, begun[side[own]]) for side in (start, end))
        inner = (last <= first) & (first > 0) & (first < len(work))
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
    out = lane.copy()
    beside = lane_of_thread(trace, operation_lane, records)[unknown]
    votes = pd.DataFrame({"process": process[unknown], "handle": handle[unknown], "lane": beside})
    for _, rows in votes.groupby(["process", "handle"]):
        said = rows.loc[rows["lane"] >= 0, "lane"].value_counts()
        if len(said) and said.iloc[0] >= _MOST_SAY * said.sum():
            out[unknown[rows.index.to_numpy()]] = said.index[0]
    return out


def wait_calls(trace: Trace, lanes: pd.DataFrame) -> pd.DataFrame:
    """Every stream-wait-event call with the lane that waits: columns call, lane, event,
    event_sync."""
    calls = trace.calls
    position = np.flatnonzero(
        (calls["kind"].to_numpy() == CALL["wait_event"])
        & (calls["outer"].to_numpy() == np.arange(len(calls)))
    )
    rows = trace.syncs[trace.syncs["call"].isin(position)].drop_duplicates("call")
    lane = stream_lane(lanes, rows)
    found = pd.DataFrame(
        {
            "call": rows["call"].to_numpy(),
            "lane": lane,
            "event": rows["event"].to_numpy(),
            "event_sync": rows["event_sync"].to_numpy(),
        }
    )
    rest = np.setdiff1d(position, found["call"].to_numpy())
    unknown = pd.DataFrame({"call": rest, "lane": -1, "event": -1, "event_sync": -1})
    return (
        pd.concat([found, unknown], ignore_index=True)
        .astype("int64")
        .sort_values("call", ignore_index=True)
    )
