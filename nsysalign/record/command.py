"""The command that the user wants to run, checked before anything starts, and its environment."""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import importlib.util
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nsysalign.errors import UsageError

#: Environment variables that change timings when they are 1.  Values of others are never read.
NOTEWORTHY = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel: intervals are much longer than without it"
}
#: What pipx and `uv tool install` leave in the environment that they make for one program.
_RECEIPTS = ("pipx_metadata.json", "uv-receipt.toml")
#: What a recording of a few seconds and its export need.
SMALLEST_LIMIT = 64 << 20
#: nsys records with these, and hangs with 24 open files.
LEAST_MEMORY, LEAST_FILES = 1_000_000 << 10, 64


def resolve(command: Sequence[str]) -> list[str]:
    """The argument list to start: `SCRIPT.py ARGS` runs under `script_python`, anything else is a
    command.  Raises UsageError if it cannot be run, or not with the probe."""
    ways = "nsysalign run SCRIPT.py [ARGS...]   or   nsysalign run -- COMMAND..."
    if not command:
        raise UsageError("nothing to run", ways)
    first = command[0]
    if first.endswith(".py"):
        if not Path(first).is_file():
            raise UsageError(f"{first}: no such file", "its path is relative to this directory")
        return [script_python(), *command]
    if shutil.which(first) is None:
        raise UsageError(f"{first}: command not found", ways)
    # a Python started with -I, -E or -S never looks at PYTHONPATH: the probe could not start in it
    if re.fullmatch(r"python[\d.]*t?", Path(first).name):
        for option in command[1:]:
            if not re.fullmatch(r"-[A-Zabdhiqsuvx]+", option) or "W" in option or "X" in option:
                break
            if isolating := re.search("[IES]", option):
                raise UsageError(
                    f"Python's option -{isolating[0]} disables the probe",
                    f"run it without -{isolating[0]}; -s and -P are fine",
                )
    return list(command)


def script_python() -> str:
    """This Python, which is the one beside torch; where nsysalign has an environment of its own
    (pipx, uv tool), the shell's.  Raises UsageError if the shell has none."""
    if not any(Path(sys.prefix, receipt).is_file() for receipt in _RECEIPTS):
        return sys.executable
    if python := shutil.which("python") or shutil.which("python3"):
        return python
    raise UsageError(
        "nsysalign is installed in an environment of its own, and no python is on PATH",
        "activate the script's environment, or: nsysalign run -- PYTHON SCRIPT.py",
    )


def missing_modules(command: Sequence[str]) -> list[str]:
    """Modules that SCRIPT.py imports in its first column and that this Python does not have.  Empty where
    another Python runs it, or where the file cannot be read as Python."""
    if not command or not command[0].endswith(".py") or script_python() != sys.executable:
        return []
    try:
        statements = ast.parse(Path(command[0]).read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    names: dict[str, None] = {}
    for statement in statements:
        if isinstance(statement, ast.Import):
            names.update((alias.name.partition(".")[0], None) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names[statement.module.partition(".")[0]] = None
    beside = [str(Path(command[0]).parent)]
    return [
        name
        for name in names
        if importlib.machinery.PathFinder.find_spec(name, beside) is None and not _installed(name)
    ]


def _installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # it is imported, and has no spec
        return True


def how_it_failed(command: Sequence[str], status: int) -> tuple[str, str]:
    """That the script failed, with the modules that it lacks, and what helps then ("" if they are there)."""
    ended = f"the script ended with status {status}"
    missing = missing_modules(command) if status == 1 else []  # 1: an exception ended it
    if not missing:
        return ended, ""
    modules = " and ".join(missing)
    script = shlex.join(command)
    return (
        f"{ended}: it imports {modules}, not installed in the Python that ran it ({sys.executable})",
        f"install nsysalign where {modules} is, or: nsysalign run -- /path/to/python {script}",
    )


def stem(command: Sequence[str]) -> str:
    """A name for the run directory: the script's, else the command's."""
    return Path(next((word for word in command if word.endswith(".py")), command[0])).stem


def refuse_nested(environ: Mapping[str, str]) -> None:
    """nsys inside nsys: the inner report would get everything, the outer one nothing."""
    for name in ("NSYS_PROFILING_SESSION_ID", "NSYSALIGN_DIR"):
        if environ.get(name):
            raise UsageError(
                f"this shell already runs under nsys ({name} is set), and sessions do not nest",
                "start nsysalign outside of that session; it starts nsys itself",
            )


def refuse_small_files() -> None:
    """With `ulimit -f` nsys would be killed when its recording reaches the limit, and say
    nothing."""
    import resource  # not on Windows, where traces are analysed as well

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and limit < SMALLEST_LIMIT:
        raise UsageError(
            f"this shell limits files to {limit:,} bytes (ulimit -f), and a recording needs more",
            "ulimit -f unlimited, or start it from another shell",
        )


def refuse_obstacles() -> None:
    """What lets nsys hang until the patience of `launch` is over, with no word of the reason."""
    for obstacle, step in obstacles(Path(tempfile.gettempdir())):
        raise UsageError(f"{obstacle}, and nsys cannot record there", step)


def obstacles(temporary: Path) -> Iterator[tuple[str, str]]:
    """(what is too small here for nsys, what to do).  What is said to be needed was tried with nsys
    2024.2: it records with that."""
    import resource
    import socket

    for number, least, text, step in (
        (resource.RLIMIT_AS, LEAST_MEMORY, "memory to {:,} bytes (ulimit -v)", "ulimit -v unlimited"),
        (resource.RLIMIT_NOFILE, LEAST_FILES, "open files to {:,} (ulimit -n)", "ulimit -n 1024"),
    ):  # fmt: skip
        limit = resource.getrlimit(number)[0]
        if limit != resource.RLIM_INFINITY and limit < least:
            yield (
                f"this shell limits {text.format(limit)}",
                f"{step}, or start it from another shell",
            )
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(temporary).free
        if free < SMALLEST_LIMIT:
            text = f"the folder for temporary files has {free:,} bytes left"
            yield text, "TMPDIR=/another/folder nsysalign run ..."
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect(("127.0.0.1", 9))  # sends nothing
    except OSError as error:
        text = f"127.0.0.1 cannot be reached ({error.strerror})"
        yield text, "ip link set lo up, or start it outside of this network namespace"


def probe_environment(
    environ: Mapping[str, str], run_dir: Path, *, calibrate: bool, host_timers: bool = True
) -> dict[str, str]:
    """The user's environment plus what starts the probe.  Nothing of the user's is removed."""
    folder = str(Path(__file__).resolve().parents[1] / "probe_path")
    path = environ.get("PYTHONPATH")
    added = {
        "PYTHONPATH": folder + os.pathsep + path if path else folder,
        "NSYSALIGN_DIR": str(run_dir),
    }
    if not calibrate:
        added["NSYSALIGN_CALIBRATE"] = "0"
    if not host_timers:
        added["NSYSALIGN_HOST_TIMERS"] = "0"
    return {**environ, **added}
