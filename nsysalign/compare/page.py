"""A comparison of two runs as plain data, for its JSON document and its page, and in the terminal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from nsysalign.files import write_text
from nsysalign.report.html import Page, assemble
from nsysalign.report.palette import LOOKS
from nsysalign.report.payload import cause_looks
from nsysalign.text import change as relative
from nsysalign.text import (
    change_between,
    duration,
    fixed,
    middle,
    percent,
    plural,
    safe_text,
    within,
)

if TYPE_CHECKING:
    from nsysalign.compare.label_changes import Change, Comparison, LabelChange


#: In the order in which a reader wants them.
VERDICT_ORDER = ("slower", "faster", "unclear", "same")
FORMAT, VERSION = "nsysalign-diff", 1
PAGE = Page("diff.html", "format dom bars labels diff", "nsysalign diff: {}")


def ordered(comparison: Comparison) -> list[LabelChange]:
    """Slower labels first, the largest change first; labels timed by libraries last."""

    def place(label: LabelChange) -> tuple[bool, int, float]:
        return label.library, VERDICT_ORDER.index(label.verdict), -abs(label.total.change_ns)

    return sorted(comparison.labels, key=place)


def document(comparison: Comparison) -> dict[str, Any]:
    """`nsysalign diff --json`: nanoseconds, labels in the order of the first analysis."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "before": comparison.before,
        "after": comparison.after,
        "confidence": comparison.confidence,
        "threshold": comparison.threshold,
        "remarks": list(comparison.remarks),
        "labels": [_label(label) for label in comparison.labels],
        "only_before": list(comparison.only_before),
        "only_after": list(comparison.only_after),
    }


def write_page(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    write_text(path, page(comparison))


def page(comparison: Comparison) -> str:
    """The whole page as text: self-contained like the report, and small."""
    return assemble(PAGE, page_data(comparison))


def page_data(comparison: Comparison) -> dict[str, Any]:
    """The page's data: the same, with foreign text free of control characters, and the looks of the causes."""
    labels = []
    for label in ordered(comparison):
        words = {key: safe_text(getattr(label, key)) for key in ("label", "site", "reason")}
        labels.append(_label(label) | words)
    return {
        "title": f"{safe_text(comparison.before)} → {safe_text(comparison.after)}",
        "before": safe_text(comparison.before),
        "after": safe_text(comparison.after),
        "summary": summary(comparison),
        "method": method(comparison),
        "causes": cause_looks(
            {cause for label in comparison.labels for cause in label.parts} or {"kernel"}
        ),
        "labels": labels,
        "only": [
            [safe_text(name) for name in side]
            for side in (comparison.only_before, comparison.only_after)
        ],
        "remarks": [safe_text(remark) for remark in comparison.remarks],
    }


def _label(label: LabelChange) -> dict[str, Any]:
    return {
        "label": label.label,
        "kind": label.kind,
        "site": label.site,
        "count_before": label.before_count,
        "count_after": label.after_count,
        "verdict": label.verdict,
        "reason": label.reason,
        "library": label.library,
        "total": _change(label.total),
        "kernel_only": _change(label.kernel_only),
        "unprofiled": dict(
            zip(("before", "after"), (u and u._asdict() for u in label.unprofiled), strict=True)
        ),
        "parts": {cause: _change(change) for cause, change in label.parts.items()},
    }


def _change(change: Change) -> dict[str, float]:
    names = ("before_ns", "after_ns", "change_ns", "low_ns", "high_ns")
    return {name: round(getattr(change, name), 1) for name in names} | {"clear": change.clear}


def summary(comparison: Comparison) -> str:
    """One sentence: how many labels got slower, got faster, stayed the same, are unclear."""
    if not comparison.labels:
        return "The two have no label in common, so nothing can be compared."
    counts = [(verdict, comparison.count(verdict)) for verdict in VERDICT_ORDER]
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts if count)
    return f"Of {plural(len(comparison.labels), 'label')} in both: {said}."


def method(comparison: Comparison) -> str:
    """What the numbers mean, once."""
    return (
        "Times are means of the middle half of the intervals, so that a cold one does not count; the causes' changes add up "
        f"to the total's. Bounds hold the true change with {percent(comparison.confidence)} confidence per label "
        f"(bootstrap over intervals); changes below {100 * comparison.threshold:.3g} % do not matter."
        + (
            " Times are those under nsys; w/o nsys is predicted for the median interval of each side (none: its own report says why)."
            if any(any(label.unprofiled) for label in comparison.labels)
            else ""
        )
    )


def signed(ns: float) -> str:
    """-164300 -> "-164 us", always with a sign."""
    return ("+" if ns > 0 else "") + duration(ns)


def share(change: Change) -> str:
    """The change relative to the time before: "+12.3 %"."""
    return relative(change.change_ns / change.before_ns) if change.before_ns else "new"


def where(label: LabelChange, most: int = 3) -> str:
    """The causes that clearly changed, the largest first: "host -164 us, launch +3.1 us"."""
    clear = [(cause, c) for cause, c in label.parts.items() if c.clear and abs(c.change_ns) >= 1]
    clear.sort(key=lambda pair: -abs(pair[1].change_ns))
    said = [f"{LOOKS[cause].short} {signed(c.change_ns)}" for cause, c in clear[:most]]
    return ", ".join(said) + (f", … {len(clear) - most} more" if len(clear) > most else "")


def without_nsys(label: LabelChange) -> str:
    """What each side's median interval would take without nsys, us: "191 ±25 → 52.3 ±6.1"; '' if neither was predicted."""
    if not any(label.unprofiled):
        return ""
    return " → ".join("none" if u is None else within(*u, 1_000) for u in label.unprofiled)


STYLES = {"slower": "bold red", "faster": "bold green", "unclear": "yellow", "same": "dim"}
MARKS = {"slower": "▲ slower", "faster": "▼ faster", "unclear": "? unclear", "same": "= same"}
_WIDE = 130
_MOST_NAMES = 12


def render(comparison: Comparison, console: Console, report_path: str | None = None) -> None:
    """Print the comparison: a row per label, what changed below it if the terminal is narrow.

    label     runs    A us   B us   change  verdict
    h2d_t1     6/6  227.71  52.10  -77.1 %  ▼ faster
      -80.1 to -70.3 %; host -154 us, launch -25.3 us
    """
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
            console.print(
                Text(f"only in {side}: {plural(len(names), 'label')}: {shown}{more}", "yellow")
            )
    for remark in comparison.remarks:
        console.print(Text(f"note: {safe_text(remark)}", "dim"))
    if comparison.labels:
        console.print(Text(method(comparison), "dim"))
    if report_path:
        console.print(Text(f"report: {safe_text(report_path)}"), soft_wrap=True)


def _table(comparison: Comparison, console: Console) -> None:
    labels, wide = ordered(comparison), console.width >= _WIDE
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="")
    predicted = wide and any(any(label.unprofiled) for label in labels)
    rows = [_cells(label, wide, predicted) for label in labels]
    heads = [
        "runs",
        "A us",
        "B us",
        *(["w/o nsys, us"] if predicted else []),
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
            *cells,
            *([Text(_because(label), "dim")] if wide else []),
            style="dim" if label.library else "",
        )
    if wide:
        console.print(grid)
    else:
        _with_lines(grid, [_line(label, console.width - 2) for label in labels], console)


def _line(label: LabelChange, room: int) -> str:
    """The bounds, as many of the causes as fit, and the times without nsys."""
    predicted = f"w/o nsys {without_nsys(label)} us" if any(label.unprofiled) else ""
    for most in (3, 2, 1):
        line = "; ".join(filter(None, (between(label.total), _because(label, most), predicted)))
        if len(line) <= room:
            break
    return middle(line, room)


def _cells(label: LabelChange, wide: bool, predicted: bool) -> list[str]:
    total = label.total
    places = 2 if max(total.before_ns, total.after_ns) < 1e7 else 1
    times = [fixed(ns, decimals=places) for ns in (total.before_ns, total.after_ns)]
    return [
        f"{label.before_count}/{label.after_count}",
        *times,
        *([without_nsys(label)] if predicted else []),
        share(total),
        *([between(total)] if wide else []),
    ]


def _with_lines(grid, lines: list[str], console: Console) -> None:
    """Print a table of one-line rows, with a dimmed line below those that have a remark."""
    with console.capture() as capture:
        console.print(grid)
    head, *rows = capture.get().splitlines()
    console.out(head, highlight=False)
    for row, line in zip(rows, lines, strict=True):
        console.out(row, highlight=False)
        if line:
            console.print(Text(f"  {line}", "dim"))


def _because(label: LabelChange, most: int = 3) -> str:
    """What changed, or why that is unclear."""
    return (
        label.reason
        if label.verdict == "unclear"
        else where(label, most)
        if label.verdict != "same"
        else ""
    )


def between(total: Change) -> str:
    """The bounds relative to the time before: "-80.1 to -70.3 %"."""
    if not total.before_ns:
        return ""
    return change_between(total.low_ns / total.before_ns, total.high_ns / total.before_ns)
