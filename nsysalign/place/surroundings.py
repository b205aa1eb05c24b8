"""What surrounds a record on its stream: the operations issued before and after it, and when they
ran.

    issued (host)    [op A]   [record R]      [op B]
    runs (stream)             AAAAAAAA  R     BBBBBBB
                                     ^ previous end  ^ next start

For bounds that can never be wrong, calls of other threads that overlap the record's call are on
neither side.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysalign.intervals import Columns
from nsysalign.issue_order import FAR, LaneOperations
from nsysalign.model import KIND, Trace

#: CUDA_MEMCPY_KIND: host to device, and back.
_HOST_COPIES = (1, 2)


def neighbours(
    trace: Trace, per_lane: dict[int, LaneOperations], lane: np.ndarray, call: np.ndarray
) -> pd.DataFrame:
    """For records given by lane and position in `calls`; one row each:

    previous_end_ns, previous_kind   end and kind of the last-ending operation issued before (0 / -1)
    previous_position                its position in `operations`, -1 for none
    safe_previous_end_ns             the same, over operations whose call had returned before the
                                     record's call
    next_start_ns                    first start among the operations issued after (FAR: none)
    safe_next_start_ns               the same, over operations whose call began after the record's call
                                     had returned
    next_issued_ns, next_kind        end of the call and kind of the operation issued next (FAR / -1)
    before                           operations of the lane issued before
    """
    n = len(lane)
    out = {
        "previous_end_ns": np.zeros(n, np.int64),
        "previous_kind": np.full(n, -1, np.int64),
        "safe_previous_end_ns": np.zeros(n, np.int64),
        "next_start_ns": np.full(n, FAR),
        "safe_next_start_ns": np.full(n, FAR),
        "next_issued_ns": np.full(n, FAR),
        "next_kind": np.full(n, -1, np.int64),
        "before": np.zeros(n, np.int64),
        "previous_position": np.full(n, -1, np.int64),
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
        out["next_issued_ns"][more] = ops.issued_ns[q]
        out["next_kind"][more] = kind[ops.position[q]]
        safe = np.searchsorted(ops.by_issued_ns, c0, side="right")
        out["safe_previous_end_ns"][here[safe > 0]] = ops.by_issued_reach[safe[safe > 0] - 1]
        safe = np.searchsorted(ops.issue_ns, c1)
        ok = safe < len(ops.position)
        out["safe_next_start_ns"][here[ok]] = ops.first_ns[safe[ok]]
    return pd.DataFrame(out)


@dataclass(frozen=True)
class Surroundings(Columns):
    """Per record (arrays of equal length); times in trace ns, 0 / FAR if there is none."""

    call_start: np.ndarray
    call_end: np.ndarray
    previous_end: np.ndarray
    previous_is_copy: np.ndarray
    previous_is_graph: np.ndarray
    previous_is_node: np.ndarray  # of a graph that was traced node by node
    copying: np.ndarray  # a copy to or from the host is under way on another stream
    behind: np.ndarray  # records of this stream between the previous operation and this one
    next_start: np.ndarray
    next_issued: np.ndarray
    next_is_kernel: np.ndarray
    ahead: np.ndarray  # records of this stream between this one and the next operation
    waits: np.ndarray  # a stream wait lies between the previous operation and the record
    held: np.ndarray  # a stream wait lies between the record and the next operation
    stamp: np.ndarray  # CUPTI's timestamp


def gather(
    trace: Trace,
    records: pd.DataFrame,
    around: pd.DataFrame,
    lanes: pd.DataFrame,
    operation_lane: np.ndarray,
    waits: pd.DataFrame,
) -> Surroundings:
    """Surroundings for every record (rows of `records`, neighbours in `around`, wait calls in
    `waits`)."""
    call_start, call_end = records["call_start_ns"].to_numpy(), records["call_end_ns"].to_numpy()
    lane = records["lane"].to_numpy()
    key = pd.DataFrame({"lane": lane, "before": around["before"].to_numpy(), "at": call_start})
    order = key.sort_values(["lane", "before", "at"], kind="stable").index.to_numpy()
    group = key.iloc[order].groupby(["lane", "before"], sort=False)
    behind, ahead = np.zeros(len(key), np.int64), np.zeros(len(key), np.int64)
    behind[order] = group.cumcount().to_numpy()
    ahead[order] = group.cumcount(ascending=False).to_numpy()
    previous_kind = around["previous_kind"].to_numpy()
    previous = around["previous_position"].to_numpy()
    node = np.append(trace.operations["graph_node"].to_numpy(), -1)[previous]
    issue = trace.calls["start_ns"].to_numpy()
    issuer = np.append(trace.operations["call"].to_numpy(), -1)[previous]
    since = np.append(issue, -1)[issuer]

    def waits_between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Whether a wait of the record's stream was issued after `low` and before `high`."""
        out = np.zeros(len(lane), dtype=bool)
        on, issued = waits["lane"].to_numpy(), issue[waits["call"].to_numpy()]
        for number in np.intersect1d(on[on >= 0], lane):
            times, here = np.sort(issued[on == number]), np.flatnonzero(lane == number)
            after = np.searchsorted(times, low[here], side="right")
            out[here] = np.searchsorted(times, high[here]) > after
        return out

    return Surroundings(
        call_start=call_start,
        call_end=call_end,
        previous_end=around["previous_end_ns"].to_numpy(),
        previous_is_copy=np.isin(previous_kind, [KIND["memcpy"], KIND["memset"]]),
        previous_is_graph=previous_kind == KIND["graph"],
        previous_is_node=node >= 0,
        copying=_copying(trace, lanes, operation_lane, lane, call_start),
        behind=np.where(lane >= 0, behind, 0),
        next_start=around["next_start_ns"].to_numpy(),
        next_issued=around["next_issued_ns"].to_numpy(),
        next_is_kernel=around["next_kind"].to_numpy() == KIND["kernel"],
        ahead=np.where(lane >= 0, ahead, 0),
        waits=waits_between(since, call_start),
        held=waits_between(call_start, around["next_issued_ns"].to_numpy()),
        stamp=records["timestamp_ns"].to_numpy(),
    )


def _copying(
    trace: Trace, table: pd.DataFrame, operation_lane: np.ndarray, lane: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Whether a copy to or from the host on another stream of the device was issued before `at` and
    had not ended."""
    operations, issue = trace.operations, trace.calls["start_ns"].to_numpy()
    host = (operations["kind"].to_numpy() == KIND["memcpy"]) & (
        np.isin(operations["copy_kind"], _HOST_COPIES)
    )
    copy = np.flatnonzero(host & (operations["call"].to_numpy() >= 0))
    on, device = operation_lane[copy], table["device"].to_numpy()
    begin, end = issue[operations["call"].to_numpy()[copy]], operations["end_ns"].to_numpy()[copy]
    out = np.zeros(len(lane), dtype=np.int64)

    def add(copies: np.ndarray, here: np.ndarray, sign: int) -> None:
        begun = np.searchsorted(np.sort(begin[copies]), at[here], side="right")
        out[here] += sign * (begun - np.searchsorted(np.sort(end[copies]), at[here], side="right"))

    for number in np.unique(device[on]):
        add(device[on] == number, (lane >= 0) & (device[np.maximum(lane, 0)] == number), 1)
    for number in np.intersect1d(on, lane):
        add(on == number, lane == number, -1)  # those of its own stream
    return out > 0
