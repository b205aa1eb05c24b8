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


def best(trials: Sequence[Trial]) -> int:
    """The batch with the highest throughput."""
    return max(trials, key=lambda t: t.rate).batch


def advised(trials: Sequence[Trial]) -> int:
    """The smallest batch that gives nearly as much as the best."""
    enough = (1 - NEARLY) * max(t.rate for t in trials)
    return min(t.batch for t in trials if t.rate >= enough)


def reported(trials: Sequence[Trial], failed: int | None) -> tuple[int, ...]:
    """Batches to measure in full: the advice, the best, the first, the largest; and halfway to
    `failed`, the batch that found no memory, if possible a multiple of 8 (else 4, 2), which suits
    tensor cores."""
    batches = {t.batch for t in trials}
    largest = halfway = max(batches)
    if failed:
        middle = (largest + failed) // 2
        rounded = (middle // s * s for s in (8, 4, 2))
        halfway = next((b for b in rounded if b > largest), middle)
    chosen = {advised(trials), best(trials), min(batches), largest, halfway}
    return tuple(sorted(chosen))
