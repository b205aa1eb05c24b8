"""Exceptions that arrive while the probe's code runs: from a signal handler of the user's, from
another thread."""

from __future__ import annotations

import sys

import pytest

from .test_transparent import interpreters


def test_whatever_the_handler_is(probed):
    """A function, an object, a partial; raised in the very middle of our code: where it looks for
    the place of a reading, or writes a record."""
    run = probed("""
import functools, signal, struct, sys, time, torch
torch.cuda.init()
probe = sys.modules["_nsysalign_probe"]
runtime, e = probe.running(), torch.cuda.Event()
e.record()
def function(number, frame):
    raise KeyError("limit")
class Handler:
    def __call__(self, number, frame):
        del frame
        raise struct.error("limit")
def on(x, number, frame):
    frame = None
    raise AttributeError("limit")
def interrupted(own):
    def call(*args, **kwargs):
        interrupt.pop()()
        return own(*args, **kwargs)
    return call
probe._timers.sites.learn = interrupted(probe._timers.sites.learn)
runtime.write = interrupted(runtime.write)
for handler in (function, Handler(), functools.partial(on, 3)):
    signal.signal(signal.SIGUSR1, handler)
    for n, call in enumerate(("time.time()", "e.wait()", "e.elapsed_time(e)")):
        code = compile(call, f"{handler} {n}.py", "exec")  # a place that is not known yet
        interrupt = [lambda: signal.raise_signal(signal.SIGUSR1)]
        try:
            exec(code)
        except (KeyError, struct.error, AttributeError) as error:
            print(type(error).__name__, end=" ")
print(probe._failures, runtime.aside, probe._timers._over)
""")
    kinds = [kind for kind in ("KeyError", "error", "AttributeError") for _ in range(3)]
    assert run.out.split() == [*kinds, "0", "False", "False"], run.out + run.err


PAIR = """
import signal, torch
a, b = torch.cuda.Event(), torch.cuda.Event()
a.record(); b.record()
print(a.elapsed_time(b) > 0)
"""


def test_a_record_that_was_cut_short_is_not_taken_for_an_older_one(probed):
    """The limit comes after the call, before its row is written: the event's older row does not
    stand for it."""
    text = """
def handler(number, frame):
    raise KeyError("limit")
signal.signal(signal.SIGUSR1, handler)
class Chunks(dict):
    def get(self, key):
        signal.raise_signal(signal.SIGUSR1)
cell = next(c for n, c in zip(torch.cuda.Event.record.__code__.co_freevars, torch.cuda.Event.record.__closure__) if n == "chunks")
chunks, cell.cell_contents = cell.cell_contents, Chunks()
try:
    b.record()
except KeyError as error:
    print(error)
cell.cell_contents = chunks
print(a.elapsed_time(b) > 0)
b.record()
print(a.elapsed_time(b) > 0)
"""
    run = probed(PAIR + text)
    assert run.out.split() == ["True", "'limit'", "True", "True"] and run.errors == "", run.err
    assert [e["end"] is None for e in run.lines("elapsed")] == [False, True, False]


def test_a_line_that_was_cut_at_the_end_of_a_chunk_costs_only_itself(probed):
    """The limit comes between its two parts."""
    run = probed("""
import signal, sys, torch, nsysalign
torch.cuda.init()
event = torch.cuda.Event()
event.record()
def handler(number, frame):
    raise TimeoutError("limit")
signal.signal(signal.SIGUSR1, handler)
stores, store = sys.modules["_nsysalign_probe.store"], sys.modules["_nsysalign_probe"].running().store
while stores.TEXT_CHUNK - store._text_used > 60:
    with nsysalign.region(f"filling {store._text_used}"):
        pass
def limited(part):
    if store._text_used == 0:
        del stores.len
        signal.raise_signal(signal.SIGUSR1)
    return len(part)
stores.len = limited
try:
    with nsysalign.region("cut " * 20):
        event.record()
except TimeoutError as error:
    print(error)
with nsysalign.region("after"):
    event.record()
""")
    assert run.out.split() == ["limit"], run.err
    assert [r["region"] for r in run.lines("record") if "region" in r] == ["after#0"]


EVERYWHERE = """
import sys, time
import torch, nsysalign
torch.cuda.init()
event, probe = torch.cuda.Event(), sys.modules["_nsysalign_probe"]
event.record(); time.time()
timers = sys.modules["_nsysalign_probe.timers"]
timers.READINGS, timers._SHARE = 1 << 20, 1 << 20  # every reading is logged

class Mine(Exception):
    pass
kinds = [ValueError, KeyError, TimeoutError, AttributeError, OSError, RuntimeError, Mine]

def interrupting(number, left):
    # an exception before the instruction of this number that the probe's own code would run
    def trace(frame, kind, argument):
        if not frame.f_code.co_filename.startswith("<nsysalign/"):
            return None
        frame.f_trace_opcodes = True
        if kind == "opcode":
            left[0] -= 1
            if left[0] == 0:
                raise kinds[number % len(kinds)]("limit")
        return trace
    return trace

WORK
for number in range(1, 100_000):
    work, left, caught = new(number), [number], False
    sys.settrace(interrupting(number, left))
    try:
        work()
    except Exception as error:
        caught = error.args == ("limit",)
    sys.settrace(None)
    assert caught == (left[0] <= 0), "it was lost"
    with nsysalign.region(f"again {number}"):
        work()
    if not caught:
        break
print(number, probe._failures, probe.running().aside, probe._timers._over)
"""
WORKS = {
    "record": "def new(n):\n    return event.record\n",
    "compare": "def new(n):\n    return lambda: event.elapsed_time(event)\n",
    "wait": "def new(n):\n    return event.wait\n",
    "clocks": "def new(n):\n    return lambda: (time.perf_counter(), time.time())\n",
    # seen for the first time
    "region": 'def new(n):\n    def work():\n        with nsysalign.region(f"mine {n}"):\n            event.record()\n    return work\n',
    "code": 'def new(n):\n    code = compile("event.record()", f"new{n}.py", "exec")\n    return lambda: exec(code, globals())\n',
    "clock": 'def new(n):\n    code = compile("time.time()", f"new{n}.py", "exec")\n    return lambda: exec(code, globals())\n',
}


@pytest.mark.parametrize("name", WORKS)
def test_an_exception_anywhere_reaches_the_program(probed, name):
    """One of the program's, whatever its kind.  What is learned the first time, a region's name, a
    line of the program's, is known whole afterwards or not at all."""
    if name in ("clocks", "clock") and sys.version_info >= (3, 12):
        pytest.skip("no trace function sees callbacks of sys.monitoring, which clocks have here")
    run = probed(EVERYWHERE.replace("WORK", WORKS[name]))
    assert run.status == 0 and run.err == "" and run.errors == "", run.err + run.errors
    count, *state = run.out.split()
    tries = range(1, int(count) + 1)
    assert len(tries) > 100 and state == ["0", "False", "False"]
    if name == "region":
        named = {r.get("region", "").partition("#")[0] for r in run.lines("record")}
        assert {f"mine {n}" for n in tries} <= named
    elif name == "code":
        second = [r["site"] for r in run.lines("record") if "region" in r]
        assert second == [f"new{n}.py:1" for n in tries]
    elif name == "clock":
        sites = {s["number"]: s.get("site") for s in run.lines("clock_site")}
        readings = [r for r in run.lines("clock_reading") if "region" in r]
        second = {r["region"]: sites[r["site"]] for r in readings}
        assert second == {f"again {n}#0": f"new{n}.py:1" for n in tries}


def test_an_exception_from_another_thread_reaches_the_program(probed):
    """A bare class, between any two instructions, wherever in the probe or what it calls."""
    run = probed("""
import ctypes, random, threading, time, torch
torch.cuda.init()
class Limit(Exception):
    pass
raise_in, main, event = ctypes.pythonapi.PyThreadState_SetAsyncExc, threading.get_ident(), torch.cuda.Event()
arrived = 0
for number, kind in enumerate([TimeoutError, ValueError, Limit] * 4):
    def limit():
        time.sleep(0.01 + number / 1000)
        raise_in(ctypes.c_ulong(main), ctypes.py_object(kind))
    thread = threading.Thread(target=limit)
    try:
        thread.start()
        end = time.monotonic() + 5
        while time.monotonic() < end:
            exec(compile("event.record()", f"new{random.random()}.py", "exec"))
    except kind:
        arrived += 1
    thread.join()
print(arrived)
""")
    assert run.out == "12\n" and run.errors == "", run.err + run.errors


def with_monitoring() -> str:
    """The newest Python here, if it has sys.monitoring."""
    minor, python = max((int(version[2:]), path) for version, path in interpreters().items())
    if minor < 12:
        pytest.skip("no Python with sys.monitoring here")
    return python


def test_a_step_limit_by_sys_monitoring_reaches_the_program(probed):
    """Of a grader, who is given our code and no frame."""
    python = with_monitoring()
    text = """
from sys import monitoring
def line(code, number):
    global left
    ours = code.co_filename.startswith("<nsysalign/")
    left -= ours
    if ours and left == 0:
        raise RuntimeError("step limit")
monitoring.use_tool_id(0, "limit")
monitoring.register_callback(0, monitoring.events.LINE, line)
arrived = 0
for n in range(1, 40):
    left = n
    monitoring.set_events(0, monitoring.events.LINE)
    try:
        a.record(); b.record(); a.elapsed_time(b)
    except RuntimeError as error:
        arrived += str(error) == "step limit"
    monitoring.set_events(0, 0)
print(arrived)
"""
    run = probed(PAIR + text, python=python)
    assert (run.status, run.out, run.err, run.errors) == (0, "True\n39\n", "", "")


def test_a_program_that_takes_every_number_of_sys_monitoring(probed):
    """The one that the probe had was refused to it: ValueError."""
    python = with_monitoring()
    text = """
import sys, time, torch
torch.cuda.init()
for number in range(6):
    sys.monitoring.use_tool_id(number, f"mine {number}")
print([sys.monitoring.get_tool(number) for number in range(6)])
time.time()
a = torch.cuda.Event()
a.record()
"""
    run = probed(text, python=python)
    assert run.out == f"{[f'mine {n}' for n in range(6)]}\n" and run.errors == "", run.err
    assert any("number of sys.monitoring" in line["text"] for line in run.lines("note"))


INTERRUPTED = """
import signal, sys, time, torch
torch.cuda.init()
runtime = sys.modules["_nsysalign_probe"].running()
def sync(own=runtime.sync):
    runtime.sync = own
    signal.raise_signal(signal.SIGINT)  # in the middle of our work
    own()
runtime.sync = sync
def handler(number, frame):
    while frame and not frame.f_code.co_filename.startswith("<nsysalign/"):
        frame = frame.f_back
    print("our frame" if frame else "none of ours", number, flush=True)
    raise SystemExit(7)
def main():
    HANDLER
    CALL
    time.sleep(30)
main()
"""


@pytest.mark.parametrize(
    "call", ["torch.cuda.Event(enable_timing=True)", "torch.cuda.Event().record()"]
)
def test_a_ctrl_c_while_the_log_begins_interrupts_a_line_of_the_programs(probed, call):
    """The first event takes milliseconds of ours, and five of our frames were in the traceback."""
    text = INTERRUPTED.replace("CALL", call)
    plain = probed(text.replace("HANDLER", ""))
    assert "\nKeyboardInterrupt" in plain.err and ", in main\n" in plain.err
    assert "<nsysalign/" not in plain.err and plain.status == -2 and not plain.errors
    handled = probed(text.replace("HANDLER", "signal.signal(signal.SIGINT, handler)"))
    assert (handled.out, handled.status) == ("none of ours 2\n", 7), handled.err
    ignored = probed(
        text.replace("HANDLER", "signal.signal(signal.SIGINT, signal.SIG_IGN)").replace("30", "0.1")
    )
    assert (ignored.status, ignored.err) == (0, "")
