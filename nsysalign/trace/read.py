"""An nsys SQLite export as a `Trace`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
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
from nsysalign.trace.sqlite import Source, lost_its_end, open_readonly

LOST_CALLS, LOST_OPERATIONS = "CUDA API calls", "operations"
#: Calls of which CUPTI may keep a synchronisation record.
_WAITING = (*SYNC_CALLS, "query_event", "query_stream", "wait_event", "memcpy")
MARK = "nsysalign"  # how texts of the harness's own marks and ranges begin


def read_trace(path: Path) -> Trace:
    """Read what alignment and attribution need.  Raises TraceError if the trace has no CUDA
    activity at all."""
    with open_readonly(path) as connection:
        source = Source(connection, path)
        names = source.strings()
        tables: tuple[schema.Table, ...] = schema.OPERATION_TABLES
        if schema.RUNTIME.name in source.tables and not schema.launches_graphs(names.values()):
            tables = tuple(map(schema.without_graphs, tables))
        runtime, *work = source.columns_of(schema.RUNTIME, *tables)
        calls, bad_calls = calls_table(runtime, names)
        del runtime
        operations, bad_operations = operations_table(work, calls)
        del work
        trim_memory()
        syncs = _syncs(source, calls)
        ids = distinct(calls["name_id"].to_numpy()).tolist()
        ptds, ptsz = ([i for i in ids if s in names.get(i, "")] for s in ("_ptds", "_ptsz"))
        for name_id in ids:  # as in the documentation: without _v7000
            if name_id in names:
                names[name_id] = schema.api_name(names[name_id])
        for name_id in distinct(operations["name_id"].to_numpy()).tolist():
            if "/" in (name := names.get(name_id, "")):
                names[name_id] = without_paths(name)
        contexts, ranges = source.read(schema.CONTEXT), source.read(schema.NVTX)
        lost = {LOST_CALLS: bad_calls, LOST_OPERATIONS: bad_operations}
        trace = Trace(
            operations=operations,
            calls=calls,
            syncs=syncs,
            event_rows=per_thread_streams(_event_rows(source), calls, operations, ptds, ptsz),
            ranges=_ranges(source, ranges, names),
            marks=_marks(source, names),
            streams=_streams(source, operations, contexts),
            overhead=_overhead(source),
            os_calls=_os_calls(source),
            names=names,
            info=_info(
                path,
                source,
                lost,
                _cut(names, _names_used(operations, calls, ranges)),
            ),
            shapes=partial(_shapes, path),
        )
        _refuse_without_calls(path, source, calls, operations)
    return trace


def _refuse_without_calls(
    path: Path, source: Source, calls: pd.DataFrame, operations: pd.DataFrame
) -> None:
    """Raises TraceError if the host's calls or their names, which every answer needs, are
    missing."""
    if calls.empty and operations.empty:
        said = _nsys_says(source)
        raise NoCudaWork(
            f"{path.name} holds no CUDA activity: no API calls, no kernels, no copies{said}",
            "profile with nsys profile -t cuda,nvtx ..., and check that the program reaches the GPU",
        )
    if schema.RUNTIME.name not in source.tables:
        raise TraceError(
            f"{path.name} holds no CUDA API calls ({schema.RUNTIME.name} is absent): it is not known when work was issued",
            "profile with nsys profile -t cuda,nvtx ... from the program's start",
        )
    _refuse_without_names(path, source)


def _refuse_without_names(path: Path, source: Source) -> None:
    if not {"id", "value"} <= source.columns("StringIds"):
        raise TraceError(
            f"{path.name} holds no names of its API calls (StringIds is absent): launches and copies cannot be told apart",
            "export the report again: nsys export --type sqlite REPORT.nsys-rep",
        )


def _shapes(path: Path, rows: np.ndarray) -> np.ndarray:
    """Grid and block (x, y, z) of kernels by rowid: int64 array (kernels, 6), 0 if the trace does
    not say."""
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


def _cut(names: Mapping[int, str], used: Iterable[np.ndarray]) -> list[str]:
    """A note if names that an answer uses are too long; nsys also keeps its environment and the
    program's output among the names."""
    ids = {int(n) for column in used for n in distinct(column).tolist()}
    count = sum(lost_its_end(names.get(n, "")) for n in ids)
    return [f"{count} names of more than 16 KB were cut short"] if count else []


def _no_id(values: pd.Series) -> np.ndarray:
    raw = values.to_numpy()
    return np.where((raw == schema.NO_ID) | (raw < 0), -1, raw)


def _syncs(source: Source, calls: pd.DataFrame) -> pd.DataFrame:
    frame = source.read(schema.SYNCHRONIZATION)
    if frame is None:
        return frames.empty(frames.SYNCS)
    frame = frame.assign(
        stream=_no_id(frame["stream"]),
        event=_no_id(frame["event"]),
        event_sync=_no_id(frame["event_sync"]),
    )
    waiting = one_of(calls["kind"].to_numpy(), [CALL[k] for k in _WAITING])
    frame["call"] = joined(
        calls, frame["process"].to_numpy(), frame["correlation"].to_numpy(), waiting
    )
    return frames.check(frame, frames.SYNCS)


def _event_rows(source: Source) -> pd.DataFrame:
    frame = source.read(schema.CUDA_EVENT)
    if frame is None:
        return frames.empty(frames.EVENT_ROWS)
    return frames.check(frame.assign(event_sync=_no_id(frame["event_sync"])), frames.EVENT_ROWS)


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
    inline = source.texts(table.name, "text", table.where)
    once = lru_cache(maxsize=1 << 16)(presentable)
    return [
        once(inline.get(row) or names.get(text, ""))
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
    frame["end_ns"] = np.where(
        frame["end_ns"] < frame["start_ns"], last, frame["end_ns"]
    )  # never closed
    return frames.check(frame.sort_values(["start_ns", "row"], ignore_index=True), frames.RANGES)


def _marks(source: Source, names: dict[int, str]) -> pd.DataFrame:
    """The probe's marks, which connect the clocks."""
    frame = source.read(schema.NVTX_MARKS)
    if frame is None or frame.empty:
        return frames.empty(frames.MARKS)
    text = pd.Series(
        _texts(source, schema.NVTX_MARKS, frame, names), index=frame.index, dtype=object
    )
    frame = frame[text.astype(str).str.startswith(MARK).to_numpy()].copy()
    frame["process"] = process_of(frame["thread"].to_numpy())
    return frames.check(frame, frames.MARKS)


def _streams(
    source: Source, operations: pd.DataFrame, contexts: pd.DataFrame | None
) -> pd.DataFrame:
    frame = source.read(schema.STREAM)
    if frame is None:
        return frames.empty(frames.STREAMS)
    processes = distinct(operations["process"].to_numpy())
    by_pid = {int(pid_of(p)): int(p) for p in processes}
    frame["process"] = np.array([by_pid.get(p, -1) for p in frame["pid"].tolist()], dtype=np.int64)
    frame["device"] = np.int64(-1)
    if contexts is not None and len(contexts):
        device = {
            (p, c): d for p, c, d in contexts[["pid", "context", "device"]].itertuples(index=False)
        }
        keys = zip(frame["pid"].tolist(), frame["context"].tolist(), strict=True)
        frame["device"] = np.array([device.get(k, -1) for k in keys], dtype=np.int64)
    return frames.check(frame.drop_duplicates(["process", "context", "stream"]), frames.STREAMS)


def _overhead(source: Source) -> pd.DataFrame:
    frame = source.read(schema.OVERHEAD)
    if frame is None:
        return frames.empty(frames.OVERHEAD)
    frame = only_possible(frame)
    return frames.check(
        frame.assign(process=process_of(frame["thread"].to_numpy())), frames.OVERHEAD
    )


def _os_calls(source: Source) -> pd.DataFrame:
    frame = source.read(schema.OSRT)
    if frame is None:
        return frames.empty(frames.OS_CALLS)
    return frames.check(
        only_possible(frame).sort_values("start_ns", ignore_index=True), frames.OS_CALLS
    )


def kept_diagnostic(severity: object, text: object) -> bool:
    """Whether a row of DIAGNOSTIC_EVENT says that something was lost."""
    keep = ("have been collected", "dropped", "lost", "incompatible", "permission")
    return isinstance(severity, int) and severity >= 2 and any(k in str(text).lower() for k in keep)


def _nsys_says(source: Source) -> str:
    """nsys's own diagnosis of why it recorded no CUDA, '' if it gives none."""
    rows = source.pairs("DIAGNOSTIC_EVENT", "severity", "text")
    texts = [
        " ".join(without_paths(str(text)).split())[:160]
        for severity, text in rows
        if isinstance(severity, int)
        and severity >= 2
        and re.search(r"cuda|cupti|driver", str(text), re.IGNORECASE)
    ]
    return f"; nsys says: {' '.join(dict.fromkeys(texts[:4]))}" if texts else ""


def _diagnostics(source: Source) -> list[str]:
    """What the profiler itself reports about losses."""
    rows = source.pairs("DIAGNOSTIC_EVENT", "severity", "text")
    texts = {without_paths(str(text)) for severity, text in rows if kept_diagnostic(severity, text)}
    return sorted({" ".join(text.split())[:200] for text in texts})


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
    listed = [
        str(v)
        for _, v in source.pairs("TARGET_INFO_GPU", "name", "name")
        if v is not None and size.get(v) != 0
    ]
    return tuple(listed[:1] if len(set(listed)) == 1 and len(used) == 1 else listed)


def _missing(source: Source, version: str | None) -> tuple[str, ...]:
    """Tables that are absent and what that costs; tables that exports before 2022.4 cannot have
    were not switched off."""
    absent = {table: cost for table, cost in schema.COST.items() if table not in source.tables}
    if version is None:
        absent |= {
            table: cost for table, cost in schema.NOT_BEFORE_2022_4.items() if table in absent
        }
    if schema.KERNEL.name in absent and schema.RUNTIME.name in source.tables:
        absent[schema.KERNEL.name] = schema.CALLS_WITHOUT_KERNELS
    return tuple(f"{table}: {cost}" for table, cost in absent.items())


def _newer(version: object) -> list[str]:
    """A note if the export's schema is newer than this code."""
    found = tuple(int(n) for n in re.findall(r"\d{1,9}", str(version or ""))[:2])
    if found <= schema.NEWEST:
        return []
    newest = ".".join(map(str, schema.NEWEST))
    return [
        f"schema {str(version)[:40]} is newer than {newest}, the newest that this nsysalign knows: what was renamed since is "
        "not seen"
    ]


def _names_used(
    operations: pd.DataFrame, calls: pd.DataFrame, ranges: pd.DataFrame | None
) -> list[np.ndarray]:
    columns = [table["name_id"].to_numpy() for table in (operations, calls)]
    return columns if ranges is None else [*columns, ranges["text_id"].to_numpy()]


def _info(
    path: Path, source: Source, lost: Mapping[str, int], more: Sequence[str] = ()
) -> TraceInfo:
    pairs = next(
        (source.pairs(t, "name", "value") for t in schema.META_TABLES if t in source.tables), []
    )
    meta = {str(name): str(value) for name, value in pairs if value is not None}
    environment = source.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")
    driver = next((str(v) for k, v in environment if k == "NvDriverVersion"), None)
    epoch = source.pairs("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", "utcEpochNs")
    notes = [
        *_diagnostics(source),
        *(
            f"{count} {what} with impossible times (absent, zero, reversed or years away) were left out"
            for what, count in lost.items()
            if count
        ),
        *more,
        *_newer(meta.get("EXPORT_SCHEMA_VERSION")),
    ]
    return TraceInfo(
        path=path.name,
        nsys_version=meta.get("EXPORT_PRODUCT_VERSION"),
        schema_version=meta.get("EXPORT_SCHEMA_VERSION"),
        devices=_devices(source),
        driver_version=driver,
        session_start_utc_ns=next(
            (t for t, _ in epoch if isinstance(t, int) and 0 < t < 1 << 62), None
        ),
        missing=_missing(source, meta.get("EXPORT_SCHEMA_VERSION")),
        notes=tuple(notes),
        recorded_ns=next(
            (
                (begin, end)
                for begin, end in source.pairs("ANALYSIS_DETAILS", "startTime", "stopTime")
                if isinstance(begin, int) and isinstance(end, int) and 0 <= begin < end < 1 << 62
            ),
            None,
        ),
        failed_calls=_failed(source),
    )


#: Errors that say nothing of the work: not ready yet, already enabled, the program's end.
_NO_FAILURES = (4, 600, 704, 709)


def _failed(source: Source) -> tuple[tuple[str, int, int], ...]:
    """Calls that issue work or wait for it and returned an error: (name, code, count)."""
    rows = source.failures(schema.RUNTIME.name, "nameId", "returnValue")
    wanted = {CALL[kind] for kind in (*ENQUEUEING_CALLS, *SYNC_CALLS)}
    names = source.strings() if rows else {}
    return tuple(
        (plain, code, count)
        for name, code, count in rows
        if isinstance(code, int) and code not in _NO_FAILURES
        for plain in [schema.api_name(str(names.get(name, "")))]
        if schema.call_kind(plain) in wanted
    )
