"""Time in which a thread of the program did not run, though it was in no call: it waited for Python's
interpreter, a lock or a file.

    records, clock readings   |        |                                 |        of one thread
    its CPU time              [ 2 ms   ][ 3 ms of 40: one line            ]
    the process's                       [ 40 ms: others ran               ]

The clocks of CPU time are read no oftener than once in LOOK_NS on a thread, before what the program
times begins or ends; what lies between is one comparison.  Lines are kept until the probe works anyway.
"""

from __future__ import annotations

# not from threading: that would cost every Python process of the run a millisecond
from _thread import _local, get_native_id
from collections import deque
from collections.abc import Callable

from .blame import pass_on
from .rawtime import perf_counter_ns, process_time_ns, thread_time_ns

#: The clocks of CPU time are read this seldom; shorter stretches explain nothing: while others wait, Python
#: lets a thread keep the interpreter for 5 ms (`sys.getswitchinterval`).
LOOK_NS, _SHORTEST_NS = 2_000_000, 5_000_000
#: Of stretches that were not written yet the latest are kept.
_MOST = 1 << 12


class OffCpu:
    """Watches the threads of this process and writes a line for each stretch in which one ran for less than half."""

    def __init__(self, line: Callable[[dict], None]) -> None:
        self._line = line
        self.clear()

    def clear(self) -> None:
        """Forget what is not written, in a forked child what its parent saw."""
        self._tls = _local()
        self._stretches: deque[list[int]] = deque(maxlen=_MOST)

    def look(self) -> None:
        """To be called before a record or a clock reading."""
        now = perf_counter_ns()
        tls = self._tls
        try:
            began, ran, all_ran = tls.latest
        except AttributeError as error:  # this thread's first
            pass_on(error)
            tls.tid = get_native_id()
            began, ran, all_ran = now, 0, 0
        if 0 < now - began < LOOK_NS:
            return
        latest = now, thread_time_ns(), process_time_ns()
        tls.latest = latest
        if now - began >= _SHORTEST_NS and 2 * (latest[1] - ran) < now - began:
            self._stretches.append([tls.tid, began, now, latest[1] - ran, latest[2] - all_ran])

    def write(self) -> None:
        """Write what was seen since the last time."""
        while self._stretches:
            self._line({"off": self._stretches.popleft()})
