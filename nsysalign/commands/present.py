"""From a trace to stored results and a table: what `analyze`, `run`, `confirm` and `ranks` have in common."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commands.assembly import assembled
from nsysalign.commands.cache import Cache
from nsysalign.commands.outputs import refuse_unwritable
from nsysalign.commands.progress import ProgressLine
from nsysalign.errors import NsysAlignError, UsageError
from nsysalign.memory import trim_memory
from nsysalign.rundir import DATABASE, DOCUMENT, PAGE, RESULTS
from nsysalign.slices.pool import WorkerPool, cores, wanted, worker_pool

if TYPE_CHECKING:
    from nsysalign.model import Analysis


class Presented:
    """Results in a directory; the analysis is only read back if needed."""

    def __init__(self, output: Path, analysis: Analysis | None = None) -> None:
        self.output = output
        self._made = analysis

    @cached_property
    def analysis(self) -> Analysis:
        if self._made is not None:
            return self._made
        from nsysalign.engine import load

        return load(self.output / DATABASE)


def present(
    path: Path,
    *,
    events: Sequence[Path] = (),
    baseline: Sequence[Path] = (),
    marks: Sequence[Path] = (),
    output: Path | None = None,
    quiet: bool = False,
    json_out: str | Path | None = None,
    nsys: str | None = None,
    all_segments: bool = False,
    jobs: int | None = None,
    use_cache: bool = True,
) -> Presented:
    """Analyse a run directory or a trace, store, print; existing results are used if they are what would be written."""
    output = output or (path if path.is_dir() else path.with_name(path.stem + ".nsysalign"))
    _check_copy(output, json_out)
    with _no_empty_folder(output):
        return _present(
            path, output, events, baseline, marks, quiet, json_out, nsys, all_segments, jobs, use_cache
        )


@contextmanager
def _no_empty_folder(output: Path) -> Iterator[None]:
    """A refused request leaves no empty folder behind."""
    there = output.exists()
    try:
        yield
    except NsysAlignError:
        if not there:
            with suppress(OSError):  # not empty: it contains a report's export
                output.rmdir()
        raise


def _present(
    path: Path,
    output: Path,
    events: Sequence[Path],
    baseline: Sequence[Path],
    marks: Sequence[Path],
    quiet: bool,
    json_out: str | Path | None,
    nsys: str | None,
    all_segments: bool,
    jobs: int | None,
    use_cache: bool,
) -> Presented:
    inputs = assembled(path, output, events=events, baseline=baseline, marks=marks, nsys=nsys, quiet=quiet)
    cache = Cache(inputs.roles(), output, RESULTS, {"all_segments": all_segments}) if use_cache else None
    silent = quiet or str(json_out) == "-"
    if cache is not None and cache.fresh():
        presented, text = Presented(output), cache.printed()
        _copy(output, json_out)
    else:
        helpers = wanted(inputs.trace, jobs or cores()) if inputs.events else 1
        with ProgressLine(quiet) as tell, worker_pool(helpers) as others:
            from nsysalign.engine import analyze_inputs

            analysis = analyze_inputs(inputs, all_segments=all_segments, progress=tell, others=others)
            presented, text = Presented(output, analysis), None
            tell("writing the report", 97)
            trim_memory()  # the trace's memory
            store(analysis, output, json_out=json_out, others=others)
    if text is None and not silent:
        text = printed(
            presented.analysis, output, again=[path, *(part for log in events for part in ("--events", log))]
        )
        if cache is not None:
            cache.keep(text)
    elif text is None and cache is not None:
        cache.keep()
    if cache is not None and cache.note and os.environ.get("NSYSALIGN_DEBUG"):
        click.echo(f"cache: {cache.note}", err=True)
    if str(json_out) == "-":
        click.echo((output / DOCUMENT).read_text("utf-8"))
    elif not silent:
        sys.stdout.write(text or "")
        sys.stdout.flush()
    return presented


def store(
    analysis: Analysis, output: Path, *, json_out: str | Path | None, others: WorkerPool | None = None
) -> None:
    """Write analysis.json, analysis.db and report.html to `output`, and the requested copy."""
    from nsysalign.report import html
    from nsysalign.store import database, document

    _check_copy(output, json_out)
    written = (others or WorkerPool(1)).begin(database.write, analysis, output / DATABASE)
    document.write(analysis, output / DOCUMENT)
    html.write(analysis, output / PAGE)
    written()
    _copy(output, json_out)


def _check_copy(output: Path, json_out: str | Path | None) -> None:
    """Raises UsageError or OutputError, before the work, if the copy cannot be written."""
    if not json_out or str(json_out) == "-":
        return
    if Path(json_out).resolve() == (output / DOCUMENT).resolve():
        raise UsageError(f"{DOCUMENT} of the run directory is always written: choose another name for --json")
    refuse_unwritable(json_out)


def _copy(output: Path, json_out: str | Path | None) -> None:
    if json_out and str(json_out) != "-":
        shutil.copyfile(output / DOCUMENT, json_out)


def printed(analysis: Analysis, output: Path, *, again: Sequence[object] = ()) -> str:
    """The table as this terminal shows it; `again`: the arguments of `analyze`, for the hint on comparing processes."""
    from rich.console import Console

    from nsysalign.report import terminal

    console = Console(highlight=False)
    with console.capture() as capture:
        terminal.render(analysis, console, report_path=str(output / PAGE))
    processes = analysis.measured["pid"].nunique()
    hint = (
        f"{processes} processes measured something; to compare them:\n"
        f"  nsysalign analyze --ranks {shlex.join(map(str, again))}\n"
        if again and processes > 1
        else ""
    )
    return capture.get() + hint
