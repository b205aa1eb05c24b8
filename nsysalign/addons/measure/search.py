"""Which batches a search tries, and which of them are the answer.  No I/O.

Powers of two until the memory ends, all in one process; then what is reported is measured in full,
and with it one batch halfway between the largest and the one that found no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: The advice is the smallest batch whose throughput is within this share of the best.
NEARLY = 0.05
LARGEST = 1 << 22


class Trial(NamedTuple):
    """A batch that ran, and its outputs per second."""

    batch: int
    rate: float


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


def reported(trials: Sequence[Trial], failed: int | None) -> tuple[int, ...]:
    """Batches to measure in full: the advice, the best, the first, the largest; and halfway to
    `failed`, the batch that found no memory."""
    batches = {t.batch for t in trials}
    largest = max(batches)
    halfway = _even((largest + failed) // 2, largest) if failed else largest
    chosen = {advised(trials).batch, best(trials).batch, min(batches), largest, halfway}
    return tuple(sorted(chosen))


def _even(value: int, low: int) -> int:
    """At most `value` and above `low`, if possible a multiple of 8 (else 4, 2), which suits tensor
    cores."""
    return next((value // s * s for s in (8, 4, 2) if value // s * s > low), value)
