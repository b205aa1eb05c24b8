"""How much time is left, and how much of it a process may have."""

from __future__ import annotations

import math
import time
from statistics import median

from nsysalign.measure.search import OutOfTime

#: Time to start a process and its CUDA, until one has been measured; and for a profiled one with its analysis.
STARTING_S, PROFILING_S = 8.0, 16.0
#: Measuring for less than this in a process is not worth starting it.
LEAST_S = 0.3


class Budget:
    """The time of one measurement, from now on: `whole_s` seconds, None without a limit.

    `starting` and `profiling` collect the times processes took to start, and to be profiled and analysed.
    """

    def __init__(self, whole_s: float | None) -> None:
        self.whole_s = whole_s
        self.began = time.monotonic()
        self.starting: list[float] = []
        self.profiling: list[float] = []

    @property
    def left_s(self) -> float:
        """Infinite without a limit."""
        return math.inf if self.whole_s is None else self.whole_s - (time.monotonic() - self.began)

    def percent(self, otherwise: int) -> int:
        """How much of it has been spent; `otherwise` if there is no limit."""
        if self.whole_s is None:
            return otherwise
        return min(99, max(0, int(100 * (1 - self.left_s / self.whole_s))))

    @property
    def starting_s(self) -> float:
        """Time to start a process, from the last ones: the first one found nothing in the machine's caches."""
        return 1.1 * median(self.starting[-5:]) if self.starting else STARTING_S

    @property
    def profiling_s(self) -> float:
        """Time for a profiled process with its analysis, from the slowest one."""
        return max(self.profiling, default=PROFILING_S)

    def for_profiles(self, profiles: int) -> float:
        """Seconds to reserve for this many: for one, or a fifth of the budget, and never more than a third of it."""
        if self.whole_s is None or not profiles:
            return 0.0
        return min(
            self.profiling_s * profiles, max(self.profiling_s, self.whole_s / 5), self.whole_s / 3
        )

    def for_search(self, processes: int, profile: bool) -> float:
        """Seconds to reserve for what follows the search: this many processes per batch, and profiles."""
        if self.whole_s is None:
            return 0.0
        return min(0.45, 0.1 * processes + 0.15 * profile) * self.whole_s

    def share_s(
        self, jobs: int, reserve_s: float, usual_s: float, *, any_yet: bool, first: bool = True
    ) -> float:
        """Seconds that one of this many processes may measure, with `reserve_s` for what follows.  Raises OutOfTime if too
        little is left, except for the first.  `first`: processes come before what follows, if there is no time for both:
        without them nobody knows how far numbers hold, and a profile only explains them."""
        if self.whole_s is None:
            return usual_s
        left = self.left_s - 0.3
        if not first or left - reserve_s >= jobs * (self.starting_s + LEAST_S):
            left -= reserve_s
        mine = left / max(1, jobs) - self.starting_s
        # fewer processes are better than none
        share = mine if mine >= LEAST_S else min(left - self.starting_s, LEAST_S)
        if share < LEAST_S and any_yet:
            raise OutOfTime
        return max(0.1, min(usual_s, share))

    def limit_s(self, limit_s: float) -> float:
        """The time after which to end a process, at most `limit_s`."""
        if self.whole_s is None:
            return limit_s
        return min(limit_s, max(2.0, self.left_s + 0.05 * self.whole_s))
