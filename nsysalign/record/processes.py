"""The processes of one run, found by the variable that every one of them inherited.

A process started with its own environment, without the variable, is neither found nor probed.
Below nsys itself such a process is still seen as part of the application (`application`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

#: What asks a run to end, on this system.
ENDING = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))
_SESSION = (
    b"\0NSYS_PROFILING_SESSION_ID="  # set by nsys for the application, not for its own helpers
)

_OWN = ("nsys", "Qdstrm")  # nsys, nsys-launcher, nsys-tee, QdstrmImporter


@dataclass(frozen=True)
class Stat:
    """What /proc says about a process: `state` is a letter (Z: dead, not waited for), `start` distinguishes reused pids,
    `cpu_s` is its CPU time."""

    parent: int
    state: str
    start: int
    cpu_s: float


def of_run(run_dir: str | Path, *, profiled: bool = False) -> list[int]:
    """Process ids of a run, [] where there is no /proc.  `profiled`: those of the application, not nsys's own."""
    mark = b"\0NSYSALIGN_DIR=" + os.fsencode(run_dir) + b"\0"
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = b"\0" + (path / "environ").read_bytes()
        except OSError:  # gone, or another user's
            continue
        if mark in environment and (not profiled or _SESSION in environment):
            found.append(int(path.name))
    return [pid for pid in found if pid != os.getpid()]


def application(run_dir: str | Path, nsys: int) -> list[int]:
    """The application's processes: those of the run, or below process `nsys` and not one of nsys's own programs.  A process
    whose program cannot be read belongs to another user (sudo) and counts as the application's.
    """
    found = set(of_run(run_dir, profiled=True))
    for pid in below(nsys):
        try:
            program = os.readlink(f"/proc/{pid}/exe")
        except FileNotFoundError:
            continue  # ended meanwhile
        except OSError:
            program = ""
        if not os.path.basename(program).startswith(_OWN):
            found.add(pid)
    return sorted(found - {nsys})


def stat(pid: int) -> Stat | None:
    """One process, None if it is gone."""
    try:
        # the second field is the program's name in brackets, which may hold anything
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return Stat(int(fields[1]), fields[0], int(fields[19]), ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError, ValueError):
        return None


def below(root: int) -> list[int]:
    """The living descendants of a process."""
    parents = {
        int(path.name): found.parent
        for path in Path("/proc").glob("[0-9]*")
        if (found := stat(int(path.name))) and found.state != "Z"
    }
    family, grew = {root}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        grew = bool(more)
    return sorted(family - {root})


def kill(pids: Iterable[int], number: int) -> None:
    """Send a signal; processes that are already gone are ignored."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(run_dir: str | Path, *, grace_s: float = 5.0) -> int:
    """End what a run left behind: first SIGTERM, then SIGKILL.  Returns how many processes there were.

    nsys's own helpers end a moment after it by themselves: they are not counted if they do.
    """
    _wait_for_the_end(run_dir, min(grace_s, 2.0), unless=lambda: of_run(run_dir, profiled=True))
    left = of_run(run_dir)
    kill(left, signal.SIGTERM)
    _wait_for_the_end(run_dir, grace_s)
    kill(of_run(run_dir), signal.SIGKILL)
    _wait_for_the_end(run_dir, grace_s)  # a killed process takes a moment
    return len(left)


def _wait_for_the_end(
    run_dir: str | Path, seconds: float, unless: Callable[[], object] = bool
) -> None:
    deadline = time.monotonic() + seconds
    while of_run(run_dir) and not unless() and time.monotonic() < deadline:
        time.sleep(0.05)
