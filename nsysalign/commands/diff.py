"""`nsysalign diff`: two analyses, label by label."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nsysalign import registry
from nsysalign.commandline import options as shared
from nsysalign.commandline.outputs import console, deliver, refuse_unwritable

if TYPE_CHECKING:
    from nsysalign.compare.label_changes import Comparison


@click.command()
@click.argument("before", metavar="A", type=click.Path(path_type=Path, exists=True))
@click.argument("after", metavar="B", type=click.Path(path_type=Path, exists=True))
@shared.output_file("Also write a page: every label before and after, side by side.")
@shared.json_out("Write the comparison as JSON to this file (- for stdout).")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 100),
    default=2.0,
    show_default=True,
    metavar="PERCENT",
    help="Ignore changes smaller than this.",
)
@click.option(
    "--fail-on",
    multiple=True,
    type=click.Choice(["slower", "faster", "unclear", "missing"]),
    help="Exit with 1 if a label of your own code has this verdict (missing: in A only); can be "
    "repeated.",
)
@click.option(
    "--anyway",
    is_flag=True,
    help="Judge runs that were recorded differently (GPU, clocks, nsys, event tracing) all the "
    "same.",
)
@shared.brief
@shared.quiet()
@click.pass_context
def diff(
    ctx: click.Context,
    before: Path,
    after: Path,
    output: Path | None,
    json_out: str | None,
    threshold: float,
    fail_on: tuple[str, ...],
    anyway: bool,
    quiet: bool,
) -> None:
    """Compare two analyses (run directories, or an analysis.db): what got slower, and why.

    Regions are matched by name, call sites by their code. Runs that were recorded differently, or
    have no label in common, are not judged: then --fail-on ends with 3.

    \b
    Example:  nsysalign diff nsysalign-runs/train-001 nsysalign-runs/train-002 -o diff.html
    In CI:    nsysalign diff baseline/analysis.db run --fail-on slower --threshold 5
    """
    from nsysalign.compare.label_changes import compare
    from nsysalign.engine import load
    from nsysalign.errors import AnalysisError, UsageError
    from nsysalign.paths import short_path
    from nsysalign.show import diff as screen
    from nsysalign.show import diff_page
    from nsysalign.store.objects import to_json
    from nsysalign.text import safe_text

    for owns in registry.each("owns"):
        for path in (before, after):
            if owns(path):
                raise UsageError(
                    f"{path}: a measurement, and diff compares analyses",
                    "nsysalign measure old.py:make new.py:make: both in turns",
                )
    if output:
        refuse_unwritable(output)
    first, second = load(before), load(after)
    comparison = compare(
        first,
        second,
        names=(short_path(str(before)), short_path(str(after))),
        threshold=threshold / 100,
        anyway=anyway,
    )
    if output:
        diff_page.write(comparison, first, second, output)
    if json_out:
        deliver(to_json(screen.document(comparison)), json_out)
    brief = shared.view() == "brief"
    if brief:
        click.echo(_brief(comparison, before, after))
    elif not quiet and json_out != "-":
        screen.render(comparison, console(), str(output or ""))
    differ, nothing_common = comparison.count("different"), not comparison.labels
    gate_is_blind = differ or (nothing_common and "missing" not in fail_on)
    if (fail_on and gate_is_blind) or (brief and differ == len(comparison.labels)):
        if quiet or brief or json_out == "-":
            click.echo(f"nsysalign: {screen.summary(comparison)}", err=True)
            for confounder in comparison.confounders:
                click.echo(f"  {safe_text(confounder)}", err=True)
        ctx.exit(AnalysisError.exit_code)
    # labels of libraries cannot be changed here
    judged = {label.verdict for label in comparison.labels if not label.library}
    judged |= {"missing"} if comparison.missing else set()
    ctx.exit(int(bool(judged & {*fail_on})))


def _brief(comparison: Comparison, before: Path, after: Path) -> str:
    """The verdict of the program's own labels, and the label that changed most."""
    from nsysalign.brief import short
    from nsysalign.show import diff as screen
    from nsysalign.text import duration

    by_verdict = {
        label.verdict: label for label in reversed(screen.ordered(comparison)) if not label.library
    }
    order = ("slower", "faster", "unclear", "same")
    verdict = next((word for word in order if word in by_verdict), "unclear")
    sentence = screen.summary(comparison)
    if comparison.wrong:
        labels = ", ".join(f"{w.label} ({w.sides})" for w in comparison.wrong)
        sentence = f"Wrong timings: {labels}. {sentence}"
    command = f"nsysalign diff {shlex.quote(str(before))} {shlex.quote(str(after))}"
    if verdict in ("slower", "faster"):
        changed = by_verdict[verdict]
        times = " to ".join(map(duration, (changed.total.before_ns, changed.total.after_ns)))
        sentence += f" {screen.name(changed)}: {times} ({screen.changed(changed)})."
        chosen = shlex.quote(changed.label_after)
        command = f"nsysalign show {shlex.quote(str(after))} --label {chosen}"
    return short("diff", verdict, sentence, command)
