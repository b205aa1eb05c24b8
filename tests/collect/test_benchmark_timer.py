"""torch.utils.benchmark.Timer in a real process: what it reports is timed, and nothing else of it."""

from __future__ import annotations

import importlib.util

import pytest

from nsysalign.place.host_timers import timed
from nsysalign.trace.eventlog import read_event_logs

from .test_timers import PYTHONS

IMPORT = "import time, torch\nimport torch.utils.benchmark as benchmark\n"
SCRIPT = """
torch.cuda.init()
def measure(seconds):
    return benchmark.Timer("f(s)", globals={"f": time.sleep, "s": seconds}).blocked_autorange()
times = measure(0.0001) + measure(0.0002)
timer = benchmark.Timer("f(s)", "before = 1", globals={"f": time.sleep, "s": 0.0001})
times += timer.timeit(300)
print(*times)
"""
#: A reading of ours lies just before the program's own; the first one of a place later than others.
CLOSE_S = 0.0005


def timers(folder):
    """(lines of the script, callers, seconds) of everything that the log timed, in the order of time."""
    table = timed(read_event_logs([*folder.glob("run0/events-*.jsonl")])).sort_values("order")
    return [(row.site, row.callers, row.elapsed_ns / 1e9) for row in table.itertuples(index=False)]


@pytest.mark.parametrize(
    "probed", dict.fromkeys([PYTHONS[0][1], PYTHONS[-1][1]]), indirect=True
)  # fmt: skip
def test_each_block_that_is_reported_is_a_timing_of_the_line_that_asked(probed, tmp_path):
    """The empty loops, those that grow, and the warm-up are none."""
    run = probed(IMPORT + SCRIPT)
    assert (run.status, run.errors, run.err) == (0, "", "")
    measured = timers(tmp_path)
    helper = "script.py:6"
    first, second = ("script.py:7",), ("script.py:7",)
    assert [(site, callers) for site, callers, _ in measured] == [
        *[(helper, first)] * 3, *[(helper, second)] * 3, ("script.py:9", ()),
    ]  # fmt: skip
    for (_, _, seconds), printed in zip(measured, map(float, run.out.split()), strict=True):
        assert abs(seconds - printed) < CLOSE_S + 0.05 * printed


def test_a_reading_of_its_clock_elsewhere_is_none(probed, tmp_path):
    run = probed(
        IMPORT
        + "from torch.utils.benchmark.utils.timer import timer\ntorch.cuda.init()\ntimer()\n"
        + "t = time.perf_counter()\nbenchmark.Timer('pass').timeit(100)\nt = time.perf_counter() - t"
    )
    assert (run.status, run.errors) == (0, "")
    assert [site for site, _, _ in timers(tmp_path)] == ["script.py:6", "script.py:7"]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_timer_of_torch_itself(probed, tmp_path):
    """The GPU is said to be in use; the timed code needs none."""
    run = probed(
        IMPORT
        + "torch.cuda._initialized, torch.cuda.current_device = True, lambda: 0\n"
        + "timer = benchmark.Timer('x + 1', globals={'x': torch.ones(10)})\n"
        + "print(timer.timeit(3_000).raw_times)\n"
        + "print([t * 1 for t in timer.blocked_autorange(min_run_time=0.01).raw_times])\n"
        + "print(timer.adaptive_autorange(min_run_time=0.01).raw_times)\n",
        fake=False,
    )
    assert (run.status, run.errors) == (0, "")
    printed = [
        (f"script.py:{line}", float(text))
        for line, times in enumerate(run.out.splitlines(), 5)
        for text in times.strip("[]").split(",")
    ]
    measured = timers(tmp_path)
    assert [site for site, _, _ in measured] == [site for site, _ in printed]
    for (_, _, seconds), (_, time_s) in zip(measured, printed, strict=True):
        assert abs(seconds - time_s) < CLOSE_S
