"""Was an event log written during this trace?  Process ids repeat: in a container every run may be process 7."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from nsysalign.errors import EventLogError
from nsysalign.model import EventLog

#: By how much the host's clock may have been set between the trace's start and the log's.
_CLOCK_SET_NS = 10_000_000_000


@dataclass(frozen=True)
class Seen:
    """The processes and threads of a trace: globalPids with CUDA rows, globalTids that made record calls; its first and last
    call."""

    processes: frozenset[int]
    recorders: frozenset[int]
    first_ns: int
    last_ns: int


def other_runs(seen: Seen, session: int | None, log: EventLog) -> dict[int, str]:
    """Processes of the log whose records all lie outside the trace by the wall clock -> the message about them.

    `session`: when the trace began (UTC, ns), None if the trace does not say.

    {} if either side does not know the wall clock.  Raises EventLogError if the log holds no other process.
    """
    if session is None or seen.last_ns <= 0:
        return {}
    first, last = session + seen.first_ns, session + seen.last_ns
    others, spans = {}, _spans(log)
    for number, span in spans.items():
        header = log.headers[number]
        away = max(span[0] - last, first - span[1])
        if away > _CLOCK_SET_NS:
            when = "after the trace ends" if span[0] > last else "before the trace begins"
            whose = f" of process {pid}" if isinstance(pid := header.get("pid"), int) else ""
            others[number] = (
                f"the event log{whose} belongs to another run: its records lie {_long(away)} {when}"
            )
    if others and len(others) == len(spans) == len(log.headers):
        raise EventLogError(
            next(iter(others.values())), "use the events-PID.jsonl of the run that made this trace"
        )
    return others


def _spans(log: EventLog) -> dict[int, tuple[int, int]]:
    """Process -> wall-clock times of its first and last log line; processes that logged no wall clock are left out."""
    clocks = log.clocks[log.clocks["realtime_ns"] > 0].drop_duplicates("process")
    offset = dict(
        zip(clocks["process"], clocks["realtime_ns"] - clocks["monotonic_ns"], strict=True)
    )
    times = pd.concat([t[["process", "t0_ns"]] for t in (log.records, log.hosts)])
    ends = times.groupby("process")["t0_ns"].agg(["min", "max"])
    return {
        int(process): (int(first) + int(offset[process]), int(last) + int(offset[process]))
        for process, first, last in ends.itertuples()
        if process in offset
    }


def _long(ns: int) -> str:
    seconds = ns // 1_000_000_000
    return (
        f"{seconds} s"
        if seconds < 7_200
        else f"{seconds // 3600} h"
        if seconds < 172_800
        else f"{seconds // 86_400} days"
    )
