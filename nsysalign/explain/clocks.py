"""What the samples of a GPU's clock say about intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.facts import Facts
from nsysalign.model import CLOCK_REASONS

#: Samples further apart than this say nothing about what lies between.
_APART_NS = 250_000_000


class IntervalClocks(NamedTuple):
    """Arrays with a value per measured interval.

    known:   whether the clock is known; if not, the other two mean nothing
    sm_mhz:  float64, the mean clock over the stretches in the interval and on either side of it
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


def _put_clocks(
    clocks: IntervalClocks, facts: Facts, stretches: pd.DataFrame, intervals: np.ndarray
) -> None:
    """Write into the arrays of `clocks` what the stretches of one device say about its intervals.

    stretches: rows of `frames.GPU_CLOCKS`, sorted by time and disjoint
    intervals: the positions of the device's intervals

    For an interval between two stretches of 1,980 and 1,755 MHz, the mean clock is 1,867.5 MHz.
    """
    start = stretches["start_ns"].to_numpy()
    stop = stretches["end_ns"].to_numpy()
    begin = facts.column("start_ns")[intervals]
    end = facts.column("end_ns")[intervals]
    # the last stretch that begins before the interval, the first one that ends after it
    before = np.searchsorted(start, begin, side="right") - 1
    after = np.searchsorted(stop, end, side="left")
    enclosed = np.flatnonzero((before >= 0) & (after < len(start)))
    intervals = intervals[enclosed]
    begin = begin[enclosed]
    end = end[enclosed]
    before = before[enclosed]
    after = after[enclosed]
    # the stretches that overlap the interval; if there are none, the two on either side of it
    first = np.where(stop[before] < begin, before + 1, before)
    last = np.where(start[after] >= end, after - 1, after)
    between = first > last
    first = np.where(between, before, first)
    last = np.where(between, after, last)
    reasons = np.maximum(stretches["reasons"].to_numpy(), 0)  # -1: not known
    for bit in CLOCK_REASONS:
        count = _sum_from_to((reasons & bit) > 0, first, last)
        in_all = count == last - first + 1
        clocks.reasons[intervals] |= bit * np.where(between, in_all, count > 0)
    mhz = (stretches["sm_min_mhz"].to_numpy() + stretches["sm_max_mhz"].to_numpy()) / 2
    clocks.sm_mhz[intervals] = _sum_from_to(mhz, before, after) / (after - before + 1)
    # the clock is known if there is no long time without samples between the first of these stretches and the last
    pause_before = np.append(False, start[1:] - stop[:-1] > _APART_NS)
    pauses = np.cumsum(pause_before)  # up to each stretch
    clocks.known[intervals] = pauses[after] == pauses[before]


def _sum_from_to(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return, for each pair of positions, the sum of the values from `first` to `last`, both included."""
    before = np.cumsum(np.append(0, values))  # before[n]: the sum of the first n values
    return before[last + 1] - before[first]
