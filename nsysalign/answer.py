"""What an analysis says, decided once: terminal, page, notebook and `show` draw this record, and
decide nothing.

    Analysis (tables) --> answer() --> Answer --> terminal | page | notebook | show

A finding has its own loss: what would go away over the run if its advice were followed, at most.
Losses of different findings are never added up: they may be about the same time.  Idle is the time
of a label in which its stream executed nothing.  Texts of findings and notes are `safe_text`; labels
and sites are as the trace has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign.explain.finding import NOT_CONFIRMED, statuses
from nsysalign.explain.rules import DOUBTS
from nsysalign.explain.rules.whole_run import run_sentence
from nsysalign.model import (
    CAUSE_MEANING,
    CAUSES,
    CLOCK_REASONS,
    OPERATION_KINDS,
    SLOWED_BITS,
    Analysis,
)
from nsysalign.parts import SHORT, parts_matrix
from nsysalign.text import duration, percent, plural, quantity, safe_text, within, words
from nsysalign.verdicts import COLD, First, first_screen

if TYPE_CHECKING:
    import pandas as pd

SEVERITIES = ("error", "warning", "info", "reading")
#: Two kinds of advice: a delay before the start event isolates the GPU's time, and makes nothing
#: faster. Not about the GPU's time: the first interval is left out whatever is measured; an
#: interval without GPU work is host time.
_MEASURED_OTHERWISE = ("module-load", "event-floor")
MEASURE_GPU = "To measure GPU time only"
MEASURE_RIGHT = "To measure it right"
SPEED_UP = "To make it faster"
VIEWS = {"python": "Python stacks", "range": "NVTX ranges", "os": "OS calls"}

#: Causes, functions, ranges or calls that a sentence names.
_MOST_CAUSES, _MOST_NAMED = 4, 3
#: Where the intervals cover less of the run than this share, the sentence says that the rest was
#: not timed.
_UNTIMED = 0.9
#: A note about a smaller share of the run than this is not the first thing to say.
_WORTH_SAYING = 0.01
#: A share of the gaps below this does not explain them; waiting for the host below this share of
#: the label's time does not matter.
_WORTH_NAMING, _MATTERS = 0.02, 0.1
#: Host gaps of a label from this length on are worth recording again: they give a handful of
#: samples.
_WORTH_SAMPLING_NS = 5_000_000


@dataclass(frozen=True)
class Spent:
    """Nanoseconds over the intervals of a label; those that a rule calls cold are not among the
    first three."""

    count: int = 0  # intervals
    total_ns: int = 0  # what they measured
    idle_ns: int = 0  # of that, without work on the stream
    cold: int = 0  # cold intervals
    cold_ns: int = 0
    cold_idle_ns: int = 0


@dataclass(frozen=True)
class LabelRow:
    """A label, a kind of work of one, or a run, with the breakdown of one real interval: its parts
    add up to `elapsed_ns`."""

    label: str
    kind: str
    count: int
    site: str
    interval: int  # number of the interval shown
    name: str  # its name
    elapsed_ns: int
    error_ns: int
    kernel_only_ns: int
    kernel_only_upper_ns: int
    parts_ns: dict[str, int]  # every cause, zero included
    median_ns: float
    std_ns: float
    min_ns: int
    max_ns: int
    p05_ns: float
    p95_ns: float
    library: bool
    callers: tuple[str, ...]
    findings: tuple[str, ...] = ()  # rules that concern the label
    flagged: bool = False  # one of them is a warning or an error
    unprofiled_ns: tuple[int, int, int] | None = None  # predicted without nsys, and its bounds
    no_prediction: str = ""  # why there is none: "word: sentence"
    #: For host timers: how long kernels issued inside ran before the second reading; None for all
    #: others.
    meanwhile_ns: int | None = None
    host: str = ""  # what the host did while the stream waited for it, if that matters
    spent: Spent = Spent()

    @property
    def kernel_ns(self) -> int:
        """Of its own time: kernels, and CUDA graphs traced as one row."""
        return self.parts_ns["kernel"] + self.parts_ns["graph"]

    def without_nsys(self, unit_ns: int = 1_000) -> str:
        """A cell: the time predicted without nsys and how far that may be off, else why there is
        none in a word."""
        if self.unprofiled_ns:
            return within(*self.unprofiled_ns, unit_ns)
        return in_a_word(self.no_prediction)

    @property
    def only_meanwhile(self) -> bool:
        """Whether the GPU worked on what a host timer issued without that work being part of the
        timer's own time."""
        return bool(self.meanwhile_ns) and not self.kernel_ns


@dataclass(frozen=True)
class Finding:
    """A finding, or the reading of a label without one, in plain words."""

    severity: str  # error, warning, info (findings); reading (computed from the breakdown)
    label: str
    title: str
    site: str
    interval: int  # the interval that shows it, -1 for none
    explanation: str = ""  # of a reading: what its largest part means
    evidence: tuple[tuple[str, str], ...] = ()  # (what, number with its unit)
    #: (heading, sentence, lines of code): how to measure, how to make it faster.
    advice: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    rule: str = ""  # '' for a reading
    loss_ns: int = 0  # over the run, at most
    library: bool = False  # about what a library measured, not the program
    confirmation: str = ""  # the result of a re-run, '' without one
    to_confirm: str | None = None  # the command that could test it, '' for none; None: not open


@dataclass(frozen=True)
class Entry:
    """One label in a group of findings."""

    finding: Finding
    count: int  # intervals of the label
    total_ns: int  # measured in them
    others: tuple[Finding, ...] = ()  # further findings about the label that have no group
    cold: str = ""  # "warm" or "cold" if cold intervals are counted separately


@dataclass(frozen=True)
class Group:
    """Findings of one rule and one advice, with the labels for which they hold: the program's own
    before those of libraries, the one that loses most first."""

    rule: str  # '' for a reading
    severity: str
    entries: tuple[Entry, ...]

    @property
    def loss_ns(self) -> int:
        return self.entries[0].finding.loss_ns

    @property
    def library(self) -> bool:
        return all(entry.finding.library for entry in self.entries)


@dataclass(frozen=True)
class Headline:
    """The run as a whole if the analysis has it, else all intervals of the user's own code."""

    text: str
    of: str  # what its times are of, in words
    elapsed_ns: int
    parts_ns: dict[str, int]
    untimed: bool  # the intervals leave much of the run out


@dataclass(frozen=True)
class Trust:
    """What the numbers rest on; '' for what is not known."""

    gpu: str
    driver: str
    nsys: str
    torch: str
    clock: str  # of the SMs
    measured: str  # how many intervals in how many labels
    #: 95th percentile of `error_ns` over event intervals, None if there are none.
    placed_within_ns: float | None


@dataclass(frozen=True)
class Unplaced:
    reason: str
    count: int
    names: tuple[str, ...]  # up to three different ones, and "…"


@dataclass(frozen=True)
class Answer:
    """Everything a screen says.

    `screen` is the first screen: verdict, sentence, proof, fixes, one verdict per label.
    """

    screen: First
    headline: Headline
    labels: tuple[LabelRow, ...]  # as the analysis has them, those of libraries last
    rows: tuple[LabelRow, ...]  # the same, but one per kind of work of a label that did several
    runs: tuple[LabelRow, ...]  # devices and streams
    findings: tuple[Finding, ...]  # the program's own first, the most severe first
    groups: tuple[Group, ...]  # the same, those with one advice together: first things first
    readings: tuple[Finding, ...]  # of the labels without a finding
    costliest: Entry | None  # the finding that costs most, of what the program itself does
    next: str  # the command that tests the first finding that can be tested, '' for none
    unplaced: tuple[Unplaced, ...]  # the most frequent reason first
    notes: tuple[str, ...]
    trust: Trust
    source: Mapping[str, str]  # call site -> that line of the program

    @property
    def first(self) -> str:
        """The label to look at if none is asked for, '' without any."""
        known = {row.label for row in self.labels}
        return next((f.label for f in (*self.findings, *self.readings) if f.label in known), "")


def answer(analysis: Analysis, first: str = "") -> Answer:
    """The record of an analysis.  `first`: a label whose findings come before those of the same
    severity."""
    matrix = parts_matrix(analysis)
    staged, cold = _staging(analysis), cold_intervals(analysis)
    work = matrix[:, [CAUSES.index(cause) for cause in OPERATION_KINDS]].sum(axis=1) - staged
    labels = _label_rows(analysis, matrix, _spent(analysis, work, cold))
    findings = _findings(analysis, labels)
    groups = _groups(findings, {row.label: row.spent for row in labels}, first)
    spoken = {finding.label for finding in findings}
    # the label in which the GPU's stream waits longest comes first
    silent = sorted(
        (row for row in labels if row.label not in spoken),
        key=lambda row: (row.library, sum(row.parts_ns[c] for c in OPERATION_KINDS) - row.elapsed_ns),
    )  # fmt: skip
    headline = _headline(analysis, labels, matrix, staged)
    commands = (entry.finding.to_confirm for group in groups for entry in group.entries)
    missing = ", ".join(map(safe_text, analysis.trace.missing))
    notes = [safe_text(note) for note in (*analysis.trace.notes, *analysis.notes)]
    notes += [f"not in the trace: {missing}"] if missing else []
    runs, trust = _run_rows(analysis, matrix), _trust(analysis)
    return Answer(
        screen=first_screen(analysis, labels, runs, findings, cold, _trusted(trust)),
        headline=headline,
        labels=tuple(labels),
        rows=tuple(_by_work(analysis, labels, matrix)),
        runs=tuple(runs),
        findings=tuple(findings),
        groups=tuple(groups),
        readings=tuple(map(_reading, silent)),
        costliest=_costliest(groups, headline),
        next=next(filter(None, commands), ""),
        unplaced=tuple(_unplaced(analysis)),
        notes=tuple(dict.fromkeys(notes)),
        trust=trust,
        source={
            safe_text(site): safe_text(text)
            for site, text in analysis.source_lines.itertuples(index=False)
        },
    )


# --- labels ---


def _label_rows(
    analysis: Analysis, matrix: np.ndarray, spent: Mapping[str, Spent]
) -> list[LabelRow]:
    """One row per label in the analysis' order, labels timed by libraries after the user's own."""
    import pandas as pd

    labels, intervals = analysis.labels, analysis.intervals
    positions = pd.Index(intervals["interval"]).get_indexer(labels["row_interval"])
    rules: dict[str, list[tuple[str, str]]] = {}
    found = analysis.findings[["label", "rule", "severity"]]
    for label, rule, severity in found.itertuples(index=False):
        rules.setdefault(str(label), []).append((str(rule), severity))
    predicted, did = _unprofiled(analysis), _host_sentences(analysis, spent)
    columns = (
        "label", "kind", "count", "site", "median_ns", "std_ns", "min_ns", "max_ns", "p05_ns", "p95_ns", "library",
    )  # fmt: skip
    rows = []
    for label, position in zip(labels.itertuples(index=False), positions, strict=True):
        shown = _of_interval(intervals, position, matrix)
        own = rules.get(str(label.label), ())
        waits = shown["parts_ns"]["host"] >= _MATTERS * shown["elapsed_ns"]
        rows.append(
            LabelRow(
                **{name: getattr(label, name) for name in columns},
                **shown,
                **predicted.get(shown["interval"], {}),
                findings=tuple(rule for rule, _ in own),
                flagged=any(severity != "info" for _, severity in own),
                host=did.get(str(label.label), "") if waits else "",
                spent=spent[str(label.label)],
            )
        )
    return sorted(rows, key=lambda row: row.library)


def _of_interval(intervals: pd.DataFrame, position: int, matrix: np.ndarray) -> dict[str, Any]:
    """What a row shows of the interval at this position, and of its parts."""
    shown = next(intervals.iloc[[position]].itertuples(index=False))
    meanwhile = None
    if shown.kind == "host" and shown.kernel_only_ns:
        meanwhile = int(shown.kernel_only_ns) - int(shown.kernel_outside_ns)
    whole = ("interval", "elapsed_ns", "error_ns", "kernel_only_ns", "kernel_only_upper_ns")
    return {
        **{name: int(getattr(shown, name)) for name in whole},
        "name": str(shown.name),
        "parts_ns": dict(zip(CAUSES, matrix[position].tolist(), strict=True)),
        "callers": tuple(shown.callers),
        "meanwhile_ns": meanwhile,
    }


def _unprofiled(analysis: Analysis) -> dict[int, dict[str, Any]]:
    """By interval: what it would have measured without nsys, or why that is unknown."""
    return {
        int(u.interval): {
            "unprofiled_ns": None
            if u.reason
            else (int(u.predicted_ns), int(u.lower_ns), int(u.upper_ns)),
            "no_prediction": str(u.reason),
        }
        for u in analysis.unprofiled.itertuples(index=False)
    }


def in_a_word(no_prediction: str) -> str:
    """What a cell has room for instead of a prediction: the reason's word; "none" for one of an
    older version."""
    word, colon, _ = no_prediction.partition(": ")
    return word if colon and " " not in word else "none"


def _by_work(analysis: Analysis, rows: list[LabelRow], matrix: np.ndarray) -> list[LabelRow]:
    """The rows, with one row per kind of work for a label that did different work: its own median
    would describe none of them."""
    import pandas as pd

    variants, intervals = analysis.variants, analysis.intervals
    positions = pd.Index(intervals["interval"]).get_indexer(variants["row_interval"])
    predicted, of_label = _unprofiled(analysis), {row.label: row for row in rows}
    several: dict[str, list[LabelRow]] = {}
    for variant, position in zip(variants.itertuples(index=False), positions.tolist(), strict=True):
        row = of_label.get(str(variant.label))
        if row is None or position < 0:
            continue
        nothing = {"unprofiled_ns": None, "no_prediction": ""}
        shown = _of_interval(intervals, position, matrix) | {"callers": row.callers}
        several.setdefault(row.label, []).append(
            replace(
                row,
                label=f"{row.label} [{variant.variant}]",
                count=int(variant.count),
                median_ns=float(variant.median_ns),
                **shown,
                **predicted.get(int(variant.row_interval), nothing),
            )
        )
    return [each for row in rows for each in several.get(row.label, [row])]


def _run_rows(analysis: Analysis, matrix: np.ndarray) -> list[LabelRow]:
    """One row per run, devices and streams, as tables of labels have them."""
    intervals = analysis.intervals
    rows = []
    for position in np.flatnonzero((intervals["kind"] == "run").to_numpy()).tolist():
        shown = _of_interval(intervals, position, matrix) | {"callers": ()}
        times = ("median_ns", "min_ns", "max_ns", "p05_ns", "p95_ns")
        rows.append(
            LabelRow(
                label=str(intervals["label"].iloc[position]), kind="run", count=1, site="",
                std_ns=float("nan"), library=False, **shown,
                **dict.fromkeys(times, shown["elapsed_ns"]),
            )
        )  # fmt: skip
    return rows


def causes_present(rows: Sequence[LabelRow]) -> list[str]:
    """The causes that are not zero in every row, in the order of `model.CAUSES`."""
    return [cause for cause in CAUSES if any(row.parts_ns[cause] for row in rows)]


def cold_intervals(analysis: Analysis) -> np.ndarray:
    """Which intervals a rule calls cold, bool per interval; none of a label of which it does so of
    all."""
    named = np.array(
        [bool(set(COLD).intersection(r)) for r in analysis.intervals["findings"]], bool
    )
    labels = analysis.intervals["label"]
    return named & labels.isin(labels[~named]).to_numpy()


def _spent(analysis: Analysis, work: np.ndarray, cold: np.ndarray) -> dict[str, Spent]:
    """Per label.  `work`: ns in which the stream of every interval executed something."""
    elapsed = analysis.intervals["elapsed_ns"].to_numpy()
    idle = elapsed - work
    spent = {}
    for label, positions in analysis.intervals.groupby("label", sort=False).indices.items():
        warm, colds = positions[~cold[positions]], positions[cold[positions]]
        sums = [
            n for some in (warm, colds) for n in (len(some), int(elapsed[some].sum()), int(idle[some].sum()))
        ]  # fmt: skip
        spent[str(label)] = Spent(*sums)
    return spent


def _staging(analysis: Analysis) -> np.ndarray:
    """Of `memcpy`, ns per interval: the host staged pageable memory, and the device ran nothing."""
    import pandas as pd

    details = analysis.details
    rows = details[(details["cause"] == "memcpy") & (details["detail"] == "staging")]
    positions = pd.Index(analysis.intervals["interval"]).get_indexer(rows["interval"])
    staged = np.zeros(len(analysis.intervals), np.int64)
    np.add.at(staged, positions[positions >= 0], rows["ns"].to_numpy()[positions >= 0])
    return staged


# --- what the host did ---


def _host_sentences(analysis: Analysis, spent: Mapping[str, Spent]) -> dict[str, str]:
    """Label -> the contents of its host gaps, view by view; if unknown although the stream was idle
    for long in warm intervals, how to record them."""
    table = analysis.host_activity
    sampled = bool(table["samples"].any())
    sentences = {}
    for label, rows in table.groupby("label", sort=False):
        by_view = dict(iter(rows.groupby("view", sort=False)))
        whole = by_view["all"].iloc[0]
        parts = []
        if whole["samples"]:
            counted = plural(int(whole["samples"]), "sample")
            named = _named(by_view.get("python"))
            parts.append(f"{named} ({counted} in {duration(whole['ns'])} of gaps)")
        elif sampled:
            gaps = duration(whole["ns"])
            parts.append(f"not sampled: none of the samples fell into its {gaps} of gaps")
        for view in ("range", "os"):
            if named := _named(by_view.get(view)):
                parts.append(f"{VIEWS[view]}: {named}")
        idle_ns = spent.get(str(label), Spent()).idle_ns
        if not parts and min(whole["ns"], idle_ns) >= _WORTH_SAMPLING_NS:
            parts = ["not recorded; nsysalign run --sample-python SCRIPT.py names its functions"]
        sentences[str(label)] = "; ".join(parts)
    return sentences


def _named(rows: pd.DataFrame | None) -> str:
    """ "63 % resize (transforms.py:41), 12 % read (loader.py:9, in open (io.py))": the largest, as
    far as they matter."""
    named = []
    for row in () if rows is None else rows.itertuples(index=False):
        if row.name and row.share >= _WORTH_NAMING:
            place = ", in ".join(filter(None, (row.place, row.place and row.within)))
            place = f" ({safe_text(place)})" if place else ""
            named.append(f"{percent(row.share)} {safe_text(row.name)}{place}")
    return ", ".join(named[:_MOST_NAMED])


# --- findings ---


def _findings(analysis: Analysis, rows: Sequence[LabelRow]) -> list[Finding]:
    """All of them: the program's own first, the most severe first."""
    libraries = {row.label for row in rows if row.library}
    findings = []
    for f, status in zip(
        analysis.findings.itertuples(index=False), statuses(analysis), strict=True
    ):
        rule = safe_text(f.rule)
        # A finding with a remedy for the program also says how to measure the GPU without that
        # effect; others are about the measurement itself.
        gpu = f.faster and rule not in _MEASURED_OTHERWISE
        advice = ((MEASURE_GPU if gpu else MEASURE_RIGHT, f.advice), (SPEED_UP, f.faster))
        is_open = status.verdict == NOT_CONFIRMED
        tested = safe_text(": ".join(filter(None, status)))
        findings.append(
            Finding(
                severity=f.severity if f.severity in SEVERITIES else "info",
                label=str(f.label),
                title=safe_text(f.title),
                site=safe_text(f.site),
                interval=int(f.interval),
                evidence=_evidence(f.evidence),
                advice=tuple((head, *_sentence_and_code(text)) for head, text in advice if text),
                rule=rule,
                loss_ns=int(f.loss_ns),
                library=str(f.label) in libraries,
                confirmation="" if is_open else tested,
                to_confirm=safe_text(status.text) if is_open else None,
            )
        )
    return sorted(findings, key=lambda f: (f.library, SEVERITIES.index(f.severity)))


def _evidence(evidence: object) -> tuple[tuple[str, str], ...]:
    """A finding's evidence as (what, number with its unit)."""
    if not isinstance(evidence, dict):
        return (("evidence", safe_text(evidence)),) if evidence else ()
    return tuple(
        (safe_text(words(key)), safe_text(quantity(str(key), value)))
        for key, value in evidence.items()
    )


def _sentence_and_code(text: str) -> tuple[str, tuple[str, ...]]:
    """ "Do this:   code" as the sentence and its code."""
    sentence, *code = re.split(r" {3,}", safe_text(text))
    return sentence, tuple(code)


def _reading(row: LabelRow) -> Finding:
    """A label's breakdown as a sentence: the measured time, the kernel's share, and the largest
    other part."""
    subject = safe_text(row.site.replace("\\", "/").rpartition("/")[2] or row.label)
    title = f"{subject} {'spans' if row.kind == 'nvtx' else 'reads'} {duration(row.elapsed_ns)}"
    kernel, explanation = row.kernel_only_upper_ns, ""
    bound = "at most " if row.kernel_only_upper_ns > row.kernel_only_ns else ""
    others = sorted(
        ((ns, c) for c, ns in row.parts_ns.items() if c not in ("kernel", "graph") and ns > 0),
        key=lambda part: -part[0],
    )
    if row.elapsed_ns > 0 and kernel >= 0.9 * row.elapsed_ns:
        what = "kernels (a CUDA graph traced as one row)" if bound else "the kernel"
        title += f", and {bound}{percent(kernel / row.elapsed_ns)} of it is {what}."
    else:
        takes = f"the kernel takes {bound}{duration(kernel)}" if kernel else "no kernel runs in it"
        title += f"; {takes}."
        if others:
            ns, cause = others[0]
            part = "The largest other part" if kernel else "Its largest part"
            title += f" {part} is {SHORT[cause]}: {duration(ns)}."
            explanation = f"{SHORT[cause]}: {CAUSE_MEANING[cause]}."
    evidence = [(SHORT[c], duration(ns)) for ns, c in others[:3]]
    if row.count > 1:
        spread = f"{duration(row.min_ns)} to {duration(row.max_ns)}"
        evidence.append((f"range over {row.count} intervals", spread))
    return Finding(
        "reading", row.label, title, safe_text(row.site), row.interval, explanation, tuple(evidence)
    )


def _groups(
    findings: Sequence[Finding], spent: Mapping[str, Spent], first: str = ""
) -> list[Group]:
    """What is said first comes first: errors, then warnings, then notes, by loss; about libraries
    last.  Findings share a group if their advice is the same.  Notes that lose nothing have no group
    if the label has another."""
    by_label: dict[str, list[Finding]] = {}
    for finding in findings:
        by_label.setdefault(finding.label, []).append(finding)
    entries: dict[tuple[Any, ...], list[Entry]] = {}
    for label, own in by_label.items():
        of_label = spent.get(label, Spent())
        grouped = [f for f in own if f.severity != "info" or f.loss_ns] or own[:1]
        others = tuple(f for f in own if f not in grouped)
        for finding in grouped:
            if finding.rule in COLD and of_label.cold:
                count, total_ns, cold = of_label.cold, of_label.cold_ns, "cold"
            else:
                count, total_ns = of_label.count, of_label.total_ns
                cold = "warm" if of_label.cold else ""
            entry = Entry(
                finding, count, total_ns, () if finding is not grouped[0] else others, cold
            )
            entries.setdefault((finding.rule, finding.advice), []).append(entry)
    groups = []
    for (rule, _), alike in entries.items():
        alike.sort(key=lambda e: (e.finding.library, e.finding.label != first, -e.finding.loss_ns))
        worst = min((e.finding.severity for e in alike), key=SEVERITIES.index)
        groups.append(Group(rule, worst, tuple(alike)))
    return sorted(
        groups,
        key=lambda group: (
            group.library,
            SEVERITIES.index(group.severity),
            group.entries[0].finding.label != first,
            group.rule not in DOUBTS,
            -group.loss_ns,
        ),
    )


# --- the run as a whole ---


def of_devices(analysis: Analysis) -> pd.DataFrame:
    """The runs of whole devices: each process's first one on a device (streams come behind it)."""
    return analysis.runs.drop_duplicates(["pid", "device"])


def _headline(
    analysis: Analysis, rows: Sequence[LabelRow], matrix: np.ndarray, staged: np.ndarray
) -> Headline:
    """`staged`: ns in which the host staged memory for copies, per interval."""
    intervals = analysis.intervals
    elapsed = intervals["elapsed_ns"].to_numpy()
    own = {row.label for row in rows if not row.library} or {row.label for row in rows}
    timed = np.flatnonzero(intervals["label"].isin(own).to_numpy())
    whole = np.flatnonzero((intervals["kind"] == "run").to_numpy())
    run = int(whole[elapsed[whole].argmax()]) if len(whole) else None
    # If a trace was cut from a longer one, most of the run is unknown: its intervals say more.
    if run is not None and own and matrix[run, CAUSES.index("unknown")] > elapsed[run] / 2:
        run = None
    chosen = timed if run is None else np.array([run])
    total = int(elapsed[chosen].sum())
    parts = dict(zip(CAUSES, matrix[chosen].sum(axis=0).tolist(), strict=True))
    counted = f"{plural(len(timed), 'interval')} in {plural(len(own), 'label')}"
    of = f"{counted}, {duration(total)} under nsys" if run is None else _extent(analysis, run)
    if run is not None and not len(timed) and len(of_devices(analysis)) > 1:
        of = f"{safe_text(intervals['label'].iloc[run])}: {of}"  # the table has the others
    text = "Nothing was measured."
    if total:
        text = f"{of}: {_shares(parts, int(staged[chosen].sum()), total)}."
        if run is not None:
            limits = run_sentence(analysis, int(intervals["interval"].iloc[run]), parts)
            text += f" {limits}" if limits else ""
    cover, untimed = "", False
    if run is not None and len(timed):
        cover, untimed = _coverage(analysis, timed, run, counted)
    what = "all intervals together" if run is None else "the run"
    return Headline(text + cover, what, total, parts, untimed)


def _extent(analysis: Analysis, run: int) -> str:
    """When the GPU worked, and how much was recorded."""
    start, elapsed = (int(analysis.intervals[c].iloc[run]) for c in ("start_ns", "elapsed_ns"))
    recorded = analysis.trace.recorded_ns
    if recorded is None or not recorded[0] <= start <= start + elapsed <= recorded[1]:
        return f"{duration(elapsed)} from the first GPU work to the last, under nsys"
    whole, begin = recorded[1] - recorded[0], start - recorded[0]
    return (
        f"{duration(whole)} recorded, GPU work from {duration(begin)} to "
        f"{duration(begin + elapsed)}; of these {duration(elapsed)}"
    )


def _coverage(analysis: Analysis, timed: np.ndarray, run: int, counted: str) -> tuple[str, bool]:
    """How much of the run the user's intervals cover, and whether much was not timed: findings are
    not about the rest."""
    start, elapsed = (analysis.intervals[c].to_numpy() for c in ("start_ns", "elapsed_ns"))
    order = timed[np.argsort(start[timed], kind="stable")]
    low, high = start[run], start[run] + elapsed[run]
    begin, end = (np.clip(t, low, high) for t in (start[order], start[order] + elapsed[order]))
    # until when earlier intervals cover it already
    before = np.concatenate([[low], np.maximum.accumulate(end)[:-1]])
    covered, whole = int(np.maximum(end - np.maximum(begin, before), 0).sum()), int(elapsed[run])
    if not covered:  # all of them are in other processes
        return f" {counted}.", True
    untimed = covered < _UNTIMED * whole
    rest = "; the rest was not timed" if untimed else ""
    verb = "covers" if counted.startswith("1 ") else "cover"
    share = percent(covered / max(whole, 1))
    return f" {counted} {verb} {duration(covered)} of it ({share}){rest}.", untimed


def _shares(parts: Mapping[str, int], staged: int, total: int) -> str:
    """Busy is when the device runs something: not while the host stages pageable memory for a
    copy."""
    busy = sum(parts[cause] for cause in OPERATION_KINDS) - staged
    named = {SHORT[c]: ns for c, ns in parts.items() if c not in OPERATION_KINDS}
    named["staging of copies"] = staged
    idle = sorted(((ns, c) for c, ns in named.items() if ns >= 0.01 * total and ns), reverse=True)
    shares = [f"{name} {percent(ns / total)}" for ns, name in idle[:_MOST_CAUSES]]
    return ", ".join([f"GPU busy {percent(busy / total)}", *shares])


def _costliest(groups: Sequence[Group], headline: Headline) -> Entry | None:
    """The finding that costs most, of what the program itself does: of warnings if there are any;
    no note about next to nothing."""
    for group in groups:
        if group.loss_ns and group.severity != "error" and not group.library:
            little = group.loss_ns < _WORTH_SAYING * headline.elapsed_ns
            entry = group.entries[0]
            return None if little and entry.finding.severity == "info" else entry
    return None


# --- what the numbers rest on ---


def _trust(analysis: Analysis) -> Trust:
    info, measured = analysis.trace, analysis.measured
    library = measured["library"].to_numpy(bool)
    if library.all():  # the program asked a library to time: these are its own
        library = library & (measured["method"] == "inferred").to_numpy(bool)
    own = len(set(measured["label"][~library]))
    counted = f"{plural(int((~library).sum()), 'interval')} in {plural(own, 'label')}"
    if library.any():
        counted += f", {library.sum():,} more that the program did not time itself"
    errors = analysis.intervals.loc[analysis.intervals["kind"] == "event", "error_ns"].to_numpy()
    return Trust(
        gpu=", ".join(dict.fromkeys(map(safe_text, info.devices))),
        driver=safe_text(info.driver_version or ""),
        nsys=safe_text(info.nsys_version or ""),
        torch=safe_text(analysis.collected_with("torch")),
        clock=_clock(analysis),
        measured=counted,
        placed_within_ns=float(np.percentile(errors, 95)) if len(errors) else None,
    )


def _trusted(trust: Trust) -> str:
    """The same in brackets at the end of a screen."""
    gpu = trust.gpu.removeprefix("NVIDIA ") or "no GPU named"
    known = [gpu, "profiled"]
    if trust.placed_within_ns is not None:
        known.append(f"±{duration(trust.placed_within_ns)}")
    return ", ".join(known)


def _clock(analysis: Analysis) -> str:
    """ "345 to 1980 MHz, 1,234 samples"; '' if the clock was not sampled."""
    table = analysis.gpu_clocks
    if not len(table):
        return ""
    low, high = int(table["sm_min_mhz"].min()), int(table["sm_max_mhz"].max())
    span = f"{high} MHz" if low == high else f"{low} to {high} MHz"
    slowed = (np.maximum(table["reasons"].to_numpy(), 0) & SLOWED_BITS).any()
    at_times = ", slowed down at times" if slowed else ""
    return f"{span}, {int(table['samples'].sum()):,} samples{at_times}"


def reason_words(bits: int) -> str:
    """ "software power cap, hardware slowdown": what kept the clock low, "" for nothing or
    unknown."""
    if bits <= 0:
        return ""
    known = [text for bit, text in CLOCK_REASONS.items() if bits & bit]
    rest = bits & ~sum(CLOCK_REASONS)
    return ", ".join([*known, *([f"reason {rest:#x}"] if rest else [])])


def _unplaced(analysis: Analysis) -> list[Unplaced]:
    """Why intervals could not be placed, the most frequent reason first."""
    reasons = []
    for reason, names in analysis.unaligned.groupby("reason", sort=False)["name"]:
        different = [safe_text(name) for name in names.unique()]
        shown = different[:3] + ["…"] * (len(different) > 3)
        reasons.append(Unplaced(safe_text(reason), len(names), tuple(shown)))
    return sorted(reasons, key=lambda unplaced: -unplaced.count)
