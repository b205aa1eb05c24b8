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
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsysalign.errors import NsysError
from nsysalign.record.processes import (
    ENDING,
    HOLDER,
    SCRIPT,
    alive,
    end_all,
    kill,
    marked,
    of_run,
    stat,
)

#: How long a script may take to end after being asked to, before a stronger signal is sent.
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
_LOOK_AT_CHILDREN_S = 0.1
#: How long processes that the script started may outlive it, recorded: until the user is told, and
#: until they go on without nsys.
SERVER_SAID_S, SERVER_S = 5.0, 60.0
_PREFIX = "nsysalign-"
_KEPT = "kept.qdstrm"  # what found no room in the run directory
_IDLE_SHARE = 0.02  # threads that only poll compute less than this


@dataclass(frozen=True)
class Ended:
    """How a run ended.  `status`: the script's own, as a shell reports it; None if it was not
    started.  `notes` say what we had to do; `stopped`: it was asked to end (Ctrl-C, a signal,
    --timeout); `again`: nsys failed by itself before the script was started."""

    status: int | None
    notes: tuple[str, ...] = ()
    stopped: bool = False
    again: bool = False


@contextlib.contextmanager
def nsys_folder(run_dir: Path) -> Iterator[Path]:
    """A folder for nsys's temporary files, among them everything that it records, until the block
    ends: nsys makes them readable by others.  `run` in it leads to the run directory, under a name
    that nsys accepts whatever it is really called. A recording that nsys did not make a report of
    is moved there (`trace.qdstrm`).  It is locked as long as we live (`remove_left_folders`)."""
    import fcntl  # only where things are recorded

    remove_left_folders()
    try:
        place = os.path.abspath(tempfile.gettempdir())
        if place != place.encode(errors="ignore").decode():  # nsys takes UTF-8 only
            place = "/tmp"
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise NsysError(
            f"nsys needs a folder for temporary files, and none can be made: {error.strerror}",
            "TMPDIR=/a/folder nsysalign run ...",
        ) from error
    try:
        (folder / "run").symlink_to(run_dir, target_is_directory=True)
        yield folder
        _keep_recording(folder, run_dir)
    finally:
        if not any(folder.glob(_KEPT)):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_folders() -> None:
    """Remove such folders of ours whose nsysalign was killed and whose run has ended."""
    try:
        import fcntl
    except ImportError:  # where nothing is recorded nothing is left, and analysing works
        return

    for place in {os.path.abspath(tempfile.gettempdir()), "/tmp"}:
        for link in Path(place).glob(f"{_PREFIX}*/run"):
            folder, run_dir = link.parent, Path(os.path.realpath(link))
            with contextlib.suppress(OSError):
                owner = folder.lstat().st_uid
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    kept = any(folder.glob(_KEPT))
                    if (
                        owner == os.getuid()
                        and link.is_symlink()
                        and not kept
                        and not of_run(run_dir)
                    ):
                        _keep_recording(folder, run_dir)
                        shutil.rmtree(folder)
                finally:
                    os.close(lock)


def _keep_recording(folder: Path, run_dir: Path) -> None:
    streams = sorted(folder.glob("*.qdstrm"), key=lambda path: path.stat().st_mtime)
    if streams and run_dir.is_dir() and not any(run_dir.glob("trace.*")):
        _keep(streams[-1], run_dir / "trace.qdstrm")


def _keep(stream: Path, place: Path) -> None:
    """Move a recording to its place, or say where it stays if there is no room for it."""
    partial = place.with_name(place.name + ".partial")
    try:
        shutil.move(stream, partial)
        partial.replace(place)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        kept = stream.replace(stream.with_name(_KEPT))
        _say(
            f"nsys's own recording does not fit into {place.parent} ({error.strerror}) and is kept as {kept}: to go on "
            f"with it, move it to {place} first"
        )


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
            nsys = stack.enter_context(_Profiler(profile, folder, log, environ))
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
            _say(f"{command[0]}: {error.strerror}")
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
                limit = time.monotonic() + GRACE_S
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
        _say(
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
            _say("the report is still being written, please wait")
        elif not self.sent:
            self.sent.append(number)
            self._since = time.monotonic()
            ended = self.process is not None and self.process.poll() is not None
            if self._own_group or number != signal.SIGINT or ended:  # else the terminal has sent it
                self._signal(number)
        elif time.monotonic() - self._since >= GRACE_S:
            self._step()
        elif number == signal.SIGINT:
            _say("the script has not ended yet, please wait")

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


class _Profiler:
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

    def __enter__(self) -> _Profiler:
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

    def environment(self, script: _Script) -> dict[str, str] | None:
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

    def wait_for(self, script: _Script) -> None:
        """The holder lives from now on as long as the script, and all that it starts."""
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"%d %s" % (script.process.pid, script.mark))
        self._close_pipe()

    def wait(self, script: _Script, progress: Callable[[int], None] | None) -> list[str]:
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

    def _hangs(self, script: _Script, state: str, idle_s: float) -> bool:
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
                _say(
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


def wait_for(process: subprocess.Popen, seconds: float) -> bool:
    """Wait at most this long for the end of a process, without waking up in between.  True if it
    has ended."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, AttributeError):  # it has ended, or an old kernel
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, min(seconds, 1e6)))
        return process.poll() is not None
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(None if math.isinf(seconds) else max(0, seconds * 1e3))
    finally:
        os.close(descriptor)
    return process.poll() is not None


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


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk must not change the script's status
        print(f"nsysalign: {text}", file=sys.stderr, flush=True)


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
    with _handlers(lambda _number, _frame: _say("finishing the run directory, please wait")):
        yield
