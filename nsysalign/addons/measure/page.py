"""`measure.html`: the page of a measurement, self-contained like the report, and its table for
notebooks."""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign.addons.measure import terminal as words
from nsysalign.addons.measure.ladder import Rung
from nsysalign.files import write_text
from nsysalign.show.html import Page, assemble
from nsysalign.show.payload import cause_looks
from nsysalign.text import safe_text

if TYPE_CHECKING:
    from nsysalign.addons.measure.result import Measure

PAGE = Page("measure.html", "format dom draw bars measure", "nsysalign measure: {}")
BINS = 60


def write(measure: Measure, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    write_text(path, assemble(PAGE, payload(measure)))


def payload(measure: Measure) -> dict[str, Any]:
    """The page's data: the rows of the tables, each with `of`, the point in words; what JSON cannot
    hold (unknown, unbounded) is null there.  Texts without control characters."""
    names = [safe_text(t) for t in measure.targets]
    causes = {cause for p in measure.profiles for cause in p.parts_ns} or {"kernel"}
    shown = measure.advised or next(iter(measure.points), None)
    points, modes, spreads, verdicts = [], [], [], {}
    for p, row in zip(measure.points, measure.curve_rows(), strict=True):
        of = words.named(measure, p.target, p.batch)
        reading = ". ".join(t[0].upper() + t[1:] for t in words.reading(measure, p))
        more = {"of": of, "side": p.target, "cells": words.row(p), "reading": reading}
        points.append(row | more)
        verdicts[of] = words.clocks_verdict(measure, p)
    rows = zip(measure.estimates.items(), measure.mode_rows(), strict=True)
    order = list(words.MODE_WORDS)  # workers measure them in random order
    for (key, e), row in sorted(
        rows, key=lambda r: (order.index(r[0][0].mode), r[0][0].l2 == "cold")
    ):
        of = words.named(measure, key.target, key.batch)
        name = key.mode if key.l2 == "warm" else f"{key.mode}, cold L2"
        known = words.certainty(e.share, e.processes)
        meaning = words.MODE_WORDS.get(key.mode, "")
        modes.append(row | {"of": of, "name": name, "words": meaning, "known": known})
        # a histogram: counts per process, between the least and a little above p99
        processes = [np.array(p) for p in measure.processes(key)]
        low, top = e.min_ns, float(np.quantile(np.concatenate(processes), 0.99))
        high = max(min(e.max_ns, top * 1.05 - 0.05 * low), low + 64.0)
        counts = [np.histogram(p, BINS, (low, high))[0].tolist() for p in processes]
        above = sum(int((p > high).sum()) for p in processes)
        spread = {"low": low, "high": high, "counts": counts, "above": above, "most": e.max_ns}
        marks = {"p50": e.p50_ns, "p99": e.p99_ns, "samples": e.samples}
        spreads.append({"key": f"{of}: {name}"} | spread | marks)
    budgets = [
        {
            "of": words.named(measure, p.target, p.batch), "parts": p.parts_ns,
            "elapsed": p.elapsed_ns, "idle": p.idle_share(), "measured": p.measured_ns,
            "predicted": p.predicted_ns, "verdict": words.proof(p).rpartition("): ")[2],
        }
        for p in measure.profiles
        if not p.problem and p.elapsed_ns
    ]  # fmt: skip
    rungs = []
    for row in measure.ladder:
        cells = words.ladder_row(Rung(*(row[f] for f in Rung._fields)))
        of = words.named(measure, row["target"], row["batch"])
        rungs.append(row | {"of": of, "cells": cells})
    environment = [
        [name, safe_text(text.removeprefix(f"{name} "))]
        for name, text in words.environment(measure)
    ]
    return {
        "title": " against ".join(names), "targets": names, "headline": words.headline(measure),
        "notes": [safe_text(n) for n in measure.notes], "environment": environment,
        "heads": words.HEADS, "points": points, "modes": modes, "spreads": spreads,
        "causes": cause_looks(causes), "budgets": budgets,
        "change_heads": words.CHANGE_HEADS,
        "changes": [words.change_row(c) for c in measure.changes()],
        "ladder_heads": words.LADDER_HEADS, "ladder": rungs, "verdicts": verdicts,
        "chosen": words.named(measure, shown.target, shown.batch) if shown else "",
    }  # fmt: skip


def fragment(measure: Measure) -> str:
    """The headline and the points as HTML for notebooks: every value escaped, no script."""

    def cells(kind: str, values: list[Any]) -> str:
        texts = (html.escape(safe_text(v)) for v in values)
        return f"<tr>{''.join(f'<{kind}>{t}</{kind}>' for t in texts)}</tr>"

    rows = [cells("th", ["target", *words.HEADS])]
    for p in measure.points:
        rows.append(cells("td", [measure.targets[p.target], *words.row(p)]))
    notes = "".join(f"<li>{html.escape(safe_text(n))}</li>" for n in measure.notes)
    head = html.escape(safe_text(words.headline(measure)))
    return f"<p>{head}</p><table>{''.join(rows)}</table><ul>{notes}</ul>"
