"""Single repetitions far above the others: said, never dropped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence
from nsysalign.diagnose.repetitions import repetitions, split
from nsysalign.model import CAUSES

NAME = "outliers"


def find(facts: Facts) -> Iterator[Finding]:
    for r in repetitions(facts):
        values = facts.elapsed[r.warm]
        if len(values) < thresholds.SPREAD_SAMPLES or split(np.sort(values)):
            continue
        median = float(np.median(values))
        sigma = 1.4826 * float(np.median(np.abs(values - median)))
        far = r.warm[
            (values > thresholds.OUTLIER_FACTOR * median)
            & (values > median + thresholds.OUTLIER_SIGMAS * sigma)
        ]
        if not len(far):
            continue
        worst = int(far[facts.elapsed[far].argmax()])
        usual = r.warm[np.argsort(values, kind="stable")[len(values) // 2]]
        extra = {c: int(facts.part(c)[worst] - facts.part(c)[usual]) for c in CAUSES}
        cause = max(extra, key=extra.__getitem__)
        yield Finding(
            NAME,
            "info",
            r.label,
            f"{words.subject(r.label)} has {words.plural(len(far), 'outlier')} in {len(values)} warm intervals: {words.subject(str(facts.names[worst]))} took "
            f"{words.span(facts.elapsed[worst])} against a median of {words.span(median)}, {words.span(extra[cause])} more in {cause.replace('_', ' ')}.",
            evidence(
                outliers=len(far),
                slowest_ns=facts.elapsed[worst],
                median_ns=median,
                more_than_usual_ns=extra[cause],
                mostly_in=cause,
            ),
            "Report the median and the number of outliers; they are counted here, not dropped.",
            r.site,
            far,
            float(facts.elapsed[worst] - median),
            about_row=False,
        )


RULE = Rule(NAME, find)
