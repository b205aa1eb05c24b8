"""Run a command under `nsys profile` so that its output, signals and exit status stay its own.

nsys runs in a session of its own: a Ctrl-C in the terminal reaches only us.  The first one is passed on
(nsys hands it to the application and then writes the report); a second one that reached nsys would lose the
report (harness.md, section 4), so it is held.  nsys pipes its application's output through itself, mixed
with its own messages; the application gets our own stdout and stderr instead, where nsys lets file
descriptors through, so a terminal stays a terminal and the order of the two stays as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

# $1 is our pid.  The descriptors count only if they are the ones we passed: nsys may use these numbers for
# itself.
_SHELL = """\
p=$1; shift
if [ /proc/self/fd/{out} -ef /proc/$p/fd/{out} ] && [ /proc/self/fd/{err} -ef /proc/$p/fd/{err} ]
then exec "$@" >&{out} 2>&{err} {out}>&- {err}>&-
fi
exec "$@"
"""


def launch(profile: Sequence[str], command: Sequence[str], env: Mapping[str, str], log: Path) -> int:
    """Run `profile command`, nsys's own messages go to `log`.  Returns nsys's exit status, the
    application's own.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with _passed_output() as fds, open(log, "wb") as messages:
        wrapped = list(command)
        if fds:
            script = _SHELL.format(out=fds[0], err=fds[1])
            wrapped = ["/bin/sh", "-c", script, "nsysalign", str(os.getpid()), *command]
        process = None
        pending: list[int] = []
        relayed: set[int] = set()

        def relay(number: int, _frame: object) -> None:
            if process is None:
                pending.append(number)
            elif number not in relayed and process.poll() is None:
                relayed.add(number)
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)
            elif number == signal.SIGINT:
                print(
                    "nsysalign: the report is still being written, please wait", file=sys.stderr, flush=True
                )

        with _handlers(relay, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
            process = subprocess.Popen(
                [*profile, *wrapped],
                env=dict(env),
                stdout=messages if fds else None,
                stderr=messages if fds else None,
                pass_fds=fds,
                start_new_session=True,
            )
            for number in pending:
                relay(number, None)
            status = process.wait()
    return status if status >= 0 else 128 - status


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
def hold_interrupts() -> Iterator[None]:
    """While the run directory is finished a Ctrl-C only says so: it takes seconds, losing it costs a run."""

    def wait(_number: int, _frame: object) -> None:
        print("nsysalign: finishing the run directory, please wait", file=sys.stderr, flush=True)

    with _handlers(wait, (signal.SIGINT,)):
        yield


@contextlib.contextmanager
def _passed_output() -> Iterator[tuple[int, ...]]:
    """Two free single-digit descriptors (sh knows no others) that are our stdout and stderr; () where
    impossible.
    """
    free = [n for n in range(9, 2, -1) if not _is_open(n)][:2]
    if len(free) < 2 or not _is_open(1) or not _is_open(2) or shutil.which("/bin/sh") is None:
        yield ()
        return
    os.dup2(1, free[0])
    os.dup2(2, free[1])
    try:
        yield tuple(free)
    finally:
        for n in free:
            os.close(n)


def _is_open(descriptor: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    except OSError:
        return False
    return True
