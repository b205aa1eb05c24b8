"""Memory is allocated or freed inside the interval, and the GPU waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import ALLOCATION_CALLS, Facts, rows_of
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "allocation-inside"


def find(facts: Facts) -> Iterator[Finding]:
    spent = facts.allocating
    said = (facts.share(spent) >= thresholds.ALLOCATION_SAY_SHARE) & (spent >= thresholds.ALLOCATION_SAY_NS)
    rows = facts.detail_rows("api", ALLOCATION_CALLS)
    for case in facts.cases((facts.on_stream | facts.is_host) & said):
        at = case.row
        mine = rows_of(rows, at)
        warn = spent[at] > thresholds.WARN_SHARE * facts.elapsed[at]
        yield Finding(
            NAME,
            "warning" if warn else "info",
            case.label,
            f"{words.subject(case.label)} allocates inside: for {words.of(spent[at], facts.elapsed[at])} the GPU waited for {mine['detail'].iloc[0]}.",
            evidence(
                allocation_ns=spent[at],
                allocation_share=spent[at] / max(facts.elapsed[at], 1),
                calls=", ".join(
                    f"{d} {words.span(n)}"
                    for d, n in zip(mine["detail"].head(3), mine["ns"].head(3), strict=True)
                ),
                kernel_ns=facts.kernel_upper[at],
                seen_in=case.frequency,
            ),
            "Allocate before the start event, or run once so that torch's allocator keeps the memory:   out = torch.empty_like(x); "
            "f(x, out=out); torch.cuda.synchronize(); start.record()",
            case.site,
            case.positions,
            float(spent[at]),
        )


RULE = Rule(NAME, find)
