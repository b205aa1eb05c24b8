"""`nsysalign analyze`: an export, a report or a run directory, to tables and pages."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commands.cache import Cache
from nsysalign.commands.progress import ProgressLine
from nsysalign.errors import NsysError, TraceError, UsageError
from nsysalign.memory import give_back

if TYPE_CHECKING:
    from nsysalign.model import Analysis

REPORT, DATABASE, DOCUMENT, METADATA = "report.html", "analysis.db", "analysis.json", "analysis.metadata.json"


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
@click.option(
    "--all-segments",
    is_flag=True,
    help="Keep the segments of every interval in analysis.db, however many there are.",
)
@click.option(
    "--no-cache",
    is_flag=True,
    help="Analyse again even if the results that lie there are of this very trace.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def analyze(
    trace: Path,
    events: tuple[Path, ...],
    output: Path | None,
    json_out: str | None,
    nsys: str | None,
    all_segments: bool,
    no_cache: bool,
    quiet: bool,
) -> None:
    """Place, split and explain the intervals of TRACE: a .sqlite, a .nsys-rep or a run directory.

    \b
    Example:  nsysalign analyze trace.sqlite --events events-484.jsonl
    """
    if trace.is_dir():
        present(
            trace,
            events=events,
            output=output,
            quiet=quiet,
            json_out=json_out,
            nsys=nsys,
            all_segments=all_segments,
            use_cache=not no_cache,
        )
        return
    if not trace.exists():
        raise TraceError(
            f"{trace}: no such file", "nsysalign analyze TRACE.sqlite | TRACE.nsys-rep | RUN_DIR"
        )
    output = output or trace.with_name(trace.stem + ".nsysalign")
    output.mkdir(parents=True, exist_ok=True)
    export = exported(trace, output, nsys=nsys, quiet=quiet)
    present_files(
        export,
        events,
        output,
        quiet=quiet,
        json_out=json_out,
        all_segments=all_segments,
        use_cache=not no_cache,
    )


def present(
    run_dir: Path,
    *,
    events: Sequence[Path] = (),
    output: Path | None = None,
    quiet: bool = False,
    json_out: str | Path | None = None,
    nsys: str | None = None,
    all_segments: bool = False,
    use_cache: bool = True,
) -> None:
    """Analyse a run directory, write its pages and print its table."""
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
    if trace.suffix == ".sqlite" and twin.exists():
        trace = twin  # exported() decides whether its export is still good
    output = output or run_dir
    output.mkdir(parents=True, exist_ok=True)
    if not events:
        from nsysalign.collect.session import recover

        recover(run_dir)  # a run that was itself killed leaves its logs raw
    logs = list(events) or sorted(run_dir.glob("events-*.jsonl"))
    export = exported(trace, output, nsys=nsys, quiet=quiet)
    present_files(
        export,
        logs,
        output,
        quiet=quiet,
        json_out=json_out,
        all_segments=all_segments,
        use_cache=use_cache,
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
    trace: Path,
    logs: Sequence[Path],
    output: Path,
    *,
    quiet: bool,
    json_out: str | Path | None,
    all_segments: bool = False,
    use_cache: bool = True,
) -> None:
    """Analyse, store, print; what lies there already is used if it is what would be written."""
    _check_copy(output, json_out)
    options = {"all_segments": all_segments}
    cache = Cache(trace, logs, output, (DOCUMENT, DATABASE, METADATA, REPORT), options) if use_cache else None
    silent = quiet or str(json_out) == "-"
    analysis = None
    if cache is None or not cache.fresh():
        from nsysalign.pipeline import analyze as pipeline_analyze

        with ProgressLine(quiet) as tell:
            analysis = pipeline_analyze(trace, events=list(logs), all_segments=all_segments, progress=tell)
            tell("writing the report", 97)
            give_back()  # the trace
            store(analysis, output, json_out=json_out)
    else:
        _copy(output, json_out)
    text = cache.printed() if cache is not None and analysis is None else None
    if text is None and not silent:
        from nsysalign.pipeline import load

        text = printed(analysis if analysis is not None else load(output / DATABASE), output)
        if cache is not None:
            cache.keep(text)
    elif cache is not None and analysis is not None:
        cache.keep()
    if cache is not None and cache.note and os.environ.get("NSYSALIGN_DEBUG"):
        click.echo(f"cache: {cache.note}", err=True)
    if str(json_out) == "-":
        click.echo((output / DOCUMENT).read_text("utf-8"))
    elif text is not None and not silent:
        sys.stdout.write(text)
        sys.stdout.flush()


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

    _check_copy(output, json_out)
    document.write(analysis, output / DOCUMENT)
    database.write(analysis, output / DATABASE)
    html.write(analysis, output / REPORT)
    _copy(output, json_out)


def _check_copy(output: Path, json_out: str | Path | None) -> None:
    if str(json_out) == str(output / DOCUMENT):
        raise UsageError(f"{DOCUMENT} of the run directory is written anyway: give --json another name")


def _copy(output: Path, json_out: str | Path | None) -> None:
    if json_out and str(json_out) != "-":
        shutil.copyfile(output / DOCUMENT, json_out)


def printed(analysis: Analysis, output: Path) -> str:
    """The table as this terminal shows it."""
    from rich.console import Console

    from nsysalign.report import terminal

    console = Console(highlight=False)
    with console.capture() as capture:
        terminal.render(analysis, console, report_path=str(output / REPORT))
    return capture.get()


def show(analysis: Analysis, output: Path, *, quiet: bool, json_out: str | Path | None) -> Analysis:
    """Print the table, or the document where stdout was asked for."""
    if str(json_out) == "-":
        click.echo((output / DOCUMENT).read_text("utf-8"))
    elif not quiet:
        sys.stdout.write(printed(analysis, output))
    return analysis
