"""What a reader should know first, in plain words: the findings, else a reading of the budget; how much time each finding
concerns, and the cards of the page ranked by it.

Lost is the time in which the stream executed nothing.  A copy or a memset counts as lost only in a label where a finding
says that it should not be inside.  A cold first interval is counted separately from the warm ones: its remedy is different.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nsysalign import examples
from nsysalign.compare.confirmations import statuses
from nsysalign.model import CAUSE_MEANING, CAUSES, OPERATION_KINDS, Analysis
from nsysalign.report.palette import LOOKS
from nsysalign.report.rows import LabelRow, label_rows
from nsysalign.text import duration, percent, quantity, safe_text, words

SEVERITIES = ("error", "warning", "info", "reading")
#: Two kinds of advice: a delay before the start event isolates the GPU's time, and makes nothing faster.
#: Not about the GPU's time: the first interval is left out whatever is measured; an interval without GPU work is host time.
_MEASURED_OTHERWISE = ("module-load", "event-floor")
MEASURE_GPU, MEASURE_RIGHT, SPEED_UP = (
    "To measure GPU time only",
    "To measure it right",
    "To make it faster",
)


@dataclass(frozen=True)
class Verdict:
    severity: str  # error, warning, info (findings); reading (computed from the budget)
    label: str
    title: str
    explanation: str  # what the largest part means, '' for findings, whose title says it
    evidence: tuple[tuple[str, str], ...]  # (what, number with its unit)
    advice: str
    site: str
    rule: str  # '' for a reading
    interval: int  # the interval that shows it, -1 for none
    confirmation: str = (
        ""  # the result of a re-run, "not confirmed" for findings without one, '' for readings
    )
    rerun: dict[str, Any] | None = (
        None  # its numbers: the prediction and the result; None without a re-run
    )
    faster: str = ""  # what makes the program faster; `advice` is about measuring


def verdicts(analysis: Analysis, rows: list[LabelRow] | None = None) -> list[Verdict]:
    """Findings first, the most severe first; then a reading of every label without a finding.

    `rows`: the analysis' `label_rows`, if the caller has them.
    """
    rows = label_rows(analysis) if rows is None else rows
    reruns = {
        (c.label, rule): _rerun(c)
        for c in analysis.confirmations.itertuples(index=False)
        for rule in c.rules
    }
    found = [
        Verdict(
            severity=str(f.severity),
            label=str(f.label),
            title=str(f.title),
            explanation="",
            evidence=evidence_text(f.evidence),
            advice=str(f.advice),
            site=str(f.site),
            rule=str(f.rule),
            interval=example,
            confirmation=": ".join(filter(None, status)),
            rerun=reruns.get((f.label, f.rule)),
            faster=str(f.faster),
        )
        for f, example, status in zip(
            analysis.findings.itertuples(index=False),
            examples.of_findings(analysis),
            statuses(analysis),
            strict=True,
        )
    ]
    found.sort(key=lambda v: SEVERITIES.index(v.severity) if v.severity in SEVERITIES else 2)
    spoken = {verdict.label for verdict in found}
    silent = [row for row in rows if row.label not in spoken]
    # The label in which the GPU's stream waits longest comes first.
    silent.sort(
        key=lambda row: (
            row.library,
            sum(row.parts_ns[c] for c in OPERATION_KINDS) - row.elapsed_ns,
        )
    )
    return found + [reading(row) for row in silent]


def _rerun(row: Any) -> dict[str, Any]:  # a row of frames.CONFIRMATIONS
    """What a re-run predicted and measured, None for unknown times."""
    times = ("before_ns", "predicted_low_ns", "predicted_high_ns", "after_ns")
    return {"verdict": str(row.verdict), "metric": str(row.metric), "changed": str(row.changed)} | {
        key: None if np.isnan(value := getattr(row, key)) else float(value) for key in times
    }


def reading(row: LabelRow) -> Verdict:
    """A label's budget as a sentence: the measured time, the kernel's share, and the largest other part."""
    subject = _file(row.site) or row.label
    explanation = ""
    verb = {"nvtx": "spans"}.get(row.kind, "reads")
    kernel = row.kernel_only_upper_ns
    bound = "at most " if row.kernel_only_upper_ns > row.kernel_only_ns else ""
    title = f"{subject} {verb} {duration(row.elapsed_ns)}"
    others = {c: ns for c, ns in row.parts_ns.items() if c not in ("kernel", "graph") and ns > 0}
    largest = max(others, key=others.__getitem__, default=None)
    if row.elapsed_ns > 0 and kernel >= 0.9 * row.elapsed_ns:
        title += f", and {bound}{percent(kernel / row.elapsed_ns)} of it is the kernel."
        if bound:
            title = title.replace("the kernel", "kernels (a CUDA graph traced as one row)")
    else:
        title += (
            f"; the kernel takes {bound}{duration(kernel)}."
            if kernel
            else "; no kernel runs in it."
        )
        if largest:
            part = "The largest other part" if kernel else "Its largest part"
            title += f" {part} is {LOOKS[largest].short}: {duration(others[largest])}."
            explanation = f"{LOOKS[largest].short}: {CAUSE_MEANING[largest]}."
    spread = (
        (
            "range over " + f"{row.count} intervals",
            f"{duration(row.min_ns)} to {duration(row.max_ns)}",
        ),
    )
    evidence = tuple(
        (LOOKS[c].short, duration(ns)) for c, ns in sorted(others.items(), key=lambda p: -p[1])[:3]
    )
    return Verdict(
        severity="reading",
        label=row.label,
        title=title,
        explanation=explanation,
        evidence=evidence + (spread if row.count > 1 else ()),
        advice="",
        site=row.site,
        rule="",
        interval=row.interval,
    )


def _file(site: str) -> str:
    """A call site without its folders: the full one is shown next to the sentence."""
    return site.replace("\\", "/").rpartition("/")[2]


def evidence_text(evidence: object) -> tuple[tuple[str, str], ...]:
    """A finding's evidence as (what, number with its unit)."""
    if not isinstance(evidence, dict):
        return (("evidence", safe_text(evidence)),) if evidence else ()
    return tuple(
        (safe_text(words(key)), quantity(str(key), value)) for key, value in evidence.items()
    )


def advices(v: Verdict) -> list[tuple[str, str, tuple[str, ...]]]:
    """(heading, sentence, lines of code) of both kinds of advice, if the finding has them.  A finding with a remedy for the
    program also says how to measure the GPU without that effect; others are about the measurement itself.
    """
    measure = MEASURE_GPU if v.faster and v.rule not in _MEASURED_OTHERWISE else MEASURE_RIGHT
    both = ((measure, v.advice), (SPEED_UP, v.faster))
    return [(head, *sentence_and_code(text)) for head, text in both if text]


def sentence_and_code(text: str) -> tuple[str, tuple[str, ...]]:
    """ "Do this:   code" as the sentence and its code."""
    sentence, *code = re.split(r" {3,}", safe_text(text))
    return sentence, tuple(code)


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


def _loss(
    row: LabelRow, at: np.ndarray, elapsed: np.ndarray, start: np.ndarray, matrix: np.ndarray
) -> Loss:
    unwanted = {cause for rule, cause in UNWANTED.items() if rule in row.findings}
    idle = [
        k for k, cause in enumerate(CAUSES) if cause not in OPERATION_KINDS or cause in unwanted
    ]
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
