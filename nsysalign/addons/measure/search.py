"""Which batches a search tries, and which of them are the answer.  No I/O.

Powers of two until the memory ends, all in one process; then what is reported is measured in full.
"""

from __future__ import annotations

from collections.abc import Mapping

#: The advice is the smallest batch whose throughput is within this share of the best.
NEARLY = 0.05
LARGEST = 1 << 22


def climb(most: int | None) -> tuple[int, ...]:
    """1, 2, 4, ... up to and including `most`."""
    top = min(most or LARGEST, LARGEST)
    powers = [1 << k for k in range(LARGEST.bit_length()) if 1 << k <= top]
    return tuple(dict.fromkeys([*powers, top]))


def best(rates: Mapping[int, float]) -> int:
    """The batch with the highest throughput; `rates`: outputs per second by batch."""
    return max(rates, key=lambda batch: rates[batch])


def advised(rates: Mapping[int, float]) -> int:
    """The smallest batch that gives nearly as much as the best."""
    return min(b for b, rate in rates.items() if rate >= (1 - NEARLY) * max(rates.values()))


def reported(rates: Mapping[int, float]) -> list[int]:
    """Batches to measure in full: the advice, the best, the first, the largest."""
    return sorted({advised(rates), best(rates), min(rates), max(rates)})
