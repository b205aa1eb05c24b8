"""The repetitions fall into two groups: a median names one of them, a mean none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.repetitions import repetitions, split

NAME = "two-modes"


def find(facts: Facts) -> Iterator[Finding]:
    for r in repetitions(facts):
        order = r.warm[np.argsort(facts.elapsed[r.warm], kind="stable")]
        at = split(facts.elapsed[order])
        if not at:
            continue
        low, high = (float(np.median(facts.elapsed[g])) for g in (order[:at], order[at:]))
        kernel_low, kernel_high = (float(np.median(facts.kernel_upper[g])) for g in (order[:at], order[at:]))
        cause = (
            "the kernels themselves differ"
            if abs(kernel_high - kernel_low) > 0.5 * (high - low)
            else "not in the kernels"
        )
        yield Finding(
            NAME,
            "info",
            r.label,
            f"{words.subject(r.label)} has two modes: {at} intervals near {words.span(low)}, {len(order) - at} near {words.span(high)} (the difference is "
            f"{'in the kernels' if cause.startswith('the') else cause}).",
            evidence(
                lower_mode_ns=low,
                lower_runs=at,
                upper_mode_ns=high,
                upper_runs=len(order) - at,
                kernel_in_the_lower_ns=kernel_low,
                kernel_in_the_upper_ns=kernel_high,
            ),
            "Report both, or find what differs (clocks, cache, inputs):   print(analysis.intervals[['name', 'elapsed_ns', 'kernel_only_ns']])",
            r.site,
            order[at:],
            high - low,
            about_row=False,
        )


RULE = Rule(NAME, find)
