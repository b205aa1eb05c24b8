"""Interval arithmetic over whole arrays: half-open [start, end), int64 nanoseconds.

    pieces   [------------)      [------)
    blocks      [--)  [----)        [--)
    tile     [-)[--)[-)[---)     [-)[--)[-)      which block: - 0 - 1   - 2 -

No loop over rows: searchsorted finds the blocks a piece touches, repeat lays them out flat.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pandas as pd

#: Each of n intervals in one another holds the work of all inside it, so that the work on all of
#: them grows with the square: those inside this many others are left out.
MOST_NESTED = 100
_C = TypeVar("_C", bound="Columns")
FAR = np.int64(1) << 62  # no such time
INT32 = np.iinfo(np.int32)
_FEW_VALUES = 1_000


class Columns:
    """A dataclass of arrays of equal length."""

    def take(self: _C, index: np.ndarray | slice) -> _C:
        """The rows that a mask, positions or a slice name."""
        return type(self)(**{name: values[index] for name, values in vars(self).items()})

    @classmethod
    def joined(cls: type[_C], parts: Sequence[_C]) -> _C:
        """The rows of at least one part, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(*map(np.concatenate, zip(*(vars(p).values() for p in parts), strict=True)))

    def some(self: _C, index: np.ndarray) -> _C:
        """The rows at these rising positions; itself where these are all."""
        return self if len(index) == len(next(iter(vars(self).values()))) else self.take(index)


class Tiles(NamedTuple):
    """Spans cut at blocks: arrays with a value per tile.

    span:       the position of the span that the tile is a part of
    start, end: ns
    block:      the position of the block that covers the tile, -1 for none

    span 0    [----------------)
    block 0       [---)
    tiles     [--)[---)[-------)      span 0, 0, 0; block -1, 0, -1
    """

    span: np.ndarray
    start: np.ndarray
    end: np.ndarray
    block: np.ndarray


def ragged(first: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (owner, value): for every owner i the values first[i], first[i] + 1, ... (count[i] of them),
    laid out flat.

    first 5, 9; count 3, 1:      owner 0, 0, 0, 1; value 5, 6, 7, 9
    """
    owner = np.repeat(np.arange(len(count)), count)
    begin = np.cumsum(count) - count
    return owner, np.arange(len(owner)) - begin[owner] + first[owner]


def batches(count: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield the positions of `count` in order, in batches whose counts add up to about `size`.

    count 4, 3, 5, 2; size 8:      positions 0, 1 and then 2, 3
    """
    number = np.cumsum(count) // size
    yield from np.split(np.arange(len(count)), np.flatnonzero(np.diff(number)) + 1)


def tile(
    start: np.ndarray, end: np.ndarray, block_start: np.ndarray, block_end: np.ndarray
) -> Tiles:
    """Return spans cut at blocks: tiles, each inside a block or outside of all, in the order of spans, then time.

    start, end: the spans, in any order; they may overlap
    block_start, block_end: the blocks, sorted by time and disjoint

    Empty tiles are left out.
    """
    first = np.searchsorted(block_end, start, side="right")
    touched = np.maximum(np.searchsorted(block_start, end, side="left") - first, 0)
    owner, block = ragged(first, touched)
    # each span becomes gap, block, gap, block, ..., gap: 2n + 1 tiles
    place = 2 * np.arange(len(owner)) + owner + 1
    count = 2 * touched + 1
    begin = np.cumsum(count) - count
    lo, hi = np.empty(count.sum(), np.int64), np.empty(count.sum(), np.int64)
    tile_block = np.full(len(lo), -1)
    tile_block[place] = block
    lo[place] = hi[place - 1] = np.maximum(block_start[block], start[owner])
    hi[place] = lo[place + 1] = np.minimum(block_end[block], end[owner])
    lo[begin], hi[begin + count - 1] = start, end
    keep = np.flatnonzero(hi > lo)
    return Tiles(
        np.repeat(np.arange(len(start)), count)[keep], lo[keep], hi[keep], tile_block[keep]
    )


def disjoint(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each interval adds to the union of those before it, for intervals sorted by start.

    Returns (which, start, end) of the non-empty contributions: sorted, disjoint, together the
    union.

        A  [--------)                A [--------)
        B     [--)           ->      C          [---)        (B adds nothing)
        C        [------)
    """
    if not len(start):
        nowhere = np.empty(0, np.int64)
        return nowhere, nowhere, nowhere
    if (start[1:] >= end[:-1]).all() and (end > start).all():  # nothing overlaps: the usual case
        return np.arange(len(start), dtype=index_type(len(start))), start, end
    reach = np.maximum.accumulate(end)
    begin = start.copy()
    begin[1:] = np.maximum(begin[1:], reach[:-1])
    kept = np.flatnonzero(end > begin)
    return kept, begin[kept], end[kept]


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorted disjoint blocks covering the same instants."""
    order = np.argsort(start, kind="stable")
    return disjoint(start[order], end[order])[1:]


def covered_ns(start: np.ndarray, end: np.ndarray) -> int:
    """Return for how long (ns) at least one of these intervals is open; they may overlap, in any order."""
    begin, finish = union(start, end)
    return int((finish - begin).sum())


def covered(start: np.ndarray, end: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return how much of disjoint sorted blocks lies before each time.

    blocks [10, 20) and [30, 50); at 15, 25, 40:      5, 10, 20
    """
    begun = np.searchsorted(start, at)  # how many blocks begin before each time
    length_of_first = np.append(0, np.cumsum(end - start))  # of the first 0, 1, 2, ... blocks
    end_of_last = np.append(-FAR, end)[begun]
    still_to_come = np.maximum(end_of_last - at, 0)  # of the last one that has begun
    return length_of_first[begun] - still_to_come


def pick(values: np.ndarray, index: np.ndarray, default: int) -> np.ndarray:
    """Return values[index], and `default` where the index is -1 ("none"); `values` may be empty.

    values 40, 50; index 1, -1, 0; default 7:      50, 7, 40
    """
    if not len(values):
        return np.full(len(index), default, dtype=values.dtype)
    return np.where(index >= 0, values[index], default)  # -1 is the last one, which is not taken


def positions(wanted: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return where each of the wanted numbers stands first among the values, -1 for one that does not.

    wanted 8, 9; values 5, 8, 8:      1, -1
    """
    if not len(values):
        return np.full(len(wanted), -1)
    order = None if rising(values) else np.argsort(values, kind="stable")
    place = np.searchsorted(values, wanted, sorter=order)
    place = np.minimum(place, len(values) - 1)
    place = place if order is None else order[place]
    return np.where(values[place] == wanted, place, -1)


def distinct(values: np.ndarray) -> np.ndarray:
    """Sorted distinct values; a column of one value (stride 0) is not scanned."""
    if len(values) and not any(values.strides):
        return values[:1].copy()
    # np.unique sorts all values, which is faster while these are few
    return np.unique(values) if len(values) < _FEW_VALUES else np.sort(pd.unique(values))


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the `count` largest values, the largest first, of equal ones the first.

    values 5, 9, 5, 7; count 3:      1, 3, 0
    """
    rows = np.arange(len(values))
    if len(values) > count:  # only these are sorted: to find the smallest of them takes less time
        smallest = np.partition(values, -count)[-count]
        rows = np.flatnonzero(values >= smallest)
    return rows[np.argsort(-values[rows], kind="stable")[:count]]


def rising(values: np.ndarray) -> bool:
    return bool((values[1:] >= values[:-1]).all())


def index_type(count: int) -> type:
    """The integer type for positions in a table of `count` rows: the smaller one if it is
    enough."""
    return np.int32 if count < INT32.max else np.int64


def group(keys: np.ndarray, values: np.ndarray) -> dict[int, np.ndarray]:
    """Return key -> its values, in the order in which they came.

    keys 2, 1, 2; values 7, 8, 9:      {1: [8], 2: [7, 9]}
    """
    if len(keys) and (keys == keys[0]).all():
        return {int(keys[0]): values}
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    return {int(keys[g[0]]): values[g] for g in np.split(order, cuts) if len(g)}


def least(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Minimum of values[first:last] for many non-empty stretches, in n log n steps however long
    they are.

    values    3 1 4 1 5 9 2 6
    power 2   1 1 1 1 2 2 2 .      least of the next 2^k values: two of these cover any stretch
    """
    if rising(values):
        return values[first]
    length = last - first
    out = np.empty(len(first), values.dtype)
    table, power = values, 0
    while len(table):
        ranges = np.flatnonzero((length >= 1 << power) & (length < 2 << power))
        out[ranges] = np.minimum(table[first[ranges]], table[last[ranges] - (1 << power)])
        step = 1 << power
        table = np.minimum(table[:-step], table[step:]) if len(table) > step else table[:0]
        power += 1
    return out


def too_deep(owner: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Bool, per interval: whether MOST_NESTED others of its owner or more are open where it
    begins; of those that begin together the longest comes first."""
    out = np.zeros(len(start), dtype=bool)
    for rows in group(owner, np.arange(len(start))).values():
        order = rows[np.lexsort((-end[rows], start[rows]))]
        over = np.searchsorted(np.sort(np.maximum(start, end)[rows]), start[order], side="right")
        out[order] = np.arange(len(rows)) - over >= MOST_NESTED
    return out


def any_open(
    key: np.ndarray, start: np.ndarray, end: np.ndarray, wanted_key: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Return whether at each time one of the spans with that key is open, half-open.

    key, start, end: per span, e.g. its thread, and its times
    wanted_key, at: per time that is asked for

    span [10, 20) of thread 1; asked for thread 1 at 15 and 20, thread 2 at 15:      True, False, False
    """
    out = np.zeros(len(at), dtype=bool)
    for number, spans in group(key, np.arange(len(key))).items():
        asked = np.flatnonzero(wanted_key == number)
        begun = np.searchsorted(np.sort(start[spans]), at[asked], side="right")  # how many
        over = np.searchsorted(np.sort(end[spans]), at[asked], side="right")
        out[asked] = begun > over
    return out


def any_between(
    key: np.ndarray, time: np.ndarray, wanted_key: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Bool, per stretch (`wanted_key`, from `low` to `high`): whether a time with that key lies
    between the two."""
    out = np.zeros(len(wanted_key), dtype=bool)
    for number, times in group(key, time).items():
        stretches, times = np.flatnonzero(wanted_key == number), np.sort(times)
        after = np.searchsorted(times, low[stretches], side="right")
        out[stretches] = np.searchsorted(times, high[stretches]) > after
    return out
