"""Stage 4, placed: windows of kind event, and the place of every record: by the event clock, by CUPTI's
time stamps, else by what their neighbours make likely.

After it every pair that can be placed has a window with its error bar and bounds.
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
    """`records`: frames.PLACED_RECORDS; `windows`: those of the comparisons in the log; `bar_ns`: per
    record the half-width that holds its likeliest place."""

    records: pd.DataFrame
    windows: pd.DataFrame
    bar_ns: np.ndarray
    notes: list[str]


def place(
    trace: Trace, log: EventLog, matched: Matched, streams: Streams, bounded: Bounded,
    clock: EventClock | None,
) -> Placed:  # fmt: skip
    """`clock`: the events' own, if the log has references."""
    records, tracing = matched.records, event_tracing(trace)
    around = surroundings(trace, streams, matched, bounded.around)
    known = (records["call"].to_numpy() >= 0) & (records["lane"].to_numpy() >= 0)
    places = place_records(clock, around, tracing, known)
    likely = assumed(tracing, around).likely(around)
    del around
    on_clock, notes = _held_by_clock(places, bounded)
    # a margin around the place that the clock gives
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
    """Whether CUPTI's event tracing ran: "on" if most record calls left a row, "off" if they did
    not (nsys itself writes rows for some of them; before 2024.4 it could not trace events),
    "unknown" for exports of other tools."""
    if trace.info.monotonic:  # CUPTI's rows come without tracing the events, too
        return "on" if (trace.event_rows["timestamp_ns"] > 0).any() else "off"
    calls = int((trace.calls["kind"].to_numpy() == CALL["record"]).sum())
    if len(trace.event_rows) and 2 * len(trace.event_rows) >= calls:
        return "on"
    return "off" if re.match(r"\d{4}\.", trace.info.nsys_version or "") else "unknown"


def _held_by_clock(places: ClockPlaces, bounded: Bounded) -> tuple[np.ndarray, list[str]]:
    """Which pairs are placed by the event clock, and notes.  Pairs whose neighbours contradict the
    clock are not: another thread recorded the event again while it was being measured."""
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
    """Where the windows of pairs begin (arrays of equal length): likeliest, the half-width that holds it,
    and bounds; `method`: by what they were placed."""

    begin: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    method: np.ndarray


def _event_windows(
    log: EventLog,
    records: pd.DataFrame,
    bounded: Bounded,
    places: ClockPlaces,
    on_clock: np.ndarray,
    likely: Likely,
    bounds: tuple[np.ndarray, np.ndarray],
) -> pd.DataFrame:
    """Windows of kind event: the program's own pairs, by the event clock (`on_clock`), by their time
    stamps, else by what their neighbours make likely.  `bounds`: lower and upper, per record."""
    ordinary = ~bounded.pairs["calibration"].to_numpy(dtype=bool)
    pairs = frames.taken(bounded.pairs, ordinary)
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    stamp = records["timestamp_ns"].to_numpy()
    placed = _places_of_pairs(pairs, bounded, places, on_clock[ordinary], likely, bounds, stamp)
    end_ns = placed.begin + pairs["elapsed_ns"].to_numpy()
    residual = pd.array(stamp[end] - end_ns, dtype="Int64")
    residual[~(bounded.stamped[start] & bounded.stamped[end])] = pd.NA
    # the log's records come first in `records`: positions there are positions here
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
    """Each pair by the best that is known of it.  `stamp`: of each record."""
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    elapsed = pairs["elapsed_ns"].to_numpy()
    start_stamped, end_stamped = bounded.stamped[start], bounded.stamped[end]
    low, high = np.sort(of_starts(*bounds, pairs), axis=0)
    low = np.where(start_stamped, bounds[0][start], low)
    high = np.where(start_stamped, bounds[1][start], high)
    usual, bar = place_pairs(pairs, likely)
    # the two clocks' rates differ by parts per million: over a long interval both ends share that
    surplus = np.where(on_clock, places.at_ns[end] - places.at_ns[start] - elapsed, 0)
    clock_error = np.maximum(places.error_ns[start], places.error_ns[end])
    ways = [on_clock, start_stamped, end_stamped]
    begin = np.select(
        ways,
        [places.at_ns[start] + surplus // 2, stamp[start], stamp[end] - elapsed],
        np.clip(usual, low, high),
    )
    farthest = np.maximum(np.maximum(begin - low, high - begin), 1)
    error = np.select(
        ways,
        [clock_error + (np.abs(surplus) + 1) // 2, TICK_NS, _BY_END_NS],
        np.minimum(bar, farthest).astype(np.int64),
    )
    low_on_clock, high_on_clock = of_starts(
        np.where(bounded.stamped, 0, bounded.lower),
        np.where(bounded.stamped, FAR, bounded.upper),
        pairs,
        np.abs(surplus) + TICK_NS,
    )
    method = np.full(len(pairs), "bounds", dtype=object)
    method[start_stamped | end_stamped] = "event-trace"
    method[on_clock] = "clock"
    return _EventPlaces(
        begin=begin,
        error=error,
        low=np.where(on_clock, low_on_clock, low),
        high=np.where(on_clock, high_on_clock, high),
        method=method,
    )


def recorded_by(records: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> dict[str, Any]:
    """Columns of `frames.WINDOWS`: by which process and threads pairs were recorded, when, and on which
    streams.  `start`, `end`: positions of their records."""
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
    """Likeliest place of every record: by the event clock, its own timestamp, its window's edge,
    else its neighbours; -1 for none."""
    t, ahead = likely.place, likely.ahead
    t = np.where(ahead < t, t - (t - ahead) // 2, t)
    t = np.clip(t, records["lower_ns"].to_numpy(), records["upper_ns"].to_numpy())
    end, end_ns = windows["end"].to_numpy(), windows["end_ns"].to_numpy()
    start, start_ns = windows["start"].to_numpy(), windows["start_ns"].to_numpy()
    t[end] = end_ns
    t[start] = start_ns
    stamp = records["timestamp_ns"].to_numpy()
    known = records["call"].to_numpy() >= 0
    ways = [known & (places.line >= 0), stamp > 0, known]
    out = np.select(ways, [places.at_ns, stamp, t], -1)
    # the edges of a window share the difference between the clocks' rates
    by_clock = windows["method"].to_numpy() == "clock"
    out[end[by_clock]] = end_ns[by_clock]
    out[start[by_clock]] = start_ns[by_clock]
    return out
