"""`nsysalign show`: one interval as a waterfall in the terminal."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import console
from nsysalign.errors import UsageError
from nsysalign.text import safe_text

if TYPE_CHECKING:
    from nsysalign.model import Analysis


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
    number = find(loaded, label=label, name=interval)
    if not quiet:
        loaded = drawn(loaded, number, analysis, "segments")
        most = None if everything else waterfall.MOST_LINES
        waterfall.render(loaded, number, console(), most=most)


def find(analysis: Analysis, *, label: str | None = None, name: str | None = None) -> int:
    """The number of the interval of that name, of the one in the label's row, or of the one that the
    first screen shows.  Raises UsageError, which suggests similar names."""
    from nsysalign.answer import answer

    intervals = analysis.intervals
    if intervals.empty:
        raise UsageError("no interval was placed in this analysis", "its report says why")
    if label is None and name is None:
        proof = answer(analysis).proof
        return proof.interval if proof else int(intervals["interval"].iloc[0])
    column, what = ("name", "interval is named") if name is not None else ("label", "label is")
    wanted = name if label is None else label
    found = intervals.loc[intervals[column] == wanted, "interval"]
    if found.empty:
        table = intervals if name is not None else analysis.labels
        names = table[column].tolist()
        near = difflib.get_close_matches(wanted, names[:5000], n=4, cutoff=0.3) or names[:4]
        listed = safe_text(", ".join(near)) + (", …" if len(names) > len(near) else "")
        raise UsageError(f"no {what} {safe_text(wanted)}", f"there are: {listed}")
    row = analysis.labels.loc[analysis.labels["label"] == label, "row_interval"]
    return int(found.iloc[0] if row.empty else row.iloc[0])
