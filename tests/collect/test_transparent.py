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
from concurrent.futures import ThreadPoolExecutor
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
                done = subprocess.run(
                    [path, "-c", "import torch"],
                    capture_output=True,
                    text=True,
                    env={"PYTHONPATH": str(FAKE_TORCH)},
                )
                if (
                    done.returncode == 0
                ):  # pyenv's shims of versions that are not chosen do not start
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
        """(status, stdout, stderr) without the probe and with it; `raw` of the second stays under
        NAME."""
        results = []
        for probed in (False, True):
            folder = self.folder / f"{name}-{probed}".replace(" ", "_")
            (folder / "run" / "raw").mkdir(parents=True)
            (folder / "script.py").write_text(text)
            full = {**fresh_environment(*self.path), "PYTHONHASHSEED": "0", **env}
            if probed:
                full = probe_environment(
                    full, folder / "run", calibrate="NSYSALIGN_CALIBRATE" not in env
                )
            stdin = text if options == ("-",) else None
            command = [self.python, *options, *([] if stdin else ["script.py"])]
            done = subprocess.run(
                command,
                cwd=folder,
                env=full,
                input=stdin,
                capture_output=True,
                text=True,
                timeout=100,
            )
            out, err = (text.replace(str(folder), "FOLDER") for text in (done.stdout, done.stderr))
            results.append((done.returncode, _comparable(out), err))
        return results

    def errors(self, name: str) -> str:
        raw = self.folder / f"{name}-True".replace(" ", "_") / "run" / "raw"
        return "".join(p.read_text() for p in raw.glob("*.errors"))

    def lines(self, name: str) -> list[dict]:
        folder = self.folder / f"{name}-True".replace(" ", "_")
        return [
            line
            for log in convert(folder / "run" / "raw", folder, folder)
            for line in read_log(log)
        ]


def _comparable(text: str) -> str:
    """Without addresses and measured times."""
    return re.sub(r"0x[0-9a-f]{6,}|\d+\.\d+(e-\d+)?|\d{4,}", "N", text)


def _without(err: str, what: str) -> str:
    if what == "all":
        return ""
    if what == "frames":  # ours, in a traceback: two or three lines each
        err = re.sub(rf'  File "{PROBE}[^\n]*\n(    [^\n]*\n)*', "", err)
    if what == "threads":
        err = re.sub(r"0x[0-9a-f]+", "N", err)
        return "\n".join(
            line
            for line in err.splitlines()
            if PROBE not in line and "Extension modules" not in line
        )
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
    lines = twins.lines("together")
    assert sum(line["type"] == "record" for line in lines) > 30, "and all the while it was loaded"
    captured = [line for line in lines if line.get("captured")]
    assert twins.errors("together").count("RecursionError") == len(
        re.findall("Traceback", twins.errors("together"))
    )
    assert captured == [], "the fake driver knows of no capture"
    assert lines[0]["python"].startswith(version)


def test_programs_with_options_and_ends_of_their_own(tmp_path):
    twins = Twins(tmp_path)
    with ThreadPoolExecutor(2) as pool:
        done = dict(
            zip(ALONE, pool.map(lambda n: twins(n, ALONE[n][1], ALONE[n][0]), ALONE), strict=True)
        )
    for name, (plain, probed) in done.items():
        what = ALONE[name][2]
        assert probed[:2] == plain[:2], f"{name}: {probed[2]}"
        assert _without(probed[2], what) == _without(plain[2], what), name
        errors = twins.errors(name)
        # Python 3.12 has modules of C that cannot be loaded there: the probe says so and steps
        # aside
        assert errors == "" or (
            name == "sub-interpreters" and "loading in subinterpreters" in errors
        ), name
        assert twins.lines(name) or "region" in name, f"{name}: the probe was loaded"
    assert "broken" not in done["an uncaught error"][1][1] and done["an uncaught error"][0][0] == 1
    assert (
        done["at exit"][0][1].split()[-1:]
        and "del" in done["at exit"][0][1]
        and "final" in done["at exit"][0][1]
    )
    assert done["a fault"][0][0] == -11


@pytest.mark.torch
def test_the_real_torch_with_autograd_and_compile(tmp_path):
    """Dynamo must not look into our wrappers: it would warn, and break graphs elsewhere."""
    twins = Twins(tmp_path, sys.executable, ROOT)
    plain, probed = twins("real", REAL, NSYSALIGN_CALIBRATE="0")
    assert plain[0] == 0 and probed == plain, probed[2]
    assert (
        len([x for x in twins.lines("real") if x["type"] == "record"]) == 8
        and twins.errors("real") == ""
    )
