"""Rules that turn budgets into findings: a plain ordered registry, one file per question.

A rule reads only the Analysis (as Facts) and returns findings, one per label, or says why it could
not check. Severity: error = the number answers another question; warning = much of the interval is
not what the reader takes it for; info = worth knowing.

Every finding states its own loss: what would go away if its advice were followed, at most; none
where the advice is about the measurement only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames, registry
from nsysalign.explain.advice import advised
from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import SEVERITIES, CouldNotLook, Finding
from nsysalign.explain.repetitions import repetitions
from nsysalign.explain.rules import (
    conditions,
    contents,
    launching,
    measuring,
    queueing,
    series,
    validity,
    whole_run,
)
from nsysalign.model import Analysis
from nsysalign.split.pieces import Segments


class Rule(NamedTuple):
    """An entry of the registry.  `find` reads only what Facts holds, that is, the Analysis."""

    name: str
    find: Callable[[Facts], Iterable[Finding | CouldNotLook]]


#: In the order in which findings of equal weight are shown.
REGISTRY: tuple[Rule, ...] = (
    Rule("failed-calls", whole_run.failed_calls),
    Rule("no-gpu-work", whole_run.no_gpu_work),
    Rule("wrong-stream", validity.wrong_stream),
    Rule("different-streams", validity.different_streams),
    Rule("enqueue-only", validity.enqueue_only),
    Rule("asked-too-early", validity.not_ready),
    Rule("recorded-again", validity.recorded_again),
    Rule("captured", validity.captured),
    Rule("launch-blocking", launching.launch_blocking),
    Rule("host-gap", launching.host_gap),
    Rule("many-tiny-kernels", launching.many_kernels),
    Rule("api-launch", launching.api_launch),
    Rule("launch-latency", launching.launch_latency),
    Rule("allocation-inside", launching.allocation),
    Rule("module-load", launching.module_load),
    Rule("copy-inside", contents.copy),
    Rule("memset-inside", contents.memset),
    Rule("sync-inside", contents.sync),
    Rule("graph-opaque", contents.graph_opaque),
    Rule("queued-dependency", queueing.dependency),
    Rule("queued-contention", queueing.contention),
    Rule("full-queue", queueing.full_queue),
    Rule("earlier-work", queueing.earlier_work),
    Rule("host-timer", measuring.host_timer),
    Rule("few-blocks", whole_run.few_blocks),
    Rule("few-threads", whole_run.few_threads),
    Rule("page-migrations", whole_run.page_migrations),
    Rule("whole-run", whole_run.whole_run),
    Rule("event-floor", measuring.event_floor),
    Rule("profiler-inflation", measuring.inflation),
    Rule("profiler-disturbed", measuring.profiler),
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
DOUBTS = ("failed-calls", "wrong-stream", "different-streams", "enqueue-only", "asked-too-early", "recorded-again", "captured")  # fmt: skip


def diagnose(analysis: Analysis, segments_of: Callable[[np.ndarray], Segments]) -> Analysis:
    """Apply every rule, in order: findings sorted by severity and loss, remarks appended to the
    notes.

    `segments_of` gives the segments of intervals (ascending numbers).
    """
    facts = Facts(analysis, segments_of)
    found, notes = apply(facts, every_rule())
    measured, found = analysis.measured, advised(facts, found)
    if measured.empty:
        notes = []  # nothing was placed: the report says so, 30 rules need not repeat it
    found.sort(
        key=lambda f: (
            SEVERITIES.index(f.severity), not f.about_row, f.rule not in DOUBTS, -f.loss_ns
        )
    )  # fmt: skip
    return replace(
        analysis,
        findings=_table(facts, found),
        intervals=analysis.intervals.assign(findings=_per_interval(found, len(analysis.intervals))),
        notes=tuple(dict.fromkeys([*analysis.notes, *notes])),
    )


def apply(facts: Facts, rules: Iterable[Rule]) -> tuple[list[Finding], list[str]]:
    """(findings in the rules' order, "rule X was not checked: reason")."""
    found: list[Finding] = []
    notes: list[str] = []
    cold = np.zeros(facts.count, dtype=bool)
    cold[np.concatenate([r.cold for r in repetitions(facts)] or [np.empty(0, np.int64)])] = True
    for rule in rules:
        for outcome in rule.find(facts):
            if isinstance(outcome, CouldNotLook):
                notes.append(f"{rule.name} was not checked: {outcome.reason}")
                continue
            if outcome.loss is not None:
                # the time of a cold start has rules of its own, and would hide what every
                # repetition loses
                some = ~cold[outcome.intervals] | (not outcome.about_row)
                loss_ns = facts.once(outcome.intervals[some], outcome.loss[some])
                outcome = replace(outcome, loss_ns=loss_ns)
            found.append(replace(outcome, rule=rule.name))
    return found, notes


def _table(facts: Facts, found: Sequence[Finding]) -> pd.DataFrame:
    if not found:
        return frames.empty(frames.FINDINGS)
    columns = {c: [getattr(f, c) for f in found] for c in frames.FINDINGS.names if c != "interval"}
    columns["evidence"] = pd.Series([dict(f.evidence) for f in found], dtype=object)
    columns["interval"] = [
        f.run if f.run >= 0 else facts.shows(f.interval, f.intervals) for f in found
    ]
    return frames.check(pd.DataFrame(columns)[frames.FINDINGS.names], frames.FINDINGS)


def _per_interval(found: Sequence[Finding], count: int) -> pd.Series:
    """Tuples of rule names, in the order of the findings; one tuple object for all intervals with
    the same rules."""
    if not found:
        return pd.Series([()] * count, dtype=object)
    at = np.concatenate([f.intervals for f in found]).astype(np.int64)
    which = np.repeat(np.arange(len(found)), [len(f.intervals) for f in found])
    order = np.lexsort((which, at))
    at, which = at[order], which[order]
    names = [f.rule for f in found]
    out: list[tuple[str, ...]] = [()] * count
    edges = np.flatnonzero(np.diff(at, prepend=-1)).tolist()
    for begin, end in zip(edges, [*edges[1:], len(at)], strict=True) if len(at) else ():
        out[int(at[begin])] = tuple(dict.fromkeys(names[w] for w in which[begin:end].tolist()))
    return pd.Series(out, dtype=object)
