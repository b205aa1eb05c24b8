"""Windows from what the program read off the host's clocks, and from its regions: kind `host`.

Only what holds CUDA work counts: a call of the reading thread, or a launch by a thread that reads no clock itself
(autograd's worker runs the backward pass of the thread that waits for it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.align.clock import ClockMap
from nsysalign.align.others import host_frame, host_windows
from nsysalign.align.pairing import Pairs, Site, pair
from nsysalign.model import CALL, EventLog, Trace

_LAUNCHING = ("launch", "graph_launch", "memcpy", "memset", "host_function", "stream_memory_op")
#: Calls that are no work and no wait: an interval with nothing else inside is not about CUDA.
_IDLE = ("record", "query_event", "query_stream", "wait_event")
#: A wall clock that disagrees by more than this with the monotonic one was set in between.
_STEP_NS, _STEP_SHARE = 1_000_000, 0.01
GUESSED = "guessed-pair"


class _Inside:
    """What each thread's calls were, for questions about stretches of time."""

    def __init__(self, trace: Trace, readers: set[int]) -> None:
        calls = trace.calls
        outer = calls["outer"].to_numpy() == np.arange(len(calls))
        kind, thread, start = (calls[c].to_numpy() for c in ("kind", "thread", "start_ns"))
        launching = outer & np.isin(kind, [CALL[k] for k in _LAUNCHING])
        busy = outer & ~np.isin(kind, [CALL[k] for k in _IDLE])
        self._own = {int(t): np.sort(start[busy & (thread == t)]) for t in np.unique(thread)}
        self._launches = {int(t): np.sort(start[launching & (thread == t)]) for t in np.unique(thread)}
        others = launching & ~np.isin(thread, list(readers))
        self._workers = {
            int(p): np.sort(start[others & (thread & ~0xFFFFFF == p)]) for p in np.unique(thread & ~0xFFFFFF)
        }

    def work(self, thread: int, start: int, end: int) -> bool:
        """Whether a call of this thread, or a launch by a worker of its process, lies inside."""
        return _any(self._own.get(thread), start, end) or _any(
            self._workers.get(thread & ~0xFFFFFF), start, end
        )

    def launch(self, thread: int, start: int, end: int) -> bool:
        return _any(self._launches.get(thread), start, end)


def _any(times: np.ndarray | None, start: int, end: int) -> bool:
    return times is not None and bool(np.searchsorted(times, start) < np.searchsorted(times, end))


def timer_windows(
    trace: Trace, log: EventLog, processes: Mapping[int, int], clocks: Mapping[int, ClockMap]
) -> tuple[pd.DataFrame, list[dict[str, str]], list[str]]:
    """(windows, what could not be placed, notes) of the log's clock readings and regions."""
    readings = log.clock_readings
    known = np.array([p in clocks and p in processes for p in readings["process"].tolist()], dtype=bool)
    readings = readings[known].reset_index(drop=True)
    sites, place = clock_sites(log.clock_sites, readings)
    t = np.zeros(len(readings), np.int64)
    for number, group in readings.groupby("process"):
        t[group.index.to_numpy()] = clocks[int(number)].to_trace(group["t_ns"].to_numpy())
    process = np.array([processes[p] for p in readings["process"].tolist()], dtype=np.int64)
    thread = process | (readings["tid"].to_numpy() & 0xFFFFFF)
    inside = _Inside(trace, set(thread.tolist()))
    pairs = pair(
        thread,
        pd.factorize(readings["clock"])[0],
        place,
        sites,
        lambda i, j: inside.launch(int(thread[i]), int(t[i]), int(t[j])),
    )
    windows, lost = _windows(readings, pairs, sites, place, clocks, t, process, thread, inside)
    regions, lost_regions = _regions(trace, log, processes, clocks, inside, set(windows["region"]))
    notes = _notes(windows, pairs, readings, sites, place, thread, t, inside)
    every = [w for w in (windows, regions) if len(w)]
    whole, disturbed = _undisturbed(pd.concat(every, ignore_index=True) if every else windows, log, clocks)
    return whole, lost + lost_regions + disturbed, notes


def _undisturbed(
    windows: pd.DataFrame, log: EventLog, clocks: Mapping[int, ClockMap]
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """Windows without the harness's own calibration work, which runs before the first event: and those with it."""
    ours = log.records[log.records["calibration"].to_numpy(dtype=bool)]
    hit = np.zeros(len(windows), dtype=bool)
    for number, rows in ours.groupby("process"):
        if number not in clocks:
            continue
        at = np.sort(clocks[int(number)].to_trace(rows["t0_ns"].to_numpy()))
        first, last = (np.searchsorted(at, windows[c].to_numpy()) for c in ("start_ns", "end_ns"))
        hit |= (windows["log_process"].to_numpy() == number) & (last > first)
    lost = [
        {
            "name": region or site or "host timer",
            "reason": "the harness's own calibration work ran inside, before the first event (--no-calibrate leaves it out)",
            "site": site,
        }
        for region, site in windows.loc[hit, ["region", "site"]].itertuples(index=False)
    ]
    return windows[~hit].reset_index(drop=True), lost


def clock_sites(table: pd.DataFrame, readings: pd.DataFrame) -> tuple[list[Site], np.ndarray]:
    """Sites, and the position of each reading's among them; one that the log does not describe knows nothing."""
    columns = ("site", "callers", "function", "position", "use", "stores", "subtracts", "interleaved")
    sites = [Site(*row) for row in table[list(columns)].itertuples(index=False)]
    index = {key: n for n, key in enumerate(table[["process", "number"]].itertuples(index=False, name=None))}
    keys = readings[["process", "site"]].itertuples(index=False, name=None)
    return [*sites, Site()], np.array([index.get(key, len(sites)) for key in keys], dtype=np.int64)


def _windows(
    readings: pd.DataFrame,
    pairs: Pairs,
    sites: list[Site],
    place: np.ndarray,
    clocks: Mapping[int, ClockMap],
    t: np.ndarray,
    process: np.ndarray,
    thread: np.ndarray,
    inside: _Inside,
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """One window per pair with CUDA work inside.  Its length is the difference that the program computed."""
    own = readings["value_ns"].to_numpy()
    keep = [
        inside.work(int(thread[a]), int(t[a]), int(t[b])) for a, b in zip(pairs.start, pairs.end, strict=True)
    ]
    keep = np.array(keep, dtype=bool)
    start, end, guessed = pairs.start[keep], pairs.end[keep], pairs.guessed[keep]
    elapsed, truth = own[end] - own[start], t[end] - t[start]
    stepped = np.abs(elapsed - truth) > _STEP_NS + _STEP_SHARE * truth
    lost = [
        {"name": sites[place[i]].site or "host timer", "reason": "the wall clock was set in between", "site": sites[place[i]].site}
        for i in start[stepped | (elapsed < 0)].tolist()
    ]  # fmt: skip
    good = ~stepped & (elapsed >= 0)
    start, end, guessed, elapsed = start[good], end[good], guessed[good], elapsed[good]
    width = np.array(
        [clocks[p].width_ns for p in readings["process"].to_numpy()[start].tolist()], dtype=np.int64
    )
    site = np.array([sites[n].site for n in place[start].tolist()], dtype=object)
    count = readings["count"].to_numpy()[start].tolist()
    region = readings["region"].to_numpy(dtype=object)
    region = np.where(region[start] == region[end], region[start], "")
    # what timeit measured with another number of repetitions is another quantity
    own_names = [
        r or (f"{s.rpartition('/')[2] or 'timeit'} x{n}" if n else "")
        for r, s, n in zip(region, site, count, strict=True)
    ]
    remarks = [
        (*((GUESSED,) if g else ()), *((f"loop-of-{n}",) if n else ()))
        for g, n in zip(guessed, count, strict=True)
    ]
    frame = host_frame(
        log_process=readings["process"].to_numpy()[start],
        process=process[start],
        thread=thread[start],
        start=t[start],
        elapsed=elapsed,
        width=width,
        region=np.array(own_names, dtype=object),
        site=site,
        end_site=np.array([sites[n].site for n in place[end].tolist()], dtype=object),
    )
    index = frame.index
    frame["callers"] = pd.Series([sites[n].callers for n in place[start].tolist()], dtype=object, index=index)
    frame["remarks"] = pd.Series(remarks, dtype=object, index=index)
    return frames.check(frame, frames.WINDOWS), lost


def _regions(
    trace: Trace,
    log: EventLog,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
    inside: _Inside,
    timed: set[str],
) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """Regions around CUDA work; one that holds timed readings has its interval already."""
    wanted = log.hosts["implicit"].to_numpy() & ~log.hosts["region"].isin(list(timed)).to_numpy()
    windows, lost = host_windows(trace, replace(log, hosts=log.hosts[wanted]), processes, clocks)
    keep = [
        inside.work(*row)
        for row in windows[["thread", "start_ns", "end_ns"]].itertuples(index=False, name=None)
    ]
    return windows[np.array(keep, dtype=bool)].reset_index(drop=True), lost


def _notes(
    windows: pd.DataFrame,
    pairs: Pairs,
    readings: pd.DataFrame,
    sites: list[Site],
    place: np.ndarray,
    thread: np.ndarray,
    t: np.ndarray,
    inside: _Inside,
) -> list[str]:
    """What was guessed, and what is missed."""
    notes = []
    guessed = windows[np.array([GUESSED in r for r in windows["remarks"].tolist()], dtype=bool)]
    for (a, b), rows in guessed.groupby(["site", "end_site"], sort=False):
        where = a if a == b else f"{a} to {b}"
        notes.append(
            f"host timers, {where}: {len(rows)} intervals are guessed from consecutive readings "
            "(the source does not say what is subtracted from what); nsysalign.region names such a stretch for certain"
        )
    notes += [
        f"host timers, {site}: {count} more differences from a start that was already subtracted there are no intervals"
        for site, count in sorted(pairs.again.items())
    ]
    notes += [
        f"host timers, {site}: {count} differences in a coroutine belong to no interval: several of its activations took "
        "turns, and the log does not say which of them read the clock"
        for site, count in sorted(pairs.unclear.items())
    ]
    paired = np.zeros(len(readings), dtype=bool)
    paired[pairs.start], paired[pairs.end] = True, True
    alone: dict[str, int] = {}
    previous: dict[tuple[int, str], int] = {}
    clock = readings["clock"].tolist()
    for i, n in enumerate(place.tolist()):
        key = (int(thread[i]), clock[i])
        before = previous.get(key)
        previous[key] = i
        said = sites[n].site in pairs.again or sites[n].site in pairs.unclear
        unclear = (
            not (paired[i] or said) and sites[n].use in ("", "kept", "difference") and before is not None
        )
        if unclear and inside.launch(int(thread[i]), int(t[before]), int(t[i])):
            alone[sites[n].site] = alone.get(sites[n].site, 0) + 1
    notes += [
        f"host timers, {site or 'an unknown place'}: {count} readings after CUDA work belong to no interval: what they are "
        "subtracted from could not be told; nsysalign.region names such a stretch"
        for site, count in sorted(alone.items())
    ]
    return notes
