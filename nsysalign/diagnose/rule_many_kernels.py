"""Many short operations, launched one by one: launch calls and latencies cost more than the work."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.remedy import delay_cycles, run_ahead

NAME = "many-tiny-kernels"


def find(facts: Facts) -> Iterator[Finding]:
    call, latency = facts.part("api_launch"), facts.part("launch_latency")
    cost = call + latency
    mean = facts.work / np.maximum(facts.operations, 1)
    mask = (
        facts.on_stream
        & (facts.operations >= thresholds.MANY_OPERATIONS)
        & (facts.share(cost) > thresholds.WARN_SHARE)
    )
    worst = one_call(facts)
    for case in facts.cases(mask & (worst <= thresholds.ONE_GAP_SHARE * cost)):
        at = case.row
        count = int(facts.operations[at])
        yield Finding(
            NAME,
            "warning",
            case.label,
            f"{words.subject(case.label)} pays for {count:,} launches: {words.of(cost[at], facts.elapsed[at])} go into launching operations "
            f"that run {words.span(mean[at])} each.",
            evidence(
                operations=count,
                launch_calls_ns=call[at],
                launch_latency_ns=latency[at],
                working_ns=facts.work[at],
                per_operation_ns=cost[at] / count,
                seen_in=case.frequency,
            ),
            _advice(facts, at),
            case.site,
            case.positions,
            float(cost[at]),
        )


def one_call(facts: Facts) -> np.ndarray:
    """The longest single idle stretch inside a launch or copy call, per interval: a call that loads code or blocks costs once
    what launches do not."""
    out = np.zeros(facts.count, np.int64)
    for lot in facts.portions(
        np.flatnonzero(facts.on_stream & (facts.operations >= thresholds.MANY_OPERATIONS))
    ):
        segments = facts.segments(lot)
        inside = segments.of_cause("api_launch")
        np.maximum.at(out, segments.at[inside], segments.ns[inside])
    return out


def _advice(facts: Facts, at: int) -> str:
    """A graph, and a delay where it helps; neither can be had around a synchronisation."""
    if facts.part("sync")[at] > 0:
        return run_ahead(facts, at)
    graph = (
        "Capture the work once and time the replay:   with torch.cuda.graph(g): ...   then   "
        "start.record(); g.replay(); end.record()"
    )
    if facts.operations[at] >= thresholds.QUEUE_DEPTH:
        return graph
    delay = delay_cycles(facts.elapsed[at] - facts.work[at])
    return f"{graph}   For GPU time without a graph:   torch.cuda._sleep({delay:_}); start.record()"


RULE = Rule(NAME, find)
