"""The warm repetitions spread widely."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import CouldNotLook, Finding, Rule, evidence
from nsysalign.diagnose.repetitions import repetitions, split
from nsysalign.model import CAUSES

NAME = "high-variance"


def find(facts: Facts) -> Iterator[Finding | CouldNotLook]:
    few = int((facts.label_count < 2).sum()) if len(facts.labels) else 0
    for r in repetitions(facts):
        values = np.sort(facts.elapsed[r.warm])
        if len(values) < thresholds.SPREAD_SAMPLES:
            few += 1
            continue
        low, median, high = np.percentile(values, [25, 50, 75])
        if high - low <= thresholds.SPREAD_SHARE * median or split(values):
            continue
        parts = {c: np.subtract(*np.percentile(facts.part(c)[r.warm], [75, 25])) for c in CAUSES}
        worst = max(parts, key=parts.__getitem__)
        most = parts[worst] > 0
        yield Finding(
            NAME,
            "info",
            r.label,
            f"{words.subject(r.label)} varies: half of its intervals lie between {words.span(low)} and {words.span(high)} (median {words.span(median)}); "
            f"{'most of that is in ' + worst.replace('_', ' ') if most else 'no single part of it does'}.",
            evidence(
                intervals=len(values),
                p25_ns=low,
                median_ns=median,
                p75_ns=high,
                min_ns=values[0],
                max_ns=values[-1],
                spread_share=(high - low) / max(median, 1),
                kernel_spread_ns=parts["kernel"],
            ),
            "Take more repetitions and report median and spread; with the host ahead, the spread is the GPU's:   torch.cuda._sleep(2_000_000); "
            "start.record()",
            r.site,
            r.warm,
            float(high - low),
            about_row=False,
        )
    if few:
        yield CouldNotLook(
            NAME,
            f"{words.plural(few, 'label')} with fewer than {thresholds.SPREAD_SAMPLES} comparable warm repetitions "
            "(two-modes and outliers need them, too)",
        )


RULE = Rule(NAME, find)
