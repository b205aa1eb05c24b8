"""From a trace to stored results and a screen: what `analyze`, `run`, `confirm` and `ranks` have in
common."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commandline.assembly import assembled
from nsysalign.commandline.options import view
from nsysalign.commandline.outputs import console, deliver, refuse_overwriting
from nsysalign.commandline.progress import ProgressLine
from nsysalign.errors import Interrupted, NoCudaWork, NsysAlignError
from nsysalign.rundir import ANSWER, DATABASE, PAGE

if TYPE_CHECKING:
    from nsysalign.answer import Answer
    from nsysalign.model import Analysis


def present(
    path: Path,
    *,
    events: Sequence[Path] = (),
    baseline: Sequence[Path] = (),
    given: Mapping[str, Sequence[Path]] = {},
    output: Path | None = None,
    quiet: bool = False,
    json_out: str | None = None,
    nsys: str | None = None,
    all_segments: bool = False,
) -> Analysis:
    """Analyse a run directory or a trace, print, store.  `given`: files for add-ons, by option."""
    if output is not None:
        for name in (DATABASE, PAGE, ANSWER):
            refuse_overwriting(output / name)
    output = output or (path if path.is_dir() else path.with_name(path.stem + ".nsysalign"))
    there = output.exists()
    try:
        inputs = assembled(
            path, output, events=events, baseline=baseline, given=given, nsys=nsys, quiet=quiet
        )
        with ProgressLine(quiet) as tell:
            from nsysalign import engine
            from nsysalign.memory import trim_memory

            analysis = engine.analyze_inputs(inputs, all_segments=all_segments, progress=tell)
            trim_memory()  # the trace's memory
    except NsysAlignError:
        if not there:  # a refused request leaves no empty folder behind
            with suppress(OSError):  # not empty: it contains a report's export
                output.rmdir()
        raise
    again = [path, *(part for log in events for part in ("--events", log))]
    show_and_store(analysis, output, quiet=quiet, on_screen=json_out != "-", again=again)
    if json_out:
        from nsysalign.store import document

        deliver(document.pieces(analysis), json_out)
    return analysis


def show_and_store(
    analysis: Analysis,
    output: Path,
    *,
    quiet: bool = False,
    on_screen: bool = True,
    again: Sequence[object] = (),
) -> None:
    """Print the screen, then write the files; `again`: the arguments of `analyze`, for the hint on
    comparing processes."""
    from nsysalign.answer import answer

    said = answer(analysis)
    try:
        if on_screen and not quiet:
            sys.stdout.write(printed(analysis, said, output, again=again))
            sys.stdout.flush()
    finally:  # also where nobody reads the screen any more (| head)
        with ProgressLine(quiet) as tell:
            tell("writing the report", 97)
            store(analysis, output, said)


def store(analysis: Analysis, output: Path, said: Answer | None = None) -> None:
    """Write analysis.db, answer.json and report.html to `output`; `said`: the analysis' answer, if
    the caller has it."""
    from dataclasses import asdict

    from nsysalign.answer import answer
    from nsysalign.files import write_text
    from nsysalign.show import html
    from nsysalign.store import database
    from nsysalign.store.objects import to_json

    said = said or answer(analysis)
    database.write(analysis, output / DATABASE)
    head = {"format": "nsysalign-answer", "version": 1}
    write_text(output / ANSWER, to_json(head | asdict(said)) + "\n")
    html.write(analysis, output / PAGE, said=said)


def printed(analysis: Analysis, said: Answer, output: Path, *, again: Sequence[object] = ()) -> str:
    """What this terminal shows: the first screen, with -v everything, with --kernels what ran."""
    from rich.text import Text

    from nsysalign import brief
    from nsysalign.show import screen

    shown, page, hint = console(), str(output / PAGE), ()
    with suppress(ValueError):  # not below the working directory
        page = str((output / PAGE).absolute().relative_to(Path.cwd()))
    processes = analysis.measured["pid"].nunique()
    if again and processes > 1:
        command = f"nsysalign analyze --ranks {shlex.join(map(str, again))}"
        hint = (f"{processes} processes measured something; to compare them:", f"  {command}")
    with shown.capture() as capture:
        if view() == "brief":
            command = click.get_current_context().info_name or ""
            line = brief.text(brief.of_answer(said, command, str(output)))
            shown.print(Text(line), soft_wrap=True)
        elif view() == "kernels":
            screen.kernels(analysis, shown)
        elif view() == "full":
            screen.everything(analysis, said, shown, page)
            shown.print("\n".join(hint), soft_wrap=True)
        else:
            ran = screen.kernel_lines(analysis, shown.width) or screen.range_lines(analysis)
            screen.render(said, shown, page, listed=() if said.labels else ran, extra=hint)
    return capture.get()


def finish(
    run_dir: Path, *, exit_status: int, quiet: bool, json_out: str | None
) -> Analysis | None:
    """Analyse the run directory and show the result, as `nsysalign analyze RUN_DIR` does.  A failed
    script keeps its status: the analysis of what it left may then fail as well, or be interrupted,
    which is only reported.
    """
    ended = f"the script ended with status {exit_status}"
    try:
        analysis = present(run_dir, quiet=quiet, json_out=json_out)
    except (NsysAlignError, KeyboardInterrupt) as problem:
        error = problem
        if isinstance(problem, KeyboardInterrupt):
            message = "the analysis was interrupted; what was recorded is kept"
            error = Interrupted(message, f"nsysalign analyze {run_dir}")
        if exit_status == 0:
            raise error from None
        click.echo(f"{ended}, and what it left was not analysed: {error.message}", err=True)
        return None
    did_cuda = not analysis.intervals.empty or analysis.known.calls_without_work
    if exit_status == 0 and not did_cuda:  # NVTX ranges alone
        raise NoCudaWork("the program did no CUDA work", "nsysalign doctor")
    if exit_status and not quiet:
        click.echo(f"{ended}; what it recorded until then was analysed", err=True)
    return analysis
