"""Files of the tests: an export from given rows, and the event log that goes with the tiny one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_export import write_export, write_lines


@pytest.fixture
def export(tmp_path):
    """`export(tables)`: the path of an SQLite file with these tables."""
    return lambda tables: write_export(tmp_path / "trace.sqlite", tables)


@pytest.fixture
def log(tmp_path) -> Path:
    """The event log of the tiny export."""
    return write_lines(tmp_path / "events-7.jsonl")
