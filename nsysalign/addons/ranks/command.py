"""`nsysalign analyze` of several traces: its options, and every trace in a process of its own, then
one comparison."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from nsysalign.errors import TraceError, UsageError

FOLDER, RANKS_PAGE = "nsysalign-ranks", "ranks.html"


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --ranks, --jobs and --dask."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--ranks",
        is_flag=True,
        help="Also compare the processes of one trace (such as torchrun under one nsys).",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Several traces: the number of worker processes (default: as many as cores and memory "
        "allow).",
    ),
    click.option(
        "--dask",
        metavar="ADDRESS|local",
        help="Several traces: use the workers of a Dask scheduler.",
    ),
)


def several(traces: Sequence[Path], given: dict[str, Any]) -> bool:
    """Analyse every trace, compare, store and print, if there are several or --ranks asks for it;
    `given` are the options of `analyze`.

    A trace that cannot be analysed is reported and left out.  Raises UsageError for options that do
    not fit, TraceError if no trace can be analysed, or if they are no ranks of one job.
    """
    from nsysalign.addons.ranks import page, work
    from nsysalign.addons.ranks.compare import compare
    from nsysalign.commandline.outputs import ProgressLine, console, deliver
    from nsysalign.files import write_text
    from nsysalign.record.session import recover
    from nsysalign.rundir import make_run_dir, numbered

    output, quiet, json_out, logs = (given[n] for n in ("output", "quiet", "json_out", "events"))
    if not (given["ranks"] or len(traces) > 1 or work.is_many(traces[0])):
        if given["dask"]:
            raise UsageError(
                f"--dask is for several traces; {traces[0]} is one",
                "nsysalign analyze RUN1 RUN2 ... | FOLDER",
            )
        return False
    for name in ("fail_on", "baseline", "marks"):
        if given.get(name):
            raise UsageError(
                f"--{name.replace('_', '-')} is for one trace, several are given",
                "nsysalign analyze RUN, once for each of them",
            )
    for source in work.find(traces):  # logs of runs that were cut short
        recover(source.trace.parent)
    sources = work.find(traces)
    if logs and len(sources) > 1:
        raise UsageError(
            "--events is for one trace: logs of several carry their names or lie in their run directories",
            "name them report_rank0.events.jsonl, beside report_rank0.sqlite",
        )
    if logs:
        sources = (replace(sources[0], logs=tuple(log.absolute() for log in logs)),)
    count = work.workers([source.trace for source in sources], given["jobs"])
    with work.dask(given["dask"], count) if given["dask"] else work.processes(count) as executor:
        target = make_run_dir("", output) if output else numbered(Path.cwd(), FOLDER)
        jobs = [work.Job(source, target.absolute(), given["nsys"]) for source in sources]
        results, step = [], f"analysing {len(jobs)} traces"
        with ProgressLine(quiet) as tell:
            tell(step, 0)
            for result in work.over(work.one, jobs, executor):
                results.append(result)
                tell(step, 100 * len(results) // len(jobs))
    if not any(result.ranks for result in results):
        with contextlib.suppress(OSError):
            target.rmdir()
        failures = "; ".join(f"{result.source}: {result.failure}" for result in results[:4])
        more = f"; and {len(results) - 4} more" if len(results) > 4 else ""
        raise TraceError(
            f"none of the traces can be analysed: {failures}{more}",
            results[0].next_step or "nsysalign analyze TRACE, for one of them",
        )
    comparison = compare(results)
    if unlike := page.unrelated(comparison):
        raise TraceError(
            unlike,
            f"see each by itself: nsysalign show {target}/NAME, or compare two runs of a program: "
            "nsysalign diff A B",
        )
    document = page.dumps(comparison)
    write_text(target / work.DOCUMENT, document)
    write_text(target / RANKS_PAGE, page.page(comparison))
    deliver(document, json_out)
    if quiet or json_out == "-":
        for failure in comparison.failures:
            click.echo(f"left out: {failure.source}: {failure.failure}", err=True)
    else:
        shown = str(target / RANKS_PAGE) if output else os.path.relpath(target / RANKS_PAGE)
        page.render(comparison, console(), shown)
    return True
