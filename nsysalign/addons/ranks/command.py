"""`nsysalign analyze` of several traces: its options, and every trace in a process of its own, then
one comparison."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from nsysalign.errors import TraceError, UsageError

FOLDER = "nsysalign-ranks"


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
        metavar="ADDRESS",
        help="Several traces: use the workers of a Dask scheduler.",
    ),
)


def _are_several(traces: Sequence[Path], given: dict[str, Any]) -> bool:
    """Return whether there are several traces, or one is to be treated as if."""
    if given["ranks"] or given["dask"] or len(traces) > 1:
        return True
    if traces[0].is_file():  # what most people analyse: nothing is imported for it
        return False
    from nsysalign.addons.ranks import work

    return work.is_many(traces[0])


def several(traces: Sequence[Path], given: dict[str, Any]) -> bool:
    """Analyse every trace, compare, store and print, if there are several or --ranks asks for it;
    `given` are the options of `analyze`.

    A trace that cannot be analysed is reported and left out.  Raises UsageError for options that do
    not fit, TraceError if no trace can be analysed.
    """
    if not _are_several(traces, given):
        return False
    from nsysalign.addons.ranks import words, work
    from nsysalign.addons.ranks.compare import compare
    from nsysalign.commandline.options import view
    from nsysalign.commandline.outputs import ProgressLine, console, deliver
    from nsysalign.files import write_text
    from nsysalign.record.session import recover
    from nsysalign.rundir import make_run_dir, numbered

    output, quiet, json_out, logs = (given[n] for n in ("output", "quiet", "json_out", "events"))
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
    with contextlib.ExitStack() as stack:
        if given["dask"]:
            over = stack.enter_context(work.cluster(given["dask"]))
        else:
            count = work.workers([source.trace for source in sources], given["jobs"])
            over = partial(work.here, count=count)
        target = make_run_dir("", output) if output else numbered(Path.cwd(), FOLDER)
        results = []
        tell = stack.enter_context(ProgressLine(quiet))
        for result in over(partial(work.one, output=target, nsys=given["nsys"]), sources):
            results.append(result)
            tell(f"analysing {len(sources)} traces", 100 * len(results) // len(sources))
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
    document = words.dumps(comparison)
    write_text(target / work.DOCUMENT, document)
    deliver(document, json_out)
    if quiet or json_out == "-":
        for failure in comparison.failures:
            click.echo(f"left out: {failure.source}: {failure.failure}", err=True)
    else:
        shown = str(target) if output else os.path.relpath(target)
        words.render(comparison, console(), shown, full=view() == "full")
    return True
