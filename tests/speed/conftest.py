"""Recordings as files."""

from __future__ import annotations

import pytest
from recordings import unpack


@pytest.fixture
def recording(tmp_path):
    """`recording(name)`: (trace, event log) of tests/data, unpacked."""
    return lambda name: unpack(name, tmp_path)
