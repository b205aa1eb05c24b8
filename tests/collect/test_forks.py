"""Forks in the log of a real process."""

from __future__ import annotations

import pytest

from .test_timers import PYTHONS

pytestmark = pytest.mark.parametrize(
    "probed", dict.fromkeys([PYTHONS[0][1], PYTHONS[-1][1]]), indirect=True
)

PAIR = """
import os, threading, time, torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
a.record()
b.record()
a.elapsed_time(b)
def fork():
    before = time.perf_counter_ns()
    if (child := os.fork()) == 0:
        os._exit(0)
    print(threading.get_native_id(), before, time.perf_counter_ns(), flush=True)
    os.waitpid(child, 0)
"""


def test_each_fork_is_logged_with_its_thread(probed):
    in_thread = "thread = threading.Thread(target=fork); thread.start(); thread.join()"
    run = probed(f"{PAIR}\nfork()\n{in_thread}")
    assert (run.status, run.errors) == (0, "")  # Python 3.12 warns of forks beside threads
    printed = [[int(word) for word in line.split()] for line in run.out.splitlines()]
    logged = [[line["tid"], line["t0_ns"], line["t1_ns"]] for line in run.lines("fork")]
    assert len(logged) == 2 and len({tid for tid, _, _ in logged}) == 2
    for (tid, before, after), (thread, start, end) in zip(printed, logged, strict=True):
        assert tid == thread and before <= start < end <= after


def test_a_program_started_by_subprocess_is_no_fork(probed):
    run = probed(f"{PAIR}\nimport subprocess\nsubprocess.run(['true'])")
    assert (run.status, run.errors, run.lines("fork")) == (0, "", [])


def test_a_child_logs_its_own(probed):
    child = "if (child := os.fork()) == 0:\n    a.record(); b.record(); a.elapsed_time(b)\n    fork()\n    raise SystemExit\nos.waitpid(child, 0)"
    run = probed(f"{PAIR}\n{child}")
    assert (run.status, run.errors) == (0, "")
    forks = {pid: [x for x in lines if x.get("type") == "fork"] for pid, lines in run.logs.items()}
    assert sorted(map(len, forks.values())) == [1, 1]


def test_after_it_left_nothing_is_seen_though_python_still_calls_it(probed):
    program = """
import os
from _nsysalign_probe.forks import Forks
seen = []
forks = Forks(seen.append)
def fork():
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    forks.write()
fork()
forks.leave()
fork(), fork()
print(len(seen), len(forks._starts), len(forks._ends))
"""
    run = probed(program)
    assert (run.status, run.out, run.errors) == (0, "1 0 0\n", "")
