"""`nsysalign confirm`: test a cause by running the script again with one change."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import deliver
from nsysalign.errors import AnalysisError, NsysAlignError, UsageError
from nsysalign.text import safe_text

if TYPE_CHECKING:
    from nsysalign.addons.confirm.experiment import Plan
    from nsysalign.model import Analysis
    from nsysalign.record.session import CollectOptions


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--label",
    metavar="L",
    help="Label to test (default: the first whose warning a second run can test).",
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="RUN_DIR",
    help="Compare with this existing run instead of running the script unchanged first; not with "
    "-o.",
)
@shared.profiling
@shared.json_out("Also write confirm.json to this file (- for stdout).")
@shared.quiet("Print only what the script prints.")
@shared.script()
@click.pass_context
def confirm(
    ctx: click.Context,
    label: str | None,
    source: Path | None,
    options: CollectOptions,
    lock_clocks: int | None,
    json_out: str | None,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run a script again with one change before the start records of a label, and say whether its
    cause is confirmed.

    The script runs plainly first (or was run: --from), then once more with the change. The
    script itself is not edited.

    \b
    delay        a delay kernel in front: the host runs ahead, what remains is GPU time
    synchronize  the device is idle before: nothing is left to queue behind
    \b
    Example:  nsysalign confirm --label t1 puzzle.py
              nsysalign confirm --from nsysalign-runs/train-001 train.py --epochs 1
    """
    from nsysalign.addons.confirm.verdicts import CONFIRMED
    from nsysalign.commandline.present import finish, present, recorded
    from nsysalign.engine import load
    from nsysalign.record.lock import locked

    if source is not None and options.output is not None:
        raise UsageError("with --from everything goes to that run directory", "leave out -o")
    silent = quiet or json_out == "-"
    with locked(lock_clocks) as conditions:
        options = replace(options, conditions=conditions)
        if source is None:
            result = recorded(command, options, silent, recorder="nsys")
            source, status = result.run_dir, result.exit_status
            before = finish(
                source, exit_status=status, command=command, quiet=silent, json_out=None
            )
            if status or before is None:
                click.echo(
                    f"nsysalign: the script ended with status {status}, so it is not run again; "
                    f"its analysis is in {source}",
                    err=True,
                )
                ctx.exit(status)
        else:
            try:
                before = load(source)
            except AnalysisError:
                before = present(source, quiet=silent, nsys=options.nsys)
        _test(source, before, _plan(source, before, label), command, options, quiet=silent)
    deliver((source / CONFIRMED).read_text("utf-8"), json_out)


def _plan(run_dir: Path, before: Analysis, asked: str | None) -> Plan:
    """The experiment for a label, or for the first that has one, with the change that fits its
    cause; what cannot be tested is said.  Raises UsageError if nothing can be."""
    from nsysalign.addons.confirm import experiment
    from nsysalign.addons.confirm.verdicts import SETTLES, testable
    from nsysalign.rundir import event_logs
    from nsysalign.trace.eventlog import read_event_logs

    known, f = set(before.labels["label"]), before.findings
    if asked and asked not in known and asked not in set(before.unaligned["label"]):
        near = difflib.get_close_matches(asked, known, 5) or sorted(known)[:5]
        raise UsageError(f"there is no label {asked}", f"some labels: {', '.join(near)}")
    rules = {rule for settled in SETTLES.values() for rule in settled}
    worth = f.loc[f["rule"].isin(rules) & (f["severity"] != "info"), "label"]
    logs = event_logs(run_dir)
    log = read_event_logs(logs) if logs else None
    for label in [asked] if asked else dict.fromkeys(worth[worth.isin(testable(before))]):
        change = experiment.choose(before, label)
        try:
            return experiment.plan(before, label, change, log)
        except experiment.Refused as error:
            click.echo(f"nsysalign: {label}: {change} is not possible: {error}", err=True)
    raise UsageError("nothing could be tested", "choose another --label")


def _test(
    run_dir: Path,
    before: Analysis,
    plan: Plan,
    command: Sequence[str],
    options: CollectOptions,
    *,
    quiet: bool,
) -> None:
    """Re-run `command` in RUN_DIR/confirm/LABEL-CHANGE-N, store the verdict and print it.  An
    earlier verdict about the same label and change is replaced, its re-run stays."""
    import pandas as pd

    from nsysalign.addons.confirm import verdicts
    from nsysalign.addons.confirm.experiment import changed_records, judge, row
    from nsysalign.commandline.present import present, recorded, store
    from nsysalign.files import file_name
    from nsysalign.rundir import event_logs

    stem, home = f"{file_name(plan.label, 40)}-{plan.change}", run_dir.resolve()
    run = next(r for n in count(1) if not (home / (r := f"confirm/{stem}-{n}")).exists())
    if not quiet:
        change = f"{plan.change} before {plan.label}"
        click.echo(f"nsysalign: running it again with one change: {change}", err=True)
    again = replace(options, output=home / run, environment={"NSYSALIGN_CONFIRM": spec(plan)})
    status = recorded(command, again, quiet, recorder="nsys").exit_status
    try:
        if status:
            raise NsysAlignError(f"the script ended with status {status} in the second run")
        after = present(home / run, quiet=True, nsys=options.nsys)
        new = judge(plan, after, run, changed_records(event_logs(home / run)))
    except NsysAlignError as error:
        new = row(plan, "unclear", error.message, run)
    old = verdicts.read(run_dir / verdicts.CONFIRMED)
    old = old[(old["label"] != plan.label) | (old["intervention"] != plan.change)]
    confirmations = pd.concat([old, new], ignore_index=True) if len(old) else new
    verdicts.write(confirmations, run_dir / verdicts.CONFIRMED)
    store(before.with_tables({"confirmations": confirmations}), run_dir)
    if not quiet:
        (result,) = new.itertuples(index=False)
        causes = ", ".join(result.rules) or "its cause"
        click.echo(safe_text(f"{result.verdict}: {result.label} ({causes}): {result.reason}"))
        click.echo(safe_text(f"  Changed: {result.changed}"))


def spec(plan: Plan) -> str:
    """What the probe is told (intervene.py)."""

    def place(site: str) -> list:
        file, _, line = site.rpartition(":")
        return [str(Path.cwd() / file) if Path(file).is_file() else file, int(line)]

    return json.dumps(
        {
            "code": str(Path(__file__).with_name("intervene.py")),
            "intervention": plan.change,
            "label": plan.label,
            "region": plan.region,
            "starts": [[place(site), *map(place, callers)] for site, callers in plan.starts],
            "delay_ns": plan.delay_ns,
        }
    )
