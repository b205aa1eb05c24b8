"""Run a command under `nsys profile` so that its output, signals and exit status stay its own.

nsys runs in a session of its own: a Ctrl-C in the terminal reaches only us.  The first one is passed on
(nsys hands it to the application and then writes the report); a second one that reached nsys would lose the report,
so it is held back.  nsys pipes its application's output through itself, mixed with its own messages; the
application gets our own stdout and stderr instead (handover.py), so a terminal stays a terminal, and the order of the two
streams is kept.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from nsysalign.record.handover import HandOver, Inheritance
from nsysalign.record.processes import ENDING, application, below, end_all, kill, of_run, stat

#: How long a script may take to end after being asked to, before a stronger signal is sent.
GRACE_S = 10.0
#: How long nsys may do nothing after the application ended: until the user is told, and until nsys is ended.
SAID_S, IDLE_S = 30.0, 120.0
#: How often to check.  While the application is alive a check is one read of a small file in /proc.
LOOK_S = 5.0
_IDLE_SHARE = 0.02  # threads that only poll compute less than this


@dataclass(frozen=True)
class Ended:
    """How a run ended.  `status` is nsys's, which is the application's own; None if nsys did not survive to report it.  `notes`
    say what we had to do; `stopped`: it was asked to end (Ctrl-C, a signal, --timeout); `never_began`: nsys itself failed
    before it started the application, which never ran."""

    status: int | None
    notes: tuple[str, ...] = ()
    stopped: bool = False
    never_began: bool = False


def launch(
    profile: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    given: Inheritance,
    *,
    timeout_s: float | None = None,
) -> Ended:
    """Run `profile command`; nsys's own messages are appended to `log`.  When it returns, no process of the run is left.  An
    empty `profile` runs the command as it is, without nsys.  The command inherits what is `given`, in the current directory.
    After `timeout_s` the application is stopped as by a Ctrl-C, and by stronger signals if it does not react.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with HandOver(command, given) as handover, _private(log) as messages:
        stopper = _Stopper(env["NSYSALIGN_DIR"], handover, profiled=bool(profile))
        with _handlers(lambda number, _frame: stopper.asked(number), ENDING):
            process = subprocess.Popen(
                [*profile, *handover.starter_command],
                env=dict(env),
                cwd="/",  # nsys refuses a folder that was deleted or is not UTF-8
                stdin=subprocess.DEVNULL,
                stdout=messages,
                stderr=messages,
                pass_fds=[
                    n for n in given.descriptors if n > 2
                ],  # so that nsys puts nothing of its own there
                start_new_session=True,
            )
            stopper.started(process)
            hung = _wait(process, stopper, stopper.watch, timeout_s)
            if hung and profile:
                _ask_for_report(profile[0], process.pid, messages)
            _end(process)
    notes = (
        [f"the script was stopped after {timeout_s:g} s (--timeout)"] if stopper.timed_out else []
    )
    status = _status(process.returncode, stopper)
    if hung:
        when = "after the script had ended" if stopper.watch.began() else "before the script began"
        notes.append(
            f"nsys stopped responding {when}: it was stopped, and what it left behind is used; "
            "the script's own exit status is not known"
        )
    elif status is None:
        name = signal.Signals(-process.returncode).name
        notes.append(f"nsys itself was ended by {name}: the script's own exit status is not known")
    if left := end_all(env["NSYSALIGN_DIR"]):
        outlived = "nsys" if profile else "the script"
        several = "processes" if left > 1 else "process"
        notes.append(
            f"{left} {several} of the run outlived {outlived} and {'were' if left > 1 else 'was'} ended"
        )
    # nsys was terminated from outside by one of these signals
    killed = process.returncode in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
    by_itself = bool(profile) and not (hung or killed or stopper.sent)
    never_began = (
        by_itself and not stopper.watch.began()
    )  # whatever its status: nsys returns 0 even after losses
    return Ended(status, tuple(notes), bool(stopper.sent), never_began)


def _status(code: int, stopper: _Stopper) -> int | None:
    """The application's status as a shell reports it, None if nsys died of a signal that we did not send."""
    if code >= 0:
        return code
    return 128 - code if -code in stopper.sent and -code != signal.SIGKILL else None


def _wait(
    process: subprocess.Popen, stopper: _Stopper, looking: Watch, timeout_s: float | None
) -> bool:
    """Wait for nsys; the application is stopped, step by step, after `timeout_s`.  True if nsys hung."""
    limit = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not looking.ended(min(LOOK_S, limit - time.monotonic())):
        if time.monotonic() >= limit:
            if looking.writes_report():
                limit = math.inf
                continue
            stopper.timed_out = True
            stopper.step()
            limit = math.inf if stopper.sent[-1] == signal.SIGKILL else time.monotonic() + GRACE_S
        idle_s = looking.idle_s()
        said, stopper.hanging = stopper.hanging, idle_s >= SAID_S
        if stopper.hanging and not said:
            left_s = max(0.0, IDLE_S - idle_s)
            state = (
                "has ended but nsys has not, and it is doing"
                if looking.began()
                else "has not been started, and nsys is doing"
            )
            _say(
                f"the script {state} nothing; it will be stopped in {left_s:.0f} s if that does not change, at once with Ctrl-C"
            )
        if idle_s >= IDLE_S or stopper.gave_up or looking.stranded():
            return True
    return False


def _ask_for_report(nsys: str, pid: int, messages: BinaryIO) -> None:
    """nsys keeps what it collects in another process, and hands it to whoever ends the session."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [nsys, "stop", f"--session=profile-{pid}"],
            cwd="/", stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, start_new_session=True,
            timeout=IDLE_S,
        )  # fmt: skip


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _say(text: str) -> None:
    print(f"nsysalign: {text}", file=sys.stderr, flush=True)


class _Stopper:
    """Stops the application without losing the report: each step once, the next one only after a while.

    nsys passes the first SIGINT and SIGTERM on to the application's process group and then writes the report; a
    second one of a kind would make it give the report up.  SIGKILL goes past nsys, to the application's
    processes.
    """

    def __init__(self, run_dir: str, handover: HandOver, *, profiled: bool) -> None:
        self._run_dir, self._handover, self._profiled = run_dir, handover, profiled
        self._process: subprocess.Popen | None = None
        self.watch: Watch | None = None
        self.sent: list[int] = []
        self._since = 0.0
        self.timed_out = False
        self.hanging = False  # nsys is doing nothing any more, and the user was told
        self.gave_up = False  # Ctrl-C was pressed after that

    def started(self, process: subprocess.Popen) -> None:
        self._process = process
        self.watch = Watch(process, self._run_dir, self._handover, profiled=self._profiled)
        for number in self.sent:
            self._signal(process, number)

    def _signal(self, process: subprocess.Popen, number: int) -> None:
        """nsys passes a signal on to the application's group; without nsys we have to do that."""
        if self._profiled:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)

    def asked(self, number: int) -> None:
        """A signal arrived: pass it on if it is the first, escalate if the last one was long ago.  While the report is being
        written none is passed on: nsys would give the report up.
        """
        number = number if number == signal.SIGINT else signal.SIGTERM  # a hang-up ends it as well
        if self.hanging:
            self.gave_up = True
        elif self.watch is not None and self.watch.writes_report():
            _say("the report is still being written, please wait")
        elif not self.sent:
            self._send(number)
        elif time.monotonic() - self._since >= GRACE_S:
            self.step()
        elif number == signal.SIGINT:
            _say("the script has not ended yet, please wait")

    def step(self) -> None:
        """The next stronger way to stop it."""
        harder = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) if n not in self.sent]
        self._send(harder[0] if harder else signal.SIGKILL)

    def _send(self, number: int) -> None:
        self.sent.append(number)
        self._since = time.monotonic()
        if number == signal.SIGKILL:
            kill(self.watch.application(), number)
        elif self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self._signal(self._process, number)


@contextlib.contextmanager
def _handlers(handler: object, numbers: Sequence[int]) -> Iterator[None]:
    """Our signal handlers for a while; outside the main thread Python allows none."""
    old = {}
    try:
        for number in numbers:
            if signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup, a background job: whoever started us wants signals ignored
            with contextlib.suppress(ValueError):
                old[number] = signal.signal(number, handler)
        yield
    finally:
        for number, previous in old.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """While the run directory is being finished, a Ctrl-C only prints a message: finishing takes seconds, losing it would cost
    a run."""

    def wait(_number: int, _frame: object) -> None:
        _say("finishing the run directory, please wait")

    with _handlers(wait, ENDING):
        yield


def _private(log: Path) -> BinaryIO:
    """Open for appending, readable by its owner only: nsys prints paths and its arguments."""
    return open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))


class Watch:
    """Whether one `nsys profile` still has a reason to run: the application is alive, or nsys itself is working.  Also watches an
    application that runs without nsys.

    After the application ends nsys writes its report, which takes seconds, or an hour for a huge one.  If nsys hangs in that, it
    uses no processor and writes nothing; only that is a reason to end it.
    """

    def __init__(
        self, process: subprocess.Popen, run_dir: str, handover: HandOver, *, profiled: bool = True
    ) -> None:
        self._process, self._run_dir, self._handover, self._profiled = (
            process,
            run_dir,
            handover,
            profiled,
        )
        self._known: tuple[int, int] | None = (
            None  # a living process of the application: (pid, start)
        )
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
            self._orphaned = not _has_ended(
                application
            )  # the application, if not killed, waits for it

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
