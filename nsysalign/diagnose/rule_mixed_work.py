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
        kinds = facts.kinds_of_work(r.label)
        if kinds and facts.kind[r.row] == "nvtx":
            continue  # an operator that is called for several shapes: the table tells them apart, and nothing is wrong
        held = (
            f"{words.plural(len(kinds), 'kind')}, which the table tells apart ({_listed(kinds)}); statistics of spread are those "
            "of the most frequent one."
            if kinds
            else f"{len(r.different)} of {total} intervals held {others}, the others {usual}; they are left out of this label's "
            "statistics of spread."
        )
        yield Finding(
            NAME,
            "info",
            r.label,
            f"{words.subject(r.label)} mixes different work: {held}",
            evidence(
                kinds_of_work=len(kinds) or None,
                operations_usually=None if kinds else usual,
                operations_otherwise=None if kinds else others,
                median_usual_ns=float(np.median(facts.elapsed[r.comparable])),
                median_of_the_others_ns=float(np.median(facts.elapsed[r.different])),
            ),
            'Give each kind its own name:   with nsysalign.region("name"): ...',
            r.site,
            r.different,
            float(np.abs(facts.elapsed[r.different] - np.median(facts.elapsed[r.comparable])).max()),
            about_row=False,
        )


def _listed(kinds: list[tuple[str, int]]) -> str:
    named = [f"{name}: {count:,}" for name, count in kinds[:3]]
    return ", ".join([*named, "…"] if len(kinds) > 3 else named)


RULE = Rule(NAME, find)
