"""How long the GPU can have been idle because of the CPU inside each pair of events, from the log alone.

pair  two records (calls of `event.record()`) that the program compared by `elapsed_time`
lag   how far the GPU was behind the CPU at a record, at least

The *lag* of a record is its GPU time (`event_clock`) minus the beginning of its call, above the least
that the run shows around that time:

    GPU time - CPU time
      |      x          x                 x: records.  A record waits behind work, so its difference
      |  x       x   x      x                grows; where the GPU had caught up, it is least
      |   \\____x_________x____x            the line: the lower convex hull, which takes out the clocks'
      +------------------------- CPU time    offset and their linear drift

Over minutes the drift is not linear (0.7 ppm in a quarter of an hour on an H100), so a hull reaches over
`STRAIGHT_NS` only, and of the two that hold a record the lower one counts: a lag is never too long.  All
work of a pair was issued when the call of its end record returned, so within it the CPU can have kept the
GPU waiting only for

    (return of the end record's call - beginning of the start record's call) - lag of the start
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign.intervals import group
from nsysalign.model import EventLog
from nsysalign.place.event_clock import EventClock
from nsysalign.place.matched import positions_by_number

#: The GPU had caught up with the CPU at a record if its lag is at most this, and it lies at most so
#: far above the probe's own records, among which it lies, or this near (50 ppm of drift: 10 us).
CAUGHT_UP_NS, LIKE_OWN_NS, NEAR_NS = 10_000, 20_000, 200_000_000
#: So long the drift of GPU and CPU clock counts as linear.
STRAIGHT_NS = 10_000_000_000


def compared_pairs(log: EventLog, clock: EventClock | None) -> pd.DataFrame:
    """Return what the log and the event clock prove about each pair that the program compared: a row per pair of
    uncaptured records, with the columns of `frames.TIMED` but names and labels.  The index is that of
    `log.elapsed`.  Among the columns are:

    start, end                the positions of its records in the log
    idle_at_most_ns           how long the GPU can have been idle because of the CPU, NA: not known
    start_lag_ns, end_lag_ns  how far behind the CPU the GPU was at its records, at least, NA: not known
    caught_up                 whether the GPU had caught up with the CPU at the end record

    clock: the event clocks of the log, None if it has no references

    CPU   [start's call ...............  end's call]           0 to 50 us: then all work of the pair is issued
    GPU                     start ........................ end     the start is executed at 30 us: the lag is 30 us

    Of what the GPU did between start and end, only the first 20 us (50 - 30) ran while the CPU was still issuing: so long
    at most can the CPU have kept the GPU waiting.
    """
    elapsed, start, end = _uncaptured_comparisons(log)
    first, last = log.records.iloc[start], log.records.iloc[end]
    lag_ns, caught_up = lags(log, clock)
    elapsed_ns = np.rint(elapsed["ms"].to_numpy() * 1e6).astype(np.int64)
    # the CPU can keep the GPU waiting only until it has issued all work of the pair
    issuing_ns = last["t1_ns"].to_numpy() - first["t0_ns"].to_numpy()
    idle_ns = np.clip(np.ceil(issuing_ns - lag_ns[start]), 0, np.maximum(elapsed_ns, 0))
    pid = np.array([header.get("pid", -1) for header in log.headers])
    # the region in which the pair was recorded; elapsed_time may be called much later, anywhere
    regions = zip(first["region"], elapsed["region"], strict=True)
    columns = {
        name: first[name].to_numpy() for name in ("tid", "device", "site", "callers", "library")
    }
    columns |= {
        "start": start,
        "end": end,
        "elapsed_ns": elapsed_ns,
        "idle_at_most_ns": _whole_ns(idle_ns),
        "start_lag_ns": _whole_ns(lag_ns[start]),
        "end_lag_ns": _whole_ns(lag_ns[end]),
        "caught_up": caught_up[end],
        "kind": "event",
        "pid": pid[elapsed["process"].to_numpy()],
        "end_site": last["site"].to_numpy(),
        "region": [of_record or of_call for of_record, of_call in regions],
    }
    return pd.DataFrame(columns, index=elapsed.index)


def _uncaptured_comparisons(log: EventLog) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return (the comparisons of the log whose records it has, the position of the start record of each, that of the end
    record); without those of records that were captured into a CUDA graph."""
    records, elapsed = log.records, log.compared
    process = elapsed["process"].to_numpy()
    logged_process, logged_seq = records["process"].to_numpy(), records["seq"].to_numpy()
    start = positions_by_number(process, elapsed["start"].to_numpy(), logged_process, logged_seq)
    end = positions_by_number(process, elapsed["end"].to_numpy(), logged_process, logged_seq)
    # a record that the log does not have (-1, the appended value) is left out like a captured one
    captured = np.append(records["captured"].to_numpy(), True)
    usable = ~captured[start] & ~captured[end]
    return elapsed[usable], start[usable], end[usable]


def _whole_ns(ns: np.ndarray) -> pd.api.extensions.ExtensionArray:
    """Return nanoseconds rounded down to integers, NA for NaN."""
    return pd.array(np.floor(ns), "Float64").astype("Int64")


def lags(log: EventLog, clock: EventClock | None) -> tuple[np.ndarray, np.ndarray]:
    """Return how far the GPU was behind the CPU at each record of the log: (lag, caught_up).

    lag: float64, how many ns the GPU was behind the CPU at the record, at least; NaN for a record that no
        distance to a reference reaches
    caught_up: bool, whether the GPU had finished what was issued before: it executed the record as early
        as it executes the probe's own records, which have a stream of their own, around the same time

    clock: the event clocks of the log, None if it has no references.  It has the records of a line on one clock; those of
        one frame, a part of a line, lie there exactly, and frames may be off against each other

    Records called at 0, 100 and 200 us were executed at 7, 147 and 207 us of the event clock: 7, 47 and 7 us later.  The
    least of that is the distance between the two clocks around that time: the lags are 0, 40 and 0 us.
    """
    records = log.records
    lag_ns = np.full(len(records), np.nan)
    caught_up = np.zeros(len(records), dtype=bool)
    if clock is None:
        return lag_ns, caught_up
    called_ns = records["t0_ns"].to_numpy()
    by_probe = records["calibration"].to_numpy(dtype=bool)
    is_placed = (clock.frame >= 0) & ~records["captured"].to_numpy()
    line = np.where(is_placed, clock.frames.line[clock.frame], -1)  # frame -1 is placed nowhere
    for members in group(line[is_placed], np.flatnonzero(is_placed)).values():
        # CPU time and GPU time since the line's first record, and the difference between them
        since_ns = called_ns[members] - called_ns[members[0]]
        gpu_since_ns = clock.at_ns[members] - clock.at_ns[members[0]]
        apart_ns = gpu_since_ns - since_ns
        error_ns = clock.frames.from_first_ns[clock.frame[members]] + clock.tick_ns
        # The least difference around each record (the lower hull, because the clocks drift apart), from above: a lag may
        # be too short, never too long.  So the record's difference counts from below.
        least_ns = local_hull(since_ns, apart_ns + error_ns)
        lag_ns[members] = np.maximum(apart_ns - error_ns - least_ns, 0)
        # a short lag alone does not show that the GPU had caught up: where it never does, the least difference holds
        # a lag, too.  The probe's own records show how early a record can be
        like_probe = _is_like_probe(since_ns, apart_ns, by_probe[members])
        caught_up[members] = (lag_ns[members] <= CAUGHT_UP_NS) & like_probe
    return lag_ns, caught_up


def _is_like_probe(since_ns: np.ndarray, apart_ns: np.ndarray, by_probe: np.ndarray) -> np.ndarray:
    """Return, per record, whether it was executed about as early as the probe's own records around it.

    since_ns, apart_ns: per record, its CPU time, and GPU time minus CPU time, in ns since the first record
    by_probe: bool, per record, whether it is the probe's own
    """
    of_probe = np.flatnonzero(by_probe)
    if not len(of_probe):
        return np.zeros(len(since_ns), dtype=bool)
    of_probe = of_probe[np.argsort(since_ns[of_probe], kind="stable")]
    times_ns = since_ns[of_probe]
    hull_ns = local_hull(times_ns, apart_ns[of_probe])
    least_ns = np.interp(since_ns, times_ns, hull_ns)
    near = (since_ns >= times_ns[0] - NEAR_NS) & (since_ns <= times_ns[-1] + NEAR_NS)
    return near & (apart_ns - least_ns <= LIKE_OWN_NS)


def local_hull(since_ns: np.ndarray, apart_ns: np.ndarray) -> np.ndarray:
    """Return, at each record, the lower convex hull of the points in a stretch of `STRAIGHT_NS` around it: of
    the two overlapping stretches that hold the record, the lower hull.

    since_ns, apart_ns: per record, its point: time and difference between the clocks
    """
    half = since_ns // (STRAIGHT_NS // 2)
    least_ns = np.full(len(since_ns), np.inf)
    for first in np.unique([half - 1, half]):
        stretch = np.flatnonzero((half == first) | (half == first + 1))
        hull_ns = lower_hull(since_ns[stretch], apart_ns[stretch])
        least_ns[stretch] = np.minimum(least_ns[stretch], hull_ns)
    return least_ns


def lower_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the lower convex hull of points at each x."""
    corners: list[tuple[float, float]] = []
    for n in np.lexsort((y, x)).tolist():
        point = float(x[n]), float(y[n])
        if corners and corners[-1][0] == point[0]:
            continue
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (point[0] - x0) < (point[1] - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append(point)
    return np.interp(x, [corner[0] for corner in corners], [corner[1] for corner in corners])
