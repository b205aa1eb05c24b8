"""The one table of the terminal: columns that fit themselves to its width.

    label                n      time    kernel
    layers.3…t.forward  10    234.72     24.77

Numbers are never cut: if there is not enough room, columns are left out and texts are shortened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.text import Text

from nsysalign.text import ZERO, middle

GAP = 2
#: Letters that all texts together have at least (COMFORT, LEAST) while there are columns which can be left
#: out; letters that each text has at least (_SHORTEST).
COMFORT, LEAST, _SHORTEST = 40, 18, 6


@dataclass(frozen=True)
class Column:
    head: str
    cells: Sequence[str]
    left: bool = False
    styles: Sequence[str] = ()  # one per cell
    #: In which order columns are left out, the smallest number first; None: never.  A column with a number
    #: below 1 is left out before texts get less than COMFORT letters, others before they get less than LEAST.
    leaves: float | None = None
    shortened: bool = False  # a text, which may be shortened in its middle

    @property
    def width(self) -> int:
        return max(map(cell_len, (self.head, *self.cells)))


def text(head: str, cells: Sequence[str], leaves: float | None = None) -> Column:
    """Return a column of texts that may be shortened."""
    return Column(head, cells, left=True, leaves=leaves, shortened=True)


def fitted(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns for which there is room in `width` letters, with texts as short as they must be.

    Columns that may leave (`Column.leaves`) are left out one by one while the texts would get too few letters;
    then the texts share the letters that numbers leave.
    """
    shown = list(columns)
    while True:
        texts = [column for column in shown if column.shortened]
        numbers = sum(column.width for column in shown if not column.shortened)
        room = width - numbers - GAP * (len(shown) - 1)  # for all texts
        whole = sum(column.width for column in texts)
        leaving = [
            column
            for column in shown
            if column.leaves is not None
            and room < min(whole, LEAST if column.leaves >= 1 else COMFORT)
        ]
        if not leaving:
            break
        shown.remove(min(leaving, key=lambda column: column.leaves))
    # Each text, from left to right, takes as much of the room as the others can spare: these keep _SHORTEST letters, or
    # what they are if that is less.  Two texts of 30 letters in a room of 40: 30 would leave 10, so 30 and 10.
    for column in texts:
        least_of_others = sum(min(text.width, _SHORTEST) for text in texts if text is not column)
        size = max(min(column.width, room - least_of_others), _SHORTEST)
        # a text that is done still counts for _SHORTEST among the others of the next one
        room -= size - _SHORTEST
        cells = [middle(cell, size) for cell in column.cells]
        shown[shown.index(column)] = replace(column, cells=cells)
    return shown


def draw(
    columns: Sequence[Column],
    console: Console,
    *,
    styles: Sequence[str] = (),
    below: Sequence[str] = (),
) -> None:
    """Print the columns that fit into the console, with their heads.

    styles: a style for each row
    below: for each row, a text that stands dim below it, "" for none
    """
    shown = fitted(columns, console.width)
    widths = [column.width for column in shown]  # once: each looks at all rows
    lines = [_line(shown, widths, [(column.head, "") for column in shown])]
    for number in range(len(columns[0].cells)):
        cells = [
            (column.cells[number], column.styles[number] if column.styles else "")
            for column in shown
        ]
        # the dot of a zero recedes, so that the eye finds the numbers
        cells = [(text, "dim" if text == ZERO else style) for text, style in cells]
        line = _line(shown, widths, cells)
        if styles and styles[number]:
            line.stylize(styles[number])
        lines.append(line)
        if below and below[number]:
            wrapped = Text(below[number], "dim").wrap(console, console.width - 2)
            lines += [Text("  ") + part for part in wrapped]
    console.print(Group(*lines), crop=True)


def _line(
    columns: Sequence[Column], widths: Sequence[int], cells: Sequence[tuple[str, str]]
) -> Text:
    """Return one line of the table.

    widths: letters of each column
    cells: (text, style) of the line's cell in each column
    """
    line = Text()
    for place, (column, width, (text, style)) in enumerate(
        zip(columns, widths, cells, strict=True)
    ):
        gap = " " * (width - cell_len(text))
        line.append(" " * GAP if place else "")
        line.append("" if column.left else gap)
        line.append(set_cell_size(text, min(width, cell_len(text))), style)
        line.append(gap if column.left else "")
    line.rstrip()
    line.no_wrap = True
    line.overflow = "crop"
    return line
