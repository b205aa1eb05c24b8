"""An nsys SQLite export as a `Trace`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.errors import NoCudaWork, TraceError
from nsysalign.intervals import distinct, one_of
from nsysalign.memory import trim_memory
from nsysalign.model import (
    CALL,
    DEFAULT_STREAM,
    ENQUEUEING_CALLS,
    SYNC_CALLS,
    Trace,
    TraceInfo,
    pid_of,
    process_of,
)
from nsysalign.paths import without_paths
from nsysalign.trace import schema
from nsysalign.trace.activity import calls_table, joined, only_possible, operations_table
from nsysalign.trace.names import presentable
from nsysalign.trace.sqlite import Source, lost_its_end, opened

#: Calls of which CUPTI may keep a synchronisation record.
_WAITING = (*SYNC_CALLS, "query_event", "query_stream", "wait_event", "memcpy")
MARK = "nsysalign"  # how texts of the harness's own marks and ranges begin
#: Errors that say nothing of the work: not ready yet, already enabled, the program's end.
_NO_FAILURES = (4, 600, 704, 709)


def read_trace(path: Path) -> Trace:
    """Read what alignment and attribution need.  Raises TraceError if the trace has no CUDA
    activity at all.  In which order a table has its rows makes no difference."""
    with opened(path) as source:
        names = source.strings()
        tables: tuple[schema.Table, ...] = schema.OPERATION_TABLES
        if schema.RUNTIME.name in source.tables and not schema.launches_graphs(names.values()):
            tables = tuple(map(schema.without_graphs, tables))
        runtime, *work = source.columns_of(schema.RUNTIME, *tables)
        calls, lost_calls = calls_table(runtime, names)
        del runtime
        operations, lost_operations = operations_table(work, calls)
        del work
        trim_memory()
        call_names = distinct(calls["name_id"].to_numpy()).tolist()
        ptds, ptsz = ([i for i in call_names if s in names.get(i, "")] for s in ("_ptds", "_ptsz"))
        for name_id in call_names:  # as in the documentation: without _v7000
            if name_id in names:
                names[name_id] = schema.api_name(names[name_id])
        kernel_names = distinct(operations["name_id"].to_numpy()).tolist()
        for name_id in kernel_names:
            if name_id in names:
                names[name_id] = without_paths(names[name_id])
        ranges = source.read(schema.NVTX)
        used = {*call_names, *kernel_names, *([] if ranges is None else ranges["text_id"].tolist())}
        event_rows, unusable_stamps = _event_rows(source)
        counts = {
            "CUDA API calls with impossible times (absent, zero, reversed or years away) were left out": lost_calls,
            "operations with impossible times (absent, zero, reversed or years away) were left out": lost_operations,
            "GPU timestamps of events are zero or equal to another's (as nsys with a CUPTI before 13.4 records them) and were not used": unusable_stamps,
            "names of more than 16 KB were cut short": sum(
                lost_its_end(names.get(name_id, "")) for name_id in used
            ),
        }
        trace = Trace(
            operations=operations,
            calls=calls,
            syncs=_syncs(source, calls),
            event_rows=per_thread_streams(event_rows, calls, operations, ptds, ptsz),
            ranges=_ranges(source, ranges, names),
            marks=_marks(source, names),
            streams=_streams(source, operations),
            overhead=_stretches(source, schema.OVERHEAD, frames.OVERHEAD),
            os_calls=_stretches(source, schema.OSRT, frames.OS_CALLS),
            names=names,
            info=_info(path, source, [f"{n} {what}" for what, n in counts.items() if n]),
            shapes=partial(_shapes, path),
        )
        _refuse_without_calls(path, source, trace)
    return trace


def _refuse_without_calls(path: Path, source: Source, trace: Trace) -> None:
    """Raises TraceError if the host's calls or their names, which every answer needs, are
    missing."""
    if trace.calls.empty and trace.operations.empty:
        texts = [
            " ".join(without_paths(str(text)).split())[:160]
            for severity, text in source.pairs("DIAGNOSTIC_EVENT", "severity", "text")
            if isinstance(severity, int)
            and severity >= 2
            and re.search(r"cuda|cupti|driver", str(text), re.IGNORECASE)
        ]
        because = f"; nsys says: {' '.join(dict.fromkeys(texts[:4]))}" if texts else ""
        raise NoCudaWork(
            f"{path.name} holds no CUDA activity: no API calls, no kernels, no copies{because}",
            "profile with nsys profile -t cuda,nvtx ..., and check that the program reaches the GPU",
        )
    if schema.RUNTIME.name not in source.tables:
        raise TraceError(
            f"{path.name} holds no CUDA API calls ({schema.RUNTIME.name} is absent): it is not known when work was issued",
            "profile with nsys profile -t cuda,nvtx ... from the program's start",
        )
    if not {"id", "value"} <= {*source.columns("StringIds")}:
        raise TraceError(
            f"{path.name} holds no names of its API calls (StringIds is absent): launches and copies cannot be told apart",
            "export the report again: nsys export --type sqlite REPORT.nsys-rep",
        )


def _shapes(path: Path, rows: np.ndarray) -> np.ndarray:
    """Grid and block (x, y, z), registers per thread, static and dynamic shared memory (bytes) of
    kernels by rowid: int64 array (kernels, 9); 0, and -1 for registers and memory, if the trace
    does not say."""
    out = np.zeros((len(rows), len(schema.KERNEL_SHAPE.fields)), np.int64)
    if not len(rows):
        return out
    with opened(path) as source:
        frame = source.read_rows(schema.KERNEL_SHAPE, rows)
    position = pd.Index(frame["row"]).get_indexer(rows)
    shapes = frame[[field.name for field in schema.KERNEL_SHAPE.fields]].to_numpy()
    out[position >= 0] = shapes[position[position >= 0]]
    return out


def _no_id(values: pd.Series) -> np.ndarray:
    raw = values.to_numpy()
    return np.where((raw == schema.NO_ID) | (raw < 0), -1, raw)


def _in_order(frame: pd.DataFrame, *first: str) -> pd.DataFrame:
    """Sorted by these columns, then by all others but the number of the row, which is the file's
    order."""
    keys = [*first, *(name for name in frame.columns if name not in (*first, "row"))]
    leading = frame[keys[0]].to_numpy()
    if (leading[1:] > leading[:-1]).all():
        return frame.reset_index(drop=True)
    order = np.lexsort([frame[key].to_numpy() for key in reversed(keys)])
    return frame.iloc[order].reset_index(drop=True)


def _syncs(source: Source, calls: pd.DataFrame) -> pd.DataFrame:
    frame = source.read(schema.SYNCHRONIZATION)
    if frame is None:
        return frames.empty(frames.SYNCS)
    frame = _in_order(
        frame.assign(**{name: _no_id(frame[name]) for name in ("stream", "event", "event_sync")}),
        "start_ns",
    )
    waiting = one_of(calls["kind"].to_numpy(), [CALL[k] for k in _WAITING])
    frame["call"] = joined(
        calls, frame["process"].to_numpy(), frame["correlation"].to_numpy(), waiting
    )
    return frames.check(frame, frames.SYNCS)


def _event_rows(source: Source) -> tuple[pd.DataFrame, int]:
    """The table, and how many of its time stamps cannot be those of their events: 0 as those that
    are absent (NULL)."""
    frame = source.read(schema.CUDA_EVENT)
    if frame is None:
        return frames.empty(frames.EVENT_ROWS), 0
    frame = _in_order(frame.assign(event_sync=_no_id(frame["event_sync"])), "correlation")
    stamp = frame["timestamp_ns"]
    of_stream = ["process", "device", "context", "stream", "timestamp_ns"]
    wrong = (stamp == 0) | ((stamp > 0) & frame.duplicated(of_stream, keep=False))
    frame["timestamp_ns"] = stamp.where(~wrong & (stamp > 0), 0)
    return frames.check(frame, frames.EVENT_ROWS), int(wrong.sum())


def per_thread_streams(
    rows: pd.DataFrame,
    calls: pd.DataFrame,
    operations: pd.DataFrame,
    ptds: Sequence[int],
    ptsz: Sequence[int],
) -> pd.DataFrame:
    """Rows of records on a thread's own default stream, which bear the number of the legacy one:
    with that of the thread's copies that take no stream (names of calls in `ptds`)."""
    if rows.empty or not ptds or not ptsz:
        return rows
    name, thread = calls["name_id"].to_numpy(), calls["thread"].to_numpy()
    call = operations["call"].to_numpy()
    copied = np.flatnonzero((call >= 0) & np.isin(name[call], ptds))
    streams = operations["stream"].to_numpy()[copied].tolist()
    own = dict(zip(thread[call[copied]].tolist(), streams, strict=True))
    recording = calls[calls["name_id"].isin(ptsz)]
    keys = zip(recording["process"].tolist(), recording["correlation"].tolist(), strict=True)
    of_call = dict(zip(keys, recording["thread"].tolist(), strict=True))
    named = zip(*(rows[c].tolist() for c in ("process", "correlation", "stream")), strict=True)
    stream = [
        own.get(of_call.get((p, c), -1), s) if s == DEFAULT_STREAM else s for p, c, s in named
    ]
    return frames.check(rows.assign(stream=np.array(stream, np.int64)), frames.EVENT_ROWS)


def _texts(
    source: Source, table: schema.Table, frame: pd.DataFrame, names: dict[int, str]
) -> list[str]:
    inline = source.texts(table, "text")
    return [
        presentable(inline.get(row) or names.get(text, ""))
        for row, text in zip(frame["row"].tolist(), frame["text_id"].tolist(), strict=True)
    ]


def _ranges(source: Source, frame: pd.DataFrame | None, names: dict[int, str]) -> pd.DataFrame:
    if frame is None or frame.empty:
        return frames.empty(frames.RANGES)
    frame = frame.assign(
        text=_texts(source, schema.NVTX, frame, names),
        process=process_of(frame["thread"].to_numpy()),
    )
    last = int(max(frame["end_ns"].max(), frame["start_ns"].max()))
    never_closed = frame["end_ns"] < frame["start_ns"]
    frame["end_ns"] = frame["end_ns"].where(~never_closed, last)
    # of ranges that begin together the longest is the outer one
    order = np.lexsort((frame["text"], frame["thread"], -frame["end_ns"], frame["start_ns"]))
    return frames.check(frame.iloc[order].reset_index(drop=True), frames.RANGES)


def _marks(source: Source, names: dict[int, str]) -> pd.DataFrame:
    """The probe's marks, which connect the clocks."""
    frame = source.read(schema.NVTX_MARKS)
    if frame is None or frame.empty:
        return frames.empty(frames.MARKS)
    ours = [text.startswith(MARK) for text in _texts(source, schema.NVTX_MARKS, frame, names)]
    frame = _in_order(frame[ours], "trace_ns")
    frame["process"] = process_of(frame["thread"].to_numpy())
    return frames.check(frame, frames.MARKS)


def _streams(source: Source, operations: pd.DataFrame) -> pd.DataFrame:
    frame, contexts = source.read(schema.STREAM), source.read(schema.CONTEXT)
    if frame is None:
        return frames.empty(frames.STREAMS)
    frame = _in_order(frame)
    processes = distinct(operations["process"].to_numpy())
    by_pid = {int(pid_of(p)): int(p) for p in processes}
    frame["process"] = np.array([by_pid.get(p, -1) for p in frame["pid"].tolist()], dtype=np.int64)
    device = {}
    if contexts is not None:
        columns = _in_order(contexts)[["pid", "context", "device"]]
        device = {(p, c): d for p, c, d in columns.itertuples(index=False)}
    keys = zip(frame["pid"].tolist(), frame["context"].tolist(), strict=True)
    frame["device"] = np.array([device.get(k, -1) for k in keys], dtype=np.int64)
    return frames.check(frame.drop_duplicates(["process", "context", "stream"]), frames.STREAMS)


def _stretches(source: Source, table: schema.Table, spec: frames.Spec) -> pd.DataFrame:
    """The profiler's own work, or calls of the OS runtime, by their start."""
    frame = source.read(table)
    if frame is None:
        return frames.empty(spec)
    frame = _in_order(only_possible(frame), "start_ns")
    return frames.check(frame.assign(process=process_of(frame["thread"].to_numpy())), spec)


def kept_diagnostic(severity: object, text: object) -> bool:
    """Whether a row of DIAGNOSTIC_EVENT says that something was lost."""
    keep = ("have been collected", "dropped", "lost", "incompatible", "permission")
    return isinstance(severity, int) and severity >= 2 and any(k in str(text).lower() for k in keep)


def _devices(source: Source) -> tuple[str, ...]:
    """Names of the GPUs on which the program had a context; of all in the machine if the export
    does not say which."""
    by_device = source.pairs("TARGET_INFO_GPU", "cuDevice", "name")
    if len(dict(by_device)) < len(by_device):  # some exports say 0 of every GPU
        by_device = []
    elif not by_device:  # exports before cuDevice
        by_device = source.pairs("TARGET_INFO_GPU", "id", "name")
    names = {number: str(name) for number, name in by_device if name is not None}
    contexts = source.read(schema.CONTEXT)
    used = sorted({int(d) for d in contexts["device"].tolist()}) if contexts is not None else []
    if used and all(device in names for device in used):
        return tuple(names[device] for device in used)
    # of a laptop, its display adapters stand there as well, without multiprocessors
    size = dict(source.pairs("TARGET_INFO_GPU", "name", "smCount"))
    listed = sorted(
        str(name)
        for name, _ in source.pairs("TARGET_INFO_GPU", "name", "name")
        if name is not None and size.get(name) != 0
    )
    return tuple(listed[:1] if len(set(listed)) == 1 and len(used) == 1 else listed)


def _info(path: Path, source: Source, more: Sequence[str]) -> TraceInfo:
    """What the export says of itself; `more`: notes on what was read."""
    pairs = next(
        (source.pairs(t, "name", "value") for t in schema.META_TABLES if t in source.tables), []
    )
    meta = {str(name): str(value) for name, value in pairs if value is not None}
    version = meta.get("EXPORT_SCHEMA_VERSION")
    notes = sorted(
        {
            " ".join(without_paths(str(text)).split())[:200]
            for severity, text in source.pairs("DIAGNOSTIC_EVENT", "severity", "text")
            if kept_diagnostic(severity, text)
        }
    )
    notes += more
    if tuple(int(n) for n in re.findall(r"\d{1,9}", version or "")[:2]) > schema.NEWEST:
        newest = ".".join(map(str, schema.NEWEST))
        notes.append(
            f"schema {str(version)[:40]} is newer than {newest}, the newest that this nsysalign knows: what was renamed since is "
            "not seen"
        )
    absent = {table: cost for table, cost in schema.COST.items() if table not in source.tables}
    if version is None:  # what exports before 2022.4 cannot have was not switched off
        before = schema.NOT_BEFORE_2022_4
        absent |= {table: cost for table, cost in before.items() if table in absent}
    if schema.KERNEL.name in absent and schema.RUNTIME.name in source.tables:
        absent[schema.KERNEL.name] = schema.CALLS_WITHOUT_KERNELS
    environment = source.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")
    epochs = source.pairs("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "utcEpochNs")
    recorded = source.pairs("ANALYSIS_DETAILS", "startTime", "stopTime")
    return TraceInfo(
        path=path.name,
        nsys_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema_version=version,
        devices=_devices(source),
        driver_version=next((str(v) for k, v in environment if k == "NvDriverVersion"), None),
        session_start_utc_ns=next(
            (t for t, _ in epochs if type(t) is int and 0 < t < 1 << 62), None
        ),
        missing=tuple(f"{table}: {cost}" for table, cost in absent.items()),
        notes=tuple(notes),
        recorded_ns=next(
            (
                (begin, end)
                for begin, end in recorded
                if type(begin) is type(end) is int and 0 <= begin < end < 1 << 62
            ),
            None,
        ),
        failed_calls=_failed(source),
    )


def _failed(source: Source) -> tuple[tuple[str, int, int], ...]:
    """Calls that issue work or wait for it and returned an error: (name, code, count)."""
    wanted = {CALL[kind] for kind in (*ENQUEUEING_CALLS, *SYNC_CALLS)}
    rows = source.failures(schema.RUNTIME.name, "nameId", "returnValue")
    names: Mapping[int, str] = source.strings() if rows else {}
    return tuple(
        (plain, code, count)
        for name, code, count in rows
        if isinstance(code, int) and code not in _NO_FAILURES
        for plain in [schema.api_name(str(names.get(name, "")))]
        if schema.call_kind(plain) in wanted
    )
