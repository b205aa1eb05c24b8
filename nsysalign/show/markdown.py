"""One interval as Markdown, for an issue or a review: the sentence, its parts to scale and as a
table, what to change.  The page's "copy as Markdown" gives the same text (templates/markdown.js)."""

from __future__ import annotations

import re

import numpy as np

from nsysalign.answer import Answer
from nsysalign.causes import CAUSE_TABLE, COLUMN_FILLS, COLUMNS, DISPLAY
from nsysalign.explain.proof import dominant
from nsysalign.model import Analysis
from nsysalign.show.beside import beside_interval
from nsysalign.show.beside import sentence as sentence_beside
from nsysalign.show.payload import fix_as_data, fixes_of_labels, gpu_and_recorder, title
from nsysalign.text import percent, safe_text

#: Cells of the bar: with its indent no wider than a terminal.
CELLS = 72


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
        fixes = [*map(fix_as_data, answer.fixes)]
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
        mark = COLUMN_FILLS[CAUSE_TABLE[cause].column].letter.strip()
        time = f"{ns_of[cause] / 1e3:,.3f}"
        share = percent(ns_of[cause] / max(elapsed_ns, 1))
        lines.append(f"| {mark} | {DISPLAY[cause]} | {time} | {share} |")
    return [*lines, f"| | **measured** | **{elapsed_ns / 1e3:,.3f}** | |", ""]


def bar(analysis: Analysis, number: int, elapsed: int) -> str:
    """Return the interval to scale: CELLS letters, each that of the column with most time in its cell; "" if the
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
    cells = dominant(start, end, columns, np.linspace(0, elapsed, CELLS + 1))
    return "".join(COLUMN_FILLS[COLUMNS[cell]].letter for cell in cells.tolist()).rstrip()


def escaped(text: str) -> str:
    """A text in a line of Markdown: its characters stand there, and are no markup."""
    return re.sub(r"([\\`*\[\]<>|~#])", r"\\\1", safe_text(text))
