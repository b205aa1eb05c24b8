"""Labels that are longer under nsys than without it: the budget shown is not the one that users have.

Only a run with --baseline can tell."""

from __future__ import annotations

import math
from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "profiler-inflation"


def find(facts: Facts) -> Iterator[Finding]:
    code_of = {label: code for code, label in enumerate(facts.labels.tolist())}
    for row in facts.analysis.baseline.itertuples(index=False):
        code = code_of.get(row.label)
        added = row.profiled_ns - row.baseline_ns
        # one of the two runs did not measure it, or the intervals are too few or too scattered to tell
        if code is None or math.isnan(added) or not row.low_ns > 0:
            continue
        share = added / row.profiled_ns
        if share < thresholds.SAY_SHARE:
            continue
        predicted = None if math.isnan(row.predicted_ns) else row.predicted_ns
        yield Finding(
            NAME,
            "warning" if share > thresholds.WARN_SHARE else "info",
            row.label,
            f"{words.subject(row.label)} is {row.inflation:.2f} times as long under nsys: {words.span(row.profiled_ns)} "
            f"profiled, {words.span(row.baseline_ns)} without.",
            evidence(
                under_nsys_ns=row.profiled_ns,
                without_nsys_ns=row.baseline_ns,
                difference_at_least_ns=row.low_ns,
                difference_at_most_ns=row.high_ns,
                profiler_share=share,
                predicted_without_nsys_ns=predicted,
                prediction_error_ns=None if predicted is None else row.predicted_ns - row.baseline_ns,
            ),
            "Quote the time without nsys; the table of both runs has its predicted budget.  The profiler does not "
            "stretch the GPU's own work: let the host run ahead, or time a CUDA graph.",
            row.site,
            facts.repetitions(code),
            float(added),
        )


RULE = Rule(NAME, find)
