"""What the samples of a GPU's clock say about intervals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nsysalign.explain.facts import Facts
from nsysalign.model import CLOCK_REASONS

#: Samples further apart than this say nothing about what lies between.
_APART_NS = 250_000_000


class IntervalClocks(NamedTuple):
    """Arrays over all intervals; where `known` is False the others mean nothing."""

    known: np.ndarray
    sm_mhz: np.ndarray  # float64, mean over the samples in and next to the window
    reasons: np.ndarray  # bits: those of the samples inside, else those that both neighbours share


def interval_clocks(facts: Facts) -> IntervalClocks:
    """Return what the clock samples say about each interval.

    stretches   [--- 1980 ---]      [-- 1755 --]
    intervals      |a|         |b|    |c|               a: 1980; b: between the two, 1755..1980; c: 1755
    """
    table, device = facts.analysis.gpu_clocks, facts.column("device")
    begin, end = facts.column("start_ns"), facts.column("end_ns")
    clocks = IntervalClocks(*(np.zeros(facts.count, dtype) for dtype in (bool, float, np.int64)))
    sampled = np.unique(table["device"].to_numpy())
    if len(sampled) == 1:  # a host interval names no device: it used the only one
        device = np.where(device < 0, sampled[0], device)
    for number in sampled.tolist():
        rows = table[table["device"].to_numpy() == number]
        start, stop = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        first = np.searchsorted(start, begin, side="right") - 1  # the last that began before
        last = np.searchsorted(stop, end, side="left")  # the first that ends after
        some = np.flatnonzero((device == number) & (first >= 0) & (last < len(rows)))
        first, last = first[some], last[some]
        low = first + (stop[first] < begin[some])  # the samples inside
        high = last - (start[last] >= end[some])
        outside = low > high
        low, high = np.where(outside, first, low), np.where(outside, last, high) + 1
        for bit in CLOCK_REASONS:
            before = np.cumsum([0, *(np.maximum(rows["reasons"].to_numpy(), 0) & bit > 0)])
            count = before[high] - before[low]
            clocks.reasons[some] |= bit * np.where(outside, count == high - low, count > 0)
        middle = (rows["sm_min_mhz"].to_numpy() + rows["sm_max_mhz"].to_numpy()) / 2
        before = np.cumsum([0, *middle])
        clocks.sm_mhz[some] = (before[last + 1] - before[first]) / (last - first + 1)
        apart = np.cumsum([0, *(start[1:] - stop[:-1] > _APART_NS)])
        clocks.known[some] = apart[last] == apart[first]
    return clocks
