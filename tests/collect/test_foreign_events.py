"""Pairs of torch.Event, CuPy and numba are in the log like those of torch.cuda.Event, and nothing
else of them changes.

Small modules stand in for the libraries' own, with the same classes, names and ways to call each
other."""

from __future__ import annotations

import importlib.util
import os

import pytest

LIBRARIES = {
    "cupy/__init__.py": "from . import cuda",
    "cupy/cuda/__init__.py": (
        "from cupy.cuda import stream\n"
        "from cupy.cuda.stream import Event, Stream, get_current_stream, get_elapsed_time\n"
    ),
    "cupy/cuda/stream.py": """
import itertools, time
handles = itertools.count(1000)
class Event:
    def __init__(self):
        self.ptr = next(handles)
    def record(self, stream=None):
        stream = get_current_stream() if stream is None else stream
        self.when = time.perf_counter_ns()
class _BaseStream:
    def __init__(self, ptr=0, device_id=0):
        self.ptr, self.device_id = ptr, device_id
    def record(self, event=None):
        event = Event() if event is None else event
        event.when = time.perf_counter_ns()
        return event
class Stream(_BaseStream):
    pass
def get_current_stream():
    return Stream()
def get_elapsed_time(start_event, end_event):
    return (end_event.when - start_event.when) / 1e6
""",
    "cupyx/__init__.py": "",
    "cupyx/site-packages/cupyx_profiler.py": """
import cupy
def benchmark(function):
    one, two = cupy.cuda.Event(), cupy.cuda.Event()
    one.record(); function(); two.record()
    return cupy.cuda.get_elapsed_time(one, two)
""",
    "numba/__init__.py": "",
    "numba/cuda/__init__.py": "from .cudadrv import driver\nevent = driver.Event\nevent_elapsed_time = driver.event_elapsed_time\n",
    "numba/cuda/cudadrv/__init__.py": "",
    "numba/cuda/cudadrv/driver.py": """
import itertools, time
handles = itertools.count(5000)
class CUevent:  # of cuda.bindings: no number, but converts to one
    def __init__(self):
        self.number = next(handles)
    def __int__(self):
        return self.number
class Event:
    def __init__(self, timing=True):
        self.handle = CUevent()
    def record(self, stream=0):
        self.when = time.perf_counter_ns()
    def elapsed_time(self, evtend):
        return event_elapsed_time(self, evtend)
def event_elapsed_time(evtstart, evtend):
    return (evtend.when - evtstart.when) / 1e6
""",
}


@pytest.fixture
def libraries(tmp_path) -> str:
    for name, text in LIBRARIES.items():
        path = tmp_path / "libraries" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return f"import sys\nsys.path.insert(0, {os.fspath(tmp_path / 'libraries')!r})\n"


#: What a program does with two events -> how often its pair is compared, and the line of the
#: start's site.
WAYS = {
    "torch.Event": "a, b = torch.Event(), torch.Event()\na.record(); b.record()\nprint(a.elapsed_time(b))",
    "torch.Stream": "s = torch.Stream()\na = s.record_event()\nb = torch.Event()\ns.record_event(b)\ns.wait_event(b)\nprint(a.elapsed_time(b))",
    "a torch.Event on a torch.cuda.Stream": (
        "s = torch.cuda.Stream()\na, b = torch.Event(), torch.Event()\ns.record_event(a); s.record_event(b)\nprint(a.elapsed_time(b))"
    ),
    "CuPy": "import cupy\na, b = cupy.cuda.Event(), cupy.cuda.Event()\na.record(); b.record(cupy.cuda.Stream(5))\nprint(cupy.cuda.get_elapsed_time(a, b))",
    "CuPy's benchmark": "import cupy\nsys.path.append(sys.path[0] + '/cupyx/site-packages')\nimport cupyx_profiler\nprint(cupyx_profiler.benchmark(int))",
    "numba": "from numba import cuda\na, b = cuda.event(), cuda.event()\na.record(); b.record()\nprint(cuda.event_elapsed_time(a, b))",
}  # fmt: skip


@pytest.mark.parametrize("name", WAYS)
def test_a_pair_of_another_library_is_logged_with_its_value(probed, libraries, name):
    run = probed(
        libraries + "import torch, nsysalign\nwith nsysalign.region('r'):\n    pass\n" + WAYS[name]
    )
    assert (run.status, run.err, run.errors) == (0, "", "")
    start, end = run.lines("record")
    (pair,) = run.lines("elapsed")
    assert (pair["start"], pair["end"]) == (start["seq"], end["seq"])
    assert pair["ms"] == float(run.out) and start["t0_ns"] <= start["t1_ns"] <= end["t0_ns"]
    for line in (start, end):
        assert line["site"].startswith("script.py:") and "stream_handle" in line
        assert bool(line.get("library")) == (name == "CuPy's benchmark")


SAME = """
import copy, inspect, pickle, sys, torch
assert (type(torch.Event.record).__name__ == "function") == ("_nsysalign_probe" in sys.modules)
for t in (torch.Event, torch.Stream):
    print(t, type(t), t.__mro__, isinstance(t(device="cpu"), t), t.__basicsize__, pickle.loads(pickle.dumps(t)) is t)
    print(sorted(vars(t)))
    try:
        t.record = 1
    except TypeError as error:
        print(error)
class Mine(torch.Event):
    def record(self, stream=None):
        return "mine"
print(isinstance(Mine(device="cpu"), torch.Event), Mine(device="cpu").record(), torch.Event(device="cpu"))
for call in ("record()", "wait()", "elapsed_time(torch.Event())", "elapsed_time(3)", "query()", "record(1, 2, 3)"):
    try:
        print(call, eval("torch.Event(device='cpu')." + call))
    except Exception as error:
        print(call, type(error), str(error).splitlines()[0])
print(torch.Event.record.__name__, torch.Event.elapsed_time.__qualname__, pickle.loads(pickle.dumps(torch.Event.record)) is torch.Event.record)
"""


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_the_types_of_the_real_torch_stay_what_they_are(probed):
    with_it, without = (probed(SAME, fake=False, env=e) for e in ({}, {"NSYSALIGN_DIR": ""}))
    assert with_it.status == without.status == 0, with_it.err
    assert with_it.out == without.out and with_it.err == without.err
    assert "_nsysalign" not in with_it.out and with_it.logs == {} and with_it.errors == ""
