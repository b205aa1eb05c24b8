"""`nsysalign measure`: how long a call takes, how certain that is, and the best batch."""

from __future__ import annotations

import os
from typing import Any

import click

from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import console, deliver
from nsysalign.errors import Interrupted


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="FILE.py:FUNCTION [FILE.py:FUNCTION]")
@click.option(
    "--batch",
    metavar="N,N|auto",
    help="Batch sizes, or auto: search the best (default: the function's own, else 1).",
)
@click.option(
    "--mode", metavar="M,M", help="latency, event, device, steady, graph (default: all of them)."
)
@click.option(
    "--processes",
    type=click.IntRange(1, 30),
    default=3,
    show_default=True,
    help="Fresh processes per batch: more of them make the interval narrower.",
)
@click.option(
    "--budget",
    metavar="TIME",
    help="Time limit for everything, such as 45s or 4min (default: 4min with --batch auto).  What "
    "does not fit is left out, and the output says so.",
)
@click.option(
    "--max-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="The largest batch size that the search tries.",
)
@click.option(
    "--clocks",
    is_flag=True,
    help="By every clock, with a warm and a cold L2: what each way of timing prints for the same "
    "call, and which answers which question.  Runs it once under nsys, too.",
)
@click.option("--quick", is_flag=True, help="One process, rough: a first look.")
@click.option(
    "--brief",
    is_flag=True,
    help="Print the answer as one line of JSON of at most 2,000 bytes (docs/agents.md).",
)
@shared.lock_clocks("Lock the SM clock at this frequency meanwhile (needs administrator rights).")
@shared.nsys("The nsys to use with --clocks.")
@shared.output_folder("Folder, new or empty (default: nsysalign-runs/measure-NNN).")
@shared.json_out("Write measure.json to this file as well; - is stdout.")
@click.option("--backend", default="cuda", hidden=True)
@shared.quiet()
@click.pass_context
def measure(
    ctx: click.Context, json_out: str | None, brief: bool, quiet: bool, **given: Any
) -> None:
    """Measure a call: fresh processes, five ways of timing it, reliable intervals, the best batch.

    FUNCTION(batch), or FUNCTION() without --batch, prepares everything and returns the call to
    measure (or an nsysalign.Workload).  A second function is compared with the first.

    \b
    Example:  nsysalign measure bench.py:make --batch auto
              nsysalign measure old.py:make new.py:make
    """
    from nsysalign.addons.measure import page, plan, screen
    from nsysalign.addons.measure.session import Session
    from nsysalign.addons.measure.stored import MEASUREMENT
    from nsysalign.commandline.progress import ProgressLine
    from nsysalign.record.command import refuse_nested

    refuse_nested(os.environ)
    batches, search = plan.batches(given.pop("batch"))
    mode, budget = given.pop("mode"), given.pop("budget")
    options = plan.Options(
        targets=tuple(map(plan.target, given.pop("targets"))),
        batches=batches,
        search=search,
        modes=plan.modes(mode) if mode else plan.NAMES,
        budget_s=plan.seconds(budget) if budget else None,
        most_batch=given.pop("max_batch"),
        **given,
    )
    with ProgressLine(quiet) as tell:
        result = Session(options, tell).run()
    deliver(result.folder / MEASUREMENT, json_out)
    report = result.folder / "measure.html"
    page.write(result, report)
    if brief and json_out != "-":
        from nsysalign.addons.measure import brief as short

        click.echo(short.text(short.brief(result)))
    elif not quiet and json_out != "-":
        screen.render(result, console(), str(report))
    if not result.complete:
        raise Interrupted("interrupted: the results until then are kept")
    ctx.exit(3 if result.failed else 0)
