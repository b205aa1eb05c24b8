"""`measure.html`: the page of a measurement, self-contained like the report, and its table for notebooks."""

from __future__ import annotations

import html
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign.files import write_text
from nsysalign.measure import terminal as words
from nsysalign.report.html import Page, assemble
from nsysalign.report.payload import cause_looks
from nsysalign.text import (
    change,
    change_between,
    duration,
    gibibytes,
    milliseconds,
    rate,
    reach,
    safe_text,
)

if TYPE_CHECKING:
    from nsysalign.measure.result import Measure, Point

PAGE = Page("measure.html", "format dom draw bars measure", "nsysalign measure: {}")
BINS = 60


def write(measure: Measure, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    write_text(path, page(measure))


def page(measure: Measure) -> str:
    """The whole page as text."""
    return assemble(PAGE, payload(measure))


def payload(measure: Measure) -> dict[str, Any]:
    """The page's data: numbers in ns, null where unknown or unbounded; texts without control characters."""
    names = [safe_text(t) for t in measure.targets]
    causes = {cause for p in measure.profiles for cause in p.parts_ns} or {"kernel"}
    best = measure.best
    return {
        "title": " against ".join(names), "targets": names, "headline": headline(measure), "causes": cause_looks(causes),
        "environment": _environment(measure), "notes": [safe_text(n) for n in measure.notes],
        "points": [_point(p) for p in measure.points], "modes": _modes(measure), "readings": _readings(measure),
        "budgets": _budgets(measure), "spreads": _spreads(measure), "differences": _differences(measure),
        "chosen": _named(measure, best.target, best.batch) if best else "",
    }  # fmt: skip


def headline(measure: Measure) -> str:
    """The answer in one sentence."""
    points = [p for p in measure.points if p.latency or p.rate > 0]
    if not points:
        return "Nothing was measured."
    best = measure.best
    if len(measure.targets) > 1:
        return _verdict(measure)
    if best is not None and any("best" in m for m in best.marks):
        within = (best.rate_high - best.rate_low) / 2 / best.rate
        known = (
            f" ± {reach(within)}"
            if math.isfinite(within)
            else " (too few repetitions for an interval)"
        )
        text = f"Best batch: {best.batch}, {rate(best.rate)} outputs per second{known}."
        largest = next((p for p in points if any(m.startswith("largest") for m in p.marks)), None)
        return text + (
            f" The {next(m for m in largest.marks if m.startswith('largest'))}: {largest.batch}."
            if largest
            else ""
        )
    p = points[0]
    value, share = (p.latency.value, p.latency.share) if p.latency else (math.nan, math.inf)
    per = f", {rate(p.rate)} per second with calls queued" if p.rate > 0 else ""
    return f"One call takes {duration(value)} ± {reach(share)}{per}."


def _verdict(measure: Measure) -> str:
    """B against A by latency, at the batches where that can be said."""
    found = {
        p.batch: measure.difference(p.batch, "latency", measure.options["l2"][0])
        for p in measure.points
    }
    found = {b: d for b, d in found.items() if d is not None}
    if not found:
        return "Nothing was measured of both."
    parts = []
    for verdict, text in (("faster", "faster"), ("slower", "slower"), ("unclear", "")):
        here = {b: d for b, d in found.items() if d.verdict == verdict}
        if not here:
            continue
        where = "" if None in here else f" at batch {', '.join(map(str, here))}"
        ratios = sorted(d.ratio for d in here.values())
        said = change(ratios[0]) if len(ratios) == 1 else change_between(ratios[0], ratios[-1])
        parts.append(
            f"B is {text} than A{where} (latency {said})"
            if text
            else f"they cannot be told apart{where}"
        )
    return "; ".join(parts)[0].upper() + "; ".join(parts)[1:] + "."


def _named(measure: Measure, target: int, batch: int | None) -> str:
    """The counterpart of `named` in measure.js."""
    side = f"{'AB'[target]}, " if len(measure.targets) > 1 else ""
    return side + ("the call" if batch is None else f"batch {batch}")


def _finite(value: float) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _environment(measure: Measure) -> list[list[str]]:
    e, o = measure.environment, measure.options
    fresh = [r for r in measure.runs if not r.failure]
    rows = [
        ["GPU", e.get("device", "?")], ["torch", f"{e.get('torch', '?')}, CUDA {e.get('cuda', '?')}"],
        ["processes", f"{sum(r.role == 'time' for r in fresh)} timed, {sum(r.role == 'probe' for r in fresh)} of the search, {len(measure.profiles)} profiled"],
        ["precision asked for", reach(o.get("precision", math.nan))], ["L2", ", ".join(o.get("l2", ()))],
    ]  # fmt: skip
    first = [r.first_ns for r in fresh if r.first_ns]
    if first:
        rows.append(
            ["first call of a process", f"{duration(float(np.median(first)))}, not counted"]
        )
        rows.append(
            [
                "warm-up",
                duration(float(np.median([r.warm_ns for r in fresh if r.warm_ns] or [math.nan]))),
            ]
        )
    return [[key, safe_text(value)] for key, value in rows]


def _point(p: Point) -> dict[str, Any]:
    e = p.latency
    p90, p99 = (e.percentiles[q] for q in (90, 99)) if e else ((math.nan, False), (math.nan, False))
    return {
        "target": p.target, "batch": p.batch, "processes": p.processes, "latency": _finite(e.value) if e else None,
        "latency_low": _finite(e.low) if e and math.isfinite(e.high) else None, "latency_high": _finite(e.high) if e else None,
        "p90": _finite(p90[0]), "p99": _finite(p99[0]), "p99_bounded": p99[1], "rate": _finite(p.rate),
        "rate_low": _finite(p.rate_low) if math.isfinite(p.rate_high) else None, "rate_high": _finite(p.rate_high),
        "memory": p.memory, "sm_mhz": _finite(p.sm_mhz), "marks": "; ".join(p.marks),
    }  # fmt: skip


def _modes(measure: Measure) -> list[dict[str, Any]]:
    order = list(words.MODE_WORDS)
    found = sorted(
        measure.estimates.items(),
        key=lambda item: (
            item[0][0],
            item[0][1] or 0,
            order.index(item[0][2]),
            item[0][3] != "warm",
        ),
    )
    return [
        {
            "target": t, "batch": b, "mode": mode, "l2": l2, "value": e.value, "low": _finite(e.low) if math.isfinite(e.high) else None,
            "high": _finite(e.high), "mean": e.mean, "std": e.std, "least": e.least, "most": e.most, "samples": e.samples,
            "effective": e.effective, "outliers": e.outliers, "differ": e.differ, "medians": list(e.medians),
        }
        for (t, b, mode, l2), e in found
    ]  # fmt: skip


def _readings(measure: Measure) -> dict[str, str]:
    out = {}
    for p in measure.points:
        found = {
            m: e
            for (t, b, m, l2), e in measure.estimates.items()
            if (t, b, l2) == (p.target, p.batch, measure.l2)
        }
        profile = next(
            (x for x in measure.profiles if (x.target, x.batch) == (p.target, p.batch)), None
        )
        texts = [*words.reading(found), *words.cold(measure, p, profile)]
        out[_named(measure, p.target, p.batch)] = ". ".join(t[0].upper() + t[1:] for t in texts)
    return out


def _budgets(measure: Measure) -> list[dict[str, Any]]:
    return [
        {
            "target": p.target, "batch": p.batch, "parts": p.parts_ns, "elapsed": p.elapsed_ns, "idle": p.idle_share(),
            "measured": _finite(p.measured_ns), "predicted": _finite(p.predicted_ns),
            "verdict": "no prediction" if not math.isfinite(p.error) else f"{'proven' if p.proven else 'not proven'} ({change(p.error, 0)})",
        }
        for p in measure.profiles
        if not p.problem and p.elapsed_ns
    ]  # fmt: skip


def _spreads(measure: Measure) -> list[dict[str, Any]]:
    """A histogram per target, batch and mode: one list of counts per process, between the least and a little above p99."""
    out = []
    for (t, b, mode, l2), e in measure.estimates.items():
        processes = [np.array(p) for p in measure.processes(t, b, mode, l2)]
        pooled = np.concatenate(processes)
        high = min(
            float(pooled.max()),
            float(np.quantile(pooled, 0.99)) * 1.05 - 0.05 * float(pooled.min()),
        )
        low = float(pooled.min())
        high = max(high, low + 64.0)
        name = f"{_named(measure, t, b)}: {words.mode_name(mode, l2)}"
        out.append(
            {
                "key": name, "low": low, "high": high, "counts": [np.histogram(p, BINS, (low, high))[0].tolist() for p in processes],
                "p50": e.percentiles[50][0], "p99": e.percentiles[99][0], "samples": e.samples, "above": int((pooled > high).sum()), "most": e.most,
            }
        )  # fmt: skip
    return out


def _differences(measure: Measure) -> list[dict[str, Any]]:
    said = {"slower": "B is slower", "faster": "B is faster"}
    return [
        {
            "batch": "-" if batch is None else str(batch), "mode": words.mode_name(mode, l2),
            **{side: measure.estimates[target, batch, mode, l2].value for target, side in enumerate("ab")},
            "change": change(d.ratio, 2), "bounds": change_between(d.low, d.high, 2) or "no bounds",
            "verdict": said.get(d.verdict, "cannot tell"),
        }
        for batch, mode, l2, d in words.compared(measure)
    ]  # fmt: skip


def fragment(measure: Measure) -> str:
    """The headline and the points as HTML for notebooks: every value escaped, no script."""
    text = lambda value: html.escape(safe_text(value))  # noqa: E731
    heads = ["target", "batch", "p50 ms", "±", "p99 ms", "per s", "±", "memory", ""]
    rows = []
    for p in measure.points:
        e = p.latency
        cells = [
            measure.targets[p.target], "-" if p.batch is None else p.batch, milliseconds(e.value if e else math.nan), reach(e.share if e else math.inf),
            milliseconds(e.percentiles[99][0] if e else math.nan), rate(p.rate),
            reach((p.rate_high - p.rate_low) / 2 / p.rate if p.rate > 0 else math.inf), gibibytes(p.memory), "; ".join(p.marks),
        ]  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{text(c)}</td>" for c in cells) + "</tr>")
    notes = "".join(f"<li>{text(n)}</li>" for n in measure.notes)
    return f"<p>{text(headline(measure))}</p><table><tr>{''.join(f'<th>{h}</th>' for h in heads)}</tr>{''.join(rows)}</table><ul>{notes}</ul>"
