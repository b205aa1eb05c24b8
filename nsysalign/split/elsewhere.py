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
    ran nothing; 0 for those that are no pairs of events.

    intervals: their numbers

    own stream     [ KKKK                 )
    another          [   AAAA   )      |  its end record waits for A: A counts where no K runs
    a third                [ BBBB        its end does not wait for B: B does not count
    """
    out = np.zeros(len(intervals), np.int64)
    pairs = _pairs(split, intervals)
    if not len(pairs):
        return out
    windows = split.alignment.windows
    number = intervals[pairs["place"]]
    end_lane = windows["end_lane"].to_numpy()[number]
    closed = windows["close_ns"].to_numpy()[number]
    order = StreamOrder(split.explainer)
    pairs = pairs[order.ordered(end_lane, closed, pairs["lane"].to_numpy())]
    start_ns = split.trace.operations["start_ns"].to_numpy()
    end_ns = split.trace.operations["end_ns"].to_numpy()
    for place, rows in pairs.groupby("place"):
        window = windows.iloc[intervals[place]]
        positions = np.concatenate([_computing(split, *issued) for issued in rows["issued"]])
        # what of them lies in the window, as one set of times
        low = np.clip(start_ns[positions], window["start_ns"], window["end_ns"])
        high = np.clip(end_ns[positions], window["start_ns"], window["end_ns"])
        inside = high > low
        begin, end = union(low[inside], high[inside])
        blocks = split.explainer.streams.blocks(int(window["end_lane"]))
        own_ns = covered(blocks.start, blocks.end, end) - covered(blocks.start, blocks.end, begin)
        out[place] = int((end - begin - own_ns).sum())
    return out


def _pairs(split: SplitTrace, intervals: np.ndarray) -> pd.DataFrame:
    """Return a row for each interval (`place`: its position) and other lane on which it issued work; issued:
    (the lane's operations in the order in which they were issued, the first of them, behind the last).
    An operation whose call is not known was issued in none."""
    explainer, windows = split.explainer, split.alignment.windows.iloc[intervals]
    opened, closed = (windows[c].to_numpy() for c in ("open_ns", "close_ns"))
    event = (windows["kind"] == "event").to_numpy()
    process = split.alignment.lanes["process"].to_numpy()
    rows = []
    for lane, operations in explainer.per_lane.items():
        near = event & (windows["process"].to_numpy() == process[lane])
        near &= windows["end_lane"].to_numpy() != lane
        places = np.flatnonzero(near)
        if not len(places):
            continue
        issue = operations.times.call_start_ns
        first = np.searchsorted(issue, opened[places])
        stop = np.searchsorted(issue, closed[places])
        rows += [
            (place, lane, (operations.position, low, high))
            for place, low, high in zip(places, first, stop, strict=True)
            if high > low
        ]
    return pd.DataFrame(rows, columns=["place", "lane", "issued"])


def _computing(split: SplitTrace, operations: np.ndarray, first: int, stop: int) -> np.ndarray:
    """Of these operations of a lane the kernels and graphs, without NCCL's kernels."""
    table = split.trace.operations
    positions = operations[first:stop]
    kind, name = (table[c].to_numpy()[positions] for c in ("kind", "name_id"))
    numbers = np.unique(name).tolist()
    shared = [n for n in numbers if NCCL_KERNEL.search(split.trace.names.get(n, ""))]
    computes = (kind == KIND["graph"]) | ((kind == KIND["kernel"]) & ~np.isin(name, shared))
    return positions[computes]
