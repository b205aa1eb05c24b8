"""What the doctor says about nsys's cost on this machine, and `--calibrate`, which measures it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from nsysalign.commands.doctor_row import OK, WARNING, Row
from nsysalign.text import plural, safe_text

if TYPE_CHECKING:
    from nsysalign.collect.nsys import Nsys
    from nsysalign.collect.nsys_cost import NsysCost

_COMMAND = "nsysalign doctor --calibrate"
_WITHOUT = "a run on a slow host goes unnoticed, and its predictions without nsys are then too long"


def row(nsys: Nsys | None, environ: Mapping[str, str] = os.environ) -> Row | None:
    """The doctor's row; None if there is nothing to measure: no nsys, no GPU."""
    from nsysalign.collect import nsys_cost

    here = nsys_cost.machine(nsys) if nsys else None
    if here is None:
        return None
    try:
        cost = nsys_cost.load(here, environ)
    except nsys_cost.Unusable as error:
        return Row("nsys cost", WARNING, f"{error}: it is not used", _WITHOUT, _COMMAND)
    if cost is None:
        return Row("nsys cost", OK, f"not measured on this machine ({_COMMAND})")
    return Row("nsys cost", OK, f"measured {nsys_cost.days(cost.age_s)} ago: {_key(cost)}")


def _key(cost: NsysCost) -> str:
    m = cost.machine
    return safe_text(
        f"{m.gpu}, driver {m.driver}, nsys {m.nsys.split('-')[0]}, torch {m.torch}, Python {m.python}, {m.cpu}"
    )


def calibrate(named: str | None, environ: Mapping[str, str] = os.environ) -> None:
    """Measure, save and show.  Raises NsysAlignError if that is impossible."""
    from nsysalign.collect import nsys_cost
    from nsysalign.collect.command import refuse_nested
    from nsysalign.collect.nsys import find_nsys
    from nsysalign.commands.progress import ProgressLine

    refuse_nested(environ)
    nsys = find_nsys(named)
    with ProgressLine(quiet=False) as tell:
        cost = nsys_cost.calibrate(nsys, nsys_cost.machine(nsys), tell)
    nsys_cost.save(cost, environ)
    show(cost)


def show(cost: NsysCost) -> None:
    """A table: us per call of the host, at the speed that is usual here."""
    width = max((len(kind) for kind in cost.calls), default=0)
    click.echo(f"{'us per call':<{width}}  without    nsys  ratio  processes differed by")
    for kind, call in cost.calls.items():
        click.echo(
            f"{kind:<{width}}  {call.plain_ns / 1e3:7.2f} {call.nsys_ns / 1e3:7.2f}  {call.nsys_ns / call.plain_ns:5.2f}  "
            f"{100 * (call.spread - 1):.0f} %"
        )
    reach = [100 * (ns / cost.meter_usual_ns - 1) for ns in (cost.meter_least_ns, cost.meter_most_ns)]
    click.echo(
        f"The host's speed: a fixed piece of work took {cost.meter_usual_ns / 1e3:.2f} us usually, {reach[0]:+.0f} to "
        f"{reach[1]:+.0f} % of that in 90 of 100 readings."
    )
    if cost.left_out:
        said = ", ".join(f"{kind} ({why})" for kind, why in cost.left_out.items())
        click.echo(safe_text(f"{plural(len(cost.left_out), 'kind')} of call could not be measured: {said}"))
    click.echo(f"Kept for {_key(cost)}.")
