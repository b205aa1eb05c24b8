"""Options that several commands have: one name, one type, one place.  Each function returns a decorator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def quiet(words: str = "Print only errors.") -> Decorator:
    """-q: argument `quiet`."""
    return click.option("-q", "--quiet", is_flag=True, help=words)


def nsys(words: str) -> Decorator:
    """--nsys PATH: argument `nsys`."""
    return click.option("--nsys", metavar="PATH", help=words)


def json_out(words: str) -> Decorator:
    """--json OUT: argument `json_out`, a text; "-" is stdout."""
    return click.option("--json", "json_out", metavar="OUT", help=words)


def output_file(words: str) -> Decorator:
    """-o FILE: argument `output`."""
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option("-o", "--output", type=kind, metavar="FILE", help=words)


def output_folder(words: str) -> Decorator:
    """-o DIR: argument `output`."""
    kind = click.Path(path_type=Path, file_okay=False)
    return click.option("-o", "--output", type=kind, metavar="DIR", help=words)


def files(name: str, words: str) -> Decorator:
    """A file that can be given several times: a tuple of paths."""
    words += "; can be repeated.  Not needed for a run directory."
    return click.option(name, multiple=True, type=click.Path(path_type=Path), metavar="FILE", help=words)


def lock_clocks(words: str) -> Decorator:
    """--lock-clocks MHZ: argument `lock_clocks`."""
    return click.option("--lock-clocks", type=click.IntRange(min=1), metavar="MHZ", help=words)


def script() -> Decorator:
    """The script and its own arguments: argument `command`."""
    return click.argument(
        "command",
        nargs=-1,
        type=click.UNPROCESSED,
        required=True,
        metavar="[--] SCRIPT.py|COMMAND [ARGS]...",
    )


def profiling(command: Callable[..., Any]) -> Callable[..., Any]:
    """How to profile a script: argument `options`, a CollectOptions, and `lock_clocks`."""

    @functools.wraps(command)
    def with_options(
        *args: Any, accurate: bool, no_calibrate: bool, no_references: bool, graph_trace: str | None,
        timeout: float | None, nsys: str | None, output: Path | None, **rest: Any,
    ) -> Any:  # fmt: skip
        from nsysalign.collect.session import CollectOptions

        options = CollectOptions(
            nsys=nsys, output=output, accurate=accurate, calibrate=not no_calibrate, references=not no_references,
            graph_trace=graph_trace, timeout_s=timeout,
        )  # fmt: skip
        return command(*args, options=options, **rest)

    for option in reversed(_PROFILING):
        with_options = option(with_options)
    return with_options


_PROFILING = (
    nsys("The nsys to use (default: $NSYS, PATH, the usual install folders)."),
    output_folder("Run directory, new or empty (default: nsysalign-runs/SCRIPT-NNN)."),
    click.option(
        "--accurate",
        is_flag=True,
        help="Record GPU timestamps of events: places them exactly, but the tracing makes intervals longer.",
    ),
    click.option(
        "--no-calibrate",
        is_flag=True,
        help="Skip the calibration, a few milliseconds of known GPU work before the first event.",
    ),
    click.option(
        "--no-references",
        is_flag=True,
        help="Do not measure events against reference events: saves some microseconds after each "
        "elapsed_time, but their places are then only estimated.",
    ),
    click.option(
        "--graph-trace", type=click.Choice(["graph", "node"]), help="Passed to nsys as --cuda-graph-trace."
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Stop the script after this time, as Ctrl-C would; what was recorded is analysed.",
    ),
    lock_clocks(
        "Lock the SM clock at this frequency while the script runs (NVML; needs administrator rights)."
    ),
)
