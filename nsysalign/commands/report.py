"""`nsysalign report`: the HTML page again, from a stored analysis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign import registry
from nsysalign.commandline import options as shared

if TYPE_CHECKING:
    from nsysalign.model import Analysis


@click.command()
@click.argument("analysis", metavar="RUN", type=click.Path(path_type=Path, exists=True))
@shared.output_file("Where to write it (default: report.html next to the analysis).")
@click.option(
    "--interval",
    metavar="NAME",
    help="Open the page at this interval, and include its timeline.",
)
@shared.quiet()
def report(analysis: Path, output: Path | None, interval: str | None, quiet: bool) -> None:
    """Write the HTML page of RUN again: a run directory, an analysis.db, or a measurement's folder.

    \b
    Example:  nsysalign report nsysalign-runs/train-001
              nsysalign report nsysalign-runs/train-001 --interval forward#17
    """
    from nsysalign.commandline.outputs import refuse_overwriting
    from nsysalign.commands.show import find
    from nsysalign.engine import load
    from nsysalign.files import file_name
    from nsysalign.rundir import PAGE, RunDirectory
    from nsysalign.show import html

    for results in registry.each("results"):
        if results.holds(analysis):
            page = results.report(analysis, output)
            if not quiet:
                click.echo(str(page))
            return
    loaded, focus, note = load(analysis), None, ""
    name = PAGE
    if interval is not None:
        focus = find(loaded, label=None, iteration=None, name=interval)
        loaded, note = with_timeline(loaded, focus, interval, analysis)
        name = f"report-{file_name(interval)}.html"
    target = output or RunDirectory.around(analysis).path / name
    refuse_overwriting(target)
    html.write(loaded, target, focus)
    if not quiet:
        click.echo(str(target))
        click.echo(note, err=True, nl=bool(note))


def with_timeline(loaded: Analysis, number: int, name: str, path: Path) -> tuple[Analysis, str]:
    """The analysis with the interval's timeline: stored, or read again from the trace next to it;
    else the page draws its pieces.  The second value is a note on that, if it matters."""
    from nsysalign.commandline.assembly import drawn

    found = drawn(loaded, number, path, "timeline")
    if (found.timeline["interval"] == number).any():
        return found, ""
    if not (found.segments["interval"] == number).any():
        return (
            found,
            f"no pieces of {name} are stored here: the page has its numbers but no timeline",
        )
    return found, (
        f"no trace beside the analysis: {name} is drawn from its stored pieces, without other "
        "threads and streams"
    )
