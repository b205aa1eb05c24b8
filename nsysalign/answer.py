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
from nsysalign.explain.finding import NO_WORK, NOT_CONFIRMED, SEVERITIES, statuses
from nsysalign.explain.rules import DOUBTS
from nsysalign.intervals import union
from nsysalign.memory import trim_memory
from nsysalign.model import CAUSES, OPERATION_KINDS, OTHER_STREAMS, SLOWED_BITS, Analysis
from nsysalign.parts import DISPLAY, parts_matrix, staging
from nsysalign.text import duration, percent, plural, quantity, safe_text, within, words
from nsysalign.verdicts import CANNOT_TELL, COLD, WRONG, Fix, Proof

if TYPE_CHECKING:
    import pandas as pd

#: Rules whose advice on measuring is not about the GPU's time: the first interval is left out
#: whatever is measured; an interval without GPU work is host time.
_MEASURED_OTHERWISE = ("module-load", "event-floor")
VIEWS = {"python": "Python stacks", "range": "NVTX ranges", "os": "OS calls"}

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
    """Nanoseconds over some intervals of a label."""

    count: int = 0
    total_ns: int = 0  # what they measured
    idle_ns: int = 0  # of that, without work on the stream


_NONE = (Spent(), Spent())


@dataclass(frozen=True, kw_only=True)
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
    others_ns: int  # of a pair of events: what it launched on other streams took there
    findings: tuple[str, ...]  # rules that concern the label
    flagged: bool  # one of them is a warning or an error
    unprofiled_ns: tuple[int, int, int] | None = None  # predicted without nsys, and its bounds
    no_prediction: str = ""  # why there is none: "word: sentence"
    host: str  # what the CPU did while the stream waited for it, if that matters
    warm: Spent  # over its intervals, but for those that a rule calls cold
    cold: Spent
    verdict: str = CANNOT_TELL
    words: str = ""  # the verdict in words, at most 24 letters
    sentence: str = ""  # of the first labels
    saving_ns: int = 0  # over its intervals, at most
    saving: float = 0.0  # the same as a share of all that was measured

    @property
    def columns_ns(self) -> dict[str, int]:
        """The parts by `parts.COLUMNS` as they are printed: they add up to `elapsed_ns`.  GPU and CPU
        overlap in a host timer: what is neither a kernel of its own nor waiting is the CPU's."""
        sums = verdicts.columns_of(self)
        if self.kind != "host" or self.gpu_ns <= sums["kernel"]:
            return sums
        waiting = min(sums["waiting"], self.elapsed_ns - self.gpu_ns)
        others = self.elapsed_ns - self.gpu_ns - waiting
        shown = {"kernel": self.gpu_ns, "waiting": waiting, "CPU": others}
        return dict.fromkeys(sums, 0) | shown

    def without_nsys(self) -> str:
        """The time predicted without nsys (us) and how far that may be off, else why there is none
        in a word."""
        return within(*self.unprofiled_ns) if self.unprofiled_ns else in_a_word(self.no_prediction)


@dataclass(frozen=True)
class Finding:
    severity: str  # error, warning, info
    label: str
    title: str
    site: str
    interval: int  # the interval that shows it, -1 for none
    rule: str
    evidence: tuple[tuple[str, str], ...] = ()  # (what, number with its unit)
    advice: tuple[Fix, ...] = ()  # how to measure, how to make it faster
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
    elapsed_ns: int = 0
    parts_ns: Mapping[str, int] | None = None


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
    about: Mapping[str, str]  # what the numbers rest on: GPU, nsys, SM clock, ..., as far as known
    source: Mapping[str, str]  # call site -> that line of the program

    @property
    def trust(self) -> str:
        """What the numbers rest on, in a few words."""
        bar = self.about.get("timestamp uncertainty")
        return f"{self.about['GPU'].removeprefix('NVIDIA ')}, profiled{f', ±{bar}' if bar else ''}"

    @property
    def lost(self) -> str:
        """Intervals without a place, in a line."""
        if not self.unplaced:
            return ""
        count = sum(unplaced.count for unplaced in self.unplaced)
        return f"{plural(count, 'interval')} could not be placed: {self.unplaced[0].reason}"


def answer(analysis: Analysis, focus: int | None = None) -> Answer:
    """The record of an analysis; the label of the interval `focus` has its row in any case."""
    analysis = _ranges_told_once(analysis, focus)
    matrix, cold = parts_matrix(analysis), cold_intervals(analysis)
    staged = staging(analysis.details).groupby("interval")["ns"].sum()
    staged = staged.reindex(analysis.intervals["interval"], fill_value=0).to_numpy(np.int64)
    working = [CAUSES.index(cause) for cause in OPERATION_KINDS]
    busy = matrix[:, working].sum(axis=1) - staged
    spent = _spent(analysis, busy, cold)
    trim_memory()
    findings = _findings(analysis, spent)
    judge = verdicts.Judge(analysis)
    labels = _rows(analysis, analysis.labels, matrix, spent, findings, judge)
    runs = analysis.runs.assign(row_interval=analysis.runs["interval"], count=1, library=False)
    runs = _rows(analysis, runs, matrix, spent, findings, judge)
    lead = _lead(analysis, labels, runs, findings)
    proof = judge.proof(lead) if lead else None
    sentence, about = _sentence(analysis, judge, lead, findings, runs)
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
        headline=_headline(analysis, {row.label for row in own}, matrix, busy),
        groups=tuple(groups),
        next=next(filter(None, commands), ""),
        unplaced=tuple(_unplaced(analysis)),
        remarks=_remarks(analysis, cold, findings),
        notes=tuple(dict.fromkeys(notes)),
        about=_about(analysis),
        source={
            safe_text(site): safe_text(text)
            for site, text in analysis.source_lines.itertuples(index=False)
        },
    )


# --- labels ---


def _ranges_told_once(analysis: Analysis, focus: int | None) -> Analysis:
    """Without the labels whose intervals are exactly those of a label around them: a range in
    another that holds no other work.  A note names them."""
    import pandas as pd

    intervals = analysis.intervals
    others = intervals["label"][intervals["kind"] != "nvtx"].unique()
    ranges = intervals[~intervals["label"].isin(others)]
    windows = ["pid", "tid", "device", "end_stream", "start_ns", "end_ns", "library"]
    hashed = pd.util.hash_pandas_object(ranges[windows], index=False)
    alike = hashed.groupby(ranges["label"], sort=False).agg(["size", "sum"])
    focused = set(ranges["label"][ranges["interval"] == focus])
    outer_of: dict[tuple[int, ...], str] = {}
    inner: dict[str, str] = {}
    for label, *same in alike.itertuples(name=None):
        outer = outer_of.setdefault(tuple(same), label)
        if outer != label and label not in focused:
            inner[label] = outer
    if not inner:
        return analysis
    names = [f"{safe_text(label)} (in {safe_text(outer)})" for label, outer in inner.items()]
    more = f" and {len(names) - 3:,} more" if names[3:] else ""
    note = f"ranges that hold all work of the range around them are told with it: {', '.join(names[:3])}{more}"
    tables = {name: getattr(analysis, name) for name in ("intervals", "labels", "findings")}
    kept = {n: t[~t["label"].isin(inner)].reset_index(drop=True) for n, t in tables.items()}
    return replace(analysis, **kept, notes=(*analysis.notes, note))


def _rows(
    analysis: Analysis,
    shown: pd.DataFrame,
    matrix: np.ndarray,
    spent: Mapping[str, tuple[Spent, Spent]],
    findings: Sequence[Finding],
    judge: verdicts.Judge,
) -> list[LabelRow]:
    """A row per label of `shown` (some columns of `frames.LABELS`), in the order in which they are
    shown."""
    import pandas as pd

    predicted = {u.interval: u for u in analysis.unprofiled.itertuples(index=False)}
    others = analysis.other_streams.groupby("interval")["ns"].sum().to_dict()
    did, by_label = _host_sentences(analysis, spent), dict[str, list[Finding]]()
    for finding in findings:
        by_label.setdefault(finding.label, []).append(finding)
    positions = pd.Index(analysis.intervals["interval"]).get_indexer(shown["row_interval"])
    intervals = analysis.intervals.iloc[positions]
    own = shown["label"][~shown["library"].astype(bool)]
    measured_ns = sum(spent[label][0].total_ns for label in own if label in spent)
    measured_ns = measured_ns or intervals["elapsed_ns"].max() or 1  # of runs the longest
    rows = []
    for label, interval, ns in zip(
        shown.itertuples(index=False),
        intervals.itertuples(index=False),
        matrix[positions].tolist(),
        strict=True,
    ):
        parts, about = dict(zip(CAUSES, ns, strict=True)), by_label.get(label.label, [])
        gpu_ns = parts["kernel"] + parts["graph"]
        if label.kind == "host" and interval.kernel_only_upper_ns:
            inside_ns = interval.kernel_only_upper_ns - interval.kernel_outside_ns
            gpu_ns = max(gpu_ns, min(inside_ns, interval.elapsed_ns))
        warm, cold = spent.get(label.label, _NONE)
        cpu_matters = parts["host"] >= _MATTERS * interval.elapsed_ns
        unprofiled_ns, no_prediction = None, ""
        if without := predicted.get(interval.interval):
            no_prediction = safe_text(without.reason)
            bounds = (without.predicted_ns, without.lower_ns, without.upper_ns)
            unprofiled_ns = None if no_prediction else (*map(int, bounds),)
        row = LabelRow(
            label=label.label,
            kind=label.kind,
            count=label.count,
            site=label.site,
            callers=tuple(interval.callers),
            library=label.library,
            interval=interval.interval,
            name=interval.name,
            elapsed_ns=interval.elapsed_ns,
            error_ns=interval.error_ns,
            parts_ns=parts,
            gpu_ns=gpu_ns,
            others_ns=others.get(interval.interval, 0) if label.kind == "event" else 0,
            findings=tuple(finding.rule for finding in about),
            flagged=any(finding.severity != "info" for finding in about),
            unprofiled_ns=unprofiled_ns,
            no_prediction=no_prediction,
            host=did.get(label.label, "") if cpu_matters else "",
            warm=warm,
            cold=cold,
        )
        word, text = judge.verdict(row, about)
        losses = [f.loss_ns for f in about if f.rule not in COLD and f.severity != "error"]
        saving_ns = 0 if word == WRONG else max(losses, default=0)
        share = min(saving_ns / measured_ns, 1.0)
        rows.append(replace(row, verdict=word, words=text, saving_ns=saving_ns, saving=share))

    def place(row: LabelRow) -> tuple[Any, ...]:
        saves = row.saving_ns if row.saving >= LEADS else 0
        return row.library, row.verdict == WRONG, -saves, -row.elapsed_ns * row.count

    rows.sort(key=place)
    for number, row in enumerate(rows[:MOST_SENTENCES]):
        sentence = judge.sentence(row, by_label.get(row.label, []))
        rows[number] = replace(row, sentence=sentence)
    return rows


def in_a_word(no_prediction: str) -> str:
    """What a cell has room for instead of a prediction: the reason's word; "none" for one of an
    older version."""
    word, colon, _ = no_prediction.partition(": ")
    return word if colon and " " not in word else "none"


def _lead(
    analysis: Analysis,
    labels: Sequence[LabelRow],
    runs: Sequence[LabelRow],
    findings: Sequence[Finding],
) -> LabelRow | None:
    """The row that the sentence is about: the label with the largest saving that shows something, a
    wrong timing where none matters; the run where more can be saved of it, where there is no label, or
    where the label with the most time consists of different pairs that were read from the trace."""
    if analysis.known.issuing_without_work:
        return None  # of no label it is known what ran in it
    own = [row for row in labels if not row.library]
    own = own or [row for row in labels if row.kind != "nvtx" or not runs]  # NCCL's own ranges
    wrong = [row for row in own if row.verdict == WRONG]
    right = [row for row in own if row.verdict != WRONG]
    lead = next((row for row in right if _tells(analysis, row.label)), right[0] if right else None)
    if wrong and not (lead and lead.saving >= LEADS):
        lead = wrong[0]
    if not (lead and runs):
        return lead or (runs[0] if runs else None)
    of_runs = {run.label for run in runs}
    losses = [f.loss_ns for f in findings if f.severity == "warning" and f.label in of_runs]
    intervals = analysis.intervals
    total_ns = intervals.groupby("label")["elapsed_ns"].sum()
    most = max(labels, key=lambda row: total_ns[row.label])
    inferred = (intervals["method"][intervals["label"] == most.label] == "inferred").all()
    differ = inferred and 2 * most.elapsed_ns * most.count < total_ns[most.label]
    return runs[0] if differ or max(losses, default=0) > max(lead.saving_ns, 0) else lead


def _tells(analysis: Analysis, label: str) -> bool:
    """Whether the typical interval of a label shows something: not where most of its time is counted
    twice, as its intervals overlap; nor where none of its streams did anything while others worked."""
    columns = ["pid", "end_stream", "start_ns", "end_ns", "elapsed_ns", "flags"]
    columns += ["kernel_only_upper_ns"]
    own = analysis.intervals.loc[analysis.intervals["label"] == label, columns]
    idle = (not OTHER_STREAMS.isdisjoint(flags) for flags in own["flags"])
    if not own["kernel_only_upper_ns"].any() and all(idle):
        return False
    once = 0
    for _, of_stream in own.groupby(["pid", "end_stream"]):
        once += _covered(of_stream["start_ns"].to_numpy(), of_stream["end_ns"].to_numpy())
    return 2 * once >= own["elapsed_ns"].sum()


def _covered(starts: np.ndarray, ends: np.ndarray) -> int:
    """The time (ns) in which at least one of these intervals was open."""
    begin, end = union(starts, ends)
    return int((end - begin).sum())


def _sentence(
    analysis: Analysis,
    judge: verdicts.Judge,
    lead: LabelRow | None,
    findings: Sequence[Finding],
    runs: Sequence[LabelRow],
) -> tuple[str, Sequence[Finding]]:
    """The sentence, and the findings that say how to fix what it says."""
    first = {finding.rule: finding for finding in reversed(findings)}
    if lost := first.get("lost-records"):
        # then nothing that is said of the GPU is the whole of it
        return lost.title, [lost]
    nothing = (note for note in analysis.notes if note.startswith(NO_WORK))
    sentence = lead.sentence if lead else next(nothing, _nothing_measured(analysis))
    about = [finding for finding in findings if lead and finding.label == lead.label]
    if lead is None or lead.kind == "run":
        about = [finding for finding in findings if finding.severity != "info"]
        if not analysis.labels.empty:
            of_runs = {run.label for run in runs}
            about = [f for f in about if f.severity == "warning" and f.label in of_runs]
        if about:
            besides = judge.sentence(lead, []) if lead else sentence
            sentence = about[0].title
            if about[0].rule == "set-up":
                sentence += f" {about[1].title if about[1:] else besides}"
        # what set-up is followed by is what can be changed
        about = about[1:2] if about[1:] and about[0].rule == "set-up" else about[:1]
    if failed := first.get("failed-calls"):
        # comes before all else: what should have been timed did not happen
        if lead and lead.kind != "run" and not lead.parts_ns["kernel"] + lead.parts_ns["graph"]:
            others = (analysis.other_streams["interval"] == lead.interval).any()
            where = "on the stream of" if others else "in"
            sentence = f"No kernel ran {where} {safe_text(lead.label)}."
        sentence = failed.title if sentence == failed.title else f"{failed.title} {sentence}"
        about = [failed]
    return sentence, about


def cold_intervals(analysis: Analysis) -> np.ndarray:
    """Which intervals a rule calls cold, bool per interval; none of a label of which it does so of
    all."""
    cold, labels = frozenset(COLD), analysis.intervals["label"]
    rules = analysis.intervals["findings"].tolist()
    named = np.array([bool(own) and not cold.isdisjoint(own) for own in rules], bool)
    return named & labels.isin(labels[~named].unique()).to_numpy()


def _spent(
    analysis: Analysis, busy: np.ndarray, cold: np.ndarray
) -> dict[str, tuple[Spent, Spent]]:
    """Per label, of its intervals that are not cold, and of those that are."""
    elapsed = analysis.intervals["elapsed_ns"].to_numpy()
    spent = {}
    for label, positions in analysis.measured.groupby("label", sort=False).indices.items():
        sums = []
        for some in (positions[~cold[positions]], positions[cold[positions]]):
            total = int(elapsed[some].sum())
            sums.append(Spent(len(some), total, total - int(busy[some].sum())))
        spent[label] = (sums[0], sums[1])
    return spent


# --- what the CPU did ---


def _host_sentences(analysis: Analysis, spent: Mapping[str, tuple[Spent, Spent]]) -> dict[str, str]:
    """Label -> the contents of its host gaps, view by view; if unknown although the stream was idle
    for long in warm intervals, how to record them."""
    sampled = bool(analysis.host_activity["samples"].any())
    sentences = {}
    for label, rows in analysis.host_activity.groupby("label", sort=False):
        whole = rows[rows["view"] == "all"].iloc[0]
        named: dict[str, list[str]] = {view: [] for view in VIEWS}
        for row in rows.itertuples(index=False):
            if row.view != "all" and row.name and row.share >= _WORTH_NAMING:
                place = ", in ".join(filter(None, (row.place, row.place and row.within)))
                place = f" ({safe_text(place)})" if place else ""
                named[row.view].append(f"{percent(row.share)} {safe_text(row.name)}{place}")
        contents = {view: ", ".join(names[:_MOST_NAMED]) for view, names in named.items()}
        parts = []
        if whole["samples"]:
            counted = plural(int(whole["samples"]), "sample")
            parts.append(f"{contents['python']} ({counted} in {duration(whole['ns'])} of gaps)")
        elif sampled:
            gaps = duration(whole["ns"])
            parts.append(f"not sampled: none of the samples fell into its {gaps} of gaps")
        parts += [f"{VIEWS[v]}: {contents[v]}" for v in ("range", "os") if contents[v]]
        idle_ns = spent.get(label, _NONE)[0].idle_ns
        if not parts and min(whole["ns"], idle_ns) >= _WORTH_SAMPLING_NS:
            parts = ["not recorded; nsysalign run --sample-python SCRIPT.py names its functions"]
        sentences[label] = "; ".join(parts)
    return sentences


# --- findings ---


def _findings(analysis: Analysis, spent: Mapping[str, tuple[Spent, Spent]]) -> list[Finding]:
    """All of them: the program's own first, the most severe first."""
    findings = []
    libraries = set(analysis.labels["label"][analysis.labels["library"].astype(bool)])
    table = analysis.findings.itertuples(index=False)
    for f, status in zip(table, statuses(analysis), strict=True):
        rule, (warm, cold) = safe_text(f.rule), spent.get(f.label, _NONE)
        is_open, of_cold = status.verdict == NOT_CONFIRMED, rule in COLD and cold.count
        # Two kinds of advice: a delay before the start event isolates the GPU's time, and makes
        # nothing faster.
        gpu = f.faster and rule not in _MEASURED_OTHERWISE
        purposes = {"measure the GPU only" if gpu else "measure it right": f.advice}
        purposes["make it faster"] = f.faster
        advice = []
        for purpose, text in purposes.items():
            sentence, *code = re.split(r" {3,}", safe_text(text))  # "Do this:   code"
            advice += [Fix(purpose, sentence, tuple(code))] if text else []
        evidence = f.evidence if isinstance(f.evidence, dict) else {}
        findings.append(
            Finding(
                severity=f.severity if f.severity in SEVERITIES else "info",
                label=f.label,
                title=safe_text(f.title),
                site=safe_text(f.site),
                interval=f.interval,
                rule=rule,
                evidence=tuple(
                    (safe_text(words(key)), safe_text(quantity(str(key), value)))
                    for key, value in evidence.items()
                ),
                advice=tuple(advice),
                loss_ns=f.loss_ns,
                library=f.label in libraries,
                confirmation="" if is_open else safe_text(": ".join(filter(None, status))),
                to_confirm=safe_text(status.text) if is_open else None,
                count=(cold if of_cold else warm).count,
                total_ns=(cold if of_cold else warm).total_ns,
                which="cold" if of_cold else "warm" if cold.count else "",
            )
        )
    return sorted(findings, key=lambda f: (f.library, SEVERITIES.index(f.severity)))


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

    def place(group: Group) -> tuple[Any, ...]:
        about = group.findings[0].label != first, group.rule not in DOUBTS, -group.loss_ns
        return group.library, SEVERITIES.index(group.severity), *about

    return sorted(groups, key=place)


def _remarks(analysis: Analysis, cold: np.ndarray, findings: Sequence[Finding]) -> tuple[str, ...]:
    """What happened once, in a line: the time in which a first call was open, however nested; and
    whether there was a run without nsys."""
    own = analysis.intervals[cold & ~analysis.intervals["library"].to_numpy(dtype=bool)]
    once, remarks = _covered(own["start_ns"].to_numpy(), own["end_ns"].to_numpy()), []
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
    by = analysis.trace.by
    ranges = plural(int(analysis.host_ranges["count"].sum()), by.ranges.removesuffix("s"))
    if calls := analysis.known.calls_without_work:
        return f"{ranges}, {plural(calls, 'CUDA call')} and no row of the GPU's work."
    reasons = analysis.trace.reasons
    because = f"; {by.title} says: {safe_text(reasons[0]).rstrip('. ')}" if reasons else ""
    return (
        f"{ranges} and no GPU work: this {by.file} holds no CUDA calls, kernels or copies{because}. "
        f"To see what they do on a GPU, record with {by.whole}"
    )


def _headline(analysis: Analysis, own: set[str], matrix: np.ndarray, busy: np.ndarray) -> Headline:
    """Of the longest run, else of all intervals of the labels `own`: its parts, when the GPU worked,
    and how much of it was timed: findings are not about the rest."""
    intervals = analysis.intervals
    start, elapsed = (intervals[c].to_numpy() for c in ("start_ns", "elapsed_ns"))
    timed = np.flatnonzero(intervals["label"].isin(own).to_numpy())
    runs = np.flatnonzero((intervals["kind"] == "run").to_numpy())
    run = int(runs[elapsed[runs].argmax()]) if len(runs) else None
    # If a trace was cut from a longer one, most of the run is unknown: its intervals say more.
    if run is not None and own and matrix[run, CAUSES.index("unknown")] > elapsed[run] / 2:
        run = None
    chosen = timed if run is None else np.array([run])
    total = int(elapsed[chosen].sum())
    if not total:
        return Headline(_nothing_measured(analysis))
    parts = dict(zip(CAUSES, matrix[chosen].sum(axis=0).tolist(), strict=True))
    worked = int(busy[chosen].sum())
    named = {DISPLAY[c]: ns for c, ns in parts.items() if c not in OPERATION_KINDS}
    named["staging of copies"] = sum(parts[c] for c in OPERATION_KINDS) - worked
    idle = sorted(((ns, c) for c, ns in named.items() if ns >= 0.01 * total and ns), reverse=True)
    listed = [f"{name} {percent(ns / total)}" for ns, name in idle[:_MOST_PARTS]]
    shares = ", ".join([f"GPU busy {percent(worked / total)}", *listed])
    counted = f"{plural(len(timed), 'interval')} in {plural(len(own), 'label')}"
    if run is None:
        return Headline(f"{counted}, {duration(total)} profiled: {shares}.", total, parts)
    text = f"{duration(total)} from the first GPU work to the last, profiled: {shares}."
    if not len(timed):
        if len(of_devices(analysis)) > 1:
            text = f"{safe_text(intervals['label'].iloc[run])}: {text}"
        return Headline(text, total, parts)
    end = start[run] + total
    covered = _covered(*(np.clip(at[timed], start[run], end) for at in (start, start + elapsed)))
    text += f" {counted}"
    if covered:  # else all of them are in other processes
        verb = "covers" if len(timed) == 1 else "cover"
        rest = "; the rest was not timed" if covered < _UNTIMED * total else ""
        text += f" {verb} {duration(covered)} of it ({percent(covered / total)}){rest}"
    return Headline(f"{text}.", total, parts)


# --- what the numbers rest on ---


def _about(analysis: Analysis) -> dict[str, str]:
    """What is known of it, by what it is called."""
    info, measured, clocks = analysis.trace, analysis.measured, analysis.gpu_clocks
    library = measured["library"].to_numpy(bool)
    if library.all():  # the program asked a library to time: these are its own
        library = library & (measured["method"] == "inferred").to_numpy(bool)
    own = len(set(measured["label"][~library]))
    counted = f"{plural(int((~library).sum()), 'interval')} in {plural(own, 'label')}"
    if library.any():
        counted += f", {library.sum():,} more that the program did not time itself"
    clock = ""
    if len(clocks):
        low, high = int(clocks["sm_min_mhz"].min()), int(clocks["sm_max_mhz"].max())
        slowed = (np.maximum(clocks["reasons"].to_numpy(), 0) & SLOWED_BITS).any()
        clock = f"{high} MHz" if low == high else f"{low} to {high} MHz"
        clock += f", {int(clocks['samples'].sum()):,} samples"
        clock += ", slowed down at times" if slowed else ""
    errors = measured.loc[measured["kind"] == "event", "error_ns"].to_numpy()
    methods = measured["method"].value_counts().items()
    made = {"nsys": safe_text(info.nsys_version or "unknown version")}
    if info.recorder != "nsys":
        made = {"recorder": safe_text(f"{info.by.title} {info.nsys_version or ''}".strip())}
    about = {
        "GPU": ", ".join(dict.fromkeys(map(safe_text, info.devices))) or "no GPU named",
        "driver": safe_text(info.driver_version or ""),
        **made,
        "torch": safe_text(analysis.known.torch),
        "SM clock": clock,
        "measured": counted,
        "timestamp uncertainty": duration(np.percentile(errors, 95)) if len(errors) else "",
        "placed by": ", ".join(f"{safe_text(method)} ({count:,})" for method, count in methods),
    }
    return {name: text for name, text in about.items() if text}


def _unplaced(analysis: Analysis) -> list[Unplaced]:
    """Why intervals could not be placed, the most frequent reason first."""
    reasons = []
    for reason, names in analysis.unaligned.groupby("reason", sort=False)["name"]:
        different = [safe_text(name) for name in names.unique()]
        shown = different[:3] + ["…"] * (len(different) > 3)
        reasons.append(Unplaced(safe_text(reason), len(names), tuple(shown)))
    return sorted(reasons, key=lambda unplaced: -unplaced.count)
