"""Stage 4, placed: where on the trace's clock each record lies, and the windows of kind `event`.

record     one call of `event.record()`; it executes on the GPU at its place
pair       two records that the program compared by `elapsed_time`
window     a stretch of the trace that is an interval of the analysis, here from record to record
neighbours the operations before and after a record on its stream
bounds     the earliest and latest time at which a record can lie, whatever the latencies are
error bar  the half-width around the likeliest place that holds the true one

A record is placed by the event clock, or else by CUPTI's time stamp, or else by what its neighbours make
likely.  This stage gives every pair that can be placed a window with its error bar and bounds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import FAR, pick
from nsysalign.model import CALL, ORIGIN, EventLog, Trace
from nsysalign.place.bounded import (
    CLOCK_RATE,
    TICK_NS,
    Bounded,
    of_starts,
    surroundings,
)
from nsysalign.place.event_clock import ClockPlaces, EventClock, place_records
from nsysalign.place.latency import Likely, assumed, place_pairs
from nsysalign.place.matched import Matched
from nsysalign.place.streams import Streams

#: Bounds may cross by this for places by the event clock, in addition to their own error.
_CLOCK_ROOM_NS = 500
#: The half-width of a start that follows from its end's stamp.
_BY_END_NS = 500


@dataclass(frozen=True)
class Placed:
    """Where records and pairs lie on the trace's clock."""

    records: pd.DataFrame  # frames.PLACED_RECORDS
    windows: pd.DataFrame  # frames.WINDOWS: a window for each pair of the log that has a place
    bar_ns: np.ndarray  # per record, the error bar of the place that its neighbours make likely
    notes: list[str]


def place(
    trace: Trace, log: EventLog, matched: Matched, streams: Streams, bounded: Bounded,
    clock: EventClock | None,
) -> Placed:  # fmt: skip
    """Return the places of all records and the windows of the log's pairs.

    matched, streams, bounded: what the stages before this one found
    clock: the event clocks of the log; None if it has no references
    """
    records = matched.records
    tracing = event_tracing(trace)
    around = surroundings(trace, streams, matched, bounded.around)
    known = (records["call"].to_numpy() >= 0) & (records["lane"].to_numpy() >= 0)
    places = place_records(clock, around, tracing, known)
    likely = assumed(tracing, around).likely(around)
    del around
    on_clock, notes = _held_by_clock(places, bounded)
    # records of pairs that the event clock places: the clock's error bounds them
    held = np.unique(bounded.pairs.loc[on_clock, ["start", "end"]].to_numpy())
    lower, upper = bounded.lower.copy(), bounded.upper.copy()
    lower[held] = places.at_ns[held] - places.error_ns[held]
    upper[held] = places.at_ns[held] + places.error_ns[held]
    records = records.assign(
        lower_ns=np.minimum(lower, upper),
        upper_ns=np.maximum(lower, upper),
        stream=pick(streams.lanes["stream"].to_numpy(), records["lane"].to_numpy(), -1),
    )
    windows = _event_windows(log, records, bounded, places, on_clock, likely, (lower, upper))
    records["t_ns"] = _record_places(records, windows, places, likely)
    columns = {c: records[c].array for c in frames.PLACED_RECORDS.names}
    records = frames.lean(columns, frames.PLACED_RECORDS, len(records))
    return Placed(records, windows, likely.bar, notes)


def event_tracing(trace: Trace) -> str:
    """Return whether CUPTI's event tracing ran: "on" if most record calls left a row, "off" if they did
    not (nsys writes rows for some records without it, and could not trace events before 2024.4), and
    "unknown" for exports of other tools."""
    if trace.info.monotonic:  # CUPTI's rows come without tracing the events, too
        return "on" if (trace.event_rows["timestamp_ns"] > 0).any() else "off"
    calls = int((trace.calls["kind"].to_numpy() == CALL["record"]).sum())
    if len(trace.event_rows) and 2 * len(trace.event_rows) >= calls:
        return "on"
    return "off" if re.match(r"\d{4}\.", trace.info.nsys_version or "") else "unknown"


def _held_by_clock(places: ClockPlaces, bounded: Bounded) -> tuple[np.ndarray, list[str]]:
    """Return (on_clock, notes).  `on_clock` is a bool per row of bounded.pairs: whether the event clock places
    the pair.

    places: where the event clock places each record, with its error

    It does if both records lie on one line, as far apart as elapsed_time says, and within what their neighbours
    allow.  Another thread may have recorded the event again while it was being measured: then they contradict each
    other, and a note counts such pairs of the program.
    """
    pairs = bounded.pairs
    start = pairs["start"].to_numpy()
    end = pairs["end"].to_numpy()
    elapsed = pairs["elapsed_ns"].to_numpy()
    on_line = (places.line[start] >= 0) & (places.line[start] == places.line[end])
    apart = np.abs(places.at_ns[end] - places.at_ns[start] - elapsed)
    room = _CLOCK_ROOM_NS + places.error_ns
    within = (places.at_ns >= bounded.lower - room) & (places.at_ns <= bounded.upper + room)
    within |= bounded.stamped  # CUPTI's stamp may be late: it bounds nothing
    agree = (apart <= CLOCK_RATE * 5 * elapsed + room[start]) & within[start] & within[end]
    wrong = int((on_line & ~agree & ~pairs["calibration"].to_numpy(dtype=bool)).sum())
    note = (
        f"{wrong} pairs lie elsewhere by the event clock than their neighbours on the stream allow: they are placed by their "
        "neighbours (an event recorded again while it was measured, or dropped rows)"
    )
    return on_line & agree, [note] if wrong else []


@dataclass(frozen=True)
class _EventPlaces:
    """Where the window of each pair begins (arrays of equal length, in ns of trace time)."""

    begin: np.ndarray  # the likeliest place
    error: np.ndarray  # its error bar
    low: np.ndarray  # the earliest and the latest possible place
    high: np.ndarray
    method: np.ndarray  # what placed it: "clock", "event-trace" (a stamp of CUPTI's) or "bounds"


def _event_windows(
    log: EventLog,
    records: pd.DataFrame,
    bounded: Bounded,
    places: ClockPlaces,
    on_clock: np.ndarray,
    likely: Likely,
    bounds: tuple[np.ndarray, np.ndarray],
) -> pd.DataFrame:
    """Return the windows (`frames.WINDOWS`) of the pairs that the program itself compared, a row per pair, each from its
    start record's place to `elapsed_ns` later.  Pairs of nsysalign's own calibration have no window.

    records: all records, with their lanes and time stamps; those of the log come first
    bounded: the bounds of the records, and the pairs
    places: where the event clock places each record
    on_clock: bool, per row of bounded.pairs: whether the event clock places the pair
    likely: where the neighbours make each record likely
    bounds: (earliest, latest) possible place of each record, in ns
    """
    ordinary = ~bounded.pairs["calibration"].to_numpy(dtype=bool)
    pairs = frames.taken(bounded.pairs, ordinary)
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    stamp = records["timestamp_ns"].to_numpy()
    placed = _places_of_pairs(pairs, bounded, places, on_clock[ordinary], likely, bounds, stamp)
    end_ns = placed.begin + pairs["elapsed_ns"].to_numpy()
    residual = pd.array(stamp[end] - end_ns, dtype="Int64")
    residual[~(bounded.stamped[start] & bounded.stamped[end])] = pd.NA
    # the log's records come first in `records`, so that `start` and `end` are their positions in both
    logged = {
        name: log.records[name].to_numpy() for name in ("region", "site", "callers", "library")
    }
    regions = zip(logged["region"][start], pairs["region"], strict=True)
    columns = recorded_by(records, start, end) | {
        "log_process": pairs["process"].to_numpy(),
        "region": [of_record or of_pair for of_record, of_pair in regions],
        "site": logged["site"][start],
        "end_site": logged["site"][end],
        "callers": logged["callers"][start],
        "library": logged["library"][start],
        "origin": np.int8(ORIGIN["pair"]),
        "source": pairs["source"].to_numpy(),
        "elapsed_ns": pairs["elapsed_ns"].to_numpy(),
        "start_ns": placed.begin,
        "end_ns": end_ns,
        "start_lower_ns": np.minimum(placed.low, placed.begin),
        "start_upper_ns": np.maximum(placed.high, placed.begin),
        "error_ns": placed.error,
        "method": placed.method,
        "clock_residual_ns": residual,
    }
    return frames.lean(columns, frames.WINDOWS, len(pairs))


def _places_of_pairs(
    pairs: pd.DataFrame,
    bounded: Bounded,
    places: ClockPlaces,
    on_clock: np.ndarray,
    likely: Likely,
    bounds: tuple[np.ndarray, np.ndarray],
    stamp: np.ndarray,
) -> _EventPlaces:
    """Return where the window of each pair begins, with its error bar, its limits and what placed it: the event
    clock, or else CUPTI's time stamp of its start, or else that of its end, or else the neighbours.

    pairs: the pairs, with positions of their records in start and end
    bounded: what is known of each record alone
    places: where the event clock places each record
    on_clock: bool, per pair: whether the event clock places it
    likely: where the neighbours make each record likely
    bounds: (earliest, latest) possible place of each record, in ns: those of `bounded`, but within the
        clock's error where the event clock places the record
    stamp: per record, CUPTI's time stamp in ns, 0 for none

    elapsed_time 1,000 ns; the clock has the start at 5,000 and the end at 6,020 ns, both ±100: on the trace the pair
    lasts 20 ns longer, so the window begins at 5,010 ns, ±110.
    """
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    elapsed = pairs["elapsed_ns"].to_numpy()
    start_stamped = bounded.stamped[start]
    end_stamped = bounded.stamped[end]
    low, high = _limits(pairs, bounds, start_stamped)

    # on the trace a long pair lasts longer or shorter than elapsed_time says, because the rates of the
    # clocks differ by parts per million: half of the difference goes to each end
    surplus = np.where(on_clock, places.at_ns[end] - places.at_ns[start] - elapsed, 0)
    begin_by_clock = places.at_ns[start] + surplus // 2
    error_by_clock = np.maximum(places.error_ns[start], places.error_ns[end])
    error_by_clock = error_by_clock + (np.abs(surplus) + 1) // 2

    likely_begin, likely_error = place_pairs(pairs, likely)
    likely_begin = np.clip(likely_begin, low, high)
    farthest = np.maximum(likely_begin - low, high - likely_begin)  # no error is larger than that
    likely_error = np.minimum(likely_error, np.maximum(farthest, 1)).astype(np.int64)

    # the first of these that holds places the pair
    conditions = [on_clock, start_stamped, end_stamped]
    begin = np.select(
        conditions, [begin_by_clock, stamp[start], stamp[end] - elapsed], likely_begin
    )
    error = np.select(conditions, [error_by_clock, TICK_NS, _BY_END_NS], likely_error)
    method = np.select(conditions, ["clock", "event-trace", "event-trace"], "bounds")
    low_by_clock, high_by_clock = _limits_on_clock(pairs, bounded, np.abs(surplus))
    return _EventPlaces(
        begin=begin,
        error=error,
        low=np.where(on_clock, low_by_clock, low),
        high=np.where(on_clock, high_by_clock, high),
        method=method.astype(object),
    )


def _limits(
    pairs: pd.DataFrame, bounds: tuple[np.ndarray, np.ndarray], start_stamped: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (earliest, latest) possible start of each pair that no event clock places, in ns.

    bounds: (earliest, latest) possible place of each record, in ns
    start_stamped: bool, per pair: whether its start has a time stamp, which then says all
    """
    lower, upper = bounds
    start = pairs["start"].to_numpy()
    by_start_and_end = of_starts(lower, upper, pairs)
    low = np.minimum(*by_start_and_end)  # these two may cross, within the clocks' disagreement
    high = np.maximum(*by_start_and_end)
    return np.where(start_stamped, lower[start], low), np.where(start_stamped, upper[start], high)


def _limits_on_clock(
    pairs: pd.DataFrame, bounded: Bounded, surplus: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (earliest, latest) possible start of each pair that the event clock places, in ns: what the
    records' neighbours allow.  Time stamps of CUPTI may be late, so that a stamped record is not bounded.

    surplus: per pair, by how much its length on the trace differs from elapsed_time (ns)
    """
    lower = np.where(bounded.stamped, 0, bounded.lower)
    upper = np.where(bounded.stamped, FAR, bounded.upper)
    return of_starts(lower, upper, pairs, surplus + TICK_NS)


def recorded_by(records: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> dict[str, Any]:
    """Return the columns of `frames.WINDOWS` that say which process and threads recorded each pair, when, and
    on which lanes.

    start, end: per pair, the positions of its records in `records`
    """
    at_start = {name: records[name].to_numpy()[start] for name in ("process", "thread", "lane")}
    return {
        "kind": "event",
        "start": start,
        "end": end,
        "process": at_start["process"],
        "thread": at_start["thread"],
        "end_thread": records["thread"].to_numpy()[end],
        "start_lane": at_start["lane"],
        "end_lane": records["lane"].to_numpy()[end],
        "open_ns": records["call_start_ns"].to_numpy()[start],
        "close_ns": records["call_start_ns"].to_numpy()[end],
        "close_end_ns": records["call_end_ns"].to_numpy()[end],
    }


def _record_places(
    records: pd.DataFrame, windows: pd.DataFrame, places: ClockPlaces, likely: Likely
) -> np.ndarray:
    """Return the likeliest place of each record in ns of trace time, -1 if nothing is known of it: by the
    event clock, or else by its time stamp, or else by the edge of its window, or else by its neighbours.

    windows: the windows of pairs; start and end are positions in `records`
    places: where the event clock places each record
    likely: where the neighbours make each record likely
    """
    by_neighbours = likely.place
    ahead = likely.ahead  # the place by the kernel that was queued behind
    middle = by_neighbours - (by_neighbours - ahead) // 2
    by_neighbours = np.where(ahead < by_neighbours, middle, by_neighbours)
    lower = records["lower_ns"].to_numpy()
    upper = records["upper_ns"].to_numpy()
    by_neighbours = np.clip(by_neighbours, lower, upper)
    start, end = windows["start"].to_numpy(), windows["end"].to_numpy()
    start_ns, end_ns = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    by_window = by_neighbours
    by_window[end] = end_ns
    by_window[start] = start_ns
    stamp = records["timestamp_ns"].to_numpy()
    known = records["call"].to_numpy() >= 0
    conditions = [known & (places.line >= 0), stamp > 0, known]
    place_ns = np.select(conditions, [places.at_ns, stamp, by_window], -1)
    # a window's edges already share the difference between the clocks' rates: its records lie there
    by_clock = windows["method"].to_numpy() == "clock"
    place_ns[end[by_clock]] = end_ns[by_clock]
    place_ns[start[by_clock]] = start_ns[by_clock]
    return place_ns
