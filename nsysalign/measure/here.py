"""A function that only this process can find (a lambda, a notebook's cell): measured here, once, and marked so."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsysalign.measure.plan import Job, Options
from nsysalign.measure.runner import Failure, Outcome
from nsysalign.measure.worker import Worker


def run(job: Job, options: Options, function: Callable[..., Any]) -> Outcome:
    """The worker's loop in this process."""
    facts: list[dict[str, Any]] = []
    began, began_ns = time.monotonic(), time.monotonic_ns()
    spec = job.spec(options, Path("."), None) | {"memory_fraction": None}
    with contextlib.suppress(KeyboardInterrupt):  # among the facts
        Worker(spec, facts.append).run(function)
    said = next((f for f in facts if f["type"] == "failed"), None)
    failure = Failure(said["class"], said["message"], said["stage"], said["where"]) if said else None
    return Outcome(job, facts, failure, time.monotonic() - began, "", began_ns, {"here": True})
