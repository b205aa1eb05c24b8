"""Locking the SM clock: with a fake NVML, in processes of their own.  Whatever ends the run, the
clocks are let go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

FAKE = Path(__file__).parent / "fakenvml"
ROOT = Path(__file__).resolve().parents[2]

HOLD = """
import sys, time
from nsysalign.record.lock import locked
from nsysalign.errors import NsysAlignError
try:
    with locked(int(sys.argv[1])) as said:
        print(*said, flush=True)
        exec(sys.argv[2])
    print("after", flush=True)
except NsysAlignError as error:
    print(type(error).__name__, error, flush=True)
"""


class Held:
    """A process that holds the clocks while it runs a line of Python."""

    def __init__(self, tmp_path: Path, line: str, mhz: int = 1500, **env: str) -> None:
        self.log = tmp_path / "nvml.log"
        self.log.write_text("")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        path = os.pathsep.join([str(FAKE), str(ROOT)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(mhz), line],
            env={**clean, "PYTHONPATH": path, "FAKE_NVML": str(self.log), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def first(self) -> str:
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str, list[str]]:
        out, err = self.process.communicate(timeout=120)
        assert "could not be reset" not in err
        return self.process.returncode, out.strip(), self.calls()

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


LOCKED = ["lock 0 1500 1500", "lock 1 1500 1500"]
RESET = ["reset 0", "reset 1"]


def test_locked_while_it_runs_and_said(tmp_path):
    held = Held(tmp_path, "print(open(__import__('os').environ['FAKE_NVML']).read().count('lock'))")
    status, out, calls = held.end()
    assert (status, calls) == (0, LOCKED + RESET)
    assert out.splitlines() == [
        "SM clocks of 2 GPUs (NVIDIA H200) were locked at 1500 MHz during the run (--lock-clocks)", "2", "after"
    ]  # fmt: skip


@pytest.mark.parametrize("line", ["1 / 0", "raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_every_exception_lets_go(tmp_path, line):
    status, _, calls = Held(tmp_path, line).end()
    assert status != 0 and calls == LOCKED + RESET


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_signal_lets_go_even_when_it_comes_twice(tmp_path, number):
    held = Held(tmp_path, "time.sleep(600)")
    held.first()
    held.process.send_signal(number)
    held.process.send_signal(number)
    status, out, _ = held.end()
    wait_until(lambda: len(held.calls()) >= 4, "the clocks stay locked")
    assert status != 0 and held.calls() == LOCKED + RESET and "after" not in out


def test_a_killed_process_has_a_guardian(tmp_path):
    held = Held(tmp_path, "time.sleep(600)")
    held.first()
    held.process.kill()
    held.process.wait()
    wait_until(lambda: len(held.calls()) >= 4, "the clocks stay locked")
    assert held.calls() == LOCKED + RESET


def test_only_the_gpus_the_script_can_see(tmp_path):
    for visible, number in (("1", 1), ("GPU-0abc", 0), (" 0 ", 0)):
        _, _, calls = Held(tmp_path, "pass", CUDA_VISIBLE_DEVICES=visible).end()
        assert calls == [f"lock {number} 1500 1500", f"reset {number}"]


REFUSED = [
    ({"FAKE_NVML_DENY": "4"}, 1500, "NsysError no permission to lock clocks", "as root"),
    ({"FAKE_NVML_DENY": "3"}, 1500, "NsysError NVIDIA H200 cannot lock its clocks", "leave out"),
    ({"FAKE_NVML_BROKEN": "1"}, 1500, "NsysError NVML does not start", "nvidia-smi"),
    ({}, 1450, "UsageError NVIDIA H200 does not support an SM clock of 1450 MHz", "1200 and 1500"),
    ({"CUDA_VISIBLE_DEVICES": ""}, 1500, "UsageError --lock-clocks: no GPU is visible", "CUDA_VISIBLE_DEVICES"),
    ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, 1500, "UsageError --lock-clocks: a MIG slice", "leave out"),
    ({"CUDA_VISIBLE_DEVICES": "GPU-"}, 1500, "UsageError --lock-clocks: CUDA_VISIBLE_DEVICES names GPU-", "no single GPU of that name"),
    (
        {"CUDA_VISIBLE_DEVICES": "0", "FAKE_NVML_GPUS": "A,B"}, 1500, "UsageError --lock-clocks: CUDA numbers",
        "PCI_BUS_ID",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("env", "mhz", "message", "step"), REFUSED)
def test_refusals_say_what_to_do_and_lock_nothing(tmp_path, env, mhz, message, step):
    status, out, calls = Held(tmp_path, "print('ran')", mhz, **env).end()
    assert status == 0 and message in out and step in out and "ran" not in out
    assert not any(call.startswith("lock") for call in calls)


def test_one_gpu_that_refuses_frees_the_others(tmp_path):
    _, out, calls = Held(tmp_path, "print('ran')", FAKE_NVML_DENY="@4").end()
    assert "no permission" in out and calls == ["lock 0 1500 1500", *RESET]


@pytest.mark.nsys
def test_a_run_with_locked_clocks_says_so_in_its_folder(tmp_path, nsys):
    (tmp_path / "s.py").write_text("print('hello')\n")
    log = tmp_path / "nvml.log"
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("CUDA_", "NSYSALIGN", "NSYS_"))
    }
    env = {
        **clean,
        "PYTHONPATH": os.pathsep.join([str(FAKE), str(ROOT)]),
        "FAKE_NVML": str(log),
        "NSYS": nsys.path,
    }
    done = subprocess.run(
        [sys.executable, "-m", "nsysalign", "run", "--lock-clocks", "1500", "-o", "R", "s.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "hello" in done.stdout and log.read_text().splitlines() == LOCKED + RESET
    from nsysalign.rundir import RunDirectory

    assert RunDirectory(tmp_path / "R").conditions() == (
        "SM clocks of 2 GPUs (NVIDIA H200) were locked at 1500 MHz during the run (--lock-clocks)",
    )
