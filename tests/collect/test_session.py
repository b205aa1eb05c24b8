"""A real nsys around real scripts: output, status, what a run leaves; and the same command once
more without nsys, in its own folder.  torch is the fake one."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from waiting import wait_for

from nsysalign.record.command import probe_environment
from nsysalign.record.session import recover
from nsysalign.trace.samples import read_clock_samples

from .logs import read_log
from .test_clocks import FAKE_NVML
from .user import PAIRS, elapsed

TEXT = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"


@pytest.mark.nsys
def test_what_a_run_leaves_and_everything_of_the_script_is_its_own(real):
    """Samples of the GPU's clock, clock marks and ranges of regions in the trace; private files that
    name no folder."""
    text = """
import nsysalign, os, sys, time
pair(3)
for _ in range(2):
    with nsysalign.region("work"):
        pair()
while open(os.environ["NSYSALIGN_DIR"] + "/clocks.jsonl").read().count("\\n") < 9:
    time.sleep(0.05)
print("out", sys.argv[1:], os.getcwd() == sys.path[0], sys.stdin.read())
print("err", file=sys.stderr)
sys.exit(3)
"""
    real.env["PYTHONPATH"] += os.pathsep + str(FAKE_NVML)
    (real.folder / "script.py").write_text(PAIRS + text)
    command = [sys.executable, "-m", "nsysalign", "run", "-q", "script.py", "--x", "-o", "a b"]
    done = subprocess.run(
        command, cwd=real.folder, env=real.env, input="typed", capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "out ['--x', '-o', 'a b'] True typed\n")
    assert done.stderr == "err\n", "nothing of nsys's"
    (run_dir,) = real.run_dirs()
    names = {"nsys.log", "run.json", "trace.nsys-rep", "trace.sqlite", "clocks.jsonl"}
    assert {p.name for p in run_dir.iterdir()} >= names and not (run_dir / "raw").exists()
    samples, notes = read_clock_samples(run_dir / "clocks.jsonl")
    assert notes == [] and len(samples) >= 8
    (log,) = run_dir.glob("events-*.jsonl")
    lines = read_log(log)
    assert lines[0]["nvtx"] == "injection" and elapsed(run_dir) == 5
    with closing(sqlite3.connect(f"file:{run_dir / 'trace.sqlite'}?mode=ro", uri=True)) as db:
        marks, rows = (
            db.execute(f"SELECT {columns}, int64Value FROM NVTX_EVENTS WHERE {which}").fetchall()
            for columns, which in (
                ("start", f"{TEXT} = 'nsysalign:sync'"), (f"end - start, {TEXT}", "eventType = 60")
            )
        )  # fmt: skip
    sync = {line["payload"]: line for line in lines if line["type"] == "sync"}
    assert len(marks) == 100 and set(sync) <= {payload for _, payload in marks}
    lower = max(at - sync[p]["after_ns"] for at, p in marks if p in sync)
    upper = min(at - sync[p]["before_ns"] for at, p in marks if p in sync)
    assert -2_000 < upper - lower < 20_000, "one offset fits every mark, and it is known well"
    names = [(name, payload) for _, name, payload in rows]
    assert names.count(("work", 0)) == 1 and names.count(("work", 1)) == 1
    assert all(0 < length < 1_000_000_000 for length, *_ in rows)
    assert run_dir.stat().st_mode & 0o777 == 0o700
    for path in (run_dir / "run.json", log):
        assert str(real.folder) not in path.read_text()


@pytest.mark.nsys
def test_stdout_is_the_analysis_when_it_was_asked_for(real):
    text = "import sys; print('to out'); print('to err', file=sys.stderr)"
    process = real.run(text, "--no-clocks", "--json", "-", "-o", "out", begin="")
    out, err = process.communicate(timeout=120)
    assert out == "", "it measured nothing, so there is no analysis: not a word of its own either"
    assert "to out\n" in err and "to err\n" in err
    assert json.loads((real.folder / "out" / "run.json").read_text())["profiled_s"] > 0
    assert "not sampled" not in err and not (real.folder / "out" / "clocks.jsonl").exists()


PROGRAM = """
import sys, torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
original = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda a, b: original(a, b) / 2
a.record()
b.record()
a.elapsed_time(b)
if "restored" in sys.argv:
    torch.cuda.Event.elapsed_time = original
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.nsys
def test_a_script_is_run_then_checked(whole):
    (whole.folder / "script.py").write_text(PROGRAM)
    ways = {"5": 5, "0 restored": 1}
    command = [sys.executable, "-m", "nsysalign", "check", "--json"]
    checks = [
        subprocess.Popen(
            [*command, f"{status}.json", "script.py", *ends.split()], cwd=whole.folder, env=whole.env,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for ends, status in ways.items()
    ]  # fmt: skip
    for process, status in zip(checks, ways.values(), strict=True):
        out, err = process.communicate(timeout=240)
        assert process.returncode == status, err
        assert "! The program replaced torch.cuda.Event.elapsed_time" in out
        doubts = json.loads((whole.folder / f"{status}.json").read_text())["doubts"]
        assert {doubt["check"] for doubt in doubts} == {"replaced-timer", "nothing-inside"}


TWICE = """
import os, sys, torch
profiled = "NSYS_PROFILING_SESSION_ID" in os.environ
print("under nsys" if profiled else "alone", *sys.argv[1:], os.environ.get("MINE"), flush=True)
for _ in range(3):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    b.record()
    a.elapsed_time(b)
"""


@pytest.mark.nsys
def test_both_runs_one_after_the_other(real):
    real.env["MINE"] = "kept"
    text = "sys.exit(0 if profiled else 5)"
    process = real.run(text, "--baseline", "-o", "run", begin=TWICE)
    out, err = process.communicate(timeout=120)
    assert out.splitlines()[:2] == ["under nsys kept", "alone kept"]
    assert err.index("running once more without nsys") < err.index("did no CUDA work")
    (log,), (profiled,) = (
        (real.folder / f).glob("events-*.jsonl") for f in ("run/baseline", "run")
    )
    header = read_log(log)[0]
    assert header["baseline"] is True and header["nvtx"] == "none"
    assert (header["exit_status"], header["profiled_exit_status"]) == (5, 0)
    assert process.returncode == 4  # of the analysis: the fake torch leaves no CUDA rows
    pairs = [sum(x["type"] == "elapsed" for x in read_log(path)) for path in (log, profiled)]
    assert pairs == [3, 3] and "baseline" not in read_log(profiled)[0]


@pytest.mark.nsys
def test_a_stopped_run_is_not_run_again(real):
    sleep = "import time; open('began', 'w').close(); time.sleep(60 if profiled else 0)"
    process = real.run(sleep, "--baseline", "-o", "run", begin=TWICE)
    wait_for(real.folder / "began")  # on a busy machine nsys takes seconds to start it
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert "alone" not in out and "not repeated without nsys" in err
    assert not (real.folder / "run" / "baseline").exists()


def test_ctrl_c_reaches_the_script_and_keeps_what_it_measured(user):
    sleep = "import time; open('ready', 'w').close(); time.sleep(600)"
    (user.folder / "script.py").write_text(TWICE + sleep)
    (user.folder / "run").mkdir()
    text = (
        "from pathlib import Path; from nsysalign.record.session import collect_baseline as c; import sys;"
        "r = c(['script.py'], Path('run'), profiled_status=0); print(len(r.event_logs), r.exit_status)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text], cwd=user.folder, env=user.env, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    wait_for(user.folder / "ready")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert out.splitlines()[-1].split() == ["1", "130"]


def test_raw_files_of_a_killed_run_become_logs_later(user):
    """A probe that was at work when we were killed: its raw files, nothing else."""
    (user.folder / "script.py").write_text(TWICE)
    baseline = user.folder / "killed" / "baseline"
    (baseline / "raw").mkdir(parents=True)
    env = probe_environment(user.env, baseline, calibrate=False)
    command = [sys.executable, "script.py"]
    subprocess.run(command, cwd=user.folder, env=env, check=True, stdout=subprocess.DEVNULL)
    for _ in range(2):
        recover(user.folder / "killed")
    (log,) = baseline.glob("events-*")
    header = read_log(log)[0]
    assert header["baseline"] is True and header["stopped"] is True
