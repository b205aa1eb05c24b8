"""Pauses of Python's garbage collector: idle time of the GPU that no call explains.

`gc.callbacks` calls each entry with "start" and "stop" and a dictionary.  The entries here are made of
C functions only: a function of Python would cost a frame at every collection, torch.compile would look
at it, and an exception from a signal handler that had to wait for the collection (Ctrl-C) would be
raised inside of it, where gc drops it.

    getattr(clock, "start", info) -> property -> next(map) -> starts.append(perf_counter_ns())
    setattr(infos, "stop", info)  -> property -> infos.append(info)

What they keep is written to the log when the probe works anyway, outside of timed pairs.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from functools import partial

from . import rawtime as time

#: Shorter ones explain nothing (ns).
_SHORTEST_NS = 100_000
#: Of collections that were not written yet the latest are kept.
_MOST = 1 << 12


class _Infos(deque):
    """What gc says at the end of collections."""

    stop = property(None, deque.append)


class Garbage:
    """Watches the collections of this process and writes a line for each long one."""

    def __init__(self, line: Callable[[dict], None]) -> None:
        self._line = line
        self._starts: deque[int] = deque(maxlen=_MOST)
        self._stops: deque[int] = deque(maxlen=_MOST)
        self._infos = _Infos(maxlen=_MOST)
        now = iter(time.perf_counter_ns, None)
        starts = map(self._starts.append, now)
        stops = map(self._stops.append, now)
        names = {"start": property(partial(next, starts)), "stop": property(partial(next, stops))}
        clock = type("_Clock", (), names)()
        self._watchers = (partial(getattr, clock), partial(setattr, self._infos))

    def watch(self) -> None:
        """From now on collections are seen."""
        if not any(entry is self._watchers[0] for entry in gc.callbacks):
            self.clear()
            gc.callbacks.extend(self._watchers)

    def leave(self) -> None:
        """Nothing of this is left in gc.callbacks."""
        gc.callbacks[:] = [
            entry
            for entry in gc.callbacks
            if not any(entry is watcher for watcher in self._watchers)
        ]

    def clear(self) -> None:
        """Forget what is not written, in a forked child what its parent saw."""
        for kept in (self._starts, self._stops, self._infos):
            kept.clear()

    def write(self) -> None:
        """Write what was seen since the last time."""
        while self._stops and self._infos:
            stop, info, start = self._stops.popleft(), self._infos.popleft(), None
            while self._starts and self._starts[0] <= stop:
                start = self._starts.popleft()
            if start is not None and stop - start >= _SHORTEST_NS:
                self._line({"gc": [start, stop, info["generation"], info["collected"]]})
