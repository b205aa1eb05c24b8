"""From a trace and an event log to windows: match, find the streams, bound, calibrate, place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.issue_order import FAR, LaneOperations, lane_operations
from nsysalign.model import CALL, Alignment, EventLog, Trace, pid_of
from nsysalign.place import bounds
from nsysalign.place import streams as lanes
from nsysalign.place.event_clock import EventClock, event_clock
from nsysalign.place.fit import ClockPlaces, place_records
from nsysalign.place.host_clock import TOLERANCE_NS, ClockMap
from nsysalign.place.latency import (
    CLASSES,
    PARAMETERS,
    SCATTER_NS,
    LatencyModel,
    PairPlaces,
    place_pairs,
)
from nsysalign.place.match import Lookup, match_processes, match_records
from nsysalign.place.own_work import own_calls
from nsysalign.place.pairs import TracePairs, pairs_in_trace
from nsysalign.place.projected_ranges import nvtx_windows
from nsysalign.place.records import (
    awaited,
    build_records,
    compared_pairs,
    match_waits,
    reasons,
)
from nsysalign.place.surroundings import Surroundings, gather, neighbours
from nsysalign.place.timer_regions import host_windows
from nsysalign.place.timer_windows import read_timers, timer_notes, timer_windows
from nsysalign.place.windows import CROSSING_NS, Bounded, event_windows, read_windows, record_places
from nsysalign.windows import Unplaced, unplaced_frame

#: Bounds may cross by this for places by the event clock, in addition to their own error.
_CLOCK_ROOM_NS = 500


def align(trace: Trace, log: EventLog | None) -> Alignment:
    """Place everything that was measured on the trace's clock.

    With a log: every successful elapsed_time call and every host timer ends in `windows` or, with
    the reason, in `unaligned`; pairs that only the trace shows are a library's.  Without: NVTX
    ranges become windows of kind nvtx, and the compared pairs are those of the trace.
    """
    known = log if log is not None else no_log()
    read = _read(trace, known)
    clock = event_clock(known)
    best, remarks = _least_contradicted(
        lambda offset: _on_streams(
            trace, known, read, offset, inferred=log is None, on_clock=clock is not None
        )
    )
    surroundings = gather(
        trace, best.records, best.around, read.lanes, read.operation_lane, read.waits
    )
    tracing = event_tracing(trace)
    places = _by_clock(clock, best.records, tracing, surroundings)
    on_clock, doubts = _held_by_clock(places, best)
    likely = place_pairs(surroundings, best.pairs, tracing)
    model = likely.model
    records, windows = _placed(known, best, read.lanes, places, on_clock, surroundings, likely)
    others, lost, said = _on_the_host(trace, known, read)
    told, unnamed = read_windows(records, read.pairs, best, model.expected(surroundings)[1])
    if untold(known):
        ranges, deep = nvtx_windows(trace, read.operation_lane, read.lanes)
        said += deep
        regions = set(others["region"]) - {""}  # they are NVTX ranges as well
        others = pd.concat([others, told, ranges[~ranges["region"].isin(list(regions))]])
    said += read.pairs.notes + unnamed
    every = [w for w in (windows, others) if len(w)] or [windows]
    return Alignment(
        records=frames.check(records, frames.PLACED_RECORDS),
        lanes=read.lanes,
        operation_lane=read.operation_lane,
        wait_calls=read.waits[["call", "lane", "record", "inferred"]],
        windows=frames.check(pd.concat(every, ignore_index=True), frames.WINDOWS),
        unaligned=unplaced_frame(best.unaligned + lost),
        calibration=_calibration(model, read.clocks, read.processes, clock, places),
        notes=(*read.notes, *remarks, *doubts, *said),
        clock_maps=read.clocks,
        busy=read.busy,
    )


def untold(log: EventLog | None) -> bool:
    """Whether no log says what was measured, so that intervals are taken from the trace."""
    return log is None or (log.records.empty and log.hosts[~log.hosts["implicit"].to_numpy()].empty)


@dataclass(frozen=True)
class _Read:
    """The log's records and waits found in the trace, before it is known on which streams the
    records are.

    `exact`: lanes that event rows name (-1: none).  `asked_ns`: when elapsed_time on each record
    had returned.  `pairs`: those that only the trace shows, as positions in `records`."""

    processes: Mapping[int, int]
    clocks: Mapping[int, ClockMap]
    records: pd.DataFrame
    waits: pd.DataFrame
    exact: np.ndarray
    asked_ns: np.ndarray
    lanes: pd.DataFrame
    operation_lane: np.ndarray
    busy: np.ndarray
    per_lane: dict[int, LaneOperations]
    pairs: TracePairs
    notes: list[str]


def _read(trace: Trace, log: EventLog) -> _Read:
    """Which process, call and wait of the trace is which of the log."""
    processes, notes = match_processes(trace, log)
    matched, clocks, more = match_records(trace, log, processes)
    table, operation_lane = lanes.build_lanes(trace)
    records = build_records(trace, log, processes, matched)
    exact, rows = lanes.lane_of_event_rows(trace, table, records)
    records[["event", "event_sync", "timestamp_ns"]] = rows
    pairs = _read_pairs(trace, log, clocks, processes, records, exact, table)
    waits = match_waits(trace, log, processes, clocks, lanes.wait_calls(trace, table))
    waits["record"] = awaited(trace, waits, records)
    return _Read(
        processes,
        clocks,
        records,
        waits,
        exact,
        _asked(log, clocks, records),
        table,
        operation_lane,
        lanes.busy_lanes(table, operation_lane),
        lane_operations(trace, operation_lane),
        pairs,
        notes + more,
    )


def _read_pairs(
    trace: Trace,
    log: EventLog,
    clocks: Mapping[int, ClockMap],
    processes: Mapping[int, int],
    records: pd.DataFrame,
    exact: np.ndarray,
    table: pd.DataFrame,
) -> TracePairs:
    """Pairs that the trace shows and no log line does, as positions in `records`, whose events they
    tell where there is no log."""
    call, event = records["call"].to_numpy(), records["event"].to_numpy()
    ours = records["log_process"].to_numpy() >= 0
    ours |= np.append(own_calls(trace), False)[call]
    # a record of the log that is not found may be any of those that no log line claims
    lost = records["process"].to_numpy()[ours & (call < 0) & ~records["captured"].to_numpy(bool)]
    ours |= records["process"].isin(lost).to_numpy()
    begun = records["call_start_ns"].to_numpy()
    for number, rows in log.references.groupby("process"):
        if number in clocks:
            first, last = (clocks[number].to_trace(rows[c].to_numpy()) for c in ("t0_ns", "t1_ns"))
            order = np.argsort(first)
            at = np.searchsorted(first[order], begun + TOLERANCE_NS) - 1
            inside = (at >= 0) & (begun <= last[order][np.maximum(at, 0)] + TOLERANCE_NS)
            ours |= inside & (records["process"].to_numpy() == processes[number])
    if not untold(log) and ((call >= 0) & ~ours).sum() < 2:
        return TracePairs()
    rows = np.flatnonzero((call >= 0) & (event >= 0))
    named = dict(zip(call[rows].tolist(), event[rows].tolist(), strict=True))
    lane = np.full(len(trace.calls), -1, np.int64)
    waits = trace.syncs[trace.syncs["call"] >= 0]
    lane[trace.calls["outer"].to_numpy()[waits["call"].to_numpy()]] = lanes.stream_lane(
        table, waits
    )
    lane[call[call >= 0]] = exact[call >= 0]
    pairs = pairs_in_trace(trace, named, lane)
    position = {c: n for n, c in enumerate(call.tolist()) if c >= 0}
    start, end = ([position[c] for c in side] for side in (pairs.start, pairs.end))
    if not untold(log):
        others = sum(not (ours[a] or ours[b]) for a, b in zip(start, end, strict=True))
        return TracePairs(of_libraries=pairs.of_libraries + others)
    numbers = (pairs.events.get(c, -1) for c in call.tolist())
    records["event"] = np.fromiter(numbers, np.int64, len(call))
    keep = [n for n, (a, b) in enumerate(zip(start, end, strict=True)) if not (ours[a] or ours[b])]
    return replace(
        pairs,
        start=[start[n] for n in keep],
        end=[end[n] for n in keep],
        how=[pairs.how[n] for n in keep],
    )


def _on_streams(
    trace: Trace, log: EventLog, read: _Read, offset: int | None, *, inferred: bool, on_clock: bool
) -> tuple[Bounded, list[str]]:
    """Records on the streams that event rows name, else the log with its streams numbered by
    `offset` (None: as they seem to be), else the work around them; and notes.  `inferred`: there is
    no log; `on_clock`: see `_bound`."""
    records, known = read.records, read.exact >= 0
    lane, remarks = lanes.lane_of_log(read.lanes, records, read.waits, offset, known, read.busy)
    lane = np.where(known, read.exact, lane)
    if inferred:
        start, end = (np.array(side, np.int64) for side in (read.pairs.start, read.pairs.end))
        beside = lanes.lane_of_thread(trace, read.operation_lane, records)
        beside[np.concatenate([start, end])] = -1
        lane = lanes.lane_of_pairs(trace, read.operation_lane, records, lane, start, end)
        lane = np.where(lane >= 0, lane, beside)
    else:
        lane = lanes.lane_by_work(trace, read.operation_lane, records, lane)
    return _bound(trace, log, read, records.assign(lane=lane), on_clock), remarks


def _placed(
    log: EventLog,
    best: Bounded,
    table: pd.DataFrame,
    places: ClockPlaces | None,
    on_clock: np.ndarray,
    surroundings: Surroundings,
    likely: PairPlaces,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(records with bounds, place and stream; windows of the compared pairs)."""
    records, (lower, upper) = best.records, _around_places(best, places, on_clock)
    windows = event_windows(log, best, places, on_clock, likely, lower, upper)
    records["lower_ns"], records["upper_ns"] = np.minimum(lower, upper), np.maximum(lower, upper)
    records["t_ns"] = record_places(records, windows, places, surroundings, likely.model)
    lane = records["lane"].to_numpy()
    stream = table["stream"].to_numpy()
    records["stream"] = np.where(lane >= 0, stream[np.maximum(lane, 0)], -1) if len(table) else -1
    return records, windows


def _least_contradicted(
    bounded: Callable[[int | None], tuple[Bounded, list[str]]],
) -> tuple[Bounded, list[str]]:
    """Records on the streams that the log seems to mean, else on those that its pairs contradict
    least: the streams may have been numbered differently."""
    best, remarks = bounded(None)
    for offset in lanes.STREAM_OFFSETS if best.contradictions else ():
        other, said = bounded(offset)
        if other.contradictions < best.contradictions:
            best, remarks = other, said
    return best, remarks


def _on_the_host(
    trace: Trace, log: EventLog, read: _Read
) -> tuple[pd.DataFrame, list[Unplaced], list[str]]:
    """(windows of kind host, timers without a window, notes)."""
    timers = read_timers(log, read.processes, read.clocks)
    explicit = replace(log, hosts=log.hosts[~log.hosts["implicit"].to_numpy()])
    hosts, lost = host_windows(trace, explicit, read.processes, read.clocks)
    timed, missed, alone = timer_windows(trace, log, read.processes, read.clocks, timers)
    some = [w for w in (hosts, timed) if len(w)] or [hosts]
    notes = timer_notes(timers.candidates, alone)
    return pd.concat(some, ignore_index=True), lost + missed, notes


def event_tracing(trace: Trace) -> str:
    """Whether CUPTI's event tracing ran: "on" if most record calls left a row, "off" if they did
    not (nsys itself writes rows for some of them; before 2024.4 it could not trace events),
    "unknown" for exports of other tools."""
    calls = int((trace.calls["kind"].to_numpy() == CALL["record"]).sum())
    if len(trace.event_rows) and 2 * len(trace.event_rows) >= calls:
        return "on"
    return "off" if re.match(r"\d{4}\.", trace.info.nsys_version or "") else "unknown"


def no_log() -> EventLog:
    """A log that holds nothing."""
    return EventLog(headers=(), **{spec.name: frames.empty(spec) for spec in frames.LOG_SPECS})


def _bound(
    trace: Trace, log: EventLog, read: _Read, records: pd.DataFrame, on_clock: bool
) -> Bounded:
    """Bounds of every record under one assignment of streams.  `on_clock`: the events' own stamps
    are known, so CUPTI's, which may be late, are not used as lower bounds."""
    around = neighbours(
        trace, read.per_lane, records["lane"].to_numpy(), records["call"].to_numpy()
    )
    lower, upper = bounds.own_bounds(trace, read.lanes, records, around, read.asked_ns)
    upper = np.minimum(upper, bounds.event_synchronised(trace, records))
    stamp = records["timestamp_ns"].to_numpy()
    timed = stamp > 0
    lower = np.where(timed & (not on_clock), stamp - bounds.TICK_NS, lower)
    upper = np.where(timed, stamp + bounds.TICK_NS, upper)
    pairs, unaligned = compared_pairs(log, records)
    good, refused, contradictions = _placeable(records, pairs, lower, upper)
    return Bounded(records, around, good, lower, upper, unaligned + refused, contradictions)


def _by_clock(
    clock: EventClock | None, records: pd.DataFrame, tracing: str, surroundings: Surroundings
) -> ClockPlaces | None:
    """Where the records lie by their event clocks; None if the log has no references."""
    if clock is None:
        return None
    known = (records["call"].to_numpy() >= 0) & (records["lane"].to_numpy() >= 0)
    return place_records(clock, surroundings, tracing, known)


def _held_by_clock(places: ClockPlaces | None, best: Bounded) -> tuple[np.ndarray, list[str]]:
    """Which pairs are placed by the event clock, and notes.  Pairs whose neighbours contradict the
    clock are not: another thread recorded the event again while it was being measured."""
    pairs = best.pairs
    start, end, elapsed = (pairs[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    if places is None:
        return np.zeros(len(pairs), dtype=bool), []
    on = (places.line[start] >= 0) & (places.line[start] == places.line[end])
    apart = np.abs(places.at_ns[end] - places.at_ns[start] - elapsed)
    room = _CLOCK_ROOM_NS + places.error_ns
    agree = apart <= bounds.CLOCK_RATE * 5 * elapsed + room[start]
    for one in (start, end):
        stamped = best.stamped[one]  # CUPTI's stamp may be late: it bounds nothing
        agree &= stamped | (places.at_ns[one] >= best.lower[one] - room[one])
        agree &= stamped | (places.at_ns[one] <= best.upper[one] + room[one])
    wrong = int((on & ~agree & ~pairs["calibration"].to_numpy(dtype=bool)).sum())
    note = (
        f"{wrong} pairs lie elsewhere by the event clock than their neighbours on the stream allow: they are placed by their "
        "neighbours (an event recorded again while it was measured, or dropped rows)"
    )
    return on & agree, [note] if wrong else []


def _around_places(
    best: Bounded, places: ClockPlaces | None, on_clock: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of every record: its own, or a margin around its place if the event clock gives
    one."""
    lower, upper = best.lower.copy(), best.upper.copy()
    if places is not None:
        held = np.unique(best.pairs.loc[on_clock, ["start", "end"]].to_numpy())
        lower[held] = places.at_ns[held] - places.error_ns[held]
        upper[held] = places.at_ns[held] + places.error_ns[held]
    return lower, upper


def _asked(log: EventLog, clocks: Mapping[int, ClockMap], records: pd.DataFrame) -> np.ndarray:
    """Trace time at which the first successful elapsed_time on each record had returned."""
    out = np.full(len(records), FAR)
    find = Lookup(records["log_process"].to_numpy(), records["seq"].to_numpy())
    timed = log.elapsed[(log.elapsed["t1_ns"] >= 0) & (log.elapsed["error"] == "")]
    for number, rows in timed.groupby("process"):
        if number not in clocks:
            continue
        at = clocks[int(number)].to_trace(rows["t1_ns"].to_numpy()) + clocks[int(number)].width_ns
        for column in ("start", "end"):
            found = find(rows, column)
            np.minimum.at(out, found[found >= 0], at[found >= 0])
    return out


def _placeable(
    records: pd.DataFrame, pairs: pd.DataFrame, lower: np.ndarray, upper: np.ndarray
) -> tuple[pd.DataFrame, list[Unplaced], int]:
    """(pairs whose records are in the trace on known streams and whose bounds allow their
    elapsed_time; the others with the reason; how many contradict elapsed_time)."""
    problem = records["problem"].to_numpy(dtype=object)
    lane = records["lane"].to_numpy()
    start, end, elapsed = (pairs[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    reason = (
        np.where(problem[start] != "", problem[start], problem[end])
        if len(pairs)
        else np.empty(0, object)
    )
    nowhere = (reason == "") & ((lane[start] < 0) | (lane[end] < 0))
    reason = np.where(nowhere, "the trace does not say which stream it is on", reason)
    low, high = bounds.of_starts(lower, upper, start, end, elapsed)
    against = (reason == "") & (low > high + CROSSING_NS)
    reason = np.where(
        against,
        "elapsed_time contradicts the trace: its neighbours leave no place for it (a wrong stream, rows dropped, "
        "or a log of another run)",
        reason,
    )
    ordinary = (reason != "") & ~pairs["calibration"].to_numpy(dtype=bool)
    return (
        pairs[reason == ""].reset_index(drop=True),
        reasons(pairs[ordinary], records, reason[ordinary]),
        int(against.sum()),
    )


def _calibration(
    model: LatencyModel,
    clocks: Mapping[int, ClockMap],
    processes: Mapping[int, int],
    event_clock: EventClock | None,
    places: ClockPlaces | None,
) -> dict[str, Any]:
    on_clock = {}
    if event_clock is not None and places is not None:
        on_clock["event_clock"] = {
            "tick_ns": event_clock.tick_ns,
            "records": int((places.line >= 0).sum()),
            "lines": [
                {"rate_ppm": round(line.rate_ppm, 3), "observations": dict(line.counts)}
                for line in places.lines.values()
            ],
        }
    return on_clock | {
        "latency_ns": dict(zip(PARAMETERS, model.vector.round(3).tolist(), strict=True)),
        "latency_std_ns": dict(
            zip(PARAMETERS, np.sqrt(np.diag(model.covariance)).round(1).tolist(), strict=True)
        ),
        "scale_ns": dict(zip(CLASSES, SCATTER_NS.tolist(), strict=True)),
        "clocks": {
            str(pid_of(processes[p])): {"source": c.source, "uncertainty_ns": c.width_ns}
            for p, c in clocks.items()
        },
    }
