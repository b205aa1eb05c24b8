"""Pauses of Python's garbage collector in the log of a real process."""

from __future__ import annotations

PAIR = """
import torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
a.record()
b.record()
a.elapsed_time(b)
"""
#: Half a million lists: one collection of all takes tens of milliseconds.
HEAP = "import gc, time; gc.disable(); heap = [[n] for n in range(500_000)]"


def test_a_long_collection_is_logged_and_a_short_one_is_not(probed):
    run = probed(
        f"{PAIR}\n{HEAP}\nbefore = time.perf_counter_ns()\ngc.collect()\nafter = time.perf_counter_ns()\n"
        "gc.freeze()\ngc.collect(0)\nprint(before, after)"
    )
    assert (run.status, run.errors, run.err) == (0, "", "")
    before, after = map(int, run.out.split())
    (line,) = [line for line in run.lines("gc") if line["t1_ns"] - line["t0_ns"] > 3_000_000]
    assert before <= line["t0_ns"] < line["t1_ns"] <= after
    assert line["generation"] == 2 and line["collected"] >= 0
    assert all(line["t1_ns"] - line["t0_ns"] >= 100_000 for line in run.lines("gc"))


def test_nothing_is_left_behind(probed):
    """What the program registered first runs last."""
    left = "import atexit, gc\natexit.register(lambda: print(gc.callbacks))"
    run = probed(f"{left}\n{PAIR}\ngc.collect()")
    assert (run.status, run.out.strip(), run.err) == (0, "[]", "")


def test_a_program_that_clears_the_callbacks_loses_them_and_nothing_else(probed):
    run = probed(f"{PAIR}\n{HEAP}\ngc.callbacks.clear()\ngc.collect()")
    assert (run.status, run.errors, run.err, run.lines("gc")) == (0, "", "", [])


def test_a_signal_that_waits_for_a_collection_reaches_the_program(probed):
    """Its handler runs when the collection is over, in no callback: gc drops what callbacks raise."""
    run = probed(
        f"{PAIR}\n{HEAP}\nimport signal\n"
        "def alarm(*_): raise TimeoutError\n"
        "signal.signal(signal.SIGALRM, alarm)\n"
        "try:\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.001)\n"
        "    gc.collect()\n"
        "    time.sleep(5)\n"
        "except TimeoutError:\n"
        "    print('reached')"
    )
    assert (run.status, run.out.strip(), run.err) == (0, "reached", "")


def test_a_forked_child_logs_its_own(probed):
    run = probed(
        f"{PAIR}\n{HEAP}\nimport os\n"
        "if (child := os.fork()) == 0:\n"
        "    a.record(); b.record(); a.elapsed_time(b)\n"
        "    gc.collect()\n"
        "    raise SystemExit\n"
        "os.waitpid(child, 0)"
    )
    assert (run.status, run.errors) == (0, "")
    assert len(run.logs) == 2
    long = {
        pid: [x for x in lines if x.get("type") == "gc" and x["t1_ns"] - x["t0_ns"] > 3_000_000]
        for pid, lines in run.logs.items()
    }
    assert sorted(map(len, long.values())) == [0, 1]
