"""`report.html`: one self-contained page.

Trace text is hostile: names of kernels, ranges and files come from whoever made the program. It
enters the page as JSON in a data block, `<`, `>` and `&` escaped, and the DOM through textContent
only. A Content-Security-Policy with the hashes of the page's own scripts is the second line of
defence: nothing else runs, nothing leaves the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from nsysalign import registry
from nsysalign.answer import Answer
from nsysalign.files import write_text
from nsysalign.model import Analysis
from nsysalign.show.payload import payload
from nsysalign.store.objects import to_json


class Page(NamedTuple):
    """A kind of page: the template of its body, its scripts in their order, and the words around
    its title."""

    template: str
    scripts: str
    heading: str


ANALYSIS = Page(
    "page.html",
    "format dom draw bars waterfall overview verdicts labels table rows blocks zoom timeline find repetitions pair markdown runs clocks kernels answers copying links",
    "{} – nsysalign",
)


def write(
    analysis: Analysis,
    path: str | os.PathLike[str],
    focus: int | None = None,
    answer: Answer | None = None,
) -> None:
    """Write the page; the file appears whole or not at all.

    focus: the number of the interval that it opens with, None for no certain one
    answer: the answer of the analysis; None if the caller has not made it
    """
    write_text(path, page(analysis, focus, run_name(path), answer))


def page(
    analysis: Analysis, focus: int | None = None, run: str = "", answer: Answer | None = None
) -> str:
    """Return the page as text: style, data and scripts are inside, and it loads nothing.

    focus, answer: as in `write`
    run: the name of the run
    """
    data = payload(analysis, answer, focus, run)
    markup = {"headline": data["screen"]["sentence"], "about": data["about"]}
    return assemble(ANALYSIS, data, {name: html.escape(text) for name, text in markup.items()})


def run_name(path: str | os.PathLike[str]) -> str:
    """The name of the run directory in which the page lies; '' for any other folder, whose name is
    private."""
    folder = Path(path).absolute().parent.name
    return folder if re.fullmatch(r".+-\d{3,}", folder) else ""


def assemble(page: Page, data: Mapping[str, Any], markup: Mapping[str, str] = {}) -> str:
    """Return a page as text, with everything inside it: style, data and scripts.

    page: which kind of page
    data: what its scripts draw, as plain data; it has a "title"
    markup: name of a placeholder (`@@name@@`) in the page's template -> finished HTML for it
    """
    names = [f"{name}.js" for name in page.scripts.split()]
    if page is ANALYSIS:
        names += [*(section.script for section, _ in registry.sections()), "main.js"]
    script = "\n".join(map(_template, names))
    title = html.escape(data["title"])
    fields = {
        "title": title,
        "heading": page.heading.format(title),
        "policy": _policy(script.encode("utf-8")),
        "style": _template("report.css"),
        "data": embed(data),
        "script": script,
        **markup,
    }
    # One pass over the template: a value that looks like a placeholder is never replaced.
    whole = _template("frame.html").replace("@@body@@", _with_sections(_template(page.template)))
    pieces = whole.split("@@")
    return "".join(fields[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _with_sections(template: str) -> str:
    """Replaces `@@section.html@@` in a template by the text of that file: a section of the page can
    have its own file."""
    sections = [section for section, _ in registry.sections()]
    template = template.replace(
        "@@addons@@", "\n".join(f"@@{section.template}@@" for section in sections)
    )
    return re.sub(r"@@(\w+\.html)@@", lambda name: _template(name[1]), template)


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
    own = resources.files("nsysalign.show").joinpath("templates", name)
    return (own if own.is_file() else registry.template(name)).read_text(encoding="utf-8")
