"""Readings of the host's clocks (`time.perf_counter()` and the like) by the user's own code.

The functions of `time` are replaced by builtins of our own (`machine`) that return the original's exact value: they do not bind
as methods, C code that exchanges or inspects the function inside them finds one, and introspection gives the same answers as
before.  Which reading is subtracted from which is determined later, from the call sites: nothing here follows what happens to a
value.

A reading is one store into mapped memory.  No file is created before CUDA is used: readings between `import torch` and that
moment are kept in a short list.
"""

from __future__ import annotations

import collections
import itertools
import os
import struct
import sys
import time

# not from threading: that would cost every Python process of the run a millisecond
from _thread import RLock, _local, get_native_id
from typing import Any

from . import failed, rawtime
from .blame import pass_on
from .clocksites import IGNORED, LOOP, UNIT, ClockSites, loop_frame
from .sites import _END
from .slots import (
    CLOCK_BITS,
    CLOCKS,
    CONTEXT_BITS,
    MONOTONIC_CLOCKS,
    READING_SIZE,
    READING_STRUCTS,
    READINGS,
    REGION_ENTERED,
    REGION_LEFT,
    THREAD_BITS,
)

_EARLY = 512  # readings kept from before CUDA is used
#: One in this many readings is examined: a site seen this often has used up its share (a loop that polls the clock).  The step
#: is a prime, so that the sites of a loop do not hide one another.
_SAMPLE, _SHARE = 1021, 32


class Timers:
    """One per process, created at its start.  `probe` is the package: it knows the Runtime once there is one."""

    def __init__(self, probe: Any, start_cwd: str) -> None:
        self._probe = probe
        self._lock = RLock()
        self._waiting = True  # CUDA is not in use yet
        self._over = False  # no more readings: forked from a process with CUDA, or no room
        self._count = itertools.count(0, READING_SIZE)
        self._tls = [
            _local() for _ in range(1 << CLOCK_BITS)
        ]  # one per clock: its word names the clock
        self._threads: dict[int, int] = {}
        self._thread_numbers = itertools.count(1)
        self._early: collections.deque = collections.deque(maxlen=_EARLY)
        self._lines: list[dict] = []  # for the text file, from before there is one
        self._sampled: collections.Counter = collections.Counter()
        self.sites = ClockSites(start_cwd, self._add_site)
        self._switches: list[Any] = []
        self._whole: Any = b""  # the mapped file
        self._area: Any = b""  # the part of it that the quick way may fill
        self._room = 0

    # --- beginning ---------------------------------------------------------------------------------

    def install(self) -> None:
        """Put our builtins in place of the functions of `time`, and of timeit's default."""
        from .machine import Slot, builtin_calling

        try:
            for number, name in enumerate(CLOCKS, start=1):
                builtin = getattr(time, name)
                slot = Slot(builtin)
                setattr(time, name, builtin_calling(builtin, slot))
                self._switches.append(self._clock(slot, builtin, number, name))
            self._switch()
        except OSError as error:  # the clocks stay the builtins that they are
            self._over = True
            self._probe.notes.append(f"readings of the host's clocks are not logged: {error}")
            return
        timeit = sys.modules.get("timeit")
        if timeit is not None and timeit.default_timer is rawtime.perf_counter:
            timeit.default_timer = time.perf_counter
        os.register_at_fork(after_in_child=self._after_fork)

    def _clock(self, slot: Any, builtin: Any, clock: int, name: str) -> Any:
        """Fills the slot of one clock: one function per phase, which keeps each one short."""
        special, getframe, wall = self._special, sys._getframe, name.startswith("time")
        now = rawtime.perf_counter_ns
        quick = self._quick_wall if wall else self._quick
        pack = READING_STRUCTS[wall, name.endswith("_ns")].pack_into

        def early() -> Any:
            before = now() if wall else 0
            return special(getframe(1), builtin, clock, builtin(), before)

        def switch(timers: Timers) -> None:
            if timers._over:
                slot.set(builtin)
            elif timers._waiting:
                slot.set(early)
            else:
                slot.set(quick(builtin, clock, pack, timers._count.__next__, timers._area))

        return switch

    # The first reading of a function usually begins an interval: all that can be done before it is.  Any other one may end
    # an interval: it comes first, and the rest follows.  What is used on the way are closures' variables: attributes are
    # slower, and so is one function for both kinds of clock.

    def _quick(self, builtin: Any, clock: int, pack: Any, step: Any, area: Any) -> Any:
        special, lost, getframe = self._special, self._lost, sys._getframe
        trie, tls, unit, end = self.sites.trie, self._tls[clock], UNIT, _END

        def read() -> Any:
            value = builtin()
            at = frame = getframe(1)
            node = IGNORED
            try:
                node = trie[id(at.f_code) + at.f_lasti * unit]
                if node.__class__ is dict:
                    while node.__class__ is dict:
                        at = at.f_back
                        node = node[end if at is None else id(at.f_code) + at.f_lasti * unit]
                    if node > 0:
                        place, word = step(), tls.word + node
                        value = builtin()
                        pack(area, place, value, word)
                elif node > 0:
                    pack(area, step(), value, tls.word + node)
            except KeyError as error:
                return special(frame, builtin, clock, value, 0, error)
            except Exception as error:
                lost(error, clock, node, value, 0)
            return special(frame, builtin, clock, value, 0) if node == LOOP else value

        return read

    def _quick_wall(self, builtin: Any, clock: int, pack: Any, step: Any, area: Any) -> Any:
        """The same for clocks that do not read CLOCK_MONOTONIC: that is read just before."""
        special, lost, getframe, now = (
            self._special,
            self._lost,
            sys._getframe,
            rawtime.perf_counter_ns,
        )
        trie, tls, unit, end = self.sites.trie, self._tls[clock], UNIT, _END

        def read() -> Any:
            before = now()
            value = builtin()
            at = frame = getframe(1)
            node = IGNORED
            try:
                node = trie[id(at.f_code) + at.f_lasti * unit]
                if node.__class__ is dict:
                    while node.__class__ is dict:
                        at = at.f_back
                        node = node[end if at is None else id(at.f_code) + at.f_lasti * unit]
                    if node > 0:
                        place, word = step(), tls.word + node
                        before = now()
                        value = builtin()
                        pack(area, place, value, word, before)
                elif node > 0:
                    pack(area, step(), value, tls.word + node, before)
            except KeyError as error:
                return special(frame, builtin, clock, value, before, error)
            except Exception as error:
                lost(error, clock, node, value, before)
            return special(frame, builtin, clock, value, before) if node == LOOP else value

        return read

    def _switch(self) -> None:
        for switch in self._switches:
            switch(self)

    # --- all but the quick way -----------------------------------------------------------------------

    def _special(
        self,
        frame: Any,
        builtin: Any,
        clock: int,
        value: Any,
        before: int,
        error: KeyError | None = None,
    ) -> Any:
        """Handles a site not seen before, one of timeit's loops, or a moment at which nothing can be written yet.  `value` was
        read on the way in, `before` just before it: right for a reading that ends an interval.  `error`: the lookup's KeyError
        for an unknown site, or a KeyError of the user's that arrived in between.
        """
        if error is not None:
            pass_on(error)
        try:
            if self._waiting:
                if "torch.cuda" not in sys.modules:
                    return value
                # an even number of readings so far: this one begins an interval, so our files must be created before it
                if len(self._early) % 2 == 0:
                    self._begin()
            node = self.sites.find(frame)
            if node is None:
                node = self.sites.learn(frame)
            if node == IGNORED:
                return value
            loop = loop_frame(frame) if node == LOOP else None
            count = 0
            if loop is not None:
                begins = getattr(self._tls[0], "loop", 0) != id(loop)
                self._tls[0].loop = id(loop) if begins else 0
                node, _ = self.sites.number(loop, loop)
                count = _repetitions(loop)
            else:
                begins = self.sites.is_first(frame)
        except Exception as error:
            self._give_up(error)
            return value
        if begins:
            before = rawtime.perf_counter_ns()
            value = builtin()
        self._late(clock, node, value, before if clock > MONOTONIC_CLOCKS else count)
        return value

    def _late(self, clock: int, node: int, value: Any, third: int) -> None:
        """Keep a reading, the slow way.  Raises nothing of ours."""
        try:
            if node > 0:
                self._keep(get_native_id(), clock, node, value, third)
            if self._waiting:
                self._begin()
        except Exception as error:
            self._give_up(error)

    def _keep(self, tid: int, clock: int, node: int, value: Any, third: int) -> None:
        if self._waiting:
            self._early.append((tid, clock, node, value, third))
            return
        place = next(self._count)
        if place >= self._room:
            self._more(node if clock < REGION_ENTERED else None, place)
        if place < self._room:
            form = READING_STRUCTS[True, isinstance(value, int)]
            form.pack_into(self._area, place, value, self._word(tid, clock) + node, third)

    def _word(self, tid: int, clock: int) -> int:
        """The part of a reading that says which clock and which thread, cached for the running thread."""
        number = self._threads.get(tid)
        if number is None:
            with self._lock:
                number = min(next(self._thread_numbers), (1 << THREAD_BITS) - 1)
                self._line({"thread": number, "tid": tid})
                number = self._threads.setdefault(tid, number)
        word = (number << CLOCK_BITS | clock) << CONTEXT_BITS
        if tid == get_native_id():
            self._tls[clock].word = word
        return word

    def _lost(self, error: Exception, clock: int, node: int, value: Any, before: int) -> None:
        """The quick way failed: a thread's first reading, no room left, or an error of our own."""
        pass_on(error)
        if isinstance(error, struct.error) or not hasattr(self._tls[clock], "word"):
            self._late(clock, node, value, before)
        else:
            self._give_up(error)

    def _more(self, node: int | None, place: int) -> None:
        """Give the readings more room, up to the limit.  A site that would fill the log by itself is no longer logged.  `node`
        is the site of the current reading, a sample of how often each is read; None for a region's edge, which the user chose
        to have logged.
        """
        with self._lock:
            if node is not None:
                self._sampled[node] += 1
                if self._sampled[node] == _SHARE:
                    _silence(self.sites.trie, node)
                    self._line({"silenced": node, "readings": _SAMPLE * _SHARE})
            self._room = min(len(self._whole), (place // READING_SIZE + _SAMPLE) * READING_SIZE)
            self._area = self._whole[: self._room]
            if place >= self._room and not self._over:
                self._over = True
                self._note(
                    f"the host's clocks were read more than {READINGS:,} times: later readings are not in the log"
                )
            self._switch()

    def _give_up(self, error: Exception) -> None:
        """An error of our own: the clocks become the plain ones again; the rest of the probe continues."""
        pass_on(error)
        self._over = True
        self._switch()
        failed(error)

    # --- files ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Create the file, if the process uses CUDA by now, and write the readings kept until then."""
        runtime = self._probe._runtime
        cuda = sys.modules.get("torch.cuda")
        if (
            runtime is None
            or runtime.aside
            or not (runtime.ready or getattr(cuda, "_initialized", False))
        ):
            return
        with self._lock:
            if not self._waiting or self._over:
                return
            runtime.begin(0 if runtime.ready else int(cuda.current_device()))
            self._whole = memoryview(runtime.store.readings(READINGS * READING_SIZE))
            self._room = _SAMPLE * READING_SIZE
            self._area = self._whole[: self._room]
            for line in self._lines:
                runtime._line(line)
            self._lines = []
            self._waiting = False
            for reading in self._early:
                self._keep(*reading)
            self._early.clear()
            self._switch()

    def _add_site(self, number: int, value: dict) -> None:
        self._line({"clk": number, **value})

    def _line(self, value: dict) -> None:
        if self._waiting:
            self._lines.append(value)
        else:
            self._probe._runtime._line(value)

    def _note(self, text: str) -> None:
        self._line({"note": {"text": text}})

    def region(self, entered: bool, number: int, repetition: int) -> None:
        """A region of the user's begins or ends on this thread.  Raises nothing of ours."""
        if not self._over and "torch.cuda" in sys.modules:
            clock = REGION_ENTERED if entered else REGION_LEFT
            self._late(clock, number, rawtime.perf_counter_ns(), repetition)

    def _after_fork(self) -> None:
        """A forked child has its own files; none if the parent used CUDA, because the child then cannot use it."""
        try:
            self._lock = RLock()
            used = not self._waiting or getattr(
                sys.modules.get("torch.cuda"), "_initialized", False
            )
            self._over = self._over or bool(used)
            self._waiting = True
            self._early.clear()
            self._lines = []
            self.sites.clear()
            self._sampled.clear()
            self._count = itertools.count(0, READING_SIZE)
            self._threads.clear()
            self._thread_numbers = itertools.count(1)
            for local in self._tls:
                local.__dict__.clear()
            self._room, self._area, self._whole = 0, b"", b""
            self._switch()
        except Exception as error:
            self._give_up(error)


def _repetitions(loop: Any) -> int:
    """How often timeit's loop runs its statement, 0 unknown."""
    back = loop.f_back
    number = back.f_locals.get("number") if back is not None else None
    return number if isinstance(number, int) and 0 < number < 1 << 62 else 0


def _silence(node: dict, number: int) -> None:
    for key, below in node.items():
        if below == number:
            node[key] = IGNORED
        elif below.__class__ is dict:
            _silence(below, number)
