"""Processes that this one forks, such as the workers of a DataLoader: the CPU prepares them, and then waits for them.

What fork calls here is made of C functions only, as in `garbage`: an exception that a signal handler
of the program raises in a function of Python would be lost there.

    before            next(map)  -> starts.append((1, thread, perf_counter_ns()))
    after_in_parent   next(map)  -> ends.append((1, perf_counter_ns()))

Python forgets no function that was registered for forks: after `leave` these two find their iterators at
an end and do nothing.
"""

from __future__ import annotations

import os

# not from threading: that would cost every Python process of the run a millisecond
from _thread import get_native_id
from collections import deque
from collections.abc import Callable
from functools import partial

from . import rawtime as time

#: Of forks that were not written yet the latest are kept.
_MOST = 1 << 12


class Forks:
    """Watches the forks of this process and writes a line for each."""

    def __init__(self, line: Callable[[dict], None]) -> None:
        self._line = line
        self._starts: deque[tuple[int, int, int]] = deque(maxlen=_MOST)
        self._ends: deque[tuple[int, int]] = deque(maxlen=_MOST)
        self._watching = [True]  # empty: no more
        threads, now = iter(get_native_id, None), iter(time.perf_counter_ns, None)
        # an iterator each, which ends with the list
        starts = zip(iter(self._watching.__len__, 0), threads, now)  # noqa: B905
        ends = zip(iter(self._watching.__len__, 0), now)  # noqa: B905
        os.register_at_fork(
            before=partial(next, map(self._starts.append, starts), None),
            after_in_parent=partial(next, map(self._ends.append, ends), None),
        )

    def leave(self) -> None:
        """From now on nothing is seen."""
        self._watching.clear()

    def clear(self) -> None:
        """Forget what is not written, in a forked child what its parent saw."""
        self._starts.clear()
        self._ends.clear()

    def write(self) -> None:
        """Write what was seen since the last time."""
        while self._ends and self._starts:
            _, thread, start = self._starts.popleft()
            _, end = self._ends.popleft()
            self._line({"fork": [thread, start, end]})
