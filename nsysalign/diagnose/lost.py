"""Shared by rules about intervals that could not be placed: one finding per label, from `analysis.unaligned`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from nsysalign.diagnose.facts import Facts
from nsysalign.diagnose.finding import About


@dataclass(frozen=True, kw_only=True)
class Lost(About):
    """Intervals of a label, and why they have no place."""

    count: int
    reason: str


def unplaced(facts: Facts, pattern: str) -> Iterator[Lost]:
    """Intervals that could not be placed for a matching reason, by label."""
    table = facts.analysis.unaligned
    if table.empty:
        return
    matches = re.compile(pattern, re.IGNORECASE).search
    hit = table[[matches(str(reason)) is not None for reason in table["reason"].tolist()]]
    for label, rows in hit.groupby("label", sort=False):
        reason = str(rows["reason"].iloc[0])
        yield Lost(str(label), str(rows["site"].iloc[0]), count=len(rows), reason=reason)
