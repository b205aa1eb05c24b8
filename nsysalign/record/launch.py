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
from nsysalign.record.processes import ENDING, cpu_s, end_all, kill, marked, say, wait_for

#: How long a process may take to end after being asked to, before a stronger signal is sent.
GRACE_S = 10.0
#: How long processes that the script started may outlive it, recorded: until the user is told, and
#: until they go on without nsys.
SERVER_SAID_S, SERVER_S = 5.0, 60.0
#: How long nsys may take to start the script.
START_S = 60.0
#: How long it may do nothing after the script: until it is asked for its report, and until it is
#: ended.
ASK_S, IDLE_S = 5.0, 60.0
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
            under_nsys = nsys.environment()
            if under_nsys is None:
                status = 128 + script.sent[0] if script.sent else None
                return Ended(status, stopped=bool(script.sent))
            # TMPDIR is the script's own.  With the proxy nsys 2024.2 loads its library before NVTX
            # is used, and then every forked child that calls exit() dies of SIGSEGV; NVTX itself
            # loads it at its first call, by NVTX_INJECTION64_PATH
            if under_nsys.get("QUADD_INJECTION_PROXY") == "NVTX":
                del under_nsys["QUADD_INJECTION_PROXY"]
            temporary = {k: v for k, v in environ.items() if k == "TMPDIR"}
            environ = {
                k: v for k, v in under_nsys.items() if k not in ("TMPDIR", "NSYSALIGN_RUN")
            } | temporary
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


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _sent_by_terminal(number: int) -> bool:
    """Whether the script, in the terminal's foreground as we are, has the signal already: a Ctrl-C,
    or the hang-up of a terminal that is gone."""
    return number == signal.SIGINT or (number == signal.SIGHUP and not _has_terminal())


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
        self._own_group = not _has_terminal()

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
        ended, announced = math.inf, False
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
            if not announced and now - ended >= SERVER_SAID_S:
                announced = True
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
        ended = self.process is not None and self.process.poll() is not None
        over = self.going_on or (ended and not marked(self.mark))
        if over and self.profiled():
            say("the report is still being written, please wait")
        elif not self.sent:
            self.sent.append(number)
            self._since = time.monotonic()
            if self._own_group or ended or not _sent_by_terminal(number):
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
        self._holder, self._pipe_name = folder / processes.HOLDER, folder / processes.SCRIPT
        for path in (self._holder, self._pipe_name):
            path.unlink(missing_ok=True)
        os.mkfifo(self._pipe_name, 0o600)
        # both ends, so that the holder need not wait for us to open it; it closes with us, whatever
        # happens
        self._pipe = os.fdopen(os.open(self._pipe_name, os.O_RDWR), "wb", buffering=0)
        # readable by its owner only: nsys prints paths and its arguments
        self._messages = os.open(log, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        hold = [sys.executable, "-I", "-S", processes.__file__]
        hold += [str(folder), os.fsdecode(script.mark)]
        # in a session of its own; nsys refuses a working directory that was deleted
        self._process = subprocess.Popen(
            [*profile, *hold], env=self._environ, cwd="/", stdin=subprocess.DEVNULL,
            stdout=self._messages, stderr=self._messages, start_new_session=True,
        )  # fmt: skip
        script.profiled = self.lives

    def __enter__(self) -> _Profiler:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()
        if self.lives():
            self._process.terminate()
            if not wait_for(self._process, GRACE_S):
                self._process.kill()
        self._process.wait()
        end_all(self._mark, wait_s=GRACE_S)
        os.close(self._messages)

    def lives(self) -> bool:
        return self._process.poll() is None

    def environment(self) -> dict[str, str] | None:
        """What nsys gave the holder; None if it ended, hung or was told to end before."""
        until = time.monotonic() + START_S
        while not self._holder.exists():
            if time.monotonic() > until or not self.lives() or self._script.sent:
                return None
            wait_for(self._process, 0.02)
        try:
            content = Path(f"/proc/{self._holder.read_text()}/environ").read_bytes()
        except OSError:
            return None
        entries = (entry.partition("=") for entry in os.fsdecode(content).split("\0") if entry)
        return {name: value for name, _, value in entries}

    def waits_for(self, pid: int) -> None:
        """The holder lives from now on as long as this process, and all that it starts."""
        with contextlib.suppress(OSError):
            self._pipe.write(b"%d" % pid)
        self._pipe.close()

    def wait(self) -> list[str]:
        """Until it has written its report, which may take an hour; notes if it did not end by
        itself."""
        self._pipe.close()
        if self._script.going_on:
            self._pipe_name.unlink()
        ended = busy = time.monotonic()  # busy: when it last computed something
        before: tuple[set[int], float] = set(), 0.0
        while not wait_for(self._process, 1.0):
            now, pids = time.monotonic(), set(marked(self._mark))
            doing = pids, cpu_s(pids)
            if pids != before[0] or doing[1] - before[1] > max(0.1, _IDLE_SHARE * (now - busy)):
                busy, before = now, doing
            silent = b"Generating" not in os.pread(self._messages, 1 << 16, 0)  # no report yet
            if now - busy >= IDLE_S or (silent and now - ended >= 10 * IDLE_S):
                self._ask_for_report()
                return [
                    "nsys stopped responding after the script had ended: it was stopped, and what it left behind is used"
                ]
            # where its launcher was killed nobody tells it that the holder has ended, and it may
            # record on: it makes its report when asked to, which it may refuse for a moment
            asked = now - (ended if silent else busy) >= ASK_S and self._ask_for_report()
            if asked and (self._folder / "run" / "trace.nsys-rep").exists():
                return []
        return []

    def _ask_for_report(self) -> bool:
        """nsys keeps what it collects in another process, and hands it to whoever ends the session.
        Whether it accepted that."""
        command = [self._nsys, "stop", f"--session=profile-{self._process.pid}"]
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            asking = subprocess.run(
                command, env=self._environ, cwd="/", start_new_session=True, timeout=IDLE_S, **quiet
            )
            return asking.returncode == 0
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
