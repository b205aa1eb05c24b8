"""From a trace and an event log to windows: match, find the streams, bound, calibrate, place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.align import bounds, lanes
from nsysalign.align.chain import find_links, settle
from nsysalign.align.clock import ClockMap
from nsysalign.align.latency import Evidence, LatencyModel, calibrate
from nsysalign.align.match import contained, match_processes, match_records
from nsysalign.align.neighbours import FAR, lane_operations, neighbours
from nsysalign.align.place import place_pairs
from nsysalign.model import CALL, KIND, Alignment, EventLog, Trace

#: Bounds that cross by less than this are the two clocks' disagreement, not a contradiction.
_CROSSING_NS = 2_000
_WIDEN, _WIDEN_NS = 1.3, 100


def align(trace: Trace, log: EventLog) -> Alignment:
    """Place every compared pair of the log on the trace's clock.

    Every successful elapsed_time call ends in `windows` or, with the reason, in `unaligned`.
    """
    processes, notes = match_processes(trace, log)
    matched, clocks, more = match_records(trace, log, processes)
    notes += more
    table, operation_lane = lanes.build_lanes(trace)
    records = _records(trace, log, processes, matched)
    waits = _match_waits(trace, log, processes, clocks, lanes.wait_calls(trace, table))
    exact, rows = lanes.lane_of_event_rows(trace, table, records)
    records[["event", "event_sync", "timestamp_ns"]] = rows
    logged = np.flatnonzero(records["log_process"].to_numpy() >= 0)
    from_log = np.full(len(records), -1, dtype=np.int64)
    merged = records.iloc[logged].assign(process_id=records["process"].to_numpy()[logged])
    from_log[logged], more = lanes.lane_of_log(trace, table, operation_lane, log, merged, waits)
    notes += more
    records["lane"] = np.where(exact >= 0, exact, from_log)
    records["lane_exact"] = exact >= 0
    waits["record"] = _awaited(trace, log, waits, records)

    pairs, unaligned = _pairs(log, records)
    per_lane = lane_operations(trace, operation_lane, len(table))
    around = neighbours(trace, per_lane, records["lane"].to_numpy(), records["call"].to_numpy())
    records["stream_key"] = bounds.stream_keys(table, records["lane"].to_numpy())
    lower, upper = bounds.own_bounds(trace, records, around, _asked(log, clocks, records))
    upper = np.minimum(upper, bounds.event_synchronised(trace, records))
    wait_arrays = _wait_arrays(trace, waits)
    upper = np.minimum(upper, bounds.after_waits(wait_arrays, per_lane, len(records)))
    timed = records["timestamp_ns"].to_numpy() > 0
    stamp = records["timestamp_ns"].to_numpy()
    lower, upper = np.where(timed, stamp - bounds.TICK_NS, lower), np.where(timed, stamp + bounds.TICK_NS, upper)
    call_start, call_end = _call_times(trace, records)
    good = _placeable(records, pairs, unaligned, lower, upper)
    start, end, elapsed = (good[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    wide_lower, wide_upper = bounds.propagate(
        lower, upper, lane=np.where(timed, -1, records["lane"].to_numpy()), call_start=call_start, call_end=call_end,
        start=start, end=end, elapsed=elapsed, waits=wait_arrays)
    # with its own timestamp a record needs no help
    lower, upper = np.where(timed, lower, wide_lower), np.where(timed, upper, wide_upper)

    evidence = _evidence(trace, records, around, table, operation_lane, waits, call_start, call_end)
    traced = len(trace.event_rows) > 0
    usable = (records["lane"].to_numpy() >= 0) & (records["call"].to_numpy() >= 0)
    model = _calibrate(evidence, usable, good, traced=traced)
    windows, crossed = _windows(trace, log, records, good, evidence, model, lower, upper)
    records["lower_ns"], records["upper_ns"] = np.minimum(lower, upper), np.maximum(lower, upper)
    records["t_ns"] = _record_places(records, windows, evidence, model, usable)
    unaligned += crossed
    lane = records["lane"].to_numpy()
    records["stream"] = np.where(lane >= 0, table["stream"].to_numpy()[np.maximum(lane, 0)], -1) if len(table) else -1
    return Alignment(
        records=frames.check(records, frames.PLACED_RECORDS), lanes=table, operation_lane=operation_lane,
        wait_calls=waits[["call", "lane", "record", "inferred"]], windows=windows,
        unaligned=_unaligned_frame(unaligned), calibration=_calibration(model, windows, clocks, processes), notes=tuple(notes),
    )


def _records(trace: Trace, log: EventLog, processes: Mapping[int, int], matched: pd.DataFrame) -> pd.DataFrame:
    """The log's records, followed by the trace's record calls that no Python code of the log made."""
    calls = trace.calls
    mine = log.records[["process", "seq", "device", "stream_handle", "stream_id", "captured", "region", "site"]].rename(columns={"process": "log_process"})
    mine = mine.assign(call=matched["call"], thread=matched["thread"])
    mine["process"] = np.array([processes.get(int(p), -1) for p in mine["log_process"]], dtype=np.int64)
    kind = calls["kind"].to_numpy()
    every = np.flatnonzero((kind == CALL["record"]) & (calls["outer"].to_numpy() == np.arange(len(calls))))
    other = np.setdiff1d(every, mine["call"].to_numpy())
    extra = pd.DataFrame({
        "log_process": -1, "seq": -1, "device": -1, "stream_handle": -1, "stream_id": -1, "captured": False, "region": "", "site": "",
        "call": other, "thread": calls["thread"].to_numpy()[other], "process": calls["process"].to_numpy()[other],
    })
    out = pd.concat([mine, extra], ignore_index=True) if len(extra) else mine.reset_index(drop=True)
    call = out["call"].to_numpy()
    have = call >= 0
    out["call_start_ns"] = np.where(have, calls["start_ns"].to_numpy()[np.maximum(call, 0)], 0) if len(calls) else 0
    out["call_end_ns"] = np.where(have, calls["end_ns"].to_numpy()[np.maximum(call, 0)], 0) if len(calls) else 0
    out["problem"] = ""
    captured = out["captured"].astype(bool).to_numpy()
    pid = np.array([(log.headers[int(p)].get("pid") if p >= 0 else None) for p in out["log_process"]], dtype=object)
    absent = (out["process"].to_numpy() < 0) & ~captured
    out.loc[captured, "problem"] = "captured into a CUDA graph"
    out.loc[absent, "problem"] = [f"process {p} has no CUDA rows in the trace" for p in pid[absent]]
    lost = (call < 0) & ~captured & ~absent
    out.loc[lost, "problem"] = "its record call is not in the trace (rows dropped, or recorded outside the profiled time)"
    return out


def _call_times(trace: Trace, records: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    return records["call_start_ns"].to_numpy(), records["call_end_ns"].to_numpy()


def _match_waits(trace: Trace, log: EventLog, processes: Mapping[int, int], clocks: Mapping[int, ClockMap], waits: pd.DataFrame) -> pd.DataFrame:
    """Wait calls of the trace with what the log knows about them: stream_id, log_process, awaited seq (-1 unknown)."""
    waits = waits.assign(stream_id=np.int64(-1), log_process=np.int64(-1), seq=np.int64(-1))
    waits["process_id"] = trace.calls["process"].to_numpy()[waits["call"].to_numpy()] if len(waits) else np.empty(0, np.int64)
    if waits.empty:
        return waits
    thread = trace.calls["thread"].to_numpy()[waits["call"].to_numpy()]
    c0, c1 = (trace.calls[c].to_numpy()[waits["call"].to_numpy()] for c in ("start_ns", "end_ns"))
    for (number, tid), rows in log.waits.groupby(["process", "tid"]):
        if number not in clocks:
            continue
        here = np.flatnonzero(thread == (processes[int(number)] | (int(tid) & 0xFFFFFF)))
        rows = rows.sort_values("t0_ns")
        clock = clocks[int(number)]
        found = contained(clock.to_trace(rows["t0_ns"].to_numpy()), clock.to_trace(rows["t1_ns"].to_numpy()), c0[here], c1[here])
        hit, at = found >= 0, here[np.maximum(found, 0)] if len(here) else found
        for column, value in (("stream_id", rows["stream_id"].to_numpy()), ("seq", rows["record"].to_numpy()), ("log_process", np.full(len(rows), number))):
            values = waits[column].to_numpy().copy()
            values[at[hit]] = value[hit]
            waits[column] = values
    return waits


def _awaited(trace: Trace, log: EventLog, waits: pd.DataFrame, records: pd.DataFrame) -> np.ndarray:
    """Position in `records` of what each wait waits for: by eventSyncId, else by the log, else the last record call of
    the same thread before the wait (then marked inferred).  Adds the column `inferred` to `waits`."""
    out = np.full(len(waits), -1, dtype=np.int64)
    waits["inferred"] = np.zeros(len(waits), dtype=bool)
    if waits.empty:
        return out
    sync = waits["event_sync"].to_numpy()
    rec = records[(records["event_sync"] >= 0) & (records["call"] >= 0)].drop_duplicates(["process", "event_sync"])
    if len(rec) and (sync >= 0).any():
        at = pd.MultiIndex.from_frame(rec[["process", "event_sync"]]).get_indexer(pd.MultiIndex.from_arrays([waits["process_id"].to_numpy(), sync]))
        out = np.where((at >= 0) & (sync >= 0), rec.index.to_numpy()[np.maximum(at, 0)], out)
    by_log = (out < 0) & (waits["seq"].to_numpy() >= 0)
    if by_log.any():
        mine = records[records["log_process"] >= 0].drop_duplicates(["log_process", "seq"])
        at = pd.MultiIndex.from_frame(mine[["log_process", "seq"]]).get_indexer(pd.MultiIndex.from_frame(waits[["log_process", "seq"]]))
        out = np.where(by_log & (at >= 0), mine.index.to_numpy()[np.maximum(at, 0)], out)
    rest = np.flatnonzero(out < 0)
    if len(rest):
        calls = trace.calls
        ordered = records[records["call"] >= 0].sort_values("call_start_ns")
        left = pd.DataFrame({"at": calls["start_ns"].to_numpy()[waits["call"].to_numpy()[rest]], "thread": calls["thread"].to_numpy()[waits["call"].to_numpy()[rest]], "n": rest}).sort_values("at")
        right = pd.DataFrame({"at": ordered["call_start_ns"].to_numpy(), "thread": ordered["thread"].to_numpy(), "record": ordered.index.to_numpy()})
        joined = pd.merge_asof(left, right, on="at", by="thread")
        hit = joined["record"].notna().to_numpy()
        out[joined["n"].to_numpy()[hit]] = joined["record"].to_numpy()[hit].astype(np.int64)
        inferred = waits["inferred"].to_numpy().copy()
        inferred[joined["n"].to_numpy()[hit]] = True
        waits["inferred"] = inferred
    return out


def _wait_arrays(trace: Trace, waits: pd.DataFrame) -> bounds.Waits:
    """Only waits that are known, not inferred: an inferred one is good for a cause, not for a bound."""
    known = waits[(waits["record"] >= 0) & ~waits["inferred"] & (waits["lane"] >= 0)]
    call = known["call"].to_numpy()
    return bounds.Waits(known["record"].to_numpy(), known["lane"].to_numpy(), trace.calls["start_ns"].to_numpy()[call], trace.calls["end_ns"].to_numpy()[call])


def _pairs(log: EventLog, records: pd.DataFrame) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    """elapsed lines as positions in `records`; what cannot be a pair goes to the list with its reason."""
    asked = log.elapsed
    mine = records[records["log_process"] >= 0]
    index = pd.MultiIndex.from_frame(mine[["log_process", "seq"]])
    unique = ~index.duplicated()
    position = mine.index.to_numpy()[unique]

    def find(column: str) -> np.ndarray:
        at = index[unique].get_indexer(pd.MultiIndex.from_arrays([asked["process"].to_numpy(), asked[column].to_numpy()]))
        return np.where(at >= 0, position[np.maximum(at, 0)], -1) if len(position) else np.full(len(asked), -1)

    out = asked.assign(start_seq=asked["start"], end_seq=asked["end"], start=find("start"), end=find("end"))
    out["elapsed_ns"] = np.rint(asked["ms"].fillna(0.0).clip(-1e12, 1e12) * 1e6).astype(np.int64)
    reason = np.full(len(out), "", dtype=object)
    reason[((out["start"] < 0) | (out["end"] < 0)).to_numpy()] = "a record of the pair was not seen by the probe"
    reason[(out["elapsed_ns"] < 0).to_numpy()] = "negative elapsed_time: the end was recorded before the start"
    failed = (out["error"] != "").to_numpy()
    reason[failed] = ("elapsed_time failed: " + out["error"].astype(str)).to_numpy()[failed]
    bad = reason != ""
    unaligned = _reasons(out[bad], records, reason[bad])
    return out[~bad].reset_index(drop=True), unaligned


def _reasons(pairs: pd.DataFrame, records: pd.DataFrame, reasons: np.ndarray) -> list[dict[str, str]]:
    site = records["site"].to_numpy(dtype=object)
    out = []
    for n, (start, end, region, asked_at) in enumerate(pairs[["start", "end", "region", "site"]].itertuples(index=False)):
        at = site[start] if start >= 0 else site[end] if end >= 0 else asked_at
        out.append({"name": region or at or "unnamed", "reason": str(reasons[n]), "site": at})
    return out


def _asked(log: EventLog, clocks: Mapping[int, ClockMap], records: pd.DataFrame) -> np.ndarray:
    """Trace time at which the first successful elapsed_time on each record had returned."""
    out = np.full(len(records), FAR)
    position = {(int(p), int(s)): i for i, (p, s) in enumerate(records[["log_process", "seq"]].itertuples(index=False)) if p >= 0}
    timed = log.elapsed[(log.elapsed["t1_ns"] >= 0) & (log.elapsed["error"] == "")]
    for number, rows in timed.groupby("process"):
        if number not in clocks:
            continue
        at = clocks[int(number)].to_trace(rows["t1_ns"].to_numpy()) + clocks[int(number)].width_ns
        for column in ("start", "end"):
            found = np.array([position.get((int(number), int(s)), -1) for s in rows[column]], dtype=np.int64)
            np.minimum.at(out, found[found >= 0], at[found >= 0])
    return out


def _placeable(records: pd.DataFrame, pairs: pd.DataFrame, unaligned: list[dict[str, str]], lower: np.ndarray, upper: np.ndarray) -> pd.DataFrame:
    """Pairs whose records are in the trace on known streams and whose bounds do not contradict elapsed_time."""
    problem = records["problem"].to_numpy(dtype=object)
    lane = records["lane"].to_numpy()
    timed = records["timestamp_ns"].to_numpy() > 0
    start, end, elapsed = (pairs[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    reason = np.where(problem[start] != "", problem[start], problem[end]) if len(pairs) else np.empty(0, object)
    nowhere = (reason == "") & ((lane[start] < 0) | (lane[end] < 0)) & ~(timed[start] | timed[end])
    reason = np.where(nowhere, "its stream cannot be told from the trace", reason)
    slack = bounds.slack_ns(elapsed)
    low = np.maximum(lower[start], lower[end] - elapsed - slack)
    high = np.minimum(upper[start], np.minimum(upper[end], FAR) - elapsed + slack)
    against = (reason == "") & (low > high + _CROSSING_NS)
    reason = np.where(against, "elapsed_time contradicts the trace: by its neighbours the start lies in an empty range "
                      "(another event under the same name, or a wrong stream)", reason)
    bad = reason != ""
    if bad.any():
        ordinary = bad & ~pairs["calibration"].to_numpy(dtype=bool)
        unaligned += _reasons(pairs[ordinary], records, reason[ordinary])
    return pairs[~bad].reset_index(drop=True)


def _evidence(trace: Trace, records: pd.DataFrame, around: pd.DataFrame, table: pd.DataFrame, operation_lane: np.ndarray,
              waits: pd.DataFrame, call_start: np.ndarray, call_end: np.ndarray) -> Evidence:
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
        call_start=call_start, call_end=call_end, previous_end=previous_end,
        previous_is_copy=np.isin(previous_kind, [KIND["memcpy"], KIND["memset"]]),
        contended=_contended(trace, table, operation_lane, lane, previous_end), behind=np.where(lane >= 0, behind, 0),
        next_start=around["next_start_ns"].to_numpy(), next_issued=around["next_issued_ns"].to_numpy(),
        next_is_kernel=around["next_kind"].to_numpy() == KIND["kernel"], ahead=np.where(lane >= 0, ahead, 0),
        waits=_waits_before(trace, waits, lane, call_start, around),
    )


def _contended(trace: Trace, table: pd.DataFrame, operation_lane: np.ndarray, lane: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Whether kernels of other streams of the device run at `at`."""
    kernel = trace.operations["kind"].to_numpy() == KIND["kernel"]
    start, end = trace.operations["start_ns"].to_numpy(), trace.operations["end_ns"].to_numpy()
    device_of = table["device"].to_numpy() if len(table) else np.empty(0, np.int64)
    out = np.zeros(len(lane), dtype=bool)

    def running(mask: np.ndarray, when: np.ndarray) -> np.ndarray:
        return np.searchsorted(np.sort(start[mask]), when, side="right") - np.searchsorted(np.sort(end[mask]), when, side="right")

    for device in np.unique(device_of):
        here = np.flatnonzero((lane >= 0) & (device_of[np.maximum(lane, 0)] == device)) if len(device_of) else np.empty(0, np.int64)
        if not len(here):
            continue
        others = running(kernel & (device_of[operation_lane] == device), at[here])
        for number in np.unique(lane[here]):
            mine = lane[here] == number
            others[mine] -= running(kernel & (operation_lane == number), at[here][mine])
        out[here] = others > 0
    return out


def _waits_before(trace: Trace, waits: pd.DataFrame, lane: np.ndarray, call_start: np.ndarray, around: pd.DataFrame) -> np.ndarray:
    """Whether a wait was issued to the record's stream after its previous operation."""
    out = np.zeros(len(lane), dtype=bool)
    if waits.empty:
        return out
    calls = trace.calls
    issue = calls["start_ns"].to_numpy()
    previous = around["previous_position"].to_numpy()
    call = trace.operations["call"].to_numpy()
    last_issue = np.where(previous >= 0, issue[np.maximum(call[np.maximum(previous, 0)], 0)], -1) if len(call) else np.full(len(lane), -1)
    for number in np.unique(waits["lane"].to_numpy()):
        if number < 0:
            continue
        at = np.sort(issue[waits["call"].to_numpy()[waits["lane"].to_numpy() == number]])
        here = np.flatnonzero(lane == number)
        k = np.searchsorted(at, call_start[here])
        out[here] = (k > 0) & (np.append(at, 0)[np.maximum(k - 1, 0)] > last_issue[here])
    return out


def _calibrate(evidence: Evidence, usable: np.ndarray, pairs: pd.DataFrame, *, traced: bool) -> LatencyModel:
    use = np.flatnonzero(usable)
    index = np.full(len(usable), -1, dtype=np.int64)
    index[use] = np.arange(len(use))
    start, end = index[pairs["start"].to_numpy()], index[pairs["end"].to_numpy()]
    both = (start >= 0) & (end >= 0)
    return calibrate(evidence.take(use), start[both], end[both], pairs["elapsed_ns"].to_numpy()[both], traced=traced)


def _windows(trace: Trace, log: EventLog, records: pd.DataFrame, pairs: pd.DataFrame, evidence: Evidence, model: LatencyModel,
             lower: np.ndarray, upper: np.ndarray) -> tuple[pd.DataFrame, list[dict[str, str]]]:
    pairs = pairs[~pairs["calibration"].to_numpy(dtype=bool)].reset_index(drop=True)
    start, end, elapsed = (pairs[c].to_numpy() for c in ("start", "end", "elapsed_ns"))
    slack = bounds.slack_ns(elapsed)
    stamp = records["timestamp_ns"].to_numpy()
    low = np.maximum(lower[start], lower[end] - elapsed - slack)
    high = np.minimum(upper[start], np.minimum(upper[end], FAR) - elapsed + slack)
    low, high = np.minimum(low, high), np.maximum(low, high)
    by_start, by_end = stamp[start] > 0, (stamp[start] <= 0) & (stamp[end] > 0)
    low = np.where(by_start, lower[start], low)
    high = np.where(by_start, upper[start], high)
    begin, error = _likeliest(records, evidence, model, start, end, elapsed, low, high)
    begin = np.where(by_start, stamp[start], np.where(by_end, stamp[end] - elapsed, begin))
    error = np.where(by_start, bounds.TICK_NS, np.where(by_end, 500, error))
    low, high = np.minimum(low, begin), np.maximum(high, begin)
    log_record = log.records
    source = start  # positions of the log's records come first in `records`
    out = pd.DataFrame({
        "kind": "event", "log_process": pairs["process"].to_numpy(), "process": records["process"].to_numpy()[start],
        "thread": records["thread"].to_numpy()[start], "end_thread": records["thread"].to_numpy()[end], "start": start, "end": end,
        "start_lane": records["lane"].to_numpy()[start], "end_lane": records["lane"].to_numpy()[end],
        "open_ns": records["call_start_ns"].to_numpy()[start], "close_ns": records["call_start_ns"].to_numpy()[end],
        "close_end_ns": records["call_end_ns"].to_numpy()[end], "elapsed_ns": elapsed, "start_ns": begin, "end_ns": begin + elapsed,
        "start_lower_ns": low, "start_upper_ns": high, "error_ns": error, "method": np.where(by_start | by_end, "event-trace", "bounds"),
        "region": [a or b for a, b in zip(log_record["region"].to_numpy(dtype=object)[source], pairs["region"], strict=True)],
        "site": log_record["site"].to_numpy(dtype=object)[source], "end_site": log_record["site"].to_numpy(dtype=object)[end],
        "callers": log_record["callers"].to_numpy(dtype=object)[source], "library": log_record["library"].to_numpy()[source],
    })
    residual = pd.array(stamp[end] - (begin + elapsed), dtype="Int64")
    residual[~((stamp[start] > 0) & (stamp[end] > 0))] = pd.NA
    out["clock_residual_ns"] = residual
    return frames.check(out, frames.WINDOWS), []


def _likeliest(records: pd.DataFrame, evidence: Evidence, model: LatencyModel, start: np.ndarray, end: np.ndarray, elapsed: np.ndarray,
               low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(start, error bar) of pairs without timestamps: each by itself, then settled with its neighbours."""
    placed = place_pairs(evidence, model, start, end, elapsed, low, high)
    lane = records["lane"].to_numpy()
    likely = np.rint(np.where(model.is_busy(evidence), model.busy_at(evidence), model.idle_at(evidence))).astype(np.int64)
    links = find_links(evidence, model, lane, likely, start, end, elapsed)
    begin, sigma = settle(placed.start_ns, placed.error_ns / 1.96, links)
    begin = np.clip(begin, low, high)
    farthest = np.maximum(np.maximum(begin - low, high - begin), 1)
    # densities learned on one trace are too sure of themselves on another: widen by what the H200 recordings ask for
    return begin, np.minimum(np.ceil(_WIDEN * 1.96 * sigma + _WIDEN_NS).astype(np.int64), farthest)


def _record_places(records: pd.DataFrame, windows: pd.DataFrame, evidence: Evidence, model: LatencyModel, usable: np.ndarray) -> np.ndarray:
    """Likeliest place of every record: its own timestamp, its window's edge, else what its neighbours say."""
    expected = np.rint(np.where(model.is_busy(evidence), model.busy_at(evidence), model.idle_at(evidence))).astype(np.int64)
    t = np.clip(expected, records["lower_ns"], records["upper_ns"]).to_numpy(dtype=np.int64).copy()
    t[windows["end"].to_numpy()] = windows["end_ns"].to_numpy()
    t[windows["start"].to_numpy()] = windows["start_ns"].to_numpy()
    stamp = records["timestamp_ns"].to_numpy()
    known = records["call"].to_numpy() >= 0
    return np.where(stamp > 0, stamp, np.where(known, t, -1))


def _unaligned_frame(rows: list[dict[str, str]]) -> pd.DataFrame:
    return pd.DataFrame({c: pd.Series([r.get(c, "") for r in rows], dtype="str") for c in ("name", "reason", "site")})


def _calibration(model: LatencyModel, windows: pd.DataFrame, clocks: Mapping[int, ClockMap], processes: Mapping[int, int]) -> dict[str, Any]:
    return {
        "latency_ns": {k: round(v, 3) for k, v in model.value.items()},
        "latency_std_ns": dict(zip(model.value, np.sqrt(np.diag(model.covariance)).round(1).tolist(), strict=True)),
        "scale_ns": {k: round(v, 1) for k, v in model.scale.items()},
        "observations": dict(model.counts),
        "clocks": {str((processes[p] >> 24) & 0xFFFFFF): {"source": c.source, "uncertainty_ns": c.width_ns} for p, c in clocks.items()},
    }
