"""What the parent knows of the GPU, through NVML: memory in use, other users, its clock."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from nsysalign.record.clock_sampler import start_nvml, visible
from nsysalign.text import gibibytes

#: If more memory than this is in use, or more work than this is done, before the first worker
#: starts, there are other processes.
IDLE_BYTES, IDLE_PERCENT = 1 << 30, 5
MIG = "the GPU is partitioned (MIG): its neighbours share clocks, memory bandwidth and power"
CONFIDENTIAL = (
    "confidential computing is on: launches and copies are slower, and event times can be wrong"
)
UNKNOWN = "NVML does not answer, so it is not known who else uses the GPU"


class Gpu:
    """The first GPU that CUDA will see.  What NVML does not tell is None."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._before = 0
        with contextlib.suppress(Exception):
            nvml = start_nvml()
            handles, _ = visible(nvml, os.environ)
            self._nvml, self._handle = nvml, handles[0]

    def _query(self, name: str, *arguments: Any) -> Any:
        with contextlib.suppress(Exception):
            return getattr(self._nvml, name)(*(arguments or (self._handle,)))
        return None

    def _processes(self) -> int:
        """Processes with a context, other than ours; in a container they are often invisible."""
        running = self._query("nvmlDeviceGetComputeRunningProcesses") or ()
        return sum(p.pid != os.getpid() for p in running)

    def caveats(self) -> list[str]:
        """Before the first worker starts: notes on anything that influences this GPU's numbers."""
        if self._handle is None:
            return [UNKNOWN]
        notes, used = [], getattr(self._query("nvmlDeviceGetMemoryInfo"), "used", 0)
        busy = getattr(self._query("nvmlDeviceGetUtilizationRates"), "gpu", 0)
        others = self._before = self._processes()
        if used > IDLE_BYTES or others or busy > IDLE_PERCENT:
            what = f"{gibibytes(used)} of its memory were in use"
            what += f", it was {busy} % busy" if busy else ""
            who = f" by {others} other process{'es' if others > 1 else ''}" if others else ""
            notes.append(f"another process uses this GPU: before the first measurement {what}{who}")
        notes += [MIG] * bool((self._query("nvmlDeviceGetMigMode") or (0,))[0])
        with contextlib.suppress(Exception):
            notes += [CONFIDENTIAL] * bool(self._nvml.nvmlSystemGetConfComputeState().ccFeature)
        return notes

    def newcomers(self) -> list[str]:
        """After the last worker has ended: processes that appeared meanwhile and are still
        there."""
        more = self._processes() - self._before
        count = f"{more} process{'es' if more > 1 else ''}"
        note = f"somebody else began to use this GPU while it was measured: {count}"
        return [note] if more > 0 else []


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
