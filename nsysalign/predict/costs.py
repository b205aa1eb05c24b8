"""What nsys added to each CUDA call and to the code after it: an estimate from the profiled trace
alone.

CUPTI stops at the entry and the exit of every call that it records, and keeps a record of every
operation.  Most of that lies inside the call as the trace shows it; the rest arises because the
code after a call finds its caches displaced. The trace cannot show what was added, only how long
things took with it.  So it is a share of the call's own length (a call is slow on a slow or cold
machine, and so are the callbacks in it) and a share of the time outside CUDA after it, up to a
limit: after that long the caches are the program's again.

The shares were fitted to runs with and without nsys of the same programs (torch 2.11, nsys
2024.2.3) on two H200s where the host ran at full speed, and on an H100 and an H200 where both ran
at the same time, in turns, on the same cores (commit 7d32931, scripts/bench_turns.py); that of a
graph's launch was measured by itself.  docs/lab/figures.md shows how well they predict programs and
machines that they were not fitted to; the `..._ERROR`s say how uncertain they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nsysalign.model import CALL, KIND, SYNC_CALLS, Trace


@dataclass(frozen=True)
class Costs:
    """Shares and limits (ns).  All were fitted; none is a property of CUDA."""

    launch_share: float = 0.36  # of a call that launches
    attributes_share: float = (
        0.20  # of one that launches with attributes: longer by itself (cuBLAS)
    )
    memory_share: float = 0.47  # of one that copies or sets
    graph_share: float = 0.52  # of one that launches a graph
    other_share: float = 0.60  # of every other call that does not wait
    inside_most_ns: int = 12_000  # a call in which libraries load is long for other reasons
    wait_ns: int = 1_200  # of a call that waits for the GPU: for its return
    after_share: float = 0.35  # of the time outside CUDA after a call ...
    after_from_ns: int = 2_500  # ... beyond this: tight loops stay in their caches ...
    after_most_ns: int = 12_000  # ... up to this
    call_after_ns: int = 100  # after any call, at least
    device_ns: int = 280  # on the GPU before a kernel that was waiting for its predecessor ...
    memset_ns: int = 1_000  # the same, if its predecessor was a memset
    device_gap_ns: int = 900  # ... whose gap without nsys is at least this
    graph_ns: int = 1_200  # on the GPU around a graph that is traced as a whole


FITTED = Costs()

#: How far a prediction may be off, as shares: of what was taken away inside calls and on the GPU,
#: of what was taken away between calls, of the rest of the time that the host decides, and of the
#: GPU's work.  They are independent: their squares add up. Chosen so that 95 of 100 labels lie
#: within, of workloads and on machines that were left out of the choice (docs/lab/figures.md).
INSIDE_ERROR, AFTER_ERROR, HOST_ERROR, WORK_ERROR = 0.25, 0.75, 0.12, 0.03

#: CUPTI asks for the name of the kernel at the entry of cudaLaunchKernel, before the call begins in
#: the trace.
_ASKED, _WITH_ATTRIBUTES = "cuKernelGetName", "cudaLaunchKernelEx"

PAGEABLE = 0  # CUDA_MEMOPR_MEMORY_KIND_PAGEABLE


class Overhead(NamedTuple):
    """Per call, ns: `inside` it, and `after` it."""

    inside: np.ndarray
    after: np.ndarray


def overhead(trace: Trace, own: np.ndarray, waits: np.ndarray, costs: Costs = FITTED) -> Overhead:
    """Estimate for the outermost calls of a thread, given by their positions in order; the calls
    inside them are part of it.  `waits`: of all calls (`waiting`)."""
    start, end, kind, name = (
        trace.calls[c].to_numpy()[own] for c in ("start_ns", "end_ns", "kind", "name_id")
    )
    asks, with_attributes = (
        [number for number, text in trace.names.items() if text.startswith(api)]
        for api in (_ASKED, _WITH_ATTRIBUTES)
    )
    length = end - start
    share = np.full(len(kind), costs.other_share)
    share[kind == CALL["launch"]] = costs.launch_share
    share[np.isin(name, with_attributes)] = costs.attributes_share
    share[np.isin(kind, [CALL["memcpy"], CALL["memset"]])] = costs.memory_share
    share[kind == CALL["graph_launch"]] = costs.graph_share
    inside = np.minimum(share * length, costs.inside_most_ns)
    inside = np.where(waits[own], np.minimum(costs.wait_ns, 0.5 * length), inside)
    gap = np.append(np.maximum(start[1:] - end[:-1], 0), [0] * (len(own) > 0))
    after = costs.call_after_ns + costs.after_share * np.maximum(gap - costs.after_from_ns, 0)
    after = np.minimum(np.minimum(after, costs.after_most_ns), gap)
    asked = np.flatnonzero((kind[1:] == CALL["launch"]) & np.isin(name[:-1], asks))
    inside[asked], after[asked] = length[asked], gap[asked]
    return Overhead(whole(inside), whole(after))


def waiting(trace: Trace) -> np.ndarray:
    """Which calls are long because they wait for the GPU, or copy pageable memory themselves."""
    calls, operations = trace.calls, trace.operations
    out = np.isin(calls["kind"].to_numpy(), [CALL[k] for k in SYNC_CALLS])
    copies = operations[(operations["kind"] == KIND["memcpy"]) & (operations["call"] >= 0)]
    call = copies["call"].to_numpy()
    done = copies["end_ns"].to_numpy() <= calls["end_ns"].to_numpy()[call]
    pageable = (copies[["src_kind", "dst_kind"]] == PAGEABLE).any(axis=1).to_numpy()
    out[call[done | pageable]] = True
    return out


def whole(ns: np.ndarray) -> np.ndarray:
    """Costs as whole nanoseconds, none below 0."""
    return np.rint(np.maximum(ns, 0)).astype(np.int64)
