"""The table of labels in the terminal, and its legend.

Times of one real interval each, so that a row adds up: what has no column of its own is in `other`,
and where that would hide what a row is made of, each row names its own largest parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from nsysalign.answer import LabelRow, causes_present, in_a_word
from nsysalign.parts import SHORT
from nsysalign.show.palette import LOOKS
from nsysalign.show.table import GAP, Column, draw, fitted
from nsysalign.text import ZERO, fixed, middle, plural, safe_text, told_apart

#: A part of at least this share of a row is an answer: it is never hidden in `other`.
_MAIN = 0.1
#: As many rows of what libraries timed are shown beside the program's own.
_LIBRARY_ROWS = 3
#: Each row's largest parts, where a column for each cause has no room; and the letters of a name
#: that even these columns leave whole.
_LARGEST, _NAMES = ("largest other", "second", "third"), 24
_WORK = ("kernel", "graph")


def render(rows: Sequence[LabelRow], console: Console) -> None:
    """Draw the table and its legend.  What libraries timed is one line if the program has labels of
    its own and would have to be looked for among theirs."""
    own = [row for row in rows if not row.library]
    folded = [row for row in rows if row.library] if own else []
    if len(folded) > _LIBRARY_ROWS:
        rows = own
    else:
        folded = []
    columns, inside = layout(rows, console.width - GAP)
    draw(columns, console, indent=GAP, styles=["dim" if row.library else "" for row in rows])
    lines = legend(rows, columns, inside)
    if folded:
        timed = plural(sum(row.count for row in folded), "interval")
        lines.insert(
            0, f"… {timed} in {len(folded)} rows more, timed by libraries: the report shows them"
        )
    for line in lines:
        console.print(Padding(Text(line, "dim"), (0, 0, 0, GAP)))


class _Scale(NamedTuple):
    """The unit of a table's times."""

    unit: str
    ns: int
    decimals: int

    def cell(self, ns: int | None, fewer: int = 0) -> str:
        return fixed(ns, unit_ns=self.ns, decimals=self.decimals - fewer)


def scale(rows: Sequence[LabelRow]) -> _Scale:
    """Milliseconds if no row is shorter than one."""
    if min(row.elapsed_ns for row in rows) >= 1e6:
        return _Scale("ms", 1_000_000, 3)
    return _Scale("us", 1_000, 2)


def layout(rows: Sequence[LabelRow], width: int) -> tuple[list[Column], list[str]]:
    """(columns that fit, causes inside the column `other`): fewer decimals first, then the smallest
    causes leave; where that would hide the main part of a row, each row names its own largest
    parts."""
    plans = [_by_cause(rows, width, fewer) for fewer in (0, 1)]
    columns, folded, hidden = min(plans, key=lambda plan: (len(plan[1]), -plan[0][0].width))
    if not hidden:
        return columns, folded
    for count in (3, 2, 1):
        columns = _by_size(rows, width, count)
        if columns[0].width >= min(_name_width(rows), _NAMES):
            break
    return columns, []


def _by_cause(
    rows: Sequence[LabelRow], width: int, fewer: int
) -> tuple[list[Column], list[str], bool]:
    """(columns, causes in `other`, whether one of them is the main part of a row)."""
    known = scale(rows)
    causes = [cause for cause in causes_present(rows) if cause not in _WORK]
    weight = {c: max(row.parts_ns[c] / max(row.elapsed_ns, 1) for row in rows) for c in causes}
    main = {c for row in rows for ns, c in _ranked(row)[:1] if ns >= _MAIN * row.elapsed_ns}
    parts = [
        Column(
            SHORT[cause],
            [known.cell(row.parts_ns[cause], fewer) for row in rows],
            known.unit,
            LOOKS[cause].terminal,
            leaves=min(weight[cause], 0.99) + (cause in main),
        )
        for cause in causes
    ]

    def other(gone: Sequence[Column]) -> Column:
        if len(gone) == 1:
            return gone[0]  # it would take as much room
        heads = {column.head for column in gone}
        sums = (sum(ns for c, ns in row.parts_ns.items() if SHORT[c] in heads) for row in rows)
        return Column("other", [known.cell(ns, fewer) for ns in sums], known.unit)

    columns, gone = fitted(_framed(rows, fewer, parts), width, other)
    folded = [c for c in causes if SHORT[c] in {column.head for column in gone}]
    return columns, folded if len(folded) > 1 else [], bool(main.intersection(folded))


def _by_size(rows: Sequence[LabelRow], width: int, count: int) -> list[Column]:
    """Each row's `count` largest parts by name, and the rest."""
    known = scale(rows)
    ranked = [_ranked(row) for row in rows]
    parts = []
    for place in range(count):
        cells = [
            f"{SHORT[parts[place][1]]} {known.cell(parts[place][0], 1)}"
            if place < len(parts)
            else ZERO
            for parts in ranked
        ]
        parts.append(Column(_LARGEST[place], cells, known.unit))
    rest = [known.cell(sum(ns for ns, _ in parts[count:]), 1) for parts in ranked]
    parts.append(Column("rest", rest, known.unit))
    return fitted(_framed(rows, 1, parts, leaves=2 if count == 1 else None), width)[0]


def _ranked(row: LabelRow) -> list[tuple[int, str]]:
    """The parts besides kernels, the largest first."""
    parts = [(ns, c) for c, ns in row.parts_ns.items() if c not in _WORK and ns > 0]
    return sorted(parts, key=lambda part: -part[0])


def _framed(
    rows: Sequence[LabelRow], fewer: int, parts: Sequence[Column], leaves: float | None = None
) -> list[Column]:
    """The columns that every layout has around those of the parts; `leaves`: of the time without
    nsys."""
    known = scale(rows)
    names = Column(
        "label",
        [label_text(row) for row in rows],
        left=True,
        shortened=lambda width: _names(rows, width),
    )
    counts = Column("n", [f"{row.count:,}" for row in rows])
    # Not "event", although that is what the event pair measures: it is also the name of a cause.
    elapsed = [known.cell(row.elapsed_ns, fewer) for row in rows]
    columns = [names, counts, Column("time", elapsed, known.unit, "bold")]
    if any(row.unprofiled_ns for row in rows):
        cells = [row.without_nsys(known.ns) for row in rows]
        columns.append(Column("w/o nsys", cells, known.unit, leaves=leaves))
    kernels = [
        f"({known.cell(row.meanwhile_ns, fewer)})"
        if row.only_meanwhile
        # A graph's execution stands here, marked: in a column of its own it could only be counted
        # twice, and the row must add up.
        else ("<=" if row.parts_ns["graph"] else "") + known.cell(row.kernel_ns, fewer)
        for row in rows
    ]
    columns += [Column("kernel", kernels, known.unit, LOOKS["kernel"].terminal), *parts]
    marks = ["!" if row.flagged else "i" if row.findings else "" for row in rows]
    return [*columns, Column("", marks, style="bold yellow")] if any(marks) else columns


def _name_width(rows: Sequence[LabelRow]) -> int:
    return max(len("label"), *(len(label_text(row)) for row in rows))


def _names(rows: Sequence[LabelRow], width: int) -> list[str]:
    """Labels within `width`, each different from the others as far as that is possible."""
    short = {safe_text(row.label): label_text(row, width) for row in rows}
    short = told_apart(short, width)
    return [short[safe_text(row.label)] for row in rows]


def label_text(row: LabelRow, width: int | None = None) -> str:
    """Label and call site; the site only if the label does not contain it.

    In `width` the folders of the site go first, then the site, then the middle of the label.
    """
    label, site = safe_text(row.label), safe_text(row.site)
    file = site.replace("\\", "/").rpartition("/")[2]
    if not site or site in label or file in label:
        return label if width is None else shortened(label, width)
    texts = [f"{label} {site}", f"{label} {file}", label]
    if width is None:
        return texts[0]
    return next((text for text in texts if len(text) <= width), middle(label, width))


def shortened(label: str, width: int) -> str:
    """In `caller (site)` the caller distinguishes labels of one site, in `label [work]` the work
    does: that part is shortened last."""
    if len(label) <= width:
        return label
    if of_work := re.fullmatch(r"(.+) \[(.+)\]", label):
        whose, what = of_work.groups()
        room = max(width // 2, width - len(whose) - 3)
        what = what if len(what) <= room else what[: room - 1] + "…"
        return f"{middle(whose, max(width - len(what) - 3, 3))} [{what}]"
    if several := re.fullmatch(r"(.+) \((.+)\)", label):
        caller, site = several.groups()
        texts = (f"{caller} (:{site.rpartition(':')[2]})", caller)
        return next((text for text in texts if len(text) <= width), middle(caller, width))
    return middle(label, width)


def legend(rows: Sequence[LabelRow], columns: Sequence[Column], folded: Sequence[str]) -> list[str]:
    """Explanations below the table; `folded`: causes inside the column `other`."""
    heads = {column.head for column in columns}
    median = ", of the median interval of each label" if any(row.count > 1 for row in rows) else ""
    lines = [f"times are those under nsys{median}"]
    if "w/o nsys" in heads:
        lines.append(
            "w/o nsys: what that interval would take without nsys on an equally fast host, "
            "predicted from this trace"
        )
    for reason in {in_a_word(row.no_prediction): row.no_prediction for row in rows}.values():
        if reason:
            prefix = "" if "w/o nsys" in heads else "no time without nsys is predicted: "
            lines.append(prefix + reason)
    if any(row.parts_ns["graph"] for row in rows):
        lines.append(
            "<= a CUDA graph traced as one row: the gaps and copies inside it are not visible"
        )
    if any(row.only_meanwhile for row in rows):
        lines.append("(in brackets: how long kernels ran meanwhile; the row shows the host's time)")
    if folded:
        named = ", ".join(_folded(cause, rows) for cause in folded)
        lines.append(f"other: {named} (a wider terminal shows them)")
    if _LARGEST[0] in heads:
        lines.append(
            "largest other: what took most apart from kernels (a wider terminal has a column for "
            "every cause)"
        )
    flags = {"! a warning": any(row.flagged for row in rows)}
    flags["i a note"] = any(row.findings and not row.flagged for row in rows)
    if any(flags.values()):
        lines.append(
            ", ".join(text for text, there in flags.items() if there) + ": see the findings"
        )
    if any(row.library for row in rows):
        lines.append("dimmed: timed by a library, not by your code")
    return lines


def _folded(cause: str, rows: Sequence[LabelRow]) -> str:
    """The cause's name, with the row in which it takes most if that is a lot: an answer is never
    hidden in `other`."""
    row = max(rows, key=lambda r: r.parts_ns[cause] / max(r.elapsed_ns, 1))
    if row.parts_ns[cause] < _MAIN * row.elapsed_ns:
        return SHORT[cause]
    most = scale(rows).cell(row.parts_ns[cause])
    return f"{SHORT[cause]} ({most} in {middle(safe_text(row.label), 30)})"
