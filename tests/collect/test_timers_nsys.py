"""Host timers under a real nsys, without a GPU: the readings arrive, and the script does not
notice."""

from __future__ import annotations

import pytest

from .user import read_log

SCRIPT = """
import sys, time, torch
t0 = time.perf_counter()
torch.cuda.init()
t1 = time.perf_counter()
print(type(t0), t1 > t0)
sys.exit(5)
"""


@pytest.mark.nsys
def test_readings_arrive_and_output_and_status_are_the_same_with_and_without(real):
    started = [
        real.run(SCRIPT, "-q", *options, script=name, begin="")
        for name, options in {"with.py": (), "without.py": ("--no-host-timers",)}.items()
    ]
    said = "<class 'float'> True\n"
    assert [real.the_end(process)[:2] for process in started] == [(5, said)] * 2
    with_, without = real.run_dirs()
    assert not list(without.glob("events-*")), "nothing else to log: no event was recorded"
    (log,) = map(read_log, with_.glob("events-*.jsonl"))
    readings = [line for line in log if line["type"] == "clock_reading"]
    known = {line["number"]: line["site"] for line in log if line["type"] == "clock_site"}
    assert [known[r["site"]] for r in readings] == ["with.py:3", "with.py:5"]
    assert log[0]["nvtx"] == "injection"
    # the burst of marks that ties the clock to the trace's, at the end: nothing else was logged
    assert len([line for line in log if line["type"] == "sync"]) == 50
