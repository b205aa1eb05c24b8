"""The probe in a real process: what it writes, and that the user's program does not notice."""

from __future__ import annotations

import os

import pytest

from .conftest import FAKE_TORCH, ROOT

PAIR = """
import torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
a.record()
b.record()
print(a.elapsed_time(b))
"""


@pytest.mark.parametrize(
    ("what", "replaced"),
    [
        ("class Mine(torch.cuda.Event):\n    def record(self): pass", None),
        ("torch.cuda.Event.elapsed_time = lambda a, b: 1.0", "torch.cuda.Event.elapsed_time"),
        ("torch.cuda.synchronize = print", "torch.cuda.synchronize"),
        ("import time; time.perf_counter = time.time", "time.perf_counter"),
    ],
    ids=["nothing", "elapsed_time", "synchronize", "clock"],
)
def test_what_the_program_puts_in_the_place_of_a_timer_is_noted(probed, what, replaced):
    run = probed(f"{PAIR}\n{what}")
    assert (run.status, run.errors) == (0, "")
    said = [note["text"] for note in run.lines("note")]
    assert said == ([f"the program replaced {replaced}"] if replaced else [])


def test_a_pair_is_logged_with_call_sites_and_times(probed):
    """After one calibration, which is not the program's."""
    run = probed(PAIR, calibrate=True)
    assert (run.status, run.err, run.errors) == (0, "", "")
    ((header, *_),) = run.logs.values()
    names = "type format version pid device_name torch libraries python clock nvtx"
    assert set(header) == {*names.split()} and header["device_name"] == "Fake GPU"
    assert (header["format"], header["version"]) == ("nsysalign-events", 2)
    assert (header["torch"], header["nvtx"]) == ("0.0+fake", "none")
    start, end = run.lines("record")
    (elapsed,) = run.lines("elapsed")
    lines = (start, end, elapsed)
    assert [line["site"] for line in lines] == ["script.py:4", "script.py:5", "script.py:6"]
    times = [line[key] for line in lines for key in ("t0_ns", "t1_ns")]
    assert times == sorted(set(times))
    pair = elapsed["start"], elapsed["end"], elapsed["ms"]
    assert pair == (start["seq"], end["seq"], float(run.out))
    assert start["tid"] == header["pid"] and start["device"] == 0 and start["stream_handle"] == 0
    assert not {"library", "captured", "callers", "region"} & set(start)
    known, pairs = run.lines("record", calibration=True), run.lines("calibration")
    assert len(known) == 10 * (4 + 2 + 2) and len(pairs) == 10 * (3 + 1 + 1)
    assert set(pairs[0]) >= {"start", "end", "ms"}
    assert max(r["t1_ns"] for r in known) < start["t0_ns"]
    (note,) = run.lines("note")
    assert note["calibration_ns"] == note["t1_ns"] - note["t0_ns"] > 0


def test_event_ids_that_come_back_are_not_confused(probed):
    run = probed("""
import torch
a = torch.cuda.Event()
a.record()
del a
b, c = torch.cuda.Event(), torch.cuda.Event()
c.record()
try:
    b.elapsed_time(c)
except ValueError as error:
    print(str(error).splitlines()[1])
""")
    (elapsed,) = run.lines("elapsed")
    assert run.out == "More advice.\n"
    assert elapsed["ms"] is None and elapsed["start"] is None and elapsed["end"] == 1
    assert elapsed["error"] == "Both events must be recorded before calculating elapsed time."


def test_call_sites_are_the_programs_own(probed, tmp_path):
    """Methods of streams log once, a timer class is told apart by its callers, a library is marked."""
    package = tmp_path / "lib" / "site-packages" / "somelib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import torch\ndef bench():\n    e = torch.cuda.Event()\n    e.record()\n    return e\n"
    )
    run = probed(f"""
import sys, torch
side = torch.cuda.Stream(handle=7)
e = side.record_event()
torch.cuda.current_stream().wait_event(e)
side.wait_stream(torch.cuda.current_stream())
class Timer:
    def __enter__(self):
        self.a = torch.cuda.Event()
        self.a.record()
    def __exit__(self, *exc):
        pass
def first():
    with Timer():
        pass
def second():
    with Timer():
        pass
first()
second()
sys.path.insert(0, {str(package.parent)!r})
import somelib
somelib.bench()
""")
    records, waits = run.lines("record"), run.lines("wait")
    sites = [(r["stream_handle"], r["site"], r.get("callers", [])) for r in records]
    assert sites == [
        (7, "script.py:4", []), (0, "script.py:6", []), (0, "script.py:10", ["script.py:14", "script.py:19"]),
        (0, "script.py:10", ["script.py:17", "script.py:20"]), (0, "script.py:23", []),
    ]  # fmt: skip
    assert [r.get("library", False) for r in records] == [False] * 4 + [True]
    places = [(w["stream_handle"], w["site"]) for w in waits]
    assert places == [(0, "script.py:5"), (7, "script.py:6")]
    assert [w["record"] for w in waits] == [r["seq"] for r in records[:2]]


def test_regions_count_nest_and_belong_to_their_thread(probed):
    run = probed("""
import threading, torch
import nsysalign
r = nsysalign.region("outer")
def rec():
    torch.cuda.Event().record()
@nsysalign.region("deco")
def decorated():
    rec()
for _ in range(2):
    with r:
        rec()
        with r:
            rec()
        with nsysalign.region("inner"):
            t = threading.Thread(target=rec); t.start(); t.join()
        decorated()
rec()
""")
    assert [r.get("region") for r in run.lines("record")] == [
        "outer#0", "outer#1", None, "deco#0", "outer#2", "outer#3", None, "deco#1", None
    ]  # fmt: skip


def test_threads_get_their_own_numbers(probed):
    run = probed("""
import threading, torch
def work():
    for _ in range(3000):
        a, b = torch.cuda.Event(), torch.cuda.Event()
        a.record(); b.record(); a.elapsed_time(b)
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
""")
    thread_of = {r["seq"]: r["tid"] for r in run.lines("record")}
    elapsed = run.lines("elapsed")
    assert len(thread_of) == 24_000 and len(elapsed) == 12_000, "several chunks of slots, none lost"
    assert len(set(thread_of.values())) == 4
    assert all(thread_of[e["start"]] == thread_of[e["end"]] for e in elapsed)


def test_fork_writes_a_log_of_its_own(probed):
    fork = """
import os, sys
pid = os.fork()
if pid == 0:
    a.elapsed_time(b)
    a.record(); b.record(); a.elapsed_time(b)
    os._exit(0)
os.waitpid(pid, 0)
b.record()
a.elapsed_time(b)
"""
    run = probed(PAIR + fork)
    kinds = ("record", "elapsed")
    parent = [x for x in run.logs.pop(run.pid) if x["type"] in kinds]
    assert [x["type"] for x in parent].count("record") == 3
    (child,) = run.logs.values()
    first, *records, second = [x for x in child if x["type"] in kinds]
    assert (first["start"], first["end"]) == (None, None), "records of the parent"
    assert [x["seq"] for x in records] == [second["start"], second["end"]]


def test_a_sitecustomize_of_the_users_runs_too(probed, tmp_path):
    folder = tmp_path / "custom"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("print('mine')\nimport no_such_module_here\n")
    path = os.pathsep.join([str(folder), str(FAKE_TORCH), str(ROOT)])
    run = probed(PAIR, env={"PYTHONPATH": path})
    assert run.status == 0 and run.out.startswith("mine\n") and len(run.lines("record")) == 2
    assert "no_such_module_here" in run.err, "the user's own error surfaces as usual"


def test_a_record_in_the_middle_of_the_beginning(probed):
    """A signal handler or a finaliser may record while the files are made: one pair of files all
    the same."""
    begin = """
import sys, torch
calls = sys.modules["_nsysalign_probe"].Files
e, own = torch.cuda.Event(), calls.posix_fallocate
def interrupted(*args):
    calls.posix_fallocate = own
    print(e.record())
    return own(*args)
calls.posix_fallocate = interrupted
"""
    run = probed(begin + PAIR)
    assert run.out.startswith("None\n") and run.status == 0
    (lines,) = run.logs.values()
    assert [x["type"] for x in lines].count("header") == 1 and len(run.lines("elapsed")) == 1
    assert [r["site"] for r in run.lines("record")] == ["script.py:13", "script.py:14"]
    assert "while the probe was starting is not in the log" in run.errors


TORCH = """
from torch.autograd.profiler import profile
for _ in range(3):
    with profile(ACTIVITIES) as p:
        print(type(p) is profile)
"""


@pytest.mark.parametrize(
    ("activities", "nsys", "notes"),
    [
        ("'ProfilerActivity.CUDA'", True, 1),
        ("'ProfilerActivity.CPU'", True, 0),
        ("'ProfilerActivity.CUDA'", False, 0),
    ],
)
def test_torch_profiler(probed, activities, nsys, notes):
    env = {"NVTX_INJECTION64_PATH": "/nonexistent"} if nsys else {}
    run = probed(TORCH.replace("ACTIVITIES", activities), env=env)
    assert (run.status, run.out, run.err) == (0, "began\nTrue\n" * 3, "")
    texts = [line["text"] for line in run.lines("note")]
    assert len(texts) == notes
    if notes:
        assert texts[0].startswith("torch.profiler began at script.py:4 inside the program")
        assert "void" in texts[0] and "DG_USE_NVIDIA_TOOLS=1" in texts[0] and "r610" in texts[0]
