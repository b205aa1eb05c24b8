"""How many processors there are, and how many threads a stage may use: two, unless other processes of ours occupy the other
processors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

_threads = 2


def processors() -> int:
    """The number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Numpy and SQLite release the GIL: a second thread helps if a processor is idle, and hurts if none is."""
    return _threads


@contextmanager
def alone() -> Iterator[None]:
    """A context in which every stage uses one thread."""
    global _threads
    before, _threads = _threads, 1
    try:
        yield
    finally:
        _threads = before


def keep_alone() -> None:
    """The same, for the rest of this process's life."""
    global _threads
    _threads = 1


def together(function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Any]:
    """function(job) for all jobs, in order; results that are not needed are not kept."""
    if _threads < 2:
        yield from map(function, jobs)
        return
    with ThreadPoolExecutor(_threads) as pool:
        yield from pool.map(function, jobs)
