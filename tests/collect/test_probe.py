"""The probe in a real process: what it writes, and that the user's program does not notice."""

from __future__ import annotations

import os
import sys

import pytest

from .conftest import FAKE_TORCH, ROOT

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="collecting needs Linux"
)

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
        ("", []),
        ("torch.cuda.Event.elapsed_time = lambda a, b: 1.0", ["torch.cuda.Event.elapsed_time"]),
        ("torch.cuda.Event.record = print", ["torch.cuda.Event.record"]),
        ("torch.cuda.synchronize = print", ["torch.cuda.synchronize"]),
        ("import time; time.perf_counter = time.time", ["time.perf_counter"]),
        ("class Mine(torch.cuda.Event):\n    def record(self): pass", []),
    ],
    ids=["nothing", "elapsed_time", "record", "synchronize", "clock", "subclass"],
)
def test_what_the_program_puts_in_the_place_of_a_timer_is_noted(probed, what, replaced):
    run = probed(f"{PAIR}\n{what}")
    assert (run.status, run.errors) == (0, "")
    assert [note["text"] for note in run.lines("note")] == [
        f"the program replaced {n}" for n in replaced
    ]


def test_a_pair_is_logged_with_call_sites_and_times(probed):
    run = probed(PAIR)
    assert (run.status, run.err, run.errors) == (0, "", "")
    (lines,) = run.logs.values()
    header = lines[0]
    assert (
        header["type"] == "header"
        and header["format"] == "nsysalign-events"
        and header["version"] == 1
    )
    assert (header["device_name"], header["torch"], header["nvtx"]) == (
        "Fake GPU",
        "0.0+fake",
        "none",
    )
    assert set(header) == {
        "type", "format", "version", "pid", "device_name", "torch", "python", "clock", "nvtx"
    }  # fmt: skip
    start, end = run.lines("record")
    (elapsed,) = run.lines("elapsed")
    assert (start["site"], end["site"], elapsed["site"]) == (
        "script.py:4",
        "script.py:5",
        "script.py:6",
    )
    assert (
        start["t0_ns"]
        < start["t1_ns"]
        < end["t0_ns"]
        < end["t1_ns"]
        < elapsed["t0_ns"]
        < elapsed["t1_ns"]
    )
    assert (elapsed["start"], elapsed["end"], elapsed["ms"]) == (
        start["seq"],
        end["seq"],
        float(run.out),
    )
    assert start["tid"] == header["pid"] and start["device"] == 0 and start["stream_handle"] == 0
    assert not {"library", "captured", "callers", "region"} & set(start)


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


def test_stream_methods_log_once(probed):
    run = probed("""
import torch
side = torch.cuda.Stream(handle=7)
e = side.record_event()
torch.cuda.current_stream().wait_event(e)
side.wait_stream(torch.cuda.current_stream())
""")
    records, waits = run.lines("record"), run.lines("wait")
    assert [(r["stream_handle"], r["site"]) for r in records] == [
        (7, "script.py:4"),
        (0, "script.py:6"),
    ]
    assert [(w["stream_handle"], w["site"]) for w in waits] == [
        (0, "script.py:5"),
        (7, "script.py:6"),
    ]
    assert [w["record"] for w in waits] == [r["seq"] for r in records]
    assert "library" not in records[0], "torch/cuda/streams.py is seen through"


def test_callers_tell_a_timer_class_apart(probed):
    run = probed("""
import torch
class Timer:
    def __enter__(self):
        self.a, self.b = torch.cuda.Event(), torch.cuda.Event()
        self.a.record()
    def __exit__(self, *exc):
        self.b.record()
        self.a.elapsed_time(self.b)
def first():
    with Timer():
        pass
def second():
    with Timer():
        pass
first()
second()
""")
    starts = [r for r in run.lines("record") if r["site"] == "script.py:6"]
    assert [r["callers"] for r in starts] == [
        ["script.py:11", "script.py:16"], ["script.py:14", "script.py:17"]
    ]  # fmt: skip


def test_a_library_that_records_is_marked(probed, tmp_path):
    package = tmp_path / "lib" / "site-packages" / "somelib"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import torch\ndef bench():\n    e = torch.cuda.Event()\n    e.record()\n    return e\n"
    )
    run = probed(
        f"import sys\nsys.path.insert(0, {str(package.parent)!r})\nimport somelib\nsomelib.bench()\n"
    )
    (record,) = run.lines("record")
    assert record["library"] is True and record["site"] == "script.py:4"


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
    records = {r["seq"]: r for r in run.lines("record")}
    elapsed = run.lines("elapsed")
    assert len(records) == 24_000 and len(elapsed) == 12_000, "several chunks of slots, none lost"
    assert len({r["tid"] for r in records.values()}) == 4
    assert all(records[e["start"]]["tid"] == records[e["end"]]["tid"] == e_tid for e, e_tid in
               ((e, records[e["start"]]["tid"]) for e in elapsed))  # fmt: skip


def test_fork_writes_a_log_of_its_own(probed):
    run = probed(
        PAIR
        + """
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
    )
    assert len(run.logs) == 2
    child = [
        lines
        for pid, lines in run.logs.items()
        if len([x for x in lines if x["type"] == "record"]) == 2
    ]
    parent = [lines for lines in run.logs.values() if lines not in child]
    first, second = [x for x in child[0] if x["type"] == "elapsed"]
    assert (first["start"], first["end"]) == (None, None), (
        "the parent's records are not the child's"
    )
    assert {x["seq"] for x in child[0] if x["type"] == "record"} == {second["start"], second["end"]}
    assert len([x for x in parent[0] if x["type"] == "record"]) == 3


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_sudden_death_loses_nothing(probed, end):
    run = probed(PAIR + f"import os\nfor _ in range(1000): a.record()\n{end}")
    assert run.status != 0 and len(run.lines("record")) == 1002 and len(run.lines("elapsed")) == 1


def test_calibration_runs_once_before_the_first_record(probed):
    run = probed(PAIR, calibrate=True)
    known = run.lines("record", calibration=True)
    pairs = run.lines("calibration")
    assert len(known) == 10 * (4 + 2 + 2) and len(pairs) == 10 * (3 + 1 + 1)
    assert set(pairs[0]) >= {"start", "end", "ms"} and len(run.lines("elapsed")) == 1, (
        "the program's own only"
    )
    assert max(r["t1_ns"] for r in known) < run.lines("record")[0]["t0_ns"]
    (note,) = run.lines("note")
    assert note["calibration_ns"] == note["t1_ns"] - note["t0_ns"] > 0


def test_a_sitecustomize_of_the_users_runs_too(probed, tmp_path):
    folder = tmp_path / "custom"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("print('mine')\n")
    path = os.pathsep.join([str(folder), str(FAKE_TORCH), str(ROOT)])
    run = probed(PAIR, env={"PYTHONPATH": path})
    assert run.out.startswith("mine\n") and len(run.lines("record")) == 2
    (folder / "sitecustomize.py").write_text("import no_such_module_here\n")
    run = probed(PAIR, env={"PYTHONPATH": path})
    assert "no_such_module_here" in run.err and run.status == 0, (
        "the user's own error surfaces as usual"
    )


def test_a_record_in_the_middle_of_the_beginning(probed):
    """A signal handler or a finaliser may record while the files are made: one pair of files all
    the same."""
    run = probed(
        """
import sys, torch
calls = sys.modules["_nsysalign_probe"].Files
e, own = torch.cuda.Event(), calls.posix_fallocate
def interrupted(*args):
    calls.posix_fallocate = own
    print(e.record())
    return own(*args)
calls.posix_fallocate = interrupted
"""
        + PAIR
    )
    assert run.out.startswith("None\n") and run.status == 0
    (lines,) = run.logs.values()
    assert [x["type"] for x in lines].count("header") == 1 and len(run.lines("elapsed")) == 1
    assert [r["site"] for r in run.lines("record")] == ["script.py:13", "script.py:14"]
    assert "while the probe was starting is not in the log" in run.errors
