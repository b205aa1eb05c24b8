"""`nsysalign run --baseline`: the same command once more without nsys, in its own folder, never in
the way."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from waiting import wait_for

from nsysalign.record.command import probe_environment
from nsysalign.record.session import baseline_logs

from .user import read_log

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


@pytest.mark.nsys
def test_both_runs_one_after_the_other(real):
    real.env["MINE"] = "kept"
    text = "sys.exit(0 if profiled else 5)"
    process = real.run(text, "--baseline", "-o", "run", begin=SCRIPT)
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
    process = real.run(sleep, "--baseline", "-o", "run", begin=SCRIPT)
    wait_for(real.folder / "began")  # on a busy machine nsys takes seconds to start it
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert "alone" not in out and "not repeated without nsys" in err
    assert not (real.folder / "run" / "baseline").exists()


def test_ctrl_c_reaches_the_script_and_keeps_what_it_measured(user):
    sleep = "import time; open('ready', 'w').close(); time.sleep(600)"
    (user.folder / "script.py").write_text(SCRIPT + sleep)
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
    (user.folder / "script.py").write_text(SCRIPT)
    assert baseline_logs(user.folder) == []  # no run without nsys there
    baseline = user.folder / "killed" / "baseline"
    (baseline / "raw").mkdir(parents=True)
    env = probe_environment(user.env, baseline, calibrate=False)
    command = [sys.executable, "script.py"]
    subprocess.run(command, cwd=user.folder, env=env, check=True, stdout=subprocess.DEVNULL)
    for _ in range(2):
        (log,) = baseline_logs(user.folder / "killed")
    header = read_log(log)[0]
    assert header["baseline"] is True and header["stopped"] is True
