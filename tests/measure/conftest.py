from __future__ import annotations

from pathlib import Path

import pytest

from nsysalign.measure.plan import Options, Target
from nsysalign.measure.session import Session

CALLS = Path(__file__).parent / "programs" / "calls.py"


@pytest.fixture
def measured(tmp_path):
    """Measure functions of programs/calls.py on the simulated device, each worker a real process."""

    def go(*names: str, **more):
        more = {"profile": False, "processes": 2, "most_processes": 2, "seed": 1} | more
        targets = tuple(Target(f"calls.py:{n}", f"{CALLS}:{n}") for n in names)
        session = Session(Options(targets, backend="simulated", output=tmp_path / "out", **more))
        session.run()
        return session

    return go
