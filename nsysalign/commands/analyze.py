"""`nsysalign analyze`: an export, a report or a run directory, to tables and pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nsysalign.commandline import options as shared
from nsysalign.commandline.options import closed, fail_on_option
from nsysalign.errors import UsageError


@click.command()
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="TRACE..."
)
@shared.files("--events", "Event log of a process")
@shared.output_folder(
    "Where report.html, analysis.json and analysis.db go (default: the run directory, or "
    "TRACE.nsysalign; several traces: a new or empty folder, nsysalign-ranks-NNN)."
)
@shared.files("--baseline", "Event log of the same program run without nsys")
@shared.files("--marks", "Marks inside the kernels of this trace (.nsam)")
@shared.json_out("Also write the analysis as JSON to this file (- for stdout).")
@shared.nsys("The nsys to export a .nsys-rep with.")
@click.option(
    "--ranks",
    is_flag=True,
    help="Also compare the processes of one trace (such as torchrun under one nsys).",
)
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Several traces: the number of worker processes (default: as many as cores and memory "
    "allow).",
)
@click.option(
    "--dask", metavar="ADDRESS|local", help="Several traces: use the workers of a Dask scheduler."
)
@click.option(
    "--all-segments",
    is_flag=True,
    help="Keep the segments of every interval in analysis.db, however many there are.",
)
@fail_on_option
@shared.quiet()
@click.pass_context
def analyze(
    ctx: click.Context, traces: tuple[Path, ...], ranks: bool, dask: str | None,
    fail_on: tuple[str, ...], quiet: bool, **given: Any,
) -> None:  # fmt: skip
    """Place, split and explain the intervals of TRACE: a .sqlite, a .nsys-rep or a run directory.

    Several of them, or a folder of them, are the ranks of one job: each is analysed, and then label
    by label they are compared: who is slowest, who waits for whom.

    \b
    Example:  nsysalign analyze trace.sqlite --events events-484.jsonl
              nsysalign analyze report_rank0.nsys-rep report_rank1.nsys-rep
    """
    from nsysalign.memory import look_for_garbage_less_often

    look_for_garbage_less_often()
    from nsysalign.addons.ranks.sources import is_many
    from nsysalign.commandline.present import present

    trace = traces[0]
    if ranks or len(traces) > 1 or is_many(trace):
        from nsysalign.addons.ranks.command import present_many

        if (
            option := "fail-on"
            if fail_on
            else next((o for o in ("baseline", "marks") if given[o]), "")
        ):
            raise UsageError(
                f"--{option} is for one trace, several are given",
                "nsysalign analyze RUN, once for each of them",
            )
        shared_by_both = {
            name: given[name] for name in ("events", "output", "json_out", "nsys", "jobs")
        }
        debug = bool((ctx.obj or {}).get("debug"))
        present_many(traces, quiet=quiet, dask=dask, debug=debug, **shared_by_both)
        return
    if dask:
        raise UsageError(
            f"--dask is for several traces; {trace} is one",
            "nsysalign analyze RUN1 RUN2 ... | FOLDER",
        )
    del given["jobs"]  # one trace is the work of one process
    analysis = present(trace, quiet=quiet, **given)
    ctx.exit(1 if fail_on and closed(analysis, fail_on, quiet=quiet) else 0)
