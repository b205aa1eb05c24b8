"""The run without nsys in a terminal: both numbers per label, the prediction, and the budget scaled back.

label     intervals  under nsys  without  inflation     predicted  error
                             us       us                       us
small50          20      351.34   268.90       1.31  254.78 ± 52.0   -5 %
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysalign.model import Analysis
from nsysalign.report.beside import HEADS, MEANING, BesideRow, beside_rows, budget_text, cells
from nsysalign.text import middle, plural, safe_text

if TYPE_CHECKING:
    from rich.console import Console

#: Budgets printed; the page and analysis.json have all.
_MOST_BUDGETS = 6


def render(analysis: Analysis, console: Console, *, max_labels: int | None = 60) -> None:
    """Print the section; nothing where there was no run without nsys."""
    from rich.table import Table
    from rich.text import Text

    rows = beside_rows(analysis)
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
    inflated = sorted((r for r in rows if r.budget), key=lambda r: -r.inflation)
    if inflated:
        console.print(Text("Predicted budgets without nsys, of the interval in each row:"))
    for row in inflated[:_MOST_BUDGETS]:
        grid = Table.grid(padding=(0, 1, 0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(middle(safe_text(row.label), 24)), Text(budget_text(row)))
        console.print(grid)
    if len(inflated) > _MOST_BUDGETS:
        console.print(Text(f"  … and {len(inflated) - _MOST_BUDGETS} more in the report", "dim"))


def _table(rows: list[BesideRow], console: Console) -> None:
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
