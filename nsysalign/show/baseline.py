"""The profiled run beside the run without nsys, as texts for the page and the terminal."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Console

from nsysalign.answer import in_a_word
from nsysalign.model import Analysis
from nsysalign.show import table
from nsysalign.text import fixed, safe_text, within

#: What the log proves of a label (`unprofiled_run`), in words.
LIMITS = {"gpu_bound": "GPU-bound", "cpu_bound": "CPU-bound"}
#: Of the columns, times in us; a narrow terminal leaves out those with a number, the least first.
HEADS = {
    "label": None,
    "intervals": 1,
    "profiled": None,
    "unprofiled": None,
    "inflation": 2,
    "estimate": None,
    "error": 3,
}
MEANING = (
    "Microseconds, means of the middle half of the intervals; the probe was active in both runs. "
    "Estimate: the unprofiled time, computed from the profiled trace alone, with its error bar. "
    "Error: the estimate against the measurement; marked ! where it is larger than its bar."
)


TURNS = (
    "Microseconds, means of the middle half of the intervals, of one run: unprofiled are those during which "
    "CUPTI was not in the process."
)


def meaning(analysis: Analysis) -> str:
    """What the table holds."""
    return TURNS if analysis.known.in_turns else MEANING


def rows(analysis: Analysis) -> list[list[str]]:
    """A cell for each of HEADS and a remark, per label of either run; none if there was no run
    without nsys."""
    in_turns = analysis.known.in_turns
    return [_row(both, in_turns) for both in analysis.baseline.itertuples(index=False)]


def _row(both: Any, in_turns: bool) -> list[str]:  # of frames.BASELINE
    under, without = both.profiled_count, both.baseline_count
    low, high = both.predicted_lower_ns, both.predicted_upper_ns
    _, there, reason = str(both.remark).partition("no prediction: ")
    predicted = in_a_word(reason) if there else "-"
    if not math.isnan(both.predicted_ns):
        predicted = within(both.predicted_ns, low, high)
    error = "-"
    if not math.isnan(both.error):
        outside = both.baseline_ns < low or both.baseline_ns > high
        error = f"{round(100 * both.error):+d} %" + (" !" if outside else "")
    first, second = LIMITS.get(both.profiled_verdict), LIMITS.get(both.baseline_verdict)
    under_it, without_it = ("traced", "untraced") if in_turns else ("profiled", "unprofiled")
    limits = f"{under_it}: {first}; {without_it}: {second}" if first and second else ""
    if limits and first == second:
        limits = f"{first} in both" if in_turns else f"{first} in both runs"
    return [
        safe_text(both.label),
        str(under) if under == without else f"{under}/{without}",
        fixed(both.profiled_ns),
        fixed(both.baseline_ns),
        "-" if math.isnan(both.inflation) else f"{both.inflation:.2f}",
        predicted,
        error,
        "; ".join(filter(None, (limits, safe_text(both.remark)))),
    ]


def draw(rows: list[list[str]], console: Console) -> None:
    """The table in the terminal."""
    (_, labels), *others = zip(HEADS, [*zip(*rows, strict=True)][: len(HEADS)], strict=True)
    columns = [table.Column(head, cells, leaves=HEADS[head]) for head, cells in others]
    table.draw([table.text("label", labels), *columns], console)


def page_table(analysis: Analysis) -> dict[str, Any]:
    """The page's table."""
    return {"heads": [*HEADS, "remark"], "rows": rows(analysis), "note": meaning(analysis)}
