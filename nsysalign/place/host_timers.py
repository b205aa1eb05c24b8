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
source does not tell, or a coroutine reads, of which several may be waiting, nothing is guessed.  Only
intervals with CUDA work count: a call of the reading thread, or a launch by a thread that reads no
clock itself (autograd's worker runs the backward pass for the thread that waits for it).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.intervals import group, one_of
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
    known = sorted(clocks.keys() & processes.keys())
    readings = log.clock_readings[log.clock_readings["process"].isin(known)]
    readings = readings.reset_index(drop=True)
    timers, pairs = _differences(log, readings)
    rows = _candidates(log, timers)
    start, thread, width = _on_trace(rows, rows["t0_ns"], processes, clocks)
    at_ns, reader, _ = _on_trace(readings, readings["t_ns"], processes, clocks)
    elapsed, lasted, origin = (rows[c].to_numpy() for c in ("elapsed_ns", "lasted_ns", "origin"))
    region = rows["region"].to_numpy(dtype=object)
    tied = rows["process"].isin(known).to_numpy()
    is_timer, explicit = origin == ORIGIN["timer"], origin == ORIGIN["host"]

    reason = np.where(tied, "", "the clock of its process could not be tied to the trace's")
    reason = reason.astype(object)
    reason[tied & (elapsed < 0)] = "its end is before its start"
    stepped = (elapsed < 0) | (np.abs(elapsed - lasted) > _STEP_NS + _STEP_SHARE * lasted)
    reason[is_timer & stepped] = "the wall clock was set in between"
    ours = log.records[log.records["calibration"].to_numpy(dtype=bool)]
    for number, made in ours[ours["process"].isin(known)].groupby("process"):
        made_ns = np.sort(clocks[int(number)].to_trace(made["t0_ns"].to_numpy()))
        first, last = (np.searchsorted(made_ns, edge) for edge in (start, start + elapsed))
        inside = (rows["process"].to_numpy() == number) & (last > first)
        reason[inside & ~explicit & (reason == "")] = (
            "the harness's own calibration work ran inside, before the first event (--no-calibrate leaves it out)"
        )
    # what holds no CUDA work is not about CUDA
    asked = len(rows) or len(readings)
    work = _Work(trace.calls if asked else trace.calls[:0], {*reader.tolist()})
    counts = explicit | ~tied
    for n in np.flatnonzero(~counts).tolist():
        counts[n] = work.any(int(thread[n]), int(start[n]), int(start[n] + lasted[n]))
    # a region that holds timed readings already has its interval
    held = {*region[is_timer & counts & ~stepped].tolist()}
    counts &= ~((origin == ORIGIN["region"]) & rows["region"].isin(held).to_numpy())

    lost = rows[counts & (reason != "")].assign(reason=reason[counts & (reason != "")])
    columns = ["region", "site", "reason", "origin", "source"]
    unplaced = [
        Unplaced(name or where or "host timer", why, where, kind, row)
        for name, where, why, kind, row in lost[columns].itertuples(index=False)
    ]
    good = np.flatnonzero(counts & (reason == ""))
    start, thread, width, end = start[good], thread[good], width[good], (start + elapsed)[good]
    windows = {
        c: rows[c].to_numpy()[good] for c in ("site", "end_site", "region", "origin", "source")
    }
    windows |= {"kind": "host", "log_process": rows["process"].to_numpy()[good],
                "process": process_of(thread), "thread": thread, "end_thread": thread,
                "callers": rows["callers"].reset_index(drop=True)[good].to_numpy(),
                "open_ns": start, "close_ns": end, "close_end_ns": end, "elapsed_ns": end - start,
                "start_ns": start, "end_ns": end, "start_lower_ns": start - width,
                "start_upper_ns": start + width, "error_ns": width}  # fmt: skip
    alone = Counter[str]()
    sites, of_reading = clock_sites(log.clock_sites, readings)
    paired = {*pairs.ravel().tolist()}
    for own in readings.groupby(["process", "tid", "clock"]).indices.values():
        for before, this in pairwise(own.tolist()):
            name, use = sites[of_reading[this]].site, sites[of_reading[this]].use
            if this not in paired and use in ("", "kept", "difference"):
                alone[name] += work.launched(int(reader[this]), at_ns[before], at_ns[this])
    notes = [
        f"host timers, {name or 'an unknown place'}: {count} readings after CUDA work belong to no interval: what they "
        "are subtracted from could not be told; nsysalign.region names such a stretch"
        for name, count in sorted(alone.items())
        if count
    ]
    return HostTimers(windows_frame(len(good), windows), unplaced, notes)


def timed(log: EventLog) -> pd.DataFrame:
    """What the clock readings of a log measured, without a trace to say whether CUDA work lies
    inside.

    Columns: those by which `compare.baseline` knows a measurement (region, site, end_site,
    callers), process, order and elapsed_ns.  A log of a run without nsys has no windows; the
    profiled run tells which of these count.
    """
    table, _ = _differences(log, log.clock_readings.reset_index(drop=True))
    return table.rename(columns={"t0_ns": "order"})


def _candidates(log: EventLog, timers: pd.DataFrame) -> pd.DataFrame:
    """All that may be a window: host lines, differences of readings, regions."""
    implicit = log.hosts["implicit"].to_numpy(dtype=bool)
    length = log.hosts["t1_ns"] - log.hosts["t0_ns"]
    lines = log.hosts.drop(columns=["t1_ns", "implicit"]).assign(
        end_site=log.hosts["site"],
        callers=pd.Series([()] * len(length), log.hosts.index, dtype=object),
        elapsed_ns=length,
        lasted_ns=length,
        origin=np.where(implicit, ORIGIN["region"], ORIGIN["host"]),
        source=log.hosts.index,
    )
    timers = timers.assign(origin=ORIGIN["timer"], source=np.arange(len(timers)))
    parts = [part for part in (lines[~implicit], timers, lines[implicit]) if len(part)]
    return pd.concat(parts or [lines], ignore_index=True)


def _on_trace(
    rows: pd.DataFrame,
    t_ns: pd.Series,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(trace time, globalTid, the clock's uncertainty) of what a thread saw at `t_ns`; of the main
    thread where the log names none (-1).  0 for a process without a clock."""
    t, width, process = np.zeros((3, len(rows)), np.int64)
    for number, own in rows.groupby("process").indices.items():
        if number in clocks and number in processes:
            t[own] = clocks[number].to_trace(t_ns.to_numpy()[own])
            width[own], process[own] = clocks[number].width_ns, processes[number]
    tid = rows["tid"].to_numpy()
    return t, thread_of(process, np.where(tid >= 0, tid, pid_of(process))), width


# --- which readings are subtracted from one another


def clock_sites(table: pd.DataFrame, readings: pd.DataFrame) -> tuple[list[Site], np.ndarray]:
    """Sites, and each reading's position among them (that of an empty one for a site that the log
    does not describe)."""
    sites = [Site(*row) for row in table[list(Site._fields)].itertuples(index=False)]
    keys = table[["process", "number"]].itertuples(index=False, name=None)
    index = {key: n for n, key in enumerate(keys)}
    wanted = readings[["process", "site"]].itertuples(index=False, name=None)
    place = np.array([index.get(key, len(sites)) for key in wanted], dtype=np.int64)
    return [*sites, Site()], place


def _differences(log: EventLog, readings: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """(a row per difference, as long as the program computed; positions of its two readings)."""
    sites, place = clock_sites(log.clock_sites, readings)
    thread = readings.groupby(["process", "tid"]).ngroup().to_numpy()
    pairs = differences(thread, pd.factorize(readings["clock"])[0], place, sites)
    start, end = pairs.T
    begun, ended = ([sites[n] for n in place[side].tolist()] for side in (start, end))
    region, value, t = (readings[c].to_numpy() for c in ("region", "value_ns", "t_ns"))
    same = region[start] == region[end]
    columns = {
        "process": readings["process"].to_numpy()[start],
        "tid": readings["tid"].to_numpy()[start],
        "region": pd.Series(np.where(same, region[start], ""), dtype=object),
        "site": pd.Series([site.site for site in begun], dtype=object),
        "end_site": pd.Series([site.site for site in ended], dtype=object),
        "callers": pd.Series([site.callers for site in begun], dtype=object),
        "t0_ns": t[start],
        "elapsed_ns": value[end] - value[start],
        "lasted_ns": t[end] - t[start],
    }
    return pd.DataFrame(columns), pairs


def differences(
    thread: np.ndarray, clock: np.ndarray, place: np.ndarray, sites: Sequence[Site]
) -> np.ndarray:
    """Positions of starts and ends (rows of two, by start): what the source and the order of the
    readings say, without the trace.  A start may serve several differences (a lap and a total), each
    of them once.

    thread, clock: integers; place: positions in `sites`; all in the order of each thread.
    """
    found: set[tuple[int, int]] = set()  # a reading that two variables hold is one
    for own in pd.Series(np.arange(len(thread))).groupby([thread, clock]).indices.values():
        held: dict[str, list[int]] = defaultdict(list)  # variable -> readings, the latest last
        taken: dict[tuple[str, int, str], set[int]] = defaultdict(set)  # starts of a difference
        for n in own.tolist():
            site = sites[place[n]]
            for variable in () if site.interleaved else site.subtracts:
                had = taken[site.function, site.position, variable]
                starts = [(start, sites[place[start]]) for start in held[variable]]
                latest = _latest(starts, had, variable, site)
                if latest is not None:
                    had.add(latest)
                    found.add((latest, n))
            for variable in () if site.interleaved else site.stores:
                held[variable].append(n)
                del held[variable][: -(_DEEP if _is_attribute(variable) else 1)]
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)


def _latest(
    starts: list[tuple[int, Site]], had: Collection[int], variable: str, site: Site
) -> int | None:
    """The reading that a variable holds.  A name holds the latest one.  An attribute belongs to one
    of several objects, such as nested timers: if its latest reading has been subtracted here
    before, an older one counts if it was stored from another place in the same file: `with Timer():
    ... with Timer(): ...` ends inside out.
    """
    stored = starts[-1][1] if starts else site
    for start, other in reversed(starts):
        if start not in had:
            elsewhere = other is not stored and _file(other.callers) == _file(site.callers)
            return start if elsewhere or start == starts[-1][0] else None
        if not _is_attribute(variable):
            return None
        stored = other
    return None


def _is_attribute(variable: str) -> bool:
    return variable.rpartition(":")[2].startswith(".")


def _file(callers: tuple[str, ...]) -> str:
    return callers[0].rpartition(":")[0] if callers else ""


class _Work:
    """When each thread's calls (sorted by start) began, for queries about stretches of time."""

    def __init__(self, calls: pd.DataFrame, readers: Collection[int]) -> None:
        outermost = calls["outer"].to_numpy() == np.arange(len(calls))
        kind, thread, start = (calls[c].to_numpy() for c in ("kind", "thread", "start_ns"))

        def starts(kinds: Collection[str]) -> dict[int, np.ndarray]:
            rows = np.flatnonzero(outermost & one_of(kind, [CALL[k] for k in kinds]))
            return group(thread[rows], start[rows])

        self._own, self._launches = starts(CALL.keys() - {*_IDLE}), starts(ENQUEUEING_CALLS)
        workers = defaultdict(list)  # launches by threads that read no clock, per process
        for number, times in self._launches.items():
            if number not in readers:
                workers[process_of(number)].append(times)
        self._workers = {p: np.sort(np.concatenate(times)) for p, times in workers.items()}

    def any(self, thread: int, start: int, end: int) -> bool:
        """Whether a call of this thread, or a launch by a worker of its process, lies inside."""
        workers = self._workers.get(process_of(thread))
        return _some(self._own.get(thread), start, end) or _some(workers, start, end)

    def launched(self, thread: int, start: int, end: int) -> bool:
        """Whether this thread launched anything inside."""
        return _some(self._launches.get(thread), start, end)


def _some(times: np.ndarray | None, start: int, end: int) -> bool:
    return times is not None and bool(np.searchsorted(times, start) < np.searchsorted(times, end))
