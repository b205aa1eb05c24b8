"""`nsysalign export`: an analysis for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import ProgressLine, deliver, refuse_overwriting
from nsysalign.errors import TraceError, UsageError
from nsysalign.rundir import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

    from nsysalign.model import Analysis

#: Where each format goes in the run directory.
FORMATS = {"perfetto": "perfetto.json", "json": "export.json", "nsys-sqlite": "nsys-layout.sqlite"}


@click.command()
@click.argument("analysis", metavar="RUN", type=click.Path(path_type=Path, exists=True))
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice([*FORMATS]),
    default="perfetto",
    show_default=True,
    help="perfetto: trace-event JSON, which chrome://tracing opens, too; json: the analysis as one "
    "document; nsys-sqlite: a trace recorded without nsys, in the layout of an nsys export.",
)
@shared.output_file(
    "Where to write it (perfetto: compressed if it ends in .gz; default: in the run directory)."
)
@shared.quiet()
def export(analysis: Path, form: str, output: Path | None, quiet: bool) -> None:
    """Export RUN (a run directory, analysis.db).  In Perfetto the budgets are tracks of their own
    above all operations of the trace; without the trace beside the analysis, above those near the
    intervals that the report draws.

    \b
    Example:  nsysalign export nsysalign-runs/train-001 --format perfetto
              then open the file at https://ui.perfetto.dev (it stays on your machine)
    """
    from nsysalign.engine import load
    from nsysalign.show import perfetto
    from nsysalign.store import document

    with ProgressLine(quiet) as tell:
        tell("reading the analysis", 0)
        target = output or RunDirectory.around(analysis).path / FORMATS[form]
        refuse_overwriting(target)
        if form == "nsys-sqlite":
            _in_nsys_layout(analysis, target)
            click.echo("" if quiet else f"{target}\n", nl=False)
            return
        loaded = load(analysis)
        tell("writing", 40)
        remarks = []
        if form == "json":
            deliver(document.pieces(loaded), str(target))
        else:
            ran = _what_ran(analysis, loaded)
            remarks = [
                f"not in the file: {missing}" for missing in perfetto.write(loaded, ran, target)
            ]
            measured = loaded.measured["interval"]
            without = len(measured) - measured.isin(loaded.segments["interval"]).sum()
            if without and not loaded.segments.empty:
                remarks.append(
                    f"{without:,} intervals have no pieces here: nsysalign analyze --all-segments "
                    "keeps them"
                )
    if not quiet:
        click.echo(str(target))
        for line in remarks:
            click.echo(line, err=True)


def _in_nsys_layout(path: Path, target: Path) -> None:
    """The trace of a run as an nsys export.  Raises UsageError if nsys recorded it."""
    from nsysalign.trace import cupti

    trace = RunDirectory.around(path).export()
    if not cupti.is_recording(trace):
        raise UsageError(f"{trace} is an nsys export already", "copy the file")
    cupti.write_export(trace, target)


def _what_ran(path: Path, loaded: Analysis) -> pd.DataFrame:
    """All operations and calls if the trace lies next to the analysis, and the records that only
    the analysis knows; else what ran around the intervals (in the picture of the run several
    operations are one block)."""
    import pandas as pd

    try:
        trace = RunDirectory.around(path).export()
    except TraceError:
        return loaded.timeline[~loaded.timeline["interval"].isin(loaded.runs["interval"])]
    from nsysalign.split.timeline import everything
    from nsysalign.trace.read import read_trace

    records = loaded.timeline[loaded.timeline["lane_kind"] == "event"]
    return pd.concat([everything(read_trace(trace)), records], ignore_index=True)
