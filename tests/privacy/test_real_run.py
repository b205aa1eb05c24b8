"""A real nsys around a script with secrets in its environment, arguments, output, home and user
name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from nsysalign.cli import cli
from nsysalign.record.nsys import find_nsys

from .conftest import TESTS, leaks

SCRIPT = """
import sys, torch
print("printed: customer 4711 of", sys.argv[1])
a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
a.record(); b.record(); a.elapsed_time(b)
"""
#: What nsys itself leaves; docs/privacy.md and `doctor` say that it carries the environment.
FROM_NSYS = ("trace.nsys-rep", "trace.sqlite", "nsys.log")


@pytest.mark.nsys
def test_no_output_of_ours_carries_a_secret(tmp_path):
    home = tmp_path / "home.alice.planted"
    home.mkdir()
    secrets = {
        "token": "ghp_s3cr3tT0ken/with+signs",
        "home": str(home),
        "user": "alice.planted",
        "argument": "--password=hunter2planted",
        "output": "customer 4711 of",
        "folder": str(tmp_path),
    }
    if len(host := socket.gethostname()) > 5:  # a shorter one stands in every file by chance
        secrets["host"] = host
    (tmp_path / "script.py").write_text(SCRIPT)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSALIGN", "NSYS_"))}
    env |= {
        "PLANTED_TOKEN": secrets["token"],
        "NSYS": find_nsys().path,
        "HOME": str(home),
        "USER": secrets["user"],
        "LOGNAME": secrets["user"],
        "PYTHONPATH": f"{TESTS / 'collect/faketorch'}:{TESTS / 'fakenvml'}:{TESTS.parent}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "nsysalign", "run", "--baseline", "-o", "run", "script.py", secrets["argument"]],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert secrets["output"] in done.stdout, "the script's own output is shown"
    assert "no CUDA work" in done.stderr, "there is no GPU here: GPU rows are added below"
    run = tmp_path / "run"
    assert run.stat().st_mode & 0o777 == 0o700
    played = [sys.executable, "-m", "tests.collect.fakegpu", run / "trace.sqlite", run]
    subprocess.run(played, cwd=TESTS.parent, check=True)
    everything = {line.split(": ")[1] for line in leaks(run, secrets)}
    # the script's output and arguments go past nsys (record/handover.py)
    assert everything >= secrets.keys() - {"output", "argument"}, (
        "the search finds them in what nsys wrote"
    )
    for arguments in (["analyze", str(run)], ["redact", str(run), str(run / "shared")]):
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
    found = [line for line in leaks(run, secrets) if line.split(":")[0] not in FROM_NSYS]
    assert found == []
    names = {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()}
    results = "analysis.db report.html run.json clocks.jsonl baseline/run.json"
    assert names >= {*results.split(), "shared/trace.sqlite", "shared/clocks.jsonl"}
    for folder in ("", "baseline/", "shared/", "shared/baseline/"):
        assert any(name.startswith(f"{folder}events-") for name in names)
