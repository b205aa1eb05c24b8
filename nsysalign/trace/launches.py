"""Kernel rows with the columns needed to join marks: grid ids, and the SM resources that a kernel
takes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import pid_of
from nsysalign.trace import schema
from nsysalign.trace.activity import possible_rows
from nsysalign.trace.names import presentable
from nsysalign.trace.sqlite import opened


def read_launches(trace: Path, pids: Collection[int]) -> pd.DataFrame:
    """Kernels of these processes (`frames.LAUNCHES`); all kernels if the trace has no process
    ids."""
    with opened(trace) as source:
        (columns,) = source.columns_of(schema.KERNEL_LAUNCH)
        if columns is None:
            return frames.empty(frames.LAUNCHES)
        names = source.strings()
    pid = pid_of(np.asarray(columns["process"], dtype=np.int64))
    mine = np.isin(pid, list(pids)) | (np.asarray(columns["process"]) < 0)
    keep = mine & possible_rows(columns)
    table = pd.DataFrame(
        {name: np.asarray(values)[keep].astype(np.int64) for name, values in columns.items()}
    )
    table["pid"] = np.where(table["process"] < 0, -1, pid[keep])
    texts = {i: presentable(names.get(i, "")) for i in table["name_id"].unique().tolist()}
    table["name"] = pd.Series([texts[i] for i in table["name_id"].tolist()], dtype="str")
    table["blocks"] = table["grid_x"] * table["grid_y"] * table["grid_z"]
    table["threads"] = table["block_x"] * table["block_y"] * table["block_z"]
    shared = table[["static_shared_bytes", "dynamic_shared_bytes"]]
    table["shared_bytes"] = np.where((shared < 0).any(axis=1), -1, shared.sum(axis=1))
    return frames.check(
        table.sort_values(["start_ns", "end_ns", "row"], ignore_index=True), frames.LAUNCHES
    )
