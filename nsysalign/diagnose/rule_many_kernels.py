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
    for case in facts.cases(mask):
        at = case.row
        if one_call(facts, at):  # rule api-launch names it
            continue
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


def one_call(facts: Facts, at: int) -> bool:
    """Whether one call is most of what interval `at` pays for launching: code that is loaded, a copy that blocks."""
    segments = facts.segments(np.array([at]))
    inside = segments.of_cause("api_launch")
    longest = int(segments.ns[inside].max(initial=0))
    return bool(longest > thresholds.ONE_GAP_SHARE * facts.part("api_launch", "launch_latency")[at])


def _advice(facts: Facts, at: int) -> str:
    """A graph, and a delay where it helps; neither can be had around a synchronisation."""
    if facts.part("sync")[at] > 0:
        return run_ahead(facts, at)
    graph = (
        "Capture the work in a CUDA graph and time the replay:   with torch.cuda.graph(g): f()   "
        "start.record(); g.replay(); end.record()"
    )
    if facts.operations[at] >= thresholds.QUEUE_DEPTH:
        return graph
    delay = delay_cycles(facts.elapsed[at] - facts.work[at])
    return f"{graph}   torch.cuda._sleep({delay:_}); start.record()  # or without a graph: let the host run ahead"


RULE = Rule(NAME, find)
