"""Commands of Python as `subprocess.run` runs them, forked from a process that has imported what each of
them would import: three quarters of the time of a command that analyses twenty intervals are its imports."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

#: It has one thread. A child of it becomes the command, and ends as any program of Python does.
SERVER = """
import gc, json, os, runpy, sys
import nsysalign.cli, nsysalign.commandline.options, nsysalign.engine, nsysalign.show.html, nsysalign.show.screen
asked, answers = os.fdopen(int(sys.argv[1])), int(sys.argv[2])
gc.freeze()
for line in asked:
    command = json.loads(line)
    child = os.fork()
    if not child:
        break
    os.write(answers, b"%12d" % child)
    os.write(answers, b"%12d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    os._exit(0)
asked.close()
os.close(answers)
os.chdir(command["folder"])
os.environ.clear()
os.environ.update(command["environment"])
for number, file in enumerate((os.devnull, *command["outputs"])):
    opened = os.open(file, os.O_RDWR | os.O_APPEND)
    os.dup2(opened, number)
    os.close(opened)
words = command["words"]
sys.orig_argv = [sys.executable, *words]
if words[0] == "-m":
    sys.argv, sys.path[0] = words[1:], command["folder"]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
else:
    sys.argv, sys.path[0] = words, command["folder"]
    runpy.run_path(words[0], run_name="__main__")
"""

_servers: dict[tuple[str, ...], Server] = {}


class Server:
    """The process whose children commands are; what it reads when it starts is that of `environment`."""

    def __init__(self, environment: dict[str, str]) -> None:
        asked, self._asks = os.pipe()
        self._answers, answers = os.pipe()
        words = [sys.executable, "-c", SERVER, str(asked), str(answers)]
        self._process = subprocess.Popen(words, cwd="/", env=environment, pass_fds=(asked, answers))
        os.close(asked)
        os.close(answers)
        atexit.register(self.end)

    def run(self, command: dict, timeout_s: float) -> int:
        """The status of a command, which is killed after that time."""
        os.write(self._asks, json.dumps(command).encode() + b"\n")
        child = int(os.read(self._answers, 12))
        if not select.select([self._answers], [], [], timeout_s)[0]:
            os.kill(child, 9)
            os.read(self._answers, 12)
            raise subprocess.TimeoutExpired(command["words"], timeout_s)
        return int(os.read(self._answers, 12))

    def end(self) -> None:
        os.close(self._asks)
        self._process.wait()


def python(
    words: list[str], folder: Path, environment: dict[str, str], timeout_s: float = 60
) -> subprocess.CompletedProcess:
    """Run `python WORDS` in a folder: `-m MODULE` or a script of that folder, and what it is given."""
    key = tuple(environment.get(name, "") for name in ("PYTHONPATH", "LD_LIBRARY_PATH"))
    if key not in _servers:
        _servers[key] = Server(environment)
    with tempfile.TemporaryDirectory() as kept:
        files = [Path(kept, name) for name in ("stdout", "stderr")]
        for file in files:
            file.touch()
        command = {"words": words, "folder": str(folder), "environment": environment}
        status = _servers[key].run(command | {"outputs": list(map(str, files))}, timeout_s)
        return subprocess.CompletedProcess(words, status, *(file.read_text() for file in files))
