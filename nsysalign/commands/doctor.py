"""`nsysalign doctor`: what is installed, what is missing, what that costs, how to fix it."""

from __future__ import annotations

import contextlib
import glob
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import NamedTuple

import click

from nsysalign.commandline import options as shared

OK, MISSING, WARNING = "ok", "missing", "warning"
_SIGNS = {OK: "+", WARNING: "!", MISSING: "-"}
_NOTHING_RECORDED = "nothing can be recorded here; analyze, report and demo work"


class Row(NamedTuple):
    """One thing that was checked.  `cost` and `fix` are empty if all is well."""

    subject: str
    state: str  # ok, warning or missing
    finding: str
    cost: str = ""
    fix: str = ""


@click.command()
@shared.nsys("The nsys to check (default: the one that `run` would use).")
@click.pass_context
def doctor(ctx: click.Context, nsys: str | None) -> None:
    """Look at this machine, and say what is missing, what that costs and how to fix it.  What a
    trace lacks, `nsysalign analyze TRACE` says below its table.

    \b
    Example:  nsysalign doctor
    """
    rows = look_at_machine(os.environ, nsys)
    for row in rows:
        click.echo(f"{_SIGNS[row.state]} {row.subject:<10} {row.finding}")
        for word, text in (("costs:", row.cost), ("fix:  ", row.fix)):
            if text:
                click.echo(f"  {'':<10} {word} {text}")
    ctx.exit(3 if any(row.state == MISSING for row in rows) else 0)


def look_at_machine(environ: Mapping[str, str], nsys: str | None = None) -> list[Row]:
    """Everything `nsysalign run` needs here."""
    return [*_here(environ, nsys), *_cuda(environ)]


def why_no_cuda(environ: Mapping[str, str]) -> list[str]:
    """What here keeps a program from using a GPU, as far as that can be seen without CUDA."""
    words = ("no NVIDIA GPU", "CPU build", "hides every GPU", "another tool")
    return [row.finding for row in _cuda(environ) if any(word in row.finding for word in words)]


def _here(environ: Mapping[str, str], explicit: str | None) -> Iterator[Row]:
    """Python, the system, the folders that runs are written to, the recorders."""
    from nsysalign.errors import NsysError
    from nsysalign.record.cupti import libraries_of_cupti, why_not
    from nsysalign.record.nsys import TRIED, candidates, find_nsys

    yield Row("python", OK, ".".join(map(str, sys.version_info[:3])))
    system = f"{platform.system()} {platform.machine()}"
    if system in ("Linux x86_64", "Linux aarch64"):
        yield Row("system", OK, system)
    else:
        fix = "record on Linux (x86-64 or aarch64) and copy the run directory"
        yield Row("system", WARNING, system, _NOTHING_RECORDED, fix)
    temporary = Path(environ.get("TMPDIR") or "/tmp")
    if not os.access(temporary, os.W_OK | os.X_OK):
        temporary = Path("/tmp")  # that is where Python goes then, and nsys with us
    for name, folder, fix in (
        ("folder", Path(), "nsysalign run -o DIR"),
        ("temporary", temporary, "TMPDIR=/another/folder nsysalign run ..."),
    ):
        free = -1.0
        with contextlib.suppress(OSError):
            if os.access(folder, os.W_OK | os.X_OK) and os.stat(folder).st_nlink:
                free = shutil.disk_usage(folder).free / 1e9
        if free < 0:
            yield Row(name, MISSING, "cannot be written", "no run can be written", fix)
        elif free < 1:
            yield Row(name, WARNING, f"{free:.1f} GB free", "traces of long runs are lost", fix)
        else:
            yield Row(name, OK, f"{free:.0f} GB free")
    if sys.platform == "linux":
        from nsysalign.record.command import obstacles

        for obstacle, step in obstacles(temporary):
            yield Row("limits", MISSING, obstacle, "nsys hangs, and the script never starts", step)
    why = why_not(environ)
    if why is None:
        libraries = [path.name for path in libraries_of_cupti(environ)] or [
            "the one that the program loads"
        ]
        words = (
            f"records without nsys, from inside the program ({', '.join(dict.fromkeys(libraries))})"
        )
        yield Row("cupti", OK, words)
    else:
        cost = (
            "without nsys only the event log is recorded: what limits a timing, not where it went"
        )
        fix = "what the line names; or install nsys"
        yield Row("cupti", WARNING, f"cannot record: {why}", cost, fix)
    try:
        tool = find_nsys(explicit)
        tried = "" if tool.release == TRIED else f"; tried was {'.'.join(map(str, TRIED))}"
        yield Row("nsys", OK, f"{tool.version} ({tool.path}){tried}")
    except NsysError as error:
        state, cost = (
            MISSING,
            "only the event log is recorded, and .nsys-rep files cannot be exported",
        )
        if why is None:
            state = WARNING
            cost = (
                "calls of the operating system are not seen, and .nsys-rep files cannot be exported"
            )
        places = f" (tried: {', '.join(candidates(explicit)) or 'PATH and the usual folders'})"
        yield Row("nsys", state, error.message + places, cost, error.next_step or "")


def _cuda(environ: Mapping[str, str]) -> Iterator[Row]:
    """GPUs and their driver as reported by nvidia-smi; torch; other profilers, and variables that
    change what is measured."""
    from nsysalign.record.command import NOTEWORTHY

    gpus: list[str] = []
    if smi := shutil.which("nvidia-smi", path=environ.get("PATH")):
        query = [smi, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            gpus = subprocess.run(
                query, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=True
            ).stdout.splitlines()  # fmt: skip
    if cards := len(gpus) or len(glob.glob("/proc/driver/nvidia/gpus/*")):
        name, _, driver = (gpus[0] if gpus else "NVIDIA GPU, unknown").partition(", ")
        yield Row("gpu", OK, f"{cards} x {name}, driver {driver}")
    else:
        fix = "run it where nvidia-smi lists a GPU (in a container: --gpus all)"
        yield Row("gpu", MISSING, "no NVIDIA GPU is visible", _NOTHING_RECORDED, fix)
    try:  # found without being imported: the import takes a second and touches the GPU
        state = version = metadata.version("torch")
        spec = util.find_spec("torch")
        built = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
        text = built.read_text(errors="replace") if built and built.is_file() else ""
        cost, fix = "", ""
        if re.search(r"^cuda\b.*= None", text, re.MULTILINE):
            state, cost = f"torch {version} is a CPU build", "torch.cuda does nothing here"
            fix = "install a CUDA build of torch"
    except metadata.PackageNotFoundError:
        state = "not installed in this Python"
        cost = "SCRIPT.py runs under this Python and will not find it; commands that use another Python work"
        fix = "install nsysalign where torch is, or: nsysalign run -- /path/to/python SCRIPT.py"
    yield Row("torch", WARNING if fix else OK, state, cost, fix)
    if environ.get("NSYS_PROFILING_SESSION_ID"):
        state, cost = "this shell already runs under nsys", "`run` refuses: sessions do not nest"
        yield Row("session", MISSING, state, cost, "start it from another shell")
    elif tool := environ.get("CUDA_INJECTION64_PATH"):
        where = f"(CUDA_INJECTION64_PATH: {Path(tool).name})"
        state = f"another tool is injected into CUDA programs here {where}"
        cost = "CUPTI serves one tool at a time: the trace may stay empty"
        yield Row("session", WARNING, state, cost, "unset CUDA_INJECTION64_PATH")
    for name, why in NOTEWORTHY.items():
        if environ.get(name) == "1":
            yield Row("settings", WARNING, f"{name}=1", why, f"unset {name}")
    if environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        state = "CUDA_VISIBLE_DEVICES hides every GPU"
        yield Row("settings", WARNING, state, "the script finds none", "unset CUDA_VISIBLE_DEVICES")
