"""The answer in a terminal.

answer    the analysis in words (`nsysalign.answer`): sentence, proof, fixes, a row per label
proof     one interval as a row of pieces, which shows that the sentence is true; the picture draws it
column    a share of the time in the table: a group of causes (`causes.COLUMNS`)
fix       what to change, with its code
remark    a sentence about the recording as a whole
page      the HTML report

The first screen (`render`) has the sentence, the picture, the fixes and a line per label: at most 24 lines,
none longer than the console is wide.  Sentences are wrapped, never cut; if there is no room, what matters
least is left out.  `everything` (-v) has all labels with a sentence each, and the findings.

Numbers of a row are rounded so that they add up as printed.  Every text from outside passes `safe_text` and
is added as `Text`, never as rich markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from nsysalign.answer import Answer, Findings, Fix, LabelRow, Row, of_devices, runs_that_lead
from nsysalign.causes import COLUMN_FILLS, COLUMNS
from nsysalign.explain.proof import dominant
from nsysalign.explain.verdict import SIGNS
from nsysalign.model import Analysis
from nsysalign.parts import apportion
from nsysalign.show import baseline
from nsysalign.text import duration, middle, percent, plural, safe_text, short_name, told_apart

LINES, MOST_ROWS, LEAST_ROWS = 24, 10, 3
#: Wrong timings that have a line each; lines of a sentence beside the first one.
MOST_WRONG, MOST_WRAPPED = 3, 3
#: Groups of a label that have a line.
MOST_GROUPS = 4
#: Labels that a finding names, kernels of `--kernels`, letters of a kernel's name.
MOST_NAMED, MOST_KERNELS, LONGEST = 4, 40, 40
#: A column below the share _SMALL of every row joins the column `rest`.  So do the smallest of the other
#: columns while labels have less room than _LABEL letters.
_SMALL, _LABEL = 0.05, 18
#: Most cells of a label's bar; it is drawn where there is room for half of them.
_BAR = 40
_REST = len(COLUMNS) - 1
_STYLES = {"✖": "bold red", "!": "bold yellow", "✓": "green"}
_SEVERE = {"error": ("✖", "bold red"), "warning": ("!", "bold yellow"), "info": ("i", "bold blue")}
_ENDS = {
    "event": ("start.record()", "end"),
    "host": ("first timer call", "second"),
    "nvtx": ("its first GPU work", "last"),
    "run": ("first GPU work", "last"),
}


def render(
    said: Answer,
    console: Console,
    page: str = "",
    *,
    listed: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> None:
    """Print the first screen.

    page: the path of the report, "" if there is none
    listed: lines in place of the labels, for an analysis in which nothing was timed
    extra: lines that stand above the last one (commands)
    """
    width = console.width
    sentence, picture = _sentence(said, width), _picture(said, width)
    told = min(MOST_WRONG, len(said.wrong))
    wrong = _wrong(said, width, told)
    lost = _wrapped(said.lost, width, "yellow")[:MOST_WRAPPED]
    fixes = _fixes(said, width)
    remarks = [_wrapped(remark, width, "dim")[:MOST_WRAPPED] for remark in said.remarks]
    below = [Text(line) for line in extra]  # never cut, because users copy commands
    rows = min(len(said.labels) or len(listed), MOST_ROWS)
    while True:
        table = _table(said.labels[:rows], width, file=said.file)
        if not said.labels:
            table = [Text(cut(line, width)) for line in listed[:rows]]
        advice = [line for fix in fixes for line in fix]
        blocks = [[Text(), *block] for block in ([*wrong, *lost], advice, table) if block]
        lines = [*sentence, *picture, *(line for block in blocks for line in block)]
        lines += [*(line for remark in remarks for line in remark), *below]
        lines += _closing(said, len(said.labels) - rows, page, width)
        # while there are too many lines, leave out what matters least
        if len(lines) <= LINES:
            break
        if rows > LEAST_ROWS:
            rows -= 1
        elif lost and wrong:
            lost = []
        elif remarks or len(fixes) > 1:
            (remarks or fixes).pop()
        elif lost:
            lost = []
        elif wrong and told > 1:
            told -= 1
            wrong = _wrong(said, width, told)
        elif rows > 1:
            rows -= 1
        elif fixes:
            fixes.pop()
        elif picture:
            picture = []
        else:
            break
    _print(lines, console)


def everything(analysis: Analysis, said: Answer, console: Console, page: str = "") -> None:
    """Print the long form: first sentence and picture, fixes, all labels with a sentence each, remarks, the
    run as a whole, the findings, the run without nsys, what was not placed, and notes.

    page: the path of the report, "" if there is none
    """
    width = console.width
    lines = [*_sentence(said, width), *_picture(said, width)]
    advice = [line for fix in _fixes(said, width) for line in fix]
    about = [*_wrong(said, width, len(said.wrong)), *_wrapped(said.lost, width, "yellow")]
    table = _table(said.labels or said.runs, width, sentences=True, file=said.file)
    for block in (about, advice, table):
        lines += [Text(), *block] if block else []
    for remark in said.remarks:
        lines += _wrapped(remark, width, "dim")
    lines += [Text(), *_wrapped(said.headline.text, width)]
    for group in said.groups:
        lines += [Text(), *_finding(said, group, width)]
    if said.next:
        lines += [Text(), Text("to test a finding:", "dim"), Text(f"  {said.next}", "cyan")]
    _print(lines, console)
    if both := baseline.rows(analysis):
        console.print(Text("\nprofiled and unprofiled", "bold"))
        baseline.draw(both, console)
        console.print(Text(baseline.meaning(analysis), "dim"))
        for label, *_, remark in both:
            if remark:
                console.print(Text(f"  {label}: {remark}", "yellow"))
    lines = [Text()] if said.unplaced else []
    for unplaced in said.unplaced:
        names = ", ".join(middle(name, 30) for name in unplaced.names)
        text = f"{unplaced.count:,}: {unplaced.reason} ({names})"
        lines += _hanging("not placed:", text, width, "yellow")
    lines += [Text()] if said.notes else []
    for note in said.notes:
        lines += _hanging("note:", note, width, "dim")
    heads = {
        "GPU": "",
        "nsys": "nsys ",
        "recorder": "recorded by ",
        "measured": "",
        "timestamp uncertainty": "timestamp uncertainty ±",
    }
    heads |= {"SM clock": "SM clock "}
    rests = [head + said.about[name] for name, head in heads.items() if name in said.about]
    lines += [Text(), *_wrapped(", ".join(rests), width, "dim")]
    if page:  # a link if the terminal has links
        link = f"link {Path(page).absolute().as_uri()}" if console.is_terminal else ""
        lines.append(Text("→ ") + Text(safe_text(page), link))
    _print(lines, console)


def kernels(analysis: Analysis, console: Console) -> None:
    """Print the kernels, copies and graphs of the run as a whole, the most expensive first."""
    lines = kernel_lines(analysis, console.width, MOST_KERNELS)
    head = "share     total     count       mean  kernel, copy or graph"
    _print([Text(head, "dim"), *map(Text, lines)] if lines else [Text("no kernel ran")], console)


def kernel_lines(analysis: Analysis, width: int, most: int = 5) -> list[str]:
    """Return a line for each of the most expensive kernels of the longest run: share, total, count, mean and
    name, and the idle time before it if there is room.

    width: letters of a line
    most: how many kernels have a line; a last line says how many more there are
    """
    devices = of_devices(analysis)
    if devices.empty or analysis.kernels.empty:
        return []
    devices = devices[devices["label"].isin(runs_that_lead(analysis))]
    label = devices.sort_values("elapsed_ns")["label"].iloc[-1]
    rows = analysis.kernels[analysis.kernels["label"] == label]
    names = [safe_text(name) for name in rows["kernel"].head(most)]
    numbers = 38  # letters of the numbers before the name
    if width > 2 * LONGEST:
        letters = max(10, width - numbers - len("  idle before  18.3 ms"))
    else:
        letters = max(10, min(LONGEST, width - numbers))
    short = told_apart({name: middle(short_name(name), letters) for name in names}, letters)
    longest = max(map(len, short.values()))
    with_idle = width >= numbers + longest + len(", idle before 18.3 ms")
    with_idle = with_idle and not analysis.trace.thinned
    lines = []
    for kernel in rows.head(most).itertuples(index=False):
        line = f"{percent(kernel.share):>5}  {duration(kernel.total_ns):>8}  {kernel.count:>8,} x "
        line += f"{duration(kernel.total_ns / kernel.count):>8}  {short[safe_text(kernel.kernel)]:{longest}}"
        if with_idle:
            line += f"  idle before {duration(kernel.idle_before_ns):>8}"
        lines.append(line.rstrip())
    if len(rows) > most:
        lines.append(f"       … {len(rows) - most:,} more in the report")
    return lines


def range_lines(analysis: Analysis, most: int = 5) -> list[str]:
    """Return a line for each of the `most` NVTX ranges that took longest on the host: total, count, mean and
    name."""
    return [
        f"{duration(row.host_ns):>8}  {row.count:>8,} x {duration(row.host_ns / row.count):>8}  {safe_text(row.label)}"
        for row in analysis.host_ranges.head(most).itertuples(index=False)
    ]


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` letters, with an ellipsis at its end if it had more."""
    return text if cell_len(text) <= width else text[: max(width - 1, 0)] + "…"


def _print(lines: Sequence[Text], console: Console) -> None:
    for line in lines:
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def _wrapped(text: str, width: int, style: str = "", indent: str = "") -> list[Text]:
    """Return the lines of a text that is broken at blanks, with `indent` before all lines but the first.  A
    word that is longer than a line is cut."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(cut((indent if lines else "") + word, width))
    return [Text(line, style) for line in lines]


def _sentence(said: Answer, width: int) -> list[Text]:
    """Return the lines of the answer's sentence: its first sentence in bold, the second on a line of its
    own."""
    head, stop, tail = said.sentence.partition(". ")
    return [*_wrapped(head + stop.rstrip(), width, "bold"), *_wrapped(tail, width)]


def _wrong(said: Answer, width: int, most: int) -> list[Text]:
    """Return a line for each wrong timing that the answer's sentence is not about, with its reason.

    most: how many have a line; a last line says how many more there are
    """
    others = [wrong for wrong in said.wrong if wrong.sentence != said.sentence]
    shown = others[: max(most, 0)]
    texts = [
        _wrapped(f"✖ {wrong.short} {wrong.reason}", width, "bold red", "  ") for wrong in shown
    ]
    lines = [line for text in texts for line in text]
    if left := len(others) - len(shown):
        lines.append(Text(cut(f"✖ +{left} (-v)", width), "bold red"))
    return lines


def _fixes(said: Answer, width: int) -> list[list[Text]]:
    """Return the lines of each fix: its sentence, then its code without omissions."""
    room = max((len(fix.purpose) for fix in said.fixes), default=0) + 2
    return [_fix(fix, room, width) for fix in said.fixes]


def _fix(fix: Fix, room: int, width: int) -> list[Text]:
    sentence = fix.sentence.rstrip(":.") + (":" if fix.code else ".")
    if width < 3 * room:  # no room beside the heads
        lines = _wrapped(f"{fix.purpose}: {sentence}", width, indent="  ")
        lines[0].stylize("bold", 0, len(fix.purpose) + 1)
    else:
        lines = _hanging(f"{fix.purpose}:".ljust(room)[:-1], sentence, width, "bold")
    return [*lines, *(Text(f"    {line}", "cyan") for line in code_lines(fix.code, width - 4))]


def code_lines(code: str, width: int) -> list[str]:
    """Return code in lines of at most `width` letters.  It is never cut: it is broken at blanks, and inside a
    word only if the word is longer than a line."""
    lines: list[str] = []
    for word in code.split(" "):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += [word[at : at + width] for at in range(0, max(len(word), 1), width)]
    return [line for line in lines if line.strip()]


# --- the picture ---


def _picture(said: Answer, width: int) -> list[Text]:
    """Return the picture of the proof, [] if there is none: an empty line, then times, the interval as a bar of
    blocks to scale, and marks below it for what begins and ends where.

         0     1.2 us                     5.6 us
        ▕event░░░░░░░░ CPU, GPU idle ░░██kernel█▏
         └ start.record()          └ launch end ┘

    A block is a row of cells (letters) in which one column of causes has most of the time.
    """
    proof = said.proof
    cells = width - 2
    if proof is None or not proof.pieces or proof.elapsed_ns <= 0:
        return []
    start = np.array([piece.start_ns for piece in proof.pieces])
    end = np.array([piece.end_ns for piece in proof.pieces])
    column = np.array([COLUMNS.index(piece.column) for piece in proof.pieces])
    edges = np.linspace(0, max(proof.elapsed_ns, int(end[-1])), cells + 1)
    blocks, cell = [], 0
    longest: dict[str, int] = {}
    for number, run in groupby(dominant(start, end, column, edges).tolist()):
        name, length = COLUMNS[number], len(list(run))
        blocks.append((cell, length, name))
        longest[name] = max(length, longest.get(name, 0))
        cell += length
    bar = Text("▕")
    named = {"rest"}  # columns whose name stands inside the bar; the rest is never named
    for _, length, name in blocks:
        fill, style = COLUMN_FILLS[name]
        gpu = proof.gpu_in(length * proof.elapsed_ns // cells) if name == "CPU" else ""
        words = f"CPU, GPU {gpu}" if gpu and length >= 17 else name
        inside = length == longest[name] and len(words) + 2 <= length
        if inside:
            named.add(name)
        bar += Text(f"{f' {words} ':{fill}^{length}}" if inside else fill * length, style)
    bar += Text("▏")
    ticks = {0: "0"}
    for cell, _, name in sorted(blocks, key=lambda block: (block[2] != "kernel", -block[1])):
        begins = start[column == COLUMNS.index(name)]
        if cell:  # the time is that of the piece that begins nearest to the edge of the cell
            ticks[cell] = duration(begins[np.abs(begins - edges[cell]).argmin()])
    begin, last = _ENDS.get(proof.kind, _ENDS["event"])
    marks = {0: f"└ {begin}"}
    if proof.launch and proof.launch_ns > 0:
        marks[round(proof.launch_ns / proof.elapsed_ns * cells)] = f"└ {proof.launch}"
    scale = _placed({cells: duration(proof.elapsed_ns)}, ticks, width)
    below = _placed({cells: f"{last} ┘"}, marks, width)
    # columns without their name in the bar are named in the widest gap of the line below, if they fit
    legend = "  ".join(
        f"{COLUMN_FILLS[n].letter} {n}" for n in COLUMNS if n in longest and n not in named
    )
    gap = max(re.finditer(" {2,}", below), key=lambda m: len(m.group()), default=None)
    if legend and gap and len(gap.group()) >= len(legend) + 4:
        place = gap.start() + 2
        below = below[:place] + legend + below[place + len(legend) :]
    return [Text(), Text(scale, "dim"), bar, Text(below, "dim")]


def _placed(ends: dict[int, str], texts: dict[int, str], width: int) -> str:
    """Return a line with texts at certain cells of the bar.  A text that would overlap another is left out; the
    first ones have priority.

    ends: cell -> the text that ends there; these come first
    texts: cell -> the text that begins there
    """
    line, taken = [" "] * width, [False] * (width + 2)
    places = [(cell + 1 - len(text), text) for cell, text in ends.items()]
    places += [(cell + 1 if cell else 0, text) for cell, text in texts.items()]
    for place, text in places:
        around = taken[max(place - 2, 0) : place + len(text) + 2]
        if place >= 0 and place + len(text) <= width and not any(around):
            line[place : place + len(text)] = text
            taken[place : place + len(text)] = [True] * len(text)
    return "".join(line).rstrip()


# --- the table ---


def _table(
    rows: Sequence[LabelRow], width: int, sentences: bool = False, file: str = ""
) -> list[Text]:
    """Return the table: a head, then a line for each label, and beneath it a line for each of its groups if it
    has several.

    sentences: whether a label's sentence stands below its lines
    file: the source file of all labels, which stands in the head; "" if there are several

    Columns that are small in every row are added to the column `rest`.  So are further ones while labels have
    too little room.
    """
    if not rows:
        return []
    lines = _lines_of(rows)
    shown = [line.row for line in lines if line.row is not None]
    unit, size, places = _unit(shown)
    columns_ns = np.array([[*row.columns_ns.values()] for row in shown], np.int64)
    whole = np.array([row.elapsed_ns for row in shown])
    steps = size // 10**places  # ns of the last decimal
    rounded = [round(ns / steps) for ns in whole.tolist()]
    cells = np.array([apportion(*row) for row in zip(rounded, columns_ns, strict=True)])
    texts_of = [line.words for line in lines]
    longest = max(*(len(line.name) for line in lines), len(f"label, {unit}"))
    longest = max(longest, min(len(f"{file}, {unit}"), 2 * _LABEL)) if file else longest
    small = (columns_ns < _SMALL * np.maximum(whole, 1)[:, None]).all(axis=0)
    joined = [number for number in range(1, _REST) if small[number]]
    while True:
        cells[:, _REST] += cells[:, joined].sum(axis=1)
        cells[:, joined] = 0
        texts = _cells(shown, cells, steps, places)
        wide = sum(max(map(len, column)) + 1 for column in texts) + max(map(len, texts_of)) + 3
        share = (cells / np.maximum(cells.sum(axis=1), 1)[:, None]).max(axis=0)
        leaving = [number for number in range(1, _REST) if cells[:, number].any()]
        if width - wide >= min(longest, _LABEL) or not leaving:
            break
        joined = [min(leaving, key=lambda number: share[number])]
    if width - wide < 6:  # a very narrow terminal: names and verdicts
        texts = texts[:1]
        wide = max(map(len, texts[0])) + 1 + max(map(len, texts_of)) + 3
    room, heading = _heading(file, unit, longest, width - wide)
    spare = width - wide - room - 4  # a gap, and the ends of the bar
    bar = min(spare, _BAR) if spare >= _BAR // 2 else 0
    words = max(map(len, texts_of))
    short = told_apart({line.name: shortened(line.name, room) for line in lines}, room)
    head = Text(f"{heading:<{room}}", "dim")
    for column in texts:
        head.append(" " + column[0].rjust(max(map(len, column))))
    head.append(f"{'':{words + 4}}parts, to scale" if bar else "", "dim")
    drawn, number = [head], 0
    for line in lines:
        name = line.name if len(line.name) <= room else short[line.name]
        text = Text(f"{name:<{room}}")
        if line.row is None:
            wide_cells = sum(max(map(len, column)) + 1 for column in texts)
            text.append(f" {cut(line.instead, wide_cells - 1):<{wide_cells - 1}}", "dim")
        else:
            number += 1
            for column in texts:
                text.append(" " + column[number].rjust(max(map(len, column))))
        text.append(f"  {line.words}", _STYLES.get(line.words[0], ""))
        if bar and line.row is not None:
            text.append(" " * (words - len(line.words) + 2)).append_text(_bar(line.row, bar))
        text.truncate(width, overflow="ellipsis")
        drawn.append(text)
        if sentences and line.of is not None:
            drawn += [Text("  ") + part for part in _wrapped(_more(line.of), width - 2, "dim")]
    if any("(" in cell for column in texts[1:2] for cell in column):
        drawn.append(Text(cut("( ): on other streams, beside the sum", width), "dim"))
    return drawn


def _heading(file: str, unit: str, longest: int, most: int) -> tuple[int, str]:
    """Return (letters of the column of labels, its head).  The head names the source file and the unit, as
    far as there is room.

    longest: letters of the longest label
    most: letters that the column can have
    """
    whole = f"{file or 'label'}, times in {unit}"
    if len(whole) <= most:
        return max(min(longest, most), len(whole)), whole
    room = max(min(longest, most), 6)
    return room, next(
        (
            head
            for head in (f"{file}, {unit}", f"label, times in {unit}")
            if file and len(head) <= room
        ),
        f"label, {unit}",
    )


def _bar(row: Row, cells: int) -> Text:
    """Return a bar of so many cells that shows the columns of a row to scale."""
    weights = np.array([*row.columns_ns.values()], np.int64)
    lengths = apportion(cells, weights).tolist()
    bar = Text("▕")
    for name, length in zip(COLUMNS, lengths, strict=True):
        fill, style = COLUMN_FILLS[name]
        bar.append(fill * length, style)
    return bar + Text("▏")


class _Line(NamedTuple):
    """A line of the table: a row with numbers, or the head of a label with several groups, without numbers."""

    name: str
    row: Row | None  # None: a head
    words: str  # the verdict
    instead: str = (
        ""  # of a head what stands in place of numbers: how many timings and how much time
    )
    of: LabelRow | None = None  # the label whose sentence stands below this line


def _lines_of(rows: Sequence[LabelRow]) -> list[_Line]:
    """Return the lines of the table for these labels, without the table's head."""
    lines = []
    for row in rows:
        words = f"{SIGNS[row.verdict]} {row.words}"
        if not row.groups:
            lines.append(_Line(row.short, row, words, of=row))
            continue
        steady = plural(row.warm.count, "timing")
        much = " overlap" if row.overlapping else f", {duration(row.warm.total_ns)}"
        lines.append(_Line(row.short, None, words, f"{steady}{much}"))
        groups = row.groups[:MOST_GROUPS]
        for group in groups:
            of = row if group is groups[-1] else None
            sign = SIGNS[group.verdict]
            lines.append(_Line(f"  {group.name}", group, f"{sign} {group.words}", of=of))
    return lines


def _cells(rows: Sequence[Row], cells: np.ndarray, steps: int, places: int) -> list[list[str]]:
    """Return the columns that are not empty as texts: for each its head, then a cell per row.

    cells: (rows, COLUMNS), in units of the last decimal
    steps: ns of that unit
    places: how many decimals are printed
    """

    def printed(value: float) -> str:
        return f"{value / 10**places:,.{places}f}" if value else "·"

    texts = [["time", *map(printed, cells.sum(axis=1).tolist())]]
    for number, name in enumerate(COLUMNS):
        if number == 0 or cells[:, number].any():
            head = f"+ {name}" if number else f"= {name}"
            texts.append([head, *map(printed, cells[:, number].tolist())])
    for at, row in enumerate(rows, 1):  # what ran on other streams is no part of the sum
        if texts[1][at] == "·" and row.others_ns:
            texts[1][at] = f"({printed(row.others_ns / steps)})"
    return texts


def _more(row: LabelRow) -> str:
    """Return what stands below a label: its line of code, its sentence, and what it would take without
    nsys."""
    predicted = ""
    if row.unprofiled_ns:
        predicted = f"Without nsys {row.without_nsys()} us, estimated."
    elif row.no_prediction:
        predicted = f"No estimate without nsys ({row.no_prediction})."
    site = safe_text(row.site)
    where = f"{site}:" if site and site not in safe_text(row.label) else ""
    return " ".join(filter(None, (where, row.sentence, row.first, predicted)))


def shortened(label: str, width: int) -> str:
    """Return a label of at most `width` letters.  Of `caller (site)` the site is shortened first, because the
    caller distinguishes labels of the same site."""
    if len(label) <= width:
        return label
    if several := re.fullmatch(r"(.+) \((.+)\)", label):
        caller, site = several.groups()
        texts = (f"{caller} (:{site.rpartition(':')[2]})", caller)
        return next((text for text in texts if len(text) <= width), middle(caller, width))
    return middle(label, width)


def _unit(rows: Sequence[Row]) -> tuple[str, int, int]:
    """Return (unit, its ns, decimals) for a table, such that the shortest row has about three digits."""
    shortest = min(row.elapsed_ns for row in rows)
    longest = max(row.elapsed_ns for row in rows)
    if shortest >= 200_000_000:
        return "ms", 1_000_000, 0
    if shortest >= 20_000_000:
        return "ms", 1_000_000, 1
    if shortest >= 2_000_000:
        return "ms", 1_000_000, 2
    if shortest >= 20_000 or longest >= 10_000_000:
        return "us", 1_000, 0
    return "us", 1_000, 1


def _closing(said: Answer, left: int, page: str, width: int) -> list[Text]:
    """Return the last line, or two: how many more labels there are and how to see them, where the page is, and
    what the numbers rest on.

    left: how many labels the table left out
    """
    head = f"{plural(left, 'more label')}: -v" if left > 0 else "all of it: -v"
    where = f"   page: {safe_text(page)}" if page else ""
    trust = f"({said.trust})"
    gap = width - len(head + where) - len(trust)
    if gap >= 2:
        return [Text(head + where + " " * gap) + Text(trust, "dim")]
    last = head + where if len(head + where) <= width else safe_text(page)
    return [*_wrapped(trust, width, "dim"), Text(last)]


# --- findings ---


def _finding(said: Answer, group: Findings, width: int) -> list[Text]:
    """Return the lines of a group of findings, by its first one: title, line of code, saving, evidence, what
    the CPU did, advice, and the result of a second run.  A remark (information without a loss) has no
    evidence and no advice.
    """
    finding = group.findings[0]
    sign, style = _SEVERE[group.severity]
    code = said.source.get(finding.site)
    named = not finding.site or finding.site in finding.title or code is not None
    where = "" if named else f" ({finding.site})"
    lines = _hanging(sign, finding.title + where, width, style)
    also = [safe_text(other.label) for other in group.findings[1:]]
    facts = {"code": f"{finding.site}: {code}" if code is not None else ""}
    facts["also in"] = ", ".join(also[:MOST_NAMED]) + (", …" if len(also) > MOST_NAMED else "")
    if finding.loss_ns:
        facts["could save"] = f"at most {duration(finding.loss_ns)} over the run"
    remark = group.severity == "info" and not finding.loss_ns
    if not remark:
        facts["evidence"] = ", ".join(f"{what} {number}" for what, number in finding.evidence)
        host = (row.host for row in said.labels if row.label == finding.label)
        facts["CPU"] = next(host, "")
    for head, text in facts.items():
        if text:
            lines += _hanging(f"  {head + ':':11}", text, width, "dim")
    if remark:
        return lines
    for fix in finding.advice:
        advice = f"To {fix.purpose}: {fix.sentence[:1].lower()}{fix.sentence[1:]}"
        lines += _hanging(" ", f"{advice}:" if fix.code else advice, width)
        lines += [Text(f"      {each}", "cyan") for each in code_lines(fix.code, width - 6)]
    if finding.confirmation:
        verdict, _, result = finding.confirmation.partition(": ")
        lines += _hanging(f"  {verdict}:", result, width, "dim")
    return lines


def _hanging(head: str, body: str, width: int, style: str = "") -> list[Text]:
    """Return lines with `head` before the first one, and `body` wrapped beside it."""
    lines = _wrapped(body, width - len(head) - 1) or [Text()]
    heads = [Text(f"{head} ", style), *[Text(" " * (len(head) + 1))] * (len(lines) - 1)]
    return [head + line for head, line in zip(heads, lines, strict=True)]
