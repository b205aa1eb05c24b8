"""The host blocks in a launch because the stream's queue is full (host timers)."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.queued import waits

NAME = "full-queue"


def find(facts: Facts) -> Iterator[Finding]:
    for case, severity, ns, stream, _ in waits(facts, "full-queue"):
        at = case.row
        yield Finding(
            NAME,
            severity,
            case.label,
            f"{words.subject(case.label)} fills the launch queue: for {words.of(ns, facts.elapsed[at])} the host was blocked in a launch until the queue "
            "had room.",
            evidence(
                blocked_ns=ns, stream=stream, queue_holds_about=thresholds.QUEUE_DEPTH, seen_in=case.frequency
            ),
            "Time fewer launches at once, or capture them:   start.record(); graph.replay(); end.record()",
            case.site,
            case.positions,
            float(ns),
        )


RULE = Rule(NAME, find)
