"""`nsysalign run`: profile, align, report."""

from __future__ import annotations

from pathlib import Path

import click


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
    json_out: Path | None,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Profile a script or a command, unedited, and say where the time of its CUDA events went.

    SCRIPT.py runs under this Python; anything else is a command, such as `torchrun --nproc-per-node 2
    train.py`. Everything after it is its own, and so is the exit status.

    \b
    Example:  nsysalign run train.py --epochs 1
    """
    from nsysalign.collect.session import CollectOptions, collect
    from nsysalign.commands.progress import ProgressLine
    from nsysalign.errors import NsysError

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
        if result.exit_status:  # None, not known, is among the notes
            click.echo(
                f"the script ended with status {result.exit_status}; what was collected is analysed", err=True
            )
    status = NsysError.exit_code if result.exit_status is None else result.exit_status
    finish(result.run_dir, exit_status=status, quiet=quiet, json_out=json_out)
    ctx.exit(status)


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
