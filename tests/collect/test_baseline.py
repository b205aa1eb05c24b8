"""`nsysalign run --baseline`: the same command once more without nsys, in its own folder, never in
the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from waiting import wait_for

from nsysalign.record.command import probe_environment
from nsysalign.record.session import baseline_logs

from .conftest import FAKE_TORCH, ROOT, read_log

SCRIPT = """
import os, sys, torch
profiled = "NSYS_PROFILING_SESSION_ID" in os.environ
print("under nsys" if profiled else "alone", *sys.argv[1:], os.environ.get("MINE"), flush=True)
for _ in range(3):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record()
    b.record()
    a.elapsed_time(b)
"""


@pytest.fixture
def environment(tmp_path, monkeypatch):
    for name in [n for n in os.environ if n.startswith(("NSYSALIGN", "NSYS_"))]:
        monkeypatch.delenv(name)
    path = os.pathsep.join([str(FAKE_TORCH), str(ROOT)])
    for name, value in (("PYTHONPATH", path), ("TMPDIR", str(tmp_path)), ("MINE", "kept")):
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.nsys
def test_both_runs_one_after_the_other(environment, real):
    text = "sys.exit(0 if profiled else 5)"
    process = real.run(text, "--baseline", "-o", "run", begin=SCRIPT)
    out, err = process.communicate(timeout=120)
    assert out.splitlines()[:2] == ["under nsys kept", "alone kept"]
    assert err.index("running once more without nsys") < err.index("did no CUDA work")
    (log,) = (environment / "run" / "baseline").glob("events-*.jsonl")
    header = read_log(log)[0]
    assert header["baseline"] is True and header["nvtx"] == "none"
    assert (header["exit_status"], header["profiled_exit_status"]) == (5, 0)
    assert process.returncode == 4  # of the analysis: the fake torch leaves no CUDA rows
    mine = [x for x in read_log(log) if x["type"] == "elapsed"]
    (profiled,) = (environment / "run").glob("events-*.jsonl")
    assert len(mine) == len([x for x in read_log(profiled) if x["type"] == "elapsed"]) == 3
    assert "baseline" not in read_log(profiled)[0]


@pytest.mark.nsys
def test_a_stopped_run_is_not_run_again(environment, real):
    sleep = "import time; open('began', 'w').close(); time.sleep(60 if profiled else 0)"
    process = real.run(sleep, "--baseline", "-o", "run", begin=SCRIPT)
    wait_for(environment / "began")  # on a busy machine nsys takes seconds to start it
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert "alone" not in out and "not repeated without nsys" in err
    assert not (environment / "run" / "baseline").exists()


def test_ctrl_c_reaches_the_script_and_keeps_what_it_measured(environment):
    sleep = "import time; open('ready', 'w').close(); time.sleep(600)"
    (environment / "script.py").write_text(SCRIPT + sleep)
    (environment / "run").mkdir()
    text = (
        "from pathlib import Path; from nsysalign.record.session import collect_baseline as c; import sys;"
        "r = c(['script.py'], Path('run'), profiled_status=0); print(len(r.event_logs), r.exit_status)"
    )
    command = [sys.executable, "-c", text]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    wait_for(environment / "ready")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert out.splitlines()[-1].split() == ["1", "130"]


def test_raw_files_of_a_killed_run_become_logs_later(environment):
    """A probe that was at work when we were killed: its raw files, nothing else."""
    (environment / "script.py").write_text(SCRIPT)
    assert baseline_logs(environment) == []  # no run without nsys there
    baseline = environment / "killed" / "baseline"
    (baseline / "raw").mkdir(parents=True)
    env = probe_environment(os.environ, baseline, calibrate=False)
    subprocess.run([sys.executable, "script.py"], env=env, check=True, stdout=subprocess.DEVNULL)
    (log,) = baseline_logs(environment / "killed")
    header = read_log(log)[0]
    assert header["baseline"] is True and header["stopped"] is True
    assert baseline_logs(environment / "killed") == [log]
