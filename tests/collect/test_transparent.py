"""With the probe loaded a program prints, returns and raises exactly what it does without; on every
Python found.

What cannot be the same, and is not compared: a traceback that goes through a wrapped call names our
frame as well, and `-X importtime` lists our modules.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nsysalign.record.command import probe_environment
from nsysalign.record.convert import convert

from .conftest import FAKE_TORCH, ROOT
from .programs import ALONE, DRIVER, REAL
from .user import fresh_environment, read_log

HERE = Path(__file__).parent
PROBE = "<nsysalign/probe/"


def interpreters() -> dict[str, str]:
    """One Python per minor version from 3.10 on: this one, those in PATH, those of pyenv."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    folders = [Path(p) for p in os.environ.get("PATH", "").split(os.pathsep)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for minor in range(10, 20):
        for folder in [*folders, *sorted(pyenv.glob(f"versions/3.{minor}.*/bin"))]:
            path = folder / f"python3.{minor}"
            if f"3.{minor}" not in found and path.is_file():
                command, env = [path, "-c", "import torch"], {"PYTHONPATH": str(FAKE_TORCH)}
                # pyenv's shims of versions that are not chosen do not start
                if not subprocess.run(command, capture_output=True, env=env).returncode:
                    found[f"3.{minor}"] = str(path)
    return found


class Twins:
    """Runs the same program with and without the probe."""

    def __init__(self, folder: Path, python: str = sys.executable, *path: Path) -> None:
        self.folder, self.python = folder, python
        self.path = path or (FAKE_TORCH, ROOT, HERE)

    def __call__(
        self, name: str, text: str, options: tuple[str, ...] = (), **env: str
    ) -> list[tuple]:
        """(status, stdout, stderr) without the probe and with it; `raw` of the second stays."""
        results = []
        for probed in (False, True):
            folder = self._folder(name, probed)
            (folder / "run" / "raw").mkdir(parents=True)
            (folder / "script.py").write_text(text)
            full = {**fresh_environment(*self.path), "PYTHONHASHSEED": "0", **env}
            if probed:
                calibrate = "NSYSALIGN_CALIBRATE" not in env
                full = probe_environment(full, folder / "run", calibrate=calibrate)
            command = [self.python, *options, "script.py"]
            done = subprocess.run(
                command, cwd=folder, env=full, capture_output=True, text=True, timeout=100
            )
            out, err = (text.replace(str(folder), "FOLDER") for text in (done.stdout, done.stderr))
            results.append((done.returncode, _comparable(out), err))
        return results

    def _folder(self, name: str, probed: bool = True) -> Path:
        return self.folder / f"{name}-{probed}".replace(" ", "_")

    def errors(self, name: str) -> str:
        return "".join(p.read_text() for p in self._folder(name).glob("run/raw/*.errors"))

    def lines(self, name: str) -> list[dict]:
        folder = self._folder(name)
        logs = convert(folder / "run" / "raw", folder, folder)
        return [line for log in logs for line in read_log(log)]


def _comparable(text: str) -> str:
    """Without addresses and measured times."""
    return re.sub(r"0x[0-9a-f]{6,}|\d+\.\d+(e-\d+)?|\d{4,}", "N", text)


def _without(err: str, what: str) -> str:
    if what == "frames":  # ours, in a traceback: two or three lines each
        err = re.sub(rf'  File "{PROBE}[^\n]*\n(    [^\n]*\n)*', "", err)
    if what == "threads":
        lines = re.sub(r"0x[0-9a-f]+", "N", err).splitlines()
        return "\n".join(x for x in lines if PROBE not in x and "Extension modules" not in x)
    return _comparable(err)


VERSIONS = interpreters()


@pytest.mark.parametrize("version", VERSIONS)
def test_programs_that_look_closely(tmp_path, version):
    twins = Twins(tmp_path, VERSIONS[version])
    plain, probed = twins("together", DRIVER)
    assert probed[0] == plain[0] == 0 and probed[2] == plain[2] == "", probed[2]
    sections = [
        dict(part.partition("\n")[::2] for part in out.split("## ")[1:])
        for _, out, _ in (plain, probed)
    ]
    assert sections[1] == sections[0] and len(sections[0]) == 8
    lines, errors = twins.lines("together"), twins.errors("together")
    assert sum(line["type"] == "record" for line in lines) > 30, "and all the while it was loaded"
    assert errors.count("RecursionError") == errors.count("Traceback")
    assert lines[0]["python"].startswith(version)


@pytest.mark.parametrize("name", ALONE)
def test_programs_with_options_and_ends_of_their_own(tmp_path, name):
    options, text, what = ALONE[name]
    twins = Twins(tmp_path)
    plain, probed = twins(name, text, options)
    assert probed[:2] == plain[:2] and plain[0] in (0, 1, -11), probed[2]
    assert _without(probed[2], what) == _without(plain[2], what)
    # Python 3.12 has modules of C that cannot be loaded there: the probe says so and steps aside
    errors = twins.errors(name)
    assert errors == "" or (name == "sub-interpreters" and "loading in subinterpreters" in errors)
    assert twins.lines(name), "the probe was loaded"


@pytest.mark.torch
def test_the_real_torch_with_autograd_and_compile(tmp_path):
    """Dynamo must not look into our wrappers: it would warn, and break graphs elsewhere."""
    twins = Twins(tmp_path, sys.executable, ROOT)
    plain, probed = twins("real", REAL, NSYSALIGN_CALIBRATE="0")
    assert plain[0] == 0 and probed == plain, probed[2]
    assert sum(x["type"] == "record" for x in twins.lines("real")) == 8
    assert twins.errors("real") == ""
