"""Many traces at once, for `nsysalign analyze`: every trace in a process of its own, then one
comparison."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import CancelledError, Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.addons.ranks import spread
from nsysalign.addons.ranks.results import Source, SourceResult
from nsysalign.addons.ranks.sources import DOCUMENT, find
from nsysalign.commandline.assembly import baseline_logs, recover
from nsysalign.commandline.outputs import console
from nsysalign.commandline.progress import ProgressLine
from nsysalign.errors import EventLogError, NsysAlignError, TraceError
from nsysalign.files import file_name
from nsysalign.rundir import PAGE, RunDirectory, make_run_dir, numbered
from nsysalign.trace.lines import lines_of

if TYPE_CHECKING:
    from nsysalign.addons.ranks.results import RankComparison

#: Traces named per reason.
_MOST_NAMES = 4
FOLDER, RANKS_PAGE = "nsysalign-ranks", "ranks.html"


@dataclass(frozen=True)
class Job:
    """All that a worker needs, wherever it runs: paths and words."""

    source: Source
    output: Path  # the comparison's folder
    folder: str  # the trace's own folder in it
    nsys: str | None

    @property
    def target(self) -> Path:
        """The trace's own folder, as the worker sees it."""
        return self.output / self.folder


def present_many(
    paths: Sequence[Path],
    *,
    events: Sequence[Path] = (),
    output: Path | None = None,
    quiet: bool = False,
    json_out: str | None = None,
    nsys: str | None = None,
    jobs: int | None = None,
    dask: str | None = None,
) -> RankComparison:
    """Analyse every trace of `paths`, compare the ranks, store and print.

    A trace that cannot be analysed is reported and left out.  Raises TraceError only if none can
    be.
    """
    for source in find(paths, events):  # logs of runs that were cut short
        recover(RunDirectory(source.trace.parent))
    sources = find(paths, events)
    count = spread.workers([source.trace for source in sources], jobs)
    with spread.processes(count) if dask is None else spread.dask(dask, count) as executor:
        target = make_run_dir("", output) if output else numbered(Path.cwd(), FOLDER)
        results = analyse(sources, target, executor, nsys=nsys, quiet=quiet)
    if not any(result.ranks for result in results):
        _remove_if_empty(target)
        of_reason: dict[str, list[str]] = {}
        for result in results:
            of_reason.setdefault(result.failure, []).append(result.source)
        failures = []
        for reason, names in of_reason.items():
            more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
            failures.append(f"{', '.join(names[:_MOST_NAMES])}{more}: {reason}")
        raise TraceError(
            f"none of the traces can be analysed: {'; '.join(failures)}",
            results[0].next_step or "nsysalign analyze TRACE, for one of them",
        )
    from nsysalign.addons.ranks import page
    from nsysalign.addons.ranks.compare import compare
    from nsysalign.files import write_text

    comparison = compare(results)
    document = page.dumps(comparison)
    write_text(target / DOCUMENT, document)
    write_text(target / RANKS_PAGE, page.page(comparison))
    if json_out and json_out != "-":
        write_text(json_out, document)
    if quiet or json_out == "-":
        for failure in comparison.failures:
            click.echo(f"left out: {failure.source}: {failure.failure}", err=True)
    if json_out == "-":
        click.echo(document, nl=False)
    elif not quiet:
        shown = os.path.relpath(target / RANKS_PAGE) if output is None else str(target / RANKS_PAGE)
        page.render(comparison, console(), shown)
    return comparison


def analyse(
    sources: Sequence[Source],
    output: Path,
    executor: Executor,
    *,
    nsys: str | None = None,
    quiet: bool = True,
) -> list[SourceResult]:
    """Run every source through the executor, in the order of the sources."""
    output = output.absolute()  # workers of a cluster have working directories of their own
    folders = [file_name(source.name) for source in sources]
    if len({name.lower() for name in folders}) != len(folders):  # Rank0 may be rank0 on this disk
        folders = [f"{n:03d}-{name}" for n, name in enumerate(folders)]
    jobs = [Job(s, output, folder, nsys) for s, folder in zip(sources, folders, strict=True)]
    results: dict[str, SourceResult] = {}
    with ProgressLine(quiet) as tell:
        tell(f"analysing {len(jobs)} traces", 0)
        for job, outcome in spread.over(one, jobs, executor):
            results[job.source.name] = checked(job, outcome)
            tell(f"analysing {len(jobs)} traces", 100 * len(results) // len(jobs))
    return [results[source.name] for source in sources]


def checked(job: Job, outcome: SourceResult | BaseException) -> SourceResult:
    """The result of a job.  If its worker died, or wrote where this machine cannot read, its trace
    has failed."""
    failed = partial(SourceResult, job.source.name, str(job.source.trace))
    if isinstance(outcome, CancelledError):
        return failed(
            failure="the scheduler of the cluster cannot be reached any more",
            next_step="start the scheduler and its workers again, then analyse again",
        )
    if isinstance(outcome, BaseException):
        why = f"{type(outcome).__name__}: {str(outcome)[:200] or 'no reason given'}"
        return failed(
            failure=f"its worker died ({why})",
            next_step="give it more memory, use fewer workers (--jobs 1), or analyse it alone: "
            f"nsysalign analyze {job.source.trace}",
        )
    if outcome.report and not (job.output / outcome.report).exists():
        return failed(
            failure="its worker wrote to a disk that this machine cannot see",
            next_step="choose a folder for -o that all workers share",
        )
    return outcome


def one(job: Job) -> SourceResult:
    """Analyse one trace into its folder: what a worker does.  Never raises for a trace that cannot
    be analysed."""
    from nsysalign.addons.ranks.summary import summaries
    from nsysalign.commandline.assembly import exported
    from nsysalign.commandline.present import store
    from nsysalign.engine import analyze_inputs
    from nsysalign.trace.nccl import read_shared

    source, folder = job.source, job.target
    result = SourceResult(source.name, str(source.trace))
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        trace = exported(source.trace, folder, nsys=job.nsys)
        shared = read_shared(trace)
        logs, notes = source.logs, ()
        if source.pooled:
            logs = tuple(log for log in logs if pids_of(log) & {*shared.processes})
            notes = () if logs else ("none of the event logs next to it belongs to its processes",)
        # the trace's own run directory; a folder of several traces says nothing about a single one
        home = RunDirectory(source.trace.parent)
        baseline = tuple(baseline_logs(home)) if logs and len(home.traces()) == 1 else ()
        analysis = analyze_inputs(home.inputs(trace, logs, baseline))
        store(analysis, folder)
        ranks = summaries(analysis, shared, source.name)
        return replace(result, ranks=ranks, notes=notes, report=f"{job.folder}/{PAGE}")
    except NsysAlignError as error:
        _remove_if_empty(folder)
        return replace(result, failure=error.message, next_step=error.next_step or "")
    except Exception as error:  # a bug triggered by one trace must not affect the others
        _remove_if_empty(folder)
        return replace(
            result,
            failure=f"internal error: {type(error).__name__}: {error}",
            next_step=f"nsysalign --debug analyze {source.trace}",
        )


def pids_of(log: Path) -> set[int]:
    """Process ids that a log's headers name.  Only header lines are parsed; a damaged one names no
    process, and is reported when the log is read."""
    pids = set()
    damaged = (ValueError, AttributeError, TypeError, OverflowError, RecursionError)
    with contextlib.suppress(EventLogError):
        for line in lines_of(log):
            if '"header"' in line[:200]:
                with contextlib.suppress(*damaged):
                    pids.add(int(json.loads(line).get("pid")))
    return pids


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
