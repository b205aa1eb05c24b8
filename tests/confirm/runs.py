"""Simulated runs of one program, plain and with an intervention, as run directories and as
analyses."""

from __future__ import annotations

import json
from pathlib import Path

from simulator import export, machine
from simulator.program import Copy, Elapsed, Launch, Program, Record, Sleep, Sync, Timing, Wait
from simulator.style import Style
from simulator.world import LEGACY, NON_BLOCKING

import nsysalign
from nsysalign.trace.eventlog import read_event_logs

STREAMS = {7: LEGACY, 13: NON_BLOCKING}
COUNT = 8


def host_gap(k: int) -> list:
    """The host does something else for 150 us between the start record and its launch."""
    return [Record("a"), Sleep(150_000 + 900 * (k * 7 % 5)), Launch(25_000), Record("b")]


def many_launches(k: int) -> list:
    return [Record("a"), *[Launch(1_000, cost=5_000 + 20 * k)] * 30, Record("b")]


def busy_gpu(k: int) -> list:
    return [Launch(300_000), Record("a"), Launch(100_000 + 100 * k), Record("b")]


def behind_earlier_work(k: int) -> list:
    """Another stream's millisecond was launched before the start record and is waited for after
    it."""
    other = [Launch(1_000_000, 13), Record("r", 13)]
    return [*other, Record("a"), Wait("r", 7), Launch(20_000), Record("b")]


def behind_own_work(k: int) -> list:
    """The same, but it is launched after the start record: part of what is measured."""
    other = [Launch(1_000_000, 13), Record("r", 13)]
    return [Record("a"), *other, Wait("r", 7), Launch(20_000), Record("b")]


def synchronises(k: int) -> list:
    return [Record("a"), Launch(25_000), Sync(), Sleep(50_000), Launch(25_000), Record("b")]


def item(k: int) -> list:
    """A copy back to pageable memory, long behind the kernel: no synchronisation part, but the host
    is held up."""
    copy = Copy(2_000, pageable=True, direction=2)
    return [Record("a"), Sleep(80_000), Launch(25_000), copy, Record("b")]


def too_many(k: int) -> list:
    return [Record("a"), *[Launch(1_000)] * 1_005, Record("b")]


BEFORE = {"delay": lambda: [Launch(1_000_000)], "synchronize": lambda: [Sync()], "": list}


def run(
    folder: Path,
    body,
    intervention: str = "",
    *,
    label: str = "t1",
    count: int = COUNT,
    before: list | None = None,
    flagged: bool = True,
    site: bool = True,
) -> Path:
    """A run directory with trace and log of `count` intervals of `label`: the body behind the
    intervention."""
    steps = []
    for k in range(count):
        step = body(k)
        at = next(n for n, s in enumerate(step) if isinstance(s, Record) and s.event == "a")
        steps += [
            *step[:at],
            *(before if before is not None else BEFORE[intervention]()),
            *step[at:],
        ]
        steps += [Sync(), Elapsed("a", "b", f"{label}#{k}"), Sleep(200_000)]
    # launches whose latency the calibration learns from: an idle stream, a busy one, records behind
    # each other
    warm = [Launch(40_000), Record("x"), Launch(2_000), Record("y"), Record("z"), Sync()]
    world = machine.run(Program({500: warm * 6 + steps}, streams=STREAMS, timing=Timing()))
    folder.mkdir(parents=True, exist_ok=True)
    _, (log,) = export.write(world, folder, Style(event_rows="none"))
    starts = {pair.start.seq for pair in world.pairs if pair.name.startswith(label + "#")}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line["type"] == "record" and line["seq"] in starts and intervention and flagged:
            line["intervened"] = True
        if line["type"] == "record" and not site:
            del line["site"]
    if intervention:
        lines.append({"type": "note", "text": "changed by nsysalign confirm: something"})
    (folder / f"events-{world.pid}.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    log.unlink()
    return folder


def analysed(folder: Path):
    """(analysis, event log) of a run directory."""
    logs = sorted(folder.glob("events-*.jsonl"))
    return nsysalign.analyze(folder / "trace.sqlite", events=logs), read_event_logs(logs)
