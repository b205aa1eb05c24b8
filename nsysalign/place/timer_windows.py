"""Windows of kind `host`: from the program's readings of host clocks, and from its regions.

Only intervals with CUDA work count: a call of the reading thread, or a launch by a thread that
reads no clock itself (autograd's worker runs the backward pass for the thread that waits for it).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import group, index_type, one_of
from nsysalign.model import CALL, ENQUEUEING_CALLS, ORIGIN, EventLog, Trace, process_of, thread_of
from nsysalign.place.host_clock import ClockMap
from nsysalign.place.timer_pairs import Candidates, Site, candidates, chosen
from nsysalign.place.timer_regions import host_frame, host_windows
from nsysalign.windows import Unplaced, unplaced

#: Calls that are neither work nor a wait: an interval with nothing else inside is not about CUDA.
_IDLE = ("record", "query_event", "query_stream", "wait_event")
#: If the wall clock and the monotonic clock differ by more than this, the wall clock was set in
#: between.
_STEP_NS, _STEP_SHARE = 1_000_000, 0.01


class _Inside:
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
        out: dict[int, list[np.ndarray]] = {}
        for thread, starts in self._launches.items():
            if thread not in self._readers:
                out.setdefault(process_of(thread), []).append(starts)
        return {process: np.sort(np.concatenate(starts)) for process, starts in out.items()}

    def _starts(self, kinds: Iterable[str]) -> dict[int, np.ndarray]:
        """Per thread, sorted: the starts of its outermost calls of these kinds."""
        calls = self._calls  # sorted by start
        wanted = one_of(calls["kind"].to_numpy(), [CALL[k] for k in kinds])
        wanted &= calls["outer"].to_numpy() == np.arange(len(calls), dtype=index_type(len(calls)))
        at = np.flatnonzero(wanted)
        return group(calls["thread"].to_numpy()[at], calls["start_ns"].to_numpy()[at])

    def work(self, thread: int, start: int, end: int) -> bool:
        """Whether a call of this thread, or a launch by a worker of its process, lies inside."""
        return _any(self._own.get(thread), start, end) or _any(
            self._workers.get(process_of(thread)), start, end
        )

    def launch(self, thread: int, start: int, end: int) -> bool:
        return _any(self._launches.get(thread), start, end)


def _any(times: np.ndarray | None, start: int, end: int) -> bool:
    return times is not None and bool(np.searchsorted(times, start) < np.searchsorted(times, end))


@dataclass(frozen=True)
class Timers:
    """A log's clock readings on the trace's clock.

    Per reading: `place` among the `sites`, trace time `t`, globalPid, globalTid, and the position
    of the previous reading of its clock on its thread (-1 for the first).  `readers`: all threads
    that read a clock.
    """

    readings: pd.DataFrame
    sites: list[Site]
    place: np.ndarray
    t: np.ndarray
    process: np.ndarray
    thread: np.ndarray
    previous: np.ndarray
    readers: frozenset[int]
    candidates: Candidates


def read_timers(
    log: EventLog, processes: Mapping[int, int], clocks: Mapping[int, ClockMap]
) -> Timers:
    """The readings of the processes that the trace knows."""
    readings = log.clock_readings
    known = np.array(
        [p in clocks and p in processes for p in readings["process"].tolist()], dtype=bool
    )
    readings = readings[known].reset_index(drop=True)
    sites, place = clock_sites(log.clock_sites, readings)
    t = np.zeros(len(readings), np.int64)
    for number, rows in readings.groupby("process"):
        t[rows.index.to_numpy()] = clocks[int(number)].to_trace(rows["t_ns"].to_numpy())
    process = np.array([processes[p] for p in readings["process"].tolist()], dtype=np.int64)
    thread = thread_of(process, readings["tid"].to_numpy())
    clock = pd.factorize(readings["clock"])[0]
    order = np.lexsort((np.arange(len(thread)), clock, thread))
    previous = np.full(len(thread), -1, dtype=np.int64)
    same = (thread[order][1:] == thread[order][:-1]) & (clock[order][1:] == clock[order][:-1])
    previous[order[1:][same]] = order[:-1][same]
    return Timers(
        readings=readings,
        sites=sites,
        place=place,
        t=t,
        process=process,
        thread=thread,
        previous=previous,
        readers=frozenset(thread.tolist()),
        candidates=candidates(thread, clock, place, sites),
    )


def timer_windows(
    trace: Trace,
    log: EventLog,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
    timers: Timers,
) -> tuple[pd.DataFrame, list[Unplaced], dict[str, int]]:
    """(windows, intervals that could not be placed, readings per site that belong to no interval)
    from the log's clock readings and regions."""
    inside = _Inside(trace, timers.readers)
    t, thread = timers.t, timers.thread
    pairs = chosen(
        timers.candidates, lambda i, j: inside.launch(int(thread[i]), int(t[i]), int(t[j]))
    )
    windows, lost = _windows(timers, pairs, clocks, inside)
    regions, lost_regions = _regions(trace, log, processes, clocks, inside, set(windows["region"]))
    every = [w for w in (windows, regions) if len(w)]
    whole, disturbed = _undisturbed(
        pd.concat(every, ignore_index=True) if every else windows, log, clocks
    )
    return whole, lost + lost_regions + disturbed, _alone(timers, pairs, inside)


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
    pairs = candidates(thread, pd.factorize(readings["clock"])[0], place, sites)
    start, end = pairs.start, pairs.end
    return pd.DataFrame(
        {
            "region": _names(readings, start, end, sites, place),
            "site": _texts(sites, place[start], "site"),
            "end_site": _texts(sites, place[end], "site"),
            "callers": _texts(sites, place[start], "callers"),
            "process": readings["process"].to_numpy()[start],
            "order": readings["t_ns"].to_numpy()[start],
            "elapsed_ns": (
                readings["value_ns"].to_numpy()[end] - readings["value_ns"].to_numpy()[start]
            ),
        }
    )


def _texts(sites: list[Site], place: np.ndarray, what: str) -> pd.Series:
    return pd.Series([getattr(sites[n], what) for n in place.tolist()], dtype=object)


def _names(
    readings: pd.DataFrame, start: np.ndarray, end: np.ndarray, sites: list[Site], place: np.ndarray
) -> np.ndarray:
    """The regions that hold both readings.  timeit with another number of repetitions measures
    another quantity, so the name contains that number."""
    region = readings["region"].to_numpy(dtype=object)
    both = np.where(region[start] == region[end], region[start], "")
    count, site = readings["count"].to_numpy()[start].tolist(), _texts(sites, place[start], "site")
    named = [
        r or (f"{s.rpartition('/')[2] or 'timeit'} x{n}" if n else "")
        for r, s, n in zip(both, site, count, strict=True)
    ]
    return np.array(named, dtype=object)


def _undisturbed(
    windows: pd.DataFrame, log: EventLog, clocks: Mapping[int, ClockMap]
) -> tuple[pd.DataFrame, list[Unplaced]]:
    """(windows without the harness's own calibration work, which runs before the first event;
    windows with it)."""
    ours = log.records[log.records["calibration"].to_numpy(dtype=bool)]
    hit = np.zeros(len(windows), dtype=bool)
    for number, rows in ours.groupby("process"):
        if number not in clocks:
            continue
        at = np.sort(clocks[int(number)].to_trace(rows["t0_ns"].to_numpy()))
        first, last = (np.searchsorted(at, windows[c].to_numpy()) for c in ("start_ns", "end_ns"))
        hit |= (windows["log_process"].to_numpy() == number) & (last > first)
    reason = "the harness's own calibration work ran inside, before the first event (--no-calibrate leaves it out)"
    lost = [
        unplaced(region or site or "host timer", reason, site, origin, source)
        for region, site, origin, source in windows.loc[
            hit, ["region", "site", "origin", "source"]
        ].itertuples(index=False)
    ]
    return windows[~hit].reset_index(drop=True), lost


def clock_sites(table: pd.DataFrame, readings: pd.DataFrame) -> tuple[list[Site], np.ndarray]:
    """Sites, and each reading's position among them (-1 for a site that the log does not
    describe)."""
    columns = (
        "site",
        "callers",
        "function",
        "position",
        "use",
        "stores",
        "subtracts",
        "interleaved",
    )
    sites = [Site(*row) for row in table[list(columns)].itertuples(index=False)]
    index = {
        key: n
        for n, key in enumerate(table[["process", "number"]].itertuples(index=False, name=None))
    }
    keys = readings[["process", "site"]].itertuples(index=False, name=None)
    return [*sites, Site()], np.array([index.get(key, len(sites)) for key in keys], dtype=np.int64)


def _windows(
    timers: Timers, pairs: Candidates, clocks: Mapping[int, ClockMap], inside: _Inside
) -> tuple[pd.DataFrame, list[Unplaced]]:
    """One window per pair with CUDA work inside.  Its length is the difference that the program
    computed."""
    readings, sites, place = timers.readings, timers.sites, timers.place
    t, process, thread = timers.t, timers.process, timers.thread
    own = readings["value_ns"].to_numpy()
    ends = zip(pairs.start, pairs.end, strict=True)
    keep = np.array(
        [inside.work(int(thread[a]), int(t[a]), int(t[b])) for a, b in ends], dtype=bool
    )
    start, end, number = (c[keep] for c in (pairs.start, pairs.end, pairs.number))
    elapsed, truth = own[end] - own[start], t[end] - t[start]
    stepped = np.abs(elapsed - truth) > _STEP_NS + _STEP_SHARE * truth
    good = ~stepped & (elapsed >= 0)
    lost = [
        unplaced(
            site or "host timer", "the wall clock was set in between", site, ORIGIN["timer"], n
        )
        for i, n in zip(start[~good].tolist(), number[~good].tolist(), strict=True)
        for site in [sites[place[i]].site]
    ]
    start, end, elapsed, number = (c[good] for c in (start, end, elapsed, number))
    width = np.array(
        [clocks[p].width_ns for p in readings["process"].to_numpy()[start].tolist()], dtype=np.int64
    )
    site = np.array([sites[n].site for n in place[start].tolist()], dtype=object)
    count = readings["count"].to_numpy()[start].tolist()
    remarks = [(f"loop-of-{n}",) if n else () for n in count]
    frame = host_frame(
        log_process=readings["process"].to_numpy()[start],
        process=process[start],
        thread=thread[start],
        start=t[start],
        elapsed=elapsed,
        width=width,
        region=_names(readings, start, end, sites, place),
        site=site,
        end_site=np.array([sites[n].site for n in place[end].tolist()], dtype=object),
        origin=ORIGIN["timer"],
        source=number,
    )
    index = frame.index
    frame["callers"] = pd.Series(
        [sites[n].callers for n in place[start].tolist()], dtype=object, index=index
    )
    frame["remarks"] = pd.Series(remarks, dtype=object, index=index)
    return frames.check(frame, frames.WINDOWS), lost


def _regions(
    trace: Trace,
    log: EventLog,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
    inside: _Inside,
    timed: set[str],
) -> tuple[pd.DataFrame, list[Unplaced]]:
    """Regions around CUDA work; a region that holds timed readings already has its interval."""
    wanted = log.hosts["implicit"].to_numpy() & ~log.hosts["region"].isin(list(timed)).to_numpy()
    windows, lost = host_windows(
        trace, replace(log, hosts=log.hosts[wanted]), processes, clocks, ORIGIN["region"]
    )
    keep = [
        inside.work(*row)
        for row in windows[["thread", "start_ns", "end_ns"]].itertuples(index=False, name=None)
    ]
    return windows[np.array(keep, dtype=bool)].reset_index(drop=True), lost


def timer_notes(c: Candidates, alone: Mapping[str, int]) -> list[str]:
    """Notes on what may be missing.  `alone`: per site, readings that belong to no interval."""
    notes = [
        f"host timers, {site}: {count} more differences from a start that was already subtracted there are no intervals"
        for site, count in sorted(c.again.items())
    ]
    notes += [
        f"host timers, {site}: {count} differences in a coroutine belong to no interval: several of its activations took "
        "turns, and the log does not say which of them read the clock"
        for site, count in sorted(c.unclear.items())
    ]
    notes += [
        f"host timers, {site or 'an unknown place'}: {count} readings after CUDA work belong to no interval: what they are "
        "subtracted from could not be told; nsysalign.region names such a stretch"
        for site, count in sorted(alone.items())
    ]
    return notes


def _alone(timers: Timers, pairs: Candidates, inside: _Inside) -> dict[str, int]:
    """Readings after CUDA work, per site, that belong to no subtraction."""
    paired = np.zeros(len(timers.t), dtype=bool)
    paired[pairs.start], paired[pairs.end] = True, True
    said = pairs.again.keys() | pairs.unclear.keys()
    alone: dict[str, int] = {}
    for i in np.flatnonzero(~paired & (timers.previous >= 0)).tolist():
        site = timers.sites[timers.place[i]]
        if site.site in said or site.use not in ("", "kept", "difference"):
            continue
        if inside.launch(
            int(timers.thread[i]), int(timers.t[timers.previous[i]]), int(timers.t[i])
        ):
            alone[site.site] = alone.get(site.site, 0) + 1
    return alone
