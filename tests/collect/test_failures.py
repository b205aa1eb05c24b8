"""Runs that end badly, with a real nsys: what was collected is kept and analysed, no process and no half-written
file is left, and the script's status is its own.

What the script itself does (exceptions, exits, signals, forks) is in test_session; here the script, nsys or the disk
does not do its part, and `nsysalign run` is started as a user starts it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nsysalign.collect import nsys as nsys_module
from nsysalign.collect.convert import convert
from nsysalign.collect.nsys import describe, export_sqlite
from nsysalign.collect.processes import end_all, of_run
from nsysalign.collect.rundir import write_whole
from nsysalign.collect.session import recover
from nsysalign.errors import NsysError

from .conftest import FAKE_TORCH, ROOT, read_log
from .test_session import PAIRS, wait_for

RUNS = "nsysalign-runs"


@dataclass
class User:
    """Somebody who types `nsysalign run` in a folder."""

    folder: Path
    env: dict[str, str]
    started: list[subprocess.Popen] = field(default_factory=list)

    def run(
        self, text: str, *options: str, script: str = "script.py", prefix: tuple[str, ...] = (),
        program: tuple[str, ...] = ("-m", "nsysalign"),
    ) -> subprocess.Popen:  # fmt: skip
        (self.folder / script).write_text(PAIRS + text)
        self.started.append(
            subprocess.Popen(
                [*prefix, sys.executable, *program, "run", *options, script],
                cwd=self.folder, env=self.env, text=True, start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        return self.started[-1]

    def run_dirs(self) -> list[Path]:
        return sorted(p for p in (self.folder / RUNS).iterdir())

    def the_end(self, process: subprocess.Popen, seconds: float = 90) -> tuple[int, str, str]:
        """Status, stdout and stderr; and nothing lives on or lies about half-written."""
        out, err = process.communicate(timeout=seconds)
        for run_dir in self.run_dirs():
            assert of_run(run_dir) == [], "no process is left behind"
            assert not [p.name for p in run_dir.rglob("*") if "partial" in p.name], err
            for log in run_dir.glob("events-*.jsonl"):
                assert read_log(log)[0]["type"] == "header"
        return process.returncode, out, err

    def elapsed(self, run_dir: Path) -> int:
        lines = [line for log in run_dir.glob("events-*.jsonl") for line in read_log(log)]
        return sum(line["type"] == "elapsed" for line in lines)


@pytest.fixture
def user(tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSALIGN", "NSYS_"))}
    env |= {"PYTHONPATH": os.pathsep.join([str(FAKE_TORCH), str(ROOT)])}
    somebody = User(tmp_path, env)
    yield somebody
    for process in somebody.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    for run_dir in (tmp_path / RUNS).glob("*"):
        end_all(run_dir, grace_s=0)


@pytest.fixture
def real(user, nsys):
    user.env["NSYS"] = nsys.path
    return user


@pytest.fixture
def played(user, tmp_path):
    """`played(profile=, export=)`: a user whose nsys is a shell script; $APP runs the application."""

    def make(profile: str = "true", export: str = "exit 1") -> User:
        path = tmp_path / "tool" / "nsys"
        path.parent.mkdir()
        path.write_text(f"""#!/bin/bash
what=$1; shift
case "$what" in
  --version) echo "NVIDIA Nsight Systems version 2024.2.3.38"; exit;;
  profile) [ "$1" = --help ] && exit
    while [ "$1" != /bin/sh ]; do [ "$1" = -o ] && OUT=$2; shift; done
    APP() {{ NSYS_PROFILING_SESSION_ID=1 setsid "$@"; }}
    {profile};;
  export) OUT=$4; {export};;
esac
""")
        path.chmod(0o755)
        user.env["NSYS"] = str(path)
        return user

    return make


# --- the script ------------------------------------------------------------------------------------------------


@pytest.mark.nsys
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("import ctypes; ctypes.string_at(0)", 139),
        ("import os; os.abort()", 134),
        ("import os; os._exit(3)", 3),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137),
    ],
    ids=["segfault", "abort", "_exit", "SIGKILL"],
)
def test_a_script_that_dies_is_analysed_and_keeps_its_status(real, end, status):
    got, _, err = real.the_end(real.run(f"pair(300)\n{end}"))
    (run_dir,) = real.run_dirs()
    assert got == status and f"ended with status {status}" in err
    assert (
        real.elapsed(run_dir) == 300
        and json.loads((run_dir / "run.json").read_text())["exit_status"] == status
    )
    assert "no CUDA activity" in err, "the analysis was tried: the fake torch launches nothing"


@pytest.mark.nsys
def test_a_time_limit_stops_the_script_as_ctrl_c_does(real):
    process = real.run(
        """
import time
pair(5)
try:
    time.sleep(100)
finally:
    pair(1)
    print("cleaned up", flush=True)
""",
        "--timeout", "2",
    )  # fmt: skip
    status, out, err = real.the_end(process)
    (run_dir,) = real.run_dirs()
    assert status == 130 and out.startswith("cleaned up\n") and real.elapsed(run_dir) == 6
    assert "note: the script was stopped after 2 s (--timeout)" in err


@pytest.mark.nsys
def test_a_script_that_ends_in_time_knows_of_no_limit(real):
    status, _, err = real.the_end(real.run("pair()", "--timeout", "60"))
    assert status == 3 and "--timeout" not in err, "3: the fake torch leaves nothing to analyse"


@pytest.mark.nsys
@pytest.mark.parametrize("how", ["timeout", "ctrl-c"])
def test_a_script_that_does_not_listen_is_stopped_harder(real, how):
    """SIGINT, after a while SIGTERM, after a while SIGKILL: by the time limit's clock, or each at another Ctrl-C."""
    (real.folder / "impatient.py").write_text("""
import sys
from nsysalign.collect import launch
launch.GRACE_S = 1.0
from nsysalign.cli import main
main(sys.argv[1:])
""")
    text = """
import pathlib, signal, subprocess, time
for n in (signal.SIGINT, signal.SIGTERM):
    signal.signal(n, signal.SIG_IGN)
subprocess.Popen(["sleep", "100"], start_new_session=True)
pair(4)
pathlib.Path("started").touch()
time.sleep(100)
"""
    options = ("--timeout", "1.5") if how == "timeout" else ()
    process = real.run(text, *options, program=("impatient.py",))
    if how == "ctrl-c":
        wait_for(real.folder / "started")
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(1.2)
    status, *_ = real.the_end(process)
    (run_dir,) = real.run_dirs()
    assert status == 137 and real.elapsed(run_dir) == 4, "its child in another session is gone as well"


@pytest.mark.nsys
def test_sigterm_to_us_stops_the_script_and_keeps_all(real):
    process = real.run("import pathlib, time\npair(7)\npathlib.Path('started').touch()\ntime.sleep(100)")
    wait_for(real.folder / "started")
    process.terminate()
    status, *_ = real.the_end(process)
    (run_dir,) = real.run_dirs()
    assert status == 143 and real.elapsed(run_dir) == 7 and (run_dir / "trace.sqlite").is_file()


@pytest.mark.nsys
def test_two_runs_at_once_in_one_folder(real):
    both = [real.run(f"pair({n})", script=f"script{n}.py") for n in (2, 3)] + [real.run("pair(4)")]
    for process in both:  # all of them first: the end of one says nothing about the others' processes
        process.wait(timeout=90)
    for process in both:
        real.the_end(process)
    assert [(p.name, real.elapsed(p)) for p in real.run_dirs()] == [
        ("script-001", 4), ("script2-001", 2), ("script3-001", 3)
    ]  # fmt: skip
    assert all((p / "trace.sqlite").is_file() for p in real.run_dirs())


@pytest.mark.nsys
def test_when_we_are_killed_the_logs_can_still_be_made(real):
    """nsys and the script do not notice: they end by themselves, and the probe's files are whole."""
    process = real.run("import pathlib, time\npair(8)\npathlib.Path('started').touch()\ntime.sleep(2)")
    wait_for(real.folder / "started")
    (run_dir,) = real.run_dirs()
    process.kill()
    assert recover(run_dir) == [], "the run goes on without us"
    deadline = time.monotonic() + 30
    while of_run(run_dir) and time.monotonic() < deadline:
        time.sleep(0.1)
    (log,) = recover(run_dir)
    assert real.elapsed(run_dir) == 8 and (run_dir / "trace.nsys-rep").is_file()
    first = next(r for r in read_log(log) if r["type"] == "record" and "calibration" not in r)
    assert first["site"] == "script.py:6"
    assert recover(run_dir) == []


# --- the disk --------------------------------------------------------------------------------------------------


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process ended meanwhile
        return b""


def small_disk(folder: Path, size: str) -> tuple[str, ...]:
    """A command prefix under which `folder` lies on a disk of this size, or the test is skipped."""
    folder.mkdir()
    mount = f'mount -t tmpfs -o size={size} none "{folder}" && exec "$@"'
    prefix = ("unshare", "-Urm", "sh", "-c", mount, "sh")
    if not shutil.which("unshare") or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    return prefix


def test_a_full_disk_does_not_touch_the_program(tmp_path):
    """A store into a mapped page that has no block would end the program with SIGBUS."""
    prefix = small_disk(tmp_path / "raw", "4m")
    (tmp_path / "script.py").write_text(PAIRS + "pair(50_000)\nprint('done')\n")
    keep = f"{sys.executable} script.py; echo $?; cp -r raw kept; rm -rf raw/*"
    env = {
        **os.environ, "NSYSALIGN_DIR": str(tmp_path), "NSYSALIGN_CALIBRATE": "0",
        "PYTHONPATH": f"{ROOT}/nsysalign/collect/probe_path:{FAKE_TORCH}",
    }  # fmt: skip
    done = subprocess.run(
        [*prefix, "sh", "-c", keep], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("done\n0\n", "")
    (log,) = convert(tmp_path / "kept", tmp_path, tmp_path)
    lines = read_log(log)
    assert sum(line["type"] == "elapsed" for line in lines) > 10_000, "what fitted is kept"
    said = [line for line in lines if line["type"] == "note" and "No space left" in line.get("text", "")]
    errors = [p.read_text() for p in (tmp_path / "kept").glob("*.errors")]
    assert said or "No space left" in "".join(errors)


@pytest.mark.nsys
def test_a_disk_that_is_full_afterwards_leaves_no_half_file(real):
    prefix = small_disk(real.folder / RUNS, "3m")
    listing = f'"$@"; s=$?; find {RUNS} -type f -printf "%f\\n" >files; exit $s'
    process = real.run("pair(20_000)\nprint('done')", prefix=(*prefix, "sh", "-c", listing, "sh"))
    out, err = process.communicate(timeout=90)
    assert process.returncode == 3 and out == "done\n", err
    assert "No space left" in err and "next: free some space" in err and "Traceback" not in err
    names = (real.folder / "files").read_text().split()
    assert not [n for n in names if "partial" in n or n.startswith("events-")] and any(
        n.endswith(".rec") for n in names
    )


def test_what_has_its_final_name_is_whole(tmp_path):
    def lines():
        yield "one"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "x.jsonl", lines())
    assert list(tmp_path.iterdir()) == []
    assert write_whole(tmp_path / "x.jsonl", ['"\udcff"', "two"]) == 2
    assert (tmp_path / "x.jsonl").read_text() == '"\\udcff"\ntwo\n'


# --- nsys ------------------------------------------------------------------------------------------------------


def test_an_nsys_that_crashes_leaves_the_event_logs(played):
    user = played(profile='APP "$@" & sleep 1; kill -9 $$')
    status, _, err = user.the_end(user.run("import time\npair(6)\ntime.sleep(100)"))
    (run_dir,) = user.run_dirs()
    assert (
        status == 3 and "left no report (it was ended from outside)" in err and "1 event logs are kept" in err
    )
    assert user.elapsed(run_dir) == 6, "the script, which ran on as an orphan, was ended"


@pytest.mark.nsys
def test_a_report_whose_import_failed_is_imported_again(real):
    """nsys's own importer breaks down now and then and leaves the raw stream: here it is killed."""
    process = real.run("import nsysalign\npair(20_000)")
    killed = 0
    while process.poll() is None and not killed:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = read_bytes(path).split(b"\0")
            if words[0].endswith(b"QdstrmImporter") and str(real.folder).encode() in b" ".join(words):
                os.kill(int(path.parent.name), signal.SIGKILL)
                killed += 1
    real.the_end(process)
    (run_dir,) = real.run_dirs()
    assert killed and (run_dir / "trace.nsys-rep").stat().st_size and (run_dir / "trace.sqlite").is_file()
    assert not (run_dir / "trace.qdstrm").exists() and real.elapsed(run_dir) == 20_000


def test_an_nsys_that_loses_the_report_in_silence(played):
    user = played(profile='APP "$@"; echo "Generated: nothing"; exit 0')
    status, out, err = user.the_end(user.run("pair(6)\nprint('out')"))
    (run_dir,) = user.run_dirs()
    assert (status, out) == (3, "out\n") and "left no report (exit status 0): Generated: nothing" in err
    assert user.elapsed(run_dir) == 6


@pytest.mark.parametrize(
    "export",
    ["exit 1", "kill -9 $$", 'printf half >"$OUT"; exit 0', 'touch "$OUT"'],
    ids=["fails", "crashes", "garbage", "empty"],
)
def test_an_export_that_fails_leaves_report_and_logs(played, export):
    user = played(profile='APP "$@"; echo report >"$OUT.nsys-rep"', export=export)
    status, _, err = user.the_end(user.run("pair(6)"))
    (run_dir,) = user.run_dirs()
    assert status == 3 and "nsys export left no SQLite file" in err and "next: check the free space" in err
    assert (run_dir / "trace.nsys-rep").is_file() and not (run_dir / "trace.sqlite").exists()
    assert user.elapsed(run_dir) == 6


def test_an_export_that_hangs_is_stopped(played, tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_module, "STALL_S", 0.5)
    user = played(
        export='printf "SQLite format 3\\000" >"$OUT"; echo "Processing 5 events: [= 7%]" >&2; sleep 98765'
    )
    tool = describe(user.env["NSYS"])
    began = time.monotonic()
    with pytest.raises(NsysError, match=r"nsys export did nothing for 0.5 s and was stopped") as error:
        export_sqlite(tool, tmp_path / "trace.nsys-rep", tmp_path / "trace.sqlite")
    assert time.monotonic() - began < 10 and "nsysalign analyze" in error.value.next_step
    assert not list(tmp_path.glob("trace*"))
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"98765" in read_bytes(p)], (
        "its child is gone"
    )


def test_signals_during_the_export_are_held(played):
    slow = 'touch "$(dirname "$OUT")/exporting"; sleep 1; printf "SQLite format 3\\000" >"$OUT"'
    user = played(profile='APP "$@"; echo report >"$OUT.nsys-rep"', export=slow)
    process = user.run("pair(6)")
    wait_for(user.folder / RUNS / "script-001" / "exporting")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.killpg(process.pid, number)
    _, _, err = user.the_end(process)
    assert err.count("finishing the run directory, please wait") == 3
    assert (user.run_dirs()[0] / "trace.sqlite").is_file() and (user.run_dirs()[0] / "run.json").is_file()


def test_an_export_that_is_slow_but_works_is_waited_for(played, tmp_path, monkeypatch):
    monkeypatch.setattr(nsys_module, "STALL_S", 1.5)
    steps = (
        'for i in 1 2 3 4; do sleep 0.6; echo "[= ${i}0%]" >&2; done; printf "SQLite format 3\\000" >"$OUT"'
    )
    tool = describe(played(export=steps).env["NSYS"])
    seen: list[int] = []
    export_sqlite(tool, tmp_path / "trace.nsys-rep", tmp_path / "trace.sqlite", seen.append)
    assert seen == [10, 20, 30, 40] and (tmp_path / "trace.sqlite").is_file()
