"""What is known about a whole trace before one stretch of it is analysed by itself.

A stretch does not show everything that decides where its events lie: which processes exist, which streams did any work, how the
clocks relate, how long records take.  Alignment either works these out or is given them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign.model import CALL, EventLog, Trace
from nsysalign.place.event_clock import EventClock
from nsysalign.place.fit import Line
from nsysalign.place.host_clock import ClockMap
from nsysalign.place.latency import LatencyModel
from nsysalign.tiles import distinct


@dataclass(frozen=True)
class Seen:
    """The processes and threads of a trace: globalPids with CUDA rows, globalTids that made record calls; its first and last
    call."""

    processes: frozenset[int]
    recorders: frozenset[int]
    first_ns: int
    last_ns: int


def together(every: Sequence[Seen]) -> Seen:
    """The processes and threads of several parts of one trace, put together."""
    return Seen(
        frozenset().union(*(s.processes for s in every)),
        frozenset().union(*(s.recorders for s in every)),
        min(s.first_ns for s in every),
        max(s.last_ns for s in every),
    )


def look(trace: Trace) -> Seen:
    """The processes and threads in what was read."""
    calls = trace.calls
    recording = calls["thread"].to_numpy()[calls["kind"].to_numpy() == CALL["record"]]
    processes = [distinct(t["process"].to_numpy()) for t in (calls, trace.operations)]
    return Seen(
        frozenset(np.concatenate(processes).tolist()),
        frozenset(distinct(recording).tolist()),
        int(calls["start_ns"].min()) if len(calls) else 0,
        int(calls["end_ns"].max()) if len(calls) else 0,
    )


@dataclass(frozen=True)
class FromTrace:
    """Of a stretch of a trace without an event log: its begin and end, and the pairs of records (`inferred.PAIRED`) that start in
    it, None if still to be worked out."""

    stretch: tuple[int, int]
    pairs: pd.DataFrame | None = None


@dataclass(frozen=True)
class TraceContext:
    """`processes`: log process -> globalPid.  `clocks`: clock maps of the processes that need no refinement on record calls.
    `lanes`: all streams; `busy`: those on which work ran; `from_trace`: given if intervals are
    taken from the trace, because no log says what was measured; `model`: how long records take, None if still to be worked out.
    `event_clock`: covers the records of the log and possibly others; `event_lines`: where its lines lie, None if still to be
    worked out."""

    processes: Mapping[int, int]
    clocks: Mapping[int, ClockMap]
    lanes: pd.DataFrame | None = None
    busy: np.ndarray | None = None
    model: LatencyModel | None = None
    event_clock: EventClock | None = None
    event_lines: Mapping[int, Line] | None = None
    from_trace: FromTrace | None = None

    def about(self, log: EventLog) -> TraceContext:
        """This context without what only other stretches of the log need."""
        if self.event_clock is None:
            return self
        return replace(self, event_clock=self.event_clock.of_rows(log.records.index.to_numpy()))
