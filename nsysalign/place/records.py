"""Records, waits and pairs of the event log as positions in the trace."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nsysalign.model import CALL, ORIGIN, EventLog, Trace
from nsysalign.place.host_clock import ClockMap, contained
from nsysalign.place.match import Lookup, of_thread
from nsysalign.windows import Unplaced, unplaced


def build_records(
    trace: Trace, log: EventLog, processes: Mapping[int, int], matched: pd.DataFrame
) -> pd.DataFrame:
    """The log's records, followed by the trace's record calls that no Python code of the log
    made."""
    calls = trace.calls
    mine = log.records[
        ["process", "seq", "device", "stream_handle", "stream_id", "captured", "region", "site"]
    ].rename(columns={"process": "log_process"})
    mine = mine.assign(call=matched["call"], thread=matched["thread"])
    mine["process"] = np.array(
        [processes.get(int(p), -1) for p in mine["log_process"]], dtype=np.int64
    )
    kind = calls["kind"].to_numpy()
    every = np.flatnonzero(
        (kind == CALL["record"]) & (calls["outer"].to_numpy() == np.arange(len(calls)))
    )
    other = np.setdiff1d(every, mine["call"].to_numpy())
    more = {"call": other} | {c: calls[c].to_numpy()[other] for c in ("thread", "process")}
    none = {
        c: "" if c in ("region", "site") else False if c == "captured" else -1 for c in mine.columns
    }
    extra = pd.DataFrame(none | more, index=range(len(other)))
    out = pd.concat([mine, extra], ignore_index=True) if len(extra) else mine.reset_index(drop=True)
    call = out["call"].to_numpy()
    for edge in ("start_ns", "end_ns"):
        out[f"call_{edge}"] = np.where(call >= 0, np.append(calls[edge].to_numpy(), 0)[call], 0)
    out["problem"] = ""
    captured = out["captured"].astype(bool).to_numpy()
    pid = np.array(
        [(log.headers[int(p)].get("pid") if p >= 0 else None) for p in out["log_process"]],
        dtype=object,
    )
    absent = (out["process"].to_numpy() < 0) & ~captured
    out.loc[captured, "problem"] = "captured into a CUDA graph"
    out.loc[absent, "problem"] = [f"process {p} has no CUDA rows in the trace" for p in pid[absent]]
    lost = (call < 0) & ~captured & ~absent
    out.loc[lost, "problem"] = (
        "its record call is not in the trace (rows dropped, or recorded outside the profiled time)"
    )
    nobody = np.append(log.records["tid"].to_numpy(), np.zeros(len(extra), np.int64)) < 0
    out.loc[lost & nobody, "problem"] = (
        "its record call is not in the trace, or the record names no thread (tid) and several recorded then"
    )
    for number, header in enumerate(log.headers):
        if header.get("ended") == "killed":
            out.loc[lost & (out["log_process"].to_numpy() == number), "problem"] = (
                f"process {header.get('pid')} was killed, crashed or executed another program "
                "before its rows were written"
            )
    return out


def match_waits(
    trace: Trace,
    log: EventLog,
    processes: Mapping[int, int],
    clocks: Mapping[int, ClockMap],
    waits: pd.DataFrame,
) -> pd.DataFrame:
    """Wait calls of the trace with what the log says about them: stream_id, log_process, awaited
    seq (-1 unknown)."""
    waits = waits.assign(stream_id=np.int64(-1), log_process=np.int64(-1), seq=np.int64(-1))
    waits["process_id"] = (
        trace.calls["process"].to_numpy()[waits["call"].to_numpy()]
        if len(waits)
        else np.empty(0, np.int64)
    )
    if waits.empty:
        return waits
    thread = trace.calls["thread"].to_numpy()[waits["call"].to_numpy()]
    c0, c1 = (trace.calls[c].to_numpy()[waits["call"].to_numpy()] for c in ("start_ns", "end_ns"))
    for (number, tid), rows in log.waits.groupby(["process", "tid"]):
        if number not in clocks:
            continue
        here = of_thread(thread, processes[int(number)], int(tid))
        rows = rows.sort_values("t0_ns")
        clock = clocks[int(number)]
        found = contained(
            clock.to_trace(rows["t0_ns"].to_numpy()),
            clock.to_trace(rows["t1_ns"].to_numpy()),
            c0[here],
            c1[here],
        )
        hit, at = found >= 0, here[np.maximum(found, 0)] if len(here) else found
        for column, value in (
            ("stream_id", rows["stream_id"].to_numpy()),
            ("seq", rows["record"].to_numpy()),
            ("log_process", np.full(len(rows), number)),
        ):
            values = waits[column].to_numpy().copy()
            values[at[hit]] = value[hit]
            waits[column] = values
    return waits


def awaited(trace: Trace, waits: pd.DataFrame, records: pd.DataFrame) -> np.ndarray:
    """Position in `records` of what each wait waits for: by eventSyncId, else by the log, else the
    latest record of the same event before the wait, else the last record call of the same thread
    (both marked inferred: CUDA_EVENT rows may be missing).  Adds the column `inferred` to `waits`.

    The event's number is needed where one thread records many events and then waits for each: DDP's
    reducer does.
    """
    out = np.full(len(waits), -1, dtype=np.int64)
    waits["inferred"] = np.zeros(len(waits), dtype=bool)
    if waits.empty:
        return out
    sync = waits["event_sync"].to_numpy()
    rec = records[(records["event_sync"] >= 0) & (records["call"] >= 0)].drop_duplicates(
        ["process", "event_sync"]
    )
    if len(rec) and (sync >= 0).any():
        at = pd.MultiIndex.from_frame(rec[["process", "event_sync"]]).get_indexer(
            pd.MultiIndex.from_arrays([waits["process_id"].to_numpy(), sync])
        )
        out = np.where((at >= 0) & (sync >= 0), rec.index.to_numpy()[np.maximum(at, 0)], out)
    by_log = (out < 0) & (waits["seq"].to_numpy() >= 0)
    if by_log.any():
        mine = records[records["log_process"] >= 0].drop_duplicates(["log_process", "seq"])
        at = pd.MultiIndex.from_frame(mine[["log_process", "seq"]]).get_indexer(
            pd.MultiIndex.from_frame(waits[["log_process", "seq"]])
        )
        out = np.where(by_log & (at >= 0), mine.index.to_numpy()[np.maximum(at, 0)], out)
    unsure = out < 0
    calls = trace.calls
    made = records[records["call"] >= 0].sort_values("call_start_ns")
    asked = pd.DataFrame(
        {
            "at": calls["start_ns"].to_numpy()[waits["call"].to_numpy()],
            "process": waits["process_id"].to_numpy(),
            "event": waits["event"].to_numpy(),
            "thread": calls["thread"].to_numpy()[waits["call"].to_numpy()],
            "n": np.arange(len(waits)),
        }
    )
    asked, answers = asked[unsure], made.rename(columns={"call_start_ns": "at"})
    for by, left, right in (
        (["process", "event"], asked[asked["event"] >= 0], answers[answers["event"] >= 0]),
        (["thread"], asked, answers),
    ):
        left = left[out[left["n"].to_numpy()] < 0].sort_values("at")
        right = right[["at", *by]].assign(record=right.index.to_numpy())
        joined = pd.merge_asof(left[["at", *by, "n"]], right, on="at", by=by)
        hit = joined["record"].notna().to_numpy()
        out[joined["n"].to_numpy()[hit]] = joined["record"].to_numpy()[hit].astype(np.int64)
    waits["inferred"] = unsure & (out >= 0)
    return out


def compared_pairs(log: EventLog, records: pd.DataFrame) -> tuple[pd.DataFrame, list[Unplaced]]:
    """elapsed lines as positions in `records`; lines that cannot be a pair are listed with their
    reason."""
    asked = log.elapsed
    mine = records[
        records["log_process"] >= 0
    ]  # the log's come first: positions in `mine` are positions here
    find = Lookup(mine["log_process"].to_numpy(), mine["seq"].to_numpy())
    out = asked.assign(
        start_seq=asked["start"],
        end_seq=asked["end"],
        start=find(asked, "start"),
        end=find(asked, "end"),
        source=asked.index.to_numpy(),
    )
    out["elapsed_ns"] = np.rint(asked["ms"].fillna(0.0).clip(-1e12, 1e12) * 1e6).astype(np.int64)
    reason = np.full(len(out), "", dtype=object)
    reason[((out["start"] < 0) | (out["end"] < 0)).to_numpy()] = (
        "a record of the pair was not seen by the probe"
    )
    reason[(out["elapsed_ns"] < 0).to_numpy()] = (
        "negative elapsed_time: the end was recorded before the start"
    )
    failed = (out["error"] != "").to_numpy()
    reason[failed] = ("elapsed_time failed: " + out["error"].astype(str)).to_numpy()[failed]
    bad = reason != ""
    unaligned = reasons(out[bad], records, reason[bad])
    return out[~bad].reset_index(drop=True), unaligned


def reasons(pairs: pd.DataFrame, records: pd.DataFrame, reasons: np.ndarray) -> list[Unplaced]:
    site = records["site"].to_numpy(dtype=object)
    out = []
    for n, (start, end, region, asked_at, source) in enumerate(
        pairs[["start", "end", "region", "site", "source"]].itertuples(index=False)
    ):
        at = site[start] if start >= 0 else site[end] if end >= 0 else asked_at
        out.append(unplaced(region or at or "unnamed", str(reasons[n]), at, ORIGIN["pair"], source))
    return out
