"""The answer in a terminal.  First screen: the sentence, the picture that proves it, what to change,
a line per label; at most 24 lines, none longer than the console is wide; texts are cut, rows give
way last.  `everything` (-v) has all labels with a sentence each, and the findings.

Numbers of a row are rounded so that they add up as printed.  All foreign text passes `safe_text` and
is added as `Text`, never as rich markup.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nsysalign.answer import Answer, Group, LabelRow, of_devices
from nsysalign.model import Analysis
from nsysalign.parts import COLUMNS, apportion
from nsysalign.show import baseline
from nsysalign.text import (
    duration,
    middle,
    percent,
    plural,
    safe_text,
    short_name,
    told_apart,
)
from nsysalign.verdicts import SIGNS, Fix, Proof, dominant

LINES, MOST_ROWS, LEAST_ROWS = 24, 10, 3
#: Labels that a finding names, kernels of `--kernels`, letters of a kernel's name.
MOST_NAMED, MOST_KERNELS, LONGEST = 4, 40, 40
#: A column under this share of every row shown joins `rest`, and the smallest of the others where
#: labels would be shorter than so many letters.
_SMALL, _LABEL = 0.05, 18
_FILL = {
    "kernel": ("█", "green"),
    "copy": ("▓", "blue"),
    "launch": ("▒", "yellow"),
    "sync": ("╌", "magenta"),
    "waiting": ("·", "magenta"),
    "CPU": ("░", "red"),
    "rest": (" ", "white"),
}
_GAPS = re.compile(r" {2,}")
_STYLES = {"✖": "bold red", "!": "bold yellow", "✓": "green"}
_SEVERE = {"error": ("✖", "bold red"), "warning": ("!", "bold yellow"), "info": ("i", "bold blue")}
_ENDS = {
    "event": ("start.record()", "end"),
    "host": ("first timer call", "second"),
    "nvtx": ("range begins", "ends"),
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
    top = _top(said, width)
    room = LINES - len(top) - LEAST_ROWS - 4 - len(extra) - len(said.remarks)
    if fixes := _fixes(said.fixes, width)[: max(room, 0)]:
        top += [Text(), *fixes]
    below = [Text(cut(remark, width), "dim") for remark in said.remarks]
    below += [Text(line) for line in extra]  # commands, which are copied whole
    room = LINES - len(top) - len(below) - 1
    shown = max(min(room - 2 - 1, len(said.labels), MOST_ROWS), 0)
    while True:
        body = _table(said.labels[:shown], width)
        if not said.labels:
            body = [Text(cut(line, width)) for line in listed[: room - 2]]
        closing = _closing(said, len(said.labels) - shown, page, width)
        if len(closing) == 1 or shown <= LEAST_ROWS or len(body) + len(closing) + 1 <= room:
            break
        shown -= 1
    _print([*top, *([Text(), *body] if body else []), *below, *closing], console)


def everything(analysis: Analysis, said: Answer, console: Console, page: str = "") -> None:
    """Print all labels with a sentence each, the run, the findings, the run without nsys, notes."""
    width = console.width
    fixes = _fixes(said.fixes, width)
    table = _table(said.labels or said.runs, width, sentences=True)
    _print([*_top(said, width), *([Text(), *fixes] if fixes else []), Text(), *table], console)
    _print([Text(remark, "dim") for remark in said.remarks], console)
    console.print()
    console.print(Text(said.headline.text))
    for group in said.groups:
        _finding(said, group, console)
    if said.next:
        console.print(Text("\nto test a finding:", "dim"))
        console.print(Text(f"  {said.next}", "cyan"), soft_wrap=True)  # to be copied
    _baseline(analysis, console)
    if said.unplaced:
        console.print()
    for unplaced in said.unplaced:
        names = ", ".join(middle(name, 30) for name in unplaced.names)
        _hanging(
            console, "not placed:", f"{unplaced.count:,}: {unplaced.reason} ({names})", "yellow"
        )
    if said.notes:
        console.print()
    for note in said.notes:
        _hanging(console, "note:", note, "dim")
    trust = said.trust
    rests = [trust.gpu or "no GPU named", f"nsys {trust.nsys}".strip(), trust.measured]
    if trust.placed_within_ns is not None:
        rests.append(f"timestamp uncertainty ±{duration(trust.placed_within_ns)}")
    rests += [f"SM clock {trust.clock}"] if trust.clock else []
    console.print(Text("\n" + ", ".join(rests), "dim"))
    if page:  # a link if the terminal has links; broken over lines it could not be copied
        link = f"link {Path(page).absolute().as_uri()}" if console.is_terminal else ""
        console.print(Text("→ ") + Text(safe_text(page), link), soft_wrap=True)


def kernels(analysis: Analysis, console: Console) -> None:
    """Print what ran in the run as a whole, the most expensive first."""
    lines = kernel_lines(analysis, console.width, MOST_KERNELS)
    head = "share     total     count     median  kernel, copy or graph"
    _print([Text(head, "dim"), *map(Text, lines)] if lines else [Text("no kernel ran")], console)


def kernel_lines(analysis: Analysis, width: int, most: int = 5) -> list[str]:
    """The most expensive kernels of the longest run: share, total, count, median, name, and the
    idle time before them where `width` has room for it."""
    devices = of_devices(analysis)
    if devices.empty or analysis.kernels.empty:
        return []
    label = devices.sort_values("elapsed_ns")["label"].iloc[-1]
    rows = analysis.kernels[analysis.kernels["label"] == label]
    names = [safe_text(name) for name in rows["kernel"].head(most)]
    letters = max(10, min(LONGEST, width - 38))
    short = told_apart({name: middle(short_name(name), letters) for name in names}, letters)
    longest = max(map(len, short.values()))
    idle = width >= 38 + longest + len(", idle before 18.3 ms")
    lines = []
    for kernel in rows.head(most).itertuples(index=False):
        line = f"{percent(kernel.share):>5}  {duration(kernel.total_ns):>8}  {kernel.count:>8,} x "
        line += f"{duration(kernel.median_ns):>8}  {short[safe_text(kernel.kernel)]:{longest}}"
        line += f"  idle before {duration(kernel.idle_before_ns):>8}" if idle else ""
        lines.append(line.rstrip())
    if len(rows) > most:
        lines.append(f"       … {len(rows) - most:,} more in the report")
    return lines


def range_lines(analysis: Analysis, most: int = 5) -> list[str]:
    """The NVTX ranges that took longest on the host: total, count, median, name."""
    return [
        f"{duration(row.host_ns):>8}  {row.count:>8,} x {duration(row.median_ns):>8}  {safe_text(row.label)}"
        for row in analysis.host_ranges.head(most).itertuples(index=False)
    ]


def cut(text: str, width: int) -> str:
    """A text that ends in an ellipsis where it does not fit."""
    return text if cell_len(text) <= width else text[: max(width - 1, 0)] + "…"


def _print(lines: Sequence[Text], console: Console) -> None:
    for line in lines:
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def _top(said: Answer, width: int) -> list[Text]:
    """The sentence, the picture, wrong timings, and what has no place."""
    top = _sentence(said.sentence, width)
    if said.proof is not None and said.proof.pieces and said.proof.elapsed_ns > 0:
        top += [Text(), *_bar(said.proof, width)]
    if said.wrong or said.unplaced:
        top.append(Text())
    if said.wrong:
        count = len(said.wrong)
        names = [cut(safe_text(label), 30) for label in said.wrong[:3]]
        more = f", +{count - 3}" if count > 3 else ""
        what = "1 timing is wrong" if count == 1 else f"{count:,} timings are wrong"
        top.append(Text(cut(f"✖ {what}: {', '.join(names)}{more}", width), "bold red"))
    if said.unplaced:
        top.append(Text(cut(said.lost, width), "yellow"))
    return top


def _sentence(sentence: str, width: int) -> list[Text]:
    """Two sentences on a line each if they fit, at most three lines."""
    head, stop, tail = sentence.partition(". ")
    lines = [*_wrapped(head + stop.rstrip(), width), *_wrapped(tail, width)]
    if len(lines) > 3:
        lines = _wrapped(sentence, width)
    if len(lines) > 3:
        lines = [*lines[:2], cut(" ".join(lines[2:]), width)]
    return [Text(line, "bold" if number == 0 else "") for number, line in enumerate(lines)]


def _wrapped(text: str, width: int) -> list[str]:
    """Broken at blanks; a word that is too long is cut."""
    lines: list[str] = []
    for word in text.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(cut(word, width))
    return lines


def _fixes(fixes: Sequence[Fix], width: int) -> list[Text]:
    """A line per fix: its code if there is any, else its sentence."""
    room = max((len(fix.purpose) for fix in fixes), default=0) + 2
    lines = []
    for fix in fixes:
        head = f"{fix.purpose}:".ljust(room)
        if fix.code and len(fix.code[0]) + room <= width:
            lines.append(Text(head, "bold") + Text(fix.code[0], "cyan"))
            continue
        lines.append(Text(head, "bold") + Text(cut(fix.sentence, width - room)))
        lines += [Text("    " + code, "cyan") for code in fix.code[:1] if len(code) + 4 <= width]
    return lines


# --- the picture ---


def _bar(proof: Proof, width: int) -> list[Text]:
    """Times, blocks to scale, and what begins where."""
    cells = width - 2
    start = np.array([piece.start_ns for piece in proof.pieces])
    end = np.array([piece.end_ns for piece in proof.pieces])
    column = np.array([COLUMNS.index(piece.column) for piece in proof.pieces])
    edges = np.linspace(0, max(proof.elapsed_ns, int(end[-1])), cells + 1)
    blocks, cell = [], 0
    for number, run in groupby(dominant(start, end, column, edges).tolist()):
        length = len(list(run))
        blocks.append((cell, length, COLUMNS[number]))
        cell += length
    longest: dict[str, int] = {}
    for _, length, name in blocks:
        longest[name] = max(length, longest.get(name, 0))
    bar, named = Text("▕"), set()
    for _, length, name in blocks:
        fill, style = _FILL[name]
        words = "CPU, GPU idle" if name == "CPU" and length >= 17 else name
        inside = f" {words} " if length == longest[name] and len(words) + 2 <= length else ""
        named |= {name} if inside else set()
        bar += Text(f"{inside:{fill}^{length}}" if inside else fill * length, style)
    bar += Text("▏")
    ticks = {0: "0"}
    for cell, _, name in sorted(blocks, key=lambda block: (block[2] != "kernel", -block[1])):
        begins = start[column == COLUMNS.index(name)]
        if cell:  # a block begins with a piece, not with a cell
            ticks[cell] = duration(begins[np.abs(begins - edges[cell]).argmin()])
    scale = _placed({cells: duration(proof.elapsed_ns)}, ticks, width)
    begin, last = _ENDS.get(proof.kind, _ENDS["event"])
    marks: dict[int, str] = {0: f"└ {begin}"}
    if proof.launch and proof.launch_ns > 0:
        marks[round(proof.launch_ns / max(proof.elapsed_ns, 1) * cells)] = f"└ {proof.launch}"
    below = _placed({cells: f"{last} ┘"}, marks, width)
    unnamed = [f"{_FILL[n][0]} {n}" for n in COLUMNS[:-1] if n in longest and n not in named]
    gap = max(_GAPS.finditer(below), key=lambda m: len(m.group()), default=None)
    if unnamed and gap and len(gap.group()) >= len(legend := "  ".join(unnamed)) + 4:
        # where the line of marks has room, the fills without a word in the bar are named there
        place = gap.start() + 2
        below = below[:place] + legend + below[place + len(legend) :]
    return [Text(scale, "dim"), bar, Text(below, "dim")]


def _placed(ends: dict[int, str], texts: dict[int, str], width: int) -> str:
    """A line with texts that begin in these cells of the bar, and those that end there; what has no
    room is left out, the ends first served."""
    line = [" "] * width
    taken = [False] * (width + 2)
    places = [(cell + 1 - len(text), text) for cell, text in ends.items()]
    places += [(cell + 1 if cell else 0, text) for cell, text in texts.items()]
    for place, text in places:
        around = taken[max(place - 2, 0) : place + len(text) + 2]
        if place < 0 or place + len(text) > width or any(around):
            continue
        line[place : place + len(text)] = text
        taken[place : place + len(text)] = [True] * len(text)
    return "".join(line).rstrip()


# --- the table ---


def _table(rows: Sequence[LabelRow], width: int, sentences: bool = False) -> list[Text]:
    """A head and a line per label; below it its sentence."""
    if not rows:
        return []
    unit, size, places = _unit(rows)
    steps = size // 10**places
    cells = np.array(
        [
            apportion(round(row.elapsed_ns / steps), np.array([row.columns_ns[c] for c in COLUMNS], np.int64))
            for row in rows
        ]
    )  # fmt: skip
    exact = np.array([[row.columns_ns[c] for c in COLUMNS] for row in rows])
    whole = np.array([max(row.elapsed_ns, 1) for row in rows])
    rest = len(COLUMNS) - 1

    def fold(columns: Sequence[int]) -> None:
        cells[:, rest] += cells[:, columns].sum(axis=1)
        cells[:, columns] = 0

    fold([n for n in range(1, rest) if (exact[:, n] < _SMALL * whole).all()])

    def printed(value: int) -> str:
        return f"{value / 10**places:,.{places}f}" if value else "·"

    words = [f"{SIGNS[row.verdict]} {row.words}" for row in rows]
    names = [safe_text(row.label) for row in rows]
    heads = ["event" if all(row.kind == "event" for row in rows) else "time"]
    longest = max(*map(len, names), len(f"label, {unit}"))
    while True:
        columns = [n for n in range(len(COLUMNS)) if cells[:, n].any() or n == 0]
        texts = [[heads[0], *map(printed, cells.sum(axis=1).tolist())]]
        for number in columns:
            sign = "+" if number else "="
            texts.append([f"{sign} {COLUMNS[number]}", *map(printed, cells[:, number].tolist())])
        wide = sum(max(map(len, column)) + 1 for column in texts) + max(map(len, words)) + 3
        leaving = [n for n in columns if n not in (0, rest)]
        if width - wide >= min(longest, _LABEL) or not leaving:
            break
        share = (cells / np.maximum(cells.sum(axis=1), 1)[:, None]).max(axis=0)
        fold([min(leaving, key=lambda n: share[n])])
    if width - wide < 6:  # a very narrow terminal: names and verdicts
        texts = texts[:1]
        wide = max(map(len, texts[0])) + 1 + max(map(len, words)) + 3
    room = max(min(longest, width - wide), 6)
    short = told_apart({name: shortened(name, room) for name in names}, room)
    lines = []
    for number in range(len(rows) + 1):
        line = Text(f"{short[names[number - 1]] if number else f'label, {unit}':<{room}}")
        for column in texts:
            line.append(" " + column[number].rjust(max(map(len, column))))
        if number:
            line.append(f"  {words[number - 1]}", _STYLES.get(words[number - 1][0], ""))
        else:
            line.stylize("dim")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
        if number and sentences:
            lines += [
                Text(f"  {part}", "dim") for part in _wrapped(_more(rows[number - 1]), width - 2)
            ]
    return lines


def _more(row: LabelRow) -> str:
    """A row's sentence, its line of code, and what it would take without nsys."""
    predicted = ""
    if row.unprofiled_ns:
        predicted = f"Without nsys {row.without_nsys()} us, estimated."
    elif row.no_prediction:
        predicted = f"No estimate without nsys ({row.no_prediction})."
    site = safe_text(row.site)
    where = f"{site}:" if site and site not in safe_text(row.label) else ""
    return " ".join(filter(None, (where, row.sentence, predicted)))


def shortened(label: str, width: int) -> str:
    """In `caller (site)` the caller distinguishes labels of one site: that part is shortened last."""
    if len(label) <= width:
        return label
    if several := re.fullmatch(r"(.+) \((.+)\)", label):
        caller, site = several.groups()
        texts = (f"{caller} (:{site.rpartition(':')[2]})", caller)
        return next((text for text in texts if len(text) <= width), middle(caller, width))
    return middle(label, width)


def _unit(rows: Sequence[LabelRow]) -> tuple[str, int, int]:
    """(unit, its ns, decimals): of the shortest row three digits, and no more than it needs."""
    least, most = (f(row.elapsed_ns for row in rows) for f in (min, max))
    if least >= 2_000_000:
        return "ms", 1_000_000, 0 if least >= 200_000_000 else 1 if least >= 20_000_000 else 2
    return "us", 1_000, 0 if least >= 20_000 or most >= 10_000_000 else 1


def _closing(said: Answer, left: int, page: str, width: int) -> list[Text]:
    """What is left, where it is, and what the numbers rest on: a line, or two."""
    notes = sum(f.severity == "info" for group in said.groups for f in group.findings)
    counts = [plural(left, "more label")] if left else []
    counts += [plural(notes, "note")] if notes else []
    head = ", ".join(counts) + " (-v)" if counts else "all of it: -v"
    where = f" → {safe_text(page)}" if page else ""
    trust = f"({said.trust})"
    gap = width - len(head + where) - len(trust)
    if gap >= 2:
        return [Text(head + where + " " * gap) + Text(trust, "dim")]
    last = head + where if len(head + where) <= width else f"→ {safe_text(page)}"
    return [Text(cut(trust, width), "dim"), Text(last)]


# --- findings, and the run without nsys ---


def _finding(said: Answer, group: Group, console: Console) -> None:
    """Of a group its first finding: title, line of code, saving, evidence, what the CPU did, advice,
    the result of a second run; of a note its title."""
    finding = group.findings[0]
    sign, style = _SEVERE[group.severity]
    line = said.source.get(finding.site)
    named = not finding.site or finding.site in finding.title or line is not None
    console.print()
    _hanging(console, sign, finding.title + ("" if named else f" ({finding.site})"), style)
    if line is not None:
        _hanging(console, "  code:      ", f"{finding.site}  {line}", "dim")
    if also := [safe_text(other.label) for other in group.findings[1:]]:
        more = ", …" if len(also) > MOST_NAMED else ""
        _hanging(console, "  also in:   ", ", ".join(also[:MOST_NAMED]) + more, "dim")
    if finding.loss_ns:
        where = plural(finding.count, f"{finding.which} interval".strip())
        measured = f" of {duration(finding.total_ns)} in {where}" if finding.count else ""
        _hanging(console, "  could save:", f"at most {duration(finding.loss_ns)}{measured}", "dim")
    if group.severity == "info" and not finding.loss_ns:
        return
    if finding.evidence:
        evidence = ", ".join(f"{what} {number}" for what, number in finding.evidence)
        _hanging(console, "  evidence:  ", evidence, "dim")
    host = next((row.host for row in said.labels if row.label == finding.label), "")
    if host:
        _hanging(console, "  CPU:       ", host, "dim")
    for head, sentence, code in finding.advice:
        _hanging(console, " ", f"{head}: {sentence[:1].lower()}{sentence[1:]}", "")
        for each in code:
            console.print(Text(f"      {each}", "cyan"), soft_wrap=True)
    if finding.confirmation:
        verdict, _, result = finding.confirmation.partition(": ")
        _hanging(console, f"  {verdict}:", result, "dim")


def _hanging(console: Console, head: str, body: str, style: str) -> None:
    """`head` once, `body` wrapped beside it."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(head, style), Text(body))
    console.print(grid)


def _baseline(analysis: Analysis, console: Console) -> None:
    """The run with nsys beside the one without it; nothing if there was none."""
    rows = baseline.rows(analysis)
    if not rows:
        return
    console.print(Text("\nprofiled and unprofiled, us", "bold"))
    baseline.draw(rows, console)
    console.print(Text(baseline.MEANING, "dim"))
    for row in rows:
        if row.remark:
            console.print(Text(f"  {row.label}: {row.remark}", "yellow"))
