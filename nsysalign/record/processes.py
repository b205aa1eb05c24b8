"""The processes of one run, found by a variable that every one of them inherited; and what nsys
takes for the script.

A process started with an environment of its own, without the variable, is neither found nor probed.

    python -I -S processes.py FOLDER NAME=VALUE      is what nsys starts (`hold`)
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

#: What asks a run to end, on this system.
ENDING = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))
#: In a folder of `launch`: what `hold` says of itself, and the pipe through which it learns what to
#: wait for.
HOLDER, SCRIPT = "holder", "script"
_LOOK_S = 0.1


def cpu_s(pids: Iterable[int]) -> float:
    """What these processes have computed, in seconds; nothing for one that is gone."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            # the second field is the program's name in brackets, which may hold anything
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            user, system = text.rpartition(")")[2].split()[11:13]
            ticks += int(user) + int(system)
    return ticks / os.sysconf("SC_CLK_TCK")


def of_run(run_dir: Path) -> list[int]:
    """Living processes of a run, of its script and of its nsys, with or without us; [] where there
    is no /proc."""
    path = os.fsencode(run_dir.resolve())
    return marked(b"NSYSALIGN_DIR=" + path, b"NSYSALIGN_RUN=" + path)


def marked(*variables: bytes) -> list[int]:
    """Living processes, but for this one, whose environment has one of these `NAME=VALUE`."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone, or another user's
            if not set(variables).isdisjoint((path / "environ").read_bytes().split(b"\0")):
                pids.append(int(path.name))
    return [pid for pid in pids if pid != os.getpid()]


def kill(pids: Iterable[int], number: int) -> None:
    """Send a signal; processes that are already gone are ignored."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(variable: bytes, *, wait_s: float = 2.0, grace_s: float = 5.0) -> int:
    """End the processes that are `marked`: after `wait_s`, in which they may end by themselves,
    with SIGTERM, then SIGKILL. Returns how many that took."""
    first: list[int] = []
    for number, seconds in ((None, wait_s), (signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        if number is not None:
            left = marked(variable)
            first = first or left
            kill(left, number)
        deadline = time.monotonic() + seconds
        while marked(variable) and time.monotonic() < deadline:
            time.sleep(0.05)
    return len(first)


def wait_for(process: subprocess.Popen, seconds: float) -> bool:
    """Wait at most this long for the end of a process.  True if it has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(None if seconds == math.inf else seconds)
    return process.poll() is not None


def say(text: str) -> None:
    """A line of our own on stderr."""
    with contextlib.suppress(OSError):  # a full disk must not change the script's status
        print(f"nsysalign: {text}", file=sys.stderr, flush=True)


def hold(folder: str, variable: bytes) -> None:
    """What nsys starts, and takes for the script: says which process it is, so that its environment
    can be read, and lives as long as the script and all that the script started (`marked`), or
    until the pipe is deleted.

    The pipe names the script's process; nothing if none was started, or if nsysalign was killed,
    which may have started it just before.
    """
    with open(f"{folder}/{HOLDER}.partial", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{folder}/{HOLDER}.partial", f"{folder}/{HOLDER}")
    pipe, text = f"{folder}/{SCRIPT}", None
    # without blocking: nobody may be left to open the other end, and then it is at its end at once
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    while text is None:
        try:
            text = os.read(descriptor, 99)
        except BlockingIOError:
            select.select([descriptor], [], [])
    if text:
        with contextlib.suppress(OSError, AttributeError):  # an old kernel: then by looking
            select.select([os.pidfd_open(int(text))], [], [])
    else:
        time.sleep(2 * _LOOK_S)  # a script that is being started is not marked yet
    while marked(variable) and os.path.exists(pipe):
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    hold(sys.argv[1], os.fsencode(sys.argv[2]))
