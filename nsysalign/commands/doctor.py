"""`nsysalign doctor`: what is installed, what is missing, what that costs, how to fix it."""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from nsysalign.commandline import options as shared
from nsysalign.commands.doctor_trace import MISSING, OK, WARNING, Row, look_at_trace


@click.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path, exists=True))
@shared.nsys("The nsys to check (default: the one that `run` would use).")
@click.pass_context
def doctor(ctx: click.Context, trace: Path | None, nsys: str | None) -> None:
    """Look at this machine, or at a TRACE (.sqlite, .nsys-rep or run directory), and say what is missing.

    \b
    Example:  nsysalign doctor
              nsysalign doctor nsysalign-runs/train-001
    """
    rows = look_at_trace(trace, nsys) if trace is not None else look_at_machine(os.environ, nsys)
    for row in rows:
        click.echo(f"{_SIGNS[row.state]} {row.what:<10} {row.found}")
        if row.cost:
            click.echo(f"  {'':<10} costs: {row.cost}")
        if row.fix:
            click.echo(f"  {'':<10} fix:   {row.fix}")
    ctx.exit(3 if any(r.state == MISSING for r in rows) else 0)


_SIGNS: Mapping[str, str] = {OK: "+", WARNING: "!", MISSING: "-"}


def look_at_machine(environ: Mapping[str, str], nsys: str | None = None) -> list[Row]:
    """Everything `nsysalign run` needs here."""
    rows = [_python(), _system(), *_room(environ)]
    tool, row = _nsys(nsys)
    rows += [
        row,
        *([_event_trace(tool)] if tool else []),
        *_gpu(environ),
        _torch(),
        _nvtx(tool),
        _sampling(),
        _nested(environ),
        *_settings(environ),
    ]
    return rows


def _python() -> Row:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.flags.ignore_environment or sys.flags.no_site:
        return Row(
            "python",
            MISSING,
            f"{version}, started with -I, -E or -S",
            "the probe is loaded through PYTHONPATH, which this disables",
            "start it without these options (-s and -P are fine)",
        )
    return Row("python", OK, version)


def _room(environ: Mapping[str, str]) -> list[Row]:
    """Where a run writes: the run directory here, nsys's own files in $TMPDIR."""
    rows = []
    for what, folder in (("folder", Path()), ("temporary", Path(environ.get("TMPDIR") or "/tmp"))):
        try:
            free = shutil.disk_usage(folder).free / 1e9
            writable = (
                os.access(folder, os.W_OK | os.X_OK) and os.stat(folder).st_nlink > 0
            )  # not deleted
        except OSError as error:
            free, writable = 0.0, False
            rows.append(
                Row(what, MISSING, f"{error.strerror}", "no run can be written", "TMPDIR=/a/folder")
            )
            continue
        option = (
            "nsysalign run -o DIR"
            if what == "folder"
            else "TMPDIR=/another/folder nsysalign run ..."
        )
        if not writable:
            rows.append(
                Row(
                    what,
                    MISSING,
                    "it cannot be written",
                    "run directories cannot be created there",
                    option,
                )
            )
        elif free < 1:
            rows.append(
                Row(what, WARNING, f"{free:.1f} GB free", "traces of long runs are lost", option)
            )
        else:
            rows.append(Row(what, OK, f"{free:.0f} GB free"))
    return rows


def _system() -> Row:
    name = f"{platform.system()} {platform.machine()}"
    if platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64"):
        return Row("system", OK, name)
    return Row(
        "system",
        WARNING,
        name,
        "nothing can be recorded here; analyze, report and demo work",
        "record on Linux (x86-64 or aarch64) and copy the run directory",
    )


def _nsys(explicit: str | None) -> tuple[object | None, Row]:
    from nsysalign.errors import NsysError
    from nsysalign.record.nsys import find_nsys

    try:
        tool = find_nsys(explicit)
    except NsysError as error:
        return None, Row(
            "nsys",
            MISSING,
            error.message,
            "nothing can be recorded, and .nsys-rep files cannot be exported",
            error.next_step or "",
        )
    return tool, Row("nsys", OK, f"{tool.version} ({tool.path})")


def _event_trace(tool: object) -> Row:
    if "cuda-event-trace" in tool.flags:
        return Row(
            "events", OK, "--cuda-event-trace is supported: --accurate places events exactly"
        )
    return Row(
        "events",
        WARNING,
        "this nsys has no --cuda-event-trace",
        "--accurate does nothing; events are placed by bounds, usually within 2 us",
        "nsys 2024.6 or newer has it",
    )


def _gpu(environ: Mapping[str, str]) -> list[Row]:
    """GPUs, their driver, persistence mode and clocks, as reported by nvidia-smi (NVML)."""
    smi = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if smi:
        fields = "name,driver_version,persistence_mode,clocks.sm,clocks.max.sm,utilization.gpu"
        query = [smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(
                query, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
            )
            if done.returncode == 0 and done.stdout.strip():
                gpus = [
                    [f.strip() for f in line.split(",")]
                    for line in done.stdout.strip().splitlines()
                ]
                name, driver = gpus[0][0], gpus[0][1] if len(gpus[0]) > 1 else "unknown"
                found = Row("gpu", OK, f"{len(gpus)} x {name}, driver {driver}")
                return [found, *(row for row in (_persistence(gpus), _locked(gpus)) if row)]
        except (OSError, subprocess.TimeoutExpired):
            pass
    cards = glob.glob("/proc/driver/nvidia/gpus/*")
    version = Path("/proc/driver/nvidia/version")
    if cards and version.exists():
        match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", version.read_text(errors="replace"))
        return [
            Row("gpu", OK, f"{len(cards)} NVIDIA GPUs, driver {match[1] if match else 'unknown'}")
        ]
    return [
        Row(
            "gpu",
            MISSING,
            "no NVIDIA GPU is visible",
            "nothing can be measured here; analyze, report and demo work",
            "run it where nvidia-smi lists a GPU (in a container: --gpus all)",
        )
    ]


def _persistence(gpus: list[list[str]]) -> Row | None:
    modes = [gpu[2] for gpu in gpus if len(gpu) == 6]
    if "Disabled" in modes:
        return Row(
            "persistence",
            WARNING,
            "off",
            "the driver is unloaded between runs, so the first CUDA call of each run can take seconds",
            "sudo nvidia-smi -pm 1",
        )
    return Row("persistence", OK, "on") if "Enabled" in modes else None


def _locked(gpus: list[list[str]]) -> Row | None:
    """Whether the SM clock is locked.  Drivers do not report that, but a locked clock does not fall when idle."""
    known = [
        (float(g[3]), float(g[4]), g[5])
        for g in gpus
        if len(g) == 6 and _number(g[3]) and _number(g[4])
    ]
    if not known:
        return None
    now, most, busy = min(known)
    found = f"SM clock {now:.0f} of {most:.0f} MHz"
    if now < 0.9 * most and busy == "0":
        return Row(
            "clocks",
            WARNING,
            f"{found} while idle: not locked",
            "the same kernel can differ by tens of percent from run to run, and after a pause",
            f"sudo nvidia-smi -lgc {most * 0.8:.0f} (undo: -rgc)",
        )
    return Row("clocks", OK, found)


def _number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", text) is not None


def _torch() -> Row:
    """Found without being imported: the import takes a second and touches the GPU."""
    from importlib import metadata

    try:
        return Row("torch", OK, metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Row(
            "torch",
            WARNING,
            "not installed in this Python",
            "SCRIPT.py runs under this Python and will not find it; commands that use another Python work",
            "install nsysalign where torch is, or: nsysalign run -- /path/to/python SCRIPT.py",
        )


def _nvtx(tool: object | None) -> Row:
    """nvtx 0.2.12 and newer pass nsys 2024.2 a payload extension that it rejects, and every range is lost."""
    from importlib import metadata

    try:
        version = metadata.version("nvtx")
    except metadata.PackageNotFoundError:
        return Row("nvtx", OK, "not installed; nsysalign's own ranges do not need it")
    number = tuple(int(n) for n in re.findall(r"\d+", version)[:3])
    if tool is not None and number >= (0, 2, 12) and tool.release < (2024, 4):
        return Row(
            "nvtx",
            WARNING,
            f"{version} does not fit nsys {tool.version}",
            "ranges of the nvtx package are lost (nsysalign's own and torch.cuda.nvtx are not)",
            "pip install nvtx==0.2.11, or a newer nsys",
        )
    return Row("nvtx", OK, version)


def _sampling() -> Row:
    """Without NVML's Python binding nothing is sampled while the script runs."""
    from importlib import metadata

    try:
        return Row("clocks", OK, f"nvidia-ml-py {metadata.version('nvidia-ml-py')}")
    except metadata.PackageNotFoundError:
        return Row(
            "clocks",
            WARNING,
            "no nvidia-ml-py in this Python",
            "the SM clock, power and throttling are not sampled: clock changes cannot be seen",
            "pip install 'nsysalign[clocks]'",
        )


def _nested(environ: Mapping[str, str]) -> Row:
    if environ.get("NSYS_PROFILING_SESSION_ID"):
        return Row(
            "session",
            MISSING,
            "this shell already runs under nsys",
            "`nsysalign run` refuses, because sessions do not nest",
            "start it from another shell",
        )
    if tool := environ.get("CUDA_INJECTION64_PATH"):
        return Row(
            "session",
            WARNING,
            f"another tool is injected into CUDA programs here (CUDA_INJECTION64_PATH: {Path(tool).name})",
            "CUPTI serves one tool at a time: the trace may stay empty",
            "unset CUDA_INJECTION64_PATH",
        )
    return Row("session", OK, "no other profiler is active in this shell")


def _settings(environ: Mapping[str, str]) -> list[Row]:
    """Variables that change what is measured."""
    from nsysalign.record.command import NOTEWORTHY

    rows = [
        Row("settings", WARNING, f"{name}=1", why, f"unset {name}")
        for name, why in NOTEWORTHY.items()
        if environ.get(name) == "1"
    ]
    if environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        rows.append(
            Row("settings", WARNING, "CUDA_VISIBLE_DEVICES hides every GPU", "the script finds none", "unset CUDA_VISIBLE_DEVICES")
        )  # fmt: skip
    return rows
