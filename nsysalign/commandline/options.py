"""Options that several commands have: one name, one type, one place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysalign import registry
from nsysalign.commandline.outputs import refuse_unwritable

if TYPE_CHECKING:
    from nsysalign.model import Analysis

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
VIEW = "nsysalign.view"


def _writable(ctx: click.Context, _option: click.Parameter, file: Any) -> Any:
    """Before the work: OutputError where a file of that name cannot be written."""
    if file and str(file) != "-" and not ctx.resilient_parsing:
        refuse_unwritable(file)
    return file


def _option(*names: str, **settings: Any) -> Callable[[str], Decorator]:
    """A function of the help text that returns the decorator."""
    return lambda words: click.option(*names, help=words, **settings)


def _path(kind: str) -> dict[str, Any]:
    return {"type": click.Path(path_type=Path, **{kind: False})}


nsys = _option("--nsys", metavar="PATH")
#: The name of a file that can be written; "-" is stdout.
json_out = _option("--json", "json_out", metavar="OUT", callback=_writable)
output_file = _option("-o", "--output", metavar="FILE", callback=_writable, **_path("dir_okay"))
output_folder = _option("-o", "--output", metavar="DIR", **_path("file_okay"))
lock_clocks = _option("--lock-clocks", type=click.IntRange(min=1), metavar="MHZ")


def quiet(words: str = "Print only errors.") -> Decorator:
    """-q."""
    return click.option("-q", "--quiet", is_flag=True, help=words)


def files(name: str, words: str) -> Decorator:
    """A file that can be given several times: a tuple of paths."""
    words += "; can be repeated.  Not needed for a run directory."
    return click.option(
        name, multiple=True, type=click.Path(path_type=Path), metavar="FILE", help=words
    )


def script() -> Decorator:
    """The script and its own arguments: argument `command`."""
    metavar = "[--] SCRIPT.py|COMMAND [ARGS]..."
    return click.argument(
        "command", nargs=-1, type=click.UNPROCESSED, required=True, metavar=metavar
    )


def _viewed(*names: str, words: str) -> Decorator:
    def chosen(ctx: click.Context, option: click.Parameter, flag: bool) -> None:
        if flag:
            if ctx.meta.get(VIEW, option.name) != option.name:
                raise click.UsageError("one of -v, --kernels and --brief is printed at a time")
            ctx.meta[VIEW] = option.name

    return click.option(*names, is_flag=True, expose_value=False, callback=chosen, help=words)


brief = _viewed("--brief", words="Print the answer as one line of JSON of at most 2,000 bytes (docs/agents.md).")  # fmt: skip
_kernels = _viewed("--kernels", words="Show what ran, by kernel, instead of the first screen.")
_full = _viewed("-v", "--verbose", "full", words="Show all labels, a sentence each, and all findings with evidence.")  # fmt: skip


def views(command: Callable[..., Any]) -> Callable[..., Any]:
    """-v, --kernels and --brief: what `view` answers while the command runs."""
    return _full(_kernels(brief(command)))


def view() -> str:
    """What the running command is to print: "" (the first screen), "full", "kernels",
    "brief"."""
    ctx = click.get_current_context(silent=True)
    return ctx.meta.get(VIEW, "") if ctx else ""


def of_addons(command: str) -> Decorator:
    """The options that add-ons have for a command of the core: arguments of these names."""

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        for name, addon in registry.addons().items():
            if command in addon.options:
                function = registry.imported(name, addon.options[command])(function)
        return function

    return decorated


_PROFILING = (
    nsys("The nsys to use (default: $NSYS, PATH, the usual install folders)."),
    output_folder("Run directory, new or empty (default: nsysalign-runs/SCRIPT-NNN)."),
    click.option(
        "--accurate",
        is_flag=True,
        help="Record GPU timestamps of events: places them exactly, but the tracing makes "
        "intervals longer.",
    ),
    click.option(
        "--no-calibrate",
        is_flag=True,
        help="Skip the calibration, a few milliseconds of known GPU work before the first event.",
    ),
    click.option(
        "--graph-trace",
        type=click.Choice(["graph", "node"]),
        help="Passed to nsys as --cuda-graph-trace.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Stop the script after this time, as Ctrl-C would; what was recorded is analysed.",
    ),
    lock_clocks(
        "Lock the SM clock at this frequency while the script runs (NVML; needs administrator "
        "rights)."
    ),
)


recorder = click.option(
    "--recorder",
    type=click.Choice(["nsys", "cupti", "log"]),
    help="What records (default: nsys where it is found, else cupti, else log).",
)


def profiling(command: Callable[..., Any]) -> Callable[..., Any]:
    """How to profile a script: argument `options`, a CollectOptions, and `lock_clocks`."""

    @functools.wraps(command)
    def with_options(
        *args: Any, no_calibrate: bool, timeout: float | None, **parameters: Any
    ) -> Any:
        from nsysalign.record.session import CollectOptions

        values = {
            name: parameters.pop(name) for name in ("nsys", "output", "accurate", "graph_trace")
        }
        options = CollectOptions(calibrate=not no_calibrate, timeout_s=timeout, **values)
        return command(*args, options=options, **parameters)

    for option in reversed(_PROFILING):
        with_options = option(with_options)
    return with_options


def _known(_ctx: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> Any:
    """Refuse a misspelt rule before anything runs: a check that can never fail is worse than
    none."""
    if names:
        from nsysalign.explain.finding import SEVERITIES
        from nsysalign.explain.rules import every_name

        rules = [*SEVERITIES, *sorted(every_name())]
        if unknown := [n for n in names if n not in rules]:
            raise click.BadParameter(
                f"there is no rule {unknown[0]}; there are: {', '.join(rules)}"
            )
    return names


#: `--fail-on RULE`, repeatable.
fail_on_option = click.option(
    "--fail-on",
    multiple=True,
    metavar="RULE",
    callback=_known,
    help="Exit with 1 when a finding has this rule, or this severity or a worse one (error, "
    "warning, info); can be repeated.",
)


def closed(analysis: Analysis, names: tuple[str, ...], *, quiet: bool) -> bool:
    """Whether a finding is among `names`; stderr says which."""
    from nsysalign.explain.finding import SEVERITIES

    severities = [SEVERITIES.index(n) for n in names if n in SEVERITIES]
    grave = SEVERITIES[: max(severities, default=-1) + 1]
    findings = analysis.findings
    hits = findings[findings["rule"].isin(names) | findings["severity"].isin(grave)]
    if not quiet:
        for rule, label in hits[["rule", "label"]].drop_duplicates().itertuples(index=False):
            click.echo(f"failed on {rule}: {label}", err=True)
        for note in analysis.notes:
            if any(note.startswith(f"{n} was not checked") for n in names):
                click.echo(note, err=True)
    return not hits.empty
