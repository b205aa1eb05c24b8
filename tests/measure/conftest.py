from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from nsysalign.addons.measure.command import Options, Target
from nsysalign.addons.measure.session import Session

#: The backend of tests: a device whose truth is known, found by workers through PYTHONPATH.
SIMULATED = "tests.measure.simulated:Device"
CALLS = Path(__file__).parent / "programs" / "calls.py"


@pytest.fixture(autouse=True)
def _workers_find_the_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


@pytest.fixture
def measured(tmp_path):
    """Measure functions of programs/calls.py on the simulated device, each worker a real
    process."""

    def go(*names: str, **more):
        targets = tuple(Target(f"calls.py:{n}", f"{CALLS}:{n}") for n in names)
        more = {"processes": 2, "nsys": str(tmp_path / "none")} | more
        random.seed(1)
        session = Session(Options(targets, backend=SIMULATED, output=tmp_path / "out", **more))
        session.measure = session.run()
        return session

    return go
