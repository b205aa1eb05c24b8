"""The ordinary launch latency of each kind of operation, read off the trace: from the end of the issuing call to the
start on the GPU, where the stream and the device were otherwise idle (rule 7 asks for it)."""

from __future__ import annotations

import numpy as np

from nsysalign.model import KIND, OPERATION_KINDS, Trace
from nsysalign.sweep.issue import LaneOperations
from nsysalign.sweep.tiles import distinct

#: Used where a trace shows no operation of a kind on an idle device (ns).
_FALLBACK_NS = 5_000
_ENOUGH = 5


def launch_latency(trace: Trace, per_lane: dict[int, LaneOperations]) -> dict[int, int]:
    """Operation kind code -> median latency in ns (0 where operations start before their call returns)."""
    operations = trace.operations
    start, end, kind = (operations[c].to_numpy() for c in ("start_ns", "end_ns", "kind"))
    device = operations["device"].to_numpy()
    samples: list[tuple[np.ndarray, np.ndarray]] = []
    for number in distinct(device):
        here = np.flatnonzero(device == number)  # sorted by start
        before = np.full(len(here), np.iinfo(np.int64).min)
        before[1:] = np.maximum.accumulate(end[here])[:-1]
        call = operations["call"].to_numpy()[here]
        ok = call >= 0
        issued = (
            trace.calls["end_ns"].to_numpy()[np.maximum(call, 0)]
            if len(trace.calls)
            else np.zeros(len(here), np.int64)
        )
        issue = (
            trace.calls["start_ns"].to_numpy()[np.maximum(call, 0)]
            if len(trace.calls)
            else np.zeros(len(here), np.int64)
        )
        # nothing ran on the device from the moment the call began
        idle = ok & (before <= issue)
        samples.append((kind[here][idle], np.maximum(start[here][idle] - issued[idle], 0)))
    kinds = np.concatenate([s[0] for s in samples]) if samples else np.empty(0, np.int8)
    values = np.concatenate([s[1] for s in samples]) if samples else np.empty(0, np.int64)
    out = {}
    for name in OPERATION_KINDS:
        mine = values[kinds == KIND[name]]
        out[KIND[name]] = int(np.median(mine)) if len(mine) >= _ENOUGH else _FALLBACK_NS
    return out
