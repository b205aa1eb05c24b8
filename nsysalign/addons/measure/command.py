"""`nsysalign measure` and `nsysalign.benchmark`: how long a call takes, how certain that is, and
the best batch."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nsysalign.addons.measure.clocks import NAMES, TRITON
from nsysalign.addons.measure.target import IN_WORKER
from nsysalign.commandline import options as shared
from nsysalign.errors import Interrupted, UsageError

if TYPE_CHECKING:
    from nsysalign.addons.measure.result import Measure

#: Of a search that was given none.
SEARCH_BUDGET_S = 240.0


@dataclass(frozen=True)
class Target:
    """What is measured.  `path`: where the worker additionally looks for modules."""

    name: str
    spec: str
    path: tuple[str, ...] = ()


@dataclass
class Options:
    """How to measure; times in seconds.  Raises UsageError where parts do not go together."""

    targets: tuple[Target, ...]
    batch: str | None = None  # "64", "1,8", "auto"; None is the function's own
    modes: Sequence[str] = NAMES
    processes: int = 3
    budget_s: float | None = None
    clocks: bool = False  # by every clock, with a warm and a cold L2
    output: Path | None = None
    nsys: str | None = None
    lock_clocks: int | None = None
    job_limit_s: float = 300.0  # of one process, after which it counts as hanging
    backend: str = "cuda"

    def __post_init__(self) -> None:
        self.search, sizes = self.batch == "auto", []
        if self.batch is not None and not self.search:
            parts = self.batch.split(",")
            sizes = [int(part) for part in parts if re.fullmatch(r"\s*\d{1,18}\s*", part)]
            if len(sizes) < len(parts) or min(sizes) < 1:
                raise UsageError(
                    f"--batch {self.batch}: neither auto nor whole numbers from 1 on",
                    "--batch 64   or   --batch 1,8,64   or   --batch auto",
                )
        self.batches, known = tuple(dict.fromkeys(sizes)), f"some of {', '.join(NAMES)}"
        unknown = [mode for mode in self.modes if mode not in (*NAMES, *TRITON)] or ["''"]
        only_one = "search each, then compare both: --batch N"
        for wrong, message, next_step in (
            (unknown != ["''"] or not self.modes, f"there is no mode {unknown[0]}", known),
            (len(self.targets) > 2, "at most two targets can be compared", "name one or two"),
            (self.search and len(self.targets) > 1, "the search is of one target", only_one),
            (self.clocks and self.search, "--clocks is about one batch", "--batch N"),
        ):
            if wrong:
                raise UsageError(message, next_step)
        if self.search and not self.budget_s:
            self.budget_s = SEARCH_BUDGET_S
        if self.clocks:
            self.modes = tuple(dict.fromkeys([*self.modes, *NAMES, *TRITON]))
        self.l2 = ("warm", "cold") if self.clocks else ("warm",)


def target(text: str) -> Target:
    """`bench.py:make`, `package.module:make`."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(
            f"{text}: name a function as FILE.py:FUNCTION",
            f"nsysalign measure {text.strip(':') or 'bench.py'}:make",
        )
    if place.endswith(".py") and not Path(place).is_file():
        raise UsageError(
            f"{place}: no such file", "name a file that exists, relative to this directory"
        )
    return Target(f"{Path(place).name}:{name}", text)


def benchmark(
    make: Callable[..., Any] | str,
    against: Callable[..., Any] | str | None = None,
    *,
    batch: int | Sequence[int] | str | None = None,
    budget: float | None = None,
    output: str | os.PathLike[str] | None = None,
    **how: Any,
) -> Measure:
    """Measure the call that `make(batch)` (or `make()`) returns, in fresh processes.

    make: a function at the top level of a file, or "bench.py:make".  Another process must be able
        to import it: a script that calls `benchmark` needs `if __name__ == "__main__":`.
    against: a second one to compare with; `r.changes()` is that of B (`against`) against A.
    batch: a size, several, "auto" to search for the best, None for the function's own.
    budget: seconds.
    how: modes (names), processes (3), clocks (by every clock, with a warm and a cold L2:
        `r.points[0].ways("cold")`).

    Returns a Measure: `r.curve` and `r.samples` are DataFrames, `r.points` its batches, `r.best`
    the best of them.
    Raises UsageError for invalid arguments, MeasureError if nothing could be measured.
    """
    from nsysalign.addons.measure.session import Session

    if os.environ.get(IN_WORKER):
        raise UsageError(
            "nsysalign.benchmark was called again by the process that measures",
            'put it under if __name__ == "__main__":',
        )
    if batch is not None and not isinstance(batch, str):
        batch = ",".join(map(str, [batch] if isinstance(batch, int) else batch))
    targets = tuple(map(_importable, [make] if against is None else [make, against]))
    folder = Path(output) if output is not None else None
    return Session(Options(targets, batch, budget_s=budget, output=folder, **how)).run()


def _importable(make: Callable[..., Any] | str) -> Target:
    """How another process finds the function.  UsageError where none can: a lambda, a closure, a
    notebook's cell."""
    if isinstance(make, str):
        return target(make)
    if not callable(make):
        raise UsageError(
            f"expected a function, got {type(make).__name__}",
            "nsysalign.benchmark(make, batch=...)",
        )
    name = getattr(make, "__qualname__", type(make).__name__)
    module: Any = sys.modules.get(getattr(make, "__module__", "") or "")
    file = getattr(module, "__file__", None) or ""
    if "<" in name or not os.path.isfile(file):
        raise UsageError(
            f"{name}: a fresh process cannot import it",
            "put the function at the top level of a file (in a notebook: %%writefile bench.py), "
            'and measure "bench.py:make"',
        )
    place = module.__name__ if getattr(module, "__package__", "") else os.path.abspath(file)
    return Target(name, f"{place}:{name}", tuple(sys.path))


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
    "budget_s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Time limit for everything (default: 240 with --batch auto).  What does not fit is left "
    "out, and the output says so.",
)
@click.option(
    "--clocks",
    is_flag=True,
    help="By every clock, with a warm and a cold L2: what each way of timing prints for the same "
    "call, and which answers which question.  Runs it once under nsys, too.",
)
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
    ctx: click.Context, json_out: str | None, brief: bool, quiet: bool, **settings: Any
) -> None:
    """Measure a call: fresh processes, five ways of timing it, reliable intervals, the best batch.

    FUNCTION(batch), or FUNCTION() without --batch, prepares everything and returns the call to
    measure (or an nsysalign.Workload).  A second function is compared with the first.

    \b
    Example:  nsysalign measure bench.py:make --batch auto
              nsysalign measure old.py:make new.py:make
    """
    from nsysalign.addons.measure import screen
    from nsysalign.addons.measure.result import MEASUREMENT
    from nsysalign.addons.measure.session import Session
    from nsysalign.brief import short
    from nsysalign.commandline.outputs import ProgressLine, console, deliver
    from nsysalign.record.command import refuse_nested

    refuse_nested(os.environ)
    mode, targets = settings.pop("mode"), tuple(map(target, settings.pop("targets")))
    if mode is not None:
        settings["modes"] = tuple(dict.fromkeys(filter(None, mode.replace(" ", "").split(","))))
    options = Options(targets, **settings)
    with ProgressLine(quiet) as tell:
        result = Session(options, tell).run()
    deliver((result.folder / MEASUREMENT).read_text("utf-8"), json_out)
    report = result.folder / "measure.html"
    screen.write_page(result, report)
    if brief and json_out != "-":
        narrower = shlex.join(["nsysalign", "measure", *(t.spec for t in targets), "--processes=7"])
        click.echo(short("measure", screen.verdict(result), screen.headline(result), narrower))
    elif not quiet and json_out != "-":
        screen.render(result, console(), str(report))
    if not result.complete:
        raise Interrupted("interrupted: the results until then are kept")
    ctx.exit(3 if result.failed else 0)
