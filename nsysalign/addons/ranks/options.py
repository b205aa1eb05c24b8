"""`nsysalign analyze` of several traces: its options, and whether they are several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from nsysalign.errors import UsageError


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --ranks, --jobs and --dask."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option(
        "--ranks",
        is_flag=True,
        help="Also compare the processes of one trace (such as torchrun under one nsys).",
    ),
    click.option(
        "--jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Several traces: the number of worker processes (default: as many as cores and memory "
        "allow).",
    ),
    click.option(
        "--dask",
        metavar="ADDRESS|local",
        help="Several traces: use the workers of a Dask scheduler.",
    ),
)


def several(traces: Sequence[Path], given: dict[str, Any]) -> bool:
    """Compare the ranks, if there are several or --ranks asks for it; `given` are the options of
    `analyze`.  Raises UsageError for options that do not fit."""
    from nsysalign.addons.ranks.sources import is_many

    if given["ranks"] or len(traces) > 1 or is_many(traces[0]):
        from nsysalign.addons.ranks.command import present_many

        for name in ("fail_on", "baseline", "marks"):
            if given.get(name):
                raise UsageError(
                    f"--{name.replace('_', '-')} is for one trace, several are given",
                    "nsysalign analyze RUN, once for each of them",
                )
        names = ("events", "output", "json_out", "nsys", "jobs", "dask", "quiet")
        present_many(traces, **{name: given[name] for name in names})
        return True
    if given["dask"]:
        raise UsageError(
            f"--dask is for several traces; {traces[0]} is one",
            "nsysalign analyze RUN1 RUN2 ... | FOLDER",
        )
    return False
