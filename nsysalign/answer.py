"""What an analysis says, as one record: terminal, page, notebook, `show`, `--brief` and `check` draw
it, and decide nothing.

    Analysis: labels with groups, findings --> answer() --> Answer --> every screen

Decided before (`explain.findings`) is the one finding of each label: its sentence, verdict, words and
fixes; here rows are put in order and one of them leads.  Losses of different findings are never
added up: they may be about the same time.  Texts of findings and notes are `safe_text`; labels and
sites are as the trace has them.
"""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign import frames
from nsysalign.causes import CAUSES, COLUMN_OF, COLUMNS, DISPLAY
from nsysalign.explain import run_sentences, sentences
from nsysalign.explain.advice import BEFORE_BOTH, BEFORE_FIRST
from nsysalign.explain.case import LOADING_SHARE, shown_groups
from nsysalign.explain.clauses import Cut, fits, in_three_lines, sentences_of_three_lines
from nsysalign.explain.facts import (
    details_of,
    nothing_timed_is_seen,
    only_copies_failed,
    ran_torch,
)
from nsysalign.explain.finding import NO_WORK, NOT_CONFIRMED, SEVERITIES, Status, statuses
from nsysalign.explain.preparing import (
    A_SEARCH,
    GRAPH,
    loading_share,
    loads_code,
    prepared,
    searches,
    tells_apart,
    times_compiled,
    tries_kernels,
)
from nsysalign.explain.proof import Proof, proof_of
from nsysalign.explain.runs.set_up import SET_UP_SHARE
from nsysalign.explain.same_kernel import quicker_elsewhere
from nsysalign.explain.validity import too_early
from nsysalign.explain.verdict import (
    CANNOT_TELL,
    CPU,
    GPU,
    MIXED,
    SIGNS,
    WAITING,
    WRONG,
    sums_of,
    typical_of,
    word_of,
    word_of_run,
)
from nsysalign.intervals import covered_ns
from nsysalign.label import FIRST, Group, Label, pace_words
from nsysalign.memory import trim_memory
from nsysalign.model import (
    HOST_TIMERS,
    LOST_ROWS,
    LOW_CLOCK,
    OPERATION_KINDS,
    SLOWED_BITS,
    Analysis,
)
from nsysalign.parts import parts_matrix, staging
from nsysalign.text import (
    duration,
    percent,
    plural,
    quantity,
    safe_text,
    subject,
    within,
    words,
)

if TYPE_CHECKING:
    import pandas as pd

#: Rules whose advice on measuring is not about the GPU's time.
_MEASURED_RIGHT = (
    "module-load", "event-floor", "wrong-stream", "enqueue-only", "nothing-inside", "different-streams", "no-result", "captured-events",
    "queued", "graph-opaque", "clock-changed", "lost-records", "throttled", "launch-latency",
    "failed-calls",
)  # fmt: skip
_FASTER = "make it faster"
VIEWS = {"python": "Python stacks", "range": "NVTX ranges", "os": "OS calls"}

#: A saving below this share of what was measured leads no screen; below the second share none in what was done once,
#: before all else, such as reading a model.
LEADS, LEADS_ONCE = 0.005, 0.02
#: Ranges that hold less than half of a run lead where this share of it could be saved in one; and where
#: its GPU works for nearly all of it, those in which this share could.
LEADS_RUN, LEADS_BUSY, NEARLY_ALL = 0.02, 0.05, 0.9
#: Parts, functions, ranges or calls that a sentence names.
_MOST_PARTS, _MOST_NAMED = 4, 3
#: What copies or waits cost is a second lever from this share on of what the sentence's cause costs.
_LEVERS, _SECOND = ("copy-inside", "sync-inside"), 0.1
#: So many timings of a label may be first calls.
_FIRST_ONES = 3
#: Wrong timings come last where those of another label are so many times as many.
_FEW = 4
#: Names of groups by which a reader would not find them in the program.
_OPAQUE = re.compile(r"^$|\b(operation|block)s?\b|^graph \d")
#: Of so many groups it is said which of their label's timings they hold.
_MOST_PLACES = 8
#: Labels of which both times are said, traced and untraced.
_MOST_TURNS = 3
#: Where the intervals cover less of the run than this share, the sentence says that the rest was
#: not timed.
_UNTIMED = 0.9
#: A share of the gaps below this does not explain them; waiting for the CPU below this share of
#: the label's time does not matter.
_WORTH_NAMING, _MATTERS = 0.02, 0.1
#: Gaps of a label from this length on are worth recording again: they give a handful of samples.
_WORTH_SAMPLING_NS = 5_000_000
#: First calls that take so much of what was timed, and so long, are told with their share.
_MOST_OF_ALL, _LONG_NS = 0.5, 100_000_000
#: Where no timing was seen: why, and what to do.
_UNSEEN = "no timing was seen; what is: torch's events, and the clock in Python that imports torch, JAX, CuPy or numba; not what timeit reads"
_UNSEEN_BY_TORCH = (
    "no timing of the program's own was seen; a library's (timeit) is not seen, and may be right"
)
#: `file.py:12 (file.py:3-5)` and `file.py:3-5`: what is left where all labels are of one file.
_LINES = re.compile(r"^(?P<file>[^:()]+):(?P<line>[\d-]+)(?: \((?P=file):(?P<inner>[\d-]+)\))?$")


@dataclass(frozen=True)
class Fix:
    """What to change, and the whole code of it, in one or more lines ('' for none)."""

    purpose: str  # measure the GPU only | measure it right | make it faster
    sentence: str
    code: str


@dataclass(frozen=True)
class Spent:
    """Nanoseconds over some intervals of a label."""

    count: int = 0
    total_ns: int = 0  # what they measured
    idle_ns: int = 0  # of that, without work on the stream


@dataclass(frozen=True, kw_only=True)
class Row:
    """One real interval with its breakdown, which adds up to `elapsed_ns`: the typical one of a label
    or of one of its groups."""

    name: str  # of a group ("×100 two kernels"), else of the label
    kind: str
    count: int
    total_ns: int  # of all its intervals
    interval: int  # number of the interval shown
    interval_name: str
    elapsed_ns: int
    parts_ns: dict[str, int]  # every cause, zero included
    #: Kernels and graphs; of a host timer what it issued and ran before its second timer call.
    gpu_ns: int
    others_ns: int  # of a pair of events: what it launched on other streams took there
    verdict: str
    words: str  # the verdict in words, at most 24 letters

    @property
    def columns_ns(self) -> dict[str, int]:
        """The parts by `causes.COLUMNS`: they add up to `elapsed_ns`."""
        sums = dict.fromkeys(COLUMNS, 0)
        for cause, ns in self.parts_ns.items():
            sums[COLUMN_OF[cause]] += ns
        return sums

    @property
    def beside_ns(self) -> int:
        """How long kernels ran that are no part of `elapsed_ns`, or not all of it: on other streams, or on the
        GPU while the thread of a host timer did something else.  0: all that ran is its column `kernels`."""
        of_elapsed_ns = self.columns_ns["kernels"]
        if self.gpu_ns > of_elapsed_ns:
            return self.gpu_ns
        return 0 if of_elapsed_ns else self.others_ns


@dataclass(frozen=True, kw_only=True)
class LabelRow(Row):
    """A label, or a run.  groups: its groups where they have a row each, else none."""

    label: str
    short: str  # without what all labels share
    site: str
    callers: tuple[str, ...]
    library: bool
    error_ns: int
    groups: tuple[Row, ...]
    overlapping: bool  # its intervals overlap: their sum is no stretch of time
    inferred: bool  # its pairs were read from the trace
    once_before_all: bool = False  # a range that was open once, before all that was timed beside it
    findings: tuple[str, ...]  # rules that concern the label
    flagged: bool  # one of them is a warning or an error
    unprofiled_ns: tuple[int, int, int] | None = None  # predicted without nsys, and its bounds
    no_prediction: str = ""  # why there is none: "word: sentence"
    host: str  # what the CPU did while the stream waited for it, if that matters
    warm: Spent  # over its intervals, but for first calls
    cold: Spent
    sentence: str
    first: str  # what its first calls took, as a sentence
    saving_ns: int  # over its intervals, at most
    saving: float  # the same as a share of all that was measured

    def without_nsys(self) -> str:
        """The time predicted without nsys (us) and how far that may be off, else why there is none
        in a word."""
        return within(*self.unprofiled_ns) if self.unprofiled_ns else in_a_word(self.no_prediction)


@dataclass(frozen=True)
class Wrong:
    """A timing that is not what is meant, and why."""

    label: str
    short: str  # without what all labels share
    reason: str  # what follows its name in a sentence
    site: str

    @property
    def sentence(self) -> str:
        """As the run's sentence has it."""
        return f"{sentences.spoken(self.label)} {self.reason}"


@dataclass(frozen=True)
class Finding:
    severity: str  # error, warning, info
    label: str
    title: str
    site: str
    interval: int  # the interval that shows it, -1 for none
    rule: str
    verdict: str = ""
    words: str = ""
    evidence: tuple[tuple[str, str], ...] = ()  # (what, number with its unit)
    advice: tuple[Fix, ...] = ()  # how to measure, how to make it faster
    loss_ns: int = 0  # over the run, at most
    library: bool = False  # about what a library measured, not the program
    confirmation: str = ""  # the result of a re-run, '' without one
    to_confirm: str | None = None  # the command that could test it, '' for none; None: not open

    @property
    def saving_ns(self) -> int:
        """What following its advice could save over the run, at most: 0 without advice, whatever is lost."""
        return self.loss_ns if self.advice else 0


@dataclass(frozen=True)
class Findings:
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

    verdict: str  # of the finding that the sentence is about
    sentence: str
    proof: Proof | None
    fixes: tuple[Fix, ...]
    #: The largest saving first; wrong timings, first calls and libraries last.
    labels: tuple[LabelRow, ...]
    file: str  # the file that all labels are of, '' for several
    runs: tuple[LabelRow, ...]  # devices and streams as a whole
    wrong: tuple[Wrong, ...]  # timings that are not what is meant
    headline: Headline
    groups: tuple[Findings, ...]  # those with one advice together: first things first
    next: str  # the command that tests the first finding that can be tested, '' for none
    unplaced: tuple[Unplaced, ...]  # the most frequent reason first
    remarks: tuple[str, ...]  # what a first screen says below its table
    notes: tuple[str, ...]
    about: Mapping[str, str]  # what the numbers rest on: GPU, nsys, SM clock, ..., as far as known
    source: Mapping[str, str]  # call site -> that line of the program

    @property
    def trust(self) -> str:
        """What the numbers rest on, in a few words."""
        recorder = "nsys" if "nsys" in self.about else self.about["recorder"]
        bar = self.about.get("timestamp uncertainty")
        placed = f", placed to ±{bar}" if bar else ""
        return f"{self.about['GPU'].removeprefix('NVIDIA ')}, times under {recorder}{placed}"

    @property
    def lost(self) -> str:
        """Intervals without a place, in a line."""
        if not self.unplaced:
            return ""
        count = sum(unplaced.count for unplaced in self.unplaced)
        return f"{plural(count, 'interval')} could not be placed: {self.unplaced[0].reason}"


def answer(analysis: Analysis) -> Answer:
    """Return what every screen says of an analysis, as one record.

    It makes a row for each label and each run (`_Rows`), chooses one of them to lead (`_leading`), takes the
    sentence and the fixes from that row's finding (`_sentence`), and adds findings, remarks, notes and what the
    numbers rest on.
    """
    matrix = parts_matrix(analysis)  # ns by cause, (intervals, causes)
    is_first_call = cold_intervals(analysis)  # per interval
    gpu_ns = _gpu_ns(analysis, matrix)  # per interval
    trim_memory()
    findings = _findings(analysis)
    wrong = _warm_ups_last(wrong_timings(findings), analysis.grouped)
    # a range that holds all work of the range around it is told with that one, in a note
    shown_labels = [label for label in analysis.grouped if not label.inside]
    rows = _Rows(analysis, shown_labels, matrix, gpu_ns, findings)
    labels = rows.of_labels()
    runs = rows.of_runs()
    leading = _leading(
        labels,
        runs,
        runs_that_lead(analysis),
        findings,
        wrong,
        has_unseen_work=analysis.known.issuing_without_work > 0,
    )
    drawn = _drawn_row(leading, labels, runs)
    sentence, about = _sentence(analysis, leading, drawn, findings)
    groups = _groups(findings, drawn.label if drawn else "")
    of_program = [row for row in labels if not row.library] or labels
    return Answer(
        verdict=_verdict(analysis, about, drawn),
        sentence=sentence,
        proof=_proof(analysis, drawn) if drawn else None,
        fixes=_fixes_to_show(about, [*wrong, *_second_lever(about, findings)], rows.short),
        labels=tuple(labels),
        file=rows.file,
        runs=tuple(runs),
        wrong=tuple(
            Wrong(f.label, rows.name_in_sentence(f.label), _after_name(f), f.site) for f in wrong
        ),
        headline=_headline(analysis, {row.label for row in of_program}, matrix, gpu_ns),
        groups=tuple(groups),
        next=_next_command(groups),
        unplaced=tuple(_unplaced(analysis)),
        remarks=_remarks(analysis, labels, is_first_call, rows.name_in_sentence),
        notes=_notes(analysis),
        about=_about(analysis),
        source={
            safe_text(site): safe_text(text)
            for site, text in analysis.source_lines.itertuples(index=False)
        },
    )


def _gpu_ns(analysis: Analysis, matrix: np.ndarray) -> np.ndarray:
    """Return, per interval, how long (ns) the GPU worked: operations on its stream, without the time in which the
    host stages pageable memory for a copy.

    matrix: ns by cause, int64 (intervals, causes)
    """
    working = [CAUSES.index(kind) for kind in OPERATION_KINDS]
    staging_ns = staging(analysis.details).groupby("interval")["ns"].sum()
    staging_ns = staging_ns.reindex(analysis.intervals["interval"], fill_value=0)
    return matrix[:, working].sum(axis=1) - staging_ns.to_numpy(np.int64)


def _next_command(groups: Sequence[Findings]) -> str:
    """Return the command that tests the first finding that can be tested, '' if none can."""
    commands = (finding.to_confirm for group in groups for finding in group.findings)
    return next(filter(None, commands), "")


def _notes(analysis: Analysis) -> tuple[str, ...]:
    """Return the notes of the trace and of the analysis, each once: at last what the trace lacks, and which ranges
    are told with the range around them."""
    of_all = (*analysis.trace.notes, *analysis.notes)
    notes = [safe_text(note.removeprefix(HOST_TIMERS)) for note in of_all]
    if analysis.trace.missing:
        notes.append(f"not in the trace: {', '.join(map(safe_text, analysis.trace.missing))}")
    notes += _told_with([label for label in analysis.grouped if label.inside])
    return tuple(dict.fromkeys(notes))


def _verdict(analysis: Analysis, about: Finding | None, drawn: LabelRow | None) -> str:
    """Return the verdict of the finding that the sentence is about; if it has none, that of the row that is drawn."""
    if failed_early(analysis):
        return CANNOT_TELL
    if about and about.verdict:
        return about.verdict
    return drawn.verdict if drawn else CANNOT_TELL


def wrong_timings(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that say that a timing is not what is meant, one for each label: what every
    screen, `--brief`, `check` and the exit status go by."""
    by_label: dict[str, Finding] = {}
    for finding in findings:
        if finding.verdict == WRONG and not finding.library:
            by_label.setdefault(finding.label, finding)
    return [*by_label.values()]


def _warm_ups_last(wrong: Sequence[Finding], labels: Sequence[Label]) -> list[Finding]:
    """Return wrong timings in their order, but at the end those that are few beside the most frequent one: a program times
    its warm-up less often than what it is about.
    """
    count = {label.name: label.count for label in labels}
    largest = max((count.get(finding.label, 0) for finding in wrong), default=0)
    return sorted(wrong, key=lambda finding: _FEW * count.get(finding.label, 0) < largest)


def _second_lever(about: Finding | None, findings: Sequence[Finding]) -> list[Finding]:
    """Return the finding of another cause that costs most, if it is about copies or waits and a part of what the cause of
    the sentence costs; else nothing.

    about: the finding that the sentence is about
    """
    if about is None or about.verdict == WRONG or not about.loss_ns:
        return []
    of_other_causes = [f for f in findings if f.verdict and not f.library and f.rule != about.rule]
    second = max(of_other_causes, key=lambda f: f.loss_ns, default=None)
    if second is None or second.rule not in _LEVERS or second.verdict == WRONG:
        return []
    return [second] if second.loss_ns >= _SECOND * about.loss_ns else []


def _fixes_to_show(
    about: Finding | None, wrong: Sequence[Finding], short: Callable[[str], str]
) -> tuple[Fix, ...]:
    """Return the fixes of the finding that the sentence is about, then those of the other findings beside it, which are
    about wrong timings or a second cause, each once with the labels that it is for.

    short: label -> its short name
    """
    every_fix = [fix for finding in (about, *wrong) if finding for fix in finding.advice]
    at_both = next((fix for fix in every_fix if fix.sentence.endswith(BEFORE_BOTH)), None)

    def strongest(fix: Fix) -> Fix:
        """Return a fix, or the one that contains it: a wait before both readings is one before the first, too."""
        return at_both if at_both and fix.sentence.endswith(BEFORE_FIRST) else fix

    fixes = tuple(map(strongest, about.advice)) if about else ()
    shown = {(fix.sentence, fix.code) for fix in fixes}
    labels_of: dict[Fix, list[str]] = {}
    for finding in wrong:
        for fix in map(strongest, finding.advice):
            if (fix.sentence, fix.code) not in shown:
                labels_of.setdefault(fix, []).append(short(finding.label))
    beside = []
    for fix, labels in labels_of.items():
        names = _first_named(labels)
        beside.append(replace(fix, sentence=f"{names}: {fix.sentence}"))
    # one without code says less than those of other findings
    told = [*(fix for fix in fixes if fix.code or not beside), *beside]
    # nobody makes faster what is not measured
    return tuple(sorted(told, key=lambda fix: fix.purpose == _FASTER))


def _after_name(finding: Finding) -> str:
    """Return what a finding's sentence says behind the label's name."""
    return finding.title.removeprefix(sentences.spoken(finding.label)).strip()


def wrong_of(analysis: Analysis) -> list[Finding]:
    """Return the findings of an analysis that say that a timing is not what is meant, one for each label."""
    return wrong_timings(_findings(analysis))


# --- rows ---


class _Rows:
    """Makes the rows of labels and runs from the tables of an analysis."""

    def __init__(
        self,
        analysis: Analysis,
        labels: Sequence[Label],
        matrix: np.ndarray,
        gpu_ns: np.ndarray,
        findings: Sequence[Finding],
    ) -> None:
        """`labels`: those that have a row; `matrix`: ns by cause, int64 (intervals, causes); `gpu_ns`: per interval, how
        long (ns) the GPU worked in it; `findings`: all findings, the most severe first.
        """
        self._analysis = analysis
        self._labels = labels
        self._matrix = matrix
        self._gpu_ns = gpu_ns
        self._predicted = {u.interval: u for u in analysis.unprofiled.itertuples(index=False)}
        self._others = analysis.other_streams.groupby("interval")["ns"].sum().to_dict()
        self._findings: dict[str, list[Finding]] = {}
        for finding in findings:
            self._findings.setdefault(finding.label, []).append(finding)
        self.file, self._short = shorter(analysis.labels["label"].tolist())
        self._spent = {label.name: self._spent_in(label) for label in labels}
        steady = {name: warm for name, (warm, _) in self._spent.items()}
        self._host = _host_sentences(analysis, steady)
        self._quicker_elsewhere = quicker_elsewhere(analysis)
        first = analysis.measured.sort_values("start_ns", kind="stable").drop_duplicates("label")
        self._first_begin_ns, self._first_end_ns = (
            first[name].to_numpy() for name in ("start_ns", "end_ns")
        )
        self._place_of_first = {name: place for place, name in enumerate(first["label"])}
        is_a_search = analysis.findings["words"] == A_SEARCH
        self._searching = set(analysis.findings.loc[is_a_search, "label"])

    def short(self, label: str) -> str:
        """Return the short name of a label as a table has it."""
        return self._short.get(label, sentences.spoken(label))

    def name_in_sentence(self, label: str) -> str:
        """Return the short name of a label as a sentence has it: "line 30-32" where the name is a line."""
        short = self.short(label)
        return f"line {short}" if self.file else short

    def of_labels(self) -> list[LabelRow]:
        """Return a row for each label in the order in which they are shown: the largest saving first (if it is large enough
        to lead), then the longest; wrong timings come behind all others, then those that are a first call and little else,
        then what the program did not time itself.
        """
        of_program_ns = sum(label.steady_ns for label in self._labels if not label.library)
        measured_ns = of_program_ns or sum(label.steady_ns for label in self._labels) or 1
        rows = []
        for label in self._labels:
            row = self._of_label(label, measured_ns)
            # beside timings of the program itself, what a library timed is none of them and no fault of the program
            if of_program_ns and label.library and label.kind != "nvtx":
                row = _no_fault(row, self._shown_fields(label.kind, label.usual.typical))
            rows.append(row)

        # pairs that were read from the trace may be a library's own
        times_itself = any(r.kind != "nvtx" and not (r.library or r.inferred) for r in rows)

        def rank(row: LabelRow) -> tuple[Any, ...]:
            saves = _saving_that_leads(row)
            of_others = row.library or (row.inferred and times_itself)
            # mostly the program's own warm-up, whose number nobody reads
            is_once = "module-load" in row.findings and not row.saving_ns
            return of_others, is_once, row.verdict == WRONG, -saves, -row.warm.total_ns

        return sorted(rows, key=rank)

    def _spent_in(self, label: Label) -> tuple[Spent, Spent]:
        """Return (what the intervals of a label took without its first calls, what its first calls took)."""
        sums = []
        for groups in (label.steady, label.cold):
            total_ns = sum(group.total_ns for group in groups)
            worked_ns = sum(int(self._gpu_ns[group.intervals].sum()) for group in groups)
            count = sum(group.count for group in groups)
            sums.append(Spent(count, total_ns, total_ns - worked_ns))
        return sums[0], sums[1]

    def _of_label(self, label: Label, measured_ns: int) -> LabelRow:
        """Return the row of one label: its typical interval with its parts, and the verdict, words and sentence of its
        finding.

        measured_ns: how long all labels together measured, of which savings are a share

        The typical interval is that of the group that the finding is about, or else of the usual group.
        """
        about = self._findings.get(label.name, [])
        finding = next((f for f in about if f.interval >= 0 and f.verdict), None)
        lead = next(
            (g for g in label.groups if finding and finding.interval in g.intervals), label.usual
        )
        verdict = finding.verdict if finding else CANNOT_TELL
        has_rows_of_groups = len(shown_groups(label)) > 1
        # nobody can save time of a timing that does not mean what it says
        saving_ns = 0 if verdict == WRONG else max((f.loss_ns for f in about), default=0)
        warm, cold = self._spent[label.name]
        return LabelRow(
            **self._common_fields(label.name, label.kind, lead.typical, about),
            count=label.count,
            site=label.site,
            library=label.library,
            total_ns=label.total_ns,
            overlapping=label.overlapping,
            groups=self._of_groups(label, about, verdict) if has_rows_of_groups else (),
            verdict=verdict,
            words=finding.words if finding else "cannot tell",
            sentence=finding.title if finding else "",
            first=sentences.first_calls(label),
            saving_ns=saving_ns,
            saving=min(saving_ns / measured_ns, 1.0),
            once_before_all=self._is_once_before_all(label),
            warm=warm,
            cold=cold,
        )

    def _is_once_before_all(self, label: Label) -> bool:
        """Return whether a label is a range that was open once, and all labels that lie beside it began behind it.

        run          [                       ]     around it
        read model   [     ]                       this one
        forward             [x][x][x][x][x][x]     beside it
        """
        if label.kind != "nvtx" or label.count > 1:
            return False
        place = self._place_of_first[label.name]
        is_behind = self._first_begin_ns >= self._first_end_ns[place]
        is_beside = is_behind | (self._first_end_ns <= self._first_begin_ns[place])
        return bool(is_behind.any() and (is_behind == is_beside).all())

    def _of_groups(self, label: Label, about: Sequence[Finding], verdict: str) -> tuple[Row, ...]:
        """Return a row for each group of a label that is shown, the one with the largest total first.

        about, verdict: the findings of the label, and its verdict: groups of a wrong one have no sign of their own,
            which would say that they mean something

        The name of a row says in what the group differs from the others, and which of the label's timings it holds if these
        follow each other: "×100: no. 1-100, two kernels, slower".  If the label's intervals overlap each other, no group is
        called GPU-bound: part of the work in it belongs to others.
        """
        crowded = any(finding.rule == "overlapping" for finding in about)
        groups = shown_groups(label)
        names = sentences.kind_names(groups, "")  # "": of a kind without a name
        paces = _paces(groups, names)
        places = _places(label, groups, self._analysis.intervals["start_ns"].to_numpy())
        rows = []
        for group in groups:
            process = f"in process {group.pid}" if group.pid >= 0 else ""
            is_opaque = paces[group.number] or _OPAQUE.search(names[group.number])
            place = places.get(group.number, "") if is_opaque else ""
            words = (place, names[group.number], paces[group.number], process)
            kind = ", ".join(filter(None, words))
            count = f"×{group.count:,}"
            row = self._of_group(label, group, f"{count}: {kind}" if kind else count)
            quick = self._quicker_elsewhere.get(group.number)
            if quick and row.verdict == GPU:
                row = replace(row, verdict=MIXED, words=sentences.slower_words(quick))
            silent = verdict == WRONG or (crowded and row.verdict == GPU)
            rows.append(replace(row, verdict=MIXED) if silent else row)
        return tuple(rows)

    def _of_group(self, label: Label, group: Group, name: str) -> Row:
        """Return the row of one group, with the verdict and the words of its typical interval."""
        shown = self._shown_fields(label.kind, group.typical)
        interval = self._analysis.intervals.iloc[group.typical]
        # the row shows the typical interval: so its verdict is of that, and not of the sums over the group
        sums_of_group = sums_of(group, label.kind, self._analysis.intervals)
        sums = typical_of(
            sums_of_group,
            shown["parts_ns"],
            shown["gpu_ns"],
            int(interval["gpu_busy_ns"]),
            int(interval["gpu_earlier_ns"]),
        )
        verdict = word_of(sums, group.elsewhere)
        text = sentences.words(group, sums)
        if verdict == WAITING and sums.beside and 2 * sums.earlier > sums.waiting:
            text = "awaits earlier work"
        if verdict == GPU and label.kind == "host" and self._ends_early(group):
            verdict, text = MIXED, "work ended later"
        # its label's finding may say so of all kinds together
        if searches(label, group) or (label.name in self._searching and tries_kernels(group)):
            verdict, text = (MIXED if verdict == GPU else verdict), A_SEARCH
        elif verdict == CPU:
            text = self._preparation_in_words(label, group) or text
        if verdict == GPU and group.ns("graph") > group.ns("kernel"):
            verdict, text = MIXED, f"{text}, opaque"  # what ran inside is not visible
        return Row(
            name=name,
            count=group.count,
            total_ns=group.total_ns,
            verdict=verdict,
            words=text,
            **shown,
        )

    def _ends_early(self, group: Group) -> bool:
        """Return whether half of a group's host timings and more end before their work does, as far as it matters."""
        early = too_early(self._analysis.intervals, group.intervals)
        return 2 * max(group.late, int(early.sum())) >= group.count

    def _preparation_in_words(self, label: Label, group: Group) -> str:
        """What the timings of a group prepare for others, as the words of its row; '' for nothing."""
        if times_compiled(label, group) > 1:
            return "compiles"
        if group.count == 1 and loads_code(group) and not self._has_another_finding(label, group):
            if self._is_first(label, group):
                return "first call"
            return "loads code" if loading_share(group) >= LOADING_SHARE else ""
        if not tells_apart(label):
            return ""
        count = prepared(group, partial(details_of, self._analysis)).get(GRAPH, 0)
        if count == group.count:
            return "records a CUDA graph"
        return f"{count:,} record a graph" if count else ""

    def _is_first(self, label: Label, group: Group) -> bool:
        """Return whether a timing is its label's first one, or stands behind others of their own that are called so."""
        start_ns = self._analysis.intervals["start_ns"].to_numpy()
        begins_ns = start_ns[group.typical]
        earlier = [g for g in label.groups if (start_ns[g.intervals] < begins_ns).any()]
        alone = all(g.role == FIRST or (g.count == 1 and loads_code(g)) for g in earlier)
        return alone and sum(g.count for g in earlier) < _FIRST_ONES

    def _has_another_finding(self, label: Label, group: Group) -> bool:
        """Return whether the label's finding is about this group, and calls it no first call."""
        findings = self._analysis.findings
        of_group = findings[(findings["label"] == label.name) & (findings["group"] == group.number)]
        return len(of_group) > 0 and not of_group["rule"].eq("module-load").any()

    def of_runs(self) -> list[LabelRow]:
        """Return a row for each run: the longest device first, each before its streams.  Its sentence is the title of its
        first finding that is a warning or an error; without one it says what the GPU did in the run.
        """
        rows = []
        for run in self._analysis.runs.itertuples(index=False):
            about = self._findings.get(run.label, [])
            finding = next((f for f in about if f.severity != "info"), None)
            common = self._common_fields(run.label, "run", run.interval, about)
            parts = common["parts_ns"]
            sentence = finding.title if finding else ""
            sentence = sentence or run_sentences.of_run(
                self._analysis, run.label, run.interval, parts
            )
            elapsed_ns = max(run.elapsed_ns, 1)
            saving_ns = max((f.loss_ns for f in about), default=0)
            row = LabelRow(
                **common,
                count=1,
                site="",
                library=False,
                total_ns=run.elapsed_ns,
                overlapping=False,
                groups=(),
                verdict=word_of_run(parts),
                words=percent(common["gpu_ns"] / elapsed_ns) + " kernels",
                sentence=sentence,
                first="",
                saving_ns=saving_ns,
                saving=min(saving_ns / elapsed_ns, 1.0),
                warm=Spent(1, run.elapsed_ns, 0),
                cold=Spent(),
            )
            rows.append(row)
        return rows

    def _shown_fields(self, kind: str, number: int) -> dict[str, Any]:
        """Return the fields of `Row` that say what one interval consists of.

        kind: the kind of its label
        number: the interval
        """
        interval = self._analysis.intervals.iloc[number]
        parts = dict(zip(CAUSES, self._matrix[number].tolist(), strict=True))
        gpu_ns = parts["kernel"] + parts["graph"]
        if kind == "host":
            # parts of a host timer are what its thread did: kernels that ran meanwhile are no part of it, but it
            # is theirs that the reader looks for.  At most: what it issued and ran before its second timer call
            ran_ns = int(interval["kernel_only_upper_ns"] - interval["kernel_outside_ns"])
            gpu_ns = max(gpu_ns, min(ran_ns, int(interval["elapsed_ns"])))
        return {
            "kind": kind,
            "interval": int(number),
            "interval_name": interval["name"],
            "elapsed_ns": int(interval["elapsed_ns"]),
            "parts_ns": parts,
            "gpu_ns": gpu_ns,
            "others_ns": self._others.get(number, 0) if kind == "event" else 0,
        }

    def _common_fields(
        self, label: str, kind: str, interval: int, about: Sequence[Finding]
    ) -> dict[str, Any]:
        """Return the fields of `LabelRow` that follow in the same way for a label and a run.

        label, kind: the name and kind of the label or run
        interval: the number of the interval that the row shows
        about: its findings
        """
        shown = self._shown_fields(kind, interval)
        unprofiled_ns = None
        no_prediction = ""
        if without := self._predicted.get(interval):
            no_prediction = safe_text(without.reason)
            bounds = (without.predicted_ns, without.lower_ns, without.upper_ns)
            unprofiled_ns = None if no_prediction else (*map(int, bounds),)
        cpu_matters = shown["parts_ns"]["host"] >= _MATTERS * shown["elapsed_ns"]
        row = self._analysis.intervals.iloc[interval]
        return shown | {
            "name": label,
            "label": label,
            "short": self.short(label),
            "callers": tuple(row["callers"]),
            "error_ns": int(row["error_ns"]),
            "inferred": row["method"] == "inferred",
            "findings": tuple(finding.rule for finding in about),
            "flagged": any(finding.severity != "info" for finding in about),
            "unprofiled_ns": unprofiled_ns,
            "no_prediction": no_prediction,
            "host": self._host.get(label, "") if cpu_matters else "",
        }


def _paces(groups: Sequence[Group], names: Mapping[int, str]) -> dict[int, str]:
    """Return, by the number of a group, the word for its pace, such as "slower", "" for none: of groups that do the same
    work in one process, compared with each other.  Kinds of work without a name are compared only within one kind.

    names: number of a group -> the name of its kind of work, "" for none
    """
    alike: dict[tuple[str, int, int], list[Group]] = {}
    # the quickest first, as `pace_words` needs them
    for group in sorted(groups, key=lambda g: g.typical_ns):
        name = names[group.number]
        alike.setdefault((name, group.pid, group.kind), []).append(group)
    paces = {}
    for same_work in alike.values():
        in_words = pace_words([group.role for group in same_work])
        for group, pace in zip(same_work, in_words, strict=True):
            paces[group.number] = pace
    return paces


def _places(label: Label, groups: Sequence[Group], start_ns: np.ndarray) -> dict[int, str]:
    """Return, by the number of a group, which of its label's timings it holds, if each group holds timings that follow
    each other: {0: "no. 1-15", 1: "no. 16-30"}; {} if one does not.  One helper that times several situations
    times one after the other: so a reader knows which row is which.

    groups: the groups of the label that have a row each
    start_ns: of all intervals
    """
    if not 2 <= len(groups) <= _MOST_PLACES or any(group.pid >= 0 for group in groups):
        return {}
    # first calls have no row, and stand between the others
    steady = np.concatenate([group.intervals for group in label.steady])
    in_order = steady[np.argsort(start_ns[steady], kind="stable")]
    starts = np.sort(start_ns[np.concatenate([group.intervals for group in label.groups])])
    places = {}
    for group in groups:
        position = np.flatnonzero(np.isin(in_order, group.intervals))
        if position[-1] - position[0] >= group.count:
            return {}
        ends = start_ns[in_order[position[[0, -1]]]]
        first, last = (np.searchsorted(starts, ends) + 1).tolist()
        places[group.number] = f"no. {first:,}-{last:,}" if last > first else f"no. {first:,}"
    return places


def _no_fault(row: LabelRow, usual: Mapping[str, Any]) -> LabelRow:
    """What a library timed inside the program's own line, such as the autotuning of a compiler, is no timing of
    the program's: one row of its usual interval, and no fault."""
    return replace(row, verdict=MIXED, words="timed by a library", groups=(), **usual)


def shorter(labels: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return (file, label -> its short name).

    If all labels are lines of one file, the file is said once, and the short names are the lines: `30-32`, or
    `21 › 12-18` for lines 12 to 18 as called from line 21.  Otherwise the file is "", and the names are those that
    sentences use.  No two short names are alike.
    """
    spoken = {label: sentences.spoken(label) for label in labels}
    places = {label: _LINES.match(safe_text(subject(label))) for label in labels}
    files = {place["file"] if place else "" for place in places.values()}
    if len(files) != 1 or "" in files or len(labels) < 2:
        return "", spoken
    names = {
        label: f"{place['line']} › {place['inner']}" if place["inner"] else place["line"]
        for label, place in places.items()
    }
    return (files.pop(), names) if len(set(names.values())) == len(names) else ("", spoken)


def in_a_word(no_prediction: str) -> str:
    """What a cell has room for instead of a prediction: the reason's word; "none" for one of an
    older version."""
    word, colon, _ = no_prediction.partition(": ")
    return word if colon and " " not in word else "none"


def _told_with(labels: Sequence[Label]) -> list[str]:
    """Return a note that names ranges which hold all work of the range around them, and have no row; nothing for none."""
    if not labels:
        return []
    names = [f"{safe_text(label.name)} (in {safe_text(label.inside)})" for label in labels]
    named = _first_named(names)
    return [f"ranges that hold all work of the range around them are told with it: {named}"]


def _first_named(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are: "a, b, c and 2 more"."""
    named = ", ".join(names[:_MOST_NAMED])
    not_named = len(names) - _MOST_NAMED
    return f"{named} and {not_named:,} more" if not_named > 0 else named


# --- what leads ---


def _leading(
    labels: Sequence[LabelRow],
    runs: Sequence[LabelRow],
    of_runs: Collection[str],
    findings: Sequence[Finding],
    wrong: Sequence[Finding],
    *,
    has_unseen_work: bool,
) -> LabelRow | Finding | None:
    """Return what the sentence of the first screen is about: the row of a label, the row of the longest run, or the
    finding of a wrong timing; None if nothing is known of any label.

    labels, runs: their rows, in the order in which they are shown
    of_runs: the names of the runs that may lead (`runs_that_lead`)
    findings: all findings, the most severe first
    wrong: the findings of wrong timings
    has_unseen_work: whether calls issued work of which the trace has no row

    The first of these that holds leads:

    nothing         of no label it is known what ran in it
    the run         the labels are ranges, and of too little of it (`_ranges_say_too_little`)
    the run         the first label's pairs were only read from the trace, and are of different things
    the run         more can be saved of it than of the first label
    a wrong timing  no label has any saving
    the first label, the valid one with the largest saving
    the run         there is no valid label
    """
    if has_unseen_work:
        return None
    run = runs[0] if runs else None
    may_lead = [row for row in labels if not row.library]
    if not may_lead:  # what libraries timed; but of their ranges (NCCL's) a run says more
        may_lead = [row for row in labels if row.kind != "nvtx" or not runs]
    lead = next((row for row in may_lead if row.verdict != WRONG), None)
    saving_ns = _saving_that_leads(lead) if lead else 0
    if lead and run:
        if lead.kind == "nvtx":
            # what is said of ranges is summed over all processes, as they are
            of_processes = [row for row in runs if row.label in of_runs] or [run]
            if _ranges_say_too_little(may_lead, saving_ns, of_processes):
                return run
            saving_ns = min(saving_ns, _idle_ns(of_processes))
        if lead.inferred and len(lead.groups) > 1:
            return run
    losses = [f.loss_ns for f in findings if f.severity == "warning" and f.label in of_runs]
    if run and max(losses, default=0) > saving_ns:
        return run
    if wrong and not saving_ns:
        return wrong[0]
    return lead or run


def _saving_that_leads(row: LabelRow) -> int:
    """Return how much (ns) could be saved of a label, 0 if that is too little to lead."""
    return row.saving_ns if row.saving >= (LEADS_ONCE if row.once_before_all else LEADS) else 0


def _idle_ns(runs: Sequence[LabelRow]) -> int:
    """Return how long the GPUs did nothing in some runs: only of this a range inside them can save anything.  What waits
    for other work of the GPU saves nothing of a run in which that always works."""
    elapsed_ns = sum(run.elapsed_ns for run in runs)
    return elapsed_ns - sum(run.parts_ns[kind] for run in runs for kind in OPERATION_KINDS)


def _ranges_say_too_little(
    rows: Sequence[LabelRow], saving_ns: int, runs: Sequence[LabelRow]
) -> bool:
    """Return whether NVTX ranges say too little of the runs to lead: they hold less than half of these, or the GPUs work
    for nearly all of them, and only little could be saved by the first range.  (A range may mark a detail; events and
    readings of a clock are what the program itself asks for, and lead whatever their share is.)

    rows: of the ranges
    saving_ns: what could be saved in the first of them
    runs: of each process that of the GPU which works most
    """
    whole_ns = sum(run.elapsed_ns for run in runs)
    held_ns = sum(row.warm.total_ns + row.cold.total_ns for row in rows)
    if 2 * held_ns < whole_ns and saving_ns < LEADS_RUN * whole_ns:
        return True
    idle_ns = _idle_ns(runs)
    is_busy = whole_ns - idle_ns >= NEARLY_ALL * whole_ns
    return is_busy and min(saving_ns, idle_ns) < LEADS_BUSY * whole_ns


def _drawn_row(
    leading: LabelRow | Finding | None, labels: Sequence[LabelRow], runs: Sequence[LabelRow]
) -> LabelRow | None:
    """Return the row whose interval is drawn: the one that leads, or that of the label that the leading finding is about;
    where that has none, the longest run's.
    """
    if not isinstance(leading, Finding):
        return leading
    rows_of_label = [row for row in labels if row.label == leading.label]
    return next(iter([*rows_of_label, *runs]), None)


def _sentence(
    analysis: Analysis,
    leading: LabelRow | Finding | None,
    row: LabelRow | None,
    findings: Sequence[Finding],
) -> tuple[str, Finding | None]:
    """Return (the sentence of the first screen, the finding whose fixes are shown with it or None).

    leading: as `_leading` returns it
    row: the row whose interval is drawn
    findings: all findings, the most severe first

    Lost records come before everything else, because what is said of the GPU is then not the whole of it; then failed
    calls, because what should have been timed did not happen.
    """
    worst_of_rule: dict[str, Finding] = {}
    for finding in findings:
        worst_of_rule.setdefault(finding.rule, finding)
    if lost := worst_of_rule.get("lost-records"):
        return lost.title, lost
    failed = worst_of_rule.get("failed-calls")
    if failed is None and failed_early(analysis):
        return f"The script {_ended(analysis)} before it launched a kernel.", None
    sentence, about = _sentence_of_leading(analysis, leading, findings)
    if failed is None or (about is failed and sentence != failed.title):
        return sentence, about  # it tells of what failed, and of more
    if row and row.kind != "run" and not row.gpu_ns:
        where = "on the stream of" if row.others_ns else "in"
        sentence = f"No kernel ran {where} {safe_text(row.label)}."
    return failed.title if sentence == failed.title else f"{failed.title} {sentence}", failed


def _sentence_of_leading(
    analysis: Analysis, leading: LabelRow | Finding | None, findings: Sequence[Finding]
) -> tuple[str, Finding | None]:
    """Return (the sentence about what leads, the finding that it is about or None).

    leading, findings: as in `_sentence`
    """
    if isinstance(leading, Finding):
        return leading.title, leading
    if leading is None:
        loud = [finding for finding in findings if finding.severity != "info"]
        if loud:
            return loud[0].title, loud[0]
        on_no_work = [note for note in analysis.notes if note.startswith(NO_WORK)]
        return on_no_work[0] if on_no_work else _nothing_measured(analysis), None
    if leading.kind == "run":
        return _sentence_of_run(leading, analysis, findings)
    # a finding with a verdict is the one finding of its label; others are remarks beside it
    of_label = (f for f in findings if f.label == leading.label and f.verdict)
    sentence, about = leading.sentence, next(of_label, None)
    set_up = _set_up_in_calls(analysis) if leading.kind == "nvtx" else ""
    if set_up:
        sentence = f"{set_up} {sentences_of_three_lines(sentence)}"
    return sentence, about


def _set_up_in_calls(analysis: Analysis) -> str:
    """Return what is said in few words of CUDA calls before the GPU's first work that take most of a process's time; '' where
    none do.  Program ranges hide that: their GPU work begins behind it, and the calls may lie in one of them.

    from_arrow   [ cudaMemsetAsync, 2.03 s                 ]   [ ]
    GPU                                                   KK   KK
    """
    for finding in analysis.findings.itertuples(index=False):
        calls_ns = finding.evidence.get("before_first_work_ns", 0)
        if finding.rule == "set-up" and calls_ns >= SET_UP_SHARE * finding.evidence["whole_ns"]:
            texts = finding.shorter or (finding.title,)
            return safe_text(texts[min(Cut.SET_UP - 1, len(texts) - 1)])
    return ""


def failed_early(analysis: Analysis) -> bool:
    """Return whether the script failed before its GPU computed anything: what it did until then is not what is asked for."""
    computed = analysis.kernels["kind"].isin(["kernel", "graph"]).any()
    return bool(analysis.known.exit_status) and not computed


def _ended(analysis: Analysis) -> str:
    """Return how the script ended, where it did not end well: "ended with status 143 (SIGTERM)"."""
    status = analysis.known.exit_status
    signals = {int(number): number.name for number in signal.Signals}
    name = signals.get(status - 128 if status > 128 else -status, "")
    return f"ended with status {status}" + (f" ({name})" if name else "")


def _sentence_of_run(
    run: LabelRow, analysis: Analysis, findings: Sequence[Finding]
) -> tuple[str, Finding | None]:
    """Return (what is said of a run, the finding whose fixes are shown with it or None): the warning that loses most;
    without one, what the GPU did.

    Copies that failed are told of first, then where the time went all the same: by the warning that loses most, or by what
    the GPU did.  Where other calls failed, no rule looks at runs.

    A warning about set-up, the time before the program's work proper, comes first, and the one of the same process that
    loses most follows in the same sentence, with its fixes: set-up is paid once, and what follows it is what can be
    changed.
    """
    leading = runs_that_lead(analysis)
    loud = [f for f in findings if f.severity == "warning" and f.label in leading]
    if analysis.labels.empty:
        # then warnings and errors about no run count as well; only of runs that do not lead nobody is told
        not_leading = set(analysis.runs["label"]) - leading
        of_all = [f for f in findings if f.severity != "info" and f.label not in not_leading]
        loud = of_all or loud
    if not loud:
        return run.sentence, None
    failed = next((finding for finding in loud if finding.rule == "failed-calls"), None)
    if failed and only_copies_failed(analysis):
        return _behind_failed_copies(run, analysis, failed, loud), failed

    def rank(finding: Finding) -> tuple[Any, ...]:
        of_a_run = finding.label in leading
        severity = SEVERITIES.index(finding.severity)
        return severity, of_a_run, finding.rule != "set-up", -finding.loss_ns

    first, *less_important = sorted(loud, key=rank)
    # every process has a set-up of its own: that of another one says nothing new
    following = [finding for finding in less_important if finding.label == first.label]
    told = _by_title(analysis)
    of_first = told[first.label, first.title].shorter or (first.title,)
    if first.rule != "set-up":
        sentence, _ = in_three_lines(of_first)
        return safe_text(sentence), first
    if not following:
        of_gpu = run_sentences.of_run(analysis, run.label, run.interval, run.parts_ns)
        # without its share it says nothing: all of it, or none
        sentence = f"{first.title} {of_gpu}" if fits(first.title, of_gpu) else first.title
        return sentence, first
    second = following[0]
    behind = told[second.label, second.title].behind or (second.title,)
    sentence, is_cause_told = in_three_lines(behind, of_first)
    # in three lines there may be no room for the cause: then its fix would seem to be one of the set-up
    return safe_text(sentence), second if is_cause_told else replace(second, advice=())


def _by_title(analysis: Analysis) -> dict[tuple[str, str], Any]:
    """Return (label, title) -> the row of a finding, with its ever shorter texts; one without them is told in full."""
    return {(f.label, safe_text(f.title)): f for f in analysis.findings.itertuples(index=False)}


def _behind_failed_copies(
    run: LabelRow, analysis: Analysis, failed: Finding, loud: Sequence[Finding]
) -> str:
    """Return which copies failed, and where the time of a run went: the finding that loses most, else what the GPU did.

    loud: the warnings and errors that may be told
    """
    told = _by_title(analysis)
    of_failed = told[failed.label, failed.title].shorter or (failed.title,)
    of_runs = sorted((f for f in loud if f is not failed), key=lambda f: -f.loss_ns)
    of_time = (run.sentence,) * len(of_failed)
    if of_runs:
        first = of_runs[0]
        of_time = told[first.label, first.title].behind or (first.title,) * len(of_failed)
        # what failed is not before it, as set-up is
        without_then = (text.removeprefix("Then ") for text in of_time)
        of_time = tuple(f"{text[:1].upper()}{text[1:]}" for text in without_then)
    return safe_text(in_three_lines(of_time, of_failed)[0])


def _proof(analysis: Analysis, row: LabelRow) -> Proof:
    """Return the interval of a row with its pieces."""
    table = analysis.segments  # sorted by interval
    bounds = np.searchsorted(table["interval"].to_numpy(), [row.interval, row.interval + 1])
    name, pieces = row.interval_name, table.iloc[slice(*bounds)]
    busy_ns = int(analysis.intervals["gpu_busy_ns"].iloc[row.interval])
    return proof_of(
        row.label, row.interval, name, row.kind, row.elapsed_ns, pieces, (busy_ns, row.others_ns)
    )


def cold_intervals(analysis: Analysis) -> np.ndarray:
    """Return, per interval, whether it is a first call (bool).  If all intervals of a label are first calls, none of
    them counts as one.
    """
    cold = [group.number for label in analysis.grouped for group in label.cold]
    return analysis.intervals["group"].isin(cold).to_numpy()


# --- what the CPU did ---


def _host_sentences(analysis: Analysis, spent: Mapping[str, Spent]) -> dict[str, str]:
    """Return label -> what its CPU did while the stream waited for it, in words: a text for each view (Python
    functions, NVTX ranges, OS calls) that knows something.

    spent: label -> what its intervals took without first calls

    If nothing is known although the stream was idle for long, the text says how to record it.  The text may be "".
    """
    sampled = bool(analysis.host_activity["samples"].any())  # whether Python was sampled at all
    texts = {}
    rows_of_label: dict[str, list[Any]] = {}
    for row in frames.rows_of(analysis.host_activity):
        rows_of_label.setdefault(row.label, []).append(row)
    for label, rows in rows_of_label.items():
        # the label's gaps as a whole, of no view
        whole = next(row for row in rows if row.view == "all")
        named: dict[str, list[str]] = {view: [] for view in VIEWS}
        for row in rows:
            if row.view != "all" and row.name and row.share >= _WORTH_NAMING:
                named[row.view].append(
                    f"{percent(row.share)} {safe_text(row.name)}{_place_in_words(row)}"
                )
        contents = {view: ", ".join(names[:_MOST_NAMED]) for view, names in named.items()}
        parts = []
        if whole.samples:
            counted = plural(whole.samples, "sample")
            parts.append(f"{contents['python']} ({counted} in {duration(whole.ns)} of gaps)")
        elif sampled:
            gaps = duration(whole.ns)
            parts.append(f"not sampled: none of the samples fell into its {gaps} of gaps")
        parts += [f"{VIEWS[v]}: {contents[v]}" for v in ("range", "os") if contents[v]]
        # gaps of first calls do not count: they are paid once
        idle_ns = spent.get(label, Spent()).idle_ns
        if not parts and min(whole.ns, idle_ns) >= _WORTH_SAMPLING_NS:
            again = f"nsysalign run --sample-python {_script(analysis)}"
            parts = [f"not recorded; {again} names its functions"]
        texts[label] = "; ".join(parts)
    return texts


def _place_in_words(row: Any) -> str:  # of frames.HOST_ACTIVITY
    """Return where a function of the program is, and the library function inside it: " (train.py:12, in matmul)"; "" if
    that is not known."""
    if not row.place:
        return ""
    place = f"{row.place}, in {row.within}" if row.within else row.place
    return f" ({safe_text(place)})"


# --- findings ---


def _findings(analysis: Analysis) -> list[Finding]:
    """Return all findings as plain records whose texts are safe to print: the program's own before those about
    libraries, and among these the most severe first.
    """
    findings = []
    libraries = set(analysis.labels["label"][analysis.labels["library"].astype(bool)])
    script = _script(analysis)
    table = analysis.findings.itertuples(index=False)
    for f, status in zip(table, statuses(analysis), strict=True):
        rule = safe_text(f.rule)
        is_open = status.verdict == NOT_CONFIRMED
        evidence = f.evidence if isinstance(f.evidence, dict) else {}
        findings.append(
            Finding(
                severity=f.severity if f.severity in SEVERITIES else "info",
                label=f.label,
                title=safe_text(f.title),
                site=safe_text(f.site),
                interval=f.interval,
                rule=rule,
                verdict=f.verdict if f.verdict in SIGNS else "",
                words=safe_text(f.words),
                evidence=tuple(
                    (safe_text(words(key)), safe_text(quantity(str(key), value)))
                    for key, value in evidence.items()
                ),
                advice=tuple(_fixes(rule, f.advice, f.faster, script)),
                loss_ns=f.loss_ns,
                library=f.label in libraries,
                confirmation="" if is_open else safe_text(_status_in_words(status)),
                to_confirm=safe_text(status.text).replace("SCRIPT.py", script) if is_open else None,
            )
        )
    return sorted(findings, key=lambda f: (f.library, SEVERITIES.index(f.severity)))


def _status_in_words(status: Status) -> str:
    """Return what a re-run found out about a finding: "confirmed: 12 of 12 intervals are shorter"."""
    return f"{status.verdict}: {status.text}" if status.text else status.verdict


def _script(analysis: Analysis) -> str:
    """Return the file that all call sites of the program's own labels are in, "SCRIPT.py" if there are several: what
    was run is not known then."""
    timed = analysis.measured[~analysis.measured["library"].to_numpy(dtype=bool)]
    sites = {*timed["site"], *(site for callers in timed["callers"] for site in callers)} - {""}
    files = {safe_text(site).rpartition(":")[0] for site in sites}
    script = files.pop() if len(files) == 1 else ""
    return shlex.quote(script) if script.endswith(".py") else "SCRIPT.py"


def _fixes(rule: str, measuring: str, faster: str, script: str) -> Iterator[Fix]:
    """Yield a fix for each advice of a finding, as a sentence and its code: "Do this:   code" is split at the three
    blanks, and the code into lines at each ";   ".

    measuring: how to measure right, "" for none; faster: what makes the program faster, "" for none
    script: what stands in commands for SCRIPT.py
    """
    right = rule in _MEASURED_RIGHT or not rule
    purposes = {"measure it right" if right else "measure the GPU only": measuring}
    purposes[_FASTER] = faster
    for purpose, text in purposes.items():
        sentence, _, code = safe_text(text).partition(":   ")
        if sentence:
            lines = code.replace("SCRIPT.py", script).replace(";   ", "\n")
            yield Fix(purpose, sentence, lines)


def _groups(findings: Sequence[Finding], first: str) -> list[Findings]:
    """Return findings in groups, those of one rule with the same advice together.

    first: the label that leads

    Errors come first, then warnings, then information; those about libraries come last.  Of equally severe groups
    the one about `first` leads, then the one that loses most.
    """
    alike: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.rule, finding.advice), []).append(finding)
    groups = []
    for (rule, _), of_group in alike.items():
        of_group.sort(key=lambda f: (f.library, f.label != first, -f.loss_ns))
        worst = min((finding.severity for finding in of_group), key=SEVERITIES.index)
        groups.append(Findings(rule, worst, tuple(of_group)))

    def rank(group: Findings) -> tuple[Any, ...]:
        severity = SEVERITIES.index(group.severity)
        return group.library, severity, group.findings[0].label != first, -group.loss_ns

    return sorted(groups, key=rank)


def _remarks(
    analysis: Analysis,
    rows: Sequence[LabelRow],
    is_first_call: np.ndarray,
    short: Callable[[str], str],
) -> tuple[str, ...]:
    """Return the lines below the table of the first screen, the most important first (the last ones are left out where there
    is no room).  In this order:

    - what labels of a run that was traced in turns take traced and untraced
    - how the script ended, if it failed
    - which readings of a clock are in no timing; at which clock the GPU ran, where it was slowed down in nearly all; which
      ranges are whole, where rows were lost
    - how long first calls took
    - why no timing of the program's own was seen
    - that a run without nsys is there

    rows: of all labels
    is_first_call: bool, per interval
    short: label -> its short name
    """
    remarks = []
    if analysis.known.in_turns:
        remarks += _turns(analysis, short)
    if analysis.known.exit_status and not failed_early(analysis):
        unread = ", before a timing was read" if _none_was_read(analysis) else ""
        remarks.append(f"the script {_ended(analysis)}{unread}")
    shown = (
        note for note in analysis.notes if note.startswith((HOST_TIMERS, LOW_CLOCK, LOST_ROWS))
    )
    remarks += [safe_text(note.removeprefix(HOST_TIMERS)) for note in shown]
    if on_first_calls := _remark_on_first_calls(analysis, rows, is_first_call, short):
        remarks.append(on_first_calls)
    if nothing_timed_is_seen(analysis):
        remarks.append(_UNSEEN_BY_TORCH if ran_torch(analysis) else _UNSEEN)
    if len(analysis.baseline) and not analysis.known.in_turns:
        remarks.append(f"{plural(len(analysis.baseline), 'label')} also timed without nsys: -v")
    return tuple(remarks)


def _remark_on_first_calls(
    analysis: Analysis,
    rows: Sequence[LabelRow],
    is_first_call: np.ndarray,
    short: Callable[[str], str],
) -> str:
    """Return how long the first calls of the program's own labels took, in which label most of it, and what they loaded; ""
    if there were none.

    rows, is_first_call, short: as in `_remarks`
    """
    by_program = ~analysis.intervals["library"].to_numpy(dtype=bool)
    # what a row shows is not left out; the row calls it a first call
    in_rows = set(analysis.intervals["group"].iloc[[row.interval for row in rows]])
    left_out = is_first_call & by_program & ~analysis.intervals["group"].isin(in_rows).to_numpy()
    once_ns = _covered_by(analysis.intervals[left_out])
    if not once_ns:
        return ""
    # an interval that is a first call is in a label with first calls: there is at least one
    of_labels = {
        label: [group for group in label.cold if group.number not in in_rows]
        for label in analysis.grouped
        if not label.library
    }
    labels = [label for label, groups in of_labels.items() if groups]
    first_ns = {label.name: sum(g.total_ns for g in of_labels[label]) for label in labels}
    longest = max(labels, key=lambda label: first_ns[label.name])
    in_longest = duration(first_ns[longest.name])
    part_in_longest = "all" if in_longest == duration(once_ns) else in_longest
    where = f", {part_in_longest} of it in {short(longest.name)}" if labels[1:] else ""
    measured = analysis.measured
    share = once_ns / _covered_by(measured[~measured["library"].to_numpy(dtype=bool)])
    is_much = share >= _MOST_OF_ALL and once_ns >= _LONG_NS
    part = f", {percent(share)} of all that was timed" if is_much else ""
    shown = {row.words for label in rows for row in (label, *label.groups)}
    head = "other first calls" if shown & {"first call", "first calls"} else "first calls"
    return f"{head}, left out: {duration(once_ns)}{part}{where}{sentences.loaded(longest.first)}"


def _none_was_read(analysis: Analysis) -> bool:
    """Return whether the probe was in the program, and saw no timing of the program's own."""
    timed = analysis.measured
    timed = timed[(timed["kind"] != "nvtx") & (timed["method"] != "inferred")]
    return bool(analysis.known.torch) and timed.empty and analysis.unaligned.empty


def _turns(analysis: Analysis, short: Callable[[str], str]) -> list[str]:
    """Return what a run says of itself that was traced only part of the time: labels that are limited by something
    else while they are traced, then both times of the _MOST_TURNS longest labels, and how many intervals were
    left out.

    short: label -> its short name
    """
    table = analysis.baseline[analysis.baseline["profiled_count"] > 0]
    table = table.assign(total=table["profiled_ns"] * table["profiled_count"])
    table = table.sort_values("total", ascending=False, kind="stable")
    rows = [*table.itertuples(index=False)]
    known = {GPU: "GPU-bound", CPU: "CPU-bound"}
    changed = []
    for row in rows:
        traced, untraced = known.get(row.profiled_verdict), known.get(row.baseline_verdict)
        if traced and untraced and traced != untraced:
            label = short(row.label)
            changed.append(f"{label} is {traced} while it is traced and {untraced} untraced")
    lines = [f"{short(row.label)}: {_traced_and_untraced(row)}" for row in rows[:_MOST_TURNS]]
    if rows[_MOST_TURNS:]:
        lines.append(f"{plural(len(rows) - _MOST_TURNS, 'more label')} traced and untraced: -v")
    if left_out := analysis.known.left_out:
        lines.append(f"{plural(left_out, 'interval')} left out: partly traced, or not of use")
    return [*changed, *lines]


def _traced_and_untraced(row: Any) -> str:  # of frames.BASELINE
    """Return both times of a label, how often it was timed, and by how much tracing lengthens it (95 %)."""
    if not row.baseline_count:
        return f"none of its {row.profiled_count:,} intervals of this run was untraced"
    text = (
        f"{duration(row.profiled_ns)} traced, {duration(row.baseline_ns)} untraced "
        f"({row.profiled_count:,} and {row.baseline_count:,} of this run)"
    )
    if np.isnan(row.low_ns) or row.baseline_ns <= 0:
        return f"{text}; {row.remark.removesuffix(': not compared')}: not compared"
    low, high = (100 * ns / row.baseline_ns for ns in (row.low_ns, row.high_ns))
    return f"{text}: tracing adds {low:+.1f} to {high:+.1f} %"


def _covered_by(intervals: pd.DataFrame) -> int:
    """Return for how long (ns) at least one of these intervals is open."""
    return covered_ns(intervals["start_ns"].to_numpy(), intervals["end_ns"].to_numpy())


# --- the run as a whole ---


def of_devices(analysis: Analysis) -> pd.DataFrame:
    """The runs of whole devices: each process's first one on a device (streams come behind it)."""
    return analysis.runs.drop_duplicates(["pid", "device"])


def runs_that_lead(analysis: Analysis) -> set[str]:
    """Names of the runs that a sentence is about: of each process that of the device which works most.
    That another one idles is no news."""
    return set(analysis.runs.drop_duplicates("pid")["label"])


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


def _headline(
    analysis: Analysis, of_program: set[str], matrix: np.ndarray, gpu_ns: np.ndarray
) -> Headline:
    """Return a sentence on the run as a whole, with its time and its parts: when the GPU worked, what the rest of the
    time was, and how much of it the program's intervals cover.

    of_program: the labels of the program itself
    matrix: ns by cause, int64 (intervals, causes)
    gpu_ns: per interval, how long (ns) the GPU worked in it

    It is about the longest run, or about all intervals of the program's labels if there is no run, or if most of the run is
    unknown because the trace was cut from a longer one.
    """
    intervals = analysis.intervals
    elapsed = intervals["elapsed_ns"].to_numpy()
    timed = np.flatnonzero(intervals["label"].isin(of_program).to_numpy())
    runs = np.flatnonzero(intervals["label"].isin(runs_that_lead(analysis)).to_numpy())
    run = int(runs[elapsed[runs].argmax()]) if len(runs) else None
    # if a trace was cut from a longer one, most of the run is unknown: its intervals say more
    unknown = CAUSES.index("unknown")
    if run is not None and of_program and matrix[run, unknown] > elapsed[run] / 2:
        run = None
    chosen = timed if run is None else np.array([run])
    total = int(elapsed[chosen].sum())
    if not total:
        return Headline(_nothing_measured(analysis))
    parts = dict(zip(CAUSES, matrix[chosen].sum(axis=0).tolist(), strict=True))
    worked = int(gpu_ns[chosen].sum())
    counted = f"{plural(len(timed), 'interval')} in {plural(len(of_program), 'label')}"
    if run is None:
        shares = _shares(parts, worked, between=0)
        text = f"{counted}, {duration(total)} profiled: {shares}."
    else:
        text = _headline_of_run(analysis, run, timed, parts, worked, counted)
    return Headline(text, total, parts)


def _headline_of_run(
    analysis: Analysis,
    run: int,
    timed: np.ndarray,
    parts: dict[str, int],
    worked: int,
    counted: str,
) -> str:
    """Return the sentence on a run: how long it was, when the GPU worked in it, and how much of it was timed.

    run, timed: the numbers of the run's interval, and of the intervals of the program
    parts: ns of the run by cause
    worked: for how long (ns) the GPU worked, graphs as a whole
    counted: how many intervals and labels the program has, in words
    """
    intervals = analysis.intervals
    name = str(intervals["label"].iloc[run])
    # a graph that was traced as a whole counts as work from its first node to its last; between them nothing ran
    between = run_sentences.between_nodes_ns(analysis.kernels, name, parts["graph"])
    worked -= between
    if analysis.trace.thinned:  # rows were removed from the trace: idle times are not known
        return run_sentences.of_thinned(worked)
    start = intervals["start_ns"].to_numpy()
    end = start + intervals["elapsed_ns"].to_numpy()
    total = int(end[run] - start[run])
    shares = _shares(parts, worked, between)
    text = f"{duration(total)} from the first GPU work to the last, profiled: {shares}."
    if not len(timed):
        return f"{safe_text(name)}: {text}" if len(of_devices(analysis)) > 1 else text
    timed_start = np.clip(start[timed], start[run], end[run])
    timed_end = np.clip(end[timed], start[run], end[run])
    covered = covered_ns(timed_start, timed_end)
    if not covered:  # all of them are in other processes
        return f"{text} {counted}."
    verb = "covers" if len(timed) == 1 else "cover"
    not_timed = "; the rest was not timed" if covered < _UNTIMED * total else ""
    share = percent(covered / total)
    return f"{text} {counted} {verb} {duration(covered)} of it ({share}){not_timed}."


def _shares(parts: dict[str, int], worked: int, between: int) -> str:
    """Return how much of the time the GPU worked, and the largest parts of the rest, in words.

    parts: ns by cause
    worked: for how long (ns) the GPU worked
    between: for how long (ns) it ran nothing between the nodes of CUDA graphs
    """
    total = sum(parts.values())
    idle = {DISPLAY[cause]: ns for cause, ns in parts.items() if cause not in OPERATION_KINDS}
    idle["staging of copies"] = sum(parts[cause] for cause in OPERATION_KINDS) - worked - between
    idle[run_sentences.BETWEEN_NODES] = between
    largest = sorted(((ns, name) for name, ns in idle.items() if ns), reverse=True)[:_MOST_PARTS]
    listed = [f"{name} {percent(ns / total)}" for ns, name in largest if ns >= 0.01 * total]
    return ", ".join([f"GPU busy {percent(worked / total)}", *listed])


# --- what the numbers rest on ---


def _about(analysis: Analysis) -> dict[str, str]:
    """Return name -> what the numbers rest on, in words: GPU, driver, recorder, clock, how many intervals were
    measured, and how exactly they were placed.  What is not known is left out.
    """
    info = analysis.trace
    measured = analysis.measured
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
        "SM clock": _clock_in_words(analysis.gpu_clocks),
        "measured": _measured_in_words(measured),
        "timestamp uncertainty": duration(np.percentile(errors, 95)) if len(errors) else "",
        "placed by": ", ".join(f"{safe_text(method)} ({count:,})" for method, count in methods),
    }
    return {name: text for name, text in about.items() if text}


def _measured_in_words(measured: pd.DataFrame) -> str:
    """Return how many intervals of how many labels the program timed, and how many more were not timed by itself."""
    not_of_program = measured["library"].to_numpy(bool)
    if not_of_program.all():
        # only a library timed: because the program asked it to (do_bench), unless the pairs were just read from the trace
        not_of_program = (measured["method"] == "inferred").to_numpy(bool)
    label_count = len(set(measured["label"][~not_of_program]))
    interval_count = int((~not_of_program).sum())
    counted = f"{plural(interval_count, 'interval')} in {plural(label_count, 'label')}"
    if not_of_program.any():
        counted += f", {not_of_program.sum():,} more that the program did not time itself"
    return counted


def _clock_in_words(clocks: pd.DataFrame) -> str:
    """Return from what to what the SM clock went, "" if it was not sampled.  clocks: `Analysis.gpu_clocks`"""
    if clocks.empty:
        return ""
    low, high = int(clocks["sm_min_mhz"].min()), int(clocks["sm_max_mhz"].max())
    text = f"{high} MHz" if low == high else f"{low} to {high} MHz"
    text += f", {int(clocks['samples'].sum()):,} samples"
    reasons = np.maximum(clocks["reasons"].to_numpy(), 0)  # -1: not read
    return f"{text}, slowed down at times" if (reasons & SLOWED_BITS).any() else text


def _unplaced(analysis: Analysis) -> list[Unplaced]:
    """Return why intervals could not be placed, the most frequent reason first."""
    reasons = []
    for reason, names in analysis.unaligned.groupby("reason", sort=False)["name"]:
        different = [safe_text(name) for name in names.unique()]
        shown = tuple(different[:_MOST_NAMED])
        if len(different) > _MOST_NAMED:
            shown = (*shown, "…")
        reasons.append(Unplaced(safe_text(reason), len(names), shown))
    return sorted(reasons, key=lambda unplaced: -unplaced.count)
