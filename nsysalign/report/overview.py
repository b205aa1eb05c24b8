"""The run in one sentence: how long it was and what its time went into."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nsysalign.model import CAUSES, OPERATION_KINDS, Analysis
from nsysalign.report.palette import LOOKS
from nsysalign.report.rows import LabelRow
from nsysalign.text import duration, percent, plural

#: The kind of interval that stands for a whole run; its labels are no labels of the user's.
RUN = "run"
#: Causes that the sentence names, beside the work.
MOST_NAMED = 4


def headline(analysis: Analysis, rows: Sequence[LabelRow], matrix: np.ndarray) -> dict[str, Any]:
    """{"text", "parts": ns by cause, "elapsed", "of"}: of the run as a whole where the analysis has it, else of all intervals
    of the user's own code together.

    `rows`: the labels shown; `matrix`: parts of every interval by cause.
    """
    intervals = analysis.intervals
    elapsed, kinds = intervals["elapsed_ns"].to_numpy(), intervals["kind"].to_numpy(dtype=object)
    own = set(row.label for row in rows if not row.library) or {row.label for row in rows}
    whole = np.flatnonzero(kinds == RUN)
    whole = whole[[elapsed[whole].argmax()]] if len(whole) else whole
    # Of a trace that was cut from a longer one most of the run is unknown: its intervals say more.
    if len(whole) and own and matrix[whole[0], CAUSES.index("unknown")] > elapsed[whole[0]] / 2:
        whole = whole[:0]
    chosen = whole if len(whole) else np.flatnonzero(intervals["label"].isin(own).to_numpy())
    parts, total = matrix[chosen].sum(axis=0), int(elapsed[chosen].sum())
    count = int(np.isin(intervals["label"].to_numpy(dtype=object), list(own)).sum())
    counted = f"{plural(count, 'interval')} in {plural(len(own), 'label')}"
    of = (
        f"The run took {duration(total)} under nsys"
        if len(whole)
        else f"{counted}, {duration(total)} under nsys"
    )
    text = (
        f"{of}: {_shares(dict(zip(CAUSES, parts.tolist(), strict=True)), total)}."
        if total
        else "Nothing was measured."
    )
    return {
        "text": text + (f" {counted}." if len(whole) and count else ""),
        "parts": {cause: int(ns) for cause, ns in zip(CAUSES, parts, strict=True)},
        "elapsed": total,
        "of": "the run" if len(whole) else "all intervals together",
    }


def _shares(parts: dict[str, int], total: int) -> str:
    busy = sum(parts[cause] for cause in OPERATION_KINDS)
    idle = sorted(
        ((ns, c) for c, ns in parts.items() if c not in OPERATION_KINDS and ns >= 0.01 * total), reverse=True
    )
    return ", ".join(
        [
            f"GPU busy {percent(busy / total)}",
            *(f"{LOOKS[c].short} {percent(ns / total)}" for ns, c in idle[:MOST_NAMED]),
        ]
    )
