"""The page's section "With and without nsys": plain HTML, every text escaped, no script needed."""

from __future__ import annotations

import html

from nsysalign.model import Analysis
from nsysalign.report.baseline_rows import (
    HEADS,
    MEANING,
    BaselineRow,
    baseline_rows,
    budget_text,
    cells,
    gap_text,
)
from nsysalign.text import safe_text

_UNITS = {"under nsys": "us", "without": "us", "predicted": "us"}


def section(analysis: Analysis) -> str:
    """The section as markup; '' if there was no run without nsys."""
    rows = baseline_rows(analysis)
    if not rows:
        return ""
    heads = "".join(
        f'<th scope="col"{_number(k)}>{head}{f" <small>{_UNITS[head]}</small>" if head in _UNITS else ""}</th>'
        for k, head in enumerate((*HEADS, "predicted budget without nsys"))
    )
    return "\n".join(
        [
            '  <section id="baseline" aria-labelledby="baseline-head">',
            '    <h2 id="baseline-head">With and without nsys</h2>',
            '    <div class="scroll" tabindex="0" role="region" aria-label="Table of both runs"><table>',
            f"      <thead><tr>{heads}</tr></thead>",
            f"      <tbody>{''.join(map(_row, rows))}</tbody>",
            "    </table></div>",
            f'    <p class="quiet">{html.escape(MEANING)} An error marked ! is larger than its bar.</p>',
            "  </section>",
        ]
    )


def _row(row: BaselineRow) -> str:
    label = f'<th scope="row">{_text(row.label)}<span class="site">{_text(row.site)}</span></th>'
    numbers = "".join(f'<td class="number">{_text(cell)}</td>' for cell in cells(row))
    words = [budget_text(row) if row.budget else "", row.remark, gap_text(row)]
    last = "".join(f"<div>{_text(w)}</div>" for w in words if w)
    return f"<tr>{label}{numbers}<td>{last}</td></tr>"


def _number(column: int) -> str:
    return ' class="number"' if 0 < column < len(HEADS) else ""


def _text(text: str) -> str:
    return html.escape(safe_text(text))
