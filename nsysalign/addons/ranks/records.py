"""The records between the steps of a comparison of ranks.  All times are int64 nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Source:
    """One trace to analyse: a .nsys-rep or .sqlite, with the event logs that may belong to it."""

    name: str  # unique among the sources, fit for a folder: its own in the output
    trace: Path
    logs: tuple[Path, ...] = ()

    def failed(self, failure: str, next_step: str) -> SourceResult:
        """The result of a trace that could not be analysed."""
        return SourceResult(self.name, str(self.trace), failure=failure, next_step=next_step)


@dataclass(frozen=True)
class LabelTimes:
    """What one rank measured under one label, or of one of its kinds of work."""

    label: str  # with its kind of work where it has several
    windows: np.ndarray  # (intervals, 2): starts and ends on the trace's clock, by start
    parts_mean_ns: Mapping[str, float]  # causes that are not always zero, first calls apart
    first: np.ndarray | None = None  # bool: which of them are first calls, None for none

    @property
    def steady(self) -> np.ndarray:
        """Which of them are no first calls, all where there are no others."""
        if self.first is None or self.first.all():
            return np.ones(len(self.windows), bool)
        return ~self.first


@dataclass(frozen=True)
class RankSummary:
    """One process of one trace, small enough to travel between machines; times are on its trace's
    clock."""

    source: str
    pid: int
    device: int  # the lowest CUDA device of its intervals and collectives, -1 unknown
    session_start_ns: int | None  # by the machine's clock, since 1970
    host: str | None  # digest: equal on one machine
    launcher_rank: int | None  # the number that torchrun, mpirun or srun gave the profiled command
    labels: tuple[LabelTimes, ...]
    collectives: pd.DataFrame  # frames.COLLECTIVES of this process


@dataclass(frozen=True)
class SourceResult:
    """The result for one trace: its ranks, or the reason why there are none."""

    source: str
    trace: str  # as the user named it
    ranks: tuple[RankSummary, ...] = ()
    failure: str = ""
    next_step: str = ""
    report: str = ""  # path of the page, relative to the output directory


# From here on the fields are those of ranks.json.


@dataclass(frozen=True)
class Clock:
    """How one trace's times become common ones: t + offset_ns + drift * (t - origin_ns).  `method`:
    reference (it is the common clock); collectives (its session start, corrected by where the
    collectives end); session start (of the machine's clock, not checked); none (not comparable)."""

    source: str
    method: str
    offset_ns: int = 0
    drift: float = 0.0
    origin_ns: int = 0
    correction_ns: int = 0  # what the collectives changed, 0 without them
    error_ns: int | None = None  # 95 % of the collectives' ends agree this well; None: unchecked
    collectives: int = 0
    reason: str = ""  # why the collectives were not used, '' if they were


@dataclass(frozen=True)
class RankLabel:
    """One label on one rank, with what its collectives waited for."""

    rank: int
    count: int
    median_ns: float
    mean_ns: float
    parts_mean_ns: Mapping[str, float]
    collectives: int  # matched collectives that began inside its intervals
    wait_ns: int  # time spent in them before the last rank arrived, all intervals together
    wait_median_ns: int  # median over the intervals
    waits_for_ns: Mapping[int, int]  # rank -> waited for it, the longest first
    arrived_last: int  # collectives in which this rank clearly arrived last
    slowest_in: int  # repetitions in which this rank measured the longest time


@dataclass(frozen=True)
class LabelComparison:
    """One label over all ranks.  `verdict` is the first of these that applies:

    alone    one rank measured it
    waits    a rank waits a considerable share of its time in collectives for the last one to arrive
    even     the medians (first calls apart) do not differ noticeably
    unclear  they differ, but no rank is the slowest in most of the intervals, there are too few, or
             collectives inside could not be matched: who waits in one is longest, and is not the
             slow one
    slowest  one rank is slower than the others most of the time
    """

    label: str
    verdict: str
    slow: int | None  # the slowest rank, or that the others wait for; None if it is not one rank
    waiting: int | None  # rank that waits most, if that matters
    spread_ns: float  # largest minus smallest median
    repetitions: int  # that every rank has
    collectives: int  # matched collectives inside
    ranks: tuple[RankLabel, ...]  # in the order of the ranks; ranks without the label are absent

    def row(self, rank: int | None) -> RankLabel | None:
        """A rank's row, None without one."""
        return next((row for row in self.ranks if row.rank == rank), None)


@dataclass(frozen=True)
class Wait:
    """Over all collectives, inside intervals or not: `rank` waited for `waits_for`, the last to
    arrive."""

    rank: int
    waits_for: int
    collectives: int
    wait_ns: int


@dataclass(frozen=True)
class Rank:
    """A rank as tables name it."""

    rank: int
    source: str
    pid: int
    device: int
    report: str  # its page, relative to the output directory; '' where there is none


@dataclass(frozen=True)
class RankComparison:
    ranks: tuple[Rank, ...]
    clocks: tuple[Clock, ...]  # one per trace
    labels: tuple[LabelComparison, ...]
    waits: tuple[Wait, ...]
    failures: tuple[SourceResult, ...]
