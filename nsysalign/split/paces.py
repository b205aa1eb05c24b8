"""Paces of a kind of work: its intervals in heaps of about the same length, where these lie far apart.

    lengths   x xxxxx x              x xx x        two heaps with a gap that noise does not explain: two paces
    lengths   x x xx x xx x x xx x x x             none: one pace

`paces` cuts the sorted lengths in two at the best place (`_best_cut`), and each side again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nsysalign.label import is_even

#: Two paces differ by at least this ratio of their medians, and so do two ranks that are reported
#: apart, and a first call and the slowest of the others.
RATIO = 1.3
#: Between two paces there is a gap: the slower side's 10 % quantile is at least this many times the
#: faster side's 90 % quantile.
GAP = 1.15
#: The gap is also wider than the ratio by which the two sides spread where they face each other,
#: raised to the power WIDER + WIDER_FEW / repetitions: the fewer they are, the wider gaps come by chance.
WIDER, WIDER_FEW = 1.5, 12
#: What deviates makes up at least SHARE of the label's time, and up to twice that share if fewer
#: than RARE of the repetitions deviate; it does so even with one of these repetitions less.  One or
#: two repetitions that deviate make up at least ALONE of the time.
SHARE, RARE, ALONE = 0.05, 0.2, 0.25
#: Two sides with such a gap, neither of which is less than this part of the repetitions, are two paces whatever else
#: the label's time went to.
CLEAR_GAP, CLEAR_PART = 1.8, 1 / 3
#: The medians of two paces differ by at least this.
APART_NS = 1_000
#: A kind that counts has at least FEW repetitions; paces are told apart from FEWEST_PACED repetitions on.
FEW, FEWEST_PACED = 3, 6


def paces(elapsed_ns: np.ndarray, at: np.ndarray, total: int) -> list[np.ndarray]:
    """Return the positions of a kind's intervals by pace, the fastest pace first: a list of arrays, one if all have the
    same pace.

    elapsed_ns: of all intervals of the label
    at:         the positions of the kind's intervals
    total:      the time (ns) of the label without first calls

    The intervals, sorted by length, are cut in two (`_best_cut`), and each side again in the same
    way, unless it is rare.  Fewer than FEWEST_PACED, for which nobody can say what is noise, are one pace if they are
    alike, and else are cut wherever one is much longer than the next (`_listed`).

    lengths 20, 60, 21, 20, 61, 20, 20 us at 0 to 6:      [0, 3, 5, 6, 2] and [1, 4]
    """
    at = at[np.argsort(elapsed_ns[at], kind="stable")]
    times = np.maximum(elapsed_ns[at], 1).astype(float)
    count = len(times)
    if count < FEWEST_PACED:
        median = times[(count - 1) // 2]
        return [at] if is_even(count, median, times.sum()) else _listed(at, times)
    cut = _best_cut(times, total)
    if not cut:
        return [at]
    out = list[np.ndarray]()
    for side in (at[:cut], at[cut:]):
        # a rare side is not cut again: each of its intervals might become a row
        is_rare = len(side) < RARE * count
        out += [side] if is_rare else paces(elapsed_ns, side, total)
    return out


def _best_cut(times: np.ndarray, total: int) -> int:
    """Return how many of the lengths lie on the faster side of the best cut, 0 if no cut is good.

    times: lengths (ns), rising, all positive
    total: the time (ns) of the label without first calls

    lengths 10, 10, 10, 11, 20, 20, 21 us: 4      lengths 10, 11, 12, ..., 19, 20 us: 0

    Every cut between two neighbouring lengths is tried.  It is good if the medians of its two sides are
    far apart, the gap between the sides is wider than noise would explain, and what deviates takes enough
    of the label's time, or of the kind's where the cut is clear.  All arrays below have a value per cut.
    """
    count = len(times)
    before = np.arange(1, count)  # how many lengths lie before the cut
    cuts = _sides_of_cuts(times, before)
    deviating_ns = _deviating_ns(times, before, cuts)
    smaller_side = np.minimum(before, count - before)

    medians_apart = cuts.slower_ns - cuts.faster_ns >= APART_NS
    medians_apart &= cuts.slower_ns / cuts.faster_ns >= RATIO
    gap = cuts.gap_end_ns / cuts.gap_begin_ns
    clear = (gap >= CLEAR_GAP) & (smaller_side >= max(CLEAR_PART * count, FEW))
    # ratios that noise may reach
    noise = cuts.spread ** (
        WIDER + np.where(clear & (smaller_side >= FEWEST_PACED), 0, WIDER_FEW / count)
    )
    wide = (gap >= GAP) & (gap > noise)
    least_share = _least_share(smaller_side, count)
    enough = deviating_ns >= least_share * total
    enough |= clear & (deviating_ns >= least_share * times.sum())
    good = medians_apart & wide & enough
    if not good.any():
        return 0
    # the best cut has the widest gap, between its sides and between the two lengths beside it, and
    # explains most time
    step = times[1:] / times[:-1]
    score = np.log(gap) + np.log(step) + np.log(np.maximum(deviating_ns, 1))
    return int(before[np.argmax(np.where(good, score, -np.inf))])


class _Cuts(NamedTuple):
    """What lies on the two sides of each cut of sorted lengths: arrays with a value per cut.

    lengths   x   x x x x x            |        x x x x x x   x
                  |       |           cut       |     |
               faster   gap begins      gap ends    slower

    faster_ns, slower_ns:     the medians of the two sides
    gap_begin_ns, gap_end_ns: the 90 % quantile of the faster side, the 10 % quantile of the slower one
    spread:                   the ratio by which a side spreads where it faces the cut (1: not at all),
                              of the side that spreads more
    """

    faster_ns: np.ndarray
    slower_ns: np.ndarray
    gap_begin_ns: np.ndarray
    gap_end_ns: np.ndarray
    spread: np.ndarray


def _sides_of_cuts(times: np.ndarray, before: np.ndarray) -> _Cuts:
    """Return what lies on the two sides of each cut: medians, the gap between the sides, and how far they spread.

    times:  lengths (ns), rising
    before: per cut, how many lengths lie before it

    A side spreads from its inner quantile to the gap.  Both sides are measured alike, from the cut outwards:

    lengths   x x x x x x x x x x | x x x x x x x x x x
              inner <-----------|-cut-|-----------> inner       40 % of a side, at least three lengths
                              gap     gap                       10 % of a side
    """
    count = len(times)
    behind = count - before
    last_before = before - 1  # positions of the two lengths beside the cut
    first_behind = before

    def to_gap(size: np.ndarray) -> np.ndarray:
        """Return how many lengths further than the one beside the cut a tenth of a side of this size ends.

        The first tenth of 20 lengths ends between the second and the third: 1.5 further than the first."""
        return np.maximum(size / 10 - 0.5, 0)

    def to_inner(size: np.ndarray) -> np.ndarray:
        """Return how many lengths further than the one beside the cut the inner quantile lies."""
        return np.maximum(0.4 * (size - 1) + 0.5, 3)

    def length_at(position: np.ndarray) -> np.ndarray:
        """Return the lengths at positions in the sorted order; at 2.5 the mean of those at 2 and 3, so
        that one interval more or less changes little."""
        return np.interp(position, np.arange(count), times)

    gap_begin = length_at(last_before - to_gap(before))
    gap_end = length_at(first_behind + to_gap(behind))
    spread_before = gap_begin / length_at(np.maximum(last_before - to_inner(before), 0))
    spread_behind = length_at(np.minimum(first_behind + to_inner(behind), count - 1)) / gap_end
    # a rare side is too small to tell: as if it did not spread
    spread_before[before < RARE * count] = 1
    spread_behind[behind < RARE * count] = 1
    return _Cuts(
        faster_ns=length_at(last_before / 2),
        slower_ns=length_at((first_behind + count - 1) / 2),
        gap_begin_ns=gap_begin,
        gap_end_ns=gap_end,
        spread=np.maximum(spread_before, spread_behind),
    )


def _deviating_ns(times: np.ndarray, before: np.ndarray, cuts: _Cuts) -> np.ndarray:
    """Return, per cut, how much time (ns) it explains: by how much the slower side exceeds the faster
    one's median, or the faster side falls short of the slower one's median, whichever is less.

    times:  lengths (ns), rising
    before: per cut, how many lengths lie before it

    lengths 10, 10, 10 | 30 us: the slower side exceeds 10 us by 20 us, the faster side falls short of
    30 us by 60 us: 20 us
    """
    behind = len(times) - before
    sum_before = np.cumsum(times)[:-1]
    sum_behind = times.sum() - sum_before
    excess = sum_behind - behind * cuts.faster_ns
    shortfall = before * cuts.slower_ns - sum_before
    return np.minimum(excess, shortfall)


def _least_share(smaller: np.ndarray, count: int) -> np.ndarray:
    """Return, per cut, which share of the time what deviates must take at least.

    smaller: per cut, how many intervals lie on the smaller side
    count:   how many intervals there are
    """
    rare = np.clip(RARE * count / smaller, 1, 2)
    with_one_less = smaller / np.maximum(smaller - 1, 1)
    return np.where(smaller < FEW, ALONE, SHARE * rare * with_one_less)


def _listed(at: np.ndarray, times: np.ndarray) -> list[np.ndarray]:
    """Return too few intervals for paces, cut wherever one is longer than the next shorter one by
    RATIO and by APART_NS.

    at:    positions, sorted by length
    times: their lengths (ns), rising
    """
    apart = (times[1:] >= RATIO * times[:-1]) & (times[1:] - times[:-1] >= APART_NS)
    return np.split(at, np.flatnonzero(apart) + 1)
