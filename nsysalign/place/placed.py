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
    limits_of_starts,
    surroundings,
)
from nsysalign.place.event_clock import ClockPlaces, EventClock, place_records
from nsysalign.place.latency import Likely, assumed, no_later_than, place_pairs
from nsysalign.place.matched import Matched
from nsysalign.place.streams import Streams

#: Bounds may cross by this for places by the event clock, in addition to their own error.
_CLOCK_ROOM_NS = 500
#: Two records on the event clock are as far apart as elapsed_time says to within this share of their distance: several
#: times the usual difference of the clocks' rates, because a pair that is refused here loses its best place.
_RATE_ROOM = 5 * CLOCK_RATE
#: The half-width of a start that follows from its end's stamp: wider than a tick, as nothing stamped the start itself.
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
    """Return where all records (calls of `event.record()`) lie on the trace's clock, and a window for each pair of records
    that the program compared: a measured interval, from its start record to its end record.

    matched, streams, bounded: what the stages before this one found
    clock: the event clocks of the log; None if it has no references

    Each record is placed twice: by the event clock, and by its neighbours on the stream.
    """
    records = matched.records
    tracing = event_tracing(trace)
    around = surroundings(trace, streams, matched, bounded.around)
    has_surroundings = (records["call"].to_numpy() >= 0) & (records["lane"].to_numpy() >= 0)
    places = place_records(clock, around, tracing, has_surroundings)
    likely = assumed(tracing, around).likely(around)
    del around  # 15 columns of all records: as much memory as the records themselves
    on_clock, notes = _is_placed_by_clock(places, bounded)
    # Records of pairs that the event clock places lie within its error.  For all others the clock's place was not
    # compared with elapsed_time and with their neighbours, so that the neighbours' bounds stay.
    records_of_pairs = np.unique(bounded.pairs.loc[on_clock, ["start", "end"]].to_numpy())
    lower, upper = bounded.lower.copy(), bounded.upper.copy()
    lower[records_of_pairs] = places.at_ns[records_of_pairs] - places.error_ns[records_of_pairs]
    upper[records_of_pairs] = places.at_ns[records_of_pairs] + places.error_ns[records_of_pairs]
    records = records.assign(
        # bounds of neighbours may cross, by the disagreement of the two clocks: a table of records has them in order,
        # `limits_of_starts` needs them as they are
        lower_ns=np.minimum(lower, upper),
        upper_ns=np.maximum(lower, upper),
        stream=pick(streams.lanes["stream"].to_numpy(), records["lane"].to_numpy(), -1),
    )
    evidence = _Evidence(bounded, places, likely, lower, upper, records["timestamp_ns"].to_numpy())
    windows = _event_windows(log, records, evidence, on_clock)
    records["t_ns"] = _record_places(records, windows, places, likely)
    columns = {name: records[name].array for name in frames.PLACED_RECORDS.names}
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
    by_nsys = re.match(r"\d{4}\.", trace.info.nsys_version or "")  # its versions begin with a year
    return "off" if by_nsys else "unknown"


def _is_placed_by_clock(places: ClockPlaces, bounded: Bounded) -> tuple[np.ndarray, list[str]]:
    """Decide which pairs of records are placed on the trace by the event clock, and not by the operations around them.
    Returns (on_clock, notes): a bool per row of bounded.pairs, and a note on the pairs of the program of which the two
    contradict each other.

    places: where the event clock places each record, with its error

    The event clock places a pair if both records lie on one line, as far apart as elapsed_time says, and within what
    their neighbours allow.  A contradiction arises, for one, if another thread recorded the event again while it was
    being measured.
    """
    pairs = bounded.pairs
    start = pairs["start"].to_numpy()
    end = pairs["end"].to_numpy()
    elapsed = pairs["elapsed_ns"].to_numpy()
    on_line = (places.line[start] >= 0) & (places.line[start] == places.line[end])
    # The same distance as elapsed_time says, within the clocks' rates and the error of one record: both errors are
    # mostly that of the clock's offset, which two records of one line share.
    room = _CLOCK_ROOM_NS + places.error_ns  # per record
    off_ns = np.abs(places.at_ns[end] - places.at_ns[start] - elapsed)
    as_elapsed = off_ns <= _RATE_ROOM * elapsed + room[start]
    # Each record between its neighbours.  The bounds of a stamped record are those of its stamp, which may be late: they
    # refuse nothing.
    within = (places.at_ns >= bounded.lower - room) & (places.at_ns <= bounded.upper + room)
    within |= bounded.stamped
    agree = as_elapsed & within[start] & within[end]
    wrong = int((on_line & ~agree & ~pairs["calibration"].to_numpy(dtype=bool)).sum())
    note = (
        f"{wrong} pairs lie elsewhere by the event clock than their neighbours on the stream allow: they are placed by their "
        "neighbours (an event recorded again while it was measured, or dropped rows)"
    )
    return on_line & agree, [note] if wrong else []


@dataclass(frozen=True)
class _Evidence:
    """What is known about the place of each record (arrays with a value per record, in ns of trace time)."""

    bounded: Bounded  # what bounds it, whatever the latencies are
    places: ClockPlaces  # where the event clock places it
    likely: Likely  # where its neighbours make it likely
    #: Its earliest and its latest possible place: those of `bounded`, but within the event clock's error
    #: where the event clock places a pair of it.
    lower: np.ndarray
    upper: np.ndarray
    stamp: np.ndarray  # CUPTI's time stamp, 0 for none


@dataclass(frozen=True)
class _EventPlaces:
    """Where the window of each pair begins (arrays of equal length, in ns of trace time)."""

    begin: np.ndarray  # the likeliest place
    error: np.ndarray  # its error bar
    low: np.ndarray  # the earliest and the latest possible place
    high: np.ndarray
    method: np.ndarray  # what placed it: "clock", "event-trace" (a stamp of CUPTI's) or "bounds"


def _event_windows(
    log: EventLog, records: pd.DataFrame, evidence: _Evidence, on_clock: np.ndarray
) -> pd.DataFrame:
    """Return the windows (`frames.WINDOWS`) of the pairs that the program itself compared, a row per pair, each from its
    start record's place to `elapsed_ns` later.  Pairs of nsysalign's own calibration have no window.

    records: all records, with their lanes and time stamps; those of the log come first
    evidence: what is known about the place of each of them
    on_clock: bool, per row of evidence.bounded.pairs: whether the event clock places the pair
    """
    bounded = evidence.bounded
    ordinary = ~bounded.pairs["calibration"].to_numpy(dtype=bool)
    pairs = frames.taken(bounded.pairs, ordinary)
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    places = _places_of_pairs(pairs, evidence, on_clock[ordinary])
    end_ns = places.begin + pairs["elapsed_ns"].to_numpy()
    # how far CUPTI's stamp of the end lies behind the end of the window
    residual = pd.array(evidence.stamp[end] - end_ns, dtype="Int64")
    residual[~(bounded.stamped[start] & bounded.stamped[end])] = pd.NA
    columns = columns_of_records(records, start, end) | _named_by_log(log, pairs)
    columns |= {
        "origin": np.int8(ORIGIN["pair"]),
        "source": pairs["source"].to_numpy(),
        "elapsed_ns": pairs["elapsed_ns"].to_numpy(),
        "start_ns": places.begin,
        "end_ns": end_ns,
        "start_lower_ns": np.minimum(places.low, places.begin),
        "start_upper_ns": np.maximum(places.high, places.begin),
        "error_ns": places.error,
        "method": places.method,
        "clock_residual_ns": residual,
    }
    return frames.lean(columns, frames.WINDOWS, len(pairs))


def _named_by_log(log: EventLog, pairs: pd.DataFrame) -> dict[str, Any]:
    """Return, for each pair, what the log says of where in the program it was recorded: its process, region, sites and
    callers, columns of `frames.WINDOWS` by name.

    pairs: `Matched.pairs`; the records of the log come first, so that start and end are positions in the log
    """
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    logged = {
        name: log.records[name].to_numpy() for name in ("region", "site", "callers", "library")
    }
    regions = zip(logged["region"][start], pairs["region"], strict=True)
    return {
        "log_process": pairs["process"].to_numpy(),
        "region": [of_record or of_pair for of_record, of_pair in regions],
        "site": logged["site"][start],
        "end_site": logged["site"][end],
        "callers": logged["callers"][start],
        "library": logged["library"][start],
    }


def _places_of_pairs(
    pairs: pd.DataFrame, evidence: _Evidence, on_clock: np.ndarray
) -> _EventPlaces:
    """Return where the window (measured interval) of each pair of records begins on the trace's clock, with its error bar,
    its limits and what placed it: the event clock, or else CUPTI's time stamp of its start, or else that of its end, or
    else the operations around its records.

    pairs: the pairs, with positions of their records in start and end
    evidence: what is known about the place of each record
    on_clock: bool, per pair: whether the event clock places it
    """
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    elapsed = pairs["elapsed_ns"].to_numpy()
    stamp = evidence.stamp
    start_stamped = evidence.bounded.stamped[start]
    end_stamped = evidence.bounded.stamped[end]
    low, high = _limits(pairs, evidence, start_stamped)
    by_clock = _places_by_clock(pairs, evidence, on_clock)
    likely_begin, likely_error = place_pairs(pairs, evidence.likely)
    likely_begin = np.clip(likely_begin, low, high)
    farthest = np.maximum(likely_begin - low, high - likely_begin)  # no error is larger than that
    likely_error = np.minimum(likely_error, np.maximum(farthest, 1)).astype(np.int64)
    # the first of these that holds places the pair
    conditions = [on_clock, start_stamped, end_stamped]
    begin = np.select(
        conditions, [by_clock.begin, stamp[start], stamp[end] - elapsed], likely_begin
    )
    error = np.select(conditions, [by_clock.error, TICK_NS, _BY_END_NS], likely_error)
    method = np.select(conditions, ["clock", "event-trace", "event-trace"], "bounds")
    return _EventPlaces(
        begin=begin,
        error=error,
        low=np.where(on_clock, by_clock.low, low),
        high=np.where(on_clock, by_clock.high, high),
        method=method.astype(object),
    )


def _places_by_clock(
    pairs: pd.DataFrame, evidence: _Evidence, on_clock: np.ndarray
) -> _EventPlaces:
    """Return where the event clock lets the window of each pair begin, with its error bar and limits; meaningless
    for pairs that it does not place.

    pairs, evidence, on_clock: as in `_places_of_pairs`

    On the trace a long pair lasts longer or shorter than elapsed_time says, because the rates of the clocks
    differ by parts per million: half of this surplus goes to each end.

    elapsed_time 1,000 ns; the clock has the start at 5,000 and the end at 6,020 ns, both ±100: on the trace the pair
    lasts 20 ns longer, so the window begins at 5,010 ns, ±110.
    """
    places = evidence.places
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    length = places.at_ns[end] - places.at_ns[start]
    surplus = np.where(on_clock, length - pairs["elapsed_ns"].to_numpy(), 0)
    error = np.maximum(places.error_ns[start], places.error_ns[end])
    low, high = _limits_on_clock(pairs, evidence.bounded, np.abs(surplus))
    return _EventPlaces(
        begin=places.at_ns[start] + surplus // 2,
        error=error + (np.abs(surplus) + 1) // 2,
        low=low,
        high=high,
        method=np.full(len(pairs), "clock", dtype=object),
    )


def _limits(
    pairs: pd.DataFrame, evidence: _Evidence, start_stamped: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (earliest, latest) possible start of each pair that no event clock places, in ns.

    evidence: what is known about the place of each record
    start_stamped: bool, per pair: whether its start has a time stamp, which then says all
    """
    start = pairs["start"].to_numpy()
    low, high = limits_of_starts(evidence.lower, evidence.upper, pairs)
    earliest = np.minimum(low, high)  # these two may cross, within the clocks' disagreement
    latest = np.maximum(low, high)
    return (
        np.where(start_stamped, evidence.lower[start], earliest),
        np.where(start_stamped, evidence.upper[start], latest),
    )


def _limits_on_clock(
    pairs: pd.DataFrame, bounded: Bounded, surplus: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (earliest, latest) possible start of each pair that the event clock places, in ns: what the
    records' neighbours allow.  Time stamps of CUPTI may be late, so that a stamped record is not bounded.

    surplus: per pair, by how much its length on the trace differs from elapsed_time (ns)
    """
    lower = np.where(bounded.stamped, 0, bounded.lower)
    upper = np.where(bounded.stamped, FAR, bounded.upper)
    return limits_of_starts(lower, upper, pairs, surplus + TICK_NS)


def columns_of_records(records: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> dict[str, Any]:
    """Return, for each pair of records, which process and threads made them, when (ns), and on which lanes (streams): the
    columns of `frames.WINDOWS` about that, by name.

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

    A record may be in several windows: its place is then the last start that it is, or else the last end.  (Edges
    written later overwrite those before.)
    """
    by_neighbours = np.clip(
        no_later_than(likely.place, likely.by_kernel),
        records["lower_ns"].to_numpy(),
        records["upper_ns"].to_numpy(),
    )
    start, end = windows["start"].to_numpy(), windows["end"].to_numpy()
    start_ns, end_ns = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    by_window = by_neighbours.copy()
    by_window[end] = end_ns
    by_window[start] = start_ns
    stamp = records["timestamp_ns"].to_numpy()
    has_call = records["call"].to_numpy() >= 0
    conditions = [has_call & (places.line >= 0), stamp > 0, has_call]
    place_ns = np.select(conditions, [places.at_ns, stamp, by_window], -1)
    # a window's edges already share the difference between the clocks' rates: its records lie there
    by_clock = windows["method"].to_numpy() == "clock"
    place_ns[end[by_clock]] = end_ns[by_clock]
    place_ns[start[by_clock]] = start_ns[by_clock]
    return place_ns
