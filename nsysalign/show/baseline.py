"""The profiled run beside the run without nsys, as texts for the page and the terminal."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from rich.console import Console

from nsysalign.answer import in_a_word
from nsysalign.model import Analysis
from nsysalign.parts import DISPLAY
from nsysalign.show import table
from nsysalign.text import fixed, safe_text, within
from nsysalign.unprofiled_run import CPU_BOUND, GPU_BOUND

#: What the log proves of a label, in words.
LIMITS = {GPU_BOUND: "GPU-bound", CPU_BOUND: "CPU-bound"}
#: A label's breakdown without nsys is shown from this inflation on.
INFLATED = 1.10
HEADS = ("label", "intervals", "profiled", "unprofiled", "inflation", "estimate", "error")
MEANING = (
    "Means of the middle half of the intervals; the probe was active in both runs. Estimate: the "
    "unprofiled time, computed from the profiled trace alone, with its error bar. Error: the "
    "estimate against the measurement."
)


class Row(NamedTuple):
    """A label of either run."""

    label: str
    cells: tuple[str, ...]  # of HEADS from `intervals` on
    #: Largest part first: "255 us: launch call 104, CPU 61.2"; '' where little changes.
    budget: str
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
            pairs = own[["cause", "ns"]].itertuples(index=False)
            named = [f"{DISPLAY[cause]} {fixed(ns)}" for cause, ns in pairs if cause in DISPLAY]
            budget = f"{fixed(int(own['ns'].sum()))} us: {', '.join(named)}" if named else ""
        under, without = LIMITS.get(both.profiled_verdict), LIMITS.get(both.baseline_verdict)
        limits = f"profiled: {under}; unprofiled: {without}" if under and without else ""
        limits = f"{under} in both runs" if limits and under == without else limits
        remark = "; ".join(filter(None, (limits, safe_text(both.remark))))
        found.append(Row(safe_text(both.label), _cells(both), budget, remark))
    return found


def _cells(both: Any) -> tuple[str, ...]:  # a row of frames.BASELINE
    under, without = both.profiled_count, both.baseline_count
    bounds = both.predicted_lower_ns, both.predicted_upper_ns
    _, there, reason = str(both.remark).partition("no prediction: ")
    predicted = in_a_word(reason) if there else "-"
    if not math.isnan(both.predicted_ns):
        predicted = within(both.predicted_ns, *bounds, 1_000)
    error = "-"
    if not math.isnan(both.error):
        outside = both.baseline_ns < bounds[0] or both.baseline_ns > bounds[1]
        error = f"{round(100 * both.error):+d} %" + (" !" if outside else "")
    return (
        str(under) if under == without else f"{under}/{without}",
        fixed(both.profiled_ns),
        fixed(both.baseline_ns),
        "-" if math.isnan(both.inflation) else f"{both.inflation:.2f}",
        predicted,
        error,
    )


def draw(rows: list[Row], console: Console) -> None:
    """The table in the terminal, microseconds."""
    leaves = {"error": 3, "inflation": 2, "intervals": 1}
    columns = [table.text("label", [row.label for row in rows])]
    for number, head in enumerate(HEADS[1:]):
        cells = [row.cells[number] for row in rows]
        columns.append(table.Column(head, cells, leaves=leaves.get(head)))
    table.draw(columns, console)


def page_table(analysis: Analysis) -> dict[str, Any]:
    """The page's table, with words on each row at its end; without rows if there was no run without
    nsys."""
    times = ("profiled", "unprofiled", "estimate")
    heads = [f"{head} us" if head in times else head for head in HEADS]
    return {
        "heads": [*heads, "estimated breakdown without nsys"],
        "rows": [
            [row.label, *row.cells, "; ".join(filter(None, (row.budget, row.remark)))]
            for row in rows(analysis)
        ],
        "note": f"{MEANING} An error marked ! is larger than its bar.",
    }
