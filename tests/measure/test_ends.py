"""`nsysalign measure` as a process: how each way of ending looks from outside, and what is left of
the numbers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import CALLS, SIMULATED

ROOT = Path(__file__).parents[2]
FAKE_NVML = ROOT / "tests" / "fakenvml"
GPUS = {"FAKE_NVML_NAMES": "NVIDIA H200,NVIDIA H200"}


def ended(folder, *arguments, path=(), **env):
    """(status, standard error, the measurement or None)."""
    done = subprocess.run(
        [sys.executable, "-m", "nsysalign", "measure", "--backend", SIMULATED, "--no-profile", "-q", "-o", "out", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120,
        env={k: v for k, v in os.environ.items() if not k.startswith("CUDA_")}
        | {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), **env},
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    file = folder / "out" / "measure.json"
    return done.returncode, done.stderr, json.loads(file.read_text()) if file.exists() else None


@pytest.mark.parametrize("batch", [[], ["--batch", "auto", "--budget", "20s"]])
@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("fails_in_warm_up", "ValueError: the third call is one too many"),
        ("dies", "exit status 7"),
        ("no_work", "does no work on the current stream"),
        ("absent", "calls.py:absent: "),
    ],
)
def test_where_nothing_was_measured_it_says_why_and_leaves_no_number(tmp_path, call, words, batch):
    found, said, kept = ended(tmp_path, f"{CALLS}:{call}", "--processes", "1", *batch)
    assert found == 3 and words in said and kept is None


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="a GPU is here")
@pytest.mark.parametrize("batch", ["1", "auto"])
def test_without_a_gpu_it_says_so(tmp_path, batch):
    found, said, kept = ended(tmp_path, f"{CALLS}:default", "--backend", "cuda", "--batch", batch)
    assert found == 3 and ("no CUDA device" in said or "torch" in said) and kept is None


def test_an_exception_in_the_middle_keeps_the_blocks_and_fails(tmp_path):
    status, _, kept = ended(tmp_path, f"{CALLS}:fails_late", "--mode", "event", "--processes", "1")
    assert status == 3 and sum(len(b["ns"]) for b in kept["blocks"]) > 0
    assert any("after a while" in n for n in kept["notes"]) and kept["complete"]


def test_memory_that_ends_at_one_batch_keeps_the_others_and_fails(tmp_path):
    given = [f"{CALLS}:oom_torch", "--mode", "event", "--processes", "1", "--batch", "1,16"]
    status, _, kept = ended(tmp_path, *given)
    assert status == 3 and {r["batch"] for r in kept["runs"] if not r["failure"]} == {1}
    assert any("out of memory" in n for n in kept["notes"])


def test_memory_that_ends_a_search_is_no_failure(tmp_path):
    given = [f"{CALLS}:oom_torch", "--processes", "1", "--batch", "auto", "--budget", "30s"]
    status, said, kept = ended(tmp_path, *given)
    assert status == 0, said
    assert kept["search"]["failed_at"] and kept["search"]["largest"]


def test_clocks_are_held_while_it_measures_and_let_go(tmp_path):
    log = tmp_path / "nvml.log"
    given = [f"{CALLS}:default", "--mode", "event", "--processes", "1", "--lock-clocks", "1500"]
    status, said, kept = ended(tmp_path, *given, path=[FAKE_NVML], FAKE_NVML_LOG=str(log), **GPUS)
    assert status == 0, said
    assert any("were locked at 1500 MHz" in n for n in kept["notes"])
    held = "lock 0 1500 1500 lock 1 1500 1500 reset 0 reset 1"
    assert log.read_text().split() == held.split()


@pytest.mark.parametrize(
    ("mhz", "deny", "words", "calls"),
    [
        ("1500", "4", "could not be locked at 1500 MHz", "reset 0 reset 1"),
        ("1234", "", "does not support an SM clock of 1234 MHz", "reset 0 reset 1"),
    ],
)
def test_clocks_that_cannot_be_held_end_it_before_anything_is_measured(
    tmp_path, mhz, deny, words, calls
):
    log = tmp_path / "nvml.log"
    log.touch()
    env = GPUS | {"FAKE_NVML_LOG": str(log)} | ({"FAKE_NVML_DENY": deny} if deny else {})
    status, said, kept = ended(
        tmp_path, f"{CALLS}:default", "--lock-clocks", mhz, path=[FAKE_NVML], **env
    )
    assert status not in (0, 1) and words in said and kept is None
    assert " ".join(log.read_text().split()) == calls
