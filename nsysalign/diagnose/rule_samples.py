"""Too few repetitions to know the spread."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "too-few-samples"


def find(facts: Facts) -> Iterator[Finding]:
    """Of what the program measured: a range is no measurement, and a pair that was inferred perhaps none."""
    inferred = (facts.analysis.intervals["method"] == "inferred").to_numpy()
    meant = np.bincount(facts.label[(facts.kind != "nvtx") & ~inferred], minlength=len(facts.labels) + 1) > 0
    few = (facts.label_count > 0) & (facts.label_count < thresholds.FEW_SAMPLES) & meant[: len(facts.labels)]
    once = np.flatnonzero(few & (facts.label_count == 1))
    if len(once) > thresholds.MANY_ONCE:
        yield _together(facts, once)
        few[once] = False
    for code in np.flatnonzero(few).tolist():
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
                f"it is not known whether {words.span(low)} is typical."
                if once
                else f"{words.span(low)} to {words.span(high)} is too little to estimate the spread."
            ),
            evidence(runs=count, min_ns=low, max_ns=None if once else high),
            "Repeat it:   for _ in range(20): start.record(); f(x); end.record(); torch.cuda.synchronize()",
            str(facts.sites[code]),
            mine,
            0.0,
            about_row=False,
        )


def _together(facts: Facts, codes: np.ndarray) -> Finding:
    """One finding for many labels that were measured once each, under the name of the longest."""
    rows = np.flatnonzero(np.isin(facts.label, codes))
    longest = int(rows[facts.elapsed[rows].argmax()])
    code = int(facts.label[longest])
    return Finding(
        NAME,
        "info",
        str(facts.labels[code]),
        f"{words.subject(str(facts.labels[code]))} and {words.plural(len(codes) - 1, 'other label')} were measured once each: "
        "so it is not known whether these times are typical.",
        evidence(labels_measured_once=len(codes), intervals=1),
        "Repeat them:   for _ in range(20): start.record(); f(x); end.record(); torch.cuda.synchronize()",
        str(facts.sites[code]),
        rows,
        0.0,
        about_row=False,
    )


RULE = Rule(NAME, find)
