"""On a terminal a script has what it would have plainly: /dev/tty, the foreground, Ctrl-C and
Ctrl-Z."""

from __future__ import annotations

import os
import pty
import select
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

pytestmark = pytest.mark.nsys

ASKS = """
import os, sys, time
print("terminals:", sys.stdin.isatty(), sys.stdout.isatty())
with open("/dev/tty", "r+b", buffering=0) as terminal:
    terminal.write(b"foreground: %d\\n" % (os.tcgetpgrp(terminal.fileno()) == os.getpgid(0)))
    terminal.write(b"password? ")
    terminal.write(b"got " + terminal.readline())
with open("pid", "w") as file:
    file.write(str(os.getpid()))
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("interrupted once")
    time.sleep(1)
    raise SystemExit(5)
"""


class Terminal:
    """Somebody who types into a shell with job control."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.shown = b""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], env | {"PS1": "$ "})

    def until(self, text: bytes, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.descriptor], [], [], 1)[0]:
                try:
                    self.shown += os.read(self.descriptor, 4096)
                except OSError:  # its last process has ended
                    assert text in self.shown, self.shown

    def type(self, text: bytes) -> None:
        os.write(self.descriptor, text)


def test_a_password_ctrl_z_and_ctrl_c(real):
    (real.folder / "asks.py").write_text(ASKS)
    terminal = Terminal(real.folder, real.env)
    terminal.type(f"{sys.executable} -m nsysalign run asks.py; echo status $?\n".encode())
    terminal.until(b"password? ")
    terminal.type(b"secret\n")
    terminal.until(b"got secret")
    assert b"foreground: 1" in terminal.shown and b"terminals: True True" in terminal.shown
    while not (real.folder / "pid").is_file() or not (real.folder / "pid").read_text():
        time.sleep(0.05)
    script = int((real.folder / "pid").read_text())
    terminal.type(b"\x1a")
    terminal.until(b"Stopped")
    status = Path(f"/proc/{script}/status")
    wait_until(lambda: "State:\tT" in status.read_text(), "the script goes on")
    terminal.type(b"fg; echo status $?\n")
    terminal.until(b"run asks.py\r\n", 10)
    time.sleep(0.5)  # for the shell to have continued it
    terminal.type(b"\x03")
    terminal.until(b"the script ended with status 5")
    terminal.until(b"status 5\r\n")
    assert terminal.shown.count(b"interrupted once") == 1
    terminal.type(b"exit\n")
    os.waitpid(terminal.pid, 0)
    os.close(terminal.descriptor)
