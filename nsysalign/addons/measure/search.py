"""Which batches a search tries, and which of them are the answer.  No I/O.

Powers of two until the memory ends, all in one process; then one refinement, halfway (a factor of
1.4) to the neighbours of what matters.  So the best batch is known within a factor of 1.4, and so
is the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: The advice is the smallest batch whose throughput is within this share of the best.
NEARLY = 0.05
LARGEST = 1 << 22


class Trial(NamedTuple):
    """A batch that ran: outputs per second, and its median latency."""

    batch: int
    rate: float
    latency_ns: float


def climb(most: int | None) -> tuple[int, ...]:
    """1, 2, 4, ... up to and including `most`."""
    top = min(most or LARGEST, LARGEST)
    powers = [1 << k for k in range(LARGEST.bit_length()) if 1 << k <= top]
    return tuple(dict.fromkeys([*powers, top]))


def best(trials: Sequence[Trial]) -> Trial:
    """The highest throughput."""
    return max(trials, key=lambda t: t.rate)


def advised(trials: Sequence[Trial]) -> Trial:
    """The smallest batch that gives nearly as much as the best."""
    enough = (1 - NEARLY) * best(trials).rate
    return min((t for t in trials if t.rate >= enough), key=lambda t: t.batch)


def below(trials: Sequence[Trial], latency_ns: float | None) -> Trial | None:
    """The best throughput among those whose latency is below a limit."""
    quick = [t for t in trials if latency_ns and 0 < t.latency_ns <= latency_ns]
    return best(quick) if quick else None


def refined(
    trials: Sequence[Trial], failed: int | None, most: int | None, latency_ns: float | None
) -> tuple[int, ...]:
    """What to try once more, in order: on both sides of the best, beyond the last that is below
    the latency limit, and below `failed`, the batch that found no memory."""
    tried = {t.batch for t in trials}
    top = min(failed - 1 if failed else LARGEST, most or LARGEST)
    lower = [best(trials).batch // 2, best(trials).batch]
    lower += [
        max((t.batch for t in trials if latency_ns and t.latency_ns <= latency_ns), default=0)
    ]
    lower += [max(tried)] if failed else []
    halfway = {_even(b * 2**0.5, b, 2 * b) for b in lower if b}
    return tuple(sorted(b for b in halfway if b <= top and b not in tried))


def _even(value: float, low: int, high: int) -> int:
    """A batch strictly between two, if possible a multiple of 8 (else 4, 2), which suits tensor
    cores; `low` where nothing is between."""
    for step in (8, 4, 2, 1):
        near = round(value / step) * step
        if low < near < high:
            return near
    return low


def reported(trials: Sequence[Trial], latency_ns: float | None) -> tuple[int, ...]:
    """Batches to measure in full: the advice, the best, the best below the limit, the first, the
    largest."""
    under = below(trials, latency_ns) or best(trials)
    batches = {t.batch for t in trials}
    ends = {min(batches), max(batches)}
    return tuple(sorted({advised(trials).batch, best(trials).batch, under.batch} | ends))
