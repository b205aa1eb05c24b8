"""The first screen: the sentence, the picture that proves it, what to change, a line per label.

At most 24 lines, none longer than the console is wide; texts are cut, rows give way last.  All that
is said is in `Answer.screen`; numbers of a row are rounded so that they add up as printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from nsysalign.parts import COLUMNS, apportion
from nsysalign.show.label_table import shortened
from nsysalign.text import duration, plural, safe_text, told_apart
from nsysalign.verdicts import SIGNS, First, LabelVerdict, Proof, dominant

LINES, MOST_ROWS, LEAST_ROWS = 24, 10, 3
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
_ENDS = {
    "event": ("start.record()", "end"),
    "host": ("first timer call", "second"),
    "nvtx": ("range begins", "ends"),
    "run": ("first GPU work", "last"),
}


def render(
    first: First,
    console: Console,
    page: str = "",
    *,
    listed: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> None:
    """Print it.  `page`: path of the report; `listed`: lines in place of the rows of labels, where
    nothing was timed; `extra`: lines that stand above the last one."""
    width = console.width
    top = _sentence(first.sentence, width)
    if first.proof is not None and first.proof.pieces and first.proof.elapsed_ns > 0:
        top += [Text(), *_bar(first.proof, width)]
    if first.wrong:
        top += [Text(), _wrong(first.wrong, width)]
    if first.unplaced:
        top += [*([] if first.wrong else [Text()]), Text(cut(first.unplaced, width), "yellow")]
    room = LINES - len(top) - LEAST_ROWS - 4 - len(extra) - len(first.remarks)
    if fixes := _fixes(first, width)[: max(room, 0)]:
        top += [Text(), *fixes]
    below = [Text(cut(remark, width), "dim") for remark in first.remarks]
    below += [Text(line) for line in extra]  # commands, which are copied whole
    room = LINES - len(top) - len(below) - 1
    shown = 0
    if first.labels:
        shown = max(min(room - 2 - 1, len(first.labels), MOST_ROWS), 0)
        body = _table(first.labels[:shown], width)
    else:
        body = [Text(cut(line, width)) for line in listed[: room - 2]]
    closing = _closing(first, len(first.labels) - shown, page, width)
    if len(closing) > 1 and shown > LEAST_ROWS and len(body) + len(closing) + 1 > room:
        shown -= 1
        body = _table(first.labels[:shown], width)
        closing = _closing(first, len(first.labels) - shown, page, width)
    for line in [*top, *([Text(), *body] if body else []), *below, *closing]:
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)


def cut(text: str, width: int) -> str:
    """A text that ends in an ellipsis where it does not fit."""
    return text if cell_len(text) <= width else text[: max(width - 1, 0)] + "…"


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


def _wrong(labels: Sequence[str], width: int) -> Text:
    count = len(labels)
    names = [cut(safe_text(label), 30) for label in labels[:3]]
    more = f", +{count - 3}" if count > 3 else ""
    what = "1 timing is wrong" if count == 1 else f"{count:,} timings are wrong"
    return Text(cut(f"✖ {what}: {', '.join(names)}{more}", width), "bold red")


def _fixes(first: First, width: int) -> list[Text]:
    """A line per fix: its code if there is any, else its sentence."""
    room = max((len(fix.purpose) for fix in first.fixes), default=0) + 2
    lines = []
    for fix in first.fixes:
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
    start, end, column = (
        np.array([p.start_ns for p in proof.pieces]),
        np.array([p.end_ns for p in proof.pieces]),
        np.array([COLUMNS.index(p.column) for p in proof.pieces]),
    )
    edges = np.linspace(0, max(proof.elapsed_ns, int(end[-1])), cells + 1)
    blocks, at = [], 0
    for number, run in groupby(dominant(start, end, column, edges).tolist()):
        length = len(list(run))
        blocks.append((at, length, COLUMNS[number]))
        at += length
    bar, named = Text("▕"), set()
    longest = {
        name: max(sizes)
        for name in COLUMNS
        if (sizes := [size for _, size, of in blocks if of == name])
    }
    for _, length, name in blocks:
        fill, style = _FILL[name]
        words = name
        if name == "CPU" and length >= 17:
            words = "CPU, GPU idle"
        inside = f" {words} " if length == longest[name] and len(words) + 2 <= length else ""
        named |= {name} if inside else set()
        bar += Text(f"{inside:{fill}^{length}}" if inside else fill * length, style)
    bar += Text("▏")
    ranked = sorted(blocks, key=lambda block: (block[2] != "kernel", -block[1]))
    ticks = {0: "0"}
    for cell, _, name in ranked:  # a block begins with a piece, not with a cell
        begins = start[column == COLUMNS.index(name)]
        at_ns = begins[np.abs(begins - edges[cell]).argmin()]
        if cell:
            ticks[cell] = duration(at_ns)
    scale = _placed({cells: duration(proof.elapsed_ns)}, ticks, width)
    begin, last = _ENDS.get(proof.kind, _ENDS["event"])
    unnamed = [f"{_FILL[n][0]} {n}" for n in longest if n not in named and n != "rest"]
    marks: dict[int, str] = {0: f"└ {begin}"}
    if proof.launch and proof.launch_ns > 0:
        marks[round(proof.launch_ns / max(proof.elapsed_ns, 1) * cells)] = f"└ {proof.launch}"
    below = _placed({cells: f"{last} ┘"}, marks, width)
    if unnamed and len(legend := "  ".join(unnamed)) + 4 < width:
        # where the line of marks has room, the fills without a word in the bar are named there
        gap = max((len(m.group()) for m in _GAPS.finditer(below)), default=0)
        if gap >= len(legend) + 4:
            place = max(_GAPS.finditer(below), key=lambda m: len(m.group())).start() + 2
            below = below[:place] + legend + below[place + len(legend) :]
    return [Text(scale, "dim"), bar, Text(below, "dim")]


def _placed(ends: dict[int, str], texts: dict[int, str], width: int) -> str:
    """A line with texts that begin in these cells of the bar, and those that end there; what has no
    room is left out, the ends first served."""
    line = [" "] * width
    taken = [False] * (width + 2)

    def put(at: int, text: str) -> None:
        if at < 0 or at + len(text) > width or any(taken[max(at - 2, 0) : at + len(text) + 2]):
            return
        line[at : at + len(text)] = text
        taken[at : at + len(text)] = [True] * len(text)

    for cell, text in ends.items():
        put(cell + 1 - len(text), text)
    for cell, text in texts.items():
        put(cell + 1 if cell else 0, text)
    return "".join(line).rstrip()


# --- the table ---


def _table(rows: Sequence[LabelVerdict], width: int) -> list[Text]:
    """A head and a line per label."""
    if not rows:
        return []
    unit, size, places = _unit(rows)
    rest = len(COLUMNS) - 1
    parts = [np.array([row.columns_ns[name] for name in COLUMNS], np.int64) for row in rows]
    steps = size // 10**places
    shown = [
        apportion(round(row.elapsed_ns / steps), part)
        for row, part in zip(rows, parts, strict=True)
    ]
    small = [
        number
        for number, name in enumerate(COLUMNS[:-1])
        if name != "kernel"
        and all(part[number] < _SMALL * max(row.elapsed_ns, 1) for row, part in zip(rows, parts, strict=True))
    ]  # fmt: skip
    for cells in shown:
        cells[rest] += cells[small].sum()
        cells[small] = 0
    columns = [n for n in range(len(COLUMNS)) if any(cells[n] for cells in shown)]
    columns = columns if 0 in columns else [0, *columns]

    def cell(value: int) -> str:
        return f"{value / 10**places:,.{places}f}" if value else "·"

    word = "event" if all(row.kind == "event" for row in rows) else "time"
    names = [safe_text(row.label) for row in rows]
    words = [f"{SIGNS[row.verdict]} {row.words}" for row in rows]
    weight = [max(cells[n] / max(cells.sum(), 1) for cells in shown) for n in range(len(COLUMNS))]
    longest = max(*map(len, names), len(f"label, {unit}"))
    while True:
        texts = [[word, *(cell(int(c[columns].sum())) for c in shown)]]
        for number in columns:
            sign = "+" if number != columns[0] else "="
            texts.append([f"{sign} {COLUMNS[number]}", *(cell(int(c[number])) for c in shown)])
        wide = sum(max(map(len, column)) + 1 for column in texts) + max(map(len, words)) + 3
        leaving = [n for n in columns if n not in (0, rest)]
        if width - wide >= min(longest, _LABEL) or not leaving:
            break
        small = min(leaving, key=lambda n: weight[n])
        columns.remove(small)
        columns += [rest] if rest not in columns else []
        for cells in shown:
            cells[rest] += cells[small]
    if width - wide < 6:  # a very narrow terminal: names and verdicts
        texts = texts[:1]
        wide = max(map(len, texts[0])) + 1 + max(map(len, words)) + 3
    room = max(min(longest, width - wide), 6)
    short = told_apart({name: shortened(name, room) for name in names}, room)
    lines = []
    for number in range(len(rows) + 1):
        label = short[names[number - 1]] if number else f"label, {unit}"
        line = Text(f"{label:<{room}}")
        for column in texts:
            line.append(" " + column[number].rjust(max(map(len, column))))
        if number:
            line.append(f"  {words[number - 1]}", _STYLES.get(words[number - 1][0], ""))
        else:
            line.stylize("dim")
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines


def _unit(rows: Sequence[LabelVerdict]) -> tuple[str, int, int]:
    """(unit, its ns, decimals): of the shortest row three digits, and no more than it needs."""
    least, most = (f(row.elapsed_ns for row in rows) for f in (min, max))
    if least >= 2_000_000:
        return "ms", 1_000_000, 0 if least >= 200_000_000 else 1 if least >= 20_000_000 else 2
    return "us", 1_000, 0 if least >= 20_000 or most >= 10_000_000 else 1


def _closing(first: First, left: int, page: str, width: int) -> list[Text]:
    """What is left, where it is, and what the numbers rest on: a line, or two."""
    counts = [plural(left, "more label")] if left else []
    counts += [plural(first.notes, "note")] if first.notes else []
    head = ", ".join(counts) + " (-v)" if counts else "all of it: -v"
    where = f" → {safe_text(page)}" if page else ""
    trust = f"({first.trust})"
    if len(head + where) + 2 + len(trust) <= width:
        gap = width - len(head + where) - len(trust)
        return [Text(head + where + " " * gap) + Text(trust, "dim")]
    last = head + where if len(head + where) <= width else f"→ {safe_text(page)}"
    return [Text(cut(trust, width), "dim"), Text(last)]
