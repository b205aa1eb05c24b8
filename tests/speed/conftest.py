"""Recordings as files, and the shared simulator and programs on the path."""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).parents[1]),
    str(Path(__file__).parents[2]),
]  # for `simulator`, `tests.properties`

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def recording(tmp_path):
    """`recording(name)`: (trace, event log) of tests/data, unpacked."""

    def unpack(name: str) -> tuple[Path, Path]:
        paths = []
        for suffix in ("sqlite", "events.jsonl"):
            paths.append(tmp_path / f"trace.{suffix}")
            paths[-1].write_bytes(lzma.decompress((DATA / f"{name}.{suffix}.xz").read_bytes()))
        return paths[0], paths[1]

    return unpack
