"""Memory that a stage has let go, handed back to the system before the next one asks for its own."""

from __future__ import annotations

import atexit
import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
