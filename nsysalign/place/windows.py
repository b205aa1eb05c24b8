"""Turns records with bounds into windows of kind event: by the event clock, by timestamps, else by
what their neighbours make likely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.issue_order import FAR
from nsysalign.model import ORIGIN, EventLog, tid_of
from nsysalign.place import bounds
from nsysalign.place.fit import ClockPlaces
from nsysalign.place.latency import LatencyModel, PairPlaces
from nsysalign.place.pairs import TracePairs
from nsysalign.place.surroundings import Surroundings
from nsysalign.windows import Unplaced, windows_frame

#: Bounds that cross by less than this are the two clocks' disagreement, not a contradiction.
CROSSING_NS = 2_000


@dataclass(frozen=True)
class Bounded:
    """Records with their streams and their own bounds, and the pairs that can be placed."""

    records: pd.DataFrame
    around: pd.DataFrame
    pairs: pd.DataFrame
    lower: np.ndarray
    upper: np.ndarray
    unaligned: list[Unplaced]
    contradictions: int

    @property
    def stamped(self) -> np.ndarray:
        """Which records have a CUPTI timestamp."""
        return self.records["timestamp_ns"].to_numpy() > 0


def event_windows(
    log: EventLog,
    best: Bounded,
    places: ClockPlaces | None,
    on_clock: np.ndarray,
    likely: PairPlaces,
    lower: np.ndarray,
    upper: np.ndarray,
) -> pd.DataFrame:
    """Windows of kind event: the program's own pairs, placed."""
    ordinary = ~best.pairs["calibration"].to_numpy(dtype=bool)
    pairs, on_clock = best.pairs[ordinary].reset_index(drop=True), on_clock[ordinary]
    start, end, elapsed = (pairs[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    stamp = best.records["timestamp_ns"].to_numpy()
    begin, error, low, high = (np.zeros(len(pairs), np.int64) for _ in range(4))
    method = np.full(len(pairs), "clock", dtype=object)
    if places is not None and on_clock.any():
        at = np.flatnonzero(on_clock)
        ends = start[at], end[at], elapsed[at]
        begin[at], error[at], low[at], high[at] = _on_clock(places, best, *ends)
    if not on_clock.all():
        at = np.flatnonzero(~on_clock)
        ends = start[at], end[at], elapsed[at]
        begin[at], error[at], low[at], high[at] = _by_neighbours(
            best.records,
            likely.start_ns[ordinary][at],
            likely.error_ns[ordinary][at],
            lower,
            upper,
            *ends,
        )
        method[at] = np.where(
            (stamp[start[at]] > 0) | (stamp[end[at]] > 0), "event-trace", "bounds"
        )
    out = _whose(log, best.records, pairs).assign(
        elapsed_ns=elapsed,
        start_ns=begin,
        end_ns=begin + elapsed,
        start_lower_ns=low,
        start_upper_ns=high,
        error_ns=error,
        method=method,
    )
    residual = pd.array(stamp[end] - (begin + elapsed), dtype="Int64")
    residual[~((stamp[start] > 0) & (stamp[end] > 0))] = pd.NA
    out["clock_residual_ns"] = residual
    return frames.check(out, frames.WINDOWS)


def _whose(log: EventLog, records: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """What is known of pairs before they are placed: who recorded them, on which streams, where in
    the program."""
    start, end = pairs["start"].to_numpy(), pairs["end"].to_numpy()
    columns = {
        "process": "process",
        "thread": "thread",
        "start_lane": "lane",
        "open_ns": "call_start_ns",
    }
    ends = {
        "end_thread": "thread",
        "end_lane": "lane",
        "close_ns": "call_start_ns",
        "close_end_ns": "call_end_ns",
    }
    logged = log.records  # its rows come first in `records`: positions there are positions here
    region, site = (logged[c].to_numpy(dtype=object) for c in ("region", "site"))
    out = pd.DataFrame(
        {
            "kind": "event",
            "log_process": pairs["process"].to_numpy(),
            "start": start,
            "end": end,
            **{name: records[column].to_numpy()[start] for name, column in columns.items()},
            **{name: records[column].to_numpy()[end] for name, column in ends.items()},
            "region": [a or b for a, b in zip(region[start], pairs["region"], strict=True)],
            "site": site[start],
            "end_site": site[end],
            "callers": logged["callers"].to_numpy(dtype=object)[start],
            "library": logged["library"].to_numpy()[start],
            "origin": np.int8(ORIGIN["pair"]),
            "source": pairs["source"].to_numpy(),
        }
    )
    out["remarks"] = pd.Series([()] * len(out), dtype=object, index=out.index)
    return out


def _on_clock(
    places: ClockPlaces, best: Bounded, start: np.ndarray, end: np.ndarray, elapsed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(start, error bar, bounds of the start) of pairs on an event clock.  The two clocks' rates
    differ by parts per million; over a long interval both ends share that difference."""
    over = places.at_ns[end] - places.at_ns[start] - elapsed
    begin = places.at_ns[start] + over // 2
    error = np.maximum(places.error_ns[start], places.error_ns[end]) + (np.abs(over) + 1) // 2
    stamped = best.stamped
    lower, upper = np.where(stamped, 0, best.lower), np.where(stamped, FAR, best.upper)
    low, high = bounds.of_starts(lower, upper, start, end, elapsed, np.abs(over) + bounds.TICK_NS)
    return begin, error, np.minimum(low, begin), np.maximum(high, begin)


def _by_neighbours(
    records: pd.DataFrame,
    likely: np.ndarray,
    bar: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    elapsed: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The same for pairs on no event clock: by their timestamps, else by what their neighbours make
    likely."""
    stamp = records["timestamp_ns"].to_numpy()
    low, high = bounds.of_starts(lower, upper, start, end, elapsed)
    low, high = np.minimum(low, high), np.maximum(low, high)
    by_start, by_end = stamp[start] > 0, (stamp[start] <= 0) & (stamp[end] > 0)
    low = np.where(by_start, lower[start], low)
    high = np.where(by_start, upper[start], high)
    begin, error = (
        np.where(by_start, stamp[start], stamp[end] - elapsed),
        np.where(by_start, bounds.TICK_NS, 500),
    )
    rest = np.flatnonzero(~by_start & ~by_end)
    begin[rest] = np.clip(likely[rest], low[rest], high[rest])
    farthest = np.maximum(np.maximum(begin - low, high - begin), 1)
    error[rest] = np.minimum(np.ceil(bar[rest]), farthest[rest])
    return begin, error, np.minimum(low, begin), np.maximum(high, begin)


def record_places(
    records: pd.DataFrame,
    windows: pd.DataFrame,
    places: ClockPlaces | None,
    surroundings: Surroundings,
    model: LatencyModel,
) -> np.ndarray:
    """Likeliest place of every record: by the event clock, its own timestamp, its window's edge,
    else its neighbours."""
    t, ahead = model.expected(surroundings)[0], model.ahead_of(surroundings)
    t = np.where(ahead < t, t - (t - ahead) // 2, t)
    t = np.clip(t, records["lower_ns"].to_numpy(), records["upper_ns"].to_numpy())
    t[windows["end"].to_numpy()] = windows["end_ns"].to_numpy()
    t[windows["start"].to_numpy()] = windows["start_ns"].to_numpy()
    stamp = records["timestamp_ns"].to_numpy()
    known = records["call"].to_numpy() >= 0
    out = np.where(stamp > 0, stamp, np.where(known, t, -1))
    if places is not None:
        out = np.where(known & (places.line >= 0), places.at_ns, out)
    # the edges of a window share the difference between the clocks' rates
    own = windows["method"].to_numpy() == "clock"
    for edge in ("end", "start"):
        out[windows[edge].to_numpy()[own]] = windows[f"{edge}_ns"].to_numpy()[own]
    return out


def read_windows(
    records: pd.DataFrame, pairs: TracePairs, best: Bounded, bar: np.ndarray
) -> tuple[pd.DataFrame, list[str]]:
    """(windows of pairs that only the trace shows, whose length is itself an estimate; notes).
    `records` with lane, t_ns and bounds; `bar`: half-widths that hold their places."""
    start, end = (np.array(side, np.int64) for side in (pairs.start, pairs.end))
    lane, t = records["lane"].to_numpy(), records["t_ns"].to_numpy().copy()
    named = (lane >= 0) & (best.lower <= best.upper + CROSSING_NS)
    named = named[start] & named[end]
    start, end = start[named], end[named]
    t[end] = np.maximum(t[end], t[start])  # of two between the same operations the order is known
    lower, upper = (records[c].to_numpy() for c in ("lower_ns", "upper_ns"))
    stamped = records["timestamp_ns"].to_numpy() > 0
    room = np.maximum(np.maximum(t - lower, upper - t), 1)
    bar = np.where(stamped, bar, np.minimum(bar, room))  # a stamp of CUPTI's may be late
    error = bar.astype(np.int64)

    def of(column: str, index: np.ndarray) -> np.ndarray:
        return records[column].to_numpy()[index]

    out = windows_frame(
        len(start),
        {
            "kind": "event",
            "process": of("process", start),
            "thread": of("thread", start),
            "end_thread": of("thread", end),
            "start": start,
            "end": end,
            "start_lane": lane[start],
            "end_lane": lane[end],
            "open_ns": of("call_start_ns", start),
            "close_ns": of("call_start_ns", end),
            "close_end_ns": of("call_end_ns", end),
            "elapsed_ns": t[end] - t[start],
            "start_ns": t[start],
            "end_ns": t[end],
            "start_lower_ns": np.minimum(lower[start], t[start]),
            "start_upper_ns": np.maximum(np.minimum(upper[start], t[end]), t[start]),
            "error_ns": np.maximum(error[start], error[end]),
            "method": "inferred",
            "origin": ORIGIN["records"],
            "region": [f"records of thread {tid_of(x)}" for x in of("thread", start).tolist()],
        },
    )
    lost = int((~named).sum())
    note = (
        f"{lost:,} compared pairs have no interval: their thread works on several streams, and the trace does not name "
        "theirs (nsysalign run does, and so does nsys profile --cuda-event-trace=true, 2024.6 or newer)"
    )
    return out, [note] if lost else []
