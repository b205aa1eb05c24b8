"""`nsysalign confirm`: test a cause by running the script again with one intervention."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from nsysalign.addons.confirm.confirmations import CONFIRMED
from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import deliver
from nsysalign.commandline.progress import ProgressLine
from nsysalign.errors import AnalysisError, NsysAlignError, UsageError
from nsysalign.text import safe_text

#: Re-runs, in the run directory.
RERUNS = "confirm"

if TYPE_CHECKING:
    import pandas as pd

    from nsysalign.addons.confirm.experiment import Plan, Refusal
    from nsysalign.model import Analysis
    from nsysalign.record.session import CollectOptions

#: Labels that are tested where none is named, each with a re-run of its own: two at once would
#: disturb each other.
MOST_LABELS = 3


class OptionsAtTheEnd(click.Command):
    """`confirm --label L SCRIPT ARGS`, and also `confirm SCRIPT ARGS --label L`.

    If --label comes before the script, everything after the script is the script's own.  Otherwise
    the options from the first --label after the script on are ours; `--` before the script leaves
    all of them to the script.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, rest, _ = self.make_parser(ctx).parse_args(list(args))
        found = given.get("command")  # click's marker for "none" if there is no script at all
        command = [*(found if isinstance(found, tuple) else ()), *rest]
        ours = args[: len(args) - len(command)]
        at = next(
            (n for n, a in enumerate(command) if a == "--label" or a.startswith("--label=")), None
        )
        if at and not given.get("labels") and ours[-1:] != ["--"]:
            args = [*ours, *command[at:], "--", *command[:at]]
        return super().parse_args(ctx, args)


@click.command(
    cls=OptionsAtTheEnd,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="L",
    help="Label to test; can be repeated (default: up to three whose warning a second run can "
    "test).",
)
@click.option(
    "--intervention",
    type=click.Choice(["delay", "synchronize"]),
    help="Change to make before its start records (default: what fits its cause).",
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
    labels: tuple[str, ...],
    intervention: str | None,
    source: Path | None,
    options: CollectOptions,
    lock_clocks: int | None,
    json_out: str | None,
    quiet: bool,
    command: tuple[str, ...],
) -> None:
    """Run a script again with one change before the start records of a label, and say whether its
    cause is confirmed.

    The script runs plainly first (or was run: --from), then once per label with the change. The
    script itself is not edited. Options go before SCRIPT.py, or after its arguments, beginning with
    --label.

    \b
    delay        a delay kernel in front: the host runs ahead, what remains is GPU time
    synchronize  the device is idle before: nothing is left to queue behind
    \b
    Example:  nsysalign confirm puzzle.py --label t1
              nsysalign confirm --label t1 --intervention delay -- train.py --epochs 1
    """
    from nsysalign.commandline.present import finish, present
    from nsysalign.engine import load
    from nsysalign.record.lock import locked
    from nsysalign.record.session import collect

    if source is not None and options.output is not None:
        raise UsageError("with --from everything goes to that run directory", "leave out -o")
    silent = quiet or json_out == "-"
    if source is None:
        with ProgressLine(silent) as progress, locked(lock_clocks) as conditions:
            result = collect(command, replace(options, conditions=conditions), progress)
        source, status = result.run_dir, result.exit_status
        before = finish(source, exit_status=status, quiet=silent, json_out=None)
        if status or before is None:
            click.echo(
                f"nsysalign: the script ended with status {status}, so it is not run again; its "
                f"analysis is in {source}",
                err=True,
            )
            ctx.exit(status)
    else:
        try:
            before = load(source)
        except AnalysisError:
            before = present(source, quiet=silent, nsys=options.nsys)
    with locked(lock_clocks) as conditions:
        outcome = put_to_the_test(
            source, before, command, replace(options, conditions=conditions),
            labels=labels, intervention=intervention, quiet=silent,
        )  # fmt: skip
    for refusal in outcome.refusals:
        why = f"{refusal.intervention} is not possible: {refusal.reason}"
        click.echo(f"nsysalign: {refusal.label}: {why}", err=True)
    if outcome.left:
        left = f"{', '.join(outcome.left)} (--from RUN_DIR --label L)"
        click.echo(f"note: not tested, because each needs a run of its own: {left}", err=True)
    if outcome.table is None:
        raise UsageError(
            "nothing could be tested",
            "choose another --label or --intervention: nsysalign confirm --help",
        )
    deliver(source / CONFIRMED, json_out)


@dataclass(frozen=True)
class Outcome:
    """The verdicts so far (None: nothing was run), and what was refused."""

    table: pd.DataFrame | None
    refusals: list[Refusal]
    left: list[str]  # labels that could have been tested as well


def put_to_the_test(
    run_dir: Path,
    before: Analysis,
    command: Sequence[str],
    options: CollectOptions,
    *,
    labels: Sequence[str] = (),
    intervention: str | None = None,
    quiet: bool = False,
) -> Outcome:
    """Re-run `command` once per label; store the verdicts in `run_dir` and print them.

    The re-runs lie in RUN_DIR/confirm/LABEL-INTERVENTION-N; an earlier verdict about the same label
    and intervention is replaced in confirm.json, its re-run stays.
    """
    from nsysalign.addons.confirm.experiment import Plan, choose, confirmable, plan, spans
    from nsysalign.commandline.present import store
    from nsysalign.rundir import event_logs
    from nsysalign.trace.eventlog import read_event_logs

    if unknown := [label for label in labels if label not in set(before.labels["label"])]:
        raise _unknown(before, unknown[0])
    logs = event_logs(run_dir)
    issued = spans(before, read_event_logs(logs) if logs else None)
    plans: list[Plan] = []
    refusals, left = [], []
    for label in dict.fromkeys(labels or confirmable(before)):
        change = intervention or choose(before, label)
        made = plan(before, label, change, issued)
        if not isinstance(made, Plan):
            refusals.append(made)
        elif len(plans) < (len(labels) or MOST_LABELS):
            plans.append(made)
        else:
            left.append(label)
    table = None
    for made in plans:
        tested = _test(run_dir, made, command, options, quiet)
        table = tested.table
        before = before.with_tables({"confirmations": table})
        store(before, run_dir)
        if tested.status != 0:  # it would fail the next time as well, or Ctrl-C was pressed
            break
    return Outcome(table, refusals, left)


class Tested(NamedTuple):
    table: pd.DataFrame  # all verdicts so far
    status: int  # the script's


def _test(
    run_dir: Path, plan: Plan, command: Sequence[str], options: CollectOptions, quiet: bool
) -> Tested:
    """One re-run and its verdict."""
    import pandas as pd

    from nsysalign.addons.confirm import confirmations
    from nsysalign.addons.confirm.judge import judge, nothing, table
    from nsysalign.commandline.present import present
    from nsysalign.files import file_name
    from nsysalign.record.session import collect

    runs = run_dir.resolve() / RERUNS
    stem = f"{file_name(plan.label, 40)}-{plan.intervention}"
    folder = next(f for n in count(1) if not (f := runs / f"{stem}-{n}").exists())
    if not quiet:
        change = f"{plan.intervention} before {plan.label}"
        click.echo(f"nsysalign: running it again with one change: {change}", err=True)
    again = replace(options, output=folder, environment={"NSYSALIGN_CONFIRM": spec(plan)})
    with ProgressLine(quiet) as progress:
        status = collect(command, again, progress).exit_status
    run = folder.relative_to(run_dir.resolve()).as_posix()
    try:
        confirmation = judge(plan, present(folder, quiet=True, nsys=options.nsys), run=run)
    except NsysAlignError as error:
        why = f"the second run could not be analysed: {error.message}"
        confirmation = nothing(plan, why, run=run)
    if status != 0:
        reason = f"the script ended with status {status} in the second run"
        confirmation = replace(confirmation, verdict="not conclusive", reason=reason)
    new, old = table(confirmation), confirmations.read(run_dir / CONFIRMED)
    kept = old[(old["label"] != plan.label) | (old["intervention"] != plan.intervention)]
    everything = pd.concat([kept, new], ignore_index=True) if len(kept) else new
    confirmations.write(everything, run_dir / CONFIRMED)
    if not quiet:
        for row in new.itertuples(index=False):
            causes = ", ".join(row.rules) or "its cause"
            said = f"{row.verdict}: {row.label} ({causes}): {row.reason}\n  Changed: {row.changed}"
            click.echo("\n" + "\n".join(map(safe_text, said.split("\n"))))
    return Tested(everything, status)


def spec(plan: Plan) -> str:
    """What the probe is told (probe/intervene.py)."""

    def place(site: str) -> list:
        file, _, line = site.rpartition(":")
        full = Path.cwd() / file
        return [str(full) if full.is_file() else file, int(line)]

    starts = [[*place(site), [place(c) for c in callers]] for site, callers in plan.starts]
    return json.dumps(
        {
            "intervention": plan.intervention,
            "label": plan.label,
            "region": plan.region,
            "starts": starts,
            "delay_ns": plan.delay_ns,
        }
    )


def _unknown(before: Analysis, label: str) -> UsageError:
    import difflib

    known = before.labels["label"].tolist()
    lost = before.unaligned[before.unaligned["label"] == label]
    if len(lost):
        return UsageError(
            f"{label}: its intervals could not be placed: {lost['reason'].iloc[0]}",
            "nsysalign analyze RUN_DIR says what its trace lacks",
        )
    near = difflib.get_close_matches(label, known, n=3, cutoff=0.3) or known[:5]
    found = ", ".join(near) if known else "no interval was placed at all"
    return UsageError(f"no label {label!r} in that run", f"some labels: {found}")
