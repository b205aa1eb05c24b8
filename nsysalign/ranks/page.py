"""A comparison of ranks as plain data, for its JSON document and its page, and in the terminal."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsysalign.files import write_text
from nsysalign.private import short_path, without_paths
from nsysalign.ranks.compare import CLEAR_SHARE
from nsysalign.report.html import Page, assemble
from nsysalign.report.palette import LOOKS
from nsysalign.report.payload import cause_looks
from nsysalign.store.objects import to_json
from nsysalign.text import duration, fixed, middle, percent, plural, safe_text

if TYPE_CHECKING:
    from nsysalign.ranks.results import Clock, LabelComparison, RankComparison, RankLabel


FORMAT, VERSION = "nsysalign-ranks", 1
PAGE = Page("ranks.html", "format dom bars labels ranks", "nsysalign ranks: {}")
#: Ranks of which the page draws a repetition.
MOST_EXAMPLES = 32


def write(comparison: RankComparison, path: str | os.PathLike[str]) -> None:
    """Write the document; the file appears whole or not at all."""
    write_text(path, dumps(comparison))


def dumps(comparison: RankComparison) -> str:
    """The document as text.  The same ranks give the same bytes, however they were analysed."""
    return to_json(document(comparison)) + "\n"


def document(comparison: RankComparison) -> dict[str, Any]:
    """The document (docs/design.md): nanoseconds; `rank` is a rank's number, `source` a trace's name."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "ranks": [
            {
                "rank": r.number,
                "source": r.source,
                "pid": r.pid,
                "device": r.device,
                "intervals": r.intervals,
                "unplaced": r.unplaced,
                "collectives": r.collectives,
                "warnings": r.warnings,
                "report": comparison.reports.get(r.source, ""),
            }
            for r in comparison.ranks
        ],
        "clocks": [asdict(clock) for clock in comparison.clocks],
        "communicators": [
            {
                "name": c.name,
                "operation": c.operation,
                "collectives": c.count,
                "scatter_ns": c.scatter_ns,
                "members": [
                    {"rank": comparison.ranks[m.rank].number, "stream": m.stream, "lag": m.lag}
                    for m in c.members
                ],
            }
            for c in comparison.communicators
        ],
        "labels": [_label(label) for label in comparison.labels],
        "waits": [asdict(wait) for wait in comparison.waits],
        "failures": [  # the terminal shows whole paths; files that may be passed on do not
            {
                "source": f.source,
                "trace": short_path(f.trace),
                "failure": without_paths(f.failure),
                "next": without_paths(f.next_step),
            }
            for f in comparison.failures
        ],
        "notes": [without_paths(note) for note in comparison.notes],
    }


def _label(label: LabelComparison) -> dict[str, Any]:
    return {
        "label": label.label,
        "kind": label.kind,
        "site": label.site,
        "library": label.library,
        "verdict": label.verdict,
        "slowest": label.slowest,
        "waiting": label.waiting,
        "spread_ns": label.spread_ns,
        "repetitions": label.repetitions,
        "collectives": label.collectives,
        "ranks": [_rank_label(row) for row in label.ranks],
    }


def _rank_label(row: RankLabel) -> dict[str, Any]:
    t = row.times
    return {
        "rank": row.rank,
        "count": t.count,
        "elapsed": {
            name: getattr(t, name)
            for name in ("median_ns", "mean_ns", "min_ns", "max_ns", "p05_ns", "p95_ns")
        },
        "parts_mean_ns": t.parts_mean_ns,
        "collectives": row.collectives,
        "wait_ns": row.wait_ns,
        "wait_median_ns": row.wait_median_ns,
        "waits_for_ns": row.waits_for,
        "arrived_last": row.last,
        "slowest_in": row.slowest,
    }


# --- words ---


def ordered(comparison: RankComparison) -> list[LabelComparison]:
    """Labels by the time lost per repetition, largest first; even ones, and those timed by libraries, come last."""
    return sorted(
        comparison.labels,
        key=lambda label: (
            label.library,
            label.verdict in ("even", "alone"),
            -lost(label),
            label.label,
        ),
    )


def lost(label: LabelComparison) -> float:
    """What the ranks' difference costs one repetition: the longest wait, or the spread."""
    return max([label.spread_ns, *(row.wait_median_ns for row in label.ranks)])


def row_of(label: LabelComparison, rank: int) -> RankLabel:
    return next(row for row in label.ranks if row.rank == rank)


def verdict(label: LabelComparison) -> str:
    """One line: what the ranks say about a label."""
    if label.verdict == "alone":
        return f"only rank {label.ranks[0].rank} measured it"
    if label.verdict == "even":
        return "even"
    if label.verdict == "waits":
        waiting = row_of(label, label.waiting)
        late = next(iter(waiting.waits_for))
        share = percent(waiting.wait_median_ns / max(waiting.times.median_ns, 1))
        said = (
            f"rank {waiting.rank} waits {duration(waiting.wait_median_ns)} of "
            f"{duration(waiting.times.median_ns)} ({share}) in collectives"
        )
        mostly = waiting.waits_for[late] / max(sum(waiting.waits_for.values()), 1)
        if mostly < 0.6:
            return f"{said}, for different ranks"
        said = f"{said} for rank {late}"
        if late not in {row.rank for row in label.ranks}:
            return said
        row = row_of(label, late)
        return f"{said}, the last to arrive in {row.last} of {label.collectives}{_because(row, waiting)}"
    longest = max(label.ranks, key=lambda row: row.times.median_ns)
    often = f"slowest in {longest.slowest} of {label.repetitions}"
    if label.repetitions < 3:
        return f"rank {longest.rank} took longest; {plural(label.repetitions, 'interval')} cannot tell whether it always does"
    if (
        label.verdict == "unclear"
        and not label.collectives
        and longest.slowest >= CLEAR_SHARE * label.repetitions
    ):
        return f"rank {longest.rank} is {often}, in collectives that could not be matched: it may be the one that waits"
    if label.verdict == "unclear":
        return f"rank {longest.rank} has the longest median, but is {often} only"
    fastest = min(label.ranks, key=lambda row: row.times.median_ns)
    return f"rank {longest.rank} is {often}{_because(longest, fastest)}"


def _because(slow: RankLabel, quick: RankLabel) -> str:
    """The cause with the largest excess of a slow rank over a fast one."""
    a, b = slow.times.parts_mean_ns, quick.times.parts_mean_ns
    more = {cause: a.get(cause, 0) - b.get(cause, 0) for cause in {*a, *b}}
    cause, ns = max(more.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return f": {LOOKS[cause].short} +{duration(ns)} on average" if ns > 0 else ""


def headline(comparison: RankComparison) -> str:
    """ "4 ranks of 4 traces, 12 labels, clocks joined on 96 collectives within 1.8 us"."""
    traces = {rank.source for rank in comparison.ranks}
    pieces = [
        f"{plural(len(comparison.ranks), 'rank')} of {plural(len(traces), 'trace')}",
        plural(len(comparison.labels), "label"),
    ]
    joined = [clock for clock in comparison.clocks if clock.method == "collectives"]
    if joined:
        worst = max(clock.error_ns or 0 for clock in joined)
        fewest = min(clock.collectives for clock in joined)
        pieces.append(f"clocks joined on {plural(fewest, 'collective')}, within {duration(worst)}")
    elif len(comparison.clocks) > 1:
        pieces.append("clocks not checked")
    return ", ".join(pieces)


def clock_words(clock: Clock) -> str:
    """How accurate one trace's clock is."""
    if clock.method == "reference":
        return "the reference for the others"
    if clock.method == "collectives":
        drift = f", drifting {clock.drift * 1e6:+.1f} us/s" if clock.drift else ""
        return (
            f"moved by {duration(clock.correction_ns)} on {plural(clock.collectives, 'collective')}{drift}: 95 % of "
            f"their ends agree within {duration(clock.error_ns)} with {clock.root}"
        )
    why = f": {clock.reason}" if clock.reason else ""
    if clock.method == "none":
        return f"no session start: times cannot be compared with other traces{why}"
    return f"taken from its session start, not checked{why}"


def write_page(comparison: RankComparison, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    write_text(path, page(comparison))


def page(comparison: RankComparison) -> str:
    """The whole page as text: self-contained and small; it links to the ranks' own pages."""
    return assemble(PAGE, page_data(comparison))


def page_data(comparison: RankComparison) -> dict[str, Any]:
    """The page's data: the document with foreign text made plain, sentences, links, and the looks of the causes."""
    data = document(comparison)
    causes = {
        cause
        for label in comparison.labels
        for row in label.ranks
        for cause in row.times.parts_mean_ns
    }
    for rank in data["ranks"]:
        rank["href"] = quote(rank.pop("report"))
        rank["source"] = safe_text(rank["source"])
        rank["warnings"] = [safe_text(w) for w in rank["warnings"]]
    labels = []
    for label in ordered(comparison):
        texts = {key: safe_text(getattr(label, key)) for key in ("label", "site")}
        example = [asdict(rank) for rank in label.example[:MOST_EXAMPLES]]
        more = {"said": safe_text(verdict(label)), "example": example}
        labels.append(_label(label) | texts | more)
    return {
        "title": headline(comparison),
        "ranks": data["ranks"],
        "clocks": [
            {"source": safe_text(c.source), "method": c.method, "said": safe_text(clock_words(c))}
            for c in comparison.clocks
        ],
        "communicators": data["communicators"],
        "labels": labels,
        "waits": data["waits"],
        "failures": [
            {key: safe_text(value) for key, value in failure.items()}
            for failure in data["failures"]
        ],
        "notes": [safe_text(note) for note in data["notes"]],
        "causes": cause_looks(causes or {"kernel"}),
    }


#: A column per rank needs this many characters; with more ranks than fit, the fastest and the slowest are named.
_RANK_WIDTH = 12
_OTHER_WIDTH = 44
_MOST_LABELS = 30
_MOST_WAITS = 8
_MOST_NOTES = 8
_MOST_CLOCKS = 8


def render(comparison: RankComparison, console: Console, report_path: str | None = None) -> None:
    """Print the comparison: labels by ranks, and below each what the ranks say about it.

    label      n   rank 0   rank 1    spread   waits
                       us       us        us      us
    step      20  6105.20  6104.91    0.30    4810.2
      w/o nsys    5210 ±310  5209 ±310
      rank 0 waits 4.81 ms of 6.11 ms (79 %) in collectives for rank 1, the last to arrive in 20 of 20
    """
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
        console.print(
            Text(f"{len(comparison.notes) - _MOST_NOTES} more notes in ranks.json", "dim")
        )
    if report_path:
        console.print(Text(f"report: {safe_text(report_path)}"), soft_wrap=True)


def _table(comparison: RankComparison, console: Console) -> None:
    numbers = [rank.number for rank in comparison.ranks]
    wide = len(numbers) * _RANK_WIDTH + _OTHER_WIDTH <= console.width
    heads = [f"rank {n}" for n in numbers] if wide else ["fastest", "rank", "slowest", "rank"]
    labels = ordered(comparison)
    shown = labels[:_MOST_LABELS]
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="")
    grid.add_column("label", no_wrap=True)
    for head in ("n", *heads, "spread", "waits"):
        grid.add_column(head, justify="right", no_wrap=True)
    grid.add_row(
        "", "", *(["us"] * len(heads) if wide else ["us", "", "us", ""]), "us", "us", style="dim"
    )
    room = max(10, console.width - (len(heads) * _RANK_WIDTH if wide else 38) - 28)
    for label in shown:
        waits = max(row.wait_median_ns for row in label.ranks)
        dim = "dim" if label.library else ""
        grid.add_row(
            Text(middle(safe_text(label.label), room)),
            str(label.repetitions),
            *(_ranks(label, numbers) if wide else _ends(label)),
            fixed(label.spread_ns),
            fixed(waits),
            style=dim,
        )
    with console.capture() as capture:
        console.print(grid)
    lines = capture.get().splitlines()
    for line in lines[:2]:
        console.out(line.rstrip(), highlight=False)
    for at, label in enumerate(shown):
        console.out(lines[2 + at].rstrip(), highlight=False)
        said = verdict(label)
        if said != "even":
            style = (
                "yellow" if label.verdict in ("waits", "slowest") and not label.library else "dim"
            )
            console.print(Padding(Text(safe_text(said), style), (0, 0, 0, 2)))
    if len(labels) > len(shown):
        console.print(
            Text(f"{plural(len(labels) - len(shown), 'label')} more in the report", "dim")
        )
    console.print(
        Text(
            "medians; waits: of the rank that waits most, in collectives for the last rank to arrive",
            "dim",
        )
    )


def _shown(label: LabelComparison, numbers: list[int], wide: bool) -> list[RankLabel | None]:
    """The ranks that have a column: all, or the fastest and the slowest."""
    if wide:
        by_rank = {row.rank: row for row in label.ranks}
        return [by_rank.get(n) for n in numbers]
    rows = sorted(label.ranks, key=lambda row: row.times.median_ns)
    return [rows[0], rows[-1]]


def _ranks(label: LabelComparison, numbers: list[int]) -> list:
    return [
        Text("-", "dim")
        if row is None
        else Text(fixed(row.times.median_ns), "bold" if row.rank == label.slowest else "")
        for row in _shown(label, numbers, wide=True)
    ]


def _ends(label: LabelComparison) -> list[str]:
    rows = [row for row in _shown(label, [], wide=False) if row is not None]
    return [text for row in rows for text in (fixed(row.times.median_ns), str(row.rank))]


def _waits(comparison: RankComparison, console: Console) -> None:
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
        console.print(
            Text(f"  {len(comparison.waits) - _MOST_WAITS} more pairs in the report", "dim")
        )


def _clocks(comparison: RankComparison, console: Console) -> None:
    checked = [clock for clock in comparison.clocks if clock.method == "collectives"]
    unchecked = [clock for clock in comparison.clocks if clock.method in ("session start", "none")]
    for clock in (*unchecked, *checked)[:_MOST_CLOCKS]:
        console.print(
            Text(f"clock of {safe_text(clock.source)}: {safe_text(clock_words(clock))}", "dim")
        )
    if len(checked) + len(unchecked) > _MOST_CLOCKS:
        console.print(
            Text(f"{len(checked) + len(unchecked) - _MOST_CLOCKS} more clocks in ranks.json", "dim")
        )
