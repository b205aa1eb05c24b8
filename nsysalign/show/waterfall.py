"""One interval as a waterfall in text: its pieces in order, each at its place in the interval.

piece  a stretch of an interval that has one cause
line   one piece, or several short ones that follow each other
part   all time of an interval that has one cause

h2d_t1#4  bench.py:31  228 us, kernel 24.7 us, timestamp uncertainty ±1.60 us
   at us     us  part                                                 what
    0.00   4.66  event overhead  █                                    event record
    4.66  164.3  CPU              ██████████████████████████          python
  168.97   31.1  launch call                                █████     cudaLaunchKernel
"""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pandas as pd
from rich.console import Console
from rich.text import Text

from nsysalign.answer import answer
from nsysalign.causes import CAUSE_TABLE, DISPLAY
from nsysalign.errors import UsageError
from nsysalign.model import Analysis
from nsysalign.show.table import GAP, Column, draw
from nsysalign.text import duration, middle, percent, safe_text

MOST_LINES = 40


@dataclass(frozen=True)
class Line:
    """One piece, or several short ones that follow each other."""

    start_ns: int  # since the start of the interval
    ns: int
    cause: str  # of several pieces the cause with most time
    what: str  # its detail, or of several pieces which causes they have
    count: int  # how many pieces


def find(analysis: Analysis, *, label: str | None = None, name: str | None = None) -> int:
    """Return the number of an interval.  Raises UsageError, which suggests similar names, if there is none.

    name: the name of the interval
    label: the label whose sentence is about the interval
    With neither it is the interval that the first screen shows.
    """
    intervals = analysis.intervals
    if intervals.empty:
        raise UsageError("no interval was placed in this analysis", "its report says why")
    if label is None and name is None:
        proof = answer(analysis).proof
        return proof.interval if proof else int(intervals["interval"].iloc[0])
    if name is not None:
        column, sought, table = "name", "interval is named", intervals
    else:
        column, sought, table = "label", "label is", analysis.labels
    wanted = name if label is None else label
    numbers = intervals.loc[intervals[column] == wanted, "interval"]
    if numbers.empty:
        names = table[column].tolist()
        similar = difflib.get_close_matches(wanted, names[:5000], n=4, cutoff=0.3) or names[:4]
        listed = safe_text(", ".join(similar)) + (", …" if len(names) > len(similar) else "")
        raise UsageError(f"no {sought} {safe_text(wanted)}", f"there are: {listed}")
    of_label = {row.label: row.interval for row in answer(analysis).labels}
    return of_label.get(label, int(numbers.iloc[0]))


def lines(analysis: Analysis, interval: int, most: int | None = MOST_LINES) -> list[Line]:
    """Return the lines of an interval in the order of time: one for each piece.  If there are more than `most`
    pieces (None: no limit), only the longest have a line each, and the pieces between two of them share one.

    interval: its number
    """
    row = analysis.intervals.loc[analysis.intervals["interval"] == interval].iloc[0]
    pieces = analysis.segments[analysis.segments["interval"] == interval].sort_values("start_ns")
    pieces = pieces.assign(ns=pieces["end_ns"] - pieces["start_ns"])
    pieces = pieces[pieces["ns"] > 0].reset_index(drop=True)
    longest = pieces["ns"].nlargest(most or len(pieces)).index
    is_long = pieces.index.isin(longest)
    # a long piece has a number of its own; all short ones up to the next long one share a number
    line_of_piece = (is_long.cumsum() * 2 + ~is_long).tolist()
    columns = [pieces[name].tolist() for name in ("start_ns", "ns", "cause", "detail")]
    numbered = zip(line_of_piece, zip(*columns, strict=True), strict=True)
    return [
        _line([piece for _, piece in members], row["start_ns"])
        for _, members in groupby(numbered, key=itemgetter(0))
    ]


def _line(pieces: list[tuple[int, int, str, str]], begin_ns: int) -> Line:
    """Return one line for pieces that follow each other.

    pieces: (start in ns, ns, cause, detail) of each
    begin_ns: the start of the interval
    """
    start, ns, cause, detail = pieces[0]
    if len(pieces) == 1:
        return Line(int(start - begin_ns), ns, cause, safe_text(detail), 1)
    ns_of_cause: Counter[str] = Counter()
    for _, length, name, _ in sorted(pieces, key=itemgetter(2)):
        ns_of_cause[name] += length
    total = ns_of_cause.total()
    largest = ns_of_cause.most_common(4)
    shares = ", ".join(f"{DISPLAY.get(name, '?')} {percent(ns / total)}" for name, ns in largest)
    largest_cause, _ = largest[0]
    text = f"{len(pieces)} pieces: {shares}"
    return Line(int(start - begin_ns), total, largest_cause, text, len(pieces))


def render(
    analysis: Analysis, interval: int, console: Console, *, most: int | None = MOST_LINES
) -> None:
    """Print the waterfall of an interval, then its parts, which add up to the measured time.

    interval: its number
    most: how many pieces have a line each, None for no limit
    """
    row = analysis.intervals.loc[analysis.intervals["interval"] == interval].iloc[0]
    elapsed = int(row["elapsed_ns"])
    head = f"{safe_text(row['name'])}  "
    site = safe_text(row["site"])
    if site and site not in row["name"]:
        head += f"{site}  "
    kernel = duration(int(row["kernel_only_ns"])) if row["kernel_only_ns"] else "none"
    placed = f"timestamp uncertainty ±{duration(int(row['error_ns']))} ({safe_text(row['method'])})"
    console.print(Text(head, "bold"), Text(f"{duration(elapsed)}, kernel {kernel}, {placed}"))
    if row["idle_at_most_ns"] is not pd.NA:
        bound = duration(int(row["idle_at_most_ns"]))
        console.print(Text(f"by the event log alone the CPU kept the GPU idle for at most {bound}"))
    flags = [safe_text(flag) for flag in (*row["flags"], *row["findings"])]
    if flags:
        console.print(Text("! " + ", ".join(flags), "yellow"))
    shown = lines(analysis, interval, most)
    if shown:
        _pieces(shown, elapsed, console)
    else:
        missing = "the pieces of this interval are not stored here: nsysalign analyze --all-segments keeps them"
        console.print(Text(missing, "yellow"))
    parts = analysis.parts[analysis.parts["interval"] == interval]
    ns_of = dict(zip(parts["cause"].tolist(), parts["ns"].tolist(), strict=True))
    texts = [
        f"{name} {duration(ns_of[cause])} ({percent(ns_of[cause] / max(elapsed, 1))})"
        for cause, name in DISPLAY.items()
        if ns_of.get(cause)
    ]
    console.print(Text(f"= {duration(elapsed)}: " + " + ".join(texts)))


def _pieces(shown: list[Line], elapsed: int, console: Console) -> None:
    """Print lines as a table: start, length, cause, a bar at the line's place in the interval, and detail.

    elapsed: the length of the interval in ns
    """
    unit_ns, unit, places = (1_000, "us", 2) if elapsed < 1e7 else (1_000_000, "ms", 3)
    starts = [f"{line.start_ns / unit_ns:,.{places}f}" for line in shown]
    lengths = [f"{line.ns / unit_ns:,.{places}f}" for line in shown]
    causes = [DISPLAY.get(line.cause, "?") + ("…" if line.count > 1 else "") for line in shown]
    looks = [
        CAUSE_TABLE[line.cause].terminal if line.cause in CAUSE_TABLE else "dim" for line in shown
    ]
    columns = [Column(f"at {unit}", starts), Column(unit, lengths)]
    columns.append(Column("part", causes, left=True, styles=looks))
    free = console.width - sum(column.width + GAP for column in columns)
    # in a narrow terminal bars get a smaller share, because text says more
    bar_width = max(12, min(60, free // 2 if free > 90 else free // 3))
    ns_per_cell = max(elapsed, 1) / bar_width
    bars = []
    for line in shown:
        first = min(int(line.start_ns / ns_per_cell), bar_width - 1)
        end = min(round((line.start_ns + line.ns) / ns_per_cell), bar_width)
        bars.append(" " * first + "█" * max(end - first, 1))
    columns.append(Column("", bars, left=True, styles=looks))
    room = max(0, free - bar_width - GAP)
    # a name is shortened in its middle, because both ends distinguish it; a list is cut at its end
    details = [
        middle(line.what, room)
        if line.count == 1 or len(line.what) <= room
        else line.what[: max(0, room - 1)] + "…"
        for line in shown
    ]
    columns.append(Column("what", details, left=True))
    draw(columns, console)
