"""An nsys SQLite export as a `Trace`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.errors import TraceError
from nsysalign.memory import give_back
from nsysalign.model import CALL, Trace, TraceInfo, pid_of
from nsysalign.private import without_paths
from nsysalign.sweep.tiles import distinct, one_of
from nsysalign.trace import schema
from nsysalign.trace.gathered import chosen
from nsysalign.trace.index import Excerpt
from nsysalign.trace.sqlite import Source, open_readonly, possible

LOST_CALLS, LOST_OPERATIONS = "CUDA API calls", "operations"
MARK = "nsysalign"  # how texts of the harness's own marks and ranges begin
PROCESS_MASK = ~np.int64(0xFFFFFF)
_AT_ONCE = 1 << 18
_MOST_INT32 = np.iinfo(np.int32).max


def read_trace(path: Path, excerpt: Excerpt | None = None) -> Trace:
    """Read what alignment and attribution need, of the whole trace or of some stretches of it.  TraceError where the trace
    has no CUDA activity at all."""
    with open_readonly(path) as connection:
        source = Source(connection, path, excerpt)
        names = source.strings()
        tables = schema.OPERATION_TABLES
        if schema.RUNTIME.name in source.tables and not schema.launches_graphs(names.values()):
            tables = tuple(map(schema.without_graphs, tables))
        runtime, *work = source.columns_of(schema.RUNTIME, *tables)
        calls, bad_calls = _calls(runtime, names)
        del runtime
        operations, bad_operations = _operations(work, calls)
        del work
        give_back()
        syncs = _syncs(source, calls)
        ids = distinct(calls["name_id"].to_numpy()).tolist()
        for name_id in ids:  # as documentation has them: without _v7000
            if name_id in names:
                names[name_id] = schema.api_name(names[name_id])
        contexts = source.read(schema.CONTEXT)
        if excerpt is not None:
            bad_calls = source.lost.get(schema.RUNTIME.name, 0)
            bad_operations = sum(source.lost.get(t.name, 0) for t in schema.OPERATION_TABLES)
        lost = {LOST_CALLS: bad_calls, LOST_OPERATIONS: bad_operations}
        trace = Trace(
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
            info=_info(path, source, lost if excerpt is None else {}),
            lost=lost,
            blocks=source.observed,
            shapes=partial(_shapes, path),
        )
        if excerpt is None:
            _refuse_without_calls(path, source, calls, operations)
    return trace


def read_header(path: Path) -> tuple[TraceInfo, pd.DataFrame]:
    """What an export says of itself, and the probe's marks (`frames.MARKS`): without looking at what happened."""
    with open_readonly(path) as connection:
        source = Source(connection, path)
        marks = _marks(source, source.strings())
        return _info(path, source, {}), marks


def _refuse_without_calls(path: Path, source: Source, calls: pd.DataFrame, operations: pd.DataFrame) -> None:
    """TraceError where what every answer needs is not there: the host's calls, and what they are called."""
    if calls.empty and operations.empty:
        raise TraceError(
            f"{path.name} holds no CUDA activity: no API calls, no kernels, no copies",
            "profile with nsys profile -t cuda,nvtx ..., and check that the program reaches the GPU",
        )
    if schema.RUNTIME.name not in source.tables:
        raise TraceError(
            f"{path.name} holds no CUDA API calls ({schema.RUNTIME.name} is absent): nothing says when work was issued",
            "profile with nsys profile -t cuda,nvtx ... from the program's start",
        )
    if not {"id", "value"} <= source.columns("StringIds"):
        raise TraceError(
            f"{path.name} holds no names of its API calls (StringIds is absent): launches and copies look alike",
            "export the report again: nsys export --type sqlite REPORT.nsys-rep",
        )


def _shapes(path: Path, rows: np.ndarray) -> np.ndarray:
    """Grid and block (x, y, z) of kernels by rowid: int64 array (kernels, 6), 0 where the trace does not say."""
    if not len(rows):
        return np.empty((0, 6), np.int64)
    with open_readonly(path) as connection:
        frame = Source(connection, path).read_rows(schema.KERNEL_SHAPE, rows)
    out = np.zeros((len(rows), 6), np.int64)
    found = frame["row"].searchsorted(rows)
    known = found < len(frame)
    known[known] = frame["row"].to_numpy()[found[known]] == rows[known]
    out[known] = frame[[f.name for f in schema.KERNEL_SHAPE.fields]].to_numpy()[found[known]]
    return out


def lost_notes(lost: Mapping[str, int]) -> list[str]:
    """What is said of rows that cannot be used (`Trace.lost`)."""
    return [
        f"{count} {what} with impossible times (absent, zero or end before start) were left out"
        for what, count in lost.items()
        if count
    ]


def _cut(source: Source) -> list[str]:
    count = source.cut()
    return [f"{count} names of more than 16 KB lost their end"] if count else []


def _possible(table: Mapping[str, np.ndarray] | pd.DataFrame) -> np.ndarray:
    return possible(np.asarray(table["start_ns"]), np.asarray(table["end_ns"]))


def _in_order(
    columns: dict[str, np.ndarray],
    then: Callable[[dict[str, np.ndarray], np.ndarray], tuple[np.ndarray, ...]],
) -> dict[str, np.ndarray]:
    """The table sorted by its start, then by the keys that `then(columns, rows)` gives.  nsys writes rows nearly in this
    order: looking is cheap."""
    start = columns["start_ns"]
    if (start[1:] > start[:-1]).all():
        return columns
    order = np.argsort(start, kind="stable")
    same = start[order][1:] == start[order][:-1]
    if same.any():  # only the rows that begin together need their other keys
        tied = np.zeros(len(start), dtype=bool)
        tied[1:] |= same
        tied[:-1] |= same
        rows = order[tied]
        order[tied] = rows[np.lexsort((*reversed(then(columns, rows)), start[rows]))]
    return chosen(columns, order)


def _calls(columns: dict[str, np.ndarray] | None, names: dict[int, str]) -> tuple[pd.DataFrame, int]:
    if columns is None:
        return frames.empty(frames.CALLS), 0
    ok = _possible(columns)
    bad = int((~ok).sum())
    if bad:
        columns = chosen(columns, ok)
    columns = _in_order(columns, lambda of, rows: (-of["end_ns"][rows], of["row"][rows]))
    columns["process"] = _each(columns["thread"], lambda thread: thread & PROCESS_MASK)
    ids = distinct(columns["name_id"])
    kinds = np.array([schema.call_kind(names.get(int(i), "")) for i in ids], dtype=np.int8)
    columns["kind"] = _each(
        columns["name_id"], lambda name: _pieced(name, np.int8, lambda n: kinds[np.searchsorted(ids, n)])
    )
    columns["outer"] = outermost(columns["thread"], columns["start_ns"], columns["end_ns"])
    return frames.check_narrow(pd.DataFrame(columns, copy=False), frames.CALLS), bad


def _pieced(values: np.ndarray, dtype: type, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """function(values), some rows at a time: what it makes on the way stays small."""
    out = np.empty(len(values), dtype)
    for first in range(0, len(values), _AT_ONCE):
        out[first : first + _AT_ONCE] = function(values[first : first + _AT_ONCE])
    return out


def _each(values: np.ndarray, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """function(values), once for a column of one value."""
    if len(values) and not any(values.strides):
        return np.broadcast_to(function(values[:1])[0], len(values))
    return function(values)


def outermost(thread: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For calls sorted by (start, -end): position of the outermost call that contains each on its thread.

    thread 1   [ cudaLaunchKernel          ]
                   [ cuLaunchKernel  ]          -> both answer cudaLaunchKernel
    """
    outer = np.arange(len(start), dtype=np.int32 if len(start) < _MOST_INT32 else np.int64)
    for positions in _by_value(thread):
        reach = np.maximum.accumulate(end[positions])
        # a call begins outside of all earlier ones when nothing before it reaches past its start
        inside = np.flatnonzero(start[positions][1:] < reach[:-1]) + 1
        if not len(inside):
            continue
        first = np.arange(len(reach))
        first[inside] = 0
        outer[positions] = np.arange(len(start))[positions][np.maximum.accumulate(first)]
    return outer


def _by_value(values: np.ndarray) -> list[np.ndarray | slice]:
    """Positions of each value, in order; all of them as a slice where there is only one."""
    if not len(values):
        return []
    if not any(values.strides) or (values == values[0]).all():
        return [slice(None)]
    order = np.argsort(values, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1)


def _operations(
    tables: Sequence[dict[str, np.ndarray] | None], calls: pd.DataFrame
) -> tuple[pd.DataFrame, int]:
    parts, bad = [], 0
    for kind, columns in enumerate(tables):
        if columns is None or not len(columns["row"]):
            continue
        ok = _possible(columns)
        if not ok.all():
            bad += int((~ok).sum())
            columns = chosen(columns, ok)
        parts.append(columns | {"kind": np.broadcast_to(np.int8(kind), len(columns["row"]))})
    if not parts:
        return frames.empty(frames.OPERATIONS), bad
    absent = {"name_id": -1, "bytes": 0, "copy_kind": -1, "src_kind": -1, "dst_kind": -1, "graph_node": -1}
    names = list(dict.fromkeys([name for part in parts for name in part] + list(absent)))
    whole = {
        name: _stacked([p.get(name, absent.get(name)) for p in parts], [len(p["row"]) for p in parts])
        for name in names
    }
    del parts
    whole = _in_order(whole, lambda of, rows: (of["end_ns"][rows], of["kind"][rows], of["row"][rows]))
    unknown = whole["process"] < 0
    if unknown.any():  # exports before globalPid: one process, or nothing can be joined
        processes = distinct(calls["process"].to_numpy())
        if len(processes) == 1:
            whole["process"] = np.where(unknown, processes[0], whole["process"])
    whole["call"] = _issuing_call(whole, calls)
    return frames.check_narrow(pd.DataFrame(whole, copy=False), frames.OPERATIONS), bad


def _stacked(parts: Sequence[np.ndarray | int], counts: Sequence[int]) -> np.ndarray:
    """Columns one below the other (a number stands for a column of it), as narrow as they are."""
    full = [
        np.broadcast_to(np.int64(p), n) if isinstance(p, int) else p
        for p, n in zip(parts, counts, strict=True)
    ]
    full = [p for p in full if len(p)] or full[:1]
    if all(not any(p.strides) and p[0] == full[0][0] for p in full):
        return np.broadcast_to(full[0][0], sum(counts))
    narrow = any(p.dtype == np.int32 for p in full)  # never times: those are int64 throughout
    return np.concatenate([p.astype(np.int32) if narrow and _constant32(p) else p for p in full])


def _constant32(values: np.ndarray) -> bool:
    info = np.iinfo(np.int32)
    return values.dtype == np.int64 and not any(values.strides) and info.min <= values[0] <= info.max


def _join(
    calls: pd.DataFrame, process: np.ndarray, correlation: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """Positions in `calls` (restricted to `candidates`) with the same process and correlation id, -1 for none.

    Where several calls carry the id (corrupt or merged exports) the first one is taken.
    """
    position = np.flatnonzero(candidates).astype(np.int32 if len(calls) < _MOST_INT32 else np.int64)
    out = np.full(len(process), -1, dtype=np.int32 if len(calls) < _MOST_INT32 else np.int64)
    if not len(position) or not len(process):
        return out
    theirs, ids = calls["process"].to_numpy(), calls["correlation"].to_numpy()[position]
    theirs = chosen({"": theirs}, position)[""]
    for mine in _by_value(process):
        of_process = theirs == process[mine][0]
        which = position if of_process.all() else position[of_process]
        look_up = _by_id(ids if of_process.all() else ids[of_process], which)
        out[mine] = _pieced(correlation[mine], out.dtype, look_up)
    return out


def _by_id(ids: np.ndarray, position: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Function of wanted ids: position[k] of the first ids[k] that equals each, -1 for none and for ids below 0."""
    if not len(ids):
        return lambda wanted: np.full(len(wanted), -1)
    if not (ids[1:] > ids[:-1]).all():  # the profiler numbers calls as they come, but a thread may be late
        order = np.argsort(ids, kind="stable")
        order = order[np.concatenate([[True], ids[order][1:] > ids[order][:-1]])]
        ids, position = ids[order], position[order]

    def look_up(wanted: np.ndarray) -> np.ndarray:
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where((ids[at] == wanted) & (wanted >= 0), position[at], -1)

    return look_up


def _issuing_call(operations: Mapping[str, np.ndarray], calls: pd.DataFrame) -> np.ndarray:
    process, correlation = operations["process"], operations["correlation"]
    kind = calls["kind"].to_numpy()
    issuing = one_of(kind, [CALL[k] for k in ("launch", "graph_launch", "memcpy", "memset")])
    call = _join(calls, process, correlation, issuing)
    rest = call < 0  # operations issued by calls of other names (prefetch, library internals)
    if rest.any():
        call[rest] = _join(calls, process[rest], correlation[rest], ~issuing)
    if not len(calls):
        return call
    # a kernel cannot start before the call that issues it: a join that says so is a reused correlation id
    start, outer = calls["start_ns"].to_numpy(), calls["outer"].to_numpy()
    for first in range(0, len(call), _AT_ONCE):
        here = call[first : first + _AT_ONCE]
        here[operations["start_ns"][first : first + _AT_ONCE] < start[here] - 100_000] = -1
        here[here >= 0] = outer[here[here >= 0]]
    return call


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
    waiting = one_of(
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
    if source.excerpt is not None:
        last = max(last, source.excerpt.last_range_ns)
    frame["end_ns"] = np.where(frame["end_ns"] < frame["start_ns"], last, frame["end_ns"])  # never closed
    return frames.check(frame.sort_values(["start_ns", "row"], ignore_index=True), frames.RANGES)


def _marks(source: Source, names: dict[int, str]) -> pd.DataFrame:
    """Of the whole trace, whatever part of it is read: they join the clocks."""
    source = Source(source.connection)
    frame = source.read(schema.NVTX_MARKS)
    if frame is None or frame.empty:
        return frames.empty(frames.MARKS)
    text = pd.Series(_texts(source, schema.NVTX_MARKS, frame, names), index=frame.index, dtype=object)
    frame = frame[text.astype(str).str.startswith(MARK).to_numpy()].copy()
    frame["process"] = frame["thread"].to_numpy() & PROCESS_MASK
    return frames.check(frame, frames.MARKS)


def _streams(source: Source, operations: pd.DataFrame, contexts: pd.DataFrame | None) -> pd.DataFrame:
    frame = source.read(schema.STREAM)
    if frame is None:
        return frames.empty(frames.STREAMS)
    processes = distinct(operations["process"].to_numpy())
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


def kept_diagnostic(severity: object, text: object) -> bool:
    """Whether a row of DIAGNOSTIC_EVENT says that something was lost."""
    keep = ("have been collected", "dropped", "lost", "incompatible", "permission")
    return isinstance(severity, int) and severity >= 2 and any(k in str(text).lower() for k in keep)


def _diagnostics(source: Source) -> list[str]:
    """What the profiler itself says about losses."""
    rows = source.pairs("DIAGNOSTIC_EVENT", "severity", "text")
    texts = {without_paths(str(text)) for severity, text in rows if kept_diagnostic(severity, text)}
    return sorted({" ".join(text.split())[:200] for text in texts})


def _newer(version: object) -> list[str]:
    """A note where the export's schema came after this was written."""
    found = tuple(int(n) for n in re.findall(r"\d{1,9}", str(version or ""))[:2])
    if found <= schema.NEWEST:
        return []
    newest = ".".join(map(str, schema.NEWEST))
    return [
        f"schema {str(version)[:40]} is newer than {newest}, the newest that this nsysalign knows: what was renamed since is "
        "not seen"
    ]


def _info(path: Path, source: Source, lost: Mapping[str, int]) -> TraceInfo:
    meta = next(
        (source.pairs(t, "name", "value") for t in schema.META_TABLES if t in source.tables), []
    )
    meta = {str(name): str(value) for name, value in meta if value is not None}
    environment = source.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")
    driver = next((str(v) for k, v in environment if k == "NvDriverVersion"), None)
    epoch = source.pairs("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "utcEpochNs")
    devices = [str(v) for _, v in source.pairs("TARGET_INFO_GPU", "name", "name")]
    notes = [*_diagnostics(source), *lost_notes(lost), *_cut(source), *_newer(meta.get("EXPORT_SCHEMA_VERSION"))]
    return TraceInfo(
        path=path.name,
        nsys_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema_version=meta.get("EXPORT_SCHEMA_VERSION"),
        devices=tuple(devices),
        driver_version=driver,
        session_start_utc_ns=next((t for t, _ in epoch if isinstance(t, int) and 0 < t < 1 << 62), None),
        missing=tuple(
            f"{table}: {cost}" for table, cost in schema.COST.items() if table not in source.tables
        ),
        notes=tuple(notes),
    )
