"""`measure.html`: the page of a measurement, self-contained like the report."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nsysalign.addons.measure import screen
from nsysalign.addons.measure.result import WAYS
from nsysalign.files import write_text
from nsysalign.show.html import Page, assemble
from nsysalign.text import safe_text

if TYPE_CHECKING:
    from nsysalign.addons.measure.result import Measure

PAGE = Page("measure.html", "format dom draw measure", "nsysalign measure: {}")


def write(measure: Measure, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    write_text(path, assemble(PAGE, payload(measure)))


def payload(measure: Measure) -> dict[str, Any]:
    """The page's data: the rows of the tables, each with `of`, the point in words; what JSON cannot
    hold (unknown, unbounded) is null there.  Texts without control characters."""
    names = [safe_text(t) for t in measure.targets]
    shown = measure.advised or next(iter(measure.points), None)
    points, modes = [], []
    for p in measure.points:
        of = screen.named(measure, p.target, p.batch)
        more = {"of": of, "side": p.target, "lines": screen.reading(measure, p)}
        points.append(p.row() | more | {"cells": screen.row(p)})
    for key, e in measure.estimates.items():
        modes.append(
            {
                "of": screen.named(measure, key.target, key.batch),
                "name": key.mode if key.l2 == "warm" else f"{key.mode}, cold L2",
                "words": WAYS[key.mode],
                "known": screen.certainty(e),
                "value_ns": e.value_ns, "low_ns": e.low_ns, "high_ns": e.high_ns,
                "mean_ns": e.mean_ns, "min_ns": e.min_ns, "max_ns": e.max_ns,
                "samples": e.samples, "medians": e.medians,
            }
        )  # fmt: skip
    modes.sort(key=lambda m: m["name"].endswith("L2"))
    return {
        "title": " against ".join(names), "targets": names, "causes": [],
        "headline": screen.headline(measure), "notes": list(map(safe_text, measure.notes)),
        "environment": safe_text(screen.environment(measure)),
        "heads": screen.HEADS, "points": points, "modes": modes,
        "change_heads": screen.CHANGE_HEADS,
        "changes": [screen.change_row(c) for c in measure.changes()],
        "chosen": screen.named(measure, shown.target, shown.batch) if shown else "",
    }  # fmt: skip
