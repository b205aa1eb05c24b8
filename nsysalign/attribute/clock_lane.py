"""The SM clock under the timelines of intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.sweep.tiles import ragged


def clock_rows(
    clocks: pd.DataFrame, interval: np.ndarray, device: np.ndarray, lo: np.ndarray, hi: np.ndarray
) -> pd.DataFrame:
    """Rows of frames.TIMELINE (lane_kind `clock`): the stretches of each interval's GPU in [lo, hi), and the ones
    before and after, because an interval is usually shorter than the time between two samples.  `device` -1: the only GPU, if
    there is exactly one."""
    sampled = np.unique(clocks["device"].to_numpy())
    if len(sampled) == 1:
        device = np.where(device < 0, sampled[0], device)
    parts = []
    for number in sampled.tolist():
        rows = clocks[clocks["device"].to_numpy() == number]
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        at = np.flatnonzero(device == number)
        first = np.maximum(np.searchsorted(end, lo[at]) - 1, 0)
        last = np.minimum(np.searchsorted(start, hi[at], side="right"), len(rows) - 1)
        owner, row = ragged(first, last - first + 1)
        parts.append(_rows(rows, row, interval[at][owner], number))
    return pd.concat(parts, ignore_index=True) if parts else frames.empty(frames.TIMELINE)


def _rows(rows: pd.DataFrame, row: np.ndarray, interval: np.ndarray, device: int) -> pd.DataFrame:
    columns = ("sm_min_mhz", "sm_max_mhz", "mem_mhz", "reasons", "power_mw", "temperature_c")
    values = zip(*(rows[c].to_numpy()[row].tolist() for c in columns), strict=True)
    detail = [_detail(*item) for item in values]
    return pd.DataFrame(
        {
            "interval": interval,
            "lane_kind": "clock",
            "lane": f"GPU {device}",
            "kind": "clock",
            "name": "SM clock",
            "start_ns": rows["start_ns"].to_numpy()[row],
            "end_ns": rows["end_ns"].to_numpy()[row],
            "ref_kind": "",
            "ref_id": -1,
            "link": -1,
            "detail": pd.Series(detail, dtype=object),
        }
    )


def _detail(least: int, most: int, memory: int, reasons: int, power: int, temperature: int) -> dict:
    detail: dict = {"mhz": (least + most) / 2}
    for key, value in (("mem_mhz", memory), ("reasons", reasons), ("temperature_celsius", temperature)):
        if value >= 0:
            detail[key] = value
    if power >= 0:
        detail["power_w"] = power / 1e3
    return detail
