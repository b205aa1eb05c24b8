"""What surrounds a record on its stream: the operations issued before and after it, and when they ran.

    issued (host)    [op A]   [record R]      [op B]
    runs (stream)             AAAAAAAA  R     BBBBBBB
                                     ^ previous end  ^ next start

For bounds that can never be wrong, calls of other threads that overlap the record's call are on neither side.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign.model import Trace
from nsysalign.sweep.issue import FAR, LaneOperations


def neighbours(
    trace: Trace, per_lane: dict[int, LaneOperations], lane: np.ndarray, call: np.ndarray
) -> pd.DataFrame:
    """For records given by lane and position in `calls`; one row each:

    previous_end_ns, previous_kind   end and kind of the last-ending operation issued before (0 / -1: none)
    safe_previous_end_ns             the same, over operations whose call had returned before the record's call
    next_start_ns                    first start among the operations issued after (FAR: none)
    safe_next_start_ns               the same, over operations whose call began after the record's call had returned
    next_issue_ns, next_issued_ns, next_kind   call and kind of the operation issued next (FAR / -1: none)
    before                           operations of the lane issued before
    """
    n = len(lane)
    out = {
        "previous_end_ns": np.zeros(n, np.int64),
        "previous_kind": np.full(n, -1, np.int64),
        "safe_previous_end_ns": np.zeros(n, np.int64),
        "next_start_ns": np.full(n, FAR),
        "safe_next_start_ns": np.full(n, FAR),
        "next_issue_ns": np.full(n, FAR),
        "next_issued_ns": np.full(n, FAR),
        "next_kind": np.full(n, -1, np.int64),
        "before": np.zeros(n, np.int64),
        "previous_position": np.full(n, -1, np.int64),
        "next_position": np.full(n, -1, np.int64),
    }
    kind = trace.operations["kind"].to_numpy()
    call_start, call_end = trace.calls["start_ns"].to_numpy(), trace.calls["end_ns"].to_numpy()
    for number, ops in per_lane.items():
        here = np.flatnonzero((lane == number) & (call >= 0))
        if not len(here):
            continue
        c0, c1 = call_start[call[here]], call_end[call[here]]
        k = np.searchsorted(ops.issue_ns, c0)
        out["before"][here] = k
        some, p = here[k > 0], k[k > 0] - 1
        out["previous_end_ns"][some] = ops.reach_ns[p]
        out["previous_position"][some] = ops.position[ops.reach_from[p]]
        out["previous_kind"][some] = kind[ops.position[ops.reach_from[p]]]
        more, q = here[k < len(ops.position)], k[k < len(ops.position)]
        out["next_start_ns"][more] = ops.first_ns[q]
        out["next_issue_ns"][more], out["next_issued_ns"][more] = ops.issue_ns[q], ops.issued_ns[q]
        out["next_position"][more], out["next_kind"][more] = ops.position[q], kind[ops.position[q]]
        safe = np.searchsorted(ops.by_issued_ns, c0, side="right")
        out["safe_previous_end_ns"][here[safe > 0]] = ops.by_issued_reach[safe[safe > 0] - 1]
        safe = np.searchsorted(ops.issue_ns, c1)
        ok = safe < len(ops.position)
        out["safe_next_start_ns"][here[ok]] = ops.first_ns[safe[ok]]
    return pd.DataFrame(out)
