"""Run a script under nsys as if it were started plainly.

    nsysalign ---- nsys profile ---- holder      starts with nsys's environment, and waits for the script
        |                              |
        +--- script, in the holder's environment

nsys takes away from what it starts most of what a process inherits: descriptors, the terminal, its
process group, the umask, bytes that are not UTF-8, sometimes the exit status.  All that makes it
record a process is in the environment.  So nsys starts a holder (`processes.hold`), and the script
is started by us, with the environment that the holder was given: everything is inherited as usual,
and the status is the script's own, whatever becomes of nsys.

nsys is in a session of its own and gets no signal: a second Ctrl-C would make it give up the
report.  On a terminal the script shares our process group, so that Ctrl-C and Ctrl-Z reach it as
usual; elsewhere it has its own, and signals are passed on.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsysalign.record import profiler
from nsysalign.record.processes import ENDING, alive, end_all, kill, marked, say, wait_for
from nsysalign.record.profiler import Profiler

_LOOK_AT_CHILDREN_S = 0.1
#: How long processes that the script started may outlive it, recorded: until the user is told, and
#: until they go on without nsys.
SERVER_SAID_S, SERVER_S = 5.0, 60.0


@dataclass(frozen=True)
class Ended:
    """How a run ended.  `status`: the script's own, as a shell reports it; None if it was not
    started.  `notes` say what we had to do; `stopped`: it was asked to end (Ctrl-C, a signal,
    --timeout); `again`: nsys failed by itself before the script was started."""

    status: int | None
    notes: tuple[str, ...] = ()
    stopped: bool = False
    again: bool = False


def open_closed_streams() -> None:
    """A closed stdin, stdout or stderr becomes /dev/null: nsys's library would open a file of its
    own there, in the script."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is taken


def working_directory() -> Path:
    """The working directory of this process; if it was deleted, the path it had."""
    return Path(os.readlink("/proc/self/cwd").removesuffix(" (deleted)"))


def launch(
    command: Sequence[str],
    added: Mapping[str, str],
    log: Path,
    *,
    profile: Sequence[str] = (),
    folder: Path | None = None,
    timeout_s: float | None = None,
    stdout_to_stderr: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Ended:
    """Run `command` with the variables `added` to its environment, under `profile` (`nsys profile
    ...` up to the command, with a `folder` of `nsys_folder`; plainly without).  nsys's own messages
    are appended to `log`.  After `timeout_s` the script is stopped as by Ctrl-C, and by stronger
    signals if it does not react.  `progress` gets the percentages of nsys's report.  When it
    returns, no process of the run is left but those that outlived the script for SERVER_S."""
    sys.stdout.flush()
    sys.stderr.flush()
    environ = dict(os.environ)
    if b"\0LC_CTYPE=" not in b"\0" + Path("/proc/self/environ").read_bytes():
        environ.pop("LC_CTYPE", None)  # Python sets it for itself in the C locale (PEP 538)
    script = _Script(added["NSYSALIGN_DIR"])
    notes: list[str] = []
    with _handlers(script.asked), contextlib.ExitStack() as stack:
        nsys = None
        if profile and folder is not None:
            nsys = stack.enter_context(Profiler(profile, folder, log, environ))
            script.profiled = nsys.lives
            given = nsys.environment(script)
            if given is None:
                if nsys.hung:
                    notes.append("nsys stopped responding before the script began: it was stopped")
                killed = nsys.killed()
                again = not killed and not script.sent and not script.gave_up
                notes += killed
                number = script.sent[0] if script.sent else None
                return Ended(number and 128 + number, tuple(notes), bool(script.sent), again)
            environ = {k: v for k, v in given.items() if k not in ("TMPDIR", "NSYSALIGN_RUN")} | {
                k: v for k, v in environ.items() if k == "TMPDIR"
            }
            if environ.get("QUADD_INJECTION_PROXY") == "NVTX":
                # With it nsys 2024.2 loads its library before NVTX is used, and then every forked
                # child that calls exit() dies of SIGSEGV.  NVTX itself loads the library at its
                # first call, by NVTX_INJECTION64_PATH.
                del environ["QUADD_INJECTION_PROXY"]
        environ |= added
        if "NSYSALIGN_INSPECT" in environ:  # `cli.main` has set it aside
            environ["PYTHONINSPECT"] = environ.pop("NSYSALIGN_INSPECT")
        status = script.start(command, environ, stdout_to_stderr)
        if status is None:
            if nsys is not None:
                nsys.wait_for(script)
            status = script.wait(timeout_s)
        if nsys is not None:
            notes += nsys.wait(script, progress)
    if script.timed_out:
        notes.insert(0, f"the script was stopped after {timeout_s:g} s (--timeout)")
    if script.going_on:
        notes.append(
            f"{_processes(script.going_on)} of the run still lived {SERVER_S:g} s after the script's end and goes on: "
            "nothing of it is recorded from then on"
        )
    elif left := end_all(script.mark):
        notes.append(
            f"{_processes(left)} of the run outlived the script and {'were' if left > 1 else 'was'} ended"
        )
    return Ended(status, tuple(notes), bool(script.sent))


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


class _Script:
    """The script, once it is started, and how to stop it: each step once, the next one only after a
    while."""

    def __init__(self, run_dir: str) -> None:
        self.mark = b"NSYSALIGN_DIR=" + os.fsencode(run_dir)
        self.process: subprocess.Popen | None = None
        self.sent: list[int] = []  # signals that asked it to end
        self.timed_out = False
        self.profiled: Callable[[], bool] = bool  # whether nsys lives
        self.hanging = False  # nsys is doing nothing any more, and the user was told
        self.gave_up = False  # Ctrl-C was pressed after that
        self.going_on = 0  # so many processes outlived it for so long that they are left alone
        self._since = 0.0
        try:
            os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
            self._own_group = False
        except OSError:
            self._own_group = True

    def start(
        self, command: Sequence[str], environ: Mapping[str, str], stdout_to_stderr: bool
    ) -> int | None:
        """A status if it cannot be started; it is said why."""
        keywords = {"close_fds": False, "env": environ, "stdout": 2 if stdout_to_stderr else None}
        if self._own_group and sys.version_info >= (3, 11):
            keywords["process_group"] = 0
        elif self._own_group:
            keywords["preexec_fn"] = os.setpgrp
        try:
            try:
                self.process = subprocess.Popen(list(command), **keywords)
            except OSError as error:
                program = shutil.which(command[0])
                if error.errno != errno.ENOEXEC or program is None:
                    raise
                # a script without #!: a shell would read it itself
                self.process = subprocess.Popen(["/bin/sh", program, *command[1:]], **keywords)
        except OSError as error:
            say(f"{command[0]}: {error.strerror}")
            return 127 if error.errno == errno.ENOENT else 126
        for number in self.sent:
            self._signal(number)
        return None

    def wait(self, timeout_s: float | None) -> int:
        """Its status, when it has ended, under nsys with all that it started, for SERVER_S; it is
        stopped, step by step, after `timeout_s`."""
        limit = math.inf if timeout_s is None else time.monotonic() + timeout_s
        ended, told = 0.0, False
        while not wait_for(self.process, limit - time.monotonic()) or (
            self.profiled() and marked(self.mark)
        ):
            if time.monotonic() >= limit:
                self.timed_out = True
                self._step()
                limit = time.monotonic() + profiler.GRACE_S
            elif self.process.poll() is not None:
                ended = ended or time.monotonic()
                if not told and time.monotonic() - ended >= SERVER_SAID_S:
                    told = True
                    self._tell_of_servers()
                if not self.sent and time.monotonic() - ended >= SERVER_S:
                    self.going_on = len(marked(self.mark))
                    break
                time.sleep(_LOOK_AT_CHILDREN_S)
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    def _tell_of_servers(self) -> None:
        names = []
        for pid in marked(self.mark):
            with contextlib.suppress(OSError):  # gone meanwhile
                names.append(Path(f"/proc/{pid}/comm").read_text(errors="replace").strip())
        say(
            f"the script has ended, and {_processes(len(names))} that it started still run "
            f"({', '.join(dict.fromkeys(names))}): they are recorded for {SERVER_S:g} s at most and go on then; Ctrl-C ends them"
        )

    def lives(self) -> bool:
        """Whether it, or anything that it started and that is waited for, is alive."""
        script = self.process
        if self.going_on:
            return False
        if script is not None and script.poll() is None and alive(script.pid):
            return True
        return bool(marked(self.mark))

    def asked(self, number: int, _frame: object = None) -> None:
        """A signal arrived: pass it on, or escalate if one was sent long ago.  While the report is
        written none is passed on."""
        number = number if number == signal.SIGINT else signal.SIGTERM  # a hang-up ends it as well
        if self.hanging:
            self.gave_up = True
        elif self.process is not None and self.profiled() and not self.lives():
            say("the report is still being written, please wait")
        elif not self.sent:
            self.sent.append(number)
            self._since = time.monotonic()
            ended = self.process is not None and self.process.poll() is not None
            if self._own_group or number != signal.SIGINT or ended:  # else the terminal has sent it
                self._signal(number)
        elif time.monotonic() - self._since >= profiler.GRACE_S:
            self._step()
        elif number == signal.SIGINT:
            say("the script has not ended yet, please wait")

    def _step(self) -> None:
        """The next stronger way to stop it."""
        harder = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL) if n not in self.sent]
        self.sent.append(harder[0] if harder else signal.SIGKILL)
        self._since = time.monotonic()
        self._signal(self.sent[-1])

    def _signal(self, number: int) -> None:
        if self.process is None:
            return
        if self.going_on:
            return
        if number == signal.SIGKILL or self.process.poll() is not None:
            kill(marked(self.mark), number)
        elif self._own_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)


@contextlib.contextmanager
def _handlers(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Our handler of signals that ask a run to end, for a while; outside the main thread Python
    allows none."""
    old = {}
    try:
        for number in ENDING:
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
    """While the run directory is being finished, a Ctrl-C only prints a message: finishing takes
    seconds, losing it would cost a run."""
    with _handlers(lambda _number, _frame: say("finishing the run directory, please wait")):
        yield
