"""Events that were recorded while a CUDA graph was captured have no time of their own."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.unplaced import unplaced

NAME = "captured"


def find(facts: Facts) -> Iterator[Finding]:
    for label, site, count, _ in unplaced(facts, r"\bcaptured\b"):
        yield Finding(
            NAME,
            "info",
            label,
            f"{words.subject(label)} recorded its events into a CUDA graph: they are stamped at each replay and cannot be placed.",
            evidence(pairs=count),
            "Record around the replay:   start.record(); graph.replay(); end.record()",
            site,
        )


RULE = Rule(NAME, find)
