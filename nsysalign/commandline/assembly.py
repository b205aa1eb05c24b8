"""From a path typed by the user to `rundir.Inputs`, the files of one analysis; for every command
that analyses."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commandline.outputs import folder_for
from nsysalign.commandline.progress import ProgressLine
from nsysalign.errors import NsysError, TraceError, UsageError
from nsysalign.rundir import REPORT, REPORT_SUFFIXES, STREAM, Inputs, RunDirectory

if TYPE_CHECKING:
    from nsysalign.model import Analysis


def assembled(
    path: Path,
    output: Path,
    *,
    events: Sequence[Path] = (),
    baseline: Sequence[Path] = (),
    given: Mapping[str, Sequence[Path]] = {},
    nsys: str | None = None,
    quiet: bool = True,
) -> Inputs:
    """The inputs of a run directory, a report or an export; files given explicitly replace the
    run's own logs.  Raw files of a killed run are converted; a report is exported into `output`
    (created here) unless its export lies next to it; `given`: files for add-ons, by option.  A trace
    given by itself brings no logs, only the other files of its run.  Raises TraceError or NsysError
    with what to do next.
    """
    from nsysalign.record import session

    quoted = shlex.quote(str(path))
    run, trace = RunDirectory.around(path), path
    if not path.exists():
        raise TraceError(
            f"{path}: no such file", "nsysalign analyze TRACE.sqlite | TRACE.nsys-rep | RUN_DIR"
        )
    if path.is_dir():
        if not events:
            session.recover(run.path)
        trace = trace_of(run)
        events = events or run.event_logs()
        baseline = baseline or session.baseline_logs(run.path)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        raise TraceError(
            f"{path.name} is an event log: it says what was measured, and belongs to a trace, "
            "which says when",
            f"nsysalign analyze TRACE.sqlite --events {quoted}",
        )
    elif path.suffix == ".json":
        raise TraceError(
            f"{path.name} is no trace", f"of a stored analysis: nsysalign report {quoted}"
        )
    elif path.suffix == ".py":
        raise UsageError(
            f"{path.name} is a program, and analyze reads what was recorded of one",
            f"nsysalign run {quoted}",
        )
    elif not quiet and not events and (logs := run.event_logs()):
        click.echo(
            f"note: {logs[0].name} beside it is not read: its events are of the run "
            f"(nsysalign analyze {shlex.quote(str(run.path))}), or --events FILE",
            err=True,
        )
    export = exported(trace, folder_for(output), nsys=nsys, quiet=quiet)
    files = {name: tuple(paths) for name, paths in given.items() if paths}
    return run.inputs(export, events, baseline, files)


def trace_of(run: RunDirectory) -> Path:
    """The trace of a run directory.  Raises TraceError if the run is still going on."""
    from nsysalign.record.nsys import find_nsys, import_stream
    from nsysalign.record.session import going_on

    if not run.traces():
        if going_on(run.path):
            raise TraceError(
                f"{run.path}: the run is still going on", f"then: nsysalign analyze {run.path}"
            )
        stream = run.path / STREAM  # nsys failed to import it when the run ended
        if stream.is_file() and not import_stream(find_nsys(None), stream, run.path / REPORT):
            raise TraceError(
                f"{stream}: nsys's recording of the run could not be imported",
                "try another nsys: NSYS=PATH nsysalign analyze RUN_DIR",
            )
    return run.trace()


def exported(trace: Path, output: Path, *, nsys: str | None, quiet: bool = True) -> Path:
    """The SQLite export of a trace.  One next to the report is used unless the report is newer; a
    new export goes to the output directory and never overwrites a file that was not created
    here."""
    if trace.suffix not in REPORT_SUFFIXES:
        return trace
    beside, made = trace.with_suffix(".sqlite"), trace.stat().st_mtime_ns
    if beside.is_file():
        # it is not older, or the run that made both says so: a copied directory has new times
        of_run = RunDirectory(trace.parent).manifest().get("trace") == beside.name
        if of_run or beside.stat().st_mtime_ns >= made:
            return beside
    from nsysalign.record.nsys import export_sqlite, find_nsys

    target = output / beside.name
    if target.exists() and (target == beside or target.stat().st_mtime_ns != made):
        digest = hashlib.sha256(f"{trace.stat().st_size}-{made}".encode()).hexdigest()[:8]
        target = output / f"{trace.stem}-{digest}.sqlite"
    if target.exists():  # made from this report, below
        return target
    try:
        with ProgressLine(quiet) as tell:
            export_sqlite(
                find_nsys(nsys),
                trace,
                target,
                lambda percent: tell("exporting the report", percent),
            )
    except NsysError as error:
        if not beside.exists():
            raise
        raise NsysError(
            f"{beside.name} is older than {trace.name} and cannot be exported again: "
            f"{error.message}",
            error.next_step,
        ) from error
    os.utime(target, ns=(made, made))  # the next analysis recognises it by that
    return target


def drawn(loaded: Analysis, number: int, path: Path, table: str) -> Analysis:
    """A stored analysis whose `table` (segments, timeline) has this interval: as it is stored, else
    made again from the export next to `path`; the same one if there is none, or if it belongs to
    another run."""
    row = loaded.intervals.loc[loaded.intervals["interval"] == number].iloc[0]
    if (getattr(loaded, table)["interval"] == number).any() or not row["elapsed_ns"]:
        return loaded
    from nsysalign.engine import analyze_inputs

    run = RunDirectory.around(path)
    try:
        export = run.export()
    except TraceError:
        return loaded
    inputs = run.inputs(export, run.event_logs(), run.baseline_logs())
    again = analyze_inputs(inputs, draw=[row["name"]])
    same = again.intervals["name"].tolist() == loaded.intervals["name"].tolist()
    return again if same and (getattr(again, table)["interval"] == number).any() else loaded
