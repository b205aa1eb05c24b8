"""When a program is warm.

Warm is: in the last max(20 calls, 0.5 s) nothing was loaded and no GPU memory segment added, and
the duration of a call does not change (the 95 % bounds of Theil and Sen's slope include 0, or the slope
changes the time within the window by less than half the requested precision).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from nsysalign.addons.measure.statistics import Z95

WINDOW_CALLS, WINDOW_S = 20, 0.5
LIMIT_S = 10.0
#: The window's calls are split into this many groups, with a median each, so that single slow calls
#: do not look like a trend.
GROUPS = 20


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
    *,
    precision: float,
    limit_s: float = LIMIT_S,
    window_s: float = WINDOW_S,
) -> WarmUp:
    """Call until warm.  `timed()` makes one call and returns (when it ended, how long it took) in
    ns; `state()` changes when something is loaded or allocated."""
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
        why = ""
        if inside < 1 or ends[0] > since:
            why = "too few calls"
        elif changed > since or changed > ends[inside]:
            why = "code was loaded or GPU memory allocated"
        elif not steady(took[inside:], precision):
            why = "the duration of a call still changed"
        if not why or over:
            return WarmUp(first_ns, len(ends), ended - began, why, median(took[-WINDOW_CALLS:]))


def steady(durations: Sequence[float], precision: float) -> bool:
    """Whether a window of durations has no trend, or none that matters: by Theil and Sen's slope
    with its 95 % bounds (Sen 1968)."""
    size = -(-len(durations) // GROUPS)
    groups = [median(durations[k : k + size]) for k in range(0, len(durations), size)]
    first, second = np.triu_indices(len(groups), 1)
    slopes = np.sort(np.subtract(*np.take(groups, (second, first))) / (second - first))
    n, count = len(groups), len(slopes)
    reach = Z95 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = slopes[max(0, math.floor((count - reach) / 2) - 1)]
    high = slopes[min(count - 1, math.ceil((count + reach) / 2))]
    drift = float(np.median(slopes)) * n
    return bool(low <= 0 <= high or abs(drift) <= precision / 2 * median(durations))
