"""Whether nsys still has a reason to run: the application is alive, or nsys itself is working.

After the application ends nsys writes its report, which takes seconds, or an hour for a huge one.  If nsys hangs in that, it
uses no processor and writes nothing; only that is a reason to end it.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from pathlib import Path

from nsysalign.collect.handover import HandOver
from nsysalign.collect.processes import application, below, of_run, stat

#: How long nsys may do nothing after the application ended: until the user is told, and until nsys is ended.
SAID_S, IDLE_S = 30.0, 120.0
#: How often to check.  While the application is alive a check is one read of a small file in /proc.
LOOK_S = 5.0
_IDLE_SHARE = 0.02  # threads that only poll compute less than this


class Watch:
    """Watches one `nsys profile` from outside, or the application itself if it runs without nsys."""

    def __init__(
        self, process: subprocess.Popen, run_dir: str, handover: HandOver, *, profiled: bool = True
    ) -> None:
        self._process, self._run_dir, self._handover, self._profiled = process, run_dir, handover, profiled
        self._known: tuple[int, int] | None = None  # a living process of the application: (pid, start)
        self._launcher_lives, self._orphaned = True, False
        self._since = self._cpu_s = 0.0
        self._mark: tuple | None = None

    def ended(self, seconds: float) -> bool:
        """Wait at most this long for the end of nsys, without waking up in between."""
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except (OSError, AttributeError):  # an old kernel
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
            return self._process.poll() is not None
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if self._launcher_lives and self._handover.launcher_alive is not None:
                poll.register(self._handover.launcher_alive, select.POLLIN)
            poll.poll(max(0, seconds * 1e3))
        finally:
            os.close(descriptor)
        self._look_at_launcher()
        return self._process.poll() is not None

    def _look_at_launcher(self) -> None:
        launcher, application = self._handover.launcher_alive, self._handover.alive
        if self._launcher_lives and None not in (launcher, application) and _has_ended(launcher):
            self._launcher_lives = False
            self._orphaned = not _has_ended(application)  # the application, if not killed, waits for it

    def stranded(self) -> bool:
        """Whether the application has ended without nsys ever noticing, because the nsys process that would report it is
        gone."""
        return self._profiled and self._orphaned and not self.application()

    def idle_s(self) -> float:
        """How long there has been no application while nsys did nothing."""
        if not self._profiled or self._application_lives():
            self._mark = None
            return 0.0
        now = time.monotonic()
        own = {self._process.pid, *below(self._process.pid), *of_run(self._run_dir)}
        cpu_s = sum(found.cpu_s for pid in own if (found := stat(pid)))
        mark = (frozenset(own), _size(self._run_dir))
        allowed = max(0.1, _IDLE_SHARE * (now - self._since))
        if mark != self._mark or cpu_s - self._cpu_s > allowed:
            self._since, self._cpu_s, self._mark = now, cpu_s, mark
        return now - self._since

    def application(self) -> list[int]:
        """The application's processes."""
        if not self._profiled:
            return of_run(self._run_dir)
        return application(self._run_dir, self._process.pid)

    def began(self) -> bool:
        """Whether the application was started."""
        return self._handover.application is not None

    def writes_report(self) -> bool:
        """Whether the application has ended and nsys goes on: a signal would now cost the report."""
        return self._profiled and self.began() and not self.application()

    def _application_lives(self) -> bool:
        if self._known and self._lives(*self._known):
            return True
        for pid in self.application():
            if (found := stat(pid)) and found.state != "Z":
                self._known = (pid, found.start)
                return True
        return False

    @staticmethod
    def _lives(pid: int, start: int) -> bool:
        found = stat(pid)
        return found is not None and found.start == start and found.state != "Z"


def _has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def _size(folder: str) -> int:
    """Bytes in a run directory."""
    total = 0
    for path in Path(folder).rglob("*"):
        with contextlib.suppress(OSError):  # renamed meanwhile
            total += path.stat().st_size
    return total
