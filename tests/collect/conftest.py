"""Running scripts with the probe, with and without a real nsys, against a torch that needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsysalign.collect.command import probe_environment
from nsysalign.collect.convert import convert
from nsysalign.collect.nsys import Nsys, find_nsys
from nsysalign.errors import NsysError

FAKE_TORCH = Path(__file__).parent / "faketorch"
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Probed:
    """What a probed process printed and logged."""

    status: int
    out: str
    err: str
    logs: dict[int, list[dict]]  # pid -> lines
    errors: str

    def lines(self, kind: str, **match: object) -> list[dict]:
        """All lines of a type that have these values; calibration lines only when asked for."""
        match.setdefault("calibration", None)
        return [
            line
            for lines in self.logs.values()
            for line in lines
            if line["type"] == kind and all(line.get(k) == v for k, v in match.items())
        ]


def read_log(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def probed(tmp_path):
    """`probed(script_text, *args)`: run a script with the probe but without nsys."""

    def run(
        text: str, *args: str, fake: bool = True, calibrate: bool = False, env: dict | None = None
    ) -> Probed:
        script = tmp_path / "script.py"
        script.write_text(text)
        run_dir = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        (run_dir / "raw").mkdir(parents=True)
        base = {k: v for k, v in os.environ.items() if not k.startswith("NSYS")}
        base["PYTHONPATH"] = os.pathsep.join([str(FAKE_TORCH)] * fake + [str(ROOT)])
        full = probe_environment({**base, **(env or {})}, run_dir, calibrate=calibrate)
        done = subprocess.run(
            [sys.executable, "script.py", *args],
            cwd=tmp_path,
            env=full,
            capture_output=True,
            text=True,
            timeout=120,
        )
        logs = {int(p.stem.split("-")[1]): read_log(p) for p in convert(run_dir / "raw", run_dir, tmp_path)}
        errors = "".join(p.read_text() for p in (run_dir / "raw").glob("*.errors"))
        return Probed(done.returncode, done.stdout, done.stderr, logs, errors)

    return run


@pytest.fixture(scope="session")
def nsys() -> Nsys:
    """A real nsys, or the test is skipped."""
    try:
        return find_nsys()
    except NsysError as error:
        pytest.skip(f"no nsys: {error.message}")
