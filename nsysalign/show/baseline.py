"""The profiled run beside the run without nsys, as texts for the page and the terminal."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from nsysalign.answer import in_a_word
from nsysalign.model import Analysis
from nsysalign.parts import SHORT
from nsysalign.text import fixed, safe_text, within
from nsysalign.unprofiled_run import CPU_BOUND, GPU_BOUND

#: What the log proves of a label, in words.
LIMITS = {GPU_BOUND: "GPU-bound", CPU_BOUND: "CPU-bound"}

#: A label's breakdown without nsys is shown from this inflation on.
INFLATED = 1.10
HEADS = ("label", "intervals", "under nsys", "without", "inflation", "predicted", "error")
MEANING = (
    "Means of the middle half of the intervals; the probe was active in both runs. Predicted: the "
    "time without nsys, computed from the profiled trace alone, with its error bar. Error: the "
    "prediction against the measurement."
)


class Row(NamedTuple):
    """A label of either run."""

    label: str
    cells: tuple[str, ...]  # of HEADS from `intervals` on
    #: Largest part first: "255 us: launch 104, host 61.2, kernel 45.0"; '' where little changes.
    budget: str
    inflation: float
    remark: str


def rows(analysis: Analysis) -> list[Row]:
    """One per label of either run, in the analysis' order; none if there was no run without
    nsys."""
    shown = dict(analysis.labels[["label", "row_interval"]].itertuples(index=False))
    parts = analysis.unprofiled_parts
    found = []
    for both in analysis.baseline.itertuples(index=False):
        budget = ""
        if both.inflation >= INFLATED:
            own = parts[parts["interval"] == shown.get(both.label, -1)]
            own = own.sort_values("ns", ascending=False, kind="stable")
            named = [f"{SHORT[c]} {fixed(ns)}" for c, ns in own[["cause", "ns"]].itertuples(index=False) if c in SHORT]  # fmt: skip
            budget = f"{fixed(int(own['ns'].sum()))} us: {', '.join(named)}" if named else ""
        remark = "; ".join(filter(None, (_limits(both), safe_text(both.remark))))
        label = safe_text(both.label)
        found.append(Row(label, _cells(both), budget, both.inflation, remark))
    return found


def _limits(both: Any) -> str:
    """Who limits a label in either run, as far as the logs prove it of both."""
    under, without = LIMITS.get(both.profiled_verdict), LIMITS.get(both.baseline_verdict)
    if not under or not without:
        return ""
    if under == without:
        return f"{under} in both runs"
    return f"profiled: {under}; unprofiled: {without}"


def _cells(both: Any) -> tuple[str, ...]:  # a row of frames.BASELINE
    under, without = both.profiled_count, both.baseline_count
    bounds = both.predicted_lower_ns, both.predicted_upper_ns
    _, there, reason = str(both.remark).partition("no prediction: ")
    predicted = in_a_word(reason) if there else "-"
    if not math.isnan(both.predicted_ns):
        predicted = within(both.predicted_ns, *bounds, 1_000)
    outside = both.baseline_ns < bounds[0] or both.baseline_ns > bounds[1]
    error = "-"
    if not math.isnan(both.error):
        error = f"{round(100 * both.error):+d} %" + (" !" if outside else "")
    return (
        str(under) if under == without else f"{under}/{without}",
        fixed(both.profiled_ns),
        fixed(both.baseline_ns),
        "-" if math.isnan(both.inflation) else f"{both.inflation:.2f}",
        predicted,
        error,
    )


def page_table(analysis: Analysis) -> dict[str, Any]:
    """The page's table, with words on each row at its end; without rows if there was no run without
    nsys."""
    times = ("under nsys", "without", "predicted")
    heads = [f"{head} us" if head in times else head for head in HEADS]
    return {
        "heads": [*heads, "predicted budget without nsys"],
        "rows": [
            [row.label, *row.cells, "; ".join(filter(None, (row.budget, row.remark)))]
            for row in rows(analysis)
        ],
        "note": f"{MEANING} An error marked ! is larger than its bar.",
    }
