"""From a command to a run directory: profile, convert the event logs, export the trace; and the
same command without nsys."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from nsysalign import rundir
from nsysalign.errors import NsysError
from nsysalign.files import write_lines
from nsysalign.record import command as commands
from nsysalign.record import cupti
from nsysalign.record.clock_sampler import sampling
from nsysalign.record.convert import convert, errors
from nsysalign.record.launch import (
    Ended,
    hold_signals,
    launch,
    open_closed_streams,
    working_directory,
)
from nsysalign.record.nsys import Nsys, export_sqlite, find_nsys, import_stream, profile_arguments
from nsysalign.record.nsys_folder import nsys_folder, remove_left_folders
from nsysalign.record.processes import of_run
from nsysalign.record.python_samples import keep_stacks

#: In the header of every log of a run without nsys, so that it is not mistaken for the log of a
#: trace.
MARK = {"baseline": True}


@dataclass(frozen=True)
class CollectOptions:
    """How to collect.  `output` names the run directory itself."""

    nsys: str | None = None
    output: Path | None = None
    accurate: bool = False
    calibrate: bool = True
    host_timers: bool = True  # make intervals of readings of the host's clocks as well
    graph_trace: str | None = None
    timeout_s: float | None = None  # stop the script after this long
    stdout_to_stderr: bool = False  # if our own stdout is used for the analysis
    clocks: bool = True  # sample the GPUs' clocks through NVML during the run
    untraced: bool = False  # record in turns: the repetitions between them run at plain speed
    sample_python: bool = False  # nsys samples the Python stacks
    conditions: tuple[str, ...] = ()  # set up around the run (locked clocks): for the report
    environment: Mapping[str, str] = field(default_factory=dict)  # more variables for the probe


@dataclass(frozen=True)
class CollectResult:
    """What a run left.  `exit_status` is the script's own; `sqlite`: None for a run without
    nsys."""

    run_dir: Path
    exit_status: int
    sqlite: Path | None
    event_logs: tuple[Path, ...]
    notes: tuple[str, ...]
    stopped: bool = False  # asked to end by a signal or --timeout
    unused: bool = False  # CUPTI was there to record, and no process used a GPU


def collect(
    command: Sequence[str],
    options: CollectOptions = CollectOptions(),
    progress: Callable[[str, int], None] | None = None,
) -> CollectResult:
    """Profile `command` in the current directory.  `progress(step, percent)` reports what happens
    after the script.  Raises UsageError if the command cannot be run, NsysError if nsys is missing
    or left no report; the event logs are converted even then, and the message names the folder.
    The exit code of such an error is the script's own status unless that is 0.
    """
    argv = _checked(command)
    nsys = find_nsys(options.nsys)
    commands.refuse_obstacles()
    run_dir = rundir.make_run_dir(commands.stem(command), options.output)
    began = time.monotonic()
    tell = progress or (lambda step, percent: None)
    with hold_signals(), rundir.private(run_dir):  # there must be no moment without a handler
        ended, notes = _profiled(nsys, argv, run_dir, options, tell)
        with _finished(run_dir, ended, notes, options) as finish:
            logs = _event_logs(run_dir, notes)
            notes += _warnings(run_dir / rundir.NSYS_LOG)
            report = _report(run_dir, nsys, ended, logs)
            exporting = partial(tell, "exporting the report")
            sqlite = export_sqlite(nsys, report, run_dir / rundir.EXPORT, exporting)
            if options.sample_python and "python-sampling" in nsys.flags:
                notes += keep_stacks(nsys, report, run_dir / rundir.STACKS, working_directory())
            profiled_s = round(time.monotonic() - began, 1)
            return finish(logs, profiled_s=profiled_s, nsys=nsys.version, trace=sqlite.name)


def _profiled(
    nsys: Nsys,
    argv: Sequence[str],
    run_dir: Path,
    options: CollectOptions,
    tell: Callable[[str, int], None],
) -> tuple[Ended, list[str]]:
    """How the program ended under nsys, which left its report in the run directory; and notes."""
    log = run_dir / rundir.NSYS_LOG
    with (
        nsys_folder(run_dir) as folder,
        sampling(run_dir / rundir.CLOCKS, wanted=options.clocks) as unsampled,
    ):
        profile, notes = profile_arguments(
            nsys,
            folder / "run" / "trace",
            options.accurate,
            options.graph_trace,
            options.sample_python,
        )
        for name, why in commands.NOTEWORTHY.items():
            if os.environ.get(name) == "1":
                notes.append(f"{name}=1: {why}")
        writing = partial(tell, "nsys writes its report", 0)
        under = {"profile": profile, "folder": folder, "writing": writing}
        ended = _launch(argv, run_dir, log, options, **under)
        if ended.status is None:  # on a busy machine its processes may not find each other
            failed = "nsys failed before it started the script, and was started again"
            notes.append(f"{failed}: {_last_words(log)}")
            ended = _launch(argv, run_dir, log, options, **under)
    return ended, [*notes, *ended.notes, *unsampled]


def _warnings(log: Path) -> list[str]:
    """The first warnings of nsys's own, each once."""
    lines = map(str.strip, log.read_text(errors="replace").replace("\r", "\n").split("\n"))
    warnings = dict.fromkeys(line for line in lines if line.upper().startswith("WARN"))
    return [f"nsys: {warning}" for warning in warnings][:5]


def collect_unprofiled(
    command: Sequence[str], options: CollectOptions = CollectOptions()
) -> CollectResult:
    """Run `command` in the current directory with the probe and without nsys, into a run directory
    of its own: what the event log alone proves (`nsysalign.unprofiled_run`).  Raises UsageError if
    the command cannot be run, NsysError if the logs cannot be written.
    """
    argv = _checked(command)
    run_dir = rundir.make_run_dir(commands.stem(command), options.output)
    with rundir.private(run_dir):
        return _unprofiled(argv, run_dir, options, {}, nsys=None, trace=None)


def collect_recorded(
    command: Sequence[str], options: CollectOptions = CollectOptions()
) -> CollectResult:
    """Run `command` in the current directory with the probe and the recorder of our own
    (`record.cupti`), without nsys.  Where that recorded nothing, a note says why, and the run is one
    of `collect_unprofiled`.  Raises as that does.
    """
    argv = _checked(command)
    run_dir = rundir.make_run_dir(commands.stem(command), options.output)
    added = cupti.environment(os.environ, options.graph_trace, options.accurate, options.untraced)
    recorded = replace(options, environment={**added, **options.environment})
    with rundir.private(run_dir), hold_signals():
        with sampling(run_dir / rundir.CLOCKS, wanted=options.clocks) as notes:
            ended = _launch(argv, run_dir, run_dir / "run.log", recorded)
        notes += ended.notes
        with _finished(run_dir, ended, notes, options) as finish:
            trace, messages = cupti.gathered(run_dir / rundir.RAW, run_dir / rundir.RECORDING)
            header: Mapping[str, Any] = {}
            if trace is None:
                header = {**MARK, "exit_status": ended.status, "stopped": ended.stopped}
                why = "; ".join(messages) or "no process used a GPU through CUDA"
                notes.append(f"CUPTI recorded nothing, so the event log alone answers: {why}")
            logs = _event_logs(run_dir, notes, header)
            result = finish(logs, nsys=None, recorder="cupti", trace=trace and trace.name)
            return replace(result, unused=trace is None and not messages)


def written(run_dir: Path, mark: Mapping[str, Any], recorded: bool) -> list[str]:
    """Make a run directory of what a stretch of this process left in `run_dir`/raw
    (`nsysalign.recording`); `mark`: in the header of a log without a trace.  Returns notes."""
    notes: list[str] = []
    with _finished(run_dir, Ended(0), notes, CollectOptions()) as finish:
        trace, messages = cupti.gathered(run_dir / rundir.RAW, run_dir / rundir.RECORDING)
        if trace is None and recorded:
            why = "; ".join(messages) or "nothing was done on a GPU"
            notes.append(f"CUPTI recorded nothing, so the event log alone answers: {why}")
        logs = _event_logs(run_dir, notes, {} if trace else mark)
        finish(logs, nsys=None, recorder="cupti" if trace else "log", trace=trace and trace.name)
    return notes


def collect_baseline(
    command: Sequence[str],
    run_dir: Path,
    options: CollectOptions = CollectOptions(),
    *,
    profiled_status: int,
) -> CollectResult:
    """Run `command` once more in the current directory, with the probe and without nsys, into
    RUN_DIR/baseline: what the program measures without a profiler.

    Same environment, same probe, same calibration, so that the same intervals are found in both.
    The probe makes `Event.record()` about 1.3 us cheaper than torch's own (it hands on the Stream
    object that torch would build anew each time), and that is part of what this run measures: it is
    the program without nsys, not the program without the probe.  Raises NsysError if the folder
    cannot be created or written.
    """
    argv = _checked(command)
    folder = run_dir / rundir.BASELINE
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        kept = "the profiled run is kept: nsysalign analyze RUN_DIR"
        raise NsysError(f"cannot make {folder}: {error.strerror}", kept) from error
    plain = replace(options, stdout_to_stderr=False, conditions=(), clocks=False)
    header = {"profiled_exit_status": profiled_status}
    result = _unprofiled(argv, folder, plain, header, format="nsysalign-baseline")
    silence = () if result.event_logs else ("it timed nothing: there is nothing to compare with",)
    return replace(result, notes=tuple(f"without nsys: {n}" for n in (*result.notes, *silence)))


def _unprofiled(
    argv: Sequence[str],
    folder: Path,
    options: CollectOptions,
    header: Mapping[str, Any],
    **manifest: Any,
) -> CollectResult:
    """Run it without nsys; `header` of its logs."""
    with hold_signals():
        with sampling(folder / rundir.CLOCKS, wanted=options.clocks) as notes:
            ended = _launch(argv, folder, folder / "run.log", options)
        notes += ended.notes
        header = {**MARK, "exit_status": ended.status, "stopped": ended.stopped, **header}
        with _finished(folder, ended, notes, options) as finish:
            return finish(_event_logs(folder, notes, header), **manifest)


def _checked(command: Sequence[str]) -> list[str]:
    """The argument list of a command.  Raises UsageError if it cannot be recorded here."""
    open_closed_streams()  # before we open anything
    argv = commands.resolve(command)
    commands.refuse_nested(os.environ)
    commands.refuse_small_files()
    return argv


def _launch(
    argv: Sequence[str], run_dir: Path, log: Path, options: CollectOptions, **under: Any
) -> Ended:
    """Run it with the probe, which writes to `run_dir`/raw."""
    (run_dir / rundir.RAW).mkdir(mode=0o700, exist_ok=True)
    environment = commands.probe_environment(
        os.environ, run_dir, calibrate=options.calibrate, host_timers=options.host_timers
    )
    limits = {"timeout_s": options.timeout_s, "stdout_to_stderr": options.stdout_to_stderr}
    return launch(argv, environment | dict(options.environment), log, **limits, **under)


_PROBLEM = "the probe had a problem"


@contextlib.contextmanager
def _finished(
    run_dir: Path, ended: Ended, notes: list[str], options: CollectOptions
) -> Iterator[Callable[..., CollectResult]]:
    """A function of the event logs, and further entries of run.json, that writes it and returns the result.
    `analyze RUN_DIR` and the next run of the script need it: no environment, no paths.  An error
    inside ends us with the status of a script that failed."""

    def finish(logs: Sequence[Path], **entries: Any) -> CollectResult:
        manifest = {
            "format": "nsysalign-run",
            "version": 1,
            "exit_status": ended.status,
            "event_logs": [log.name for log in logs],
            "notes": notes,
            # what the answer says as well
            "conditions": [*options.conditions, *(n for n in notes if n.startswith(_PROBLEM))],
            **entries,
        }
        write_lines(run_dir / rundir.MANIFEST, [json.dumps(manifest, indent=1)])
        sqlite = run_dir / entries["trace"] if entries.get("trace") else None
        status, texts = ended.status or 0, tuple(notes)
        return CollectResult(run_dir, status, sqlite, tuple(logs), texts, ended.stopped)

    try:
        yield finish
    except NsysError as error:
        error.exit_code = ended.status or error.exit_code
        raise
    except OSError as error:  # the disk is full, or the script removed the folder
        text = f"{run_dir} cannot be finished: {error.strerror} ({_how(ended)})"
        step = f"free some space, then: nsysalign analyze {run_dir}"
        failed = NsysError(f"{text}; what was recorded is kept there", step)
        failed.exit_code = ended.status or failed.exit_code
        raise failed from error


def _event_logs(folder: Path, notes: list[str], header: Mapping[str, Any] = {}) -> list[Path]:
    """The event logs made of what the probe left in `folder`/raw, which is removed unless the probe
    had a problem: then `notes` grows."""
    raw = folder / rundir.RAW
    logs = convert(raw, folder, working_directory(), header, source=True)
    failures = errors(raw)
    if not failures:
        shutil.rmtree(raw, ignore_errors=True)
    notes += [f"{_PROBLEM}: {text}" for text in failures]
    return logs


def recover(run_dir: Path) -> None:
    """Make the event logs of a run that was cut short (killed, or on a full disk) from what the
    probe left, with nsys and without; nothing if they exist or the run is still going on.  The
    working directory is taken to be the one in which run directories usually lie; elsewhere call
    sites keep their folder's name.
    """
    remove_left_folders()
    cwd = run_dir.resolve().parent.parent
    for folder, header in ((run_dir, {}), (run_dir / rundir.BASELINE, {**MARK, "stopped": True})):
        raw = folder / rundir.RAW
        if raw.is_dir() and not of_run(folder):
            if folder == run_dir and not (folder / rundir.RECORDING).exists():
                cupti.gathered(raw, folder / rundir.RECORDING)
            convert(raw, folder, cwd, header, anew=False)


def _report(run_dir: Path, nsys: Nsys, ended: Ended, logs: Sequence[Path]) -> Path:
    """trace.nsys-rep, or the error that explains why it is not there."""
    report, stream = run_dir / rundir.REPORT, run_dir / rundir.STREAM
    # of a script that was never started there is nothing to say, whatever nsys wrote
    if ended.status is not None and (
        (report.is_file() and report.stat().st_size)
        or (stream.is_file() and import_stream(nsys, stream, report))
    ):
        return report
    kept = f"; {len(logs)} event logs are kept in {run_dir}" if logs else ""
    step = "read the script's own output above; then check the free space and: nsysalign doctor"
    if stream.is_file():
        kept += f"; nsys's own recording is kept: {stream.name}"
        step += f"; to import it again: nsysalign analyze {run_dir}"
    elif not logs:
        shutil.rmtree(run_dir / rundir.RAW, ignore_errors=True)
    why = _last_words(run_dir / rundir.NSYS_LOG)
    raise NsysError(f"nsys {nsys.version} left no report ({_how(ended)}): {why}{kept}", step)


def _last_words(log: Path) -> str:
    """The reasons that nsys's importer names in its dump of an error, or else the last lines."""
    text = log.read_text(errors="replace")
    if reasons := re.findall(r"Type: ErrorText\s+Value: \"([^\"\n]*)\"", text):
        return "; ".join(dict.fromkeys(reasons))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[-3:]) or "it said nothing"


def _how(ended: Ended) -> str:
    if ended.status is None:
        return "it did not start the script"
    return f"the script ended with status {ended.status}"
