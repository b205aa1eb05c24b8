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
from typing import TYPE_CHECKING, NamedTuple

import click

from nsysalign.commandline import options as shared

if TYPE_CHECKING:
    from nsysalign.record.nsys import Nsys

OK, MISSING, WARNING = "ok", "missing", "warning"
_MANY_NUMBERS = 1 << 22  # Linux's limit, and most distributions' default


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
    signs = {OK: "+", WARNING: "!", MISSING: "-"}
    for row in rows:
        click.echo(f"{signs[row.state]} {row.what:<10} {row.found}")
        for word, text in (("costs:", row.cost), ("fix:  ", row.fix)):
            if text:
                click.echo(f"  {'':<10} {word} {text}")
    ctx.exit(3 if any(row.state == MISSING for row in rows) else 0)


def look_at_machine(environ: Mapping[str, str], nsys: str | None = None) -> list[Row]:
    """Everything `nsysalign run` needs here."""
    system = Row("system", OK, f"{platform.system()} {platform.machine()}")
    if system.found not in ("Linux x86_64", "Linux aarch64"):
        cost = "nothing can be recorded here; analyze, report and demo work"
        fix = "record on Linux (x86-64 or aarch64) and copy the run directory"
        system = system._replace(state=WARNING, cost=cost, fix=fix)
    tool, found = _nsys(nsys)
    options = _options(tool) if tool else ()
    rows = [_python(), system, *_room(environ), *_numbers(), found, *options, *_gpu(environ)]
    return [*rows, _torch(), _nvtx(tool), *_session(environ)]


def why_no_cuda(environ: Mapping[str, str]) -> list[str]:
    """What here keeps a program from using a GPU, as far as that can be seen without CUDA."""
    rows = [*_gpu(environ), _torch(), *_session(environ)]
    words = ("no NVIDIA GPU", "CPU build", "hides every GPU", "another tool")
    return [row.found for row in rows if any(word in row.found for word in words)]


def _python() -> Row:
    version = ".".join(map(str, sys.version_info[:3]))
    if not (sys.flags.ignore_environment or sys.flags.no_site):
        return Row("python", OK, version)
    cost = "the probe is loaded through PYTHONPATH, which this disables"
    fix = "start it without these options (-s and -P are fine)"
    return Row("python", MISSING, f"{version}, started with -I, -E or -S", cost, fix)


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


def _numbers(limit: Path = Path("/proc/sys/kernel/pid_max")) -> Iterator[Row]:
    """How many processes and threads have a number of their own: nsys lists those of the whole
    machine again and again, and its importer refuses a number that changed hands."""
    with contextlib.suppress(OSError, ValueError):
        if (count := int(limit.read_text())) < _MANY_NUMBERS:
            cost = "nsys cannot import a run in which Linux used one twice: minutes beside a test suite are enough"
            fix = f"sudo sysctl kernel.pid_max={_MANY_NUMBERS}"
            yield Row("numbers", WARNING, f"{count:,} for processes and threads", cost, fix)


def _nsys(explicit: str | None) -> tuple[Nsys | None, Row]:
    from nsysalign.errors import NsysError
    from nsysalign.record.nsys import TRIED, candidates, find_nsys

    try:
        tool = find_nsys(explicit)
    except NsysError as error:
        cost = "nothing can be recorded, and .nsys-rep files cannot be exported"
        tried = f" (tried: {', '.join(candidates(explicit)) or 'PATH and the usual folders'})"
        return None, Row("nsys", MISSING, error.message + tried, cost, error.next_step or "")
    tried = "" if tool.release == TRIED else f"; tried was {'.'.join(map(str, TRIED))}"
    return tool, Row("nsys", OK, f"{tool.version} ({tool.path}){tried}")


def _options(tool: Nsys) -> Iterator[Row]:
    """What a run would ask of it, and it does not have."""
    from nsysalign.record.nsys import wishes

    every = wishes(accurate=True, graph_trace="node", python_hz=1)
    for wish in every:
        if wish.without and wish.flag not in tool.flags:
            cost = wish.without.format(tool.version).partition(": ")[2]
            found = f"this nsys has no --{wish.flag}"
            yield Row("options", WARNING, found, cost, "a newer nsys may have it")
    asked = ", ".join(f"--{wish.flag}" for wish in every if wish.flag in tool.flags)
    yield Row("options", OK, asked or "none of those that a run asks for")


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
    whole = [gpu for gpu in gpus if len(gpu) == 6]
    modes = {gpu[2] for gpu in whole}
    if "Disabled" in modes:
        cost = "the driver is unloaded between runs, so the first CUDA call of each run can take seconds"
        yield Row("persistence", WARNING, "off", cost, "sudo nvidia-smi -pm 1")
    elif "Enabled" in modes:
        yield Row("persistence", OK, "on")
    clocks = [
        (float(gpu[3]), float(gpu[4]), gpu[5])
        for gpu in whole
        if all(re.fullmatch(r"\d+(\.\d+)?", number) for number in gpu[3:5])
    ]
    if clocks:
        now, most, busy = min(clocks)
        row = Row("clocks", OK, f"SM clock {now:.0f} of {most:.0f} MHz")
        # drivers do not report whether the clock is locked, but a locked one does not fall when
        # idle
        if now < 0.9 * most and busy == "0":
            cost = (
                "the same kernel can differ by tens of percent from run to run, and after a pause"
            )
            fix = f"sudo nvidia-smi -lgc {most * 0.8:.0f} (undo: -rgc)"
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


def _nvtx(tool: Nsys | None) -> Row:
    """nvtx 0.2.12 and newer pass nsys 2024.2 a payload extension that it rejects, and every range
    is lost."""
    try:
        version = metadata.version("nvtx")
    except metadata.PackageNotFoundError:
        return Row("nvtx", OK, "not installed; nsysalign's own ranges do not need it")
    number = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
    if tool is None or number < (0, 2, 12) or tool.release >= (2024, 4):
        return Row("nvtx", OK, version)
    cost = "ranges of the nvtx package are lost (nsysalign's own and torch.cuda.nvtx are not)"
    fix = "pip install nvtx==0.2.11, or a newer nsys"
    return Row("nvtx", WARNING, f"{version} does not fit nsys {tool.version}", cost, fix)


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
    else:
        yield Row("session", OK, "no other profiler is active in this shell")
    for name, why in NOTEWORTHY.items():
        if environ.get(name) == "1":
            yield Row("settings", WARNING, f"{name}=1", why, f"unset {name}")
    if environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        found = "CUDA_VISIBLE_DEVICES hides every GPU"
        yield Row("settings", WARNING, found, "the script finds none", "unset CUDA_VISIBLE_DEVICES")
