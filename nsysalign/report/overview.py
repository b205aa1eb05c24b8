"""The run in one sentence: how long it took and where its time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nsysalign.model import CAUSES, Analysis
from nsysalign.report.palette import LOOKS
from nsysalign.report.rows import LabelRow
from nsysalign.report.verdict import WORK
from nsysalign.text import duration, percent, plural

#: The kind of interval that stands for a whole run; its labels are not the user's.
RUN = "run"
#: Causes that the sentence names, besides the work.
MOST_NAMED = 4
#: Where the intervals cover less of the run than this share, the sentence says that the rest was not timed.
UNTIMED = 0.9


def headline(analysis: Analysis, rows: Sequence[LabelRow], matrix: np.ndarray) -> dict[str, Any]:
    """{"text", "parts": ns by cause, "elapsed", "of"}: of the run as a whole if the analysis has it, else of all intervals of
    the user's own code together.

    `rows`: the labels shown; `matrix`: parts of every interval by cause.
    """
    intervals = analysis.intervals
    elapsed, kinds = intervals["elapsed_ns"].to_numpy(), intervals["kind"].to_numpy(dtype=object)
    own = set(row.label for row in rows if not row.library) or {row.label for row in rows}
    whole = np.flatnonzero(kinds == RUN)
    whole = whole[[elapsed[whole].argmax()]] if len(whole) else whole
    # If a trace was cut from a longer one, most of the run is unknown: its intervals say more.
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
        "text": text + (_coverage(analysis, own, int(whole[0]), counted) if len(whole) and count else ""),
        "parts": {cause: int(ns) for cause, ns in zip(CAUSES, parts, strict=True)},
        "elapsed": total,
        "of": "the run" if len(whole) else "all intervals together",
    }


def _coverage(analysis: Analysis, own: set[str], run: int, counted: str) -> str:
    """How much of the run the user's intervals cover: findings are not about the rest."""
    start, elapsed = (analysis.intervals[column].to_numpy() for column in ("start_ns", "elapsed_ns"))
    mine = np.flatnonzero(analysis.intervals["label"].isin(own).to_numpy())
    mine = mine[np.argsort(start[mine], kind="stable")]
    low, high = start[run], start[run] + elapsed[run]
    begin, end = (np.clip(at, low, high) for at in (start[mine], start[mine] + elapsed[mine]))
    before = np.concatenate([[low], np.maximum.accumulate(end)[:-1]])  # until when others cover it already
    covered, whole = int(np.maximum(end - np.maximum(begin, before), 0).sum()), int(elapsed[run])
    if not covered:  # all of them are in other processes
        return f" {counted}."
    rest = "; the rest was not timed" if covered < UNTIMED * whole else ""
    verb = "covers" if counted.startswith("1 ") else "cover"
    return f" {counted} {verb} {duration(covered)} of it ({percent(covered / max(whole, 1))}){rest}."


def _shares(parts: dict[str, int], total: int) -> str:
    busy = sum(parts[cause] for cause in WORK)
    idle = sorted(((ns, c) for c, ns in parts.items() if c not in WORK and ns >= 0.01 * total), reverse=True)
    return ", ".join(
        [
            f"GPU busy {percent(busy / total)}",
            *(f"{LOOKS[c].short} {percent(ns / total)}" for ns, c in idle[:MOST_NAMED]),
        ]
    )
