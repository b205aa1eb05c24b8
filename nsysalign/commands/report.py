"""`nsysalign report`: the HTML page again, from a stored analysis."""

from __future__ import annotations

from pathlib import Path

import click

from nsysalign.commandline import options as shared


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
    """Write the HTML page of RUN again: a run directory or an analysis.db.

    \b
    Example:  nsysalign report nsysalign-runs/train-001
              nsysalign report nsysalign-runs/train-001 --interval forward#17
    """
    from nsysalign.commandline.outputs import refuse_overwriting
    from nsysalign.commandline.present import drawn
    from nsysalign.engine import load
    from nsysalign.files import file_name
    from nsysalign.rundir import PAGE, RunDirectory
    from nsysalign.show import html, waterfall
    from nsysalign.text import safe_text

    loaded, focus, name = load(analysis), None, PAGE
    if interval is not None:
        focus = waterfall.find(loaded, name=interval)
        loaded = drawn(loaded, focus, analysis, "timeline")
        name = f"report-{file_name(interval)}.html"
        if not quiet and not (loaded.timeline["interval"] == focus).any():
            click.echo(
                f"no trace beside the analysis: {safe_text(interval)} is drawn from its stored pieces, "
                "if there are any, without other threads and streams",
                err=True,
            )
    target = output or RunDirectory.around(analysis).path / name
    refuse_overwriting(target)
    html.write(loaded, target, focus)
    if not quiet:
        click.echo(str(target))
