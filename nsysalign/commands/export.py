"""`nsysalign export`: an analysis for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign import registry
from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import refuse_overwriting, refuse_unwritable
from nsysalign.commands.show import find
from nsysalign.errors import OutputError, TraceError, UsageError
from nsysalign.rundir import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

    from nsysalign.model import Analysis

FORMATS = ("perfetto", "json", "csv", "parquet")


@click.command()
@click.argument("analysis", metavar="RUN", type=click.Path(path_type=Path, exists=True))
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="perfetto",
    show_default=True,
    help="perfetto: trace-event JSON, which chrome://tracing opens, too; json: the analysis as one "
    "document; csv and parquet: a folder with one file per table.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="File (perfetto: compressed if it ends in .gz) or folder (default: in the run directory).",
)
@click.option("-l", "--label", metavar="LABEL", help="Export only this label.")
@click.option(
    "--intervals-only",
    is_flag=True,
    help="perfetto: only what is near the drawn intervals, not the whole trace.",
)
@shared.quiet()
def export(
    analysis: Path,
    form: str,
    output: Path | None,
    label: str | None,
    intervals_only: bool,
    quiet: bool,
) -> None:
    """Export RUN (a run directory, analysis.db).  In Perfetto the budgets are tracks of their own
    above all operations of the trace; without the trace beside the analysis, above those near the
    intervals that the report draws.

    \b
    Example:  nsysalign export nsysalign-runs/train-001 --format perfetto
              then open the file at https://ui.perfetto.dev (it stays on your machine)
    """
    from nsysalign.commandline.progress import ProgressLine
    from nsysalign.engine import load
    from nsysalign.show import perfetto
    from nsysalign.store import document, tables

    with ProgressLine(quiet) as tell:
        tell("reading the analysis", 0)
        target = output or RunDirectory.around(analysis).path / _default_name(form, label)
        _refuse(target, form, given=output is not None)
        loaded = load(analysis)
        if label is not None:
            loaded = only(loaded, label)
        tell("writing", 40)
        said = []
        if form == "json":
            document.write(loaded, target)
        elif form == "perfetto":
            whole = not intervals_only and label is None
            around = _whole(analysis, loaded) if whole else _around(loaded)
            said = [f"not in the file: {what}" for what in perfetto.write(loaded, around, target)]
            measured = loaded.measured["interval"]
            without = len(measured) - measured.isin(loaded.segments["interval"]).sum()
            if without and not loaded.segments.empty:
                said.append(
                    f"{without:,} intervals have no pieces here: nsysalign analyze --all-segments "
                    "keeps them"
                )
        else:
            for path in tables.foreign(loaded, target, form) if output else ():
                raise OutputError(
                    f"{path}: is there already and was not made by nsysalign; it is never written "
                    "over",
                    "name another folder: -o DIR",
                )
            said = [f"{len(tables.write(loaded, target, form))} tables"]
    if not quiet:
        click.echo(str(target))
        for line in said:
            click.echo(line, err=True)


def _default_name(form: str, label: str | None) -> str:
    from nsysalign.files import file_name

    stem = file_name(label) + "." if label is not None else ""
    return stem + {"json": "export.json", "perfetto": "perfetto.json"}.get(form, form)


def _refuse(target: Path, form: str, *, given: bool) -> None:
    """Raises OutputError or UsageError if the file or folder may not be written."""
    if form in ("perfetto", "json"):
        refuse_unwritable(target) if given else refuse_overwriting(target)
    elif target.exists() and not target.is_dir():
        raise OutputError(
            f"{target}: is a file, and a folder is to be written there", "name a folder: -o DIR"
        )
    elif not given and target.is_symlink():  # whoever made it would decide where we write
        raise UsageError(
            f"{target} is a link, and nothing is written through it", "name a folder: -o DIR"
        )


def _whole(path: Path, loaded: Analysis) -> pd.DataFrame:
    """All operations and calls if the trace lies next to the analysis, and the records that only
    the analysis knows."""
    import pandas as pd

    try:
        trace = RunDirectory.around(path).export()
    except TraceError:
        return _around(loaded)
    from nsysalign.split.timeline import everything
    from nsysalign.trace.read import read_trace

    records = loaded.timeline[loaded.timeline["lane_kind"] == "event"]
    return pd.concat([everything(read_trace(trace)), records], ignore_index=True)


def _around(loaded: Analysis) -> pd.DataFrame:
    """What ran around the intervals: the picture of the run has blocks of several operations."""
    return loaded.timeline[~loaded.timeline["interval"].isin(loaded.runs["interval"])]


def only(analysis: Analysis, label: str) -> Analysis:
    """The analysis of one label.  Raises UsageError if there is none of that name."""
    find(analysis, label=label, iteration=None, name=None)
    mine = analysis.intervals.loc[analysis.intervals["label"] == label, "interval"]
    kept = {}
    for spec in registry.specs():
        table = getattr(analysis, spec.name)
        if "interval" in spec.names:
            kept[spec.name] = table[table["interval"].isin(mine)]
        elif "label" in spec.names:
            kept[spec.name] = table[table["label"] == label]
    return analysis.with_tables(kept)
