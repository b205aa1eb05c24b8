"""`nsysalign diff`: two analyses, label by label."""

from __future__ import annotations

from pathlib import Path

import click

#: What --fail-on names -> verdicts.
FAILURES = {
    "slower": ("slower",),
    "faster": ("faster",),
    "changed": ("slower", "faster"),
    "unclear": ("cannot say",),
}


@click.command()
@click.argument("before", metavar="A", type=click.Path(path_type=Path, exists=True))
@click.argument("after", metavar="B", type=click.Path(path_type=Path, exists=True))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page as well.",
)
@click.option(
    "--json", "json_out", metavar="OUT", help="Write the comparison as JSON to this file; - is stdout."
)
@click.option(
    "--threshold",
    type=click.FloatRange(0, 100),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="Changes below this do not matter.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(50, 99.9),
    default=95.0,
    show_default=True,
    metavar="PERCENT",
    help="How sure the bounds are, per label.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Of the bootstrap: the same seed, the same bounds."
)
@click.option(
    "--fail-on",
    multiple=True,
    type=click.Choice([*FAILURES, "missing"]),
    help="Exit with 1 if a label of your own code is that (missing: in A only); repeatable.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
@click.pass_context
def diff(
    ctx: click.Context,
    before: Path,
    after: Path,
    output: Path | None,
    json_out: str | None,
    threshold: float,
    confidence: float,
    seed: int,
    fail_on: tuple[str, ...],
    quiet: bool,
) -> None:
    """Compare two analyses (run directories, analysis.db or analysis.json): what got slower, and why.

    Labels are matched by name: name what you measure with nsysalign.region, since a call site moves when
    lines are added.

    \b
    Example:  nsysalign diff nsysalign-runs/train-001 nsysalign-runs/train-002 -o diff.html
    In CI:    nsysalign diff baseline/analysis.json run --fail-on slower --threshold 5
    """
    from nsysalign.commands.outputs import refuse_unwritable
    from nsysalign.compare.diff import compare
    from nsysalign.engine import load
    from nsysalign.private import short_path
    from nsysalign.report import changes, diff_html
    from nsysalign.store.objects import to_json

    for target in (output, json_out):
        if target and str(target) != "-":
            refuse_unwritable(target)
    comparison = compare(
        load(before),
        load(after),
        names=(short_path(str(before)), short_path(str(after))),
        confidence=confidence / 100,
        threshold=threshold / 100,
        seed=seed,
    )
    if output:
        diff_html.write(comparison, output)
    if json_out:
        text = to_json(changes.document(comparison))
        if json_out == "-":
            click.echo(text)
        else:
            Path(json_out).write_text(text + "\n", encoding="utf-8")
    if not quiet and json_out != "-":
        from rich.console import Console

        from nsysalign.report import diff_terminal

        diff_terminal.render(comparison, Console(highlight=False), str(output) if output else None)
    ctx.exit(1 if failed(comparison, fail_on) else 0)


def failed(comparison, fail_on: tuple[str, ...]) -> bool:  # a compare.diff.Comparison
    """Whether a label of the user's own code is what was asked for: a library's nobody here can change."""
    verdicts = {verdict for name in fail_on for verdict in FAILURES.get(name, ())}
    missing = "missing" in fail_on and bool(comparison.missing)
    return missing or any(label.verdict in verdicts for label in comparison.labels if not label.library)
