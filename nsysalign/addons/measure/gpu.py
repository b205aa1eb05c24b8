"""What the parent knows of the GPU, through NVML: whether it is in use, and its clock."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import numpy as np

from nsysalign.record.clock_sampler import start_nvml, visible
from nsysalign.text import gibibytes

#: If more memory than this is in use, or more work than this is done, before the first worker
#: starts, there are other processes.
IDLE_BYTES, IDLE_PERCENT = 1 << 30, 5


def in_use() -> list[str]:
    """Before the first worker starts: a note if somebody else uses the first GPU that CUDA will
    see."""
    try:
        nvml = start_nvml()
        handle = visible(nvml, os.environ)[0][0]
        used = nvml.nvmlDeviceGetMemoryInfo(handle).used
        busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    except Exception:
        return ["NVML does not answer, so it is not known who else uses the GPU"]
    if used <= IDLE_BYTES and busy <= IDLE_PERCENT:
        return []
    what = f"{gibibytes(used)} of its memory were in use, it was {busy} % busy"
    return [f"another process uses this GPU: before the first measurement {what}"]


class Clocks:
    """The SM clock of the first device, as clock_sampler wrote it until now."""

    def __init__(self, path: Path) -> None:
        rows = []
        with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                with contextlib.suppress(ValueError):
                    row = json.loads(line)
                    rows += [(row[0], row[4])] if isinstance(row, list) and not row[3] else []
        table = np.array([r for r in rows if r[1]], dtype=np.int64).reshape(-1, 2)
        self._times_ns, self._mhz = table.T

    def between(self, start_ns: int, end_ns: int) -> float:
        """The median clock in a stretch of time, MHz (the nearest sample if it contains none); NaN
        if unknown."""
        low, high = np.searchsorted(self._times_ns, [start_ns, end_ns])
        if high > low:
            return float(np.median(self._mhz[low:high]))
        return float(self._mhz[min(low, len(self._mhz) - 1)]) if len(self._mhz) else float("nan")
