"""Which stream a record is on, where only the log says it: cuStreamGetId may answer CUPTI's id plus
one."""

from __future__ import annotations

import pytest
from simulator import machine
from simulator.export import Style
from simulator.program import Elapsed, Launch, Program, Record, Sync
from simulator.world import LEGACY, NON_BLOCKING

from .test_properties import analysed, rows_of

STREAMS = {7: LEGACY, 13: NON_BLOCKING, 14: NON_BLOCKING, 15: NON_BLOCKING}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("working", [13, 14])
def test_neighbouring_streams_are_not_mixed_up(shift, working, first):
    """Events on 13, work on `working`: a wrong guess would show kernels where there are none, or
    none at all.

    Where the trace cannot tell, the interval must be unaligned.
    """
    work = Launch(40_000, working)
    steps = [work, Record("a", 13)] if first else [Record("a", 13), work]
    steps += [Record("b", 13), Sync(), Elapsed("a", "b", "x#0")]
    world = machine.run(Program({500: steps}, streams=STREAMS))
    analysis = analysed(world, Style(event_rows="none", stream_id_shift=shift))
    for row in rows_of(analysis).values():
        assert row.end_stream == 13
