"""The interval's work is issued, but another stream keeps the device (or the copy engine) busy."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.queued import waits

NAME = "queued-contention"


def find(facts: Facts) -> Iterator[Finding]:
    for case, severity, ns, stream, _ in waits(facts, "contention"):
        at = case.row
        yield Finding(
            NAME,
            severity,
            case.label,
            f"{words.subject(case.label)} shares the GPU: for {words.of(ns, facts.elapsed[at])} its work was issued but could not start while stream "
            f"{stream} kept the device busy.",
            evidence(
                waiting_ns=ns,
                waiting_share=ns / max(facts.elapsed[at], 1),
                rival_stream=stream,
                kernel_ns=facts.kernel_upper[at],
                seen_in=case.frequency,
            ),
            "Let the other streams finish first:   torch.cuda.synchronize(); start.record()",
            case.site,
            case.positions,
            float(ns),
        )


RULE = Rule(NAME, find)
