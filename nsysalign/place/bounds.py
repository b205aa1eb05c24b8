"""Bounds on where a record lies that hold whatever the latencies are.

    t(R) >= start of R's call; end of every operation issued to the stream before R t(R) <= start of
    every operation issued to the stream after R; end of a successful synchronisation or query that
            covers R; the end of elapsed_time on R

What is ordered after a wait on R bounds it as well, but hardly ever more narrowly: it moved no
place and no error bar of 15,757 pairs.  A compared pair is subject to the bounds of both records:
t(end) - t(start) = elapsed, within the clocks' slack.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from nsysalign.issue_order import FAR
from nsysalign.model import CALL, Trace
from nsysalign.place.streams import stream_lane

TICK_NS = 32  # the event clock of an H200 ticks every 32 ns
#: CUPTI corrects its clock from time to time: in the recordings, GPU timestamps and elapsed_time
#: differ by up to 6 us.
CLOCK_STEP_NS = 8_000
#: elapsed_time counts ticks of the GPU's own clock, the trace those of the host: their rates differ
#: by parts per million.
CLOCK_RATE = 20e-6


def slack_ns(elapsed_ns: np.ndarray) -> np.ndarray:
    """How far t(end) - t(start) on the trace may be from elapsed_time: one tick, a float32 ulp,
    clock corrections."""
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
    """Bounds of the starts of pairs, given by the positions of their records, from those of both
    records.  `slack`: how far their distance on the trace may be from elapsed_time."""
    slack = slack_ns(elapsed_ns) if slack is None else slack
    low = np.maximum(lower[start], lower[end] - elapsed_ns - slack)
    return low, np.minimum(upper[start], np.minimum(upper[end], FAR) - elapsed_ns + slack)


def own_bounds(
    trace: Trace,
    lanes: pd.DataFrame,
    records: pd.DataFrame,
    around: pd.DataFrame,
    asked_ns: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds that follow from a record's own neighbours and synchronisations.

    `records`: columns call, call_start_ns, call_end_ns, process, lane.  `asked_ns`: trace time by
    which elapsed_time on it had returned (FAR if unknown).
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
        upper,
        _first_after(by_process, start[device], end[device], records["process"].to_numpy(), c1),
    )
    syncs = trace.syncs[trace.syncs["call"] >= 0]
    call = syncs["call"].to_numpy()
    lane = stream_lane(lanes, syncs)
    stream = (lane >= 0) & (kind[call] == CALL["sync_stream"]) & ok[call]
    upper = np.minimum(
        upper,
        _first_after(
            lane[stream], start[call[stream]], end[call[stream]], records["lane"].to_numpy(), c1
        ),
    )
    return np.where(known, lower, 0), np.where(known, upper, FAR)


def _first_after(
    key: np.ndarray, start: np.ndarray, end: np.ndarray, mine: np.ndarray, c1: np.ndarray
) -> np.ndarray:
    """Per record (key `mine`): the earliest end among the calls with its key that began after c1;
    FAR if there is none."""
    out = np.full(len(mine), FAR)
    for value in np.intersect1d(np.unique(key), np.unique(mine)):
        these = np.flatnonzero(key == value)
        these = these[np.argsort(start[these], kind="stable")]
        least = np.append(np.minimum.accumulate(end[these][::-1])[::-1], FAR)
        here = np.flatnonzero(mine == value)
        out[here] = least[np.searchsorted(start[these], c1[here])]
    return out


def event_synchronised(trace: Trace, records: pd.DataFrame) -> np.ndarray:
    """Per record: end of the first successful event synchronisation or query of its event before
    that event is recorded again; FAR if there is none."""
    call = first_asked(trace, records, ("sync_event", "query_event"))
    return np.append(trace.calls["end_ns"].to_numpy(), FAR)[call]


def first_asked(trace: Trace, records: pd.DataFrame, kinds: Sequence[str]) -> np.ndarray:
    """Per record whose event is known: the first successful call of these kinds on its event before
    that is recorded again; -1 for none."""
    out = np.full(len(records), -1, dtype=np.int64)
    calls, syncs = trace.calls, trace.syncs
    event = records["event"].to_numpy()
    have = np.flatnonzero((event >= 0) & (records["call"].to_numpy() >= 0))
    good = syncs[(syncs["call"] >= 0) & (syncs["event"] >= 0)]
    call = good["call"].to_numpy()
    good = good[
        np.isin(calls["kind"].to_numpy()[call], [CALL[kind] for kind in kinds])
        & (calls["return_value"].to_numpy()[call] == 0)
    ]
    if not len(have) or good.empty:
        return out
    begun = calls["start_ns"].to_numpy()
    right = good[["process", "event", "call"]].assign(at=begun[good["call"].to_numpy()])
    recorded = calls["end_ns"].to_numpy()[records["call"].to_numpy()[have]]
    left = pd.DataFrame(
        {
            "process": records["process"].to_numpy()[have],
            "event": event[have],
            "at": recorded,
            "position": have,
        }
    ).sort_values("at")
    left["again"] = left.groupby(["process", "event"])["at"].shift(-1, fill_value=int(FAR))
    joined = pd.merge_asof(
        left, right.sort_values("at"), on="at", by=["process", "event"], direction="forward"
    )
    asked = joined["call"].fillna(-1).to_numpy().astype(np.int64)
    asked = np.where(np.append(begun, FAR)[asked] < joined["again"].to_numpy(), asked, -1)
    out[joined["position"].to_numpy()] = asked
    return out
