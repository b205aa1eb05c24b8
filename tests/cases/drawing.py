"""Helpers for hand-drawn cases: numbers are microseconds, as in the pictures."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from simulator import check, export
from simulator.world import BLOCKING, LEGACY, NON_BLOCKING, World, milliseconds

from nsysalign.model import Analysis

ZERO = 1_000_000_000  # the pictures' 0 on the trace's clock
MAIN, OTHER = 500, 501  # threads
L = 2  # the ordinary launch latency of the drawn machine


@dataclass(frozen=True)
class Case:
    name: str
    draw: Callable[[World], None]
    expected: dict[str, int] = field(default_factory=dict)  # cause -> us
    details: dict[str, int] = field(default_factory=dict)  # word in the details -> us with it
    kind: str = "event"
    kernel_only: int | None = None
    kernel_outside: int | None = None
    with_graphs: int | None = None
    gpu_busy: int | None = None
    gpu_earlier: int | None = None

    def world(self) -> World:
        world = World(
            streams={7: LEGACY, 13: NON_BLOCKING, 14: BLOCKING},
            latency=dict.fromkeys(("kernel", "graph", "memcpy", "memset"), L * 1000),
        )
        self.draw(world)
        return in_nanoseconds(world)


def collector(kind: str = "event") -> tuple[list[Case], Callable]:
    """A list, and the decorator that puts drawings into it: `@case("kernel 25, event 3")` in us."""
    cases: list[Case] = []

    def case(budget: str, **more):
        parts = {cause: int(us) for cause, us in map(str.split, budget.split(", "))}

        def keep(draw):
            cases.append(Case(draw.__name__, draw, parts, kind=kind, **more))
            return draw

        return keep

    return cases, case


def analysed(world: World, folder: Path, *, logs: bool = True) -> Analysis:
    """The analysis of a drawing, sound in every way; `logs`: with its event log."""
    trace, events = export.write(in_nanoseconds(world), folder)
    analysis = check.analyze(trace, events if logs else [])
    check.invariants(analysis)
    return analysis


def side_by_side(
    worlds: dict[str, World], folder: Path, *, logs: bool = True, statement: str = ""
) -> tuple[Analysis, dict[str, pd.DataFrame]]:
    """One analysis of many drawings (in ns), which takes little longer than one of one: each is a
    process with a GPU of its own.  -> (analysis, the measured intervals of each drawing);
    `statement` (SQL) changes the trace before."""
    for number, world in enumerate(worlds.values()):
        world.pid, world.device = 1_000 + number, number
    trace, events = export.write(list(worlds.values()), folder)
    with closing(sqlite3.connect(trace)) as db, db:
        db.execute(statement)
    analysis = check.analyze(trace, events if logs else [])
    check.invariants(analysis)
    rows = analysis.measured
    return analysis, {name: rows[rows.pid == world.pid] for name, world in worlds.items()}


def in_nanoseconds(world: World) -> World:
    """Microseconds around 0 -> nanoseconds around ZERO."""

    def at(us: float) -> int:
        return ZERO + round(us * 1000)

    for thing in (
        *world.calls,
        *world.ops,
        *world.host_functions,
        *world.ranges,
        *world.overheads,
        *world.host_intervals,
    ):
        thing.start, thing.end = at(thing.start), at(thing.end)
    for call in world.calls:
        call.nested = tuple((name, at(a), at(b)) for name, a, b in call.nested)
    for record in world.records:
        record.t = at(record.t)
    for pair in world.pairs:
        pair.ms = milliseconds(pair.end.t - pair.start.t)
    world.end = max(c.end for c in world.calls) + 1_000_000
    return world


def events(
    w: World,
    start: float,
    end_call: tuple[float, float],
    end: float,
    *,
    stream: int = 7,
    end_stream: int = 7,
    end_thread: int = MAIN,
) -> None:
    """The pair: the start record's call is [0, 2), its time `start`; at last the program
    synchronises."""
    a = w.record(start, 0, 2, stream)
    w.pair(a, w.record(end, *end_call, end_stream, end_thread))
    last = max([end] + [o.end for o in w.ops] + [c.end for c in w.calls])
    w.sync(last + 100, last + 110)


def kernel(
    w: World,
    call: tuple[float, float],
    run: tuple[float, float],
    stream: int = 7,
    thread: int = MAIN,
):
    return w.kernel(*run, w.call("launch", *call, thread), stream)


def ordinary_launches(w: World) -> None:
    """Before the picture: work on an idle device, each L after its call, so that L can be
    calibrated."""
    for i in range(12):
        t = -5000 + 200 * i
        kernel(w, (t, t + 4), (t + 4 + L, t + 16))
        w.sync(t + 5, t + 18)
        call = w.call("memcpy", t + 50, t + 54)
        w.copy(t + 54 + L, t + 66, call, pageable=False)
        w.sync(t + 60, t + 70)
        call = w.call("graph_launch", t + 100, t + 104)
        w.op("graph", t + 104 + L, t + 116, call)
        w.sync(t + 110, t + 118)
        call = w.call("memset", t + 150, t + 154)
        w.op("memset", t + 154 + L, t + 156 + L, call)
        w.sync(t + 160, t + 168)
