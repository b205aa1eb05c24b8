"""`nsysalign analyze`: an export, a report or a run directory, to tables and pages."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commands.progress import ProgressLine
from nsysalign.errors import NsysError, TraceError, UsageError

if TYPE_CHECKING:
    from nsysalign.model import Analysis

REPORT, DATABASE, DOCUMENT = "report.html", "analysis.db", "analysis.json"


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
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
    help="Where report.html, analysis.json and analysis.db go (default: the run directory, or TRACE.nsysalign).",
)
@click.option(
    "--json", "json_out", metavar="OUT", help="Write the analysis as JSON to this file as well; - is stdout."
)
@click.option("--nsys", metavar="PATH", help="The nsys that exports a .nsys-rep.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def analyze(
    trace: Path,
    events: tuple[Path, ...],
    output: Path | None,
    json_out: str | None,
    nsys: str | None,
    quiet: bool,
) -> None:
    """Place, split and explain the intervals of TRACE: a .sqlite, a .nsys-rep or a run directory.

    \b
    Example:  nsysalign analyze trace.sqlite --events events-484.jsonl
    """
    if trace.is_dir():
        present(trace, events=events, output=output, quiet=quiet, json_out=json_out, nsys=nsys)
        return
    if not trace.exists():
        raise TraceError(
            f"{trace}: no such file", "nsysalign analyze TRACE.sqlite | TRACE.nsys-rep | RUN_DIR"
        )
    output = output or trace.with_name(trace.stem + ".nsysalign")
    output.mkdir(parents=True, exist_ok=True)
    export = exported(trace, output, nsys=nsys, quiet=quiet)
    present_files(export, events, output, quiet=quiet, json_out=json_out)


def present(
    run_dir: Path,
    *,
    events: Sequence[Path] = (),
    output: Path | None = None,
    quiet: bool = False,
    json_out: str | Path | None = None,
    nsys: str | None = None,
) -> Analysis:
    """Analyse a run directory, write its pages and print its table."""
    from nsysalign.collect.rundir import event_logs
    from nsysalign.collect.session import going_on, recover

    if not events:
        recover(run_dir)  # a run that was itself killed leaves its logs raw
    reports, exports = (
        sorted(p for p in run_dir.glob(f"*.{end}") if ".partial." not in p.name)
        for end in ("nsys-rep", "sqlite")
    )
    wanted = run_dir / "trace.sqlite"
    if wanted not in exports and len(exports) != 1 and len(reports) != 1:
        found = ", ".join(p.name for p in [*reports, *exports]) or "neither .sqlite nor .nsys-rep"
        if going_on(run_dir):
            raise TraceError(f"{run_dir}: the run is still going on", f"then: nsysalign analyze {run_dir}")
        raise TraceError(
            f"{run_dir}: a run directory holds one trace.sqlite or one report; found {found}",
            "name the trace: nsysalign analyze FILE",
        )
    trace = wanted if wanted in exports else exports[0] if len(exports) == 1 else reports[0]
    twin = trace.with_suffix(".nsys-rep")
    if trace.suffix == ".sqlite" and twin.exists():
        trace = twin  # exported() decides whether its export is still good
    output = output or run_dir
    output.mkdir(parents=True, exist_ok=True)
    logs = list(events) or event_logs(run_dir)
    return present_files(
        exported(trace, output, nsys=nsys, quiet=quiet), logs, output, quiet=quiet, json_out=json_out
    )


def exported(trace: Path, output: Path, *, nsys: str | None, quiet: bool = True) -> Path:
    """The SQLite export of a trace.  One beside a report is used unless the report is newer; a new export goes to the
    output directory and never over a file that somebody else made."""
    if trace.suffix != ".nsys-rep":
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
    trace: Path, logs: Sequence[Path], output: Path, *, quiet: bool, json_out: str | Path | None
) -> Analysis:
    """Analyse, store, print."""
    from nsysalign.pipeline import analyze as pipeline_analyze

    with ProgressLine(quiet) as tell:
        analysis = pipeline_analyze(trace, events=list(logs), progress=tell)
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
