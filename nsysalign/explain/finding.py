"""What a rule returns: findings, and remarks that it could not check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from nsysalign import registry
from nsysalign.explain import words

if TYPE_CHECKING:
    from nsysalign.model import Analysis

SEVERITIES = ("error", "warning", "info")


NOT_CONFIRMED = "not confirmed"


class Status(NamedTuple):
    """What is known about a finding beyond the trace in which it was found."""

    #: confirmed, refuted, unclear, not confirmed; measured: the finding itself compares two runs.
    verdict: str
    text: str  # what was done and its result; the command to type if a re-run can decide; else ''


def statuses(analysis: Analysis) -> list[Status]:
    """One for each row of `analysis.findings`: what add-ons found out since."""
    for ask in registry.each("statuses"):
        return ask(analysis)
    return [Status(NOT_CONFIRMED, "")] * len(analysis.findings)


class Words(NamedTuple):
    """A sentence for any program, and the line of torch code that shows it ('' for none)."""

    sentence: str
    code: str = ""


@dataclass(frozen=True)
class Finding:
    """One diagnosis of one label.  The evidence holds every number that the title states, and few
    others; its keys end in their unit: `_ns`, `bytes`, `share`."""

    severity: str
    label: str
    title: str
    evidence: Mapping[str, Any]
    advice: str  # how to measure the GPU's time alone, or how to measure right
    site: str
    intervals: np.ndarray = field(
        default_factory=lambda: np.empty(0, np.int64)
    )  # positions in analysis.intervals
    interval: int = (
        -1
    )  # position of the one that is quoted; -1: chosen for rules that quote no single one
    loss: np.ndarray | None = None  # per interval in `intervals`: what would go away, ns
    loss_ns: int = 0  # the same over the run, in which no time counts twice
    about_row: bool = True  # the typical interval; False: the label's repetitions as a set
    run: int = -1  # number of the run's interval that it is about, -1: it is about measured ones
    remedy: Words | None = None  # what makes the program faster, if the rule says it itself
    faster: str = ""  # what makes the program faster; `advice` is about measuring (see `FASTER`)
    rule: str = ""  # its name in the registry, which fills it in


@dataclass(frozen=True)
class About:
    """What findings are about: a label, its call site, and the positions of its intervals that show
    it."""

    label: str
    site: str
    positions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    #: Default: whether they are about the typical interval (the label's row).
    of_row: ClassVar[bool] = True

    @property
    def quoted(self) -> int:
        """The interval whose numbers they state, -1 for none in particular."""
        return -1

    @property
    def who(self) -> str:
        """The label as titles name it."""
        return words.subject(self.label)

    def finding(
        self,
        severity: str,
        title: str,
        advice: str,
        loss: np.ndarray | None = None,
        *,
        positions: np.ndarray | None = None,
        interval: int | None = None,
        about_row: bool | None = None,
        **values: Any,
    ) -> Finding:
        """A finding about the label.  `loss`: ns of every interval of the analysis; `values`: its
        evidence; `positions`: its intervals if they differ from the label's."""
        mine = self.positions if positions is None else positions
        quoted = self.quoted if interval is None else interval
        typical = self.of_row if about_row is None else about_row
        lost = None if loss is None else np.maximum(loss[mine], 0)
        return Finding(severity, self.label, title, evidence(**values), advice, self.site, mine, quoted, lost, about_row=typical)  # fmt: skip


@dataclass(frozen=True)
class CouldNotLook:
    """A rule could not check; that is different from not finding anything."""

    reason: str


def evidence(**values: Any) -> dict[str, Any]:
    """Evidence as plain Python values (JSON), without None and empty values."""
    out = {}
    for key, value in values.items():
        if value is None or (isinstance(value, (str, list, dict)) and not value):
            continue
        if isinstance(value, np.integer):
            value = int(value)
        elif isinstance(value, (float, np.floating)):
            value = round(float(value)) if key.endswith("_ns") else round(float(value), 4)
        out[key] = value
    return out
