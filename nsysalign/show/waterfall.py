"""One interval as a waterfall in text: its pieces in order, each at its place in the interval.

piece  a stretch of an interval that has one cause (a row of `frames.SEGMENTS`)
line   one piece, or several short ones that follow each other
part   all time of an interval that has one cause

h2d_t1#4  bench.py:31  228 us, kernel 24.7 us, timestamp uncertainty ±1.60 us
   at us     us  part                                                 what
    0.00   4.66  event overhead  █                                    event record
    4.66  164.3  CPU              ██████████████████████████          python
  168.97   31.1  launch                                     █████     cudaLaunchKernel
"""

from __future__ import annotations

import difflib
import shlex
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
from nsysalign.show.beside import beside_interval, sentence
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
    if name is not None:
        numbers = intervals.loc[intervals["name"] == name, "interval"]
        if numbers.empty:
            raise _not_there("no interval is named", name, intervals["name"].tolist())
        return int(numbers.iloc[0])
    if label is not None:
        numbers = intervals.loc[intervals["label"] == label, "interval"]
        if numbers.empty:
            if label in set(intervals["name"]):
                raise UsageError(
                    f"{safe_text(label)} is one timing, no label",
                    f"nsysalign show RUN --interval {shlex.quote(safe_text(label))}",
                )
            raise _not_there("no label is", label, analysis.labels["label"].tolist())
        shown = {row.label: row.interval for row in answer(analysis).labels}
        return shown.get(label, int(numbers.iloc[0]))
    proof = answer(analysis).proof
    return proof.interval if proof else int(intervals["interval"].iloc[0])


def _not_there(sentence: str, wanted: str, names: list[str]) -> UsageError:
    """Return the error that a name does not exist, with up to four similar ones.

    sentence: what it says before the name
    names: all names that exist
    """
    similar = difflib.get_close_matches(wanted, names[:5000], n=4, cutoff=0.3) or names[:4]
    listed = safe_text(", ".join(similar)) + (", …" if len(names) > len(similar) else "")
    return UsageError(f"{sentence} {safe_text(wanted)}", f"there are: {listed}")


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
    # sorted by cause, so that of equal sums the first by name leads
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
    """Print the waterfall of an interval: a head, its pieces in the order of time, and its parts, which add up to
    the measured time.

    interval: its number
    most: how many pieces have a line each, None for no limit
    """
    row = analysis.intervals.loc[analysis.intervals["interval"] == interval].iloc[0]
    elapsed_ns = int(row["elapsed_ns"])
    _print_head(row, console)
    shown = lines(analysis, interval, most)
    if shown:
        _print_lines(shown, elapsed_ns, console)
    else:
        note = "the pieces of this interval are not stored here: nsysalign analyze --all-segments keeps them"
        console.print(Text(note, "yellow"))
    parts = analysis.parts[analysis.parts["interval"] == interval]
    ns_of = dict(zip(parts["cause"].tolist(), parts["ns"].tolist(), strict=True))
    texts = [
        f"{name} {duration(ns_of[cause])} ({percent(ns_of[cause] / max(elapsed_ns, 1))})"
        for cause, name in DISPLAY.items()
        if ns_of.get(cause)
    ]
    console.print(Text(f"= {duration(elapsed_ns)}: " + " + ".join(texts)))
    if ns := beside_interval(analysis, interval):
        console.print(Text(sentence(row["kind"], duration(ns))))


def _print_head(row: pd.Series, console: Console) -> None:
    """Print what the head says of an interval: name, site, time, kernel time, how exactly it was placed, and its
    flags.

    row: of `frames.INTERVALS`
    """
    head = f"{safe_text(row['name'])}  "
    site = safe_text(row["site"])
    if site and site not in row["name"]:
        head += f"{site}  "
    elapsed = duration(int(row["elapsed_ns"]))
    kernel = duration(int(row["kernel_only_ns"])) if row["kernel_only_ns"] else "none"
    error = duration(int(row["error_ns"]))
    accuracy = f"timestamp uncertainty ±{error} ({safe_text(row['method'])})"
    console.print(Text(head, "bold"), Text(f"{elapsed}, kernel {kernel}, {accuracy}"))
    if row["idle_at_most_ns"] is not pd.NA:
        bound = duration(int(row["idle_at_most_ns"]))
        console.print(Text(f"by the event log alone the CPU kept the GPU idle for at most {bound}"))
    flags = [safe_text(flag) for flag in (*row["flags"], *row["findings"])]
    if flags:
        console.print(Text("! " + ", ".join(flags), "yellow"))


def _print_lines(shown: list[Line], elapsed: int, console: Console) -> None:
    """Print lines as a table: start, length, cause, a bar at the line's place in the interval, and detail.

    elapsed: the length of the interval in ns
    """
    if elapsed < 1e7:
        unit, unit_ns, places = "us", 1_000, 2
    else:
        unit, unit_ns, places = "ms", 1_000_000, 3
    starts = [f"{line.start_ns / unit_ns:,.{places}f}" for line in shown]
    lengths = [f"{line.ns / unit_ns:,.{places}f}" for line in shown]
    causes = [DISPLAY.get(line.cause, "?") + ("…" if line.count > 1 else "") for line in shown]
    styles = [
        CAUSE_TABLE[line.cause].terminal if line.cause in CAUSE_TABLE else "dim" for line in shown
    ]
    columns = [
        Column(f"at {unit}", starts),
        Column(unit, lengths),
        Column("part", causes, left=True, styles=styles),
    ]
    free = console.width - sum(column.width + GAP for column in columns)
    # in a narrow terminal bars get a smaller share, because text says more
    bar_width = max(12, min(60, free // 2 if free > 90 else free // 3))
    bars = [_bar(line, max(elapsed, 1) / bar_width, bar_width) for line in shown]
    columns.append(Column("", bars, left=True, styles=styles))
    room = max(0, free - bar_width - GAP)
    columns.append(Column("what", [_shortened(line, room) for line in shown], left=True))
    draw(columns, console)


def _bar(line: Line, ns_per_cell: float, width: int) -> str:
    """Return the bar of a line, at least one cell long, with blanks before it.

    ns_per_cell: how many ns a cell (letter) stands for
    width: the cells of the whole interval
    """
    first = min(int(line.start_ns / ns_per_cell), width - 1)
    end = min(round((line.start_ns + line.ns) / ns_per_cell), width)
    return " " * first + "█" * max(end - first, 1)


def _shortened(line: Line, room: int) -> str:
    """Return the text of a line in at most `room` letters: a name is shortened in its middle, because both ends
    distinguish it; a list of causes is cut at its end."""
    if line.count == 1 or len(line.what) <= room:
        return middle(line.what, room)
    return line.what[: max(0, room - 1)] + "…"
