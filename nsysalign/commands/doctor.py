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
    for row in rows:
        click.echo(
            f"{ {OK: '+', WARNING: '!', MISSING: '-'}[row.state] } {row.what:<10} {row.found}"
        )
        for word, text in (("costs:", row.cost), ("fix:  ", row.fix)):
            if text:
                click.echo(f"  {'':<10} {word} {text}")
    ctx.exit(3 if any(r.state == MISSING for r in rows) else 0)


def look_at_machine(environ: Mapping[str, str], nsys: str | None = None) -> list[Row]:
    """Everything `nsysalign run` needs here."""
    tool, found = _nsys(nsys)
    python, system = _python(), f"{platform.system()} {platform.machine()}"
    known = system in ("Linux x86_64", "Linux aarch64")
    rows = [python, Row("system", OK, system) if known else Row(
        "system", WARNING, system, "nothing can be recorded here; analyze, report and demo work",
        "record on Linux (x86-64 or aarch64) and copy the run directory",
    )]  # fmt: skip
    rows += [
        *_room(environ),
        *_numbers(),
        found,
        *(_options(tool) if tool else []),
        *_gpu(environ),
        _torch(),
    ]
    return [*rows, _nvtx(tool), *_session(environ)]


def why_no_cuda(environ: Mapping[str, str]) -> list[str]:
    """What here keeps a program from using a GPU, as far as that can be seen without CUDA."""
    rows = [*_gpu(environ), _torch(), *_session(environ)]
    words = ("no NVIDIA GPU", "CPU build", "hides every GPU", "another tool")
    return [row.found for row in rows if any(word in row.found for word in words)]


def _python() -> Row:
    version = ".".join(map(str, sys.version_info[:3]))
    if not (sys.flags.ignore_environment or sys.flags.no_site):
        return Row("python", OK, version)
    return Row(
        "python", MISSING, f"{version}, started with -I, -E or -S",
        "the probe is loaded through PYTHONPATH, which this disables",
        "start it without these options (-s and -P are fine)",
    )  # fmt: skip


def _room(environ: Mapping[str, str]) -> Iterator[Row]:
    """Where a run writes: the run directory here, nsys's own files in $TMPDIR."""
    temporary = Path(environ.get("TMPDIR") or "/tmp")
    if not os.access(temporary, os.W_OK | os.X_OK):
        temporary = Path("/tmp")  # that is where Python goes then, and nsys with us
    for what, folder, option in (
        ("folder", Path(), "nsysalign run -o DIR"),
        ("temporary", temporary, "TMPDIR=/another/folder nsysalign run ..."),
    ):
        try:
            free = shutil.disk_usage(folder).free / 1e9
            writable = os.access(folder, os.W_OK | os.X_OK) and os.stat(folder).st_nlink > 0
        except OSError as error:
            yield Row(
                what, MISSING, f"{error.strerror}", "no run can be written", "TMPDIR=/a/folder"
            )
            continue
        if not writable:
            cost = "run directories cannot be created there"
            yield Row(what, MISSING, "it cannot be written", cost, option)
        elif free < 1:
            yield Row(what, WARNING, f"{free:.1f} GB free", "traces of long runs are lost", option)
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
    lacking = [wish for wish in every if wish.without and wish.flag not in tool.flags]
    for wish in lacking:
        cost = wish.without.format(tool.version).partition(": ")[2]
        yield Row(
            "options", WARNING, f"this nsys has no --{wish.flag}", cost, "a newer nsys may have it"
        )
    asked = ", ".join(f"--{wish.flag}" for wish in every if wish.flag in tool.flags)
    yield Row("options", OK, asked or "none of those that a run asks for")


def _gpu(environ: Mapping[str, str]) -> list[Row]:
    """GPUs, their driver, persistence mode and clocks, as reported by nvidia-smi (NVML)."""
    gpus: list[list[str]] = []
    if smi := shutil.which("nvidia-smi", path=environ.get("PATH")):
        fields = "name,driver_version,persistence_mode,clocks.sm,clocks.max.sm,utilization.gpu"
        query = [smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                query, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
            )
            lines = done.stdout.strip().splitlines() if done.returncode == 0 else []
            gpus = [[field.strip() for field in line.split(",")] for line in lines]
        except (OSError, subprocess.TimeoutExpired):
            pass
    version = Path("/proc/driver/nvidia/version")
    if not gpus and (cards := glob.glob("/proc/driver/nvidia/gpus/*")) and version.exists():
        match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", version.read_text(errors="replace"))
        driver = match[1] if match else "unknown"
        return [Row("gpu", OK, f"{len(cards)} NVIDIA GPUs, driver {driver}")]
    if not gpus:
        return [Row(
            "gpu", MISSING, "no NVIDIA GPU is visible",
            "nothing can be measured here; analyze, report and demo work",
            "run it where nvidia-smi lists a GPU (in a container: --gpus all)",
        )]  # fmt: skip
    driver = gpus[0][1] if len(gpus[0]) > 1 else "unknown"
    rows = [Row("gpu", OK, f"{len(gpus)} x {gpus[0][0]}, driver {driver}")]
    whole = [gpu for gpu in gpus if len(gpu) == 6]
    modes = [gpu[2] for gpu in whole]
    if "Disabled" in modes:
        rows.append(Row(
            "persistence", WARNING, "off",
            "the driver is unloaded between runs, so the first CUDA call of each run can take "
            "seconds",
            "sudo nvidia-smi -pm 1",
        ))  # fmt: skip
    elif "Enabled" in modes:
        rows.append(Row("persistence", OK, "on"))
    number = re.compile(r"\d+(\.\d+)?")
    clocks = [
        (float(gpu[3]), float(gpu[4]), gpu[5])
        for gpu in whole
        if number.fullmatch(gpu[3]) and number.fullmatch(gpu[4])
    ]
    # drivers do not report whether the clock is locked, but a locked one does not fall when idle
    if clocks:
        now, most, busy = min(clocks)
        found = f"SM clock {now:.0f} of {most:.0f} MHz"
        rows.append(Row("clocks", OK, found) if now >= 0.9 * most or busy != "0" else Row(
            "clocks", WARNING, f"{found} while idle: not locked",
            "the same kernel can differ by tens of percent from run to run, and after a pause",
            f"sudo nvidia-smi -lgc {most * 0.8:.0f} (undo: -rgc)",
        ))  # fmt: skip
    return rows


def _torch() -> Row:
    """Found without being imported: the import takes a second and touches the GPU."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Row(
            "torch", WARNING, "not installed in this Python",
            "SCRIPT.py runs under this Python and will not find it; commands that use another "
            "Python work",
            "install nsysalign where torch is, or: nsysalign run -- /path/to/python SCRIPT.py",
        )  # fmt: skip
    spec = util.find_spec("torch")
    built = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    text = built.read_text(errors="replace") if built and built.is_file() else ""
    if re.search(r"^cuda\b.*= None", text, re.MULTILINE):
        cost = "torch.cuda does nothing here"
        return Row(
            "torch",
            WARNING,
            f"torch {version} is a CPU build",
            cost,
            "install a CUDA build of torch",
        )
    return Row("torch", OK, version)


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
    return Row(
        "nvtx", WARNING, f"{version} does not fit nsys {tool.version}",
        "ranges of the nvtx package are lost (nsysalign's own and torch.cuda.nvtx are not)",
        "pip install nvtx==0.2.11, or a newer nsys",
    )  # fmt: skip


def _session(environ: Mapping[str, str]) -> Iterator[Row]:
    """Other profilers, and variables that change what is measured."""
    from nsysalign.record.command import NOTEWORTHY

    if environ.get("NSYS_PROFILING_SESSION_ID"):
        cost = "`nsysalign run` refuses, because sessions do not nest"
        yield Row(
            "session",
            MISSING,
            "this shell already runs under nsys",
            cost,
            "start it from another shell",
        )
    elif tool := environ.get("CUDA_INJECTION64_PATH"):
        yield Row(
            "session", WARNING,
            "another tool is injected into CUDA programs here (CUDA_INJECTION64_PATH: "
            f"{Path(tool).name})",
            "CUPTI serves one tool at a time: the trace may stay empty",
            "unset CUDA_INJECTION64_PATH",
        )  # fmt: skip
    else:
        yield Row("session", OK, "no other profiler is active in this shell")
    for name, why in NOTEWORTHY.items():
        if environ.get(name) == "1":
            yield Row("settings", WARNING, f"{name}=1", why, f"unset {name}")
    if environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        found = "CUDA_VISIBLE_DEVICES hides every GPU"
        yield Row("settings", WARNING, found, "the script finds none", "unset CUDA_VISIBLE_DEVICES")
