"""Running scripts with the probe, with and without a real nsys, against a torch that needs no
GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from nsysalign.errors import NsysError
from nsysalign.record.command import probe_environment
from nsysalign.record.convert import convert
from nsysalign.record.nsys import Nsys, find_nsys
from nsysalign.record.processes import end_all

from .logs import read_log
from .user import RUNS, User, fresh_environment

FAKE_TORCH = Path(__file__).parent / "faketorch"
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Probed:
    """What a probed process printed and logged."""

    pid: int
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


@pytest.fixture
def probed(tmp_path, request):
    """`probed(script_text, *args)`: run a script with the probe but without nsys, by the Python
    that tests may ask for."""
    python = getattr(request, "param", sys.executable)

    def run(
        text: str, *args: str, fake: bool = True, calibrate: bool = False, env: dict | None = None,
        options: tuple[str, ...] = (), python: str = python, probe: bool = True, send: int = 0,
    ) -> Probed:  # fmt: skip
        """`send`: a signal that follows its first line of output."""
        (tmp_path / "script.py").write_text(text)
        run_dir = tmp_path / f"run{len(list(tmp_path.glob('run*')))}"
        (run_dir / "raw").mkdir(parents=True)
        path = [FAKE_TORCH] * fake + [ROOT, Path(__file__).parent]
        full = {**fresh_environment(*path), "PYTHONHASHSEED": "0", **(env or {})}
        if probe:
            full = probe_environment(full, run_dir, calibrate=calibrate)
        command = [python, *options, "script.py", *args]
        with open(run_dir / "err", "w+") as err:
            process = subprocess.Popen(
                command, cwd=tmp_path, env=full, text=True, stdout=subprocess.PIPE, stderr=err
            )
            guard = threading.Timer(120, process.kill)
            guard.start()
            with process:
                out = process.stdout.readline()
                if send:
                    process.send_signal(send)
                out += process.stdout.read()
            guard.cancel()
        logs = {
            int(p.name.split("-")[1].split(".")[0]): read_log(p)
            for p in convert(run_dir / "raw", run_dir, tmp_path)
        }
        errors = "".join(p.read_text() for p in (run_dir / "raw").glob("*.errors"))
        errors += "".join(p.read_text().rstrip("\0") for p in (run_dir / "raw").glob("*.later"))
        err = (run_dir / "err").read_text()
        return Probed(process.pid, process.returncode, out, err, logs, errors)

    return run


@pytest.fixture(scope="session")
def nsys() -> Nsys:
    """A real nsys, or the test is skipped."""
    try:
        return find_nsys()
    except NsysError as error:
        pytest.skip(f"no nsys: {error.message}")


@pytest.fixture
def user(tmp_path):
    """Somebody in a fresh folder, with the fake torch; what they left behind is ended
    afterwards."""
    somebody = User(tmp_path, fresh_environment(FAKE_TORCH, ROOT))
    yield somebody
    for process in somebody.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    for run_dir in (tmp_path / RUNS).glob("*"):
        end_all(b"NSYSALIGN_DIR=" + os.fsencode(run_dir), wait_s=0, grace_s=0)
    for process in somebody.started:  # its pipes are closed once nobody of the run lives
        process.communicate(timeout=60)


@pytest.fixture
def real(user, nsys):
    """A user with a real nsys."""
    user.env["NSYS"] = nsys.path
    return user


@pytest.fixture
def whole(user, nsys):
    """A user with a real nsys whose exports also hold the GPU's part (`fakegpu`): runs are analysed
    to the end."""
    tool = user.folder / "tool" / "bin" / "nsys"
    tool.parent.mkdir(parents=True)
    tool.write_text(f"""#!/bin/bash
[ "$1" = export ] || exec {nsys.path} "$@"
{nsys.path} "$@" && exec {sys.executable} -m tests.collect.fakegpu "$5" "$(dirname "$5")"
""")
    tool.chmod(0o755)
    user.env["NSYS"] = str(tool)
    return user


@pytest.fixture
def played(user):
    """`played(profile=, export=)`: a user whose nsys is a shell script; APP runs the application,
    FINISH writes the report."""

    def make(profile: str = "true", export: str = "exit 1", version: str = "2024.2.3.38") -> User:
        path = user.folder / "tool" / "bin" / "nsys"
        path.parent.mkdir(parents=True)
        path.write_text(f"""#!/bin/bash
cd "{user.folder}"  # nsys is started in /
what=$1; shift
case "$what" in
  --version) echo "NVIDIA Nsight Systems version {version}"; exit;;
  profile) [ "$1" = --help ] && exit
    while [ "$2" != -I ]; do [ "$1" = -o ] && OUT=$(realpath "$(dirname "$2")")/trace; shift; done
    APP() {{ NSYS_PROFILING_SESSION_ID=1 setsid "$@"; }}
    FINISH() {{ echo report >"$OUT.nsys-rep"; }}
    {profile};;
  export) OUT=$4; {export};;
esac
""")
        path.chmod(0o755)
        user.env["NSYS"] = str(path)
        return user

    return make
