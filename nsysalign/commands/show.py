"""`nsysalign show`: one interval as a waterfall in the terminal."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import console
from nsysalign.errors import UsageError

if TYPE_CHECKING:
    from nsysalign.model import Analysis


@click.command()
@click.argument("analysis", metavar="RUN", type=click.Path(path_type=Path, exists=True))
@click.option("-l", "--label", metavar="LABEL", help="Label (default: that of the first screen).")
@click.option("--interval", metavar="NAME", help="An interval by its name: label#repetition.")
@click.option("--all", "all_pieces", is_flag=True, help="Show every piece on its own line.")
@click.option("--markdown", is_flag=True, help="Print it as Markdown: sentence, bar, table, fixes.")
@shared.brief
@shared.quiet()
def show(
    analysis: Path,
    label: str | None,
    interval: str | None,
    all_pieces: bool,
    markdown: bool,
    quiet: bool,
) -> None:
    """Draw one interval of RUN (a run directory, analysis.db), of a label the one that its sentence
    is about: what happened when, piece by piece.

    \b
    Example:  nsysalign show nsysalign-runs/train-001 --interval forward#3
              nsysalign show nsysalign-runs/train-001 --markdown > finding.md
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
    if label is not None and interval is not None:
        raise UsageError("--interval names one timing, and --label chooses one", "leave one out")
    brief = shared.view() == "brief"
    if brief and all_pieces:
        raise UsageError("--all draws every piece, and --brief prints one line", "leave one out")
    if brief and markdown:
        raise UsageError("--markdown and --brief are two forms of one answer", "leave one out")
    if brief and label is None and interval is None:
        from nsysalign.brief import of_answer

        click.echo(of_answer(answer(loaded), "show", str(analysis)))
        return
    number = waterfall.find(loaded, label=label, name=interval)
    if brief:
        click.echo(_brief(loaded, number, analysis))
    elif markdown:
        from nsysalign.rundir import PAGE
        from nsysalign.show import html
        from nsysalign.show import markdown as text

        loaded = drawn(loaded, number, analysis, "segments")
        run = html.run_name(RunDirectory.around(analysis).path / PAGE)
        click.echo(text.interval(loaded, answer(loaded), number, run), nl=False)
    elif not quiet:
        loaded = drawn(loaded, number, analysis, "segments")
        limit = None if all_pieces else waterfall.MOST_LINES
        waterfall.render(loaded, number, console(), most=limit)


def _brief(loaded: Analysis, number: int, path: Path) -> str:
    """One interval: its parts, the longest first, with its label's verdict."""
    from nsysalign.answer import answer
    from nsysalign.brief import short
    from nsysalign.causes import DISPLAY
    from nsysalign.explain.verdict import CANNOT_TELL
    from nsysalign.text import duration

    row = loaded.intervals.loc[loaded.intervals["interval"] == number].iloc[0]
    verdicts = {shown.label: shown.verdict for shown in answer(loaded).labels}
    parts = loaded.parts[(loaded.parts["interval"] == number) & (loaded.parts["ns"] > 0)]
    parts = parts.sort_values("ns", ascending=False, kind="stable")
    words = [
        f"{DISPLAY[cause]} {duration(int(ns))}"
        for cause, ns in zip(parts["cause"], parts["ns"], strict=True)
    ]
    sentence = f"{row['name']} takes {duration(int(row['elapsed_ns']))}: {', '.join(words)}"
    command = f"nsysalign show {shlex.quote(str(path))} --interval {shlex.quote(row['name'])}"
    return short("show", verdicts.get(row["label"], CANNOT_TELL), sentence, command)
