"""Rules that turn budgets into findings: a plain ordered registry, one file per question.

A rule reads only the analysis (as `Facts`) and yields findings, at most a few per label, or
remarks: also that it could not check.  Severity: error = the number answers another question;
warning = much of the interval is not what the reader takes it for; info = worth knowing.

Every finding states its own loss: what would go away if its advice were followed, at most; none
where the advice is about the measurement only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames, registry
from nsysalign.explain.facts import Facts, Label
from nsysalign.explain.finding import IN_GRAPHS, SEVERITIES, WITH_GRAPHS, Finding, Findings, Remark
from nsysalign.explain.rules import repetitions, validity, waiting
from nsysalign.explain.runs import blocks, failed, idle, no_work, pages, ranges, records, set_up
from nsysalign.explain.runs.run import Run
from nsysalign.memory import trim_memory
from nsysalign.model import CAUSES, Diagnosis, Evidence
from nsysalign.split.pieces import Segments


class Rule(NamedTuple):
    """An entry of the registry: `find` is asked with the `Facts`, or with each of a list of
    theirs."""

    name: str
    find: Callable[[Any], Findings]
    each: str = ""  # of `labels`, `repetitions` or `runs`
    table: str = ""  # of an add-on: asked only where the analysis has this table


#: In the order in which findings of equal weight are shown.
REGISTRY: tuple[Rule, ...] = (
    Rule("failed-calls", failed.failed_calls),
    Rule("lost-records", records.lost_records),
    Rule("no-gpu-work", no_work.no_gpu_work),
    Rule("wrong-stream", validity.wrong_stream, each="labels"),
    Rule("different-streams", validity.different_streams, each="labels"),
    Rule("enqueue-only", validity.enqueue_only, each="labels"),
    Rule("no-result", validity.no_result),
    Rule("launch-blocking", waiting.launch_blocking, each="labels"),
    Rule("host-gap", waiting.host_gap),
    Rule("many-tiny-kernels", waiting.many_kernels, each="labels"),
    Rule("api-launch", waiting.api_launch, each="labels"),
    Rule("launch-latency", waiting.LAUNCH_LATENCY.find, each="labels"),
    Rule("allocation-inside", waiting.ALLOCATION.find, each="labels"),
    Rule("module-load", repetitions.module_load, each="labels"),
    Rule("copy-inside", waiting.copy),
    Rule("sync-inside", waiting.sync),
    Rule("graph-opaque", waiting.GRAPH.find, each="labels"),
    Rule("queued", waiting.queued, each="labels"),
    Rule("host-timer", validity.host_timer, each="labels"),
    Rule("set-up", set_up.set_up, each="runs"),
    Rule("few-blocks", blocks.few_blocks, each="runs"),
    Rule("page-migrations", pages.page_migrations, each="runs"),
    Rule("whole-run", idle.whole_run, each="runs"),
    Rule("ranges-without-work", ranges.ranges_without_work),
    Rule("event-floor", validity.event_floor, each="labels"),
    Rule("profiler-inflation", validity.inflation),
    Rule("unknown-time", waiting.UNKNOWN.find, each="labels"),
    Rule("warm-up", repetitions.warm_up, each="repetitions"),
    Rule("mixed-work", repetitions.mixed_work, each="repetitions"),
    Rule("throttled", repetitions.throttled, each="labels"),
    Rule("clock-changed", repetitions.clock_changed),
    Rule("cold-l2", repetitions.cold_l2),
    Rule("high-variance", repetitions.variance),
)


@cache
def every_rule() -> tuple[Rule, ...]:
    """The rules above, then those of add-ons."""
    return (*REGISTRY, *(rule for rules in registry.each("rules") for rule in rules))


#: Rules that say that a number is not what it seems, or that there is little to look at: before all
#: others of their severity.
DOUBTS = (
    "failed-calls", "lost-records", "wrong-stream", "different-streams", "enqueue-only", "no-result", "set-up",
)  # fmt: skip
#: What a program calls its warm-up, where no file is named so: nobody wants to make it faster.
_WARM_UP = re.compile(r"^(?!.*:\d).*warm[ _-]?(ing[ _-]?)?up", re.IGNORECASE | re.DOTALL)
#: Advice that ranges have no use for.
_OF_EVENTS = re.compile(r"\b(events?|pair|readings?|ahead|replay)\b")
#: A line of code in an advice: it follows a colon and three spaces.
_CODE = re.compile(r":   .*", re.DOTALL)


def diagnose(evidence: Evidence, segments_of: Callable[[np.ndarray], Segments]) -> Diagnosis:
    """Apply every rule, in order: findings sorted by severity and loss, and remarks.

    `segments_of` gives the segments of intervals (ascending numbers).
    """
    facts = Facts(evidence, segments_of)
    if evidence.known.issuing_without_work:
        facts.labels = []  # what ran in them is not in the trace
    facts.repetitions = repetitions.repetitions(facts)
    facts.clocks = repetitions.interval_clocks(facts)
    facts.runs = [Run(facts, row) for row in facts.runs]
    trim_memory()
    cold = np.zeros(facts.count, dtype=bool)
    for r in facts.repetitions:
        cold[r.label.numbers[r.cold]] = True
    said: list[tuple[str, Finding]] = []
    notes = []
    for rule in every_rule():
        if rule.table and rule.table not in evidence.extra:
            continue
        asked = map(rule.find, getattr(facts, rule.each)) if rule.each else [rule.find(facts)]
        for outcome in chain.from_iterable(asked):
            if isinstance(outcome, Remark):
                notes.append(outcome.text)
                continue
            if outcome.severity == "warning" and _WARM_UP.search(outcome.label):
                outcome = replace(outcome, severity="info", loss=None)
            if outcome.loss is not None:
                # the time of a cold start has rules of its own, and would hide what every
                # repetition loses
                some = ~cold[outcome.intervals] | (not outcome.about_row)
                loss_ns = facts.once(outcome.intervals[some], outcome.loss[some])
                outcome = replace(outcome, loss_ns=loss_ns)
                trim_memory()  # arrays over all its intervals were made
            said.append((rule.name, outcome))
    said.sort(
        key=lambda item: (
            SEVERITIES.index(item[1].severity),
            not item[1].about_row,
            item[0] not in DOUBTS,
            -item[1].loss_ns,
        )
    )
    by_name = {label.name: label for label in facts.labels}
    table = frames.of_rows([_row(facts, by_name, *each) for each in said], frames.FINDINGS)
    vars(facts).clear()  # its labels refer to it: arrays over all intervals would stay
    # tuples of rule names in the order of the findings, one object for all intervals with the same
    concerned: list[tuple[str, ...]] = [()] * len(evidence.intervals)
    same: dict[tuple[str, ...], tuple[str, ...]] = {}
    for rule_name, finding in said:
        for number in finding.intervals.tolist():
            if rule_name not in concerned[number]:
                rules = (*concerned[number], rule_name)
                concerned[number] = same.setdefault(rules, rules)
    notes.sort(key=lambda note: " was not checked: " in note)
    return Diagnosis(table, pd.Series(concerned, dtype=object), notes)


def _row(
    facts: Facts, labels: Mapping[str, Label], rule: str, finding: Finding
) -> tuple[object, ...]:
    """A row of `frames.FINDINGS`: with the interval that shows it (the quoted one, else the label's
    row if it is among the finding's, else the slowest of them), and the advice that suits the
    program (torch code is useless for a program in C++ or TensorRT) and the kind of interval (a
    range has no start event)."""
    shown, numbers, name = finding.interval, finding.intervals, finding.label
    own = labels.get(name)
    if shown < 0 and own and len(numbers):
        slowest = int(numbers[facts.column("elapsed_ns")[numbers].argmax()])
        shown = own.row.number if own.row.number in numbers else slowest
    measured, kind = 0 <= shown < facts.count, own.row.kind if own else "event"
    graphs = measured and bool(facts.graphs[shown])
    synchronises = measured and facts.parts[shown, CAUSES.index("sync")] > 0
    measuring, better, code = finding.advice
    if kind != "host" and not (kind == "event" and facts.torch):
        measuring = _CODE.sub(".", measuring)
    if kind == "nvtx" and _OF_EVENTS.search(measuring):
        measuring = ""
    if graphs:
        measuring = measuring.replace(", or time a CUDA graph", "")
    if better.endswith(WITH_GRAPHS) and (graphs or synchronises):
        better = IN_GRAPHS if graphs else better.removesuffix(WITH_GRAPHS)
        code = "" if graphs else "f = torch.compile(f)"
    if code and facts.torch:
        better += f":   {code}"
    elif better and ":   " not in better:
        better += "."
    plain = {}  # JSON
    for key, value in finding.evidence.items():
        value = value.item() if isinstance(value, np.generic) else value
        if isinstance(value, float):
            value = round(value, None if key.endswith("_ns") else 4)
        if value is not None and value not in ("", [], {}):
            plain[key] = value
    return (
        rule, finding.severity, name, finding.title, plain, measuring, better, finding.site,
        finding.loss_ns, shown,
    )  # fmt: skip
