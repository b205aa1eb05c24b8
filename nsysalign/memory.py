"""Memory and the garbage collector."""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

#: Of glibc's mallopt: arrays that are larger come from the system itself; so much that is free at the end of the
#: heap is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


def trim_memory() -> None:
    """glibc and Arrow keep freed arrays of a few megabytes in their own pools: a quarter of the peak
    of a long trace.  Does nothing with other C libraries."""
    if arrow := sys.modules.get("pyarrow"):
        arrow.default_memory_pool().release_unused()
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library
            _libc().malloc_trim(0)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)


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


def keep_freed_arrays() -> None:
    """For a process that does nothing but analyse: what one array leaves the next one takes.  glibc would give large
    ones back to the system at once, and clear new ones page by page; `trim_memory` gives back what is left."""
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library
            _libc().mallopt(_MMAP_THRESHOLD, 32 << 20)  # glibc takes no more
            _libc().mallopt(_TRIM_THRESHOLD, 512 << 20)


def look_for_garbage_less_often() -> None:
    """For a process that does nothing but analyse: tables consist of many small objects, nearly all
    of which are kept, and at exit the system frees them all at once."""
    gc.set_threshold(200_000, 20, 100)
    atexit.register(gc.freeze)
