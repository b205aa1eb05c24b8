"""On which of a thread's streams the pairs of a trace without a log lie."""

from __future__ import annotations

import pytest
from simulator import export, machine
from simulator.program import Api, Launch, Program, Record, Sync
from simulator.style import Style

from nsysalign.place.solve import align
from nsysalign.trace.read import read_trace

CREATE = Api(1_000, "cudaEventCreateWithFlags_v3020")
SIDE = 13


@pytest.mark.parametrize(("default_ns", "side_ns", "end", "decided"), [
    (900_000, 300_000, 7, True),      # the wait returned when the default stream was done
    (900_000, 300_000, SIDE, True),
    (300_000, 900_000, 7, True),
    (300_000, 298_000, 7, True),      # both are done within 5 us: whichever it is
    (300_000, 298_000, SIDE, True),
    (920_000, 900_000, 7, True),      # both are done within 5 % of the pair
    (920_000, 900_000, SIDE, True),
    (340_000, 300_000, 7, False),     # both shortly before the wait returned
    (0, 300_000, 7, False),           # the wait returned at once: it may be a third stream
])  # fmt: skip
def test_a_pair_of_a_thread_with_two_streams(default_ns, side_ns, end, decided, tmp_path):
    work = [CREATE, CREATE, Record("a"), Launch(default_ns or 1), Launch(side_ns, SIDE)]
    program = Program(
        {1: [*work, Record("b", end), Sync(event="b"), Sync()]}, streams={7: 3, SIDE: 2}
    )
    world = machine.run(program)
    trace = export.write(world, tmp_path, Style(event_rows="none"))[0]
    found = align(read_trace(trace), None)
    windows = found.windows[found.windows["kind"] == "event"]
    assert len(windows) == decided
    if not decided:
        assert any("on several streams" in note and "nsysalign run" in note for note in found.notes)
        return
    (window,) = windows.itertuples()
    a, b = (r.t for r in world.records)
    assert abs(window.start_ns - a) <= window.error_ns
    assert abs(window.end_ns - b) <= window.error_ns
