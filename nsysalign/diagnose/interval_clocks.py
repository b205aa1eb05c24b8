"""What the clock samples say about each interval.

stretches   [--- 1980 ---]      [-- 1755 --]
intervals      |a|         |b|    |c|               a: 1980; b: between the two, 1755..1980; c: 1755
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nsysalign.diagnose.facts import Facts
from nsysalign.model import CLOCK_REASONS, SLOWED_BITS
from nsysalign.sweep.tiles import ragged

#: Samples further apart than this say nothing about what lies between them.
MOST_APART_NS = 250_000_000
#: Reasons for which the GPU could not run as fast as requested, and those of them that come from the hardware.
SLOWED = {bit: text for bit, text in CLOCK_REASONS.items() if bit & SLOWED_BITS}
HARDWARE = 0x08 | 0x40 | 0x80
MISSING = (
    "the run has no samples of the GPU's clock (`nsysalign run` records them where nvidia-ml-py is installed: "
    "pip install 'nsysalign[clocks]')"
)


@dataclass(frozen=True)
class IntervalClocks:
    """Arrays over all intervals; where `known` is False the others mean nothing."""

    known: np.ndarray
    sm_mhz: np.ndarray  # float64, mean over the samples in and next to the window
    reasons: np.ndarray  # bits: those of the samples inside, else those that both neighbours share
    power_mw: np.ndarray  # highest of them, -1 unknown
    temperature: np.ndarray  # highest of them, -1 unknown


def interval_clocks(facts: Facts) -> IntervalClocks:
    """The clocks of every interval, computed once per analysis."""
    return facts.remember("interval clocks", _interval_clocks)


def _interval_clocks(facts: Facts) -> IntervalClocks:
    count = facts.count
    known, sm = np.zeros(count, bool), np.zeros(count)
    reasons, power, temperature = np.zeros(count, np.int64), np.full(count, -1), np.full(count, -1)
    table = facts.analysis.gpu_clocks
    device = facts.analysis.intervals["device"].to_numpy()
    sampled = np.unique(table["device"].to_numpy())
    if (
        len(sampled) == 1
    ):  # a host interval names no device: if there is only one GPU, that is the one it used
        device = np.where(device < 0, sampled[0], device)
    for number in sampled.tolist():
        rows = table[table["device"].to_numpy() == number]
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        at = np.flatnonzero(device == number)
        first = np.searchsorted(start, facts.start[at], side="right") - 1  # the last that began before
        last = np.searchsorted(end, facts.end[at], side="left")  # the first that ends after
        inside = (first >= 0) & (last < len(rows))
        at, first, last = at[inside], first[inside], last[inside]
        if not len(at):
            continue
        owner, row = ragged(first, last - first + 1)
        begin = np.flatnonzero(np.diff(owner, prepend=-1))
        gap = np.where(row > first[owner], start[row] - end[row - 1], 0)
        middle = (rows["sm_min_mhz"].to_numpy() + rows["sm_max_mhz"].to_numpy()) / 2
        sm[at] = np.add.reduceat(middle[row], begin) / (last - first + 1)
        bits = np.maximum(rows["reasons"].to_numpy(), 0)[row]
        touches = (start[row] < facts.end[at][owner]) & (end[row] >= facts.start[at][owner])
        within = np.bitwise_or.reduceat(np.where(touches, bits, 0), begin)
        shared = np.bitwise_and.reduceat(bits, begin)
        reasons[at] = np.where(np.logical_or.reduceat(touches, begin), within, shared)
        power[at] = np.maximum.reduceat(rows["power_mw"].to_numpy()[row], begin)
        temperature[at] = np.maximum.reduceat(rows["temperature_c"].to_numpy()[row], begin)
        known[at] = np.maximum.reduceat(gap, begin) <= MOST_APART_NS
    return IntervalClocks(known, sm, reasons, power, temperature)
