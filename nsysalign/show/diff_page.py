"""A comparison of two runs as a page: a line per label, and of the chosen one a typical repetition
before and after on one scale, with their parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nsysalign.causes import COLUMNS
from nsysalign.files import write_text
from nsysalign.model import Analysis
from nsysalign.show import diff as screen
from nsysalign.show.html import Page, assemble
from nsysalign.show.payload import cause_looks, gpu_and_recorder, plain_texts
from nsysalign.show.timeline_rows import Strings, timelines

if TYPE_CHECKING:
    from nsysalign.compare.label_changes import Comparison, LabelChange

PAGE = Page(
    "diff.html",
    "format dom draw bars blocks zoom timeline pair copying markdown diff",
    "nsysalign diff: {}",
)
#: Pictures of each side may take this much; labels that changed most have theirs first.
MAX_BYTES = 400_000


def write(
    comparison: Comparison, before: Analysis, after: Analysis, path: str | os.PathLike[str]
) -> None:
    """Write the page of a comparison: a self-contained HTML file, which appears whole or not at all.

    comparison: the changes of each label
    before, after: the two analyses, from which come the pictures of typical intervals
    path: the file

    Words are those of the comparison on the screen (`screen`); before and after are called A and B on the page.
    """
    labels = screen.ordered(comparison)
    strings = Strings()  # both calls of _pictures add the strings of their pictures to it
    first = _pictures(before, [label.typical_before for label in labels], strings)
    second = _pictures(after, [label.typical_after for label in labels], strings)
    causes = {cause for label in labels for cause in label.parts}
    wrong, more_wrong = screen.wrong(comparison)
    data = {
        "title": f"{comparison.before} → {comparison.after}",
        "sides": [
            {"name": comparison.before, "about": gpu_and_recorder(before)},
            {"name": comparison.after, "about": gpu_and_recorder(after)},
        ],
        "summary": screen.summary(comparison),
        "method": screen.method(comparison),
        "confounders": comparison.confounders,
        "wrong": wrong,
        "more_wrong": more_wrong,
        "remarks": comparison.remarks,
        "only": [comparison.only_before, comparison.only_after],
        "about": f"A: {gpu_and_recorder(before)}, B: {gpu_and_recorder(after)}",
        "columns": COLUMNS,
        # without any label the legend shows kernels, so that it is not empty
        "causes": cause_looks(causes or {"kernel"}),
        "labels": [_about_label(comparison, label) for label in labels],
    }
    pictures = {f"a{number}": picture for number, picture in first.items()}
    pictures |= {f"b{number}": picture for number, picture in second.items()}
    drawn = {"timelines": pictures, "strings": strings.texts}
    # the texts of `data` are made plain here, those of pictures were when they were drawn
    write_text(path, assemble(PAGE, plain_texts(data) | drawn))


def _pictures(
    analysis: Analysis, numbers: Sequence[int], strings: Strings
) -> dict[str, dict[str, Any]]:
    """Return number of the interval -> its picture, for as many intervals as fit in MAX_BYTES, the first ones first.

    numbers: the intervals
    strings: the strings of the page, which grow
    """
    drawn = analysis.timeline["interval"].isin(numbers)
    only = replace(analysis, timeline=analysis.timeline[drawn])
    return timelines(only, numbers, MAX_BYTES, strings).intervals


def _about_label(comparison: Comparison, label: LabelChange) -> dict[str, Any]:
    """Return what the page draws of one label, or of one of its kinds of work."""
    return {
        "label": screen.name(label),
        "after": screen.name(replace(label, label=label.label_after)),
        "site": label.site,
        "library": label.library,
        "verdict": screen.verdict(label),
        "words": screen.words(label),
        "wrong": screen.wrong_of(comparison, label),
        "changed": screen.changed(label),
        "bounds": screen.between(label),
        "counts": [label.count_before, label.count_after],
        "total": screen.of_change(label.total),
        "parts": {cause: screen.of_change(change) for cause, change in label.parts.items()},
        "pictures": [f"a{label.typical_before}", f"b{label.typical_after}"],
    }
