"""Waiting for what others do, who take their time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def wait_until(true: Callable[[], bool], otherwise: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def wait_for(path: Path, seconds: float = 60) -> None:
    wait_until(path.exists, f"{path.name} never came", seconds)


def command_line(pid: int | str) -> bytes:
    """Of a living process; b"" where it has ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
