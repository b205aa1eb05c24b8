"""From CLOCK_MONOTONIC in a process to the trace's clock.

The two differ by a constant (plus drift over minutes).  Sources, best first: NVTX marks that carry
their own CLOCK_MONOTONIC (good to 0.2 us), `clock` lines with `trace_ns`, and the session's start
time (good to about 10 us, subject to steps of CLOCK_REALTIME).  The last is refined on the trace: a
record call lies inside its Python call (2 us).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign.intervals import ragged

#: Python's call of `record` must contain the API call; readings of the two clocks agree to within
#: this.
TOLERANCE_NS = 300
_CHUNK_NS, _CHUNK_RECORDS = 250_000_000, 400
FROM_MARKS = "NVTX marks"
#: (range, step) of the searches for a shift: first for clocks that were read together, then for
#: steps of CLOCK_REALTIME.
_REACH = ((60_000, 500), (2_000_000, 1_000), (20_000_000, 2_000))


@dataclass(frozen=True)
class ClockMap:
    """Offsets (trace - monotonic) at points of monotonic time; linear in between, constant
    outside."""

    at_ns: np.ndarray
    offset_ns: np.ndarray
    source: str
    width_ns: int  # half-width of the offset's uncertainty

    def to_trace(self, monotonic_ns: np.ndarray) -> np.ndarray:
        t = np.asarray(monotonic_ns, dtype=np.int64)
        if len(self.at_ns) == 1:
            return t + self.offset_ns[0]
        # interpolate differences only: float64 cannot hold epoch nanoseconds
        base = int(self.offset_ns[0])
        shift = np.interp(
            (t - self.at_ns[0]).astype(float),
            (self.at_ns - self.at_ns[0]).astype(float),
            (self.offset_ns - base).astype(float),
        )
        return t + base + np.rint(shift).astype(np.int64)


def clock_map(
    *,
    clocks: pd.DataFrame,
    marked: pd.DataFrame,
    marks: pd.DataFrame,
    session_start_utc_ns: int | None,
) -> ClockMap | None:
    """The map of one process from its log and the trace; None if nothing connects the two
    clocks."""
    from_marks = _from_marks(marked, marks)
    if from_marks is not None:
        return from_marks
    with_trace = clocks[clocks["trace_ns"] >= 0].sort_values("monotonic_ns")
    if len(with_trace):
        at = with_trace["monotonic_ns"].to_numpy()
        return ClockMap(at, with_trace["trace_ns"].to_numpy() - at, "clock lines", 1_000)
    return by_session_start(clocks, session_start_utc_ns)


def by_session_start(clocks: pd.DataFrame, session_start_utc_ns: int | None) -> ClockMap | None:
    """By the first row that knows both clocks of the host, and when the trace began; None if none
    does or that is not known."""
    known = clocks[clocks["realtime_ns"] >= 0]
    if known.empty or not session_start_utc_ns:
        return None
    at, realtime = (known[c].to_numpy()[:1] for c in ("monotonic_ns", "realtime_ns"))
    return ClockMap(at, realtime - at - session_start_utc_ns, "session start time", 50_000)


def _from_marks(marked: pd.DataFrame, marks: pd.DataFrame) -> ClockMap | None:
    """Each mark fell between two readings: offset in [trace - after, trace - before].  Bursts are
    intersected."""
    if marked.empty or marks.empty:
        return None
    both = marked.merge(marks, on="payload", suffixes=("", "_trace")).sort_values("before_ns")
    if both.empty:
        return None
    before, after, trace = (both[c].to_numpy() for c in ("before_ns", "after_ns", "trace_ns"))
    burst = np.concatenate([[0], np.cumsum(np.diff(before) > 1_000_000_000)])
    at, offset, width = [], [], []
    for b in range(burst[-1] + 1):
        here = burst == b
        low, high = (trace - after)[here].max(), (trace - before)[here].min()
        if low > high + 1_000:  # a clock step inside the burst: unusable
            continue
        at.append(int(before[here][0]))
        offset.append(int((low + high) // 2))
        width.append(int(abs(high - low) // 2) + 1)
    if not at:
        return None
    return ClockMap(np.array(at), np.array(offset), FROM_MARKS, max(width))


def refine(
    rough: ClockMap, threads: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
) -> ClockMap:
    """Sharpen a rough map: find the shift at which the most Python calls contain a record call.

    `threads`: per thread the sorted (t0, t1) of the Python calls in monotonic time and (c0, c1) of
    the record calls in trace time.  Done in chunks short enough that drift inside one does not
    matter (20 ppm of 0.25 s is 5 us, the width of a call); each chunk starts from the value
    extrapolated from the previous ones.
    """
    t0 = np.sort(np.concatenate([t[0] for t in threads])) if threads else np.empty(0, np.int64)
    if not len(t0):
        return rough
    at: list[int] = []
    shifts: list[int] = []
    first = 0
    while first < len(t0):
        last = int(np.searchsorted(t0, t0[first] + _CHUNK_NS, side="right")) - 1
        low, high = int(t0[first]), int(t0[last])
        first = last + 1
        pieces = [
            (a[k], b[k], c, d)
            for a, b, c, d in threads
            for k in [np.flatnonzero((a >= low) & (a <= high))[:_CHUNK_RECORDS]]
        ]
        middle, expected = (low + high) // 2, shifts[-1] if shifts else 0
        if len(at) > 1:  # extrapolated from the last few chunks
            k = max(0, len(at) - 4)
            slope = (shifts[-1] - shifts[k]) / max(at[-1] - at[k], 1)
            expected += round(np.clip(slope, -1e-4, 1e-4) * (middle - at[-1]))
        shift, share = 0, 0.0
        for reach, step in _REACH if not at else _REACH[:2]:
            shift, share = _best_shift(rough, pieces, expected, reach, step)
            if share > 0.8:
                break
        if share >= 0.5:
            at.append(middle)
            shifts.append(shift)
    if not at:
        return rough
    moments = np.array(at, dtype=np.int64)
    offsets = rough.to_trace(moments) - moments + np.array(shifts, dtype=np.int64)
    source = rough.source + ", refined on record calls"
    return ClockMap(moments, offsets, source, 2_000)


def _best_shift(
    rough: ClockMap, pieces: list[tuple], centre: int, reach: int, step: int
) -> tuple[int, float]:
    shifts = np.arange(centre - reach, centre + reach + 1, step)
    score = np.zeros(len(shifts), dtype=np.int64)
    total = 0
    for t0, t1, c0, c1 in pieces:
        if not len(c0) or not len(t0):
            continue
        sample = slice(None, None, max(1, len(t0) * len(shifts) // 20_000_000))
        lo, hi = rough.to_trace(t0[sample]), rough.to_trace(t1[sample])
        total += len(lo)
        score += _fitting(lo, hi, c0, c1, centre - reach, step, len(shifts))
    best = score >= score.max()
    runs = np.flatnonzero(best)
    groups = np.split(runs, np.flatnonzero(np.diff(runs) > 1) + 1)
    widest = max(groups, key=lambda g: (len(g), -abs(int(shifts[g[len(g) // 2]]) - centre)))
    return int(shifts[widest[0]] + shifts[widest[-1]]) // 2, score.max() / max(total, 1)


def _fitting(
    lo: np.ndarray,
    hi: np.ndarray,
    c0: np.ndarray,
    c1: np.ndarray,
    first: int,
    step: int,
    count: int,
) -> np.ndarray:
    """Per shift (first, first + step, ...): how many [lo, hi) + shift hold the first [c0, c1) that
    begins in them.

    Call j is the first for shifts in (c0[j - 1] - lo, c0[j] - lo], and lies inside from c1[j] - hi
    on: this is a range of shifts, counted by its ends.
    """
    low = np.searchsorted(c0, lo + first)
    high = np.searchsorted(c0, lo + (first + (count - 1) * step))
    call, j = ragged(low, np.minimum(high + 1, len(c0)) - low)
    before = np.where(j > 0, c0[j - 1] - lo[call] + 1, np.iinfo(np.int64).min // 2)
    a = np.maximum(before, c1[j] - hi[call]) - first
    b = c0[j] - lo[call] - first
    a, b = np.maximum(-(-a // step), 0), np.minimum(b // step, count - 1)
    some = b >= a
    ends = np.bincount(a[some], minlength=count + 1) - np.bincount(b[some] + 1, minlength=count + 1)
    return np.cumsum(ends)[:count]


def contained(lo: np.ndarray, hi: np.ndarray, c0: np.ndarray, c1: np.ndarray) -> np.ndarray:
    """For each [lo, hi): position of the first [c0, c1) inside it (sorted by c0), -1 if there is
    none."""
    if not len(c0):
        return np.full(len(lo), -1)
    i = np.searchsorted(c0, lo - TOLERANCE_NS)
    j = np.minimum(i, len(c0) - 1)
    ok = (i < len(c0)) & (c1[j] <= hi + TOLERANCE_NS)
    found = np.where(ok, j, -1)
    # one call cannot be two records: the earlier match wins
    twice = np.zeros(len(found), dtype=bool)
    twice[1:] = (found[1:] >= 0) & (found[1:] == found[:-1])
    found[twice] = -1
    return found
