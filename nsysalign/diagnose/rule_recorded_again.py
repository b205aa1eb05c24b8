"""The pair that was asked for is not the pair that was measured: an event was recorded again, or the pair is swapped."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.unplaced import unplaced

NAME = "recorded-again"


def find(facts: Facts) -> Iterator[Finding]:
    for label, site, count, reason in unplaced(
        facts, r"negative elapsed_time|recorded (again|since)|contradicts the trace"
    ):
        swapped = "negative" in reason
        said = (
            "its end was recorded before its start (swapped, or the start was recorded again since)"
            if swapped
            else (
                "elapsed_time does not fit between the pair's records (an event recorded again since, or an unseen one)"
            )
        )
        yield Finding(
            NAME,
            "error",
            label,
            f"{words.subject(label)} compares the wrong records: {said}.",
            evidence(pairs=count, reason=reason),
            "Use a fresh pair per measurement:   start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))",
            site,
        )


RULE = Rule(NAME, find)
