"""The command that the user wants to run, checked before anything starts."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nsysalign.errors import UsageError

#: Environment variables that change timings and deserve a note.  Values of others are never read.
NOTEWORTHY = {
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel: intervals are much longer than without it"
}


def resolve(command: Sequence[str]) -> list[str]:
    """The argument list to start: `SCRIPT.py ARGS` runs under `script_python`, anything else is a
    command."""
    ways = "nsysalign run SCRIPT.py [ARGS...]   or   nsysalign run -- COMMAND..."
    if not command:
        raise UsageError("nothing to run", ways)
    first = command[0]
    if first.endswith(".py") and Path(first).is_file():
        return [script_python(), *command]
    if first.endswith(".py"):
        hint = "check its path, which is relative to this directory"
        raise UsageError(f"{first}: no such file", hint)
    if shutil.which(first) is None:
        raise UsageError(f"{first}: command not found", ways)
    refuse_isolated(command)
    return list(command)


#: What pipx and `uv tool install` leave in the environment that they make for one program.
_RECEIPTS = ("pipx_metadata.json", "uv-receipt.toml")


def script_python() -> str:
    """This Python, which is the one beside torch; where nsysalign has an environment of its own
    (pipx, uv tool), the shell's.

    Raises UsageError if the shell has none.
    """
    if not any(Path(sys.prefix, receipt).is_file() for receipt in _RECEIPTS):
        return sys.executable
    for name in ("python", "python3"):
        if (found := shutil.which(name)) is not None:
            return found
    raise UsageError(
        "nsysalign is installed in an environment of its own, and no python is on PATH",
        "activate the script's environment, or: nsysalign run -- PYTHON SCRIPT.py",
    )


def stem(command: Sequence[str]) -> str:
    """A name for the run directory: the script's, else the command's."""
    scripts = [a for a in command if a.endswith(".py")]
    return Path(scripts[0] if scripts else command[0]).stem


def refuse_isolated(command: Sequence[str]) -> None:
    """A Python started with -I, -E or -S never looks at PYTHONPATH: the probe could not start in
    it."""
    if not re.fullmatch(r"python[\d.]*t?", Path(command[0]).name):
        return
    arguments = iter(command[1:])
    for argument in arguments:
        if not re.fullmatch(r"-[A-Za-z]+", argument):
            return
        # -W and -X take a value, here or as the next argument; behind -c and -m all is the program's
        flags, letter, value = re.fullmatch("([^cmWX]*)([cmWX]?)(.*)", argument[1:]).groups()
        if isolating := re.search("[IES]", flags):
            raise UsageError(
                f"Python's option -{isolating[0]} disables the probe",
                f"run it without -{isolating[0]}; -s and -P are fine",
            )
        if letter and letter in "cm":
            return
        if letter and not value:
            next(arguments, None)


def refuse_nested(environ: Mapping[str, str]) -> None:
    """nsys inside nsys: the inner report would get everything, the outer one nothing."""
    if environ.get("NSYS_PROFILING_SESSION_ID"):
        raise UsageError(
            "this shell already runs under nsys (NSYS_PROFILING_SESSION_ID is set), and sessions do not nest",
            "start nsysalign outside of that session; it starts nsys itself",
        )
    if environ.get("NSYSALIGN_DIR"):
        raise UsageError(
            "this shell already runs under nsysalign run", "start nsysalign outside of it"
        )


#: What a recording of a few seconds and its export need.
SMALLEST_LIMIT = 64 << 20


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


def environment_notes(environ: Mapping[str, str]) -> list[str]:
    """Notes on settings that change what is measured."""
    return [f"{name}=1: {why}" for name, why in NOTEWORTHY.items() if environ.get(name) == "1"]


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
