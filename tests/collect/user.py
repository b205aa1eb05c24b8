"""Somebody who types `nsysalign run` in a folder, with the nsys and the torch of a test's
choice."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import warm

from nsysalign.engine import load
from nsysalign.record.processes import marked, of_run
from nsysalign.rundir import event_logs

from .logs import read_log

RUNS = "nsysalign-runs"
NSYS_BROKE_DOWN = "nsys itself broke down"

PAIRS = """
import torch
def pair(n=1):
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        b.record()
        a.elapsed_time(b)
"""

#: nsysalign with less patience.
IMPATIENT = """
import sys
from nsysalign.record import launch
launch.GRACE_S, launch.START_S, launch.IDLE_S = {grace_s}, {idle_s}, {idle_s}
launch.SERVER_SAID_S, launch.SERVER_S = 1, 4
from nsysalign.cli import main
main(sys.argv[1:])
"""


@dataclass
class User:
    """Their folder and environment, and what they started."""

    folder: Path
    env: dict[str, str]
    started: list[subprocess.Popen] = field(default_factory=list)

    def run(
        self, text: str, *options: str, script: str = "script.py", prefix: tuple[str, ...] = (),
        impatient: float | None = None, grace_s: float = 0.7, begin: str = PAIRS,
    ) -> subprocess.Popen:  # fmt: skip
        """Start `nsysalign run OPTIONS SCRIPT`; `impatient`: an nsys that does nothing is ended
        after so long, and killed `grace_s` later."""
        (self.folder / script).write_text(begin + text)
        program = ["-m", "nsysalign"]
        if impatient is not None:
            program = [f"impatient-{script}"]
            patience = IMPATIENT.format(idle_s=impatient, grace_s=grace_s)
            (self.folder / program[0]).write_text(patience)
        self.started.append(
            subprocess.Popen(
                [*prefix, sys.executable, *program, "run", *options, script],
                cwd=self.folder, env=self.env, text=True, start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        return self.started[-1]

    def analyze(self, run_dir: Path) -> subprocess.CompletedProcess:
        words = ["-m", "nsysalign", "analyze", "-q", str(run_dir)]
        done = warm.python(words, self.folder, self.env)
        refuse_a_broken_nsys(run_dir)
        return done

    def run_dirs(self) -> list[Path]:
        return sorted(p for p in (self.folder / RUNS).iterdir())

    def the_end(
        self, process: subprocess.Popen, run_dir: Path | None = None, seconds: float = 90
    ) -> tuple[int, str, str]:
        """Status, stdout and stderr; and nothing lives on or lies about half-written."""
        out, err = process.communicate(timeout=seconds)
        for folder in [run_dir] if run_dir else self.run_dirs():
            refuse_a_broken_nsys(folder)
            assert of_run(folder) == [], "no process is left behind"
            assert not [p.name for p in folder.rglob("*") if "partial" in p.name], err
            for log in event_logs(folder):
                assert read_log(log)[0]["type"] == "header"
        return process.returncode, out, err


def refuse_a_broken_nsys(run_dir: Path) -> None:
    """2024.2 was seen to lose its own agent, and its importer to fail whoever asks: what then lacks
    is no fault of ours, and `tests/conftest.py` tries once more."""
    log = run_dir / "nsys.log"
    text = log.read_text(errors="replace") if log.is_file() else ""
    lost = "Connection to Agent lost. This is most likely a bug." in text
    lost |= "Importer error status:" in text and (run_dir / "trace.qdstrm").exists()
    assert not lost, f"{NSYS_BROKE_DOWN}: {text}"


def processes_named(name: bytes, run_dir: Path) -> list[int]:
    """nsys's processes of a run whose command line has `name`."""
    every = marked(b"NSYSALIGN_RUN=" + os.fsencode(run_dir))
    return [pid for pid in every if name in Path(f"/proc/{pid}/cmdline").read_bytes()]


def elapsed(run_dir: Path) -> int:
    """Pairs that the program compared, by the event logs."""
    lines = [line for log in event_logs(run_dir) for line in read_log(log)]
    return sum(line["type"] == "elapsed" for line in lines)


def analysed(run_dir: Path) -> int:
    """Measured intervals in the stored analysis, all of which add up."""
    assert (run_dir / "report.html").stat().st_size
    analysis = load(run_dir)  # which refuses what does not add up
    assert (analysis.intervals["elapsed_ns"] > 0).all()
    return len(analysis.measured)


def small_disk(folder: Path, size: str) -> tuple[str, ...]:
    """A command prefix under which `folder` lies on a disk of this size, or the test is skipped."""
    folder.mkdir()
    mount = f'mount -t tmpfs -o size={size} none "{folder}" && exec "$@"'
    prefix = ("unshare", "-Urm", "sh", "-c", mount, "sh")
    tried = [*prefix, "true"]
    if not shutil.which("unshare") or subprocess.run(tried, capture_output=True).returncode:
        pytest.skip("no small file system can be mounted here")
    return prefix


def fresh_environment(*path: Path) -> dict[str, str]:
    """Ours without anything of nsys's or nsysalign's; `path` becomes PYTHONPATH."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSYS",))}
    return env | {"PYTHONPATH": os.pathsep.join(map(str, path))}
