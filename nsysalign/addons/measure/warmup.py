"""When a program is warm.

Warm is: in the last max(20 calls, 0.5 s) nothing was loaded and no GPU memory segment added, the
duration of a call does not change (the 95 % bounds of Theil and Sen's slope include 0, or the slope
changes the time within the window by less than half the requested precision), and the SM clock was
stable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import median

from nsysalign.addons.measure.statistics import Z95

WINDOW_CALLS, WINDOW_S = 20, 0.5
LIMIT_S = 10.0
#: The window's calls are split into this many groups, with a median each, so that single slow calls
#: do not look like a trend.
GROUPS = 20
#: The SM clock moves in steps of 15 MHz; a change of up to this much counts as stable.
CLOCK_SHARE = 0.02


def slope(values: Sequence[float]) -> tuple[float, float, float]:
    """Theil and Sen's slope per step with 95 % bounds (Sen 1968): (slope, low, high)."""
    n = len(values)
    slopes = sorted((values[j] - values[i]) / (j - i) for i in range(n) for j in range(i + 1, n))
    count = len(slopes)
    if not count:
        return 0.0, -math.inf, math.inf
    reach = Z95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = max(0, math.floor((count - reach) / 2) - 1)
    high = min(count - 1, math.ceil((count + reach) / 2))
    return median(slopes), slopes[low], slopes[high]


@dataclass
class WarmUp:
    """How long warming up took.  `why` says what was still changing when the limit came; "" where
    it had settled."""

    first_ns: int = 0
    calls: int = 0
    took_ns: int = 0
    why: str = ""
    call_ns: float = 0.0

    @property
    def settled(self) -> bool:
        """Whether nothing changed any more."""
        return not self.why


def warm_up(
    timed: Callable[[], tuple[int, int]],
    state: Callable[[], Hashable],
    clock_stands: Callable[[int], bool],
    *,
    precision: float,
    limit_s: float = LIMIT_S,
    window_s: float = WINDOW_S,
) -> WarmUp:
    """Call until warm.  `timed()` makes one call and returns (when it ended, how long it took) in
    ns; `state()` changes when something is loaded or allocated; `clock_stands(since)` tells whether
    the SM clock moved."""
    ended, first_ns = timed()
    began = ended - first_ns
    ends, took = [ended], [first_ns]
    changed, known, checked = ended, state(), ended
    while True:
        ended, ns = timed()
        ends.append(ended)
        took.append(ns)
        over = ended - began >= limit_s * 1e9
        if ended - checked < 0.02e9 and not over:
            continue
        checked = ended
        if (now := state()) != known:
            known, changed = now, ended
        since = ended - int(window_s * 1e9)
        inside = next((k for k, end in enumerate(ends) if end >= since), len(ends) - 1)
        inside = min(inside, len(ends) - WINDOW_CALLS)
        if inside < 1 or ends[0] > since:
            why = "too few calls"
        elif changed > since or changed > ends[inside]:
            why = "code was loaded or GPU memory allocated"
        elif not _steady(took[inside:], precision):
            why = "the duration of a call still changed"
        elif not clock_stands(since):
            why = "the SM clock still changed"
        else:
            why = ""
        if not why or over:
            call_ns = median(took[-min(len(took), WINDOW_CALLS) :])
            return WarmUp(first_ns, len(ends), ended - began, why, call_ns)


def _steady(values: Sequence[float], precision: float) -> bool:
    """Whether a window of durations has no trend, or none that matters."""
    size = -(-len(values) // GROUPS)
    groups = [median(values[k : k + size]) for k in range(0, len(values), size)]
    middle, low, high = slope(groups)
    return low <= 0 <= high or abs(middle) * len(groups) <= precision / 2 * median(values)
