"""What each record's surroundings say about its place, gathered for the latency model."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign.align.latency import Evidence
from nsysalign.model import KIND, Trace
from nsysalign.sweep.tiles import distinct


def gather(
    trace: Trace,
    records: pd.DataFrame,
    around: pd.DataFrame,
    lanes: pd.DataFrame,
    operation_lane: np.ndarray,
    waits: pd.DataFrame,
) -> Evidence:
    """Evidence for every record (rows of `records`, neighbours in `around`, wait calls in `waits`)."""
    call_start, call_end = records["call_start_ns"].to_numpy(), records["call_end_ns"].to_numpy()
    lane = records["lane"].to_numpy()
    key = pd.DataFrame({"lane": lane, "before": around["before"].to_numpy(), "at": call_start})
    order = key.sort_values(["lane", "before", "at"], kind="stable").index.to_numpy()
    group = key.iloc[order].groupby(["lane", "before"], sort=False)
    behind, ahead = np.zeros(len(key), np.int64), np.zeros(len(key), np.int64)
    behind[order] = group.cumcount().to_numpy()
    ahead[order] = group.cumcount(ascending=False).to_numpy()
    previous_end = around["previous_end_ns"].to_numpy()
    previous_kind = around["previous_kind"].to_numpy()
    return Evidence(
        call_start=call_start,
        call_end=call_end,
        previous_end=previous_end,
        previous_is_copy=np.isin(previous_kind, [KIND["memcpy"], KIND["memset"]]),
        contended=_contended(trace, lanes, operation_lane, lane, previous_end),
        behind=np.where(lane >= 0, behind, 0),
        next_start=around["next_start_ns"].to_numpy(),
        next_issued=around["next_issued_ns"].to_numpy(),
        next_is_kernel=around["next_kind"].to_numpy() == KIND["kernel"],
        ahead=np.where(lane >= 0, ahead, 0),
        waits=_waits_before(trace, waits, lane, call_start, around),
    )


def _contended(
    trace: Trace, table: pd.DataFrame, operation_lane: np.ndarray, lane: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """Whether kernels of other streams of the device run at `at`."""
    kernel = trace.operations["kind"].to_numpy() == KIND["kernel"]
    start, end = trace.operations["start_ns"].to_numpy(), trace.operations["end_ns"].to_numpy()
    device_of = table["device"].to_numpy() if len(table) else np.empty(0, np.int64)
    out = np.zeros(len(lane), dtype=bool)

    def running(mask: np.ndarray, when: np.ndarray) -> np.ndarray:
        begun, over = start[mask], np.sort(end[mask], kind="stable")  # operations are sorted by start
        return np.searchsorted(begun, when, side="right") - np.searchsorted(over, when, side="right")

    busy = set(distinct(operation_lane if kernel.all() else operation_lane[kernel]).tolist())
    for device in np.unique(device_of):
        here = (
            np.flatnonzero((lane >= 0) & (device_of[np.maximum(lane, 0)] == device))
            if len(device_of)
            else np.empty(0, np.int64)
        )
        if not len(here):
            continue
        lanes_here = set(np.flatnonzero(device_of == device).tolist()) & busy
        if lanes_here <= {number for number in distinct(lane[here]).tolist()} and len(lanes_here) == 1:
            continue  # the only stream of the device that ever runs a kernel
        others = running(kernel & (device_of[operation_lane] == device), at[here])
        for number in np.unique(lane[here]):
            mine = lane[here] == number
            others[mine] -= running(kernel & (operation_lane == number), at[here][mine])
        out[here] = others > 0
    return out


def _waits_before(
    trace: Trace, waits: pd.DataFrame, lane: np.ndarray, call_start: np.ndarray, around: pd.DataFrame
) -> np.ndarray:
    """Whether a wait was issued to the record's stream after its previous operation."""
    out = np.zeros(len(lane), dtype=bool)
    if waits.empty:
        return out
    calls = trace.calls
    issue = calls["start_ns"].to_numpy()
    previous = around["previous_position"].to_numpy()
    call = trace.operations["call"].to_numpy()
    last_issue = (
        np.where(previous >= 0, issue[np.maximum(call[np.maximum(previous, 0)], 0)], -1)
        if len(call)
        else np.full(len(lane), -1)
    )
    for number in np.unique(waits["lane"].to_numpy()):
        if number < 0:
            continue
        at = np.sort(issue[waits["call"].to_numpy()[waits["lane"].to_numpy() == number]])
        here = np.flatnonzero(lane == number)
        k = np.searchsorted(at, call_start[here])
        out[here] = (k > 0) & (np.append(at, 0)[np.maximum(k - 1, 0)] > last_issue[here])
    return out
