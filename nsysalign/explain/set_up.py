"""What a process did in CUDA before its GPU's first work and after its last."""

from __future__ import annotations

from typing import Any

import pandas as pd

from nsysalign.intervals import disjoint
from nsysalign.model import Trace, pid_of


def _open(spans: pd.DataFrame) -> int:
    """How long at least one of them lasts: threads call at once."""
    _, start, stop = disjoint(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())
    return int((stop - start).sum())


def set_up(trace: Trace) -> list[dict[str, Any]]:
    """One of each process that calls CUDA, told with the first of its devices.

    calls    [cudaMalloc: sets CUDA up      ] [memcpy]  [launch]            [cudaFree]
    GPU                                         CC         KKKKK
             |------------ before ------------|            last|-- after --|

    `whole_ns`: from the first call to the last call or work, `until_ns` to the first work, `since_ns` from the last.  `before_ns`, `after_ns`: how long calls
    were open in these times; `..._call`: the one that took most of it, `..._call_ns`;
    `busy_ns`: how long the device worked.
    """
    calls, out = trace.calls[["start_ns", "end_ns", "name_id"]], []
    outer = trace.outermost
    for process, work in trace.operations[["process", "device", "start_ns", "end_ns"]].groupby(
        "process"
    ):
        own = outer & (trace.calls["process"].to_numpy() == process)
        if not own.any():
            continue
        first, last = int(work["start_ns"].min()), int(work["end_ns"].max())
        begin = min(int(calls["start_ns"].to_numpy()[own].min()), first)
        end = max(int(calls["end_ns"].to_numpy()[own].max()), last)
        row: dict[str, Any] = {"pid": int(pid_of(process)), "device": int(work["device"].min())}
        row |= {"whole_ns": end - begin, "busy_ns": _open(work), "until_ns": first - begin}
        row["since_ns"] = end - last
        for name, low, high in (("before", begin, first), ("after", last, end)):
            # of a million calls only those that are open then
            inside = (
                own & (calls["start_ns"].to_numpy() < high) & (calls["end_ns"].to_numpy() > low)
            )
            some = calls[inside]
            spans = some[["start_ns", "end_ns"]].clip(low, high).assign(name=some["name_id"])
            ns = spans["end_ns"] - spans["start_ns"]
            most = int(ns.groupby(spans["name"]).sum().idxmax()) if len(ns) else -1
            row[f"{name}_ns"] = _open(spans)
            row[f"{name}_call"] = trace.names.get(most, "CUDA calls")
            row[f"{name}_call_ns"] = _open(spans[spans["name"] == most])
        out.append(row)
    return out
