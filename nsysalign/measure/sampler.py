"""Samples the GPU while workers run: its clock, its memory in use, and other users.  Through NVML, in the parent only."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nsysalign.record.clock_sampler import sampling, visible
from nsysalign.text import gibibytes

#: If more memory than this is in use, or more work than this is done, before the first worker starts, there are other
#: processes.
IDLE_BYTES, IDLE_PERCENT = 1 << 30, 5
FLUSH_S = 0.1


class Gpu:
    """The first GPU that CUDA will see.  Every query returns None if NVML has no answer."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._before = 0
        with contextlib.suppress(Exception):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                import pynvml
            pynvml.nvmlInit()
            handles, _ = visible(pynvml, os.environ)
            self._nvml, self._handle = pynvml, handles[0]

    @property
    def known(self) -> bool:
        """Whether NVML knows it."""
        return self._handle is not None

    def used_bytes(self) -> int | None:
        """Memory of the whole device in use, by all processes."""
        with contextlib.suppress(Exception):
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        return None

    def total_bytes(self) -> int | None:
        """Memory of the whole device."""
        with contextlib.suppress(Exception):
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).total)
        return None

    def caveats(self) -> list[str]:
        """Before the first worker starts: notes on anything that influences this GPU's numbers."""
        if not self.known:
            return [
                "NVML is not available (pip install nvidia-ml-py), so it is not known who else uses the GPU"
            ]
        notes = []
        used, busy = self.used_bytes(), self._busy_percent()
        others = self._before = self._processes() or 0
        if (used or 0) > IDLE_BYTES or others or (busy or 0) > IDLE_PERCENT:
            what = f"{gibibytes(used or 0)} of its memory were in use" + (
                f", it was {busy} % busy" if busy else ""
            )
            who = f" by {others} other process{'es' if others > 1 else ''}" if others else ""
            notes.append(f"another process uses this GPU: before the first measurement {what}{who}")
        with contextlib.suppress(Exception):
            if self._nvml.nvmlDeviceGetMigMode(self._handle)[0]:
                notes.append(
                    "the GPU is partitioned (MIG): clocks, memory bandwidth and power are shared with its neighbours"
                )
        with contextlib.suppress(Exception):
            state = self._nvml.nvmlSystemGetConfComputeState()
            if getattr(state, "ccFeature", 0):
                notes.append(
                    "confidential computing is on: launches and copies are slower, and event times can be wrong"
                )
        return notes

    def newcomers(self) -> list[str]:
        """After the last worker has ended: processes that appeared during the measurement and are still there."""
        more = (self._processes() or 0) - self._before
        if more <= 0:
            return []
        return [
            f"somebody else began to use this GPU while it was measured: {more} process{'es' if more > 1 else ''}"
        ]

    def _busy_percent(self) -> int | None:
        with contextlib.suppress(Exception):
            return int(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        return None

    def _processes(self) -> int:
        """Processes with a context, other than ours; in a container they are often invisible."""
        with contextlib.suppress(Exception):
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            return sum(p.pid != os.getpid() for p in found)
        return 0

    def close(self) -> None:
        """Let go of NVML."""
        with contextlib.suppress(Exception):
            self._nvml.nvmlShutdown()


@contextlib.contextmanager
def clocks(path: Path, *, wanted: bool) -> Iterator[list[str]]:
    """The SM clock sampled into `path` while the block runs; yields notes."""
    with sampling(path, wanted=wanted, flush_s=FLUSH_S) as notes:
        yield notes


def rates(path: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """(monotonic_ns, MHz) of the first device, in order of time."""
    times, values = [], []
    with (
        contextlib.suppress(OSError, TypeError),
        open(path, encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, list) and row[3] == 0 and row[4]:
                    times.append(row[0])
                    values.append(row[4])
    return np.array(times, dtype=np.int64), np.array(values, dtype=np.float64)


def between(known: tuple[np.ndarray, np.ndarray], start: int, end: int) -> float:
    """The median clock in a stretch of time (the nearest sample if it contains none); NaN if unknown."""
    times, values = known
    if not len(times):
        return float("nan")
    low, high = np.searchsorted(times, [start, end])
    if high > low:
        return float(np.median(values[low:high]))
    return float(values[min(low, len(values) - 1)])
