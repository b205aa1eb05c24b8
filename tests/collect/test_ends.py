"""However a process ends under nsys, it ends as it would without us; where Python can help it,
nsys's library has been ended before, as at an exit in order, and so has sent all its rows.

A small library stands in for nsys's and notes that (e).  What it is worth shows under a real nsys,
for NVTX's rows."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import Probed
from .user import PAIRS, RUNS

SOURCE = Path(__file__).parent / "fakenvtx" / "injection.c"

BEGIN = """
import ctypes, os, signal, sys, threading, time
library = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
import torch
a, b = torch.cuda.Event(), torch.cuda.Event()
a.record(); b.record(); a.elapsed_time(b)
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """The stand-in, built once."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("nvtx") / "libToolsInjection64.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", path, SOURCE], check=True)
    return path


@dataclass
class Ended(Probed):
    """How a program ended: `ended` whether the library was, `how` what the log says."""

    ended: str
    of_others: list[str]
    how: str | None


@pytest.fixture
def ending(probed, tmp_path, library):
    """`ending(text, send=0)`: run a program with the probe and the stand-in."""

    def run(text: str, send: int = 0, probe: bool = True, **env: str) -> Ended:
        folder = tmp_path / f"ended{len(list(tmp_path.glob('ended*')))}"
        folder.mkdir()
        env |= {"FAKE_NVTX": str(folder), "NVTX_INJECTION64_PATH": str(library)}
        run = probed(BEGIN + text, options=("-u",), send=send, probe=probe, env=env)
        ended = {int(p.name.split("-")[1]): p.read_text() for p in folder.glob("ended-*")}
        of_us, how = ended.pop(run.pid, ""), None
        if (last := run.logs.get(run.pid, [{"type": ""}])[-1])["type"] == "end":
            how = f"{last['how']} {last.get('signal', '')}".strip()
        return Ended(**vars(run), ended=of_us, of_others=[*ended.values()], how=how)

    return run


WAIT = "print(1); time.sleep(100)"
SLEEP = WAIT.replace("; ", "\n")
WHILE_MAIN_ENDS = f"""
def work():
    while threading.main_thread().is_alive():
        pass
    {WAIT}
threading.Thread(target=work).start()
"""
#: name -> (program, signal sent once it has printed, exit status, whether nsys's library is ended,
#: what the log says)
ENDS = {
    "in order": ("", 0, 0, "e", "exit"),
    "os._exit": ("os._exit(5)", 0, 5, "e", "_exit"),
    "os._exit, no descriptors are left": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\nos._exit(5)", 0, 5, "", "_exit"
    ),
    "SIGTERM, Python code runs": ("print(1)\nwhile True: pass", 15, -15, "e", "signal 15"),
    "SIGTERM, inside a C call": ("print(1)\nlibrary.hang()", 15, -15, "e", "signal 15"),
    "SIGINT, default disposition": (
        "signal.signal(2, signal.SIG_DFL)\nprint(1)\ntime.sleep(100)", 2, -2, "e", "signal 2"
    ),
    "the terminal is closed": (SLEEP, 1, -1, "e", "signal 1"),
    "the main thread has ended": (WHILE_MAIN_ENDS, 15, -15, "e", "signal 15"),
    "what atexit calls runs": (f"import atexit\n@atexit.register\ndef work():\n    {WAIT}", 15, -15, "e", "signal 15"),
    "SIGKILL": (SLEEP, 9, -9, "", "killed"),
    "a crash": ("ctypes.string_at(0)", 0, -11, "", "killed"),
    "a handler of the user's": (
        "signal.signal(15, lambda n, f: sys.exit(f'mine {n}'))\nprint(1)\ntime.sleep(100)", 15, 1, "e", "exit"
    ),
    "its handler cleans up and ends it": (
        "def handler(n, f):\n    signal.signal(n, signal.SIG_DFL)\n    print('cleaned up')\n    os.kill(os.getpid(), n)\n"
        "    os._exit(1)\nsignal.signal(15, handler)\nprint(1)\ntime.sleep(100)", 15, -15, "e", "signal 15"
    ),
    "blocked, then not": (
        "signal.pthread_sigmask(0, [15])\nos.kill(os.getpid(), 15)\ntime.sleep(0.1)\nprint(1)\n"
        "signal.pthread_sigmask(1, [15])\ntime.sleep(100)", 0, -15, "e", "signal 15"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_every_end(ending, name):
    if name == "the main thread has ended" and (3, 12, 0) <= sys.version_info < (3, 12, 3):
        pytest.skip(
            "no thread can be started then, and ours may be the one that notices the signal"
        )
    text, send, status, ended, how = ENDS[name]
    run, plain = ending(text, send), ending(text, send, probe=False)
    assert (run.status, run.ended, run.how) == (status, ended, how), run.err + run.errors
    assert (plain.status, plain.out) == (status, run.out)
    assert run.errors == "" and run.of_others == []
    assert run.err.splitlines()[-1:] == plain.err.splitlines()[-1:]


def test_after_ctrl_c_the_program_ends_as_python_ends_it_but_by_exit(ending):
    """Files are written out, objects deleted, and all of atexit has run, once."""
    text = """
import atexit
atexit.register(print, "atexit")
class Last:
    def __del__(self):
        print("deleted")
kept, file = Last(), open("file.txt", "w")
file.write("buffered")
os.kill(os.getpid(), 2)
time.sleep(100)
"""
    run, plain = ending(text), ending(text, probe=False)
    assert run.out == plain.out == "atexit\ndeleted\n"
    assert (plain.status, run.status, run.ended, run.how) == (-2, 130, "e", "exit")
    assert run.err == plain.err


def test_trouble_at_exit_changes_neither_status_nor_end(ending):
    """For five seconds at most, here for one."""
    patience, began = 'sys.modules["_nsysalign_probe.ends"]._PATIENCE_S = 1\n', time.monotonic()
    hangs = ending(patience + "os.kill(os.getpid(), 15)", FAKE_NVTX_HANGS="1")
    crashes = ending(patience + "os._exit(7)", FAKE_NVTX_CRASHES="1")
    assert (hangs.status, hangs.ended, hangs.err) == (-15, "e", "")
    assert (crashes.status, crashes.ended, crashes.err) == (7, "e", "")
    assert time.monotonic() - began < 40


def test_python_knows_of_no_handler(ending):
    text = """
print(signal.getsignal(15), signal.getsignal(2), signal.signal(15, signal.SIG_IGN), signal.getsignal(15))
print(signal.signal(1, print), signal.signal(1, signal.SIG_DFL), signal.getsignal(1))
print(threading.active_count(), len(threading.enumerate()), signal.pthread_sigmask(0, []))
for wrong in ((15, "x"), (1000, print), (15,)):
    try:
        signal.signal(*wrong)
    except (TypeError, ValueError) as error:
        print(error)
try:
    os._exit()
except TypeError as error:
    print("TypeError")
os._exit(status=7)
"""
    run, plain = ending(text), ending(text, probe=False)
    assert (run.status, run.out, run.err) == (plain.status, plain.out, plain.err)
    assert run.status == 7


def test_workers_of_a_pool_and_a_child_that_is_stopped_at_once(ending):
    """Workers end by SIGTERM in the middle of a read."""
    run = ending("""
import multiprocessing, nsysalign
def work(n):
    with nsysalign.region("no CUDA here"):
        both.wait()  # so that each gets some
        return n
def begins(barrier):
    global both
    both = barrier
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(2, begins, (context.Barrier(2),)) as pool:
        print(pool.map(work, range(6), chunksize=1))
    pool.join()
    for _ in range(3):
        p = context.Process(target=time.sleep, args=(100,))
        p.start()
        p.terminate()
        p.join()
        print(p.exitcode)
""")
    assert run.out == "[0, 1, 2, 3, 4, 5]\n" + "-15\n" * 3, run.err
    assert (run.status, run.how, run.errors) == (0, "exit", "")
    assert len(run.of_others) >= 2 and set(run.of_others) == {"e"}


def test_a_forked_child_is_born_with_the_default(ending):
    run = ending("""
import subprocess
for _ in range(2):
    for _ in range(30):
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
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(100)"], preexec_fn=lambda: None)
child.terminate()
print(child.wait())
print(1)
os.kill(os.getpid(), 15)
""")
    assert run.out == "15 " * 60 + "9\n-15\n1\n", run.err
    assert (run.status, run.ended, run.of_others) == (-15, "e", [])


ROWS = 10_000
BUSY = """
import ctypes, os, signal, sys, time
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
}


@pytest.mark.nsys
def test_a_real_nsys_gets_all_rows(real):
    """Without us between 0 and 9,900 of these arrive."""
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
