"""Readings of the host's clocks (`time.perf_counter()` and the like) by the user's own code.

From Python 3.12 on `sys.monitoring` tells of every call before it is made; a place that calls
something else is never heard of again, and the clocks stay the builtins that they are.  Older
Pythons have no such thing: there an object takes the clock's place in the module `time` and calls
it.  Either way a reading of our own just before the program's stands for it.

Which reading is subtracted from which is determined later, from the call sites: nothing here
follows what happens to a value.  A reading is one store into mapped memory.  No file is created
before CUDA is used: readings between the import of a library that uses it and that moment are kept
in a short list.
"""

from __future__ import annotations

import collections
import itertools
import os
import sys
import time

# not from threading: that would cost every Python process of the run a millisecond
from _functools import partial
from _thread import RLock, _local, get_native_id

from . import failed, rawtime
from .blame import pass_on
from .offcpu import LOOK_NS
from .recorder import in_turns
from .sites import END, IGNORED, UNIT, ClockSites
from .slots import (
    CLOCK_BITS,
    CLOCKS,
    CONTEXT_BITS,
    MONOTONIC_CLOCKS,
    READING,
    READINGS,
    REGION_ENTERED,
    REGION_LEFT,
)

UNLOGGED = "readings of the host's clocks are not logged: "
_EARLY = 512  # readings kept from before CUDA is used
#: Whoever imported none of these times no GPU work.
_LIBRARIES = ("torch.cuda", "jax", "cupy.cuda", "numba.cuda.cudadrv.driver")
#: One in this many readings is examined: a site seen this often has used up its share (a loop that
#: polls the clock).  A prime, so that the sites of a loop do not hide one another.
_SAMPLE, _SHARE = 1021, 32


class Timers:
    """One per process, created at its start.  `probe` is the package: it knows the Runtime."""

    def __init__(self, probe: object, start_cwd: str) -> None:
        self._probe = probe
        self._waiting = True  # CUDA is not in use yet
        self._over = False  # no more readings
        self.sites = ClockSites(
            start_cwd, lambda number, value: self._line({"clk": number, **value})
        )
        self._stop: object = None  # puts the clocks back
        self._tls = _local()  # its `word` names the thread
        self._silent: set[int] = set()  # contexts that are no longer wanted
        self._clear()

    def _clear(self) -> None:
        self._lock = RLock()
        self._count = itertools.count().__next__
        self._tls.__dict__.clear()
        self._silent.clear()
        self._early: collections.deque = collections.deque(maxlen=_EARLY)
        self._sampled: collections.Counter = collections.Counter()
        self._area: object = b""
        self._room = 0  # readings from this number on need a look first

    def install(self) -> None:
        """Begin to see readings."""
        self._stop = self._monitor() if sys.version_info >= (3, 12) else self._replace()
        os.register_at_fork(after_in_child=self._after_fork)

    def _monitor(self) -> object:
        monitoring = sys.monitoring  # type: ignore[attr-defined]
        free = [n for n in (4, 3, 5, 2, 1, 0) if monitoring.get_tool(n) is None]
        if not free:
            self.step_aside(f"{UNLOGGED}other tools use all of sys.monitoring")
            return None
        clocks = {id(getattr(time, name)): number for number, name in enumerate(CLOCKS, start=1)}
        tool, disable, getframe, read = free[0], monitoring.DISABLE, sys._getframe, self._reader()

        def called(code: object, offset: int, callee: object, first: object) -> object:
            clock = clocks.get(id(callee))
            unwanted = clock is None or read(clock, getframe(1)) == IGNORED
            return disable if unwanted else None

        def stop() -> None:
            monitoring.use_tool_id = original
            monitoring.set_events(tool, 0)
            monitoring.free_tool_id(tool)

        # whoever asks for our number gets it, as without us
        original = monitoring.use_tool_id

        def use_tool_id(tool_id: int, name: str, /) -> None:
            if tool_id == tool and self._stop is stop:
                self.step_aside(f"{UNLOGGED}the program uses our number of sys.monitoring")
            return original(tool_id, name)

        original(tool, "nsysalign")
        monitoring.use_tool_id = use_tool_id
        monitoring.register_callback(tool, monitoring.events.CALL, called)
        monitoring.set_events(tool, monitoring.events.CALL)
        return stop

    def _replace(self) -> object:
        clocks = {name: getattr(time, name) for name in CLOCKS}
        getframe, read = sys._getframe, self._reader()

        def call(number: int, builtin: object) -> object:
            read(number, getframe(1))
            return builtin()

        for number, (name, builtin) in enumerate(clocks.items(), start=1):
            clock = _Clock(call, number, builtin)
            clock.builtin = builtin
            clock.__name__ = clock.__qualname__ = name
            clock.__module__, clock.__doc__ = "time", builtin.__doc__
            setattr(time, name, clock)

        def stop() -> None:
            for name, builtin in clocks.items():
                if type(getattr(time, name)) is _Clock:
                    setattr(time, name, builtin)

        return stop

    def _reader(self) -> object:
        """What logs a reading of a clock that is about to be made in a frame; returns its context,
        0 or less for none."""
        now, wall, pack = rawtime.perf_counter_ns, rawtime.time_ns, READING.pack_into
        trie, tls, size, bits = self.sites.trie, self._tls, READING.size, CONTEXT_BITS
        silent, turns = self._silent, self._mark if in_turns() else None

        def read(clock: int, frame: object) -> int:
            try:
                node, step = trie, frame
                while node.__class__ is dict:
                    node = node[END if step is None else id(step.f_code) + step.f_lasti * UNIT]
                    step = step and step.f_back
                if node <= 0 or node in silent:
                    return min(node, 0)
                if turns is not None:
                    turns(node)
                if now() - tls.looked_ns > LOOK_NS:
                    self._look()
                word, place = tls.word + (clock << bits) + node, self._count()
                if place < self._room:
                    third = wall() if clock > MONOTONIC_CLOCKS else 0
                    pack(self._area, place * size, now(), word, third)
                    return node
            except Exception as error:  # a place or a thread not seen before
                pass_on(error)
            node = self._find(frame)
            if node > 0:
                if turns is not None:
                    turns(node)
                self._look()
                third = wall() if clock > MONOTONIC_CLOCKS else 0
                self._keep(clock, node, now(), third)
            return node

        return read

    def _look(self) -> None:
        """Before a reading: how long this thread ran."""
        self._tls.looked_ns = rawtime.perf_counter_ns()
        try:
            runtime = self._probe._runtime
            if runtime is not None and runtime.ready:
                runtime.off_cpu.look()
        except Exception as error:
            self._give_up(error)

    def _mark(self, node: int) -> None:
        """Before a reading: the recorder may go or come back."""
        try:
            runtime = self._probe._runtime
            if runtime is not None and runtime.ready:
                runtime.turns.mark(-node)
        except Exception as error:
            self._give_up(error)

    def step_aside(self, why: str) -> None:
        """No more readings from here on; the clocks are the builtins again."""
        if not self._over:
            self._over = True
            self._line({"note": {"text": why}})
        self._restore()

    def _restore(self) -> None:
        if self._stop is not None:
            stop, self._stop = self._stop, None
            stop()

    # --- one reading: `_find` before it, `_keep` after it; neither raises anything of ours ---

    def _find(self, frame: object) -> int:
        """The context of a reading in this frame, 0 or less for none, IGNORED for never any."""
        try:
            if self._over or (self._waiting and not _may_use_cuda()):
                return 0
            node = self.sites.context(frame)
            if node in self._silent:
                return 0
            # an even number of readings so far: this one begins an interval, so our files must be
            # created before it
            if self._waiting and node != IGNORED and len(self._early) % 2 == 0:
                self._begin()
            return node
        except Exception as error:
            self._give_up(error)
            return 0

    def _keep(self, clock: int, node: int, t_ns: int, third: int) -> None:
        try:
            self._tls.word = get_native_id() << (CLOCK_BITS + CONTEXT_BITS)
            self._tls.looked_ns = getattr(self._tls, "looked_ns", 0)
            reading = t_ns, self._tls.word + (clock << CONTEXT_BITS) + node, third
            if self._waiting:
                self._early.append(reading)
                return
            place = self._count()
            if place < self._room or self._more(node if clock < REGION_ENTERED else None, place):
                READING.pack_into(self._area, place * READING.size, *reading)
        except Exception as error:
            self._give_up(error)

    def _more(self, node: int | None, place: int) -> bool:
        """Whether there is room, up to the limit, for one more reading, a sample of how often each
        site is read: a site that would fill the log by itself is no longer logged.  `node`: the
        site, None for a region's edge, which the user chose to have logged."""
        with self._lock:
            if node is not None:
                self._sampled[node] += 1
                if self._sampled[node] == _SHARE:
                    self._silent.add(node)
                    self._line({"silenced": node, "readings": _SAMPLE * _SHARE})
            self._room = min(READINGS, place + _SAMPLE)
            if place >= READINGS:
                self.step_aside(
                    f"the host's clocks were read more than {READINGS:,} times: later readings are "
                    "not in the log"
                )
            return place < READINGS

    def exits(self) -> None:
        if self._early:
            self._begin()

    def _give_up(self, error: Exception) -> None:
        """An error of our own: the rest of the probe continues."""
        pass_on(error)
        self._over = True
        self._restore()
        failed(error)

    # --- files ---

    def _begin(self) -> None:
        """Create the file, if the process uses CUDA by now, and write what was kept until then."""
        runtime = self._probe.running()
        if runtime.aside or not (runtime.ready or _uses_cuda(runtime.driver)):
            return
        with self._lock:
            if not self._waiting or self._over:
                return
            runtime.begin(0 if runtime.ready else _current_device(runtime.driver))
            self._area = runtime.store.readings(READINGS * READING.size)
            self._room = _SAMPLE
            self._count = itertools.count().__next__
            for reading in self._early:
                READING.pack_into(self._area, self._count() * READING.size, *reading)
            self._early.clear()
            self._waiting = False

    def _line(self, value: dict) -> None:
        runtime = self._probe._runtime
        if runtime is None or not runtime.ready:
            self._probe.early.append(value)
        else:
            runtime._line(value)

    def region(self, entered: bool, number: int, repetition: int) -> None:
        """A region of the user's begins or ends on this thread."""
        if not self._over and _may_use_cuda():
            if entered and self._waiting:
                self._begin()
            clock = REGION_ENTERED if entered else REGION_LEFT
            self._keep(clock, number, rawtime.perf_counter_ns(), repetition)

    def _after_fork(self) -> None:
        """A child has its own files; none if the parent used CUDA, which the child then cannot."""
        try:
            cuda = sys.modules.get("torch.cuda")
            self._over = self._over or not self._waiting or getattr(cuda, "_initialized", False)
            self._waiting = True
            self._clear()
            self.sites.clear()
            early = self._probe.early
            early[:] = [line for line in early if "note" in line]
            if self._over:
                self._restore()
        except Exception as error:
            self._give_up(error)


def _may_use_cuda() -> bool:
    return _is_imported(_LIBRARIES)


def _is_imported(names: tuple[str, ...]) -> bool:
    """Whether one of these modules is.  No generator that ends early: what a handler of the program
    throws while it is being closed would be lost (Python 3.12)."""
    return bool([name for name in names if name in sys.modules])


def _uses_cuda(driver: object) -> bool:
    """torch says so itself; of the others (JAX, CuPy, numba) the driver knows, which has a context
    then."""
    torch = sys.modules.get("torch.cuda")
    if torch is not None and getattr(torch, "_initialized", False):
        return True
    return _is_imported(_LIBRARIES[1:]) and driver.has_context()


def _current_device(driver: object) -> int:
    torch = sys.modules.get("torch.cuda")
    if torch is not None and getattr(torch, "_initialized", False):
        return int(torch.current_device())
    return driver.current_device()


class _Clock(partial):
    """Stands for a clock of `time` before Python 3.12.  No function: `clock = time.time` in a class
    would become a method.  It is pickled by its name, as the builtin is."""

    def __reduce__(self) -> str:
        return self.__name__
