"""Intervals as long as the run, with or without a log: split slice by slice, and equal to the whole to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulator import export, machine
from simulator.export import Style
from simulator.program import Elapsed, HostStart, HostStop, Launch, Program, Record, Sleep, Sync
from simulator.world import LEGACY, NON_BLOCKING

from nsysalign.slices import survey as plan
from nsysalign.trace.eventlog import read_event_logs
from nsysalign.trace.index import sampled

from .test_slices import sliced, steps
from .test_without_log import calls_of, ranged, written
from .test_without_log import sliced as without_log


def far_of(trace: Path, logs, block_rows: int, count: int):
    log, index = read_event_logs(logs) if logs else None, sampled(trace, block_rows)
    return plan.cuts(plan.survey(trace, log, index, 5_000).timed, index, count)[1]


def around_everything(inner: list) -> list:
    return [
        HostStart("all"),
        Record("first"),
        *inner,
        Record("last"),
        Sync(),
        HostStop("all"),
        Elapsed("first", "last", "everything"),
    ]


@pytest.mark.parametrize("rows", ["timestamps", "untimed", "none"])
def test_a_pair_and_a_host_timer_around_the_run(tmp_path, rows):
    world = machine.run(Program({500: around_everything(steps(400))}, {7: LEGACY, 13: NON_BLOCKING}))
    trace, logs = export.write([world], tmp_path, Style(event_rows=rows))
    far = far_of(trace, logs, 16, 5)
    assert len(far.pairs) == 1 and len(far.hosts) == 1
    sliced(trace, logs, block_rows=16, count=5)


def spanned(trace: Path, text: str = "everything") -> None:
    calls = calls_of(trace)
    ranged(trace, [(calls[0][0] - 10, calls[-1][1] + 10, text)])


@pytest.mark.parametrize("name", ["LEGACY", "two"])
def test_an_outer_range_without_a_log(tmp_path, name):
    inner: list = [Launch(9_000), Sync(), Sleep(100_000)] * 6
    for k in range(700):
        inner += [Launch(8_000 + 100 * (k % 7)), Sleep(2_000), Launch(9_000, cost=2_000)]
        inner += [Launch(5_000, stream=13)] if name == "two" and k % 3 == 0 else []
        inner += [Sync()] if k % 5 == 0 else []
    trace = written(inner, tmp_path)
    calls = calls_of(trace)
    ranged(trace, [(a, b, f"step {n % 5}") for n, (a, b) in enumerate(calls[::7])])
    spanned(trace)
    index = sampled(trace, 16)
    assert len(plan.cuts(plan.survey(trace, None, index, 5_000).timed, index, 5)[1].ranges) == 1
    found = without_log(trace, 16, 5)
    assert (found.portion.rows["region"].str.startswith("everything")).sum() == (2 if name == "two" else 1)
