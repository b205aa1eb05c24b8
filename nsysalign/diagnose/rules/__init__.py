"""Rules that turn budgets into findings: a plain ordered registry, one file per question.

A rule reads only the Analysis (as Facts) and returns findings, one per label, or says why it could not check.
Severity: error = the number answers another question; warning = much of the interval is not what the reader takes
it for; info = worth knowing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.diagnose.advice import spoken
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import SEVERITIES, CouldNotLook, Finding, Rule
from nsysalign.diagnose.rules import (
    conditions,
    contents,
    kernel_marks,
    launching,
    measuring,
    queueing,
    series,
    validity,
)
from nsysalign.model import UNSURE, Analysis, SegmentArrays

#: In the order in which findings of equal weight are shown.
REGISTRY: tuple[Rule, ...] = (
    Rule(validity.WRONG_STREAM, validity.wrong_stream),
    Rule(validity.DIFFERENT_STREAMS, validity.different_streams),
    Rule(validity.ENQUEUE_ONLY, validity.enqueue_only),
    Rule(validity.NOT_READY, validity.not_ready),
    Rule(validity.RECORDED_AGAIN, validity.recorded_again),
    Rule(validity.CAPTURED, validity.captured),
    Rule(launching.LAUNCH_BLOCKING, launching.launch_blocking),
    Rule(launching.HOST_GAP, launching.host_gap),
    Rule(launching.MANY_KERNELS, launching.many_kernels),
    Rule(launching.API_LAUNCH, launching.api_launch),
    Rule(launching.LAUNCH_LATENCY, launching.launch_latency),
    Rule(launching.ALLOCATION, launching.allocation),
    Rule(launching.MODULE_LOAD, launching.module_load),
    Rule(contents.COPY, contents.copy),
    Rule(contents.MEMSET, contents.memset),
    Rule(contents.SYNC, contents.sync),
    Rule(contents.GRAPH_OPAQUE, contents.graph_opaque),
    Rule(queueing.DEPENDENCY, queueing.dependency),
    Rule(queueing.CONTENTION, queueing.contention),
    Rule(queueing.FULL_QUEUE, queueing.full_queue),
    Rule(queueing.EARLIER_WORK, queueing.earlier_work),
    Rule(measuring.HOST_TIMER, measuring.host_timer),
    Rule(measuring.EVENT_FLOOR, measuring.event_floor),
    Rule(measuring.INFLATION, measuring.inflation),
    Rule(measuring.PROFILER, measuring.profiler),
    Rule(measuring.UNKNOWN, measuring.unknown),
    Rule(series.WARM_UP, series.warm_up),
    Rule(series.MIXED_WORK, series.mixed_work),
    Rule(series.OVERLAPPING, series.overlapping),
    Rule(conditions.THROTTLED, conditions.throttled),
    Rule(conditions.CLOCKS, conditions.clocks),
    Rule(conditions.COLD_L2, conditions.cold_l2),
    Rule(series.TWO_MODES, series.two_modes),
    Rule(series.VARIANCE, series.variance),
    Rule(series.OUTLIERS, series.outliers),
    Rule(series.SAMPLES, series.samples),
    Rule(kernel_marks.TAIL, kernel_marks.tail),
    Rule(kernel_marks.SM_IMBALANCE, kernel_marks.sm_imbalance),
    Rule(kernel_marks.MARK_PERTURBED, kernel_marks.mark_perturbed),
    Rule(kernel_marks.MARKS_DROPPED, kernel_marks.marks_dropped),
)


def diagnose(
    analysis: Analysis, segments_of: Callable[[np.ndarray], SegmentArrays] | None = None
) -> Analysis:
    """Apply every rule, in order: findings sorted by severity and time explained, remarks appended to the notes.

    `segments_of` gives the segments of intervals (ascending numbers) where the analysis does not hold them all.
    """
    measured = analysis.measured  # comes first: its positions are positions in the whole
    found, notes = apply(Facts(replace(analysis, intervals=measured), segments_of), REGISTRY)
    found = spoken(analysis, _of_sure_labels(measured, found))
    if measured.empty:
        notes = []  # nothing was placed: the report says so, 30 rules need not repeat it
    found.sort(key=lambda f: (SEVERITIES.index(f.severity), not f.about_row, -f.explained_ns))
    return replace(
        analysis,
        findings=_table(found),
        intervals=analysis.intervals.assign(findings=_per_interval(found, len(analysis.intervals))),
        notes=tuple(dict.fromkeys([*analysis.notes, *notes])),
    )


def _of_sure_labels(intervals: pd.DataFrame, found: Sequence[Finding]) -> list[Finding]:
    """Findings about real measurements: no warnings about pairs that the program may never have compared."""
    unsure = intervals.loc[[UNSURE in flags for flags in intervals["flags"]], "label"]
    guessed = set(unsure.tolist())
    return [f for f in found if f.label not in guessed]


def apply(facts: Facts, rules: Iterable[Rule]) -> tuple[list[Finding], list[str]]:
    """(findings in the rules' order, "rule X was not checked: reason")."""
    found: list[Finding] = []
    notes: list[str] = []
    for rule in rules:
        for outcome in rule.find(facts):
            if isinstance(outcome, CouldNotLook):
                notes.append(f"{outcome.rule} was not checked: {outcome.reason}")
            else:
                found.append(outcome)
    return found, notes


def _table(found: Sequence[Finding]) -> pd.DataFrame:
    if not found:
        return frames.empty(frames.FINDINGS)
    columns = {c: [getattr(f, c) for f in found] for c in frames.FINDINGS.names}
    columns["evidence"] = pd.Series([dict(f.evidence) for f in found], dtype=object)
    return frames.check(pd.DataFrame(columns), frames.FINDINGS)


def _per_interval(found: Sequence[Finding], count: int) -> pd.Series:
    """Tuples of rule names, in the order of the findings; one tuple object for all intervals with the same rules."""
    if not found:
        return pd.Series([()] * count, dtype=object)
    at = np.concatenate([f.intervals for f in found]).astype(np.int64)
    which = np.repeat(np.arange(len(found)), [len(f.intervals) for f in found])
    order = np.lexsort((which, at))
    at, which = at[order], which[order]
    names = [f.rule for f in found]
    out: list[tuple[str, ...]] = [()] * count
    edges = np.flatnonzero(np.diff(at, prepend=-1))
    for begin, end in zip(edges.tolist(), [*edges[1:].tolist(), len(at)], strict=True) if len(at) else ():
        out[int(at[begin])] = tuple(dict.fromkeys(names[w] for w in which[begin:end].tolist()))
    return pd.Series(out, dtype=object)
