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
    start, end, elapsed = (pairs[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    on = (places.line[start] >= 0) & (places.line[start] == places.line[end])
    apart = np.abs(places.at_ns[end] - places.at_ns[start] - elapsed)
    room = _CLOCK_ROOM_NS + places.error_ns
    within = (places.at_ns >= bounded.lower - room) & (places.at_ns <= bounded.upper + room)
    within |= bounded.stamped  # CUPTI's stamp may be late: it bounds nothing
    agree = (apart <= CLOCK_RATE * 5 * elapsed + room[start]) & within[start] & within[end]
    wrong = int((on & ~agree & ~pairs["calibration"].to_numpy(dtype=bool)).sum())
    note = (
        f"{wrong} pairs lie elsewhere by the event clock than their neighbours on the stream allow: they are placed by their "
        "neighbours (an event recorded again while it was measured, or dropped rows)"
    )
    return on & agree, [note] if wrong else []


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
    pairs, on = frames.taken(bounded.pairs, ordinary), on_clock[ordinary]
    start, end, elapsed = (pairs[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    stamp, stamped = records["timestamp_ns"].to_numpy(), bounded.stamped
    low, high = np.sort(of_starts(*bounds, pairs), axis=0)
    low, high = (
        np.where(stamped[start], b[start], x) for b, x in zip(bounds, (low, high), strict=True)
    )
    usual, bar = place_pairs(pairs, likely)
    # the two clocks' rates differ by parts per million: over a long interval both ends share that
    over = np.where(on, places.at_ns[end] - places.at_ns[start] - elapsed, 0)
    by_clock = places.at_ns[start] + over // 2
    of_clock = np.maximum(places.error_ns[start], places.error_ns[end]) + (np.abs(over) + 1) // 2
    ways = [on, stamped[start], stamped[end]]
    begin = np.select(
        ways, [by_clock, stamp[start], stamp[end] - elapsed], np.clip(usual, low, high)
    )
    farthest = np.maximum(np.maximum(begin - low, high - begin), 1)
    error = np.select(
        ways, [of_clock, TICK_NS, _BY_END_NS], np.minimum(bar, farthest).astype(np.int64)
    )
    lower, upper = np.where(stamped, 0, bounded.lower), np.where(stamped, FAR, bounded.upper)
    held = of_starts(lower, upper, pairs, np.abs(over) + TICK_NS)
    low, high = (np.where(on, x, y) for x, y in zip(held, (low, high), strict=True))
    residual = pd.array(stamp[end] - (begin + elapsed), dtype="Int64")
    residual[~(stamped[start] & stamped[end])] = pd.NA
    method = np.full(len(pairs), "bounds", dtype=object)
    method[stamped[start] | stamped[end]], method[on] = "event-trace", "clock"
    # the log's records come first in `records`: positions there are positions here
    names = ("region", "site", "callers", "library")
    region, site, callers, library = (log.records[c].to_numpy() for c in names)
    columns = who(records, start, end) | {
        "log_process": pairs["process"].to_numpy(),
        "region": [a or b for a, b in zip(region[start], pairs["region"], strict=True)],
        "site": site[start],
        "end_site": site[end],
        "callers": callers[start],
        "library": library[start],
        "origin": np.int8(ORIGIN["pair"]),
        "source": pairs["source"].to_numpy(),
        "elapsed_ns": elapsed,
        "start_ns": begin,
        "end_ns": begin + elapsed,
        "start_lower_ns": np.minimum(low, begin),
        "start_upper_ns": np.maximum(high, begin),
        "error_ns": error,
        "method": method,
        "clock_residual_ns": residual,
    }
    return frames.lean(columns, frames.WINDOWS, len(pairs))


def who(records: pd.DataFrame, start: np.ndarray, end: np.ndarray) -> dict[str, Any]:
    """Who recorded pairs, when, and on which streams."""
    columns = {
        "process": (start, "process"),
        "thread": (start, "thread"),
        "end_thread": (end, "thread"),
        "start_lane": (start, "lane"),
        "end_lane": (end, "lane"),
        "open_ns": (start, "call_start_ns"),
        "close_ns": (end, "call_start_ns"),
        "close_end_ns": (end, "call_end_ns"),
    }
    of_records = {
        name: records[column].to_numpy()[side] for name, (side, column) in columns.items()
    }
    return {"kind": "event", "start": start, "end": end} | of_records


def _record_places(
    records: pd.DataFrame, windows: pd.DataFrame, places: ClockPlaces, likely: Likely
) -> np.ndarray:
    """Likeliest place of every record: by the event clock, its own timestamp, its window's edge,
    else its neighbours; -1 for none."""
    t, ahead = likely.place, likely.ahead
    t = np.where(ahead < t, t - (t - ahead) // 2, t)
    t = np.clip(t, records["lower_ns"].to_numpy(), records["upper_ns"].to_numpy())
    edges = [(windows[c].to_numpy(), windows[f"{c}_ns"].to_numpy()) for c in ("end", "start")]
    for record, edge_ns in edges:
        t[record] = edge_ns
    stamp, known = records["timestamp_ns"].to_numpy(), records["call"].to_numpy() >= 0
    ways = [known & (places.line >= 0), stamp > 0, known]
    out = np.select(ways, [places.at_ns, stamp, t], -1)
    # the edges of a window share the difference between the clocks' rates
    own = windows["method"].to_numpy() == "clock"
    for record, edge_ns in edges:
        out[record[own]] = edge_ns[own]
    return out
