"""Libraries that exchange the clocks or read them for others, and tools that look at all code that
runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nsysalign.record.command import probe_environment

from .conftest import FAKE_TORCH, ROOT
from .user import fresh_environment

#: pytest has a finder of its own for the files of its plugins, of which time_machine is one.
FINDER = """
import importlib.machinery, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path) if name == "time_machine" else None
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("finder", ["", FINDER], ids=["alone", "behind-a-finder"])
def test_time_machine(probed, finder):
    pytest.importorskip("time_machine")
    run = probed(f"""{finder}
import datetime, time, torch
torch.cuda.init()
time.time()
import time_machine
with time_machine.travel(0, tick=False):
    print(time.time(), datetime.datetime.now().year)
    with time_machine.travel(86400.0, tick=False):
        print(time.time(), time.time_ns())
    print(time.time(), time_machine.escape_hatch.time.time() > 1e9)
print(time.time() > 1e9)
""")
    assert run.out.split() == [
        "0.0",
        "1970",
        "86400.0",
        str(86400 * 10**9),
        "0.0",
        "True",
        "True",
    ], run.err
    assert len(run.lines("clock_reading")) == 1, "what is faked is not the host's clock"
    (note,) = run.lines("note")
    assert note["text"].endswith("are not logged: time_machine exchanges the clocks")


PROGRAM = """
import time, torch
def work():
    e = torch.cuda.Event()
    e.record()
    return time.perf_counter() + e.elapsed_time(e)
for _ in range(3):
    work()
"""


@pytest.mark.parametrize("tool", ["coverage", "trace"])
def test_coverage_tools_do_not_list_the_probe(tmp_path, tool):
    if tool == "coverage":
        pytest.importorskip("coverage")
    (tmp_path / "raw").mkdir()
    (tmp_path / "script.py").write_text(PROGRAM)
    env = probe_environment(fresh_environment(FAKE_TORCH, ROOT), tmp_path, calibrate=False)
    commands = {
        "coverage": [["-m", "coverage", "run", "script.py"], ["-m", "coverage", "report"]],
        "trace": [["-m", "trace", "--count", "--summary", "-C", "cover", "script.py"]],
    }[tool]
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
    listed = done.stdout + "".join(p.name for p in tmp_path.glob("cover/*"))
    assert "script" in listed and not any(
        name in listed for name in ("wrap", "timers", "runtime", "clocksites", "sitecustomize")
    )
