"""The page of a comparison: self-contained like the report, and small, because it needs no plotting
library."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsysalign.files import replacing
from nsysalign.report.changes import page_data
from nsysalign.report.html import assemble

if TYPE_CHECKING:
    from nsysalign.compare.label_changes import Comparison

SCRIPTS = ("format.js", "dom.js", "bars.js", "diff.js")


def write(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(page(comparison), encoding="utf-8")


def page(comparison: Comparison) -> str:
    """The whole page as text."""
    return assemble("diff.html", SCRIPTS, page_data(comparison))
