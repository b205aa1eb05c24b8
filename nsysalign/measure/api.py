"""`nsysalign.benchmark(...)`: what `nsysalign measure` does, from Python and in notebooks."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from nsysalign.errors import UsageError
from nsysalign.measure import page, plan
from nsysalign.measure.plan import Options, Target
from nsysalign.measure.result import Measure
from nsysalign.measure.session import Session
from nsysalign.measure.target import IN_WORKER


class Shown(Measure):
    """A measurement that shows itself in a notebook."""

    def _repr_html_(self) -> str:
        return page.fragment(self)


def benchmark(
    make: Callable[..., Any] | str,
    against: Callable[..., Any] | str | None = None,
    *,
    batch: int | Sequence[int] | str | None = None,
    inputs: Sequence[str] = (),
    modes: Sequence[str] = plan.DEFAULT_MODES,
    l2: str = "warm",
    precision: float = 0.005,
    processes: int = plan.PROCESSES,
    budget: float | None = None,
    max_batch: int | None = None,
    memory: float = 0.9,
    latency_below: float | None = None,
    at: float = 50,
    profile: bool = True,
    quick: bool = False,
    clocks: bool = False,
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int], None] | None = None,
    backend: str = "cuda",
) -> Measure:
    """Measure the call that `make(batch)` (or `make()`) returns, in fresh processes.

    make: a function at the top level of a file, or "bench.py:make".  Another process must be able
        to import it: a script that calls `benchmark` needs `if __name__ == "__main__":`.  A lambda,
        a closure or a notebook's function is measured in this process, once, and the result says
        so.
    against: a second one to compare with; results are those of `make` (A) and `against` (B).
    batch: a size, several, "auto" to search for the best, None for the function's own.
    clocks: by every clock, with a warm and a cold L2 (`r.ladder`).
    inputs: shapes such as "3x224x224" where the function returns a torch.nn.Module.
    budget, latency_below: seconds.  at: the percentile that `latency_below` is about.

    Returns a Measure: `r.curve`, `r.modes`, `r.samples`, `r.budgets` are DataFrames, `r.best` the
    best point.  Raises UsageError for invalid arguments, MeasureError if nothing could be measured.
    """
    if os.environ.get(IN_WORKER):
        raise UsageError(
            "nsysalign.benchmark was called again by the process that measures",
            'put it under if __name__ == "__main__":',
        )
    if batch is not None and not isinstance(batch, str):
        batch = ",".join(map(str, [batch] if isinstance(batch, int) else batch))
    sizes, search = plan.batches(batch)
    options = Options(
        targets=tuple(map(_target, [make] if against is None else [make, against])),
        batches=sizes, search=search, shapes=tuple(map(plan.shape, inputs)),
        modes=plan.modes(",".join(modes)), l2=plan.l2(l2), precision=precision,
        processes=processes, most_processes=max(plan.MOST_PROCESSES, processes), budget_s=budget,
        most_batch=max_batch, memory=memory, latency_below_s=latency_below, at=float(at),
        profile=profile, quick=quick, clocks=clocks, output=Path(output) if output is not None else None,
        backend=backend,
    ).checked()  # fmt: skip
    if any(t.function is not None for t in options.targets):
        # one process, this one: no limits that would need a separate process, no profile
        options = replace(options, processes=1, most_processes=1, profile=False)
    found = Session(options, progress).run()
    return Shown(**{f.name: getattr(found, f.name) for f in fields(found)})


def _target(make: Callable[..., Any] | str) -> Target:
    """How another process finds the function; the function itself where none can."""
    if isinstance(make, str):
        return plan.target(make)
    if not callable(make):
        raise UsageError(
            f"expected a function, got {type(make).__name__}",
            "nsysalign.benchmark(make, batch=...)",
        )
    name = getattr(make, "__qualname__", type(make).__name__)
    here = Target(name, name, make, tuple(sys.path))
    module = sys.modules.get(getattr(make, "__module__", "") or "")
    if "<" in name or module is None or not hasattr(module, "__file__"):
        return here
    try:
        file = inspect.getsourcefile(make)
    except TypeError:
        return here
    reached: Any = module
    for part in name.split("."):
        reached = getattr(reached, part, None)
    if reached is not make or not file or not os.path.isfile(file):
        return here
    package = getattr(module, "__package__", "") or ""
    place = module.__name__ if package else os.path.abspath(file)
    return Target(name, f"{place}:{name}", None, tuple(sys.path))
