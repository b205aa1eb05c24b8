"""Intervals of one label that hold different amounts of work: their statistics mix two questions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.repetitions import repetitions

NAME = "mixed-work"


def find(facts: Facts) -> Iterator[Finding]:
    for r in repetitions(facts):
        if not len(r.different):
            continue
        usual = int(np.median(facts.operations[r.comparable]))
        least, most = int(facts.operations[r.different].min()), int(facts.operations[r.different].max())
        others = words.plural(most, "operation") if least == most else f"{least} to {most} operations"
        total = len(r.comparable) + len(r.different)
        yield Finding(
            NAME,
            "info",
            r.label,
            f"{words.subject(r.label)} mixes different work: {len(r.different)} of {total} intervals held {others}, the others "
            f"{usual}; they do not count in this label's spread.",
            evidence(
                operations_usually=usual,
                operations_otherwise=others,
                median_usual_ns=float(np.median(facts.elapsed[r.comparable])),
                median_of_the_others_ns=float(np.median(facts.elapsed[r.different])),
            ),
            'Give each kind its own name:   with nsysalign.region("name"): ...',
            r.site,
            r.different,
            float(np.abs(facts.elapsed[r.different] - np.median(facts.elapsed[r.comparable])).max()),
            about_row=False,
        )


RULE = Rule(NAME, find)
