"""The GPU clock samples as the page and the exports show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nsysalign.answer import reason_words
from nsysalign.model import Analysis

if TYPE_CHECKING:
    import pandas as pd

#: Stretches of one GPU that the page draws; more are joined with their neighbours.
MOST_DRAWN = 2_000


def page_clocks(analysis: Analysis) -> dict[str, Any] | None:
    """Columns per GPU, times in microseconds since the first sample; None without samples."""
    table = analysis.gpu_clocks
    if not len(table):
        return None
    origin = int(table["start_ns"].min())
    devices = []
    for device, rows in table.groupby("device", sort=True):
        size = -(-len(rows) // MOST_DRAWN)
        devices.append(_columns(int(device), rows, origin, size))
    return {"origin": origin, "devices": devices, "why": _why(table)}


def _columns(device: int, rows: pd.DataFrame, origin: int, size: int) -> dict[str, Any]:
    begin = np.arange(0, len(rows), size)
    column = {name: rows[name].to_numpy() for name in rows.columns}
    return {
        "device": device,
        "joined": size,
        "samples": int(column["samples"].sum()),
        "x": ((np.minimum.reduceat(column["start_ns"], begin) - origin) // 1_000).tolist(),
        "end": ((np.maximum.reduceat(column["end_ns"], begin) - origin) // 1_000).tolist(),
        "low": np.minimum.reduceat(column["sm_min_mhz"], begin).tolist(),
        "high": np.maximum.reduceat(column["sm_max_mhz"], begin).tolist(),
        "why": np.bitwise_or.reduceat(np.maximum(column["reasons"], 0), begin).tolist(),
        "power": np.maximum.reduceat(column["power_mw"], begin).tolist(),
        "heat": np.maximum.reduceat(column["temperature_c"], begin).tolist(),
    }


def _why(table: pd.DataFrame) -> dict[str, str]:
    """Names of the reasons that occur, by bit."""
    every = int(np.bitwise_or.reduce(np.maximum(table["reasons"].to_numpy(), 0)))
    return {str(bit): reason_words(bit) for bit in (1 << k for k in range(63)) if every & bit}
