"""What rules about intervals that could not be placed share: one finding per label, from `analysis.unaligned`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nsysalign.diagnose.facts import Facts


def unplaced(facts: Facts, pattern: str) -> Iterator[tuple[str, str, int, str]]:
    """(label, site, how many, reason) of what could not be placed for a reason that matches."""
    table = facts.analysis.unaligned
    if table.empty:
        return
    matches = re.compile(pattern, re.IGNORECASE).search
    hit = table[[matches(str(reason)) is not None for reason in table["reason"].tolist()]]
    for label, rows in hit.groupby("label", sort=False):
        yield str(label), str(rows["site"].iloc[0]), len(rows), str(rows["reason"].iloc[0])
