"""Which launch is named as the one that ended an interval's idle time."""

from __future__ import annotations

from cases.drawing import MAIN, analysed, kernel
from simulator.world import LEGACY, HostInterval, World

from nsysalign.answer import answer


def test_a_host_timers_gpu_waits_for_the_first_of_its_launches(tmp_path):
    """
    H  |0     s8-11   s20-23   s40-43 y44---------98 |100
    G               #13-15   #25-27       #45-----95
    """
    world = World(streams={7: LEGACY})
    for launch, runs in (((8, 11), (13, 15)), ((20, 23), (25, 27)), ((40, 43), (45, 95))):
        kernel(world, launch, runs)
    world.sync(44, 98, MAIN)
    world.host_intervals.append(HostInterval("timer#0", 0, 100, MAIN))
    proof = answer(analysed(world, tmp_path)).proof
    assert proof.kind == "host" and proof.launch_ns == 8_000
