"""`nsysalign report`: the HTML page again, from a stored analysis."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("analysis", type=click.Path(path_type=Path, exists=True))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The page (default: report.html beside the analysis).",
)
def report(analysis: Path, output: Path | None) -> None:
    """Write the HTML page of ANALYSIS: a run directory, analysis.db or analysis.json.

    \b
    Example:  nsysalign report nsysalign-runs/train-001
    """
    from nsysalign.pipeline import load
    from nsysalign.report import html

    target = output or (analysis if analysis.is_dir() else analysis.parent) / "report.html"
    html.write(load(analysis), target)
    click.echo(str(target))
