"""The last line of a test run says what was not tested, and how it would be."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

TEST = """
import pytest
@pytest.mark.nsys
def test_one(): pass
@pytest.mark.skip(reason="no NVIDIA GPU")
def test_two(): pass
@pytest.mark.skip(reason="the moon is full")
def test_three(): pass
def test_four(): pass
"""


def test_what_was_skipped_is_said_with_what_would_help(tmp_path):
    """With nothing of nsys's on PATH or below HOME; beside the real conftest."""
    (tmp_path / "conftest.py").write_text((Path(__file__).parent / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = nsys: x\n")
    (tmp_path / "test_it.py").write_text(TEST)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("NSYS", "PYTEST"))}
    env |= {"NSYS": str(tmp_path / "nsys")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("not tested"))
    assert line == (
        "not tested: 1 with a real nsys (scripts/install-nsys), 1 on a GPU (a machine with one), "
        "1 for other reasons (see -rs)"
    )
    assert runpy.run_path(str(tmp_path / "conftest.py"))["untested"]([]) == ""
