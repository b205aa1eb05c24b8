"""Whatever ends a process that uses CUDA under nsys, CUPTI's buffers are flushed before, nsys's library is ended, and the
exit status is the process's own.

Two small libraries stand in for CUPTI and for nsys's own, and note each flush (1, or 0 if not forced) and the end (e).
What this is worth shows under a real nsys, for NVTX rows here, for CUDA's on a GPU (`scripts/endings.py`)."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nsysalign.record.command import probe_environment
from nsysalign.record.convert import convert

from .conftest import FAKE_TORCH, ROOT
from .user import PAIRS, RUNS, fresh_environment, read_log

SOURCES = Path(__file__).parent / "fakecupti"

BEGIN = """
import ctypes, os, signal, sys, threading, time
ctypes.CDLL(os.environ["FAKE_CUPTI"] + "/tools/libToolsInjection64.so")
library = ctypes.CDLL(os.environ["FAKE_CUPTI"] + "/tools/libcupti.so.12.5")  # as nsys does when CUDA begins
import torch
a, b = torch.cuda.Event(), torch.cuda.Event()
a.record(); b.record(); a.elapsed_time(b)
"""


@pytest.fixture(scope="session")
def cupti(tmp_path_factory) -> Path:
    """The folder of the stand-ins, built once."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("cupti")
    for source, name in (
        ("cupti.c", "libcupti.so.12.5"),
        ("injection.c", "libToolsInjection64.so"),
    ):
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", folder / name, SOURCES / source]
        subprocess.run(command, check=True)
    return folder


class Ended:
    """How a program ended: `status` as subprocess has it, `flushes` one digit each, `end` what the log says."""

    def __init__(self, folder: Path, process: subprocess.Popen, out: str) -> None:
        self.pid, self.status, self.out = process.pid, process.returncode, out
        self.err = (folder / "err").read_text()
        flushed = {int(p.name.split("-")[1]): p.read_text() for p in folder.glob("flushed-*")}
        self.flushes = flushed.get(process.pid, "")
        self.of_others = [text for pid, text in flushed.items() if pid != process.pid]
        self.logs = {
            int(p.name.split("-")[1].split(".")[0]): read_log(p)
            for p in convert(folder / "raw", folder, folder)
        }
        self.ends = {
            pid: [x for x in lines if x["type"] == "end"] for pid, lines in self.logs.items()
        }
        (self.end,) = self.ends.get(process.pid) or [None]
        self.errors = "".join(p.read_text() for p in (folder / "raw").glob("*.errors"))


@pytest.fixture
def ending(tmp_path, cupti):
    """`ending(text, send=None)`: run a program with the probe and the stand-in; send a signal at its first line of output."""

    def run(
        text: str,
        send: int | None = None,
        begin: str = BEGIN,
        probe: bool = True,
        times: int = 1,
        **env: str,
    ) -> Ended:
        folder = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        (folder / "raw").mkdir(parents=True)
        for name in ("tools", "other"):
            shutil.copytree(cupti, folder / name)
        (folder / "script.py").write_text(begin + text)
        full = fresh_environment(FAKE_TORCH, ROOT) | {"FAKE_CUPTI": str(folder), **env}
        full["CUDA_INJECTION64_PATH"] = str(folder / "tools" / "libToolsInjection64.so")
        if probe:
            full = probe_environment(full, folder, calibrate=False)
        with open(folder / "err", "w") as err:
            process = subprocess.Popen(
                [sys.executable, "-u", "script.py"], cwd=folder, env=full, text=True, stdout=subprocess.PIPE,
                stderr=err,
            )  # fmt: skip
        guard = threading.Timer(90, process.kill)
        guard.start()
        try:
            out = process.stdout.readline()
            for _ in range(times if send is not None else 0):
                process.send_signal(send)
            out += process.stdout.read()
            process.wait()
        finally:
            guard.cancel()
        return Ended(folder, process, out)

    return run


#: name -> (program, signal sent once it has printed, exit status, flushes, what the log says of the end)
ENDS = {
    "in order": ("", None, 0, "e", {"how": "exit"}),
    "an uncaught exception": ("raise KeyError", None, 1, "e", {"how": "exit"}),
    "sys.exit": ("sys.exit(4)", None, 4, "e", {"how": "exit"}),
    "os._exit": ("os._exit(5)", None, 5, "1e", {"how": "_exit"}),
    "exec": ("os.execl('/bin/sh', 'sh', '-c', 'exit 6')", None, 6, "1e", {"how": "execv"}),
    "SIGTERM, Python code runs": ("print(1)\nwhile True: pass", 15, -15, "1e", {"how": "signal", "signal": 15}),
    "SIGTERM, asleep": ("print(1)\ntime.sleep(100)", 15, -15, "1e", {"how": "signal", "signal": 15}),
    "SIGTERM, blocked in C": ("print(1)\nlibrary.hang()", 15, -15, "1e", {"how": "signal", "signal": 15}),
    "SIGTERM, blocked in C with the GIL": (
        "held = ctypes.PyDLL(library._name)\nprint(1)\nheld.hang()", 15, -15, "1e", {"how": "signal", "signal": 15}
    ),
    "SIGTERM, waits for a lock": (
        "lock = threading.Lock()\nlock.acquire()\nprint(1)\nlock.acquire()", 15, -15, "1e", {"how": "signal", "signal": 15}
    ),
    "SIGTERM to itself": ("os.kill(os.getpid(), 15)\nsys.exit(2)", None, -15, "1e", {"how": "signal", "signal": 15}),
    "SIGINT, default disposition": (
        "signal.signal(2, signal.SIG_DFL)\nprint(1)\ntime.sleep(100)", 2, -2, "1e", {"how": "signal", "signal": 2}
    ),
    "SIGINT as usual": ("print(1)\ntime.sleep(100)", 2, -2, "1e", {"how": "exit"}),
    "SIGTERM when the interpreter has ended": (
        "held = ctypes.PyDLL(library._name)\nctypes.pythonapi.Py_AtExit(held.hang_and_say)", 15, -15, "1e",
        {"how": "signal", "signal": 15},
    ),
    "SIGKILL": ("print(1)\ntime.sleep(100)", 9, -9, "", {"how": "killed"}),
    "a crash": ("ctypes.string_at(0)", None, -11, "1e", {"how": "signal", "signal": 11}),
    "a crash in a thread": (
        "threading.Thread(target=ctypes.string_at, args=(0,)).start()\ntime.sleep(100)", None, -11, "1e",
        {"how": "signal", "signal": 11},
    ),
    "a crash that faulthandler reports": (
        "import faulthandler\nfaulthandler.enable()\nctypes.string_at(0)", None, -11, "1e", {"how": "signal", "signal": 11}
    ),
    "a crash that somebody sent": ("print(1)\ntime.sleep(100)", 11, -11, "1e", {"how": "signal", "signal": 11}),
    "the stack is full": ("library.overflow(0)", None, -11, "", {"how": "killed"}),
    "abort": ("os.abort()", None, -6, "1e", {"how": "signal", "signal": 6}),
    "the terminal is closed": ("print(1)\ntime.sleep(100)", 1, -1, "1e", {"how": "signal", "signal": 1}),
    "an alarm": ("signal.setitimer(signal.ITIMER_REAL, 0.1)\nlibrary.hang()", None, -14, "1e", {"how": "signal", "signal": 14}),
    "no program to execute": (
        "for p in ('nothing-of-that-name', '/', '/etc/passwd', 3, None):\n    try:\n        os.execvp(p, ['x'])\n"
        "    except (OSError, TypeError) as error:\n        print(error)", None, 0, "e", {"how": "exit"},
    ),
    "exec with names": (
        "os.execve(path='/bin/sh', argv=['sh', '-c', 'exit 6'], env={})", None, 6, "1e", {"how": "execve"}
    ),
    "a handler of the user's": (
        "signal.signal(15, lambda n, f: sys.exit(f'mine {n}'))\nprint(1)\ntime.sleep(100)", 15, 1, "e", {"how": "exit"}
    ),
    "the user ignores it": (
        "signal.signal(15, signal.SIG_IGN)\nprint(1)\ntime.sleep(0.2)", 15, 0, "e", {"how": "exit"}
    ),
    "the default again": (
        "old = signal.signal(15, print)\nsignal.signal(15, old)\nprint(1)\ntime.sleep(100)", 15, -15, "1e",
        {"how": "signal", "signal": 15},
    ),
    "its handler cleans up and ends it": (
        "def handler(n, f):\n    signal.signal(n, signal.SIG_DFL)\n    print('cleaned up')\n    os.kill(os.getpid(), n)\n"
        "    os._exit(1)\nsignal.signal(15, handler)\nprint(1)\ntime.sleep(100)", 15, -15, "1e",
        {"how": "signal", "signal": 15},
    ),
    "a server restores and raises": (
        "old = signal.signal(2, print)\nsignal.signal(2, signal.SIG_DFL)\nsignal.raise_signal(2)\nprint('no')\nsys.exit(1)",
        None, -2, "1e", {"how": "signal", "signal": 2},
    ),
    "blocked, then not": (
        "signal.pthread_sigmask(0, [15])\nos.kill(os.getpid(), 15)\ntime.sleep(0.1)\nprint(1)\n"
        "signal.pthread_sigmask(1, [15])\ntime.sleep(100)", None, -15, "1e", {"how": "signal", "signal": 15}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_every_end(ending, name):
    text, send, status, flushes, end = ENDS[name]
    run = ending(text, send)
    plain = ending(text, send, probe=False)
    assert (run.status, run.flushes, run.end) == (status, flushes, {"type": "end", **end}), (
        run.err + run.errors
    )
    assert (plain.status, plain.out, plain.flushes) == (
        status,
        run.out,
        "e" if status >= 0 and end["how"] == "exit" else "",
    )
    assert run.errors == "" and run.of_others == []
    # the line that a KeyboardInterrupt hits is not always the same
    assert run.err.replace("run0", "run1").splitlines()[-1:] == plain.err.splitlines()[-1:]


def test_signals_that_come_twice_flush_once_and_end_it_once(ending):
    run = ending("print(1)\ntime.sleep(100)", signal.SIGTERM, times=20)
    assert run.status == -15 and run.flushes == "1e"


def test_a_flush_that_hangs_does_not_keep_the_process(ending):
    """It hangs for longer than `ending` waits."""
    run = ending("print(1)\ntime.sleep(100)", signal.SIGTERM, FAKE_CUPTI_HANGS="1")
    assert run.status == -15 and run.flushes == "1" and run.end == {"type": "end", "how": "killed"}


def test_nsys_library_that_crashes_at_its_end_does_not_change_the_status(ending):
    run = ending("print(1)\ntime.sleep(100)", signal.SIGTERM, FAKE_NSYS_CRASHES="1")
    assert (run.status, run.flushes, run.end) == (-15, "1e", {"type": "end", "how": "killed"})


SEEN = "name = os.environ['FAKE_CUPTI'] + f'/flushed-{os.getpid()}'\nfor _ in range(20): a.record()\nprint(1)\nwhile not os.path.exists(name): a.record()\n"


def test_a_program_that_crashes_while_it_is_ended_ends_as_it_was_told_to(ending):
    run = ending(SEEN + "ctypes.string_at(0)", signal.SIGTERM, FAKE_CUPTI_SLOW="1")
    assert (run.status, run.flushes) == (-15, "1e") and run.end == {
        "type": "end",
        "how": "signal",
        "signal": 15,
    }


def test_what_other_threads_do_while_it_is_ended_is_not_in_the_log(ending):
    """Without us they would not have come to it, and the profiler collects nothing of it."""
    text = "import nsysalign\nwith nsysalign.region('late'):\n    while True: a.record(); b.record(); a.elapsed_time(b)\n"
    run = ending(SEEN + text, signal.SIGTERM, FAKE_CUPTI_SLOW="1")
    (log,) = run.logs.values()
    assert run.status == -15 and sum(line["type"] == "record" for line in log) > 2
    assert not [line for line in log if "late" in line.get("region", "")]


def test_an_interrupt_on_the_way_to_exec_is_the_program_s_own(ending):
    """The path's own code runs there, in a frame of ours."""
    run = ending(
        """
class Path:
    def __fspath__(self):
        raise KeyboardInterrupt("on the way")
for call in (os.execv, os.execve):
    try:
        call(Path(), ["x"], *[{}] * (call is os.execve))
    except KeyboardInterrupt as error:
        print(error)
"""
    )
    assert (run.out, run.status, run.flushes) == ("on the way\n" * 2, 0, "e"), run.err


def test_python_knows_of_no_handler(ending):
    text = """
import _signal, posix, types
print(signal.getsignal(15), signal.getsignal(2), signal.signal(15, signal.SIG_IGN), signal.getsignal(15))
print(threading.active_count(), len(threading.enumerate()), signal.set_wakeup_fd(-1), signal.pthread_sigmask(0, []))
for f in (os._exit, os.execv, os.execve, os.kill, signal.raise_signal, _signal.signal):
    print(f, type(f) is types.BuiltinFunctionType, f.__doc__, f.__text_signature__, f.__self__, f.__module__)
    try:
        f()
    except TypeError as error:
        print(error)
try:
    os.execv("/nonexistent", ["x"])
except OSError as error:
    print(error)
print(posix._exit is os._exit, _signal.raise_signal is signal.raise_signal, posix.kill is os.kill, os.kill(os.getpid(), 0))
for wrong in ((15, "x"), (1000, print)):
    try:
        signal.signal(*wrong)
    except (TypeError, ValueError) as error:
        print(error)
sys.stdout.flush()
os._exit(status=7)
"""
    run, plain = ending(text), ending(text, probe=False)
    assert (run.status, run.out, run.err) == (
        plain.status,
        plain.out,
        plain.err,
    ) and run.status == 7


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_of_a_pool(ending, start):
    """They end by SIGTERM in the middle of a read; forked ones are born without any of it."""
    run = ending(
        f"""
import multiprocessing
def work(n):
    if {start == "fork"}:
        return n, os.getpid(), "no CUDA in a forked process"
    a, b = torch.cuda.Event(), torch.cuda.Event()
    a.record(); b.record(); a.elapsed_time(b)
    both.wait()  # so that each gets some
    return n, os.getpid()
def begins(barrier):
    global both
    both = barrier
if __name__ == "__main__":
    context = multiprocessing.get_context({start!r})
    with context.Pool(2, begins, (context.Barrier(2),)) as pool:
        print(sorted(x[0] for x in pool.map(work, range(6))))
    pool.join()
    p = multiprocessing.get_context({start!r}).Process(target=time.sleep, args=(100,))
    p.start()
    p.terminate()
    p.join()
    print(p.exitcode)
"""
    )
    assert (run.status, run.out.split()[-1]) == (0, "-15"), run.err
    if start == "spawn":
        # the third was ended while it began
        assert len(run.of_others) >= 2 and set(run.of_others) == {"1e"}
        ends = [e["how"] for pid, ends in run.ends.items() for e in ends if pid != run.pid]
        assert ends.count("signal") == len(run.of_others) and set(ends) <= {"signal", "killed"}
    elif start == "fork":
        assert run.of_others == []


def test_a_forked_child_is_born_with_the_default(ending):
    run = ending(
        """
import subprocess
for _ in range(50):
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    os.kill(pid, 15)
    print(os.waitpid(pid, 0)[1], end=" ")
pid = os.fork()
if pid == 0:
    os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
children = [subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(100)"]) for _ in range(3)]
for child in children:
    child.terminate()
print([child.wait() for child in children])
print(1)
os.kill(os.getpid(), 15)
time.sleep(100)
"""
    )
    assert run.out.split("\n")[:2] == [" ".join(["15"] * 50) + " 9", "[-15, -15, -15]"], run.err
    assert run.status == -15 and run.flushes == "1e" and run.of_others == []
    assert run.end == {"type": "end", "how": "signal", "signal": 15}


def test_only_nsys_own_library_is_flushed(ending):
    """torch loads a CUPTI of its own: nobody flushes that, and without nsys nothing is done at all."""
    other = BEGIN.replace("/tools/", "/other/")
    run = ending("os._exit(3)", begin=other)
    assert (run.status, run.flushes, run.end) == (3, "", None) and run.errors == ""


ROWS = 10_000
#: Of nsys's own CUPTI library, as when CUDA begins; then so many NVTX ranges that some are still underway.
BUSY = """
import ctypes, os, signal, sys, time
tools = os.path.dirname(os.environ["CUDA_INJECTION64_PATH"])
ctypes.CDLL(os.path.join(tools, max(name for name in os.listdir(tools) if name.startswith("libcupti.so."))))
import nsysalign
from script_begin import pair
pair()
for _ in range(10_000):
    with nsysalign.region("many"):
        pass
"""
REALLY = {
    "terminated": ("os.kill(os.getpid(), signal.SIGTERM)", 143),
    "interrupted": ("os.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)", 130),
    "_exit": ("os._exit(5)", 5),
    "execs": ("os.execlp('sh', 'sh', '-c', 'exit 6')", 6),
    "crashes": ("ctypes.string_at(0)", 139),
    "aborts": ("os.abort()", 134),
}


@pytest.mark.nsys
def test_a_real_nsys_gets_all_rows(real):
    """NVTX's go the same way through nsys's library as CUDA's; without us between 0 and 9,900 of these arrive."""
    (real.folder / "script_begin.py").write_text(PAIRS)
    runs = {
        name: real.run(BUSY + text, "--no-calibrate", script=f"{name}.py", begin="")
        for name, (text, _) in REALLY.items()
    }
    for process in runs.values():
        process.wait(timeout=240)
    for name, (_, status) in REALLY.items():
        run_dir = real.folder / RUNS / f"{name}-001"
        got, _, err = real.the_end(runs[name], run_dir)
        assert got == status, f"{name}: {err}"
        with contextlib.closing(sqlite3.connect(run_dir / "trace.sqlite")) as trace:
            (rows,) = trace.execute(
                "SELECT count(*) FROM NVTX_EVENTS e LEFT JOIN StringIds s ON s.id = e.textId "
                "WHERE coalesce(e.text, s.value) LIKE '%many%'"
            ).fetchone()
        assert rows == ROWS, name
