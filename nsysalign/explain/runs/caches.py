"""Which timings come right after a fill or a copy as large as the L2 cache: their kernels find none of their data in it.

stream    [ fill, 256 MB      ] [start][ add ][end] [ fill, 256 MB      ] [start][ add ][end]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from nsysalign.intervals import group
from nsysalign.model import KIND
from nsysalign.split.labels import Ran

#: torch's kernel of `zero_` and `fill_`: the bytes that it writes are not in a trace, but a long one writes at half the
#: rate of the memory and more.
FILLS, _OF_THE_RATE = re.compile(r"FillFunctor"), 0.5


class AfterFill(NamedTuple):
    """Per interval, whether the operation before it on its stream writes at least as many bytes as the L2 holds."""

    of_interval: np.ndarray


def after_fill(ran: Ran) -> Iterator[AfterFill]:
    """Yield one record, if the trace says how large the L2 is."""
    gpus, windows = ran.trace.gpus, ran.windows
    out = np.zeros(len(windows), bool)
    lane_of_window = windows["start_lane"].to_numpy()
    is_timing = (windows["kind"] != "run").to_numpy() & (lane_of_window >= 0)
    numbers = np.flatnonzero(is_timing)
    for lane, of_lane in group(lane_of_window[numbers], numbers).items():
        operations, _ = ran.of_lane(lane)
        begun = np.searchsorted(ran.start[operations], windows["start_ns"].to_numpy()[of_lane])
        known = of_lane[begun > 0]
        before = operations[begun[begun > 0] - 1]
        out[known] = _written_bytes(ran, before) >= _l2_bytes(ran, before)
    if any(gpu.l2_bytes for gpu in gpus.values()):
        yield AfterFill(out)


def _l2_bytes(ran: Ran, operations: np.ndarray) -> np.ndarray:
    """Return the size of the L2 of the GPU of each operation, infinite where it is not known."""
    device = ran.trace.operations["device"].to_numpy()[operations]
    sizes = {n: gpu.l2_bytes for n, gpu in ran.trace.gpus.items()}
    return np.array([sizes.get(n) or np.inf for n in device.tolist()])


def _written_bytes(ran: Ran, operations: np.ndarray) -> np.ndarray:
    """Return how many bytes each operation writes at least: those of copies and memsets, and by its time of a fill."""
    table = ran.trace.operations
    size = table["bytes"].to_numpy()[operations].astype(float)
    kind, device = (table[name].to_numpy()[operations] for name in ("kind", "device"))
    fills = ran.names["kernel"].astype(str).str.contains(FILLS).to_numpy()[ran.name[operations]]
    rates = {n: gpu.memory_rate for n, gpu in ran.trace.gpus.items()}
    rate = np.array([rates.get(n, 0) for n in device.tolist()]) / 1e9
    by_time = _OF_THE_RATE * rate * (ran.end - ran.start)[operations]
    is_kernel = kind == KIND["kernel"]
    return np.where(is_kernel, np.where(fills, by_time, 0), size)
