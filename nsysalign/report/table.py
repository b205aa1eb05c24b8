"""The label table of the terminal: which columns fit, then the drawing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nsysalign.report.palette import LOOKS
from nsysalign.report.rows import LabelRow, causes_present
from nsysalign.text import fixed, middle, safe_text

if TYPE_CHECKING:
    from rich.console import Console

#: A label needs this much before causes are folded into `other`.
LABEL_WIDTH = 18
GAP = 2


@dataclass(frozen=True)
class Column:
    head: str
    style: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        return max(len(self.head), *(len(cell) for cell in self.cells))


@dataclass(frozen=True)
class Layout:
    """Number columns that fit, and what had to be folded to make them fit."""

    unit: str
    columns: tuple[Column, ...]  # the measured time first
    folded: tuple[str, ...]  # causes inside the column `other`
    label_width: int


def layout(rows: Sequence[LabelRow], width: int) -> Layout:
    """Choose unit, decimals and columns for `width`: fewer decimals first, then the smallest causes fold."""
    unit, unit_ns, decimals = (
        ("ms", 1_000_000, 3) if min(row.elapsed_ns for row in rows) >= 1e6 else ("us", 1_000, 2)
    )
    # A graph's execution stands in the kernel column, marked `<=`: in a row of its own column it could only
    # be counted twice, and the row must add up.
    causes = [c for c in causes_present(list(rows)) if c != "graph"]
    if "kernel" not in causes:
        causes.insert(0, "kernel")
    weight = {c: max(row.parts_ns[c] / max(row.elapsed_ns, 1) for row in rows) for c in causes}
    by_weight = sorted((c for c in causes if c != "kernel"), key=weight.__getitem__)
    longest = max(len(label_text(row)) for row in rows)
    for fold in range(len(by_weight) + 1):
        if fold == 1 and len(by_weight) > 1:
            continue  # a single folded cause would take as much room as its own column
        for places in (decimals, decimals - 1):
            columns = _columns(rows, causes, by_weight[:fold], unit_ns, places)
            left = (
                width - sum(c.width + GAP for c in columns) - _count_width(rows) - GAP - _mark_width(rows) - 2
            )
            if left >= min(longest, LABEL_WIDTH):
                return Layout(unit, columns, tuple(by_weight[:fold]), min(left, longest))
    return Layout(unit, columns, tuple(by_weight), max(left, 8))


def _count_width(rows: Sequence[LabelRow]) -> int:
    return max(1, *(len(str(row.count)) for row in rows))


def _mark_width(rows: Sequence[LabelRow]) -> int:
    return GAP + 1 if any(row.findings for row in rows) else 0


def _columns(
    rows: Sequence[LabelRow], causes: Sequence[str], folded: Sequence[str], unit_ns: int, decimals: int
) -> tuple[Column, ...]:
    def cells(values: Sequence[int]) -> tuple[str, ...]:
        return tuple(fixed(value, unit_ns=unit_ns, decimals=decimals) for value in values)

    # Not "event", although it is what the event pair says: that is the name of a cause, too.
    columns = [Column("time", "bold", cells([row.elapsed_ns for row in rows]))]
    for cause in causes:
        if cause in folded:
            continue
        values = [row.parts_ns[cause] for row in rows]
        if cause == "kernel":
            texts = cells([row.parts_ns["kernel"] + row.parts_ns["graph"] for row in rows])
            texts = tuple(
                ("<=" if row.parts_ns["graph"] else "") + t for row, t in zip(rows, texts, strict=True)
            )
        else:
            texts = cells(values)
        columns.append(Column(LOOKS[cause].short, LOOKS[cause].terminal, texts))
    if folded:
        columns.append(Column("other", "", cells([sum(row.parts_ns[c] for c in folded) for row in rows])))
    return tuple(columns)


def label_text(row: LabelRow, width: int | None = None) -> str:
    """Label and call site, the site only where the label does not say it.

    In `width` the folders of the site go first, then the site, then the middle of the label.
    """
    label = safe_text(row.label)
    site = safe_text(row.site)
    if not site or site in label or site.replace(chr(92), "/").rpartition("/")[2] in label:
        return label if width is None else _shortened(label, width)
    texts = [f"{label} {site}", f"{label} {site.replace(chr(92), '/').rpartition('/')[2]}", label]
    return texts[0] if width is None else next((t for t in texts if len(t) <= width), middle(label, width))


def _shortened(label: str, width: int) -> str:
    """In `caller (site)` the caller tells labels of one site apart: it stays longest."""
    several = re.fullmatch(r"(.+) \((.+)\)", label)
    if several is None:
        return middle(label, width)
    caller, site = several.groups()
    texts = (label, f"{caller} (:{site.rpartition(':')[2]})", caller)
    return next((t for t in texts if len(t) <= width), middle(caller, width))


def render(rows: Sequence[LabelRow], console: Console) -> None:
    """Draw the table and its legend."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    plan = layout(rows, console.width)
    grid = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_edge=False, header_style="")
    grid.add_column("\n  label", no_wrap=True, width=plan.label_width + 2)
    grid.add_column("\nn", justify="right", no_wrap=True)
    for column in plan.columns:
        head = Text(f"{column.head}\n{plan.unit}")
        grid.add_column(head, justify="right", no_wrap=True, style=column.style, min_width=column.width)
    if _mark_width(rows):
        grid.add_column("", no_wrap=True)
    for number, row in enumerate(rows):
        cells = [Text("  " + label_text(row, plan.label_width)), Text(str(row.count))]
        # The dot of a zero recedes, so that the eye finds the numbers.
        cells += [Text(c.cells[number], "dim" if c.cells[number] == "." else "") for c in plan.columns]
        if _mark_width(rows):
            mark = Text("!", "bold yellow") if row.flagged else Text("i" if row.findings else "", "dim")
            cells.append(mark)
        grid.add_row(*cells, style="dim" if row.library else "")
    console.print(grid)
    for line in legend(rows, plan):
        console.print(Padding(Text(line, "dim"), (0, 0, 0, 2)))


def legend(rows: Sequence[LabelRow], plan: Layout) -> list[str]:
    """What the table does not say by itself."""
    lines = []
    if any(row.count > 1 for row in rows):
        lines.append("each row is the median run of its label")
    if any(row.parts_ns["graph"] for row in rows):
        lines.append("<= a CUDA graph traced as one row: the gaps and copies inside it are not visible")
    if plan.folded:
        folded = [LOOKS[c].short for c in LOOKS if c in plan.folded]
        lines.append("other: " + ", ".join(folded) + " (a wider terminal shows them)")
    if any(row.library for row in rows):
        lines.append("dimmed: timed by a library, not by your code")
    return lines
