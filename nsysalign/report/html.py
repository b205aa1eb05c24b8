"""`report.html`: one self-contained page, and the small table a notebook shows.

Trace text is hostile: names of kernels, ranges and files come from whoever made the program. It enters
the page as JSON in a data block, `<`, `>` and `&` escaped, and the DOM through textContent only. A
Content-Security-Policy with the hashes of the page's own scripts is the second wall: nothing else runs,
nothing leaves the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from nsysalign.files import replacing
from nsysalign.model import Analysis
from nsysalign.report import baseline_html as baseline_html
from nsysalign.report.palette import LOOKS
from nsysalign.report.payload import payload
from nsysalign.report.rows import LabelRow, causes_present, label_rows
from nsysalign.report.verdict import verdicts
from nsysalign.store.objects import to_json
from nsysalign.text import fixed, percent, safe_text

#: The page's own script, in this order.
SCRIPTS = (
    "format.js",
    "dom.js",
    "draw.js",
    "bars.js",
    "waterfall.js",
    "overview.js",
    "verdicts.js",
    "table.js",
    "dumbbell.js",
    "blocks.js",
    "timeline.js",
    "runs.js",
    "clocks.js",
    "kernels.js",
    "inside.js",
    "answers.js",
    "links.js",
    "main.js",
)


def write(analysis: Analysis, path: str | os.PathLike[str], focus: int | None = None) -> None:
    """Write the page; the file appears whole or not at all.  `focus`: the interval that it opens with."""
    with replacing(path) as temporary:
        temporary.write_text(page(analysis, focus, _run_name(path)), encoding="utf-8")


def page(analysis: Analysis, focus: int | None = None, run: str = "") -> str:
    """The whole page as text: style, data and script inside, no network.  `run`: the run's name."""
    data = payload(analysis, focus, run)
    markup = {"baseline": baseline_html.section(analysis), "headline": html.escape(data["headline"]["text"])}
    return assemble("page.html", SCRIPTS, data, markup)


def _run_name(path: str | os.PathLike[str]) -> str:
    """The name of the run directory in which the page lies; '' for any other folder, whose name is private."""
    folder = Path(path).absolute().parent.name
    return folder if re.fullmatch(r".+-\d{3,}", folder) else ""


def assemble(
    template: str, scripts: Sequence[str], data: Mapping[str, Any], markup: Mapping[str, str] = {}
) -> str:
    """A page from its template: `data` (with its "title") and the scripts are embedded, `markup` is finished HTML for
    its places."""
    script = "\n".join(_template(name) for name in scripts)
    fields = {
        "title": html.escape(data["title"]),
        "policy": _policy(script.encode("utf-8")),
        "style": _template("report.css"),
        "data": embed(data),
        "script": script,
        **markup,
    }
    # One pass over the template: a value that looks like a placeholder is never replaced.
    pieces = _with_sections(_template(template)).split("@@")
    return "".join(fields[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _with_sections(template: str) -> str:
    """`@@section.html@@` in a template is the text of that file: a section of the page can have a file of its own."""
    pieces = template.split("@@")
    return "".join(_section(piece) if number % 2 else piece for number, piece in enumerate(pieces))


def _section(name: str) -> str:
    return _template(name) if name.endswith(".html") else f"@@{name}@@"


def embed(data: Any) -> str:
    """JSON that cannot end the script element it stands in, whatever its strings say."""
    text = to_json(data)  # ASCII: U+2028 and U+2029 are escaped
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(script: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _template(name: str) -> str:
    return resources.files("nsysalign.report").joinpath("templates", name).read_text(encoding="utf-8")


#: Verdicts that a notebook shows above the table.
MOST_VERDICTS = 3


def fragment(analysis: Analysis) -> str:
    """The first verdicts and the label table as HTML for notebooks: every value escaped, no script, its style inline."""
    rows = label_rows(analysis)
    causes = causes_present(rows)
    text = lambda value: html.escape(safe_text(value))  # noqa: E731
    cell = '<td style="text-align:{}">{}</td>'.format
    sites = any(row.site for row in rows)
    heads = ["label", *(["site"] if sites else []), "budget", "n", "time us"]
    heads += [f"{_swatch(cause)}{LOOKS[cause].short} us" for cause in causes]
    lines = [
        f"<p><b>{text(v.label)}</b>: {text(v.title)}</p>" for v in verdicts(analysis, rows)[:MOST_VERDICTS]
    ]
    lines += ["<table>", "<thead><tr>", *(f"<th>{head}</th>" for head in heads), "</tr></thead>", "<tbody>"]
    for row in rows:
        left = [text(row.label), *([text(row.site)] if sites else []), _bar(row)]
        numbers = [str(row.count), fixed(row.elapsed_ns), *(fixed(row.parts_ns[c]) for c in causes)]
        cells = [*(cell("left", t) for t in left), *(cell("right", n) for n in numbers)]
        lines.append("<tr>" + "".join(cells) + "</tr>")
    lines.append("</tbody></table>")
    info = ", ".join(text(device) for device in dict.fromkeys(analysis.trace.devices))
    lines.append(
        f"<p>{info}{', ' if info else ''}times are those under nsys, of the median interval of each label</p>"
    )
    return "\n".join(lines)


def _swatch(cause: str) -> str:
    return (
        f'<span style="display:inline-block;width:9px;height:9px;margin-right:4px;background:{LOOKS[cause].colour}">'
        "</span>"
    )


def _bar(row: LabelRow) -> str:
    """The budget as a bar of inline-styled pieces: notebooks keep neither scripts nor style sheets."""
    whole = max(row.elapsed_ns, 1)
    pieces = [
        f'<span title="{LOOKS[cause].short} {percent(ns / whole)}" style="display:inline-block;height:14px;'
        f'width:{160 * ns / whole:.1f}px;background:{LOOKS[cause].colour}"></span>'
        for cause, ns in row.parts_ns.items()
        if ns > 0
    ]
    return f'<span style="display:inline-block;width:162px;white-space:nowrap;font-size:0">{"".join(pieces)}</span>'
