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
        click.echo(
            f"{ {OK: '+', WARNING: '!', MISSING: '-'}[row.state] } {row.what:<10} {row.found}"
        )
        for word, text in (("costs:", row.cost), ("fix:  ", row.fix)):
            if text:
                click.echo(f"  {'':<10} {word} {text}")
    ctx.exit(3 if any(row.state == MISSING for row in rows) else 0)


def look_at_machine(environ: Mapping[str, str], nsys: str | None = None) -> list[Row]:
    """Everything `nsysalign run` needs here."""
    python = Row("python", OK, ".".join(map(str, sys.version_info[:3])))
    system = Row("system", OK, f"{platform.system()} {platform.machine()}")
    if system.found not in ("Linux x86_64", "Linux aarch64"):
        cost = "nothing can be recorded here; analyze, report and demo work"
        fix = "record on Linux (x86-64 or aarch64) and copy the run directory"
        system = system._replace(state=WARNING, cost=cost, fix=fix)
    here = [python, system, *_room(environ), *_nsys(nsys)]
    return [*here, *_gpu(environ), _torch(), *_session(environ)]


def why_no_cuda(environ: Mapping[str, str]) -> list[str]:
    """What here keeps a program from using a GPU, as far as that can be seen without CUDA."""
    rows = [*_gpu(environ), _torch(), *_session(environ)]
    words = ("no NVIDIA GPU", "CPU build", "hides every GPU", "another tool")
    return [row.found for row in rows if any(word in row.found for word in words)]


def _room(environ: Mapping[str, str]) -> Iterator[Row]:
    """Where a run writes: the run directory here, nsys's own files in $TMPDIR."""
    temporary = Path(environ.get("TMPDIR") or "/tmp")
    if not os.access(temporary, os.W_OK | os.X_OK):
        temporary = Path("/tmp")  # that is where Python goes then, and nsys with us
    fixes = ("nsysalign run -o DIR", "TMPDIR=/another/folder nsysalign run ...")
    for what, folder, fix in zip(("folder", "temporary"), (Path(), temporary), fixes, strict=True):
        try:
            free = shutil.disk_usage(folder).free / 1e9
            writable = os.access(folder, os.W_OK | os.X_OK) and os.stat(folder).st_nlink > 0
        except OSError as error:
            yield Row(what, MISSING, str(error.strerror), "no run can be written", fix)
            continue
        if not writable:
            yield Row(what, MISSING, "it cannot be written", "no run can be written", fix)
        elif free < 1:
            yield Row(what, WARNING, f"{free:.1f} GB free", "traces of long runs are lost", fix)
        else:
            yield Row(what, OK, f"{free:.0f} GB free")


def _nsys(explicit: str | None) -> Iterator[Row]:
    """nsys, and the nvtx package: 0.2.12 and newer pass nsys 2024.2 a payload extension that it
    rejects, and every range is lost."""
    from nsysalign.errors import NsysError
    from nsysalign.record.nsys import TRIED, candidates, find_nsys

    try:
        tool = find_nsys(explicit)
    except NsysError as error:
        cost = "nothing can be recorded, and .nsys-rep files cannot be exported"
        places = f" (tried: {', '.join(candidates(explicit)) or 'PATH and the usual folders'})"
        yield Row("nsys", MISSING, error.message + places, cost, error.next_step or "")
        return
    tried = "" if tool.release == TRIED else f"; tried was {'.'.join(map(str, TRIED))}"
    yield Row("nsys", OK, f"{tool.version} ({tool.path}){tried}")
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("nvtx")
        number = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
        if number >= (0, 2, 12) and tool.release < (2024, 4):
            cost = (
                "ranges of the nvtx package are lost (nsysalign's own and torch.cuda.nvtx are not)"
            )
            fix = "pip install nvtx==0.2.11, or a newer nsys"
            yield Row("nvtx", WARNING, f"{version} does not fit nsys {tool.version}", cost, fix)


def _gpu(environ: Mapping[str, str]) -> Iterator[Row]:
    """GPUs, their driver, persistence mode and clocks, as reported by nvidia-smi (NVML)."""
    gpus: list[list[str]] = []
    if smi := shutil.which("nvidia-smi", path=environ.get("PATH")):
        fields = "name,driver_version,persistence_mode,clocks.sm,clocks.max.sm,utilization.gpu"
        query = [smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                query, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=True
            )  # fmt: skip
            gpus = [[f.strip() for f in line.split(",")] for line in done.stdout.splitlines()]
    cards = len(gpus) or len(glob.glob("/proc/driver/nvidia/gpus/*"))
    if not cards:
        cost = "nothing can be measured here; analyze, report and demo work"
        fix = "run it where nvidia-smi lists a GPU (in a container: --gpus all)"
        yield Row("gpu", MISSING, "no NVIDIA GPU is visible", cost, fix)
        return
    name, driver, *_ = [*(gpus[0] if gpus else ["NVIDIA GPU"]), "unknown"]
    yield Row("gpu", OK, f"{cards} x {name}, driver {driver}")
    if any(gpu[2:3] == ["Disabled"] for gpu in gpus):
        cost = "the driver is unloaded between runs, so the first CUDA call of each run can take seconds"
        yield Row("persistence", WARNING, "off", cost, "sudo nvidia-smi -pm 1")
    known = [gpu[3:] for gpu in gpus if all(re.fullmatch(r"\d+(\.\d+)?", n) for n in gpu[3:5])]
    for now, most, busy in sorted(known, key=lambda gpu: float(gpu[0]))[:1]:
        row = Row("clocks", OK, f"SM clock {now} of {most} MHz")
        # drivers do not report whether the clock is locked, but a locked one does not fall when
        # idle
        if float(now) < 0.9 * float(most) and busy == "0":
            cost = (
                "the same kernel can differ by tens of percent from run to run, and after a pause"
            )
            fix = f"sudo nvidia-smi -lgc {float(most) * 0.8:.0f} (undo: -rgc)"
            row = Row("clocks", WARNING, f"{row.found} while idle: not locked", cost, fix)
        yield row


def _torch() -> Row:
    """Found without being imported: the import takes a second and touches the GPU."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        cost = "SCRIPT.py runs under this Python and will not find it; commands that use another Python work"
        fix = "install nsysalign where torch is, or: nsysalign run -- /path/to/python SCRIPT.py"
        return Row("torch", WARNING, "not installed in this Python", cost, fix)
    spec = util.find_spec("torch")
    built = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    text = built.read_text(errors="replace") if built and built.is_file() else ""
    if not re.search(r"^cuda\b.*= None", text, re.MULTILINE):
        return Row("torch", OK, version)
    found, cost = f"torch {version} is a CPU build", "torch.cuda does nothing here"
    return Row("torch", WARNING, found, cost, "install a CUDA build of torch")


def _session(environ: Mapping[str, str]) -> Iterator[Row]:
    """Other profilers, and variables that change what is measured."""
    from nsysalign.record.command import NOTEWORTHY

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
