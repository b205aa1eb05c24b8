"""The GPU's part of a trace for programs that ran with the fake torch: added to an export of a real
nsys.

    python fakegpu.py EXPORT.sqlite RUN_DIR

Every record in the run's event logs gets the API call that a real one would have, inside the Python
call, on the thread that made it; every process gets one kernel.  With it runs without a GPU can be analysed to the end.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

from nsysalign.record.convert import convert
from nsysalign.rundir import event_logs

from .logs import read_log

TABLES = {
    "RUNTIME": "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT, returnValue INT",
    "KERNEL": "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT, "
    "demangledName INT, shortName INT, gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT",
}
NAMES = {
    900_001: "cudaEventRecordWithFlags_v11010", 900_002: "cudaLaunchKernel_v7000", 900_003: "fake_kernel"
}  # fmt: skip


def add(export: Path, run_dir: Path) -> None:
    """Tables of API calls and kernels for everything that the logs of `run_dir` tell."""
    runtime, kernels = [], []
    with tempfile.TemporaryDirectory() as folder:
        paths = event_logs(run_dir) or convert(run_dir / "raw", Path(folder), run_dir)
        logs = [read_log(path) for path in paths]
    db = sqlite3.connect(export)
    offset, machine = _clock(db, logs)
    correlation = 0
    for lines in logs:
        pid = lines[0]["pid"]
        process = machine | pid << 24
        records = [line for line in lines if line["type"] == "record"]
        if not records:
            continue

        began = records[0]["t0_ns"] - 60_000 + offset
        runtime.append((began, began + 9_999, 0, process | pid, correlation, 900_002, 0))
        ids = correlation, process, 900_003, 900_003
        kernels.append((began + 10_000, began + 20_000, 0, 1, 7, *ids, *[1] * 6))
        correlation += 1
        for line in records:
            # with Python's own share before and after it: two readings of the clock marks differ by
            # about as much.  A call that is slower was held up before its event's time or after it
            share = min((line["t1_ns"] - line["t0_ns"]) * 2 // 5, 1_000)
            at, end = line["t0_ns"] + share + offset, line["t1_ns"] - share + offset
            runtime.append((at, end, 0, process | line["tid"], correlation, 900_001, 0))
            correlation += 1
    with db:
        for (table, columns), rows in zip(TABLES.items(), (runtime, kernels), strict=True):
            db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_{table} ({columns})")
            marks = ",".join("?" * len(columns.split(",")))
            db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES ({marks})", rows)
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", NAMES.items())
    db.close()


def _clock(db: sqlite3.Connection, logs: list[list[dict]]) -> tuple[int, int]:
    """Trace time minus perf_counter, and the machine's bits of globalTid: from the probe's clock
    marks, or, where nsys lost them all with a process that died, from the session's start."""
    before = {line["payload"]: line for lines in logs for line in lines if line["type"] == "sync"}
    marks = []
    if db.execute("SELECT name FROM sqlite_master WHERE name = 'NVTX_EVENTS'").fetchone():
        marks = db.execute(
            "SELECT start, int64Value, globalTid FROM NVTX_EVENTS WHERE int64Value > 0"
        ).fetchall()
    known = [(at, before[payload], thread) for at, payload, thread in marks if payload in before]
    # where a program died nsys has lost all but the first few, which are slow: neither end is the
    # truth
    if known:
        low = max(at - line["after_ns"] for at, line, _ in known)
        high = min(at - line["before_ns"] for at, line, _ in known)
        return (low + high) // 2, known[0][2] & ~((1 << 48) - 1)
    (began,) = db.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    clock = logs[0][0]["clock"]
    return clock["realtime_ns"] - clock["monotonic_ns"] - began, 1 << 48


if __name__ == "__main__":
    add(Path(sys.argv[1]), Path(sys.argv[2]))
