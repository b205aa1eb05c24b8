"""How CLOCK_MONOTONIC of a process converts to the trace's clock, and samples of the GPU's clocks there.

map     converts times of one process's CLOCK_MONOTONIC to trace time (`ClockMap`)
mark    an NVTX mark that holds its own reading of CLOCK_MONOTONIC
sample  one reading of the GPU's clock rates (SM and memory clock)

The two clocks differ by a constant, plus a drift over minutes.  Where that constant comes from, best first:
NVTX marks (good to 0.2 us), `clock` lines of the log with `trace_ns`, and the start time of the session (good
to about 10 us, unless CLOCK_REALTIME is set in between).  The last is refined on the trace: a record call
lies inside the Python call that made it (2 us).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames

#: Python's call of `record` must contain the API call; readings of the two clocks agree to within
#: this.
TOLERANCE_NS = 300
_CHUNK_NS, _CHUNK_RECORDS = 250_000_000, 400
#: How far a map may be off (half-width), by where it comes from: two clocks that were read one after the other; the
#: start of the session, from a wall clock; and what `refine` makes of any.
_BY_READINGS_NS, _BY_SESSION_NS, _REFINED_NS = 1_000, 50_000, 2_000
#: Marks further apart than this are of different bursts.
_BURST_APART_NS = 1_000_000_000
#: Limits of a burst that cross by less still count as agreeing: a clock that was set makes them cross by more.
_MARKS_CROSS_NS = 1_000
#: A shift is good enough to search no farther if this share of calls then contain a record call, and usable if this.
_GOOD_SHARE, _USABLE_SHARE = 0.8, 0.5
#: (range, step) of the searches for a shift: first for clocks that were read together, then for
#: steps of CLOCK_REALTIME.
_REACH = ((60_000, 500), (2_000_000, 1_000), (20_000_000, 2_000))
#: A stretch of clock samples ends after this much time without one, or when it is this long, so
#: that a mean over stretches is one over time.
_GAP_NS, _LONGEST_NS = 200_000_000, 1_000_000_000


class Times(NamedTuple):
    """When one thread recorded events, as its log and as the trace has it; both sorted."""

    python_start: np.ndarray  # start of its Python calls of `record` (monotonic, ns)
    python_end: np.ndarray  # their end
    record_start: np.ndarray  # start of its record calls in the trace (trace time, ns)
    record_end: np.ndarray  # their end


@dataclass(frozen=True)
class ClockMap:
    """Converts monotonic time to trace time: an offset (trace - monotonic) at some points of monotonic time,
    linear between them and constant outside."""

    at_ns: np.ndarray  # the points, rising
    offset_ns: np.ndarray  # the offset at each
    width_ns: int  # half-width of the offset's uncertainty

    def to_trace(self, monotonic_ns: np.ndarray) -> np.ndarray:
        """Return the trace time (ns) of each monotonic time (ns)."""
        times = np.asarray(monotonic_ns, dtype=np.int64)
        # interpolate differences only: float64 cannot hold epoch nanoseconds
        since_first = times - self.at_ns[0]
        points = self.at_ns - self.at_ns[0]
        shift = np.interp(since_first, points, self.offset_ns - self.offset_ns[0])
        return times + int(self.offset_ns[0]) + np.rint(shift).astype(np.int64)

    def contained(
        self, t0: np.ndarray, t1: np.ndarray, start: np.ndarray, end: np.ndarray
    ) -> np.ndarray:
        """Return, for each Python call of `record`, the position of the first record call of the trace that lies
        inside it; -1 if there is none.  If two Python calls have the same record call, only the earlier one keeps it.

        t0, t1: start and end of the Python calls, sorted (monotonic, ns)
        start, end: start and end of the record calls, sorted (trace time, ns)
        """
        first = np.searchsorted(start, self.to_trace(t0) - TOLERANCE_NS)
        end_of_first = np.append(end, np.iinfo(np.int64).max)[first]
        inside = end_of_first <= self.to_trace(t1) + TOLERANCE_NS
        first = np.where(inside, first, -1)
        repeated = np.zeros(len(first), dtype=bool)
        repeated[1:] = first[1:] == first[:-1]
        return np.where(repeated, -1, first)


#: The map of a trace whose clock is CLOCK_MONOTONIC itself.
ONE_CLOCK = ClockMap(np.zeros(1, np.int64), np.zeros(1, np.int64), 1)


def clock_map(
    clocks: pd.DataFrame, marks: pd.DataFrame, session_start_utc_ns: int | None
) -> ClockMap | None:
    """Return how CLOCK_MONOTONIC of one process converts to the trace's clock, by the best of three sources: marks,
    readings of both clocks, the start of the session; None if nothing connects the two clocks.

    clocks: readings of the host's clocks: monotonic_ns, realtime_ns and trace_ns (-1: not read)
    marks: NVTX marks: each fell between the readings before_ns and after_ns (monotonic), at trace_ns
    session_start_utc_ns: CLOCK_REALTIME at the start of the trace; None or 0 if it is not known
    """
    by_marks = _map_by_marks(marks)
    if by_marks is not None:
        return by_marks
    on_trace = clocks[clocks["trace_ns"] >= 0].sort_values("monotonic_ns")
    if len(on_trace):
        at_ns = on_trace["monotonic_ns"].to_numpy()
        return ClockMap(at_ns, on_trace["trace_ns"].to_numpy() - at_ns, _BY_READINGS_NS)
    with_realtime = clocks[clocks["realtime_ns"] >= 0]
    if with_realtime.empty or not session_start_utc_ns:
        return None
    # the first reading alone: the later one is, the likelier the wall clock was set since the start of the session
    first = with_realtime.iloc[:1]
    at_ns = first["monotonic_ns"].to_numpy()
    realtime_ns = first["realtime_ns"].to_numpy()
    # the wall clock may be off by more: such a map is refined on the record calls (`refine`)
    return ClockMap(at_ns, realtime_ns - at_ns - session_start_utc_ns, _BY_SESSION_NS)


def _map_by_marks(marks: pd.DataFrame) -> ClockMap | None:
    """Return the map that NVTX marks tell, with a point for each burst of marks (marks less than 1 s apart); None
    without usable marks.

    marks: as in `clock_map`

    Each mark says that the offset lies between trace - after and trace - before.  The marks of a burst are
    combined; a burst during which the clock was set contradicts itself and is not used.

    Marks at 5,000 between the readings 1,000 and 1,300, and at 6,000 between 2,050 and 2,400:  the offset lies between
    3,700 and 4,000, and between 3,600 and 3,950; so it is 3,825 ± 126 ns
    """
    if marks.empty:
        return None
    marks = marks.sort_values("before_ns")
    before, after, on_trace = (
        marks[name].to_numpy(np.int64) for name in ("before_ns", "after_ns", "trace_ns")
    )
    # the first mark of each burst
    first = np.flatnonzero(np.append(True, np.diff(before) > _BURST_APART_NS))
    low = np.maximum.reduceat(on_trace - after, first)
    high = np.minimum.reduceat(on_trace - before, first)
    agrees = low <= high + _MARKS_CROSS_NS
    if not agrees.any():
        return None
    at_ns, low, high = before[first][agrees], low[agrees], high[agrees]
    # a map has one half-width: that of the burst which tells the offset least exactly
    half_width_ns = int((np.abs(high - low) // 2).max()) + 1
    return ClockMap(at_ns, (low + high) // 2, half_width_ns)


def refine(rough: ClockMap, threads: list[Times]) -> ClockMap:
    """Return how the clock of a process converts to the trace's clock, more accurately than the rough map says: shifted so
    that most Python calls of `record` contain a record call of the trace.

    threads: the times of each thread of the process: its Python calls, and its record calls in the trace

    The shift is searched for in one chunk of time after another, each so short that drift does not matter.
    The search begins at the shift that the chunks before it lead one to expect.  If no chunk has a shift at
    which at least half of the calls contain one, the rough map is returned.
    """
    starts = [times.python_start for times in threads]
    call_starts = np.sort(np.concatenate([np.empty(0, np.int64), *starts]))  # of all Python calls
    moments = list[int]()  # the middle of each chunk
    shifts = list[int]()  # its shift
    next_call = 0
    while next_call < len(call_starts):
        low = int(call_starts[next_call])
        next_call = int(np.searchsorted(call_starts, low + _CHUNK_NS, side="right"))
        high = int(call_starts[next_call - 1])
        middle = (low + high) // 2
        expected = _extrapolated(moments, shifts, middle)
        chunk = _times_in_chunk(rough, threads, low, high)
        shift, share = _searched_shift(chunk, expected, is_first=not moments)
        if share >= _USABLE_SHARE:
            moments.append(middle)
            shifts.append(shift)
    if not moments:
        return rough
    at_ns = np.array(moments, dtype=np.int64)
    offsets = rough.to_trace(at_ns) - at_ns + np.array(shifts, dtype=np.int64)
    return ClockMap(at_ns, offsets, _REFINED_NS)


def _searched_shift(chunk: list[Times], expected: int, *, is_first: bool) -> tuple[int, float]:
    """Return (the shift of a chunk in ns, the share of its Python calls that then contain a record call): that of the
    first search whose share is good, or else the one with the highest share.  Each search reaches farther than the one before and
    tries the shifts that it tried as well, in larger steps.

    expected: the shift in the middle of each search
    is_first: whether no chunk before this one had a shift; only then the clock may be off by so much that the widest
        search is needed
    """
    searches = _REACH if is_first else _REACH[:-1]
    shift, share = 0, 0.0
    for reach, step in searches:
        farther, share_there = _best_shift(chunk, expected, reach, step)
        # a loop that repeats fits as well a whole period away: farther off must be better
        if share_there > share:
            shift, share = farther, share_there
        if share > _GOOD_SHARE:
            break
    return shift, share


def _extrapolated(moments: list[int], shifts: list[int], at_ns: int) -> int:
    """Return the shift (ns) to expect at a time: on the line through the last chunk and the fourth last; 0 without chunks.

    moments, shifts: the middle of each chunk so far, and its shift (ns); both empty before the first chunk
    """
    if len(moments) < 2:
        return shifts[-1] if shifts else 0
    first = max(len(moments) - 4, 0)
    slope = (shifts[-1] - shifts[first]) / max(moments[-1] - moments[first], 1)
    return shifts[-1] + round(np.clip(slope, -1e-4, 1e-4) * (at_ns - moments[-1]))


def _times_in_chunk(rough: ClockMap, threads: list[Times], low: int, high: int) -> list[Times]:
    """Return the times of each thread with only the Python calls that began between `low` and `high`
    (monotonic, ns), in trace time by the rough map, and with all its record calls."""
    chunk = []
    for times in threads:
        start = times.python_start
        calls = np.flatnonzero((start >= low) & (start <= high))[:_CHUNK_RECORDS]
        converted = times._replace(
            python_start=rough.to_trace(start[calls]),
            python_end=rough.to_trace(times.python_end[calls]),
        )
        chunk.append(converted)
    return chunk


def _best_shift(chunk: list[Times], centre: int, reach: int, step: int) -> tuple[int, float]:
    """Try many shifts, and return the best: (shift, share), by how many ns to shift the Python calls so that most of them
    contain the first record call that begins in them, and the share of calls that then do.  Of several shifts that are
    as good it is the middle of the longest row of neighbouring ones.

    chunk: as `_times_in_chunk` returns it
    centre, reach, step: shifts from centre - reach to centre + reach are tried, in steps (ns)

    shift    -2   -1    0   +1   +2   +3
    hits      3    9    9    9    4    9       the result is 0, with the share 9 / calls
    """
    shifts = np.arange(centre - reach, centre + reach + 1, step)
    hits = np.zeros(len(shifts), dtype=np.int64)
    calls = 0
    for begin, end, record_start, record_end in chunk:
        if not len(record_start) or not len(begin):
            continue
        calls += len(begin)
        # only these record calls can any shift put into the Python calls
        first, stop = np.searchsorted(record_start, [begin[0] + shifts[0], end[-1] + shifts[-1]])
        starts = record_start[first:stop]
        never = np.iinfo(np.int64).max  # the end of the record behind the last one
        ends = np.append(record_end[first:stop], never)
        for number, shift in enumerate(shifts.tolist()):
            record = np.searchsorted(starts, begin + shift)  # the first one from each begin on
            hits[number] += np.count_nonzero(ends[record] <= end + shift)
    best = np.flatnonzero(hits == hits.max())
    rows = np.split(best, np.flatnonzero(np.diff(best) > 1) + 1)

    def rank(row: np.ndarray) -> tuple[int, int]:
        """Return the length of a row of shifts, then how near its middle is to the centre."""
        middle = int(shifts[row[len(row) // 2]])
        return len(row), -abs(middle - centre)

    longest = max(rows, key=rank)
    shift = int(shifts[longest[0]] + shifts[longest[-1]]) // 2
    return shift, hits.max() / max(calls, 1)


def place_samples(
    samples: pd.DataFrame,
    maps: Mapping[int, ClockMap],
    session_start_utc_ns: int | None,
    *,
    shared: bool = False,
) -> tuple[pd.DataFrame, list[str]]:
    """Return how fast the GPU's clocks ran when, in trace time: (stretches, notes).  Stretches are the clock samples
    joined where neither a clock changed nor the reasons why the GPU slows it (frames.GPU_CLOCKS).

    samples   .  .  .  .  .  .  .  .          1980 1980 1980 1755 1755 1740 1980 1980
    stretches [------]  [---]  .  [---]       between two stretches the clock changed, at an unknown time

    samples: readings of the GPU's clocks with their CLOCK_MONOTONIC
    maps: log process -> its map
    session_start_utc_ns: CLOCK_REALTIME at the start of the trace; None or 0 if it is not known
    shared: whether several processes worked on a device of the same number
    """
    if samples.empty:
        return frames.empty(frames.GPU_CLOCKS), []
    clock = _map_of_samples(samples, maps, session_start_utc_ns)
    if clock is None:
        return frames.empty(frames.GPU_CLOCKS), [
            "the clock samples could not be used: nothing connects their clock to the trace's"
        ]
    placed_samples = samples.assign(t_ns=clock.to_trace(samples["monotonic_ns"].to_numpy()))
    placed_samples = placed_samples[placed_samples["sm_mhz"] >= 0]  # -1: not read
    placed_samples = placed_samples.sort_values(["device", "t_ns"], ignore_index=True)
    stretches = placed_samples.groupby(_stretch_of_sample(placed_samples)).agg(
        device=("device", "first"),
        start_ns=("t_ns", "first"),
        end_ns=("t_ns", "last"),
        samples=("t_ns", "size"),
        # all samples of a stretch agree in these (`_stretch_of_sample`)
        sm_min_mhz=("sm_mhz", "min"),
        sm_max_mhz=("sm_mhz", "max"),
        mem_mhz=("mem_mhz", "max"),
        reasons=("reasons", "first"),
    )
    table = frames.check(stretches.reset_index(drop=True), frames.GPU_CLOCKS)
    notes = list[str]()
    if shared and placed_samples["device"].nunique() > 1:
        notes.append(
            "several processes used a device of the same number: if each was given a GPU of its own "
            "(CUDA_VISIBLE_DEVICES per process), the clocks shown with them may be another GPU's"
        )
    return table, notes


def _map_of_samples(
    samples: pd.DataFrame, maps: Mapping[int, ClockMap], session_start_utc_ns: int | None
) -> ClockMap | None:
    """Return how the CLOCK_MONOTONIC of clock samples converts to the trace's clock: by the most accurate map of any
    process, because all processes of a machine have the same CLOCK_MONOTONIC; without any, by the start of the session.
    """
    no_marks = pd.DataFrame(columns=["before_ns", "after_ns", "trace_ns"], dtype="int64")
    by_session = clock_map(samples.assign(trace_ns=-1), no_marks, session_start_utc_ns)
    return min(maps.values(), key=lambda clock: clock.width_ns, default=by_session)


def _stretch_of_sample(placed: pd.DataFrame) -> pd.Series:
    """Return, for each sample, the number of the stretch that it belongs to.

    placed: the samples, sorted by device, then by time `t_ns`

    A stretch ends where a clock or the reasons why it is slowed change, where no sample comes for _GAP_NS, and
    after _LONGEST_NS.
    """
    begins = placed[["device", "sm_mhz", "mem_mhz", "reasons"]].diff().ne(0).any(axis=1)
    begins |= placed["t_ns"].diff() > _GAP_NS
    stretch = begins.cumsum()
    since_begin = placed["t_ns"] - placed.groupby(stretch)["t_ns"].transform("first")
    begins |= (since_begin // _LONGEST_NS).diff() > 0  # cut what does not change, too
    return begins.cumsum()
