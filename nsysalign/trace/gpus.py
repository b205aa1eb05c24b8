"""What an export says about the limits of its GPUs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nsysalign.trace import schema
from nsysalign.trace.sqlite import opened


class Limits(NamedTuple):
    """Of one GPU; 0 is unknown.  `memory_rate`: bytes per second, NVML's figure, which copies do
    not reach."""

    l2_bytes: int
    memory_rate: int


def read_limits(path: Path) -> dict[int, Limits]:
    """CUDA device -> its limits; {} if the export does not say which GPU is which.  Raises
    TraceError as for any export."""
    with opened(path) as source:
        table = "TARGET_INFO_GPU"
        columns = dict.fromkeys((*schema.GPU_LIMITS, "cuDevice"))
        if "cuDevice" not in source.columns(table):
            return {}
        known = [name for name in columns if name in source.columns(table)]
        rows = [dict(zip(known, row, strict=True)) for row in source.rows(table, known)]
    found = {
        row["cuDevice"]: Limits(*(_number(row.get(name)) for name in schema.GPU_LIMITS))
        for row in rows
        if isinstance(row["cuDevice"], int)
    }
    return found if len(found) == len(rows) else {}  # some exports say 0 of every GPU


def multiprocessors(path: Path) -> Mapping[int, int]:
    """CUDA device -> how many multiprocessors it has, 0 if the export does not say.  Raises
    TraceError as for any export."""
    with opened(path) as source:
        rows = source.pairs("TARGET_INFO_GPU", "cuDevice", "smCount")
        sizes = {_number(n) for n, _ in source.pairs("TARGET_INFO_GPU", "smCount", "smCount")} - {0}
    known = {device: _number(n) for device, n in rows}
    alike = sizes.pop() if len(sizes) == 1 else 0
    # some exports say 0 of every GPU
    return defaultdict(lambda: alike, known if len(known) == len(rows) else {})


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 < value < 1 << 62 else 0
