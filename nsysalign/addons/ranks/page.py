"""A comparison of ranks in words, as its JSON document, as its page, and in the terminal."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsysalign.addons.ranks.compare import CLEAR_SHARE, EVEN_SHARE
from nsysalign.paths import short_path, without_paths
from nsysalign.show.html import Page, assemble
from nsysalign.show.palette import LOOKS
from nsysalign.show.payload import cause_looks
from nsysalign.store.objects import to_json
from nsysalign.text import duration, fixed, middle, percent, plural, safe_text

if TYPE_CHECKING:
    from nsysalign.addons.ranks.results import Clock, LabelComparison, RankComparison, RankLabel

FORMAT, VERSION = "nsysalign-ranks", 2
PAGE = Page("ranks.html", "format dom bars labels ranks", "nsysalign ranks: {}")


def dumps(comparison: RankComparison) -> str:
    """The document as text.  The same ranks give the same bytes, however they were analysed."""
    return to_json(document(comparison)) + "\n"


def document(comparison: RankComparison) -> dict[str, Any]:
    """The document (docs/formats.md): the records of results.py, times in ns, and the verdict in
    words."""
    failures = [  # the terminal shows whole paths; files that may be passed on do not
        {
            "source": f.source,
            "trace": short_path(f.trace),
            "failure": without_paths(f.failure),
            "next": without_paths(f.next_step),
        }
        for f in comparison.failures
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        "verdict": conclusion(comparison)._asdict(),
        **asdict(comparison),
        "failures": failures,
        "notes": [without_paths(note) for note in comparison.notes],
    }


def page(comparison: RankComparison) -> str:
    """The whole page as text: self-contained and small; it links to the ranks' own pages."""
    data = _plain(document(comparison))
    labels = {label["label"]: label for label in data["labels"]}
    causes = {c for label in comparison.labels for row in label.ranks for c in row.parts_mean_ns}
    for rank in data["ranks"]:
        rank["href"] = quote(rank["report"])
    return assemble(
        PAGE,
        {
            **data,
            "title": size(comparison),
            "clocks": [
                {"source": safe_text(c.source), "method": c.method, "words": safe_text(accuracy(c))}
                for c in comparison.clocks
            ],
            "labels": [
                {**labels[safe_text(label.label)], "words": safe_text(verdict(label))}
                for label in ordered(comparison)
            ],
            "causes": cause_looks(causes or {"kernel"}),
        },
    )


def _plain(value: Any) -> Any:
    """The same with foreign text free of control characters."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return safe_text(value) if isinstance(value, str) else value


# --- words ---


class Conclusion(NamedTuple):
    """What the comparison says first: who is slow, who waits and what that costs; what to do about
    it, '' if nothing."""

    text: str
    advice: str


_BUSY_HOST = (
    "see what keeps rank {0}'s calls: a busy core, another process, a debug or profiling setting"
)
_UNEQUAL = (
    "give the ranks equal work (batch, sequence lengths, experts), or compare their GPUs' clocks "
    "and power"
)
#: cause that a slow rank has more of -> what to do.
ADVICE = {
    "host": "see what rank {0}'s process does there and the others do not: loading data, logging, "
    "collecting garbage",
    **dict.fromkeys(("api_launch", "api", "launch_latency", "event"), _BUSY_HOST),
    **dict.fromkeys(("kernel", "graph"), _UNEQUAL),
    **dict.fromkeys(
        ("memcpy", "memset"), "see what rank {0} copies, and whether its memory is pinned"
    ),
}
_LOOK = "see rank {0}'s own report"


def conclusion(comparison: RankComparison) -> Conclusion:
    """The label that loses most time decides, else what the collectives say over the whole
    trace."""
    own = [label for label in ordered(comparison) if not label.library]
    telling = [label for label in own if label.verdict in ("waits", "slowest")]
    total = sum(wait.wait_ns for wait in comparison.waits)
    cost = f"; all waits in collectives together: {duration(total)}" if total else ""
    if not telling:
        if total:
            most = comparison.waits[0]
            text = (
                f"No label shows a slow rank, but rank {most.rank} waited {duration(most.wait_ns)} "
                f"for rank {most.waits_for} in {plural(most.collectives, 'collective')}{cost}"
            )
            return Conclusion(text, _LOOK.format(most.waits_for))
        both = [label for label in own if label.verdict != "alone"]
        if not both:
            return Conclusion("Nothing to compare: no label was measured by two ranks", "")
        if all(label.verdict == "even" for label in both):
            text = (
                f"No rank is slow: medians of {plural(len(both), 'label')} within "
                f"{percent(EVEN_SHARE)}"
            )
            return Conclusion(text, "")
        return Conclusion("No rank is clearly slow", "")
    label = telling[0]
    if label.verdict == "waits":
        waiting = row_of(label, label.waiting)
        late, share = late_rank(waiting)
        part = percent(waiting.wait_median_ns / max(waiting.elapsed["median_ns"], 1))
        waits = (
            f"rank {waiting.rank} waits {duration(waiting.wait_median_ns)} of "
            f"{duration(waiting.elapsed['median_ns'])} ({part}) of {label.label} in collectives for"
        )
        if share < CLEAR_SHARE:
            text = f"No one rank is slow: {waits} different ranks{cost}"
            return Conclusion(text, _UNEQUAL)
        text, others = f"Rank {late} is slow: {waits} it", waiting
    else:
        late = label.slowest
        others = min(label.ranks, key=lambda row: row.elapsed["median_ns"])
        slow = row_of(label, late)
        text = (
            f"Rank {late} is slow: {label.label} takes {duration(slow.elapsed['median_ns'])} "
            f"there, {duration(others.elapsed['median_ns'])} on rank {others.rank}"
        )
    more = excess(row_of(label, late), others) if late in [r.rank for r in label.ranks] else None
    if more is None:
        return Conclusion(text + cost, _LOOK.format(late))
    advice = ADVICE.get(more.cause, _LOOK).format(late)
    return Conclusion(f"{text}; {more.text}{cost}", advice)


class Excess(NamedTuple):
    """What a slow rank has more of than another one."""

    cause: str
    text: str


def excess(slow: RankLabel, other: RankLabel) -> Excess | None:
    """The cause that makes a rank slow; None if none explains half of the difference.

    Who waits inside NCCL's kernels has kernel time for it that is no work, where they run on the
    interval's own stream:

        waits for it   kernel ####  kernel (NCCL, waits) ==========     kernel 14, of which 10 wait
        slow           kernel ############  NCCL ==                     kernel 14
    """
    a, b = slow.parts_mean_ns, other.parts_mean_ns
    waited = other.wait_ns / other.count - slow.wait_ns / slow.count
    lost = max(waited, slow.elapsed["mean_ns"] - other.elapsed["mean_ns"])
    more = {cause: a.get(cause, 0) - b.get(cause, 0) for cause in {*a, *b} - {"queued", "sync"}}
    cause, ns = max(more.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    elsewhere = b.get("queued", 0) + b.get("sync", 0) - a.get("queued", 0) - a.get("sync", 0)
    if ns < lost / 2 and waited > 0 and elsewhere < waited / 2:
        cause, ns = "kernel", more.get("kernel", 0) + waited
    if ns <= 0 or ns < lost / 2:
        return None
    return Excess(cause, f"{LOOKS[cause].short} +{duration(ns)} on average")


def late_rank(waiting: RankLabel) -> tuple[int, float]:
    """(rank that is waited for most, its share of the waits)."""
    late = next(iter(waiting.waits_for_ns))
    return late, waiting.waits_for_ns[late] / max(sum(waiting.waits_for_ns.values()), 1)


def ordered(comparison: RankComparison) -> list[LabelComparison]:
    """Labels by what the ranks' difference costs a repetition: the longest wait, or the spread;
    even ones, and those timed by libraries, come last."""

    def place(label: LabelComparison) -> tuple[bool, bool, float, str]:
        lost = max([label.spread_ns, *(row.wait_median_ns for row in label.ranks)])
        return label.library, label.verdict in ("even", "alone"), -lost, label.label

    return sorted(comparison.labels, key=place)


def row_of(label: LabelComparison, rank: int | None) -> RankLabel:
    return next(row for row in label.ranks if row.rank == rank)


def verdict(label: LabelComparison) -> str:
    """One line: what the ranks say about a label."""
    if label.verdict == "alone":
        return f"only rank {label.ranks[0].rank} measured it"
    if label.verdict == "even":
        return "even"
    if label.verdict == "waits":
        waiting = row_of(label, label.waiting)
        late, share = late_rank(waiting)
        part = percent(waiting.wait_median_ns / max(waiting.elapsed["median_ns"], 1))
        text = f"rank {waiting.rank} waits {part} of its time in collectives"
        if share < CLEAR_SHARE:
            return f"{text}, for different ranks"
        text = f"{text} for rank {late}"
        if late not in {row.rank for row in label.ranks}:
            return text
        row = row_of(label, late)
        more = excess(row, waiting)
        text += f", the last to arrive in {row.arrived_last} of {label.collectives}"
        return f"{text}: {more.text}" if more else text
    longest = max(label.ranks, key=lambda row: row.elapsed["median_ns"])
    often = f"slowest in {longest.slowest_in} of {label.repetitions}"
    if label.repetitions < 3:
        return (
            f"rank {longest.rank} took longest; {plural(label.repetitions, 'interval')} cannot "
            "tell whether it always does"
        )
    if label.verdict == "unclear":
        if not label.collectives and longest.slowest_in >= CLEAR_SHARE * label.repetitions:
            return (
                f"rank {longest.rank} is {often}, in collectives that could not be matched: it may "
                "be the one that waits"
            )
        return f"rank {longest.rank} has the longest median, but is {often} only"
    more = excess(longest, min(label.ranks, key=lambda row: row.elapsed["median_ns"]))
    return f"rank {longest.rank} is {often}" + (f": {more.text}" if more else "")


def size(comparison: RankComparison) -> str:
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


def accuracy(clock: Clock) -> str:
    """How accurate one trace's clock is."""
    if clock.method == "reference":
        return "the reference for the others"
    if clock.method == "collectives":
        drift = f", drifting {clock.drift * 1e6:+.1f} us/s" if clock.drift else ""
        return (
            f"moved by {duration(clock.correction_ns)} on "
            f"{plural(clock.collectives, 'collective')}{drift}: 95 % of their ends agree within "
            f"{duration(clock.error_ns)} with {clock.root}"
        )
    why = f": {clock.reason}" if clock.reason else ""
    if clock.method == "none":
        return f"no session start: times cannot be compared with other traces{why}"
    return f"taken from its session start, not checked{why}"


# --- the terminal ---

#: Columns where those of all ranks leave no room for the labels' names, the widest first.
_FEWER = (
    ("n", "fastest", "rank", "slowest", "rank ", "spread", "waits"),
    ("n", "fastest", "slowest", "spread", "waits"),
    ("n", "slowest", "waits"),
    ("waits",),
)
_MOST_LABELS = 30
_MOST_LINES = 8


def render(comparison: RankComparison, console: Console, report_path: str | None = None) -> None:
    """Print the comparison: the verdict, then labels by ranks, and below each what the ranks say
    about it.

    Rank 1 is slow: rank 0 waits 4.81 ms of 6.11 ms (79 %) of step in collectives for it; host +4.80
    ms on average
      Change: see what rank 1's process does there and the others do not: loading data, logging,
      collecting garbage

    label      n   rank 0   rank 1    spread   waits
                       us       us        us      us
    step      20  6105.20  6104.91      0.30  4810.2
      rank 0 waits 79 % of its time in collectives for rank 1, the last to arrive in 20 of 20
    """

    def limited(lines: list[str], rest: str) -> None:
        for line in lines[:_MOST_LINES]:
            console.print(Text(safe_text(line), "dim"))
        if len(lines) > _MOST_LINES:
            console.print(Text(f"{len(lines) - _MOST_LINES} more {rest}", "dim"))

    first = conclusion(comparison)
    console.print(Text(safe_text(first.text), "bold"))
    if first.advice:
        console.print(Padding(Text(f"Change: {safe_text(first.advice)}"), (0, 0, 0, 2)))
    folder = os.path.dirname(report_path) if report_path else ""
    reports = list(dict.fromkeys(rank.report for rank in comparison.ranks if rank.report))
    if first.advice and len(reports) > 1:
        two = shlex.join(os.path.join(folder, PurePath(r).parent) for r in reports[:2])
        console.print(Text(f"  Compare: nsysalign diff {safe_text(two)}"), soft_wrap=True)
    console.print(Text(size(comparison), "dim"))
    for failure in comparison.failures:
        text = f"left out: {safe_text(failure.source)}: {safe_text(failure.failure)}"
        console.print(Text(text, "bold red"))
        if failure.next_step:
            console.print(Text(f"  next: {safe_text(failure.next_step)}", "red"))
    if comparison.labels:
        console.print()
        _table(comparison, console)
    if comparison.waits:
        total = sum(wait.wait_ns for wait in comparison.waits)
        console.print(f"\nwho waits for whom, all collectives together ({duration(total)}):")
        lines = [
            f"  rank {wait.rank} for rank {wait.waits_for}: {duration(wait.wait_ns)} in "
            f"{plural(wait.collectives, 'collective')}"
            for wait in comparison.waits
        ]
        limited(lines, "pairs in the report")
    if len(comparison.clocks) > 1:
        console.print()
        others = [clock for clock in comparison.clocks if clock.method != "reference"]
        others.sort(key=lambda clock: clock.method == "collectives")
        lines = [f"clock of {clock.source}: {accuracy(clock)}" for clock in others]
        limited(lines, "clocks in ranks.json")
    limited([f"note: {note}" for note in comparison.notes], "notes in ranks.json")
    if report_path:
        console.print(Text(f"report: {safe_text(report_path)}"), soft_wrap=True)


def _cells(label: LabelComparison) -> dict[str, str]:
    """What the table can say of a label, by head."""
    rows = sorted(label.ranks, key=lambda row: row.elapsed["median_ns"])
    times = {f"rank {row.rank}": fixed(row.elapsed["median_ns"]) for row in rows}
    first, last = (f"rank {row.rank}" for row in (rows[0], rows[-1]))
    return times | {
        "n": f"{label.repetitions:,}",
        "fastest": times[first],
        "rank": first[5:],
        "slowest": times[last],
        "rank ": last[5:],
        "spread": fixed(label.spread_ns),
        "waits": fixed(max(row.wait_median_ns for row in label.ranks)),
    }


def _table(comparison: RankComparison, console: Console) -> None:
    labels = ordered(comparison)
    # what a library timed on one rank says nothing about the others
    telling = [label for label in labels if not (label.library and label.verdict == "alone")]
    shown = telling[:_MOST_LABELS]
    cells = [_cells(label) for label in shown]
    names = [safe_text(label.label) for label in shown]
    longest = min(32, max(map(len, names), default=0))
    numbers = [f"rank {rank.rank}" for rank in comparison.ranks]

    def room(heads: Sequence[str]) -> int:
        """Letters that columns under these heads leave for a name."""
        widths = (max([len(head), *(len(c.get(head, "-")) for c in cells)]) for head in heads)
        return console.width - sum(width + 2 for width in widths)

    # columns go before names are cut: the ranks' numbers are in the lines below, too
    heads = next(
        (
            heads
            for heads in (("n", *numbers, "spread", "waits"), *_FEWER)
            if room(heads) >= longest
        ),
        _FEWER[-1],
    )
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="")
    grid.add_column("label", no_wrap=True)
    for head in heads:
        grid.add_column(head.strip(), justify="right", no_wrap=True)
    grid.add_row(
        "", *("" if head.strip() in ("n", "rank") else "us" for head in heads), style="dim"
    )
    for label, name, mine in zip(shown, names, cells, strict=True):
        grid.add_row(
            Text(middle(name, max(10, room(heads)))),
            *(
                Text(mine.get(head, "-"), "bold" if head == f"rank {label.slowest}" else "")
                for head in heads
            ),
            style="dim" if label.library else "",
        )
    with console.capture() as capture:
        console.print(grid)
    head, units_line, *lines = capture.get().splitlines()
    console.out(f"{head.rstrip()}\n{units_line.rstrip()}", highlight=False)
    for label, line in zip(shown, lines, strict=True):
        console.out(line.rstrip(), highlight=False)
        if label.verdict != "even":
            telling = label.verdict in ("waits", "slowest") and not label.library
            words = Text(safe_text(verdict(label)), "yellow" if telling else "dim")
            console.print(Padding(words, (0, 0, 0, 2)))
    if len(labels) > len(shown):
        rest = plural(len(labels) - len(shown), "label")
        console.print(Text(f"{rest} more in the report", "dim"))
    meaning = (
        "medians; waits: of the rank that waits most, in collectives for the last rank to arrive"
    )
    console.print(Text(meaning, "dim"))
