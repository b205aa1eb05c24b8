"""Each process of a run is killed, early and late, with a real nsys (scripts/kills.py tries many
more moments): nothing but a script that nobody killed lives on, its status and its pairs are
right."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "scripts" / "kills.py"
spec = importlib.util.spec_from_file_location("kills", FILE)
kills = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kills)


@pytest.mark.nsys
@pytest.mark.parametrize("moment_s", [0.6, 1.4])
@pytest.mark.parametrize(
    "victims", [*zip(kills.PROCESSES[::2], kills.PROCESSES[1::2], strict=True)]
)
def test_nothing_is_left_and_nothing_lost(tmp_path, nsys, monkeypatch, victims, moment_s):
    """Two runs at a time."""
    monkeypatch.setenv("NSYS", nsys.path)
    folders = [tmp_path / victim for victim in victims]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor() as pool:
        wrong = [*pool.map(kills.try_once, victims, [moment_s] * 2, folders)]
    assert not any(wrong), wrong
