"""The one finding of each label, which decides its sentence, verdict, fixes and row.

    label with groups --> validity: does the number mean what it says?      (a sure reason, or none)
                      --> story: the group and cause with most avoidable time
                      --> Finding: sentence, verdict, words, advice, what could be saved

Avoidable is all but kernels, graphs, copies on the device and an event pair's own cost; waiting for
what the label launched itself is not; of a slow group it is the excess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.explain import advice, sentences, validity
from nsysalign.explain.case import (
    Case,
    Numbers,
    beside,
    call_site,
    shown_groups,
    starts_in_warm_up,
)
from nsysalign.explain.clocks import interval_clocks, low_clock
from nsysalign.explain.facts import ALLOCATES, WARN_SHARE, Facts
from nsysalign.explain.finding import SEVERITIES, Advice, Finding, Remark
from nsysalign.explain.preparing import A_SEARCH, LOAD_NS, LOADS, times_compiled
from nsysalign.explain.rules import every_rule
from nsysalign.explain.runs.gaps import FirstWait
from nsysalign.explain.runs.idle import FIRST_SHARE, LEAST_NS
from nsysalign.explain.runs.run import Run
from nsysalign.explain.same_kernel import FAR
from nsysalign.explain.verdict import (
    CANNOT_TELL,
    COPY,
    DOUBTFUL,
    FLOOR,
    GPU,
    GPU_SHARE,
    MIXED,
    WAITING,
    WRONG,
    sums_of,
    together,
)
from nsysalign.label import FIRST, Group, Label, Work
from nsysalign.memory import trim_memory
from nsysalign.model import Diagnosis, Evidence
from nsysalign.parts import parts_matrix
from nsysalign.place.pauses import GARBAGE_COLLECTION
from nsysalign.split.pieces import Segments
from nsysalign.text import duration, percent, plural

#: From this many operations on, they are many.
MANY_OPERATIONS = 10
#: Fewer timings than this beside its first calls: these lead.
FEWEST_STEADY = 2
#: A group leads for what could be saved in it from this share of the label's time on, else the largest.
MATTERS = 0.1
#: GPU work that spans less than this share of its range is not what the range is about.
SLIVER = 0.2
#: What makes the rest of little interest comes first among equally severe findings.
FIRST_OF_ALL = ("failed-calls", "lost-records", "set-up")
#: A cause takes at least this share of the time.
_LEAST_CAUSE = 0.05
#: Cause -> the rule, where nothing more is known.
_RULE_OF_CAUSE = {
    "cpu": "host-gap", "sync": "sync-inside", "copies": "copy-inside", "waiting": "queued",
}  # fmt: skip
#: Rules whose advice is on other things than the time that could be saved.
_ADVISES_ANYWAY = ("module-load", "gpu-bound", "several-kinds")
#: What a program calls its warm-up, where no file is named so: nobody wants to make it faster.
_WARM_UP = re.compile(r"^(?!.*:\d).*warm[ _-]?(ing[ _-]?)?up", re.IGNORECASE | re.DOTALL)
#: Between a sentence of advice and its code, and both of these.
_BEFORE_CODE = ":   "
_CODE = re.compile(f"{_BEFORE_CODE}.*", re.DOTALL)
#: Code for torch, which says nothing to other programs.
_OF_TORCH = re.compile(r"\btorch\.")
#: The same lines called elsewhere are compared if one call takes so many times as long, and its kernels
#: less than so many times.
QUICKER, SAME_WORK = 1.15, 1.05
#: ... and if neither of them was timed so many times as often: the fewer may be warm-up.
ALIKE_OFTEN = 3
#: Two labels run nearly the same kernels if so many of them are in both.
IN_COMMON = 0.8
#: How much longer under nsys is worth a finding.
_INFLATION = 0.05


def diagnose(evidence: Evidence, segments_of: Callable[[np.ndarray], Segments]) -> Diagnosis:
    """Return everything that is found in an analysis: the table of findings, for each interval the rules that found
    something about it, and notes.

    segments_of: numbers of intervals in ascending order -> the segments of these intervals

    Findings are those on pairs of events without a place, one for each label, and those of the rules
    (`explain.rules`, and of add-ons) about the whole analysis or about each run.  A rule may also leave a
    remark, which becomes a note.
    """
    facts = Facts(evidence, segments_of)
    # the rule and the finding of each
    findings: list[tuple[str, Finding]] = list(_findings_without_result(facts))
    findings += findings_of_labels(facts)
    trim_memory()  # gives back what the arrays of the segments took that labels read
    # what a rule can ask for by the name in `each`
    items = {"labels": facts.labels, "runs": [Run(facts, row) for row in facts.run_rows]}
    notes = []
    for rule in every_rule():
        if rule.table and rule.table not in evidence.extra:
            continue  # a rule of an add-on whose table the analysis does not have
        outcomes: Iterable[Finding | Remark]
        if rule.each:
            outcomes = chain.from_iterable(map(rule.find, items[rule.each]))
        else:
            outcomes = rule.find(facts)
        for outcome in outcomes:
            if isinstance(outcome, Remark):
                notes.append(outcome.text)
            else:
                findings.append((rule.name, outcome))
    notes += _notes_on_unchecked(facts)
    if on_clock := low_clock(facts, interval_clocks(facts)).note:
        notes.append(on_clock)

    def order(rule_and_finding: tuple[str, Finding]) -> tuple[int, bool, int]:
        """Return a key by which findings are sorted: the most severe first, of these what makes all others of little
        interest (FIRST_OF_ALL), then what loses most time."""
        rule, finding = rule_and_finding
        severity = SEVERITIES.index(finding.severity)
        return severity, rule not in FIRST_OF_ALL, -finding.loss_ns

    findings.sort(key=order)
    rows = [_row(facts, rule, finding) for rule, finding in findings]
    table = frames.of_rows(rows, frames.FINDINGS)
    return Diagnosis(table, _rules_of_intervals(findings, len(evidence.intervals)), notes)


def findings_of_labels(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Yield (rule, finding) once for each label that does not lie inside another one.

    The finding says why the label's number means something else (`validity`), if that is so; if not, it says what
    takes most of the time that need not be (`_story`).  A sentence each may be added on what takes long inside (the
    first pass of a loop, or lines that are quicker elsewhere), on what the same lines or the same kernels take
    elsewhere, and on what the label takes where it is not recorded.
    """
    matrix = parts_matrix(facts.analysis)[: facts.count]  # ns by cause, (intervals, causes)
    clocks = validity.clocks_of_run(facts)
    labels = [label for label in facts.labels if not label.inside]
    # the segments that nearly every label needs are read in one go: those of its first group
    facts.read(group for label in labels for group in shown_groups(label)[:1])
    in_warm_up = starts_in_warm_up(facts)
    leading = {label.name: leading_case(facts, label, matrix, in_warm_up) for label in labels}
    cases = list(leading.values())
    # label -> the reason that its caches are cold; what it takes unrecorded; a quicker case of the same lines
    cold = dict(validity.cold_caches(cases, clocks.clocks))
    unrecorded = {row.label: row for row in facts.analysis.baseline.itertuples(index=False)}
    quicker = quicker_calls(cases)
    in_turns = facts.analysis.known.in_turns
    for label in labels:
        case, reason = _reason(facts, label, leading[label.name], matrix)
        empty = None if reason else validity.partly_empty(case)
        if empty and not cause_of(case):  # the others mean what they say: nothing else is the story
            reason = empty
        reason = reason or _milder_reason(case, clocks, cold.get(label.name))
        if reason:
            rule, finding = _finding_of_reason(case, reason)
        else:
            rule, finding = _story(case, matrix)
            if empty:
                finding = _with_empty_timings(finding, empty)
            if rule == "host-gap" and case.on_host:
                finding = _with_first_pass(case, finding)
                finding = _with_quicker_inside(finding, case, quicker, leading)
            if label.name in quicker:
                finding = _with_quicker_call(finding, quicker[label.name])
            elif rule == "sync-inside":  # another label says less than the same lines
                finding = _with_label_without_waits(finding, case, cases)
        finding = _with_time_unrecorded(finding, unrecorded.get(label.name), in_turns)
        # nobody wants to make a warm-up faster
        if finding.severity == "warning" and _WARM_UP.search(label.name):
            finding = replace(finding, severity="info", loss_ns=0)
        yield rule, finding


def _reason(
    facts: Facts, label: Label, leading: Case, matrix: np.ndarray
) -> tuple[Case, validity.Reason | None]:
    """Return (the case that the label's finding is about, why the label's number means something else than it seems).

    leading: the label's case as `leading_case` returns it
    matrix: ns by cause, int64 (intervals, causes)

    Three groups are asked for such a reason, and the first one that has any is the case: the leading one, the usual
    one, and the one of which most timings end before their work does.  If none has, the result is (leading, None).
    """
    latest = max(label.steady, key=lambda group: group.late)
    for group in dict.fromkeys((leading.group, label.usual, latest)):  # each once
        case = leading if group is leading.group else Case.of(facts, label, group, matrix)
        if reason := validity.reason(case):
            return case, reason
    return leading, None


def _milder_reason(
    case: Case, clocks: validity.ClocksOfRun, cold: validity.Reason | None
) -> validity.Reason | None:
    """Return why a number that is about its own work is longer than it need be: a low clock of the GPU, else cold caches;
    else that it spreads; None if it is none of these.

    clocks: what the clock samples say about the run
    cold: the reason that the label's caches are cold, None if they are not
    """
    longer = validity.slowed(case, clocks) if clocks.clocks.known.any() else None
    longer = longer or cold
    # longer kernels are not the story where something else takes more time
    if longer and not _more_is_avoidable(case, longer):
        return longer
    # where the GPU works for most of the time and there is one kind of timings, their spread may be the story
    if len(shown_groups(case.label)) == 1 and case.word in (GPU, MIXED):
        return validity.spread(case)
    return None


def _more_is_avoidable(case: Case, longer: validity.Reason) -> bool:
    """Return whether something else takes more of the group than what makes its kernels longer."""
    cause = cause_of(case)
    return bool(cause) and case.avoidable()[cause] > (longer.excess_ns or 0)


def leading_case(
    facts: Facts, label: Label, matrix: np.ndarray, in_warm_up: np.ndarray | None = None
) -> Case:
    """Return the case of a label that its finding is about: the group with most avoidable time if that matters, else the
    largest group.  First calls are asked only where fewer than two other timings remain, and so are timings of a
    warm-up.

    matrix: ns by cause, int64 (intervals, causes)
    in_warm_up: as `starts_in_warm_up` returns it
    """
    groups = label.steady
    if in_warm_up is not None:
        timed = tuple(group for group in groups if not in_warm_up[group.intervals].all())
        groups = timed if sum(group.count for group in timed) >= FEWEST_STEADY else groups
    if sum(group.count for group in groups) < FEWEST_STEADY:
        groups = label.groups
    cases = [Case.of(facts, label, group, matrix) for group in groups]
    most_avoidable = max(cases, key=lambda case: (case.loss_ns, case.group.total_ns))
    if most_avoidable.loss_ns >= MATTERS * label.steady_ns:
        return most_avoidable
    return max(cases, key=lambda case: case.group.total_ns)


def quicker_calls(cases: list[Case]) -> dict[str, Case]:
    """Return label -> the case of the quickest other label that measured the same lines of code from another caller.

    cases: the leading case of each label

    Only labels for which the GPU does the same work for about as long, and which yet take QUICKER times as long, are
    in the result.
    """
    # the cases that timed the same lines and issued the same operations
    cases_of_work: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        _, lines = call_site(case.label.name)  # "" if the lines have one caller only
        work = _operations(case.group.work)
        # timings of one length, or of several for the same operations
        has_one_kind = all(_operations(g.work) == work for g in shown_groups(case.label))
        if lines and has_one_kind and case.operations and _is_comparable(case):
            cases_of_work.setdefault((lines, case.label.kind, work), []).append(case)
    quickest = dict[str, Case]()
    for cases_alike in cases_of_work.values():
        by_time = sorted(cases_alike, key=lambda case: case.group.typical_ns)
        for slow in by_time:
            if quick := next((case for case in by_time if _is_quicker(case, slow)), None):
                quickest[slow.label.name] = quick
    return quickest


def _operations(work: Work) -> tuple[tuple[str, str, int], ...]:
    return tuple((issued.kind, issued.name, issued.count) for issued in work.issued)


def _is_comparable(case: Case) -> bool:
    """Return whether others can be compared with a case: it is no first call, no warm-up, and waits for its work."""
    is_first = case.group.role == FIRST or bool(_WARM_UP.search(case.label.name))
    return not is_first and validity.reason(case) is None


def _is_quicker(quick: Case, slow: Case) -> bool:
    """Return whether a case takes less than another one by QUICKER, though its kernels run for about as long
    (SAME_WORK)."""
    if slow.group.typical_ns <= QUICKER * quick.group.typical_ns:
        return False
    low_count, high_count = sorted((quick.group.count, slow.group.count))
    if low_count * ALIKE_OFTEN < high_count:
        return False
    low_ns, high_ns = sorted((quick.kernels_ns, slow.kernels_ns))
    return high_ns < SAME_WORK * low_ns


# --- why a number means something else ---


def _finding_of_reason(case: Case, reason: validity.Reason) -> tuple[str, Finding]:
    """Return (rule, finding) of a label whose number means something else than it seems.

    case: the group of timings in which that shows
    reason: why that is so; its rule and verdict decide the finding's severity and advice

    A sentence may be added: what the number is besides.
    """
    rule, verdict = reason.rule, reason.verdict
    numbers = Numbers(dict(reason.evidence))
    title = f"{sentences.spoken(case.label.name)} {reason.text}."
    # what a real number consists of is said, too; while launch calls block, it is not what the program takes, and where
    # some timings are empty, it is of the others
    if verdict in (DOUBTFUL, MIXED) and rule not in ("launch-blocking", "nothing-inside"):
        parts = sentences.describe(case.group, case.one, numbers)
        title += f" {parts[:1].upper()}{parts[1:]}."
    severity = {WRONG: "error", DOUBTFUL: "warning"}.get(verdict, "info")
    if rule in ("cold-l2", "high-variance", "clock-changed"):
        severity = "info"  # may be meant, or the program can do little about it
    hints = advice.advice(rule, case)
    if rule in ("clock-changed", "throttled"):
        lowest_mhz = min(value for name, value in numbers.evidence.items() if name.endswith("_mhz"))
        hints = Advice(advice.AT_ONE_CLOCK.format(mhz=lowest_mhz))
    loss_ns = (reason.excess_ns or 0) if rule == "enqueue-only" else 0
    return rule, _finding(
        case, severity, title, hints, numbers.evidence, verdict, reason.words, loss_ns
    )


def _findings_without_result(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Yield (rule, finding) for pairs of events that have no place on the trace: their label has no row, or other rows."""
    for label, site, reason in validity.without_result(facts):
        title = f"{sentences.spoken(label)} {reason.text}."
        yield (
            reason.rule,
            Finding(
                "error", label, title, reason.evidence, advice.WITHOUT_RESULT[reason.rule], site,
                verdict=reason.verdict, words=reason.words,
            ),
        )  # fmt: skip


# --- what takes most of the time that need not be ---


def _story(case: Case, matrix: np.ndarray) -> tuple[str, Finding]:
    """Return (rule, finding) of a label whose numbers mean what they say: how long it takes, what takes most of the
    time that need not be, and what to do about it.

    case: the group that leads
    matrix: ns by cause, int64 (intervals, causes)

    The title tells of one group, or of several if the label has several kinds of timings.
    """
    numbers = Numbers()  # becomes the finding's evidence
    cause = cause_of(case)
    shown = shown_groups(case.label)
    if case.group not in shown:  # it is told of, though it is too small for a row
        shown = (*shown, case.group)
    of_groups = len(shown) > 1
    if of_groups:
        told = _of_several_kinds(case, cause, shown, matrix, numbers)
    else:
        told = _of_one_kind(case, cause, numbers)
    title, rule, verdict, words = told
    if "range_lasts_ns" not in numbers.evidence:
        title += sentences.of_ranges(case, shown, numbers)
    if quick := case.quicker_elsewhere:
        rule, verdict, words = "slower-kernel", MIXED, sentences.slower_words(quick)
        title += f" {sentences.of_slower_kernel(case, numbers)}"
    if verdict == WAITING and case.on_purpose:
        verdict = MIXED  # as it is meant: no fault
    title += "" if GARBAGE_COLLECTION in title else sentences.of_garbage(case, numbers)
    title += _besides(case, rule, numbers, of_groups=of_groups)
    words = _word_of_making(case, rule) or words
    if verdict == GPU and case.searches:  # its kernels are trials
        verdict = MIXED
    loss_ns = _saved_ns(case) if cause or case.search_ns else case.unneeded_ns
    severity = _severity(case, rule, verdict, loss_ns)
    hints = advice.advice(rule, case)
    if not loss_ns and rule not in _ADVISES_ANYWAY:
        hints = Advice(hints.measuring)  # where nothing could be saved, nothing makes it faster
    return rule, _finding(case, severity, title, hints, numbers.evidence, verdict, words, loss_ns)


class _Told(NamedTuple):
    """What the finding of a label says first; `words` are its verdict with its number."""

    title: str
    rule: str
    verdict: str
    words: str


def _of_several_kinds(
    case: Case, cause: str, shown: tuple[Group, ...], matrix: np.ndarray, numbers: Numbers
) -> _Told:
    """Return what is told of a label with several kinds of timings.

    case: the group that leads; cause: what takes most of its avoidable time (`cause_of`)
    shown: the groups that are told of, this one among them
    matrix: ns by cause, int64 (intervals, causes)
    """
    sums_of_group = {
        group.number: Case.of(case.facts, case.label, group, matrix).one for group in shown
    }
    title = sentences.of_several_groups(case.label, case, shown, sums_of_group, numbers)
    if case.word == GPU:  # that all is GPU work does not say why one kind takes longer
        if growth := case.growth:
            words = f"{duration(growth.first_ns)}, later {duration(growth.last_ns)}"
            return _Told(title, "several-kinds", MIXED, words)
        hidden = [group for group in case.label.steady if group not in shown]
        return _Told(title, "several-kinds", MIXED, f"{len(shown) + len(hidden)} kinds of timings")
    rule = rule_of(case, cause)
    # how often one group waits is not said of the others, unless they wait about as often
    if cause == "sync" and any(2 * g.work.waits < case.group.work.waits for g in shown):
        cause = ""
    told = case.label.groups if case.group.role == FIRST else case.label.steady
    of_all = together([sums_of(group, case.label.kind, case.facts.intervals) for group in told])
    return _Told(title, rule, case.word, sentences.words(case.group, case.one, cause, of_all))


def _of_one_kind(case: Case, cause: str, numbers: Numbers) -> _Told:
    """Return what is told of a label with one kind of timings.  The verdict GPU becomes MIXED where the number, though it
    is GPU work, does not tell all that the label took.

    cause: what takes most of the avoidable time (`cause_of`)
    """
    rule = rule_of(case, cause)
    is_first_call = rule == "module-load" and not case.loads_again and not case.compiled_inside
    title = sentences.of_one_group(case, cause, numbers, first=is_first_call)
    misleads = case.word == GPU and _misleads(case)
    if misleads:
        title = sentences.of_typical_that_misleads(case, numbers)
    # of work on other streams the title says that it is waited for
    tells_waiting = case.word == WAITING or cause == "waiting" or case.group.elsewhere
    waits_much = case.sums.share(case.sums.waiting) >= WARN_SHARE and case.ns("queued") > 0
    if waits_much and not tells_waiting:
        title = f"{title} {sentences.also_waited(case, numbers)}"
    range_ns = _range_on_host_ns(case)
    or_more = ""
    if not range_ns:
        range_ns, or_more = _least_of_range_ns(case), " and more on the CPU"
    lasts_longer = range_ns * SLIVER > case.group.typical_ns
    if lasts_longer:
        title += f" The range itself lasts {numbers.time('range_lasts', range_ns)}{or_more}."
    words = sentences.words(case.group, case.one, cause)
    if case.word == COPY and lasts_longer:  # copies are no cause of what the range takes
        rule = "mixed"
    elif case.word != GPU:
        return _Told(title, rule, case.word, words)
    if misleads:
        busy = percent(case.sums.share(case.sums.busy))
        return _Told(title, rule, MIXED, f"{busy} kernels in all")
    if lasts_longer:
        at_least = "> " if or_more else ""
        return _Told(title, rule, MIXED, f"range: {at_least}{duration(range_ns)}")
    if 2 * case.ns("graph") > case.group.typical_ns:  # what it consists of is not in the trace
        return _Told(title, "graph-opaque", MIXED, f"{words}, opaque")
    return _Told(title, rule, GPU, words)


def _besides(case: Case, rule: str, numbers: Numbers, *, of_groups: bool) -> str:
    """Return the sentences that follow what takes most of the time, each with a space before it: who holds up the CPU, or
    what it makes.

    of_groups: whether the sentences before are about several groups, and say already what their timings make
    """
    text = sentences.of_first_inside(case, numbers) + sentences.of_compiled_inside(case, numbers)
    if rule == "host-gap" and (regular := sentences.of_regular(case, numbers)):
        text += regular
        if case.forks:  # that says what the CPU waits for
            return text
    if rule in ("host-gap", "many-tiny-kernels"):
        text += sentences.of_threads(case, numbers)
    # in which pieces the CPU's time comes says less than what is said already
    makes = case.makes or (of_groups and sentences.collects_garbage(case.group))
    # what pieces the CPU's time is in says less than that it is spent on first sizes, or on making something
    sizes = "" if makes else sentences.of_first_sizes(case, numbers)
    if sizes:
        text += sizes
    elif not (makes or case.waits_beside_calls) and (
        rule == "host-gap" or (rule == "allocation-inside" and case.in_long_pieces)
    ):
        pieces = sentences.of_pieces(case, numbers, of_groups=of_groups)
        text += pieces + sentences.of_waits(case, numbers, begins=of_groups and not pieces)
    if rule == "mixed" and case.copying_share:
        share = numbers.share("copying_kernels", case.copying_share, 1)
        text += f" {share} of its kernel time copies or converts."
    if rule == "allocation-inside":
        text += sentences.of_allocations(case, numbers)
    if case.word == GPU and not of_groups:
        text += sentences.of_copies_for_graphs(case, numbers)
    if of_groups:
        return text + sentences.of_memory(case, numbers)
    if case.loads_again:
        return text + sentences.of_loading(case, numbers)
    if case.searches:
        return text + sentences.of_search(case, numbers)
    if case.compiler:
        return text + sentences.of_compiler(case, numbers)
    return text


def _word_of_making(case: Case, rule: str) -> str:
    """Return the verdict in words of a case that makes something for other timings or in each of them; '' for others."""
    if case.searches:
        return A_SEARCH
    if case.loads_again:
        return "loads code each time"
    if case.compiled_inside:
        return f"compiles, {case.compiled_inside:,} inside"
    if rule == "module-load":
        return "first calls" if case.first_ones > 1 else "first call"
    if case.compiler:
        return f"compiles, {times_compiled(case.label, case.group):,} of {case.label.count:,}"
    return ""


def _misleads(case: Case) -> bool:
    """Return whether a group's typical timing is GPU work though its timings as a whole are not: more than half of them,
    and all of them together, are not."""
    group = case.group
    if case.sums.share(case.sums.busy) + group.elsewhere >= GPU_SHARE:
        return False
    elapsed_ns, ran_ns, outside_ns = (
        case.facts.column(name)[group.intervals]
        for name in ("elapsed_ns", "kernel_only_upper_ns", "kernel_outside_ns")
    )
    is_gpu = ran_ns - outside_ns >= (GPU_SHARE - group.elsewhere) * elapsed_ns
    return 2 * int(is_gpu.sum()) < group.count


def _severity(case: Case, rule: str, verdict: str, loss_ns: int) -> str:
    """Return "warning" if enough could be saved, or a first call is late; "info" else, if other streams worked meanwhile,
    and if nothing can be told."""
    if case.others_worked or verdict == CANNOT_TELL:
        return "info"
    saves_enough = loss_ns >= WARN_SHARE * case.sums.whole and verdict != FLOOR
    is_late_first_call = rule == "module-load" and case.late
    return "warning" if saves_enough or is_late_first_call else "info"


def _range_on_host_ns(case: Case) -> int:
    """Return how long (ns) the label's NVTX range usually lasts on the host, where its time is that of its GPU work; 0
    where that is not known, or it is no range."""
    ranges = case.facts.analysis.host_ranges
    rows = ranges[ranges["label"] == case.label.name] if case.label.kind == "nvtx" else ranges[:0]
    return int(rows["median_ns"].iloc[0]) if len(rows) else 0


def _least_of_range_ns(case: Case) -> int:
    """Return how long (ns) the label's NVTX range lasts on the host at least, on average, by how long the CPU was outside CUDA
    in it while timers of the host ran; 0 where none did."""
    if case.label.kind != "nvtx":
        return 0
    return case.facts.outside_in_timers.get(case.label.name, 0) // case.label.count


def cause_of(case: Case) -> str:
    """Return what takes most of the avoidable time of a group: cpu, calls, sync, launches, copies or waiting
    (`Case.avoidable`), "" if nothing takes enough.

    What holds up launches comes before what takes most: a library's own loop, which nobody can change, is launches;
    if the CPU waits for the GPU between launches, the cause is sync, as no launch behind the wait can be made ahead of
    time.  If very many launches are made one by one, it is launches, though the CPU's own code lies between them.
    """
    if not case.late:
        return ""
    parts_ns = case.avoidable()
    cause = max(parts_ns, key=parts_ns.__getitem__)
    if case.sums.share(parts_ns[cause]) < _LEAST_CAUSE:
        return ""
    # a small part is not the story where the trace does not explain a larger one
    if case.word == MIXED and case.sums.unknown > parts_ns[cause]:
        return ""
    can_be_held_up = cause in ("cpu", "launches", "sync") and case.word != WAITING
    # nobody can take waits out of a library's own loop: that it launches so much is the cause
    if case.of_library and case.facts.torch and case.facts.python and can_be_held_up:
        return "launches"
    # do waits of the CPU hold up its launches: so many, for few operations each, or for much of the time?
    waits_often = case.waits_often or case.one.share(case.one.sync) >= _LEAST_CAUSE
    waits_hold_up = case.group.work.waits and waits_often and case.left_for_waits and can_be_held_up
    waits_hold_up = waits_hold_up and not case.waits_beside_calls
    # the CPU's own code is the story, whatever waits beside it, if it is most of the time and comes in long pieces, or
    # in one; unless another thread launched the work: then the timing thread's code holds up nothing
    host_ns = case.ns("host")
    is_mostly_host = 2 * host_ns >= case.group.typical_ns
    in_long_pieces = 2 * max(case.longest_piece_ns, case.long_pieces_ns) > host_ns
    is_own_work = case.own_code or (is_mostly_host and in_long_pieces)
    code_holds_up = case.compiler or (is_own_work and not case.issued_elsewhere)
    if waits_hold_up and not code_holds_up:
        return "sync"
    one_by_one = cause == "cpu" and case.one_by_one_ns > 2 * case.long_pieces_ns
    return "launches" if one_by_one else cause


def rule_of(case: Case, cause: str) -> str:
    """Return the name of the rule that a label's finding belongs to, one of `rules.OF_LABELS` or "host-timer".

    cause: what takes most of the avoidable time (`cause_of`), "" for nothing

    The order: what happens once; then what is no loss, by the verdict; then the cause, by what one may do about it.
    """
    if (_is_first_call(case) or case.first_ones) and not case.searches:
        return "module-load"
    if case.word == FLOOR:  # of a pair, or of one with a launch
        return "launch-latency" if case.operations else "event-floor"
    if not cause:
        rule_of_word = {GPU: "gpu-bound", WAITING: "queued", CANNOT_TELL: "unknown-time"}
        return rule_of_word.get(case.word, "mixed")
    if _allocates_again(case, cause):
        return "allocation-inside"
    if cause == "calls":
        longest = case.group.of_cause("api")[0].what
        if ALLOCATES.match(longest):
            return "allocation-inside"
        return "module-load" if LOADS.search(longest) else "other-calls"
    if cause == "launches":
        if case.operations >= MANY_OPERATIONS:
            return "many-tiny-kernels"
        # without launch calls inside only what was on its way took time
        return "api-launch" if case.sums.launches else "launch-latency"
    if cause == "sync" and case.on_host and not case.group.work.waits:
        return "host-timer"  # the synchronisation that ends it is part of what it times
    return _RULE_OF_CAUSE[cause]


def _allocates_again(case: Case, cause: str) -> bool:
    """Whether memory is allocated and freed in most timings, where the CPU is what makes them long and nothing
    else that it does in one piece takes longer."""
    of_cpu = cause in ("cpu", "calls", "launches")
    return of_cpu and bool(case.allocations) and case.allocating_ns > case.longest_piece_ns


def _is_first_call(case: Case) -> bool:
    """Return whether the first call is what was timed: it was timed once and loads code, or its GPU waits mostly for
    kernels to run for the first time."""
    entries = case.group.of_cause("api")
    loading_ns = sum(entry.ns for entry in entries if LOADS.search(entry.what))
    once = case.group.role == FIRST or case.label.count == 1
    loads_enough = loading_ns >= LOAD_NS or (loading_ns > 0 and _is_done_again(case))
    is_first = once and loads_enough and case.is_preparing and not case.loads_inside
    is_first = is_first and not case.late_inside
    return is_first or _waits_for_first_kernels(case)


def _is_done_again(case: Case) -> bool:
    """Return whether other labels issued the same work later, in FAR less time: numba loads a kernel in microseconds, after
    it compiled it for a second."""
    issued = case.group.work.issued
    start_ns = case.facts.column("start_ns")
    return bool(issued) and any(
        label.name != case.label.name
        and label.usual.work.issued == issued
        and FAR * label.usual.typical_ns <= case.group.typical_ns
        and start_ns[label.usual.intervals[0]] > start_ns[case.group.typical]
        for label in case.facts.labels
    )


def _waits_for_first_kernels(case: Case) -> bool:
    """Return whether the typical timing of an NVTX range is mostly idle time of the GPU before kernels that ran for the
    first time, and the host was mostly in CUDA calls meanwhile.
    """
    if case.label.kind != "nvtx" or not case.group.of_cause("api"):
        return False
    row = case.facts.intervals.iloc[case.group.typical]
    end_ns = row["start_ns"] + row["elapsed_ns"]
    waited_ns = sum(
        wait.ns
        for wait in case.facts.analysis.of_runs_by(FirstWait)
        if (wait.pid, wait.device) == (row["pid"], row["device"])
        and row["start_ns"] <= wait.start_ns <= wait.end_ns <= end_ns
    )
    idle_ns = case.group.typical_ns - case.kernels_ns
    in_calls = case.ns("api", "api_launch")
    return waited_ns >= max(FIRST_SHARE * idle_ns, LEAST_NS) and 2 * in_calls >= waited_ns


def _saved_ns(case: Case) -> int:
    """Return how much time of the run (ns) could be saved in a group of timings, no time counted twice; 0 for waiting on
    purpose, and for a first call: it happens once, and few others are averaged with it."""
    if (case.word in (FLOOR, WAITING) and case.on_purpose) or case.group.role == FIRST:
        return 0
    if case.search_ns:
        return case.search_ns
    if _is_first_call(case) or case.is_tried_first or not case.late:
        return 0
    if case.first_ones and case.label.count - case.first_ones < FEWEST_STEADY:
        return 0
    if case.late_inside:  # the label of that timing tells of it
        return 0
    intervals = case.group.intervals
    saved_ns = case.loss_ns
    if case.label.overlapping and case.label.total_ns:
        saved_ns = int(saved_ns * case.label.span_ns / case.label.total_ns)
    # of threads that time at once no time counts twice
    elapsed_ns = case.facts.once(intervals, case.facts.column("elapsed_ns")[intervals])
    return min(saved_ns, elapsed_ns)


def _with_empty_timings(finding: Finding, empty: validity.Reason) -> Finding:
    """Return the finding with how many timings of its label launch nothing."""
    often, _, _ = empty.text.partition(":")
    title = f"{finding.title} It {often}."
    return replace(finding, title=title, evidence={**finding.evidence, **empty.evidence})


def _with_quicker_call(finding: Finding, quickest: Case) -> Finding:
    """Return the finding with what the same lines take for the same work where they are called elsewhere."""
    numbers = Numbers(dict(finding.evidence))
    line, _ = call_site(quickest.label.name)
    takes = numbers.time("same_work_elsewhere", quickest.group.typical_ns)
    numbers.evidence["elsewhere"] = f"line {line}"
    title = f"{finding.title} Line {line} does the same in {takes}."
    return replace(finding, title=title, evidence=numbers.evidence)


def _with_label_without_waits(finding: Finding, case: Case, cases: list[Case]) -> Finding:
    """Return the finding of a case that waits, with how long the first other label takes that does nearly the same
    without a wait.  Without such a label the finding stays as it is.

    cases: the leading case of each label
    """
    label = next((c.label for c in cases if _does_the_same_without_waits(c, case)), None)
    if label is None:
        return finding
    numbers = Numbers(dict(finding.evidence))
    # from the typical timing of its shortest group to that of its longest: both are timings that there were
    typical_ns = [group.typical_ns for group in label.steady]
    low_ns, high_ns = min(typical_ns), max(typical_ns)
    takes = numbers.times("without_waits_least", low_ns, "without_waits_most", high_ns)
    numbers.evidence["label_without_waits"] = label.name
    text = f"{_spoken_beside(case, label)}, with nearly the same kernels and no such wait, takes {takes}."
    return replace(finding, title=f"{finding.title} {text}", evidence=numbers.evidence)


def _does_the_same_without_waits(sibling: Case, case: Case) -> bool:
    """Return whether another label runs nearly the same kernels as one that waits, about as often, and waits for none."""
    low_count, high_count = sorted((sibling.label.count, case.label.count))
    return (
        sibling is not case
        and not sibling.group.work.waits
        and sibling.label.kind == case.label.kind
        and low_count * ALIKE_OFTEN >= high_count
        and _is_comparable(sibling)
        and _share_in_both(sibling.group.work, case.group.work) >= IN_COMMON
    )


def _spoken_beside(case: Case, label: Label) -> str:
    """Return how a sentence about a case names another label: without the file's name where both are of one file."""
    return beside(case.label.site, label.name)


def _share_in_both(first: Work, second: Work) -> float:
    """Return which share (0 to 1) of the kernels of two kinds of work is in both, of the one that has more."""
    first_counts, second_counts = (
        {issued.name: issued.count for issued in work.of_kind("kernel")} for work in (first, second)
    )
    shared = sum(min(count, second_counts.get(name, 0)) for name, count in first_counts.items())
    return shared / max(sum(first_counts.values()), sum(second_counts.values()), 1)


def _with_quicker_inside(
    finding: Finding, case: Case, quicker: dict[str, Case], leading: dict[str, Case]
) -> Finding:
    """Return the finding with a label of which the typical timing holds several, half of its time and more, where the same
    lines do the same sooner when they are called elsewhere.

    quicker: as `quicker_calls` returns it
    leading: label -> its case
    """
    for name, quickest in quicker.items():
        inner = leading[name]
        held_ns, count = _held(case, inner.label)
        if count < ALIKE_OFTEN or 2 * held_ns < case.group.typical_ns:
            continue
        numbers = Numbers(dict(finding.evidence))
        line, _ = call_site(quickest.label.name)
        held = numbers.time("held_by_label", held_ns)
        timings = numbers.count("timings_inside", inner.group.count)
        takes = numbers.time("timing_inside", inner.group.typical_ns)
        sooner = numbers.time("same_work_elsewhere", quickest.group.typical_ns)
        numbers.evidence |= {"label_inside": name, "elsewhere": f"line {line}"}
        place = _spoken_beside(case, inner.label)
        text = (
            f"{held} pass in {place} ({timings} x {takes}); line {line} does the same in {sooner}."
        )
        return replace(finding, title=f"{finding.title} {text}", evidence=numbers.evidence)
    return finding


def _with_first_pass(case: Case, finding: Finding) -> Finding:
    """Return the finding with what the first pass of a loop inside takes, where that is half of the typical timing and
    more, and the later passes are far shorter: timings of two labels that end at the same line.

    line 37   begin = time()                      37-41   408 ms, once in each typical timing
    line 41       data.append(time() - end)       48-41   519 us, for each later pass
    line 48       end = time()
    """
    sites = case.facts.intervals[["site", "end_site"]]
    hosts = [label for label in case.facts.labels if label.kind == "host"]
    for first in sorted(hosts, key=lambda label: label.usual.typical_ns):
        held_ns, count = _held(case, first)
        begin, end = sites.iloc[first.usual.typical]
        if count != 1 or 2 * held_ns < case.group.typical_ns or not end:
            continue
        for later in hosts:
            later_begin, later_end = sites.iloc[later.usual.typical]
            if later_end == end and later_begin != begin and _are_later_passes(case, first, later):
                return _told_first_pass(case, finding, first, later, held_ns)
    return finding


def _are_later_passes(case: Case, first: Label, later: Label) -> bool:
    """Return whether timings that end where those of a label do are many times as many, also in the typical one of a case,
    and take far less.  If the case is that label itself, its own timing ends with the first pass: none lies inside."""
    lie_inside = first.name == case.label.name or _held(case, later)[1] >= ALIKE_OFTEN
    are_more = later.count >= ALIKE_OFTEN * first.count
    return lie_inside and are_more and FAR * later.usual.typical_ns <= first.usual.low_ns


def _told_first_pass(
    case: Case, finding: Finding, first: Label, later: Label, held_ns: int
) -> Finding:
    """Return the finding with what a later pass takes, and for how long (ns) the typical timing is in the first one, if
    that is not what the finding is about."""
    numbers = Numbers(dict(finding.evidence))
    takes = numbers.time("later_pass", later.usual.typical_ns)
    text = f"{_spoken_beside(case, later)}, which ends at the same line, takes {takes}."
    if first.name != case.label.name:
        held = numbers.time("first_pass", held_ns)
        text = f"{held} pass in {_spoken_beside(case, first)}; {text}"
    numbers.evidence |= {"label_of_first_pass": first.name, "label_of_later_passes": later.name}
    hints = advice.of_first_pass(case)
    title = f"{finding.title} {text}"
    return replace(finding, title=title, evidence=numbers.evidence, advice=hints or finding.advice)


def _held(case: Case, label: Label) -> tuple[int, int]:
    """Return (ns, how many): of the timings of a label that lie in the typical one of a case, on the same thread."""
    inner = case.inside[case.inside["label"] == label.name]
    return int(inner["elapsed_ns"].sum()), len(inner)


def _with_time_unrecorded(finding: Finding, baseline_row: Any, in_turns: bool) -> Finding:
    """Return the finding with how long the label takes where it is not recorded, if that is clearly less: the
    difference is no time of the program.

    baseline_row: the row of `frames.BASELINE` about the label, None for none; NaN is what is not known
    in_turns: whether one run was traced and untraced in turns; else another run without nsys was timed
    """
    if baseline_row is None or finding.verdict == WRONG:
        return finding
    if not baseline_row.low_ns > 0:  # the least by which recording makes it longer
        return finding
    recorded_ns, unrecorded_ns = baseline_row.profiled_ns, baseline_row.baseline_ns
    share = (recorded_ns - unrecorded_ns) / recorded_ns
    if not share >= _INFLATION:
        return finding
    numbers = Numbers(dict(finding.evidence))
    numbers.evidence["profiler_share"] = share
    if in_turns:
        without = f"Untraced it takes {numbers.time('untraced', unrecorded_ns)}"
        recorded = numbers.time("traced", recorded_ns)
    else:
        without = f"Without nsys it takes {numbers.time('without_nsys', unrecorded_ns)}"
        recorded = numbers.time("under_nsys", recorded_ns)
    title = f"{finding.title} {without} instead of {recorded}."
    return replace(finding, title=title, evidence=numbers.evidence)


def _finding(
    case: Case,
    severity: str,
    title: str,
    hints: Advice,
    evidence: dict[str, Any],
    verdict: str,
    words: str,
    loss_ns: int = 0,
) -> Finding:
    """Return the finding of a label: `case` says where it is and which intervals it is about; `words` are cut."""
    return Finding(
        severity, case.label.name, title, evidence, hints, case.label.site,
        intervals=case.group.intervals, loss_ns=loss_ns, interval=case.group.typical,
        verdict=verdict, words=words[:24], group=case.group.number,
    )  # fmt: skip


# --- the table ---


def _notes_on_unchecked(facts: Facts) -> Iterator[str]:
    """Yield a note on each thing that could not be checked, and why."""
    if not facts.count:
        return
    if any(m.startswith("CUPTI_ACTIVITY_KIND_RUNTIME") for m in facts.analysis.trace.missing):
        yield "host-gap was not checked: the trace has no CUDA API rows"
    if not interval_clocks(facts).known.any():
        why = "no interval lies between two samples of the GPU's clock"
        if not len(facts.analysis.gpu_clocks):
            why = "the run has no samples of the GPU's clock (`nsysalign run` records them)"
        yield f"clock-changed was not checked: {why}"
    few = sum(label.usual.count < validity.SPREAD_SAMPLES for label in facts.labels)
    if few:
        yield f"high-variance was not checked: {plural(few, 'label')} with fewer than {validity.SPREAD_SAMPLES} timings of one kind"


def _rules_of_intervals(findings: list[tuple[str, Finding]], count: int) -> pd.Series:
    """Return, for each interval, a tuple of the rules with a finding about it.  Intervals with the same rules share one
    object.

    findings: (rule, finding)
    count: how many intervals there are
    """
    rules_of: list[tuple[str, ...]] = [()] * count
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    for rule, finding in findings:
        for number in finding.intervals.tolist():
            if rule not in rules_of[number]:
                rules = (*rules_of[number], rule)
                rules_of[number] = shared.setdefault(rules, rules)
    return pd.Series(rules_of, dtype=object)


def _row(facts: Facts, rule: str, finding: Finding) -> tuple[object, ...]:
    """Return a finding as a row of `frames.FINDINGS`: numbers are rounded, empty evidence is left out, and advice in
    torch code is left out for programs that do not use torch.
    """
    measuring, better, code = finding.advice
    if not facts.torch and "torch" in measuring:
        measuring = _CODE.sub(".", measuring)
    if code and (facts.torch or not _OF_TORCH.search(code)):
        better += f"{_BEFORE_CODE}{code}"
    elif better and _BEFORE_CODE not in better:
        better += "."
    plain = {}  # JSON
    for key, value in finding.evidence.items():
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, float):
            value = round(value, None if key.endswith("_ns") else 4)
        if value is not None and value not in ("", [], {}):
            plain[key] = value
    return (
        rule, finding.severity, finding.label, finding.title, plain, measuring, better, finding.site,
        finding.loss_ns, finding.interval, finding.verdict, finding.words, finding.group, finding.shorter,
        finding.behind,
    )  # fmt: skip
