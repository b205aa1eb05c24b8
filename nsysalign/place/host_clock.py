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

#: Python's call of `record` must contain the API call; readings of the two clocks agree to within
#: this.
TOLERANCE_NS = 300
_CHUNK_NS, _CHUNK_RECORDS = 250_000_000, 400
FROM_MARKS = "NVTX marks"
#: (range, step) of the searches for a shift: first for clocks that were read together, then for
#: steps of CLOCK_REALTIME.
_REACH = ((60_000, 500), (2_000_000, 1_000), (20_000_000, 2_000))
#: Sorted times of one thread: begin and end of the Python calls (monotonic) and of the record calls
#: (trace).
Times = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


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
        # interpolate differences only: float64 cannot hold epoch nanoseconds
        since, known = (x - self.at_ns[0] for x in (t, self.at_ns))
        shift = np.interp(since, known, self.offset_ns - self.offset_ns[0])
        return t + int(self.offset_ns[0]) + np.rint(shift).astype(np.int64)

    def contained(
        self, t0: np.ndarray, t1: np.ndarray, start: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        """For each Python call: position of the first record call (sorted, trace time) inside it, -1
        if there is none.  One call cannot be two records: the earlier match wins."""
        if not len(start):
            return np.full(len(t0), -1)
        first = np.searchsorted(start, self.to_trace(t0) - TOLERANCE_NS)
        ok = end[np.minimum(first, len(end) - 1)] <= self.to_trace(t1) + TOLERANCE_NS
        found = np.where(ok & (first < len(start)), first, -1)
        found[1:][found[1:] == found[:-1]] = -1
        return found


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
        at_ns = with_trace["monotonic_ns"].to_numpy()
        return ClockMap(at_ns, with_trace["trace_ns"].to_numpy() - at_ns, "clock lines", 1_000)
    return by_session_start(clocks, session_start_utc_ns)


def by_session_start(clocks: pd.DataFrame, session_start_utc_ns: int | None) -> ClockMap | None:
    """By the first row that knows both clocks of the host, and when the trace began; None if none
    does or that is not known."""
    known = clocks[clocks["realtime_ns"] >= 0]
    if known.empty or not session_start_utc_ns:
        return None
    at_ns, realtime = (known[c].to_numpy()[:1] for c in ("monotonic_ns", "realtime_ns"))
    return ClockMap(at_ns, realtime - at_ns - session_start_utc_ns, "session start time", 50_000)


def _from_marks(marked: pd.DataFrame, marks: pd.DataFrame) -> ClockMap | None:
    """Each mark fell between two readings: offset in [trace - after, trace - before].  Bursts are
    intersected; one with a step of the clock inside is of no use."""
    both = marked.merge(marks, on="payload").sort_values("before_ns")
    burst = (both["before_ns"].diff() > 1_000_000_000).cumsum()
    limits = pd.DataFrame(
        {
            "at": both["before_ns"],
            "low": both["trace_ns"] - both["after_ns"],
            "high": both["trace_ns"] - both["before_ns"],
        }
    )
    limits = limits.groupby(burst).agg({"at": "first", "low": "max", "high": "min"})
    at_ns, low, high = limits[limits["low"] <= limits["high"] + 1_000].to_numpy(np.int64).T
    if not len(at_ns):
        return None
    width = int((np.abs(high - low) // 2).max()) + 1
    return ClockMap(at_ns, (low + high) // 2, FROM_MARKS, width)


def refine(rough: ClockMap, threads: list[Times]) -> ClockMap:
    """Sharpen a rough map: the shift at which the most Python calls contain a record call, in chunks short
    enough that drift does not matter, each from the value extrapolated from those before."""
    t0 = np.sort(np.concatenate([t[0] for t in threads])) if threads else np.empty(0, np.int64)
    at: list[int] = []
    shifts: list[int] = []
    first = 0
    while first < len(t0):
        last = int(np.searchsorted(t0, t0[first] + _CHUNK_NS, side="right")) - 1
        low, high = int(t0[first]), int(t0[last])
        first = last + 1
        pieces = []
        for a, b, c, d in threads:
            k = np.flatnonzero((a >= low) & (a <= high))[:_CHUNK_RECORDS]
            pieces.append((rough.to_trace(a[k]), rough.to_trace(b[k]), c, d))
        middle, expected = (low + high) // 2, shifts[-1] if shifts else 0
        if len(at) > 1:  # extrapolated from the last few chunks
            far = max(0, len(at) - 4)
            slope = (shifts[-1] - shifts[far]) / max(at[-1] - at[far], 1)
            expected += round(np.clip(slope, -1e-4, 1e-4) * (middle - at[-1]))
        shift, share = 0, 0.0
        for reach, step in _REACH if not at else _REACH[:2]:
            shift, share = _best_shift(pieces, expected, reach, step)
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


def _best_shift(pieces: list[Times], centre: int, reach: int, step: int) -> tuple[int, float]:
    """(the shift of Python calls, here in rough trace time, at which most contain the first record
    call that begins in them: the middle of the widest such range; the share that do)."""
    shifts = np.arange(centre - reach, centre + reach + 1, step)
    score = np.zeros(len(shifts), dtype=np.int64)
    for begin, end, start, over in pieces:
        if len(start) and len(begin):
            near = slice(*np.searchsorted(start, [begin[0] + shifts[0], end[-1] + shifts[-1]]))
            start, over = start[near], np.append(over[near], np.iinfo(np.int64).max)
            for k, shift in enumerate(shifts.tolist()):
                first = np.searchsorted(start, begin + shift)
                score[k] += np.count_nonzero(over[first] <= end + shift)
    runs = np.flatnonzero(score >= score.max())
    groups = np.split(runs, np.flatnonzero(np.diff(runs) > 1) + 1)
    widest = max(groups, key=lambda g: (len(g), -abs(int(shifts[g[len(g) // 2]]) - centre)))
    total = sum(len(begin) for begin, _, start, _ in pieces if len(start))
    return int(shifts[widest[0]] + shifts[widest[-1]]) // 2, score.max() / max(total, 1)
