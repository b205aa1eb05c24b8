"""`nsysalign doctor`: what is installed, what is missing, what that costs, how to fix it."""

from __future__ import annotations

import glob
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

OK, MISSING, WARNING = "ok", "missing", "warning"


@dataclass(frozen=True)
class Row:
    """One thing that was looked at.  `cost` and `fix` are empty where all is well."""

    what: str
    state: str  # ok, warning or missing
    found: str
    cost: str = ""
    fix: str = ""


@click.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path, exists=True))
@click.option("--nsys", metavar="PATH", help="The nsys to look at (default: the one `run` would use).")
@click.pass_context
def doctor(ctx: click.Context, trace: Path | None, nsys: str | None) -> None:
    """Look at this machine, or at a TRACE (.sqlite or run directory), and say what is missing.

    \b
    Example:  nsysalign doctor
    """
    rows = look_at_trace(trace) if trace is not None else look_at_machine(os.environ, nsys)
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
    rows = [_python(), _system()]
    tool, row = _nsys(nsys)
    rows += [
        row,
        *([_event_trace(tool)] if tool else []),
        _gpu(environ),
        _torch(),
        _nvtx(tool),
        _nested(environ),
    ]
    return rows


def _python() -> Row:
    version = ".".join(map(str, sys.version_info[:3]))
    return Row("python", OK, version)


def _system() -> Row:
    name = f"{platform.system()} {platform.machine()}"
    if platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64"):
        return Row("system", OK, name)
    return Row(
        "system",
        WARNING,
        name,
        "no collecting here, only analyze, report and demo",
        "collect on Linux x86-64 or aarch64 and copy the run directory",
    )


def _nsys(explicit: str | None) -> tuple[object | None, Row]:
    from nsysalign.collect.nsys import find_nsys
    from nsysalign.errors import NsysError

    try:
        tool = find_nsys(explicit)
    except NsysError as error:
        return None, Row(
            "nsys",
            MISSING,
            error.message,
            "no collecting, and no export of .nsys-rep files",
            error.next_step or "",
        )
    return tool, Row("nsys", OK, f"{tool.version} ({tool.path})")


def _event_trace(tool: object) -> Row:
    if "cuda-event-trace" in tool.flags:
        return Row("events", OK, "--cuda-event-trace is there: --accurate gives exact places")
    return Row(
        "events",
        WARNING,
        "this nsys has no --cuda-event-trace",
        "--accurate does nothing; events are placed by bounds, usually within 2 us",
        "nsys 2024.6 or newer has it",
    )


def _gpu(environ: Mapping[str, str]) -> Row:
    smi = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if smi:
        query = [smi, "--query-gpu=name,driver_version", "--format=csv,noheader"]
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
            if done.returncode == 0 and done.stdout.strip():
                lines = [line.strip() for line in done.stdout.strip().splitlines()]
                return Row("gpu", OK, f"{len(lines)} x {lines[0].replace(', ', ', driver ')}")
        except (OSError, subprocess.TimeoutExpired):
            pass
    cards = glob.glob("/proc/driver/nvidia/gpus/*")
    version = Path("/proc/driver/nvidia/version")
    if cards and version.exists():
        match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", version.read_text(errors="replace"))
        return Row("gpu", OK, f"{len(cards)} NVIDIA GPUs, driver {match[1] if match else 'unknown'}")
    return Row(
        "gpu",
        MISSING,
        "no NVIDIA GPU is visible",
        "nothing to measure here; analyze, report and demo work",
        "run where nvidia-smi lists a GPU (in a container: --gpus all)",
    )


def _torch() -> Row:
    """Found without being imported: the import takes a second and touches the GPU."""
    from importlib import metadata

    try:
        return Row("torch", OK, metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Row(
            "torch",
            WARNING,
            "not in this Python",
            "SCRIPT.py runs under this Python and will not find it; commands under another one work",
            "install nsysalign beside torch, or: nsysalign run -- /path/to/python SCRIPT.py",
        )


def _nvtx(tool: object | None) -> Row:
    """nvtx 0.2.12 and newer hand nsys 2024.2 a payload extension it refuses, and every range is lost."""
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


def _nested(environ: Mapping[str, str]) -> Row:
    if environ.get("NSYS_PROFILING_SESSION_ID"):
        return Row(
            "session",
            MISSING,
            "this shell already runs under nsys",
            "`nsysalign run` refuses: sessions do not nest",
            "start it from another shell",
        )
    return Row("session", OK, "no other profiler around this shell")


#: Tables of an export that an answer needs or profits from: (name, state when absent, cost, fix).
_TABLES: tuple[tuple[str, str, str, str], ...] = (
    (
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        MISSING,
        "no host side: no causes can be told",
        "nsys profile -t cuda,nvtx",
    ),
    (
        "CUPTI_ACTIVITY_KIND_KERNEL",
        WARNING,
        "no kernels in this trace",
        "profile -t cuda, and let the script use the GPU",
    ),
    (
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
        WARNING,
        "the stream of each record is inferred",
        "nsys 2023.2 or newer",
    ),
    ("NVTX_EVENTS", WARNING, "no ranges: host time has no names", "nsys profile -t cuda,nvtx"),
)


def look_at_trace(trace: Path) -> list[Row]:
    """What an export holds and lacks."""
    path = trace / "trace.sqlite" if trace.is_dir() else trace
    if path.suffix == ".nsys-rep":
        return [
            Row(
                "trace",
                WARNING,
                f"{path.name} is a report, not an export",
                "",
                f"nsysalign analyze {path.name}",
            )
        ]
    try:
        with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            db_rows = {
                name: db.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0]
                for name, *_ in _TABLES
                if name in tables
            }
    except sqlite3.Error as error:
        return [
            Row("trace", MISSING, f"{path.name}: {error}", "nothing can be read", "export the report again")
        ]
    rows = []
    for name, state, cost, fix in _TABLES:
        count = db_rows.get(name, 0)
        short = name.removeprefix("CUPTI_ACTIVITY_KIND_").lower()
        rows.append(Row(short, OK, f"{count} rows") if count else Row(short, state, "none", cost, fix))
    from nsysalign.collect.rundir import event_logs

    logs = event_logs(path.parent)
    rows.append(
        Row("event logs", OK, f"{len(logs)} beside the trace")
        if logs
        else Row(
            "event logs",
            WARNING,
            "none beside the trace",
            "no elapsed_time values: only NVTX ranges and inferred pairs",
            "collect with nsysalign run, or pass --events FILE",
        )
    )
    return rows
