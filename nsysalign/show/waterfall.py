"""One interval as a waterfall in text: its pieces in order, each at its place in the interval.

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
    """One piece, or what stands between two of them and is too small for lines of its own."""

    start_ns: int  # since the start event
    ns: int
    cause: str  # the largest of several
    what: str
    count: int


def find(analysis: Analysis, *, label: str | None = None, name: str | None = None) -> int:
    """The number of the interval of that name, of the one in the label's row, or of the one that the
    first screen shows.  Raises UsageError, which suggests similar names."""
    intervals = analysis.intervals
    if intervals.empty:
        raise UsageError("no interval was placed in this analysis", "its report says why")
    if label is None and name is None:
        proof = answer(analysis).proof
        return proof.interval if proof else int(intervals["interval"].iloc[0])
    column, what = ("name", "interval is named") if name is not None else ("label", "label is")
    wanted = name if label is None else label
    found = intervals.loc[intervals[column] == wanted, "interval"]
    if found.empty:
        table = intervals if name is not None else analysis.labels
        names = table[column].tolist()
        near = difflib.get_close_matches(wanted, names[:5000], n=4, cutoff=0.3) or names[:4]
        listed = safe_text(", ".join(near)) + (", …" if len(names) > len(near) else "")
        raise UsageError(f"no {what} {safe_text(wanted)}", f"there are: {listed}")
    row = analysis.labels.loc[analysis.labels["label"] == label, "row_interval"]
    return int(found.iloc[0] if row.empty else row.iloc[0])


def lines(analysis: Analysis, interval: int, most: int | None = MOST_LINES) -> list[Line]:
    """The pieces in order; above `most` the longest, and between them the others together."""
    row = analysis.intervals.loc[analysis.intervals["interval"] == interval].iloc[0]
    pieces = analysis.segments[analysis.segments["interval"] == interval].sort_values("start_ns")
    pieces = pieces.assign(ns=pieces["end_ns"] - pieces["start_ns"])
    pieces = pieces[pieces["ns"] > 0].reset_index(drop=True)
    long = pieces.index.isin(pieces["ns"].nlargest(most or len(pieces)).index)
    # a long one, and all shorter ones up to the next, have a number each
    numbers = (long.cumsum() * 2 + ~long).tolist()
    columns = ("start_ns", "ns", "cause", "detail")
    rows = zip(numbers, *(pieces[name].tolist() for name in columns), strict=True)
    return [_line([own[1:] for own in run], row["start_ns"]) for _, run in groupby(rows, _number)]


_number = itemgetter(0)


def _line(pieces: list[tuple[int, int, str, str]], begin_ns: int) -> Line:
    """One line for pieces (start, ns, cause, detail) that follow each other."""
    start, ns, cause, detail = pieces[0]
    if len(pieces) == 1:
        return Line(int(start - begin_ns), ns, cause, safe_text(detail), 1)
    sums: Counter[str] = Counter()
    for _, length, name, _ in sorted(pieces, key=itemgetter(2)):
        sums[name] += length
    whole, largest = sums.total(), sums.most_common(4)
    shares = ", ".join(f"{DISPLAY.get(name, '?')} {percent(ns / whole)}" for name, ns in largest)
    what = f"{len(pieces)} pieces: {shares}"
    return Line(int(start - begin_ns), whole, largest[0][0], what, len(pieces))


def render(
    analysis: Analysis, interval: int, console: Console, *, most: int | None = MOST_LINES
) -> None:
    """Print the waterfall, then the breakdown, which adds up to the measured time."""
    row = analysis.intervals.loc[analysis.intervals["interval"] == interval].iloc[0]
    elapsed, site = int(row["elapsed_ns"]), safe_text(row["site"])
    head = f"{safe_text(row['name'])}{'  ' + site if site and site not in row['name'] else ''}  "
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
    said = [
        f"{name} {duration(ns_of[cause])} ({percent(ns_of[cause] / max(elapsed, 1))})"
        for cause, name in DISPLAY.items()
        if ns_of.get(cause)
    ]
    console.print(Text(f"= {duration(elapsed)}: " + " + ".join(said)))


def _pieces(shown: list[Line], elapsed: int, console: Console) -> None:
    unit_ns, unit, places = (1_000, "us", 2) if elapsed < 1e7 else (1_000_000, "ms", 3)
    starts = [f"{line.start_ns / unit_ns:,.{places}f}" for line in shown]
    lengths = [f"{line.ns / unit_ns:,.{places}f}" for line in shown]
    causes = [DISPLAY.get(line.cause, "?") + ("…" if line.count > 1 else "") for line in shown]
    looks = [
        CAUSE_TABLE[line.cause].terminal if line.cause in CAUSE_TABLE else "dim" for line in shown
    ]
    columns = [Column(f"at {unit}", starts), Column(unit, lengths)]
    columns.append(Column("part", causes, left=True, styles=looks))
    left = console.width - sum(column.width + GAP for column in columns)
    # in a narrow terminal text says more than bars
    width = max(12, min(60, left // 2 if left > 90 else left // 3))
    cell = max(elapsed, 1) / width
    first = [min(int(line.start_ns / cell), width - 1) for line in shown]
    bars = [
        " " * place + "█" * max(min(round((x.start_ns + x.ns) / cell), width) - place, 1)
        for place, x in zip(first, shown, strict=True)
    ]
    columns.append(Column("", bars, left=True, styles=looks))
    room = max(0, left - width - GAP)
    # a name is shortened in its middle, since both ends distinguish it, a list at its end
    whats = [
        middle(line.what, room)
        if line.count == 1 or len(line.what) <= room
        else line.what[: max(0, room - 1)] + "…"
        for line in shown
    ]
    columns.append(Column("what", whats, left=True))
    draw(columns, console)
