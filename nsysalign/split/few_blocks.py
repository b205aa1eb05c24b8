"""For how long a device ran kernels that leave at least half of it without work: fewer blocks than
multiprocessors, which take one each at least.

    stream 7     [ 1 block           ]  [ 528 blocks ]   [ 1 ]
    stream 13          [ 200 blocks ]                              a GPU with 132 multiprocessors
    too few      ******              *                   *****
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.model import KIND, Trace, pid_of
from nsysalign.trace.nccl import NCCL_KERNEL

#: Grids of more kernels than this are not read.
_MOST = 200_000
#: What is no computation: torch.cuda._sleep holds up a stream.
_SLEEPS = "spin_kernel"
_ENOUGH = 1 << 40


def few_blocks(trace: Trace, multiprocessors: Mapping[int, int]) -> list[dict[str, Any]]:
    """Per process and device: the time (`few_blocks_ns`); what of it would remain if all
    multiprocessors shared the work (`unused_ns` is the rest); and of the kernels with too few the
    one that ran longest.  CUDA graphs, collectives and kernels of unknown size have enough; where
    the number of multiprocessors is not known (0), one block is too few."""
    operations = trace.operations
    kind, name = operations["kind"].to_numpy(), operations["name_id"].to_numpy()
    kernel = np.flatnonzero(kind == KIND["kernel"])
    if trace.shapes is None or not 0 < len(kernel) <= _MOST:
        return []
    rows, place = np.unique(operations["row"].to_numpy()[kernel], return_inverse=True)
    shape = np.asarray(trace.shapes(rows))[place]
    texts = {n: trace.names.get(n, "kernel") for n in np.unique(name[kernel]).tolist()}
    other = [n for n, text in texts.items() if _SLEEPS in text or NCCL_KERNEL.search(text)]
    blocks = np.full(len(operations), _ENOUGH)
    size = shape[:, :3].prod(axis=1)
    blocks[kernel] = np.where((size > 0) & ~np.isin(name[kernel], other), size, _ENOUGH)
    threads = np.zeros(len(operations), np.int64)
    threads[kernel] = shape[:, 3:].prod(axis=1)
    start, end = (operations[c].to_numpy() for c in ("start_ns", "end_ns"))
    computes = np.isin(kind, [KIND["kernel"], KIND["graph"]])
    where = operations[["process", "device"]].to_numpy(np.int64)
    out = []
    for process, device in np.unique(where[computes], axis=0).tolist():
        at = np.flatnonzero((where == (process, device)).all(axis=1) & computes)
        most = multiprocessors[device] or 2
        time = np.concatenate([start[at], end[at]])
        order = np.argsort(time, kind="stable")
        running = np.cumsum(np.concatenate([blocks[at], -blocks[at]])[order])[:-1]
        few = (running > 0) & (2 * running <= most)
        ns = np.diff(time[order])[few]
        of = at[2 * blocks[at] <= most]
        if not ns.sum():
            continue
        table = pd.DataFrame({"name": name[of], "blocks": blocks[of], "threads": threads[of], "ns": (end - start)[of]})  # fmt: skip
        longest = table.groupby(["name", "blocks", "threads"])["ns"].sum().idxmax()
        out.append(
            {
                "pid": int(pid_of(process)), "device": device, "few_blocks_ns": int(ns.sum()),
                "unused_ns": int((ns * (1 - running[few] / most)).sum()), "kernel": texts[longest[0]],
                "blocks": int(longest[1]), "threads_per_block": int(longest[2]),
                "multiprocessors": multiprocessors[device],
            }
        )  # fmt: skip
    return out
