"""What the samples of a GPU's clock say about intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.facts import TYPICAL_SHARE, WARN_SHARE, Facts
from nsysalign.label import Issued
from nsysalign.model import CLOCK_REASONS, LOW_CLOCK, SLOWED_BITS
from nsysalign.text import plural

#: Samples further apart than this say nothing about what lies between.
_APART_NS = 250_000_000
#: So many timings are needed to compare clocks.
CLOCK_SAMPLES = 8
#: Two SM clocks are different from this share on.
CLOCK_SHARE = 0.03
#: A clock that was held down by less changes no conclusion: cards under load are at their power
#: cap, a few percent below their highest clock.
SLOWED_SHARE = 0.1
#: Timings can be compared with each other if the GPU was slowed down in so many of them.
_NEARLY_ALL = 0.9
#: Two clocks explain that kernels take longer at the lower one if these are longer by such a share of what the clocks
#: differ by: less follows something else as well, and more is something else.
_EXPLAINED = 0.5, 1.25


class IntervalClocks(NamedTuple):
    """Arrays with a value per measured interval.

    known:   whether the clock is known; if not, the other two mean nothing
    sm_mhz:  float64, the mean clock during the interval
    reasons: the bits of `model.CLOCK_REASONS`: those of any stretch that overlaps the interval, or those
             that both of its neighbours have if none does
    """

    known: np.ndarray
    sm_mhz: np.ndarray
    reasons: np.ndarray


def interval_clocks(facts: Facts) -> IntervalClocks:
    """Return what the samples of the GPUs' clocks say about each measured interval.

    A row of `gpu_clocks` is a stretch of time in which all samples of a device were alike.  Between two
    stretches the clock changed, at a time that nobody knows.

    stretches   [--- 1980 ---]      [-- 1755 --]
    intervals      |a|         |b|    |c|               a: 1980 MHz; b: the mean of both; c: 1755 MHz

    Nothing is known of an interval before the first stretch or after the last one.
    """
    table = facts.analysis.gpu_clocks
    clocks = IntervalClocks(
        known=np.zeros(facts.count, bool),
        sm_mhz=np.zeros(facts.count, float),
        reasons=np.zeros(facts.count, np.int64),
    )
    device = facts.column("device")
    sampled_devices = np.unique(table["device"].to_numpy())
    if len(sampled_devices) == 1:  # a host interval names no device: it used the only one
        device = np.where(device < 0, sampled_devices[0], device)
    for number in sampled_devices.tolist():
        stretches = table[table["device"].to_numpy() == number]
        _put_clocks(clocks, facts, stretches, np.flatnonzero(device == number))
    return clocks


class LowClock(NamedTuple):
    """What is to be said of timings in which the GPU was slowed down.

    note: at which clock it ran in them, and why; "" where it was slowed down in few timings of each label
    nearly_all: whether it was slowed down in nearly all timings, at one clock: they can be compared with each other
    """

    note: str
    nearly_all: bool


def held_down(clocks: IntervalClocks, highest_mhz: float) -> np.ndarray:
    """Return, per interval, whether the GPU could not run as fast as requested, and its clock was clearly below the
    highest one of the run."""
    is_low = clocks.sm_mhz <= (1 - SLOWED_SHARE) * highest_mhz
    return clocks.known & is_low & ((clocks.reasons & SLOWED_BITS) > 0)


def low_clock(facts: Facts, clocks: IntervalClocks) -> LowClock:
    """Return what is to be said of the timings in which the GPU was slowed down.

    Where it was in half of the timings of a label there is a note.  They can be compared with each other if it was in
    `_NEARLY_ALL` of all timings, and of those of each label with enough of them; and if no label's clock differs from
    that of all by more than changes a conclusion.  Timings of which kernels are a small part are not counted.
    """
    if facts.analysis.gpu_clocks.empty:
        return LowClock("", False)
    kernel_ns = facts.column("kernel_only_upper_ns")
    counts = clocks.known & (kernel_ns >= WARN_SHARE * facts.column("elapsed_ns")) & (kernel_ns > 0)
    highest_mhz = int(facts.analysis.gpu_clocks["sm_max_mhz"].max())
    is_slowed = held_down(clocks, highest_mhz)
    of_labels = [np.concatenate([g.intervals for g in label.steady]) for label in facts.labels]
    timings_of = [timings[counts[timings]] for timings in of_labels]
    timings_of = [timings for timings in timings_of if len(timings) >= CLOCK_SAMPLES]
    if not any(is_slowed[timings].mean() >= TYPICAL_SHARE for timings in timings_of):
        return LowClock("", False)
    counted = np.unique(np.concatenate(timings_of))
    slowed = counted[is_slowed[counted]]
    mhz = float(np.median(clocks.sm_mhz[slowed]))
    at_one_clock = all(
        is_slowed[timings].mean() >= _NEARLY_ALL
        and abs(np.median(clocks.sm_mhz[timings]) - mhz) <= SLOWED_SHARE * mhz
        for timings in timings_of
    )
    often = ""
    if len(slowed) < len(counted):
        often = f" in {len(slowed):,} of {plural(len(counted), 'timing')}"
    ran_at = in_mhz(range_of_clocks(clocks.sm_mhz[slowed]))
    causes = causes_in_words(clocks.reasons[slowed])
    return LowClock(f"{LOW_CLOCK}{ran_at} of {highest_mhz} MHz{often} ({causes})", at_one_clock)


def range_of_clocks(sm_mhz: np.ndarray) -> tuple[float, ...]:
    """Return at which clock most of some timings ran, or from which to which: (1500,), (1400, 1700)."""
    low, mhz, high = np.quantile(sm_mhz, (0.1, 0.5, 0.9)).tolist()
    return (low, high) if high - low > CLOCK_SHARE * mhz else (mhz,)


def in_mhz(clocks: tuple[float, ...], to: str = " to ") -> str:
    """Return `range_of_clocks` in words: "1500", "1400 to 1700"."""
    return to.join(f"{mhz:.0f}" for mhz in clocks)


def causes_in_words(reasons: np.ndarray) -> str:
    """Return why the GPU was slowed down in some timings."""
    return ", ".join(
        text for bit, text in CLOCK_REASONS.items() if (reasons & SLOWED_BITS & bit).any()
    )


class AtHigherClock(NamedTuple):
    """Timings of the same kernels as those of a group, which ran at a higher clock and took less, as the clocks say.

    label: theirs
    mhz: the clock at which most of them ran
    ns: how long the kernels took there
    here_ns: the same in the group
    """

    label: str
    mhz: float
    ns: float
    here_ns: float


def quicker_at_higher_clocks(facts: Facts, clocks: IntervalClocks) -> Mapping[int, AtHigherClock]:
    """Return number of a group -> the group of the run in which the same kernels took least, where these ran at a higher
    clock that explains it.

    The same kernels have the same names and grids.  Only there the clock changes what a reader compares: of other
    kernels no one knows what they take at another clock.

    a: gemm, 128 blocks     5.44 us at 1980 MHz
    b: gemm, 128 blocks     6.66 us at 1586 MHz        22 % longer, and 25 % follow from the clocks: b -> a
    c: gemm, 132 blocks     1.56 ms at 1575 MHz        nothing to compare it with
    """
    kernel_ns = facts.column("kernel_only_upper_ns")
    ran: dict[tuple[Issued, ...], list[tuple[int, AtHigherClock]]] = {}
    for label in facts.labels:
        for group in label.steady:
            kernels = group.work.of_kind("kernel")
            timings = group.intervals[clocks.known[group.intervals]]
            is_same = all(kernel.blocks > 0 for kernel in kernels)
            if not kernels or not is_same or len(timings) < CLOCK_SAMPLES:
                continue
            mhz, ns = np.median(clocks.sm_mhz[timings]), np.median(kernel_ns[timings])
            at = AtHigherClock(label.name, float(mhz), float(ns), 0.0)
            ran.setdefault(kernels, []).append((group.number, at))
    out = {}
    for same_kernels in ran.values():
        for number, low in same_kernels:
            by_clock = [high for _, high in same_kernels if _clocks_explain(low, high)]
            if by_clock:
                out[number] = min(by_clock, key=lambda high: high.ns)._replace(here_ns=low.ns)
    return out


def _clocks_explain(low: AtHigherClock, high: AtHigherClock) -> bool:
    """Return whether kernels take longer at the first clock than at the second one, and the clocks explain it."""
    by_clock = high.mhz / max(low.mhz, 1) - 1
    longer = low.ns / max(high.ns, 1) - 1
    at_least, at_most = _EXPLAINED
    return by_clock >= CLOCK_SHARE and at_least * by_clock <= longer <= at_most * by_clock


def _put_clocks(
    clocks: IntervalClocks, facts: Facts, stretches: pd.DataFrame, intervals: np.ndarray
) -> None:
    """Write into the arrays of `clocks` what the stretches of one device say about its intervals.

    stretches: rows of `frames.GPU_CLOCKS` of the device, at least one, sorted by time and disjoint
    intervals: the positions of the device's intervals in these arrays

    Intervals that do not lie between the first stretch's start and the last one's end keep `known` False.
    """
    start = stretches["start_ns"].to_numpy()
    stop = stretches["end_ns"].to_numpy()
    begins = facts.column("start_ns")[intervals]
    ends = facts.column("end_ns")[intervals]
    is_enclosed = (begins >= start[0]) & (ends <= stop[-1]) & (ends > begins)
    intervals = intervals[is_enclosed]
    begins = begins[is_enclosed]
    ends = ends[is_enclosed]
    clocks.known[intervals] = ~_meets_pause(start, stop, begins, ends)
    clocks.sm_mhz[intervals] = _mean_mhz(stretches, begins, ends)
    clocks.reasons[intervals] = _reasons(stretches, begins, ends)


def _meets_pause(
    start: np.ndarray, stop: np.ndarray, begins: np.ndarray, ends: np.ndarray
) -> np.ndarray:
    """Return, per interval, whether a part of it lies in a long time without samples.

    start, stop: of the stretches (ns); begins, ends: of the intervals (ns)
    """
    is_long = start[1:] - stop[:-1] > _APART_NS
    pauses_begun = np.searchsorted(stop[:-1][is_long], ends)  # before the interval's end
    pauses_over = np.searchsorted(start[1:][is_long], begins, side="right")
    return pauses_begun > pauses_over


def _mean_mhz(stretches: pd.DataFrame, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the mean clock of each interval (MHz), in which each clock counts for as long as it lasted.

    begins, ends: of the intervals (ns), which lie between the first stretch's start and the last one's end

    stretches   [--- 1980 ---]      [-- 1755 --]       between two stretches the clock counts as the mean of both,
    clock        1980         1867.5  1755             as nobody knows when it changed
    """
    edges = stretches[["start_ns", "end_ns"]].to_numpy().ravel()  # start, end, start, end, ...
    since_first = edges - edges[0]  # small enough for exact floats
    mhz = (stretches["sm_min_mhz"].to_numpy() + stretches["sm_max_mhz"].to_numpy()) / 2
    mhz_behind_edge = np.empty(len(edges) - 1)
    mhz_behind_edge[0::2] = mhz
    mhz_behind_edge[1::2] = (mhz[:-1] + mhz[1:]) / 2
    # MHz times ns from the first edge to each; it rises evenly from edge to edge
    up_to_edge = np.append(0, np.cumsum(mhz_behind_edge * np.diff(since_first)))
    up_to_begin = np.interp(begins - edges[0], since_first, up_to_edge)
    up_to_end = np.interp(ends - edges[0], since_first, up_to_edge)
    return (up_to_end - up_to_begin) / (ends - begins)


def _reasons(stretches: pd.DataFrame, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return, per interval, the bits of `model.CLOCK_REASONS` that hold for it, as `IntervalClocks` says.

    begins, ends: of the intervals (ns), which lie between the first stretch's start and the last one's end
    """
    first = np.searchsorted(stretches["end_ns"], begins, side="right")  # ends after the begin
    last = np.searchsorted(stretches["start_ns"], ends) - 1  # starts before the end
    # An interval that no stretch overlaps lies between `last`, which is over, and `first`, which is to come:
    # a reason that only one of the two has may have begun or ended before or after the interval.
    lies_between = first > last
    low = np.minimum(first, last)
    high = np.maximum(first, last)
    reasons_of_stretch = np.maximum(stretches["reasons"].to_numpy(), 0)  # -1: not known
    reasons = np.zeros(len(begins), np.int64)
    for bit in CLOCK_REASONS:
        with_it = _sum_from_to((reasons_of_stretch & bit) > 0, low, high)
        in_all = with_it == high - low + 1
        reasons |= bit * np.where(lies_between, in_all, with_it > 0)
    return reasons


def _sum_from_to(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return, for each pair of positions, the sum of the values from `first` to `last`, both included."""
    up_to = np.cumsum(np.append(0, values))  # up_to[n]: the sum of the first n values
    return up_to[last + 1] - up_to[first]
