"""A measurement in words: the sentence, what each way of timing says, the batches, notes.  The page
takes its sentences and cells from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from nsysalign.addons.measure.result import WAYS
from nsysalign.addons.measure.statistics import TOO_WIDE
from nsysalign.show import table
from nsysalign.text import (
    change,
    change_between,
    duration,
    fixed,
    gibibytes,
    milliseconds,
    plural,
    rate,
    reach,
    safe_text,
)

if TYPE_CHECKING:
    from rich.console import Console

    from nsysalign.addons.measure.result import Change, Measure, Point
    from nsysalign.addons.measure.statistics import Estimate

HEADS = ["batch", "p50 ms", "±", "p99 ms", "per s", "±", "memory", "SM MHz", ""]
WAY_HEADS = ["mode", "us", "±", "cold L2", "SM MHz", "what it says"]
CHANGE_HEADS = ["batch", "mode", "A", "B", "change", "95 %", ""]
#: A profiled sum this much above the timed device time contradicts it.
CONTRADICTS, CONTRADICTS_NS = 0.02, 1_000
#: Rows of the screen: batches, changes, notes; the page has all.
MOST_ROWS, MOST_CHANGES, MOST_NOTES = 6, 12, 3


def render(measure: Measure, console: Console, report: str = "") -> None:
    """The first screen, of at most 24 lines: the sentence, the tables it rests on, notes."""
    point = measure.advised or next(iter(measure.points), None)
    console.print(Text(safe_text(headline(measure)), "bold"))
    for text in reading(measure, point) if point and len(measure.targets) == 1 else ():
        console.print(Text(safe_text(text[0].upper() + text[1:] + ".")))
    if changes := measure.changes():
        for side, name in zip("AB", measure.targets, strict=True):
            console.print(Text(f"{side} {safe_text(name)}"))
        rows = list(map(change_row, changes[:MOST_CHANGES]))
        _table(console, CHANGE_HEADS, rows, left=(1, 5, 6), leave=(2, 3))
        if len(changes) > len(rows):
            console.print(Text(f"{len(changes) - len(rows)} more rows in the report", "dim"))
    elif len(measure.points) > 1:
        marked = [p for p in measure.points if p.marks or p is measure.points[0]]
        others = [p for p in measure.points if p not in marked]
        shown = [*marked, *reversed(others)][:MOST_ROWS]
        rows = [row(p) for p in measure.points if p in shown]
        _table(console, HEADS, rows, left=(8,), leave=(7, 6, 3))
        if len(rows) < len(measure.points):
            more = len(measure.points) - len(rows)
            console.print(Text(f"{more} more rows in the report", "dim"))
    if point and not changes:
        console.print()
        rows, drop = way_rows(measure, point), () if measure.options.get("clocks") else (3,)
        cells = [[c for n, c in enumerate(r) if n not in drop] for r in (WAY_HEADS, *rows)]
        _table(console, cells[0], cells[1:], left=(0,), leave=(4 - len(drop),))
    for note in measure.notes[:MOST_NOTES]:
        console.print(Text(f"! {table.middle(safe_text(note), 156)}", "yellow"))
    if len(measure.notes) > MOST_NOTES:
        more = plural(len(measure.notes) - MOST_NOTES, "note")
        console.print(Text(f"{more} more in the report", "dim"))
    console.print(Text(safe_text(environment(measure)), "dim"))
    if report:  # a path that is broken over lines cannot be copied
        console.print(f"report: {safe_text(report)}", soft_wrap=True, markup=False)


def _table(
    console: Console,
    heads: list[str],
    rows: list[list[str]],
    left: tuple[int, ...],
    leave: tuple[int, ...],
) -> None:
    """Columns to the right, but for those in `left`; the last is shortened, and of the columns
    `leave` the first leaves first."""
    columns = []
    for n, (head, cells) in enumerate(zip(heads, zip(*rows, strict=True), strict=True)):
        safe = [safe_text(cell) for cell in cells]
        if n == len(heads) - 1:
            columns.append(table.text(head, safe))
        else:
            order = leave.index(n) / 10 if n in leave else None
            columns.append(table.Column(head, safe, left=n in left, leaves=order))
    table.draw(columns, console)


# --- cells ---


def _count(batch: int | None) -> str:
    return "-" if batch is None else f"{batch:,}"


def _mhz(mhz: float) -> str:
    return f"{mhz:,.0f}" if mhz == mhz else "-"


def row(p: Point) -> list[str]:
    """A point's cells, whose heads are HEADS; "-" for what was not measured."""
    latency, rates = ["-"] * 3, ["-"] * 2
    if p.latency:
        bound = "" if p.latency.p99_bounded else "≥"
        latency = [milliseconds(p.latency.value_ns), certainty(p.latency)]
        latency.append(bound + milliseconds(p.latency.p99_ns))
    if p.rate:
        rates = [rate(p.rate), certainty(p.steady)]
    memory = gibibytes(p.peak_bytes) if p.peak_bytes else "-"
    return [_count(p.batch), *latency, *rates, memory, _mhz(p.sm_mhz), p.marks]


def certainty(e: Estimate) -> str:
    """Half the interval's width, or why there is none that helps: one process does not know how
    processes differ."""
    if e.share <= TOO_WIDE:
        return reach(e.share)
    return f"{e.processes} proc." if e.processes < 3 else f">{100 * TOO_WIDE:.0f} %"


def change_row(c: Change) -> list[str]:
    """A change's cells; CHANGE_HEADS names them."""
    mode = c.mode if c.l2 == "warm" else f"{c.mode}, cold L2"
    bounds = change_between(c.low, c.high, 2) or "no bounds: one process each"
    times = [duration(c.a_ns), duration(c.b_ns), change(c.ratio, 2)]
    return [_count(c.batch), mode, *times, bounds, c.verdict]


def way_rows(measure: Measure, point: Point) -> list[list[str]]:
    """The cells of each way of timing, whose heads are WAY_HEADS; "-" for what was not measured."""
    warm, cold = ({r.way: r for r in measure.rungs(point, l2)} for l2 in ("warm", "cold"))
    modes, rows = measure.modes_at(point), []
    for way in (way for way in WAYS if way in {**warm, **cold}):
        times = [fixed(of[way].value_ns) if way in of else "-" for of in (warm, cold)]
        known = certainty(modes[way]) if way in modes else "-"
        mhz = (warm.get(way) or cold[way]).mhz
        rows.append([way, times[0], known, times[1], _mhz(mhz), WAYS[way]])
    return rows


# --- sentences ---


def environment(measure: Measure) -> str:
    """What it was measured on, and by how many processes."""
    e, runs = measure.environment, [r for r in measure.runs if not r.failure]
    timed = sum(r.role == "time" for r in runs) or 1
    words = f"{e.get('device', 'no device')}, torch {e.get('torch', '?')}, {timed} process"
    words += "" if timed == 1 else "es"
    if first := sorted(r.first_ns for r in runs if r.first_ns):
        words += f", first call {duration(first[len(first) // 2])}, not counted"
    return words


def named(measure: Measure, target: int, batch: int | None) -> str:
    """A point in prose: "batch 8", "B, the call"."""
    side = f"{'AB'[target]}, " if len(measure.targets) > 1 else ""
    return side + ("the call" if batch is None else f"batch {batch:,}")


def _known(e: Estimate) -> str:
    """`certainty` behind a number in a sentence."""
    if e.share <= TOO_WIDE:
        return f" ± {reach(e.share)}"
    if e.processes < 3:
        return f" ({e.processes} process{'' if e.processes == 1 else 'es'}: no interval)"
    return f" (the {e.processes} processes differ too much for an interval: more --processes)"


def headline(measure: Measure) -> str:
    """The answer in one sentence: the batch to use and why, or what one call takes."""
    advised, best = measure.advised, measure.best
    if len(measure.targets) > 1:
        return _against(measure)
    if len(measure.points) > 1 and advised and best:
        text = f"Batch {advised.batch:,}: {rate(advised.rate)} outputs per second"
        text += _known(advised.steady)
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
    for p in measure.points:
        if p.latency:
            text = f"One call takes {duration(p.latency.value_ns)}{_known(p.latency)}"
            return text + (f", {rate(p.rate)} per second with calls queued." if p.rate else ".")
        for mode, e in measure.modes_at(p).items():
            return f"Mode {mode}: {duration(e.value_ns)}{_known(e)}."
    return "Nothing was measured."


def headline_changes(measure: Measure) -> list[Change]:
    """B against A by latency, or else by the first mode that was measured of both."""
    changes = [c for c in measure.changes() if c.l2 == "warm"]
    mode = next((c.mode for c in sorted(changes, key=lambda c: c.mode != "latency")), "")
    return [c for c in changes if c.mode == mode]


def _against(measure: Measure) -> str:
    """B against A, at the batches where that can be said."""
    parts, changes = [], headline_changes(measure)
    for verdict in ("faster", "slower", "unclear"):
        here = [c for c in changes if c.verdict == verdict]
        if not here:
            continue
        where = ", ".join(_count(c.batch) for c in here if c.batch is not None)
        where = f" at batch {where}" if where else ""
        ratios = sorted(c.ratio for c in here)
        values = change(ratios[0]) if len(here) == 1 else change_between(ratios[0], ratios[-1])
        differ = f"B is {verdict} than A{where} ({here[0].mode} {values})"
        parts.append(differ if verdict != "unclear" else f"they cannot be told apart{where}")
    text = "; ".join(parts) or "nothing was measured of both"
    return f"{text[0].upper()}{text[1:]}."


def reading(measure: Measure, point: Point) -> list[str]:
    """What the differences between the modes of a point mean."""
    modes, lines = measure.modes_at(point), []
    device, event, graph, steady = map(modes.get, ("device", "event", "graph", "steady"))
    floor, latency = measure.floor_ns(point), modes.get("latency")
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
    elif device and steady and event and event.value_ns > 1.2 * max(device.p90_ns, steady.value_ns):
        lines.append("on an idle GPU the first launches come late; queued calls hide that")
    for l2 in ("warm", "cold"):
        ns = {r.way: r.value_ns for r in measure.rungs(point, l2)}
        timed, traced = ns.get("device", 0), ns.get("sum", 0)
        if timed and traced > timed + max(CONTRADICTS * timed, CONTRADICTS_NS):
            lines.append(
                f"{l2} L2: the kernels that nsys saw take {duration(traced)}, longer than the call "
                f"that was timed ({duration(timed)}): its clocks or its caches were others"
            )
    return lines
