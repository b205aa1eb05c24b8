"""`measure.html`: the page of a measurement, self-contained like the report."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nsysalign.addons.measure import terminal as words
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
    points, modes, ladder = [], [], []
    for p, row in zip(measure.points, measure.curve_rows(), strict=True):
        of = words.named(measure, p.target, p.batch)
        reading = ". ".join(t[0].upper() + t[1:] for t in words.reading(measure, p))
        more = {"clocks": words.clocks_verdict(measure, p), "cells": words.row(p)}
        points.append(row | more | {"of": of, "side": p.target, "reading": reading})
        for l2 in ("warm", "cold"):
            cells = [[*words.ladder_row(rung), l2] for rung in measure.rungs(p, l2)]
            ladder += [{"of": of, "cells": row} for row in cells]
    rows = zip(measure.estimates.items(), measure.mode_rows(), strict=True)
    order = list(words.MODE_WORDS)  # workers measure them in random order
    for (key, e), row in sorted(
        rows, key=lambda r: (order.index(r[0][0].mode), r[0][0].l2 == "cold")
    ):
        more = {
            "of": words.named(measure, key.target, key.batch),
            "name": key.mode if key.l2 == "warm" else f"{key.mode}, cold L2",
            "words": words.MODE_WORDS[key.mode],
            "known": words.certainty(e.share, e.processes),
        }
        modes.append(row | more)
    return {
        "title": " against ".join(names), "targets": names, "headline": words.headline(measure),
        "notes": [safe_text(n) for n in measure.notes],
        "environment": [
            [name, safe_text(text.removeprefix(f"{name} "))]
            for name, text in words.environment(measure)
        ],
        "heads": words.HEADS, "points": points, "modes": modes,
        "causes": [], "change_heads": words.CHANGE_HEADS,
        "changes": [words.change_row(c) for c in measure.changes()],
        "ladder_heads": [*words.LADDER_HEADS, "L2"], "ladder": ladder,
        "chosen": words.named(measure, shown.target, shown.batch) if shown else "",
    }  # fmt: skip
