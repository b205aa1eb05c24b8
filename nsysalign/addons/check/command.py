"""`nsysalign check`: is what was measured what the program claims?"""

from __future__ import annotations

import shlex
import shutil
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import ProgressLine, deliver
from nsysalign.commandline.present import assembled, recorded, say_failed
from nsysalign.errors import NsysAlignError
from nsysalign.rundir import DATABASE, TRACE_SUFFIXES
from nsysalign.text import plural, safe_text, span

if TYPE_CHECKING:
    from nsysalign.addons.check.checks import Verdict
    from nsysalign.record.session import CollectOptions

#: Options that say how a script is recorded.
_RECORDING = (
    "output", "accurate", "no_calibrate", "graph_trace", "timeout", "lock_clocks", "recorder",
)  # fmt: skip


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@shared.files("--events", "Event log of a process")
@shared.profiling
@shared.recorder
@shared.json_out("Also write the verdict as JSON to this file (- for stdout).")
@shared.brief
@shared.quiet()
@click.argument(
    "command", nargs=-1, type=click.UNPROCESSED, required=True,
    metavar="RUN_DIR|TRACE|SCRIPT.py [ARGS]...",
)  # fmt: skip
@click.pass_context
def check(
    ctx: click.Context,
    events: tuple[Path, ...],
    options: CollectOptions,
    lock_clocks: int | None,
    recorder: str | None,
    json_out: str | None,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Say whether what was timed in a run is what was launched: work that escapes the timing,
    repetitions that leave work out, caches filled again, timers that were changed.

    A run directory or a trace is checked as it is; a script is run first, as by nsysalign run. The
    exit status is 0 if nothing is found, else 1; a script that fails keeps its own.

    \b
    Example:  nsysalign check nsysalign-runs/bench-001
              nsysalign check bench.py --sizes small
    """
    from nsysalign.addons.check.checks import judge
    from nsysalign.store.objects import to_json

    path = Path(command[0])
    if path.name == DATABASE and path.is_file():  # beside the trace that it was made from
        path = path.parent
    there = path.is_dir() or path.suffix in TRACE_SUFFIXES
    if there and len(command) > 1:  # of a script they would be its arguments
        if not command[1].startswith("-"):
            raise click.UsageError(f"one recording is checked at a time, not {command[1]} as well")
        with check.make_context("check", [*command[1:], command[0]], parent=ctx.parent) as again:
            return check.invoke(again)
    if there:
        _refuse_recording(ctx, path)
    elif recorder == "log":
        raise click.UsageError("--recorder log records no trace, which check needs")
    brief = shared.view() == "brief"
    silent, status = quiet or brief or json_out == "-", 0
    if not there:
        from nsysalign.record.lock import locked

        with locked(lock_clocks) as conditions:
            how = replace(options, stdout_to_stderr=json_out == "-", conditions=conditions)
            by_nsys = ["--nsys"] if options.nsys else []
            result = recorded(
                command, how, silent, recorder=recorder, traced=["check"], by_nsys=by_nsys
            )
        path, status = result.run_dir, result.exit_status
    try:
        with tempfile.TemporaryDirectory() as scratch, ProgressLine(silent) as tell:
            inputs = assembled(path, Path(scratch), events=events, nsys=options.nsys, quiet=True)
            tell("checking", 50)
            verdict = judge(inputs)
    except NsysAlignError as error:
        if not status:
            raise
        say_failed(command, status, f", and what it left was not checked: {error.message}")
        ctx.exit(status)  # the script's own
    if status and not silent:
        click.echo(f"the script ended with status {status}", err=True)
    if json_out:
        deliver(to_json(verdict.document()), json_out)
    if brief:
        from nsysalign.brief import short

        word, shown = "wrong" if verdict.found else "ok", shlex.quote(str(path))
        click.echo(short("check", word, headline(verdict), f"nsysalign analyze {shown}"))
    elif not silent:
        click.echo(render(verdict), nl=False)
    elif quiet and verdict.found:
        click.echo(f"nsysalign: {headline(verdict)}", err=True)
    ctx.exit(status or int(bool(verdict.found)))


def _refuse_recording(ctx: click.Context, path: Path) -> None:
    """Of a recording, what says how to record it would change nothing."""
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name or "")
        if parameter.name in _RECORDING and source is ParameterSource.COMMANDLINE:
            option = parameter.opts[-1]
            raise click.UsageError(f"{option} is for a script; {path} is recorded already")


def render(verdict: Verdict) -> str:
    """The headline, then every doubt with what it is worth, and the number that would be right."""
    width, lines = shutil.get_terminal_size().columns, []

    def add(head: str, text: str) -> None:
        more = " " * min(len(head), 12)
        lines.extend(
            textwrap.wrap(safe_text(text), width, initial_indent=head, subsequent_indent=more)
        )

    add("", headline(verdict))
    for doubt in verdict.doubts:
        lines.append("")
        add("! " if doubt in verdict.found else "i ", doubt.title)
        if doubt.measured_ns is not None:
            text = f"{span(doubt.measured_ns)} ({doubt.quoted})"
            if doubt.right_ns is not None:
                text += f"; right: {doubt.bound}{span(doubt.right_ns)}"
                text += f"; worth: {doubt.bound}{span(abs(doubt.worth_ns or 0))}"
            add("  Measured: ", text)
        if len(doubt.intervals) < doubt.of:
            add("  Seen in:  ", f"{len(doubt.intervals)} of {doubt.of} intervals")
        if doubt.site:
            add("  At:       ", doubt.site)
    lines.append("")
    for text in verdict.unchecked:
        add("not checked: ", text)
    return "\n".join(lines).rstrip() + "\n"


def headline(verdict: Verdict) -> str:
    """What was found, in one line."""
    looked = f"{plural(verdict.intervals, 'timed interval')} of {plural(verdict.labels, 'label')}"
    wrong = len({doubt.label for doubt in verdict.found})
    if not wrong:
        return f"Nothing found in {looked}."
    return f"The numbers of {plural(wrong, 'label')} are not what they seem ({looked})."
