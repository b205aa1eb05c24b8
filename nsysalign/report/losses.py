"""How much time each finding concerns: per label over all of its intervals, and the cards of the page ranked by it.

Lost is the time in which the stream executed nothing.  A copy or a memset counts as lost only in a label where a finding
says that it should not be inside.  A cold first interval is counted separately from the warm ones: its remedy is different.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsysalign.model import CAUSES, Analysis
from nsysalign.report.rows import LabelRow
from nsysalign.report.verdict import SEVERITIES, WORK, Verdict

#: Rules that say that work of one cause does not belong in the interval.
UNWANTED = {"copy-inside": "memcpy", "memset-inside": "memset"}
#: Rules about the first interval of a label only.
COLD = ("module-load", "warm-up")


@dataclass(frozen=True)
class Loss:
    """Nanoseconds over the intervals of a label; if a rule calls the first one cold, it is not among them."""

    count: int  # intervals
    total_ns: int  # what they measured
    lost_ns: int  # of that, without work on the stream
    first_ns: int = 0  # what the cold first one measured, 0 if none is cold
    cold_ns: int = 0  # how much that exceeds the median of the others

    @property
    def all_ns(self) -> int:
        return self.total_ns + self.first_ns


@dataclass(frozen=True)
class Entry:
    """One label on a card."""

    finding: Verdict
    count: int  # intervals that it is about
    total_ns: int  # measured in them
    lost_ns: int  # and lost
    others: tuple[Verdict, ...]  # further findings about the label
    cold: str = ""  # "warm" or "cold" if the first interval is counted separately


@dataclass(frozen=True)
class Card:
    """One rule, with every label that it explains best; the label that loses most comes first."""

    rule: str  # '' for a reading
    severity: str
    lost_ns: int
    entries: tuple[Entry, ...]


def losses(analysis: Analysis, rows: Sequence[LabelRow], matrix: np.ndarray) -> dict[str, Loss]:
    """Per label; `matrix`: parts of every interval by cause (`rows.parts_matrix`)."""
    groups = analysis.intervals.groupby("label", sort=False).indices
    elapsed, start = (analysis.intervals[c].to_numpy() for c in ("elapsed_ns", "start_ns"))
    return {row.label: _loss(row, groups[row.label], elapsed, start, matrix) for row in rows}


def _loss(row: LabelRow, at: np.ndarray, elapsed: np.ndarray, start: np.ndarray, matrix: np.ndarray) -> Loss:
    unwanted = {cause for rule, cause in UNWANTED.items() if rule in row.findings}
    idle = [k for k, cause in enumerate(CAUSES) if cause not in WORK or cause in unwanted]
    lost, first = matrix[np.ix_(at, idle)].sum(axis=1), start[at].argmin()
    total, missed = int(elapsed[at].sum()), int(lost.sum())
    if len(at) == 1 or not set(COLD) & set(row.findings):
        return Loss(len(at), total, missed)
    cold = int(elapsed[at[first]])
    excess = max(0, cold - int(np.median(np.delete(elapsed[at], first))))
    return Loss(len(at) - 1, total - cold, missed - int(lost[first]), cold, excess)


def cards(said: Sequence[Verdict], found: dict[str, Loss]) -> list[Card]:
    """Findings by rule: each label stands on the card of its gravest finding, and on that of its cold first interval.

    Errors come first, for they say that a number is not what it seems; then the largest loss.
    """
    by_label: dict[str, list[Verdict]] = {}
    for verdict in said:
        if verdict.rule:
            by_label.setdefault(verdict.label, []).append(verdict)
    entries: dict[str, list[Entry]] = {}
    for label, own in by_label.items():
        loss = found.get(label, Loss(0, 0, 0))
        warm = "warm" if loss.first_ns else ""
        main = next((v for v in own if v.rule not in COLD), None)
        cold = next((v for v in own if v.rule in COLD), None)
        both = (
            (main, (loss.count, loss.total_ns, loss.lost_ns), warm),
            (cold, (1, loss.first_ns, loss.cold_ns), "cold"),
        )
        for verdict, numbers, which in both:
            if verdict is not None:
                others = tuple(v for v in own if v is not verdict)
                entries.setdefault(verdict.rule, []).append(Entry(verdict, *numbers, others, which))
    made = [_card(rule, sorted(own, key=lambda e: -e.lost_ns)) for rule, own in entries.items()]
    return sorted(made, key=lambda card: (card.severity != "error", -card.lost_ns))


def _card(rule: str, entries: list[Entry]) -> Card:
    worst = min((e.finding.severity for e in entries), key=SEVERITIES.index)
    return Card(rule, worst, sum(e.lost_ns for e in entries), tuple(entries))
