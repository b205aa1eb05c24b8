"""The operations of each stream in the order in which they were issued.

    issued (host)    [op A]     [op B]        [op C]
    runs (stream)       AAAAAAAA   BBBB          CC

"Issued" goes by the start of the outermost API call of the same process, not by correlation id.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
            position=position,
            issue_ns=call_start[c],
            issued_ns=call_end[c],
            start_ns=s,
            end_ns=e,
            reach_ns=reach,
            reach_from=np.maximum.accumulate(np.where(new, np.arange(len(position)), 0)),
            first_ns=np.minimum.accumulate(s[::-1])[::-1],
            by_issued_ns=call_end[c][by_issued],
            by_issued_reach=np.maximum.accumulate(e[by_issued]),
        )
    return out
