"""Scripts that end in every way, under a real nsys: what was collected is kept and analysed to the
end, no process and no half-written file is left, and the script's status is its own.

Runs that have nothing to do with each other are started together, in one folder, as impatient
people do.
"""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from waiting import wait_for, wait_until

from nsysalign.record.processes import of_run
from nsysalign.record.session import recover
from nsysalign.rundir import event_logs

from .logs import read_log
from .user import RUNS, analysed, elapsed

pytestmark = pytest.mark.nsys

CHILDREN = """
import multiprocessing, os, subprocess, sys, time
if __name__ == "__main__":
    pair(3)
    for method in ("fork", "spawn"):
        p = multiprocessing.get_context(method).Process(target=pair, args=(4,))
        p.start(); p.join()
    if os.fork() == 0:  # outlives its parent
        time.sleep(1)
        pair(5)
        os._exit(0)
    os.execv(sys.executable, [sys.executable, "-c", "import script_children; script_children.pair(6); raise SystemExit(4)"])
"""

#: name -> (what the script does, its status, how many pairs it compares)
ENDINGS = {
    "raises": ("pair(21)\nraise ValueError('mine')", 1, 21),
    "exit": ("import sys\npair(22)\nsys.exit(3)", 3, 22),
    "_exit": ("import os\npair(23)\nos._exit(7)", 7, 23),
    "segfault": ("import ctypes\npair(24)\nctypes.string_at(0)", 139, 24),
    "killed": ("import os, signal\npair(25)\nos.kill(os.getpid(), signal.SIGKILL)", 137, 25),
    "children": (CHILDREN, 4, 3 + 4 + 4 + 5 + 6),
}


def test_a_script_ends_as_it_likes(whole):
    """All at once in one folder: every run has a directory of its own."""
    texts = {name: text for name, (text, *_) in ENDINGS.items()}
    runs = {n: whole.run(text, script=f"script_{n}.py") for n, text in texts.items()}
    again = whole.run(texts["exit"], script="script_exit.py")
    # all of them: the end of one says nothing about the others' processes
    for process in [*runs.values(), again]:
        process.wait(timeout=240)
    for name, (_, status, pairs) in ENDINGS.items():
        run_dir = whole.folder / RUNS / f"script_{name}-001"
        got, _, err = whole.the_end(runs[name], run_dir)
        assert got == status, f"{name}: {err}"
        assert (elapsed(run_dir), analysed(run_dir)) == (pairs, pairs), f"{name}: {err}"
        assert json.loads((run_dir / "run.json").read_text())["exit_status"] == status
        assert (f"the script ended with status {status}" in err) == bool(status)
        assert err.count("Traceback") == err.count("ValueError: mine") == (name == "raises")
        assert not (run_dir / "raw").exists() and "outlived" not in err
    assert elapsed(whole.folder / RUNS / "script_exit-002") == 22, "the same script twice at once"
    logs = list((whole.folder / RUNS / "script_children-001").glob("events-*.jsonl"))
    assert len(logs) == 4, "exec kept the pid, every child has its own"


DEAF = """
import pathlib, signal, subprocess, time
for n in (signal.SIGINT, signal.SIGTERM):
    signal.signal(n, signal.SIG_IGN)
subprocess.Popen(["sleep", "100"], start_new_session=True)
pair(4)
pathlib.Path("started").touch()
time.sleep(100)
"""
TIDY = """
import time
pair(5)
try:
    time.sleep(100)
finally:
    pair(1)
    print("cleaned up", flush=True)
"""


def test_a_time_limit(real):
    """SIGINT as Ctrl-C sends it, after a while SIGTERM, after a while SIGKILL; who ends in time
    knows of none."""
    tidy = real.run(TIDY, "--timeout", "3", script="tidy.py")
    deaf = real.run(DEAF, "--timeout", "3", script="deaf.py", impatient=60)
    quick = real.run("pair(2)", "--timeout", "600", script="quick.py")
    for process in (tidy, deaf, quick):
        process.wait(timeout=240)
    run_dirs = {p.name.partition("-")[0]: p for p in real.run_dirs()}
    status, out, err = real.the_end(tidy, run_dirs["tidy"])
    assert status == 130 and out.startswith("cleaned up\n") and elapsed(run_dirs["tidy"]) == 6
    assert "note: the script was stopped after 3 s (--timeout)" in err
    status, *_ = real.the_end(deaf, run_dirs["deaf"])  # with its child in another session
    assert status == 137 and elapsed(run_dirs["deaf"]) == 4
    status, _, err = real.the_end(quick, run_dirs["quick"])
    assert status == 4 and "--timeout" not in err, "4: without a GPU there is nothing to analyse"


LISTENS = """
import pathlib, time
try:
    pair(7)
    pathlib.Path("started").touch()
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    pair(1)
    raise SystemExit(5)
"""


def test_ctrl_c_and_sigterm_stop_the_script_and_all_is_analysed(whole):
    """Ctrl-C again and again, as a terminal sends it to the whole group; SIGTERM to us alone."""
    often = whole.run(LISTENS, script="often.py")
    wait_for(whole.folder / "started")
    (whole.folder / "started").unlink()
    terminated = whole.run(LISTENS, script="terminated.py")
    wait_for(whole.folder / "started")
    os.killpg(often.pid, signal.SIGINT)
    terminated.terminate()
    # before the analysis: that may be interrupted
    while not event_logs(whole.folder / RUNS / "often-001"):
        assert often.poll() is None
        os.killpg(often.pid, signal.SIGINT)
        time.sleep(0.05)
    terminated.wait(timeout=240)
    run_dirs = whole.run_dirs()
    status, out, err = whole.the_end(often, run_dirs[0])
    assert status == 5 and out.startswith("interrupted\n") and "please wait" in err, err
    assert (elapsed(run_dirs[0]), analysed(run_dirs[0])) == (8, 8)
    status, *_ = whole.the_end(terminated, run_dirs[1])
    assert status == 143 and (elapsed(run_dirs[1]), analysed(run_dirs[1])) == (7, 7)


def test_ctrl_c_while_the_report_is_written_does_not_lose_it(real):
    """nsys would drop the report at the first one."""
    text = """
import nsysalign
pair(9)
for _ in range(40_000):
    with nsysalign.region("many"):
        pass
"""
    process = real.run(text)
    wait_until(lambda: any(real.folder.glob(f"{RUNS}/*/nsys.log")), "nsys does not start")
    (run_dir,) = real.run_dirs()
    log = run_dir / "nsys.log"
    wait_until(lambda: "Generating" in log.read_text(errors="replace"), "no report is written")
    assert not (run_dir / "trace.sqlite").exists()
    process.send_signal(signal.SIGINT)
    *_, err = real.the_end(process)
    assert "the report is still being written, please wait" in err, err
    assert (run_dir / "trace.sqlite").is_file() and elapsed(run_dir) == 9


SERVER = """
import subprocess, sys
pair(2)
loop = "import nsysalign, os, time\\nwhile not os.path.exists('stop'):\\n  with nsysalign.region('served'): time.sleep(0.1)\\nopen('stopped', 'w')"
quiet = subprocess.DEVNULL
subprocess.Popen([sys.executable, "-c", loop], start_new_session=True, stdout=quiet, stderr=quiet)
"""


def test_a_server_that_outlives_the_script_goes_on_without_us(real):
    """It is said what is waited for; Ctrl-C ends it, as it would in the script's foreground."""
    process = real.run(SERVER, impatient=60)
    interrupted = real.run(SERVER, impatient=60, script="interrupted.py")
    while "Ctrl-C ends them" not in (said := interrupted.stderr.readline()):
        assert said, "never said"
    assert "the script has ended, and 1 process that it started still run:" in said
    interrupted.send_signal(signal.SIGINT)
    assert real.the_end(interrupted, real.folder / RUNS / "interrupted-001")[0] == 4
    _, err = process.communicate(timeout=60)
    run_dir = real.folder / RUNS / "script-001"
    assert "1 process of the run still lived 4 s after the script's end and goes on" in err
    assert process.returncode == 4 and elapsed(run_dir) == 2
    assert len(of_run(run_dir)) == 1, "the server, and nothing of nsys's"
    (real.folder / "stop").touch()
    wait_for(real.folder / "stopped")
    wait_until(lambda: not of_run(run_dir), "the server does not end", 30)


def test_a_failed_script_keeps_its_status_whatever_fails_of_ours(whole):
    """Its run directory is gone; our output is full."""
    text = "import os, shutil\nshutil.rmtree(os.environ['NSYSALIGN_DIR'])\nos._exit(5)"
    gone = whole.run(text, script="gone.py")
    into = ("sh", "-c", 'exec "$@" >/dev/full', "sh")
    full = whole.run("import sys\npair(2)\nsys.exit(5)", prefix=into, script="full.py")
    gone.wait(timeout=90)
    status, _, err = whole.the_end(full, whole.folder / RUNS / "full-001")
    assert status == 5 and "No space left on device" in err and "Traceback" not in err, err
    status, _, err = whole.the_end(gone, whole.folder / RUNS / "gone-001")
    assert status == 5 and "cannot be finished: No such file" in err, err


def test_when_we_are_killed_the_run_can_still_be_analysed(whole):
    """nsys and the script do not notice: they end by themselves, and the probe's files are
    whole."""
    process = whole.run(
        "import pathlib, time\npair(8)\npathlib.Path('started').touch()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)"
    )
    wait_for(whole.folder / "started")
    (run_dir,) = whole.run_dirs()
    process.kill()
    recover(run_dir)
    assert not event_logs(run_dir), "the run goes on without us"
    early = whole.analyze(run_dir)
    assert early.returncode == 3 and "the run is still going on" in early.stderr
    (whole.folder / "go").touch()
    wait_until(lambda: not of_run(run_dir), "the run does not end", 240)
    done = whole.analyze(run_dir)
    assert done.returncode == 0, done.stderr
    assert (elapsed(run_dir), analysed(run_dir)) == (8, 8)
    (log,) = run_dir.glob("events-*.jsonl")
    first = next(r for r in read_log(log) if r["type"] == "record" and "calibration" not in r)
    assert first["site"] == "script.py:6"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_the_script_gets_the_signal_that_we_got(user, number):
    """A hang-up came as SIGTERM, and a script that reloads or saves at one ended."""
    text = """
import signal, sys, time
def saved(number, frame):
    print("got", number, flush=True)
    sys.exit(7)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, saved)
print("ready", flush=True)
time.sleep(60)
"""
    process = user.run(text, "--no-nsys")
    while process.stdout.readline() not in ("ready\n", ""):
        pass
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out.splitlines()[:1] == [f"got {int(number)}"] and process.returncode == 7, err
