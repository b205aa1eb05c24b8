"""Processors, memory and the garbage collector."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

_LINEAR_ALGEBRA = "OPENBLAS_NUM_THREADS"


def processors() -> int:
    """The number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def together(function: Callable[[Any], Any], jobs: Sequence[Any]) -> Iterator[Any]:
    """function(job) for all jobs, two at a time, in order: numpy and SQLite release the GIL."""
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(function, jobs)


def trim_memory() -> None:
    """glibc and Arrow keep freed arrays of a few megabytes in their own pools: a quarter of the peak
    of a long trace.  Does nothing with other C libraries."""
    if arrow := sys.modules.get("pyarrow"):
        arrow.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def keeping_everything() -> Iterator[None]:
    """A context without garbage collection: while millions of small objects are created that are
    all kept, it only takes time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def look_for_garbage_less_often() -> None:
    """For a process that does nothing but analyse: tables consist of many small objects, nearly all
    of which are kept, and at exit the system frees them all at once: looking for garbage among them
    would take a tenth of a second."""
    gc.set_threshold(50_000, 20, 100)
    atexit.register(gc.freeze)


def imported(module: str) -> Any:
    """A module of ours in such a process: what importing creates is kept, so that it is never
    looked at for garbage.

    OpenBLAS reads its number of threads while numpy is imported.  Our matrices are small, and
    threads without work spin.
    """
    given = os.environ.get(_LINEAR_ALGEBRA)
    os.environ[_LINEAR_ALGEBRA] = given or "1"
    try:
        with keeping_everything():
            found = importlib.import_module(module)
    finally:  # a program that we start is to see what the user has set
        if given is None:
            del os.environ[_LINEAR_ALGEBRA]
    gc.freeze()
    return found
