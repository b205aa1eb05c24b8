"""Recordings cut into slices, and the same recordings as a whole with the same knowledge of them."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))  # the simulator


@pytest.fixture
def puzzle(tmp_path):
    """puzzle(name): its trace and its logs."""

    def unpacked(name: str) -> tuple[Path, list[Path]]:
        with tarfile.open(TESTS / "data" / "puzzles" / f"{name}.tar.xz") as packed:
            if hasattr(tarfile, "data_filter"):
                packed.extractall(tmp_path, filter="data")
            else:
                packed.extractall(tmp_path)
        return tmp_path / "trace.sqlite", sorted(tmp_path.glob("events-*.jsonl"))

    return unpacked
