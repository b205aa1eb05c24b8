"""From a trace to stored results and a table: what `analyze`, `run`, `confirm` and `ranks` have in common."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.collect.rundir import manifest
from nsysalign.commands.cache import Cache
from nsysalign.commands.outputs import folder_for, refuse_unwritable
from nsysalign.commands.progress import ProgressLine
from nsysalign.errors import NsysError, TraceError, UsageError
from nsysalign.memory import give_back
from nsysalign.ranks.sources import REPORT_SUFFIXES
from nsysalign.slices.crew import Crew, cores, crew, wanted

if TYPE_CHECKING:
    from nsysalign.model import Analysis

REPORT, DATABASE, DOCUMENT, METADATA = "report.html", "analysis.db", "analysis.json", "analysis.metadata.json"
CLOCKS, CONFIRMED, MANIFEST = "clocks.jsonl", "confirm.json", "run.json"


@dataclass(frozen=True)
class Inputs:
    """What one analysis is made of: a trace, and what lies in its run directory."""

    trace: Path
    folder: Path  # where the trace's clock samples, verdicts and manifest lie
    logs: tuple[Path, ...] = ()
    baseline: tuple[Path, ...] = ()  # event logs of the run without nsys
    all_segments: bool = False
    jobs: int | None = None  # processes that share the work on a long trace, None for as many as there are cores
    marks: tuple[Path, ...] = ()  # dumps of marks inside kernels
    marked: Path | None = None  # the trace of the run that made them, where it is another

    @property
    def clocks(self) -> Path | None:
        path = self.folder / CLOCKS
        return path if path.is_file() else None

    @property
    def processes(self) -> int:
        """How many can share the work."""
        if self.baseline or self.all_segments or not self.logs:
            return 1
        return wanted(self.trace, self.jobs or cores())

    def files(self) -> list[Path]:
        """All that decides what the results are."""
        beside = (self.folder / name for name in (CLOCKS, CONFIRMED, MANIFEST))
        marked = [*self.marks, *([self.marked] if self.marked else [])]
        return [self.trace, *self.logs, *self.baseline, *marked, *(p for p in beside if p.is_file())]

    def options(self) -> dict[str, int]:
        """What decides it besides: how many of `files()` are logs of which run, too."""
        return {
            "all_segments": self.all_segments,
            "events": len(self.logs),
            "baseline": len(self.baseline),
            **({"marks": len(self.marks)} if self.marks else {}),
        }


class Presented:
    """Results that lie in a directory; the analysis is read back only by those who need it."""

    def __init__(self, output: Path, analysis: Analysis | None = None) -> None:
        self.output = output
        self._made = analysis

    @cached_property
    def analysis(self) -> Analysis:
        if self._made is not None:
            return self._made
        from nsysalign.pipeline import load

        return load(self.output / DATABASE)


def present(
    run_dir: Path,
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
    """Analyse a run directory, write its pages and print its table."""
    from nsysalign.collect.rundir import event_logs
    from nsysalign.collect.session import recover

    if not events:
        recover(run_dir)  # a run that was itself killed leaves its logs raw
    trace = trace_of(run_dir)
    _check_copy(output or run_dir, json_out)
    output = folder_for(output or run_dir)
    logs = list(events) or event_logs(run_dir)
    if not baseline:
        from nsysalign.collect.baseline import baseline_logs

        baseline = baseline_logs(run_dir)
    export = exported(trace, output, nsys=nsys, quiet=quiet)
    from nsysalign.collect.marked import marks_of

    dumps, folder = (list(marks), None) if marks else marks_of(run_dir)
    marked = exported(trace_of(folder), folder, nsys=nsys, quiet=quiet) if folder is not None else None
    inputs = Inputs(export, run_dir, tuple(logs), tuple(baseline), all_segments, jobs, tuple(dumps), marked)
    return present_files(inputs, output, quiet=quiet, json_out=json_out, use_cache=use_cache)


def trace_of(run_dir: Path) -> Path:
    """The trace of a run directory: its report where there is one (`exported` knows whether its export is good)."""
    reports, exports = (
        sorted(p for p in run_dir.glob(f"*.{end}") if ".partial." not in p.name)
        for end in ("nsys-rep", "sqlite")
    )
    wanted = run_dir / "trace.sqlite"
    if wanted not in exports and len(exports) != 1 and len(reports) != 1:
        from nsysalign.collect.session import going_on

        found = ", ".join(p.name for p in [*reports, *exports]) or "neither .sqlite nor .nsys-rep"
        if going_on(run_dir):
            raise TraceError(f"{run_dir}: the run is still going on", f"then: nsysalign analyze {run_dir}")
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
    if _is_of(beside, trace):
        return beside
    from nsysalign.collect.nsys import export_sqlite, find_nsys

    target = output / beside.name
    if target.exists():
        if target != beside and _time_of(target) == _time_of(trace):  # made here from this report, see below
            return target
        digest = hashlib.sha256(f"{trace.stat().st_size}-{_time_of(trace)}".encode()).hexdigest()[:8]
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
    os.utime(target, ns=(_time_of(trace), _time_of(trace)))  # the next analysis knows it by that
    return target


def _is_of(export: Path, report: Path) -> bool:
    """Whether the export beside a report was made from it: it is no older, or the run says so that made both (a copy of
    its directory has new times)."""
    if not export.is_file():
        return False
    return _time_of(export) >= _time_of(report) or manifest(report.parent).get("trace") == export.name


def _time_of(path: Path) -> int:
    return path.stat().st_mtime_ns


def present_files(
    inputs: Inputs, output: Path, *, quiet: bool, json_out: str | Path | None, use_cache: bool = True
) -> Presented:
    """Analyse, store, print; what lies there already is used if it is what would be written."""
    _check_copy(output, json_out)
    results = (DOCUMENT, DATABASE, METADATA, REPORT)
    cache = Cache(inputs.files(), output, results, inputs.options()) if use_cache else None
    silent = quiet or str(json_out) == "-"
    if cache is not None and cache.fresh():
        presented, text = Presented(output), cache.printed()
        _copy(output, json_out)
    else:
        with ProgressLine(quiet) as tell, crew(inputs.processes) as others:
            presented, text = Presented(output, analysed(inputs, tell, others)), None
            tell("writing the report", 97)
            give_back()  # the trace's memory
            store(presented.analysis, output, json_out=json_out, others=others)
    if text is None and not silent:
        text = printed(presented.analysis, output, hint_at=inputs.folder)
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


def analysed(
    inputs: Inputs, tell: ProgressLine | None = None, others: Crew | None = None, *, draw: Sequence[str] = ()
) -> Analysis:
    """The analysis with what the run directory says besides: verdicts of re-runs, conditions of the run."""
    from nsysalign.collect.session import conditions
    from nsysalign.compare.confirm import attach
    from nsysalign.pipeline import analyze
    from nsysalign.report import confirmations

    analysis = analyze(
        inputs.trace,
        events=list(inputs.logs),
        clocks=inputs.clocks,
        baseline=list(inputs.baseline),
        all_segments=inputs.all_segments,
        draw=draw,
        progress=tell,
        others=others,
        marks=list(inputs.marks),
        marked=inputs.marked,
    )
    analysis = attach(analysis, confirmations.read(inputs.folder / CONFIRMED))
    said = conditions(inputs.folder)
    return replace(analysis, notes=tuple(dict.fromkeys([*said, *analysis.notes])))


def store_and_show(analysis: Analysis, output: Path, *, quiet: bool = False) -> None:
    """Write analysis.json, analysis.db and report.html to `output`; print the table."""
    store(analysis, output, json_out=None)
    if not quiet:
        sys.stdout.write(printed(analysis, output))


def store(
    analysis: Analysis, output: Path, *, json_out: str | Path | None, others: Crew | None = None
) -> None:
    """Write analysis.json, analysis.db and report.html to `output`, and the copy that was asked for."""
    from nsysalign.report import database, html
    from nsysalign.report import json as document

    _check_copy(output, json_out)
    written = (others or Crew(1)).begin(database.write, analysis, output / DATABASE)
    document.write(analysis, output / DOCUMENT)
    html.write(analysis, output / REPORT)
    written()
    _copy(output, json_out)


def _check_copy(output: Path, json_out: str | Path | None) -> None:
    """UsageError or OutputError, before the work, where the copy cannot be written."""
    if not json_out or str(json_out) == "-":
        return
    if Path(json_out).resolve() == (output / DOCUMENT).resolve():
        raise UsageError(f"{DOCUMENT} of the run directory is written anyway: give --json another name")
    refuse_unwritable(json_out)


def _copy(output: Path, json_out: str | Path | None) -> None:
    if json_out and str(json_out) != "-":
        shutil.copyfile(output / DOCUMENT, json_out)


def printed(analysis: Analysis, output: Path, *, hint_at: Path | None = None) -> str:
    """The table as this terminal shows it; `hint_at`: the run directory, where its processes can be compared."""
    from rich.console import Console

    from nsysalign.report import terminal

    console = Console(highlight=False)
    with console.capture() as capture:
        terminal.render(analysis, console, report_path=str(output / REPORT))
    processes = analysis.measured["pid"].nunique()
    hint = (
        f"{processes} processes measured something: nsysalign analyze --ranks {hint_at} compares them\n"
        if hint_at is not None and processes > 1
        else ""
    )
    return capture.get() + hint
