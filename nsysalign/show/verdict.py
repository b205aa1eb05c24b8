"""What a reader should know first, in plain words: the findings, else a reading of the budget; and
the cards of the page.

A finding has its own loss: what would go away over the run if its advice were followed, at most.
Losses of different findings are never added up: they may be about the same time.  Idle is the time
of a label in which its stream executed nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nsysalign.explain.finding import statuses
from nsysalign.explain.rules import DOUBTS
from nsysalign.model import CAUSE_MEANING, CAUSES, OPERATION_KINDS, Analysis
from nsysalign.show.palette import LOOKS
from nsysalign.show.rows import LabelRow, label_rows
from nsysalign.text import duration, percent, quantity, safe_text, words

SEVERITIES = ("error", "warning", "info", "reading")
#: Two kinds of advice: a delay before the start event isolates the GPU's time, and makes nothing
#: faster. Not about the GPU's time: the first interval is left out whatever is measured; an
#: interval without GPU work is host time.
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
    faster: str = ""  # what makes the program faster; `advice` is about measuring
    loss_ns: int = 0  # over the run, at most
    library: bool = False  # about what a library measured, not the program


def verdicts(analysis: Analysis, rows: list[LabelRow] | None = None) -> list[Verdict]:
    """Findings first, the most severe first; then a reading of every label without a finding.

    `rows`: the analysis' `label_rows`, if the caller has them.
    """
    rows = label_rows(analysis) if rows is None else rows
    libraries = {row.label for row in rows if row.library}
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
            interval=int(f.interval),
            confirmation=": ".join(filter(None, status)),
            faster=str(f.faster),
            loss_ns=int(f.loss_ns),
            library=str(f.label) in libraries,
        )
        for f, status in zip(
            analysis.findings.itertuples(index=False), statuses(analysis), strict=True
        )
    ]
    found.sort(
        key=lambda v: (v.library, SEVERITIES.index(v.severity) if v.severity in SEVERITIES else 2)
    )
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


def reading(row: LabelRow) -> Verdict:
    """A label's budget as a sentence: the measured time, the kernel's share, and the largest other
    part."""
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
    """(heading, sentence, lines of code) of both kinds of advice, if the finding has them.  A
    finding with a remedy for the program also says how to measure the GPU without that effect;
    others are about the measurement itself.
    """
    measure = MEASURE_GPU if v.faster and v.rule not in _MEASURED_OTHERWISE else MEASURE_RIGHT
    both = ((measure, v.advice), (SPEED_UP, v.faster))
    return [(head, *sentence_and_code(text)) for head, text in both if text]


def sentence_and_code(text: str) -> tuple[str, tuple[str, ...]]:
    """ "Do this:   code" as the sentence and its code."""
    sentence, *code = re.split(r" {3,}", safe_text(text))
    return sentence, tuple(code)


#: Rules about the first intervals of a label only.
COLD = ("module-load", "warm-up")


@dataclass(frozen=True)
class Spent:
    """Nanoseconds over the intervals of a label; those that a rule calls cold are not among
    them."""

    count: int  # intervals
    total_ns: int  # what they measured
    idle_ns: int  # of that, without work on the stream
    cold: int = 0  # cold intervals
    cold_ns: int = 0
    cold_idle_ns: int = 0


@dataclass(frozen=True)
class Entry:
    """One label on a card."""

    finding: Verdict
    count: int  # intervals of the label
    total_ns: int  # measured in them
    others: tuple[Verdict, ...]  # further findings about the label that have no card
    cold: str = ""  # "warm" or "cold" if cold intervals are counted separately


@dataclass(frozen=True)
class Card:
    """One rule and one advice, with the labels for which they hold: the program's own before those
    of libraries, the one that loses most first."""

    rule: str  # '' for a reading
    severity: str
    loss_ns: int  # of the first entry
    entries: tuple[Entry, ...]

    @property
    def library(self) -> bool:
        return all(entry.finding.library for entry in self.entries)


def spent(analysis: Analysis, rows: Sequence[LabelRow], matrix: np.ndarray) -> dict[str, Spent]:
    """Per label; `matrix`: parts of every interval by cause (`rows.parts_matrix`)."""
    groups = analysis.intervals.groupby("label", sort=False).indices
    elapsed = analysis.intervals["elapsed_ns"].to_numpy()
    work = [CAUSES.index(cause) for cause in OPERATION_KINDS]
    idle = elapsed - matrix[:, work].sum(axis=1) + staging(analysis)
    is_cold = cold(analysis)
    out = {}
    for row in rows:
        at = groups[row.label]
        colds, warm = at[is_cold[at]], at[~is_cold[at]]
        sums = (int(values[some].sum()) for some in (warm, colds) for values in (elapsed, idle))
        total, waited, cold_ns, cold_idle_ns = sums
        out[row.label] = Spent(len(warm), total, waited, len(colds), cold_ns, cold_idle_ns)
    return out


def cold(analysis: Analysis) -> np.ndarray:
    """Which intervals a rule calls cold; none of a label of which it does so of all."""
    named = [bool(set(COLD).intersection(rules)) for rules in analysis.intervals["findings"]]
    warm = analysis.intervals.loc[~np.array(named, bool), "label"]
    return np.array(named, bool) & analysis.intervals["label"].isin(warm).to_numpy()


def staging(analysis: Analysis) -> np.ndarray:
    """Of `memcpy`, per interval: time in which the host staged pageable memory, and the device ran
    nothing."""
    import pandas as pd

    details = analysis.details
    rows = details[(details["cause"] == "memcpy") & (details["detail"] == "staging")]
    at = pd.Index(analysis.intervals["interval"]).get_indexer(rows["interval"])
    out = np.zeros(len(analysis.intervals), np.int64)
    np.add.at(out, at[at >= 0], rows["ns"].to_numpy()[at >= 0])
    return out


def cards(said: Sequence[Verdict], known: Mapping[str, Spent], first: str = "") -> list[Card]:
    """What is said first comes first: errors, then warnings, then notes, by loss; about libraries
    last.  Findings share a card if their advice is the same.  Notes that lose nothing have no card
    if the label has another.

    `first`: a label whose cards come before those of the same severity.
    """
    by_label: dict[str, list[Verdict]] = {}
    for verdict in said:
        if verdict.rule:
            by_label.setdefault(verdict.label, []).append(verdict)
    entries: dict[tuple[str, str, str], list[Entry]] = {}
    for label, own in by_label.items():
        mine = known.get(label, Spent(0, 0, 0))
        chosen = [v for v in own if v.severity != "info" or v.loss_ns] or own[:1]
        chips = tuple(v for v in own if v not in chosen)
        for number, verdict in enumerate(chosen):
            is_cold = verdict.rule in COLD and mine.cold > 0
            own_count = (mine.cold, mine.cold_ns) if is_cold else (mine.count, mine.total_ns)
            which = "cold" if is_cold else "warm" if mine.cold else ""
            key = (verdict.rule, verdict.advice, verdict.faster)
            entry = Entry(verdict, *own_count, () if number else chips, which)
            entries.setdefault(key, []).append(entry)
    made = []
    for (rule, *_), own in entries.items():
        order = sorted(
            own, key=lambda e: (e.finding.library, e.finding.label != first, -e.finding.loss_ns)
        )
        worst = min((e.finding.severity for e in own), key=SEVERITIES.index)
        made.append(Card(rule, worst, order[0].finding.loss_ns, tuple(order)))
    return sorted(
        made,
        key=lambda card: (
            card.library,
            SEVERITIES.index(card.severity),
            card.entries[0].finding.label != first,
            card.rule not in DOUBTS,
            -card.loss_ns,
        ),
    )


def largest_loss(ranked: Sequence[Card]) -> Entry | None:
    """What costs most, of what the program itself does: of warnings if there are any."""
    return next(
        (c.entries[0] for c in ranked if c.loss_ns and c.severity != "error" and not c.library),
        None,
    )
