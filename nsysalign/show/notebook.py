"""What Python users get: `analyze` and `load`, whose result shows itself in a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsysalign import engine, model
from nsysalign.answer import LabelRow
from nsysalign.answer import answer as answer_of
from nsysalign.causes import CAUSE_TABLE, CAUSES, COLUMNS, DISPLAY
from nsysalign.errors import UsageError
from nsysalign.explain.verdict import SIGNS
from nsysalign.parts import parts_matrix
from nsysalign.rundir import RunDirectory
from nsysalign.show.html import page
from nsysalign.show.waterfall import find
from nsysalign.text import duration, fixed, percent, plural, safe_text
from nsysalign.unprofiled_run import UnprofiledRun, analyze_run

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects


class Analysis(model.Analysis):
    """An analysis that shows itself: one line, a table, the page in a frame, a figure."""

    def __repr__(self) -> str:
        """ "<Analysis of train-001/trace.sqlite: 144 intervals in 24 labels, 33 findings>"."""
        intervals = plural(len(self.measured), "interval")
        counts = f"{intervals} in {plural(len(self.labels), 'label')}"
        findings = plural(len(self.findings), "finding")
        return f"<Analysis of {safe_text(self.trace.path)}: {counts}, {findings}>"

    def _repr_html_(self) -> str:
        """The answer: its sentence and the label table."""
        return fragment(self)

    def show(self, name: str | None = None, height: int = 900) -> Framed:
        """Return the page in a frame, opened at an interval.

        name: the name of the interval, or of a label for its median interval; None for no certain one
        height: of the frame, in pixels

        Raises UsageError if there is no such interval or label.
        """
        return Framed(self, None if name is None else self._number(name), height)

    @property
    def breakdown(self) -> pd.DataFrame:
        """A row per label with its `count` of intervals, and for its median interval `elapsed_ns` and the ns of
        each cause (`causes.CAUSES`), which add up to `elapsed_ns`."""
        import pandas as pd

        positions = pd.Index(self.intervals["interval"]).get_indexer(self.labels["row_interval"])
        parts = pd.DataFrame(parts_matrix(self)[positions], columns=list(CAUSES))
        elapsed = self.intervals["elapsed_ns"].to_numpy()[positions]
        parts.insert(0, "count", self.labels["count"].to_numpy())
        parts.insert(1, "elapsed_ns", elapsed)
        return parts.set_index(pd.Index(self.labels["label"], name="label"))

    def waterfall(self, name: str) -> plotly.graph_objects.Figure:
        """Return a plotly figure of an interval: bars lead from the measured time, from which each cause is
        taken away in turn, down to the kernels.  The axis is in microseconds.

        name: the name of the interval, or of a label for its median interval

        Raises UsageError if there is no such interval or label, or no plotly.

        measured   [                    ]
        CPU                  [          ]        each bar ends where the one above it begins
        launch         [     ]
        kernel     [   ]
        """
        number = self._number(name)
        try:
            import plotly.graph_objects as go
        except ImportError as error:
            raise UsageError(
                f"waterfall() draws with plotly, which cannot be imported here: {error}",
                "pip install plotly; show() and breakdown need none",
            ) from None

        position = int((self.intervals["interval"] == number).to_numpy().argmax())
        interval = self.intervals.iloc[position]
        remaining_ns = int(interval["elapsed_ns"])
        # a bar per entry, the first one the measured time
        names = ["measured"]
        begins_ns = [0]
        lengths_ns = [remaining_ns]
        colours = ["#6d28d9"]
        ns_of = dict(zip(CAUSES, parts_matrix(self)[position].tolist(), strict=True))
        # the longest first, kernels last
        for cause in sorted(CAUSES, key=lambda cause: (cause == "kernel", -ns_of[cause])):
            if ns_of[cause] or cause == "kernel":
                remaining_ns -= ns_of[cause]
                names.append(DISPLAY[cause])
                begins_ns.append(remaining_ns)
                lengths_ns.append(ns_of[cause])
                colours.append(CAUSE_TABLE[cause].colour)
        bars = go.Bar(
            y=names,
            x=[ns / 1e3 for ns in lengths_ns],
            base=[ns / 1e3 for ns in begins_ns],
            orientation="h",
            marker_color=colours,
            text=[duration(ns) for ns in lengths_ns],
            hovertemplate="%{y} %{text}<extra></extra>",
        )
        layout = {
            "title": html.escape(safe_text(interval["name"])),
            "showlegend": False,
            "yaxis": {"autorange": "reversed"},
            "xaxis_title": "us, profiled",
            "height": 110 + 28 * len(names),
        }
        return go.Figure(bars, layout)

    def _number(self, name: str) -> int:
        is_label = name in set(self.labels["label"]) - set(self.intervals["name"])
        return find(self, label=name) if is_label else find(self, name=name)


@wraps(engine.analyze)
def analyze(*args: Any, **options: Any) -> Analysis:
    """`engine.analyze`, whose result shows itself."""
    return Analysis(**engine.analyze(*args, **options).fields)


@wraps(engine.load)
def load(path: str | PathLike[str]) -> Analysis | UnprofiledRun:
    """`engine.load`, whose result shows itself.  For a run without nsys the result is what its event log
    proves."""
    run = RunDirectory(Path(path))
    return analyze_run(run) if run.unprofiled else Analysis(**engine.load(path).fields)


def _code(code: str) -> str:
    return "<br>".join(f"<code>{_html(line)}</code>" for line in code.splitlines())


def fragment(analysis: model.Analysis) -> str:
    """Return the sentence, the fixes and the table of labels as HTML for notebooks.  Every value is escaped;
    there is no script, and style is inline."""
    answer = answer_of(analysis)
    fixes = [
        f"<p>{_html(fix.purpose)}: {_html(fix.sentence)} {_code(fix.code)}</p>"
        for fix in answer.fixes
    ]
    columns = [column for column in COLUMNS if any(row.columns_ns[column] for row in answer.labels)]
    with_prediction = any(row.unprofiled_ns for row in answer.labels)
    heads = ["label", "", "n", "event us", *(f"{column} us" for column in columns)]
    heads += ["unprofiled us"] if with_prediction else []
    heads.append("verdict")
    about = f"{answer.trust}; times of the median interval of each label"
    return "\n".join(
        [
            f"<p><b>{_html(answer.sentence)}</b></p>",
            *fixes,
            "<table><thead><tr>" + "".join(f"<th>{head}</th>" for head in heads),
            "</tr></thead><tbody>",
            *(_table_row(row, columns, with_prediction) for row in answer.labels),
            f"</tbody></table><p>{_html(about)}</p>",
        ]
    )


def _html(value: str) -> str:
    return html.escape(safe_text(value))


def _table_row(row: LabelRow, columns: Sequence[str], with_prediction: bool) -> str:
    """Return one label as a row of the HTML table.

    columns: the columns that have numbers
    with_prediction: whether there is a cell for the time without nsys
    """
    numbers = [f"{row.count:,}", fixed(row.elapsed_ns)]
    numbers += [fixed(row.columns_ns[column]) for column in columns]
    numbers += [row.without_nsys()] if with_prediction else []
    cells = [("left", _html(row.label)), ("left", _bar(row))]
    cells += [("right", _html(number)) for number in numbers]
    cells.append(("left", f"{SIGNS[row.verdict]} {_html(row.words)}"))
    row_html = "".join(f'<td style="text-align:{side}">{cell}</td>' for side, cell in cells)
    return f'<tr title="{_html(row.sentence)}">{row_html}</tr>'


def _bar(row: LabelRow) -> str:
    """Return the parts of a label as a bar of pieces with inline style, because notebooks keep neither scripts
    nor style sheets."""
    whole = max(row.elapsed_ns, 1)
    pieces = [
        f'<span title="{DISPLAY[cause]} {percent(ns / whole)}" style="display:inline-block;'
        f'height:14px;width:{160 * ns / whole:.1f}px;background:{CAUSE_TABLE[cause].colour}"></span>'
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
