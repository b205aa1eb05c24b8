"""What is known of a trace as a whole before a stretch of it is looked at by itself.

A stretch does not show everything that decides where its events lie: which processes there are, on which streams work
ran at all, how the clocks go, how long records take.  Alignment finds these out, or is given them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from nsysalign.align.event_line import EventLine
from nsysalign.align.latency import LatencyModel
from nsysalign.clocks.events import EventClock
from nsysalign.clocks.host import ClockMap
from nsysalign.model import CALL, EventLog, Trace
from nsysalign.sweep.tiles import distinct


@dataclass(frozen=True)
class Seen:
    """Who appears in a trace: globalPids with CUDA rows, globalTids that made record calls; its first and last call."""

    processes: frozenset[int]
    recorders: frozenset[int]
    first_ns: int
    last_ns: int


def together(every: Sequence[Seen]) -> Seen:
    """Who appears in several parts of one trace."""
    return Seen(
        frozenset().union(*(s.processes for s in every)),
        frozenset().union(*(s.recorders for s in every)),
        min(s.first_ns for s in every),
        max(s.last_ns for s in every),
    )


def look(trace: Trace) -> Seen:
    """Who appears in what was read."""
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
class TraceContext:
    """`processes`: log process -> globalPid.  `clocks`: of every process whose clock needs no refinement on record calls.
    `lanes`: all streams; `busy`: on which of them work ran; `model`: how long records take: None where that is to be
    found out.  `event_clock`: of the records of the log, and maybe of others; `event_lines`: where its lines lie, None where that is to be
    found out."""

    processes: Mapping[int, int]
    clocks: Mapping[int, ClockMap]
    lanes: pd.DataFrame | None = None
    busy: np.ndarray | None = None
    model: LatencyModel | None = None
    event_clock: EventClock | None = None
    event_lines: Mapping[int, EventLine] | None = None

    def about(self, log: EventLog) -> TraceContext:
        """The same without what only other stretches of the log need."""
        if self.event_clock is None:
            return self
        return replace(self, event_clock=self.event_clock.of_rows(log.records.index.to_numpy()))
