"""A comparison in a terminal: one row per label, what changed below it.

label     runs    A us   B us   change  verdict
h2d_t1     6/6  227.71  52.10  -77.1 %  ▼ faster
  -80.1 to -70.3 %; host -154 us, launch -25.3 us
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysalign.report.changes import method, ordered, share, summary, where
from nsysalign.text import fixed, middle, percent, plural, safe_text

if TYPE_CHECKING:
    from rich.console import Console

    from nsysalign.compare.label_changes import Change, Comparison, LabelChange

STYLES = {"slower": "bold red", "faster": "bold green", "unclear": "yellow", "same": "dim"}
MARKS = {"slower": "▲ slower", "faster": "▼ faster", "unclear": "? unclear", "same": "= same"}
_WIDE = 130
_MOST_NAMES = 12


def render(comparison: Comparison, console: Console, report_path: str | None = None) -> None:
    """Print the comparison; narrow terminals get the causes on a line of their own."""
    from rich.text import Text

    before, after = safe_text(comparison.before), safe_text(comparison.after)
    console.print(Text(f"A {before}\nB {after}", "bold"), soft_wrap=True)
    console.print(Text(summary(comparison)))
    if comparison.labels:
        console.print()
        _table(comparison, console)
    for side, names in (("A", comparison.only_before), ("B", comparison.only_after)):
        if names:
            shown = ", ".join(safe_text(name) for name in names[:_MOST_NAMES])
            more = f", … {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            console.print(Text(f"only in {side}: {plural(len(names), 'label')}: {shown}{more}", "yellow"))
    for remark in comparison.remarks:
        console.print(Text(f"note: {safe_text(remark)}", "dim"))
    if comparison.labels:
        console.print(Text(method(comparison), "dim"))
    if report_path:
        console.print(Text(f"report: {safe_text(report_path)}"), soft_wrap=True)


def _table(comparison: Comparison, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    labels, wide = ordered(comparison), console.width >= _WIDE
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="")
    rows = [_cells(label, wide) for label in labels]
    heads = [
        "runs",
        "A us",
        "B us",
        "change",
        *([f"{percent(comparison.confidence)} between"] if wide else []),
    ]
    needed = (
        sum(max(len(head), *(len(row[k]) for row in rows)) + 2 for k, head in enumerate(heads))
        + len(MARKS["unclear"])
        + 2
    )
    room = max(8, console.width - needed - (50 if wide else 0))
    grid.add_column("label", no_wrap=True)
    for head in heads:
        grid.add_column(head, justify="right", no_wrap=True)
    grid.add_column("verdict", no_wrap=True)
    if wide:
        grid.add_column("what changed")
    for label, row in zip(labels, rows, strict=True):
        cells = [
            Text(middle(safe_text(label.label), room)),
            *map(Text, row),
            Text(MARKS[label.verdict], STYLES[label.verdict]),
        ]
        grid.add_row(
            *cells, *([Text(_because(label), "dim")] if wide else []), style="dim" if label.library else ""
        )
    if wide:
        console.print(grid)
    else:
        _with_lines(
            grid,
            ["; ".join(filter(None, (between(label.total), _because(label)))) for label in labels],
            console,
        )


def _cells(label: LabelChange, wide: bool) -> list[str]:
    total = label.total
    places = 2 if max(total.before_ns, total.after_ns) < 1e7 else 1
    times = [fixed(ns, decimals=places) for ns in (total.before_ns, total.after_ns)]
    return [
        f"{label.before_count}/{label.after_count}",
        *times,
        share(total),
        *([between(total)] if wide else []),
    ]


def _with_lines(grid, lines: list[str], console: Console) -> None:
    """Print a table of one-line rows, with a dimmed line below those that have a remark."""
    from rich.text import Text

    with console.capture() as capture:
        console.print(grid)
    head, *rows = capture.get().splitlines()
    console.out(head, highlight=False)
    for row, line in zip(rows, lines, strict=True):
        console.out(row, highlight=False)
        if line:
            console.print(Text(f"  {middle(line, console.width - 2)}", "dim"))


def _because(label: LabelChange) -> str:
    """What changed, or why that is unclear."""
    return label.reason if label.verdict == "unclear" else where(label) if label.verdict != "same" else ""


def between(total: Change) -> str:
    """The bounds relative to the time before: "-80.1 to -70.3 %"."""
    if not total.before_ns:
        return ""
    low, high = (100 * ns / total.before_ns for ns in (total.low_ns, total.high_ns))
    return f"{low:+.1f} to {high:+.1f} %"
