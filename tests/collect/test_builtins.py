"""What stands in the place of a builtin is one: for Python, for C code that looks inside it, and for those who exchange it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nsysalign.probe import machine
from nsysalign.record.command import probe_environment

from .conftest import FAKE_TORCH, ROOT
from .user import fresh_environment

LOOKS = """
import dis, io, inspect, time, types
from unittest import mock
for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns"):
    f = getattr(time, name)
    print(type(f) is types.BuiltinFunctionType, f.__self__ is time, dir(f) == dir(len), f == getattr(time, name))
    for arguments in ((1,), (1, 2)):
        try:
            f(*arguments)
        except TypeError as error:
            print(error)
    try:
        f(x=1)
    except TypeError as error:
        print(error)
    try:
        dis.dis(f, file=io.StringIO())
    except TypeError as error:
        print(error)
    twin = mock.create_autospec(f, return_value=3)
    print(twin(), type(twin), hasattr(f, "__wrapped__"), hasattr(f, "__dict__"), hasattr(f, "__code__"))
    with mock.patch(f"time.{name}", return_value=4.0) as fake:
        print(getattr(time, name)(), fake.call_count)
    print(getattr(time, name) is f)
"""


def test_everything_answers_as_without_the_probe(probed):
    with_it, without = probed(LOOKS), probed(LOOKS, env={"NSYSALIGN_HOST_TIMERS": "0"})
    assert (
        with_it.status == 0 and with_it.out == without.out and "takes no arguments" in with_it.out
    )


#: What time-machine does, in C: it takes `time.time` for the C function that it is, and exchanges it.
EXCHANGE = """
import ctypes, sys, time, torch
torch.cuda.init()
time.time(), time.time_ns()

class Definition(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))

def definition(builtin):
    return ctypes.POINTER(Definition).from_address(id(builtin) + object.__basicsize__).contents

Function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
for builtin, fake in ((time.time, 12.5), (time.time_ns, 12)):
    inside = definition(builtin)
    print(inside.name.decode(), inside.flags)
    original = Function(inside.function)
    keep = Function(lambda module, nothing: fake)
    for _ in range(3):
        before, inside.function = inside.function, ctypes.cast(keep, ctypes.c_void_p).value
        print(builtin() == fake, abs(original(time, None) / builtin() - 1) > 0.5, type(original(None, None)))
        inside.function = before
    print(builtin() > 1e9)
time.time()
"""


def test_c_code_may_exchange_the_function_inside(probed):
    with_it, without = probed(EXCHANGE), probed(EXCHANGE, env={"NSYSALIGN_HOST_TIMERS": "0"})
    assert (with_it.status, with_it.err) == (0, "") and with_it.out == without.out
    readings = with_it.lines("clock_reading")
    assert readings and all(r["value_ns"] > 1e18 for r in readings), (
        "what is faked is not the host's clock"
    )


def test_time_machine(probed):
    pytest.importorskip("time_machine")
    run = probed("""
import datetime, time, time_machine, torch
torch.cuda.init()
with time_machine.travel(0, tick=False):
    print(time.time(), datetime.datetime.now().year)
    with time_machine.travel(86400.0, tick=False):
        print(time.time(), time.time_ns())
    print(time.time(), time_machine.escape_hatch.time.time() > 1e9)
print(time.time() > 1e9)
""")
    assert run.out.split() == [
        "0.0",
        "1970",
        "86400.0",
        str(86400 * 10**9),
        "0.0",
        "True",
        "True",
    ], run.err


def test_where_no_memory_may_be_executable_the_clocks_are_left_alone(probed):
    """Seccomp refuses mprotect(PROT_EXEC), as hardened systems do; the program runs, and the log says what is missing."""
    refuse = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
load, equal, any_of, give = 0x20, 0x15, 0x45, 0x06
program = [(load, 0, 0, 0), (equal, 0, 3, NUMBER), (load, 0, 0, 32), (any_of, 0, 1, 4), (give, 0, 0, 0x50001), (give, 0, 0, 0x7FFF0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filters", ctypes.c_void_p))
if libc.prctl(22, 2, ctypes.byref(Program(len(program), ctypes.addressof(filters))), 0, 0):
    sys.exit("no seccomp here")
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
import time, torch
torch.cuda.init()
torch.cuda.Event().record()
print(time.time() > 1e9)
""".replace("NUMBER", {"x86_64": "10", "aarch64": "226"}.get(machine.os.uname().machine, "10"))
    run = probed(refuse)
    if "no seccomp" in run.err or run.status < 0:
        pytest.skip("no seccomp here, or Python itself needs such memory")
    assert run.out == "True\n" and run.err == "" and run.errors == ""
    assert len(run.lines("record")) == 1 and run.lines("clock_reading") == []
    (note,) = run.lines("note")
    assert note["text"].startswith(
        "readings of the host's clocks are not logged: this system does not allow executable memory"
    )


def test_the_instructions_of_the_other_machine():
    """aarch64: these were run in an emulator (unicorn 2.1), which saw the calls, their arguments and the stack's alignment."""
    machine_code = machine._Arm
    assert machine_code.call_slot(0x20000, 0x7FFF12345670).hex() == (
        "000080d24000a0f20000c0f20000e0f2000040f910ce8ad29046a2f2f0ffcff21000e0f200021fd6"
    )
    calls = [
        machine.Call(0x40000, (0x1122334455667788,), until_zero=True),
        machine.Call(0x21000, (1, 2, 3, 0xFFFFFFFFFFFFFFFF), indirect=True),
        machine.Call(0x40020),
    ]
    made = (
        "00f18ed2c0acaaf28068c6f24024e2f2100080d29000a0f21000c0f21000e0f200023fd6e0feff35200080d20000a0f20000c0f2"
        "0000e0f2410080d20100a0f20100c0f20100e0f2620080d20200a0f20200c0f20200e0f2e3ff9fd2e3ffbff2e3ffdff2e3fffff2"
        "100082d25000a0f21000c0f21000e0f2100240f900023fd6100480d29000a0f21000c0f21000e0f200023fd6"
    )
    assert machine_code.function(calls).hex() == "fd7bbfa9" + made + "fd7bc1a8c0035fd6"
    jump = "100680d29000a0f21000c0f21000e0f200021fd6"
    assert machine_code.before(machine_code.calls(calls), 0x40030).hex() == (
        "fd7bbfa9e007bfa9e20fbfa9" + made + "e20fc1a8e007c1a8fd7bc1a8" + jump
    )
    told = "200023fd6800000b5ff830091fd7bc1a8c0035fd6"
    for keywords, third in ((False, "030080d2"), (True, "")):
        assert machine_code.tell(0x30000, 0x20000, keywords).hex() == (
            "000080d26000a0f20000c0f20000e0f2000040f9"
            + third
            + "100080d25000a0f21000c0f21000e0f"
            + told
        )
    asked = (
        "100084d25000a0f21000c0f21000e0f2100240f9500100b5100080d29000a0f21000c0f21000e0f200023fd6"
    )
    begin = "fd7bbfa9f353bfa9100680d29000a0f21000c0f21000e0f200023fd6f30300aa"
    assert machine_code.after([machine.Call(0x40000, (), if_zero=0x22000)], 0x40030).hex() == (
        begin + asked.replace("500100b5", "d00000b5") + "e00313aaf353c1a8fd7bc1a8c0035fd6"
    )


PROGRAM = """
import time, torch
def work():
    e = torch.cuda.Event()
    e.record()
    return time.perf_counter() + e.elapsed_time(e)
for _ in range(3):
    work()
"""


@pytest.mark.parametrize("tool", ["coverage", "trace"])
def test_coverage_tools_do_not_list_the_probe(tmp_path, tool):
    if tool == "coverage":
        pytest.importorskip("coverage")
    (tmp_path / "raw").mkdir()
    (tmp_path / "script.py").write_text(PROGRAM)
    env = probe_environment(fresh_environment(FAKE_TORCH, ROOT), tmp_path, calibrate=False)
    commands = {
        "coverage": [["-m", "coverage", "run", "script.py"], ["-m", "coverage", "report"]],
        "trace": [["-m", "trace", "--count", "--summary", "-C", "cover", "script.py"]],
    }[tool]
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    listed = done.stdout + "".join(p.name for p in tmp_path.glob("cover/*"))
    assert "script" in listed and not any(
        name in listed for name in ("wrap", "timers", "runtime", "clocksites", "sitecustomize")
    )
