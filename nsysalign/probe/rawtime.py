"""The clocks of `time`, saved before `timers` wraps them, and the calls of `os`, saved before a test
may put a file system of its own in their place: the ones that the probe itself uses.

A stand-in for the module: `from . import rawtime as time`.
"""

from __future__ import annotations

import os as _os
import sys as _sys
from time import perf_counter_ns, process_time_ns, thread_time_ns, time_ns  # noqa: F401


class Untraced:
    """A block in which nothing is told to a trace function of the program's (`python -m trace`):
    what the probe imports and calls is none of its business."""

    def __enter__(self) -> None:
        self._function = _sys.gettrace()
        _sys.settrace(None)

    def __exit__(self, *_: object) -> None:
        _sys.settrace(self._function)


class Files:
    """A stand-in for `os`."""

    open, close, write, ftruncate = _os.open, _os.close, _os.write, _os.ftruncate
    posix_fallocate, listdir, readlink = _os.posix_fallocate, _os.listdir, _os.readlink
