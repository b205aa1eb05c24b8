"""When the recorder leaves the process, and when it comes back (`nsysalign run --untraced`).

    marks      t0 S E S E S E t1  t0 S E S E S E t1  t0 ...      records, clock readings, regions entered
    leaders        0   0   0         0   0   0      1             what comes again first; around it what holds it more than once
    switch                                          |             once a turn is over, before the outermost leader

What is open cannot be known while a program runs: a pair becomes one when it is compared, perhaps at the
program's end.  But a program that repeats itself repeats its marks, and what comes again first began what is
repeated.  An interval that holds a switch all the same is left out by the analysis, which counts them.

A turn with CUPTI is short: a few repetitions tell where their time goes.  The one without it is many times as
long, so that what the program prints of itself is nearly what it prints without us.  Both together are a hundred
times as long as their switches take; and longer in long runs, because CUPTI loses some 80 kB of memory with each
switch (H200, CUPTI 13.0).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import rawtime as time
from .recorder import Recorder
from .reference import nobody_is_timing

#: Least length of the first turn, and of all others with CUPTI.
FIRST_NS, LEAST_NS = 100_000_000, 50_000_000
#: So many times begins in each of them what the program repeats; in the first, which may hold its warm-up, more often.
_REPETITIONS, _FIRST_REPETITIONS = 3, 10
#: A turn without CUPTI is this many times as long as the one before it.
_LONGER = 30
#: And as many times as long as leaving and coming back take.
_TIMES = 100
#: And takes no less than this share of the run so far.
_TURNS = 50
#: After a turn was over for so long, what is repeated may be cut.
_LATE_NS = 1_000_000_000
#: After a moment that was none: when the next one is looked for.
_AGAIN_NS = 10_000_000
#: A mark that came so often without becoming a leader is none.
_SETTLED, _MOST_LEADERS = 4, 64
_NEVER = 1 << 62


class Leaders:
    """Which marks begin what a program repeats.  `level`: by mark; higher ones hold lower ones."""

    def __init__(self) -> None:
        self.level: dict[Any, int] = {}
        self.count: dict[Any, int] = {}  # how often each leader came
        self._seen: dict[Any, tuple[int, dict[Any, int]]] = {}
        self._settled: set[Any] = set()

    def came(self, mark: Any) -> None:
        """Take note of a mark."""
        if mark in self.level:
            self.count[mark] += 1
        elif mark not in self._settled:
            self._learn(mark)

    def _learn(self, mark: Any) -> None:
        times, before = self._seen.get(mark, (0, {}))
        if times:
            came = {n: self.count[n] - before.get(n, 0) for n in self.level}
            inside = {leader: count for leader, count in came.items() if count}
            repeated = (self.level[n] for n, count in inside.items() if count > 1)
            level = max(repeated, default=-1) + 1
            highest = max([self.level[n] for n in inside], default=-1)
            if highest < level and len(self.level) < _MOST_LEADERS:
                self.level[mark], self.count[mark] = level, 1
                del self._seen[mark]
                return
            if times >= _SETTLED:
                self._settled.add(mark)
                del self._seen[mark]
                return
        self._seen[mark] = times + 1, dict(self.count)


class Turns:
    """One per process whose recorder works in turns."""

    def __init__(self, rt: Any, recorder: Recorder) -> None:
        self._rt, self._recorder = rt, recorder
        self.clear()

    def clear(self) -> None:
        """As at the beginning of a process."""
        self._leaders = Leaders()
        # from when on it may switch (0: nothing has come yet), and from when on inside of something, too
        self._due_ns = self._late_ns = 0
        self._traced, self._switching = True, False
        self._began_ns = self._turn_ns = 0  # the first mark; when this turn began
        self._switch_ns = 0  # how long the latest switch took
        self._before: dict[Any, int] = {}  # how often leaders had come at the latest switch
        self.switches = self.tries = 0

    def marking(self, context_of: Callable[[Any], int]) -> Callable[[Any], int]:
        """The same function of a frame that is about to record an event, which is a mark."""

        def context(frame: Any) -> int:
            number = context_of(frame)
            self.mark(number)
            return number

        return context

    def mark(self, mark: Any) -> None:
        """To be called before a record, a clock reading and the beginning of an outermost region."""
        self._leaders.came(mark)
        now = time.perf_counter_ns()
        if now >= self._due_ns:
            if not self._due_ns:
                self._recorder.listen()
                self._began_ns = now
                self._turn_of(FIRST_NS, now)
            elif self._is_moment(mark, now):
                self._switch()

    def _turn_of(self, length_ns: int, now: int) -> None:
        self._turn_ns, self._due_ns = now, now + length_ns
        self._late_ns = self._due_ns + max(length_ns, _LATE_NS)
        self._before = dict(self._leaders.count)

    def _is_moment(self, mark: Any, now: int) -> bool:
        """Whether nothing that the program times is open, as far as can be known."""
        rt, leaders = self._rt, self._leaders
        level = leaders.level.get(mark, -1)
        if level < 0 or self._switching or rt.captures or rt.aside:
            return False
        for state in list(rt.states.values()):
            if state.stack:
                return False
        if now < self._late_ns:  # else the outermost may not come for long
            came = {n: count - self._before.get(n, 0) for n, count in leaders.count.items()}
            if level < max((leaders.level[n] for n, times in came.items() if times), default=0):
                return False
            if self._traced and came[mark] < (
                _REPETITIONS if self.switches else _FIRST_REPETITIONS
            ):
                return False
            if not nobody_is_timing(rt, rt.me()):
                return False
        cuda = sys.modules.get("torch.cuda")
        captures = getattr(cuda, "is_current_stream_capturing", bool)
        return not captures()

    def _switch(self) -> None:
        self._switching = True
        try:
            began = time.perf_counter_ns()
            status = self._recorder.turn(not self._traced)
            now = time.perf_counter_ns()
            self.tries += 1
            if status < 0:
                self._due_ns = _NEVER
                self._rt.note(
                    text=f"untraced turns: {self._recorder.problem() or 'nothing is recorded'}"
                )
                return
            if not status:
                self._due_ns = now + max(_AGAIN_NS, _TIMES * (now - began))
                return
            self.switches += 1
            self._traced = not self._traced
            latest_ns, self._switch_ns = self._switch_ns or now - began, now - began
            self._turn_of(self._length(began - self._turn_ns, latest_ns + now - began), now)
        finally:
            self._switching = False

    def _length(self, before_ns: int, switches_ns: int) -> int:
        """Return how long the turn that begins is to be, in ns.

        before_ns: how long the one before it took
        switches_ns: how long leaving and coming back take together
        """
        if self._traced:
            return LEAST_NS
        traced_ns = LEAST_NS if self.switches == 1 else before_ns  # the first is no measure
        run_ns = time.perf_counter_ns() - self._began_ns
        return max(_LONGER * traced_ns, _TIMES * switches_ns, run_ns // _TURNS)

    def graph(self) -> None:
        """A CUDA graph is about to be made: CUPTI can neither leave nor come any more.  One that it has
        seen being made cannot be replayed without it, and one that it has not cannot be with it: the
        program would end (tried, CUPTI 13.0 and 13.1)."""
        if self._due_ns != _NEVER:
            self._due_ns = _NEVER
            self._rt.note(
                text="from here on nothing runs untraced: the program makes CUDA graphs, which cannot be replayed "
                "once CUPTI has left"
                if self._traced
                else "from here on nothing is traced: the program made a CUDA graph while it ran untraced, and CUPTI "
                "must not come to such a program (one that makes its first graph before it times anything stays traced)"
            )

    def ends(self) -> None:
        """Say why there was no switch, at the end of the process."""
        if self.switches or self._due_ns in (0, _NEVER):
            return
        if self.tries:
            why = "whenever one was due a range of the program was open, the GPU did not come to rest, or another thread called CUDA"
        elif time.perf_counter_ns() < self._due_ns:
            why = f"the program timed for less than {FIRST_NS / 1e9:.1f} s"
        else:
            why = "what the program times never began again, or regions were open around it"
        self._rt.note(text=f"untraced turns: nothing ran untraced: {why}")
