"""A comparison of ranks in words, in the terminal and as its JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from nsysalign.addons.ranks.compare import EVEN_SHARE
from nsysalign.causes import DISPLAY
from nsysalign.paths import short_path, without_paths
from nsysalign.show import table
from nsysalign.store.objects import to_json
from nsysalign.text import duration, fixed, percent, plural, safe_text

if TYPE_CHECKING:
    from nsysalign.addons.ranks.records import LabelComparison, RankComparison

FORMAT, VERSION = "nsysalign-ranks", 5
HEADS = ["label", "n", "fastest us", "rank", "slowest us", "rank", "waits us", "rank", "for"]
#: Rows and notes of the first screen; -v has all.
MOST_LABELS, MOST_NOTES = 8, 4
_UNEQUAL = (
    "give the ranks equal work (batch, sequence lengths, experts), or compare their GPUs' clocks "
    "and power"
)
_LOOK = "see rank {0}'s own report"
#: Causes that a slow rank has more of -> what to do.
ADVICE = {
    ("host",): "see what rank {0}'s process does there and the others do not: loading data, "
    "logging, collecting garbage",
    ("api_launch", "api", "launch_latency", "event"): "see what keeps rank {0}'s calls: a busy "
    "core, another process, a debug or profiling setting",
    ("kernel", "graph"): _UNEQUAL,
    ("memcpy", "memset"): "see what rank {0} copies, and whether its memory is pinned",
}


def dumps(comparison: RankComparison) -> str:
    """ranks.json (docs/design.md): the records of records.py, times in ns, and the verdict in
    words.  The same ranks give the same bytes, however they were analysed."""
    failures = [  # the terminal shows whole paths; files that may be passed on do not
        {
            "source": f.source,
            "trace": short_path(f.trace),
            "failure": without_paths(f.failure),
            "next": without_paths(f.next_step),
        }
        for f in comparison.failures
    ]
    text, advice = conclusion(comparison)
    document = {"format": FORMAT, "version": VERSION, "verdict": {"text": text, "advice": advice}}
    return to_json({**document, **asdict(comparison), "failures": failures}) + "\n"


def render(comparison: RankComparison, console: Console, folder: str, *, full: bool) -> None:
    """The first screen, of at most 24 lines: the sentence, what to change, one table, notes;
    `full`: all labels, what the ranks say of each, and all notes.  `folder`: of the results."""

    def write(text: str, style: str = "dim") -> None:
        console.print(Text(safe_text(text), style))

    first, advice = conclusion(comparison)
    write(first, "bold")
    if advice:
        write(f"Change: {advice}", "")
    labels = ordered(comparison)
    shown = labels if full else labels[:MOST_LABELS]
    if shown:
        console.print()
        names, *cells = zip(*map(row, shown), strict=True)
        columns = [table.text(HEADS[0], names)]
        columns += [table.Column(h, c) for h, c in zip(HEADS[1:], cells, strict=True)]
        table.draw(columns, console)
        write("medians; waits: of the rank that waits most, in collectives for the last to arrive")
    if full:
        for label in shown:
            write(f"{label.label}: {verdict(label)}", "")
    every = notes(comparison)
    said = every if full else every[:MOST_NOTES]
    for number, line in enumerate(said):
        write(line, "bold red" if number < len(comparison.failures) else "dim")
    for what, left in (("label", len(labels) - len(shown)), ("note", len(every) - len(said))):
        if left:
            write(f"{plural(left, what)} more: analyze -v")
    write(size(comparison))
    write(f"ranks.json and the report of each trace: {folder}/NAME/report.html", "")


def row(label: LabelComparison) -> list[str]:
    """Its cells, whose heads are HEADS: the medians of the fastest and the slowest rank, the
    longest wait and for whom."""
    low, high = (pick(label.ranks, key=lambda r: r.median_ns) for pick in (min, max))
    waits = max(label.ranks, key=lambda rank: rank.wait_median_ns)
    known = waits.wait_median_ns > 0
    late = next(iter(waits.waits_for_ns), "") if known else ""
    return [
        safe_text(label.label), f"{label.repetitions:,}",
        fixed(low.median_ns), str(low.rank),
        fixed(high.median_ns), str(high.rank),
        fixed(waits.wait_median_ns), str(waits.rank) if known else "", str(late),
    ]  # fmt: skip


def conclusion(comparison: RankComparison) -> tuple[str, str]:
    """Who is slow, who waits and what that costs, by the label that loses most time, else by the
    collectives of the whole trace; and what to do about it, '' if nothing."""
    own = [x for x in ordered(comparison) if x.verdict != "alone"]
    total = sum(wait.wait_ns for wait in comparison.waits)
    cost = f"; all waits in collectives together: {duration(total)}" if total else ""
    for label in own:
        if label.verdict in ("waits", "slowest"):
            text = f"{label.label}: {verdict(label)}{cost}"
            if label.slow is None:
                return f"No one rank is slow: {text}", _UNEQUAL
            cause, _ = excess(label)
            advice = next((text for causes, text in ADVICE.items() if cause in causes), _LOOK)
            return f"Rank {label.slow} is slow: {text}", advice.format(label.slow)
    if comparison.waits:
        most = comparison.waits[0]
        return (
            f"No label shows a slow rank, but rank {most.rank} waited {duration(most.wait_ns)} "
            f"for rank {most.waits_for} in {plural(most.collectives, 'collective')}{cost}"
        ), _LOOK.format(most.waits_for)
    if not own:
        return (
            "Nothing to compare: no label was measured by two ranks",
            "for two runs of a program, nsysalign diff A B",
        )
    if all(label.verdict == "even" for label in own):
        labels = plural(len(own), "label")
        return f"No rank is slow: medians of {labels} within {percent(EVEN_SHARE)}", ""
    return "No rank is clearly slow", ""


def ordered(comparison: RankComparison) -> list[LabelComparison]:
    """Labels by what the ranks' difference costs a repetition: the longest wait, or the spread;
    even ones come last."""

    def place(label: LabelComparison) -> tuple[bool, float, str]:
        lost = max([label.spread_ns, *(rank.wait_median_ns for rank in label.ranks)])
        return label.verdict in ("even", "alone"), -lost, label.label

    return sorted(comparison.labels, key=place)


def excess(label: LabelComparison) -> tuple[str, float]:
    """(the cause that makes a label's slow rank slow, ns more of it on average); ("", 0) if none
    explains half of the difference to the rank that waits for it, or that is fastest.

    Who waits inside NCCL's kernels has kernel time for it that is no work, where they run on the
    interval's own stream:

        waits for it   kernel ####  kernel (NCCL, waits) ==========     kernel 14, of which 10 wait
        slow           kernel ############  NCCL ==                     kernel 14
    """
    slow = label.row(label.slow)
    other = label.row(label.waiting) or min(label.ranks, key=lambda r: r.median_ns)
    if slow is None:
        return "", 0
    of_slow, of_other = slow.parts_mean_ns, other.parts_mean_ns
    more = {cause: of_slow.get(cause, 0) - of_other.get(cause, 0) for cause in DISPLAY}
    elsewhere = -more.pop("queued") - more.pop("sync")
    waited = other.wait_ns / other.count - slow.wait_ns / slow.count
    lost = max(waited, slow.mean_ns - other.mean_ns)
    cause, ns = max(more.items(), key=lambda item: item[1])
    if ns < lost / 2 and waited > 0 and elsewhere < waited / 2:
        cause, ns = "kernel", more["kernel"] + waited
    return (cause, ns) if ns > 0 and ns >= lost / 2 else ("", 0)


def verdict(label: LabelComparison) -> str:
    """One line: what the ranks say about a label."""
    if label.verdict == "alone":
        return f"only rank {label.ranks[0].rank} measured it"
    if label.verdict == "even":
        return "even"
    if label.verdict == "waits":
        waiting, last = label.row(label.waiting), label.row(label.slow)
        wait, whole = waiting.wait_median_ns, waiting.median_ns
        share = percent(wait / max(whole, 1))
        text = f"rank {waiting.rank} waits {duration(wait)} of {duration(whole)} ({share})"
        if label.slow is None:
            return f"{text} in collectives for different ranks"
        text += f" in collectives for rank {label.slow}"
        if last:
            text += f", the last to arrive in {last.arrived_last} of {label.collectives}"
    else:
        fastest, longest = (pick(label.ranks, key=lambda r: r.median_ns) for pick in (min, max))
        text = (
            f"rank {longest.rank} is slowest in {longest.slowest_in} of {label.repetitions}: "
            f"{duration(longest.median_ns)} there, {duration(fastest.median_ns)} on rank "
            f"{fastest.rank}"
        )
        if label.verdict == "unclear":
            return f"unclear: {text}"
    cause, ns = excess(label)
    return f"{text}: {DISPLAY[cause]} +{duration(ns)} on average" if cause else text


def size(comparison: RankComparison) -> str:
    """ "4 ranks of 4 traces, 12 labels, clocks joined on 96 collectives within 1.8 us"."""
    traces = {rank.source for rank in comparison.ranks}
    text = f"{plural(len(comparison.ranks), 'rank')} of {plural(len(traces), 'trace')}, "
    text += plural(len(comparison.labels), "label")
    joined = [clock for clock in comparison.clocks if clock.method == "collectives"]
    if joined:
        worst = max(clock.error_ns for clock in joined)
        fewest = plural(min(clock.collectives for clock in joined), "collective")
        return f"{text}, clocks joined on {fewest}, within {duration(worst)}"
    return f"{text}, clocks not checked" if len(comparison.clocks) > 1 else text


def notes(comparison: RankComparison) -> list[str]:
    """Traces that were left out; clocks that no collective joins to others, and why."""
    lines = [
        f"left out: {f.source}: {f.failure}" + (f"; {f.next_step}" if f.next_step else "")
        for f in comparison.failures
    ]
    known = {
        "session start": "taken from its session start, not checked",
        "none": "no session start, not comparable with others",
    }
    alike: dict[str, list[str]] = {}
    for clock in comparison.clocks:
        if clock.method in known:
            alike.setdefault(f"{known[clock.method]}: {clock.reason}", []).append(clock.source)
    for why, (first, *others) in alike.items():
        more = f" and {plural(len(others), 'other')}" if others else ""
        lines.append(f"clock of {first}{more}: {why}")
    return lines
