"""The page of a comparison of ranks: self-contained and small; the ranks' own pages are a link away."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsysalign.files import replacing
from nsysalign.report.html import assemble
from nsysalign.report.ranks_document import page_data

if TYPE_CHECKING:
    from nsysalign.ranks.results import RankComparison

SCRIPTS = ("format.js", "dom.js", "bars.js", "ranks.js")


def write(comparison: RankComparison, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(page(comparison), encoding="utf-8")


def page(comparison: RankComparison) -> str:
    """The whole page as text."""
    return assemble("ranks.html", SCRIPTS, page_data(comparison))
