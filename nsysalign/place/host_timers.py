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
source does not tell, or a coroutine reads, nothing is guessed.  Only intervals with CUDA work count: a
call of the reading thread, or a launch by a thread that reads no clock itself (autograd's worker).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
#: If wall clock and monotonic clock differ by more than this, the wall clock was set in between.
_STEP_NS, _STEP_SHARE = 1_000_000, 0.01
_STEPPED = "the wall clock was set in between"


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

    @property
    def file(self) -> str:
        """That of its caller."""
        return self.callers[0].rpartition(":")[0] if self.callers else ""


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

    def on_trace(rows: pd.DataFrame, column: str) -> pd.DataFrame:
        """With start (trace time), width (the clock's uncertainty) and thread (the main one where
        the log names none); 0 without a clock."""
        start, width, process = np.zeros((3, len(rows)), np.int64)
        for number, own in rows.groupby("process").indices.items():
            if number in clocks and number in processes:
                start[own] = clocks[number].to_trace(rows[column].to_numpy()[own])
                width[own], process[own] = clocks[number].width_ns, processes[number]
        tid = rows["tid"].to_numpy()
        thread = thread_of(process, np.where(tid >= 0, tid, pid_of(process)))
        return rows.assign(start=start, width=width, thread=thread)

    readings = log.clock_readings[log.clock_readings["process"].isin([*clocks])]
    readings = on_trace(readings.reset_index(drop=True), "t_ns")
    timers, paired = _differences(log, readings)
    rows = on_trace(_candidates(log, timers), "t0_ns")
    work = _Work(trace.calls if len(rows) or len(readings) else trace.calls[:0], readings["thread"])

    reason = _refused(log, rows, clocks)
    spans = zip(*(rows[c].tolist() for c in ("thread", "start", "lasted_ns")), strict=True)
    about_cuda = np.array([work.any(t, start, start + ns) for t, start, ns in spans], dtype=bool)
    counts = (rows["origin"] == ORIGIN["host"]) | ~rows["process"].isin([*clocks]) | about_cuda
    # a region that holds timed readings already has its interval
    held = rows[(rows["origin"] == ORIGIN["timer"]) & counts & (reason != _STEPPED)]
    counts &= ~((rows["origin"] == ORIGIN["region"]) & rows["region"].isin(held["region"]))

    columns = ["region", "site", "origin", "source", "why"]
    lost = rows.assign(why=reason).loc[counts & (reason != ""), columns]
    unplaced = [
        Unplaced(name or where or "host timer", why, where, kind, row)
        for name, where, kind, row, why in lost.itertuples(index=False)
    ]
    good = rows[counts & (reason == "")].reset_index(drop=True)
    start, thread, width = (good[c].to_numpy() for c in ("start", "thread", "width"))
    end = start + good["elapsed_ns"].to_numpy()
    same = ("site", "end_site", "region", "origin", "source", "callers")
    windows = {c: good[c].to_numpy() for c in same} | {
        "kind": "host", "log_process": good["process"].to_numpy(), "process": process_of(thread),
        "thread": thread, "end_thread": thread, "open_ns": start, "close_ns": end,
        "close_end_ns": end, "elapsed_ns": end - start, "start_ns": start, "end_ns": end,
        "start_lower_ns": start - width, "start_upper_ns": start + width, "error_ns": width,
    }  # fmt: skip
    notes = _left_alone(log, readings, paired, work)
    return HostTimers(windows_frame(len(good), windows), unplaced, notes)


def _refused(log: EventLog, rows: pd.DataFrame, clocks: Mapping[int, ClockMap]) -> pd.Series:
    """Why rows have no window, "" where they may have one."""
    tied, elapsed = rows["process"].isin([*clocks]), rows["elapsed_ns"]
    reason = pd.Series("", rows.index, dtype=object)
    reason[~tied] = "the clock of its process could not be tied to the trace's"
    reason[tied & (elapsed < 0)] = "its end is before its start"
    drift = (elapsed - rows["lasted_ns"]).abs() - _STEP_SHARE * rows["lasted_ns"]
    is_timer = rows["origin"] == ORIGIN["timer"]
    reason[tied & is_timer & ((elapsed < 0) | (drift > _STEP_NS))] = _STEPPED
    ours = log.records[log.records["calibration"].to_numpy(dtype=bool)]
    for number, own in ours[ours["process"].isin([*clocks])].groupby("process"):
        made_ns = np.sort(clocks[int(number)].to_trace(own["t0_ns"].to_numpy()))
        edges = (rows["start"], rows["start"] + elapsed)
        first, last = (np.searchsorted(made_ns, edge) for edge in edges)
        inside = (rows["process"] == number) & (last > first) & (rows["origin"] != ORIGIN["host"])
        reason[inside & (reason == "")] = (
            "the harness's own calibration work ran inside, before the first event (--no-calibrate leaves it out)"
        )
    return reason


def timed(log: EventLog) -> pd.DataFrame:
    """What the clock readings of a log measured, without a trace to say whether CUDA work lies inside:
    region, site, end_site, callers, process, order and elapsed_ns (`compare.baseline`)."""
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


def _left_alone(
    log: EventLog, readings: pd.DataFrame, paired: np.ndarray, work: _Work
) -> list[str]:
    """Notes on readings after CUDA work that belong to no interval."""
    sites, of_reading = _sites(log, readings)
    last = readings.groupby(["process", "tid", "clock"])["start"].shift(fill_value=-1).to_numpy()
    thread, now = (readings[c].to_numpy() for c in ("thread", "start"))
    alone = Counter[str]()
    for n in np.setdiff1d(np.flatnonzero(last >= 0), paired).tolist():
        site = sites[of_reading[n]]
        if site.use in ("", "kept", "difference"):
            alone[site.site] += work.launched(int(thread[n]), int(last[n]), int(now[n]))
    return [
        f"host timers, {name or 'an unknown place'}: {count} readings after CUDA work belong to no interval: what they "
        "are subtracted from could not be told; nsysalign.region names such a stretch"
        for name, count in sorted(alone.items())
        if count
    ]


def _sites(log: EventLog, readings: pd.DataFrame) -> tuple[list[Site], list[int]]:
    """Sites, and each reading's position among them (that of an empty one for a site that the log
    does not describe)."""
    table = log.clock_sites
    sites = [Site(*row) for row in table[list(Site._fields)].itertuples(index=False)]
    keys = zip(table["process"].tolist(), table["number"].tolist(), strict=True)
    index = {key: n for n, key in enumerate(keys)}
    wanted = zip(readings["process"].tolist(), readings["site"].tolist(), strict=True)
    return [*sites, Site()], [index.get(key, len(sites)) for key in wanted]


def _differences(log: EventLog, readings: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """(a row per difference, as long as the program computed; positions of its two readings)."""
    sites, place = _sites(log, readings)
    thread = readings.groupby(["process", "tid", "clock"]).ngroup().to_numpy()
    pairs = differences(thread, [sites[n] for n in place])
    first, last = (readings.iloc[side].reset_index(drop=True) for side in pairs.T)
    begun, ended = ([sites[place[n]] for n in side.tolist()] for side in pairs.T)
    columns = {
        "process": first["process"],
        "tid": first["tid"],
        "region": first["region"].where(first["region"] == last["region"], "").astype(object),
        "site": pd.Series([site.site for site in begun], dtype=object),
        "end_site": pd.Series([site.site for site in ended], dtype=object),
        "callers": pd.Series([site.callers for site in begun], dtype=object),
        "t0_ns": first["t_ns"],
        "elapsed_ns": last["value_ns"] - first["value_ns"],
        "lasted_ns": last["t_ns"] - first["t_ns"],
    }
    return pd.DataFrame(columns), pairs


def differences(thread: np.ndarray, sites: Sequence[Site]) -> np.ndarray:
    """Positions of starts and ends (rows of two, by start): what the source and the order of the
    readings say, without the trace.  A start may serve several differences (a lap and a total), each
    of them once.  Of each reading: a number for its thread and clock, its site."""
    found: set[tuple[int, int]] = set()  # a reading that two variables hold is one
    # by thread and variable: readings that it holds, the latest last; starts of each difference
    held: dict[tuple, list[int]] = defaultdict(list)
    taken: dict[tuple, set[int]] = defaultdict(set)
    for n, (owner, site) in enumerate(zip(thread.tolist(), sites, strict=True)):
        for variable in () if site.interleaved else site.subtracts:
            had = taken[owner, site.function, site.position, variable]
            start = _start(held[owner, variable], sites, had, site)
            if start is not None:
                had.add(start)
                found.add((start, n))
        for variable in () if site.interleaved else site.stores:
            is_attribute = variable.rpartition(":")[2].startswith(".")
            before = held[owner, variable][1 - _DEEP :] if is_attribute else []
            held[owner, variable] = [*before, n]
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 2)


def _start(held: list[int], sites: Sequence[Site], had: set[int], end: Site) -> int | None:
    """The reading that is subtracted: of a name the latest one.  Of an attribute, which belongs to one of
    several objects, an older one if the latest was subtracted here before and it was stored from another
    place of the file: `with Timer(): ... with Timer(): ...` ends inside out."""
    after = None
    for start in reversed(held):
        if start not in had:
            elsewhere = after is None or (
                sites[start] is not sites[after] and sites[start].file == end.file
            )
            return start if elsewhere else None
        after = start
    return None


class _Work:
    """When each thread's calls (sorted by start) began, for queries about stretches of time."""

    def __init__(self, calls: pd.DataFrame, readers: pd.Series) -> None:
        kind, thread, start = (calls[c].to_numpy() for c in ("kind", "thread", "start_ns"))
        outermost = calls["nested"].to_numpy() == 0
        own = outermost & ~one_of(kind, [CALL[k] for k in _IDLE])
        launches = outermost & one_of(kind, [CALL[k] for k in ENQUEUEING_CALLS])
        workers = launches & ~np.isin(thread, readers.unique())
        self._own, self._launches = (group(thread[w], start[w]) for w in (own, launches))
        self._workers = group(process_of(thread[workers]), start[workers])

    def any(self, thread: int, start: int, end: int) -> bool:
        """Whether a call of this thread, or a launch by a worker of its process, lies inside."""
        workers = self._workers.get(process_of(thread))
        return _some(self._own.get(thread), start, end) or _some(workers, start, end)

    def launched(self, thread: int, start: int, end: int) -> bool:
        """Whether this thread launched anything inside."""
        return _some(self._launches.get(thread), start, end)


def _some(times: np.ndarray | None, start: int, end: int) -> bool:
    return times is not None and bool(np.searchsorted(times, start) < np.searchsorted(times, end))
