"""The answer in a terminal: header, one table row per label, findings, what could not be placed,
the report's path.

    label            n    time  w/o nsys  kernel  launch  latency    host   event
                            us        us      us      us       us      us      us
    t1 puzzle.py:14  6  234.72   198 ±25   24.77   28.31        .  174.50    7.15  !

Fits 80 columns and uses more where there are more. All foreign text passes `safe_text` and is added
as `Text`, never as rich markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsysalign.explain.finding import NOT_CONFIRMED
from nsysalign.model import Analysis
from nsysalign.parts import parts_matrix
from nsysalign.show import answers, baseline, overview, table
from nsysalign.show.clock_chart import summary
from nsysalign.show.rows import LabelRow, counted, label_rows, placed_within_ns, unaligned_reasons
from nsysalign.show.verdict import Card, Entry, advices, cards, spent, verdicts
from nsysalign.text import duration, middle, plural, safe_text

if TYPE_CHECKING:
    pass

#: Findings printed in full, and labels named if a finding is about several; the page has all.
MOST_FINDINGS, MOST_NAMED = 5, 4
#: Rows of runs if nothing was measured.
MOST_RUNS = 12
MARKS = {"error": ("!", "bold red"), "warning": ("!", "bold yellow"), "info": ("i", "bold blue")}


def render(
    analysis: Analysis,
    console: Console,
    report_path: str | None = None,
    *,
    max_labels: int | None = 60,
    only: tuple[str, str] | None = None,
) -> None:
    """Print the analysis.  `max_labels` bounds the table; what it leaves out is counted below it.

    `only`: a label and a rule, if one finding is to be printed and the others are to be counted.
    """
    labels = label_rows(analysis)
    rows = answers.told_apart(analysis, labels)
    _header(analysis, console)
    first = overview.headline(analysis, labels, parts_matrix(analysis))
    console.print()
    console.print(Text(first["text"]))  # the run as a whole
    if rows:
        console.print()
        table.render(rows[:max_labels], console)
        left_out = len(rows) - len(rows[:max_labels])
        if left_out:
            console.print(Text(f"  … {plural(left_out, 'more row')} in the report", "dim"))
    elif len(analysis.runs):
        console.print()
        table.render(overview.run_rows(analysis)[:MOST_RUNS], console)
    else:
        console.print(Text("  no interval was placed", "yellow"))
    if first["untimed"] or not rows:
        _what_ran(analysis, console)
    _listed(answers.range_lines(analysis, console.width - 2), console)
    baseline.render(analysis, console, max_labels=max_labels)
    _findings(analysis, console, labels, only)
    _unaligned(analysis, console)
    if only is None:
        _notes(analysis, console)
    if report_path is not None:
        _report(console, report_path)


def _report(console: Console, path: str) -> None:
    """The last line: what to open next, as a link if the terminal supports links."""
    from pathlib import Path

    link = Path(path).absolute().as_uri() if console.is_terminal else ""
    console.print()
    line = Text("report: ", "bold") + Text(safe_text(path), f"link {link}" if link else "")
    console.print(line, soft_wrap=True)  # a path that is broken over lines cannot be copied


def _what_ran(analysis: Analysis, console: Console) -> None:
    """Kernels and gaps of the run: where intervals do not say where its time went."""
    _listed(overview.kernel_lines(analysis, console.width - 2), console)
    _listed(overview.gap_lines(analysis), console)


def _listed(lines: list[str], console: Console) -> None:
    if lines:
        console.print()
    for line in lines:
        console.print(Padding(Text(line.rstrip()), (0, 0, 0, 2)))


def _header(analysis: Analysis, console: Console) -> None:
    info = analysis.trace
    devices = ", ".join(dict.fromkeys(safe_text(d) for d in info.devices)) or "no GPU named"
    words = [
        devices,
        f"nsys {safe_text(info.nsys_version)}" if info.nsys_version else "nsys",
        counted(analysis),
    ]
    within = placed_within_ns(analysis)
    if within is not None:
        words.append(f"events placed within {duration(within)}")
    if len(analysis.gpu_clocks):
        words.append(f"SM clock {summary(analysis)}")
    console.print(Text(", ".join(words), "bold"))


def _findings(
    analysis: Analysis, console: Console, rows: list[LabelRow], only: tuple[str, str] | None
) -> None:
    """The findings as the page ranks them: errors, warnings, notes, each by loss."""
    said = [v for v in verdicts(analysis, rows) if v.rule]
    known = {row.label: row for row in rows}
    found = spent(analysis, rows, parts_matrix(analysis))
    ranked = cards(said, found)
    chosen = [(card, entry) for card in ranked for entry in card.entries[:1]][:MOST_FINDINGS]
    if only is not None:
        mine = found.get(only[0])
        chosen = [
            (
                Card(v.rule, v.severity, v.loss_ns, ()),
                Entry(v, mine.count, mine.total_ns, (), "warm" if mine.cold else ""),
            )
            for v in said
            if (v.label, v.rule) == only and mine is not None
        ]
    source = dict(analysis.source_lines.itertuples(index=False))
    host = answers.host_sentences(analysis, found)
    for card, entry in chosen:
        console.print()
        # once per label: what its host did is the same for all its findings
        did = host.pop(entry.finding.label, "")
        _finding(card, entry, known.get(entry.finding.label), source, did, console)
    unconfirmed = [e.finding for _, e in chosen if e.finding.confirmation.startswith(NOT_CONFIRMED)]
    if unconfirmed:
        console.print()
        command = next((text for v in unconfirmed if (text := _command(v.confirmation))), "")
        test = " To test one:" if command else ""
        console.print(
            Text(
                f"Findings are read from one trace; none is confirmed unless it says so.{test}",
                "dim",
            )
        )
        if command:
            console.print(Text(f"      {command}", "cyan"), soft_wrap=True)  # to be copied
    spoken = {(e.finding.label, e.finding.rule) for c, first in chosen for e in (first, *c.entries)}
    left = [v for v in said if (v.label, v.rule) not in spoken]
    if left:
        serious = sum(v.severity != "info" for v in left)
        kinds = [plural(serious, "warning")] * bool(serious)
        kinds += [plural(len(left) - serious, "note")] * bool(len(left) - serious)
        console.print()
        console.print(Text(f"… and {' and '.join(kinds)} more in the report", "dim"))


def _finding(
    card: Card,
    entry: Entry,
    row: LabelRow | None,
    source: Mapping[str, str],
    did: str,
    console: Console,
) -> None:
    """Title, the line of code, what was lost, evidence, what the host did, both kinds of advice,
    the result of a second run."""
    v = entry.finding
    mark, style = MARKS.get(v.severity, MARKS["info"])
    named = not v.site or v.site in v.title or v.site in source
    site = "" if named else f"  ({safe_text(v.site)})"
    _hanging(console, mark, f"{safe_text(v.title)}{site}", style)
    if v.site in source:
        _hanging(console, "  Code:    ", f"{safe_text(v.site)}  {safe_text(source[v.site])}", "dim")
    if v.loss_ns:
        where = f"{entry.cold} interval".strip()
        measured = f" of {duration(entry.total_ns)} in {plural(entry.count, where)}" if row else ""
        _hanging(console, "  Loss:    ", f"at most {duration(v.loss_ns)}{measured}", "dim")
    if same := [e.finding.label for e in card.entries[1:]]:
        more = ", …" if len(same) > MOST_NAMED else ""
        text = ", ".join(map(safe_text, same[:MOST_NAMED])) + more
        _hanging(console, "  Also in: ", text, "dim")
    evidence = ", ".join(f"{what} {number}" for what, number in v.evidence)
    if evidence:
        _hanging(console, "  Evidence:", evidence, "dim")
    if did and row is not None and answers.host_matters(row):
        _hanging(console, "  Host:    ", did, "dim")
    for head, sentence, code in advices(v):
        _hanging(console, " ", f"{head}: {sentence[:1].lower()}{sentence[1:]}", "")
        for line in code:
            console.print(Text(f"      {line}", "cyan"), soft_wrap=True)
    if v.confirmation and not v.confirmation.startswith(NOT_CONFIRMED):
        verdict, _, text = v.confirmation.partition(": ")
        _hanging(console, f"  {verdict.capitalize()}:", safe_text(text), "dim")


def _command(confirmation: str) -> str:
    """The command to type, from "not confirmed: nsysalign confirm ..."."""
    return safe_text(confirmation.partition(": ")[2])


def _unaligned(analysis: Analysis, console: Console) -> None:
    count = len(analysis.unaligned)
    if not count:
        return
    console.print()
    console.print(Text(f"{plural(count, 'interval')} could not be placed:", "yellow"))
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
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(head, style), Text(body))
    console.print(grid)
