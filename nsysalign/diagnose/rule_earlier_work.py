"""A host timer that waits for work enqueued before it began."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.queued import waits

NAME = "earlier-work"


def find(facts: Facts) -> Iterator[Finding]:
    for case, severity, ns, _, _ in waits(facts, "earlier-work"):
        at = case.row
        yield Finding(
            NAME,
            severity,
            case.label,
            f"{words.subject(case.label)} waits for earlier work: for {words.of(ns, facts.elapsed[at])} it waited for what had been launched before "
            "the first reading.",
            evidence(
                waiting_ns=ns,
                waiting_share=ns / max(facts.elapsed[at], 1),
                kernel_ns=facts.kernel_only[at],
                seen_in=case.frequency,
            ),
            "Synchronise before the first reading as well:   torch.cuda.synchronize(); t0 = time.perf_counter()",
            case.site,
            case.positions,
            float(ns),
        )


RULE = Rule(NAME, find)
