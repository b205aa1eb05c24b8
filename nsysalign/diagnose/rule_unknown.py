"""Time of which the trace cannot say what it was."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "unknown-time"


def find(facts: Facts) -> Iterator[Finding]:
    lost = facts.part("unknown")
    for case in facts.cases(facts.share(lost) >= thresholds.SAY_SHARE):
        at = case.row
        warn = lost[at] > thresholds.WARN_SHARE * facts.elapsed[at]
        yield Finding(
            NAME,
            "warning" if warn else "info",
            case.label,
            f"{words.subject(case.label)}: the trace does not say what {words.of(lost[at], facts.elapsed[at])} were (calls missing, or a wait "
            "whose end is not recorded).",
            evidence(
                unknown_ns=lost[at],
                unknown_share=lost[at] / max(facts.elapsed[at], 1),
                seen_in=case.frequency,
            ),
            "Record the whole program from its start, including the CUDA API:   nsys profile -t cuda,nvtx ...",
            case.site,
            case.positions,
            float(lost[at]),
        )


RULE = Rule(NAME, find)
