"""The answer in a terminal.

answer    the analysis in words (`nsysalign.answer`): sentence, proof, fixes, a row per label
proof     one interval as a row of pieces, which shows that the sentence is true; the picture draws it
column    a share of the time in the table: a group of causes (`causes.COLUMNS`)
fix       what to change, with its code
remark    a sentence about the recording as a whole
page      the HTML report

The first screen (`render`) has the sentence, the picture, the fixes and a line per label: at most 24 lines,
none longer than the console is wide but for code, which is copied.  Sentences are wrapped, never cut; if there is no room, what matters
least is left out.  `everything` (-v) has all labels with a sentence each, and the findings.

Numbers of a row are rounded so that they add up as printed.  Every text from outside passes `safe_text` and
is added as `Text`, never as rich markup.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from nsysalign.answer import (
    Answer,
    Findings,
    Fix,
    LabelRow,
    Row,
    Wrong,
    of_devices,
    runs_that_lead,
)
from nsysalign.causes import COLUMN_FILLS, COLUMNS
from nsysalign.explain.proof import Proof, dominant
from nsysalign.explain.verdict import SIGNS, WRONG
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
_SMALL, _LABEL = 0.05, 17
#: Most and fewest cells of a label's bar.
_BAR, _LEAST_BAR = 40, 16
#: Fewest letters of a kernel's name, and of a label beside its numbers.
_LEAST_NAME, _LEAST_LABEL = 10, 6
#: Blanks before a verdict, and one that stays at the end of a line.
_BEFORE_VERDICT, _AT_END = 2, 1
#: Blanks between two texts of a line above or below the bar, and on both sides of the legend there.
_APART = 2
_REST = len(COLUMNS) - 1
_STYLES = {"✖": "bold red", "!": "bold yellow", "✓": "green"}
#: Letters before a fact of a finding: as many as "  could save:" has.
_FACT = 13
#: A word, or a number and its unit.
_WORD = re.compile(r"\S*\d (?:%|[num]?s)(?!\w)\S*|\S+")
_SEVERE = {"error": ("✖", "bold red"), "warning": ("!", "bold yellow"), "info": ("i", "bold blue")}
_ENDS = {
    "event": ("start.record()", "end"),
    "host": ("first clock reading", "second"),
    "nvtx": ("its first GPU work", "last"),
    "run": ("first GPU work", "last"),
}
#: What a launch call gives to the GPU, by its name.
_LAUNCHED = {
    "Memcpy": "copy",
    "Memset": "memset",
    "GraphLaunch": "graph launch",
    "Launch": "kernel launch",
}


def render(
    answer: Answer,
    console: Console,
    page: str = "",
    *,
    listed: Sequence[str] = (),
    extra: Sequence[str] = (),
) -> None:
    """Print the first screen: at most LINES lines, if what cannot be left out has room in them.

    answer: what the screen says

    page: the path of the report, "" if there is none
    listed: lines in place of the labels, for an analysis in which nothing was timed
    extra: lines that stand above the last one (commands)
    """
    screen = _FirstScreen(answer, console.width, page, listed, extra)
    lines = screen.lines()
    while len(lines) > LINES and screen.leave_out():
        lines = screen.lines()
    _print(lines, console)


class _FirstScreen:
    """The parts of the first screen, of which the less important ones can be left out one by one."""

    def __init__(
        self, answer: Answer, width: int, page: str, listed: Sequence[str], extra: Sequence[str]
    ) -> None:
        self.answer = answer
        self.width = width
        self.page = page
        self.listed = listed
        #: How many wrong timings have a line each.
        self.told = min(MOST_WRONG, len(answer.wrong))
        self.wrong = _lines_on_wrong(answer, width, self.told)
        self.lost = _wrapped(answer.lost, width, "yellow")[:MOST_WRAPPED]
        self.fixes = [*answer.fixes]
        #: The labels that can have a row: ranges of libraries repeat what the program's own timings say.
        self.labels = [row for row in answer.labels if not (row.library and row.kind == "nvtx")]
        self.labels = self.labels or [*answer.labels]
        # nor has what was only read from the trace, where the program times itself
        itself = [row for row in self.labels if not row.inferred]
        if any(row.kind != "nvtx" and not row.library for row in itself):
            self.labels = itself
        self._restore()
        self.commands = [Text(line) for line in extra]  # never cut, because users copy them

    def _restore(self) -> None:
        """Have the picture, all remarks and rows."""
        self.picture = _lines_of_picture(self.answer, self.width)
        remarks = [_wrapped(remark, self.width, "dim") for remark in self.answer.remarks]
        self.remarks = [remark[:MOST_WRAPPED] for remark in remarks]
        #: How many labels, or lines in their place, the table has.
        self.rows = min(len(self.labels) or len(self.listed), MOST_ROWS)

    def lines(self) -> list[Text]:
        """Return all lines: sentence, picture, what is wrong, fixes, table, remarks, commands, the last line."""
        answer, width = self.answer, self.width
        if answer.labels:
            rows = _first_rows(self.labels, self._named(), self.rows)
            table = _lines_of_table(rows, width, file=answer.file)
        else:
            table = [Text(cut(line, width)) for line in self.listed[: self.rows]]
        lines = [*_lines_of_sentence(answer, width), *self.picture]
        for block in (
            [*self.wrong, *self.lost],
            _lines_of_blocks(_lines_of_fixes(self.fixes, self.width)),
            table,
        ):
            lines += _after_empty_line(block)
        lines += [*_lines_of_blocks(self.remarks), *self.commands]
        return lines + _closing_lines(answer, len(answer.labels) - self.rows, self.page, width)

    def _named(self) -> set[str]:
        """Return the labels that keep their rows: of those that are named above the table, the one that the sentence is
        about and wrong ones of which some timings are no mere launching; and those that would be wrong, did they not wait
        for the work of others."""
        answer = self.answer
        named = {wrong.label for wrong in _others_wrong(answer)[: self.told]}
        about = answer.proof.label if answer.proof else ""
        return {
            row.label
            for row in self.labels
            if row.label == about
            or (row.label in named and any(map(_awaits_gpu, row.groups)))
            or (row.verdict != WRONG and row.saving_ns and "enqueue-only" in row.findings)
        }

    def _again(self) -> list[int]:
        """Which fixes have the purpose of one before them."""
        purposes = [fix.purpose for fix in self.fixes]
        return [n for n, purpose in enumerate(purposes) if purpose in purposes[:n]]

    def _leave_out_beside(self) -> bool:
        """Leave out the picture, then rows of labels that are not named above them, and return whether there was one."""
        if self.picture:
            self.picture = []
        elif self.rows > max(1, len(self._named())):
            self.rows -= 1
        else:
            return False
        return True

    def leave_out(self) -> bool:
        """Leave out what matters least of all that is still there, and return whether there was anything."""
        if self.rows > max(LEAST_ROWS, len(self._named())):
            self.rows -= 1
        elif self.lost and self.wrong:
            self.lost = []
        elif self.remarks:
            self.remarks.pop()
        elif self.wrong and len(self.fixes) > 1 and not self._again() and self._leave_out_beside():
            pass  # how to measure right is no reason not to say what makes it faster
        elif len(self.fixes) > 1:
            del self.fixes[max(self._again(), default=-1)]
            self._restore()  # there may be room for them now
        elif self.lost:
            self.lost = []
        elif self.wrong and self.told > 1:
            self.told -= 1
            self.wrong = _lines_on_wrong(self.answer, self.width, self.told)
        elif self.rows > max(1, len(self._named())):
            self.rows -= 1
        elif self.picture:
            self.picture = []
        elif self.rows > 1:
            self.rows -= 1
        elif self.fixes:
            self.fixes.pop()
        else:
            return False
        return True


def _first_rows(rows: Sequence[LabelRow], named: Collection[str], count: int) -> list[LabelRow]:
    """Return so many labels: those that are named above the table, and the first ones of the others."""
    others = [row for row in rows if row.label not in named]
    left_out = others[max(count - (len(rows) - len(others)), 0) :]
    return [row for row in rows if row not in left_out][:count]


def _lines_of_blocks(blocks: Sequence[Sequence[Text]]) -> list[Text]:
    """Return the lines of all blocks, one block after the other."""
    return [line for block in blocks for line in block]


def _after_empty_line(lines: Sequence[Text]) -> list[Text]:
    """Return an empty line and these lines; [] if there are none."""
    return [Text(), *lines] if lines else []


def everything(analysis: Analysis, answer: Answer, console: Console, page: str = "") -> None:
    """Print the long form: first sentence and picture, fixes, all labels with a sentence each, remarks, the
    run as a whole, the findings, the run without nsys, what was not placed, and notes.

    page: the path of the report, "" if there is none
    """
    width = console.width
    lines = [*_lines_of_sentence(answer, width), *_lines_of_picture(answer, width)]
    warnings = [
        *_lines_on_wrong(answer, width, len(answer.wrong)),
        *_wrapped(answer.lost, width, "yellow"),
    ]
    fixes = _lines_of_blocks(_lines_of_fixes(answer.fixes, width))
    table = _lines_of_table(answer.labels or answer.runs, width, sentences=True, file=answer.file)
    lines += [*_after_empty_line(warnings), *_after_empty_line(fixes), *_after_empty_line(table)]
    for remark in answer.remarks:
        lines += _wrapped(remark, width, "dim")
    lines += [Text(), *_wrapped(answer.headline.text, width)]
    for group in answer.groups:
        lines += [Text(), *_lines_of_finding(answer, group, width)]
    if answer.next:
        lines += [Text(), Text("to test a finding:", "dim")]
        lines += [Text(f"  {line}", "cyan") for line in command_lines(answer.next, width - 2)]
    _print(lines, console)
    _print_unprofiled(analysis, console)  # its table is drawn straight to the console
    lines = [Text()] if answer.unplaced else []
    for unplaced in answer.unplaced:
        names = ", ".join(middle(name, 30) for name in unplaced.names)
        text = f"{unplaced.count:,}: {unplaced.reason} ({names})"
        lines += _hanging_lines("not placed:", text, width, "yellow")
    notes = [note for note in answer.notes if note not in answer.remarks]
    lines += [Text()] if notes else []
    for note in notes:
        lines += _hanging_lines("note:", note, width, "dim")
    lines += [Text(), *_wrapped(_basis_of_numbers(answer), width, "dim")]
    if page:  # a link if the terminal has links
        link = f"link {Path(page).absolute().as_uri()}" if console.is_terminal else ""
        lines.append(Text("→ ") + Text(safe_text(page), link))
    _print(lines, console)


def _print_unprofiled(analysis: Analysis, console: Console) -> None:
    """Print the profiled run beside the run without nsys, if there was one."""
    rows = baseline.rows(analysis)
    if not rows:
        return
    console.print(Text("\nprofiled and unprofiled", "bold"))
    baseline.draw(rows, console)
    console.print(Text(baseline.meaning(analysis), "dim"))
    for label, *_, remark in rows:
        if remark:
            console.print(Text(f"  {label}: {remark}", "yellow"))


def _basis_of_numbers(answer: Answer) -> str:
    """Return what the numbers rest on, in one line: GPU, recorder, how much was measured, SM clock."""
    words_before = {
        "GPU": "",
        "nsys": "nsys ",
        "recorder": "recorded by ",
        "measured": "",
        "timestamp uncertainty": "timestamp uncertainty ±",
        "SM clock": "SM clock ",
    }
    texts = [
        words + answer.about[name] for name, words in words_before.items() if name in answer.about
    ]
    return ", ".join(texts)


def kernels(analysis: Analysis, console: Console) -> None:
    """Print the kernels, copies and graphs of the run as a whole, the most expensive first."""
    lines = kernel_lines(analysis, console.width, MOST_KERNELS)
    head = "share     total     count       mean  kernel, copy or graph"
    _print([Text(head, "dim"), *map(Text, lines)] if lines else [Text("no kernel ran")], console)


def kernel_lines(
    analysis: Analysis, width: int, most: int = 5, proof: Proof | None = None
) -> list[str]:
    """Return a line for each of the most expensive kernels of one run: share, total, count, mean and name, and the idle
    time before it if there is room.

    width: letters of a line
    most: how many kernels have a line; a last line says how many more there are
    proof: what the picture above shows: its run, if it is one of a device; else the longest run
    """
    devices = of_devices(analysis)
    if devices.empty or analysis.kernels.empty:
        return []
    if proof and proof.label in set(devices["label"]):
        label = proof.label
    else:
        # `runs_that_lead`: of each process that of the device which works most; of these the one that took longest
        leading = devices[devices["label"].isin(runs_that_lead(analysis))]
        label = leading.sort_values("elapsed_ns")["label"].iloc[-1]
    kernels = analysis.kernels[analysis.kernels["label"] == label]
    numbers = len("  3 %   18.3 ms     1,000 x  18.3 ms  ")  # what stands before a name
    idle_before = "  idle before  18.3 ms"  # what stands behind it, if there is room
    if width > 2 * LONGEST:  # a wide terminal: names take what the numbers leave
        letters = max(_LEAST_NAME, width - numbers - len(idle_before))
    else:
        letters = max(_LEAST_NAME, min(LONGEST, width - numbers))
    names = [safe_text(name) for name in kernels["kernel"].head(most)]
    short = told_apart({name: middle(short_name(name), letters) for name in names}, letters)
    longest = max(map(len, short.values()))
    has_room = width >= numbers + longest + len(idle_before)
    # of a trace from which rows were removed (thinned), idle times are not known
    with_idle = has_room and not analysis.trace.thinned
    lines = []
    for kernel in kernels.head(most).itertuples(index=False):
        mean_ns = kernel.total_ns / kernel.count
        line = f"{percent(kernel.share):>5}  {duration(kernel.total_ns):>8}  {kernel.count:>8,} x "
        line += f"{duration(mean_ns):>8}  {short[safe_text(kernel.kernel)]:{longest}}"
        if with_idle:
            line += f"  idle before {duration(kernel.idle_before_ns):>8}"
        lines.append(line.rstrip())
    if len(kernels) > most:
        lines.append(f"       … {len(kernels) - most:,} more in the report")
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
    number stays with its unit.  A word that is longer than a line is cut."""
    lines: list[str] = []
    for word in _WORD.findall(text):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(cut((indent if lines else "") + word, width))
    return [Text(line, style) for line in lines]


def _lines_of_sentence(answer: Answer, width: int) -> list[Text]:
    """Return the lines of the answer's sentence: its first sentence in bold, the second on a line of its
    own."""
    head, stop, tail = answer.sentence.partition(". ")
    return [*_wrapped(head + stop.rstrip(), width, "bold"), *_wrapped(tail, width)]


def _lines_on_wrong(answer: Answer, width: int, most: int) -> list[Text]:
    """Return a line for each wrong timing that the answer's sentence is not about, with its reason.

    most: how many have a line; a last line says how many more there are
    """
    others = _others_wrong(answer)
    shown = others[: max(most, 0)]
    texts = [
        _wrapped(f"✖ {wrong.short} {wrong.reason}", width, "bold red", "  ") for wrong in shown
    ]
    lines = [line for text in texts for line in text]
    if left := len(others) - len(shown):
        lines.append(Text(cut(f"✖ {left} more: -v", width), "bold red"))
    return lines


def _others_wrong(answer: Answer) -> list[Wrong]:
    """Return the wrong timings that the answer's sentence is not about."""
    return [wrong for wrong in answer.wrong if wrong.sentence != answer.sentence]


def _lines_of_fixes(fixes: Sequence[Fix], width: int) -> list[list[Text]]:
    """Return the lines of each fix: its sentence, then its code, which is neither cut nor wrapped: it is copied."""
    room = max((len(fix.purpose) for fix in fixes), default=0) + 2
    return [_lines_of_fix(fix, room, width) for fix in fixes]


def _lines_of_fix(fix: Fix, room: int, width: int) -> list[Text]:
    sentence = fix.sentence.rstrip(":.") + (":" if fix.code else ".")
    if width < 3 * room:  # no room beside the heads
        lines = _wrapped(f"{fix.purpose}: {sentence}", width, indent="  ")
        lines[0].stylize("bold", 0, len(fix.purpose) + 1)
    else:
        lines = _hanging_lines(f"{fix.purpose}:".ljust(room)[:-1], sentence, width, "bold")
    return [*lines, *(Text(f"    {line}", "cyan") for line in fix.code.splitlines())]


def command_lines(command: str, width: int) -> list[str]:
    """Return a shell command in lines of at most `width` letters that can be copied together: all but the last
    end with a backslash.  A word that is longer than a line stays whole, on a line of its own."""
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width - 2:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return [*(f"{line} \\" for line in lines[:-1]), *lines[-1:]]


# --- the picture ---


def _lines_of_picture(answer: Answer, width: int) -> list[Text]:
    """Return the picture of the proof, [] if there is none: an empty line, then points in time, the interval as a bar of
    blocks to scale, and marks below it for what begins and ends where.

         0                 ┌1.2 us              5.6 us
        ▕░░ CPU, GPU idle ░░██████████ kernels ████████▏
         └ start.record()  └ kernel launch        end ┘
    """
    proof = answer.proof
    cells = width - 2  # of the bar, without its two ends
    if proof is None or not proof.pieces or proof.elapsed_ns <= 0:
        return []
    last_end_ns = proof.pieces[-1].end_ns
    edges = np.linspace(0, max(proof.elapsed_ns, last_end_ns), cells + 1)
    blocks = _blocks(proof, edges)
    bar, columns_named = _drawn_blocks(proof, blocks, cells)
    ticks = {0: "0"} | _ticks(proof, blocks, edges)
    first, last = _ENDS.get(proof.kind, _ENDS["event"])
    marks = {0: f"└ {first}"}
    if proof.launch and proof.launch_ns > 0:
        launched = (name for part, name in _LAUNCHED.items() if part in proof.launch)
        launch = f"└ {next(launched, proof.launch)}"
        marks.setdefault(round(proof.launch_ns / proof.elapsed_ns * cells), launch)
    above = _texts_at_cells({cells: duration(proof.elapsed_ns)}, ticks, width)
    below = _texts_at_cells({cells: f"{last} ┘"}, marks, width)
    # the rest needs no name: it is what the others leave
    without_name = {block.column for block in blocks} - columns_named - {"rest"}
    return [Text(), Text(above, "dim"), bar, Text(_with_legend(below, without_name), "dim")]


class _Block(NamedTuple):
    """Neighbouring cells (letters) of the bar in which the same column has most of the time."""

    cell: int  # the first
    length: int  # how many cells
    column: str


def _blocks(proof: Proof, edges: np.ndarray) -> list[_Block]:
    """Return the blocks of the bar from left to right.

    edges: where the cells begin and end: ns since the start of the interval, one more than there are cells
    """
    start = np.array([piece.start_ns for piece in proof.pieces])
    end = np.array([piece.end_ns for piece in proof.pieces])
    column = np.array([COLUMNS.index(piece.column) for piece in proof.pieces])
    blocks = []
    cell = 0
    for number, neighbours in groupby(dominant(start, end, column, edges).tolist()):
        length = len(list(neighbours))
        blocks.append(_Block(cell, length, COLUMNS[number]))
        cell += length
    return blocks


def _drawn_blocks(proof: Proof, blocks: Sequence[_Block], cells: int) -> tuple[Text, set[str]]:
    """Return (the bar, the columns whose name stands in it).

    cells: how many cells the bar has

    The longest block of a column has the column's name inside, if there is room.  A block in which the CPU worked says
    what the GPU did meanwhile, too: that is what a reader asks there.
    """
    longest: dict[str, int] = {}
    for block in blocks:
        longest[block.column] = max(block.length, longest.get(block.column, 0))
    columns_named = set[str]()
    bar = Text("▕")
    for block in blocks:
        fill, style = COLUMN_FILLS[block.column]
        block_ns = block.length * proof.elapsed_ns // cells
        gpu = proof.gpu_in(block_ns) if block.column in ("CPU", "calls") else ""
        name = block.column
        with_gpu = f"{name}, GPU {gpu}"
        # a blank on both sides of the name; of the longer text also a cell that shows what the block is
        if gpu and len(with_gpu) + 4 <= block.length:
            name = with_gpu
        if block.length == longest[block.column] and len(name) + 2 <= block.length:
            columns_named.add(block.column)
            bar += Text(_centred(f" {name} ", block.length, fill), style)
        else:
            bar += Text(fill * block.length, style)
    return bar + Text("▏"), columns_named


def _centred(text: str, length: int, fill: str) -> str:
    """Return a text in the middle of `length` letters, the others of which are `fill`."""
    return f"{text:{fill}^{length}}"


def _ticks(proof: Proof, blocks: Sequence[_Block], edges: np.ndarray) -> dict[int, str]:
    """Return cell -> the time at which a block begins there, for all blocks but the first: those of kernels come
    first, then the longest.

    edges: as in `_blocks`

    The time is that of the piece of the block's column that begins nearest to the cell.
    """
    ticks = {}
    for block in sorted(blocks, key=lambda block: (block.column != "kernels", -block.length)):
        if block.cell:
            begins = [p.start_ns for p in proof.pieces if p.column == block.column]
            nearest = min(begins, key=lambda ns, cell=block.cell: abs(ns - edges[cell]))
            ticks[block.cell] = f"┌{duration(nearest)}"
    return ticks


def _with_legend(line: str, without_name: Collection[str]) -> str:
    """Return a line with the letters and names of these columns in its widest gap, if they fit there.

    line: the marks below the bar
    without_name: the columns whose name does not stand in the bar
    """
    names = [name for name in COLUMNS if name in without_name]
    legend = "  ".join(f"{COLUMN_FILLS[name].letter} {name}" for name in names)
    gap = max(re.finditer(" {2,}", line), key=lambda match: len(match.group()), default=None)
    if not legend or gap is None or len(gap.group()) < len(legend) + 2 * _APART:
        return line
    place = gap.start() + _APART
    return line[:place] + legend + line[place + len(legend) :]


def _texts_at_cells(ends: dict[int, str], texts: dict[int, str], width: int) -> str:
    """Return a line of text, in which each text begins or ends at a certain cell of the bar.

    ends: cell -> the text that ends there; these come first
    texts: cell -> the text that begins there
    width: letters of the line

        _texts_at_cells({12: "ns"}, {0: "0", 4: "5 ns"}, 14)   "0    5 ns  ns"

    A text that would overlap one before it, or stand fewer than _APART blanks from it, is left out.
    """
    line = [" "] * width
    is_taken = [False] * width
    # cell n is letter n + 1 of the line, behind the bar's left end; what begins at the first cell stands at that end
    places = [(cell + 1 - len(text), text) for cell, text in ends.items()]
    places += [(cell + 1 if cell else 0, text) for cell, text in texts.items()]
    for place, text in places:
        around = is_taken[max(place - _APART, 0) : place + len(text) + _APART]
        if place >= 0 and place + len(text) <= width and not any(around):
            line[place : place + len(text)] = text
            is_taken[place : place + len(text)] = [True] * len(text)
    return "".join(line).rstrip()


# --- the table ---


def _lines_of_table(
    rows: Sequence[LabelRow], width: int, sentences: bool = False, file: str = ""
) -> list[Text]:
    """Return the table: a head, then a line for each label, and beneath it a line for each of its groups if it
    has several.

    rows: the labels, or runs
    width: letters of a line
    sentences: whether a label's sentence stands below its lines
    file: the source file of all labels, which stands in the head; "" if there are several

    bench.py, times in us   time = kernel  + CPU                     parts, to scale
    30-32                  227.7     24.8  202.9  ! 89 % CPU-bound   ▕█████░░░░░░░░░▏
    """
    if not rows:
        return []
    lines = _table_rows(rows, whole=sentences)
    numbers = _Numbers([line.row for line in lines if line.row is not None])
    verdict_width = max(len(line.words) for line in lines)
    longest = max(*(len(line.name) for line in lines), len(f"label, {numbers.unit}"))
    without_verdict = width - _BEFORE_VERDICT - verdict_width - _AT_END
    columns = numbers.columns_within(without_verdict - min(longest, _LABEL))
    if file:  # it is in the sentence, too: columns come first
        longest = max(longest, min(len(f"{file}, {numbers.unit}"), 2 * _LABEL))
    longest = max(longest, _longest_head(lines) - _width_of(columns))
    room = without_verdict - _width_of(columns)  # for names
    if room < _LEAST_LABEL:  # a very narrow terminal: names, times and verdicts
        columns = columns[:1]
        room = without_verdict - _width_of(columns)
    name_width, head = _heading(file, numbers.unit, longest, room)
    spare = room - name_width - len("  ▕▏")  # a gap, and the ends of the bar
    bar_width = min(spare, _BAR) if spare >= _LEAST_BAR else 0
    short = _short_names([line.name for line in lines], name_width)
    heads = _side_by_side(columns, [column.head for column in columns])
    drawn_lines = [Text(f"{head:<{name_width}}", "dim").append(heads)]
    if bar_width:  # above the bars, behind the verdict and the blanks around it
        drawn_lines[0].append(
            " " * (_BEFORE_VERDICT + verdict_width + 2) + "parts, to scale", "dim"
        )
    # of each line with numbers its cell in each column
    cells = zip(*(column.cells for column in columns), strict=True)
    for line in lines:
        name = line.name if len(line.name) <= name_width else short[line.name]
        if line.row is None:
            text = _head_of_groups(line, name, name_width, _width_of(columns))
        else:
            text = Text(f"{name:<{name_width}}").append(_side_by_side(columns, next(cells)))
        text.append(f"  {line.words}", _STYLES.get(line.words[0], ""))  # by the verdict's sign
        if bar_width and line.row is not None:
            gap = " " * (verdict_width - len(line.words) + 2)
            text.append(gap).append_text(_bar(line.row, bar_width))
        text.truncate(width, overflow="ellipsis")
        drawn_lines.append(text)
        if sentences and line.label_ending is not None:
            drawn_lines += _indented(_text_below(line.label_ending), width)
    if any(column.has_brackets for column in columns):
        drawn_lines += _wrapped(_on_brackets(numbers.rows), width, "dim")
    return drawn_lines


def _on_brackets(rows: Sequence[Row]) -> str:
    """Return what the kernels in brackets are, which are beside the sum of their row."""
    kinds = {row.kind == "host" for row in rows if row.beside_ns}
    if kinds == {True}:
        return "in brackets: how long its kernels ran, also while the CPU did other things"
    on_both = ", or while the CPU did other things" if True in kinds else ""
    return f"in brackets: kernels on other streams{on_both}"


def _side_by_side(columns: Sequence[_Column], texts: Sequence[str]) -> str:
    """Return a text of each column, as wide as the column, with a blank before it."""
    return "".join(f" {text:>{column.width}}" for column, text in zip(columns, texts, strict=True))


def _indented(text: str, width: int) -> list[Text]:
    """Return the lines of a text that stands below a line of the table."""
    return [Text("  ") + part for part in _wrapped(text, width - 2, "dim")]


class _Column(NamedTuple):
    """A column of numbers of the table, as texts."""

    head: str
    cells: list[str]  # one per row
    name: str = ""  # the column of COLUMNS, "" for the time
    has_brackets: bool = False  # whether cells have kernels beside the sum, in brackets

    @property
    def width(self) -> int:
        return max(map(len, (self.head, *self.cells)))


def _width_of(columns: Sequence[_Column]) -> int:
    """Return the letters that these columns take, with a blank before each."""
    return sum(column.width + 1 for column in columns)


def _rounded(total: int, columns_ns: np.ndarray, step: int) -> list[int]:
    """Return the columns of a row in whole steps, which add up to `total`: each rounded to the nearest, as the page
    does; what is left over goes to the last one, `rest`.  Only where that would be a step off are all of them
    rounded together.

    228 us of 24.73, 31.13, 164.44 and, the rest, 7.41:    25, 31, 164, 8
    """
    nearest = [round(ns / step) for ns in columns_ns[:-1].tolist()]
    left = total - sum(nearest)
    if left >= 0 and abs(left - columns_ns[-1] / step) < 1:
        return [*nearest, left]
    return apportion(total, columns_ns)


class _Numbers:
    """The numbers of the table: in each row the time and its columns, rounded so that they add up as printed.

    rows:   the labels and groups that have numbers
    unit:   us or ms
    places: how many decimals are printed
    step:   the ns of the last decimal
    cells:  int64 (rows, COLUMNS), in steps
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.unit, unit_ns, self.places = _unit(rows)
        self.step = unit_ns // 10**self.places
        self._columns_ns = np.array([[*row.columns_ns.values()] for row in rows], np.int64)
        self._whole_ns = np.array([row.elapsed_ns for row in rows])
        whole = [round(ns / self.step) for ns in self._whole_ns.tolist()]
        parts = zip(whole, self._columns_ns, strict=True)
        self.cells = np.array([_rounded(total, ns, self.step) for total, ns in parts])

    def columns_within(self, room: int) -> list[_Column]:
        """Return the columns as texts: the time, then one for each group of causes that has any.

        room: letters that they should take at most

        Columns that are small in every row are added to the column `rest`, and so are the smallest of the
        others while there is too little room.  If that leaves kernels alone, and most of a row would be `rest`, the
        kernels stand there as a part of the time, not as a sum that says nothing.
        """
        can_join = range(1, _REST)  # all but the first column, kernels, and `rest` itself
        least_ns = _SMALL * np.maximum(self._whole_ns, 1)
        is_small = (self._columns_ns < least_ns[:, None]).all(axis=0)
        cells = _with_more_rest(self.cells, [number for number in can_join if is_small[number]])
        squeezed = False  # whether a column that is not small had to join `rest`
        while True:
            columns = _texts_of_columns(self.rows, cells, self.step, self.places)
            with_time = [number for number in can_join if cells[:, number].any()]
            has_kernels = any(column.name == COLUMNS[0] for column in columns)
            fewest = 0 if has_kernels else 1  # one column besides `rest` stays
            if _width_of(columns) <= room or len(with_time) <= fewest:
                break
            total = np.maximum(cells.sum(axis=1), 1)
            largest_share = (cells / total[:, None]).max(axis=0)
            smallest = min(with_time, key=lambda number: largest_share[number])
            cells = _with_more_rest(cells, [smallest])
            squeezed = True
        is_mostly_rest = 2 * cells[:, _REST] > cells.sum(axis=1)
        only_kernels_and_rest = has_kernels and not with_time
        if squeezed and only_kernels_and_rest and is_mostly_rest.any():
            return [columns[0], columns[1]._replace(head="kernels")]
        return columns


def _with_more_rest(cells: np.ndarray, columns: list[int]) -> np.ndarray:
    """Return the cells of a table with some columns added to `rest`, and empty themselves."""
    cells = cells.copy()
    cells[:, _REST] += cells[:, columns].sum(axis=1)
    cells[:, columns] = 0
    return cells


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
    heads = [f"{file}, {unit}", f"label, times in {unit}"] if file else []
    with_room = [head for head in heads if len(head) <= room]
    return room, with_room[0] if with_room else f"label, {unit}"


def _bar(row: Row, cells: int) -> Text:
    """Return a bar of so many cells that shows the columns of a row to scale."""
    weights = np.array([*row.columns_ns.values()], np.int64)
    lengths = apportion(cells, weights).tolist()
    bar = Text("▕")
    for name, length in zip(COLUMNS, lengths, strict=True):
        fill, style = COLUMN_FILLS[name]
        bar.append(fill * length, style)
    return bar + Text("▏")


class _TableRow(NamedTuple):
    """A line of the table: a row with numbers, or the head of a label with several groups, without numbers."""

    name: str
    row: Row | None  # None: a head
    words: str  # the verdict, behind its sign and a blank
    #: Of a head what stands in place of numbers: how many timings and how much time.
    instead: str = ""
    #: The label that ends with this line, None if none does: its sentence stands below.
    label_ending: LabelRow | None = None


def _longest_head(lines: Sequence[_TableRow]) -> int:
    """Return the letters of the longest head of a label's groups, with a blank around its totals; 0 for none."""
    heads = (len(line.name) + len(line.instead) + 2 for line in lines if line.row is None)
    return max(heads, default=0)


def _head_of_groups(line: _TableRow, name: str, name_width: int, width: int) -> Text:
    """Return the head of a label's groups: its name, and in place of numbers its totals, which begin where the numbers do,
    or before that where they are long.

    name: as the table has it
    name_width, width: letters of the column of names, and of the numbers with the blank before them
    """
    totals = _text_of_totals(line, name_width - len(name) + width - 1)
    begin = name_width - max(len(totals) - (width - 1), 0)
    return Text(name.ljust(begin)).append(f" {totals:<{width - 1}}", "dim")


def _text_of_totals(line: _TableRow, width: int) -> str:
    """Return what stands in place of a head's numbers: its first parts as far as there is room for them."""
    parts = line.instead.split(", ")
    fits = [", ".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((text for text in fits if len(text) <= width), cut(parts[0], width))


def _table_rows(rows: Sequence[LabelRow], *, whole: bool) -> list[_TableRow]:
    """Return the lines of the table for these labels, without the table's head.

    whole: whether groups of a wrong timing have a line each, too, where the same is said of all of them
    """
    has_numbers = whole or not all(map(_alike, rows))
    lines = []
    for row in rows:
        words = f"{SIGNS[row.verdict]} {row.words}"
        if not row.groups:
            lines.append(_TableRow(row.short, row, words, label_ending=row))
            continue
        steady = plural(row.warm.count, "timing")
        much = " overlap" if row.overlapping else f", {duration(row.warm.total_ns)}"
        groups = () if has_numbers and not whole and _alike(row) else row.groups[:MOST_GROUPS]
        not_shown = row.warm.count - sum(group.count for group in groups) if groups else 0
        left = f", {not_shown:,} not shown" if not_shown else ""
        lines.append(_TableRow(row.short, None, words, f"{steady}{much}{left}"))
        for group in groups:
            words = f"{SIGNS[group.verdict]} {group.words}"
            ending = row if group is groups[-1] else None
            lines.append(_TableRow(f"  {group.name}", group, words, label_ending=ending))
    return lines


def _awaits_gpu(row: Row) -> bool:
    """Whether the timings of a row are mostly work of the GPU, or a wait for it."""
    columns = row.columns_ns
    return 2 * max(row.gpu_ns, columns["waiting"] + columns["sync"]) >= row.elapsed_ns


def _alike(row: LabelRow) -> bool:
    """Whether a label is wrong and has groups of which the same is said, but for numbers."""
    alike = {re.sub(r"\d+", "", group.words) for group in row.groups}
    return row.verdict == WRONG and len(alike) == 1


def _texts_of_columns(
    rows: Sequence[Row], cells: np.ndarray, step: int, decimals: int
) -> list[_Column]:
    """Return the columns that are not empty as texts: the time, and all of COLUMNS in which any row has time.

    cells: int64 (rows, COLUMNS), in units of the last decimal
    step: ns of that unit
    decimals: how many decimals are printed

    The first of COLUMNS, kernels, shows in brackets how long kernels ran in all, if some of it is beside the sum
    (`Row.beside_ns`): "24.8 (36.2)".
    """

    def printed(value: float) -> str:
        return f"{value / 10**decimals:,.{decimals}f}" if value else "·"

    columns = [_Column("time", [printed(value) for value in cells.sum(axis=1).tolist()])]
    kernels = [printed(value) for value in cells[:, 0].tolist()]
    has_brackets = False
    for position, row in enumerate(rows):
        if round(row.beside_ns / step) > cells[position, 0]:
            in_sum = f"{kernels[position]} " if cells[position, 0] else ""
            kernels[position] = f"{in_sum}({printed(row.beside_ns / step)})"
            has_brackets = True
    if cells[:, 0].any() or has_brackets:
        columns.append(_Column(f"= {COLUMNS[0]}", kernels, COLUMNS[0], has_brackets))
    for number, name in enumerate(COLUMNS[1:], start=1):
        if cells[:, number].any():
            sign = "+" if columns[1:] else "="  # time = first column + others
            texts = [printed(value) for value in cells[:, number].tolist()]
            columns.append(_Column(f"{sign} {name}", texts, name))
    return columns


def _text_below(row: LabelRow) -> str:
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
    caller distinguishes labels of the same site, and of `file:line › lines` the file; of a group how many timings it has, which the sentence says, then all but
    which of them these are."""
    if len(label) <= width:
        return label
    if group := re.fullmatch(r"(  )×[\d,]+: (no\. [\d,-]*\d(?=,|$))?(.*)", label):
        place, name = group[2] or "", group[3]
        whole = len(place) + len(name) <= width - 2
        return group[1] + (middle(place + name, width - 2) if whole or not place else place)
    if several := re.fullmatch(r"(.+) \((.+)\)", label):
        caller, site = several.groups()
        texts = (f"{caller} (:{site.rpartition(':')[2]})", caller)
        return next((text for text in texts if len(text) <= width), middle(caller, width))
    if called := re.fullmatch(r"(.+):([\d-]+ › [\d-]+)", label):
        file, lines = called.groups()  # the file is that of many labels
        room = width - len(lines) - 1
        return f"{file[:room]}…{lines}" if room > 0 else middle(label, width)
    return middle(label, width)


def _short_names(names: Sequence[str], width: int) -> dict[str, str]:
    """Return name -> at most `width` letters of it.  Groups of the same work keep how many timings they have, which tells
    them apart: "  ×67: 186 opera…", "  ×60: 186 opera…"."""
    short = {name: shortened(name, width) for name in names}
    often = Counter(short.values())
    for name, text in short.items():
        if often[text] > 1 and name.startswith("  ×"):
            short[name] = cut(name, width)
    return told_apart(short, width)


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


def _closing_lines(answer: Answer, left: int, page: str, width: int) -> list[Text]:
    """Return the last line, or two: how many more labels there are and how to see them, where the page is, and
    what the numbers rest on.

    left: how many labels the table left out
    """
    head = f"-v shows {plural(left, 'more label')}" if left > 0 else "-v shows more"
    where = f"   page: {safe_text(page)}" if page else ""
    trust = f"({answer.trust})"
    gap = width - len(head + where) - len(trust)
    if gap >= 2:
        return [Text(head + where + " " * gap) + Text(trust, "dim")]
    last = head + where if len(head + where) <= width else safe_text(page)
    return [*_wrapped(trust, width, "dim"), Text(last)]


# --- findings ---


def _lines_of_finding(answer: Answer, group: Findings, width: int) -> list[Text]:
    """Return the lines of a group of findings, by its first one: title, line of code, saving, evidence, what
    the CPU did, advice, and the result of a second run.  A remark (information without a loss) has no
    evidence and no advice.
    """
    finding = group.findings[0]
    sign, style = _SEVERE[group.severity]
    code = answer.source.get(finding.site)
    # the site stands behind the title, unless that has it, or the line with its code below
    has_site = finding.site in finding.title or code is not None
    where = f" ({finding.site})" if finding.site and not has_site else ""
    lines = _hanging_lines(sign, finding.title + where, width, style)
    labels = [safe_text(other.label) for other in group.findings[1:]]
    is_remark = group.severity == "info" and not finding.loss_ns
    facts = {
        "code": f"{finding.site}: {code}" if code is not None else "",
        "also in": ", ".join(labels[:MOST_NAMED]) + (", …" if len(labels) > MOST_NAMED else ""),
    }
    if finding.saving_ns:
        facts["could save"] = f"at most {duration(finding.saving_ns)} over the run"
    if not is_remark:
        facts["evidence"] = ", ".join(f"{name} {number}" for name, number in finding.evidence)
        of_label = (row.host for row in answer.labels if row.label == finding.label)
        facts["CPU"] = next(of_label, "")
    for head, text in facts.items():
        if text:
            lines += _hanging_lines(f"  {head}:".ljust(_FACT), text, width, "dim")
    if is_remark:
        return lines
    for fix in finding.advice:
        first = fix.sentence[:2]  # XLA stays XLA
        first = first if first.isupper() else first.lower()
        advice = f"To {fix.purpose}: {first}{fix.sentence[2:]}"
        lines += _hanging_lines(" ", f"{advice}:" if fix.code else advice, width)
        lines += [Text(f"      {line}", "cyan") for line in fix.code.splitlines()]
    if finding.confirmation:
        verdict, _, result = finding.confirmation.partition(": ")  # "confirmed: what was done"
        lines += _hanging_lines(f"  {verdict}:", result, width, "dim")
    return lines


def _hanging_lines(head: str, body: str, width: int, style: str = "") -> list[Text]:
    """Return lines with `head` before the first one, and `body` wrapped beside it."""
    lines = _wrapped(body, width - len(head) - 1) or [Text()]
    heads = [Text(f"{head} ", style), *[Text(" " * (len(head) + 1))] * (len(lines) - 1)]
    return [head + line for head, line in zip(heads, lines, strict=True)]
