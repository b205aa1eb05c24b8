"""The GPU waits, idle, for the host to issue the next operation: launch-bound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Case, Facts, Segments, rows_of
from nsysalign.diagnose.finding import CouldNotLook, Finding, Rule, evidence
from nsysalign.diagnose.remedy import run_ahead
from nsysalign.diagnose.rule_sync import drains

NAME = "host-gap"


def find(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    if any(m.startswith("CUPTI_ACTIVITY_KIND_RUNTIME") for m in facts.analysis.trace.missing):
        yield CouldNotLook(NAME, "the trace has no CUDA API rows (record with -t cuda)")
        return
    host = facts.part("host") + np.maximum(facts.part("api") - facts.loading - facts.allocating, 0)
    call = facts.part("api_launch")
    _, drained = drains(facts)  # what follows a costly synchronisation is its consequence
    gap = host + call - np.minimum(drained, host + call)
    mask = (
        facts.on_stream & (facts.operations > 0) & (host >= call) & (facts.share(gap) > thresholds.WARN_SHARE)
    )
    for case in facts.cases(mask):
        yield _finding(facts, case, call, gap)


def _finding(facts: Facts, case: Case, call: np.ndarray, gap: np.ndarray) -> Finding:
    at = case.row
    waited = facts.part("host")[at]
    inside_call = waited <= thresholds.WARN_SHARE * facts.elapsed[at]
    waited = gap[at] if inside_call else min(waited, gap[at])
    segments = facts.segments(np.array([at]))
    where, longest, then = _where(segments)
    name = words.subject(case.label)
    amount = words.of(waited, facts.elapsed[at])
    kernels = "kernel" if facts.operations[at] < thresholds.MANY_OPERATIONS else "kernels"
    lead = (
        f"{name} measures the host, not the {kernels}"
        if waited >= thresholds.MOSTLY_SHARE * facts.elapsed[at]
        else (f"{name} is launch-bound")
    )
    place = {
        "before": "for the launch that came after the first event",
        "between": "while the host was busy between two launches",
        "after": "for the host to record the end event",
        "many": f"for the host, before and between {facts.operations[at]:,} operations",
    }[where]
    did = rows_of(facts.details, at)
    did = did[
        did["cause"].isin(["host", "api", "api_launch", "profiler"]) & (did["detail"] != case.name)
    ].head(3)
    alone = not facts.others_worked[at]
    who = "the GPU waited, idle," if alone else "its stream waited, while other streams kept the GPU busy,"
    return Finding(
        NAME,
        "warning" if alone else "info",
        case.label,
        f"{lead}: for {amount} {who} {place}.",
        evidence(
            waiting_share=waited / max(facts.elapsed[at], 1),
            outside_CUDA_ns=facts.part("host")[at],
            launch_calls_ns=call[at],
            other_CUDA_calls_ns=facts.part("api")[at],
            kernel_ns=facts.kernel_upper[at],
            copies_in_the_interval_ns=facts.part("memcpy")[at],
            longest_gap_ns=longest,
            it_waited_for=then,
            host_was_in=", ".join(
                f"{d} {words.span(n)}" for d, n in zip(did["detail"], did["ns"], strict=True)
            ),
            seen_in=case.frequency,
        ),
        run_ahead(facts, at),
        case.site,
        case.positions,
        float(waited),
    )


def _where(segments: Segments) -> tuple[str, int, str]:
    """Where most of the wait lies (before, between, after, many), the longest stretch, the operation it waited for."""
    run = segments.run
    blamed = segments.of_cause("host", "api", "api_launch")
    total = np.bincount(run[blamed], segments.ns[blamed], minlength=1)
    worst = int(total.argmax())
    rows = np.flatnonzero(run == worst)
    longest, after = int(total[worst]), int(rows[-1]) + 1
    then = words.kernel(str(segments.details(np.array([after]))[0])) if after < len(segments) else ""
    if longest < thresholds.ONE_GAP_SHARE * total.sum():
        return "many", longest, then
    if rows[0] == 0:
        return "before", longest, then
    return ("between" if then else "after"), longest, then


RULE = Rule(NAME, find)
