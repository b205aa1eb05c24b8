"""Idle time that a garbage collection of the log covers is called so.  Everything in microseconds."""

from __future__ import annotations

import json

from cases.drawing import MAIN, ZERO, in_nanoseconds, kernel
from simulator import check, export
from simulator.world import LEGACY, HostInterval, Range, World

NAME = "garbage collection"


def test_a_pause_is_named_where_the_host_is_outside_cuda(tmp_path):
    """
    H  r0-2  [step 3                          95]  r96-98
    gc                  20-----------50   60-72
    H                                  y55-65                     a call goes before the pause
    G    |6                            s75-80  #84-90    |100
    """
    world = World(streams={7: LEGACY})
    first = world.record(6, 0, 2)
    world.ranges.append(Range("step", 3, 95, MAIN))
    world.sync(55, 65)
    kernel(world, (75, 80), (84, 90))
    world.pair(first, world.record(100, 96, 98))
    world.host_intervals.append(HostInterval("timer#0", 10, 54, MAIN))
    trace, (log,) = export.write(in_nanoseconds(world), tmp_path)
    shift = export.Style().monotonic + ZERO
    pauses = [
        {"type": "gc", "t0_ns": a * 1_000 + shift, "t1_ns": b * 1_000 + shift, "generation": 2}
        for a, b in ((60, 72), (20, 50))
    ]
    with log.open("a") as lines:
        lines.writelines(json.dumps(line) + "\n" for line in pauses)
    analysis = check.analyze(trace, [log])
    check.invariants(analysis)
    named = {}
    for row in analysis.measured.itertuples():
        details = analysis.details[analysis.details["interval"] == row.interval]
        details = details[details["cause"] == "host"]
        named[row.kind] = dict(zip(details["detail"], details["ns"], strict=True))
    assert named["event"] == {NAME: 37_000, "step": 27_000}
    assert named["host"] == {NAME: 30_000}  # all of it lies in the step, as the step's name says
    drawn = analysis.segments[analysis.segments["detail"] == NAME]
    assert set(drawn["cause"]) == {"host"}
