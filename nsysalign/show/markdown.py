"""One interval as Markdown, for an issue or a review: the sentence, its parts to scale and as a
table, what to change.  The page's "copy as Markdown" gives the same text (templates/markdown.js)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from nsysalign.answer import Answer
from nsysalign.causes import CAUSE_TABLE, COLUMN_FILLS, COLUMNS, DISPLAY
from nsysalign.explain.proof import ns_in_cells
from nsysalign.model import Analysis
from nsysalign.parts import apportion
from nsysalign.show.beside import beside_interval
from nsysalign.show.beside import sentence as sentence_beside
from nsysalign.show.payload import fixes_of_labels, fixes_of_sentence, gpu_and_recorder, title
from nsysalign.text import percent, safe_text

#: Cells of the bar: with its indent no wider than a terminal.
CELLS = 72
#: What is neither CPU, GPU nor calls: launch latency, and what a pair of events costs.
REST = "▁"


def interval(analysis: Analysis, answer: Answer, number: int, run: str = "") -> str:
    """Return an interval as Markdown: a sentence, the interval to scale, a table of its parts, which add up to the
    nanosecond, what to change, and which run it is of.

    answer: the answer of the analysis
    number: the number of the interval
    run: the name of the run, which is used if the path of the trace does not name it

    The sentence and the fixes are those of the first screen if it is about the interval's label, else those of
    the label.
    """
    row = analysis.intervals.loc[analysis.intervals["interval"] == number].iloc[0]
    elapsed_ns = int(row["elapsed_ns"])
    label = row["label"]
    if answer.proof is not None and answer.proof.label == label:
        sentence = answer.sentence
        fixes = fixes_of_sentence(answer, fixes_of_labels(answer))
    else:
        sentences = {row.label: row.sentence for row in (*answer.runs, *answer.labels)}
        sentence = sentences.get(label, "")
        fixes = fixes_of_labels(answer).get(label, [])
    lines = [f"**{escaped(sentence or label)}**", ""]
    if drawn_bar := bar(analysis, number, elapsed_ns):
        end = f"{elapsed_ns / 1e3:,.3f} us"
        lines += [f"    {drawn_bar}", f"    0{end:>{CELLS - 1}}", ""]
    lines += _lines_of_table(analysis, number, elapsed_ns)
    if ns := beside_interval(analysis, number):
        lines += [sentence_beside(row["kind"], f"{ns / 1e3:,.3f} us"), ""]
    for fix in fixes:
        lines += [f"**{fix['purpose']}:** {escaped(fix['sentence'])}", ""]
        if fix["code"]:
            lines += [*(f"    {safe_text(line)}" for line in fix["code"]), ""]
    name = label if row["kind"] == "run" else row["name"]
    lines.append(escaped(f"{name}; {title(analysis, run)}; {gpu_and_recorder(analysis)}"))
    return "\n".join(lines) + "\n"


def _lines_of_table(analysis: Analysis, number: int, elapsed_ns: int) -> list[str]:
    """Return the lines of the table: a head, each part of the interval, the longest first, and their sum."""
    rows = analysis.parts[analysis.parts["interval"] == number]
    ns_of = dict(zip(rows["cause"].tolist(), rows["ns"].tolist(), strict=True))
    causes = [cause for cause in CAUSE_TABLE if ns_of.get(cause)]
    lines = ["| | part | us | share |", "|---|---|--:|--:|"]
    for cause in sorted(causes, key=lambda cause: -ns_of[cause]):
        mark = _letter(CAUSE_TABLE[cause].column)
        time = f"{ns_of[cause] / 1e3:,.3f}"
        share = percent(ns_of[cause] / max(elapsed_ns, 1))
        lines.append(f"| {mark} | {DISPLAY[cause]} | {time} | {share} |")
    return [*lines, f"| | **measured** | **{elapsed_ns / 1e3:,.3f}** | |", ""]


def _letter(column: str) -> str:
    """Return the letter of a column in the bar and in the table; the terminal's blank would be seen in neither."""
    return COLUMN_FILLS[column].letter.strip() or REST


def bar(analysis: Analysis, number: int, elapsed: int) -> str:
    """Return the interval to scale: CELLS letters, of each column as many as its share of the time; "" if the
    interval's pieces are not stored.

    number: the number of the interval
    elapsed: its length (ns)
    """
    pieces = analysis.segments[analysis.segments["interval"] == number].sort_values("start_ns")
    if pieces.empty or not elapsed:
        return ""
    first = int(pieces["start_ns"].iloc[0])
    start, end = (pieces[name].to_numpy(np.int64) - first for name in ("start_ns", "end_ns"))
    columns = np.array([COLUMNS.index(CAUSE_TABLE[cause].column) for cause in pieces["cause"]])
    edges = np.arange(CELLS + 1) * elapsed // CELLS
    ns_of_columns = ns_in_cells(start, end, columns, edges)
    ns_of_cells = ns_of_columns.T.round().astype(np.int64)
    return "".join(_letter(COLUMNS[column]) for column in fair_cells(ns_of_cells.tolist()))


def fair_cells(ns_of_cells: Sequence[Sequence[int]]) -> list[int]:
    """Return the number of the column that each cell shows: every column gets as many cells as it has time, by largest
    remainders, and each of them about where that time is.

    ns_of_cells: per cell, the time of each column in it (ns)

    Where many short pieces share a cell, the one with most time would be seen alone, however little more it has:

    cells      2 1 0   2 1 0   2 1 0   2 1 0   2 1 0   2 1 0        longest: 0 0 0 0 0 0
                                                                    fair:    0 1 0 0 1 0
    From left to right each cell goes to the column that has waited longest: with most time that no cell has shown yet.
    """
    total_ns = [sum(column) for column in zip(*ns_of_cells, strict=True)]
    left = apportion(len(ns_of_cells), np.array(total_ns, dtype=np.int64)).tolist()
    waiting_ns = [0] * len(total_ns)
    cells = []
    for ns_of_cell in ns_of_cells:
        waiting_ns = [
            waited + cell_ns for waited, cell_ns in zip(waiting_ns, ns_of_cell, strict=True)
        ]
        open_columns = [column for column, count in enumerate(left) if count]
        column = max(open_columns, key=lambda number: waiting_ns[number])
        left[column] -= 1
        waiting_ns[column] -= sum(ns_of_cell)
        cells.append(column)
    return cells


def escaped(text: str) -> str:
    """A text in a line of Markdown: its characters stand there, and are no markup."""
    return re.sub(r"([\\`*\[\]<>|~#])", r"\\\1", safe_text(text))
