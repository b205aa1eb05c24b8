"""How many processors there are, and how many threads a stage may keep busy: two, unless other processes of ours have the other processors."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

_threads = 2


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Numpy and SQLite let go of Python: a second thread helps where a processor is idle, and costs where none is."""
    return _threads


@contextmanager
def alone() -> Iterator[None]:
    """Inside, every stage keeps to one thread."""
    global _threads
    before, _threads = _threads, 1
    try:
        yield
    finally:
        _threads = before


def keep_alone() -> None:
    """The same for the rest of this process."""
    global _threads
    _threads = 1


def together(function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Any]:
    """function(job) for all jobs, in order; results that are not needed are not kept."""
    if _threads < 2:
        yield from map(function, jobs)
        return
    with ThreadPoolExecutor(_threads) as pool:
        yield from pool.map(function, jobs)


def trim_memory() -> None:
    """glibc keeps freed arrays of a few megabytes for itself, in pieces: a quarter of the peak of a long trace.
    Elsewhere this does nothing."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return


@contextmanager
def keeping_everything() -> Iterator[None]:
    """While millions of small objects are made that are all kept, looking for garbage among them only takes time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def look_for_garbage_less_often() -> None:
    """For a process that does nothing but analyse: tables are made of many small objects, nearly all of which are kept, and at
    its end the system takes them back all at once: looking for garbage among them then takes a tenth of a second."""
    gc.set_threshold(50_000, 20, 100)
    atexit.register(gc.freeze)
