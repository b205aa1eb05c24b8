"""A comparison of ranks in a terminal: labels by ranks, and below each what the ranks say about it.

label      n   rank 0   rank 1    spread   waits  slowest
               median us
step      20  6105.20  6104.91    0.30    4810.2  .
  rank 0 waits 4.81 ms of 6.11 ms (79 %) in collectives for rank 1, the last to arrive in 20 of 20
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsysalign.report.ranks_document import clock_words, headline, ordered, verdict
from nsysalign.text import duration, fixed, middle, plural, safe_text

if TYPE_CHECKING:
    from rich.console import Console

    from nsysalign.ranks.results import LabelComparison, RankComparison

#: A column per rank needs this many characters; with more ranks than fit, the fastest and the slowest are named.
_RANK_WIDTH = 11
_OTHER_WIDTH = 44
_MOST_LABELS = 30
_MOST_WAITS = 8
_MOST_NOTES = 8
_MOST_CLOCKS = 8


def render(comparison: RankComparison, console: Console, report_path: str | None = None) -> None:
    """Print the comparison."""
    from rich.text import Text

    console.print(Text(headline(comparison), "bold"))
    for failure in comparison.failures:
        console.print(
            Text(f"left out: {safe_text(failure.source)}: {safe_text(failure.failure)}", "bold red")
        )
        if failure.next_step:
            console.print(Text(f"  next: {safe_text(failure.next_step)}", "red"))
    if comparison.labels:
        console.print()
        _table(comparison, console)
    if comparison.waits:
        console.print()
        _waits(comparison, console)
    if len(comparison.clocks) > 1:
        console.print()
        _clocks(comparison, console)
    for note in comparison.notes[:_MOST_NOTES]:
        console.print(Text(f"note: {safe_text(note)}", "dim"))
    if len(comparison.notes) > _MOST_NOTES:
        console.print(Text(f"{len(comparison.notes) - _MOST_NOTES} more notes in ranks.json", "dim"))
    if report_path:
        console.print(Text(f"report: {safe_text(report_path)}"), soft_wrap=True)


def _table(comparison: RankComparison, console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    numbers = [rank.number for rank in comparison.ranks]
    wide = len(numbers) * _RANK_WIDTH + _OTHER_WIDTH <= console.width
    heads = [f"rank {n}" for n in numbers] if wide else ["fastest", "rank", "slowest", "rank"]
    labels = ordered(comparison)
    shown = labels[:_MOST_LABELS]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="")
    grid.add_column("label", no_wrap=True)
    for head in ("n", *heads, "spread", "waits"):
        grid.add_column(head, justify="right", no_wrap=True)
    grid.add_row("", "", *(["us"] * len(heads) if wide else ["us", "", "us", ""]), "us", "us", style="dim")
    room = max(10, console.width - (len(heads) * _RANK_WIDTH if wide else 38) - 28)
    for label in shown:
        cells = _ranks(label, numbers) if wide else _ends(label)
        waits = max(row.wait_median_ns for row in label.ranks)
        grid.add_row(
            Text(middle(safe_text(label.label), room)),
            str(label.repetitions),
            *cells,
            fixed(label.spread_ns),
            fixed(waits),
            style="dim" if label.library else "",
        )
    with console.capture() as capture:
        console.print(grid)
    lines = capture.get().splitlines()
    for line in lines[:2]:
        console.out(line.rstrip(), highlight=False)
    for line, label in zip(lines[2:], shown, strict=True):
        console.out(line.rstrip(), highlight=False)
        said = verdict(label)
        if said != "even":
            style = "yellow" if label.verdict in ("waits", "slowest") and not label.library else "dim"
            console.print(Text(f"  {safe_text(said)}", style))
    if len(labels) > len(shown):
        console.print(Text(f"{plural(len(labels) - len(shown), 'label')} more in the report", "dim"))
    console.print(
        Text("medians; waits: of the rank that waits most, in collectives for the last rank to arrive", "dim")
    )


def _ranks(label: LabelComparison, numbers: list[int]) -> list:
    from rich.text import Text

    by_rank = {row.rank: row for row in label.ranks}
    return [
        Text(fixed(by_rank[n].times.median_ns), "bold" if n == label.slowest else "")
        if n in by_rank
        else Text("-", "dim")
        for n in numbers
    ]


def _ends(label: LabelComparison) -> list[str]:
    rows = sorted(label.ranks, key=lambda row: row.times.median_ns)
    return [text for row in (rows[0], rows[-1]) for text in (fixed(row.times.median_ns), str(row.rank))]


def _waits(comparison: RankComparison, console: Console) -> None:
    from rich.text import Text

    total = sum(wait.wait_ns for wait in comparison.waits)
    console.print(Text(f"who waits for whom, all collectives together ({duration(total)}):"))
    for wait in comparison.waits[:_MOST_WAITS]:
        console.print(
            Text(
                f"  rank {wait.rank} for rank {wait.waits_for}: {duration(wait.wait_ns)} in "
                f"{plural(wait.collectives, 'collective')}"
            )
        )
    if len(comparison.waits) > _MOST_WAITS:
        console.print(Text(f"  {len(comparison.waits) - _MOST_WAITS} more pairs in the report", "dim"))


def _clocks(comparison: RankComparison, console: Console) -> None:
    from rich.text import Text

    checked = [clock for clock in comparison.clocks if clock.method == "collectives"]
    unchecked = [clock for clock in comparison.clocks if clock.method in ("session start", "none")]
    for clock in (*unchecked, *checked)[:_MOST_CLOCKS]:
        console.print(Text(f"clock of {safe_text(clock.source)}: {safe_text(clock_words(clock))}", "dim"))
    if len(checked) + len(unchecked) > _MOST_CLOCKS:
        console.print(
            Text(f"{len(checked) + len(unchecked) - _MOST_CLOCKS} more clocks in ranks.json", "dim")
        )
