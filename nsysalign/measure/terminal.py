"""A measurement in words: the answer, one row per batch, explanations, notes.  The page takes its
sentences from here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from nsysalign.measure import ladder
from nsysalign.measure.statistics import TOO_WIDE, Difference, Estimate
from nsysalign.report.palette import LOOKS
from nsysalign.text import (
    change,
    change_between,
    duration,
    fixed,
    gibibytes,
    milliseconds,
    percent,
    plural,
    rate,
    reach,
    safe_text,
)

if TYPE_CHECKING:
    from rich.console import Console

    from nsysalign.measure.merge import Change
    from nsysalign.measure.profile import Profile
    from nsysalign.measure.result import Key, Measure, Point

MODE_WORDS = {
    "latency": "idle GPU, host clock around call and synchronise: one request",
    "event": "idle GPU, event pair around the call",
    "device": "behind a delay kernel: GPU time only",
    "steady": "calls queued, per call: throughput",
    "graph": "captured, replayed as a CUDA graph",
    "transfer": "as latency, inputs copied in and outputs back",
    "do_bench": "triton's, which overwrites the L2 before each call",
    "do_bench_cudagraph": "triton's, replayed from a graph of many calls",
}


def render(measure: Measure, console: Console, report: str = "") -> None:
    """The whole answer: first what is known, then what the numbers rest on."""
    lines = [", ".join(value for _, value in environment(measure))]
    lines[0] += f", report: {report}" if report else ""
    lines += ["", headline(measure)]
    _print(console, lines)
    for target, name in enumerate(measure.targets):
        points = [p for p in measure.points if p.target == target]
        if not points:
            continue
        _print(console, ["", f"  {name}"])
        _table(console, heads(measure), [row(measure, p) for p in points], left=(8,))
        profiles = [p for p in map(measure.profile_of, points) if p and p.parts_ns]
        if profiles:
            _print(console, [""])
            _budgets(console, profiles)
    if measure.ladder:
        for point in measure.points:
            _ladder(console, measure, point)
    _print(console, [f"  {line}" for line in [*explanations(measure), *differences(measure)]])
    _print(console, [f"  ! {note}" for note in measure.notes])


def _ladder(console: Console, measure: Measure, point: Point) -> None:
    """What each way of timing the call prints, warm and cold, and what the differences are."""
    for l2 in ("warm", "cold"):
        rungs = ladder.rungs(measure, point, l2)
        if not rungs:
            continue
        state = "its data in the L2" if l2 == "warm" else "the L2 overwritten before each call"
        lines = ["", f"  {named(measure, point.target, point.batch)}, {state}"]
        for rung in rungs:
            name, value, step, cause, known = ladder_row(rung)
            lines.append(f"{value:>12} us  {name}")
            if step:
                lines.append(f"{step:>12}       {cause}{f' ({known})' if known else ''}")
        _print(console, lines)
    _print(console, ["", *(f"  {line}" for line in ladder.verdict(measure, point)), ""])


LADDER_HEADS = ["clock", "us", "to the next", "what that is", "measured elsewhere"]


def ladder_row(rung: ladder.Rung) -> list[str]:
    """A rung's cells; LADDER_HEADS names them."""
    known = rung.known_ns == rung.known_ns
    step = f"{-rung.next_ns / 1e3:+,.2f}" if rung.next_ns == rung.next_ns else ""
    left = rung.next_ns - rung.known_ns
    elsewhere = f"{duration(rung.known_ns)} known, {left / 1e3:+.2f} us not" if known else ""
    return [rung.name, fixed(rung.value_ns), step, rung.cause, elsewhere]


def _print(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(safe_text(line), soft_wrap=True, markup=False)


def _table(
    console: Console, names: list[str], rows: list[list[str]], left: tuple[int, ...]
) -> None:
    """Columns to the right, but for those in `left`; the last one may wrap."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for n, name in enumerate(names):
        side = "left" if n in left else "right"
        table.add_column(name, justify=side, no_wrap=n < len(names) - 1)
    for cells in rows:
        table.add_row(*map(safe_text, cells))
    console.print(table)


def environment(measure: Measure) -> list[tuple[str, str]]:
    """What was measured on what, and by how many processes: (name, words)."""
    e, runs = measure.environment, [r for r in measure.runs if not r.failure]
    timed = sum(r.role == "time" for r in runs)
    rows = [("GPU", str(e.get("device", "no device"))), ("torch", f"torch {e.get('torch', '?')}")]
    rows.append(("processes", plural(timed or 1, "process").replace("sss", "sses")))
    if measure.profiles:
        rows.append(("profiles", plural(len(measure.profiles), "profile")))
    if measure.l2 == "cold":
        rows.append(("L2", "cold L2"))
    first = sorted(r.first_ns for r in runs if r.first_ns)
    if first:
        rows.append(("first call", f"first call {duration(first[len(first) // 2])}, not counted"))
    return rows


def certainty(share: float, processes: int) -> str:
    """A cell: half the interval's width, or why there is none that helps."""
    if share <= TOO_WIDE:
        return reach(share)
    return f"{processes} proc." if processes < 3 else f">{100 * TOO_WIDE:.0f} %"


def _known(share: float, processes: int) -> str:
    """The same behind a number in a sentence."""
    if share <= TOO_WIDE:
        return f" ± {reach(share)}"
    if processes < 3:
        return f" ({plural(processes, 'process').replace('sss', 'sses')}: no interval)"
    return f" (the {processes} processes differ too much for an interval)"


def headline(measure: Measure) -> str:
    """The answer in one sentence; the smallest batch within 5 % of the best is the advice."""
    points = [p for p in measure.points if p.latency_ns > 0 or p.rate > 0]
    modes = [(k, e) for k, e in measure.estimates.items() if k.target == 0]
    if len(measure.targets) > 1:
        return _verdict(measure)
    advised, best = measure.advised, measure.best
    if len(points) > 1 and advised and best:
        known = _known(advised.rate_share, advised.processes)
        text = f"Batch {advised.batch}: {rate(advised.rate)} outputs per second{known}"
        if advised.batch == best.batch:
            text += ", the best of those measured"
        else:
            text += f", within 5 % of the best ({best.batch}: {rate(best.rate)})"
        text += f"; one call takes {duration(advised.latency_ns)}."
        for p in points:
            if "largest that fits" in p.marks:
                text += f" The largest that fits: {p.batch}."
        return text
    if points:
        p = points[0]
        text = f"One call takes {duration(p.latency_ns)}{_known(p.latency_share, p.processes)}"
        return text + (f", {rate(p.rate)} per second with calls queued." if p.rate > 0 else ".")
    if modes:
        (key, e), *_ = modes
        return f"Mode {key.mode}: {duration(e.value_ns)}{_known(e.share, e.processes)}."
    return "Nothing was measured."


def _verdict(measure: Measure) -> str:
    """B against A by latency, at the batches where that can be said."""
    at: dict[str, list[tuple[int | None, Difference]]] = {}
    for key, d in measure.differences():
        if (key.mode, key.l2) == ("latency", measure.l2):
            at.setdefault(d.verdict, []).append((key.batch, d))
    parts = []
    for verdict in ("faster", "slower", "unclear"):
        if not (here := at.get(verdict)):
            continue
        where = ", ".join(str(batch) for batch, _ in here if batch is not None)
        where = f" at batch {where}" if where else ""
        ratios = sorted(d.ratio for _, d in here)
        values = change(ratios[0]) if len(here) == 1 else change_between(ratios[0], ratios[-1])
        told = f"B is {verdict} than A{where} (latency {values})"
        parts.append(told if verdict != "unclear" else f"they cannot be told apart{where}")
    text = "; ".join(parts) or "latency was not measured of both"
    return f"{text[0].upper()}{text[1:]}."


def heads(measure: Measure) -> list[str]:
    """The columns of `row`."""
    p = float(measure.options.get("at", 50.0))
    tail = f"p{p:g}" if p > 50 else "p99"
    return ["batch", "p50 ms", "±", f"{tail} ms", "per s", "±", "memory", "SM MHz", ""]


def row(measure: Measure, p: Point) -> list[str]:
    """A point's cells; "-" for what was not measured."""
    tail, bounded = p.p99_ns, p.p99_bounded
    if float(measure.options.get("at", 50.0)) > 50:
        tail, bounded = p.at_ns, True
    timed, rated = p.latency_ns > 0, p.rate > 0
    return [
        "-" if p.batch is None else f"{p.batch:,}",
        milliseconds(p.latency_ns) if timed else "-",
        certainty(p.latency_share, p.processes) if timed else "-",
        ("" if bounded else "≥") + milliseconds(tail) if timed else "-",
        rate(p.rate) if rated else "-",
        certainty(p.rate_share, p.processes) if rated else "-",
        gibibytes(p.memory_bytes) if p.memory_bytes else "-",
        f"{p.sm_mhz:.0f}" if p.sm_mhz == p.sm_mhz else "-",
        p.marks,
    ]


def _budgets(console: Console, profiles: list[Profile]) -> None:
    """Shares of the profiled interval."""
    causes = [
        c for c in LOOKS if any(p.parts_ns.get(c, 0) > 0.005 * p.elapsed_ns for p in profiles)
    ]
    rows = []
    for p in profiles:
        shares = [p.parts_ns.get(c, 0) / p.elapsed_ns for c in causes]
        cells = [percent(share) if share else "." for share in shares]
        batch = "-" if p.batch is None else f"{p.batch:,}"
        rows.append([batch, milliseconds(p.elapsed_ns), *cells, percent(p.idle_share())])
    names = ["batch", "nsys ms", *(LOOKS[c].short for c in causes), "GPU idle"]
    _table(console, names, rows, left=())


def named(measure: Measure, target: int, batch: int | None) -> str:
    """A point in prose: "batch 8", "B, the call"."""
    side = f"{'AB'[target]}, " if len(measure.targets) > 1 else ""
    return side + ("the call" if batch is None else f"batch {batch}")


def explanations(measure: Measure) -> list[str]:
    """Why the modes differ, batch by batch, and whether the profile confirms it."""
    lines = []
    for point in measure.points:
        modes, profile = measure.modes_at(point), measure.profile_of(point)
        if not set(modes) - {"latency", "steady"} and profile is None:
            continue  # the table has them
        name = named(measure, point.target, point.batch)
        values = (f"{mode} {duration(e.value_ns)}" for mode, e in modes.items())
        lines.append(f"{name}: {', '.join(values)}")
        lines += [f"  {text}" for text in reading(measure, point)]
        if profile is not None:
            lines.append(f"  {proof(profile)}")
    return lines


def reading(measure: Measure, point: Point) -> list[str]:
    """What the differences between the modes of a point mean."""
    modes, lines = measure.modes_at(point), []
    device, event, graph, steady = map(modes.get, ("device", "event", "graph", "steady"))
    floors = (
        r.facts["device"].get("empty_kernel_ns", 0)
        for r in measure.runs
        if (r.target, r.batch) == (point.target, point.batch) and "device" in r.facts
    )
    floor = next(floors, 0)
    if device and floor > 0.02 * device.value_ns:
        lines.append(
            f"of device, {duration(floor)} are the records' own: an empty kernel reads as much"
        )
    if device and steady and steady.longer(device, 1.1):
        text = f"launch-bound: the GPU needs {duration(device.value_ns)} of "
        text += f"{duration(steady.value_ns)} per call"
        if graph and steady.longer(graph, 1.1):
            text += f": a graph takes {duration(graph.value_ns)}"
        lines.append(text)
    elif (
        (device and event and steady)
        and event.longer(device, 1.2)
        and steady.value_ns <= 1.2 * device.value_ns
    ):
        lines.append(
            "on an idle GPU the first launches come late; calls queued one behind the other hide "
            "that"
        )
    return lines + _cold(measure, point)


def _cold(measure: Measure, point: Point) -> list[str]:
    """The cost of cold caches, and whether the kernels show that they were cold."""
    pair: list[Estimate] = []
    for l2 in ("warm", "cold"):
        at = {
            k.mode: e
            for k, e in measure.estimates.items()
            if (k.target, k.batch, k.l2) == (point.target, point.batch, l2)
        }
        pair += [e for e in (at.get("device") or at.get("event"),) if e]
    if len(pair) < 2:
        return []
    text = f"cold L2: {duration(pair[1].value_ns)} instead of {duration(pair[0].value_ns)}"
    profile = measure.profile_of(point)
    if profile and profile.kernel_ns and profile.kernel_cold_ns:
        grown = profile.kernel_cold_ns / profile.kernel_ns - 1
        text += f"; the profiled kernels {change(grown)}"
        text += "" if grown > 0.005 else ": nothing shows that the L2 mattered"
    return [text]


def proof(profile: Profile) -> str:
    """The line that says whether the profile explains the measurement."""
    if not math.isfinite(profile.error):
        return (
            f"profile: {duration(profile.elapsed_ns)} under nsys; no prediction of the time "
            f"without it ({profile.run})"
        )
    verdict = "proven" if profile.proven else (
        "NOT proven: the profile explains another number than was measured"
    )  # fmt: skip
    return (
        f"profile: {duration(profile.measured_ns)} measured, {duration(profile.predicted_ns)} "
        f"predicted from the profile ({change(profile.error, 0)}): {verdict}"
    )


def mode_name(key: Key) -> str:
    """ "device", "device, cold L2"."""
    return key.mode if key.l2 == "warm" else f"{key.mode}, cold L2"


VERDICTS = {
    "slower": "B is slower",
    "faster": "B is faster",
    "unclear": "cannot tell them apart",
}


def differences(measure: Measure) -> list[str]:
    """B against A, per batch and mode."""
    lines = []
    for key, d in measure.differences():
        batch = "" if key.batch is None else f"batch {key.batch}, "
        bounds = change_between(d.low, d.high, 2) or "no bounds: one process each"
        text = f"{VERDICTS[d.verdict]} ({change(d.ratio, 2)}, {bounds})"
        lines.append(f"{batch}{mode_name(key)}: {text}")
    return lines


def render_changes(
    both: Measure, changes: list[Change], console: Console, report: str = ""
) -> None:
    """Two measurements: a row per batch and mode."""
    _print(console, [f"A {both.targets[0]}", f"B {both.targets[1]}"])
    _print(console, [f"report: {report}"] if report else [])
    rows = [
        [
            "-" if c.batch is None else f"{c.batch:,}",
            c.mode if c.l2 == "warm" else f"{c.mode}, cold",
            duration(c.a_ns),
            duration(c.b_ns),
            change(c.ratio, 2),
            change_between(c.low, c.high, 2) or "no bounds",
            c.verdict,
        ]
        for c in changes
    ]
    names = ["batch", "mode", "A", "B", "change", "95 %", ""]
    _table(console, names, rows, left=(1, 5, 6))
    _print(console, [f"  ! {note}" for note in both.notes])
