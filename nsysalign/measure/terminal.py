"""A measurement in the terminal: one row per batch, explanations, and notes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsysalign.report.palette import LOOKS
from nsysalign.text import (
    change,
    change_between,
    duration,
    gibibytes,
    milliseconds,
    percent,
    rate,
    reach,
    safe_text,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from nsysalign.measure.merge import Change
    from nsysalign.measure.profile import Profile
    from nsysalign.measure.result import Measure, Point
    from nsysalign.measure.statistics import Difference, Estimate

MODE_WORDS = {
    "latency": "one request on an idle GPU, by the host's clock",
    "event": "an event pair around it",
    "device": "GPU time only, behind a delay kernel",
    "steady": "per call, calls queued",
    "graph": "replayed as a CUDA graph",
    "transfer": "with inputs copied in and outputs back",
}


def render(measure: Measure, console: Console, report: str = "") -> None:
    """The whole answer."""
    e = measure.environment
    processes = sum(r.role == "time" and not r.failure for r in measure.runs)
    head = f"{e.get('device', 'no device')}, torch {e.get('torch', '?')}, {processes or len(measure.runs)} process{'' if (processes or len(measure.runs)) == 1 else 'es'}"
    head += ", cold L2" if measure.l2 == "cold" else ""
    console.print(
        safe_text(head) + (f", report: {safe_text(report)}" if report else ""),
        soft_wrap=True,
        markup=False,
    )
    for target, name in enumerate(measure.targets):
        points = [p for p in measure.points if p.target == target]
        if not points:
            continue
        console.print(f"\n  {safe_text(name)}", markup=False)
        console.print(_table(measure, points))
        budgets = _budgets(measure, target)
        if budgets is not None:
            console.print()
            console.print(budgets)
    for line in [*explanations(measure), *differences(measure)]:
        console.print(f"  {safe_text(line)}", soft_wrap=True, markup=False)
    for note in measure.notes:
        console.print(f"  ! {safe_text(note)}", soft_wrap=True, markup=False)


def _table(measure: Measure, points: list[Point]) -> Table:
    from rich.table import Table

    p = float(measure.options.get("at", 50.0))
    tail = f"p{p:g}" if p > 50 else "p99"
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for head in ("batch", "p50 ms", "±", f"{tail} ms", "per s", "±", "memory", "SM MHz"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("")
    for point in points:
        table.add_row(*(safe_text(c) for c in _row(point, tail)))
    return table


def _row(point: Point, tail: str) -> list[str]:
    e = point.latency
    rate_share = (point.rate_high - point.rate_low) / 2 / point.rate if point.rate > 0 else math.inf
    p, bounded = e.percentiles.get(float(tail[1:]), (math.nan, True)) if e else (math.nan, True)
    return [
        "-" if point.batch is None else str(point.batch), milliseconds(e.value if e else math.nan), reach(e.share if e else math.inf),
        ("" if bounded else "≥") + milliseconds(p), rate(point.rate), reach(rate_share),
        gibibytes(point.memory) if point.memory else "?", f"{point.sm_mhz:.0f}" if point.sm_mhz == point.sm_mhz else "?",
        "; ".join(point.marks),
    ]  # fmt: skip


def _budgets(measure: Measure, target: int) -> Table | None:
    """Shares of the profiled interval, and whether the profile predicts what was measured."""
    from rich.table import Table

    rows = [p for p in measure.profiles if p.target == target and not p.problem and p.parts_ns]
    if not rows:
        return None
    causes = [c for c in LOOKS if any(p.parts_ns.get(c, 0) > 0.005 * p.elapsed_ns for p in rows)]
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for head in ("batch", "nsys ms", *(LOOKS[c].short for c in causes), "GPU idle"):
        table.add_column(head, justify="right")
    for p in rows:
        cells = ["-" if p.batch is None else str(p.batch), milliseconds(p.elapsed_ns)]
        cells += [
            percent(p.parts_ns.get(c, 0) / p.elapsed_ns) if p.parts_ns.get(c) else "."
            for c in causes
        ]
        table.add_row(*cells, percent(p.idle_share()))
    return table


def explanations(measure: Measure) -> list[str]:
    """Why the modes differ, batch by batch, and whether the profile confirms it."""
    lines = []
    for point in measure.points:
        found = {
            m: e
            for (t, b, m, l2), e in measure.estimates.items()
            if (t, b, l2) == (point.target, point.batch, measure.l2)
        }
        profile = next(
            (p for p in measure.profiles if (p.target, p.batch) == (point.target, point.batch)),
            None,
        )
        if not set(found) - {"latency", "steady"} and profile is None:
            continue  # the table has them
        name = "call" if point.batch is None else f"batch {point.batch}"
        if len(measure.targets) > 1:
            name = f"{'AB'[point.target]}, {name}"
        lines.append(f"{name}: " + ", ".join(f"{m} {duration(e.value)}" for m, e in found.items()))
        floor = next(
            (
                r.facts["device"]["empty_kernel_ns"]
                for r in measure.runs
                if "device" in r.facts and (r.target, r.batch) == (point.target, point.batch)
            ),
            0,
        )
        if "device" in found and floor > 0.02 * found["device"].value:
            lines.append(
                f"  of device, {duration(floor)} are the records' own: an empty kernel reads as much"
            )
        lines += [f"  {text}" for text in reading(found)]
        if profile is not None and not profile.problem:
            lines.append("  " + proof(profile))
        lines += [f"  {text}" for text in cold(measure, point, profile)]
    return lines


def reading(found: dict) -> list[str]:
    """What the difference between modes means, in one line at most."""
    device, event, graph, steady = (found.get(m) for m in ("device", "event", "graph", "steady"))
    if device and steady and longer(steady, device, 1.1):
        remedy = (
            f": a graph takes {duration(graph.value)}"
            if graph and longer(steady, graph, 1.1)
            else ""
        )
        return [
            f"launch-bound: the GPU needs {duration(device.value)} of {duration(steady.value)} per call{remedy}"
        ]
    if (
        device
        and event
        and longer(event, device, 1.2)
        and steady
        and steady.value <= 1.2 * device.value
    ):
        return [
            "on an idle GPU the first launches come late; calls queued one behind the other hide that"
        ]
    return []


def longer(a: Estimate, b: Estimate, factor: float) -> bool:
    """Whether a is certainly so many times as long as b: by the intervals, or, where there are too few samples for them, because
    every sample of a is."""
    return a.low > factor * b.high or a.least > factor * b.most


def proof(profile: Profile) -> str:
    """The line that says whether the profile explains the measurement."""
    if not math.isfinite(profile.error):
        return f"profile: {duration(profile.elapsed_ns)} under nsys; no prediction of the time without it ({safe_text(profile.run)})"
    verdict = "proven"
    if not profile.proven and profile.other_host:
        verdict = (
            f"NOT proven: in the profiled process the host took {profile.host_ratio:.2f} times as long for a fixed loop of "
            "plain Python, which nsys does not touch: it was not the same host"
        )
    elif not profile.proven:
        verdict = "NOT proven: the profile explains another number than was measured"
    return f"profile: {duration(profile.measured_ns)} measured, {duration(profile.predicted_ns)} predicted from the profile ({change(profile.error, 0)}): {verdict}"


def cold(measure: Measure, point: Point, profile: Profile | None) -> list[str]:
    """The cost of cold caches, and whether the kernels show that they were cold."""
    pair = [
        measure.estimates.get((point.target, point.batch, "device", l2))
        or measure.estimates.get((point.target, point.batch, "event", l2))
        for l2 in ("warm", "cold")
    ]
    if not all(pair):
        return []
    text = f"cold L2: {duration(pair[1].value)} instead of {duration(pair[0].value)}"
    if profile and profile.kernel_ns and profile.kernel_cold_ns:
        grown = profile.kernel_cold_ns / profile.kernel_ns - 1
        text += f"; kernels under nsys take {change(grown)}" + (
            "" if grown > 0.005 else ": nothing shows that the L2 mattered"
        )
    return [text]


def compared(measure: Measure) -> Iterator[tuple[int | None, str, str, Difference]]:
    """(batch, mode, L2, B against A) of all that was measured of both; nothing of one target alone."""
    for batch in dict.fromkeys(p.batch for p in measure.points) if len(measure.targets) > 1 else ():
        for mode in measure.options["modes"]:
            for l2 in measure.options["l2"]:
                if (found := measure.difference(batch, mode, l2)) is not None:
                    yield batch, mode, l2, found


def mode_name(mode: str, l2: str) -> str:
    """ "device", "device, cold L2"."""
    return mode if l2 == "warm" else f"{mode}, cold L2"


def differences(measure: Measure) -> list[str]:
    """B against A, per batch and mode."""
    said = {"slower": "B is slower", "faster": "B is faster", "unclear": "cannot tell them apart"}
    lines = []
    for batch, mode, l2, d in compared(measure):
        name = "" if batch is None else f"batch {batch}, "
        bounds = change_between(d.low, d.high, 2) or "no bounds: one process each"
        lines.append(
            f"{name}{mode_name(mode, l2)}: {said[d.verdict]} ({change(d.ratio, 2)}, {bounds})"
        )
    return lines


def render_changes(both: Measure, found: list[Change], console: Console, report: str = "") -> None:
    """Two measurements: a row per batch and mode."""
    from rich.table import Table

    console.print(
        f"A {safe_text(both.targets[0])}\nB {safe_text(both.targets[1])}"
        + (f"\nreport: {safe_text(report)}" if report else ""),
        markup=False,
    )
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for head in ("batch", "mode", "A", "B", "change", "95 %", ""):
        table.add_column(
            head, justify="right" if head in ("batch", "A", "B", "change") else "left", no_wrap=True
        )
    for c in found:
        mode = c.mode if c.l2 == "warm" else f"{c.mode}, cold"
        table.add_row(
            "-" if c.batch is None else str(c.batch),
            mode,
            duration(c.a_ns),
            duration(c.b_ns),
            change(c.ratio, 2),
            change_between(c.low, c.high, 2) or "no bounds",
            c.verdict,
        )
    console.print(table)
    for note in both.notes:
        console.print(f"  ! {safe_text(note)}", soft_wrap=True, markup=False)
