"""`nsysalign run`: profile, align, report."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commands.gate import closed, fail_on_option

if TYPE_CHECKING:
    from nsysalign.model import Analysis
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
    help="Record GPU timestamps of events: places them exactly, but the tracing makes intervals longer.",
)
@click.option(
    "--no-calibrate",
    is_flag=True,
    help="Skip the calibration, a few milliseconds of known GPU work before the first event.",
)
@click.option(
    "--no-references",
    is_flag=True,
    help="Do not measure events against reference events: saves some microseconds after each "
    "elapsed_time, but their places are then only estimated.",
)
@click.option(
    "--no-clocks",
    is_flag=True,
    help="Do not sample the GPU's clocks, power and throttling (through NVML, in this process).",
)
@click.option(
    "--no-host-timers",
    is_flag=True,
    help="Do not turn the script's own readings of time.perf_counter and similar clocks into intervals.",
)
@click.option(
    "--sample-python",
    is_flag=True,
    help="Let nsys sample the Python stacks, to name the functions that the GPU waited for.  Costs about a tenth "
    "of the host's time.",
)
@click.option(
    "--graph-trace", type=click.Choice(["graph", "node"]), help="Passed to nsys as --cuda-graph-trace."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop the script after this time, as Ctrl-C would; what was recorded is analysed.",
)
@click.option(
    "--lock-clocks",
    type=click.IntRange(min=1),
    metavar="MHZ",
    help="Lock the SM clock at this frequency while the script runs (NVML; needs administrator rights).",
)
@click.option(
    "--confirm",
    is_flag=True,
    help="Then test the warnings: run it again with one change per label (see nsysalign confirm).",
)
@click.option(
    "--baseline",
    is_flag=True,
    help="Run the command once more without nsys and show both times side by side.",
)
@click.option(
    "--marks",
    is_flag=True,
    help="For kernels with marks (nsysalign.marks): run the command without them, then once more with them, and say "
    "what they change.",
)
@click.option(
    "--json",
    "json_out",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="OUT",
    help="Write the analysis to this file as well.  - is stdout: then the script's own stdout goes to stderr, "
    "and no table is printed.",
)
@fail_on_option
@click.option("-q", "--quiet", is_flag=True, help="Print only what the script prints.")
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
    no_references: bool,
    no_clocks: bool,
    no_host_timers: bool,
    sample_python: bool,
    graph_trace: str | None,
    timeout: float | None,
    lock_clocks: int | None,
    confirm: bool,
    baseline: bool,
    marks: bool,
    json_out: Path | None,
    fail_on: tuple[str, ...],
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
    from nsysalign.collect.command import stem
    from nsysalign.collect.lock import locked
    from nsysalign.collect.marked import OFF
    from nsysalign.collect.session import CollectOptions, collect
    from nsysalign.commands.outputs import refuse_unwritable
    from nsysalign.commands.progress import ProgressLine
    from nsysalign.commands.title import TitleClock
    from nsysalign.errors import NsysError
    from nsysalign.rundir import DOCUMENT, last_duration_s

    if json_out and str(json_out) != "-":
        refuse_unwritable(json_out)
    _refuse_misspelt(ctx, command[0])
    options = CollectOptions(
        nsys=nsys,
        output=output,
        accurate=accurate,
        calibrate=not no_calibrate,
        references=not no_references,
        clocks=not no_clocks,
        host_timers=not no_host_timers,
        sample_python=sample_python,
        graph_trace=graph_trace,
        timeout_s=timeout,
        stdout_to_stderr=str(json_out) == "-",
        environment=OFF if marks else {},
    )
    name = stem(command)
    usual_s = None if output else last_duration_s(name)
    with (
        TitleClock(f"profiling {name}", quiet=quiet, usual_s=usual_s),
        ProgressLine(quiet) as progress,
        locked(lock_clocks) as conditions,
    ):
        result = collect(command, replace(options, conditions=conditions), progress)
    if not quiet:
        for note in result.notes:
            click.echo(f"note: {note}", err=True)
        if result.exit_status:  # None, not known, is among the notes
            click.echo(
                f"the script ended with status {result.exit_status}; what was recorded is analysed", err=True
            )
    if marks:
        with_marks(command, result, options, quiet=quiet)
    if baseline:
        without_nsys(command, result, options, quiet=quiet)
    status = NsysError.exit_code if result.exit_status is None else result.exit_status
    on_stdout = str(json_out) == "-"
    analysis = finish(
        result.run_dir,
        exit_status=status,
        quiet=quiet or (confirm and on_stdout),
        json_out=None if confirm else json_out,  # its verdicts belong into it
    )
    if confirm and analysis is not None:
        if status == 0:
            from nsysalign.commands.confirm import after_run

            with locked(lock_clocks) as conditions:
                again = replace(options, conditions=conditions)
                after_run(result.run_dir, analysis, command, again, quiet=quiet or on_stdout)
        if on_stdout:
            click.echo((result.run_dir / DOCUMENT).read_text("utf-8"))
        elif json_out:
            shutil.copyfile(result.run_dir / DOCUMENT, json_out)
    gate = analysis is not None and closed(analysis, fail_on, quiet=quiet)
    ctx.exit(status or int(gate))


def _refuse_misspelt(ctx: click.Context, word: str) -> None:
    """An option that does not exist is none of the script's: those come behind it."""
    if not word.startswith("-") or shutil.which(word) or Path(word).exists():
        return
    name = word.partition("=")[0]
    known = [
        option for parameter in ctx.command.params for option in parameter.opts if option.startswith("--")
    ]
    raise click.NoSuchOption(name, possibilities=sorted(get_close_matches(name, known)), ctx=ctx)


def with_marks(
    command: Sequence[str], result: CollectResult, options: CollectOptions, *, quiet: bool
) -> None:
    """The command once more, with its marks.  Whatever happens to it, the run without keeps its analysis and its status."""
    from nsysalign.collect.marked import ON
    from nsysalign.collect.session import collect
    from nsysalign.errors import NsysAlignError
    from nsysalign.rundir import MARKED, RunDirectory

    if result.stopped:
        click.echo("note: the run was stopped, so it is not repeated with marks", err=True)
        return
    if not quiet:
        click.echo("running once more, with marks", err=True)
    folder = result.run_dir / MARKED
    try:
        marked = collect(command, replace(options, output=folder, environment=ON, clocks=False))
    except NsysAlignError as error:
        click.echo(f"note: no run with marks: {error}", err=True)
        return
    notes = [*marked.notes]
    if not RunDirectory(folder).marks():
        notes.append(
            "no kernel left marks: nsysalign.marks.buffer() makes the memory for them, nsysalign.marks.flags() "
            "compiles them in (docs/marks.md)"
        )
    if marked.exit_status != result.exit_status:
        notes.append(f"with marks the script ended with status {marked.exit_status}")
    for note in notes if not quiet else []:
        click.echo(f"note: {note}", err=True)


def without_nsys(
    command: Sequence[str], result: CollectResult, options: CollectOptions, *, quiet: bool
) -> None:
    """The command once more, without nsys.  Whatever happens to it, the profiled run keeps its analysis and its status."""
    from nsysalign.collect.without_nsys import collect_baseline
    from nsysalign.errors import NsysAlignError

    if result.stopped:
        click.echo("note: the profiled run was stopped, so it is not repeated without nsys", err=True)
        return
    if not quiet:
        click.echo("running once more without nsys", err=True)
    try:
        baseline = collect_baseline(
            command,
            result.run_dir,
            profiled_status=result.exit_status,
            calibrate=options.calibrate,
            host_timers=options.host_timers,
            references=options.references,
            timeout_s=options.timeout_s,
            environment=options.environment,
        )
    except NsysAlignError as error:
        click.echo(f"note: no run without nsys: {error}", err=True)
        return
    if not quiet:
        for note in baseline.notes:
            click.echo(f"note: {note}", err=True)


def finish(run_dir: Path, *, exit_status: int, quiet: bool, json_out: Path | None) -> Analysis | None:
    """Analyse the run directory and show the result: the same that `nsysalign analyze RUN_DIR` does.

    A failed script keeps its status: the analysis of what it left may then fail as well, or be interrupted, and that is
    only said.
    """
    from nsysalign.commands.present import present
    from nsysalign.errors import Interrupted, NsysAlignError

    try:
        try:
            return present(run_dir, quiet=quiet, json_out=json_out).analysis
        except KeyboardInterrupt:
            raise Interrupted(
                "the analysis was interrupted; what was recorded is kept", f"nsysalign analyze {run_dir}"
            ) from None
    except NsysAlignError as error:
        if exit_status == 0:
            raise
        click.echo(f"not analysed: {error}", err=True)
        return None
