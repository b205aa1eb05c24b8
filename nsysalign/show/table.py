"""The label table of the terminal: which columns fit, then the drawing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsysalign.show.palette import LOOKS
from nsysalign.show.rows import LabelRow, causes_present, in_a_word
from nsysalign.text import fixed, middle, plural, safe_text, told_apart, within

#: Labels are shown whole where they have room for this much; else small causes are folded into
#: `other`, down to the least that a label gets.
LABEL_WIDTHS = (40, 30, 18)
GAP = 2
REST = "rest"
#: Each row's largest causes, where a column for each cause has no room; and the letters of a name
#: that even these columns leave whole.
_LARGEST, _NAME_WIDTH = ("largest other", "second", "third"), 24
UNITS = {"ms": 1_000_000, "us": 1_000}


@dataclass(frozen=True)
class Column:
    head: str
    style: str
    cells: tuple[str, ...]

    @property
    def width(self) -> int:
        return max(len(self.head), *(len(cell) for cell in self.cells))


#: A folded cause that takes at least this share of a row is named below the table.
_WORTH_NAMING = 0.1
#: As many rows of what libraries timed are shown beside the program's own.
_LIBRARY_ROWS = 3


@dataclass(frozen=True)
class Layout:
    """Number columns that fit, and what had to be folded to make them fit."""

    unit: str
    columns: tuple[Column, ...]  # the measured time first, then its parts: they add up
    folded: tuple[str, ...]  # causes inside the column `other`
    label_width: int
    unprofiled: Column | None = None  # the time without nsys, if it could be predicted


def layout(rows: Sequence[LabelRow], width: int) -> Layout:
    """Choose unit, decimals and columns for `width`: fewer decimals first, then the smallest causes
    fold.

    If that would fold the main part of a row, each row names its own largest causes instead.
    """
    unit, decimals = ("ms", 3) if min(row.elapsed_ns for row in rows) >= 1e6 else ("us", 2)
    unit_ns = UNITS[unit]
    # A graph's execution stands in the kernel column, marked `<=`: in a row of its own column it
    # could only be counted twice, and the row must add up.
    causes = [c for c in causes_present(list(rows)) if c != "graph"]
    if "kernel" not in causes:
        causes.insert(0, "kernel")
    weight = {c: max(row.parts_ns[c] / max(row.elapsed_ns, 1) for row in rows) for c in causes}
    by_weight = sorted((c for c in causes if c != "kernel"), key=weight.__getitem__)
    longest = max(len("label"), *(len(label_text(row)) for row in rows))
    unprofiled = _unprofiled(rows, unit_ns)

    def room(columns: Sequence[Column], predicted: Column | None) -> int:
        taken = sum(c.width + GAP for c in [*columns, *([predicted] if predicted else [])])
        return width - taken - _count_width(rows) - GAP - _mark_width(rows) - 2

    for needed in LABEL_WIDTHS:
        for fold in range(len(by_weight) + 1):
            if fold == 1 and len(by_weight) > 1:
                continue  # a single folded cause would take as much room as its own column
            folded = tuple(by_weight[:fold])
            if _hidden(rows, folded):
                break
            for places in (decimals, decimals - 1):
                columns = _columns(rows, causes, folded, unit_ns, places)
                left = room(columns, unprofiled)
                if left >= min(longest, needed):
                    return Layout(unit, columns, folded, min(left, longest), unprofiled)
    for named, predicted in ((3, unprofiled), (2, unprofiled), (1, unprofiled), (1, None)):
        columns = _largest(rows, named, unit_ns, decimals - 1)
        left = room(columns, predicted)
        if left >= min(longest, _NAME_WIDTH):
            break
    # the last layout is taken whatever its width
    return Layout(unit, columns, (), max(min(left, longest), 8), predicted)


def _hidden(rows: Sequence[LabelRow], folded: Sequence[str]) -> bool:
    """Whether the largest part of a row besides its kernels would be inside `other`."""
    for row in rows:
        rest = [c for c in row.parts_ns if c not in ("kernel", "graph")]
        largest = max(rest, key=row.parts_ns.__getitem__)
        if largest in folded and row.parts_ns[largest] >= _WORTH_NAMING * row.elapsed_ns:
            return True
    return False


def _largest(
    rows: Sequence[LabelRow], named: int, unit_ns: int, decimals: int
) -> tuple[Column, ...]:
    """Time, kernels, each row's `named` largest other causes by name, and the rest."""
    time, kernel = _columns(rows, ["kernel"], (), unit_ns, decimals)
    cells: list[list[str]] = [[] for _ in range(named + 1)]
    for row in rows:
        parts = {c: ns for c, ns in row.parts_ns.items() if c not in ("kernel", "graph") and ns > 0}
        order = sorted(parts, key=parts.__getitem__, reverse=True)
        for at in range(named):
            number = (
                fixed(parts[order[at]], unit_ns=unit_ns, decimals=decimals)
                if at < len(order)
                else "."
            )
            cells[at].append(f"{LOOKS[order[at]].short} {number}" if at < len(order) else number)
        rest = sum(parts[c] for c in order[named:])
        cells[named].append(fixed(rest, unit_ns=unit_ns, decimals=decimals))
    heads = [*_LARGEST[:named], REST]
    return (
        time,
        kernel,
        *(Column(head, "", tuple(c)) for head, c in zip(heads, cells, strict=True)),
    )


def _unprofiled(rows: Sequence[LabelRow], unit_ns: int) -> Column | None:
    """ "191 ±25": the prediction and how far it may be off; empty if there is none."""
    if not any(row.unprofiled_ns for row in rows):
        return None
    return Column("w/o nsys", "", tuple(_predicted(row, unit_ns) for row in rows))


def _predicted(row: LabelRow, unit_ns: int) -> str:
    if row.unprofiled_ns is None:
        return in_a_word(row.no_prediction)
    return within(*row.unprofiled_ns, unit_ns)


def _count_width(rows: Sequence[LabelRow]) -> int:
    return max(1, *(len(f"{row.count:,}") for row in rows))


def _mark_width(rows: Sequence[LabelRow]) -> int:
    return GAP + 1 if any(row.findings for row in rows) else 0


def _columns(
    rows: Sequence[LabelRow],
    causes: Sequence[str],
    folded: Sequence[str],
    unit_ns: int,
    decimals: int,
) -> tuple[Column, ...]:
    def cells(values: Sequence[int]) -> tuple[str, ...]:
        return tuple(fixed(value, unit_ns=unit_ns, decimals=decimals) for value in values)

    # Not "event", although that is what the event pair measures: it is also the name of a cause.
    columns = [Column("time", "bold", cells([row.elapsed_ns for row in rows]))]
    for cause in causes:
        if cause in folded:
            continue
        values = [row.parts_ns[cause] for row in rows]
        if cause == "kernel":
            texts = cells([row.kernel_ns for row in rows])
            texts = tuple(
                f"({fixed(row.meanwhile_ns, unit_ns=unit_ns, decimals=decimals)})"
                if only_meanwhile(row)
                else ("<=" if row.parts_ns["graph"] else "") + t
                for row, t in zip(rows, texts, strict=True)
            )
        else:
            texts = cells(values)
        columns.append(Column(LOOKS[cause].short, LOOKS[cause].terminal, texts))
    if folded:
        columns.append(
            Column("other", "", cells([sum(row.parts_ns[c] for c in folded) for row in rows]))
        )
    return tuple(columns)


def only_meanwhile(row: LabelRow) -> bool:
    """Whether the GPU worked on what a host timer issued without that work being part of the
    timer's own time."""
    return bool(row.meanwhile_ns) and not row.kernel_ns


def label_text(row: LabelRow, width: int | None = None) -> str:
    """Label and call site; the site only if the label does not contain it.

    In `width` the folders of the site go first, then the site, then the middle of the label.
    """
    label = safe_text(row.label)
    site = safe_text(row.site)
    if not site or site in label or site.replace(chr(92), "/").rpartition("/")[2] in label:
        return label if width is None else _shortened(label, width)
    texts = [f"{label} {site}", f"{label} {site.replace(chr(92), '/').rpartition('/')[2]}", label]
    return (
        texts[0]
        if width is None
        else next((t for t in texts if len(t) <= width), middle(label, width))
    )


def _shortened(label: str, width: int) -> str:
    """In `caller (site)` the caller distinguishes labels of one site, in `label [work]` the work
    does: that part is shortened last."""
    told_apart = re.fullmatch(r"(.+) \[(.+)\]", label)
    if told_apart and len(label) > width:
        whose, what = told_apart.groups()
        room = max(width // 2, width - len(whose) - 3)
        what = what if len(what) <= room else what[: room - 1] + "…"
        return f"{middle(whose, max(width - len(what) - 3, 3))} [{what}]"
    several = re.fullmatch(r"(.+) \((.+)\)", label)
    if several is None:
        return middle(label, width)
    caller, site = several.groups()
    texts = (label, f"{caller} (:{site.rpartition(':')[2]})", caller)
    return next((t for t in texts if len(t) <= width), middle(caller, width))


def render(rows: Sequence[LabelRow], console: Console) -> None:
    """Draw the table and its legend.  What libraries timed is one line if the program has labels of
    its own and would have to be looked for among theirs."""
    own = [row for row in rows if not row.library]
    folded = [row for row in rows if row.library] if own else []
    if len(folded) > _LIBRARY_ROWS:
        rows = own
    else:
        folded = []
    plan = layout(rows, console.width)
    grid = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_edge=False, header_style="")
    grid.add_column("\n  label", no_wrap=True, width=plan.label_width + 2)
    grid.add_column("\nn", justify="right", no_wrap=True)
    time, *parts = plan.columns
    for column in [time, *([plan.unprofiled] if plan.unprofiled else []), *parts]:
        head = Text(f"{column.head}\n{plan.unit}")
        grid.add_column(
            head, justify="right", no_wrap=True, style=column.style, min_width=column.width
        )
    if _mark_width(rows):
        grid.add_column("", no_wrap=True)
    texts = told_apart(
        {safe_text(row.label): label_text(row, plan.label_width) for row in rows}, plan.label_width
    )
    for number, row in enumerate(rows):
        cells = [Text("  " + texts[safe_text(row.label)]), Text(f"{row.count:,}")]
        # The dot of a zero recedes, so that the eye finds the numbers.
        cells.append(Text(time.cells[number]))
        cells += [Text(plan.unprofiled.cells[number])] if plan.unprofiled else []
        cells += [Text(c.cells[number], "dim" if c.cells[number] == "." else "") for c in parts]
        if _mark_width(rows):
            mark = (
                Text("!", "bold yellow")
                if row.flagged
                else Text("i" if row.findings else "", "dim")
            )
            cells.append(mark)
        grid.add_row(*cells, style="dim" if row.library else "")
    console.print(grid)
    if folded:
        timed = plural(sum(row.count for row in folded), "interval")
        line = f"… {timed} in {len(folded)} rows more, timed by libraries: the report shows them"
        console.print(Padding(Text(line, "dim"), (0, 0, 0, 2)))
    for line in legend(rows, plan):
        console.print(Padding(Text(line, "dim"), (0, 0, 0, 2)))


def legend(rows: Sequence[LabelRow], plan: Layout) -> list[str]:
    """Explanations below the table."""
    lines = [
        "times are those under nsys"
        + (", of the median interval of each label" if any(row.count > 1 for row in rows) else "")
    ]
    if plan.unprofiled:
        lines.append(
            "w/o nsys: what that interval would take without nsys on an equally fast host, predicted from this trace"
        )
    reasons = {in_a_word(row.no_prediction): row.no_prediction for row in reversed(rows)}
    for reason in filter(None, reversed(reasons.values())):
        lines.append(reason if plan.unprofiled else f"no time without nsys is predicted: {reason}")
    if any(row.parts_ns["graph"] for row in rows):
        lines.append(
            "<= a CUDA graph traced as one row: the gaps and copies inside it are not visible"
        )
    if any(only_meanwhile(row) for row in rows):
        lines.append("(in brackets: how long kernels ran meanwhile; the row shows the host's time)")
    if plan.folded:
        folded = [_folded(c, rows, plan.unit) for c in LOOKS if c in plan.folded]
        lines.append("other: " + ", ".join(folded) + " (a wider terminal shows them)")
    if any(column.head == _LARGEST[0] for column in plan.columns):
        lines.append(
            "largest other: what took most apart from kernels (a wider terminal has a column for every cause)"
        )
    marks = {("!" if row.flagged else "i") for row in rows if row.findings}
    if marks:
        words = {"!": "! a warning", "i": "i a note"}
        lines.append(", ".join(words[m] for m in words if m in marks) + ": see the findings")
    if any(row.library for row in rows):
        lines.append("dimmed: timed by a library, not by your code")
    return lines


def _folded(cause: str, rows: Sequence[LabelRow], unit: str) -> str:
    """The cause's name, with the row in which it takes most if that is a lot: an answer is never
    hidden in `other`."""
    row = max(rows, key=lambda r: r.parts_ns[cause] / max(r.elapsed_ns, 1))
    ns = row.parts_ns[cause]
    if ns < _WORTH_NAMING * row.elapsed_ns:
        return LOOKS[cause].short
    return f"{LOOKS[cause].short} ({fixed(ns, unit_ns=UNITS[unit])} in {middle(safe_text(row.label), 30)})"
