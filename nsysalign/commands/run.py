"""`nsysalign run`: profile, align, report."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysalign import registry
from nsysalign.commandline import options as shared
from nsysalign.commandline import present
from nsysalign.errors import NoCudaWork, NsysAlignError, TraceError, UsageError
from nsysalign.rundir import RunDirectory

if TYPE_CHECKING:
    from nsysalign.record.session import CollectOptions, CollectResult

#: Options of the core that need a trace, and those that need nsys; all of add-ons do.
_OF_A_TRACE = ("accurate", "graph_trace", "baseline", "untraced", "fail_on")
_OF_NSYS = ("sample_python", "nsys")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@shared.profiling
@click.option(
    "--no-clocks",
    is_flag=True,
    help="Do not sample the GPU's clocks and throttling (through NVML, in this process).",
)
@click.option(
    "--no-host-timers",
    is_flag=True,
    help="Do not turn the script's own readings of time.perf_counter and similar clocks into "
    "intervals.",
)
@click.option(
    "--sample-python",
    is_flag=True,
    help="Let nsys sample the Python stacks, to name the functions that the GPU waited for.  Costs "
    "about a tenth of the host's time.",
)
@click.option(
    "--baseline",
    is_flag=True,
    help="Run the command once more without nsys and show both times side by side.",
)
@click.option(
    "--untraced",
    is_flag=True,
    help="Record by CUPTI in turns, so that nearly all repetitions run at plain speed, and show both times "
    "side by side.  CUDA 12.6 or newer; a program that makes CUDA graphs stays traced from there on.",
)
@click.option(
    "--no-nsys",
    is_flag=True,
    help="Record without nsys: by CUPTI from inside the program, else the event log alone, which proves "
    "what limits each timing, not where its time went.  So does a run where nsys is missing.",
)
@shared.recorder
@shared.of_addons("run")
@shared.json_out(
    "Write the analysis to this file as well.  - is stdout: then the script's own stdout goes to "
    "stderr, and no table is printed."
)
@shared.fail_on_option
@shared.views
@shared.quiet("Print only what the script prints.")
@shared.script()
@click.pass_context
def run(
    ctx: click.Context,
    options: CollectOptions,
    no_clocks: bool,
    no_host_timers: bool,
    sample_python: bool,
    lock_clocks: int | None,
    baseline: bool,
    untraced: bool,
    no_nsys: bool,
    recorder: str | None,
    json_out: str | None,
    fail_on: tuple[str, ...],
    quiet: bool,
    command: tuple[str, ...],
    **added: Any,
) -> None:
    """Profile a script or a command, unedited, and say where the time of its CUDA events went.

    SCRIPT.py runs under this Python; anything else is a command, such as `torchrun --nproc-per-node
    2 train.py`. Everything after it is its own, and so is the exit status.  With --baseline it runs
    twice, under nsys first; the status is that of the profiled run.

    \b
    Example:  nsysalign run train.py --epochs 1
    """
    _refuse_misspelt(ctx, command)
    of_addons = {
        option: (name, rerun)
        for name, addon in registry.addons().items()
        for option, rerun in addon.reruns.items()
    }
    reruns = [registry.imported(*of_addons[option]) for option in of_addons if added[option]]
    options = replace(
        options,
        clocks=not no_clocks,
        host_timers=not no_host_timers,
        sample_python=sample_python,
        untraced=untraced,
        stdout_to_stderr=json_out == "-",
        environment={k: v for rerun in reruns for k, v in rerun.environment.items()},
    )
    needs = {*_OF_A_TRACE, *_OF_NSYS, *of_addons}
    traced = [p for p in ctx.command.params if p.name in needs and ctx.params.get(p.name)]
    by_nsys = [p.opts[0] for p in traced if p.name not in _OF_A_TRACE]
    if untraced and (recorder == "nsys" or baseline):
        excluded = "--baseline" if baseline else "--recorder nsys"
        raise click.UsageError(f"--untraced and {excluded} exclude each other")
    _refuse_contradictions(no_nsys or untraced, recorder, traced, by_nsys)
    from nsysalign.record.lock import locked

    with locked(lock_clocks) as conditions:
        locking = replace(options, conditions=conditions)
        chosen = "cupti" if no_nsys or untraced else recorder
        needing = [parameter.opts[0] for parameter in traced]
        result = present.recorded(
            command, locking, quiet, recorder=chosen, traced=needing, by_nsys=by_nsys
        )
    status = result.exit_status
    if result.sqlite is None:
        _without_trace(result, command, needing, quiet, json_out)
        ctx.exit(status)
    for rerun in reruns:
        _once_more(rerun.how, result, partial(rerun.again, command, result, options), quiet)
    if baseline:
        from nsysalign.record.session import collect_baseline

        again = partial(collect_baseline, command, result.run_dir, options, profiled_status=status)
        _once_more("without nsys", result, lambda: again().notes, quiet)
    try:
        analysis = present.finish(
            result.run_dir, exit_status=status, command=command, quiet=quiet, json_out=json_out
        )
    except NoCudaWork as error:
        raise _no_cuda_work() from error
    except OSError as error:  # our output cannot be written: a failed script keeps its status
        if not status:
            raise
        click.echo(f"nsysalign: the analysis cannot be printed: {error.strerror}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        ctx.exit(status)
    gate = analysis is not None and fail_on and shared.closed(analysis, fail_on, quiet=quiet)
    ctx.exit(status or int(bool(gate)))


def _refuse_contradictions(
    no_nsys: bool, recorder: str | None, traced: Sequence[click.Parameter], by_nsys: Sequence[str]
) -> None:
    """Options that ask for what the chosen recorder does not have."""
    if no_nsys and recorder == "nsys":
        raise click.UsageError("--no-nsys and --recorder nsys exclude each other")
    if recorder == "log" and traced:
        raise click.UsageError(f"--recorder log records no trace, which {traced[0].opts[0]} needs")
    if (no_nsys or recorder == "cupti") and by_nsys:
        way = "--no-nsys" if no_nsys else "--recorder cupti"
        raise click.UsageError(f"{way} records nothing by nsys, which {by_nsys[0]} needs")


def _refuse_misspelt(ctx: click.Context, command: Sequence[str]) -> None:
    """Refuse an unknown option before the script: the script's own options come after it."""
    word = command[0]
    if not word.startswith("-") or shutil.which(word) or Path(word).exists():
        return
    name = word.partition("=")[0]
    known = [option for parameter in ctx.command.params for option in parameter.opts]
    long = [option for option in known if option.startswith("--")]
    near = sorted(get_close_matches(name, long))
    script = next((n for n, part in enumerate(command) if part.endswith(".py")), 0)
    if script and not near:
        corrected = shlex.join([command[script], *command[:script], *command[script + 1 :]])
        raise UsageError(
            f"{name} is no option of nsysalign run; the script's own come after it",
            f"nsysalign run {corrected}",
        )
    raise click.NoSuchOption(name, possibilities=near, ctx=ctx)


def _without_trace(
    result: CollectResult,
    command: Sequence[str],
    needing: Sequence[str],
    quiet: bool,
    json_out: str | None,
) -> None:
    """What the event log of a run without a trace answers; a script that failed keeps its status.  Raises
    NoCudaWork where CUPTI saw that nothing used a GPU, TraceError where an option needs the trace."""
    run, status = RunDirectory(result.run_dir), result.exit_status
    logged = any(b'"type":"record"' in path.read_bytes()[: 1 << 20] for path in run.event_logs())
    if result.unused and not logged and not status:
        raise _no_cuda_work()
    failed_early = status and not logged
    said_in_brief = failed_early and shared.view() == "brief"
    try:
        hidden = quiet or bool(said_in_brief)
        present.unprofiled(run, command=command, quiet=hidden, json_out=json_out)
    except NsysAlignError as error:
        if not status:
            raise
        click.echo(f"not analysed: {error}", err=True)
    if needing and not status:  # a gate that lost its trace must not pass
        raise TraceError(f"no trace was recorded, which {needing[0]} needs", "nsysalign doctor")
    if failed_early and not quiet:
        present.say_failed(command, status, " and recorded no CUDA event")
    elif not logged and not quiet:
        click.echo(f"note: the program recorded no CUDA event: {_why_no_cuda()}", err=True)


def _why_no_cuda() -> str:
    from nsysalign.commands.doctor import why_no_cuda

    return "; ".join(why_no_cuda(os.environ)) or "nothing here keeps it from that"


def _no_cuda_work() -> NoCudaWork:
    reason = f"the program ended with status 0 and did no CUDA work: {_why_no_cuda()}"
    return NoCudaWork(reason, "nsysalign doctor")


def _once_more(
    how: str, result: CollectResult, again: Callable[[], Sequence[str]], quiet: bool
) -> None:
    """Run the command `again` ("with marks"), which returns notes.  Whatever happens, the profiled
    run keeps its analysis and its status."""
    if result.stopped:
        click.echo(f"note: the profiled run was stopped, so it is not repeated {how}", err=True)
        return
    if not quiet:
        click.echo(f"running once more {how}", err=True)
    try:
        present.say_notes(again(), quiet)
    except NsysAlignError as error:
        click.echo(f"note: no run {how}: {error}", err=True)
