"""Windows of kind `host`: from readings of host clocks that the program subtracts from one another,
and from its regions.

    t0 = clock()        A            A  B  A  B          the source says that B subtracts what A stored
    work()                           [--)  [--)
    print(clock() - t0) B

    last = clock()      A            A  B  B  B          one site, whose reading becomes the next one's start
    while True:                      [--)
        now = clock()   B               [--)[--)
        dt, last = now - last, now

The call sites say what is subtracted from what (record/readings.py): a reading is paired with the
latest one on its thread, of the same clock, that was stored in the variable it subtracts.  Where the
source does not tell, nothing is guessed.  Only intervals with CUDA work count: a call of the reading
thread, or a launch by a thread that reads no clock itself (autograd's worker runs the backward pass
for the thread that waits for it).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import distinct, group, index_type, one_of
from nsysalign.model import (
    CALL,
    ENQUEUEING_CALLS,
    ORIGIN,
    EventLog,
    Trace,
    pid_of,
    process_of,
    thread_of,
)
from nsysalign.place.host_clock import ClockMap
from nsysalign.place.windows import Unplaced, windows_frame

_DEEP = 64  # timers of one class that can be running at once
#: Calls that are neither work nor a wait: an interval with nothing else inside is not about CUDA.
_IDLE = ("record", "query_event", "query_stream", "wait_event")
#: If the wall clock and the monotonic clock differ by more than this, the wall clock was set in
#: between.
_STEP_NS, _STEP_SHARE = 1_000_000, 0.01


class Site(NamedTuple):
    """What the log says about a clock site (frames.CLOCK_SITES)."""

    site: str = ""
    callers: tuple[str, ...] = ()
    function: str = ""
    position: int = -1
    use: str = ""
    stores: tuple[str, ...] = ()
    subtracts: tuple[str, ...] = ()
    interleaved: bool = False


@dataclass
class Differences:
    """Readings that the program subtracts from one another: positions of starts and ends, by start,
    and a number.  `again`: site -> how often it subtracted a start that it had subtracted before;
    `unclear`: how often a coroutine subtracted one, of which several may have been waiting."""

    start: np.ndarray
    end: np.ndarray
    number: np.ndarray
    again: Counter[str] = field(default_factory=Counter)
    unclear: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class HostTimers:
    """What was timed on the host's clock: windows, what has none with the reason, and notes."""

    windows: pd.DataFrame
    unplaced: list[Unplaced]
    notes: list[str]


def host_timers(
    trace: Trace, log: EventLog, processes: Mapping[int, int], clocks: Mapping[int, ClockMap]
) -> HostTimers:
    """Everything that the log timed on the host's clock, on the trace's."""
    implicit = log.hosts["implicit"].to_numpy()
    explicit, lost = _lines(trace, log.hosts[~implicit], processes, clocks, ORIGIN["host"])
    readings = _placed_readings(log, processes, clocks)
    sites, place = clock_sites(log.clock_sites, readings)
    thread, t = readings["thread"].to_numpy(), readings["trace_ns"].to_numpy()
    found = differences(thread, pd.factorize(readings["clock"])[0], place, sites)
    work = _Work(trace, frozenset(thread.tolist()))
    counts = [
        work.any(int(thread[a]), int(t[a]), int(t[b]))
        for a, b in zip(found.start, found.end, strict=True)
    ]
    timed_, missed = _differences(readings, sites, place, found, np.flatnonzero(counts))
    # a region that holds timed readings already has its interval
    names = [*set(timed_["region"])]
    regions = log.hosts[implicit & ~log.hosts["region"].isin(names).to_numpy()]
    around, unknown = _lines(trace, regions, processes, clocks, ORIGIN["region"])
    own = around[["thread", "start_ns", "end_ns"]].itertuples(index=False, name=None)
    around = around[np.array([work.any(*row) for row in own], dtype=bool)]
    some = [w for w in (timed_, around) if len(w)] or [timed_]
    clean, disturbed = _undisturbed(pd.concat(some, ignore_index=True), log, clocks)
    some = [w for w in (explicit, clean) if len(w)] or [explicit]
    return HostTimers(
        pd.concat(some, ignore_index=True),
        lost + missed + unknown + disturbed,
        _notes(found, _alone(readings, sites, place, found, work)),
    )


def timed(log: EventLog) -> pd.DataFrame:
    """What the clock readings of a log measured, without a trace to say whether CUDA work lies
    inside.

    Columns: those by which `compare.baseline` knows a measurement (region, site, end_site,
    callers), process, order and elapsed_ns.  A log of a run without nsys has no windows; the
    profiled run tells which of these count.
    """
    readings = log.clock_readings.reset_index(drop=True)
    sites, place = clock_sites(log.clock_sites, readings)
    thread = (readings["process"].to_numpy() << 32) | (readings["tid"].to_numpy() & 0xFFFFFFFF)
    found = differences(thread, pd.factorize(readings["clock"])[0], place, sites)
    value = readings["value_ns"].to_numpy()
    return _texts(readings, sites, place, found.start, found.end).assign(
        process=readings["process"].to_numpy()[found.start],
        order=readings["t_ns"].to_numpy()[found.start],
        elapsed_ns=value[found.end] - value[found.start],
    )


def clock_sites(table: pd.DataFrame, readings: pd.DataFrame) -> tuple[list[Site], np.ndarray]:
    """Sites, and each reading's position among them (that of an empty one for a site that the log
    does not describe)."""
    sites = [Site(*row) for row in table[list(Site._fields)].itertuples(index=False)]
    keys = table[["process", "number"]].itertuples(index=False, name=None)
    index = {key: n for n, key in enumerate(keys)}
    wanted = readings[["process", "site"]].itertuples(index=False, name=None)
    place = np.array([index.get(key, len(sites)) for key in wanted], dtype=np.int64)
    return [*sites, Site()], place


# --- which readings are subtracted from one another


def differences(
    thread: np.ndarray, clock: np.ndarray, place: np.ndarray, sites: Sequence[Site]
) -> Differences:
    """What the source and the order of the readings say, without the trace.

    thread, clock: integers; place: positions in `sites`; all in the order of each thread.
    """
    out = Differences(*np.empty((3, 0), np.int64))
    found: set[tuple[int, int]] = set()  # a reading that two variables hold is one
    for rows in (
        pd.Series(np.arange(len(thread))).groupby([thread, clock], sort=True).indices.values()
    ):
        own, places = rows.tolist(), place[rows].tolist()
        found |= {(own[i], own[j]) for i, j in _subtractions(places, sites, out)}
    pairs = sorted(found)
    out.start, out.end = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    out.number = np.arange(len(pairs))
    return out


def _subtractions(
    places: list[int], sites: Sequence[Site], out: Differences
) -> Iterator[tuple[int, int]]:
    """Pairs that follow from the source.  A start may serve several differences (a lap and a
    total), each of them once."""
    held: dict[str, list[int]] = defaultdict(list)  # variable -> readings, the latest last
    taken: dict[tuple[str, int, str], set[int]] = defaultdict(set)  # starts used in a difference
    for i, n in enumerate(places):
        site = sites[n]
        for variable in site.subtracts:
            starts = held[variable]
            if not starts:
                continue
            if site.interleaved and not _is_attribute(variable):
                start = starts.pop()
                if starts or start < 0:  # several activations of a coroutine: whose is it?
                    out.unclear[site.site] += 1
                    starts[:] = [-1] * len(starts)
                else:
                    yield start, i
                continue
            had = taken[site.function, site.position, variable]
            latest = _latest(
                [(start, sites[places[start]]) for start in starts], had, variable, site
            )
            if latest is None:
                out.again[site.site] += 1
            else:
                had.add(latest)
                yield latest, i
        for variable in site.stores:
            held[variable].append(i)
            deep = _is_attribute(variable) or site.interleaved
            del held[variable][: -(_DEEP if deep else 1)]


def _latest(
    starts: list[tuple[int, Site]], had: Collection[int], variable: str, site: Site
) -> int | None:
    """The reading that a variable holds.  A name holds the latest one.  An attribute belongs to one
    of several objects, such as nested timers: if its latest reading has been subtracted here
    before, an older one counts if it was stored from another place in the same file: `with Timer():
    ... with Timer(): ...` ends inside out.
    """
    last, stored = starts[-1]
    if last not in had:
        return last
    if not _is_attribute(variable):
        return None
    for start, other in reversed(starts):
        if start not in had:
            elsewhere = other is not stored and _file(other.callers) == _file(site.callers)
            return start if elsewhere else None
        stored = other
    return None


def _is_attribute(variable: str) -> bool:
    return variable.rpartition(":")[2].startswith(".")


def _file(callers: tuple[str, ...]) -> str:
    return callers[0].rpartition(":")[0] if callers else ""


# --- windows


class _Work:
    """When each thread's calls began, for queries about stretches of time.  Built on the first
    query: a log without readings and regions makes none."""

    def __init__(self, trace: Trace, readers: frozenset[int]) -> None:
        self._calls, self._readers = trace.calls, readers

    @cached_property
    def _own(self) -> dict[int, np.ndarray]:
        return self._starts(set(CALL) - set(_IDLE))

    @cached_property
    def _launches(self) -> dict[int, np.ndarray]:
        return self._starts(ENQUEUEING_CALLS)

    @cached_property
    def _workers(self) -> dict[int, np.ndarray]:
        """Launches by threads that read no clock, per process."""
        out = defaultdict(list)
        for thread, starts in self._launches.items():
            if thread not in self._readers:
                out[process_of(thread)].append(starts)
        return {process: np.sort(np.concatenate(starts)) for process, starts in out.items()}

    def _starts(self, kinds: Iterable[str]) -> dict[int, np.ndarray]:
        """Per thread, sorted: the starts of its outermost calls of these kinds."""
        calls = self._calls  # sorted by start
        wanted = one_of(calls["kind"].to_numpy(), [CALL[k] for k in kinds])
        wanted &= calls["outer"].to_numpy() == np.arange(len(calls), dtype=index_type(len(calls)))
        rows = np.flatnonzero(wanted)
        return group(calls["thread"].to_numpy()[rows], calls["start_ns"].to_numpy()[rows])

    def any(self, thread: int, start: int, end: int) -> bool:
        """Whether a call of this thread, or a launch by a worker of its process, lies inside."""
        return _some(self._own.get(thread), start, end) or _some(
            self._workers.get(process_of(thread)), start, end
        )

    def launched(self, thread: int, start: int, end: int) -> bool:
        """Whether this thread launched anything inside."""
        return _some(self._launches.get(thread), start, end)


def _some(times: np.ndarray | None, start: int, end: int) -> bool:
    return times is not None and bool(np.searchsorted(times, start) < np.searchsorted(times, end))


def _placed_readings(
    log: EventLog, processes: Mapping[int, int], clocks: Mapping[int, ClockMap]
) -> pd.DataFrame:
    """The clock readings of the processes that the trace knows, with trace_ns, globalPid,
    globalTid, and the uncertainty of the clock."""
    known = log.clock_readings["process"].isin(clocks.keys() & processes.keys())
    readings = log.clock_readings[known].reset_index(drop=True)
    t, width, process = np.zeros((3, len(readings)), np.int64)
    for number, rows in readings.groupby("process").indices.items():
        t[rows] = clocks[number].to_trace(readings["t_ns"].to_numpy()[rows])
        width[rows], process[rows] = clocks[number].width_ns, processes[number]
    thread = thread_of(process, readings["tid"].to_numpy())
    return readings.assign(trace_ns=t, global_pid=process, thread=thread, width_ns=width)


def _texts(
    readings: pd.DataFrame, sites: list[Site], place: np.ndarray, start: np.ndarray, end: np.ndarray
) -> pd.DataFrame:
    """Region, call sites and callers of differences.  The region is the one that holds both
    readings."""
    region = readings["region"].to_numpy(dtype=object)
    begun, ended = ([sites[n] for n in place[side].tolist()] for side in (start, end))
    named = [a if a == b else "" for a, b in zip(region[start], region[end], strict=True)]
    columns = {
        "region": named,
        "site": [site.site for site in begun],
        "end_site": [site.site for site in ended],
        "callers": [site.callers for site in begun],
    }
    return pd.DataFrame({c: pd.Series(v, dtype=object) for c, v in columns.items()})


def _differences(
    readings: pd.DataFrame,
    sites: list[Site],
    place: np.ndarray,
    found: Differences,
    rows: np.ndarray,
) -> tuple[pd.DataFrame, list[Unplaced]]:
    """A window per difference at `rows`, as long as the program computed."""
    start, end, number = found.start[rows], found.end[rows], found.number[rows]
    value, t = readings["value_ns"].to_numpy(), readings["trace_ns"].to_numpy()
    elapsed, truth = value[end] - value[start], t[end] - t[start]
    good = (np.abs(elapsed - truth) <= _STEP_NS + _STEP_SHARE * truth) & (elapsed >= 0)
    reason = "the wall clock was set in between"
    stepped = zip(place[start[~good]].tolist(), number[~good].tolist(), strict=True)
    lost = [
        Unplaced(sites[n].site or "host timer", reason, sites[n].site, ORIGIN["timer"], row)
        for n, row in stepped
    ]
    start, end, elapsed = start[good], end[good], elapsed[good]
    begun = readings.iloc[start]
    windows = _frame(begun["thread"].to_numpy(), t[start], elapsed, begun["width_ns"].to_numpy())
    texts = _texts(readings, sites, place, start, end)
    windows = windows.assign(
        log_process=begun["process"].to_numpy(),
        origin=np.int8(ORIGIN["timer"]),
        source=number[good],
        remarks=pd.Series([()] * len(begun), dtype=object),
        **{c: texts[c].astype(windows[c].dtype) for c in texts},
    )
    return frames.check(windows, frames.WINDOWS), lost


def _lines(
    trace: Trace,
    hosts: pd.DataFrame,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
    origin: int,
) -> tuple[pd.DataFrame, list[Unplaced]]:
    """Host lines of the log (rows of frames.HOSTS) on the trace's clock, and those that have no
    place there."""
    known = hosts["process"].isin(clocks.keys() & processes.keys()).to_numpy()
    reason = "the clock of its process could not be tied to the trace's"
    lost = [
        Unplaced(region or site or "host timer", reason, site, origin, row)
        for row, region, site in hosts.loc[~known, ["region", "site"]].itertuples()
    ]
    rows = hosts[known]
    length = (rows["t1_ns"] - rows["t0_ns"]).to_numpy()
    reason = "its end is before its start"
    lost += [
        Unplaced(region, reason, site, origin, row)
        for row, region, site in rows.loc[length < 0, ["region", "site"]].itertuples()
    ]
    rows, length = rows[length >= 0], length[length >= 0]
    start, width, process = np.zeros((3, len(rows)), np.int64)
    for number, own in rows.groupby("process").indices.items():
        # one offset per interval preserves the measured length to the nanosecond
        start[own] = clocks[number].to_trace(rows["t0_ns"].to_numpy()[own])
        width[own], process[own] = clocks[number].width_ns, processes[number]
    tid = rows["tid"].to_numpy()
    busiest = _busiest_thread(trace, process, start, start + length)
    thread = np.where(tid >= 0, thread_of(process, tid), busiest)
    windows = _frame(thread, start, length, width).assign(
        log_process=rows["process"].to_numpy(),
        origin=np.int8(origin),
        source=rows.index.to_numpy(),
        **{c: rows[c.removeprefix("end_")].to_numpy() for c in ("region", "site", "end_site")},
    )
    return frames.check(windows, frames.WINDOWS), lost


def _frame(
    thread: np.ndarray, start: np.ndarray, elapsed: np.ndarray, width: np.ndarray
) -> pd.DataFrame:
    """Windows of kind host on the trace's clock, whose uncertainty is `width`."""
    end = start + elapsed
    columns = {"kind": "host", "process": process_of(thread), "thread": thread, "end_thread": thread,
               "open_ns": start, "close_ns": end, "close_end_ns": end, "elapsed_ns": elapsed,
               "start_ns": start, "end_ns": end, "start_lower_ns": start - width,
               "start_upper_ns": start + width, "error_ns": width, "origin": 0}  # fmt: skip
    return windows_frame(len(start), columns)


def _busiest_thread(
    trace: Trace, process: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """For lines without a thread: the thread of the process with the most calls inside; the main
    thread if none has any."""
    thread, begun = trace.calls["thread"].to_numpy(), trace.calls["start_ns"].to_numpy()
    best, most = thread_of(process, pid_of(process)), np.zeros(len(process), np.int64)
    for number in distinct(thread):
        own = begun[thread == number]
        count = np.searchsorted(own, end) - np.searchsorted(own, start)
        better = (count > most) & (process_of(number) == process)
        best, most = np.where(better, number, best), np.where(better, count, most)
    return best


def _undisturbed(
    windows: pd.DataFrame, log: EventLog, clocks: Mapping[int, ClockMap]
) -> tuple[pd.DataFrame, list[Unplaced]]:
    """(windows without the harness's own calibration work, which runs before the first event;
    windows with it)."""
    ours = log.records[log.records["calibration"].to_numpy(dtype=bool)]
    hit = np.zeros(len(windows), dtype=bool)
    for number, rows in ours.groupby("process"):
        if number in clocks:
            made = np.sort(clocks[number].to_trace(rows["t0_ns"].to_numpy()))
            first, last = (np.searchsorted(made, windows[c]) for c in ("start_ns", "end_ns"))
            hit |= (windows["log_process"].to_numpy() == number) & (last > first)
    reason = "the harness's own calibration work ran inside, before the first event (--no-calibrate leaves it out)"
    columns = ["region", "site", "origin", "source"]
    lost = [
        Unplaced(region or site or "host timer", reason, site, origin, source)
        for region, site, origin, source in windows.loc[hit, columns].itertuples(index=False)
    ]
    return windows[~hit].reset_index(drop=True), lost


def _alone(
    readings: pd.DataFrame, sites: list[Site], place: np.ndarray, found: Differences, work: _Work
) -> Counter[str]:
    """Readings after CUDA work, per site, that belong to no subtraction."""
    thread, t = readings["thread"].to_numpy(), readings["trace_ns"].to_numpy()
    paired = {*found.start.tolist(), *found.end.tolist()}
    alone: Counter[str] = Counter()
    for rows in readings.groupby(["thread", "clock"]).indices.values():
        for before, this in pairwise(rows.tolist()):
            site = sites[place[this]]
            if this in paired or site.site in found.again | found.unclear:
                continue
            if site.use in ("", "kept", "difference") and work.launched(
                int(thread[before]), int(t[before]), int(t[this])
            ):
                alone[site.site] += 1
    return alone


def _notes(found: Differences, alone: Mapping[str, int]) -> list[str]:
    """What may be missing.  `alone`: per site, readings that belong to no interval."""
    notes = [
        f"host timers, {site}: {count} more differences from a start that was already subtracted there are no intervals"
        for site, count in sorted(found.again.items())
    ]
    notes += [
        f"host timers, {site}: {count} differences in a coroutine belong to no interval: several of its activations took "
        "turns, and the log does not say which of them read the clock"
        for site, count in sorted(found.unclear.items())
    ]
    notes += [
        f"host timers, {site or 'an unknown place'}: {count} readings after CUDA work belong to no interval: what they are "
        "subtracted from could not be told; nsysalign.region names such a stretch"
        for site, count in sorted(alone.items())
    ]
    return notes
