"""What surrounds a record on its stream: the operations issued before and after it, and when they ran.

    issued (host)    [op A]   [record R]      [op B]
    runs (stream)             AAAAAAAA  R     BBBBBBB
                                     ^ previous end  ^ next start

"Issued" goes by the start of the API calls of the same process.  For bounds that can never be wrong, calls of other
threads that overlap the record's call are on neither side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign.model import Trace

FAR = np.int64(1) << 62  # no such time


@dataclass(frozen=True)
class LaneOperations:
    """The operations of one lane, ordered by issue."""

    position: np.ndarray  # in Trace.operations
    issue_ns: np.ndarray  # start of the issuing call
    issued_ns: np.ndarray  # its end
    start_ns: np.ndarray
    end_ns: np.ndarray
    reach_ns: np.ndarray  # prefix maximum of end_ns
    reach_from: np.ndarray  # which one that was
    first_ns: np.ndarray  # suffix minimum of start_ns
    by_issued_ns: np.ndarray  # issued_ns sorted, and the prefix maximum of end in that order
    by_issued_reach: np.ndarray


def lane_operations(trace: Trace, operation_lane: np.ndarray, lane_count: int) -> dict[int, LaneOperations]:
    """Per lane, the operations whose issuing call is known.  Those without a call are on no side of anything."""
    operations, calls = trace.operations, trace.calls
    call = operations["call"].to_numpy()
    known = np.flatnonzero(call >= 0)
    call_start, call_end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    start, end = operations["start_ns"].to_numpy(), operations["end_ns"].to_numpy()
    issue = np.zeros(len(operations), dtype=np.int64)
    issue[known] = call_start[call[known]]
    order = known[np.lexsort((start[known], issue[known], operation_lane[known]))]
    out = {}
    cuts = np.flatnonzero(np.diff(operation_lane[order])) + 1
    for position in np.split(order, cuts) if len(order) else []:
        s, e, c = start[position], end[position], call[position]
        reach = np.maximum.accumulate(e)
        new = np.concatenate([[True], reach[1:] > reach[:-1]])
        by_issued = np.argsort(call_end[c], kind="stable")
        out[int(operation_lane[position[0]])] = LaneOperations(
            position=position, issue_ns=call_start[c], issued_ns=call_end[c], start_ns=s, end_ns=e, reach_ns=reach,
            reach_from=np.maximum.accumulate(np.where(new, np.arange(len(position)), 0)),
            first_ns=np.minimum.accumulate(s[::-1])[::-1],
            by_issued_ns=call_end[c][by_issued], by_issued_reach=np.maximum.accumulate(e[by_issued]),
        )
    return out


def neighbours(trace: Trace, per_lane: dict[int, LaneOperations], lane: np.ndarray, call: np.ndarray) -> pd.DataFrame:
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
        "previous_end_ns": np.zeros(n, np.int64), "previous_kind": np.full(n, -1, np.int64), "safe_previous_end_ns": np.zeros(n, np.int64),
        "next_start_ns": np.full(n, FAR), "safe_next_start_ns": np.full(n, FAR), "next_issue_ns": np.full(n, FAR),
        "next_issued_ns": np.full(n, FAR), "next_kind": np.full(n, -1, np.int64), "before": np.zeros(n, np.int64),
        "previous_position": np.full(n, -1, np.int64), "next_position": np.full(n, -1, np.int64),
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
