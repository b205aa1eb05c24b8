"""The first repetitions are much slower than the rest: warm-up mixed with warm ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import CouldNotLook, Finding, Rule, evidence
from nsysalign.diagnose.repetitions import repetitions
from nsysalign.diagnose.rule_module_load import loads

NAME = "warm-up"


def find(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    small = 0
    loaded = loads(facts)
    for r in repetitions(facts):
        if len(r.comparable) < 3:
            small += 1
            continue
        if (
            not len(r.cold) or loaded[r.cold].max() >= thresholds.LOAD_NS
        ):  # rule module-load names that more exactly
            continue
        slow, warm = float(facts.elapsed[r.cold].max()), float(np.median(facts.elapsed[r.warm]))
        mean = float(facts.elapsed[r.comparable].mean())
        which = (
            "the first interval" if len(r.cold) == 1 else f"the slowest of the first {len(r.cold)} intervals"
        )
        yield Finding(
            NAME,
            "info",
            r.label,
            f"{words.subject(r.label)} warms up: {which} took {words.span(slow)}, {words.times(slow / max(warm, 1))} the later ones "
            f"({words.span(warm)}); a mean over all would say {words.span(mean)}.",
            evidence(
                cold_intervals=len(r.cold),
                slowest_cold_ns=slow,
                median_of_the_rest_ns=warm,
                mean_of_all_ns=mean,
                kernel_cold_ns=facts.kernel_upper[r.cold[0]],
                kernel_warm_ns=float(np.median(facts.kernel_upper[r.warm])),
            ),
            "Run it a few times before timing:   for _ in range(3): f(x)",
            r.site,
            r.cold,
            slow - warm,
            about_row=False,
        )
    if small:
        yield CouldNotLook(NAME, f"{words.plural(small, 'label')} with fewer than 3 comparable repetitions")


RULE = Rule(NAME, find)
