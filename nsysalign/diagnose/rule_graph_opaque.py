"""A CUDA graph traced as one row: what happens inside is not in the trace."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "graph-opaque"


def find(facts: Facts) -> Iterator[Finding]:
    graph = facts.part("graph")
    for case in facts.cases(facts.share(graph) > thresholds.WARN_SHARE):
        at = case.row
        yield Finding(
            NAME,
            "info",
            case.label,
            f"{words.subject(case.label)} runs a CUDA graph that is traced as one row: {words.of(graph[at], facts.elapsed[at])}, in which gaps and "
            "copies cannot be told from kernels.",
            evidence(
                graph_ns=graph[at],
                kernel_at_least_ns=facts.kernel_only[at],
                kernel_at_most_ns=facts.kernel_upper[at],
                seen_in=case.frequency,
            ),
            "Trace every node of the graph (slower):   nsysalign run --graph-trace node SCRIPT.py",
            case.site,
            case.positions,
            float(graph[at]),
        )


RULE = Rule(NAME, find)
