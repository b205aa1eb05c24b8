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
from functools import cache
from pathlib import Path

import pytest

from .conftest import FAKE_TORCH
from .programs import ALONE, DRIVER, REAL

PROBE = "<nsysalign/probe/"


@cache  # each candidate is started
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


def twins(probed, text: str, **how) -> list:
    """A program without the probe and with it."""
    runs = [probed(text, probe=probe, **how) for probe in (False, True)]
    for run in runs:
        run.out = _comparable(run.out)
    return runs


def _comparable(text: str) -> str:
    """Without addresses and measured times."""
    return re.sub(r"0x[0-9a-f]{6,}|\d+\.\d+(e-\d+)?|\d{4,}", "N", text)


def _without(err: str, what: str) -> str:
    if what == "frames":  # ours, in a traceback: two or three lines each
        err = re.sub(rf'  File "{PROBE}[^\n]*\n(    [^\n]*\n)*', "", err)
    # Python 3.14 prints the C stack of a fault, too, where each call of ours would be a frame
    err = re.sub(r"  Binary file [^\n]*\n?", "", err)
    if what == "threads":
        lines = re.sub(r"0x[0-9a-f]+", "N", err).splitlines()
        return "\n".join(x for x in lines if PROBE not in x and "Extension modules" not in x)
    return _comparable(err)


VERSIONS = interpreters()


@pytest.mark.parametrize("version", VERSIONS)
def test_programs_that_look_closely(probed, version):
    plain, run = twins(probed, DRIVER, python=VERSIONS[version], calibrate=True)
    assert run.status == plain.status == 0 and run.err == plain.err == "", run.err
    sections = [
        dict(part.partition("\n")[::2] for part in out.split("## ")[1:])
        for out in (plain.out, run.out)
    ]
    assert sections[1] == sections[0] and len(sections[0]) == 8
    assert len(run.lines("record")) > 20, "and all the while it was loaded"
    assert run.errors.count("RecursionError") == run.errors.count("Traceback")
    ((header, *_),) = run.logs.values()
    assert header["python"].startswith(version)


@pytest.mark.parametrize("name", ALONE)
def test_programs_with_options_and_ends_of_their_own(probed, name):
    options, text, what = ALONE[name]
    plain, run = twins(probed, text, options=options, calibrate=True)
    assert (run.status, run.out) == (plain.status, plain.out), run.err
    assert plain.status in (0, 1, -11)
    assert _without(run.err, what) == _without(plain.err, what)
    # Python 3.12 has modules of C that cannot be loaded there: the probe says so and steps aside
    inside = name == "sub-interpreters" and "loading in subinterpreters" in run.errors
    assert run.errors == "" or inside
    assert run.logs, "the probe was loaded"


@pytest.mark.torch
def test_the_real_torch_with_autograd_and_compile(probed):
    """Dynamo must not look into our wrappers: it would warn, and break graphs elsewhere."""
    plain, run = twins(probed, REAL, fake=False)
    assert plain.status == 0 and (run.status, run.out, run.err) == (0, plain.out, plain.err)
    assert len(run.lines("record")) == 8 and run.errors == ""
