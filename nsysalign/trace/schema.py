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
    default: int | None  # value for "absent"; None: the column is required


class Table(NamedTuple):
    name: str
    fields: tuple[Field, ...]
    where: str = ""


def _table(name: str, columns: str, where: str = "") -> Table:
    """A line per column: our name, nsys's names, and the value that stands for "absent" if it is
    not -1 (`=0`, or `needed` for none)."""
    fields = []
    for line in columns.split("\n"):
        ours, *names = line.split() or [""]
        default: int | None = -1
        if names[-1:] in (["needed"], ["=0"]):
            default = None if names.pop() == "needed" else 0
        if ours:
            fields.append(Field(ours, tuple(names), default))
    return Table(name, tuple(fields), where)


_WHEN = """
    start_ns       start           needed
    end_ns         end             needed
"""
_WHERE = f"""{_WHEN}
    process        globalPid
    device         deviceId        =0
    context        contextId       =0
    stream         streamId        needed
    correlation    correlationId
"""
_KERNEL = f"""{_WHERE}
    name_id        demangledName shortName
    graph_node     graphNodeId
"""
_SHAPE = """
    grid_x         gridX           =0
    grid_y         gridY           =0
    grid_z         gridZ           =0
    block_x        blockX          =0
    block_y        blockY          =0
    block_z        blockZ          =0
    registers      registersPerThread
    static_shared_bytes   staticSharedMemory
    dynamic_shared_bytes  dynamicSharedMemory
"""
KERNEL = _table("CUPTI_ACTIVITY_KIND_KERNEL", _KERNEL)
#: Only read for the kernels that are drawn: the widest part of the longest table.
KERNEL_SHAPE = _table(KERNEL.name, _SHAPE)
#: The columns to which marks inside kernels are joined, and the SM resources that a kernel takes.
KERNEL_LAUNCH = _table(
    KERNEL.name,
    f"""{_KERNEL}{_SHAPE}
    grid_id        gridId
    local_bytes    localMemoryPerThread
""",
)
MEMCPY = _table(
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    f"""{_WHERE}
    bytes          bytes           =0
    copy_kind      copyKind
    src_kind       srcKind
    dst_kind       dstKind
    graph_node     graphNodeId
""",
)
MEMSET = _table(
    "CUPTI_ACTIVITY_KIND_MEMSET",
    f"""{_WHERE}
    bytes          bytes           =0
    dst_kind       memKind
    graph_node     graphNodeId
""",
)
GRAPH = _table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _WHERE)
#: Which graph a whole-graph execution ran: the number of the executable, or of the graph it was made of.
GRAPH_OF = _table(GRAPH.name, "graph graphExecId graphId")
#: In the order of model.OPERATION_KINDS.
OPERATION_TABLES = (KERNEL, GRAPH, MEMCPY, MEMSET)


def without_graphs(table: Table) -> Table:
    """The table without the graph column, for exports without graphs: that column is far back in
    every row."""
    return table._replace(fields=tuple(f for f in table.fields if f.name != "graph_node"))


RUNTIME = _table(
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    f"""{_WHEN}
    thread         globalTid       needed
    correlation    correlationId
    name_id        nameId          needed
    return_value   returnValue     =0
""",
)
SYNCHRONIZATION = _table(
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
    f"""{_WHEN}
    process        globalPid
    context        contextId       =0
    stream         streamId
    event          eventId
    event_sync     eventSyncId
    correlation    correlationId
""",
)
CUDA_EVENT = _table(
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT",
    """
    process        globalPid
    device         deviceId        =0
    context        contextId       =0
    stream         streamId        needed
    correlation    correlationId   needed
    event          eventId
    event_sync     eventSyncId
    timestamp_ns   timestamp
""",
)
NVTX = _table(
    "NVTX_EVENTS",
    """
    start_ns       start           needed
    end_ns         end
    thread         globalTid
    kind           eventType       needed
    text_id        textId
""",
    where="eventType in (59, 60)",
)
#: Clock marks that the probe leaves: eventType 34, payload = CLOCK_MONOTONIC.
NVTX_MARKS = _table(
    "NVTX_EVENTS",
    """
    trace_ns       start           needed
    thread         globalTid
    payload        int64Value uint64Value
    text_id        textId
""",
    where="eventType = 34",
)
STREAM = _table(
    "TARGET_INFO_CUDA_STREAM",
    """
    pid            processId
    context        contextId       =0
    stream         streamId        needed
    flag           flag
""",
)
CONTEXT = _table(
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    """
    pid            processId
    context        contextId       =0
    device         deviceId        =0
""",
)
_OF_THREAD = f"""{_WHEN}
    thread         globalTid
    name_id        nameId textId
"""
OVERHEAD, OSRT = (_table(name, _OF_THREAD) for name in ("PROFILER_OVERHEAD", "OSRT_API"))
MPI_P2P, MPI_COLLECTIVES, MPI_WAITS, MPI_OTHERS = (
    _table(f"MPI_{name}_EVENTS", _OF_THREAD) for name in ("P2P", "COLL", "START_WAIT", "OTHER")
)
CUDNN, CUBLAS = (_table(f"{name}_EVENTS", _OF_THREAD) for name in ("CUDNN", "CUBLAS"))
#: Calls other than CUDA's, by the thread that is in them.
OTHER_CALLS = (OSRT, MPI_P2P, MPI_COLLECTIVES, MPI_WAITS, MPI_OTHERS, CUDNN, CUBLAS)

#: Written by our own recorder alone, where it works in turns.
UNTRACED = _table(
    "NSYSALIGN_UNTRACED",
    f"""{_WHEN}
    process        globalPid       needed
    plain          plain           needed
""",
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
    ]
)

#: Of a GPU: size of its L2 (bytes), rate of its memory (bytes per second).
GPU_LIMITS = ("l2CacheSize", "memoryBandwidth")

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
    """The code into `model.CALL_KINDS` of a CUDA API name: syncType codes differ between nsys versions."""
    for code, pattern in _COMPILED:
        if pattern.match(name):
            return code
    return CALL["other"]


def api_name(name: str) -> str:
    """The name as in the documentation: without `_v7000` and per-thread-stream suffixes."""
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?(_v\d+)?$", "", name)
