"""One interval as a waterfall in text: its pieces in order, each at its place in the interval.

h2d_t1#4  bench.py:31  228 us, kernel 24.7 us, placed within 1.60 us
   at us     us  cause                                                what
    0.00   4.66  event    █                                           event record
    4.66  164.3  host      ██████████████████████████                 python
  168.97   31.1  launch                              █████            cudaLaunchKernel
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from rich.console import Console
from rich.text import Text

from nsysalign.model import Analysis
from nsysalign.parts import SHORT
from nsysalign.show.palette import LOOKS
from nsysalign.show.table import GAP, Column, draw
from nsysalign.text import duration, fixed, middle, percent, safe_text

MOST_LINES = 40
#: Eighths of a character cell, for the ends of a bar.
_EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True)
class Line:
    """One piece, or several neighbours that are too small for lines of their own."""

    start_ns: int  # since the start event
    end_ns: int
    cause: str  # the largest of several
    what: str
    count: int


def lines(analysis: Analysis, interval: int, most: int | None = MOST_LINES) -> list[Line]:
    """The pieces in order; above `most` the smallest neighbours are merged, never left out."""
    row = analysis.intervals.loc[analysis.intervals["interval"] == interval].iloc[0]
    pieces = analysis.segments[analysis.segments["interval"] == interval].sort_values("start_ns")
    columns = ("start_ns", "end_ns", "cause", "detail")
    origin, elapsed = int(row["start_ns"]), int(row["elapsed_ns"])
    single = [
        Line(int(a) - origin, int(b) - origin, str(cause), safe_text(what), 1)
        for a, b, cause, what in zip(*(pieces[c].tolist() for c in columns), strict=True)
        if b > a
    ]
    if most is None or len(single) <= most:
        return single
    # A piece that is a good part of the interval gets its own line; smaller neighbours share one
    # until they are as long.
    quantum = elapsed / (most / 2)
    out: list[Line] = []
    run: list[Line] = []
    for line in single:
        long = line.end_ns - line.start_ns >= quantum
        if long or (run and line.end_ns - run[0].start_ns > quantum):
            out += _together(run)
            run = []
        if long:
            out.append(line)
        else:
            run.append(line)
    return out + _together(run)


def _together(run: Sequence[Line]) -> list[Line]:
    if len(run) < 2:
        return list(run)
    sums: dict[str, int] = {}
    for line in run:
        sums[line.cause] = sums.get(line.cause, 0) + line.end_ns - line.start_ns
    ranked = sorted(sums.items(), key=lambda pair: -pair[1])
    total = max(1, run[-1].end_ns - run[0].start_ns)
    what = ", ".join(f"{SHORT[cause]} {percent(ns / total)}" for cause, ns in ranked[:4])
    return [
        Line(run[0].start_ns, run[-1].end_ns, ranked[0][0], f"{len(run)} pieces: {what}", len(run))
    ]


def bar(start: float, end: float, width: int) -> str:
    """Cells from `start` to `end` (0 to 1) of `width`: never empty, with ends in eighths of a
    cell."""
    first = min(width - 1, int(start * width))
    eighths = max(1, round((end * width - first) * 8))
    full, rest = divmod(min(eighths, 8 * (width - first)), 8)
    return " " * first + "█" * full + (_EIGHTHS[rest] if rest else "")


def render(
    analysis: Analysis, interval: int, console: Console, *, most: int | None = MOST_LINES
) -> None:
    """Print the waterfall, then the breakdown, which adds up to the measured time."""
    row = analysis.intervals.loc[analysis.intervals["interval"] == interval].iloc[0]
    elapsed, site = int(row["elapsed_ns"]), safe_text(row["site"])
    head = f"{safe_text(row['name'])}{'  ' + site if site and site not in row['name'] else ''}  "
    kernel = duration(int(row["kernel_only_ns"])) if row["kernel_only_ns"] else "none"
    placed = f"placed within {duration(int(row['error_ns']))} ({safe_text(row['method'])})"
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
        f"{short} {duration(ns_of[cause])} ({percent(ns_of[cause] / max(elapsed, 1))})"
        for cause, short in SHORT.items()
        if ns_of.get(cause)
    ]
    console.print(Text(f"= {duration(elapsed)}: " + " + ".join(said)))


def _pieces(shown: Sequence[Line], elapsed: int, console: Console) -> None:
    unit_ns, unit, places = (1_000, "us", 2) if elapsed < 1e7 else (1_000_000, "ms", 3)
    starts = [f"{line.start_ns / unit_ns:,.{places}f}" for line in shown]
    lengths = [
        fixed(line.end_ns - line.start_ns, unit_ns=unit_ns, decimals=places) for line in shown
    ]
    causes = [SHORT.get(line.cause, "?") + ("…" if line.count > 1 else "") for line in shown]
    looks = [LOOKS[line.cause].terminal if line.cause in LOOKS else "dim" for line in shown]
    columns = [Column(f"at {unit}", starts), Column(unit, lengths)]
    columns.append(Column("cause", causes, left=True, styles=looks))
    left = console.width - sum(column.width + GAP for column in columns)
    # in a narrow terminal text says more than bars
    width = max(12, min(60, left // 2 if left > 90 else left // 3))
    whole = max(elapsed, 1)
    bars = [f"{bar(x.start_ns / whole, x.end_ns / whole, width):{width}}" for x in shown]
    if not _encodes(console, "█▏"):
        bars = ["".join(" " if cell == " " else "#" for cell in drawn) for drawn in bars]
    columns.append(Column("", bars, left=True, styles=looks))
    room = max(0, left - width - GAP)
    columns.append(Column("what", [_fit(line, room) for line in shown], left=True))
    draw(columns, console)


def _fit(line: Line, room: int) -> str:
    """Shortens a name in its middle, since both ends distinguish it, and a list at its end."""
    if line.count == 1 or len(line.what) <= room:
        return middle(line.what, room)
    return line.what[: max(0, room - 1)] + "…"


def _encodes(console: Console, text: str) -> bool:
    try:
        text.encode(console.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
