"""One interval as Markdown, for an issue or a review: the sentence, its parts to scale and as a
table, what to change.  The page's "copy as Markdown" gives the same text (templates/markdown.js)."""

from __future__ import annotations

import re

import numpy as np

from nsysalign.answer import Answer
from nsysalign.causes import CAUSE_TABLE, COLUMN_FILLS, COLUMNS, DISPLAY
from nsysalign.explain.proof import dominant
from nsysalign.model import Analysis
from nsysalign.show.payload import advice, described, title
from nsysalign.text import percent, safe_text

#: Cells of the bar: with its indent no wider than a terminal.
CELLS = 72


def interval(analysis: Analysis, answer: Answer, number: int, run: str = "") -> str:
    """The text for an interval by its number.  `run`: the run's name if the trace's own says
    nothing.  The table adds up to the nanosecond."""
    row = analysis.intervals.loc[analysis.intervals["interval"] == number].iloc[0]
    elapsed, label = int(row["elapsed_ns"]), row["label"]
    table = analysis.parts[analysis.parts["interval"] == number]
    parts = dict(zip(table["cause"].tolist(), table["ns"].tolist(), strict=True))
    leads = answer.proof is not None and answer.proof.label == label
    about = next((r for r in (*answer.labels, *answer.runs) if r.label == label), None)
    sentence = answer.sentence if leads else about.sentence if about else ""
    fixes = [vars(fix) for fix in answer.fixes] if leads else advice(answer).get(label, [])
    lines = [f"**{escaped(sentence or label)}**", ""]
    if drawn := bar(analysis, number, elapsed):
        end = f"{elapsed / 1e3:,.3f} us"
        lines += [f"    {drawn}", f"    0{end:>{CELLS - 1}}", ""]
    lines += ["| | part | us | share |", "|---|---|--:|--:|"]
    present = sorted((cause for cause in CAUSE_TABLE if parts.get(cause)), key=lambda c: -parts[c])
    for cause in present:
        share = percent(parts[cause] / max(elapsed, 1))
        mark = COLUMN_FILLS[CAUSE_TABLE[cause].column].letter
        lines.append(f"| {mark.strip()} | {DISPLAY[cause]} | {parts[cause] / 1e3:,.3f} | {share} |")
    lines += [f"| | **measured** | **{elapsed / 1e3:,.3f}** | |", ""]
    for fix in fixes:
        lines += [f"**{fix['purpose']}:** {escaped(fix['sentence'])}", ""]
        lines += [f"    {safe_text(fix['code'])}", ""] if fix["code"] else []
    name = label if row["kind"] == "run" else row["name"]
    lines.append(escaped(f"{name}; {title(analysis, run)}; {described(analysis)}"))
    return "\n".join(lines) + "\n"


def bar(analysis: Analysis, number: int, elapsed: int) -> str:
    """The interval to scale, in each cell the column with most of its time; '' where its pieces are
    not stored."""
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
