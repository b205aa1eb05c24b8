"""Locking the SM clock, with a fake NVML, in processes of their own: however the run ends, but for
SIGKILL, the clocks are let go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nsysalign.rundir import RunDirectory

from .conftest import ROOT
from .user import fresh_environment

FAKE = Path(__file__).parents[1] / "fakenvml"
GPUS = {"FAKE_NVML_NAMES": "NVIDIA H200,NVIDIA H200"}
HOLD = """
import sys, time
from nsysalign.cli import interruptible
from nsysalign.errors import NsysAlignError
from nsysalign.record.lock import locked
try:
    with interruptible(), locked(1500) as said:
        print(*said, flush=True)
        exec(sys.argv[1])
    print("after", flush=True)
except NsysAlignError as error:
    print(type(error).__name__, error, flush=True)
    sys.exit(3)
"""
LOCKED, RESET = ["lock 0 1500 1500", "lock 1 1500 1500"], ["reset 1", "reset 0"]
SAID = "SM clocks of 2 GPUs (NVIDIA H200) were locked at 1500 MHz during the run (--lock-clocks)"


def environment(log: Path) -> dict[str, str]:
    fresh = {k: v for k, v in fresh_environment(FAKE, ROOT).items() if not k.startswith("CUDA_")}
    return fresh | GPUS | {"FAKE_NVML_LOG": str(log)}


def hold(tmp_path: Path, line: str, send: int = 0, **env: str) -> tuple[int, str, list[str]]:
    """Run a line of Python with locked clocks: status, output, what NVML was told."""
    log = tmp_path / "nvml.log"
    log.write_text("")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, line], env=environment(log) | env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    out = process.stdout.readline()
    if send:
        out += process.stdout.readline()
        process.send_signal(send)
    out += process.stdout.read()
    process.wait(timeout=120)
    return process.returncode, out, log.read_text().splitlines()


@pytest.mark.parametrize(
    ("line", "send"),
    [("pass", 0), ("raise SystemExit(3)", 0), ("time.sleep(600)", 2), ("time.sleep(600)", 15)],
)
def test_locked_while_it_runs_and_let_go_at_every_end(tmp_path, line, send):
    status, out, calls = hold(tmp_path, line, send)
    assert calls == LOCKED + RESET and (status == 0) == ("after" in out) == (line == "pass")
    assert SAID in out and "if nsysalign is killed, this lets them go: sudo nvidia-smi -rgc" in out


def test_only_the_gpus_the_script_can_see(tmp_path):
    *_, calls = hold(tmp_path, "pass", CUDA_VISIBLE_DEVICES="GPU-secret-1")
    assert calls == ["lock 1 1500 1500", "reset 1"]


@pytest.mark.parametrize(
    ("env", "message", "step"),
    [
        ({"FAKE_NVML_DENY": "@4"}, "NsysError NVIDIA H200: its clock could not be locked", "as root"),
        ({"FAKE_NVML": "init"}, "NsysError NVML does not start", "nvidia-smi"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, "it is not clear which GPUs", "a MIG slice has no clock"),
        ({"CUDA_VISIBLE_DEVICES": "0", "FAKE_NVML_NAMES": "A,B"}, "not clear which", "PCI_BUS_ID"),
    ],
)  # fmt: skip
def test_refusals_say_what_to_do_and_leave_nothing_locked(tmp_path, env, message, step):
    status, out, calls = hold(tmp_path, "print('ran')", **env)
    assert status == 3 and message in out and step in out and "ran" not in out
    held, freed = ({c.split()[1] for c in calls if c.startswith(w)} for w in ("lock", "reset"))
    assert held <= freed


@pytest.mark.nsys
@pytest.mark.parametrize("how", [(), ("--no-nsys",)])
def test_a_run_with_locked_clocks_says_so(tmp_path, nsys, how):
    (tmp_path / "s.py").write_text("print('hello')\n")
    log = tmp_path / "nvml.log"
    done = subprocess.run(
        [sys.executable, "-m", "nsysalign", "run", "--lock-clocks", "1500", *how, "-o", "R", "s.py"],
        cwd=tmp_path, env=environment(log) | {"NSYS": nsys.path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "hello" in done.stdout and log.read_text().splitlines() == LOCKED + RESET
    assert RunDirectory(tmp_path / "R").conditions() == (SAID,)
    assert not how or SAID in " ".join(done.stdout.split())
