"""elapsed_time was asked before the work was done: torch raised, the log has it."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.unplaced import unplaced

NAME = "asked-too-early"


def find(facts: Facts) -> Iterator[Finding]:
    for label, site, count, _ in unplaced(
        facts, r"elapsed_time failed.*(not ready|notready|completed|\b600\b)"
    ):
        yield Finding(
            NAME,
            "error",
            label,
            f"{words.subject(label)} asked for elapsed_time before the end event had completed: so there is no result.",
            evidence(failed_calls=count),
            "Wait for the end event first:   end.synchronize(); ms = start.elapsed_time(end)",
            site,
        )


RULE = Rule(NAME, find)
