"""A recording of the CUPTI truth library (TSV, with the GPU's own timestamp of every event) as an nsys-schema export.

    python scripts/truth_to_sqlite.py truth.tsv OUT.sqlite

So that alignment can be scored against ground truth: the export has CUPTI_ACTIVITY_KIND_CUDA_EVENT.timestamp.
"""

from __future__ import annotations

import argparse
import collections
import sqlite3
from pathlib import Path

VM = 1 << 48
SCHEMA = """
create table CUPTI_ACTIVITY_KIND_KERNEL (start integer not null, end integer not null, deviceId integer, contextId integer, streamId integer, correlationId integer, globalPid integer, demangledName integer, shortName integer, graphNodeId integer, gridId integer);
create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer not null, end integer not null, deviceId integer, contextId integer, streamId integer, correlationId integer, globalPid integer, bytes integer, copyKind integer, srcKind integer, dstKind integer, graphNodeId integer);
create table CUPTI_ACTIVITY_KIND_MEMSET (start integer not null, end integer not null, deviceId integer, contextId integer, streamId integer, correlationId integer, globalPid integer, bytes integer, memKind integer, graphNodeId integer);
create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer not null, end integer not null, eventClass integer, globalTid integer, correlationId integer, nameId integer, returnValue integer);
create table CUPTI_ACTIVITY_KIND_SYNCHRONIZATION (start integer not null, end integer not null, deviceId integer, contextId integer, streamId integer, correlationId integer, globalPid integer, syncType integer, eventId integer, eventSyncId integer);
create table CUPTI_ACTIVITY_KIND_CUDA_EVENT (timestamp integer, deviceId integer, contextId integer, streamId integer, correlationId integer, globalPid integer, eventId integer, eventSyncId integer);
create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer);
create table TARGET_INFO_CUDA_STREAM (streamId integer, hwId integer, vmId integer, processId integer, contextId integer, priority integer, flag integer);
create table TARGET_INFO_GPU (id integer, name text);
create table META_DATA_EXPORT (name text, value text);
create table StringIds (id integer not null primary key, value text not null);
"""
#: CUPTI_ACTIVITY_MEMORY_KIND (1 pageable, 2 pinned, 3 device, 4 array, 5 managed) to nsys's enumeration.
MEMORY = {1: 0, 2: 1, 3: 2, 4: 3, 5: 4}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("truth", type=Path)
    arguments.add_argument("out", type=Path)
    a = arguments.parse_args()
    rows = collections.defaultdict(list)
    for line in a.truth.read_text(errors="replace").splitlines():
        kind, *fields = line.split("\t")
        rows[kind].append(fields)
    epoch, pid = int(rows["START"][0][0]), int(rows["START"][0][1])
    process = VM | pid << 24
    names: dict[str, int] = {}
    # CUPTI gives pthread ids: the thread that recorded most events is the main thread, whose tid is the pid
    records = collections.Counter(f[3] for f in rows["RUNTIME"] if "EventRecord" in f[6])
    threads = {records.most_common(1)[0][0]: pid} if records else {}
    out = sqlite3.connect(a.out)
    out.executescript(SCHEMA)

    def name(text: str) -> int:
        return names.setdefault(text, len(names) + 1)

    def thread(identity: str) -> int:
        return process | threads.setdefault(identity, pid + 100_000 + len(threads))

    def t(text: str) -> int:
        return int(text) - epoch

    def put(table: str, values: list[tuple]) -> None:
        if values:
            out.executemany(
                f"insert into {table} values ({','.join('?' * len(values[0]))})", values
            )

    p = "CUPTI_ACTIVITY_KIND_"
    put(
        p + "KERNEL",
        [
            (
                t(f[0]),
                t(f[1]),
                int(f[2]),
                int(f[3]),
                int(f[4]),
                int(f[5]),
                process,
                name(f[6]),
                name(f[6]),
                int(f[8]) or None,
                int(f[9]) if len(f) > 9 else None,
            )
            for f in rows["KERNEL"]
        ],
    )
    put(
        p + "MEMCPY",
        [
            (
                t(f[0]),
                t(f[1]),
                int(f[2]),
                int(f[3]),
                int(f[4]),
                int(f[5]),
                process,
                int(f[9]),
                int(f[6]),
                MEMORY.get(int(f[7]), 7),
                MEMORY.get(int(f[8]), 7),
                None,
            )
            for f in rows["MEMCPY"]
        ],
    )
    put(
        p + "MEMSET",
        [
            (
                t(f[0]),
                t(f[1]),
                int(f[2]),
                int(f[3]),
                int(f[4]),
                int(f[5]),
                process,
                int(f[6]),
                None,
                None,
            )
            for f in rows["MEMSET"]
        ],
    )
    keep = (
        "Launch",
        "Memcpy",
        "Memset",
        "Event",
        "Synchronize",
        "Wait",
        "Malloc",
        "Free",
        "Graph",
        "Library",
        "Module",
        "Stream",
    )
    calls = [
        (t(f[0]), t(f[1]), cls, thread(f[3]), int(f[4]), name(f[6]), int(f[5]))
        for kind, cls in (("RUNTIME", 0), ("DRIVER", 1))
        for f in rows[kind]
        if any(k in f[6] for k in keep) and "IsCapturing" not in f[6]
    ]
    put(p + "RUNTIME", calls)
    put(
        p + "SYNCHRONIZATION",
        [
            (
                t(f[0]),
                t(f[1]),
                0,
                int(f[2]),
                int(f[3]),
                int(f[4]),
                process,
                int(f[5]),
                int(f[6]),
                int(f[7]),
            )
            for f in rows["SYNC"]
        ],
    )
    put(
        p + "CUDA_EVENT",
        [
            (
                t(f[0]) if int(f[0]) else 0,
                int(f[1]),
                int(f[2]),
                int(f[3]),
                int(f[4]),
                process,
                int(f[5]),
                int(f[6]),
            )
            for f in rows["EVENT"]
        ],
    )
    streams = sorted(
        {(int(f[4]), int(f[3])) for k in ("KERNEL", "MEMCPY", "MEMSET") for f in rows[k]}
        | {(int(f[3]), int(f[2])) for f in rows["EVENT"]}
    )
    put("TARGET_INFO_CUDA_STREAM", [(s, 0, 1, pid, c, 0, 3 if s == 7 else 2) for s, c in streams])
    put("TARGET_INFO_SESSION_START_TIME", [(epoch,)])
    put("TARGET_INFO_GPU", [(0, "NVIDIA H200")])
    put(
        "META_DATA_EXPORT",
        [
            ("EXPORT_PRODUCT_VERSION", "CUPTI recording in the nsys schema"),
            ("EXPORT_SCHEMA_VERSION", "3.25.0"),
        ],
    )
    put("StringIds", [(number, text) for text, number in names.items()])
    out.commit()
    out.close()


if __name__ == "__main__":
    main()
