"""The only place that knows nsys's table and column names, and how they changed from 2020 to now.

Each `Table` maps our column to the candidates nsys has used, newest first, with the value that
stands for "absent". NULLs are coalesced in SQL: a NULL would turn an integer column into float64,
which cannot hold 64-bit ids. Every name that reaches an SQL statement comes from this file, never
from the input.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from nsysalign.model import CALL


class Field(NamedTuple):
    name: str  # our name
    candidates: tuple[str, ...]  # nsys's names
    default: int | None = -1  # value for "absent"; None: the column is required


class Table(NamedTuple):
    name: str
    fields: tuple[Field, ...]
    where: str = ""


def _f(name: str, *candidates: str, default: int | None = -1) -> Field:
    return Field(name, candidates or (name,), default)


_WHERE_AND_WHEN = (
    _f("start_ns", "start", default=None),
    _f("end_ns", "end", default=None),
    _f("process", "globalPid"),
    _f("device", "deviceId", default=0),
    _f("context", "contextId", default=0),
    _f("stream", "streamId", default=None),
    _f("correlation", "correlationId"),
)

KERNEL = Table(
    "CUPTI_ACTIVITY_KIND_KERNEL",
    (
        *_WHERE_AND_WHEN,
        _f("name_id", "demangledName", "shortName"),
        _f("graph_node", "graphNodeId"),
    ),
)
#: Only read for the kernels that are drawn: the widest part of the longest table.
KERNEL_SHAPE = Table(
    KERNEL.name,
    (
        *(
            _f(f"{what}_{axis}", f"{what}{axis.upper()}", default=0)
            for what in ("grid", "block")
            for axis in "xyz"
        ),
        _f("registers", "registersPerThread"),
        _f("static_shared_bytes", "staticSharedMemory"),
        _f("dynamic_shared_bytes", "dynamicSharedMemory"),
    ),
)
#: The columns to which marks inside kernels are joined, and the SM resources that a kernel takes.
KERNEL_LAUNCH = Table(
    KERNEL.name,
    (
        *KERNEL.fields,
        *KERNEL_SHAPE.fields,
        _f("grid_id", "gridId"),
        _f("local_bytes", "localMemoryPerThread"),
    ),
)
MEMCPY = Table(
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    (
        *_WHERE_AND_WHEN,
        _f("bytes", default=0),
        _f("copy_kind", "copyKind"),
        _f("src_kind", "srcKind"),
        _f("dst_kind", "dstKind"),
        _f("graph_node", "graphNodeId"),
    ),
)
MEMSET = Table(
    "CUPTI_ACTIVITY_KIND_MEMSET",
    (
        *_WHERE_AND_WHEN,
        _f("bytes", default=0),
        _f("dst_kind", "memKind"),
        _f("graph_node", "graphNodeId"),
    ),
)
GRAPH = Table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _WHERE_AND_WHEN)
#: In the order of model.OPERATION_KINDS.
OPERATION_TABLES = (KERNEL, GRAPH, MEMCPY, MEMSET)


def without_graphs(table: Table) -> Table:
    """The table without the graph column, for exports without graphs: that column is far back in
    every row."""
    return table._replace(fields=tuple(f for f in table.fields if f.name != "graph_node"))


RUNTIME = Table(
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    (
        _f("start_ns", "start", default=None),
        _f("end_ns", "end", default=None),
        _f("thread", "globalTid", default=None),
        _f("correlation", "correlationId"),
        _f("name_id", "nameId", default=None),
        _f("return_value", "returnValue", default=0),
    ),
)
SYNCHRONIZATION = Table(
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    (
        _f("start_ns", "start", default=None),
        _f("end_ns", "end", default=None),
        _f("process", "globalPid"),
        _f("context", "contextId", default=0),
        _f("stream", "streamId"),
        _f("event", "eventId"),
        _f("event_sync", "eventSyncId"),
        _f("correlation", "correlationId"),
    ),
)
CUDA_EVENT = Table(
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    (
        _f("process", "globalPid"),
        _f("device", "deviceId", default=0),
        _f("context", "contextId", default=0),
        _f("stream", "streamId", default=None),
        _f("correlation", "correlationId", default=None),
        _f("event", "eventId"),
        _f("event_sync", "eventSyncId"),
        _f("timestamp_ns", "timestamp"),
    ),
)
NVTX = Table(
    "NVTX_EVENTS",
    (
        _f("start_ns", "start", default=None),
        _f("end_ns", "end"),
        _f("thread", "globalTid"),
        _f("kind", "eventType", default=None),
        _f("text_id", "textId"),
    ),
    where="eventType in (59, 60)",
)
#: Clock marks that the probe leaves: eventType 34, payload = CLOCK_MONOTONIC.
NVTX_MARKS = Table(
    "NVTX_EVENTS",
    (
        _f("trace_ns", "start", default=None),
        _f("thread", "globalTid"),
        _f("payload", "int64Value", "uint64Value"),
        _f("text_id", "textId"),
    ),
    where="eventType = 34",
)
STREAM = Table(
    "TARGET_INFO_CUDA_STREAM",
    (
        _f("pid", "processId"),
        _f("context", "contextId", default=0),
        _f("stream", "streamId", default=None),
        _f("flag"),
    ),
)
CONTEXT = Table(
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    (
        _f("pid", "processId"),
        _f("context", "contextId", default=0),
        _f("device", "deviceId", default=0),
        _f("null_stream", "nullStreamId"),
    ),
)
OVERHEAD = Table(
    "PROFILER_OVERHEAD",
    (
        _f("start_ns", "start", default=None),
        _f("end_ns", "end", default=None),
        _f("thread", "globalTid"),
        _f("name_id", "nameId"),
    ),
)
OSRT = Table(
    "OSRT_API",
    (
        _f("start_ns", "start", default=None),
        _f("end_ns", "end", default=None),
        _f("thread", "globalTid"),
        _f("name_id", "nameId"),
    ),
)

#: The export's version lives in one of these (2023.3 on, 2022.4 - 2023.2); older exports have
#: neither.
META_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")

#: Every `Table` above: one that is added is copied by `redact` and refused where it is a view
#: without being named again.
TABLES = tuple(value for value in list(globals().values()) if isinstance(value, Table))
#: Every table that is read for any purpose.
NAMES = frozenset(
    [
        *(table.name for table in TABLES),
        *(*META_TABLES, "StringIds", "DIAGNOSTIC_EVENT"),
        *("TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_GPU"),
        "ANALYSIS_DETAILS",
    ]
)

#: Of a GPU: size of its L2 (bytes), rate of its memory (bytes per second).
GPU_LIMITS = ("l2CacheSize", "memoryBandwidth")
GPU_COLUMNS = ("id", "name", "cuDevice", "smCount", *GPU_LIMITS)

#: The newest schema whose names are known to be these (nsys 2026.3).  Newer ones are read as far as
#: the names hold.
NEWEST = (3, 27)

#: What a missing table costs, and the nsys option that adds it.  Tables not named here are not
#: worth a note.
COST = {
    KERNEL.name: "no kernel rows: add -t cuda to nsys profile",
    RUNTIME.name: "no CUDA API rows: the host side is unknown; add -t cuda",
    SYNCHRONIZATION.name: "no synchronisation rows: it is not known what waits waited for",
    CUDA_EVENT.name: "no GPU timestamps of events: they are placed from their neighbours (--accurate records them)",
    STREAM.name: "no stream table: the legacy default stream cannot be identified",
    NVTX.name: "no NVTX rows: host gaps carry no range names; add -t nvtx",
}

#: Of an export that has API rows, so that -t cuda was given.
CALLS_WITHOUT_KERNELS = (
    "no kernel rows although CUDA calls were traced: nothing ran on the GPU, or the driver gave nsys none (WSL2, a virtual "
    "machine, a driver newer than this nsys, counters reserved for administrators)"
)

#: The same for exports before 2022.4, whose schema has no such table: it was not switched off.
NOT_BEFORE_2022_4 = {
    CUDA_EVENT.name: "no GPU timestamps of events (exports before 2022.4 have none): they are placed from their neighbours",
    STREAM.name: "no stream table (exports before 2022.4 have none): whether one is the legacy default stream is unknown",
}

NO_ID = 4294967295  # CUPTI's sentinel for "no stream" and "no event"

_PATTERNS: tuple[tuple[str, str], ...] = (
    ("graph_launch", r"^(cuda|cu)GraphLaunch"),
    ("host_function", r"^(cuda|cu)(LaunchHostFunc|StreamAddCallback)"),
    ("launch", r"^(cudaLaunch|cuLaunch)"),
    (
        "stream_memory_op",
        r"^cuStream(WaitValue|WriteValue|BatchMemOp)|^(cuda|cu)(Wait|Signal)ExternalSemaphores",
    ),
    ("memcpy", r"^(cuda|cu)(Memcpy|MemPrefetch)"),
    ("memset", r"^(cuda|cu)Memset"),
    ("sync_device", r"^(cudaDeviceSynchronize|cudaThreadSynchronize|cuCtxSynchronize)"),
    ("sync_stream", r"^(cuda|cu)StreamSynchronize"),
    ("sync_event", r"^(cuda|cu)EventSynchronize"),
    ("record", r"^(cuda|cu)EventRecord"),
    ("query_event", r"^(cuda|cu)EventQuery"),
    ("query_stream", r"^(cuda|cu)StreamQuery"),
    ("wait_event", r"^(cuda|cu)StreamWaitEvent"),
)
_COMPILED = tuple((CALL[kind], re.compile(pattern)) for kind, pattern in _PATTERNS)


def call_kind(name: str) -> int:
    """The code into `model.CALL_KINDS` of a CUDA API name (`cudaLaunchKernel_v7000`,
    `cuLaunchKernelEx`, ...).

    Classified by name because syncType codes differ between nsys versions.
    """
    for code, pattern in _COMPILED:
        if pattern.match(name):
            return code
    return CALL["other"]


def api_name(name: str) -> str:
    """The name as in the documentation: without `_v7000` and per-thread-stream suffixes."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?(_v\d+)?$", "", name)
