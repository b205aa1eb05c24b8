"""What an analysis says, decided once: terminal, page, notebook, `show` and `--brief` draw this
record, and decide nothing.

    Analysis (tables) --> answer() --> Answer --> terminal | page | notebook | show | --brief

A finding has its own loss: what would go away over the run if its advice were followed, at most.
Losses of different findings are never added up: they may be about the same time.  Texts of findings
and notes are `safe_text`; labels and sites are as the trace has them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign import verdicts
from nsysalign.explain.finding import NO_WORK, NOT_CONFIRMED, statuses
from nsysalign.explain.rules import DOUBTS
from nsysalign.explain.rules.whole_run import run_sentence
from nsysalign.intervals import union
from nsysalign.model import (
    CAUSES,
    CLOCK_REASONS,
    OPERATION_KINDS,
    OTHER_STREAMS,
    SLOWED_BITS,
    Analysis,
)
from nsysalign.parts import DISPLAY, parts_matrix
from nsysalign.text import duration, percent, plural, quantity, safe_text, within, words
from nsysalign.verdicts import CANNOT_TELL, COLD, SIGNS, WRONG, Fix, Proof

if TYPE_CHECKING:
    import pandas as pd

SEVERITIES = ("error", "warning", "info")
#: Two kinds of advice: a delay before the start event isolates the GPU's time, and makes nothing
#: faster. Not about the GPU's time: the first interval is left out whatever is measured; an
#: interval without GPU work is host time.
_MEASURED_OTHERWISE = ("module-load", "event-floor")
MEASURE_GPU = "To measure GPU time only"
MEASURE_RIGHT = "To measure it right"
SPEED_UP = "To make it faster"
VIEWS = {"python": "Python stacks", "range": "NVTX ranges", "os": "OS calls"}

_OF_INTERVAL = (
    "label", "kind", "callers", "interval", "name", "elapsed_ns", "error_ns", "kernel_only_ns", "kernel_outside_ns",
)  # fmt: skip
#: A saving below this share of what was measured leads no screen.
LEADS = 0.005
#: So many labels have a sentence: the first ones.
MOST_SENTENCES = 200
#: Parts, functions, ranges or calls that a sentence names.
_MOST_PARTS, _MOST_NAMED = 4, 3
#: Where the intervals cover less of the run than this share, the sentence says that the rest was
#: not timed.
_UNTIMED = 0.9
#: A share of the gaps below this does not explain them; waiting for the CPU below this share of
#: the label's time does not matter.
_WORTH_NAMING, _MATTERS = 0.02, 0.1
#: Gaps of a label from this length on are worth recording again: they give a handful of samples.
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
    """A label, or a run, with the breakdown of one real interval: its parts add up to
    `elapsed_ns`."""

    label: str
    kind: str
    count: int
    site: str
    callers: tuple[str, ...]
    library: bool
    interval: int  # number of the interval shown
    name: str  # its name
    elapsed_ns: int
    error_ns: int
    parts_ns: dict[str, int]  # every cause, zero included
    #: Kernels and graphs; of a host timer what it issued and ran before its second timer call.
    gpu_ns: int
    findings: tuple[str, ...] = ()  # rules that concern the label
    flagged: bool = False  # one of them is a warning or an error
    unprofiled_ns: tuple[int, int, int] | None = None  # predicted without nsys, and its bounds
    no_prediction: str = ""  # why there is none: "word: sentence"
    host: str = ""  # what the CPU did while the stream waited for it, if that matters
    spent: Spent = Spent()
    verdict: str = CANNOT_TELL
    words: str = ""  # the verdict in words, at most 24 letters
    sentence: str = ""  # of the first labels
    columns_ns: Mapping[str, int] | None = None  # by `parts.COLUMNS`; they add up to elapsed_ns
    saving_ns: int = 0  # over its intervals, at most
    saving: float = 0.0  # the same as a share of all that was measured

    def without_nsys(self) -> str:
        """The time predicted without nsys (us) and how far that may be off, else why there is none
        in a word."""
        if self.unprofiled_ns:
            return within(*self.unprofiled_ns, 1_000)
        return in_a_word(self.no_prediction)


@dataclass(frozen=True)
class Finding:
    severity: str  # error, warning, info
    label: str
    title: str
    site: str
    interval: int  # the interval that shows it, -1 for none
    rule: str
    evidence: tuple[tuple[str, str], ...] = ()  # (what, number with its unit)
    #: (heading, sentence, lines of code): how to measure, how to make it faster.
    advice: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    loss_ns: int = 0  # over the run, at most
    library: bool = False  # about what a library measured, not the program
    confirmation: str = ""  # the result of a re-run, '' without one
    to_confirm: str | None = None  # the command that could test it, '' for none; None: not open
    #: The intervals that it is about, what they measured, and which they are where a label has cold
    #: ones: "cold" or "warm".
    count: int = 0
    total_ns: int = 0
    which: str = ""


@dataclass(frozen=True)
class Group:
    """Findings of one rule and one advice: the program's own before those of libraries, the one
    that loses most first."""

    rule: str
    severity: str  # of the worst
    findings: tuple[Finding, ...]

    @property
    def loss_ns(self) -> int:
        return self.findings[0].loss_ns

    @property
    def library(self) -> bool:
        return all(finding.library for finding in self.findings)


@dataclass(frozen=True)
class Headline:
    """The run as a whole if the analysis has it, else all intervals of the user's own code."""

    text: str
    of: str = ""  # what its times are of, in words
    elapsed_ns: int = 0
    parts_ns: Mapping[str, int] | None = None


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

    def __str__(self) -> str:
        """The same in a few words."""
        known = [self.gpu.removeprefix("NVIDIA ") or "no GPU named", "profiled"]
        if self.placed_within_ns is not None:
            known.append(f"±{duration(self.placed_within_ns)}")
        return ", ".join(known)


@dataclass(frozen=True)
class Unplaced:
    reason: str
    count: int
    names: tuple[str, ...]  # up to three different ones, and "…"


@dataclass(frozen=True)
class Answer:
    """Everything a screen says."""

    verdict: str  # of the label that the sentence is about
    sentence: str  # at most two sentences
    proof: Proof | None
    fixes: tuple[Fix, ...]
    labels: tuple[LabelRow, ...]  # the largest saving first; wrong timings, libraries last
    runs: tuple[LabelRow, ...]  # devices and streams as a whole
    wrong: tuple[str, ...]  # labels whose timing is not what is meant
    headline: Headline
    groups: tuple[Group, ...]  # findings, those with one advice together: first things first
    next: str  # the command that tests the first finding that can be tested, '' for none
    unplaced: tuple[Unplaced, ...]  # the most frequent reason first
    remarks: tuple[str, ...]  # what a first screen says below its table
    notes: tuple[str, ...]
    trust: Trust
    source: Mapping[str, str]  # call site -> that line of the program

    @property
    def warnings(self) -> int:
        """Labels whose verdict has the sign "!"."""
        return sum(SIGNS[row.verdict] == "!" for row in self.labels)

    @property
    def lost(self) -> str:
        """Intervals without a place, in a line."""
        if not self.unplaced:
            return ""
        count = sum(unplaced.count for unplaced in self.unplaced)
        return f"{plural(count, 'interval')} could not be placed: {self.unplaced[0].reason}"


def answer(analysis: Analysis, focus: int | None = None) -> Answer:
    """The record of an analysis; the label of the interval `focus` has its row in any case."""
    analysis = _told_once(analysis, focus)
    matrix, cold = parts_matrix(analysis), cold_intervals(analysis)
    staged = _staging(analysis)
    work = matrix[:, [CAUSES.index(cause) for cause in OPERATION_KINDS]].sum(axis=1) - staged
    rows = _label_rows(analysis, matrix, _spent(analysis, work, cold))
    runs = _run_rows(analysis, matrix)
    findings = _findings(analysis, {row.label: row for row in rows})
    by_label: dict[str, list[Finding]] = {}
    for finding in findings:
        by_label.setdefault(finding.label, []).append(finding)
    judge = verdicts.Judge(analysis, [*rows, *runs])
    labels = _judged(judge, rows, by_label)
    runs = _judged(judge, runs, by_label)
    of_runs = {run.label for run in runs}
    says = [f for f in findings if f.severity == "warning" and f.label in of_runs]
    lead = _lead(analysis, labels)
    most = max((finding.loss_ns for finding in says), default=0)
    if runs and (lead is None or most > max(lead.saving_ns, 0) or _differ(analysis, labels)):
        lead = runs[0]
    nothing = (note for note in analysis.notes if note.startswith(NO_WORK))
    sentence, about = next(nothing, _nothing_measured(analysis)), []
    proof = judge.proof(lead) if lead else None
    if lead:
        about = by_label.get(lead.label, [])
        sentence = judge.sentence(lead, lead.verdict, proof, about)
    if lead is None or lead.kind == "run":
        severe = says if rows else [f for f in findings if f.severity != "info"]
        if severe and severe[0].rule == "set-up":
            sentence = f"{severe[0].title} {severe[1].title if severe[1:] else sentence}"
        elif severe:
            sentence = severe[0].title
        about = severe[:1]
    failed = next((finding for finding in findings if finding.rule == "failed-calls"), None)
    if failed:  # comes before everything else: what should have been timed did not happen
        if lead and lead.kind != "run" and not lead.parts_ns["kernel"] + lead.parts_ns["graph"]:
            others = (analysis.other_streams["interval"] == lead.interval).any()
            where = "on the stream of" if others else "in"
            sentence = f"No kernel ran {where} {safe_text(lead.label)}."
        sentence, about = f"{failed.title} {sentence}", [failed]
    groups = _groups(findings, lead.label if lead else "")
    commands = (finding.to_confirm for group in groups for finding in group.findings)
    missing = ", ".join(map(safe_text, analysis.trace.missing))
    notes = [safe_text(note) for note in (*analysis.trace.notes, *analysis.notes)]
    notes += [f"not in the trace: {missing}"] if missing else []
    own = [row for row in labels if not row.library] or labels
    return Answer(
        verdict=lead.verdict if lead else CANNOT_TELL,
        sentence=sentence,
        proof=proof,
        fixes=verdicts.fixes(about),
        labels=tuple(labels),
        runs=tuple(runs),
        wrong=tuple(row.label for row in own if row.verdict == WRONG),
        headline=_headline(analysis, rows, matrix, staged),
        groups=tuple(groups),
        next=next(filter(None, commands), ""),
        unplaced=tuple(_unplaced(analysis)),
        remarks=_remarks(analysis, cold, findings),
        notes=tuple(dict.fromkeys(notes)),
        trust=_trust(analysis),
        source={
            safe_text(site): safe_text(text)
            for site, text in analysis.source_lines.itertuples(index=False)
        },
    )


# --- labels ---


def _told_once(analysis: Analysis, focus: int | None) -> Analysis:
    """Without the labels whose intervals are exactly those of a label around them: a range in
    another that holds no other work.  A note names them."""
    import pandas as pd

    intervals = analysis.intervals
    ranges = intervals[intervals["kind"] == "nvtx"]
    windows = ["pid", "tid", "device", "end_stream", "start_ns", "end_ns"]
    groups = ranges.groupby("label", sort=False)
    like = pd.concat([groups["library"].all(), groups.size(), groups[windows].sum()], axis=1)
    like = like[~like.index.isin(intervals["label"][intervals["kind"] != "nvtx"])]
    around: dict[Any, list[str]] = {}
    for label in like.index[like.duplicated(keep=False)]:
        own = ranges[windows].iloc[groups.indices[label]].sort_values(windows).to_numpy()
        around.setdefault((like["library"][label], own.tobytes()), []).append(label)
    inner = {label: outer for outer, *others in around.values() for label in others}
    for label in intervals["label"][intervals["interval"] == focus]:
        inner.pop(label, None)
    if not inner:
        return analysis
    names = [f"{safe_text(label)} (in {safe_text(outer)})" for label, outer in inner.items()]
    more = f" and {len(names) - 3:,} more" if names[3:] else ""
    note = f"ranges that hold all work of the range around them are told with it: {', '.join(names[:3])}{more}"
    tables = {
        name: table[~table["label"].isin(inner)].reset_index(drop=True)
        for name in ("intervals", "labels", "findings")
        for table in [getattr(analysis, name)]
    }
    return replace(analysis, **tables, notes=(*analysis.notes, note))


def _label_rows(
    analysis: Analysis, matrix: np.ndarray, spent: Mapping[str, Spent]
) -> list[LabelRow]:
    """One row per label in the analysis' order."""
    import pandas as pd

    labels, intervals = analysis.labels, analysis.intervals
    positions = pd.Index(intervals["interval"]).get_indexer(labels["row_interval"])
    rules: dict[str, list[tuple[str, str]]] = {}
    for label, rule, severity in analysis.findings[["label", "rule", "severity"]].itertuples(
        index=False
    ):
        rules.setdefault(str(label), []).append((str(rule), severity))
    predicted, did = predictions(analysis), _host_sentences(analysis, spent)
    rows = []
    shown = _of_intervals(intervals, positions, matrix)
    for label, row in zip(labels.itertuples(index=False), shown, strict=True):
        own = rules.get(str(label.label), ())
        waits = row.parts_ns["host"] >= _MATTERS * row.elapsed_ns
        rows.append(
            replace(
                row,
                **{
                    name: getattr(label, name)
                    for name in ("label", "kind", "count", "site", "library")
                },
                **predicted.get(row.interval, {}),
                findings=tuple(rule for rule, _ in own),
                flagged=any(severity != "info" for _, severity in own),
                host=did.get(str(label.label), "") if waits else "",
                spent=spent[str(label.label)],
            )
        )
    return rows


def _run_rows(analysis: Analysis, matrix: np.ndarray) -> list[LabelRow]:
    """One row per run, devices and streams."""
    intervals = analysis.intervals
    runs = np.flatnonzero((intervals["kind"] == "run").to_numpy())
    return [replace(run, callers=()) for run in _of_intervals(intervals, runs, matrix)]


def _of_intervals(
    intervals: pd.DataFrame, positions: np.ndarray, matrix: np.ndarray
) -> list[LabelRow]:
    """Rows that show the intervals at these positions, and say nothing of others."""
    rows = []
    shown = intervals[list(_OF_INTERVAL)].iloc[positions].itertuples(index=False)
    for interval, ns in zip(shown, matrix[positions].tolist(), strict=True):
        parts = dict(zip(CAUSES, ns, strict=True))
        gpu = parts["kernel"] + parts["graph"]
        if interval.kind == "host" and interval.kernel_only_ns:
            inside = int(interval.kernel_only_ns) - int(interval.kernel_outside_ns)
            gpu = max(gpu, min(inside, int(interval.elapsed_ns)))
        rows.append(
            LabelRow(
                label=str(interval.label),
                kind=str(interval.kind),
                count=1,
                site="",
                callers=tuple(interval.callers),
                library=False,
                interval=int(interval.interval),
                name=str(interval.name),
                elapsed_ns=int(interval.elapsed_ns),
                error_ns=int(interval.error_ns),
                parts_ns=parts,
                gpu_ns=gpu,
            )
        )
    return rows


def predictions(analysis: Analysis) -> dict[int, dict[str, Any]]:
    """By interval: what it would have measured without nsys, or why that is unknown."""
    return {
        int(u.interval): {
            "unprofiled_ns": None
            if u.reason
            else (int(u.predicted_ns), int(u.lower_ns), int(u.upper_ns)),
            "no_prediction": safe_text(u.reason),
        }
        for u in analysis.unprofiled.itertuples(index=False)
    }


def in_a_word(no_prediction: str) -> str:
    """What a cell has room for instead of a prediction: the reason's word; "none" for one of an
    older version."""
    word, colon, _ = no_prediction.partition(": ")
    return word if colon and " " not in word else "none"


def _judged(
    judge: verdicts.Judge, rows: Sequence[LabelRow], findings: Mapping[str, Sequence[Finding]]
) -> list[LabelRow]:
    """The rows with their verdicts, in the order in which they are shown."""
    measured = sum(row.spent.total_ns for row in rows if not row.library) or 1
    if rows and rows[0].kind == "run":
        measured = max(rows[0].elapsed_ns, 1)
    judged = []
    for row in rows:
        own = findings.get(row.label, [])
        word, text = judge.verdict(row, own)
        losses = [f.loss_ns for f in own if f.rule not in COLD and f.severity != "error"]
        saving = 0 if word == WRONG else max(losses, default=0)
        judged.append(
            replace(
                row,
                verdict=word,
                words=text,
                columns_ns=verdicts.shown_columns(row),
                saving_ns=saving,
                saving=min(saving / measured, 1.0),
            )
        )
    judged.sort(
        key=lambda row: (
            row.library, row.verdict == WRONG, -row.saving_ns if row.saving >= LEADS else 0, -row.elapsed_ns * row.count,
        )
    )  # fmt: skip
    for number, row in enumerate(judged[:MOST_SENTENCES]):
        sentence = judge.sentence(row, row.verdict, judge.proof(row), findings.get(row.label, []))
        judged[number] = replace(row, sentence=sentence)
    return judged


def _lead(analysis: Analysis, labels: Sequence[LabelRow]) -> LabelRow | None:
    """The label that the sentence is about: the largest saving of one that shows something, or a
    wrong timing where none matters."""
    own = [row for row in labels if not row.library] or labels
    wrong = [row for row in own if row.verdict == WRONG]
    right = [row for row in own if row.verdict != WRONG]
    best = next((row for row in right if _tells(analysis, row.label)), right[0] if right else None)
    if wrong and not (best and best.saving >= LEADS):
        return wrong[0]
    return best


def _tells(analysis: Analysis, label: str) -> bool:
    """Whether the typical interval of a label shows something: not where most of its time is counted
    twice, as its intervals overlap; nor where none of its streams did anything while others worked."""
    own = analysis.intervals[analysis.intervals["label"] == label]
    idle = (not OTHER_STREAMS.isdisjoint(flags) for flags in own["flags"])
    if not own["kernel_only_upper_ns"].any() and all(idle):
        return False
    once = 0
    for _, of_stream in own.groupby(["pid", "end_stream"]):
        begin, end = union(of_stream["start_ns"].to_numpy(), of_stream["end_ns"].to_numpy())
        once += int((end - begin).sum())
    return 2 * once >= own["elapsed_ns"].sum()


def _differ(analysis: Analysis, labels: Sequence[LabelRow]) -> bool:
    """Whether the label with the most time consists of pairs that were read from the trace, not from a
    log, and its typical one stands for less than half of that time: different things were timed."""
    intervals = analysis.intervals[["label", "method", "elapsed_ns"]]
    total_ns = intervals.groupby("label")["elapsed_ns"].sum()
    most = max(labels, key=lambda row: total_ns[row.label])
    own = intervals[intervals["label"] == most.label]
    inferred = bool((own["method"] == "inferred").all())
    return inferred and 2 * most.elapsed_ns * most.count < total_ns[most.label]


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
    """Of `memcpy`, ns per interval: the CPU staged pageable memory, and the device ran nothing."""
    import pandas as pd

    details = analysis.details
    rows = details[(details["cause"] == "memcpy") & (details["detail"] == "staging")]
    positions = pd.Index(analysis.intervals["interval"]).get_indexer(rows["interval"])
    staged = np.zeros(len(analysis.intervals), np.int64)
    np.add.at(staged, positions[positions >= 0], rows["ns"].to_numpy()[positions >= 0])
    return staged


# --- what the CPU did ---


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


def _findings(analysis: Analysis, rows: Mapping[str, LabelRow]) -> list[Finding]:
    """All of them: the program's own first, the most severe first."""
    findings = []
    for f, status in zip(
        analysis.findings.itertuples(index=False), statuses(analysis), strict=True
    ):
        rule, row = safe_text(f.rule), rows.get(str(f.label))
        # A finding with a remedy for the program also says how to measure the GPU without that
        # effect; others are about the measurement itself.
        gpu = f.faster and rule not in _MEASURED_OTHERWISE
        advice = ((MEASURE_GPU if gpu else MEASURE_RIGHT, f.advice), (SPEED_UP, f.faster))
        is_open = status.verdict == NOT_CONFIRMED
        spent = row.spent if row else Spent()
        of_cold = rule in COLD and spent.cold
        findings.append(
            Finding(
                severity=f.severity if f.severity in SEVERITIES else "info",
                label=str(f.label),
                title=safe_text(f.title),
                site=safe_text(f.site),
                interval=int(f.interval),
                rule=rule,
                evidence=_evidence(f.evidence),
                advice=tuple((head, *_sentence_and_code(text)) for head, text in advice if text),
                loss_ns=int(f.loss_ns),
                library=row is not None and row.library,
                confirmation="" if is_open else safe_text(": ".join(filter(None, status))),
                to_confirm=safe_text(status.text) if is_open else None,
                count=spent.cold if of_cold else spent.count,
                total_ns=spent.cold_ns if of_cold else spent.total_ns,
                which="cold" if of_cold else "warm" if spent.cold else "",
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


def _groups(findings: Sequence[Finding], first: str) -> list[Group]:
    """What is said first comes first: errors, then warnings, then notes, by loss; about libraries
    last; of equally severe ones those about the label `first`."""
    alike: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.rule, finding.advice), []).append(finding)
    groups = []
    for (rule, _), same in alike.items():
        same.sort(key=lambda f: (f.library, f.label != first, -f.loss_ns))
        worst = min((finding.severity for finding in same), key=SEVERITIES.index)
        groups.append(Group(rule, worst, tuple(same)))
    return sorted(
        groups,
        key=lambda group: (
            group.library,
            SEVERITIES.index(group.severity),
            group.findings[0].label != first,
            group.rule not in DOUBTS,
            -group.loss_ns,
        ),
    )


def _remarks(analysis: Analysis, cold: np.ndarray, findings: Sequence[Finding]) -> tuple[str, ...]:
    """What happened once, in a line: the time in which a first call was open, however nested; and
    whether there was a run without nsys."""
    own = analysis.intervals[cold & ~analysis.intervals["library"].to_numpy(dtype=bool)]
    begin, end = union(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    once, remarks = int((end - begin).sum()), []
    loading = sum(f.loss_ns for f in findings if f.rule == "module-load" and not f.library)
    if once:
        loads = f" ({duration(loading)} loading CUDA modules)" if loading else ""
        remarks.append(f"first calls: {duration(once)} once{loads}")
    if len(analysis.baseline):
        remarks.append(f"{plural(len(analysis.baseline), 'label')} also timed without nsys: -v")
    return tuple(remarks)


# --- the run as a whole ---


def of_devices(analysis: Analysis) -> pd.DataFrame:
    """The runs of whole devices: each process's first one on a device (streams come behind it)."""
    return analysis.runs.drop_duplicates(["pid", "device"])


def _nothing_measured(analysis: Analysis) -> str:
    """The sentence where there is no interval, not even a run: of an export with NVTX ranges alone
    what to record."""
    if analysis.host_ranges.empty:
        return "Nothing was measured."
    ranges = plural(int(analysis.host_ranges["count"].sum()), "NVTX range")
    return (
        f"{ranges} and no GPU work: this export holds no CUDA calls, kernels or copies. "
        "To see what the ranges do on a GPU, record with nsys profile -t cuda,nvtx."
    )


def _headline(
    analysis: Analysis, rows: Sequence[LabelRow], matrix: np.ndarray, staged: np.ndarray
) -> Headline:
    """`staged`: ns in which the CPU staged memory for copies, per interval."""
    intervals = analysis.intervals
    elapsed = intervals["elapsed_ns"].to_numpy()
    own = {row.label for row in rows if not row.library} or {row.label for row in rows}
    timed = np.flatnonzero(intervals["label"].isin(own).to_numpy())
    whole = np.flatnonzero((intervals["kind"] == "run").to_numpy())
    counted = f"{plural(len(timed), 'interval')} in {plural(len(own), 'label')}"
    run = int(whole[elapsed[whole].argmax()]) if len(whole) else None
    # If a trace was cut from a longer one, most of the run is unknown: its intervals say more.
    if run is not None and own and matrix[run, CAUSES.index("unknown")] > elapsed[run] / 2:
        run = None
    chosen = timed if run is None else np.array([run])
    total = int(elapsed[chosen].sum())
    if not total:
        return Headline(_nothing_measured(analysis))
    parts = dict(zip(CAUSES, matrix[chosen].sum(axis=0).tolist(), strict=True))
    shares = _shares(parts, int(staged[chosen].sum()), total)
    if run is None:
        text = f"{counted}, {duration(total)} profiled: {shares}."
        return Headline(text, "all intervals together", total, parts)
    text = f"{_extent(analysis, run)}: {shares}."
    if not len(timed) and len(of_devices(analysis)) > 1:
        text = f"{safe_text(intervals['label'].iloc[run])}: {text}"
    if limits := run_sentence(analysis, int(intervals["interval"].iloc[run]), parts):
        text += f" {limits}"
    if len(timed):
        text += f" {_coverage(analysis, timed, run, counted)}"
    return Headline(text, "the run", total, parts)


def _extent(analysis: Analysis, run: int) -> str:
    """When the GPU worked, and how much was recorded."""
    start, elapsed = (int(analysis.intervals[c].iloc[run]) for c in ("start_ns", "elapsed_ns"))
    recorded = analysis.trace.recorded_ns
    if recorded is None or not recorded[0] <= start <= start + elapsed <= recorded[1]:
        return f"{duration(elapsed)} from the first GPU work to the last, profiled"
    whole, begin = recorded[1] - recorded[0], start - recorded[0]
    return (
        f"{duration(whole)} recorded, GPU work from {duration(begin)} to "
        f"{duration(begin + elapsed)}; of these {duration(elapsed)}"
    )


def _coverage(analysis: Analysis, timed: np.ndarray, run: int, counted: str) -> str:
    """How much of the run the user's intervals cover: findings are not about the rest."""
    start, elapsed = (analysis.intervals[c].to_numpy() for c in ("start_ns", "elapsed_ns"))
    end = start + elapsed
    begins, ends = union(
        np.clip(start[timed], start[run], end[run]), np.clip(end[timed], start[run], end[run])
    )
    covered, whole = int((ends - begins).sum()), int(end[run] - start[run])
    if not covered:  # all of them are in other processes
        return f"{counted}."
    verb = "covers" if counted.startswith("1 ") else "cover"
    rest = "; the rest was not timed" if covered < _UNTIMED * whole else ""
    share = percent(covered / max(whole, 1))
    return f"{counted} {verb} {duration(covered)} of it ({share}){rest}."


def _shares(parts: Mapping[str, int], staged: int, total: int) -> str:
    """Busy is when the device runs something: not while the CPU stages pageable memory for a
    copy."""
    busy = sum(parts[cause] for cause in OPERATION_KINDS) - staged
    named = {DISPLAY[c]: ns for c, ns in parts.items() if c not in OPERATION_KINDS}
    named["staging of copies"] = staged
    idle = sorted(((ns, c) for c, ns in named.items() if ns >= 0.01 * total and ns), reverse=True)
    shares = [f"{name} {percent(ns / total)}" for ns, name in idle[:_MOST_PARTS]]
    return ", ".join([f"GPU busy {percent(busy / total)}", *shares])


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
        torch=safe_text(analysis.known.torch),
        clock=_clock(analysis),
        measured=counted,
        placed_within_ns=float(np.percentile(errors, 95)) if len(errors) else None,
    )


def _clock(analysis: Analysis) -> str:
    """ "345 to 1980 MHz, 1,234 samples"; '' if the clock was not sampled."""
    table = analysis.gpu_clocks
    if not len(table):
        return ""
    low, high = int(table["sm_min_mhz"].min()), int(table["sm_max_mhz"].max())
    span = f"{high} MHz" if low == high else f"{low} to {high} MHz"
    slowed = (np.maximum(table["reasons"].to_numpy(), 0) & SLOWED_BITS).any()
    return f"{span}, {int(table['samples'].sum()):,} samples" + (
        ", slowed down at times" if slowed else ""
    )


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
