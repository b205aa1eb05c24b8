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
from typing import Any

from nsysalign.record import processes
from nsysalign.record.processes import ENDING, end_all, kill, marked, say, stat, wait_for

#: How long a process may take to end after being asked to, before a stronger signal is sent.
GRACE_S = 10.0
#: How long processes that the script started may outlive it, recorded: until the user is told, and
#: until they go on without nsys.
SERVER_SAID_S, SERVER_S = 5.0, 60.0
#: How long nsys may do nothing while no script runs: until it is asked for its report, and until it
#: is ended; before it has started the script it is started again, once.
ASK_S, IDLE_S, START_IDLE_S = 5.0, 60.0, 20.0
_LOOK_S = 0.1
_IDLE_SHARE = 0.02  # threads that only poll compute less than this


@dataclass(frozen=True)
class Ended:
    """How a run ended.  `status`: the script's own, as a shell reports it; None if nsys failed by
    itself before it was started.  `notes` say what we had to do; `stopped`: it was asked to end
    (Ctrl-C, a signal, --timeout)."""

    status: int | None
    notes: tuple[str, ...] = ()
    stopped: bool = False


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
    writing: Callable[[], None] | None = None,
) -> Ended:
    """Run `command` with the variables `added` to its environment, under `profile` (`nsys profile
    ...` up to the command, with a `folder` of `nsys_folder`; plainly without).  nsys's own messages
    are appended to `log`.  After `timeout_s` the script is stopped as by Ctrl-C, and by stronger
    signals if it does not react.  `writing` is called when nsys writes its report.  When it returns,
    no process of the run is left but those that outlived the script for SERVER_S."""
    sys.stdout.flush()
    sys.stderr.flush()
    environ = dict(os.environ)
    script, nsys, notes = _Script(added["NSYSALIGN_DIR"]), None, []
    with _handlers(script.asked), contextlib.ExitStack() as stack:
        if profile and folder is not None:
            nsys = stack.enter_context(_Profiler(profile, folder, log, script))
            given = nsys.environment()
            if given is None:
                status = 128 + script.sent[0] if script.sent else None
                return Ended(status, stopped=bool(script.sent))
            # TMPDIR is the script's own.  With the proxy nsys 2024.2 loads its library before NVTX
            # is used, and then every forked child that calls exit() dies of SIGSEGV; NVTX itself
            # loads it at its first call, by NVTX_INJECTION64_PATH
            if given.get("QUADD_INJECTION_PROXY") == "NVTX":
                del given["QUADD_INJECTION_PROXY"]
            own = {k: v for k, v in environ.items() if k == "TMPDIR"}
            environ = {k: v for k, v in given.items() if k not in ("TMPDIR", "NSYSALIGN_RUN")} | own
        status = script.start(command, environ | dict(added), stdout_to_stderr)
        if status is None:
            if nsys is not None:
                nsys.waits_for(script.process.pid)
            status = script.wait(timeout_s)
        if nsys is not None:
            if writing is not None:
                writing()
            notes += nsys.wait()
    if script.timed_out:
        notes.insert(0, f"the script was stopped after {timeout_s:g} s (--timeout)")
    if script.going_on:
        notes.append(
            f"{_processes(script.going_on)} of the run still lived {SERVER_S:g} s after the script's end and goes on: "
            "nothing of it is recorded from then on"
        )
    elif left := end_all(script.mark):
        notes.append(f"{_processes(left)} of the run outlived the script: ended")
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
        keywords: dict[str, Any] = {"close_fds": False, "env": environ}
        keywords["stdout"] = 2 if stdout_to_stderr else None
        if self._own_group:
            new = sys.version_info >= (3, 11)
            keywords |= {"process_group": 0} if new else {"preexec_fn": os.setpgrp}
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
        ended, said = math.inf, False
        while not wait_for(self.process, limit - time.monotonic()) or (
            self.profiled() and marked(self.mark)
        ):
            now = time.monotonic()
            if now >= limit:
                self.timed_out = True
                self._step()
                limit = now + GRACE_S
                continue
            ended = min(ended, now)
            if not said and now - ended >= SERVER_SAID_S:
                said = True
                say(
                    f"the script has ended, and {_processes(len(marked(self.mark)))} that it started still run: "
                    f"they are recorded for {SERVER_S:g} s at most and go on then; Ctrl-C ends them"
                )
            if not self.sent and now - ended >= SERVER_S:
                self.going_on = len(marked(self.mark))
                break
            time.sleep(_LOOK_S)
        code = self.process.returncode
        return code if code >= 0 else 128 - code

    def asked(self, number: int, _frame: object = None) -> None:
        """A signal arrived: pass it on, or escalate if one was sent long ago.  While the report is
        written none is passed on."""
        number = number if number == signal.SIGINT else signal.SIGTERM  # a hang-up ends it as well
        process = self.process
        ended = process is not None and process.poll() is not None
        own = stat(process.pid) if process is not None and not ended else None
        lives = (own is not None and own.state != "Z") or bool(marked(self.mark))
        if process is not None and self.profiled() and (self.going_on or not lives):
            say("the report is still being written, please wait")
        elif not self.sent:
            self.sent.append(number)
            self._since = time.monotonic()
            if self._own_group or number != signal.SIGINT or ended:  # else the terminal has sent it
                self._signal(number)
        elif time.monotonic() - self._since >= GRACE_S:
            self._step()
        elif number == signal.SIGINT:
            say("the script has not ended yet, please wait")

    def _step(self) -> None:
        """The next stronger way to stop it."""
        harder = [n for n in (signal.SIGINT, signal.SIGTERM) if n not in self.sent]
        self.sent.append(harder[0] if harder else signal.SIGKILL)
        self._since = time.monotonic()
        self._signal(self.sent[-1])

    def _signal(self, number: int) -> None:
        if self.process is None or self.going_on:
            return
        if number == signal.SIGKILL or self.process.poll() is not None:
            kill(marked(self.mark), number)
        elif self._own_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)


class _Profiler:
    """One `nsys profile`, whose application is a holder.  Ended with the block at the latest."""

    def __init__(self, profile: Sequence[str], folder: Path, log: Path, script: _Script) -> None:
        self._nsys, self._folder, self._script = profile[0], folder, script
        run = os.path.realpath(folder / "run")
        self._environ = {**os.environ, "TMPDIR": str(folder), "NSYSALIGN_RUN": run}
        self._mark = b"NSYSALIGN_RUN=" + os.fsencode(run)
        # when nsys last computed something, and its processes then
        self._since, self._looked, self._cpu_s = time.monotonic(), 0.0, 0.0
        self._pids: frozenset[int] = frozenset()
        self._holder, self._pipe_name = folder / processes.HOLDER, folder / processes.SCRIPT
        for path in (self._holder, self._pipe_name):
            path.unlink(missing_ok=True)
        os.mkfifo(self._pipe_name, 0o600)
        # both ends, so that the holder need not wait for us to open it; it closes with us, whatever
        # happens
        self._pipe = os.open(self._pipe_name, os.O_RDWR)
        # readable by its owner only: nsys prints paths and its arguments
        self._messages = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        hold = [sys.executable, "-I", "-S", processes.__file__]
        hold += [str(folder), os.fsdecode(script.mark)]
        self._process = self._start([*profile, *hold], self._messages)
        script.profiled = self.lives

    def _start(self, command: Sequence[str], output: int) -> subprocess.Popen:
        """In a session of its own; nsys refuses a working directory that was deleted."""
        return subprocess.Popen(
            command, env=self._environ, cwd="/", stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> _Profiler:
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

    def environment(self) -> dict[str, str] | None:
        """What nsys gave the holder; None if it ended, hung or was told to end before."""
        while not self._holder.exists():
            if self._hangs(START_IDLE_S) or not self.lives() or self._script.sent:
                return None
            wait_for(self._process, 0.02)
        try:
            given = Path(f"/proc/{self._holder.read_text()}/environ").read_bytes()
        except OSError:
            return None
        entries = (entry.partition("=") for entry in os.fsdecode(given).split("\0") if entry)
        return {name: value for name, _, value in entries}

    def waits_for(self, pid: int) -> None:
        """The holder lives from now on as long as this process, and all that it starts."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"%d" % pid)
        self._close_pipe()

    def wait(self) -> list[str]:
        """Until it has written its report; notes if it did not end by itself."""
        self._close_pipe()
        if self._script.going_on:
            self._pipe_name.unlink()
        self._since = ended = time.monotonic()
        while not wait_for(self._process, 0.5):
            now = time.monotonic()
            silent = b"Generating" not in os.pread(self._messages, 1 << 16, 0)  # no report yet
            if self._hangs(IDLE_S) or (silent and now - ended >= 10 * IDLE_S):
                self._ask_for_report()
                return [
                    "nsys stopped responding after the script had ended: it was stopped, and what it left behind is used"
                ]
            # where its launcher was killed nobody tells it that the holder has ended, and it may
            # record on: it makes its report when asked to, which it may refuse for a moment
            idle_s = now - (ended if silent else self._since)
            asked = idle_s >= ASK_S and self._ask_for_report()
            if asked and (self._folder / "run" / "trace.nsys-rep").exists():
                return []
        return []

    def _hangs(self, idle_s: float) -> bool:
        """Whether nsys's processes, with no script to watch, have computed nothing for so long: a
        report may take an hour."""
        now = time.monotonic()
        if now - self._looked >= min(1.0, idle_s / 5):
            self._looked = now
            pids = frozenset(marked(self._mark))
            cpu_s = sum(own.cpu_s for pid in pids if (own := stat(pid)))
            allowed = max(0.1, _IDLE_SHARE * (now - self._since))
            if pids != self._pids or cpu_s - self._cpu_s > allowed:
                self._since, self._cpu_s, self._pids = now, cpu_s, pids
        return now - self._since >= idle_s

    def _ask_for_report(self) -> bool:
        """nsys keeps what it collects in another process, and hands it to whoever ends the session.
        Whether it accepted that."""
        name = f"--session=profile-{self._process.pid}"
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            stopping = self._start([self._nsys, "stop", name], subprocess.DEVNULL)
            return stopping.wait(IDLE_S) == 0
        return False


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
