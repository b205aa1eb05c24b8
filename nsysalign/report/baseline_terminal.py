"""The run without nsys in a terminal: both numbers per label, the prediction, and the budget scaled back.

label     intervals  under nsys  without  inflation     predicted  error
                             us       us                       us
small50          20      351.34   268.90       1.31  255 ±52   -5 %
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsysalign.model import Analysis
from nsysalign.report.baseline_rows import (
    HEADS,
    MEANING,
    BaselineRow,
    baseline_rows,
    budget_text,
    cells,
    gap_text,
)
from nsysalign.text import middle, plural, safe_text

if TYPE_CHECKING:
    from rich.console import Console

#: Gaps and budgets printed; the page and analysis.json have all.
_MOST_LINES = 6


def render(analysis: Analysis, console: Console, *, max_labels: int | None = 60) -> None:
    """Print the section; nothing if there was no run without nsys."""
    from rich.text import Text

    rows = baseline_rows(analysis)
    if not rows:
        return
    console.print()
    console.print(Text("With and without nsys (us)", "bold"))
    _table(rows[:max_labels], console)
    if len(rows) > len(rows[:max_labels]):
        console.print(
            Text(f"  … {plural(len(rows) - len(rows[:max_labels]), 'more label')} in the report", "dim")
        )
    console.print(Text(MEANING, "dim"))
    for row in rows:
        if row.remark:
            console.print(Text(f"  {safe_text(row.label)}: {safe_text(row.remark)}", "yellow"))
    _lines("Time between the intervals, in which nothing was timed, without nsys:", rows, gap_text, console)
    inflated = sorted((r for r in rows if r.budget), key=lambda r: -r.inflation)
    _lines("Predicted budgets without nsys, of the interval in each row:", inflated, budget_text, console)


def _lines(head: str, rows: list[BaselineRow], text: Callable[[BaselineRow], str], console: Console) -> None:
    """A heading and a line per row with a remark; the page and analysis.json have all."""
    from rich.table import Table
    from rich.text import Text

    telling = [(row.label, said) for row in rows if (said := text(row))]
    if telling:
        console.print(Text(head))
    for label, said in telling[:_MOST_LINES]:
        grid = Table.grid(padding=(0, 1, 0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(middle(safe_text(label), 24)), Text(said))
        console.print(grid)
    if len(telling) > _MOST_LINES:
        console.print(Text(f"  … and {len(telling) - _MOST_LINES} more in the report", "dim"))


def _table(rows: list[BaselineRow], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    numbers = [cells(row) for row in rows]
    needed = sum(max(len(head), *(len(n[k]) for n in numbers)) + 2 for k, head in enumerate(HEADS[1:]))
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="")
    grid.add_column(HEADS[0], no_wrap=True)
    for head in HEADS[1:]:
        grid.add_column(head, justify="right", no_wrap=True)
    room = max(8, console.width - needed - 2)
    for row, values in zip(rows, numbers, strict=True):
        grid.add_row(Text(middle(safe_text(row.label), room)), *map(Text, values))
    console.print(grid)
