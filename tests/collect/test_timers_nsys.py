"""Host timers under a real nsys, without a GPU: the readings arrive, and the script does not
notice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .conftest import FAKE_TORCH, ROOT, read_log

pytestmark = pytest.mark.nsys

SCRIPT = """
import sys, time, torch
t0 = time.perf_counter()
torch.cuda.init()
t1 = time.perf_counter()
print(type(time.time), isinstance(t0, float), t1 > t0, file=sys.stderr)
print(sys.argv[1:])
sys.exit(5)
"""


def start(nsys, folder, *options: str) -> subprocess.Popen:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSALIGN", "NSYS_"))}
    env |= {
        "NSYS": nsys.path,
        "PYTHONPATH": os.pathsep.join([str(FAKE_TORCH), str(ROOT)]),
        "TMPDIR": str(folder),
    }
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "-m", "nsysalign", "run", "-q", *options, "script.py", "x"],
        cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen, folder) -> tuple[int, str, list]:
    out, _ = process.communicate(timeout=120)
    return (
        process.returncode,
        out,
        [read_log(p) for p in folder.glob("nsysalign-runs/*/events-*.jsonl")],
    )


def test_readings_arrive_and_output_and_status_are_the_same_with_and_without(nsys, tmp_path):
    both = start(nsys, tmp_path / "with"), start(nsys, tmp_path / "without", "--no-host-timers")
    status, out, (log,) = finish(both[0], tmp_path / "with")
    without_status, without_out, logs = finish(both[1], tmp_path / "without")
    assert (status, out) == (without_status, without_out) == (5, "['x']\n")
    assert logs == [], "nothing else to log: no event was recorded"
    readings = [line for line in log if line["type"] == "clock_reading"]
    known = {line["number"]: line["site"] for line in log if line["type"] == "clock_site"}
    assert [known[r["site"]] for r in readings] == ["script.py:3", "script.py:5"]
    assert (
        log[0]["nvtx"] == "injection"
        and len([line for line in log if line["type"] == "sync"]) == 50
    ), (
        "the burst of marks that ties the clock to the trace's: at the end, as nothing but readings was logged"
    )
