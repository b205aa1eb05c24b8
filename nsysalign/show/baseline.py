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


def _row(both: Any, in_turns: bool) -> list[str]:
    """Return the cells of one label: one for each of HEADS, then its remark.

    both: a row of `frames.BASELINE`: the label in the profiled run and in the run without nsys
    in_turns: whether both are one run, which was traced only part of the time
    """
    same_count = both.profiled_count == both.baseline_count
    counts = f"{both.profiled_count}/{both.baseline_count}"
    return [
        safe_text(both.label),
        str(both.profiled_count) if same_count else counts,
        fixed(both.profiled_ns),
        fixed(both.baseline_ns),
        "-" if math.isnan(both.inflation) else f"{both.inflation:.2f}",
        _estimate(both),
        _error(both),
        "; ".join(filter(None, (_limits(both, in_turns), safe_text(both.remark)))),
    ]


def _estimate(both: Any) -> str:
    """Return the time that was estimated for the run without nsys, with its error bar; if there is none, why in a
    word.  `both`: a row of `frames.BASELINE`."""
    if not math.isnan(both.predicted_ns):
        return within(both.predicted_ns, both.predicted_lower_ns, both.predicted_upper_ns)
    _, has_reason, reason = str(both.remark).partition("no prediction: ")
    return in_a_word(reason) if has_reason else "-"


def _error(both: Any) -> str:
    """Return by how much the estimate differs from what was measured, in percent, and "!" if what was measured
    lies outside of the estimate's bounds.  `both`: a row of `frames.BASELINE`."""
    if math.isnan(both.error):
        return "-"
    low, high = both.predicted_lower_ns, both.predicted_upper_ns
    outside = both.baseline_ns < low or both.baseline_ns > high
    return f"{round(100 * both.error):+d} %" + (" !" if outside else "")


def _limits(both: Any, in_turns: bool) -> str:
    """Return what limits the label in either run, as the event log proves it; "" if it does not for both.

    both, in_turns: as in `_row`
    """
    profiled = LIMITS.get(both.profiled_verdict)
    unprofiled = LIMITS.get(both.baseline_verdict)
    if not (profiled and unprofiled):
        return ""
    if profiled == unprofiled:
        return f"{profiled} in both" if in_turns else f"{profiled} in both runs"
    if in_turns:
        return f"traced: {profiled}; untraced: {unprofiled}"
    return f"profiled: {profiled}; unprofiled: {unprofiled}"


def draw(rows: list[list[str]], console: Console) -> None:
    """Print the table.  `rows`: as `rows` returns them."""
    columns = []
    for number, (head, leaves) in enumerate(HEADS.items()):
        cells = [row[number] for row in rows]
        if head == "label":
            columns.append(table.text(head, cells))
        else:
            columns.append(table.Column(head, cells, leaves=leaves))
    table.draw(columns, console)


def page_table(analysis: Analysis) -> dict[str, Any]:
    """The page's table."""
    return {"heads": [*HEADS, "remark"], "rows": rows(analysis), "note": meaning(analysis)}
