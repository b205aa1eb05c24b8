"""An nsys SQLite export as a `Trace`: its work, the calls that issued it, and what lies beside.

Calls and operations are arrays as narrow as their values allow: they have millions of rows.  The
order of the rows in the file makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.errors import NoCudaWork, TraceError
from nsysalign.intervals import distinct, group, index_type, pick, positions
from nsysalign.memory import trim_memory
from nsysalign.model import (
    CALL,
    DEFAULT_STREAM,
    ISSUING_CALLS,
    KIND,
    PROGRAM_RANGES,
    RECORDERS,
    SYNC_CALLS,
    Gpu,
    Trace,
    TraceInfo,
    pid_of,
    process_of,
)
from nsysalign.paths import presentable, without_paths
from nsysalign.text import demangled
from nsysalign.trace import schema
from nsysalign.trace.info import cuda_messages, gpus, trace_info
from nsysalign.trace.kineto import KinetoSource
from nsysalign.trace.sqlite import Columns, Source, lost_its_end, opened, taken
from nsysalign.untrusted import is_json

if TYPE_CHECKING:
    from nsysalign.trace.cupti import Recording

    Tables = Source | Recording | KinetoSource

#: Calls of which CUPTI may keep a synchronisation record.
_WAITING = (*SYNC_CALLS, "query_event", "query_stream", "wait_event", "memcpy")
MARK = "nsysalign"  # how texts of the harness's own marks and ranges begin
_LATEST_NS, _LONGEST_NS = 1 << 62, 1 << 53  # 146 years, 104 days
_ROWIDS_AT_ONCE = 50_000
#: The shapes of all kernels of such a file take a few megabytes.
_SMALL_BYTES = 8 << 20
_INT16 = np.iinfo(np.int16)
#: Copies of one stream overlap what follows by less, as far as clocks are read apart.
_OVERLAP_NS = 100_000
_ABSENT = {"name_id": -1, "bytes": 0, "copy_kind": -1, "src_kind": -1, "dst_kind": -1, "graph_node": -1}  # fmt: skip


def read_trace(path: Path) -> Trace:
    """Return what alignment and attribution need of a trace: its calls, operations, ranges and so on, as tables.  It is an
    export of nsys, a recording of nsysalign's own, or a trace of torch.profiler.  Raises TraceError if the trace has no
    CUDA activity at all."""
    with _reading(path) as reading:
        source = reading.source
        names = source.strings()
        runtime = source.columns_of(schema.RUNTIME)
        operation_tables: tuple[schema.Table, ...] = schema.OPERATION_TABLES
        if len(runtime["row"]) and not any("GraphLaunch" in name for name in names.values()):
            operation_tables = tuple(map(schema.without_graphs, operation_tables))
        calls, lost_calls = _calls(runtime, names)
        del runtime  # as large as all that is kept of it
        operations, lost_operations = _operations(
            [source.columns_of(table) for table in operation_tables], calls
        )
        trim_memory()
        ranges = _ranges(source, names)
        if calls.empty and operations.empty:
            _refuse_without_cuda(path, reading, ranges)
        else:
            _refuse_without_calls(path, reading)
        # the names that calls and kernels use, as a user knows them
        names_of_calls, names_of_kernels = _used(names, calls), _used(names, operations)
        used_names = {*names_of_calls, *names_of_kernels}
        cut = sum(lost_its_end(names[number]) for number in used_names)
        for number, name in names_of_kernels.items():
            names[number] = demangled(without_paths(name))
        for number, name in names_of_calls.items():
            names[number] = schema.api_name(name)  # without _v7000
        event_rows, unusable_stamps = _event_rows(source, calls)
        if not event_rows.empty:
            event_rows = _own_streams(event_rows, calls, operations, names_of_calls)
        counts = {
            "CUDA API calls with impossible times (absent, zero, reversed or years away) were left out": lost_calls,
            "operations with impossible times (absent, zero, reversed, years away or after the next one of their stream) were left out": lost_operations,
            "GPU timestamps of events are zero or equal to another's (as nsys with a CUPTI before 13.4 records them) and were not used": unusable_stamps,
            "names of more than 16 KB were cut short": cut,
        }
        notes = [f"{count} {text}" for text, count in counts.items() if count]
        return Trace(
            operations=operations,
            calls=frames.check(calls, frames.CALLS, narrow=True),
            syncs=_syncs(source, calls),
            event_rows=event_rows,
            ranges=ranges,
            marks=_marks(source, names),
            streams=_streams(source, operations),
            overhead=_stretches(source, (schema.OVERHEAD,), frames.OVERHEAD),
            os_calls=_stretches(source, schema.OTHER_CALLS, frames.OS_CALLS),
            names=names,
            untraced=_untraced(source),
            info=reading.info(calls, names, notes),
            shapes=reading.shapes,
            graphs=reading.graphs,
            gpus=reading.gpus,
        )


def _used(names: dict[int, str], table: pd.DataFrame) -> dict[int, str]:
    """Return the names that a table uses, by number."""
    numbers = distinct(table["name_id"].to_numpy()).tolist()
    return {number: names[number] for number in numbers if number in names}


def _untraced(source: Tables) -> pd.DataFrame:
    """`frames.UNTRACED`."""
    columns = pd.DataFrame(source.columns_of(schema.UNTRACED))
    if columns.empty:
        return frames.empty(frames.UNTRACED)
    return frames.check(columns.sort_values("start_ns", kind="stable"), frames.UNTRACED)


def _refuse_without_cuda(path: Path, reading: _Reading, ranges: pd.DataFrame) -> None:
    """Raises NoCudaWork, unless the program opened ranges, of which something can be said."""
    of_program = ranges[ranges["kind"].isin(PROGRAM_RANGES)]
    if not of_program["text"].str.startswith(MARK).all():
        return
    texts = reading.messages()
    because = f"; nsys says: {' '.join(texts)}" if texts else ""
    raise NoCudaWork(
        f"{path.name} holds no CUDA activity: no API calls, no kernels, no copies{because}",
        f"profile with {reading.whole}, and check that the program reaches the GPU",
    )


def _refuse_without_calls(path: Path, reading: _Reading) -> None:
    """Raises TraceError where CUDA's calls or their names are missing."""
    if not reading.source.has(schema.RUNTIME.name):
        raise TraceError(
            f"{path.name} holds no CUDA API calls{reading.absent}: it is not known when work was issued",
            f"profile with {reading.whole} from the program's start",
        )
    if not reading.source.has("StringIds", "id", "value"):
        raise TraceError(
            f"{path.name} holds no names of its API calls (StringIds is absent or empty): launches and copies cannot be told apart",
            "export the report again: nsys export --type sqlite REPORT.nsys-rep",
        )


class _Reading(NamedTuple):
    """A file that is being read, whatever recorded it: `source` gives its tables by nsys's names; `info`
    what it says of itself, given its calls, names and notes; `shapes` those of kernels by their rows;
    `graphs` which graph executions of whole graphs ran, by their rows; `messages` what the recorder said of CUDA; `absent`: why there may be no calls."""

    recorder: str
    source: Tables
    info: Callable[..., TraceInfo]
    shapes: Callable[[np.ndarray], np.ndarray]
    gpus: dict[int, Gpu]
    graphs: Callable[[np.ndarray], np.ndarray] | None = None
    messages: Callable[[], list[str]] = list
    absent: str = ""

    @property
    def whole(self) -> str:
        """What records a whole program with its CUDA calls."""
        return RECORDERS[self.recorder].whole


@contextmanager
def _reading(path: Path) -> Iterator[_Reading]:
    """The only place that knows by what a trace was recorded."""
    if is_json(path):
        profile = KinetoSource(path)
        yield _Reading("kineto", profile, profile.info, profile.shapes, profile.gpus())
        return
    with opened(path) as source:
        yield _Reading(
            "nsys",
            source,
            partial(trace_info, source),
            _Shapes(path),
            gpus(source),
            partial(_graphs, path),
            partial(cuda_messages, source),
            f" ({schema.RUNTIME.name} is absent or empty)",
        )


# --- calls, and the operations that they issued


def possible(columns: Columns) -> tuple[Columns, int]:
    """The rows whose times can be, and how many others there are.  What the profiler lost comes as
    start = end = 0, as end < start or as NULL (-1); a damaged time is so far away that a difference
    of two would not fit into int64, or lasts for months."""
    start, end = columns["start_ns"], columns["end_ns"]
    lost = (end < start) | ((start == 0) & (end == 0)) | (start == -1) | (end == -1)
    lost |= (start <= -_LATEST_NS) | (end >= _LATEST_NS) | (end - start >= _LONGEST_NS)
    count = int(lost.sum())
    return (taken(columns, ~lost) if count else columns), count


def _calls(columns: Columns, names: dict[int, str]) -> tuple[pd.DataFrame, int]:
    """Return (`frames.CALLS` with their correlation ids, sorted by start, of calls that begin together the longest
    first; how many rows were left out because their times cannot be).

    columns: of `schema.RUNTIME`
    names: number -> name
    """
    columns, lost = possible(columns)
    start = columns["start_ns"]
    if not (start[1:] > start[:-1]).all():
        keys = (start, -columns["end_ns"], columns["thread"], columns["correlation"])
        columns = taken(columns, np.lexsort(keys[::-1]))  # lexsort takes the first key last
    columns["process"] = frames.narrow(process_of(columns["thread"]))
    numbers = distinct(columns["name_id"])
    kind_of = np.array([schema.call_kind(names.get(int(n), "")) for n in numbers], dtype=np.int8)
    columns["kind"] = kind_of[np.searchsorted(numbers, columns["name_id"])]
    columns["nested"] = _nested(columns["thread"], columns["start_ns"], columns["end_ns"])
    for name in ("name_id", "return_value", "nested"):
        values = columns[name]
        takes_no_memory = not any(values.strides)  # one value for all
        if takes_no_memory:
            continue
        if _INT16.min <= values.min() and values.max() <= _INT16.max:
            columns[name] = values.astype(np.int16)
    return pd.DataFrame(columns, copy=False), lost


def _nested(thread: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return, per call, how many rows the outermost call lies before it that it was made in; 0 for an outermost call.

    thread 1   [ cudaLaunchKernel          ]       0
                   [ cuLaunchKernel  ]             1

    thread, start, end: sorted by (start, -end)
    """
    numbers: np.ndarray = np.arange(len(start), dtype=index_type(len(start)))
    out = np.zeros(len(start), numbers.dtype)
    for rows in group(thread, numbers).values():
        # a call is an inner one if an earlier one reaches past its start
        latest_end = np.maximum.accumulate(end[rows])
        inner = np.flatnonzero(start[rows[1:]] < latest_end[:-1]) + 1
        outer = np.delete(rows, inner)
        around = outer[np.searchsorted(outer, rows[inner]) - 1]  # the last outer one before it
        out[rows[inner]] = rows[inner] - around
    return frames.narrow(out)


def _operations(tables: Sequence[Columns], calls: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return (`frames.OPERATIONS`, how many rows were left out because their times cannot be).

    tables: the columns of each of `schema.OPERATION_TABLES`, in the order of the kinds of operations
    """
    parts, lost = list[Columns](), 0
    for kind, columns in enumerate(tables):
        columns, lost_of_kind = possible(columns)
        lost += lost_of_kind
        count = len(columns["row"])
        # a table has only some of the columns
        constants = {"kind": kind, **_ABSENT}
        filled = {name: np.broadcast_to(value, count) for name, value in constants.items()}
        parts.append(filled | columns)
    # column by column, so that no more than one of them is in memory twice
    operations = {
        name: frames.narrow(np.concatenate([part.pop(name) for part in parts]), name)
        for name in [*parts[0]]
    }
    start = operations["start_ns"]
    if not (start[1:] > start[:-1]).all():
        keys = (start, *(operations[name] for name in ("end_ns", "kind", "process", "correlation")))
        operations = taken(operations, np.lexsort(keys[::-1]))
    processes = distinct(calls["process"].to_numpy())
    if len(processes) == 1:  # exports before globalPid: of several nothing can be joined
        process = operations["process"]
        if (process < 0).any():
            operations["process"] = frames.narrow(np.where(process < 0, processes[0], process))
    endless = _outlasts_its_place(operations)
    if endless.any():
        operations = taken(operations, ~endless)
        lost += int(endless.sum())
    operations["call"] = frames.narrow(_issued_by(operations, calls))
    table = pd.DataFrame(operations, copy=False)
    return frames.check(table, frames.OPERATIONS, narrow=True), lost


def _outlasts_its_place(operations: Columns) -> np.ndarray:
    """Return, per operation, whether it is a copy or memset that ends long after the next operation of its stream
    began: its end cannot be right.

    operations: sorted by start

    A stream runs one operation after the other, but for kernels that are launched to overlap and for nodes of graphs.
    CUPTI 13.0 gave the copy before the first launch of a graph an end 42 and 254 ms too late.
    """
    place = [operations[name] for name in ("process", "device", "context", "stream")]
    by_stream = np.lexsort(place)  # stable: by start within a stream
    before, after = by_stream[:-1], by_stream[1:]
    in_turn = operations["graph_node"][before] < 0
    for column in place:
        in_turn &= column[before] == column[after]
    overlap_ns = operations["end_ns"][before] - operations["start_ns"][after]
    is_copy = np.isin(operations["kind"][before], (KIND["memcpy"], KIND["memset"]))
    outlasts = np.zeros(len(by_stream), bool)
    outlasts[before[in_turn & is_copy & (overlap_ns > _OVERLAP_NS)]] = True
    return outlasts


def _issued_by(operations: Columns, calls: pd.DataFrame) -> np.ndarray:
    """Return, per operation, the outermost call that issued it: its position in `calls`, -1 for none.

    It is the call with the operation's process and correlation id: first among calls that issue work, then among all
    others (prefetch, library internals).
    """
    process, correlation = operations["process"], operations["correlation"]
    issues_work = np.isin(calls["kind"].to_numpy(), [CALL[kind] for kind in ISSUING_CALLS])
    call = _joined(calls, process, correlation, issues_work)
    missing = call < 0
    if missing.any():
        call[missing] = _joined(calls, process[missing], correlation[missing], ~issues_work)
    if calls.empty:
        return call
    # a kernel cannot start before the call that issues it: a join that says so is a reused
    # correlation id
    issue = calls["start_ns"].to_numpy()[call]
    call[operations["start_ns"] < issue - 100_000] = -1
    outermost = call - calls["nested"].to_numpy()[call]
    return np.where(call >= 0, outermost, -1)


def _joined(
    calls: pd.DataFrame, process: np.ndarray, correlation: np.ndarray, candidates: np.ndarray
) -> np.ndarray:
    """Return, per row, the position in `calls` of the call with the same process and correlation id, the
    first of several (merged exports); -1 for none.

    process, correlation: of the rows
    candidates: per call, whether it may be joined
    """
    position = np.flatnonzero(candidates)
    calls_of_process = group(calls["process"].to_numpy()[position], position)
    correlation_of_call = calls["correlation"].to_numpy()
    out = np.full(len(process), -1)
    for number, rows in group(process, np.arange(len(process))).items():
        if number not in calls_of_process:
            continue
        of_process = calls_of_process[number]
        wanted = correlation[rows]
        place = positions(wanted, correlation_of_call[of_process])
        out[rows] = pick(of_process, np.where(wanted >= 0, place, -1), -1)
    return out


class _Shapes:
    """Called with rowids of kernels it returns, per kernel, its grid and block (x, y, z), registers per thread, static
    and dynamic shared memory (bytes): int64 array (kernels, 9); 0, and -1 for registers and memory, if the trace does
    not say.  They are asked for several times: of a small file all are read at the first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._all: Columns | None = None

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        names = [field.name for field in schema.KERNEL_SHAPE.fields]
        out = np.zeros((len(rows), len(names)), np.int64)
        for columns in self._batches(np.unique(rows)):
            position = positions(rows, columns["row"])
            is_here = position >= 0
            for number, name in enumerate(names):
                out[is_here, number] = columns[name][position[is_here]]
        return out

    def _batches(self, wanted: np.ndarray) -> Iterator[Columns]:
        """What the file says of these rowids, and perhaps of others."""
        if self._all is not None:
            yield self._all
            return
        with opened(self._path) as source:
            if self._path.stat().st_size <= _SMALL_BYTES:
                self._all = source.columns_of(schema.KERNEL_SHAPE)
                yield self._all
                return
            for first in range(0, len(wanted), _ROWIDS_AT_ONCE):
                rowids = ", ".join(map(str, wanted[first : first + _ROWIDS_AT_ONCE].tolist()))
                yield source.columns_of(schema.KERNEL_SHAPE, f"rowid in ({rowids})")


def _graphs(path: Path, rows: np.ndarray) -> np.ndarray:
    """Return the number of the graph that each of these whole-graph executions ran (int64), -1 where the trace does
    not say.

    rows: their rowids
    """
    with opened(path) as source:
        frame = source.read(schema.GRAPH_OF)
    position = pd.Index(frame["row"]).get_indexer(rows)
    return pick(frame["graph"].to_numpy(), position, -1)


# --- what lies beside them


def _in_order(frame: pd.DataFrame, *first: str) -> pd.DataFrame:
    """Sorted by these columns, then by all others but the number of the row, which is the file's
    order."""
    keys = [*first, *(name for name in frame.columns if name not in (*first, "row"))]
    order = np.lexsort([frame[key].to_numpy() for key in reversed(keys)])
    return frame.iloc[order].reset_index(drop=True)


def _without_ids(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    """CUPTI's numbers for "none" as -1."""
    ids = frame[list(names)]
    return frame.assign(**ids.where((ids != schema.NO_ID) & (ids >= 0), -1))


def _syncs(source: Tables, calls: pd.DataFrame) -> pd.DataFrame:
    """Return `frames.SYNCS`: what CUPTI says of calls that wait, sorted by call; of several rows of one call the first
    in time comes first.  Rows whose call is not known are left out."""
    columns = source.columns_of(schema.SYNCHRONIZATION)
    del columns["end_ns"]
    waiting = np.isin(calls["kind"].to_numpy(), [CALL[k] for k in _WAITING])
    call = _joined(calls, columns["process"], columns.pop("correlation"), waiting)
    columns["call"] = frames.narrow(call)
    call = columns["call"]
    for name in ("stream", "event", "event_sync"):
        ids = columns[name]
        columns[name] = frames.narrow(np.where((ids == schema.NO_ID) | (ids < 0), -1, ids))
    if not (call[1:] > call[:-1]).all() or (call < 0).any():
        keys = [columns[name] for name in columns if name not in ("call", "start_ns", "row")]
        order = np.lexsort([*keys, columns["start_ns"], call])
        columns = taken(columns, order[np.searchsorted(call, 0, sorter=order) :])
    return frames.check(pd.DataFrame(columns, copy=False), frames.SYNCS, narrow=True)


def _event_rows(source: Tables, calls: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return (`frames.EVENT_ROWS`, how many of its time stamps cannot be those of their events: they become 0, as those
    that are absent are)."""
    frame = source.read(schema.CUDA_EVENT)
    if frame.empty:
        return frames.empty(frames.EVENT_ROWS), 0
    frame = _in_order(_without_ids(frame, "event_sync"), "correlation")
    stamp = frame["timestamp_ns"]
    of_stream = ["process", "device", "context", "stream", "timestamp_ns"]
    wrong = (stamp == 0) | ((stamp > 0) & frame.duplicated(of_stream, keep=False))
    frame["timestamp_ns"] = stamp.where(~wrong & (stamp > 0), 0)
    process, correlation = (frame[name].to_numpy() for name in ("process", "correlation"))
    frame["call"] = _joined(calls, process, correlation, np.ones(len(calls), dtype=bool))
    return frames.check(frame, frames.EVENT_ROWS), int(wrong.sum())


def _own_streams(
    rows: pd.DataFrame, calls: pd.DataFrame, operations: pd.DataFrame, called: dict[int, str]
) -> pd.DataFrame:
    """Return event rows with the right stream for records on a thread's own default stream (calls named _ptsz).

    Their rows bear the number of the legacy default stream (7).  The right number is that of the thread's copies
    that take no stream (calls named _ptds).
    """
    ptds, ptsz = ([i for i, name in called.items() if end in name] for end in ("_ptds", "_ptsz"))
    if not ptds or not ptsz:
        return rows
    name, thread = calls["name_id"].to_numpy(), calls["thread"].to_numpy()
    copies = operations[operations["call"] >= 0]
    copies = copies[np.isin(name[copies["call"]], ptds)]
    stream_of = dict(zip(thread[copies["call"]].tolist(), copies["stream"].tolist(), strict=True))
    call = rows["call"].to_numpy()
    of_thread = np.array(
        [stream_of.get(t, DEFAULT_STREAM) for t in thread[call].tolist()], np.int64
    )
    known = (call >= 0) & np.isin(name[call], ptsz) & (rows["stream"] == DEFAULT_STREAM)
    return rows.assign(stream=rows["stream"].where(~known, of_thread))


def _texts(
    source: Tables, table: schema.Table, frame: pd.DataFrame, names: dict[int, str]
) -> list[str]:
    inline = source.texts(table, "text")
    return [
        presentable(inline.get(row) or names.get(text, ""))
        for row, text in zip(frame["row"].tolist(), frame["text_id"].tolist(), strict=True)
    ]


def _ranges(source: Tables, names: dict[int, str]) -> pd.DataFrame:
    frame = source.read(schema.NVTX)
    if frame.empty:
        return frames.empty(frames.RANGES)
    frame = frame.assign(
        text=_texts(source, schema.NVTX, frame, names),
        process=process_of(frame["thread"].to_numpy()),
    )
    last = int(max(frame["end_ns"].max(), frame["start_ns"].max()))
    frame["end_ns"] = frame["end_ns"].where(frame["end_ns"] >= frame["start_ns"], last)
    # of ranges that begin together the longest is the outer one
    order = np.lexsort((frame["text"], frame["thread"], -frame["end_ns"], frame["start_ns"]))
    return frames.check(frame.iloc[order].reset_index(drop=True), frames.RANGES)


def _marks(source: Tables, names: dict[int, str]) -> pd.DataFrame:
    """The probe's marks, which connect the clocks."""
    frame = source.read(schema.NVTX_MARKS)
    ours = [text.startswith(MARK) for text in _texts(source, schema.NVTX_MARKS, frame, names)]
    frame = _in_order(frame[np.array(ours, dtype=bool)], "trace_ns")
    return frames.check(frame.assign(process=process_of(frame["thread"].to_numpy())), frames.MARKS)


def _streams(source: Tables, operations: pd.DataFrame) -> pd.DataFrame:
    contexts = _in_order(source.read(schema.CONTEXT))
    device_of = {  # the last row of a context counts
        (pid, context): device
        for pid, context, device in frames.rows_of(contexts, "pid", "context", "device")
    }
    frame = _in_order(source.read(schema.STREAM))
    by_pid = {int(pid_of(p)): int(p) for p in distinct(operations["process"].to_numpy())}
    pids, of_context = frame["pid"].tolist(), zip(frame["pid"], frame["context"], strict=True)
    frame = frame.assign(
        process=np.array([by_pid.get(pid, -1) for pid in pids], dtype=np.int64),
        device=np.array([device_of.get(key, -1) for key in of_context], dtype=np.int64),
    )
    return frames.check(frame.drop_duplicates(["process", "context", "stream"]), frames.STREAMS)


def _stretches(source: Tables, tables: Iterable[schema.Table], spec: frames.Spec) -> pd.DataFrame:
    """The profiler's own work, or calls of the OS runtime and of libraries, by their start."""
    rows = [pd.DataFrame(possible(source.columns_of(table))[0]) for table in tables]
    rows = [of_table.astype("int64") for of_table in rows if len(of_table)]
    if not rows:
        return frames.empty(spec)
    frame = _in_order(pd.concat(rows, ignore_index=True), "start_ns")
    return frames.check(frame.assign(process=process_of(frame["thread"].to_numpy())), spec)


def read_launches(path: Path, pids: Collection[int]) -> pd.DataFrame:
    """Kernels of these processes with the columns to which marks inside kernels are joined
    (`frames.LAUNCHES`); all kernels if the trace has no process ids."""
    with opened(path) as source:
        columns, _ = possible(source.columns_of(schema.KERNEL_LAUNCH))
        names = source.strings()
    unknown = columns["process"] < 0
    pid = np.where(unknown, -1, pid_of(columns["process"].astype(np.int64)))
    kept = np.isin(pid, list(pids)) | unknown
    table = pd.DataFrame(taken(columns | {"pid": pid}, kept)).astype("int64")
    texts = {i: presentable(names.get(i, "")) for i in table["name_id"].unique().tolist()}
    table["name"] = pd.Series([texts[i] for i in table["name_id"].tolist()], dtype="str")
    table["blocks"] = table["grid_x"] * table["grid_y"] * table["grid_z"]
    table = table.sort_values(["start_ns", "end_ns", "row"], ignore_index=True)
    return frames.check(table, frames.LAUNCHES)
