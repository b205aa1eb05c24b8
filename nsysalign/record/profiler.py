"""One `nsys profile`, which takes a holder for the script (`launch` says why)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from nsysalign.record.processes import HOLDER, SCRIPT, end_all, marked, say, stat, wait_for

#: How long a process may take to end after being asked to, before a stronger signal is sent.
GRACE_S = 10.0
#: How long nsys may do nothing while no script runs: until the user is told, and until nsys is
#: ended.
SAID_S, IDLE_S = 30.0, 120.0
#: After so long without activity it is asked for its report.
ASK_S = 5.0
#: The same before it has started the script: then it is started again, once.
START_IDLE_S = 20.0
#: How often to look whether nsys still works.
LOOK_S = 5.0
_IDLE_SHARE = 0.02  # threads that only poll compute less than this


class Script(Protocol):
    """What nsys's end depends on (`launch`): the script, and how its user wants it to end."""

    mark: bytes
    process: subprocess.Popen | None
    sent: list[int]
    hanging: bool
    gave_up: bool
    going_on: int


class Profiler:
    """One `nsys profile`, whose application is a holder.  Ended with the block at the latest."""

    def __init__(
        self, profile: Sequence[str], folder: Path, log: Path, environ: Mapping[str, str]
    ) -> None:
        self._profile, self._folder, self._log = profile, folder, log
        run = os.path.realpath(folder / "run")
        self._environ = {**environ, "TMPDIR": str(folder), "NSYSALIGN_RUN": run}
        self._mark = b"NSYSALIGN_RUN=" + os.fsencode(run)
        self.hung = False
        self._since, self._looked, self._cpu_s = time.monotonic(), 0.0, 0.0
        self._state: tuple | None = (
            None  # when nsys last did something, and what it looked like then
        )

    def __enter__(self) -> Profiler:
        for name in (HOLDER, SCRIPT):
            (self._folder / name).unlink(missing_ok=True)
        os.mkfifo(self._folder / SCRIPT, 0o600)
        # both ends, so that the holder need not wait for us to open it; it closes with us, whatever
        # happens
        self._pipe = os.open(self._folder / SCRIPT, os.O_RDWR)
        holder = Path(__file__).resolve().with_name("processes.py")
        # readable by its owner only: nsys prints paths and its arguments
        self._messages = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._process = subprocess.Popen(
            [*self._profile, sys.executable, "-I", "-S", str(holder), str(self._folder)],
            env=self._environ,
            cwd="/",  # nsys refuses a folder that was deleted or is not UTF-8
            stdin=subprocess.DEVNULL,
            stdout=self._messages,
            stderr=self._messages,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._close_pipe()
        if self.lives():
            self._process.terminate()
            if not wait_for(self._process, GRACE_S):
                self._process.kill()
        self._process.wait()
        end_all(self._mark, wait_s=GRACE_S)
        os.close(self._messages)

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def lives(self) -> bool:
        return self._process.poll() is None

    def environment(self, script: Script) -> dict[str, str] | None:
        """What nsys gave the holder; None if it ended, hung or was told to end before."""
        said = self._folder / HOLDER
        while not said.exists():
            if (
                not self.lives()
                or script.sent
                or self._hangs(script, "has not been started, and nsys", START_IDLE_S)
            ):
                return None
            wait_for(self._process, 0.02)
        try:
            given = Path(f"/proc/{said.read_text()}/environ").read_bytes()
        except OSError:
            return None
        entries = (entry.partition("=") for entry in os.fsdecode(given).split("\0") if entry)
        return {name: value for name, _, value in entries}

    def wait_for(self, script: Script) -> None:
        """The holder lives from now on as long as the script, and all that it starts."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"%d %s" % (script.process.pid, script.mark))
        self._close_pipe()

    def wait(self, script: Script, progress: Callable[[int], None] | None) -> list[str]:
        """Until it has written its report; notes if it did not end by itself."""
        self._close_pipe()
        if script.going_on:
            (self._folder / SCRIPT).unlink()
        self._since, told = time.monotonic(), -1
        while not wait_for(self._process, min(LOOK_S, 0.5)):
            percent = said_percent(self._log)
            if progress is not None and percent is not None and percent != told:
                progress(told := percent)
            if self._hangs(script, "has ended but nsys has not, and it", IDLE_S):
                self._ask_for_report()
                return [
                    "nsys stopped responding after the script had ended: it was stopped, and what it left behind is used"
                ]
            # where its launcher was killed nobody tells it that the holder has ended: it makes its
            # report when asked to, which it may refuse for a moment, and waits on
            idle_s = time.monotonic() - self._since
            asked = idle_s >= ASK_S and self._ask_for_report()
            if asked and any((self._folder / "run").glob("trace.nsys-rep")):
                return []
        return self.killed()

    def killed(self) -> list[str]:
        """A note if it was ended from outside."""
        code = self._process.poll() or 0
        if -code not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            return []
        return [
            f"nsys itself was ended by {signal.Signals(-code).name}: what it left behind is used"
        ]

    def _hangs(self, script: Script, state: str, idle_s: float) -> bool:
        """Whether nsys, with no script to watch, has done nothing for so long (it may compute or
        write for an hour), or the user has given it up; they are told after SAID_S."""
        now = time.monotonic()
        if now - self._looked >= min(LOOK_S, 1.0):
            self._looked = now
            own = frozenset(marked(self._mark))
            cpu_s = sum(found.cpu_s for pid in own if (found := stat(pid)))
            sizes = 0
            for path in (*self._folder.glob("*"), *(self._folder / "run").glob("*")):
                with contextlib.suppress(OSError):  # renamed meanwhile
                    sizes += path.stat().st_size
            allowed = max(0.1, _IDLE_SHARE * (now - self._since))
            if (own, sizes) != self._state or cpu_s - self._cpu_s > allowed:
                self._since, self._cpu_s, self._state = now, cpu_s, (own, sizes)
            told, script.hanging = script.hanging, now - self._since >= SAID_S
            if script.hanging and not told:
                left_s = max(0.0, idle_s - (now - self._since))
                say(
                    f"the script {state} is doing nothing; it will be stopped in {left_s:.0f} s if that does not change, at once "
                    "with Ctrl-C"
                )
        self.hung = script.gave_up or now - self._since >= idle_s
        return self.hung

    def _ask_for_report(self) -> bool:
        """nsys keeps what it collects in another process, and hands it to whoever ends the session.
        Whether it accepted that."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [self._profile[0], "stop", f"--session=profile-{self._process.pid}"],
                env=self._environ, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, timeout=IDLE_S,
            )  # fmt: skip
            return done.returncode == 0
        return False


_PERCENT = re.compile(rb"\[[= ]*(\d{1,3})%[= ]*\]")


def said_percent(log: Path) -> int | None:
    """How far nsys's report is, by its messages: the last percentage, 0 when it has only begun,
    None before."""
    try:
        with open(log, "rb") as file:
            head = file.read(4096)
            file.seek(max(0, log.stat().st_size - 400))
            percents = _PERCENT.findall(file.read())
    except OSError:  # the program removed it
        return None
    if percents:
        return min(int(percents[-1]), 100)
    return 0 if b"Generating" in head else None
