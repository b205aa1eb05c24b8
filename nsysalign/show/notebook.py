"""What Python users get: `analyze` and `load`, whose result shows itself in a notebook."""

from __future__ import annotations

import html
from dataclasses import fields
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysalign import engine, model
from nsysalign.answer import LabelRow, answer, causes_present
from nsysalign.errors import UsageError
from nsysalign.model import CAUSES
from nsysalign.parts import SHORT, parts_matrix
from nsysalign.rundir import RunDirectory
from nsysalign.show.html import page
from nsysalign.show.palette import LOOKS
from nsysalign.show.timeline_rows import with_segments
from nsysalign.text import duration, fixed, percent, plural, safe_text
from nsysalign.unprofiled_run import UnprofiledRun, analyze_run

if TYPE_CHECKING:
    import plotly.graph_objects


#: Findings and readings that a notebook shows above the table.
MOST_SAID = 3


class Analysis(model.Analysis):
    """An analysis that shows itself: one line, a table, the page in a frame, a figure."""

    def __repr__(self) -> str:
        """ "<Analysis of train-001/trace.sqlite: 144 intervals in 24 labels, 33 findings>"."""
        intervals = plural(len(self.measured), "interval")
        counts = f"{intervals} in {plural(len(self.labels), 'label')}"
        findings = plural(len(self.findings), "finding")
        return f"<Analysis of {safe_text(self.trace.path)}: {counts}, {findings}>"

    def _repr_html_(self) -> str:
        """The label table."""
        return fragment(self)

    def show(self, name: str | None = None, height: int = 900) -> Framed:
        """The page, opened at the interval or label of this name, if one is given; drawn from the
        interval's own pieces if what ran around it was not kept.

        Raises UsageError if there is neither.
        """
        if name is None:
            return Framed(self, None, height)
        chosen = number(self, name)
        held = (self.timeline["interval"] == chosen).any()
        return Framed(self if held else with_segments(self, chosen), chosen, height)

    def waterfall(self, name: str) -> plotly.graph_objects.Figure:
        """A plotly figure: from the measured time of an interval, or of a label's median one, to
        its kernels.

        Raises UsageError if there is neither.
        """
        return waterfall(self, name)


def shown(analysis: model.Analysis) -> Analysis:
    """The same analysis, able to show itself."""
    return Analysis(**{f.name: getattr(analysis, f.name) for f in fields(analysis)})


@wraps(engine.analyze)
def analyze(*args: Any, **options: Any) -> Analysis:
    """`engine.analyze`, whose result shows itself."""
    return shown(engine.analyze(*args, **options))


@wraps(engine.load)
def load(path: str | PathLike[str]) -> Analysis | UnprofiledRun:
    """`engine.load`, whose result shows itself; of a run without nsys, what its event log proves."""
    run = RunDirectory(Path(path))
    return analyze_run(run) if run.unprofiled else shown(engine.load(path))


def fragment(analysis: model.Analysis) -> str:
    """The first findings and the label table as HTML for notebooks: every value escaped, no script,
    its style inline."""
    said = answer(analysis)
    rows, causes = said.labels, causes_present(said.labels)

    def text(value: str) -> str:
        return html.escape(safe_text(value))

    lines = [
        f"<p><b>{text(finding.label)}</b>: {text(finding.title)}</p>"
        for finding in (*said.findings, *said.readings)[:MOST_SAID]
    ]
    sites, predicted = any(row.site for row in rows), any(row.unprofiled_ns for row in rows)
    swatch = "display:inline-block;width:9px;height:9px;margin-right:4px;background:"
    heads = ["label", *["site"] * sites, "budget", "n", "time us", *["w/o nsys us"] * predicted]
    heads += [f'<span style="{swatch}{LOOKS[c].colour}"></span>{SHORT[c]} us' for c in causes]
    lines.append("<table><thead><tr>" + "".join(f"<th>{head}</th>" for head in heads))
    lines.append("</tr></thead><tbody>")
    for row in rows:
        texts = [text(row.label), *[text(row.site)] * sites, _bar(row)]
        numbers = [f"{row.count:,}", fixed(row.elapsed_ns), *[row.without_nsys()] * predicted]
        numbers += [fixed(row.parts_ns[cause]) for cause in causes]
        cells = [("left", cell) for cell in texts] + [("right", cell) for cell in numbers]
        row_html = "".join(f'<td style="text-align:{side}">{cell}</td>' for side, cell in cells)
        lines.append(f"<tr>{row_html}</tr>")
    about = [html.escape(said.trust.gpu)] if said.trust.gpu else []
    about.append("times are those under nsys, of the median interval of each label")
    also = "; w/o nsys: what that interval would take without it" if predicted else ""
    return "\n".join([*lines, f"</tbody></table><p>{', '.join(about)}{also}</p>"])


def _bar(row: LabelRow) -> str:
    """The breakdown as a bar of inline-styled pieces: notebooks keep neither scripts nor style
    sheets."""
    whole = max(row.elapsed_ns, 1)
    pieces = [
        f'<span title="{SHORT[cause]} {percent(ns / whole)}" style="display:inline-block;'
        f'height:14px;width:{160 * ns / whole:.1f}px;background:{LOOKS[cause].colour}"></span>'
        for cause, ns in row.parts_ns.items()
        if ns > 0
    ]
    style = "display:inline-block;width:162px;white-space:nowrap;font-size:0"
    return f'<span style="{style}">{"".join(pieces)}</span>'


class Framed:
    """The page in its own frame: its style and script do not affect the notebook."""

    def __init__(self, analysis: model.Analysis, interval: int | None, height: int) -> None:
        self._page, self._height = page(analysis, interval), height

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" title="nsysalign report" srcdoc="{html.escape(self._page)}" '
            f'style="width:100%;height:{self._height}px;border:1px solid #ccc"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<nsysalign report, {len(self._page) / 1e3:,.0f} kB; displayed in a notebook>"


def number(analysis: model.Analysis, name: str) -> int:
    """The interval of this name, or the one that the row of this label shows.  Raises UsageError if
    there is neither."""
    found = analysis.intervals.loc[analysis.intervals["name"] == name, "interval"]
    if not len(found):
        found = analysis.labels.loc[analysis.labels["label"] == name, "row_interval"]
    if not len(found):
        raise UsageError(
            f"there is no interval or label named {safe_text(name)}", "see a.labels and a.intervals"
        )
    return int(found.iloc[0])


def waterfall(analysis: model.Analysis, name: str) -> plotly.graph_objects.Figure:
    """From the measured time of an interval (or a label's median one) down to its kernels, cause by
    cause; microseconds."""
    chosen = number(analysis, name)
    import plotly.graph_objects as go

    at = int((analysis.intervals["interval"] == chosen).to_numpy().argmax())
    elapsed = int(analysis.intervals["elapsed_ns"].iloc[at])
    parts = dict(zip(CAUSES, parts_matrix(analysis)[at].tolist(), strict=True))
    kernel = parts.pop("kernel")
    steps: list[tuple[str, int, int, Any]] = [("measured", 0, elapsed, "#6d28d9")]
    rest = elapsed
    for cause, ns in sorted(parts.items(), key=lambda part: -part[1]):
        if ns:
            rest -= ns
            steps.append((LOOKS[cause].short, rest, ns, LOOKS[cause].colour))
    steps.append((LOOKS["kernel"].short, 0, kernel, LOOKS["kernel"].colour))
    names, bases, lengths, colours = zip(*steps, strict=True)
    bars = go.Bar(
        y=names,
        x=[ns / 1e3 for ns in lengths],
        base=[ns / 1e3 for ns in bases],
        orientation="h",
        marker_color=colours,
        text=[duration(ns) for ns in lengths],
        hovertemplate="%{y} %{text}<extra></extra>",
    )
    title = html.escape(safe_text(analysis.intervals["name"].iloc[at]))
    layout = {
        "yaxis": {"autorange": "reversed"},
        "xaxis_title": "us under nsys",
        "height": 110 + 28 * len(steps),
    }
    return go.Figure(bars, {"title": title, "showlegend": False, **layout})
