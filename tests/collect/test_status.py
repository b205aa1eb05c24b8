"""What a run tells while it goes on: the terminal's title, nsys's own percentages; and whose stdout is whose."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from nsysalign.commandline.progress import title
from nsysalign.record.launch import said_percent
from nsysalign.rundir import last_duration_s

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


def test_the_title_says_how_long_and_out_of_what():
    assert title("profiling train", 12.3, None) == "nsysalign: profiling train 0:12"
    assert title("profiling train", 61, 100) == "nsysalign: profiling train 1:01 of about 1:40"
    assert (
        title("profiling train", 151, 100) == "nsysalign: profiling train 2:31"
    )  # wrong by far: no promise


TITLED = """
import time
from nsysalign.commandline.progress import TitleClock
with TitleClock("profiling it"):
    print("output", flush=True)
    time.sleep(0.1)
"""


def test_only_a_terminal_gets_a_title():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    done = subprocess.run([sys.executable, "-c", TITLED], capture_output=True, text=True, env=env)
    assert (done.stdout, done.stderr) == ("output\n", "")
    master, slave = pty.openpty()
    subprocess.run([sys.executable, "-c", TITLED], stdout=slave, stderr=slave, env=env)
    seen = os.read(master, 4096).decode()
    os.close(master)
    os.close(slave)
    assert "\x1b]2;nsysalign: profiling it 0:00\x07" in seen and seen.endswith("\x1b[23;2t")


def test_the_last_run_says_how_long_this_one_will_take(tmp_path):
    runs = tmp_path / "nsysalign-runs"
    for name, took in (("train-2", 7), ("train-10", 41.5), ("train-x-11", 1), ("other-12", 3)):
        (runs / name).mkdir(parents=True)
        (runs / name / "run.json").write_text(json.dumps({"profiled_s": took}))
    assert last_duration_s("train", tmp_path) == 41.5
    assert last_duration_s("absent", tmp_path) is None
    (runs / "train-10" / "run.json").write_text("[]")
    assert last_duration_s("train", tmp_path) is None


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
