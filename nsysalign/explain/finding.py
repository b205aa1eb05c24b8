"""What a rule returns: findings and remarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nsysalign import registry

if TYPE_CHECKING:
    import pandas as pd

    from nsysalign.model import Analysis

SEVERITIES = ("error", "warning", "info")
NOT_CONFIRMED = "not confirmed"


class Status(NamedTuple):
    """What is known about a finding beyond the trace in which it was found."""

    #: confirmed, refuted, unclear, not confirmed.
    verdict: str
    text: str  # what was done and its result; the command to type if a re-run can decide; else ''


def statuses(analysis: Analysis) -> list[Status]:
    """One for each row of `analysis.findings`: what add-ons found out since."""
    for ask in registry.each("statuses"):
        return ask(analysis)
    return [Status(NOT_CONFIRMED, "")] * len(analysis.findings)


#: How the note begins that is said of a trace with CUDA calls and no row of GPU work.
NO_WORK = "the trace holds "
IN_GRAPHS = (
    "Put more of the work into the CUDA graphs that are replayed here, several steps into one, and fuse what is "
    "launched beside them"
)


class Advice(NamedTuple):
    """What to change.  A delay before the start event isolates the GPU's time but makes nothing
    faster: hence two kinds."""

    measuring: str = ""  # how to measure right; torch code follows a colon and three spaces
    faster: str = ""  # what makes the program faster, if anything
    code: str = ""  # the same as a line of torch code


@dataclass(frozen=True)
class Finding:
    """One diagnosis of one label.  The evidence holds every number that the title states; its keys
    end in their unit: `_ns`, `bytes`, `share`; None is left out."""

    severity: str
    label: str
    title: str
    evidence: Mapping[str, Any]
    advice: Advice = Advice()  # noqa: RUF009
    site: str = ""
    #: Numbers of the intervals that it concerns, and per interval what would go away (ns).
    intervals: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    loss: np.ndarray | None = None
    loss_ns: int = 0  # the same over the run, in which no time counts twice
    interval: int = -1  # the one that is quoted; -1: the label's row, or the slowest of them
    #: Of a run: the title after each `clauses.Cut`, by itself and behind a sentence about its set-up.
    shorter: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    about_row: bool = True  # the typical interval; False: the label's repetitions as a set
    #: Of the one finding of a label: its verdict, the same in words with its number, and its group.
    verdict: str = ""
    words: str = ""
    group: int = -1


class OfRuns(NamedTuple):
    """What is known of runs before rules are asked: records that rules read (`Evidence.of_runs_by`), and
    tables by name."""

    records: Sequence[Any] = ()
    tables: Mapping[str, pd.DataFrame] = {}


class Remark(NamedTuple):
    """A note that a rule leaves, worth no finding: also that it could not check ("host-gap was not
    checked: ...")."""

    text: str


#: What rules yield.
Findings = Iterator[Finding | Remark]
