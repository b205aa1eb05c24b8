"""Clock readings in a real process: what is logged."""

from __future__ import annotations

import pytest

from .test_transparent import interpreters

PYTHONS = sorted(interpreters().items(), key=lambda item: int(item[0][2:]))
#: The oldest and the newest: clocks are seen in one way up to 3.11 and in another from 3.12 on.
pytestmark = pytest.mark.parametrize(
    "probed", dict.fromkeys([PYTHONS[0][1], PYTHONS[-1][1]]), indirect=True
)

USE = "import time, torch\ntorch.cuda.init()\n"
#: Of a time of day in seconds, as a float.
ROUNDING_NS = 1_000


def read_at(run) -> list[str]:
    """Where the clock was read, in order."""
    known = {line["number"]: line.get("site", "") for line in run.lines("clock_site")}
    return [known[line["site"]] for line in run.lines("clock_reading")]


def test_a_script_without_events_logs_its_readings(probed):
    """Each is logged just before the program's own: after what the program read before that.

    However long the process waits for a processor in between; clock_gettime is none of the timers that are logged.
    """
    run = probed("""
import time, torch
from time import CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime_ns
def bracket(clock, read, unit_ns=1):
    before = clock_gettime_ns(clock)
    print(read.__name__, before, round(read() * unit_ns))
bracket(CLOCK_MONOTONIC, time.perf_counter, 1e9)
torch.cuda.init()
bracket(CLOCK_MONOTONIC, time.monotonic_ns)
bracket(CLOCK_REALTIME, time.time_ns)
bracket(CLOCK_REALTIME, time.time, 1e9)
bracket(CLOCK_MONOTONIC, time.perf_counter_ns)
bracket(CLOCK_MONOTONIC, time.monotonic, 1e9)
""")
    assert (run.status, run.err, run.errors) == (0, "", "")
    (lines,) = run.logs.values()
    assert [line["type"] for line in lines[:2]] == ["header", "clock"]
    assert lines[0]["device_name"] == "Fake GPU"
    readings = run.lines("clock_reading")
    brackets = [line.split() for line in run.out.splitlines()]
    assert [line["clock"] for line in readings] == [name for name, *_ in brackets]
    for line, (_, before, read) in zip(readings, brackets, strict=True):
        logged = line.get("value_ns", line["t_ns"])
        assert int(before) - ROUNDING_NS <= logged <= int(read) + ROUNDING_NS
    assert read_at(run) == ["script.py:6"] * 6
    times = [line["t_ns"] for line in readings]
    assert times == sorted(times), "the wall clocks, too, are placed on the monotonic clock"
    assert {line["tid"] for line in readings} == {lines[0]["pid"]}


def test_only_the_programs_own_readings_are_logged_each_with_its_thread(probed, tmp_path):
    package = tmp_path / "lib" / "site-packages" / "somelib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import time\ndef tick():\n    return time.perf_counter()\n"
    )
    text = f"""
import sys
sys.path.insert(0, {str(package.parent)!r})
import asyncio, logging, queue, threading, sched
import somelib
somelib.tick()
asyncio.run(asyncio.sleep(0.001))
logging.getLogger("x").warning("hello")
try:
    queue.Queue().get(timeout=0.001)
except queue.Empty:
    pass
threading.Event().wait(0.001)
def work():
    for _ in range(500):
        t0 = time.perf_counter()
        t1 = time.perf_counter()
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    run = probed(USE + text)
    readings = run.lines("clock_reading")
    assert (run.status, run.errors) == (0, "") and len(readings) == 4000
    assert set(read_at(run)) == {"script.py:18", "script.py:19"}
    for tid in {r["tid"] for r in readings}:
        times = [r["t_ns"] for r in readings if r["tid"] == tid]
        assert len(times) == 1000 and times == sorted(times)


def test_a_child_of_a_process_with_cuda_logs_nothing_and_a_clean_one_its_own(probed):
    child = "import os\npid = os.fork()\nif pid == 0:\n    torch.cuda.init()\n    a = time.time()\n    os._exit(0)\nos.waitpid(pid, 0)\n"
    late = "import time, torch\nt = time.time()\n" + child + "torch.cuda.init()\nt = time.time()\n"
    for text, counts in ((USE + "t = time.time()\n" + child, [1]), (late, [1, 2])):
        logs = probed(text).logs.values()
        found = [sum(x["type"] == "clock_reading" for x in lines) for lines in logs]
        assert sorted(found) == counts


def test_a_loop_that_polls_is_bounded_and_said_and_others_go_on(probed):
    text = """
def poll():
    for _ in range(60_000):
        time.perf_counter()
poll()
for _ in range(3):
    t = time.perf_counter()
    t = time.perf_counter() - t
"""
    run = probed(USE + text)
    polled = read_at(run).count("script.py:6")
    assert 30_000 < polled < 40_000
    assert read_at(run)[polled:] == ["script.py:9", "script.py:10"] * 3
    (note,) = run.lines("note")
    assert note["text"].startswith("script.py:6 read the clock more than about 32,6")


def test_regions_around_cuda_work_become_host_lines_unless_events_are_inside(probed):
    text = """
import nsysalign
with nsysalign.region("plain"):
    with nsysalign.region("inner"):
        t = time.perf_counter()
with nsysalign.region("events"):
    torch.cuda.Event().record()
"""
    run = probed(USE + text)
    hosts = {line["region"]: line for line in run.lines("host")}
    assert set(hosts) == {"plain#0", "inner#0"} and all(h["implicit"] for h in hosts.values())
    (reading,) = run.lines("clock_reading")
    assert reading["region"] == "inner#0"
    outer, inner = hosts["plain#0"], hosts["inner#0"]
    assert outer["t0_ns"] < inner["t0_ns"] < reading["t_ns"] < inner["t1_ns"] < outer["t1_ns"]


#: JAX as far as timers see it: no events, results that are waited for, and a context of the driver's
#: from the first call on.  The driver's functions are all that the probe asks for.
FAKE_JAX = """
import ctypes

_active = []

class Driver:
    def __init__(self, *path):
        for name in ("cuCtxGetDevice", "cuDriverGetVersion", "cuStreamCreate", "cuEventQuery"):
            setattr(self, name, lambda *_: 3)

    class cuDeviceGetCount:
        def __new__(cls, count):
            count.value = 2
            return 0 if _active else 3  # CUDA_ERROR_NOT_INITIALIZED

    class cuDevicePrimaryCtxGetState:
        def __new__(cls, device, flags, active):
            active.value = device in _active
            return 0

real = ctypes.CDLL
ctypes.CDLL = lambda name, *rest: Driver() if name == "libcuda.so.1" else real(name, *rest)

class Array:
    def block_until_ready(self):
        return self

def jit(function):
    def call(*arguments):
        if not DEVICES:
            return Array()
        _active[:] = DEVICES
        return Array()
    return call
"""
TIMED_JAX = """
import time
import jax

step = jax.jit(lambda: 0)
for _ in range(4):
    t0 = time.perf_counter()
    step().block_until_ready()
    seconds = time.perf_counter() - t0
"""


def test_timers_around_jax_are_logged_from_before_its_first_call(probed, tmp_path):
    """The driver has a context of device 1 from within the first timing on."""
    (tmp_path / "jax.py").write_text(f"DEVICES = [1]\n{FAKE_JAX}")
    run = probed(TIMED_JAX, fake=False)
    assert (run.status, run.err, run.errors) == (0, "", "")
    assert read_at(run) == ["script.py:7", "script.py:9"] * 4
    (header,) = run.lines("header")
    assert header["torch"] == "" and header["libraries"] == "jax" and header["python"]


def test_timers_around_jax_without_a_gpu_are_not(probed, tmp_path):
    (tmp_path / "jax.py").write_text(f"DEVICES = []\n{FAKE_JAX}")
    run = probed(TIMED_JAX, fake=False)
    assert (run.status, run.err, run.errors, run.logs) == (0, "", "", {})
