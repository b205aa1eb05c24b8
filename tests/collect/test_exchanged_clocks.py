"""Libraries that exchange the clocks, and tools that look at all code that runs."""

from __future__ import annotations

import pytest


def test_time_machine(probed):
    pytest.importorskip("time_machine")
    run = probed("""
import datetime, time, torch
torch.cuda.init()
time.time()
import time_machine
with time_machine.travel(0, tick=False):
    print(time.time(), datetime.datetime.now().year)
    with time_machine.travel(86400.0, tick=False):
        print(time.time(), time.time_ns())
    print(time.time(), time_machine.escape_hatch.time.time() > 1e9)
print(time.time() > 1e9)
""")
    printed = ["0.0", "1970", "86400.0", "86400000000000", "0.0", "True", "True"]
    assert run.out.split() == printed, run.err
    assert len(run.lines("clock_reading")) == 1, "what is faked is not the host's clock"
    (note,) = run.lines("note")
    assert note["text"].endswith("are not logged: time_machine exchanges the clocks")


PROGRAM = """
import time, torch
def work():
    e = torch.cuda.Event()
    e.record()
    return time.perf_counter() + e.elapsed_time(e)
for _ in range(3):
    work()
"""


def test_tools_that_look_at_all_code_do_not_list_the_probe(probed, tmp_path):
    pytest.importorskip("coverage")
    for options in ("coverage run", "trace --count --summary -C cover", "trace --trace"):
        run = probed(PROGRAM, options=("-m", *options.split()))
        assert run.status == 0, run.err
    assert "script.py(2)" in run.out
    listed = run.out.replace("__editable___nsysalign_", "")  # pip's finder, not a file of ours
    callees = ("encoder", "_parser")
    assert not any(name in listed for name in ("nsysalign", *callees))
    listed = "".join(p.name for p in tmp_path.glob("cover/*"))
    listed += probed(PROGRAM, options=("-m", "coverage", "report")).out
    ours = ("wrap", "timers", "runtime", "clocksites", "sitecustomize")
    assert "script" in listed and not any(name in listed for name in ours)
