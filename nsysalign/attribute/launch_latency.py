"""The ordinary launch latency of each kind of operation, read off the trace: from the end of the issuing call to the
start on the GPU, where the stream and the device were otherwise idle (rule 7 asks for it)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nsysalign.model import KIND, OPERATION_KINDS, Trace
from nsysalign.sweep.tiles import distinct

#: Used if a trace shows no operation of a kind on an idle device (ns).
_FALLBACK_NS = 5_000
_ENOUGH = 5
_AT_ONCE = 1 << 17


def launch_latency(trace: Trace) -> dict[int, int]:
    """Operation kind code -> median latency in ns (0 where operations start before their call returns)."""
    samples = [
        s for number in distinct(trace.operations["device"].to_numpy()) for s in _idle(trace, int(number))
    ]
    kinds = np.concatenate([s[0] for s in samples]) if samples else np.empty(0, np.int8)
    values = np.concatenate([s[1] for s in samples]) if samples else np.empty(0, np.int64)
    out = {}
    for name in OPERATION_KINDS:
        mine = values[kinds == KIND[name]]
        out[KIND[name]] = int(np.median(mine)) if len(mine) >= _ENOUGH else _FALLBACK_NS
    return out


def _idle(trace: Trace, device: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(kind, latency) of operations whose call began after everything on the device had ended."""
    operations = trace.operations
    start, end, kind, call = (operations[c].to_numpy() for c in ("start_ns", "end_ns", "kind", "call"))
    call_start, call_end = trace.calls["start_ns"].to_numpy(), trace.calls["end_ns"].to_numpy()
    reach = np.iinfo(np.int64).min
    for first in range(0, len(start) if len(call_start) else 0, _AT_ONCE):
        here = first + np.flatnonzero(operations["device"].to_numpy()[first : first + _AT_ONCE] == device)
        if not len(here):
            continue
        before = np.maximum.accumulate(np.append(reach, end[here]))  # operations are sorted by start
        reach = before[-1]
        # nothing ran on the device from the moment the call began
        idle = here[(call[here] >= 0) & (before[:-1] <= call_start[call[here]])]
        yield kind[idle], np.maximum(start[idle] - call_end[call[idle]], 0)
