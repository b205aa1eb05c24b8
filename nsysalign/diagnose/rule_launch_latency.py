"""The host ran ahead, yet the fixed cost of events and launches is a large part of a short interval."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "launch-latency"


def find(facts: Facts) -> Iterator[Finding]:
    fixed = facts.part("launch_latency", "event")
    late = facts.part("host", "api", "api_launch", "sync")
    few = (facts.operations > 0) & (facts.operations < thresholds.MANY_OPERATIONS)
    mask = (
        (facts.kind == "event")
        & few
        & (facts.share(fixed) > thresholds.FIXED_COST_SAY_SHARE)
        & (facts.share(late) < thresholds.AHEAD_SHARE)
    )
    for case in facts.cases(mask):
        at = case.row
        yield Finding(
            NAME,
            "info",
            case.label,
            f"{words.subject(case.label)} is short for an event pair: {words.of(fixed[at], facts.elapsed[at])} are the cost of the pair itself and launch "
            "latency, although the host had run ahead.",
            evidence(
                kernel_ns=facts.kernel_upper[at],
                launch_latency_ns=facts.part("launch_latency")[at],
                event_ns=facts.part("event")[at],
                seen_in=case.frequency,
            ),
            "Time several calls with one pair and divide:   start.record(); [f() for _ in range(20)]; end.record()",
            case.site,
            case.positions,
            float(fixed[at]),
        )


RULE = Rule(NAME, find)
