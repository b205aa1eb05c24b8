"""What nsys wrote from 2020 to 2026, made from one recording: each variant is a function on an open
export."""

from __future__ import annotations

import json
import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parents[1] / "data"
P = "CUPTI_ACTIVITY_KIND_"
WORK = tuple(P + name for name in ("KERNEL", "MEMCPY", "MEMSET"))
OF_PROCESSES = (*WORK, P + "SYNCHRONIZATION", P + "CUDA_EVENT")
RECORDING = (
    "truth_oracle"  # two devices' worth of streams, graphs, waits, copies; every event's GPU time
)
SHARE = 0.5  # of its length: a slice, as `nsys profile --duration` leaves it

Change = Callable[[sqlite3.Connection], None]


class Variant(NamedTuple):
    """`like`: whose numbers it must give ("recorded", "untimed": without GPU timestamps, None: its
    own, exact)."""

    name: str
    changes: tuple[Change, ...]
    like: str | None = None
    note: str = ""  # a regular expression that a note or an entry of `missing` matches
    version: str | None = "3.25.0"


def write_slice(folder: Path) -> tuple[Path, Path]:
    """The first part of the recording and of its log."""
    trace, log = folder / "trace.sqlite", folder / "events.jsonl"
    trace.write_bytes(lzma.decompress((DATA / f"{RECORDING}.sqlite.xz").read_bytes()))
    with closing(sqlite3.connect(trace)) as db:
        first, last = db.execute(f"select min(start), max(end) from {P}RUNTIME").fetchone()
        end = first + int((last - first) * SHARE)
        for table in (*WORK, P + "RUNTIME", P + "SYNCHRONIZATION"):
            db.execute(f"delete from {table} where start > ?", (end,))
        db.execute(
            f"delete from {P}CUDA_EVENT where correlationId not in (select correlationId from {P}RUNTIME)"
        )
        (epoch,) = db.execute("select utcEpochNs from TARGET_INFO_SESSION_START_TIME").fetchone()
        db.commit()
        db.execute("vacuum")
    lines = [
        json.loads(x)
        for x in lzma.decompress((DATA / f"{RECORDING}.events.jsonl.xz").read_bytes()).splitlines()
    ]
    clock = lines[0]["clock"]
    until = end + epoch - clock["realtime_ns"] + clock["monotonic_ns"]
    kept = {x["seq"] for x in lines if x["type"] == "record" and x["t1_ns"] < until}
    with log.open("w") as file:
        for x in lines:
            if x["type"] in ("record", "host") and x["t1_ns"] >= until:
                continue
            if x["type"] in ("elapsed", "calibration") and not {x["start"], x["end"]} <= kept:
                continue
            file.write(json.dumps(x) + "\n")
    return trace, log


# --- steps
# -----------------------------------------------------------------------------------------------------


def drop(*tables: str) -> Change:
    def change(db: sqlite3.Connection) -> None:
        for table in tables:
            db.execute(f'drop table "{table}"')

    return change


def without(column: str, *tables: str) -> Change:
    def change(db: sqlite3.Connection) -> None:
        for table in tables:
            if column in _columns(db, table):
                db.execute(f'alter table "{table}" drop column "{column}"')

    return change


def set_all(table: str, column: str, value: int | None, where: str = "1") -> Change:
    return lambda db: db.execute(f'update "{table}" set "{column}" = ? where {where}', (value,))


def add(table: str, column: str, value: object = None) -> Change:
    def change(db: sqlite3.Connection) -> None:
        db.execute(f'alter table "{table}" add column "{column}"')
        db.execute(f'update "{table}" set "{column}" = ?', (value,))

    return change


def rename_column(table: str, old: str, new: str) -> Change:
    return lambda db: db.execute(f'alter table "{table}" rename column "{old}" to "{new}"')


def version(schema: str, product: str = "2024.1.1", table: str = "META_DATA_EXPORT") -> Change:
    def change(db: sqlite3.Connection) -> None:
        db.execute("drop table META_DATA_EXPORT")
        db.execute(f"create table {table} (name text, value text)")
        rows = [("EXPORT_PRODUCT_VERSION", product), ("EXPORT_SCHEMA_VERSION", schema)]
        db.executemany(f"insert into {table} values (?, ?)", rows)

    return change


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f'pragma table_info("{table}")')]


def chain(*changes: Change) -> Change:
    def change(db: sqlite3.Connection) -> None:
        for one in changes:
            one(db)

    return change


# --- the versions
# ----------------------------------------------------------------------------------------------

no_timestamps = without("timestamp", P + "CUDA_EVENT")
no_waits_joined = without("eventSyncId", P + "SYNCHRONIZATION", P + "CUDA_EVENT")
no_event_rows = drop(P + "CUDA_EVENT")
before_2023 = chain(no_event_rows, no_waits_joined)
NO_EVENTS, NO_STREAMS = "CUDA_EVENT: no GPU timestamps", "TARGET_INFO_CUDA_STREAM: no stream table"

VARIANTS = (
    Variant("as recorded, 2026.2", (), "recorded"),
    Variant(
        "2020: no globalPid, no graphNodeId, no version",
        (before_2023, without("globalPid", *OF_PROCESSES[:-1]), without("graphNodeId", *WORK),
         drop("META_DATA_EXPORT", "TARGET_INFO_CUDA_STREAM")),
        note=NO_STREAMS, version=None,
    ),
    Variant("2022.4", (before_2023, version("3.0.0", "2022.4.2", "EXPORT_META_DATA")), None, NO_EVENTS, "3.0.0"),
    Variant(
        "2023.2: event rows without a time",
        (no_timestamps, no_waits_joined, version("3.2.0", "2023.2.1", "EXPORT_META_DATA")),
        "untimed", version="3.2.0",
    ),
    Variant("2024.6: times are NULL", (set_all(P + "CUDA_EVENT", "timestamp", None), version("3.16.1")), "untimed", version="3.16.1"),
    Variant(
        "2025.5: deprecatedSyncType, overheadType, copyCount",
        (rename_column(P + "SYNCHRONIZATION", "syncType", "deprecatedSyncType"),
         add(P + "SYNCHRONIZATION", "syncType", 99), add(P + "MEMCPY", "copyCount", 1), version("3.24.0")),
        "recorded", version="3.24.0",
    ),
    Variant("2026.3", (version("3.27.0", "2026.3.1"),), "recorded", version="3.27.0"),
    Variant(
        "a schema of the future",
        (version("9.99.0", "2031.1.1"), add(P + "KERNEL", "aColumnOf2031", "x"), add(P + "RUNTIME", "other", b"\0"),
         lambda db: db.execute("create table CUPTI_ACTIVITY_KIND_TELEPORT (start, end)")),
        "recorded", r"schema 9\.99\.0 is newer than 3\.27, the newest that this nsysalign knows", "9.99.0",
    ),
    Variant("event rows of a part of the program", (lambda db: db.execute(f"delete from {P}CUDA_EVENT where rowid % 3 = 0"),)),
    Variant("no event rows", (no_event_rows,), None, NO_EVENTS),
    Variant("no stream table", (drop("TARGET_INFO_CUDA_STREAM"),), None, NO_STREAMS),
    Variant("no synchronisation rows", (drop(P + "SYNCHRONIZATION"),), None, "SYNCHRONIZATION: no synchronisation rows"),
    Variant("no kernels", (drop(P + "KERNEL"),), None, "KERNEL: no kernel rows although CUDA calls were traced"),
    Variant(
        "times of zero and backwards",
        (set_all(P + "KERNEL", "end", 0, "rowid % 7 = 0"), set_all(P + "RUNTIME", "end", 0, "rowid % 11 = 0")),
        None, "impossible times",
    ),
    Variant(
        "records dropped by the profiler",
        (lambda db: db.executescript("create table DIAGNOSTIC_EVENT (timestamp, timestampType, source, severity, text, globalPid); insert into DIAGNOSTIC_EVENT values (1, 1, 1, 2, 'CUPTI: 512 records were dropped.', 1)"),),
        "recorded", "512 records were dropped",
    ),
)  # fmt: skip
