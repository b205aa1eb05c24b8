"""A small nsys export, written row by row so that a test can take away what it wants to see
missing.

thread 7   |rec|  |  launch  | |copy| |set| |rec| |graph| |        stream synchronise         |
stream 7                                             |kernel| |copy| |set| |graph|
us         5  10  20        40 50  60 62 64 65 70 71  75 80 100 140 150 170 175 180 182 190  200
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

US = 1000
EPOCH = 1_700_000_000_000_000_000
OFFSET = 5_000_000_000  # CLOCK_MONOTONIC - trace time
PID = 7
PROCESS = (1 << 56) | (PID << 24)
P = "CUPTI_ACTIVITY_KIND_"
TEXT = {"text", "name", "value"}

NAMES = {
    1: "cudaEventRecord_v3020", 2: "cudaLaunchKernel_v7000", 3: "cudaMemcpyAsync_v3020", 4: "cudaMemsetAsync_v3020",
    5: "cudaGraphLaunch_v10000", 6: "cudaStreamSynchronize_v3020", 7: "add(float*)", 8: "cuLaunchKernel", 9: "work",
    10: "nanosleep",
}  # fmt: skip

Tables = dict[str, list[dict]]


def call(
    correlation: int, name: int, start: int, end: int, process: int = PROCESS, tid: int = PID
) -> dict:
    """A row of RUNTIME; times in us."""
    return {
        "start": start * US, "end": end * US, "globalTid": process | tid, "correlationId": correlation,
        "nameId": name, "returnValue": 0,
    }  # fmt: skip


def work(correlation: int, start: int, end: int, process: int = PROCESS, **more: object) -> dict:
    """A row of GPU work on stream 7, its columns in the order of schema 3.11; times in us."""
    return {
        "start": start * US, "end": end * US, "deviceId": 0, "contextId": 1, "greenContextId": None,
        "streamId": 7, "correlationId": correlation, "globalPid": process, **more,
    }  # fmt: skip


def tiny() -> Tables:
    """The timeline above, in every table that is read."""
    event = {"deviceId": 0, "contextId": 1, "streamId": 7, "globalPid": PROCESS}
    nvtx = {"globalTid": PROCESS | PID, "text": None, "textId": None, "int64Value": None}
    in_call = {"start": 43 * US, "end": 48 * US, "globalTid": PROCESS | PID}
    return {
        P + "RUNTIME": [
            call(1, 1, 5, 10), call(2, 2, 20, 40), call(3, 3, 50, 60), call(4, 4, 62, 64), call(5, 1, 65, 70),
            call(6, 5, 71, 75), call(7, 6, 80, 200),
        ],
        P + "KERNEL": [work(2, 100, 140, demangledName=7, shortName=7, graphNodeId=None)],
        P + "MEMCPY": [work(3, 150, 170, bytes=4096, copyKind=1, srcKind=0, dstKind=2, graphNodeId=None)],
        P + "MEMSET": [work(4, 175, 180, bytes=64, memKind=2, graphNodeId=None)],
        P + "GRAPH_TRACE": [work(6, 182, 190)],
        P + "SYNCHRONIZATION": [
            {"start": 80 * US, "end": 200 * US, "globalPid": PROCESS, "contextId": 1, "streamId": 7,
             "eventId": 4294967295, "correlationId": 7},
        ],
        P + "CUDA_EVENT": [
            {**event, "correlationId": 1, "eventId": 1, "timestamp": None},
            {**event, "correlationId": 5, "eventId": 2, "timestamp": None},
        ],
        "NVTX_EVENTS": [
            {"start": 15 * US, "end": 75 * US, "eventType": 59, **nvtx, "textId": 9},
            {"start": 16 * US, "end": None, "eventType": 60, **nvtx, "text": "open"},
            {"start": 3 * US, "end": None, "eventType": 34, **nvtx, "text": "nsysalign:sync",
             "int64Value": OFFSET + 3 * US},
        ],
        "PROFILER_OVERHEAD": [
            {"start": 41 * US, "end": 42 * US, "globalTid": PROCESS | PID, "nameId": 9},
        ],
        **{name: [in_call | {"nameId": 10}] for name in ("OSRT_API", "CUDNN_EVENTS", "CUBLAS_EVENTS")},
        **{f"MPI_{name}_EVENTS": [in_call | {"textId": 10}] for name in ("P2P", "COLL", "START_WAIT", "OTHER")},
        "TARGET_INFO_CUDA_STREAM": [{"streamId": 7, "processId": PID, "contextId": 1, "flag": 3}],
        "TARGET_INFO_CUDA_CONTEXT_INFO": [
            {"nullStreamId": 7, "processId": PID, "deviceId": 0, "contextId": 1},
        ],
        "TARGET_INFO_GPU": [{"id": 0, "name": "GPU of the test"}],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": EPOCH}],
        "TARGET_INFO_SYSTEM_ENV": [{"name": "NvDriverVersion", "value": "580.1"}],
        "META_DATA_EXPORT": [
            {"name": "EXPORT_PRODUCT_VERSION", "value": "2024.2.3"},
            {"name": "EXPORT_SCHEMA_VERSION", "value": "3.11.1"},
        ],
        "DIAGNOSTIC_EVENT": [{"severity": 2, "text": "Not all events might have been collected."}],
        "StringIds": [{"id": i, "value": text} for i, text in NAMES.items()],
    }  # fmt: skip


TIMES = {"tid": PID, "device": 0, "stream_handle": 0, "stream_id": 7}
#: The event log that goes with it: 170 us between its two records.
LOG = [
    {"type": "header", "format": "nsysalign-events", "version": 1, "pid": PID,
     "clock": {"monotonic_ns": OFFSET, "realtime_ns": EPOCH, "trace_ns": 0}},
    {"type": "record", "seq": 0, **TIMES, "t0_ns": OFFSET + 4 * US, "t1_ns": OFFSET + 11 * US},
    {"type": "record", "seq": 1, **TIMES, "t0_ns": OFFSET + 64 * US, "t1_ns": OFFSET + 71 * US},
    {"type": "elapsed", "start": 0, "end": 1, "ms": 0.170, "t1_ns": OFFSET + 210 * US},
]  # fmt: skip


def write_lines(path: Path, lines: Sequence = LOG) -> Path:
    """A log."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_export(path: Path, tables: Mapping[str, Sequence[Mapping]] | None = None) -> Path:
    """An SQLite file with these tables, or the tiny ones."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        for table, rows in (tiny() if tables is None else tables).items():
            columns = list(dict.fromkeys(c for row in rows for c in row)) or ["start"]
            declared = ", ".join(f'"{c}" {"TEXT" if c in TEXT else "INTEGER"}' for c in columns)
            db.execute(f'create table "{table}" ({declared})')
            marks = ", ".join("?" * len(columns))
            db.executemany(
                f'insert into "{table}" values ({marks})',
                [tuple(r.get(c) for c in columns) for r in rows],
            )
        db.commit()
    return path
