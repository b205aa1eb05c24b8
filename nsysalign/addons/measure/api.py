"""`nsysalign.benchmark(...)`: what `nsysalign measure` does, from Python and in notebooks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nsysalign.addons.measure import plan
from nsysalign.addons.measure.result import Measure
from nsysalign.addons.measure.session import Session
from nsysalign.addons.measure.target import IN_WORKER
from nsysalign.errors import UsageError


def benchmark(
    make: Callable[..., Any] | str,
    against: Callable[..., Any] | str | None = None,
    *,
    batch: int | Sequence[int] | str | None = None,
    modes: Sequence[str] = plan.NAMES,
    processes: int = 3,
    budget: float | None = None,
    max_batch: int | None = None,
    quick: bool = False,
    clocks: bool = False,
    output: str | os.PathLike[str] | None = None,
    backend: str = "cuda",
) -> Measure:
    """Measure the call that `make(batch)` (or `make()`) returns, in fresh processes.

    make: a function at the top level of a file, or "bench.py:make".  Another process must be able
        to import it: a script that calls `benchmark` needs `if __name__ == "__main__":`, and a
        notebook's cell is written to a file first (`%%writefile bench.py`).
    against: a second one to compare with; `r.changes()` is that of B (`against`) against A.
    batch: a size, several, "auto" to search for the best, None for the function's own.
    clocks: by every clock, with a warm and a cold L2 (`r.rungs`).
    budget: seconds.

    Returns a Measure: `r.curve`, `r.modes`, `r.samples` are DataFrames, `r.best` the
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
    options = plan.Options(
        tuple(map(_target, [make] if against is None else [make, against])),
        batches=sizes, search=search, modes=plan.modes(",".join(modes)), processes=processes,
        budget_s=budget, most_batch=max_batch, quick=quick, clocks=clocks,
        output=Path(output) if output is not None else None, backend=backend,
    )  # fmt: skip
    return Session(options).run()


def _target(make: Callable[..., Any] | str) -> plan.Target:
    """How another process finds the function.  UsageError where none can: a lambda, a closure, a
    notebook's cell."""
    if isinstance(make, str):
        return plan.target(make)
    if not callable(make):
        raise UsageError(
            f"expected a function, got {type(make).__name__}",
            "nsysalign.benchmark(make, batch=...)",
        )
    name = getattr(make, "__qualname__", type(make).__name__)
    module: Any = sys.modules.get(getattr(make, "__module__", "") or "")
    file = getattr(module, "__file__", None) or ""
    place = module.__name__ if getattr(module, "__package__", "") else os.path.abspath(file)
    if "<" in name or not os.path.isfile(file):
        raise UsageError(
            f"{name}: a fresh process cannot import it",
            "put the function at the top level of a file (in a notebook: %%writefile bench.py), "
            'and measure "bench.py:make"',
        )
    return plan.Target(name, f"{place}:{name}", tuple(sys.path))
