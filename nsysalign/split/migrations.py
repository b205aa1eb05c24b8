"""Pages of managed memory that moved between host and device, and whether kernels ran meanwhile.

Kernels:         KKKKKKKKKKKKKKKKKKKK
Pages to the GPU:   mm mm mmm           to the host:   m m mm
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nsysalign.intervals import covered, disjoint
from nsysalign.model import KIND, MIGRATIONS, Trace, pid_of

TO_DEVICE, TO_HOST, _ = MIGRATIONS
_ASKED = ("cudaMemPrefetch", "cuMemPrefetch")


def page_migrations(trace: Trace) -> list[dict[str, Any]]:
    """Per process and device on which pages moved: how often the device had run nothing before one
    moved to the host, and for how long (`touched_...`; the host asked for none in that time, it
    touched them); how many and how much moved each way, how long pages moved (`moving_ns`, a union),
    and for how long of that no kernel ran (`alone_ns`).  How long faults take besides is not in a
    trace: between two pages a kernel may work.  Only the first two where the program itself asked
    for pages ahead of their use: such rows look the same."""
    operations = trace.operations
    copy = operations["copy_kind"].to_numpy()
    moved = np.isin(copy, MIGRATIONS)
    if not moved.any():
        return []
    asking = [i for i, name in trace.names.items() if name.startswith(_ASKED)]
    asked = trace.calls[trace.calls["name_id"].isin(asking)]
    start, end, kind, size = (
        operations[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "bytes")
    )
    where = operations[["process", "device"]].to_numpy(np.int64)
    out = []
    for process, device in np.unique(where[moved], axis=0).tolist():
        here = (where == (process, device)).all(axis=1)
        row = {"pid": int(pid_of(process)), "device": device}
        op = np.flatnonzero(here)[np.argsort(start[here], kind="stable")]
        until = np.maximum.accumulate(end[op])[:-1]
        calls = asked["start_ns"].to_numpy()[asked["process"].to_numpy() == process]
        alone = np.searchsorted(calls, until) == np.searchsorted(calls, start[op][1:])
        back = (copy[op][1:] == TO_HOST) & (start[op][1:] > until) & alone
        row["touched_count"], row["touched_ns"] = (
            int(back.sum()),
            int((start[op][1:] - until)[back].sum()),
        )
        if len(calls):
            out.append(row)
            continue
        of_pages, of_kernels = here & moved, here & (kind == KIND["kernel"])
        _, first, last = disjoint(start[of_pages], end[of_pages])
        _, begun, ended = disjoint(start[of_kernels], end[of_kernels])
        moving = int((last - first).sum())
        during = int((covered(begun, ended, last) - covered(begun, ended, first)).sum())
        ways = {
            f"{name}_{what}": int(of[here & (copy == code)].sum())
            for name, code in (("to_device", TO_DEVICE), ("to_host", TO_HOST))
            for what, of in (("count", moved), ("bytes", size))
        }
        out.append({**row, **ways, "moving_ns": moving, "alone_ns": moving - during})
    return out
