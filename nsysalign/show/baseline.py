"""The profiled run and the run without nsys as plain rows, on the page and in the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from nsysalign.model import CAUSES, Analysis
from nsysalign.show.palette import LOOKS
from nsysalign.show.rows import in_a_word
from nsysalign.text import fixed, middle, plural, safe_text, within

if TYPE_CHECKING:  # the page, which needs the rows, is often written without a word in the terminal
    from rich.console import Console

#: A label's budget without nsys is shown from this inflation on.
INFLATED = 1.10
HEADS = ("label", "intervals", "under nsys", "without", "inflation", "predicted", "error")
MEANING = (
    "Means of the middle half of the intervals; the probe was active in both runs. Predicted: the time without nsys, "
    "computed from the profiled trace alone, with its error bar. Error: the prediction against the measurement."
)


class BaselineRow(NamedTuple):
    """A label of either run: its row of `frames.BASELINE`, and the budget without nsys of the
    interval in its row."""

    both: Any
    budget: list[tuple[str, int]]  # (cause, ns), largest first; [] if little changes
    budget_ns: int  # their exact sum: the prediction for that one interval


def baseline_rows(analysis: Analysis) -> list[BaselineRow]:
    """One per label of either run, in the analysis' order."""
    shown = dict(analysis.labels[["label", "row_interval"]].itertuples(index=False))
    parts = analysis.unprofiled_parts
    rows = []
    for both in analysis.baseline.itertuples(index=False):
        own = parts[parts["interval"] == shown.get(both.label, -1)]
        budget = sorted(
            zip(own["cause"].tolist(), own["ns"].tolist(), strict=True), key=lambda p: -p[1]
        )
        rows.append(
            BaselineRow(both, budget if both.inflation >= INFLATED else [], int(own["ns"].sum()))
        )
    return rows


def cells(row: BaselineRow) -> tuple[str, ...]:
    """The numbers of HEADS from `intervals` on, as text."""
    r = row.both
    under, without = r.profiled_count, r.baseline_count
    bounds = r.predicted_lower_ns, r.predicted_upper_ns
    known = not math.isnan(r.predicted_ns)
    outside = r.baseline_ns < bounds[0] or r.baseline_ns > bounds[1]
    return (
        str(under) if under == without else f"{under}/{without}",
        fixed(r.profiled_ns),
        fixed(r.baseline_ns),
        "-" if math.isnan(r.inflation) else f"{r.inflation:.2f}",
        within(r.predicted_ns, *bounds, 1_000) if known else _why(r),
        "-" if math.isnan(r.error) else f"{round(100 * r.error):+d} %" + (" !" if outside else ""),
    )


def _why(both: Any) -> str:
    """Instead of a prediction: "-" where there is nothing to predict, else the reason's word, which
    the remark begins with."""
    _, there, reason = str(both.remark).partition("no prediction: ")
    return in_a_word(reason) if there else "-"


def budget_text(row: BaselineRow) -> str:
    """The budget scaled back, largest part first: "255 us: launch 104, host 61.2, kernel 45.0"; ''
    where little changes."""
    if not row.budget:
        return ""
    parts = ", ".join(
        f"{LOOKS[cause].short} {fixed(ns)}" for cause, ns in row.budget if cause in CAUSES
    )
    return f"{fixed(row.budget_ns)} us: {parts}"


def page_table(analysis: Analysis) -> dict[str, Any]:
    """The page's table, with words on each row at its end; without rows if there was no run without
    nsys."""
    units = {"under nsys": " us", "without": " us", "predicted": " us"}
    rows = [
        [row.both.label, *cells(row), "; ".join(filter(None, (budget_text(row), row.both.remark)))]
        for row in baseline_rows(analysis)
    ]
    return {
        "heads": [*(head + units.get(head, "") for head in HEADS), "predicted budget without nsys"],
        "rows": [[safe_text(text) for text in row] for row in rows],
        "note": f"{MEANING} An error marked ! is larger than its bar.",
    }


#: Budgets printed; the page and analysis.json have all.
_MOST_LINES = 6


def render(analysis: Analysis, console: Console, *, max_labels: int | None = 60) -> None:
    """Print the section; nothing if there was no run without nsys.

    label     intervals  under nsys  without  inflation     predicted  error
                                 us       us                       us
    small50          20      351.34   268.90       1.31  255 ±52   -5 %
    """
    from rich.table import Table
    from rich.text import Text

    rows = baseline_rows(analysis)
    if not rows:
        return
    console.print()
    console.print(Text("With and without nsys (us)", "bold"))
    _table(rows[:max_labels], console)
    if len(rows) > len(rows[:max_labels]):
        console.print(
            Text(
                f"  … {plural(len(rows) - len(rows[:max_labels]), 'more label')} in the report",
                "dim",
            )
        )
    console.print(Text(MEANING, "dim"))
    for row in rows:
        if row.both.remark:
            console.print(
                Text(f"  {safe_text(row.both.label)}: {safe_text(row.both.remark)}", "yellow")
            )
    inflated = sorted((r for r in rows if r.budget), key=lambda r: -r.both.inflation)
    if inflated:
        console.print("Predicted budgets without nsys, of the interval in each row:")
    for row in inflated[:_MOST_LINES]:
        grid = Table.grid(padding=(0, 1, 0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(middle(safe_text(row.both.label), 24)), Text(budget_text(row)))
        console.print(grid)
    if len(inflated) > _MOST_LINES:
        console.print(Text(f"  … and {len(inflated) - _MOST_LINES} more in the report", "dim"))


def _table(rows: list[BaselineRow], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    numbers = [cells(row) for row in rows]
    needed = sum(
        max(len(head), *(len(n[k]) for n in numbers)) + 2 for k, head in enumerate(HEADS[1:])
    )
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="")
    grid.add_column(HEADS[0], no_wrap=True)
    for head in HEADS[1:]:
        grid.add_column(head, justify="right", no_wrap=True)
    room = max(8, console.width - needed - 2)
    for row, values in zip(rows, numbers, strict=True):
        grid.add_row(Text(middle(safe_text(row.both.label), room)), *map(Text, values))
    console.print(grid)
