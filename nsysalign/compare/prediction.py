"""What an interval must read when the host has run ahead of it: GPU time only, predicted from its budget.

    start record | ahead | operation | gap | operation | ... | operation | behind | end record

The operations take what they took (the parts kernel, graph, memcpy, memset: a union, staging excluded by the
caller); the latencies of the two records are the ones calibrated on the same trace, so is the gap between
operations that follow each other at once, where the trace shows enough of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.model import CAUSES, Analysis

WORK = ("kernel", "graph", "memcpy", "memset")
#: Without calibration: both record latencies together were 2.6 us on one H200 and 4.0 on another.
FIXED_NS, FIXED_ERROR_NS = 3_300.0, 1_200.0
#: Consecutive records behind work: 1.28 us, 2.9 with event tracing.
SPACING_NS, SPACING_ERROR_NS = 1_600.0, 1_300.0
#: An operation behind another one that was issued long before: an H200 takes 0.84 us (50 tiny launches behind a
#: delay), 0.9 (EfficientNet-b0), 1.06-1.47 where records lie close by.
GAP_NS, GAP_ERROR_NS = 950.0, 350.0
#: Gaps of pure launch latency below this are operations that waited in the queue: on an idle stream it takes 2 us.
QUEUED_GAP_NS, ENOUGH_GAPS = 1_600, 20
#: Kernel times repeat so well from run to run (clock boost, addresses).
WORK_ERROR_SHARE = 0.03
#: The event clock ticks every 32 ns and a pair has two ends.
RESOLUTION_NS = 64.0


class Latencies(NamedTuple):
    """Nanoseconds and how far each may be off."""

    fixed: tuple[
        float, float
    ]  # start record to the first operation, and the last operation to the end record
    spacing: tuple[float, float]  # two records with nothing between
    gap: tuple[float, float]  # end of an operation to the start of the next one


class GpuTime(NamedTuple):
    """float64 arrays of one entry per interval asked for."""

    middle: np.ndarray
    error: np.ndarray


def parts_of(analysis: Analysis, positions: np.ndarray, *causes: str) -> np.ndarray:
    """Nanoseconds of these causes together, for some rows of `analysis.intervals`."""
    table = analysis.parts[analysis.parts["cause"].isin(causes)]
    sums = table.groupby("interval")["ns"].sum()
    numbers = analysis.intervals["interval"].to_numpy()[positions]
    return sums.reindex(numbers, fill_value=0).to_numpy(dtype=np.float64)


def latencies(analysis: Analysis) -> Latencies:
    """From the trace's own calibration, else what was measured elsewhere, with the wider error."""
    value = analysis.calibration.get("latency_ns") or {}
    spread = analysis.calibration.get("latency_std_ns") or {}
    scale = analysis.calibration.get("scale_ns") or {}
    fixed, spacing = (FIXED_NS, FIXED_ERROR_NS), (SPACING_NS, SPACING_ERROR_NS)
    if {"ahead_ns", "busy_ns"} <= set(value):
        own = np.hypot(float(spread.get("ahead_ns", 200)), float(spread.get("busy_ns", 200)))
        single = np.hypot(float(scale.get("busy", 300)), float(scale.get("ahead", 200)))
        fixed = (float(value["ahead_ns"]) + float(value["busy_ns"]), 2 * float(own) + float(single))
    if "spacing_ns" in value:
        spacing = (float(value["spacing_ns"]), 2 * float(spread.get("spacing_ns", 200)) + 300.0)
    return Latencies(fixed, spacing, _gap(analysis))


def _gap(analysis: Analysis) -> tuple[float, float]:
    """Idle stretches between two operations that are launch latency and nothing else, and short."""
    s = analysis.segments
    if len(s) < 3:
        return GAP_NS, GAP_ERROR_NS
    code = pd.Index(CAUSES).get_indexer(s["cause"])
    working = np.isin(code, [CAUSES.index(c) for c in WORK])
    number = s["interval"].to_numpy()
    ns = (s["end_ns"] - s["start_ns"]).to_numpy()
    between = working[:-2] & working[2:] & (code[1:-1] == CAUSES.index("launch_latency"))
    between &= (number[:-2] == number[1:-1]) & (number[1:-1] == number[2:]) & (ns[1:-1] < QUEUED_GAP_NS)
    found = ns[1:-1][between]
    if len(found) < ENOUGH_GAPS:
        return GAP_NS, GAP_ERROR_NS
    low, middle, high = np.percentile(found, [25, 50, 75])
    return float(middle), float(max(high - low, GAP_ERROR_NS))


def gpu_time(analysis: Analysis, positions: np.ndarray) -> GpuTime:
    """GPU-only time of some intervals (rows of `analysis.intervals`), with the error of the prediction."""
    lat = latencies(analysis)
    work = parts_of(analysis, positions, *WORK)
    count = analysis.intervals["operations"].to_numpy()[positions]
    gaps = np.maximum(count - 1 - _touching(analysis, positions), 0)
    some = count > 0
    middle = np.where(some, work + lat.fixed[0] + gaps * lat.gap[0], lat.spacing[0])
    error = np.where(some, WORK_ERROR_SHARE * work + lat.fixed[1] + gaps * lat.gap[1], lat.spacing[1])
    return GpuTime(middle, error + RESOLUTION_NS)


def _touching(analysis: Analysis, positions: np.ndarray) -> np.ndarray:
    """Operations that followed the previous one without any idle time: they will again."""
    s = analysis.segments
    numbers = analysis.intervals["interval"].to_numpy()[positions]
    if len(s) < 2:
        return np.zeros(len(numbers), dtype=np.int64)
    working = s["cause"].isin(WORK).to_numpy()
    number, ref = s["interval"].to_numpy(), s["ref_id"].to_numpy()
    both = working[:-1] & working[1:] & (number[:-1] == number[1:]) & (ref[:-1] != ref[1:])
    counts = pd.Series(number[1:][both]).value_counts()
    return counts.reindex(numbers, fill_value=0).to_numpy(dtype=np.int64)
