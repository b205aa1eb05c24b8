"""The interval's work is ordered behind work of another stream."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.queued import waits

NAME = "queued-dependency"


def find(facts: Facts) -> Iterator[Finding]:
    for case, severity, ns, stream, inferred in waits(
        facts, "dependency", "dependency-inferred", "default-stream-order", "host-function"
    ):
        at = case.row
        behind = f"stream {stream}" if stream >= 0 else "other work"
        yield Finding(
            NAME,
            severity,
            case.label,
            f"{words.subject(case.label)} waits for another stream: for {words.of(ns, facts.elapsed[at])} its work was issued but ordered behind "
            f"{behind}.",
            evidence(
                waiting_ns=ns,
                waiting_share=ns / max(facts.elapsed[at], 1),
                stream_waited_for=stream if stream >= 0 else None,
                kernel_ns=facts.kernel_upper[at],
                the_wait="inferred from the order of calls" if inferred else None,
                seen_in=case.frequency,
            ),
            "Wait before the start event instead of after it:   torch.cuda.current_stream().wait_stream(other); start.record()",
            case.site,
            case.positions,
            float(ns),
        )


RULE = Rule(NAME, find)
