"""For how long the GPU worked for an interval on other streams than its own.

    end's stream 7   |start [A )                     |end      waits for 13 and 14 before its end
    stream 13               [B........)
    stream 14                    [C...........)
                            |--- counts -------|                from B's begin to C's end: a union, whatever the CPU did

What the interval launched itself and its end is ordered behind counts, where its own stream ran nothing:
kernels and graphs but NCCL's, which also wait for other ranks.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign.intervals import covered, union
from nsysalign.model import KIND
from nsysalign.split.budget import SplitTrace
from nsysalign.split.order import StreamOrder
from nsysalign.trace.nccl import NCCL_KERNEL


def elsewhere_ns(split: SplitTrace, intervals: np.ndarray) -> np.ndarray:
    """Return, per interval, for how long (int64 ns) the GPU worked for it on other streams while its own
    ran nothing; 0 for those that are no pairs of events.  Kernels and graphs count that the interval issued itself and
    that its end record waits for; copies do not, nor do NCCL's kernels, which also wait for other ranks.

    intervals: their numbers

    own stream     [ KKKK                 )
    another          [   AAAA   )      |  its end record waits for A: A counts where no K runs
    a third                [ BBBB        its end does not wait for B: B does not count
    """
    out = np.zeros(len(intervals), np.int64)
    issued = _issued_elsewhere(split, intervals)
    if issued.empty:
        return out
    windows = split.alignment.windows
    interval_of_row = intervals[issued["position"]]
    end_lane = windows["end_lane"].to_numpy()[interval_of_row]
    closed = windows["close_ns"].to_numpy()[interval_of_row]
    order = StreamOrder(split.explainer)
    is_waited_for = order.ordered(end_lane, closed, issued["lane"].to_numpy())
    for position, rows in issued[is_waited_for].groupby("position"):
        operations = np.concatenate(rows["operations"].tolist())
        kernels = _kernels_and_graphs(split, operations)
        out[position] = _worked_ns(split, intervals[position], kernels)
    return out


def _worked_ns(split: SplitTrace, interval: int, operations: np.ndarray) -> int:
    """Return for how long (ns) at least one of these operations ran in an interval while its own stream ran nothing.

    operations: their positions
    """
    window = split.alignment.windows.iloc[interval]
    start_ns = split.trace.operations["start_ns"].to_numpy()[operations]
    end_ns = split.trace.operations["end_ns"].to_numpy()[operations]
    # what of them lies in the window, as one set of times
    low = np.clip(start_ns, window["start_ns"], window["end_ns"])
    high = np.clip(end_ns, window["start_ns"], window["end_ns"])
    inside = high > low
    begin, end = union(low[inside], high[inside])
    # without the time in which the interval's stream worked
    blocks = split.explainer.streams.blocks(int(window["end_lane"]))
    by_stream = covered(blocks.start, blocks.end, end) - covered(blocks.start, blocks.end, begin)
    return int((end - begin - by_stream).sum())


def _issued_elsewhere(split: SplitTrace, intervals: np.ndarray) -> pd.DataFrame:
    """Return the work that pairs of events issued on other lanes than their own: a row for each interval and such lane,
    with the columns position (where the interval stands in `intervals`), lane, and operations (the positions of those
    that were issued to the lane between the calls of the interval's records).

    An operation whose call is not known was issued in none.
    """
    explainer = split.explainer
    windows = split.alignment.windows.iloc[intervals]
    # when the calls of the start record and of the end record began
    opened = windows["open_ns"].to_numpy()
    closed = windows["close_ns"].to_numpy()
    is_pair = (windows["kind"] == "event").to_numpy()
    process = split.alignment.lanes["process"].to_numpy()
    rows = []
    for lane, operations in explainer.per_lane.items():
        elsewhere = is_pair & (windows["process"].to_numpy() == process[lane])
        elsewhere &= windows["end_lane"].to_numpy() != lane
        positions = np.flatnonzero(elsewhere)
        if not len(positions):
            continue
        issue = operations.times.call_start_ns
        first = np.searchsorted(issue, opened[positions])
        stop = np.searchsorted(issue, closed[positions])
        rows += [
            (position, lane, operations.position[low:high])
            for position, low, high in zip(positions, first, stop, strict=True)
            if high > low
        ]
    return pd.DataFrame(rows, columns=["position", "lane", "operations"])


def _kernels_and_graphs(split: SplitTrace, operations: np.ndarray) -> np.ndarray:
    """Return those of these operations that are kernels or graphs, but not NCCL's kernels.

    operations: their positions; so is the result
    """
    table = split.trace.operations
    kind = table["kind"].to_numpy()[operations]
    name = table["name_id"].to_numpy()[operations]
    of_nccl = [
        number
        for number in np.unique(name).tolist()
        if NCCL_KERNEL.search(split.trace.names.get(number, ""))
    ]
    is_kernel = (kind == KIND["kernel"]) & ~np.isin(name, of_nccl)
    return operations[(kind == KIND["graph"]) | is_kernel]
