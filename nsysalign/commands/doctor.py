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

    what: str
    state: str  # ok, warning or missing
    found: str
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
        click.echo(f"{_SIGNS[row.state]} {row.what:<10} {row.found}")
        for word, text in (("costs:", row.cost), ("fix:  ", row.fix)):
            if text:
                click.echo(f"  {'':<10} {word} {text}")
    ctx.exit(3 if any(row.state == MISSING for row in rows) else 0)


def look_at_machine(environ: Mapping[str, str], nsys: str | None = None) -> list[Row]:
    """Everything `nsysalign run` needs here."""
    from nsysalign.errors import NsysError
    from nsysalign.record.nsys import TRIED, candidates, find_nsys

    rows = [Row("python", OK, ".".join(map(str, sys.version_info[:3])))]
    system, fix = f"{platform.system()} {platform.machine()}", ""
    if system not in ("Linux x86_64", "Linux aarch64"):
        fix = "record on Linux (x86-64 or aarch64) and copy the run directory"
    rows.append(Row("system", WARNING if fix else OK, system, fix and _NOTHING_RECORDED, fix))
    temporary = Path(environ.get("TMPDIR") or "/tmp")
    if not os.access(temporary, os.W_OK | os.X_OK):
        temporary = Path("/tmp")  # that is where Python goes then, and nsys with us
    for what, folder, fix in (
        ("folder", Path(), "nsysalign run -o DIR"),
        ("temporary", temporary, "TMPDIR=/another/folder nsysalign run ..."),
    ):
        try:
            free = shutil.disk_usage(folder).free / 1e9
            writable = os.access(folder, os.W_OK | os.X_OK) and os.stat(folder).st_nlink > 0
        except OSError:
            writable = False
        if not writable:
            rows.append(Row(what, MISSING, "cannot be written", "no run can be written", fix))
        elif free < 1:
            cost = "traces of long runs are lost"
            rows.append(Row(what, WARNING, f"{free:.1f} GB free", cost, fix))
        else:
            rows.append(Row(what, OK, f"{free:.0f} GB free"))
    try:
        tool = find_nsys(nsys)
        tried = "" if tool.release == TRIED else f"; tried was {'.'.join(map(str, TRIED))}"
        rows.append(Row("nsys", OK, f"{tool.version} ({tool.path}){tried}"))
    except NsysError as error:
        cost = "nothing can be recorded, and .nsys-rep files cannot be exported"
        places = f" (tried: {', '.join(candidates(nsys)) or 'PATH and the usual folders'})"
        rows.append(Row("nsys", MISSING, error.message + places, cost, error.next_step or ""))
    return [*rows, *_cuda(environ)]


def why_no_cuda(environ: Mapping[str, str]) -> list[str]:
    """What here keeps a program from using a GPU, as far as that can be seen without CUDA."""
    words = ("no NVIDIA GPU", "CPU build", "hides every GPU", "another tool")
    return [row.found for row in _cuda(environ) if any(word in row.found for word in words)]


def _cuda(environ: Mapping[str, str]) -> Iterator[Row]:
    """GPUs, their driver and clocks as reported by nvidia-smi (NVML); torch; other profilers, and
    variables that change what is measured."""
    from nsysalign.record.command import NOTEWORTHY

    gpus: list[list[str]] = []
    if smi := shutil.which("nvidia-smi", path=environ.get("PATH")):
        fields = "name,driver_version,clocks.sm,clocks.max.sm,utilization.gpu"
        query = [smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                query, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=True
            )  # fmt: skip
            gpus = [[f.strip() for f in line.split(",")] for line in done.stdout.splitlines()]
    if cards := len(gpus) or len(glob.glob("/proc/driver/nvidia/gpus/*")):
        name, driver, *_ = [*(gpus[0] if gpus else ["NVIDIA GPU"]), "unknown"]
        yield Row("gpu", OK, f"{cards} x {name}, driver {driver}")
    else:
        fix = "run it where nvidia-smi lists a GPU (in a container: --gpus all)"
        yield Row("gpu", MISSING, "no NVIDIA GPU is visible", _NOTHING_RECORDED, fix)
    known = [gpu[2:] for gpu in gpus if all(re.fullmatch(r"\d+(\.\d+)?", n) for n in gpu[2:4])]
    for now, most, busy in sorted(known, key=lambda gpu: float(gpu[0]))[:1]:
        found = f"SM clock {now} of {most} MHz"
        # drivers do not report whether the clock is locked, but a locked one does not fall when idle
        if float(now) >= 0.9 * float(most) or busy != "0":
            yield Row("clocks", OK, found)
            continue
        cost = "the same kernel can differ by tens of percent from run to run, and after a pause"
        fix = f"sudo nvidia-smi -lgc {float(most) * 0.8:.0f} (undo: -rgc)"
        yield Row("clocks", WARNING, f"{found} while idle: not locked", cost, fix)
    try:  # found without being imported: the import takes a second and touches the GPU
        version = metadata.version("torch")
        spec = util.find_spec("torch")
        built = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
        text = built.read_text(errors="replace") if built and built.is_file() else ""
        if re.search(r"^cuda\b.*= None", text, re.MULTILINE):
            found, fix = f"torch {version} is a CPU build", "install a CUDA build of torch"
            yield Row("torch", WARNING, found, "torch.cuda does nothing here", fix)
        else:
            yield Row("torch", OK, version)
    except metadata.PackageNotFoundError:
        cost = "SCRIPT.py runs under this Python and will not find it; commands that use another Python work"
        fix = "install nsysalign where torch is, or: nsysalign run -- /path/to/python SCRIPT.py"
        yield Row("torch", WARNING, "not installed in this Python", cost, fix)
    if environ.get("NSYS_PROFILING_SESSION_ID"):
        found, cost = "this shell already runs under nsys", "`run` refuses: sessions do not nest"
        yield Row("session", MISSING, found, cost, "start it from another shell")
    elif tool := environ.get("CUDA_INJECTION64_PATH"):
        where = f"(CUDA_INJECTION64_PATH: {Path(tool).name})"
        found = f"another tool is injected into CUDA programs here {where}"
        cost = "CUPTI serves one tool at a time: the trace may stay empty"
        yield Row("session", WARNING, found, cost, "unset CUDA_INJECTION64_PATH")
    for name, why in NOTEWORTHY.items():
        if environ.get(name) == "1":
            yield Row("settings", WARNING, f"{name}=1", why, f"unset {name}")
    if environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        found = "CUDA_VISIBLE_DEVICES hides every GPU"
        yield Row("settings", WARNING, found, "the script finds none", "unset CUDA_VISIBLE_DEVICES")
