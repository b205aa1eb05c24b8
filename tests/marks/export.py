"""An nsys export of a simulated GPU's kernels, with their grid ids: the smallest that is
analysed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.marks.simulated import Gpu

PID = 77
GLOBAL_PID = PID << 24


def export(
    gpu: Gpu, path: Path, *, registers: int = 32, local_bytes: int = 0, name: str = ""
) -> Path:
    """Kernel rows of `gpu`, each with the call that launched it, 5 us before; an NVTX range around
    each."""
    with closing(sqlite3.connect(path)) as c:
        c.executescript("""
            create table StringIds (id integer primary key, value text);
            create table META_DATA_EXPORT (name text, value text);
            create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, eventClass int, globalTid int, correlationId int, nameId int, returnValue int);
            create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, contextId int, streamId int, correlationId int,
              globalPid int, demangledName int, shortName int, registersPerThread int, gridX int, gridY int, gridZ int, blockX int, blockY int,
              blockZ int, staticSharedMemory int, dynamicSharedMemory int, localMemoryPerThread int, gridId int, graphNodeId int);
            create table NVTX_EVENTS (start int, end int, eventType int, text text, globalTid int, textId int);
            insert into StringIds values (1, 'cudaLaunchKernel_v7000');
        """)
        names = {
            text: 10 + i for i, text in enumerate(sorted({name or row[5] for row in gpu.rows}))
        }
        c.executemany(
            "insert into StringIds values (?, ?)", [(i, text) for text, i in names.items()]
        )
        for at, (start, end, grid, blocks, threads, called) in enumerate(gpu.rows):
            c.execute(
                "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?,?,0,?,?,1,0)",
                (start - 5_000, start - 3_000, GLOBAL_PID + 1, at + 1),
            )
            c.execute(
                f"insert into CUPTI_ACTIVITY_KIND_KERNEL values ({','.join('?' * 21)})",
                (start, end, 0, 1, 7, at + 1, GLOBAL_PID, names[name or called], names[name or called], registers,
                 blocks, 1, 1, threads, 1, 1, 0, 0, local_bytes, grid, None),
            )  # fmt: skip
            c.execute(
                "insert into NVTX_EVENTS values (?,?,59,?,?,null)",
                (start - 6_000, start - 2_000, f"step {called}", GLOBAL_PID + 1),
            )
        c.commit()
    return path
