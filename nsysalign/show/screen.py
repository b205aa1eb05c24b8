"""The answer in a terminal.  First screen: the sentence, the picture that proves it, what to change,
a line per label; at most 24 lines, none longer than the console is wide.  Sentences are wrapped,
never cut; what matters least leaves.  `everything` (-v) has all labels with a sentence each, and the
findings.

Numbers of a row are rounded so that they add up as printed.  All foreign text passes `safe_text` and
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
#: A column under this share of every row shown joins `rest`, and the smallest of the others where
#: labels would be shorter than so many letters.
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
    """Print the first screen.  `page`: path of the report; `listed`: lines in place of the rows of
    labels, where nothing was timed; `extra`: lines that stand above the last one."""
    width = console.width
    sentence, picture = _sentence(said, width), _picture(said, width)
    told = min(MOST_WRONG, len(said.wrong))
    wrong = _wrong(said, width, told)
    lost = _wrapped(said.lost, width, "yellow")[:MOST_WRAPPED]
    fixes = _fixes(said, width)
    remarks = [_wrapped(remark, width, "dim")[:MOST_WRAPPED] for remark in said.remarks]
    below = [Text(line) for line in extra]  # commands, which are copied whole
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
        # what matters least leaves first
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
    """Print all labels with a sentence each, the run, the findings, the run without nsys, notes."""
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
    """Print what ran in the run as a whole, the most expensive first."""
    lines = kernel_lines(analysis, console.width, MOST_KERNELS)
    head = "share     total     count       mean  kernel, copy or graph"
    _print([Text(head, "dim"), *map(Text, lines)] if lines else [Text("no kernel ran")], console)


def kernel_lines(analysis: Analysis, width: int, most: int = 5) -> list[str]:
    """The most expensive kernels of the longest run: share, total, count, mean, name, and the
    idle time before them where `width` has room for it."""
    devices = of_devices(analysis)
    if devices.empty or analysis.kernels.empty:
        return []
    devices = devices[devices["label"].isin(runs_that_lead(analysis))]
    label = devices.sort_values("elapsed_ns")["label"].iloc[-1]
    rows = analysis.kernels[analysis.kernels["label"] == label]
    names = [safe_text(name) for name in rows["kernel"].head(most)]
    beside = 38 + len("  idle before  18.3 ms") if width > 2 * LONGEST else 38
    letters = max(10, width - beside if width > 2 * LONGEST else min(LONGEST, width - beside))
    short = told_apart({name: middle(short_name(name), letters) for name in names}, letters)
    longest = max(map(len, short.values()))
    idle = not analysis.trace.thinned and width >= 38 + longest + len(", idle before 18.3 ms")
    lines = []
    for kernel in rows.head(most).itertuples(index=False):
        line = f"{percent(kernel.share):>5}  {duration(kernel.total_ns):>8}  {kernel.count:>8,} x "
        line += f"{duration(kernel.total_ns / kernel.count):>8}  {short[safe_text(kernel.kernel)]:{longest}}"
        line += f"  idle before {duration(kernel.idle_before_ns):>8}" if idle else ""
        lines.append(line.rstrip())
    if len(rows) > most:
        lines.append(f"       … {len(rows) - most:,} more in the report")
    return lines


def range_lines(analysis: Analysis, most: int = 5) -> list[str]:
    """The NVTX ranges that took longest on the host: total, count, mean, name."""
    return [
        f"{duration(row.host_ns):>8}  {row.count:>8,} x {duration(row.host_ns / row.count):>8}  {safe_text(row.label)}"
        for row in analysis.host_ranges.head(most).itertuples(index=False)
    ]


def cut(text: str, width: int) -> str:
    """A text that ends in an ellipsis where it does not fit."""
    return text if cell_len(text) <= width else text[: max(width - 1, 0)] + "…"


def _print(lines: Sequence[Text], console: Console) -> None:
    for line in lines:
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def _wrapped(text: str, width: int, style: str = "", indent: str = "") -> list[Text]:
    """Broken at blanks, with `indent` from the second line on; a word that is too long is cut."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(cut((indent if lines else "") + word, width))
    return [Text(line, style) for line in lines]


def _sentence(said: Answer, width: int) -> list[Text]:
    """The first sentence bold; the second on a line of its own."""
    head, stop, tail = said.sentence.partition(". ")
    return [*_wrapped(head + stop.rstrip(), width, "bold"), *_wrapped(tail, width)]


def _wrong(said: Answer, width: int, most: int) -> list[Text]:
    """A line for each wrong timing that the sentence is not about, with its reason, then how many
    more there are."""
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
    """The lines of each: its sentence, then its whole code."""
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
    """Code that is wider than a line is broken, at blanks where that is enough, never cut."""
    lines: list[str] = []
    for word in code.split(" "):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines += [word[at : at + width] for at in range(0, max(len(word), 1), width)]
    return [line for line in lines if line.strip()]


# --- the picture ---


def _picture(said: Answer, width: int) -> list[Text]:
    """Below an empty line times, blocks to scale, and what begins where."""
    proof, cells = said.proof, width - 2
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
    bar, named = Text("▕"), {"rest"}
    for _, length, name in blocks:
        fill, style = COLUMN_FILLS[name]
        gpu = proof.gpu_in(length * proof.elapsed_ns // cells) if name == "CPU" else ""
        words = f"CPU, GPU {gpu}" if gpu and length >= 17 else name
        inside = length == longest[name] and len(words) + 2 <= length
        named |= {name} if inside else set()
        bar += Text(f"{f' {words} ':{fill}^{length}}" if inside else fill * length, style)
    bar += Text("▏")
    ticks = {0: "0"}
    for cell, _, name in sorted(blocks, key=lambda block: (block[2] != "kernel", -block[1])):
        begins = start[column == COLUMNS.index(name)]
        if cell:  # a block begins with a piece, not with a cell
            ticks[cell] = duration(begins[np.abs(begins - edges[cell]).argmin()])
    begin, last = _ENDS.get(proof.kind, _ENDS["event"])
    marks = {0: f"└ {begin}"}
    if proof.launch and proof.launch_ns > 0:
        marks[round(proof.launch_ns / proof.elapsed_ns * cells)] = f"└ {proof.launch}"
    scale = _placed({cells: duration(proof.elapsed_ns)}, ticks, width)
    below = _placed({cells: f"{last} ┘"}, marks, width)
    # where the line of marks has room, the fills without a word in the bar are named there
    legend = "  ".join(
        f"{COLUMN_FILLS[n].letter} {n}" for n in COLUMNS if n in longest and n not in named
    )
    gap = max(re.finditer(" {2,}", below), key=lambda m: len(m.group()), default=None)
    if legend and gap and len(gap.group()) >= len(legend) + 4:
        place = gap.start() + 2
        below = below[:place] + legend + below[place + len(legend) :]
    return [Text(), Text(scale, "dim"), bar, Text(below, "dim")]


def _placed(ends: dict[int, str], texts: dict[int, str], width: int) -> str:
    """A line with texts that begin in these cells of the bar, and those that end there; what has no
    room is left out, the ends first served."""
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
    """A head and a line per label; of a label of several groups a line each beneath it.  file: the one
    that all labels are of."""
    if not rows:
        return []
    lines = _lines_of(rows)
    shown = [line.row for line in lines if line.row is not None]
    unit, size, places = _unit(shown)
    exact = np.array([[*row.columns_ns.values()] for row in shown], np.int64)
    whole = np.array([row.elapsed_ns for row in shown])
    steps = size // 10**places
    rounded = [round(ns / steps) for ns in whole.tolist()]
    cells = np.array([apportion(ns, own) for ns, own in zip(rounded, exact, strict=True)])
    texts_of = [line.words for line in lines]
    longest = max(*(len(line.name) for line in lines), len(f"label, {unit}"))
    longest = max(longest, min(len(f"{file}, {unit}"), 2 * _LABEL)) if file else longest
    small = (exact < _SMALL * np.maximum(whole, 1)[:, None]).all(axis=0)
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
    """(letters of the column of labels, its head): whose labels they are and what the numbers are, as
    far as `most` letters have room for it.  `longest`: of the labels."""
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
    """What a row consists of, to the scale of its own time."""
    weights = np.array([*row.columns_ns.values()], np.int64)
    lengths = apportion(cells, weights).tolist()
    bar = Text("▕")
    for name, length in zip(COLUMNS, lengths, strict=True):
        fill, style = COLUMN_FILLS[name]
        bar.append(fill * length, style)
    return bar + Text("▏")


class _Line(NamedTuple):
    """A line of the table: a row with numbers, or the head of a label with several groups, which
    says how many and how much `instead`.  of: the label whose sentence stands below it."""

    name: str
    row: Row | None
    words: str
    instead: str = ""
    of: LabelRow | None = None


def _lines_of(rows: Sequence[LabelRow]) -> list[_Line]:
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
    """The columns that hold something as texts, each below its head."""

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
    """A row's sentence, its line of code, and what it would take without nsys."""
    predicted = ""
    if row.unprofiled_ns:
        predicted = f"Without nsys {row.without_nsys()} us, estimated."
    elif row.no_prediction:
        predicted = f"No estimate without nsys ({row.no_prediction})."
    site = safe_text(row.site)
    where = f"{site}:" if site and site not in safe_text(row.label) else ""
    return " ".join(filter(None, (where, row.sentence, row.first, predicted)))


def shortened(label: str, width: int) -> str:
    """In `caller (site)` the caller distinguishes labels of one site: that part is shortened last."""
    if len(label) <= width:
        return label
    if several := re.fullmatch(r"(.+) \((.+)\)", label):
        caller, site = several.groups()
        texts = (f"{caller} (:{site.rpartition(':')[2]})", caller)
        return next((text for text in texts if len(text) <= width), middle(caller, width))
    return middle(label, width)


def _unit(rows: Sequence[Row]) -> tuple[str, int, int]:
    """(unit, its ns, decimals): of the shortest row three digits, and no more than it needs."""
    least, most = (f(row.elapsed_ns for row in rows) for f in (min, max))
    if least >= 2_000_000:
        return "ms", 1_000_000, 0 if least >= 200_000_000 else 1 if least >= 20_000_000 else 2
    return "us", 1_000, 0 if least >= 20_000 or most >= 10_000_000 else 1


def _closing(said: Answer, left: int, page: str, width: int) -> list[Text]:
    """What is left, where it is, and what the numbers rest on: a line, or two."""
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
    """Of a group its first finding: title, line of code, saving, evidence, what the CPU did, advice,
    the result of a second run; of a note its title."""
    finding = group.findings[0]
    sign, style = _SEVERE[group.severity]
    code = said.source.get(finding.site)
    named = not finding.site or finding.site in finding.title or code is not None
    where = "" if named else f" ({finding.site})"
    lines = _hanging(sign, finding.title + where, width, style)
    also = [safe_text(other.label) for other in group.findings[1:]]
    facts = {"code": f"{finding.site}: {code}" if code is not None else ""}
    facts["also in"] = ", ".join(also[:MOST_NAMED]) + ", …" * (len(also) > MOST_NAMED)
    if finding.loss_ns:
        facts["could save"] = f"at most {duration(finding.loss_ns)} over the run"
    remark = group.severity == "info" and not finding.loss_ns
    if not remark:
        facts["evidence"] = ", ".join(f"{what} {number}" for what, number in finding.evidence)
        host = (row.host for row in said.labels if row.label == finding.label)
        facts["CPU"] = next(host, "")
    for head, text in facts.items():
        lines += _hanging(f"  {head + ':':11}", text, width, "dim") if text else []
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
    """`head` once, `body` wrapped beside it."""
    lines = _wrapped(body, width - len(head) - 1) or [Text()]
    heads = [Text(f"{head} ", style), *[Text(" " * (len(head) + 1))] * (len(lines) - 1)]
    return [head + line for head, line in zip(heads, lines, strict=True)]
