"""For how long a device ran kernels that leave most of it without work: fewer blocks than
multiprocessors, which take one each at least; blocks of fewer threads than a warp has.

    stream 7     [ 1 block           ]  [ 528 blocks ]   [ 1 ]   [ 4,096 blocks of 1 thread ]
    stream 13          [ 200 blocks ]                              a GPU with 132 multiprocessors
    few blocks   ******              *                   *****
    few threads                                                  ****************************
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.model import KIND, WARP, Trace, pid_of
from nsysalign.trace.nccl import NCCL_KERNEL

#: Grids of more kernels than this are not read.
_MOST = 200_000
#: What is no computation: torch.cuda._sleep holds up a stream.
_SLEEPS = "spin_kernel"
_ENOUGH = 1 << 40


def small_launches(
    trace: Trace, multiprocessors: Mapping[int, int]
) -> dict[str, list[dict[str, Any]]]:
    """`few_blocks` and `few_threads`, per process and device: for how long at least half of the
    multiprocessors had no block, and for how long what ran, with more blocks than that, had blocks
    of less than a warp only; what of that time would remain if the work were shared out
    (`unused_ns` is the rest); and of such kernels the one that ran longest.  CUDA graphs,
    collectives and kernels of unknown size have enough; where the number of multiprocessors is not
    known (0), one block is too few."""
    operations = trace.operations
    kind, name = operations["kind"].to_numpy(), operations["name_id"].to_numpy()
    kernel = np.flatnonzero(kind == KIND["kernel"])
    found: dict[str, list[dict[str, Any]]] = {"few_blocks": [], "few_threads": []}
    if trace.shapes is None or not 0 < len(kernel) <= _MOST:
        return found
    rows, place = np.unique(operations["row"].to_numpy()[kernel], return_inverse=True)
    shape = np.asarray(trace.shapes(rows))[place]
    texts = {n: trace.names.get(n, "kernel") for n in np.unique(name[kernel]).tolist()}
    other = [n for n, text in texts.items() if _SLEEPS in text or NCCL_KERNEL.search(text)]
    size = shape[:, :3].prod(axis=1)
    table = operations[["start_ns", "end_ns", "name_id"]].assign(blocks=_ENOUGH, threads=WARP)
    table["ns"] = table["end_ns"] - table["start_ns"]
    known = kernel[(size > 0) & ~np.isin(name[kernel], other)]
    table.loc[known, "blocks"] = size[np.searchsorted(kernel, known)]
    table.loc[known, "threads"] = shape[np.searchsorted(kernel, known), 3:].prod(axis=1)
    computes = np.isin(kind, [KIND["kernel"], KIND["graph"]])
    for (process, device), mine in table[computes].groupby(
        [operations["process"][computes], operations["device"][computes]]
    ):
        most = multiprocessors[device] or 2
        narrow = (mine["threads"] > 0) & (mine["threads"] < WARP)
        threads = mine["blocks"] * mine["threads"].where(narrow, 0)
        time = np.concatenate([mine["start_ns"], mine["end_ns"]])
        order = np.argsort(time, kind="stable")

        def at_once(what: pd.Series) -> np.ndarray:
            return np.cumsum(np.concatenate([what, -what])[order])[:-1]  # noqa: B023

        ns, running = np.diff(time[order]), at_once(mine["blocks"])
        few = (running > 0) & (2 * running <= most)
        small = ~few & (running > 0) & (at_once(mine["blocks"].where(~narrow, 0)) == 0)
        used = np.where(few, running / most, at_once(threads) / np.maximum(WARP * running, 1))
        for what, when, of in (
            ("few_blocks", few, 2 * mine["blocks"] <= most),
            ("few_threads", small, narrow),
        ):
            if not ns[when].sum():
                continue
            groups = mine[of].groupby(["name_id", "blocks", "threads"])["ns"].sum()
            longest, blocks, of_block = map(int, groups.idxmax())
            found[what].append(
                {
                    "pid": int(pid_of(process)), "device": device, f"{what}_ns": int(ns[when].sum()),
                    "unused_ns": int((ns * (1 - used))[when].sum()), "kernel": texts[longest],
                    "blocks": blocks, "threads_per_block": of_block,
                    "multiprocessors": multiprocessors[device],
                }
            )  # fmt: skip
    return found
