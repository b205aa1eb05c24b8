"""`nsysalign analyze`: an export, a report or a run directory, to tables and pages."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from nsysalign.commandline import options as shared
from nsysalign.errors import Interrupted, UsageError


@click.command()
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE..."
)
@shared.files("--events", "Event log of a process")
@shared.output_folder(
    "Where report.html and analysis.db go (default: the run directory, or "
    "TRACE.nsysalign; several traces: a new or empty folder, nsysalign-ranks-NNN)."
)
@shared.files("--baseline", "Event log of the same program run without nsys")
@shared.json_out("Also write the analysis as JSON to this file (- for stdout).")
@shared.nsys("The nsys to export a .nsys-rep with.")
@click.option(
    "--all-segments",
    is_flag=True,
    help="Keep the segments of every interval in analysis.db, however many there are.",
)
@shared.of_addons("analyze")
@shared.fail_on_option
@shared.views
@shared.quiet()
@click.pass_context
def analyze(
    ctx: click.Context,
    traces: tuple[Path, ...],
    events: tuple[Path, ...],
    baseline: tuple[Path, ...],
    output: Path | None,
    json_out: str | None,
    nsys: str | None,
    all_segments: bool,
    fail_on: tuple[str, ...],
    quiet: bool,
    **added: Any,
) -> None:
    """Place, split and explain the intervals of TRACE: a .sqlite, a .nsys-rep, a run directory, or a
    trace of torch.profiler (.json, .json.gz).

    Several of them, or a folder of them, are the ranks of one job: each is analysed, and then label
    by label they are compared: who is slowest, who waits for whom.

    \b
    Example:  nsysalign analyze trace.sqlite --events events-484.jsonl
              nsysalign analyze report_rank0.nsys-rep report_rank1.nsys-rep
    """
    from nsysalign.memory import keep_freed_arrays, look_for_garbage_less_often

    look_for_garbage_less_often()
    keep_freed_arrays()
    from nsysalign import registry
    from nsysalign.commandline.present import present, stored_screen, unprofiled
    from nsysalign.inputkind import InputKind
    from nsysalign.pathkind import kind_of
    from nsysalign.rundir import RunDirectory

    if any(answer(traces, ctx.params) for answer in registry.each("several")):
        return
    if len(traces) > 1:
        raise UsageError(
            "several traces are compared by an add-on (ranks) that is not installed here",
            "nsysalign analyze RUN, once for each of them",
        )
    run = RunDirectory(traces[0])
    if run.unprofiled and not (events or baseline or fail_on):
        unprofiled(run, quiet=quiet, json_out=json_out)
        return
    if run.path.exists() and kind_of(run.path) is InputKind.STORED and not (events or baseline):
        analysis = stored_screen(run.path, quiet=quiet, json_out=json_out)
        ctx.exit(1 if fail_on and shared.closed(analysis, fail_on, quiet=quiet) else 0)
    files = {name for addon in registry.addons().values() for name in addon.files}
    try:
        analysis = present(
            traces[0],
            events=events,
            baseline=baseline,
            of_addons={name: paths for name, paths in added.items() if name in files},
            output=output,
            quiet=quiet,
            json_out=json_out,
            nsys=nsys,
            all_segments=all_segments,
        )
    except KeyboardInterrupt:
        raise Interrupted(
            "the analysis was interrupted; nothing incomplete was written",
            f"nsysalign analyze {shlex.quote(str(traces[0]))}",
        ) from None
    ctx.exit(1 if fail_on and shared.closed(analysis, fail_on, quiet=quiet) else 0)
