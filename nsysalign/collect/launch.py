"""Run a command under `nsys profile` so that its output, signals and exit status stay its own.

nsys runs in a session of its own: a Ctrl-C in the terminal reaches only us.  The first one is passed on
(nsys hands it to the application and then writes the report); a second one that reached nsys would lose the
report (harness.md, section 4), so it is held.  nsys pipes its application's output through itself, mixed
with its own messages; the application gets our own stdout and stderr instead, where nsys lets file
descriptors through, so a terminal stays a terminal and the order of the two stays as it is.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsysalign.collect import watch
from nsysalign.collect.processes import end_all, kill

#: How long a script may take to end after it was asked to, before it is asked harder.
GRACE_S = 10.0
_ENDING = tuple(getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n))

# $1 is our pid.  The descriptors count only if they are the ones we passed: nsys may use these numbers for
# itself.  The mark says that the application began, so that its end can be told from nsys's own start.
_SHELL = """\
p=$1; shift
: >"$NSYSALIGN_DIR/raw/{began}"
if [ /proc/self/fd/{out} -ef /proc/$p/fd/{out} ] && [ /proc/self/fd/{err} -ef /proc/$p/fd/{err} ]
then exec "$@" >&{out} 2>&{err} {out}>&- {err}>&-
fi
exec "$@"
"""


@dataclass(frozen=True)
class Ended:
    """How a run ended.  `status` is nsys's, which is the application's own; None where nsys did not live to tell it.
    `notes` say what we had to do; `stopped`: it was asked to end (Ctrl-C, a signal, --timeout); `never_began`: nsys failed
    by itself before it began the application, of which nothing has happened."""

    status: int | None
    notes: tuple[str, ...] = ()
    stopped: bool = False
    never_began: bool = False


def launch(
    profile: Sequence[str],
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    *,
    timeout_s: float | None = None,
    stdout_to_stderr: bool = False,
) -> Ended:
    """Run `profile command`, nsys's own messages go to the end of `log`.  When it returns, no process of the run is left.

    An empty `profile` runs the command as it is, without nsys.  With `stdout_to_stderr` what it prints goes to our stderr.

    After `timeout_s` the application is stopped as a Ctrl-C would stop it, and harder if it does not listen.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with _passed_output(2 if stdout_to_stderr else 1) as fds, open(log, "ab") as messages:
        wrapped = list(command)
        if fds:
            script = _SHELL.format(out=fds[0], err=fds[1], began=watch.BEGAN)
            wrapped = ["/bin/sh", "-c", script, "nsysalign", str(os.getpid()), *command]
        stopper = _Stopper(env["NSYSALIGN_DIR"], profiled=bool(profile))
        with _handlers(lambda number, _frame: stopper.asked(number), _ENDING):
            process = subprocess.Popen(
                [*profile, *wrapped],
                env=dict(env),
                stdout=messages if fds else None,
                stderr=messages if fds else None,
                pass_fds=fds,
                start_new_session=True,
            )
            stopper.started(process)
            hung = _wait(process, stopper, stopper.watch, timeout_s)
    notes = [f"the script was stopped after {timeout_s:g} s (--timeout)"] if stopper.timed_out else []
    status = _status(process.returncode, stopper)
    if hung:
        when = "after the script had ended" if stopper.watch.began() else "before the script began"
        notes.append(
            f"nsys did nothing any more {when}: it was ended, and what it left is used; "
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
    # without descriptors of ours there is no mark of its beginning; by these signals somebody else ended nsys
    killed = process.returncode in (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
    by_itself = bool(profile and fds) and not (hung or killed or stopper.sent)
    never_began = (
        by_itself and not stopper.watch.began()
    )  # whatever its status: nsys returns 0 after losses, too
    return Ended(status, tuple(notes), bool(stopper.sent), never_began)


def _status(code: int, stopper: _Stopper) -> int | None:
    """The application's status as a shell would say it, None where nsys died of a signal that we did not send."""
    if code >= 0:
        return code
    return 128 - code if -code in stopper.sent and -code != signal.SIGKILL else None


def _wait(
    process: subprocess.Popen, stopper: _Stopper, looking: watch.Watch, timeout_s: float | None
) -> bool:
    """Wait for nsys; the application is stopped, step by step, after `timeout_s`.  True where nsys hung."""
    limit = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not looking.ended(min(watch.LOOK_S, limit - time.monotonic())):
        if time.monotonic() >= limit:
            if looking.writes_report():
                limit = math.inf
                continue
            stopper.timed_out = True
            stopper.step()
            limit = math.inf if stopper.sent[-1] == signal.SIGKILL else time.monotonic() + GRACE_S
        idle_s = looking.idle_s()
        said, stopper.hanging = stopper.hanging, idle_s >= watch.SAID_S
        if stopper.hanging and not said:
            left_s = max(0.0, watch.IDLE_S - idle_s)
            state = "has ended, nsys has not and does" if looking.began() else "was not begun, nsys does"
            _say(
                f"the script {state} nothing; it is ended in {left_s:.0f} s if that goes on, at once with Ctrl-C"
            )
        if idle_s >= watch.IDLE_S or stopper.gave_up:
            process.terminate()  # it may still write what it has
            if not looking.ended(GRACE_S):
                process.kill()
                process.wait()
            return True
    return False


def _say(text: str) -> None:
    print(f"nsysalign: {text}", file=sys.stderr, flush=True)


class _Stopper:
    """Stops the application without losing the report: each step once, the next one only after a while.

    nsys passes the first SIGINT and SIGTERM on to the application's process group and then writes the report; a
    second one of a kind would make it give the report up.  SIGKILL goes past nsys, to the application's
    processes.
    """

    def __init__(self, run_dir: str, *, profiled: bool) -> None:
        self._run_dir, self._profiled = run_dir, profiled
        self._process: subprocess.Popen | None = None
        self.watch: watch.Watch | None = None
        self.sent: list[int] = []
        self._since = 0.0
        self.timed_out = False
        self.hanging = False  # nsys does nothing any more, and that was said
        self.gave_up = False  # somebody pressed Ctrl-C then

    def started(self, process: subprocess.Popen) -> None:
        self._process = process
        self.watch = watch.Watch(process, self._run_dir, profiled=self._profiled)
        for number in self.sent:
            self._signal(process, number)

    def _signal(self, process: subprocess.Popen, number: int) -> None:
        """nsys hands a signal to the application's group; without nsys that is ours to do."""
        if self._profiled:
            process.send_signal(number)
        else:
            os.killpg(process.pid, number)

    def asked(self, number: int) -> None:
        """A signal came for us: pass it on if it is the first, insist if the last one is long ago.

        While the report is written none is passed on: nsys would drop it.
        """
        number = signal.SIGTERM if number == signal.SIGHUP else number
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
        """The next harder way to stop it."""
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
            with contextlib.suppress(ValueError):
                old[number] = signal.signal(number, handler)
        yield
    finally:
        for number, previous in old.items():
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """While the run directory is finished a Ctrl-C only says so: it takes seconds, losing it costs a run."""

    def wait(_number: int, _frame: object) -> None:
        _say("finishing the run directory, please wait")

    with _handlers(wait, _ENDING):
        yield


@contextlib.contextmanager
def _passed_output(stdout: int = 1) -> Iterator[tuple[int, ...]]:
    """Two free single-digit descriptors (sh knows no others): copies of `stdout` and of our stderr; () where
    impossible.
    """
    free = [n for n in range(9, 2, -1) if not _is_open(n)][:2]
    if len(free) < 2 or not _is_open(1) or not _is_open(2) or shutil.which("/bin/sh") is None:
        yield ()
        return
    os.dup2(stdout, free[0])
    os.dup2(2, free[1])
    try:
        yield tuple(free)
    finally:
        for n in free:
            os.close(n)


def _is_open(descriptor: int) -> bool:
    import fcntl  # Unix only, and whatever merely analyses imports this file as well

    try:
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    except OSError:
        return False
    return True
