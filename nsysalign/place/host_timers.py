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
source does not tell, or a coroutine reads, nothing is guessed.  A difference that the program computes
is an interval whether or not CUDA was called in it, and in a process without CUDA, too.  A region is one
only with CUDA work: a call of its thread, or a launch by a thread that reads no clock itself (autograd's
worker).

After it is known which of these have a window, and why the others have none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import any_between
from nsysalign.model import (
    CALL,
    ENQUEUEING_CALLS,
    ORIGIN,
    PID_SHIFT,
    EventLog,
    Trace,
    pid_of,
    process_of,
    thread_of,
)
from nsysalign.place.clocks import clock_map
from nsysalign.place.matched import Matched

_DEEP = 64  # timers of one class that can be running at once
#: Calls that are neither work nor a wait: an interval with nothing else inside is not about CUDA.
_IDLE = ("record", "query_event", "query_stream", "wait_event")
#: Records of the tool's own that are closer together are one burst of its calibration; a single one
#: is a new reference event, which takes no longer than this (measured: 10 us).
_BURST_NS, _REFERENCE_NS = 2_000_000, 20_000
#: A host timing that holds more of the tool's own work than this share is not the program's.
_OWN_SHARE = 0.02
#: If wall clock and monotonic clock differ by more than this, the wall clock was set in between.
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

    @property
    def file(self) -> str:
        """That of its caller."""
        return self.callers[0].rpartition(":")[0] if self.callers else ""


@dataclass(frozen=True)
class HostTimers:
    """What was timed on the host's clock: windows, what has none (`frames.UNPLACED`), and notes."""

    windows: pd.DataFrame
    unplaced: pd.DataFrame
    notes: list[str]


def host_timers(trace: Trace, log: EventLog, matched: Matched) -> HostTimers:
    """Everything that the log timed on the host's clock, on the trace's."""
    matched = _with_processes_without_cuda(trace, log, matched)
    tied = log.clock_readings["process"].isin([*matched.clocks])
    readings = log.clock_readings[tied].reset_index(drop=True)
    readings = _on_trace(readings, "t_ns", matched)
    readers = readings["thread"].unique()
    timers, alone = _differences(log, readings)
    rows = _on_trace(_candidates(log, timers), "t0_ns", matched)
    ends = rows["start"] + rows["lasted_ns"]
    with_work = _with_work(trace, readers, rows["thread"], rows["start"], ends)
    reason = _reasons(log, matched, rows)
    counts = _counts(matched, rows, with_work, reason)
    lost = rows.assign(reason=reason)[counts & (reason != "")]
    names = [row.region or row.site or "host timer" for row in lost.itertuples()]
    windows = _windows(rows[counts & (reason == "")].reset_index(drop=True))
    previous = readings.groupby(["process", "tid", "clock"])["start"].shift(fill_value=-1)
    missed = alone.notna() & (previous >= 0)
    missed &= _with_work(trace, readers, readings["thread"], previous, readings["start"])
    notes = [
        f"host timers, {name or 'an unknown place'}: {count} readings after CUDA work belong to no interval: what they "
        "are subtracted from could not be told; nsysalign.region names such a stretch"
        for name, count in sorted(Counter(alone[missed]).items())
    ]
    return HostTimers(windows, lost.assign(name=names), notes)


def _reasons(log: EventLog, matched: Matched, rows: pd.DataFrame) -> np.ndarray:
    """Why candidates can be no window, "" for those that can."""
    untied = ~rows["process"].isin([*matched.clocks])
    drift = (rows["elapsed_ns"] - rows["lasted_ns"]).abs() - _STEP_SHARE * rows["lasted_ns"]
    calibration = log.records[log.records["calibration"].to_numpy(dtype=bool)]
    calibration = _on_trace(calibration, "t0_ns", matched)
    end = rows["start"] + rows["elapsed_ns"]
    by_tool_ns = _work_of_tool_ns(
        calibration, rows["process"].to_numpy(), rows["start"].to_numpy(), end.to_numpy()
    )
    disturbed = by_tool_ns > _OWN_SHARE * rows["elapsed_ns"].to_numpy()
    disturbed = disturbed & (rows["origin"] != ORIGIN["host"])
    return np.select(
        [untied, drift > _STEP_NS, rows["elapsed_ns"] < 0, disturbed],
        [
            "the clock of its process could not be tied to the trace's",
            "the wall clock was set in between",
            "its end is before its start",
            "the harness's own calibration work ran inside, before the first event (--no-calibrate leaves it out)",
        ],
        "",
    )


def _work_of_tool_ns(
    records: pd.DataFrame, process: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """How long the tool itself worked in each window, int64 (windows).  `records`: those of the tool.

    records  |||||||||||          |             |          of calibration, later of a new reference
    work     [---------]          -             -          one burst; a reference each
    """
    work_ns = np.zeros(len(start), np.int64)
    for number in np.unique(process):
        recorded = np.sort(records.loc[records["process"] == number, "start"].to_numpy())
        apart = np.diff(recorded, append=np.iinfo(np.int64).max)
        work = np.append(0, np.cumsum(np.where(apart < _BURST_NS, apart, _REFERENCE_NS)))
        windows = process == number
        first = np.searchsorted(recorded, start[windows])
        last = np.searchsorted(recorded, end[windows])
        work_ns[windows] = work[last] - work[first]
    return work_ns


def _counts(
    matched: Matched, rows: pd.DataFrame, with_work: np.ndarray, reason: np.ndarray
) -> pd.Series:
    """Bool, per candidate: whether it is an interval.  A region is one only with CUDA work, and one that
    holds timed readings around work already has its interval."""
    untied = ~rows["process"].isin([*matched.clocks])
    origin = rows["origin"]
    timed_work = (origin == ORIGIN["timer"]) & with_work & (reason == "")
    already = rows["region"].isin(rows.loc[timed_work, "region"])
    return (origin != ORIGIN["region"]) | ((untied | with_work) & ~already)


def _windows(rows: pd.DataFrame) -> pd.DataFrame:
    """`frames.WINDOWS` of what has a place."""
    begin = rows["start"].to_numpy()
    thread = rows["thread"].to_numpy()
    width = rows["width"].to_numpy()
    close = begin + rows["elapsed_ns"].to_numpy()
    kept = ("site", "end_site", "region", "origin", "source", "callers")
    windows = {name: rows[name].to_numpy() for name in kept} | {
        "kind": "host",
        "log_process": rows["process"].to_numpy(),
        "process": process_of(thread),
        "thread": thread,
        "end_thread": thread,
        "open_ns": begin,
        "close_ns": close,
        "close_end_ns": close,
        "elapsed_ns": close - begin,
        "start_ns": begin,
        "end_ns": close,
        "start_lower_ns": begin - width,
        "start_upper_ns": begin + width,
        "error_ns": width,
        "method": "exact",
    }
    return frames.lean(windows, frames.WINDOWS, len(rows))


def _with_processes_without_cuda(trace: Trace, log: EventLog, matched: Matched) -> Matched:
    """The same, in which the log's processes that read clocks and recorded no event have a place on
    the trace's clock although the trace knows no CUDA call of theirs."""
    timed = pd.concat([log.clock_readings["process"], log.hosts["process"]])
    left = set(timed) - set(matched.processes) - set(log.records["process"])
    processes, clocks = dict(matched.processes), dict(matched.clocks)
    session = trace.info.session_start_utc_ns
    named = {int(pid_of(process)): int(process) for process in trace.marks["process"].tolist()}
    for number in sorted(left):
        pid = log.headers[number].get("pid")
        lines = log.clocks[log.clocks["process"] == number]
        marked = log.marked[log.marked["process"] == number].merge(trace.marks, on="payload")
        clock = clock_map(lines, marked, session)
        if not isinstance(pid, int) or clock is None:
            continue
        if (clock.to_trace(lines["monotonic_ns"].to_numpy()) < -_STEP_NS).any():
            continue  # the log is of an earlier run
        clocks[number] = clock
        processes[number] = named.get(pid, pid << PID_SHIFT)
    return replace(matched, processes=processes, clocks=clocks)


def _on_trace(rows: pd.DataFrame, column: str, matched: Matched) -> pd.DataFrame:
    """Lines of the log with start (trace time of this column), width (the clock's uncertainty) and
    thread (the main one where the log names none); 0 without a clock."""
    start, width, process = np.zeros((3, len(rows)), np.int64)
    for number, positions in rows.groupby("process").indices.items():
        if clock := matched.clocks.get(int(number)):
            start[positions] = clock.to_trace(rows[column].to_numpy()[positions])
            width[positions] = clock.width_ns
            process[positions] = matched.processes[int(number)]
    tid = rows["tid"].to_numpy()
    thread = thread_of(process, np.where(tid >= 0, tid, pid_of(process)))
    return rows.assign(start=start, width=width, thread=thread)


def _with_work(
    trace: Trace, readers: np.ndarray, thread: pd.Series, start: pd.Series, end: pd.Series
) -> np.ndarray:
    """Whether a call of its thread, or a launch by a thread of its process that reads no clock, lies in
    each stretch."""
    if thread.empty:
        return np.zeros(0, dtype=bool)
    kind = trace.calls["kind"].to_numpy()
    caller = trace.calls["thread"].to_numpy()
    begun = trace.calls["start_ns"].to_numpy()
    works = trace.outermost & ~np.isin(kind, [CALL[k] for k in _IDLE])
    enqueues = trace.outermost & np.isin(kind, [CALL[k] for k in ENQUEUEING_CALLS])
    enqueues &= ~np.isin(caller, readers)
    low, high = start.to_numpy() - 1, end.to_numpy()
    by_thread = any_between(caller[works], begun[works], thread.to_numpy(), low, high)
    worker = process_of(caller[enqueues])
    process = process_of(thread.to_numpy())
    return by_thread | any_between(worker, begun[enqueues], process, low, high)


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
    filled = [part for part in (lines, timers) if len(part)] or [lines]
    return pd.concat(filled).sort_values("origin", kind="stable", ignore_index=True)


def _differences(log: EventLog, readings: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """(a row per difference, as long as the program computed; per reading the place of one that belongs
    to no difference, though it may have ended one, None for the others)."""
    table = log.clock_sites
    described = [Site(*row) for row in table[list(Site._fields)].itertuples(index=False)]
    known = dict(zip(zip(table["process"], table["number"], strict=True), described, strict=True))
    keys = zip(readings["process"], readings["site"], strict=True)
    sites = [known.get(key, Site()) for key in keys]
    thread = readings.groupby(["process", "tid", "clock"]).ngroup().to_numpy()
    pairs = differences(thread, sites)
    first, last = (readings.iloc[side].reset_index(drop=True) for side in pairs.T)
    begun, ended = ([sites[n] for n in side.tolist()] for side in pairs.T)
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
    unclear = [site.site if site.use in ("", "kept", "difference") else None for site in sites]
    alone = pd.Series(unclear, dtype=object)
    alone[np.unique(pairs)] = None
    return pd.DataFrame(columns), alone


def differences(thread: np.ndarray, sites: Sequence[Site]) -> np.ndarray:
    """Positions of starts and ends (rows of two, by start): what the source and the order of the
    readings say, without the trace.  A start may serve several differences (a lap and a total), each
    of them once.  Of each reading: a number for its thread and clock, its site.

    What a variable subtracts is its latest reading.  An attribute may belong to several objects: where its
    latest reading was subtracted here before, an older one that another place of the file stored takes its
    turn, as `with Timer(): ... with Timer(): ...` ends inside out.
    """
    pairs: set[tuple[int, int]] = set()  # a reading that two variables hold is one
    # by thread and variable: readings that it holds, the latest last; starts of each difference
    held: dict[tuple, list[int]] = defaultdict(list)
    taken: dict[tuple, set[int]] = defaultdict(set)
    for n, (owner, site) in enumerate(zip(thread.tolist(), sites, strict=True)):
        if site.interleaved:
            continue
        for variable in site.subtracts:
            had = taken[owner, site.function, site.position, variable]
            after = None
            for start in reversed(held[owner, variable]):
                if start not in had:
                    elsewhere = after is None or sites[start] is not sites[after]
                    if elsewhere and (after is None or sites[start].file == site.file):
                        had.add(start)
                        pairs.add((start, n))
                    break
                after = start
        for variable in site.stores:
            is_attribute = variable.rpartition(":")[2].startswith(".")
            before = held[owner, variable][1 - _DEEP :] if is_attribute else []
            held[owner, variable] = [*before, n]
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
