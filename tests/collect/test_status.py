"""What a run tells while it goes on: nsys's own percentages; and whose stdout is whose."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from nsysalign.record.launch import said_percent

from .conftest import ROOT

GENERATING = b"Generating '/x/nsys-report-cf1b.qdstrm'\n"
STEPS = b"\r[1/1] [0%                          ] trace.nsys-rep\r[1/1] [=====30%                    ] trace.nsys-rep"


def test_nsys_says_how_far_its_report_is(tmp_path):
    log = tmp_path / "nsys.log"
    log.write_bytes(b"WARNING: 50% of something\n")
    assert said_percent(log) is None
    log.write_bytes(GENERATING)
    assert said_percent(log) == 0
    log.write_bytes(GENERATING + STEPS)
    assert said_percent(log) == 30
    log.write_bytes(
        GENERATING + STEPS * 100 + b"\r[1/1] [========================100%] trace.nsys-rep"
    )
    assert said_percent(log) == 100


@pytest.mark.nsys
def test_stdout_is_the_analysis_when_it_was_asked_for(nsys, tmp_path):
    (tmp_path / "script.py").write_text(
        "import sys; print('to out'); print('to err', file=sys.stderr)"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSYSALIGN", "NSYS_"))}
    env |= {"NSYS": nsys.path, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "nsysalign",
        "run",
        "--no-clocks",
        "--json",
        "-",
        "-o",
        "out",
        "script.py",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120
    )
    assert (
        done.stdout == ""
    )  # this script measured nothing, so there is no analysis: not a word of its own either
    assert "to out\n" in done.stderr and "to err\n" in done.stderr
    assert json.loads((tmp_path / "out" / "run.json").read_text())["profiled_s"] > 0
    assert "not sampled" not in done.stderr and not (tmp_path / "out" / "clocks.jsonl").exists()
