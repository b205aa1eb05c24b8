"""From CLOCK_MONOTONIC in a process to the trace's clock, and samples of the GPU's clocks on it.

The two differ by a constant (plus drift over minutes).  Sources, best first: NVTX marks that carry
their own CLOCK_MONOTONIC (good to 0.2 us), `clock` lines with `trace_ns`, and the session's start
time (good to about 10 us, subject to steps of CLOCK_REALTIME).  The last is refined on the trace: a
record call lies inside its Python call (2 us).

After it is known where each process's clock lies on the trace's, and how well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign import frames

#: Python's call of `record` must contain the API call; readings of the two clocks agree to within
#: this.
TOLERANCE_NS = 300
_CHUNK_NS, _CHUNK_RECORDS = 250_000_000, 400
#: (range, step) of the searches for a shift: first for clocks that were read together, then for
#: steps of CLOCK_REALTIME.
_REACH = ((60_000, 500), (2_000_000, 1_000), (20_000_000, 2_000))
#: A stretch of clock samples ends after this much time without one, or when it is this long, so
#: that a mean over stretches is one over time.
_GAP_NS, _LONGEST_NS = 200_000_000, 1_000_000_000
#: Sorted times of one thread: begin and end of the Python calls (monotonic) and of the record calls
#: (trace).
Times = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class ClockMap:
    """Offsets (trace - monotonic) at points of monotonic time; linear in between, constant
    outside."""

    at_ns: np.ndarray
    offset_ns: np.ndarray
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
        first = np.searchsorted(start, self.to_trace(t0) - TOLERANCE_NS)
        inside = np.append(end, np.iinfo(np.int64).max)[first] <= self.to_trace(t1) + TOLERANCE_NS
        first = np.where(inside, first, -1)
        first[1:][first[1:] == first[:-1]] = -1
        return first


#: Of a trace on CLOCK_MONOTONIC itself.
ONE_CLOCK = ClockMap(np.zeros(1, np.int64), np.zeros(1, np.int64), 1)


def clock_map(
    clocks: pd.DataFrame, marks: pd.DataFrame, session_start_utc_ns: int | None
) -> ClockMap | None:
    """The map of one process, None if nothing connects the two clocks.  `clocks`: readings of the
    host's clocks (monotonic_ns, realtime_ns, trace_ns, -1: not read); `marks`: NVTX marks, with the
    readings before_ns and after_ns between which each fell, and its trace_ns."""
    # offset in [trace - after, trace - before].  Bursts are intersected; one with a step of the
    # clock inside is of no use
    marks = marks.sort_values("before_ns")
    low, high = (marks["trace_ns"] - marks[c] for c in ("after_ns", "before_ns"))
    limits = pd.DataFrame({"at": marks["before_ns"], "low": low, "high": high})
    limits = limits.groupby((marks["before_ns"].diff() > 1_000_000_000).cumsum())
    bursts = limits.agg({"at": "first", "low": "max", "high": "min"})
    at_ns, low, high = bursts[bursts["low"] <= bursts["high"] + 1_000].to_numpy(np.int64).T
    if len(at_ns):
        width = int((np.abs(high - low) // 2).max()) + 1
        return ClockMap(at_ns, (low + high) // 2, width)
    on_trace = clocks[clocks["trace_ns"] >= 0].sort_values("monotonic_ns")
    if len(on_trace):
        at_ns = on_trace["monotonic_ns"].to_numpy()
        return ClockMap(at_ns, on_trace["trace_ns"].to_numpy() - at_ns, 1_000)
    known = clocks[clocks["realtime_ns"] >= 0]
    if known.empty or not session_start_utc_ns:
        return None
    at_ns, realtime_ns = (known[c].to_numpy()[:1] for c in ("monotonic_ns", "realtime_ns"))
    return ClockMap(at_ns, realtime_ns - at_ns - session_start_utc_ns, 50_000)


def refine(rough: ClockMap, threads: list[Times]) -> ClockMap:
    """Sharpen a rough map: the shift at which the most Python calls contain a record call, in chunks short
    enough that drift does not matter, each from the value extrapolated from those before."""
    begun = np.sort(np.concatenate([np.empty(0, np.int64), *(times[0] for times in threads)]))
    moments, shifts = list[int](), list[int]()
    last = 0
    while last < len(begun):
        low = int(begun[last])
        last = int(np.searchsorted(begun, low + _CHUNK_NS, side="right"))
        high = int(begun[last - 1])
        middle = (low + high) // 2
        expected = _extrapolated(moments, shifts, middle)
        chunk = _chunk(rough, threads, low, high)
        for reach, step in _REACH if not moments else _REACH[:2]:
            shift, share = _best_shift(chunk, expected, reach, step)
            if share > 0.8:
                break
        if share >= 0.5:
            moments.append(middle)
            shifts.append(shift)
    if not moments:
        return rough
    at_ns = np.array(moments, dtype=np.int64)
    offsets = rough.to_trace(at_ns) - at_ns + np.array(shifts, dtype=np.int64)
    return ClockMap(at_ns, offsets, 2_000)


def _extrapolated(moments: list[int], shifts: list[int], at_ns: int) -> int:
    """The shift to expect at a moment, from the last few chunks."""
    if len(moments) < 2:
        return shifts[-1] if shifts else 0
    slope = (shifts[-1] - shifts[-4:][0]) / max(moments[-1] - moments[-4:][0], 1)
    return shifts[-1] + round(np.clip(slope, -1e-4, 1e-4) * (at_ns - moments[-1]))


def _chunk(rough: ClockMap, threads: list[Times], low: int, high: int) -> list[Times]:
    """Per thread: Python calls that began between two times, in rough trace time, and all of its record
    calls."""
    chunk = []
    for t0, t1, start, end in threads:
        calls = np.flatnonzero((t0 >= low) & (t0 <= high))[:_CHUNK_RECORDS]
        chunk.append((rough.to_trace(t0[calls]), rough.to_trace(t1[calls]), start, end))
    return chunk


def _best_shift(chunk: list[Times], centre: int, reach: int, step: int) -> tuple[int, float]:
    """(the shift of Python calls, here in rough trace time, at which most contain the first record
    call that begins in them: the middle of the widest such range; the share that do)."""
    shifts = np.arange(centre - reach, centre + reach + 1, step)
    score = np.zeros(len(shifts), dtype=np.int64)
    total = 0
    for begin, end, start, over in chunk:
        if len(start) and len(begin):
            total += len(begin)
            near = slice(*np.searchsorted(start, [begin[0] + shifts[0], end[-1] + shifts[-1]]))
            start = start[near]
            over = np.append(over[near], np.iinfo(np.int64).max)
            for k, shift in enumerate(shifts.tolist()):
                first = np.searchsorted(start, begin + shift)
                score[k] += np.count_nonzero(over[first] <= end + shift)
    best = np.flatnonzero(score == score.max())
    groups = np.split(best, np.flatnonzero(np.diff(best) > 1) + 1)
    widest = max(groups, key=lambda g: (len(g), -abs(int(shifts[g[len(g) // 2]]) - centre)))
    return int(shifts[widest[0]] + shifts[widest[-1]]) // 2, score.max() / max(total, 1)


def place_samples(
    samples: pd.DataFrame,
    maps: Mapping[int, ClockMap],
    session_start_utc_ns: int | None,
    *,
    shared: bool = False,
) -> tuple[pd.DataFrame, list[str]]:
    """Clock samples as stretches in which nothing changed (frames.GPU_CLOCKS), and notes.

    samples   .  .  .  .  .  .  .  .          1980 1980 1980 1755 1755 1740 1980 1980
    stretches [------]  [---]  .  [---]       between two stretches the clock changed, at an unknown time

    Placed by the most accurate map of any process (CLOCK_MONOTONIC is the machine's), else by the
    session's start.  `shared`: several processes worked on a device of the same number."""
    if samples.empty:
        return frames.empty(frames.GPU_CLOCKS), []
    known = sorted(maps.values(), key=lambda m: m.width_ns)
    no_marks = pd.DataFrame(columns=["before_ns", "after_ns", "trace_ns"], dtype="int64")
    by_session = clock_map(samples.assign(trace_ns=-1), no_marks, session_start_utc_ns)
    clock = known[0] if known else by_session
    if clock is None:
        return frames.empty(frames.GPU_CLOCKS), [
            "the clock samples could not be used: nothing connects their clock to the trace's"
        ]
    placed = samples.assign(t_ns=clock.to_trace(samples["monotonic_ns"].to_numpy()))
    placed = placed[placed["sm_mhz"] >= 0].sort_values(["device", "t_ns"], ignore_index=True)
    note = (
        "several processes used a device of the same number: if each was given a GPU of its own "
        "(CUDA_VISIBLE_DEVICES per process), the clocks shown with them may be another GPU's"
    )
    changes = placed[["device", "sm_mhz", "mem_mhz", "reasons"]].diff().ne(0).any(axis=1)
    changes |= placed["t_ns"].diff() > _GAP_NS
    since = placed["t_ns"] - placed.groupby(changes.cumsum())["t_ns"].transform("first")
    changes |= (since // _LONGEST_NS).diff() > 0  # cut what does not change, too
    stretches = placed.groupby(changes.cumsum()).agg(
        device=("device", "first"),
        start_ns=("t_ns", "first"),
        end_ns=("t_ns", "last"),
        samples=("t_ns", "size"),
        sm_min_mhz=("sm_mhz", "min"),
        sm_max_mhz=("sm_mhz", "max"),
        mem_mhz=("mem_mhz", "max"),
        reasons=("reasons", "first"),
    )
    ambiguous = shared and placed["device"].nunique() > 1
    table = frames.check(stretches.reset_index(drop=True), frames.GPU_CLOCKS)
    return table, [note] if ambiguous else []
