"""Intervals that the profiler itself disturbed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "profiler-disturbed"


def find(facts: Facts) -> Iterator[Finding]:
    flagged = np.fromiter(
        ("profiler-disturbed" in f for f in facts.analysis.intervals["flags"]), bool, facts.count
    )
    own = facts.part("profiler")
    for case in facts.cases(flagged | (own > 0), at_least=0):
        at = case.row
        mine = facts.repetitions(int(facts.label[at]))
        calm = mine[~np.isin(mine, case.positions)]
        slow, usual = (float(np.median(facts.elapsed[g])) if len(g) else 0.0 for g in (case.positions, calm))
        part = own[at] / max(facts.elapsed[at], 1)
        often = len(case.positions) >= thresholds.TYPICAL_SHARE * case.count
        if not often and part < thresholds.SAY_SHARE and slow < thresholds.DISTURBED_FACTOR * usual:
            continue  # the note that counts them is enough
        warn = often and part > thresholds.WARN_SHARE
        yield Finding(
            NAME,
            "warning" if warn else "info",
            case.label,
            f"{words.subject(case.label)}: the profiler was busy with its own work during {len(case.positions)} of {words.plural(case.count, 'interval')}.",
            evidence(
                disturbed=len(case.positions),
                median_disturbed_ns=slow,
                median_of_the_others_ns=usual or None,
                profiler_in_the_interval_ns=int(own[at]) or None,
            ),
            _advice(facts, case.label),
            case.site,
            case.positions,
            float(own[at]),
            about_row=bool(warn),
        )


def _advice(facts: Facts, label: str) -> str:
    """Measure without nsys; where that was done, what it says."""
    table = facts.analysis.baseline
    row = table[(table["label"] == label) & table["inflation"].notna()]
    if row.empty:
        return "Measure it without nsys as well:   nsysalign run --baseline SCRIPT"
    without, times = (float(row[c].iloc[0]) for c in ("baseline_ns", "inflation"))
    return f"Quote the time without nsys: {words.span(without)} (under nsys {times:.2f} times as much)."


RULE = Rule(NAME, find)
