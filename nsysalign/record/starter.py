"""Started by nsys in the application's place: fetches from nsysalign what the command would have inherited, and becomes it.

Run as `python -I -S starter.py SOCKET`; nothing else of nsysalign is imported.  See handover.py.
"""

import array
import contextlib
import errno
import fcntl
import marshal
import os
import signal
import socket
import struct
import sys

_AT_ONCE = 253


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect("\0" + sys.argv[1])
            (size,) = struct.unpack("Q", _read(connection, 8))
            program, command, numbers, umask, ignored, unset = marshal.loads(
                _read(connection, size)
            )
            folder, *received = _descriptors(connection, 1 + len(numbers))
            connection.sendall(b"\0")
        except (OSError, EOFError) as error:
            sys.exit(f"nsysalign: it has ended, so nothing is started: {error}")
    os.fchdir(folder)
    os.umask(umask)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    if environment.get("QUADD_INJECTION_PROXY") == "NVTX":
        # With it nsys 2024.2 loads its library before NVTX is used, and then every forked child that calls exit()
        # dies of SIGSEGV.  NVTX itself loads the library at its first call, by NVTX_INJECTION64_PATH.
        del environment["QUADD_INJECTION_PROXY"]
    _place(received, numbers)
    _become(program, command, environment)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := connection.recv(size - len(data))):
            raise EOFError("it ended in the middle of a message")
        data += more
    return data


def _descriptors(connection: socket.socket, count: int) -> list[int]:
    found = array.array("i")
    while len(found) < count:
        data, messages, *_ = connection.recvmsg(1, socket.CMSG_SPACE(_AT_ONCE * found.itemsize))
        if not data:
            raise EOFError("it ended in the middle of a message")
        for *_, content in messages:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return list(found)


def _place(received: list[int], numbers: list[int]) -> None:
    """Give every descriptor its number; everything else that is open is closed when the command begins.  The library that nsys
    loaded into this process has open files, possibly under these numbers, so nothing else may happen between the first `dup2`
    and exec.
    """
    wanted = set(numbers)
    for position, descriptor in enumerate(received):
        # another descriptor may belong there; it stays open so that dup finds a new number
        while descriptor in wanted:
            descriptor = os.dup(descriptor)
        received[position] = descriptor
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the one opened for the listing is gone
            fcntl.fcntl(descriptor, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    for descriptor, number in zip(received, numbers, strict=True):
        os.dup2(descriptor, number)


def _become(program: bytes, command: list[bytes], environment: dict[str, str]) -> None:
    try:
        os.execve(program, command, environment)
    except OSError as error:
        if error.errno == errno.ENOEXEC:  # a script without #!: a shell would read it itself
            os.execve("/bin/sh", [b"sh", program, *command[1:]], environment)
        os.write(2, b"nsysalign: " + command[0] + b": " + os.fsencode(error.strerror) + b"\n")
        os._exit(127 if error.errno == errno.ENOENT else 126)


main()
