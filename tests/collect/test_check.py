"""`nsysalign check SCRIPT`: the run, then its verdict."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch
a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
original = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda a, b: original(a, b) / 2
a.record()
b.record()
a.elapsed_time(b)
if "restored" in sys.argv:
    torch.cuda.Event.elapsed_time = original
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.nsys
@pytest.mark.parametrize(("ends", "status"), [("5", 5), ("0 restored", 1)])
def test_a_script_is_run_then_checked(whole, ends, status):
    (whole.folder / "script.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "nsysalign", "check", "--json", "out.json", "script.py", *ends.split()]  # fmt: skip
    done = subprocess.run(
        command, cwd=whole.folder, env=whole.env, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == status, done.stderr
    assert "! The program replaced torch.cuda.Event.elapsed_time" in done.stdout
    found = {
        doubt["check"] for doubt in json.loads((whole.folder / "out.json").read_text())["doubts"]
    }
    assert found == {"replaced-timer", "nothing-inside"}
