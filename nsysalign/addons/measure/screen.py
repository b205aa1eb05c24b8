"""A measurement in words: the sentence, what each way of timing says, the batches, notes; in the
terminal, and on `measure.html`, self-contained like the report."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from rich.text import Text

from nsysalign.addons.measure.result import WAYS
from nsysalign.addons.measure.statistics import FEWEST_P99
from nsysalign.files import write_text
from nsysalign.show import table
from nsysalign.show.html import Page, assemble
from nsysalign.text import change, change_between, duration, fixed, gibibytes, plural, safe_text

if TYPE_CHECKING:
    from rich.console import Console

    from nsysalign.addons.measure.result import Change, Measure, Point
    from nsysalign.addons.measure.statistics import Estimate

HEADS = ["batch", "p50 ms", "±", "p99 ms", "per s", "±", "memory", "SM MHz", ""]
WAY_HEADS = ["mode", "us", "±", "cold L2", "SM MHz", "what it says"]
CHANGE_HEADS = ["batch", "mode", "A", "B", "change", "95 %", ""]
#: An interval wider than this (half of it, as a share) is no answer; up to that it is stable.
TOO_WIDE, STABLE = 0.25, 0.02
#: Rows of the screen: batches, changes, notes; the page has all.
MOST_ROWS, MOST_CHANGES, MOST_NOTES = 6, 12, 3
PAGE = Page("measure.html", "format dom draw measure", "nsysalign measure: {}")


def render(measure: Measure, console: Console, report: str = "") -> None:
    """The first screen, of at most 24 lines: the sentence, the tables it rests on, notes."""

    def write(text: str, style: str = "") -> None:
        console.print(Text(safe_text(text), style))

    def draw(heads: list[str], rows: list[list[str]], left: tuple[int, ...], leave: tuple) -> None:
        """Columns to the right, but for those in `left`; the last is shortened, and of the columns
        `leave` the first leaves first."""
        cells = [list(map(safe_text, column)) for column in zip(*rows, strict=True)]
        columns = [
            table.Column(
                head, column, left=n in left, leaves=leave.index(n) / 10 if n in leave else None
            )
            for n, (head, column) in enumerate(zip(heads[:-1], cells, strict=False))
        ]
        table.draw([*columns, table.text(heads[-1], cells[-1])], console)

    point, changes, points = measure.shown, measure.changes(), measure.points
    write(headline(measure), "bold")
    for text in reading(point) if point and len(measure.targets) == 1 else ():
        write(text[0].upper() + text[1:] + ".")
    left_out = 0
    if changes:
        for side, name in zip("AB", measure.targets, strict=True):
            write(f"{side} {name}")
        draw(CHANGE_HEADS, list(map(change_row, changes[:MOST_CHANGES])), (1, 5, 6), (2, 3))
        left_out = len(changes) - MOST_CHANGES
    elif len(points) > 1:
        marked = [p for p in points if p.marks or p is points[0]]
        shown = [*marked, *(p for p in points[::-1] if p not in marked)][:MOST_ROWS]
        draw(HEADS, [row(p) for p in points if p in shown], (8,), (7, 6, 3))
        left_out = len(points) - MOST_ROWS
    if left_out > 0:
        write(f"{left_out} more rows in the report", "dim")
    if point and not changes:
        console.print()
        drop = () if measure.options.get("clocks") else (3,)
        cells = [
            [c for n, c in enumerate(r) if n not in drop] for r in (WAY_HEADS, *way_rows(point))
        ]
        draw(cells[0], cells[1:], (0,), (4 - len(drop),))
    for note in measure.notes[:MOST_NOTES]:
        write(f"! {table.middle(safe_text(note), 156)}", "yellow")
    if len(measure.notes) > MOST_NOTES:
        write(f"{plural(len(measure.notes) - MOST_NOTES, 'note')} more in the report", "dim")
    write(environment(measure), "dim")
    if report:  # a path that is broken over lines cannot be copied
        console.print(f"report: {safe_text(report)}", soft_wrap=True, markup=False)


def write_page(measure: Measure, path: str | os.PathLike[str]) -> None:
    """Write the page; the file appears whole or not at all."""
    write_text(path, assemble(PAGE, payload(measure)))


def payload(measure: Measure) -> dict[str, Any]:
    """The page's data: the rows of the tables, each with `of`, the point in words; what JSON cannot
    hold (unknown, unbounded) is null there.  Texts without control characters."""
    names, shown = list(map(safe_text, measure.targets)), measure.shown
    points, modes, several_targets = [], [], len(names) > 1
    title_of = {id(p): f"{'AB'[p.target]}, " * several_targets + _point(p) for p in measure.points}
    for p in measure.points:
        shown_as = {"of": title_of[id(p)], "side": p.target, "lines": reading(p), "cells": row(p)}
        points.append(p.row() | shown_as)
        for (mode, l2), e in sorted(p.modes.items(), key=lambda item: item[0][1] == "cold"):
            its = {"of": title_of[id(p)], "name": _mode(mode, l2), "words": WAYS[mode]}
            its |= {"value_ns": e.value_ns, "mean_ns": e.mean_ns, "samples": e.samples}
            modes.append(its | {"known": certainty(e)})
    return {
        "title": " against ".join(names), "targets": names, "causes": [],
        "headline": headline(measure), "notes": list(map(safe_text, measure.notes)),
        "environment": safe_text(environment(measure)),
        "heads": HEADS, "points": points, "modes": modes,
        "change_heads": CHANGE_HEADS, "changes": list(map(change_row, measure.changes())),
        "chosen": title_of[id(shown)] if shown else "",
    }  # fmt: skip


# --- cells ---


def _count(batch: int | None) -> str:
    return "-" if batch is None else f"{batch:,}"


def _mhz(e: Estimate | None) -> str:
    return f"{e.sm_mhz:,.0f}" if e and e.sm_mhz == e.sm_mhz else "-"


def _mode(mode: str, l2: str) -> str:
    return mode if l2 == "warm" else f"{mode}, cold L2"


def _point(p: Point) -> str:
    return "the call" if p.batch is None else f"batch {p.batch:,}"


def row(p: Point) -> list[str]:
    """A point's cells, whose heads are HEADS; "-" for what was not measured."""
    latency, rates, known = ["-"] * 3, ["-"] * 2, p.latency or p.warm("steady")
    if p.latency:
        bound = "" if p.latency.samples >= FEWEST_P99 else "≥"
        latency = [milliseconds(p.latency.value_ns), certainty(p.latency)]
        latency.append(bound + milliseconds(p.latency.p99_ns))
    if p.rate:
        rates = [rate(p.rate), certainty(p.warm("steady"))]
    memory = gibibytes(p.peak_bytes) if p.peak_bytes else "-"
    return [_count(p.batch), *latency, *rates, memory, _mhz(known), p.marks]


def certainty(e: Estimate) -> str:
    """Half the interval's width, or why there is none that helps: one process does not know how
    processes differ."""
    if e.share <= TOO_WIDE:
        return f"{100 * e.share:.1f} %"
    return f"{e.processes} proc." if e.processes < 3 else f">{100 * TOO_WIDE:.0f} %"


def change_row(c: Change) -> list[str]:
    """A change's cells; CHANGE_HEADS names them."""
    bounds = change_between(c.low, c.high, 2) or "no bounds: one process each"
    times = [duration(c.a_ns), duration(c.b_ns), change(c.ratio, 2)]
    return [_count(c.batch), _mode(c.mode, c.l2), *times, bounds, c.verdict]


def way_rows(p: Point) -> list[list[str]]:
    """The cells of each way of timing, whose heads are WAY_HEADS; "-" for what was not measured."""
    warm, cold, rows = p.ways("warm"), p.ways("cold"), []
    for way in (way for way in WAYS if way in {**warm, **cold}):
        known = p.warm(way)
        times = [fixed(ns[way]) if way in ns else "-" for ns in (warm, cold)]
        mhz = _mhz(known or p.modes.get((way, "cold")))
        rows.append([way, times[0], certainty(known) if known else "-", times[1], mhz, WAYS[way]])
    return rows


# --- sentences ---


def environment(measure: Measure) -> str:
    """What it was measured on, and by how many processes."""
    e, runs = measure.environment, [r for r in measure.runs if not r.failure]
    timed = sum(r.role == "time" for r in runs) or 1
    words = f"{e.get('device', 'no device')}, torch {e.get('torch', '?')}, {_processes(timed)}"
    if first := sorted(r.first_ns for r in runs if r.first_ns):
        words += f", first call {duration(first[len(first) // 2])}, not counted"
    return words


def _processes(count: int) -> str:
    return f"{count} process{'' if count == 1 else 'es'}"


def _known(e: Estimate) -> str:
    """`certainty` behind a number in a sentence."""
    if e.share <= TOO_WIDE:
        return f" ± {certainty(e)}"
    if e.processes < 3:
        return f" ({_processes(e.processes)}: no interval)"
    return f" (the {e.processes} processes differ too much for an interval: more --processes)"


def headline(measure: Measure) -> str:
    """The answer in one sentence: the batch to use and why, or what one call takes."""
    advised, best, p = measure.advised, measure.best, measure.shown
    if len(measure.targets) > 1:
        return _against(measure)
    if len(measure.points) > 1 and advised and best:
        text = f"Batch {advised.batch:,}: {rate(advised.rate)} outputs per second"
        text += _known(advised.warm("steady"))
        if advised.batch == best.batch:
            text += ", the best of those measured"
        else:
            text += f", within 5 % of the best ({best.batch:,}: {rate(best.rate)})"
        if advised.latency:
            text += f"; one call takes {duration(advised.latency.value_ns)}"
        largest, failed = map(measure.search.get, ("largest", "failed_at"))
        if largest and failed:
            text += f". The largest that fits: {largest:,} ({failed:,} does not)"
        return f"{text}."
    if p and p.latency:
        text = f"One call takes {duration(p.latency.value_ns)}{_known(p.latency)}"
        return text + (f", {rate(p.rate)} per second with calls queued." if p.rate else ".")
    for (mode, l2), e in p.modes.items() if p else ():
        return f"Mode {_mode(mode, l2)}: {duration(e.value_ns)}{_known(e)}."
    return "Nothing was measured."


def headline_changes(measure: Measure) -> list[Change]:
    """B against A by latency, or else by the first mode that was measured of both."""
    changes = [c for c in measure.changes() if c.l2 == "warm"]
    mode = next((c.mode for c in sorted(changes, key=lambda c: c.mode != "latency")), "")
    return [c for c in changes if c.mode == mode]


def verdict(measure: Measure) -> str:
    """Of one function: its interval is narrow, is wide, or there is none (one process).  Of two: B
    against A; "mixed" where batches differ."""
    if len(measure.targets) > 1:
        verdicts = {c.verdict for c in headline_changes(measure)}
        return verdicts.pop() if len(verdicts) == 1 else "mixed" if verdicts else "unclear"
    p = measure.shown
    share = (p.latency or p.warm("steady") or next(iter(p.modes.values()))).share
    return "no_interval" if math.isinf(share) else "stable" if share <= STABLE else "noisy"


def _against(measure: Measure) -> str:
    """B against A, at the batches where that can be said."""
    parts, changes = [], headline_changes(measure)
    for verdict in ("faster", "slower", "unclear"):
        matching = [c for c in changes if c.verdict == verdict]
        if not matching:
            continue
        where = ", ".join(_count(c.batch) for c in matching if c.batch is not None)
        where = f" at batch {where}" if where else ""
        ratios = sorted(c.ratio for c in matching)
        values = change(ratios[0]) if len(matching) == 1 else change_between(ratios[0], ratios[-1])
        differ = f"B is {verdict} than A{where} ({matching[0].mode} {values})"
        parts.append(differ if verdict != "unclear" else f"they cannot be told apart{where}")
    text = "; ".join(parts) or "nothing was measured of both"
    return f"{text[0].upper()}{text[1:]}."


def reading(point: Point) -> list[str]:
    """What the differences between the modes of a point mean."""
    lines, floor = [], point.floor_ns
    latency, device, event, graph, steady = map(
        point.warm, ("latency", "device", "event", "graph", "steady")
    )
    if latency and event and latency.value_ns > 1.5 * event.value_ns + 50_000:
        lines.append(
            "latency is much longer than event: event, device, steady and graph do not see work "
            "on other streams"
        )
    if device and floor > 0.02 * device.value_ns:
        lines.append(
            f"of device, {duration(floor)} are the records' own: an empty kernel reads as much"
        )
    if device and steady and steady.value_ns > 1.1 * device.p90_ns:
        times = f"{duration(device.value_ns)} of {duration(steady.value_ns)}"
        faster = graph and steady.value_ns > 1.1 * graph.p90_ns
        remedy = f": a graph takes {duration(graph.value_ns)}" if faster else ""
        lines.append(f"launch-bound: the GPU needs {times} per call{remedy}")
    return lines


def rate(per_second: float) -> str:
    """A throughput: without decimals from 100 on."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def milliseconds(ns: float) -> str:
    """A table cell with three significant digits: 0.0662, 3.02, 28.3."""
    ms = ns / 1e6
    return f"{ms:,.{next((d for limit, d in ((0.1, 4), (1, 3), (10, 2), (1000, 1)) if ms < limit), 0)}f}"
