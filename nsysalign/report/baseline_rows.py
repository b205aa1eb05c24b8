"""The profiled run and the run without nsys as plain rows, shared by terminal and page."""

from __future__ import annotations

import math
from dataclasses import dataclass

from nsysalign.model import CAUSES, Analysis
from nsysalign.report.palette import LOOKS
from nsysalign.report.table import within
from nsysalign.text import fixed

#: A label's budget without nsys is shown from this inflation on.
INFLATED = 1.10
HEADS = ("label", "intervals", "under nsys", "without", "inflation", "predicted", "error")
MEANING = (
    "Means of the middle half of the intervals; the probe was active in both runs. Predicted: the time without nsys, "
    "computed from the profiled trace alone, with its error bar. Error: the prediction against the measurement."
)


@dataclass(frozen=True)
class BaselineRow:
    label: str
    site: str
    counts: str  # "20" or "20/18": under nsys, without
    profiled_ns: float
    baseline_ns: float
    inflation: float
    predicted_ns: float
    lower_ns: float
    upper_ns: float
    error: float
    remark: str
    gap_profiled_ns: float
    gap_baseline_ns: float
    budget: tuple[
        tuple[str, int], ...
    ]  # (cause, ns) of its row without nsys, largest first; () if little changes
    budget_ns: int  # their exact sum: the prediction for that one interval

    @property
    def outside(self) -> bool:
        """The measured number lies outside the prediction's error bar."""
        return self.baseline_ns < self.lower_ns or self.baseline_ns > self.upper_ns


def baseline_rows(analysis: Analysis) -> list[BaselineRow]:
    """One per label of either run, in the analysis' order."""
    shown = dict(analysis.labels[["label", "row_interval"]].itertuples(index=False))
    parts = analysis.unprofiled_parts
    rows = []
    for row in analysis.baseline.itertuples(index=False):
        own = parts[parts["interval"] == shown.get(row.label, -1)]
        budget = sorted(zip(own["cause"].tolist(), own["ns"].tolist(), strict=True), key=lambda p: -p[1])
        rows.append(
            BaselineRow(
                label=str(row.label),
                site=str(row.site),
                counts=str(row.profiled_count)
                if row.profiled_count == row.baseline_count
                else f"{row.profiled_count}/{row.baseline_count}",
                profiled_ns=row.profiled_ns,
                baseline_ns=row.baseline_ns,
                inflation=row.inflation,
                predicted_ns=row.predicted_ns,
                lower_ns=row.predicted_lower_ns,
                upper_ns=row.predicted_upper_ns,
                error=row.error,
                remark=str(row.remark),
                gap_profiled_ns=row.gap_profiled_ns,
                gap_baseline_ns=row.gap_baseline_ns,
                budget=tuple(budget) if row.inflation >= INFLATED else (),
                budget_ns=int(own["ns"].sum()),
            )
        )
    return rows


def cells(row: BaselineRow, unit_ns: int = 1_000, decimals: int = 2) -> tuple[str, ...]:
    """The numbers of HEADS from `runs` on, as text."""
    known = not math.isnan(row.predicted_ns)
    predicted = within(row.predicted_ns, row.lower_ns, row.upper_ns, unit_ns) if known else "?"
    return (
        row.counts,
        fixed(row.profiled_ns, unit_ns=unit_ns, decimals=decimals),
        fixed(row.baseline_ns, unit_ns=unit_ns, decimals=decimals),
        "?" if math.isnan(row.inflation) else f"{row.inflation:.2f}",
        predicted,
        "?" if math.isnan(row.error) else f"{round(100 * row.error):+d} %" + (" !" if row.outside else ""),
    )


def budget_text(row: BaselineRow) -> str:
    """The budget scaled back, largest part first: "255 us: launch 104, host 61.2, kernel 45.0"."""
    parts = ", ".join(f"{LOOKS[cause].short} {fixed(ns)}" for cause, ns in row.budget if cause in CAUSES)
    return f"{fixed(row.budget_ns)} us: {parts}"


def gap_text(row: BaselineRow) -> str:
    """How long nothing was timed before the label's intervals; '' if that is not known for the run without nsys."""
    if math.isnan(row.gap_baseline_ns):
        return ""
    under = "" if math.isnan(row.gap_profiled_ns) else f" ({fixed(row.gap_profiled_ns)} under nsys)"
    return f"{fixed(row.gap_baseline_ns)} us since the interval before{under}"
