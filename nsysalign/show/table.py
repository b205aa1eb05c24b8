"""The one table of the terminal: columns that fit themselves to its width.

    label                n      time    kernel  host
                             us        us    us
    layers.3…t.forward  10    234.72     24.77     .  !

Numbers are never cut: where there is no room, columns leave, and texts are shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from nsysalign.text import ZERO, middle

GAP = 2
#: What a text keeps while columns that may leave are there; what it keeps as long as any are.
COMFORT, LEAST = 40, 18
#: What a text keeps if nothing else can leave.
_SHORTEST = 6
_WHOLE = {"no_wrap": True, "overflow": "crop", "crop": True}


@dataclass(frozen=True)
class Column:
    head: str
    cells: Sequence[str]
    unit: str = ""  # below the head
    style: str = ""
    styles: Sequence[str] = ()  # one per cell, instead
    left: bool = False
    #: None stays. Of the others the smallest leaves first: those below 1 before a text is shorter
    #: than COMFORT, those from 1 on before it is shorter than LEAST.
    leaves: float | None = None
    #: Of a text that may be shortened: its cells at a width.
    shortened: Callable[[int], Sequence[str]] | None = None

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.head, self.unit, *self.cells)))


def text(head: str, cells: Sequence[str], **more: object) -> Column:
    """A column of texts that are shortened in their middle."""
    return Column(head, cells, left=True, shortened=lambda w: [middle(c, w) for c in cells], **more)


def fitted(
    columns: Sequence[Column],
    width: int,
    other: Callable[[Sequence[Column]], Column] | None = None,
) -> tuple[list[Column], list[Column]]:
    """(columns that stay, with their texts as short as they must be; those that left).  `other`
    makes a column of those that left, which stands behind the last of those that may leave."""
    gone: list[Column] = []
    while True:
        shown = [column for column in columns if column not in gone]
        if gone and other:
            behind = max(columns.index(c) for c in columns if c.leaves is not None)
            shown.insert(sum(columns.index(c) <= behind for c in shown), other(gone))
        texts = [column for column in shown if column.shortened]
        numbers = [column for column in shown if not column.shortened]
        room = width - sum(c.width for c in numbers) - GAP * (len(shown) - 1)
        longest = sum(column.width for column in texts)
        keep = {0: min(longest, COMFORT), 1: min(longest, LEAST)}
        leaving = [
            c
            for c in columns
            if c not in gone and c.leaves is not None and room < keep[int(c.leaves >= 1)]
        ]
        if not leaving:
            break
        gone.append(min(leaving, key=lambda column: column.leaves))
    for column in texts:
        others = sum(
            _SHORTEST if c.width > _SHORTEST else c.width for c in texts if c is not column
        )
        size = max(min(column.width, room - others), _SHORTEST)
        room -= size - _SHORTEST
        if size < column.width:
            cells = [middle(cell, size) for cell in column.shortened(size)]
            short = replace(column, cells=cells, shortened=None)
            shown[shown.index(column)] = short
    return shown, gone


def draw(
    columns: Sequence[Column],
    console: Console,
    *,
    indent: int = 0,
    styles: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """Print columns that fit.  `styles`: one per row; `below`: a dim line below each row, '' for
    none."""
    if any(column.unit for column in columns):
        heads = [(c.head, c.unit) if c.unit else ("", c.head) for c in columns]
    else:
        heads = [(column.head,) for column in columns]
    for cells in zip(*heads, strict=True):
        console.print(_line(columns, cells, indent), **_WHOLE)
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        looks = [column.styles[number] if column.styles else column.style for column in columns]
        line = _line(columns, cells, indent, looks)
        if styles and styles[number]:
            line.stylize(styles[number])
        console.print(line, **_WHOLE)
        if below and below[number]:
            for part in Text(below[number]).wrap(console, console.width - indent - 2):
                console.print(Text(" " * (indent + 2)) + part, style="dim")


def _line(
    columns: Sequence[Column], cells: Sequence[str], indent: int, looks: Sequence[str] = ()
) -> Text:
    line = Text(" " * indent)
    for number, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        gap = " " * (column.width - cell_len(cell))
        line.append(" " * GAP if number else "")
        line.append(gap if not column.left else "")
        # the dot of a zero recedes, so that the eye finds the numbers
        style = "dim" if cell == ZERO else looks[number] if looks else ""
        line.append(set_cell_size(cell, min(column.width, cell_len(cell))), style)
        line.append(gap if column.left else "")
    line.rstrip()
    return line
