"""`nsysalign analyze`: an export, a report or a run directory, to tables and pages."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commands.gate import closed, fail_on_option
from nsysalign.commands.progress import ProgressLine
from nsysalign.errors import NsysError, TraceError, UsageError
from nsysalign.ranks.sources import REPORT_SUFFIXES

if TYPE_CHECKING:
    from nsysalign.model import Analysis

REPORT, DATABASE, DOCUMENT, CLOCKS = "report.html", "analysis.db", "analysis.json", "clocks.jsonl"


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE...")
@click.option(
    "--events",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Event log of a process; repeatable.  A run directory brings its own.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where report.html, analysis.json and analysis.db go (default: the run directory, or TRACE.nsysalign; "
    "several traces: a new or empty folder, nsysalign-ranks-NNN).",
)
@click.option(
    "--baseline",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Event log of the same program run without nsys; repeatable.  A run directory brings its own.",
)
@click.option(
    "--json", "json_out", metavar="OUT", help="Write the analysis as JSON to this file as well; - is stdout."
)
@click.option("--nsys", metavar="PATH", help="The nsys that exports a .nsys-rep.")
@click.option(
    "--ranks", is_flag=True, help="Compare the processes of one trace (a torchrun in one run) as well."
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Several traces: so many at once (default: what cores and memory allow).",
)
@click.option(
    "--dask", metavar="ADDRESS|local", help="Several traces: on the workers of a Dask scheduler instead."
)
@fail_on_option
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.pass_context
def analyze(
    ctx: click.Context,
    traces: tuple[Path, ...],
    events: tuple[Path, ...],
    output: Path | None,
    baseline: tuple[Path, ...],
    json_out: str | None,
    nsys: str | None,
    ranks: bool,
    jobs: int | None,
    dask: str | None,
    fail_on: tuple[str, ...],
    quiet: bool,
) -> None:
    """Place, split and explain the intervals of TRACE: a .sqlite, a .nsys-rep or a run directory.

    Several of them, or a folder of them, are the ranks of one job: each is analysed, and then label by label they are
    compared: who is slowest, who waits for whom.

    \b
    Example:  nsysalign analyze trace.sqlite --events events-484.jsonl
              nsysalign analyze report_rank0.nsys-rep report_rank1.nsys-rep
    """
    from nsysalign.ranks.sources import is_many

    trace = traces[0]
    if ranks or len(traces) > 1 or is_many(trace):
        from nsysalign.commands.ranks import present_many

        if fail_on or baseline:
            option = "--fail-on" if fail_on else "--baseline"
            raise UsageError(
                f"{option} is for one trace, several are given", "nsysalign analyze RUN, once for each of them"
            )
        present_many(
            traces,
            events=events,
            output=output,
            quiet=quiet,
            json_out=json_out,
            nsys=nsys,
            jobs=jobs,
            dask=dask,
            debug=bool((ctx.obj or {}).get("debug")),
        )
        return
    if jobs or dask:
        raise UsageError(
            f"--jobs and --dask are for several traces; {trace} is one",
            "nsysalign analyze RUN1 RUN2 ... | FOLDER",
        )
    if trace.is_dir():
        analysis = present(
            trace,
            events=events,
            baseline=baseline,
            output=output,
            quiet=quiet,
            json_out=json_out,
            nsys=nsys,
        )
    elif not trace.exists():
        raise TraceError(
            f"{trace}: no such file", "nsysalign analyze TRACE.sqlite | TRACE.nsys-rep | RUN_DIR"
        )
    else:
        output = output or trace.with_name(trace.stem + ".nsysalign")
        output.mkdir(parents=True, exist_ok=True)
        export = exported(trace, output, nsys=nsys, quiet=quiet)
        analysis = present_files(export, events, output, baseline=baseline, quiet=quiet, json_out=json_out)
    ctx.exit(1 if closed(analysis, fail_on, quiet=quiet) else 0)


def present(
    run_dir: Path,
    *,
    events: Sequence[Path] = (),
    baseline: Sequence[Path] = (),
    output: Path | None = None,
    quiet: bool = False,
    json_out: str | Path | None = None,
    nsys: str | None = None,
) -> Analysis:
    """Analyse a run directory, write its pages and print its table."""
    trace = trace_of(run_dir)
    output = output or run_dir
    output.mkdir(parents=True, exist_ok=True)
    if not events:
        from nsysalign.collect.session import recover

        recover(run_dir)  # a run that was itself killed leaves its logs raw
    logs = list(events) or sorted(run_dir.glob("events-*.jsonl"))
    if not baseline:
        from nsysalign.collect.baseline import baseline_logs

        baseline = baseline_logs(run_dir)
    clocks = run_dir / CLOCKS
    analysis = present_files(
        exported(trace, output, nsys=nsys, quiet=quiet),
        logs,
        output,
        clocks=clocks if clocks.is_file() else None,
        baseline=baseline,
        quiet=quiet,
        json_out=json_out,
    )
    processes = analysis.intervals["pid"].nunique()
    if processes > 1 and not quiet and str(json_out) != "-":
        click.echo(f"{processes} processes measured something: nsysalign analyze --ranks {run_dir} compares them")
    return analysis


def trace_of(run_dir: Path) -> Path:
    """The trace of a run directory: its report where there is one (`exported` knows whether its export is good)."""
    reports = sorted(run_dir.glob("*.nsys-rep"))
    exports = sorted(run_dir.glob("*.sqlite"))
    wanted = run_dir / "trace.sqlite"
    if wanted not in exports and len(exports) != 1 and len(reports) != 1:
        found = ", ".join(p.name for p in [*reports, *exports]) or "neither .sqlite nor .nsys-rep"
        raise TraceError(
            f"{run_dir}: a run directory holds one trace.sqlite or one report; found {found}",
            "name the trace: nsysalign analyze FILE",
        )
    trace = wanted if wanted in exports else exports[0] if len(exports) == 1 else reports[0]
    twin = trace.with_suffix(".nsys-rep")
    return twin if trace.suffix == ".sqlite" and twin.exists() else trace


def exported(trace: Path, output: Path, *, nsys: str | None, quiet: bool = True) -> Path:
    """The SQLite export of a trace.  One beside a report is used unless the report is newer; a new export goes to the
    output directory and never over a file that somebody else made."""
    if trace.suffix not in REPORT_SUFFIXES:
        return trace
    beside = trace.with_suffix(".sqlite")
    if beside.exists() and beside.stat().st_mtime_ns >= trace.stat().st_mtime_ns:
        return beside
    from nsysalign.collect.nsys import export_sqlite, find_nsys

    target = output / beside.name
    if target.exists():  # stale: its name says which report it was made from
        digest = hashlib.sha256(f"{trace.stat().st_size}-{trace.stat().st_mtime_ns}".encode()).hexdigest()[:8]
        target = output / f"{trace.stem}-{digest}.sqlite"
        if target.exists():
            return target
    try:
        with ProgressLine(quiet) as tell:
            export_sqlite(
                find_nsys(nsys), trace, target, lambda percent: tell("exporting the report", percent)
            )
    except NsysError as error:
        if not beside.exists():
            raise
        raise NsysError(
            f"{beside.name} is older than {trace.name} and cannot be made anew: {error.message}",
            error.next_step,
        ) from error
    return target


def present_files(
    trace: Path,
    logs: Sequence[Path],
    output: Path,
    *,
    clocks: Path | None = None,
    baseline: Sequence[Path] = (),
    quiet: bool,
    json_out: str | Path | None,
) -> Analysis:
    """Analyse, store, print."""
    from dataclasses import replace

    from nsysalign.collect.session import conditions
    from nsysalign.compare.confirm import attach
    from nsysalign.pipeline import analyze as pipeline_analyze
    from nsysalign.report import confirmations

    with ProgressLine(quiet) as tell:
        analysis = pipeline_analyze(
            trace, events=list(logs), clocks=clocks, baseline=list(baseline), progress=tell
        )
        analysis = attach(analysis, confirmations.read(trace.parent / confirmations.FILE))
        analysis = replace(analysis, notes=tuple(dict.fromkeys([*conditions(trace.parent), *analysis.notes])))
        tell("writing the report", 97)
        store(analysis, output, json_out=json_out)
    return show(analysis, output, quiet=quiet, json_out=json_out)


def store_and_show(
    analysis: Analysis, output: Path, *, quiet: bool = False, json_out: str | Path | None = None
) -> Analysis:
    """Write analysis.json, analysis.db and report.html to `output`; print the table."""
    store(analysis, output, json_out=json_out)
    return show(analysis, output, quiet=quiet, json_out=json_out)


def store(analysis: Analysis, output: Path, *, json_out: str | Path | None) -> None:
    """Write analysis.json, analysis.db and report.html to `output`, and the copy that was asked for."""
    from nsysalign.report import database, html
    from nsysalign.report import json as document

    if str(json_out) == str(output / DOCUMENT):
        raise UsageError(f"{DOCUMENT} of the run directory is written anyway: give --json another name")
    document.write(analysis, output / DOCUMENT)
    database.write(analysis, output / DATABASE)
    html.write(analysis, output / REPORT)
    if json_out and str(json_out) != "-":
        shutil.copyfile(output / DOCUMENT, json_out)


def show(analysis: Analysis, output: Path, *, quiet: bool, json_out: str | Path | None) -> Analysis:
    """Print the table, or the document where stdout was asked for."""
    if str(json_out) == "-":
        click.echo((output / DOCUMENT).read_text("utf-8"))
    elif not quiet:
        from rich.console import Console

        from nsysalign.report import terminal

        terminal.render(analysis, Console(highlight=False), report_path=str(output / REPORT))
    return analysis
