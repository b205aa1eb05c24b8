"""Bounds on where a record lies that hold whatever the latencies are.

    t(R) >= start of R's call; end of every operation issued to the stream before R
    t(R) <= start of every operation issued to the stream after R; end of a successful synchronisation of the device or
            stream; the end of elapsed_time on R

What is ordered after a wait on R, and synchronisations of its event, bound it as well, but hardly ever more narrowly: they
moved no place and no error bar of 15,757 pairs.  A compared pair is subject to the bounds of both records: t(end) - t(start) = elapsed, within the clocks' slack.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign.align.streams import stream_lane
from nsysalign.model import CALL, Trace
from nsysalign.sweep.issue import FAR

TICK_NS = 32  # the event clock of an H200 ticks every 32 ns
#: CUPTI corrects its clock from time to time: in the recordings, GPU timestamps and elapsed_time differ by up to 6 us.
CLOCK_STEP_NS = 8_000
#: elapsed_time counts ticks of the GPU's own clock, the trace those of the host: their rates differ by parts per million.
CLOCK_RATE = 20e-6


def slack_ns(elapsed_ns: np.ndarray) -> np.ndarray:
    """How far t(end) - t(start) on the trace may be from elapsed_time: one tick, a float32 ulp, clock corrections."""
    ulp = np.spacing((np.maximum(elapsed_ns, 1) / 1e6).astype(np.float32)).astype(float) * 1e6
    return np.ceil(TICK_NS + ulp + CLOCK_STEP_NS + CLOCK_RATE * elapsed_ns).astype(np.int64)


def of_starts(
    lower: np.ndarray,
    upper: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    elapsed_ns: np.ndarray,
    slack: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of the starts of pairs, given by the positions of their records, from those of both records.  `slack`: how far their
    distance on the trace may be from elapsed_time."""
    slack = slack_ns(elapsed_ns) if slack is None else slack
    low = np.maximum(lower[start], lower[end] - elapsed_ns - slack)
    return low, np.minimum(upper[start], np.minimum(upper[end], FAR) - elapsed_ns + slack)


def own_bounds(
    trace: Trace, lanes: pd.DataFrame, records: pd.DataFrame, around: pd.DataFrame, asked_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds that follow from a record's own neighbours and synchronisations.

    `records`: columns call, call_start_ns, call_end_ns, process, lane.  `asked_ns`: trace time by which elapsed_time on it had
    returned (FAR if unknown).
    """
    known = records["call"].to_numpy() >= 0
    c0, c1 = records["call_start_ns"].to_numpy(), records["call_end_ns"].to_numpy()
    lower = np.maximum(c0, around["safe_previous_end_ns"].to_numpy())
    upper = np.minimum(around["safe_next_start_ns"].to_numpy(), asked_ns)
    calls = trace.calls
    kind, ok = calls["kind"].to_numpy(), calls["return_value"].to_numpy() == 0
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    device = np.flatnonzero((kind == CALL["sync_device"]) & ok)
    by_process = calls["process"].to_numpy()[device]
    upper = np.minimum(
        upper, _first_after(by_process, start[device], end[device], records["process"].to_numpy(), c1)
    )
    syncs = trace.syncs[trace.syncs["call"] >= 0]
    call = syncs["call"].to_numpy()
    lane = stream_lane(lanes, syncs)
    stream = (lane >= 0) & (kind[call] == CALL["sync_stream"]) & ok[call]
    upper = np.minimum(
        upper,
        _first_after(lane[stream], start[call[stream]], end[call[stream]], records["lane"].to_numpy(), c1),
    )
    return np.where(known, lower, 0), np.where(known, upper, FAR)


def _first_after(
    key: np.ndarray, start: np.ndarray, end: np.ndarray, mine: np.ndarray, c1: np.ndarray
) -> np.ndarray:
    """Per record (key `mine`): the earliest end among the calls with its key that began after c1; FAR if there is none."""
    out = np.full(len(mine), FAR)
    for value in np.intersect1d(np.unique(key), np.unique(mine)):
        these = np.flatnonzero(key == value)
        these = these[np.argsort(start[these], kind="stable")]
        least = np.append(np.minimum.accumulate(end[these][::-1])[::-1], FAR)
        here = np.flatnonzero(mine == value)
        out[here] = least[np.searchsorted(start[these], c1[here])]
    return out
