"""Rules that turn budgets into findings: a plain ordered registry, one file per rule.

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
from nsysalign.diagnose import (
    rule_allocation,
    rule_api_launch,
    rule_captured,
    rule_clocks,
    rule_cold_l2,
    rule_contention,
    rule_copy,
    rule_dependency,
    rule_different_streams,
    rule_earlier_work,
    rule_enqueue_only,
    rule_event_floor,
    rule_full_queue,
    rule_graph_opaque,
    rule_host_gap,
    rule_host_timer,
    rule_inflation,
    rule_launch_blocking,
    rule_launch_latency,
    rule_many_kernels,
    rule_mark_perturbed,
    rule_marks_dropped,
    rule_memset,
    rule_mixed_work,
    rule_module_load,
    rule_not_ready,
    rule_outliers,
    rule_overlapping,
    rule_profiler,
    rule_recorded_again,
    rule_samples,
    rule_sm_imbalance,
    rule_sync,
    rule_tail,
    rule_throttled,
    rule_two_modes,
    rule_unknown,
    rule_variance,
    rule_warm_up,
    rule_wrong_stream,
)
from nsysalign.diagnose.advice import spoken
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import SEVERITIES, CouldNotLook, Finding, Rule
from nsysalign.model import UNSURE, Analysis, SegmentArrays

#: In the order in which findings of equal weight are shown.
REGISTRY: tuple[Rule, ...] = tuple(
    module.RULE
    for module in (
        # the wrong question
        rule_wrong_stream,
        rule_different_streams,
        rule_enqueue_only,
        rule_not_ready,
        rule_recorded_again,
        rule_captured,
        # time that is not the kernel
        rule_launch_blocking,
        rule_host_gap,
        rule_many_kernels,
        rule_api_launch,
        rule_launch_latency,
        rule_allocation,
        rule_module_load,
        rule_copy,
        rule_memset,
        rule_sync,
        rule_graph_opaque,
        # queued behind
        rule_dependency,
        rule_contention,
        rule_full_queue,
        rule_earlier_work,
        # host timers, the floor, the profiler
        rule_host_timer,
        rule_event_floor,
        rule_inflation,
        rule_profiler,
        rule_unknown,
        # the repetitions as a set
        rule_warm_up,
        rule_mixed_work,
        rule_overlapping,
        rule_throttled,
        rule_clocks,
        rule_cold_l2,
        rule_two_modes,
        rule_variance,
        rule_outliers,
        rule_samples,
        # inside kernels
        rule_tail,
        rule_sm_imbalance,
        rule_mark_perturbed,
        rule_marks_dropped,
    )
)


def diagnose(
    analysis: Analysis, segments_of: Callable[[np.ndarray], SegmentArrays] | None = None
) -> Analysis:
    """Apply every rule, in order: findings sorted by severity and time explained, remarks appended to the notes.

    `segments_of` gives the segments of intervals (ascending numbers) where the analysis does not hold them all.
    """
    measured = analysis.measured  # comes first: positions in it are positions in all
    found, notes = apply(Facts(replace(analysis, intervals=measured), segments_of), REGISTRY)
    found = spoken(analysis, _of_sure_labels(measured, found))
    if measured.empty:
        notes = []  # nothing was placed: the report says that, 30 rules need not
    found.sort(key=lambda f: (SEVERITIES.index(f.severity), not f.about_row, -f.explained_ns))
    return replace(
        analysis,
        findings=_table(found),
        intervals=analysis.intervals.assign(findings=_per_interval(found, len(analysis.intervals))),
        notes=tuple(dict.fromkeys([*analysis.notes, *notes])),
    )


def _of_sure_labels(intervals: pd.DataFrame, found: Sequence[Finding]) -> list[Finding]:
    """Findings about what was measured: nobody is warned about pairs that perhaps nobody compared."""
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
