"""A measurement in words: the answer, one row per batch, explanations, notes.  The page takes its
sentences and cells from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from nsysalign.addons.measure import ladder
from nsysalign.addons.measure.statistics import TOO_WIDE
from nsysalign.show import table
from nsysalign.text import (
    change,
    change_between,
    duration,
    fixed,
    gibibytes,
    milliseconds,
    rate,
    reach,
    safe_text,
)

if TYPE_CHECKING:
    from rich.console import Console

    from nsysalign.addons.measure.result import Change, Measure, Point

MODE_WORDS = {
    "latency": "idle GPU, host clock around call and synchronise: one request",
    "event": "idle GPU, event pair around the call",
    "device": "behind a delay kernel: GPU time only",
    "steady": "calls queued, per call: throughput",
    "graph": "captured, replayed as a CUDA graph",
    "do_bench": "triton's, which overwrites the L2 before each call",
    "do_bench_cudagraph": "triton's, replayed from a graph of many calls",
}
HEADS = ["batch", "p50 ms", "±", "p99 ms", "per s", "±", "memory", "SM MHz", ""]
LADDER_HEADS = ["clock", "us", "SM MHz", "what is in it, beside the kernels"]
CHANGE_HEADS = ["batch", "mode", "A", "B", "change", "95 %", ""]


def render(measure: Measure, console: Console, report: str = "") -> None:
    """The whole answer: first what is known, then what the numbers rest on."""
    head = ", ".join(value for _, value in environment(measure))
    _print(console, [head, "", headline(measure)])
    for target, name in enumerate(measure.targets):
        points = [p for p in measure.points if p.target == target]
        if points:
            _print(console, ["", f"  {name}"])
            _table(console, HEADS, list(map(row, points)), left=(8,), leave=(7, 6, 3))
    for point in measure.points if measure.options.get("clocks") else ():
        for l2, state in (("warm", "its data in the L2"), ("cold", "the L2 overwritten before")):
            if rungs := measure.rungs(point, l2):
                _print(console, ["", f"  {named(measure, point.target, point.batch)}, {state}"])
                _table(console, LADDER_HEADS, list(map(ladder_row, rungs)), left=(0, 3), leave=(2,))
        _print(console, ["", *(f"  {line}" for line in clocks_verdict(measure, point)), ""])
    lines = []
    for point in measure.points:
        modes, more = measure.modes_at(point), reading(measure, point)
        if more or set(modes) - {"latency", "steady"}:  # the table has those two
            times = ", ".join(f"{mode} {duration(e.value_ns)}" for mode, e in modes.items())
            lines += [f"{named(measure, point.target, point.batch)}: {times}"]
            lines += [f"  {text}" for text in more]
    _print(console, [f"  {line}" for line in lines])
    if changes := measure.changes():
        _print(console, [f"{'AB'[k]} {name}" for k, name in enumerate(measure.targets)])
        _table(console, CHANGE_HEADS, list(map(change_row, changes)), left=(1, 5, 6), leave=(2, 3))
    _print(console, [f"  ! {note}" for note in measure.notes])
    if report:  # a path that is broken over lines cannot be copied
        console.print(f"report: {safe_text(report)}", soft_wrap=True, markup=False)


def _print(console: Console, lines: list[str]) -> None:
    """Lines; what is longer than the terminal goes on below the beginning of its own text."""
    for line in map(safe_text, lines):
        indent = len(line) - len(line.lstrip())
        text = Padding(Text(line.strip()), (0, 0, 0, indent)) if line else ""
        console.print(text)


def _table(
    console: Console,
    heads: list[str],
    rows: list[list[str]],
    left: tuple[int, ...],
    leave: tuple[int, ...],
) -> None:
    """Columns to the right, but for those in `left`.  Where the terminal is too narrow, the texts
    of the last one stand below their rows, and of the columns `leave` the first leaves first."""
    columns = []
    for n, (head, cells) in enumerate(zip(heads, zip(*rows, strict=True), strict=True)):
        order = leave.index(n) + 1.0 if n in leave else None
        safe = [safe_text(cell) for cell in cells]
        columns.append(table.Column(head, safe, left=n in left, leaves=order))
    whole = sum(column.width + table.GAP for column in columns) - table.GAP
    below = columns.pop().cells if whole > console.width else ()
    table.draw(table.fitted(columns, console.width)[0], console, below=below)


# --- cells ---


def _count(batch: int | None) -> str:
    return "-" if batch is None else f"{batch:,}"


def row(p: Point) -> list[str]:
    """A point's cells, whose heads are HEADS; "-" for what was not measured."""
    late = ["-"] * 3
    if p.latency_ns > 0:
        late = [milliseconds(p.latency_ns), certainty(p.latency_share, p.processes)]
        late.append(("" if p.p99_bounded else "≥") + milliseconds(p.p99_ns))
    rates = [rate(p.rate), certainty(p.rate_share, p.processes)] if p.rate > 0 else ["-", "-"]
    memory = gibibytes(p.memory_bytes) if p.memory_bytes else "-"
    mhz = f"{p.sm_mhz:,.0f}" if p.sm_mhz == p.sm_mhz else "-"
    return [_count(p.batch), *late, *rates, memory, mhz, p.marks]


def certainty(share: float, processes: int) -> str:
    """Half the interval's width, or why there is none that helps: one process does not know how
    processes differ."""
    if processes > 1 and share <= TOO_WIDE:
        return reach(share)
    return f"{processes} proc." if processes < 3 else f">{100 * TOO_WIDE:.0f} %"


def change_row(c: Change) -> list[str]:
    """A change's cells; CHANGE_HEADS names them."""
    mode = c.mode if c.l2 == "warm" else f"{c.mode}, cold L2"
    bounds = change_between(c.low, c.high, 2) or "no bounds: one process each"
    times = [duration(c.a_ns), duration(c.b_ns), change(c.ratio, 2)]
    return [_count(c.batch), mode, *times, bounds, c.verdict]


def ladder_row(rung: ladder.Rung) -> list[str]:
    """A rung's cells; LADDER_HEADS names them."""
    mhz = f"{rung.mhz:,.0f}" if rung.mhz == rung.mhz else "-"
    return [rung.name, fixed(rung.value_ns), mhz, rung.contains]


# --- sentences ---


def environment(measure: Measure) -> list[tuple[str, str]]:
    """What was measured on what, and by how many processes: (name, words)."""
    e, runs = measure.environment, [r for r in measure.runs if not r.failure]
    timed = sum(r.role == "time" for r in runs) or 1
    rows = [("GPU", str(e.get("device", "no device"))), ("torch", f"torch {e.get('torch', '?')}")]
    rows.append(("processes", f"{timed} process{'' if timed == 1 else 'es'}"))
    if first := sorted(r.first_ns for r in runs if r.first_ns):
        rows.append(("first call", f"first call {duration(first[len(first) // 2])}, not counted"))
    return rows


def named(measure: Measure, target: int, batch: int | None) -> str:
    """A point in prose: "batch 8", "B, the call"."""
    side = f"{'AB'[target]}, " if len(measure.targets) > 1 else ""
    return side + ("the call" if batch is None else f"batch {batch:,}")


def _known(share: float, processes: int) -> str:
    """`certainty` behind a number in a sentence."""
    if processes > 1 and share <= TOO_WIDE:
        return f" ± {reach(share)}"
    if processes < 3:
        return f" ({processes} process{'' if processes == 1 else 'es'}: no interval)"
    return f" (the {processes} processes differ too much for an interval)"


def headline(measure: Measure) -> str:
    """The answer in one sentence: the batch to use and why, or what one call takes."""
    points = [p for p in measure.points if p.latency_ns > 0 or p.rate > 0]
    advised, best = measure.advised, measure.best
    if len(measure.targets) > 1:
        return _verdict(measure)
    if len(points) > 1 and advised and best:
        known = _known(advised.rate_share, advised.processes)
        text = f"Batch {advised.batch:,}: {rate(advised.rate)} outputs per second{known}"
        if advised.batch == best.batch:
            text += ", the best of those measured"
        else:
            text += f", within 5 % of the best ({best.batch:,}: {rate(best.rate)})"
        text += f"; one call takes {duration(advised.latency_ns)}."
        largest = next((p.batch for p in points if "largest that fits" in p.marks), None)
        return text + (f" The largest that fits: {largest:,}." if largest else "")
    if points:
        p = points[0]
        text = f"One call takes {duration(p.latency_ns)}{_known(p.latency_share, p.processes)}"
        return text + (f", {rate(p.rate)} per second with calls queued." if p.rate > 0 else ".")
    for key, e in measure.estimates.items():
        return f"Mode {key.mode}: {duration(e.value_ns)}{_known(e.share, e.processes)}."
    return "Nothing was measured."


def _verdict(measure: Measure) -> str:
    """B against A by latency, or else by the first mode that was measured of both, at the batches
    where that can be said."""
    changes = [c for c in measure.changes() if c.l2 == "warm"]
    modes = dict.fromkeys(["latency", *(c.mode for c in changes)])
    mode = next((m for m in modes if any(c.mode == m for c in changes)), "")
    parts = []
    for verdict in ("faster", "slower", "unclear"):
        here = [c for c in changes if (c.mode, c.verdict) == (mode, verdict)]
        if not here:
            continue
        where = ", ".join(_count(c.batch) for c in here if c.batch is not None)
        where = f" at batch {where}" if where else ""
        ratios = sorted(c.ratio for c in here)
        values = change(ratios[0]) if len(here) == 1 else change_between(ratios[0], ratios[-1])
        differ = f"B is {verdict} than A{where} ({mode} {values})"
        parts.append(differ if verdict != "unclear" else f"they cannot be told apart{where}")
    text = "; ".join(parts) or "nothing was measured of both"
    return f"{text[0].upper()}{text[1:]}."


def clocks_verdict(measure: Measure, point: Point) -> list[str]:
    """Which clock answers which question at a point; [] without --clocks."""
    return list(ladder.verdict(*(measure.rungs(point, l2) for l2 in ("warm", "cold"))))


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
    if device and steady and steady.longer(device, 1.1):
        times = f"{duration(device.value_ns)} of {duration(steady.value_ns)}"
        faster = graph and steady.longer(graph, 1.1)
        remedy = f": a graph takes {duration(graph.value_ns)}" if faster else ""
        lines.append(f"launch-bound: the GPU needs {times} per call{remedy}")
    elif (
        (device and steady and event)
        and event.longer(device, 1.2)
        and steady.value_ns <= 1.2 * device.value_ns
    ):
        lines.append("on an idle GPU the first launches come late; queued calls hide that")
    return lines
