"""Idle time in which the launching thread hardly ran is called so.  Everything in microseconds."""

from __future__ import annotations

import json

import pytest
from cases.drawing import MAIN, ZERO, in_nanoseconds, kernel
from simulator import check, export
from simulator.world import LEGACY, Range, World

from nsysalign.model import NO_THREAD, OTHER_THREAD


@pytest.mark.parametrize(
    ("ran", "all_ran", "name"),
    [
        (5, 95, OTHER_THREAD),
        (5, 10, NO_THREAD),
        (5, 45, ""),  # others ran half of the time
        (40, 95, ""),  # it ran itself
    ],
)
def test_stretches_are_named_where_the_host_is_outside_cuda(tmp_path, ran, all_ran, name):
    """
    H  r0-2                              r96-98
    off   |3                          95|
    H                [step 40-50]y55-65              calls and ranges go before
    G    |6                            s75-80  #84-90    |100
    """
    world = World(streams={7: LEGACY})
    first = world.record(6, 0, 2)
    world.ranges.append(Range("step", 40, 50, MAIN))
    world.sync(55, 65)
    kernel(world, (75, 80), (84, 90))
    world.pair(first, world.record(100, 96, 98))
    trace, (log,) = export.write(in_nanoseconds(world), tmp_path)
    shift = export.Style().monotonic + ZERO
    (tid,) = {json.loads(x)["tid"] for x in log.read_text().splitlines() if '"record"' in x}
    line = {"type": "off_cpu", "tid": tid, "t0_ns": 3_000 + shift, "t1_ns": 95_000 + shift}
    line |= {"thread_ns": ran * 1_000, "process_ns": all_ran * 1_000}
    with log.open("a") as lines:
        lines.write(json.dumps(line) + "\n")
    analysis = check.analyze(trace, [log])
    check.invariants(analysis)
    (row,) = analysis.measured.itertuples()
    details = analysis.details[analysis.details["interval"] == row.interval]
    details = details[details["cause"] == "host"]
    named = dict(zip(details["detail"], details["ns"], strict=True))
    assert named == {"step": 10_000} | ({name: 54_000} if name else {})
