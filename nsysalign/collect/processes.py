"""The processes of one run, found by the variable that every one of them inherited.

A process that was started with an environment of its own, without the variable, is not found: nor is it probed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_SESSION = b"\0NSYS_PROFILING_SESSION_ID="  # set by nsys for the application, not for its own helpers


def of_run(run_dir: str | Path, *, profiled: bool = False) -> list[int]:
    """Process ids of a run, [] where there is no /proc.  `profiled`: those of the application, not nsys's own."""
    mark = f"\0NSYSALIGN_DIR={run_dir}\0".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = b"\0" + (path / "environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if mark in environment and (not profiled or _SESSION in environment):
            found.append(int(path.name))
    return [pid for pid in found if pid != os.getpid()]


def kill(pids: Iterable[int], number: int) -> None:
    """Send a signal; who is gone already is gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(run_dir: str | Path, *, grace_s: float = 5.0) -> int:
    """End what a run left behind: politely, then for good.  Returns how many there were."""
    left = of_run(run_dir)
    kill(left, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (alive := of_run(run_dir)) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill(alive, signal.SIGKILL)
    return len(left)
