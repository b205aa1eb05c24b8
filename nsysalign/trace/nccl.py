"""What connects the ranks of one job: NCCL's kernels, the machine, and the number that the launcher
gave to the rank."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from nsysalign import frames
from nsysalign.trace import schema
from nsysalign.trace.kineto import KinetoSource
from nsysalign.trace.sqlite import Source, opened
from nsysalign.untrusted import is_json

if TYPE_CHECKING:
    from nsysalign.trace.cupti import Recording

#: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, `ncclKernel_AllGather_RING_LL_Sum_int8_t(...)`,
#: `ncclAllReduceRingLLKernel_sum_f32(...)`, `ncclSymkDevKernel_AllGather_ST(...)`; RCCL uses NCCL's
#: names.
NCCL_KERNEL = re.compile(r"nccl\w*kernel", re.IGNORECASE)
_OPERATION = re.compile(
    r"AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|SendRecv|Reduce|Generic"
)
#: Variables in which launchers give a process its number, the launcher's own first.
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
_COLUMNS = ("start_ns", "end_ns", "process", "device", "stream", "name_id", "grid_x", "block_x")


class Shared(NamedTuple):
    """One trace's side of what ranks share.  `host` is a digest that distinguishes machines without
    naming them; `rank` is the number that the launcher gave the profiled command, None if it gave
    none."""

    collectives: pd.DataFrame  # frames.COLLECTIVES
    host: str | None
    rank: int | None


def read_shared(path: Path) -> Shared:
    """Reads only NCCL's kernel rows, whatever the size of the trace.  Raises TraceError as for any
    export."""
    if is_json(path):
        profile = KinetoSource(path, lambda name: NCCL_KERNEL.search(name) is not None)
        return Shared(_collectives(profile), profile.host(), profile.rank())
    with opened(path) as source:
        about = dict(source.rows("TARGET_INFO_SYSTEM_ENV", "name", "value"))
        host = str(about.get("Hostname") or "")
        # a name that every machine has for itself tells none apart
        digest = hashlib.sha256(host.encode("utf-8", "replace")).hexdigest()[:16]
        # nothing else in nsys's record of the environment (`A=1;RANK=3;...`) is read
        environment = str(about.get("DeviceEnvironment") or "")
        ranks = (re.search(rf"(?:^|;){n}=(\d{{1,6}})(?=;|$)", environment) for n in _RANKS)
        return Shared(
            collectives=_collectives(source),
            host=digest if host and not host.startswith("localhost") else None,
            rank=next((int(number[1]) for number in ranks if number), None),
        )


def operation_of(name: str) -> str:
    """The collective named by a kernel's name, '' if there is none (`Generic` runs whatever NCCL grouped)."""
    match = _OPERATION.search(name)
    return "" if match is None or match[0] == "Generic" else match[0]


def _collectives(source: Source | Recording | KinetoSource) -> pd.DataFrame:
    """Return `frames.COLLECTIVES`: NCCL's kernels, sorted by start.  `signature` is equal for equal grids and blocks: the
    same collective has the same one on every rank."""
    column = source.column(schema.KERNEL, "name_id")
    shown = {i: text.partition("(")[0].strip() for i, text in source.strings().items()}
    names = {i: name for i, name in shown.items() if NCCL_KERNEL.search(name)}
    if column is None or not names:
        return frames.empty(frames.COLLECTIVES)
    fields = tuple(f for f in schema.KERNEL_LAUNCH.fields if f.name in _COLUMNS)
    table = schema.Table(schema.KERNEL.name, fields)
    frame = source.read(table, f'"{column}" in ({", ".join(str(int(i)) for i in names)})')
    frame = frame[frame["name_id"].isin(names)]
    frame = frame[(frame["start_ns"] > 0) & (frame["end_ns"] >= frame["start_ns"])]
    frame = frame.sort_values(["start_ns", "end_ns", "row"], ignore_index=True)
    name = frame["name_id"].map(names).astype("str")
    frame = frame.assign(
        name=name,
        operation=name.map(operation_of).astype("str"),
        signature=frame["grid_x"].astype("int64") * 65536 + frame["block_x"],
    )
    return frames.check(frame, frames.COLLECTIVES)
