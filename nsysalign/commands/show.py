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
@click.option(
    "-k",
    "--iteration",
    type=int,
    metavar="K",
    help="The K-th interval of the label in order of time, from 0; negative numbers count from the "
    "end (default: the median).",
)
@click.option("--interval", metavar="NAME", help="Choose the interval by its name.")
@click.option("--all", "everything", is_flag=True, help="Show every piece on its own line.")
@click.option("--brief", is_flag=True, help="Print the whole answer as one line of JSON.")
@shared.quiet()
def show(
    analysis: Path,
    label: str | None,
    iteration: int | None,
    interval: str | None,
    everything: bool,
    brief: bool,
    quiet: bool,
) -> None:
    """Draw one interval of RUN (a run directory, analysis.db): what happened when, piece by piece.

    \b
    Example:  nsysalign show nsysalign-runs/train-001 --label forward --iteration 3
    """
    from nsysalign.commandline.assembly import drawn
    from nsysalign.engine import load
    from nsysalign.rundir import RunDirectory
    from nsysalign.show import waterfall

    if RunDirectory(analysis).unprofiled:
        from nsysalign.commandline import unprofiled

        unprofiled.present(RunDirectory(analysis), quiet=quiet, brief=brief)
        return
    loaded = load(analysis)
    if brief:
        from nsysalign.answer import answer
        from nsysalign.brief import of_answer, text

        click.echo(text(of_answer(answer(loaded), "show", str(analysis))))
        return
    number = find(loaded, label=label, iteration=iteration, name=interval)
    if not quiet:
        loaded = drawn(loaded, number, analysis, "segments")
        most = None if everything else waterfall.MOST_LINES
        waterfall.render(loaded, number, console(), most=most)


def find(analysis: Analysis, *, label: str | None, iteration: int | None, name: str | None) -> int:
    """The number of the requested interval.  Raises UsageError, which suggests similar names."""
    intervals = analysis.intervals
    if intervals.empty:
        raise UsageError("no interval was placed in this analysis", "its report says why")
    if name is not None:
        if label is not None or iteration is not None:
            raise UsageError("use either --interval, or --label and --iteration")
        found = intervals.loc[intervals["name"] == name, "interval"]
        if found.empty:
            near = _like(name, intervals["name"].tolist())
            raise UsageError(f"no interval is named {safe_text(name)}", near)
        return int(found.iloc[0])
    if label is None:
        from nsysalign.answer import answer

        proof = answer(analysis).proof
        label = proof.label if proof else str(intervals["label"].iloc[0])
    row = analysis.labels[analysis.labels["label"] == label]
    own = intervals[intervals["label"] == label].sort_values("start_ns")["interval"].tolist()
    if not own:
        near = _like(label, analysis.labels["label"].tolist())
        raise UsageError(f"no label is {safe_text(label)}", near)
    if iteration is None:
        return int(own[0] if row.empty else row["row_interval"].iloc[0])
    if not -len(own) <= iteration < len(own):
        which = f"{len(own)} intervals, 0 to {len(own) - 1}"
        raise UsageError(f"{safe_text(label)} has {which}; {iteration} was asked for")
    return int(own[iteration])


def _like(wanted: str, names: list[str]) -> str:
    near = difflib.get_close_matches(wanted, names[:5000], n=4, cutoff=0.3) or names[:4]
    return "there are: " + safe_text(", ".join(near)) + (", …" if len(names) > len(near) else "")
