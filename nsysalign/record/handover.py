"""Hands on to the program, past nsys, everything a process inherits from whoever starts it.

nsys starts the application from a process of its own, and much is lost on the way: descriptors are closed or refer to files of
nsys's, stdout and stderr are pipes, the umask is 0, arguments and folder must be UTF-8.  So nsys is given a small program to
start instead (`starter.py`).  It asks us, over a socket, for everything the command would have had if it had been started
plainly, adopts it, and becomes the command: same process, same pid.
"""

from __future__ import annotations

import array
import contextlib
import marshal
import os
import re
import secrets
import shutil
import signal
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nsysalign.record.processes import stat

_AT_ONCE = 200  # descriptors in one message; Linux takes 253
_PYTHONS_OWN = {
    getattr(signal, n, None) for n in ("SIGPIPE", "SIGXFSZ")
}  # ignored by every Python, whatever its parent did


@dataclass(frozen=True)
class Inheritance:
    """What this process inherited and would pass on.

    `descriptors`: number in the started program -> ours; `umask`; `ignored`: signals, which exec does not reset; `unset`:
    variables in our environment that were not inherited.
    """

    descriptors: Mapping[int, int]
    umask: int
    ignored: tuple[int, ...]
    unset: tuple[str, ...]


def inheritance(*, stdout_to_stderr: bool = False) -> Inheritance:
    """The inheritance of this process, now.  Descriptors opened by Python are closed on exec and do not count."""
    open_now = map(int, os.listdir("/proc/self/fd"))
    inherited = {number: number for number in open_now if _is_inheritable(number)}
    for number in {0, 1, 2} - set(
        inherited
    ):  # closed: nsys's library would open a file of its own there
        inherited[number] = os.open(os.devnull, os.O_RDWR)
    if stdout_to_stderr:
        inherited[1] = inherited[2]
    umask = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.M)
    ignored = {int(n) for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN}
    # in the C locale Python sets LC_CTYPE for itself and everything below (PEP 538)
    given = b"\0" + Path("/proc/self/environ").read_bytes()
    unset = () if b"\0LC_CTYPE=" in given else ("LC_CTYPE",)
    return Inheritance(
        inherited,
        int(umask[1], 8) if umask else 0o022,
        tuple(sorted(ignored - _PYTHONS_OWN)),
        unset,
    )


def _is_inheritable(number: int) -> bool:
    try:
        import fcntl  # Unix only, and code that merely analyses imports this file as well

        return not fcntl.fcntl(number, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    except OSError:  # opened by the listing itself
        return False


def working_directory() -> Path:
    """The working directory of this process; if it was deleted, the path it had."""
    return Path(os.readlink("/proc/self/cwd").removesuffix(" (deleted)"))


class HandOver:
    """A context in which any process may start `starter_command`, once; it becomes `command`.

    From then on `application` is its process id, and `alive` and `launcher_alive` are descriptors that can be read once it, or
    the process that started it, has ended; None before, and on an old kernel.
    """

    def __init__(self, command: Sequence[str], given: Inheritance) -> None:
        self._command, self._given = command, given
        self.application: int | None = None
        self.alive: int | None = None
        self.launcher_alive: int | None = None
        # an abstract name: no file is left behind, and no folder's path can be too long
        self._name = f"nsysalign-{secrets.token_hex(16)}"

    @property
    def starter_command(self) -> list[str]:
        return [
            sys.executable,
            "-I",
            "-S",
            str(Path(__file__).resolve().with_name("starter.py")),
            self._name,
        ]

    def __enter__(self) -> HandOver:
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind("\0" + self._name)
        self._server.listen()
        self._thread = threading.Thread(target=self._serve, name="nsysalign-handover", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._thread.join()
        self._server.close()
        for descriptor in (self.alive, self.launcher_alive):
            if descriptor is not None:
                os.close(descriptor)

    def _serve(self) -> None:
        while self.application is None:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                pid, uid, _ = struct.unpack("3i", peer)
                if uid == os.getuid():  # every user can read the names of abstract sockets
                    self._observe(pid)
                    self._hand_over(connection)
                    self.application = pid

    def _observe(self, pid: int) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.launcher_alive = os.pidfd_open(found.parent) if (found := stat(pid)) else None
            self.alive = os.pidfd_open(pid)

    def _hand_over(self, connection: socket.socket) -> None:
        numbers = sorted(self._given.descriptors)
        command = [os.fsencode(word) for word in self._command]
        program = os.fsencode(shutil.which(self._command[0]) or self._command[0])
        words = marshal.dumps(  # the same Python is at the other end
            (program, command, numbers, self._given.umask, self._given.ignored, self._given.unset)
        )
        connection.sendall(struct.pack("Q", len(words)) + words)
        folder = os.open(
            ".", os.O_PATH | os.O_DIRECTORY
        )  # works even if it was deleted, or if its name is not text
        try:
            ours = [folder, *(self._given.descriptors[n] for n in numbers)]
            for first in range(0, len(ours), _AT_ONCE):
                some = array.array("i", ours[first : first + _AT_ONCE])
                connection.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, some)])
        finally:
            os.close(folder)
        connection.recv(1)  # it has received them all
