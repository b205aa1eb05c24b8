"""Too few repetitions to know the spread."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "too-few-samples"


def find(facts: Facts) -> Iterator[Finding]:
    for code in np.flatnonzero(
        (facts.label_count > 0) & (facts.label_count < thresholds.FEW_SAMPLES)
    ).tolist():
        mine = facts.repetitions(code)
        low, high = int(facts.elapsed[mine].min()), int(facts.elapsed[mine].max())
        label, count = str(facts.labels[code]), len(mine)
        once = count == 1
        yield Finding(
            NAME,
            "info",
            label,
            f"{words.subject(label)} was measured {'once' if once else f'{count} times'}: "
            + (
                f"nothing says whether {words.span(low)} is typical."
                if once
                else f"{words.span(low)} to {words.span(high)} is no estimate of the spread."
            ),
            evidence(runs=count, min_ns=low, max_ns=None if once else high),
            "Repeat it:   for _ in range(20): start.record(); f(x); end.record(); torch.cuda.synchronize()",
            str(facts.sites[code]),
            mine,
            0.0,
            about_row=False,
        )


RULE = Rule(NAME, find)
