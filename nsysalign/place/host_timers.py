"""Windows of kind `host`: stretches that the program timed on the host's clock, and its regions.

reading    one call of a clock such as `time.perf_counter()`, as the log has it
site       the place in the source where a clock is read, and what happens to the reading there
timer      two readings of which the program subtracts the earlier from the later
stage      two readings, one after the other, of which it is not seen that they are subtracted
host line  a line of the log with the host's time at both ends of a stretch; a region is one of these
candidate  a timer or host line that may become a window
window     a stretch of the trace that is an interval of the analysis

    t0 = clock()        A            A  B  A  B          the source says that B subtracts what A stored
    work()                           [--)  [--)
    print(clock() - t0) B

    last = clock()      A            A  B  B  B          one site, whose reading becomes the next one's start
    while True:                      [--)
        now = clock()   B               [--)[--)
        dt, last = now - last, now

The sites say what is subtracted from what (record/readings.py): a reading is paired with the latest
reading of the same clock and thread that was stored in the variable which is subtracted.  Readings that are
kept (in a list, a dictionary, a record) and of which no subtraction is seen are stamps.  Where stamps come
again and again in the order of the source, the time between one and the next is a fact, and an interval:

    for batch in data:
        stamps = [clock()]            A         A   B  C  A   B  C      from C to the next A lies nothing that
        net(batch)                              [---)--)  [---)--)      the program timed
        stamps.append(clock())        B
        masks(batch)
        stamps.append(clock())        C

Where the source does not tell, or a coroutine reads the clock, nothing is guessed.  A difference that the program
computes is an interval whether or not CUDA was called in it, and in a process without CUDA as well.  A
region is an interval only if it holds CUDA work: a call of its thread, or a launch by a thread that reads
no clock itself (autograd's worker).

This module finds which candidates have a window, and why the others have none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.intervals import any_between
from nsysalign.model import (
    CALL,
    ENQUEUEING_CALLS,
    HOST_TIMERS,
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
from nsysalign.text import plural

_DEEP = 64  # timers of one class that can be running at once
#: Calls that are neither work nor a wait of the host: a stretch with no other calls has no CUDA work.
_IDLE = ("record", "query_event", "query_stream", "wait_event")
#: The tool's own records that are closer together than _BURST_NS are one burst of its calibration; a
#: single one is a new reference event, which takes at most _REFERENCE_NS (measured: 10 us).
_BURST_NS, _REFERENCE_NS = 2_000_000, 20_000
#: A host timing that holds more of the tool's own work than this share is not the program's.
_OWN_SHARE = 0.02
#: If wall clock and monotonic clock differ by more than this, the wall clock was set in between.
_STEP_NS, _STEP_SHARE = 1_000_000, 0.01
#: A log that has a time so long before the trace began is of an earlier run: a wall clock is off by less.
_EARLIER_RUN_NS = 1_000_000
#: Places that a note names.
_MOST_NAMED = 8


class Site(NamedTuple):
    """What the log says about a clock site (frames.CLOCK_SITES): a line that reads a clock, as one chain of callers
    reaches it.  A line in `Timer.__enter__` is a site of its own for each `with Timer()` of the program."""

    site: str = ""  # file and line
    callers: tuple[str, ...] = ()  # file and line of each caller, the nearest first
    function: str = ""  # the function with that line
    position: int = -1  # the instruction in it
    use: str = ""  # what happens to the reading: "difference", "kept", "compared"; "": the source does not tell
    stores: tuple[str, ...] = ()  # the variables in which the reading is stored
    subtracts: tuple[str, ...] = ()  # the variables that are subtracted from the reading
    interleaved: bool = (
        False  # a coroutine: its activations may take turns, so that no order pairs readings
    )

    @property
    def calling_file(self) -> str:
        """The source file of the nearest caller, "" if it is not known."""
        return self.callers[0].rpartition(":")[0] if self.callers else ""

    @property
    def place(self) -> tuple[str, int]:
        """The instruction that reads the clock, whoever calls it."""
        return self.function, self.position

    @property
    def is_lap(self) -> bool:
        """Whether the reading becomes the start of the next timer in place of the one that is subtracted from it."""
        return not {*self.stores}.isdisjoint(self.subtracts)

    @property
    def may_end_timer(self) -> bool:
        """Whether something may be subtracted from the reading: something is, the reading goes to a list or into a
        call, or it is not known what happens to it.  A reading that is only compared (a deadline) ends no timer."""
        return self.use in ("difference", "kept", "")


@dataclass(frozen=True)
class HostTimers:
    """What was timed on the host's clock."""

    windows: pd.DataFrame  # frames.WINDOWS
    unplaced: pd.DataFrame  # frames.UNPLACED: the candidates that have no window, with the reason
    notes: list[str]


def host_timers(trace: Trace, log: EventLog, matched: Matched) -> HostTimers:
    """Return what the program timed on the host's clock (by calls such as `time.perf_counter()`, and its regions) as
    windows on the trace's clock; what could not be placed there, with the reason; and notes on stages, and on readings
    after CUDA work that belong to no timer.

    matched: the processes of the log in the trace, and their clocks
    """
    matched = _with_processes_without_cuda(trace, log, matched)
    has_clock = log.clock_readings["process"].isin([*matched.clocks])
    readings = log.clock_readings[has_clock].reset_index(drop=True)
    readings = _on_trace(readings, "t_ns", matched)
    readers = readings["thread"].unique()
    timers, unpaired = _timers(log, readings)
    # everything that may become a window, in trace time (`start`, `width` and `thread` are added)
    candidates = _on_trace(_candidates(log, timers), "t0_ns", matched)
    # whether each holds CUDA work: a difference of readings of a wall clock that was set is no length, so that
    # what lasted on CLOCK_MONOTONIC counts
    ends = candidates["start"] + candidates["lasted_ns"]
    with_work = _holds_work(trace, readers, candidates["thread"], candidates["start"], ends)
    reason = _reasons(log, matched, candidates)  # why it cannot be a window, "" if it can
    # a region without work of its own is nobody's interval: it is not told as unplaced either
    is_interval = _is_interval(matched, candidates, with_work, reason)
    with_place = candidates[is_interval & (reason == "")].reset_index(drop=True)
    unplaced = candidates.assign(reason=reason)[is_interval & (reason != "")]
    names = [row.region or row.site or "host timer" for row in unplaced.itertuples()]
    notes = _note_on_stages(with_place) + _note_on_unpaired(trace, readings, readers, unpaired)
    return HostTimers(_windows(with_place), unplaced.assign(name=names), notes)


def _note_on_stages(candidates: pd.DataFrame) -> list[str]:
    """Return a note that names the lines of the stages; [] if there are none.

    candidates: those that have a place
    """
    is_stage = candidates["origin"] == ORIGIN["stage"]
    stages = candidates.loc[is_stage, ["site", "end_site"]].drop_duplicates()
    if stages.empty:
        return []
    places = stages["site"] + "-" + stages["end_site"].str.rpartition(":")[2]
    return [
        f"{HOST_TIMERS}{_in_words(places)}: the time between the clock readings at these lines; no subtraction of them was found"
    ]


def _note_on_unpaired(
    trace: Trace, readings: pd.DataFrame, readers: np.ndarray, unpaired: pd.Series
) -> list[str]:
    """Return a note on the readings that may have ended a timer but belong to none, if CUDA work lies between such a
    reading and the one before it on its thread; [] if there are none.

    unpaired: as `_timers` returns it
    """
    by_clock = readings.groupby(["process", "tid", "clock"])
    previous = by_clock["start"].shift(fill_value=-1)  # trace time, -1: the first of its thread
    after_work = _holds_work(trace, readers, readings["thread"], previous, readings["start"])
    missed = unpaired[unpaired.notna() & (previous >= 0) & after_work]
    if missed.empty:
        return []
    places = _in_words(missed.replace("", "an unknown place").drop_duplicates())
    return [
        f"{HOST_TIMERS}{plural(len(missed), 'clock reading')} after CUDA work in no interval ({places}); "
        "nsysalign.region names such a stretch"
    ]


def _in_words(places: pd.Series) -> str:
    """Return places of the source as a text, a file's name once: "a.py:3, 5, b.py:9", and how many more there are.

    places: "file:line" or "file:line-line" each
    """
    file_before, texts = "", []
    for place in sorted(places, key=_in_order)[:_MOST_NAMED]:
        file, _, lines = place.rpartition(":")
        texts.append(lines if file == file_before else place)
        file_before = file
    if len(places) > _MOST_NAMED:
        texts.append(f"{len(places) - _MOST_NAMED} more")
    return ", ".join(texts)


def _in_order(place: str) -> tuple[str, int]:
    """Return a key that sorts places of the source by file and line."""
    file, _, lines = place.rpartition(":")
    line = lines.partition("-")[0]
    return file, int(line) if line.isdecimal() else 0


def _reasons(log: EventLog, matched: Matched, rows: pd.DataFrame) -> np.ndarray:
    """Return, for each timer and host line, why it cannot be a window of the analysis: the first reason that holds; ""
    if it can.

    rows: the timers and host lines, with the columns of `_on_trace`; `elapsed_ns` is the time by the clock that the
        program read (which may be the wall clock), `lasted_ns` the same by CLOCK_MONOTONIC
    """
    start = rows["start"].to_numpy()
    elapsed_ns = rows["elapsed_ns"].to_numpy()
    lasted_ns = rows["lasted_ns"].to_numpy()
    process = rows["process"].to_numpy()
    without_clock = ~np.isin(process, [*matched.clocks])
    tolerance_ns = _STEP_NS + _STEP_SHARE * lasted_ns
    clock_was_set = np.abs(elapsed_ns - lasted_ns) > tolerance_ns
    calibration = log.records[log.records["calibration"].to_numpy(dtype=bool)]
    calibration = _on_trace(calibration, "t0_ns", matched)
    by_tool_ns = _work_of_tool_ns(calibration, process, start, start + elapsed_ns)
    holds_calibration = by_tool_ns > _OWN_SHARE * elapsed_ns
    # only timers and regions are refused for it; a host line that was asked for is shown all the same
    holds_calibration &= (rows["origin"] != ORIGIN["host"]).to_numpy()
    return np.select(
        [without_clock, clock_was_set, elapsed_ns < 0, holds_calibration],
        [
            "the clock of its process could not be tied to the trace's",
            "the wall clock was set in between",
            "its end is before its start",
            "the harness's own calibration work ran inside and made it longer, also what the program prints (--no-calibrate leaves it out)",
        ],
        "",
    )


def _work_of_tool_ns(
    records: pd.DataFrame, process: np.ndarray, start: np.ndarray, end: np.ndarray
) -> np.ndarray:
    """Return, for each stretch of time, how long (int64 ns) the tool itself worked in it: by its own records, which are
    calls of `event.record()` by which it calibrates clocks.

    records: these records, with their trace time in the column `start`
    process, start, end: per stretch, its process in the log, and when it begins and ends in trace time (ns)

    The tool calibrates by many records in quick succession, a burst; later it makes single records.  Each
    record counts with the time to the next one in its burst; the last one of a burst and single ones, with
    _REFERENCE_NS.

    records  |||||||||||          |             |
    work     [---------]-         -             -
             a burst              single records
    """
    work_ns = np.zeros(len(start), np.int64)
    for number in np.unique(process):
        of_process = records["process"] == number
        recorded = np.sort(records.loc[of_process, "start"].to_numpy())
        to_next_ns = np.diff(recorded, append=np.iinfo(np.int64).max)
        record_ns = np.where(to_next_ns < _BURST_NS, to_next_ns, _REFERENCE_NS)
        up_to_record = np.append(0, np.cumsum(record_ns))  # [n]: of the first n records
        stretches = process == number
        first = np.searchsorted(recorded, start[stretches])
        stop = np.searchsorted(recorded, end[stretches])
        work_ns[stretches] = up_to_record[stop] - up_to_record[first]
    return work_ns


def _is_interval(
    matched: Matched, rows: pd.DataFrame, with_work: np.ndarray, reason: np.ndarray
) -> pd.Series:
    """Return, for each candidate, whether it is an interval (bool).  A region is an interval only if it
    holds CUDA work, and only if no timer inside it holds CUDA work: such a timer is the region's interval.

    rows: the candidates
    with_work: per candidate, whether it holds CUDA work
    reason: per candidate, why it cannot be a window, "" if it can
    """
    untied = ~rows["process"].isin([*matched.clocks])
    origin = rows["origin"]
    # a timer that cannot be a window takes no region's place
    timed_work = (origin == ORIGIN["timer"]) & with_work & (reason == "")
    has_timer = rows["region"].isin(rows.loc[timed_work, "region"])
    # of a process without a clock it is not known whether a region holds work: it is reported as unplaced
    return (origin != ORIGIN["region"]) | ((untied | with_work) & ~has_timer)


def _windows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the windows (`frames.WINDOWS`) of timers and host lines that have a place on the trace's clock, a row each,
    in the same order: each reaches from `start` for `elapsed_ns`, and is off by `width` at most.

    rows: the timers and host lines, with the columns of `_on_trace`
    """
    begin = rows["start"].to_numpy()
    thread = rows["thread"].to_numpy()
    width = rows["width"].to_numpy()
    end = begin + rows["elapsed_ns"].to_numpy()
    names_of_log = ("site", "end_site", "region", "origin", "source", "callers")
    # the program reads the clock at these two moments: nothing lies between a call and its effect, as it does for events,
    # so that all times of the start are one, and all of the end.  The length is exact; the place is as good as the
    # map of the clocks (`width`)
    windows = {name: rows[name].to_numpy() for name in names_of_log} | {
        "kind": "host",
        "log_process": rows["process"].to_numpy(),
        "process": process_of(thread),
        "thread": thread,
        "end_thread": thread,
        "open_ns": begin,
        "close_ns": end,
        "close_end_ns": end,
        "elapsed_ns": end - begin,
        "start_ns": begin,
        "end_ns": end,
        "start_lower_ns": begin - width,
        "start_upper_ns": begin + width,
        "error_ns": width,
        "method": "exact",
    }
    return frames.lean(windows, frames.WINDOWS, len(rows))


def _with_processes_without_cuda(trace: Trace, log: EventLog, matched: Matched) -> Matched:
    """Return `matched` with further processes and their clocks: the processes of the log that read clocks, but
    recorded no event and made no CUDA call that the trace has.  A process whose clock cannot be tied to the trace's
    is left out."""
    timed = pd.concat([log.clock_readings["process"], log.hosts["process"]])
    unmatched = set(timed) - set(matched.processes) - set(log.records["process"])
    processes = dict(matched.processes)
    clocks = dict(matched.clocks)
    session = trace.info.session_start_utc_ns
    process_of_pid = {
        int(pid_of(process)): int(process) for process in trace.marks["process"].tolist()
    }
    for number in sorted(unmatched):
        pid = log.headers[number].get("pid")
        lines = log.clocks[log.clocks["process"] == number]
        marked = log.marked[log.marked["process"] == number].merge(trace.marks, on="payload")
        clock = clock_map(lines, marked, session)
        if not isinstance(pid, int) or clock is None:
            continue
        # that a process went on after the trace's end says nothing: it may have been started before
        is_of_earlier_run = clock.to_trace(lines["monotonic_ns"].to_numpy()) < -_EARLIER_RUN_NS
        if is_of_earlier_run.any():
            continue
        clocks[number] = clock
        # a process without a row in the trace has no globalPid there: it gets one with its pid
        processes[number] = process_of_pid.get(pid, pid << PID_SHIFT)
    return replace(matched, processes=processes, clocks=clocks)


def _on_trace(rows: pd.DataFrame, column: str, matched: Matched) -> pd.DataFrame:
    """Return lines of the log with three more columns: `start`, the trace time of `column` (ns); `width`, how
    far that may be off (ns); and `thread`, the globalTid (of the main thread if the line names none).  Times
    are 0 where no clock ties the line's process to the trace.
    """
    start, width, process = np.zeros((3, len(rows)), np.int64)
    for number, positions in rows.groupby("process").indices.items():
        if clock := matched.clocks.get(int(number)):
            start[positions] = clock.to_trace(rows[column].to_numpy()[positions])
            width[positions] = clock.width_ns
            process[positions] = matched.processes[int(number)]
    tid = rows["tid"].to_numpy()
    thread = thread_of(process, np.where(tid >= 0, tid, pid_of(process)))
    return rows.assign(start=start, width=width, thread=thread)


def _holds_work(
    trace: Trace, readers: np.ndarray, thread: pd.Series, start: pd.Series, end: pd.Series
) -> np.ndarray:
    """Return, for each stretch of time of a thread, whether CUDA work began in it (bool).  That is either

    - a call of the same thread, of any kind but _IDLE: work that it issued, or a wait for work;
    - or work that a worker thread issued.  A worker is a thread of the same process that reads no clock itself, as that
      of torch's autograd: what it issues can only be timed by the threads that do.

    readers: the threads that read clocks
    thread, start, end: per stretch, its thread, and its ends in trace time (ns)
    """
    if thread.empty:
        return np.zeros(0, dtype=bool)
    kind = trace.calls["kind"].to_numpy()
    caller = trace.calls["thread"].to_numpy()
    call_start = trace.calls["start_ns"].to_numpy()
    not_nested = trace.outermost  # a call that lies in another one counts as a part of that
    # a call at `start` itself counts; `any_between` leaves out both limits
    low = start.to_numpy() - 1
    high = end.to_numpy()
    is_work_or_wait = not_nested & ~np.isin(kind, [CALL[name] for name in _IDLE])
    by_same_thread = any_between(
        caller[is_work_or_wait], call_start[is_work_or_wait], thread.to_numpy(), low, high
    )
    is_issued = not_nested & np.isin(kind, [CALL[name] for name in ENQUEUEING_CALLS])
    by_worker = is_issued & ~np.isin(caller, readers)
    process_of_worker = process_of(caller[by_worker])
    process = process_of(thread.to_numpy())
    by_any_worker = any_between(process_of_worker, call_start[by_worker], process, low, high)
    return by_same_thread | by_any_worker


def timed(log: EventLog) -> pd.DataFrame:
    """Return the timers of a log, a row each.  Without a trace it is not known which of them hold CUDA work.
    `order` is the reading at their start in ns; `compare.baseline` reads the other columns."""
    table, _ = _timers(log, log.clock_readings.reset_index(drop=True))
    return table.rename(columns={"t0_ns": "order"})


def _candidates(log: EventLog, timers: pd.DataFrame) -> pd.DataFrame:
    """Return everything that the log timed on the host's clock and that may become a window, a row each, in the order of
    `ORIGIN`: host lines, timers, regions (which the log has as implicit host lines).  `elapsed_ns` is their length,
    `origin` what they are, and `source` their number among the host lines or timers.

    timers: as `_timers` returns them
    """
    is_region = log.hosts["implicit"].to_numpy(dtype=bool)
    length_ns = log.hosts["t1_ns"] - log.hosts["t0_ns"]
    lines = log.hosts.drop(columns=["t1_ns", "implicit"]).assign(
        end_site=log.hosts["site"],
        callers=pd.Series([()] * len(length_ns), log.hosts.index, dtype=object),
        elapsed_ns=length_ns,
        lasted_ns=length_ns,
        origin=np.where(is_region, ORIGIN["region"], ORIGIN["host"]),
        source=log.hosts.index,
    )
    origin = np.where(timers["is_stage"].to_numpy(dtype=bool), ORIGIN["stage"], ORIGIN["timer"])
    timers = timers.drop(columns="is_stage").assign(origin=origin, source=np.arange(len(timers)))
    # pandas warns of empty tables
    not_empty = [table for table in (lines, timers) if len(table)]
    candidates = pd.concat(not_empty or [lines])
    return candidates.sort_values("origin", kind="stable", ignore_index=True)


def _timers(log: EventLog, readings: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """Pair the clock readings that the program subtracts from each other, and those of stages.  Returns (timers,
    unpaired).

    timers: a row per difference of two readings; `elapsed_ns` is the difference by the clock that the program read,
        `lasted_ns` the same on CLOCK_MONOTONIC, `t0_ns` its start there, `is_stage` whether it is one of a stage
    unpaired: per reading, the site ("" if unknown) if the reading may have ended a timer, but belongs to none;
        None otherwise

    readings: rows of log.clock_readings, numbered from 0

    Readings of 1,000 and 1,450 ns at `t0 = clock()` and `clock() - t0` become a timer with elapsed_ns 450.
    """
    sites = _sites_of(log, readings)
    owner = readings.groupby(["process", "tid", "clock"]).ngroup().to_numpy()
    subtracted = differences(owner, sites)
    # a stage is no pair of the source's: readings that belong to a timer are in no stage
    in_timer = np.zeros(len(sites), dtype=bool)
    in_timer[subtracted] = True
    stamps = stamps_of(owner, sites, in_timer)
    pairs = np.concatenate([subtracted, stages(stamps)])
    is_stage = np.arange(len(pairs)) >= len(subtracted)
    starts, ends = pairs.T
    first = readings.iloc[starts].reset_index(drop=True)
    last = readings.iloc[ends].reset_index(drop=True)
    start_sites, end_sites = (
        [stamps[n].site if n in stamps else sites[n] for n in readings_there.tolist()]
        for readings_there in (starts, ends)
    )
    called = callers_of_readings(owner, sites)[starts] if len(starts) else []
    # the stages of a region are apart from the region
    in_one_region = (first["region"] == last["region"]) & ~is_stage
    columns = {
        "process": first["process"],
        "tid": first["tid"],
        "region": first["region"].where(in_one_region, "").astype(object),
        "site": pd.Series([site.site for site in start_sites], dtype=object),
        "end_site": pd.Series([site.site for site in end_sites], dtype=object),
        "callers": pd.Series(callers_of_pairs(start_sites, end_sites, called), dtype=object),
        "t0_ns": first["t_ns"],
        "elapsed_ns": last["value_ns"] - first["value_ns"],
        "lasted_ns": last["t_ns"] - first["t_ns"],
        "is_stage": is_stage,
    }
    may_end = [site.site if site.may_end_timer else None for site in sites]
    unpaired = pd.Series(may_end, dtype=object)
    unpaired[np.unique(pairs)] = None  # a reading that starts or ends a timer belongs to one
    return pd.DataFrame(columns), unpaired


def callers_of_pairs(
    starts: Sequence[Site], ends: Sequence[Site], called: Sequence[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Return the callers by which each pair of readings is told from others of the same lines.

    starts, ends: per pair, the sites of its two readings
    called: per pair, who had called the function of its first reading, () if that is not known

    A lap is what ended at its reading, so that it is told by who called for that:

    52  lap("forward")      def lap(name):                          lap 52 -> 54 is the backward pass: line 54
    53  loss.backward()         now = clock()
    54  lap("backward")         times[name] += now - self.t; self.t = now
    """
    pairs = zip(starts, ends, called, strict=True)
    return [
        end.callers if end.is_lap and end.callers else start.callers or callers
        for start, end, callers in pairs
    ]


def callers_of_readings(owner: np.ndarray, sites: Sequence[Site]) -> np.ndarray:
    """Return, per reading, who had called its function: an array of tuples, () if that is not known.

    owner, sites: as in `differences`

    The log says it of a function's first reading alone.  Where that is the first one in the source as well, it holds
    for the readings behind it, up to the next call:

    67  t0 = clock()            called in line 88           88 | 89
    68  for batch in data:                                  67 69 77 69 77 | 67 69 77
    69      t1 = clock()        what line 67 says
    """
    first: dict[str, int] = {}  # function -> its first instruction that reads a clock
    for site in set(sites):
        first[site.function] = min(site.position, first.get(site.function, site.position))
    latest: dict[tuple[int, str], tuple[str, ...]] = {}
    callers = np.empty(len(sites), dtype=object)
    for reading, (number, site) in enumerate(zip(owner.tolist(), sites, strict=True)):
        function = number, site.function
        if site.callers:
            is_first = site.position == first[site.function] and not site.interleaved
            latest[function] = site.callers if is_first else ()
        callers[reading] = site.callers or latest.get(function, ())
    return callers


def _sites_of(log: EventLog, readings: pd.DataFrame) -> list[Site]:
    """Return the site that made each reading; an empty one if the log does not describe it."""
    table = log.clock_sites
    described = [Site(*row) for row in table[list(Site._fields)].itertuples(index=False)]
    keys = zip(table["process"], table["number"], strict=True)
    site_of_key = dict(zip(keys, described, strict=True))
    keys_of_readings = zip(readings["process"], readings["site"], strict=True)
    return [site_of_key.get(key, Site()) for key in keys_of_readings]


def differences(owner: np.ndarray, sites: Sequence[Site]) -> np.ndarray:
    """Return which clock readings the program subtracts from which: an array (timers, 2) with the positions of the
    start's and the end's reading, sorted.  Only the source and the order of the readings decide, not the trace.

    owner: per reading, a number for its thread and clock: only readings of one thread and clock are subtracted
    sites: per reading, the site that made it: in which variables the source stores the reading there, and which
        variables it subtracts from it

    A reading may be the start of several timers (a lap and a total), once at each place that subtracts it.  Where a
    coroutine reads the clock (an interleaved site), nothing is paired.

    t0 = clock()                reading 0 is stored as t0
    lap = clock() - t0          reading 1 subtracts t0
    total = clock() - t0        reading 2 subtracts t0, at another place:      result [0, 1], [0, 2]
    """
    pairs: set[tuple[int, int]] = set()  # two variables may hold the same reading: one timer
    # (owner, variable) -> the readings that it holds, the latest last
    readings_in: dict[tuple[int, str], list[int]] = defaultdict(list)
    # (owner, place that subtracts, variable) -> the readings that were already subtracted there
    subtracted: dict[tuple[int, tuple[str, int], str], set[int]] = defaultdict(set)
    for reading, (number, site) in enumerate(zip(owner.tolist(), sites, strict=True)):
        if site.interleaved:
            continue
        for variable in site.subtracts:
            subtracted_here = subtracted[number, site.place, variable]
            start = _start_of(site, readings_in[number, variable], subtracted_here, sites)
            if start is not None:
                subtracted_here.add(start)
                pairs.add((start, reading))
        for variable in site.stores:
            held = readings_in[number, variable]
            if not _is_attribute(variable):
                held.clear()  # a plain variable holds the latest reading alone
            held.append(reading)
            del held[:-_DEEP]  # an attribute may belong to several objects, but hardly to more
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


class Stamp(NamedTuple):
    """A reading that is kept, in no timer: one of a sequence of readings in one function, or by one helper."""

    thread: int  # its thread and clock
    sequence: tuple[str, str]  # the function, and the file of the lines
    order: int  # where it stands there
    number: int  # of the readings in no timer of its thread, from 1 on
    site: Site  # with the line that it is called by

    @property
    def place(self) -> tuple[tuple[str, str], int]:
        """The same for all threads."""
        return self.sequence, self.order


def stamps_of(owner: np.ndarray, sites: Sequence[Site], in_timer: np.ndarray) -> dict[int, Stamp]:
    """Return the stamps of a log by their reading, in the order of the readings.

    owner, sites: as in `differences`
    in_timer: per reading, whether it belongs to a timer

    A helper is a function that reads the clock at one place: its readings are told apart by its callers' lines.

    def mark(name):                    def step():
        stamps[name] = clock()             stamps.append(clock())      order: the instruction in step
    mark("a")           order: 4           work()
    mark("b")           order: 5           stamps.append(clock())
    """
    loose = {n: site for n, site in enumerate(sites) if site.may_end_timer and not in_timer[n]}
    count: Counter[int] = Counter()
    number = {}
    for reading in loose:
        count[int(owner[reading])] += 1
        number[reading] = count[int(owner[reading])]
    kept = {
        reading: site
        for reading, site in loose.items()
        if site.use == "kept" and site.function and not site.interleaved
    }
    positions: dict[str, set[int]] = defaultdict(set)
    for site in set(kept.values()):
        positions[site.function].add(site.position)
    stamps = {}
    # who called a function, by thread and function: only the log of its first reading says it
    called_by: dict[tuple[int, str], tuple[str, ...]] = {}
    for reading, site in kept.items():
        thread = int(owner[reading])
        if len(positions[site.function]) == 1 and site.callers:
            site = site._replace(site=site.callers[0], callers=site.callers[1:])
            order = _in_order(site.site)[1]
        else:
            callers = site.callers or called_by.get((thread, site.function), ())
            called_by[thread, site.function] = callers
            site, order = site._replace(callers=callers), site.position
        sequence = site.function, site.site.rpartition(":")[0]
        stamps[reading] = Stamp(thread, sequence, order, number[reading], site)
    return stamps


def stages(stamps: Mapping[int, Stamp]) -> np.ndarray:
    """Return which stamps are the ends of a stage: an array (stages, 2) with the readings of its start and end, sorted.

    A stage reaches from a stamp to the next one of its sequence and thread, further on in the source; no other reading
    that may be a timer's end lies between.  Its two places come twice at least in this order.  A stamp that is ever
    reached from further on, or from itself, begins a pass of a loop: before it lies no stage.

    stamps: per reading, in their order

    A B C  A B C  A C:  A-B, B-C, A-C but nothing before A;  A A B B (one loop after another): nothing before B
    """
    latest: dict[tuple[int, tuple[str, str]], int] = {}  # thread, sequence -> its latest reading
    forward: list[tuple[int, int]] = []
    begins_pass = set()  # places
    for reading, stamp in stamps.items():
        before = latest.get((stamp.thread, stamp.sequence))
        latest[stamp.thread, stamp.sequence] = reading
        if before is None or stamps[before].order >= stamp.order:
            begins_pass.add(stamp.place)
        elif stamps[before].number == stamp.number - 1:
            forward.append((before, reading))
    places = [(stamps[start].place, stamps[end].place) for start, end in forward]
    count = Counter(places)
    pairs = [
        pair
        for pair, (start, end) in zip(forward, places, strict=True)
        if count[start, end] > 1 and end not in begins_pass
    ]
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)


def _is_attribute(variable: str) -> bool:
    """Return whether a variable of a `Site` is an attribute: "run.py:.start", not "run.py:8:start" (of the function at
    line 8)."""
    return variable.rpartition(":")[2].startswith(".")


def _start_of(
    site: Site, held: Sequence[int], subtracted_here: set[int], sites: Sequence[Site]
) -> int | None:
    """Return the reading that a site subtracts when it subtracts a variable; None if that is not certain.

    held: the readings that the variable holds, the latest last
    subtracted_here: the readings of the variable that this place subtracted before
    sites: per reading, the site that made it

    Normally that is the latest reading in the variable.  An attribute, however, may belong to several objects, of which
    the inner one ends first:

    10  with Timer():          __enter__ stores reading 0 as self.start
    11      with Timer():      __enter__ stores reading 1 as self.start
    12          ...            __exit__ of line 11 subtracts 1, then that of line 10 subtracts self.start again: 0

    So if the latest reading was already subtracted here, it is the next older one; but only if another site stored that
    (line 10, not 11 again: a start that was stored twice by one line may have been given up), and if the same file calls
    there and here (both ends of a `with` are in one file).
    """
    newer = None  # the reading that the variable got next after `start`
    for start in reversed(held):
        if start in subtracted_here:
            newer = start
            continue
        if newer is None:
            return start
        is_of_another_site = sites[start] is not sites[newer]
        is_of_same_file = sites[start].calling_file == site.calling_file
        return start if is_of_another_site and is_of_same_file else None
    return None
