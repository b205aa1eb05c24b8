"""A memset, or a fill as large as an L2 flush, runs inside the interval beside the work."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "memset-inside"


def find(facts: Facts) -> Iterator[Finding]:
    spent = facts.part("memset")
    share = facts.share(spent)
    rows = facts.detail_rows("memset")
    size = facts.detail_ns(rows, "bytes")
    for case in facts.cases(facts.on_stream & (facts.kernel_upper > 0) & (share >= thresholds.SAY_SHARE)):
        at = case.row
        warn = share[at] > thresholds.WARN_SHARE
        yield Finding(
            NAME,
            "warning" if warn else "info",
            case.label,
            f"{words.subject(case.label)} contains a memset: {words.of(spent[at], facts.elapsed[at])} are spent clearing memory (zeroing, or an L2 flush "
            "that belongs before the start event).",
            evidence(
                memset_ns=spent[at],
                memset_share=share[at],
                set_bytes=int(size[at]) or None,
                kernel_ns=facts.kernel_upper[at],
                seen_in=case.frequency,
            ),
            "Flush or clear before the start event:   flush.zero_(); start.record()",
            case.site,
            case.positions,
            float(spent[at]),
        )
    yield from _fills(facts, share)


def _fills(facts: Facts, memset_share: np.ndarray) -> Iterator[Finding]:
    """`tensor.zero_()` is a kernel: looked for in the rows of labels with several operations."""
    rows = facts.row[(facts.row >= 0) & (facts.label_count > 0)]
    rows = rows[
        facts.on_stream[rows]
        & (facts.operations[rows] >= 2)
        & (facts.operations[rows] < thresholds.MANY_OPERATIONS)
    ]
    rows = rows[memset_share[rows] < thresholds.SAY_SHARE]
    segments = facts.segments(rows)
    kernels = np.flatnonzero(segments.of_cause("kernel"))
    fill = (
        kernels[["FillFunctor" in str(name) for name in segments.details(kernels).tolist()]]
        if len(kernels)
        else kernels
    )
    ns, total = np.zeros(facts.count, np.int64), facts.kernel_only
    np.add.at(ns, segments.at[fill], segments.ns[fill])
    mask = (facts.share(ns) > thresholds.WARN_SHARE) & (ns < 0.98 * total)
    for case in facts.cases(mask, at_least=0):
        at = case.row
        yield Finding(
            NAME,
            "warning",
            case.label,
            f"{words.subject(case.label)} contains a fill: {words.of(ns[at], facts.elapsed[at])} are spent writing a constant (zeroing, or an L2 flush that "
            "belongs before the start event).",
            evidence(fill_ns=ns[at], fill_share=facts.share(ns)[at], other_kernels_ns=total[at] - ns[at]),
            "Flush or clear before the start event:   flush.zero_(); start.record()",
            case.site,
            facts.repetitions(int(facts.label[at])),
            float(ns[at]),
        )


RULE = Rule(NAME, find)
