"""The answer in a terminal: header, one table row per label, findings, what could not be placed.

    label            n   event  kernel  launch  latency    host   event
                            us      us      us       us      us      us
    t1 puzzle.py:14  6  234.72   24.77   28.31        .  174.50    7.15  !

Fits 80 columns and uses more where there are more. All foreign text passes `safe_text` and is added as
`Text`, never as rich markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysalign.model import Analysis
from nsysalign.report import beside_terminal, table, whole
from nsysalign.report.clocks import summary
from nsysalign.report.rows import label_rows, placed_within_ns, unaligned_reasons
from nsysalign.report.verdict import SEVERITIES, evidence_text
from nsysalign.store.confirmations import NOT_CONFIRMED, statuses
from nsysalign.text import duration, middle, plural, safe_text

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.text import Text

#: Findings printed in full: so many errors and warnings, or so many in all where there are fewer; the page has the rest.
MAX_SERIOUS, MAX_REMARKS = 6, 3
#: Rows of runs where nothing was measured.
MOST_RUNS = 12
MARKS = {"error": ("!", "bold red"), "warning": ("!", "bold yellow"), "info": ("i", "bold blue")}


def render(
    analysis: Analysis, console: Console, report_path: str | None = None, *, max_labels: int | None = 60
) -> None:
    """Print the analysis.  `max_labels` bounds the table; what it leaves out is counted below it."""
    rows = label_rows(analysis)
    _header(analysis, console, len(rows), report_path)
    _run(analysis, console)
    if rows:
        console.print()
        table.render(rows[:max_labels], console)
        left_out = len(rows) - len(rows[:max_labels])
        if left_out:
            console.print(_text(f"  … {plural(left_out, 'more label')} in the report", "dim"))
    elif len(analysis.runs):
        console.print()
        table.render(whole.run_rows(analysis)[:MOST_RUNS], console)
        _what_ran(analysis, console)
    else:
        console.print(_text("  no interval was placed", "yellow"))
    beside_terminal.render(analysis, console, max_labels=max_labels)
    _findings(analysis, console)
    _unaligned(analysis, console)
    _notes(analysis, console)


def _run(analysis: Analysis, console: Console) -> None:
    """The run as a whole: what was recorded, before what was measured in it."""
    said = whole.sentences(analysis)
    if said:
        console.print()
    for sentence in said:
        console.print(_text(sentence), soft_wrap=False)


def _what_ran(analysis: Analysis, console: Console) -> None:
    """Kernels and gaps: where nothing was measured they are the answer, else the page has them."""
    for lines in (whole.kernel_lines(analysis), whole.gap_lines(analysis)):
        if lines:
            console.print()
        for line in lines:
            console.print(_text("  " + line), no_wrap=True, overflow="ellipsis")


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style=style)


def _header(analysis: Analysis, console: Console, labels: int, report_path: str | None) -> None:
    info = analysis.trace
    devices = ", ".join(dict.fromkeys(safe_text(d) for d in info.devices)) or "no GPU named"
    words = [
        devices,
        f"nsys {safe_text(info.nsys_version)}" if info.nsys_version else "nsys",
        f"{plural(len(analysis.measured), 'interval')} in {plural(labels, 'label')}",
    ]
    within = placed_within_ns(analysis)
    if within is not None:
        words.append(f"events placed within {duration(within)}")
    if len(analysis.gpu_clocks):
        words.append(f"SM clock {summary(analysis)}")
    left = ", ".join(words)
    if report_path is None:
        console.print(_text(left, "bold"))
        return
    right = f"report: {safe_text(report_path)}"
    gap = console.width - len(left) - len(right)
    if gap >= 3:
        console.print(_text(left, "bold") + _text(" " * gap + right))
    else:
        console.print(_text(left, "bold"))
        console.print(_text(right), soft_wrap=True)  # a path that is broken over lines cannot be copied


def _findings(analysis: Analysis, console: Console) -> None:
    order = {severity: number for number, severity in enumerate(SEVERITIES)}
    both = zip(analysis.findings.itertuples(index=False), statuses(analysis), strict=True)
    known = sorted(both, key=lambda pair: order.get(pair[0].severity, len(order)))
    findings = [finding for finding, _ in known]
    shown = _worth_printing(findings)
    for finding, status in known[: len(shown)]:
        mark, style = MARKS.get(finding.severity, MARKS["info"])
        site = f"  ({safe_text(finding.site)})" if finding.site and finding.site not in finding.title else ""
        console.print()
        _hanging(console, mark, f"{safe_text(finding.title)}{site}", style)
        evidence = ", ".join(f"{what} {number}" for what, number in evidence_text(finding.evidence))
        for head, body in (("Evidence:", evidence), ("Change:", safe_text(finding.advice))):
            if body:
                _hanging(console, f"  {head:<9}", body, "dim")
        if status.text:
            head = "Confirm:" if status.verdict == NOT_CONFIRMED else f"{status.verdict.capitalize()}:"
            _hanging(console, f"  {head:<9}", safe_text(status.text), "dim")
    if any(status.verdict == NOT_CONFIRMED for _, status in known[: len(shown)]):
        console.print()
        console.print(_text("Advice is not confirmed by a re-run unless it says so.", "dim"))
    left = findings[len(shown) :]
    if left:
        serious = sum(f.severity != "info" for f in left)
        kinds = f"{plural(serious, 'warning')}, " if serious else ""
        console.print()
        console.print(
            _text(f"… and {kinds}{plural(len(left) - serious, 'remark')} more in the report", "dim")
        )


def confirmations(table: pd.DataFrame, console: Console) -> None:
    """What re-runs said, one paragraph each."""
    looks = {"confirmed": "bold green", "refuted": "bold red"}
    for c in table.itertuples(index=False):
        console.print()
        causes = ", ".join(c.rules) or "its cause"
        _hanging(
            console,
            safe_text(f"{c.verdict}:"),
            safe_text(f"{c.label} ({causes}): {c.reason}"),
            looks.get(c.verdict, "bold yellow"),
        )
        _hanging(console, "  Changed: ", safe_text(c.changed), "dim")


def _worth_printing(findings: list) -> list:
    """What a screen should say: errors and warnings first; remarks only where there is room for them."""
    serious = [f for f in findings if f.severity != "info"]
    return findings[: max(min(len(serious), MAX_SERIOUS), MAX_REMARKS)]


def _unaligned(analysis: Analysis, console: Console) -> None:
    count = len(analysis.unaligned)
    if not count:
        return
    console.print()
    console.print(_text(f"{plural(count, 'interval')} could not be placed:", "yellow"))
    for reason, number, names in unaligned_reasons(analysis):
        examples = ", ".join(middle(safe_text(name), 30) for name in names)
        _hanging(console, f"  {number:>5,}", f"{safe_text(reason)}  ({examples})", "")


def _notes(analysis: Analysis, console: Console) -> None:
    notes = [safe_text(note) for note in (*analysis.trace.notes, *analysis.notes)]
    if analysis.trace.missing:
        notes.append("not in the trace: " + ", ".join(safe_text(m) for m in analysis.trace.missing))
    if notes:
        console.print()
    for note in dict.fromkeys(notes):
        _hanging(console, "note:", note, "dim")


def _hanging(console: Console, head: str, body: str, style: str) -> None:
    """`head` once, `body` wrapped beside it."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(_text(head, style), _text(body))
    console.print(grid)
