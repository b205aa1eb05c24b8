"""`nsysalign show`: one interval as a waterfall in the terminal."""

from __future__ import annotations

from pathlib import Path

import click

from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import console
from nsysalign.errors import UsageError


@click.command()
@click.argument("analysis", metavar="RUN", type=click.Path(path_type=Path, exists=True))
@click.option("-l", "--label", metavar="LABEL", help="Label (default: that of the first screen).")
@click.option("--interval", metavar="NAME", help="An interval by its name: label#repetition.")
@click.option("--all", "everything", is_flag=True, help="Show every piece on its own line.")
@shared.brief
@shared.quiet()
def show(
    analysis: Path,
    label: str | None,
    interval: str | None,
    everything: bool,
    quiet: bool,
) -> None:
    """Draw one interval of RUN (a run directory, analysis.db), of a label the median: what happened
    when, piece by piece.

    \b
    Example:  nsysalign show nsysalign-runs/train-001 --interval forward#3
    """
    from nsysalign.answer import answer
    from nsysalign.commandline.present import drawn, unprofiled
    from nsysalign.engine import load
    from nsysalign.rundir import RunDirectory
    from nsysalign.show import waterfall

    if RunDirectory(analysis).unprofiled:
        unprofiled(RunDirectory(analysis), quiet=quiet)
        return
    loaded = load(analysis)
    if shared.view() == "brief":
        from nsysalign.brief import of_answer

        click.echo(of_answer(answer(loaded), "show", str(analysis)))
        return
    if label is not None and interval is not None:
        raise UsageError("use either --interval or --label")
    number = waterfall.find(loaded, label=label, name=interval)
    if not quiet:
        loaded = drawn(loaded, number, analysis, "segments")
        most = None if everything else waterfall.MOST_LINES
        waterfall.render(loaded, number, console(), most=most)
