"""`measure.html`: the page of a measurement, self-contained like the report, and its table for
notebooks."""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign.files import write_text
from nsysalign.measure import ladder
from nsysalign.measure import terminal as words
from nsysalign.report.html import Page, assemble
from nsysalign.report.payload import cause_looks
from nsysalign.text import change, change_between, safe_text

if TYPE_CHECKING:
    from nsysalign.measure.result import Measure

PAGE = Page("measure.html", "format dom draw bars measure", "nsysalign measure: {}")
BINS = 60


def write(measure: Measure, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    write_text(path, page(measure))


def page(measure: Measure) -> str:
    """The whole page as text."""
    return assemble(PAGE, payload(measure))


def payload(measure: Measure) -> dict[str, Any]:
    """The page's data: the rows of the tables, each with `of`, the point in words; what JSON cannot
    hold (unknown, unbounded) is null there.  Texts without control characters."""
    names = [safe_text(t) for t in measure.targets]
    causes = {cause for p in measure.profiles for cause in p.parts_ns} or {"kernel"}
    shown = measure.advised or next(iter(measure.points), None)
    points = [
        row | {
            "of": words.named(measure, p.target, p.batch), "side": p.target,
            "cells": words.row(measure, p), "reading": ". ".join(
                t[0].upper() + t[1:] for t in words.reading(measure, p)
            ),
        }
        for p, row in zip(measure.points, measure.curve_rows(), strict=True)
    ]  # fmt: skip
    modes = [
        row | {"of": words.named(measure, key.target, key.batch), "name": words.mode_name(key),
               "words": words.MODE_WORDS.get(key.mode, ""),
               "known": words.certainty(e.share, e.processes)}
        for (key, e), row in zip(measure.estimates.items(), measure.mode_rows(), strict=True)
    ]  # fmt: skip
    budgets = [
        {
            "of": words.named(measure, p.target, p.batch), "parts": p.parts_ns,
            "elapsed": p.elapsed_ns, "idle": p.idle_share(), "measured": p.measured_ns,
            "predicted": p.predicted_ns, "verdict": words.proof(p).rpartition("): ")[2],
        }
        for p in measure.profiles
        if not p.problem and p.elapsed_ns
    ]  # fmt: skip
    differences = [
        {
            "cells": [
                "-" if key.batch is None else str(key.batch), words.mode_name(key),
                change(d.ratio, 2), change_between(d.low, d.high, 2) or "no bounds",
                words.VERDICTS[d.verdict],
            ],
        }
        for key, d in measure.differences()
    ]  # fmt: skip
    rungs = [
        row | {
            "of": words.named(measure, row["target"], row["batch"]),
            "cells": words.ladder_row(ladder.Rung(*(row[f] for f in ladder.Rung._fields))),
        }
        for row in measure.ladder
    ]  # fmt: skip
    verdicts = {
        words.named(measure, p.target, p.batch): list(ladder.verdict(measure, p))
        for p in measure.points
        if measure.ladder
    }
    return {
        "ladder": rungs, "ladder_heads": words.LADDER_HEADS, "verdicts": verdicts,
        "title": " against ".join(names), "targets": names, "headline": words.headline(measure),
        "causes": cause_looks(causes), "notes": [safe_text(n) for n in measure.notes],
        "environment": [[safe_text(x) for x in pair] for pair in words.environment(measure)],
        "heads": words.heads(measure), "points": points, "modes": modes, "budgets": budgets,
        "spreads": _spreads(measure), "differences": differences,
        "chosen": words.named(measure, shown.target, shown.batch) if shown else "",
    }  # fmt: skip


def _spreads(measure: Measure) -> list[dict[str, Any]]:
    """A histogram per target, batch and mode: one list of counts per process, between the least and
    a little above p99."""
    out = []
    for key, e in measure.estimates.items():
        processes = [np.array(p) for p in measure.processes(key)]
        pooled = np.concatenate(processes)
        low, top = float(pooled.min()), float(np.quantile(pooled, 0.99))
        high = max(min(float(pooled.max()), top * 1.05 - 0.05 * low), low + 64.0)
        counts = [np.histogram(p, BINS, (low, high))[0].tolist() for p in processes]
        name = f"{words.named(measure, key.target, key.batch)}: {words.mode_name(key)}"
        out.append(
            {
                "key": name, "low": low, "high": high, "counts": counts, "p50": e.p50_ns,
                "p99": e.p99_ns, "samples": e.samples, "above": int((pooled > high).sum()),
                "most": e.max_ns,
            }
        )  # fmt: skip
    return out


def fragment(measure: Measure) -> str:
    """The headline and the points as HTML for notebooks: every value escaped, no script."""

    def cells(kind: str, values: list[Any]) -> str:
        texts = (html.escape(safe_text(v)) for v in values)
        return f"<tr>{''.join(f'<{kind}>{t}</{kind}>' for t in texts)}</tr>"

    rows = [cells("th", ["target", *words.heads(measure)])]
    for p in measure.points:
        rows.append(cells("td", [measure.targets[p.target], *words.row(measure, p)]))
    notes = "".join(f"<li>{html.escape(safe_text(n))}</li>" for n in measure.notes)
    head = html.escape(safe_text(words.headline(measure)))
    return f"<p>{head}</p><table>{''.join(rows)}</table><ul>{notes}</ul>"
