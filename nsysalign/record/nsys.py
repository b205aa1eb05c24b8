"""The nsys tool: where it is, what it can do, how it is called.  Version and flags come from the tool
itself, success is judged by the files it leaves."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nsysalign.errors import NsysError, NsysMissing
from nsysalign.record.processes import wait_for
from nsysalign.text import natural

#: Where installers put it; the last match of each pattern (the newest version) is tried first.
INSTALL_PATTERNS = (
    "/opt/nvidia/nsight-systems*/*/bin/nsys",
    "/opt/nvidia/nsight-systems*/bin/nsys",
    "/opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/usr/local/bin/nsys",
    "/usr/lib/nsight-systems/*/nsys",
    "/usr/lib/*/nsight-systems/nsys",
    "~/.cache/nsysalign/nsys/target-linux-*/nsys",
)
INSTALL_HINT = (
    "install Nsight Systems (https://developer.nvidia.com/nsight-systems), "
    "or name it: --nsys PATH or NSYS=PATH"
)
OLDEST = (2022, 4)
#: The version that recordings were tried with.
TRIED = (2024, 2, 3)
STALL_S = 300.0  # an export that neither prints nor writes anything for this long hangs
#: A disk with less free space than this is why a file is not whole.
FULL_BYTES = 1 << 20
#: Before each try: what makes the importer fail on a busy machine lasts longer than a try does.
_IMPORT_PAUSES_S = (0.0, 1.0, 3.0)
#: Without an option that was asked for.
_LACKING = {
    "cuda-event-trace": "events are placed by bounds, as without --accurate; 2024.6 or newer "
    "records their GPU timestamps",
    "trace-fork-before-exec": "forked children are not in the trace",
    "cuda-graph-trace": "--graph-trace was ignored",
    "python-sampling": "--sample-python was ignored",
}
Progress = Callable[[int], None]  # takes percentages


@dataclass(frozen=True)
class Nsys:
    """One nsys installation and what it reports about itself."""

    path: str
    version: str  # as printed, e.g. "2024.2.3.38-242334140272v0"
    flags: frozenset[str] = field(repr=False)  # long options of `nsys profile`, without "--"

    @property
    def release(self) -> tuple[int, ...]:
        return tuple(int(n) for n in re.findall(r"\d+", self.version.split("-")[0])[:3])


def candidates(explicit: str | None = None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Places to try, best first.  An explicit one (option or $NSYS) is the only one."""
    if named := explicit or environ.get("NSYS"):
        return [named]
    on_path = shutil.which("nsys", path=environ.get("PATH"))
    paths = [on_path] if on_path else []
    for pattern in INSTALL_PATTERNS:
        pattern = pattern.replace("~", environ.get("HOME", ""), 1)
        paths += sorted(glob.glob(pattern), key=natural, reverse=True)
    return list(dict.fromkeys(paths))


def find_nsys(explicit: str | None = None) -> Nsys:
    """The nsys to use.  Raises NsysError, which names the next step, if there is none."""
    problems = []
    for path in candidates(explicit):
        program = shutil.which(path) or shutil.which(os.path.join(path, "nsys"))
        if program is None:
            why = "it is not executable" if os.path.isfile(path) else "no such program"
            problems.append(f"{path}: {why}")
            continue
        try:
            nsys = describe(os.path.abspath(program))
        except NsysError as error:
            problems.append(error.message)
            continue
        if nsys.release >= OLDEST:
            return nsys
        needed = ".".join(map(str, OLDEST))
        problems.append(f"{program}: {nsys.version} is too old, {needed} or newer is needed")
    if problems:
        raise NsysError("no usable nsys: " + "; ".join(problems), INSTALL_HINT)
    raise NsysMissing("nsys was not found in PATH or the usual install folders", INSTALL_HINT)


def describe(path: str) -> Nsys:
    """Ask an nsys for its version and its flags.  Raises NsysError."""
    version = _ask(path, "--version")
    match = re.search(r"version\s+(\d{4}\.\d+[\w.\-]*)", version)
    if match is None:
        output = version.strip()[:80]
        raise NsysError(f"{path}: `--version` says {output!r}, which contains no version number")
    # lines that begin with an option, not mentions inside sentences
    flag = r"^\s*(?:\([A-Za-z ]+\)\s*)?(?:-\w,\s*)?--([a-z][a-z0-9-]*)"
    flags = re.findall(flag, _ask(path, "profile", "--help"), re.MULTILINE)
    return Nsys(path, match[1], frozenset(flags))


def _ask(path: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, errors="replace", timeout=60,
            cwd="/", stdin=subprocess.DEVNULL,  # in a deleted folder nsys does nothing
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NsysError(f"{path} {' '.join(arguments)}: {error}") from error
    if done.returncode and not done.stdout:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise NsysError(f"{path} {' '.join(arguments)}: {last}")
    return done.stdout


def profile_arguments(
    nsys: Nsys,
    output: Path,
    accurate: bool = False,
    graph_trace: str | None = None,
    sample_python: bool = False,
) -> tuple[list[str], list[str]]:
    """`nsys profile ...` up to the command, and notes on what was asked for and this nsys lacks."""
    wishes = {
        "sample": "none",
        "cpuctxsw": "none",
        # newer ones have it on by default, which makes short intervals longer
        "cuda-event-trace": "true" if accurate else "false",
        # calls that only read, as that of a distance, are in the event log; to trace them as well
        # would lengthen what is timed
        "cuda-trace-all-apis": "false",
        # without it nothing of a forked child reaches the trace (multiprocessing's and DataLoader's
        # default on Linux)
        "trace-fork-before-exec": "true",
    }
    if graph_trace:
        wishes["cuda-graph-trace"] = graph_trace
    if sample_python:
        wishes["python-sampling"] = "true"
    options = [f"--{flag}={value}" for flag, value in wishes.items() if flag in nsys.flags]
    notes = [
        f"nsys {nsys.version} has no --{flag}: {consequence}"
        for flag, consequence in _LACKING.items()
        if wishes.get(flag, "false") != "false" and flag not in nsys.flags
    ]
    return [nsys.path, "profile", "-t", "cuda,nvtx", "-o", str(output), *options], notes


def export_sqlite(nsys: Nsys, report: Path, sqlite: Path, progress: Progress | None = None) -> Path:
    """`nsys export --type sqlite`, judged by the file.  Written under another name and renamed: an
    interrupted export must not look like a finished one.  Raises NsysError."""
    partial = sqlite.with_name(sqlite.stem + ".partial.sqlite")
    try:
        status, output = _export(nsys, "sqlite", report, partial, progress)
        if status is not None and _is_whole(partial):
            return partial.replace(sqlite)
        full = shutil.disk_usage(partial.parent).free < FULL_BYTES
    finally:
        for leftover in partial.parent.glob(partial.name + "*"):  # SQLite's journal too
            leftover.unlink(missing_ok=True)
    if newer := re.search(r"version \((\d{4}[\d.]*).*newer than your current", output, re.DOTALL):
        raise NsysError(
            f"{report.name} was recorded by nsys {newer[1]}, and {nsys.version.split('-')[0]} "
            "cannot read what a newer one recorded",
            f"nsysalign analyze {shlex.quote(str(report))} --nsys PATH, with one at least as new",
        )
    problem = f"nsys export made no progress for {STALL_S:g} s and was stopped"
    if status is not None:
        why = "No space left on device" if full else output[-300:]  # nsys prints SQLite's calls
        problem = f"nsys export left no whole SQLite file (exit status {status}): {why}"
    step = f"{'free some' if full else 'check the free'} space beside {report.name}, then: nsysalign analyze {report}"
    raise NsysError(problem, step)


def export_json(nsys: Nsys, report: Path, out: Path) -> None:
    """One event per line, in whichever format this nsys has for that.  Raises NsysError."""
    for kind in ("jsonlines", "json"):  # newer ones have no `json`
        status, output = _export(nsys, kind, report, out)
        if status == 0 and out.is_file():
            return
    raise NsysError(f"nsys {nsys.version} exports neither jsonlines nor json ({output[-300:]})")


def _export(
    nsys: Nsys, kind: str, report: Path, out: Path, progress: Progress | None = None
) -> tuple[int | None, str]:
    """Export to `out`, a new file: (exit status, None if it hung and was stopped; what nsys printed,
    without its progress)."""
    out.unlink(missing_ok=True)
    files = ["-o", str(out.absolute()), str(report.absolute())]
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            [nsys.path, "export", "--type", kind, *files], cwd="/", start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=messages,
            umask=0o077,  # an export holds the profiled process's environment
        )  # fmt: skip
        seen, since, ended = (0, 0), time.monotonic(), False
        try:
            while not ended and time.monotonic() - since < STALL_S:
                ended = wait_for(process, 0.5)
                size = os.fstat(messages.fileno()).st_size
                output = os.pread(messages.fileno(), 4096, max(0, size - 4096)).decode(
                    errors="replace"
                )
                if progress and (percent := re.findall(r"(\d+)%", output)):
                    progress(int(percent[-1]))
                written = (size, out.stat().st_size if out.exists() else 0)
                if written != seen:
                    seen, since = written, time.monotonic()
        finally:
            if not ended:  # hung or interrupted: end it and its helpers
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output = " ".join(re.sub(r"[^\r\n]*Processing \d+ events[^\r\n]*", "", output).split())
    return (process.returncode if ended else None), output


def _is_whole(path: Path) -> bool:
    """Whether it is an SQLite file with all its pages: on a full disk nsys writes some, and returns
    0."""
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        head = file.read(32)
    page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    whole = path.stat().st_size >= (65_536 if page == 1 else page) * pages
    return head[:16] == b"SQLite format 3\0" and whole


def import_stream(nsys: Nsys, stream: Path, report: Path) -> bool:
    """Make the report from the raw stream that nsys leaves when its own importer fails (2024.2
    occasionally does, on a busy machine twice in a row), by the importer of the same installation.
    Whether that succeeded."""
    # an nsys in PATH may be a script that starts the real one
    roots = [Path(os.path.realpath(path)).parents[1] for path in (nsys.path, *candidates())]
    importers = [p for root in roots for p in sorted(root.glob("host-linux-*/QdstrmImporter"))]
    partial = report.with_name(report.stem + ".partial.nsys-rep")
    files = ["-i", str(stream.absolute()), "-o", str(partial.absolute())]
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    for pause_s in _IMPORT_PAUSES_S if importers else ():
        time.sleep(pause_s)
        try:
            command = [str(importers[0]), *files]
            subprocess.run(command, cwd="/", start_new_session=True, timeout=2 * STALL_S, **quiet)
            if partial.is_file() and partial.stat().st_size:
                partial.chmod(0o600)
                partial.replace(report)
                stream.unlink()
                return True
        except (OSError, subprocess.TimeoutExpired):
            break
        finally:
            partial.unlink(missing_ok=True)
    return False
