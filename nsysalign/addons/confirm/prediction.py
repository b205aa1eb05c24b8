"""What an interval must measure if the host has run ahead of it: GPU time only, predicted from its
budget.

    start record | ahead | operation | gap | operation | ... | operation | behind | end record

The operations take as long as before (the parts kernel, graph, memcpy, memset: a union, staging
excluded by the caller); the latencies of the two records are those calibrated on the same trace, as
is the gap between operations that follow each other immediately, if the trace shows enough of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.model import CAUSES, OPERATION_KINDS, Analysis

#: Without calibration: both record latencies together were 2.6 us on one H200 and 4.0 on another.
FIXED_NS, FIXED_ERROR_NS = 3_300.0, 1_200.0
#: Consecutive records behind work: 1.28 us, 2.9 with event tracing.
SPACING_NS, SPACING_ERROR_NS = 1_600.0, 1_300.0
#: An operation behind another one that was issued long before: an H200 takes 0.84 us (50 tiny
#: launches behind a delay), 0.9 (EfficientNet-b0), 1.06-1.47 if records are close by.
GAP_NS, GAP_ERROR_NS = 950.0, 350.0
#: Gaps of pure launch latency below this are operations that waited in the queue: on an idle stream
#: it takes 2 us.
QUEUED_GAP_NS, ENOUGH_GAPS = 1_600, 20
#: Kernels that follow within this were launched as a pair (split-K and its reduction: 1 ns): not
#: representative of others.
PAIRED_NS = 300
#: How well kernel times repeat from run to run (clock boost, addresses).
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
    """From the trace's own calibration, else values measured elsewhere, with a wider error."""
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
    """The usual gap between queued operations, and its spread."""
    _, ns = _queued(analysis)
    found = ns[ns > PAIRED_NS]
    if len(found) < ENOUGH_GAPS:
        return GAP_NS, GAP_ERROR_NS
    low, middle, high = np.percentile(found, [25, 50, 75])
    return float(middle), float(max(high - low, GAP_ERROR_NS))


def _queued(analysis: Analysis) -> tuple[np.ndarray, np.ndarray]:
    """Operations that had been queued behind the one before: (interval, length of the gap).

    kernel | launch latency, short | kernel        the gap is launch latency and nothing else
    kernel | kernel                                there is none
    """
    s = analysis.segments
    code = pd.Index(CAUSES).get_indexer(s["cause"])
    working = np.isin(code, [CAUSES.index(c) for c in OPERATION_KINDS])
    number, ref = s["interval"].to_numpy(), s["ref_id"].to_numpy()
    ns = (s["end_ns"] - s["start_ns"]).to_numpy()
    touching = np.flatnonzero(
        working[:-1] & working[1:] & (number[:-1] == number[1:]) & (ref[:-1] != ref[1:])
    )
    short = (code[1:-1] == CAUSES.index("launch_latency")) & (ns[1:-1] < QUEUED_GAP_NS)
    short &= (
        working[:-2] & working[2:] & (number[:-2] == number[1:-1]) & (number[1:-1] == number[2:])
    )
    gaps = np.flatnonzero(short) + 1
    at = np.concatenate([touching + 1, gaps])
    return number[at], np.concatenate([np.zeros(len(touching), dtype=np.int64), ns[gaps]])


def gpu_time(analysis: Analysis, positions: np.ndarray) -> GpuTime:
    """GPU-only time of some intervals (rows of `analysis.intervals`), with the error of the
    prediction.

    A gap between operations that were already queued is kept; the others become the usual gap.
    """
    lat = latencies(analysis)
    work = parts_of(analysis, positions, *OPERATION_KINDS)
    count = analysis.intervals["operations"].to_numpy()[positions]
    numbers = analysis.intervals["interval"].to_numpy()[positions]
    number, ns = _queued(analysis)
    known = (
        pd.DataFrame({"interval": number, "ns": ns}).groupby("interval")["ns"].agg(["size", "sum"])
    )
    known = known.reindex(numbers, fill_value=0)
    gaps = np.maximum(count - 1 - known["size"].to_numpy(), 0)
    kept = work + known["sum"].to_numpy()
    some = count > 0
    middle = np.where(some, kept + lat.fixed[0] + gaps * lat.gap[0], lat.spacing[0])
    error = np.where(
        some, WORK_ERROR_SHARE * kept + lat.fixed[1] + gaps * lat.gap[1], lat.spacing[1]
    )
    return GpuTime(middle, error + RESOLUTION_NS)
