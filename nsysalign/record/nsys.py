"""The nsys tool: where it is, what it can do, how it is called.  Nothing is assumed that can be
checked: version and flags come from the tool itself, success is judged by the files it leaves.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nsysalign.errors import NsysError, NsysMissing
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
    paths = [on_path] if (on_path := shutil.which("nsys", path=environ.get("PATH"))) else []
    for pattern in INSTALL_PATTERNS:
        pattern = pattern.replace("~", environ.get("HOME", ""), 1)
        paths += sorted(glob.glob(pattern), key=natural, reverse=True)
    return list(dict.fromkeys(paths))


def find_nsys(explicit: str | None = None) -> Nsys:
    """The nsys to use.  Raises NsysError, which names the next step, if there is none."""
    problems = []
    for path in candidates(explicit):
        resolved = shutil.which(path) or shutil.which(os.path.join(path, "nsys"))
        if resolved is None:
            why = "it is not executable" if os.path.isfile(path) else "no such program"
            problems.append(f"{path}: {why}")
            continue
        try:
            nsys = describe(os.path.abspath(resolved))
        except NsysError as error:
            problems.append(error.message)
            continue
        if nsys.release >= OLDEST:
            return nsys
        oldest = ".".join(map(str, OLDEST))
        problems.append(
            f"{resolved}: version {nsys.version} is too old, {oldest} or newer is needed"
        )
    if problems:
        raise NsysError("no usable nsys: " + "; ".join(problems), INSTALL_HINT)
    raise NsysMissing("nsys was not found in PATH or the usual install folders", INSTALL_HINT)


def describe(path: str) -> Nsys:
    """Ask an nsys for its version and its flags."""
    version = _ask(path, "--version")
    match = re.search(r"version\s+(\d{4}\.\d+[\w.\-]*)", version)
    if match is None:
        raise NsysError(
            f"{path}: `--version` says {version.strip()[:80]!r}, which contains no version number",
            INSTALL_HINT,
        )
    return Nsys(path, match[1], parse_flags(_ask(path, "profile", "--help")))


def parse_flags(help_text: str) -> frozenset[str]:
    """Long options defined in `nsys profile --help`: lines that begin with them, not mentions
    inside sentences.
    """
    line = r"^\s*(?:\([A-Za-z ]+\)\s*)?(?:-\w,\s*)?--([a-z][a-z0-9-]*)"
    return frozenset(re.findall(line, help_text, re.MULTILINE))


def _ask(path: str, *arguments: str) -> str:
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, text=True, errors="replace", timeout=60,
            cwd="/", stdin=subprocess.DEVNULL,  # in a deleted folder nsys does nothing
        )  # fmt: skip
    except PermissionError as error:
        raise NsysError(
            f"{path}: no permission to run it", "check its mode and the mount's noexec option"
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NsysError(f"{path} {' '.join(arguments)}: {error}", INSTALL_HINT) from error
    if done.returncode != 0 and not done.stdout:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise NsysError(f"{path} {' '.join(arguments)}: {last}", INSTALL_HINT)
    return done.stdout


class Wish(NamedTuple):
    """An option of `nsys profile` that a run asks for: `--flag=value` where this nsys has it, else
    `without`, a note."""

    flag: str
    value: str
    without: str = ""


def wishes(
    accurate: bool = False, graph_trace: str | None = None, python_hz: int | None = None
) -> list[Wish]:
    """Everything that a run asks of nsys, whatever its version."""
    event_trace = (
        "nsys {} has no --cuda-event-trace: events are placed by bounds, as without --accurate; 2024.6 or newer records their "
        "GPU timestamps"
    )
    forks = "nsys {} has no --trace-fork-before-exec: forked children are not in the trace"
    every = [
        Wish("sample", "none"),
        Wish("cpuctxsw", "none"),
        # newer ones have it on by default, which makes short intervals longer
        Wish("cuda-event-trace", *(("true", event_trace) if accurate else ("false",))),
        # a call that only reads, as that of a distance, is in the event log; to trace it as well
        # would lengthen what is timed
        Wish("cuda-trace-all-apis", "false"),
        # without it nothing of a forked child reaches the trace (multiprocessing's and DataLoader's
        # default on Linux)
        Wish("trace-fork-before-exec", "true", forks),
    ]
    if graph_trace:
        ignored = "nsys {} has no --cuda-graph-trace: " + f"--graph-trace {graph_trace} was ignored"
        every.append(Wish("cuda-graph-trace", graph_trace, ignored))
    if python_hz:
        ignored = "nsys {} has no --python-sampling: --sample-python was ignored"
        every.append(Wish("python-sampling", "true", ignored))
        every.append(Wish("python-sampling-frequency", str(python_hz)))
    return every


def profile_arguments(
    nsys: Nsys,
    output: Path,
    accurate: bool = False,
    graph_trace: str | None = None,
    python_hz: int | None = None,
) -> tuple[list[str], list[str]]:
    """`nsys profile ...` up to the command, and notes on what this nsys cannot do."""
    every = wishes(accurate, graph_trace, python_hz)
    options = [f"--{wish.flag}={wish.value}" for wish in every if wish.flag in nsys.flags]
    lacking = [wish for wish in every if wish.without and wish.flag not in nsys.flags]
    notes = [wish.without.format(nsys.version) for wish in lacking]
    return [nsys.path, "profile", "-t", "cuda,nvtx", "-o", str(output), *options], notes


def export_sqlite(nsys: Nsys, report: Path, sqlite: Path, progress: Progress | None = None) -> Path:
    """`nsys export --type sqlite`, judged by the file.

    Written under another name and renamed: an interrupted export must not look like a finished one.
    """
    partial, step = sqlite.with_name(sqlite.stem + ".partial.sqlite"), "check the free"
    try:
        said, status = _export(nsys, "sqlite", report, partial, progress)
        if said is not None and _is_whole(partial):
            partial.replace(sqlite)
            return sqlite
        problem = f"nsys export made no progress for {STALL_S:g} s and was stopped"
        if said is not None:
            why = _words(said)
            if shutil.disk_usage(partial.parent).free < FULL_BYTES:  # nsys prints SQLite's calls
                why, step = "No space left on device", "free some"
            problem = f"nsys export left no whole SQLite file (exit status {status}): {why}"
    finally:
        for rest in partial.parent.glob(partial.name + "*"):  # SQLite's journal too
            rest.unlink(missing_ok=True)
    newer = r"version \((\d{4}[\d.]*).*newer than your current version"
    if match := re.search(newer, said or "", re.DOTALL):
        raise NsysError(
            f"{report.name} was recorded by nsys {match[1]}, which is newer than this one ({nsys.version.split('-')[0]}): it cannot "
            "read that",
            f"use an nsys at least as new: nsysalign analyze {shlex.quote(str(report))} --nsys PATH; or export it where it was recorded:   "
            f"nsys export --type sqlite {report.name}",
        )
    raise NsysError(problem, f"{step} space beside {report.name}, then: nsysalign analyze {report}")


def export_json(nsys: Nsys, report: Path, out: Path) -> None:
    """One event per line, in whichever format this nsys has for that.  Raises NsysError if it has
    none or fails."""
    for kind in ("jsonlines", "json"):  # newer ones have no `json`
        said, status = _export(nsys, kind, report, out)
        if said is not None and not status and out.is_file():
            return
    how = "made no progress" if said is None else f"exit status {status}: {_words(said)}"
    raise NsysError(f"nsys {nsys.version} exports neither jsonlines nor json ({how})")


def _export(
    nsys: Nsys, kind: str, report: Path, out: Path, progress: Progress | None = None
) -> tuple[str | None, int | None]:
    """Export to `out`, a new file: (what nsys printed, None if it hung and was stopped; exit
    status)."""
    out.unlink(missing_ok=True)
    files = ["-o", str(out.absolute()), str(report.absolute())]
    process = subprocess.Popen(
        [nsys.path, "export", "--type", kind, *files], cwd="/", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        umask=0o077,  # an export holds the profiled process's environment
    )  # fmt: skip
    said = None
    try:
        said = _follow(process, out, progress)
    finally:
        if said is None:  # hung or interrupted: end it and its helpers
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    return said, process.returncode


def _words(said: str) -> str:
    """The end of what an export printed, without its progress."""
    return " ".join(re.sub(r"[^\r\n]*Processing \d+ events[^\r\n]*", "", said).split())[-300:]


def _follow(process: subprocess.Popen, output: Path, progress: Progress | None) -> str | None:
    """Read what an export prints until it ends; None if neither a message nor a byte of output came
    for STALL_S."""
    tail, size, since = b"", -1, time.monotonic()
    while time.monotonic() - since < STALL_S:
        if select.select([process.stderr], [], [], 0.5)[0]:
            chunk = os.read(process.stderr.fileno(), 4096)
            if not chunk:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STALL_S)
                    return tail.decode(errors="replace")
                return None
            tail, since = (tail + chunk)[-2000:], time.monotonic()
            if progress and (percent := re.findall(rb"(\d+)%", tail)):
                progress(int(percent[-1]))
        with contextlib.suppress(OSError):
            if output.stat().st_size != size:
                size, since = output.stat().st_size, time.monotonic()
    return None


def _is_whole(path: Path) -> bool:
    """Whether it is an SQLite file with all its pages: on a full disk nsys writes some, and returns
    0."""
    try:
        with open(path, "rb") as file:
            head = file.read(32)
    except OSError:
        return False
    page, pages = int.from_bytes(head[16:18], "big"), int.from_bytes(head[28:32], "big")
    whole = path.stat().st_size >= (65_536 if page == 1 else page) * pages
    return head[:16] == b"SQLite format 3\0" and whole


def import_stream(nsys: Nsys, stream: Path, report: Path) -> bool:
    """Make the report from the raw stream that nsys leaves when its own importer fails (2024.2
    occasionally does).  The importer is a separate program of the same installation.  On a busy
    machine it can fail twice and succeed the third time, so it is tried three times; False if it is
    absent or never succeeds.
    """
    # an nsys in PATH may be a script that starts the real one
    installed = (Path(os.path.realpath(path)).parents[1] for path in (nsys.path, *candidates()))
    beside = (sorted(folder.glob("host-linux-*/QdstrmImporter")) for folder in installed)
    importers = next(filter(None, beside), [])
    partial = report.with_name(report.stem + ".partial.nsys-rep")
    files = ["-i", str(stream.absolute()), "-o", str(partial.absolute())]
    quiet = {name: subprocess.DEVNULL for name in ("stdin", "stdout", "stderr")}
    for pause_s, importer in itertools.product(_IMPORT_PAUSES_S, importers):
        time.sleep(pause_s)
        try:
            command, limit_s = [str(importer), *files], 2 * STALL_S
            subprocess.run(command, cwd="/", start_new_session=True, timeout=limit_s, **quiet)
            if partial.is_file() and partial.stat().st_size:
                partial.chmod(0o600)
                partial.replace(report)
                stream.unlink()
                return True
        except OSError:
            continue
        except subprocess.TimeoutExpired:
            break
        finally:
            partial.unlink(missing_ok=True)
    return False
