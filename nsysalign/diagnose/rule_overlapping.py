"""Intervals of one label and process that overlap: their sum counts time twice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from nsysalign.diagnose import words
from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import Finding, Rule, evidence

NAME = "overlapping"


def find(facts: Facts) -> Iterator[Finding]:
    order, _ = facts.by_time
    order = order[facts.on_stream[order] & (facts.label[order] < len(facts.labels))]
    if len(order) < 2:
        return
    stream = facts.analysis.intervals["end_stream"].to_numpy()
    order = order[np.lexsort((facts.start[order], stream[order], facts.pid[order], facts.label[order]))]
    start, end = facts.start[order], facts.end[order]
    same = np.zeros(len(order), dtype=bool)
    for key in (facts.label, facts.pid, stream):
        same[1:] |= key[order][1:] != key[order][:-1]
    group = np.cumsum(same)
    reach = (
        pd.Series(end)
        .groupby(group)
        .cummax()
        .groupby(group)
        .shift(1)
        .fillna(np.iinfo(np.int64).min)
        .to_numpy()
        .astype(np.int64)
    )
    twice = np.where(reach > start, np.minimum(reach, end) - start, 0)
    # neighbours that share a record touch; a placement error is not an overlap
    error = facts.analysis.intervals["error_ns"].to_numpy()[order]
    mask = np.zeros(facts.count, dtype=bool)
    mask[order] = twice > 2 * error + 1_000
    counted = np.zeros(facts.count, np.int64)
    counted[order] = twice
    for case in facts.cases(mask, at_least=0):
        mine = facts.repetitions(int(facts.label[case.row]))
        total, double = int(facts.elapsed[mine].sum()), int(counted[case.positions].sum())
        yield Finding(
            NAME,
            "info",
            case.label,
            f"{words.subject(case.label)}: its intervals overlap; added up, {words.of(double, total)} would "
            "be counted twice.",
            evidence(sum_ns=total, counted_twice_ns=double, overlapping=len(case.positions)),
            "Use either the parts or the whole, not both:   total = first.elapsed_time(last)",
            case.site,
            case.positions,
            float(double),
            about_row=False,
        )


RULE = Rule(NAME, find)
