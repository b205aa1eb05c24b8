"""Readings of the host's clocks, `time.perf_counter()` and its kin, by the user's own code.

The functions of `time` become callable objects that return the builtin's exact value and bind nowhere: a class
attribute `clock = time.perf_counter` stays callable without `self` (harness.md, section 3).  Everything about them
that can be asked answers as the builtin does.  Which reading is subtracted from which is found out later, from the
call sites: nothing here looks at what becomes of a value.

A reading is two stores into mapped memory.  Nothing is kept, and no file made, before CUDA is used: what is read
between `import torch` and then waits in a short list.
"""

from __future__ import annotations

import collections
import itertools
import os
import sys
import threading
import time
import types
from typing import Any

from . import failed, rawtime
from .clocksites import IGNORED, LOOP, ClockSites, loop_frame
from .layout import (
    CLOCK_BITS,
    CLOCKS,
    CONTEXT_BITS,
    MONOTONIC_CLOCKS,
    READING_WORDS,
    READINGS,
    REGION_ENTERED,
    REGION_LEFT,
    THREAD_BITS,
)
from .sites import _END, _SHIFT

_EARLY = 512  # readings kept from before CUDA is used
#: Every so many readings one is looked at: a site seen so often has had its share (a loop that polls the clock).
#: The step is a prime, so that loops with several sites do not hide behind each other.
_SAMPLE, _SHARE = 1021, 32


class _Clock:
    """Stands for a builtin: its name, text, module, representation and pickle are the builtin's."""

    def __init__(self, builtin: Any) -> None:
        self.__wrapped__ = builtin
        self.__name__ = self.__qualname__ = builtin.__name__
        self.__module__ = builtin.__module__
        self.__doc__ = builtin.__doc__
        self.__self__ = builtin.__self__
        self.__text_signature__ = builtin.__text_signature__

    @property
    def __class__(self) -> type:
        return types.BuiltinFunctionType

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __reduce__(self) -> str:
        return self.__name__  # by reference: a process without the probe finds the builtin


class Timers:
    """One per process, made at its start.  `probe` is the package: it knows the Runtime once there is one."""

    def __init__(self, probe: Any, start_cwd: str) -> None:
        self._probe = probe
        self._lock = threading.RLock()
        self._waiting = True  # CUDA is not in use yet
        self._over = False  # no more readings: forked from a process with CUDA, or no room
        self._count = itertools.count(0, READING_WORDS)
        self._tls = threading.local()
        self._threads = itertools.count(1)
        self._early: collections.deque = collections.deque(maxlen=_EARLY)
        self._lines: list[dict] = []  # for the text file, from before there is one
        self._sampled: collections.Counter = collections.Counter()
        self.sites = ClockSites(start_cwd, self._add_site)
        self._switches: list[Any] = []
        self._doubles: Any = ()
        self._words: Any = ()

    # --- beginning ---------------------------------------------------------------------------------

    def install(self) -> None:
        """Put the callable objects in place of the functions of `time`, and of timeit's default."""
        for number, name in enumerate(CLOCKS, start=1):
            builtin = getattr(time, name)
            setattr(time, name, self._clock(builtin, number << CONTEXT_BITS, name))
        timeit = sys.modules.get("timeit")
        if timeit is not None and timeit.default_timer is rawtime.perf_counter:
            timeit.default_timer = time.perf_counter
        os.register_at_fork(after_in_child=self._after_fork)

    def _clock(self, builtin: Any, clock: int, name: str) -> Any:
        """A callable for one clock.  The closures are what makes it quick."""
        getframe, trie, tls, step = sys._getframe, self.sites.trie, self._tls, self._count.__next__
        shift, end, wall, now = _SHIFT, _END, name.startswith("time"), rawtime.perf_counter_ns
        waiting, over, sample = True, False, 0
        values: Any = ()
        words: Any = ()

        def __call__(self) -> Any:
            nonlocal sample
            if over:
                return builtin()
            try:
                at = frame = getframe(1)
                node = trie.get(id(at.f_code) * shift + at.f_lasti)
                while node.__class__ is dict:
                    at = at.f_back
                    node = node.get(end if at is None else id(at.f_code) * shift + at.f_lasti)
                if node is None or node == LOOP or (waiting and node > 0):
                    return special(frame, builtin, clock)
            except Exception as error:
                give_up(error)
                return builtin()
            if node < 0:
                return builtin()
            before = now() if wall else 0
            value = builtin()
            try:
                place = step()
                values[place] = value
                if wall:
                    words[place + 2], words[place + 3] = before, now()
                words[place + 1] = tls.word + clock + node
                if place > sample:
                    sample = look(node, place)
            except Exception as error:
                lost(error, node, clock, value, before)
            return value

        def switch(timers: Timers) -> None:
            nonlocal waiting, over, values, words, step
            waiting, over, step = timers._waiting, timers._over, timers._count.__next__
            words = timers._words
            values = words if name.endswith("_ns") else timers._doubles

        special, look, lost, give_up = self._special, self._look, self._lost, self._give_up
        self._switches.append(switch)
        kind = type("builtin_function_or_method", (_Clock,), {"__call__": __call__})
        return kind(builtin)

    def _switch(self) -> None:
        for switch in self._switches:
            switch(self)

    # --- all but the quick way -----------------------------------------------------------------------

    def _special(self, frame: Any, builtin: Any, clock: int) -> Any:
        """A site not seen before, one of timeit's loops, or a time at which nothing can be written yet."""
        try:
            if self._waiting:
                if "torch.cuda" not in sys.modules:
                    return builtin()
                # an even number of readings so far: this one begins something, our files are to be made before it
                if len(self._early) % 2 == 0:
                    self._begin()
            loop = loop_frame(frame)
            if loop is not None:
                return self._loop(loop, builtin, clock)
            node = self.sites.learn(frame)
        except Exception as error:
            self._give_up(error)
            return builtin()
        if node == IGNORED:
            return builtin()
        before = rawtime.perf_counter_ns()
        value = builtin()
        after = rawtime.perf_counter_ns()
        wall = clock >> CONTEXT_BITS > MONOTONIC_CLOCKS
        self._late(clock, node, value, before if wall else 0, after if wall else 0)
        return value

    def _loop(self, loop: Any, builtin: Any, clock: int) -> Any:
        """timeit reads its clock: what costs time here happens before its first reading and after its second."""
        if getattr(self._tls, "loop", 0) == id(loop):
            self._tls.loop = 0
            value = builtin()
            node, _ = self.sites.number(loop, loop)
            self._late(clock, node, value, _repetitions(loop), 0)
            return value
        self._tls.loop = id(loop)
        node, _ = self.sites.number(loop, loop)
        count = _repetitions(loop)
        value = builtin()
        self._late(clock, node, value, count, 0)
        return value

    def _late(self, clock: int, node: int, value: Any, third: int, fourth: int) -> None:
        """Keep a reading, the slow way.  Never raises."""
        try:
            if node > 0:
                self._keep(clock, node, value, third, fourth)
            if self._waiting:
                self._begin()
        except IndexError:
            self._full()
        except Exception as error:
            self._give_up(error)

    def _keep(self, clock: int, node: int, value: Any, third: int, fourth: int) -> None:
        if self._waiting:
            self._early.append((threading.get_native_id(), clock, node, value, third, fourth))
            return
        place = next(self._count)
        (self._words if isinstance(value, int) else self._doubles)[place] = value
        self._words[place + 2], self._words[place + 3] = third, fourth
        self._words[place + 1] = self._word() + clock + node

    def _word(self) -> int:
        """The part of a reading that says which thread made it."""
        try:
            return self._tls.word
        except AttributeError:
            return self._thread(self._tls)

    def _thread(self, tls: Any, tid: int | None = None) -> int:
        number = next(self._threads)
        self._line({"thread": number, "tid": threading.get_native_id() if tid is None else tid})
        word = min(number, (1 << THREAD_BITS) - 1) << (CONTEXT_BITS + CLOCK_BITS)
        if tls is not None:
            tls.word = word
        return word

    def _lost(self, error: Exception, node: int, clock: int, value: Any, before: int) -> None:
        """The quick way failed: a thread's first reading, no room any more, or our own mistake."""
        if isinstance(error, IndexError):
            self._full()
        elif isinstance(error, AttributeError) and not hasattr(self._tls, "word"):
            self._late(clock, node, value, before, rawtime.perf_counter_ns() if before else 0)
        else:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Our own mistake: the clocks become plain again; the rest of the probe goes on."""
        self._over = True
        self._switch()
        failed(error)

    def _full(self) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
            self._switch()
            self._note(
                f"the host's clocks were read more than {READINGS:,} times: later readings are not in the log"
            )

    def _look(self, node: int, place: int) -> int:
        """Now and then: a site that fills the log by itself is not logged any further."""
        with self._lock:
            self._sampled[node] += 1
            if self._sampled[node] == _SHARE:
                _silence(self.sites.trie, node)
                self._line({"silenced": node, "readings": _SAMPLE * _SHARE})
        return place + _SAMPLE * READING_WORDS

    # --- files ---------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Make the file, if the process uses CUDA by now, and write down what waited for it."""
        runtime = self._probe._runtime
        cuda = sys.modules.get("torch.cuda")
        if runtime is None or runtime.aside or not (runtime.ready or getattr(cuda, "_initialized", False)):
            return
        with self._lock:
            if not self._waiting or self._over:
                return
            runtime.begin(0 if runtime.ready else int(cuda.current_device()))
            area = memoryview(runtime.store.readings(READINGS * READING_WORDS * 8))
            self._doubles, self._words = area.cast("d"), area.cast("q")
            for line in self._lines:
                runtime._line(line)
            self._lines = []
            self._waiting = False
            known: dict[int, int] = {}
            for tid, clock, node, value, third, fourth in self._early:
                if tid not in known:
                    own = tid == threading.get_native_id()
                    known[tid] = self._word() if own else self._thread(None, tid)
                place = next(self._count)
                (self._words if isinstance(value, int) else self._doubles)[place] = value
                self._words[place + 2], self._words[place + 3] = third, fourth
                self._words[place + 1] = known[tid] + clock + node
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
        """A region of the user's begins or ends on this thread.  Never raises."""
        if not self._over and "torch.cuda" in sys.modules:
            clock = (REGION_ENTERED if entered else REGION_LEFT) << CONTEXT_BITS
            self._late(clock, number, rawtime.perf_counter_ns(), repetition, 0)

    def _after_fork(self) -> None:
        """A forked child has its own files; none where the parent used CUDA, which the child then cannot."""
        try:
            self._lock = threading.RLock()
            used = not self._waiting or getattr(sys.modules.get("torch.cuda"), "_initialized", False)
            self._over = self._over or bool(used)
            self._waiting = True
            self._early.clear()
            self._lines = []
            self.sites.clear()
            self._sampled.clear()
            self._count, self._threads = itertools.count(0, READING_WORDS), itertools.count(1)
            self._tls.__dict__.clear()
            self._doubles = self._words = ()
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
