"""An nsys SQLite export as a `Trace`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.errors import TraceError
from nsysalign.model import CALL, Trace, TraceInfo
from nsysalign.trace import schema
from nsysalign.trace.sqlite import Source, open_readonly

PROCESS_MASK = ~np.int64(0xFFFFFF)


def pid_of(process: np.ndarray | int) -> np.ndarray | int:
    """Process id inside a globalPid or globalTid."""
    return (process >> 24) & 0xFFFFFF


def tid_of(thread: np.ndarray | int) -> np.ndarray | int:
    """Linux thread id (24 bits) inside a globalTid."""
    return thread & 0xFFFFFF


def read_trace(path: Path) -> Trace:
    """Read what alignment and attribution need.  TraceError where the trace has no CUDA activity at all."""
    with open_readonly(path) as connection:
        source = Source(connection)
        names = source.strings()
        calls, bad_calls = _calls(source, names)
        operations, bad_operations = _operations(source, calls)
        syncs = _syncs(source, calls)
        for name_id in calls["name_id"].unique().tolist():  # as documentation has them: without _v7000
            if name_id in names:
                names[name_id] = schema.api_name(names[name_id])
        contexts = source.read(schema.CONTEXT)
        notes = [
            *_diagnostics(source),
            *_dropped("CUDA API calls", bad_calls),
            *_dropped("operations", bad_operations),
        ]
        trace = Trace(
            info=_info(path, source, notes),
            operations=operations,
            calls=calls,
            syncs=syncs,
            event_rows=_event_rows(source),
            ranges=_ranges(source, names),
            marks=_marks(source, names),
            streams=_streams(source, operations, contexts),
            overhead=_overhead(source),
            os_calls=_os_calls(source),
            names=names,
        )
    if calls.empty and operations.empty:
        raise TraceError(
            f"{path.name} holds no CUDA activity: no API calls, no kernels, no copies",
            "profile with nsys profile -t cuda,nvtx ..., and check that the program reaches the GPU",
        )
    return trace


def _dropped(what: str, count: int) -> list[str]:
    return (
        [f"{count} {what} with impossible times (absent, zero or end before start) were left out"]
        if count
        else []
    )


def _possible(frame: pd.DataFrame) -> np.ndarray:
    """Rows whose times can be: what the profiler lost comes as start = end = 0, as end < start or as NULL (-1)."""
    start, end = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    return (end >= start) & ~((start == 0) & (end == 0)) & (start != -1) & (end != -1)


def _calls(source: Source, names: dict[int, str]) -> tuple[pd.DataFrame, int]:
    frame = source.read(schema.RUNTIME)
    if frame is None:
        return frames.empty(frames.CALLS), 0
    ok = _possible(frame)
    frame = frame[ok].sort_values(
        ["start_ns", "end_ns", "row"], ascending=[True, False, True], ignore_index=True
    )
    frame["process"] = frame["thread"].to_numpy() & PROCESS_MASK
    ids, inverse = np.unique(frame["name_id"].to_numpy(), return_inverse=True)
    kinds = np.array([schema.call_kind(names.get(int(i), "")) for i in ids], dtype=np.int8)
    frame["kind"] = kinds[inverse] if len(ids) else np.empty(0, np.int8)
    frame["outer"] = outermost(
        frame["thread"].to_numpy(), frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
    )
    return frames.check(frame, frames.CALLS), int((~ok).sum())


def outermost(thread: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For calls sorted by (start, -end): position of the outermost call that contains each on its thread.

    thread 1   [ cudaLaunchKernel          ]
                   [ cuLaunchKernel  ]          -> both answer cudaLaunchKernel
    """
    outer = np.arange(len(start), dtype=np.int64)
    order = np.argsort(thread, kind="stable")
    for positions in np.split(order, np.flatnonzero(np.diff(thread[order])) + 1) if len(order) else []:
        reach = np.maximum.accumulate(end[positions])
        # a call begins outside of all earlier ones when nothing before it reaches past its start
        outside = np.ones(len(positions), dtype=bool)
        outside[1:] = start[positions][1:] >= reach[:-1]
        outer[positions] = positions[np.maximum.accumulate(np.where(outside, np.arange(len(positions)), 0))]
    return outer


def _operations(source: Source, calls: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    tables, bad = [], 0
    for kind, table in enumerate(schema.OPERATION_TABLES):
        frame = source.read(table)
        if frame is None or frame.empty:
            continue
        ok = _possible(frame)
        bad += int((~ok).sum())
        frame = frame[ok].assign(kind=np.int8(kind))
        for column, default in (
            ("name_id", -1),
            ("bytes", 0),
            ("copy_kind", -1),
            ("src_kind", -1),
            ("dst_kind", -1),
            ("graph_node", -1),
            *((f"{what}_{axis}", 0) for what in ("grid", "block") for axis in "xyz"),
        ):
            if column not in frame:
                frame[column] = np.int64(default)
        tables.append(frame)
    if not tables:
        return frames.empty(frames.OPERATIONS), bad
    frame = pd.concat(tables, ignore_index=True).sort_values(
        ["start_ns", "end_ns", "kind", "row"], ignore_index=True
    )
    if (frame["process"] < 0).any():  # exports before globalPid: one process, or nothing can be joined
        processes = calls["process"].unique()
        if len(processes) == 1:
            frame.loc[frame["process"] < 0, "process"] = processes[0]
    frame["call"] = _issuing_call(frame, calls)
    return frames.check(frame, frames.OPERATIONS), bad


def _join(
    calls: pd.DataFrame, process: np.ndarray, correlation: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """Positions in `calls` (restricted to `candidates`) with the same process and correlation id, -1 for none.

    Where several calls carry the id (corrupt or merged exports) the first one is taken.
    """
    position = np.flatnonzero(candidates)
    keys = pd.MultiIndex.from_arrays(
        [calls["process"].to_numpy()[position], calls["correlation"].to_numpy()[position]]
    )
    first = ~keys.duplicated()
    found = keys[first].get_indexer(pd.MultiIndex.from_arrays([process, correlation]))
    return (
        np.where((found >= 0) & (correlation >= 0), position[first][found], -1)
        if len(position)
        else np.full(len(process), -1)
    )


def _issuing_call(operations: pd.DataFrame, calls: pd.DataFrame) -> np.ndarray:
    process, correlation = operations["process"].to_numpy(), operations["correlation"].to_numpy()
    kind = calls["kind"].to_numpy()
    issuing = np.isin(kind, [CALL[k] for k in ("launch", "graph_launch", "memcpy", "memset")])
    call = _join(calls, process, correlation, issuing)
    rest = call < 0  # operations issued by calls of other names (prefetch, library internals)
    if rest.any():
        call[rest] = _join(calls, process[rest], correlation[rest], ~issuing)
    # a kernel cannot start before the call that issues it: a join that says so is a reused correlation id
    start = calls["start_ns"].to_numpy()
    wrong = (
        (call >= 0) & (operations["start_ns"].to_numpy() < start[np.maximum(call, 0)] - 100_000)
        if len(calls)
        else call >= 0
    )
    call[wrong] = -1
    return np.where(call >= 0, calls["outer"].to_numpy()[np.maximum(call, 0)], -1) if len(calls) else call


def _no_id(values: pd.Series) -> np.ndarray:
    raw = values.to_numpy()
    return np.where((raw == schema.NO_ID) | (raw < 0), -1, raw)


def _syncs(source: Source, calls: pd.DataFrame) -> pd.DataFrame:
    frame = source.read(schema.SYNCHRONIZATION)
    if frame is None:
        return frames.empty(frames.SYNCS)
    frame = frame.assign(
        stream=_no_id(frame["stream"]), event=_no_id(frame["event"]), event_sync=_no_id(frame["event_sync"])
    )
    kind = calls["kind"].to_numpy()
    waiting = np.isin(
        kind,
        [
            CALL[k]
            for k in (
                "sync_device",
                "sync_stream",
                "sync_event",
                "query_event",
                "query_stream",
                "wait_event",
                "memcpy",
            )
        ],
    )
    frame["call"] = _join(calls, frame["process"].to_numpy(), frame["correlation"].to_numpy(), waiting)
    return frames.check(frame, frames.SYNCS)


def _event_rows(source: Source) -> pd.DataFrame:
    frame = source.read(schema.CUDA_EVENT)
    if frame is None:
        return frames.empty(frames.EVENT_ROWS)
    return frames.check(frame.assign(event_sync=_no_id(frame["event_sync"])), frames.EVENT_ROWS)


def _texts(source: Source, table: schema.Table, frame: pd.DataFrame, names: dict[int, str]) -> list[str]:
    inline = source.texts(table.name, "text", table.where)
    return [
        inline.get(row) or names.get(text, "")
        for row, text in zip(frame["row"].tolist(), frame["text_id"].tolist(), strict=True)
    ]


def _ranges(source: Source, names: dict[int, str]) -> pd.DataFrame:
    frame = source.read(schema.NVTX)
    if frame is None or frame.empty:
        return frames.empty(frames.RANGES)
    frame["text"] = _texts(source, schema.NVTX, frame, names)
    frame["process"] = frame["thread"].to_numpy() & PROCESS_MASK
    last = int(max(frame["end_ns"].max(), frame["start_ns"].max()))
    frame["end_ns"] = np.where(frame["end_ns"] < frame["start_ns"], last, frame["end_ns"])  # never closed
    return frames.check(frame.sort_values(["start_ns", "row"], ignore_index=True), frames.RANGES)


def _marks(source: Source, names: dict[int, str]) -> pd.DataFrame:
    frame = source.read(schema.NVTX_MARKS)
    if frame is None or frame.empty:
        return frames.empty(frames.MARKS)
    text = pd.Series(_texts(source, schema.NVTX_MARKS, frame, names), index=frame.index, dtype=object)
    frame = frame[text.astype(str).str.startswith("nsysalign").to_numpy()].copy()
    frame["process"] = frame["thread"].to_numpy() & PROCESS_MASK
    return frames.check(frame, frames.MARKS)


def _streams(source: Source, operations: pd.DataFrame, contexts: pd.DataFrame | None) -> pd.DataFrame:
    frame = source.read(schema.STREAM)
    if frame is None:
        return frames.empty(frames.STREAMS)
    processes = np.unique(operations["process"].to_numpy())
    by_pid = {int(pid_of(p)): int(p) for p in processes}
    frame["process"] = np.array([by_pid.get(p, -1) for p in frame["pid"].tolist()], dtype=np.int64)
    frame["device"] = np.int64(-1)
    if contexts is not None and len(contexts):
        device = {(p, c): d for p, c, d in contexts[["pid", "context", "device"]].itertuples(index=False)}
        keys = zip(frame["pid"].tolist(), frame["context"].tolist(), strict=True)
        frame["device"] = np.array([device.get(k, -1) for k in keys], dtype=np.int64)
    return frames.check(frame.drop_duplicates(["process", "context", "stream"]), frames.STREAMS)


def _overhead(source: Source) -> pd.DataFrame:
    frame = source.read(schema.OVERHEAD)
    if frame is None:
        return frames.empty(frames.OVERHEAD)
    frame = frame[_possible(frame)].assign(process=lambda f: f["thread"].to_numpy() & PROCESS_MASK)
    return frames.check(frame, frames.OVERHEAD)


def _os_calls(source: Source) -> pd.DataFrame:
    frame = source.read(schema.OSRT)
    if frame is None:
        return frames.empty(frames.OS_CALLS)
    return frames.check(frame[_possible(frame)].sort_values("start_ns", ignore_index=True), frames.OS_CALLS)


def _diagnostics(source: Source) -> list[str]:
    """What the profiler itself says about losses."""
    texts = [
        t
        for severity, t in source.pairs("DIAGNOSTIC_EVENT", "severity", "text")
        if severity is not None and severity >= 2
    ]
    keep = ("have been collected", "dropped", "lost", "incompatible", "permission")
    return sorted({" ".join(str(t).split())[:200] for t in texts if any(k in str(t).lower() for k in keep)})


def _info(path: Path, source: Source, notes: list[str]) -> TraceInfo:
    meta = next(
        (dict(source.pairs(t, "name", "value")) for t in schema.META_TABLES if t in source.tables), {}
    )
    environment = source.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")
    driver = next((str(v) for k, v in environment if k == "NvDriverVersion"), None)
    epoch = source.pairs("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "utcEpochNs")
    devices = [str(v) for _, v in source.pairs("TARGET_INFO_GPU", "name", "name")]
    return TraceInfo(
        path=path.name,
        nsys_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema_version=meta.get("EXPORT_SCHEMA_VERSION"),
        devices=tuple(devices),
        driver_version=driver,
        session_start_utc_ns=int(epoch[0][0]) if epoch and epoch[0][0] else None,
        missing=tuple(
            f"{table}: {cost}" for table, cost in schema.COST.items() if table not in source.tables
        ),
        notes=tuple(notes),
    )
