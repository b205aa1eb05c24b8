"""From a path typed by the user to the files of one analysis, to stored results and a screen: what
commands that analyse have in common."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commandline.options import view
from nsysalign.commandline.outputs import (
    ProgressLine,
    console,
    deliver,
    folder_for,
    refuse_overwriting,
)
from nsysalign.errors import (
    Interrupted,
    NoCudaWork,
    NsysAlignError,
    NsysError,
    NsysMissing,
    TraceError,
)
from nsysalign.inputkind import REPORT_SUFFIXES
from nsysalign.rundir import (
    ANSWER,
    DATABASE,
    PAGE,
    REPORT,
    STREAM,
    Inputs,
    RunDirectory,
)

if TYPE_CHECKING:
    from nsysalign.answer import Answer
    from nsysalign.model import Analysis
    from nsysalign.record.session import CollectOptions, CollectResult


def assembled(
    path: Path,
    output: Path,
    *,
    events: Sequence[Path] = (),
    baseline: Sequence[Path] = (),
    of_addons: Mapping[str, Sequence[Path]] = {},
    nsys: str | None = None,
    quiet: bool = True,
) -> Inputs:
    """The inputs of a run directory, a report or an export; files given explicitly replace the
    run's own logs, `of_addons` are those for add-ons, by option.  Raw files of a killed run are
    converted; a report is exported into `output` (created here) unless its export lies next to it.
    A trace given by itself brings no logs, only the other files of its run.  Raises TraceError,
    UsageError or NsysError with what to do next.
    """
    from nsysalign.pathkind import readable

    run, trace = RunDirectory.around(path), path
    if path.is_dir():
        from nsysalign.record.session import recover

        recover(path)
    readable(path)
    if path.is_dir():
        trace = trace_of(run)
        events = events or run.event_logs()
        baseline = baseline or run.baseline_logs()
    else:
        if not quiet and not events and (logs := run.event_logs()):
            click.echo(
                f"note: {logs[0].name} beside it is not read: its events are of the run "
                f"(nsysalign analyze {shlex.quote(str(run.path))}), or --events FILE",
                err=True,
            )
    export = exported(trace, folder_for(output), nsys=nsys, quiet=quiet)
    files = {name: tuple(paths) for name, paths in of_addons.items() if paths}
    return run.inputs(export, events, baseline, files)


def trace_of(run: RunDirectory) -> Path:
    """The trace of a run directory.  Raises TraceError if the run is still going on."""
    from nsysalign.record.nsys import find_nsys, import_stream
    from nsysalign.record.processes import of_run

    if not run.traces():
        if of_run(run.path):
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
    # it is not older, or the run that made both says so: a copied directory has new times
    of_run = RunDirectory(trace.parent).manifest().get("trace") == beside.name
    if beside.is_file() and (of_run or beside.stat().st_mtime_ns >= made):
        return beside
    from nsysalign.inputkind import damaged
    from nsysalign.record.nsys import export_sqlite, find_nsys

    target = output / beside.name
    if target.exists() and (target == beside or target.stat().st_mtime_ns != made):
        digest = hashlib.sha256(f"{trace.stat().st_size}-{made}".encode()).hexdigest()[:8]
        target = output / f"{trace.stem}-{digest}.sqlite"
    if not target.exists():  # else made from this report, below
        try:
            with ProgressLine(quiet) as tell:
                export_sqlite(
                    find_nsys(nsys), trace, target, lambda done: tell("exporting the report", done)
                )
        except NsysError as error:
            known = "recorded by nsys" in error.message  # a newer one
            raise (None if known else damaged(trace)) or error from error
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
        inputs = run.inputs(run.export(), run.event_logs(), run.baseline_logs())
    except TraceError:
        return loaded
    again = analyze_inputs(inputs, draw=[row["name"]])
    unchanged = again.intervals["name"].tolist() == loaded.intervals["name"].tolist()
    return again if unchanged and (getattr(again, table)["interval"] == number).any() else loaded


def present(
    path: Path,
    *,
    output: Path | None = None,
    quiet: bool = False,
    json_out: str | None = None,
    nsys: str | None = None,
    all_segments: bool = False,
    **files: Sequence[Path] | Mapping[str, Sequence[Path]],
) -> Analysis:
    """Analyse a run directory or a trace, print, store.  `files`: `events`, `baseline` and `of_addons`
    of `assembled`."""
    if output is not None:
        for name in (DATABASE, PAGE, ANSWER):
            refuse_overwriting(output / name)
    output = output or (path if path.is_dir() else path.with_name(path.stem + ".nsysalign"))
    existed = output.exists()
    try:
        inputs = assembled(path, output, nsys=nsys, quiet=quiet, **files)
        with ProgressLine(quiet) as tell:
            from nsysalign import engine
            from nsysalign.memory import trim_memory

            analysis = engine.analyze_inputs(inputs, all_segments=all_segments, progress=tell)
            trim_memory()  # the trace's memory
    except NsysAlignError:
        if not existed:  # a refused request leaves no empty folder behind
            with suppress(OSError):  # not empty: it contains a report's export
                output.rmdir()
        raise
    again = [path, *(part for log in files.get("events", ()) for part in ("--events", log))]
    show_and_store(analysis, output, quiet=quiet or json_out == "-", again=again)
    if json_out:
        from nsysalign.store import document

        deliver(document.pieces(analysis), json_out)
    return analysis


def stored_screen(path: Path, *, quiet: bool, json_out: str | None) -> Analysis:
    """The screen of a stored analysis whose trace is not there: nothing is written but `json_out`."""
    from nsysalign.answer import answer
    from nsysalign.engine import load
    from nsysalign.store import document

    analysis = load(path)
    if not quiet and json_out != "-":
        click.echo(f"note: no trace in {path}: this is what is stored there", err=True)
        folder = path if path.is_dir() else path.parent
        sys.stdout.write(printed(analysis, answer(analysis), folder))
    if json_out:
        deliver(document.pieces(analysis), json_out)
    return analysis


def show_and_store(
    analysis: Analysis,
    output: Path,
    *,
    quiet: bool = False,
    again: Sequence[object] = (),
) -> None:
    """Write the files, then print the screen; `again`: the arguments of `analyze`, for the hint on
    comparing processes."""
    from nsysalign.answer import answer as answer_of

    answer = answer_of(analysis)
    # written first: a screen that names a page which a full disk did not take would be wrong
    with ProgressLine(quiet) as tell:
        tell("writing the report", 97)
        store(analysis, output, answer)
    if not quiet:
        sys.stdout.write(printed(analysis, answer, output, again=again))
        sys.stdout.flush()


def store(analysis: Analysis, output: Path, answer: Answer | None = None) -> None:
    """Write analysis.db, answer.json and report.html to `output`; `answer`: the analysis' answer, if
    the caller has it."""
    from dataclasses import asdict

    from nsysalign.answer import answer as answer_of
    from nsysalign.files import write_text
    from nsysalign.show import html
    from nsysalign.store import database
    from nsysalign.store.objects import to_json

    answer = answer or answer_of(analysis)
    database.write(analysis, output / DATABASE)
    head = {"format": "nsysalign-answer", "version": 4}
    write_text(output / ANSWER, to_json(head | asdict(answer)) + "\n")
    html.write(analysis, output / PAGE, answer=answer)


def printed(
    analysis: Analysis, answer: Answer, output: Path, *, again: Sequence[object] = ()
) -> str:
    """What this terminal shows: the first screen, with -v everything, with --kernels what ran."""
    from nsysalign.show import screen

    shown, page, hint = console(), str(output / PAGE), ()
    with suppress(ValueError):  # not below the working directory
        page = str((output / PAGE).absolute().relative_to(Path.cwd()))
    processes = analysis.measured["pid"].nunique()
    if again and processes > 1:
        command = f"nsysalign analyze --ranks {shlex.join(map(str, again))}"
        lines = screen.command_lines(command, shown.width - 2)
        invitation = f"{processes} processes measured something; to compare them:"
        hint = (invitation, *(f"  {line}" for line in lines))
    with shown.capture() as capture:
        if view() == "brief":
            from nsysalign.brief import of_answer

            command = click.get_current_context().info_name or ""
            shown.print(of_answer(answer, command, str(output)), markup=False, soft_wrap=True)
        elif view() == "kernels":
            screen.kernels(analysis, shown)
        elif view() == "full":
            screen.everything(analysis, answer, shown, page)
            shown.print("\n".join(hint), soft_wrap=True, markup=False)
        else:
            ran = screen.kernel_lines(
                analysis, shown.width, proof=answer.proof
            ) or screen.range_lines(analysis)
            screen.render(answer, shown, page, listed=() if answer.labels else ran, extra=hint)
    return capture.get()


_SEES = (
    "recorded by nsysalign itself (CUPTI), without nsys: calls of the operating system are not seen"
)


def recorded(
    command: Sequence[str],
    options: CollectOptions,
    quiet: bool,
    *,
    recorder: str | None = None,
    traced: Sequence[str] = (),
    by_nsys: Sequence[str] = (),
) -> CollectResult:
    """The run of a command, with what there is to say about it said.  `recorder`: nsys, cupti or log;
    None: nsys where it is found, else as cupti.  cupti is log where CUPTI cannot record.  `traced`:
    what of the command line needs a trace, `by_nsys`: and one of nsys; a gate that lost its recorder
    must not pass."""
    try:
        chosen = _without_nsys(traced, quiet) if recorder == "cupti" else recorder or "nsys"
        result = _recorded(command, options, quiet, chosen)
    except NsysMissing as error:
        if recorder == "nsys" or by_nsys:
            raise
        if not quiet:
            click.echo(f"note: {error.message}", err=True)
        chosen = _without_nsys(traced, quiet, error)
        result = _recorded(command, options, quiet, chosen)
    if chosen == "cupti" and result.sqlite is not None:
        say_notes([_SEES], quiet)
    return result


def _recorded(
    command: Sequence[str], options: CollectOptions, quiet: bool, recorder: str
) -> CollectResult:
    from nsysalign.record import session

    with ProgressLine(quiet) as progress:
        if recorder == "nsys":
            result = session.collect(command, options, progress)
        elif recorder == "cupti":
            result = session.collect_recorded(command, options)
        else:
            result = session.collect_unprofiled(command, options)
    say_notes(result.notes, quiet)
    return result


def _without_nsys(traced: Sequence[str], quiet: bool, missing: NsysMissing | None = None) -> str:
    """cupti where it can record, else log, and it is said why.  Raises an error where a trace is
    needed."""
    from nsysalign.record.cupti import why_not

    why = why_not(os.environ)
    if why is None:
        return "cupti"
    if missing is not None and traced:
        raise missing
    if traced:
        raise click.UsageError(
            f"no trace can be recorded without nsys here ({why}), which {traced[0]} needs"
        )
    say_notes([f"only the event log is recorded: CUPTI cannot record here: {why}"], quiet)
    return "log"


def say_notes(notes: Sequence[str], quiet: bool) -> None:
    """Notes on stderr, a line each."""
    for note in () if quiet else notes:
        click.echo(f"note: {note}", err=True)


def say_failed(command: Sequence[str], status: int, and_so: str) -> None:
    """That the script failed, on stderr, and with --brief as a line of JSON; `and_so`: what follows from
    that.  A module that the script lacks explains all of it, and is said instead."""
    from nsysalign.record.command import how_it_failed

    failed, step = how_it_failed(command, status)
    sentence = failed if step else failed + and_so
    click.echo(f"{sentence}\n  next: {step}" if step else sentence, err=True)
    if view() == "brief":
        from nsysalign.brief import short

        name = click.get_current_context().info_name or ""
        click.echo(short(name, "error", sentence, step or "its own error is on stderr"))


def finish(
    run_dir: Path,
    *,
    exit_status: int,
    quiet: bool,
    json_out: str | None,
    command: Sequence[str] = (),
) -> Analysis | None:
    """Analyse the run directory of a command, if that is known, and show the result, as `nsysalign analyze RUN_DIR` does.  A
    failed script keeps its status: the analysis of what it left may then fail as well, or be interrupted,
    which is only reported.
    """
    ended = f"the script ended with status {exit_status}"
    try:
        analysis = present(run_dir, quiet=quiet, json_out=json_out)
    except (NsysAlignError, KeyboardInterrupt) as problem:
        error = problem
        if isinstance(problem, KeyboardInterrupt):
            message = "the analysis was interrupted; what was recorded is kept"
            error = Interrupted(message, f"nsysalign analyze {run_dir}")
        if exit_status == 0:
            raise error from None
        say_failed(command, exit_status, f", and what it left was not analysed: {error.message}")
        return None
    did_cuda = not analysis.intervals.empty or analysis.known.calls_without_work
    if exit_status == 0 and not did_cuda:  # NVTX ranges alone
        raise NoCudaWork("the program did no CUDA work", "nsysalign doctor")
    if exit_status and not quiet:
        click.echo(f"{ended}; what it recorded until then was analysed", err=True)
    return analysis


def unprofiled(
    run: RunDirectory,
    *,
    command: Sequence[str] = (),
    quiet: bool = False,
    json_out: str | None = None,
) -> None:
    """Say what the event log of a run without nsys proves, and how to get a breakdown; `command`:
    what was run, if that is known.  Raises EventLogError if there is no log."""
    from nsysalign.record.nsys import find_nsys
    from nsysalign.record.session import recover
    from nsysalign.show import unprofiled_run
    from nsysalign.store.objects import to_json
    from nsysalign.unprofiled_run import analyze_run

    recover(run.path)
    proven = analyze_run(run)
    if json_out:
        deliver(to_json(proven.document()), json_out)
    if quiet or json_out == "-":
        return
    if view() == "brief":
        from nsysalign.brief import of_unprofiled

        name = click.get_current_context().info_name or ""
        again = f"nsysalign analyze {shlex.quote(str(run.path))}"
        click.echo(of_unprofiled(proven, name, again))
        return
    again = f"nsysalign run {shlex.join(command) or 'SCRIPT.py ...'}"
    try:
        find_nsys(None)
        following = f"{again} (for the breakdown)"
    except NsysAlignError as error:
        following = f"for the breakdown: {error.next_step}, then {again}"
    unprofiled_run.render(proven, console(), following)
    click.echo(f"log: {run.path}")
