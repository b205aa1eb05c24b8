"""From a command to a run directory: profile, convert the event logs, export the trace."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nsysalign.errors import NsysError
from nsysalign.files import write_lines
from nsysalign.record import command as commands
from nsysalign.record.clock_sampler import sampling
from nsysalign.record.convert import convert, errors
from nsysalign.record.handover import inheritance, working_directory
from nsysalign.record.launch import hold_signals, launch
from nsysalign.record.nsys import (
    Nsys,
    export_sqlite,
    find_nsys,
    import_stream,
    profile_arguments,
    utf8_name,
)
from nsysalign.record.processes import of_run
from nsysalign.record.python_samples import FREQUENCY_HZ, keep_stacks
from nsysalign.rundir import (
    CLOCKS,
    EXPORT,
    MANIFEST,
    NSYS_LOG,
    RAW,
    REPORT,
    STACKS,
    STREAM,
    make_run_dir,
    private,
)


@dataclass(frozen=True)
class CollectOptions:
    """How to collect.  `output` names the run directory itself."""

    nsys: str | None = None
    output: Path | None = None
    accurate: bool = False
    calibrate: bool = True
    references: bool = True  # measure every compared pair's distances to a reference event
    host_timers: bool = True  # make intervals of readings of the host's clocks as well
    graph_trace: str | None = None
    timeout_s: float | None = None  # stop the script after this long
    stdout_to_stderr: bool = (
        False  # where the script's stdout goes if our own is used for the analysis
    )
    clocks: bool = True  # sample the GPUs' clocks through NVML during the run
    sample_python: bool = False  # nsys samples the Python stacks
    conditions: tuple[
        str, ...
    ] = ()  # what was set up around the run (locked clocks): for the report
    environment: Mapping[str, str] = field(default_factory=dict)  # more variables for the probe


@dataclass(frozen=True)
class CollectResult:
    """What a run left.  `exit_status` is the script's own, None if nsys did not survive to report it."""

    run_dir: Path
    exit_status: int | None
    sqlite: Path
    event_logs: tuple[Path, ...]
    notes: tuple[str, ...]
    stopped: bool = False  # asked to end by a signal or --timeout


def collect(
    command: Sequence[str],
    options: CollectOptions = CollectOptions(),
    progress: Callable[[str, int], None] | None = None,
) -> CollectResult:
    """Profile `command` in the current directory.  `progress(step, percent)` reports what happens after the script.  Raises
    UsageError if the command cannot be run, NsysError if nsys is missing or left no report; the event logs are converted even
    then, and the message names the folder.
    """
    given = inheritance(stdout_to_stderr=options.stdout_to_stderr)  # before we open anything
    argv = commands.resolve(command)
    commands.refuse_nested(os.environ)
    nsys = find_nsys(options.nsys)
    run_dir = make_run_dir(commands.stem(command), options.output)
    (raw := run_dir / RAW).mkdir(mode=0o700)
    env = commands.probe_environment(
        os.environ,
        run_dir,
        calibrate=options.calibrate,
        host_timers=options.host_timers,
        references=options.references,
    ) | dict(options.environment)
    log, began = run_dir / NSYS_LOG, time.monotonic()
    with (
        hold_signals(),
        private(run_dir),
    ):  # around launch as well: there must be no moment without a handler
        with (
            utf8_name(run_dir) as named,
            sampling(run_dir / CLOCKS, wanted=options.clocks) as unsampled,
            following(log, progress and partial(progress, "nsys writes its report")),
        ):
            profile, notes = profile_arguments(
                nsys,
                named / "trace",
                accurate=options.accurate,
                graph_trace=options.graph_trace,
                python_hz=FREQUENCY_HZ if options.sample_python else None,
            )
            notes += commands.environment_notes(os.environ)
            go = partial(launch, profile, argv, env, log, given, timeout_s=options.timeout_s)
            ended = go()
            if (
                ended.never_began
            ):  # on a busy machine nsys's processes do not always find each other
                notes.append(
                    f"nsys failed before it started the script, and was started again: {_last_words(log)}"
                )
                ended = go()
        took_s = time.monotonic() - began
        status, notes = ended.status, [*notes, *ended.notes, *unsampled]
        logs, said = _event_logs(raw, run_dir, nsys, status)
        notes += [*said, *_warnings(run_dir / NSYS_LOG)]
        report = _report(run_dir, nsys, status, logs)
        exporting = progress and partial(progress, "exporting the report")
        sqlite = export_sqlite(nsys, report, run_dir / EXPORT, exporting)
        if options.sample_python and "python-sampling" in nsys.flags:
            reading = progress and partial(progress, "reading the Python stacks")
            notes += keep_stacks(
                nsys, report, run_dir, run_dir / STACKS, working_directory(), reading
            )
    result = CollectResult(run_dir, status, sqlite, tuple(logs), tuple(notes), ended.stopped)
    _write_manifest(result, nsys, took_s, options.conditions)
    return result


def _event_logs(
    raw: Path, run_dir: Path, nsys: Nsys, status: int | None
) -> tuple[list[Path], list[str]]:
    """(event logs, notes) from what the probe left in `raw`, which is removed unless the probe had a problem."""
    try:
        logs = convert(raw, run_dir, working_directory(), source=True)
    except OSError as error:
        raise NsysError(
            f"the event logs cannot be written to {run_dir}: {error.strerror}; what the probe recorded is kept in "
            f"{raw.name}/ there ({_told(status)})",
            "free some space, or choose a folder with more: -o DIR",
        ) from error
    failures = [text for text in errors(raw) if text]
    if not failures:
        shutil.rmtree(raw, ignore_errors=True)
    return logs, [f"the probe had a problem: {text.splitlines()[-1]}" for text in failures]


def recover(run_dir: Path) -> list[Path]:
    """Event logs from what the probe left in a run that was cut short (killed, or on a full disk).  [] if there is nothing to
    do: the logs already exist, or the run is still going on.  The working directory is taken to be the one in which run
    directories usually lie; elsewhere call sites keep their folder's name.
    """
    raw = run_dir / RAW
    if not raw.is_dir() or going_on(run_dir):
        return []
    return convert(raw, run_dir, run_dir.resolve().parent.parent, anew=False)


def going_on(run_dir: Path) -> bool:
    """Whether processes of this run are alive, with or without us."""
    return bool(of_run(run_dir.resolve()))


def _warnings(log: Path) -> list[str]:
    """What nsys itself warned about, one note per line."""
    lines = log.read_text(errors="replace").replace("\r", "\n").splitlines()
    return [
        f"nsys: {line.strip()}"
        for line in dict.fromkeys(lines)
        if line.strip().upper().startswith("WARN")
    ][:5]


def _report(run_dir: Path, nsys: Nsys, status: int | None, logs: Sequence[Path]) -> Path:
    """trace.nsys-rep, or the error that explains why it is not there."""
    for suffix in (".nsys-rep", ".qdrep"):
        path = run_dir / f"trace{suffix}"
        if path.is_file() and path.stat().st_size:
            return path
    report, stream = run_dir / REPORT, run_dir / STREAM
    if stream.is_file() and import_stream(nsys, stream, report):
        return report
    said = _last_words(run_dir / NSYS_LOG)
    kept = f"; {len(logs)} event logs are kept in {run_dir}" if logs else ""
    if not logs and not any(run_dir.glob("*.qdstrm")):
        shutil.rmtree(run_dir / RAW, ignore_errors=True)
    kept += f"; nsys's own recording is kept: {stream.name}" if stream.is_file() else ""
    step = "read the script's own output above; then check the free space and: nsysalign doctor"
    if _NUMBER_TWICE in said:
        step = (
            "this nsys cannot import a run in which Linux gave a process or thread number twice: record a part that "
            "starts fewer processes, raise the limit (sysctl kernel.pid_max), or use a newer nsys (--nsys)"
        )
    raise NsysError(f"nsys {nsys.version} left no report ({_told(status)}): {said}{kept}", step)


#: What nsys 2024.2's importer says of process numbers that were used again (seen in a suite that starts thousands).
_NUMBER_TWICE = "definitions of the same VmTidToPidInfo"


def _last_words(log: Path) -> str:
    """The reasons that nsys's importer names in its dump of an error, or else the last lines."""
    text = log.read_text(errors="replace")
    if reasons := re.findall(r"Type: ErrorText\s+Value: \"([^\"\n]*)\"", text):
        return "; ".join(dict.fromkeys(reasons))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:]) or "it said nothing"


def _told(status: int | None) -> str:
    return "it was terminated from outside" if status is None else f"exit status {status}"


def _write_manifest(
    result: CollectResult, nsys: Nsys, took_s: float, conditions: Sequence[str]
) -> None:
    """run.json: what `analyze RUN_DIR` and the next run of the script need to know.  No environment, no paths."""
    said = {
        "format": "nsysalign-run",
        "version": 1,
        "exit_status": result.exit_status,
        "profiled_s": round(took_s, 1),
        "nsys": nsys.version,
        "trace": result.sqlite.name,
        "event_logs": [p.name for p in result.event_logs],
        "notes": list(result.notes),
        "conditions": list(conditions),
    }
    write_lines(result.run_dir / MANIFEST, [json.dumps(said, indent=1)])


_EVERY_S = 0.5
_TAIL = 400
_PERCENT = re.compile(rb"\[[= ]*(\d{1,3})%[= ]*\]")


@contextlib.contextmanager
def following(log: Path, tell: Callable[[int], None] | None) -> Iterator[None]:
    """While the block runs, `tell` every new percentage that nsys prints; nothing before the script's end."""
    if tell is None:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(
        target=_follow, args=(log, tell, stop), name="nsysalign-import", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _follow(log: Path, tell: Callable[[int], None], stop: threading.Event) -> None:
    said = -1
    while not stop.wait(_EVERY_S):
        with contextlib.suppress(OSError):
            percent = said_percent(log)
            if percent is not None and percent != said:
                said = percent
                tell(percent)


def said_percent(log: Path) -> int | None:
    """The last percentage in nsys's messages, 0 when it has only begun, None before."""
    with open(log, "rb") as file:
        head = file.read(4096)
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _TAIL))
        tail = file.read()
    found = _PERCENT.findall(tail)
    if found:
        return min(int(found[-1]), 100)
    return 0 if b"Generating" in head else None
