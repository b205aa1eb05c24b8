"""The whole command with a real nsys.  The torch is the fake one: nothing can be placed, and that
is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import runs

TESTS = Path(__file__).parents[1]
# the simulator's log says that its start records are made in line 10 of bench.py, in a region named
# t1
BENCH = """\
import sys
import torch
import nsysalign


@nsysalign.region("t1")
def step():
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    # the next one is the start record
    a.record()
    b.record()
    a.elapsed_time(b)


for _ in range(4):
    step()
print(sys.argv[1:], [d[0] for d in torch.cuda.done])
"""


@pytest.mark.nsys
def test_the_second_run_has_the_change_and_says_so(tmp_path):
    (tmp_path / "bench.py").write_text(BENCH)
    runs.run(tmp_path / "R", runs.host_gap)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSALIGN", "NSYS_"))}
    path = os.pathsep.join([str(TESTS / "collect" / "faketorch"), str(TESTS.parent)])
    command = ["confirm", "--from", "R", "--no-calibrate", "--label", "t1", "bench.py", "x"]
    done = subprocess.run(
        [sys.executable, "-m", "nsysalign", *command], cwd=tmp_path,
        env={**env, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert str(["sleep", "record", "record"] * 3)[1:-1] in done.stdout and "['x'] " in done.stdout
    assert "unclear: t1 (host-gap): the second run has no interval t1 at which" in done.stdout
    (log,) = (tmp_path / "R" / "confirm" / "t1-delay-1").glob("events-*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [r.get("intervened") for r in lines if r["type"] == "record"] == [True, None] * 4
    assert any("a delay kernel of 1,000 us" in line.get("text", "") for line in lines)
