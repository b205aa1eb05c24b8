"""Rules that turn budgets into findings: a plain ordered registry, one file per question.

A rule reads only the analysis (as `Facts`) and yields findings, at most a few per label, or says
why it could not check.  Severity: error = the number answers another question; warning = much of
the interval is not what the reader takes it for; info = worth knowing.

Every finding states its own loss: what would go away if its advice were followed, at most; none
where the advice is about the measurement only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames, registry
from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import SEVERITIES, CouldNotLook, Finding, Remark
from nsysalign.explain.rules import (
    conditions,
    contents,
    launching,
    measuring,
    series,
    validity,
    whole_run,
)
from nsysalign.explain.rules.series import repetitions
from nsysalign.model import CAUSES, Diagnosis, Evidence
from nsysalign.split.pieces import Segments


class Rule(NamedTuple):
    """An entry of the registry.  `find` reads only what Facts holds, that is, the analysis."""

    name: str
    find: Callable[[Facts], Iterable[Finding | CouldNotLook | Remark]]


#: In the order in which findings of equal weight are shown.
REGISTRY: tuple[Rule, ...] = (
    Rule("failed-calls", whole_run.failed_calls),
    Rule("no-gpu-work", whole_run.no_gpu_work),
    Rule("wrong-stream", validity.wrong_stream),
    Rule("different-streams", validity.different_streams),
    Rule("enqueue-only", validity.enqueue_only),
    Rule("no-result", validity.no_result),
    Rule("launch-blocking", launching.launch_blocking),
    Rule("host-gap", launching.host_gap),
    Rule("many-tiny-kernels", launching.many_kernels),
    Rule("api-launch", launching.api_launch),
    Rule("launch-latency", launching.launch_latency),
    Rule("allocation-inside", launching.allocation),
    Rule("module-load", series.module_load),
    Rule("copy-inside", contents.copy),
    Rule("sync-inside", contents.sync),
    Rule("graph-opaque", contents.graph_opaque),
    Rule("queued", contents.queued),
    Rule("host-timer", validity.host_timer),
    Rule("few-blocks", whole_run.few_blocks),
    Rule("page-migrations", whole_run.page_migrations),
    Rule("whole-run", whole_run.whole_run),
    Rule("event-floor", measuring.event_floor),
    Rule("profiler-inflation", measuring.inflation),
    Rule("unknown-time", measuring.unknown),
    Rule("warm-up", series.warm_up),
    Rule("overlapping", series.overlapping),
    Rule("mixed-work", series.mixed_work),
    Rule("throttled", conditions.throttled),
    Rule("clock-changed", conditions.clocks),
    Rule("cold-l2", conditions.cold_l2),
    Rule("high-variance", series.variance),
    Rule("too-few-samples", series.samples),
)


def every_rule() -> tuple[Rule, ...]:
    """The rules above, then those of add-ons."""
    return (*REGISTRY, *(rule for rules in registry.each("rules") for rule in rules))


#: Rules that say that a number is not what it seems: before all others of their severity.
DOUBTS = ("failed-calls", "wrong-stream", "different-streams", "enqueue-only", "no-result")
#: A line of code in an advice: it follows a colon and three spaces.
#: What a program calls its warm-up: nobody wants to make it faster.
_WARM_UP = re.compile(r"warm[ _-]?(ing[ _-]?)?up", re.IGNORECASE)
_CODE = re.compile(r":   .*", re.DOTALL)


def diagnose(evidence: Evidence, segments_of: Callable[[np.ndarray], Segments]) -> Diagnosis:
    """Apply every rule, in order: findings sorted by severity and loss, and remarks.

    `segments_of` gives the segments of intervals (ascending numbers).
    """
    facts = Facts(evidence, segments_of)
    cold = np.zeros(facts.count, dtype=bool)
    for r in repetitions(facts):
        cold[r.label.numbers[r.cold]] = True
    found: list[tuple[str, Finding]] = []
    unchecked, remarks = [], []
    for rule in every_rule():
        for outcome in rule.find(facts):
            if isinstance(outcome, CouldNotLook):
                unchecked.append(f"{rule.name} was not checked: {outcome.reason}")
            elif isinstance(outcome, Remark):
                remarks.append(outcome.text)
            else:
                if outcome.severity == "warning" and _warms_up(outcome.label):
                    outcome = replace(outcome, severity="info", loss=None)
                found.append((rule.name, _with_loss(facts, outcome, cold)))
    if not facts.count:
        unchecked = []  # nothing was placed: the report says so, 30 rules need not repeat it
    found.sort(
        key=lambda item: (
            SEVERITIES.index(item[1].severity),
            not item[1].about_row,
            item[0] not in DOUBTS,
            -item[1].loss_ns,
        )
    )
    rows = [_row(facts, rule, finding) for rule, finding in found]
    table = pd.DataFrame(rows, columns=frames.FINDINGS.names).astype({"evidence": object})
    table = frames.check(table, frames.FINDINGS) if rows else frames.empty(frames.FINDINGS)
    concerned = _per_interval(found, len(evidence.intervals))
    vars(facts).clear()  # its labels refer to it: arrays over all intervals would stay
    return Diagnosis(table, concerned, [*remarks, *unchecked])


def _warms_up(label: str) -> bool:
    """Whether a label's own name says so; a file of that name does not."""
    return bool(_WARM_UP.search(label)) and not re.search(r":\d", label)


def _with_loss(facts: Facts, finding: Finding, cold: np.ndarray) -> Finding:
    """Its loss over the run.  The time of a cold start has rules of its own, and would hide what
    every repetition loses."""
    if finding.loss is None:
        return finding
    some = ~cold[finding.intervals] | (not finding.about_row)
    return replace(finding, loss_ns=facts.once(finding.intervals[some], finding.loss[some]))


def _row(facts: Facts, rule: str, finding: Finding) -> tuple[object, ...]:
    """A row of `frames.FINDINGS`, with the advice that suits the program (torch code is useless for
    a program in C++ or TensorRT) and the kind of interval (a range has no start event)."""
    shown = facts.shown(finding)
    measured = 0 <= shown < facts.count
    graphs = measured and bool(facts.graphs[shown])
    synchronises = measured and facts.parts[shown, CAUSES.index("sync")] > 0
    kind = facts.kinds.get(finding.label, "event")
    advice = finding.advice
    if kind == "host" or (kind == "event" and facts.torch):
        measuring = advice.measuring
    elif kind == "nvtx" and not advice.of_ranges:
        measuring = ""
    else:
        measuring = advice.anywhere
        if measuring is None:
            measuring = _CODE.sub(".", advice.measuring)
    faster = advice.faster
    if graphs:
        measuring = measuring.replace(", or time a CUDA graph", "")
        faster = advice.faster_in_graphs or faster
    elif synchronises:
        faster = advice.faster_with_sync or faster
    better = ""
    if faster:
        code = faster.code if facts.torch else ""
        better = f"{faster.sentence}:   {code}" if code else f"{faster.sentence}."
    return (
        rule, finding.severity, finding.label, finding.title, dict(finding.evidence), measuring, better, finding.site,
        finding.loss_ns, shown,
    )  # fmt: skip


def _per_interval(found: list[tuple[str, Finding]], count: int) -> pd.Series:
    """Tuples of rule names, in the order of the findings; one tuple object for all intervals with
    the same rules."""
    out: list[tuple[str, ...]] = [()] * count
    longer: dict[tuple[tuple[str, ...], str], tuple[str, ...]] = {}
    for rule, finding in found:
        for number in finding.intervals.tolist():
            rules = out[number]
            if rule not in rules:
                out[number] = longer.setdefault((rules, rule), (*rules, rule))
    return pd.Series(out, dtype=object)
