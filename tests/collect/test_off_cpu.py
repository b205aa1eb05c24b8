"""Stretches in which a thread hardly ran, in the log of a real process."""

from __future__ import annotations

import pytest

BEGIN = """
import threading, time, torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
def work(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until: pass
def both(what):
    a.record()
    what()
    b.record()
    a.elapsed_time(b)
"""
BESIDE = "helper = threading.Thread(target=work, args=(0.06,)); helper.start(); helper.join()"


@pytest.mark.parametrize(("what", "others"), [("time.sleep(0.06)", False), (BESIDE, True)])
def test_a_thread_that_waits_is_logged_with_what_its_process_used(probed, what, others):
    run = probed(
        f"{BEGIN}\ndef timed():\n    {what}\nboth(timed)\nprint(threading.get_native_id())"
    )
    assert (run.status, run.errors, run.err) == (0, "", "")
    lines = [line for line in run.lines("off_cpu") if line["t1_ns"] - line["t0_ns"] > 40_000_000]
    assert len(lines) == 1
    for line in lines:
        start, end = (run.lines("record")[k] for k in (0, 1))
        assert line["t0_ns"] < start["t0_ns"] < line["t1_ns"] < end["t0_ns"]
        assert line["tid"] == int(run.out) and 2 * line["thread_ns"] < 60_000_000
        assert (line["process_ns"] - line["thread_ns"] > 50_000_000) == others


def test_a_thread_that_computes_is_not_logged(probed):
    """But where a busy machine gives it no core."""
    timed = "wall = time.monotonic()\nboth(lambda: work(0.06))\nprint(time.monotonic() - wall)"
    for _ in range(10):
        run = probed(f"{BEGIN}\n{timed}")
        assert (run.status, run.errors, run.err) == (0, "", "")
        if float(run.out) < 0.09:  # it had a core
            assert not run.lines("off_cpu")
            return
    pytest.skip("this machine is too busy")


def test_clock_readings_are_enough(probed):
    text = "a.record()\nt0 = time.perf_counter()\ntime.sleep(0.03)\nt1 = time.perf_counter()\nprint(t1 - t0)"
    run = probed(f"{BEGIN}\n{text}")
    assert (run.status, run.errors, run.err) == (0, "", "")
    assert any(line["t1_ns"] - line["t0_ns"] > 25_000_000 for line in run.lines("off_cpu"))


def test_a_forked_child_begins_anew(probed):
    child = "import os\nif os.fork() == 0:\n    both(lambda: time.sleep(0.03))\n    raise SystemExit\nos.wait()"
    run = probed(f"{BEGIN}\nwork(0.05)\nboth(int)\n{child}")
    assert (run.status, run.errors, len(run.logs)) == (0, "", 2)
    assert all(line["thread_ns"] >= 0 for line in run.lines("off_cpu"))
    # what its parent did is not in its log: a main thread has the number of its process
    tids = {
        pid: {line["tid"] for line in lines if line["type"] == "off_cpu"}
        for pid, lines in run.logs.items()
    }
    assert any(tids.values()) and all(logged <= {pid} for pid, logged in tids.items())
