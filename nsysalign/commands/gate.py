"""`--fail-on`: findings that end a command with exit code 1, for CI."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from nsysalign.model import Analysis


def _known(_ctx: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a misspelt rule before anything runs: a check that can never fail is worse than none."""
    if names:
        from nsysalign.diagnose.finding import SEVERITIES
        from nsysalign.diagnose.rules import REGISTRY

        rules = [*SEVERITIES, *sorted(rule.name for rule in REGISTRY)]
        if unknown := [n for n in names if n not in rules]:
            raise click.BadParameter(f"there is no rule {unknown[0]}; there are: {', '.join(rules)}")
    return names


def fail_on_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--fail-on RULE`, repeatable."""
    return click.option(
        "--fail-on",
        multiple=True,
        metavar="RULE",
        callback=_known,
        help="Exit with 1 when a finding has this rule, or this severity or a worse one (error, warning, info); can be "
        "repeated.",
    )(command)


def closed(analysis: Analysis, names: tuple[str, ...], *, quiet: bool) -> bool:
    """Whether a finding is among `names`; stderr says which."""
    if not names:
        return False
    from nsysalign.diagnose.finding import SEVERITIES

    severities = [SEVERITIES.index(n) for n in names if n in SEVERITIES]
    grave = {s for s in SEVERITIES if severities and SEVERITIES.index(s) <= max(severities)}
    findings = analysis.findings
    hits = findings[findings["rule"].isin(names) | findings["severity"].isin(grave)]
    if not quiet:
        for rule, label in hits[["rule", "label"]].drop_duplicates().itertuples(index=False):
            click.echo(f"failed on {rule}: {label}", err=True)
        for note in analysis.notes:
            if any(note.startswith(f"{n} was not checked") for n in names):
                click.echo(note, err=True)
    return not hits.empty
