"""`nsysalign run`: profile, align, report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from nsysalign.collect.session import CollectOptions, CollectResult


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--nsys", metavar="PATH", help="The nsys to use (default: $NSYS, PATH, the usual install folders)."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Run directory, new or empty (default: nsysalign-runs/SCRIPT-NNN).",
)
@click.option(
    "--accurate",
    is_flag=True,
    help="Record GPU timestamps of events: exact places, but intervals grow under the tracing itself.",
)
@click.option(
    "--no-calibrate",
    is_flag=True,
    help="Do not run a few milliseconds of known GPU work before the first event.",
)
@click.option(
    "--graph-trace", type=click.Choice(["graph", "node"]), help="Passed to nsys as --cuda-graph-trace."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop the script after so long, as Ctrl-C would; what was collected is analysed.",
)
@click.option(
    "--baseline",
    is_flag=True,
    help="Run the command once more without nsys and put both numbers side by side.",
)
@click.option(
    "--json",
    "json_out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="OUT",
    help="Write the analysis to this file as well.",
)
@click.option("-q", "--quiet", is_flag=True, help="Only what the script prints.")
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="[--] SCRIPT.py|COMMAND [ARGS]..."
)
@click.pass_context
def run(
    ctx: click.Context,
    nsys: str | None,
    output: Path | None,
    accurate: bool,
    no_calibrate: bool,
    graph_trace: str | None,
    timeout: float | None,
    baseline: bool,
    json_out: Path | None,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Profile a script or a command, unedited, and say where the time of its CUDA events went.

    SCRIPT.py runs under this Python; anything else is a command, such as `torchrun --nproc-per-node 2
    train.py`. Everything after it is its own, and so is the exit status.  With --baseline it runs twice, under
    nsys first; the status is that of the profiled run.

    \b
    Example:  nsysalign run train.py --epochs 1
    """
    from nsysalign.collect.session import CollectOptions, collect
    from nsysalign.commands.progress import ProgressLine

    options = CollectOptions(
        nsys=nsys,
        output=output,
        accurate=accurate,
        calibrate=not no_calibrate,
        graph_trace=graph_trace,
        timeout_s=timeout,
    )
    with ProgressLine(quiet) as progress:
        result = collect(command, options, progress)
    if not quiet:
        for note in result.notes:
            click.echo(f"note: {note}", err=True)
        if result.exit_status:
            click.echo(
                f"the script ended with status {result.exit_status}; what was collected is analysed", err=True
            )
    if baseline:
        without_nsys(command, result, options, quiet=quiet)
    finish(result.run_dir, exit_status=result.exit_status, quiet=quiet, json_out=json_out)
    ctx.exit(result.exit_status)


def without_nsys(
    command: Sequence[str], result: CollectResult, options: CollectOptions, *, quiet: bool
) -> None:
    """The command once more, without nsys.  Whatever happens to it, the profiled run keeps its analysis and its status."""
    from nsysalign.collect.baseline import collect_baseline
    from nsysalign.errors import NsysAlignError

    if result.stopped:
        click.echo("note: the profiled run was stopped: it is not run again without nsys", err=True)
        return
    if not quiet:
        click.echo("running once more without nsys", err=True)
    try:
        baseline = collect_baseline(
            command,
            result.run_dir,
            profiled_status=result.exit_status,
            calibrate=options.calibrate,
            timeout_s=options.timeout_s,
        )
    except NsysAlignError as error:
        click.echo(f"note: no run without nsys: {error}", err=True)
        return
    if not quiet:
        for note in baseline.notes:
            click.echo(f"note: {note}", err=True)


def finish(run_dir: Path, *, exit_status: int, quiet: bool, json_out: Path | None) -> None:
    """Analyse the run directory and show the result: the same that `nsysalign analyze RUN_DIR` does.

    A failed script keeps its status: the analysis of what it left may then fail as well, and that is only
    said.
    """
    from nsysalign.commands.analyze import present
    from nsysalign.errors import NsysAlignError

    try:
        present(run_dir, quiet=quiet, json_out=json_out)
    except NsysAlignError as error:
        if exit_status == 0:
            raise
        click.echo(f"nothing to analyse: {error}", err=True)
