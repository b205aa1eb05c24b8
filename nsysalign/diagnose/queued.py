"""What the rules about waiting behind other work share: the time of one kind of queueing, and whom it waited for."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds
from nsysalign.diagnose.facts import Case, Facts, rows_of


def waits(facts: Facts, *kinds: str) -> Iterator[tuple[Case, str, int, int, bool]]:
    """(case, severity, ns waited, stream waited for, inferred) of labels that wait this way."""
    rows = facts.detail_rows("queued", names=kinds)
    ns = facts.detail_ns(rows)
    for case in facts.cases(facts.share(ns) >= thresholds.SAY_SHARE):
        mine = rows_of(rows, case.row)
        severity = "warning" if ns[case.row] > thresholds.WARN_SHARE * facts.elapsed[case.row] else "info"
        yield (
            case,
            severity,
            int(ns[case.row]),
            int(mine["stream"].iloc[0]),
            bool((mine["detail"] == "dependency-inferred").any()),
        )
