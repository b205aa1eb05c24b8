"""`nsysalign.benchmark(...)`: what `nsysalign measure` does, from Python and in notebooks."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nsysalign.errors import UsageError
from nsysalign.measure import plan
from nsysalign.measure.plan import Options, Target
from nsysalign.measure.result import Measure
from nsysalign.measure.schedule import measure, quickly
from nsysalign.measure.target import IN_WORKER


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
    output: str | os.PathLike[str] | None = None,
    progress: Callable[[str, int], None] | None = None,
    backend: str = "cuda",
) -> Measure:
    """Measure the call that `make(batch)` (or `make()`) returns, in fresh processes.

    make: a function at the top level of a file, or "bench.py:make".  Another process must be able to import it: a script
        that calls `benchmark` needs `if __name__ == "__main__":`.  A lambda, a closure or a notebook's function is measured
        in this process, once, and the result says so.
    against: a second one to compare with; results are those of `make` (A) and `against` (B).
    batch: a size, several, "auto" to search for the best, None for the function's own.
    inputs: shapes such as "3x224x224" where the function returns a torch.nn.Module.
    budget, latency_below: seconds.  at: the percentile that `latency_below` is about.

    Returns a Measure: `r.curve`, `r.modes`, `r.samples`, `r.budgets` are DataFrames, `r.best` the best point.  Raises
    UsageError for invalid arguments, MeasureError if nothing could be measured.
    """
    if os.environ.get(IN_WORKER):
        raise UsageError(
            "nsysalign.benchmark was called again by the process that measures",
            'put it under if __name__ == "__main__":',
        )
    text = (
        batch
        if isinstance(batch, str) or batch is None
        else ",".join(map(str, [batch] if isinstance(batch, int) else batch))
    )
    batches, search = plan.batches(text)
    options = Options(
        targets=tuple(_target(f, n) for n, f in enumerate([make] if against is None else [make, against])),
        batches=batches, search=search, shapes=tuple(plan.shape(s) for s in inputs), modes=plan.modes(",".join(modes)), l2=plan.l2(l2),
        precision=precision, processes=processes, most_processes=max(plan.MOST_PROCESSES, processes), budget_s=budget,
        most_batch=max_batch, memory=memory, latency_below_s=latency_below, at=float(at), profile=profile,
        output=Path(output) if output is not None else None, backend=backend,
    )  # fmt: skip
    if any(t.function is not None for t in options.targets):
        options = _here(options)
    return measure(quickly(options) if quick else options, progress)


def _target(make: Callable[..., Any] | str, number: int) -> Target:
    if isinstance(make, str):
        return plan.target(make, number)
    if not callable(make):
        raise UsageError(
            f"expected a function, got {type(make).__name__}",
            "nsysalign.benchmark(make, batch=...)",
        )
    name = getattr(make, "__qualname__", type(make).__name__)
    spec = _elsewhere(make, name)
    return Target(name, spec or name, None if spec else make, tuple(sys.path))


def _elsewhere(make: Callable[..., Any], name: str) -> str:
    """How another process finds the function; "" if it cannot."""
    module = sys.modules.get(getattr(make, "__module__", "") or "")
    if "<" in name or module is None or not hasattr(module, "__file__"):
        return ""
    try:
        file = inspect.getsourcefile(make)
    except TypeError:
        return ""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not make or not file or not os.path.isfile(file):
        return ""
    package = getattr(module, "__package__", "") or ""
    return f"{module.__name__}:{name}" if package else f"{os.path.abspath(file)}:{name}"


def _here(options: Options) -> Options:
    """One process, this one: no replicates, no limits that would need a separate process, no profile."""
    from dataclasses import replace

    return replace(options, processes=1, most_processes=1, profile=False)
