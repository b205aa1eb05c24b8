"""What rules about intervals that could not be placed share: one finding per label, from `analysis.unaligned`."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from nsysalign.diagnose.facts import Facts


def unplaced(facts: Facts, pattern: str) -> Iterator[tuple[str, str, int, str]]:
    """(label, site, how many, reason) of what could not be placed for a reason that matches."""
    table = facts.analysis.unaligned
    if table.empty:
        return
    reasons = pd.Series(table["reason"].to_numpy(dtype=object)).astype(str)
    hit = table[reasons.str.contains(pattern, case=False, regex=True).to_numpy(dtype=bool)]
    for label, rows in hit.groupby("label", sort=False):
        yield str(label), str(rows["site"].iloc[0]), len(rows), str(rows["reason"].iloc[0])
