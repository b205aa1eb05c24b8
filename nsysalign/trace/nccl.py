"""What connects the ranks of one job: NCCL's kernels, the machine, and the number that the launcher
gave to the rank."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import pid_of
from nsysalign.trace import schema
from nsysalign.trace.sqlite import Source, opened

#: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, `ncclKernel_AllGather_RING_LL_Sum_int8_t(...)`,
#: `ncclAllReduceRingLLKernel_sum_f32(...)`, `ncclSymkDevKernel_AllGather_ST(...)`; RCCL uses NCCL's
#: names.
NCCL_KERNEL = re.compile(r"nccl\w*kernel", re.IGNORECASE)
_OPERATION = re.compile(
    r"AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|SendRecv|Reduce|Generic"
)

#: Variables in which launchers give a process its number, the launcher's own first.
_RANK = re.compile(r"(?:^|;)(RANK|OMPI_COMM_WORLD_RANK|PMI_RANK|SLURM_PROCID)=(\d{1,6})(?=;|$)")
_RANK_ORDER = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


class Shared(NamedTuple):
    """One trace's side of what ranks share.  `host` is a digest that distinguishes machines without
    naming them; `rank` is the number that the launcher gave the profiled command, None if it gave
    none."""

    collectives: pd.DataFrame  # frames.COLLECTIVES
    host: str | None
    rank: int | None
    processes: tuple[int, ...]  # process ids that executed kernels


def read_shared(path: Path) -> Shared:
    """Reads only NCCL's kernel rows, whatever the size of the trace.  Raises TraceError as for any
    export."""
    with opened(path) as source:
        environment = dict(source.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value"))
        host = str(environment.get("Hostname") or "")
        if host.startswith("localhost"):  # a name that every machine has for itself
            host = ""
        return Shared(
            collectives=_collectives(source),
            host=hashlib.sha256(host.encode("utf-8", "replace")).hexdigest()[:16] if host else None,
            rank=rank_of(str(environment.get("DeviceEnvironment") or "")),
            processes=_processes(source),
        )


def rank_of(environment: str) -> int | None:
    """The rank in nsys's record of the environment (`A=1;RANK=3;...`); nothing else in it is
    read."""
    found = {name: int(number) for name, number in _RANK.findall(environment)}
    return next((found[name] for name in _RANK_ORDER if name in found), None)


def operation_of(name: str) -> str:
    """The collective named by a kernel's name, '' if there is none.

    `Generic` runs whatever NCCL grouped.
    """
    found = _OPERATION.search(name)
    return "" if found is None or found[0] == "Generic" else found[0]


def _collectives(source: Source) -> pd.DataFrame:
    column = source.column(schema.KERNEL, "name_id")
    names = {
        i: text.partition("(")[0].strip()
        for i, text in source.strings().items()
        if "nccl" in text.lower()
    }
    names = {i: text for i, text in names.items() if NCCL_KERNEL.search(text)}
    if column is None or not names:
        return frames.empty(frames.COLLECTIVES)
    wanted = ("start_ns", "end_ns", "process", "device", "stream", "name_id", "grid_x", "block_x")
    table = schema.Table(
        schema.KERNEL.name,
        tuple(f for f in (*schema.KERNEL.fields, *schema.KERNEL_SHAPE.fields) if f.name in wanted),
        where=f'"{column}" in ({", ".join(str(int(i)) for i in names)})',
    )
    frame = source.read(table)
    assert frame is not None  # it was checked above
    frame = frame[(frame["start_ns"] > 0) & (frame["end_ns"] >= frame["start_ns"])]
    frame = frame.sort_values(["start_ns", "end_ns", "row"], ignore_index=True)
    name_id = frame["name_id"].to_numpy()
    operations = {i: operation_of(text) for i, text in names.items()}
    frame["name"] = pd.Series([names[i] for i in name_id.tolist()], dtype="str")
    frame["operation"] = pd.Series([operations[i] for i in name_id.tolist()], dtype="str")
    frame["signature"] = frame["grid_x"].to_numpy() * np.int64(65536) + frame["block_x"].to_numpy()
    return frames.check(frame, frames.COLLECTIVES)


def _processes(source: Source) -> tuple[int, ...]:
    """From the small table of contexts, or from the kernels themselves if that is absent."""
    contexts = source.read(schema.CONTEXT)
    if contexts is not None and len(contexts):
        return tuple(sorted({int(p) for p in contexts["pid"].tolist() if p >= 0}))
    column = source.column(schema.KERNEL, "process")
    if column is None:
        return ()
    rows = source.connection.execute(
        f'select distinct "{column}" from "{schema.KERNEL.name}" where "{column}" > 0'
    )
    return tuple(sorted({pid_of(int(p)) for (p,) in rows}))
