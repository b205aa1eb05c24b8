"""Writes worlds as an nsys-schema SQLite file and event logs (docs/design.md, section 5)."""

from __future__ import annotations

import json
import random
import sqlite3
from pathlib import Path

from .eventlog import log_lines
from .schema import ENUMS, NONE, NOT_READY, SYNC_TYPES, TABLES, TEXT, P
from .style import Style
from .world import World

PLAIN = Style()


def write(worlds: World | list[World], folder: Path, style: Style = PLAIN, name: str = "trace"):
    """-> (path of the SQLite file, paths of the event logs, one per process)."""
    worlds = [worlds] if isinstance(worlds, World) else worlds
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.sqlite"
    path.unlink(missing_ok=True)
    _Sqlite(style).write(worlds, path)
    logs = []
    for world in worlds:
        logs.append(folder / f"{name}-events-{world.pid}.jsonl")
        logs[-1].write_text("".join(json.dumps(line) + "\n" for line in log_lines(world, style)))
    return path, logs


class _Sqlite:
    def __init__(self, style: Style):
        self.style = style
        self.rows: dict[str, list[dict]] = {name: [] for name in TABLES}
        self.strings: dict[str, int] = {}

    def write(self, worlds: list[World], path: Path) -> None:
        timed = self.style.event_rows == "timestamps"
        self._session("3.25.0" if timed else "3.11.1", {w.device for w in worlds})
        for world in worlds:
            self._world(world)
        shuffle = random.Random(self.style.shuffle)
        db = sqlite3.connect(path)
        for table, columns in TABLES.items():
            if table == P + "CUDA_EVENT" and self.style.event_rows == "none":
                continue
            extra = {
                P + "CUDA_EVENT": " timestamp eventSyncId",
                P + "SYNCHRONIZATION": " eventSyncId",
            }
            names = (columns + (extra.get(table, "") if timed else "")).split()
            db.execute(f"CREATE TABLE {table} ({', '.join(map(_column, names))})")
            plain = [n.rstrip("+") for n in names]
            empty = {n: 0 if n + "+" in names else None for n in plain}
            rows = [tuple((empty | r)[n] for n in plain) for r in self.rows[table]]
            if self.style.shuffle is not None:
                shuffle.shuffle(rows)
            db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(plain))})", rows)
        for table, values in ENUMS.items():
            db.execute(f"CREATE TABLE {table} (id INTEGER, name TEXT, label TEXT)")
            rows = [(i, name, name) for i, name in values.items()]
            db.executemany(f"INSERT INTO {table} VALUES (?,?,?)", rows)
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        strings = [(i, text) for text, i in self.strings.items()]
        db.executemany("INSERT INTO StringIds VALUES (?,?)", strings)
        db.commit()
        db.close()

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def _row(self, table: str, columns: str, *values: object, **more: object) -> None:
        self.rows[table].append(dict(zip(columns.split(), values, strict=True)) | more)

    def _session(self, schema: str, devices: set[int]) -> None:
        for name, value in (("PRODUCT", "2024.2.3.38-simulated"), ("SCHEMA", schema)):
            self._row("META_DATA_EXPORT", "name value", f"EXPORT_{name}_VERSION", value)
        epoch = self.style.utc_epoch - self.style.shift
        self._row("TARGET_INFO_SESSION_START_TIME", "utcEpochNs", epoch)
        of_gpu = "vmId id cuDevice name isDiscrete l2CacheSize memoryBandwidth smCount"
        of_h200 = "Simulated H200", 1, 62_914_560, 4_814_304_000_000, 1
        for device in sorted(devices):
            self._row("TARGET_INFO_GPU", of_gpu, 1, device, device, *of_h200)

    def _world(self, w: World) -> None:
        shift, pid = self.style.shift, global_pid(w)
        where = {"deviceId": w.device, "contextId": w.context, "globalPid": pid}
        of_stream = "vmId processId contextId streamId flag"
        for stream, flag in w.streams.items():
            self._row("TARGET_INFO_CUDA_STREAM", of_stream, 1, w.pid, w.context, stream, flag)
        of_context = "vmId processId contextId deviceId nullStreamId"
        self._row("TARGET_INFO_CUDA_CONTEXT_INFO", of_context, 1, w.pid, w.context, w.device, 7)
        when = "start end"
        for c in w.calls:
            inner = c.nested if c.api.startswith("cuda") else ()
            for number, (name, start, end) in enumerate(((c.api, c.start, c.end), *inner)):
                self._row(
                    P + "RUNTIME", f"{when} correlationId", start + shift, end + shift,
                    c.correlation + 500_000 * number, globalTid=pid | c.thread, nameId=self._string(name),
                    eventClass=int(not name.startswith("cuda")),
                    returnValue=NOT_READY if c.kind.startswith("query") else 0,
                )  # fmt: skip
            if c.kind in SYNC_TYPES:
                known = (n if n >= 0 else NONE for n in (c.stream, c.event))
                self._row(
                    P + "SYNCHRONIZATION", f"{when} streamId eventId", c.start + shift, c.end + shift, *known,
                    **where | {"deviceId": 0}, correlationId=c.correlation, syncType=SYNC_TYPES[c.kind],
                    eventSyncId=c.record.sync_id if c.record else NONE,
                )  # fmt: skip
        for o in w.ops:
            row = {"streamId": o.stream, "bytes": o.bytes, "copyKind": o.copy_kind, "memKind": 2,
                   "srcKind": o.src_kind, "dstKind": o.dst_kind, "graphNodeId": o.graph_node or None,
                   "correlationId": o.call.correlation if o.call else 900_000 + w.ops.index(o), **where}  # fmt: skip
            if o.kind == "kernel":
                names = ("demangledName", "shortName", "mangledName")
                row |= dict.fromkeys(names, self._string(self.style.rename + o.name))
                row |= dict.fromkeys(("gridY", "gridZ", "blockY", "blockZ"), 1)
                row |= {"gridX": o.grid, "blockX": o.block}
            table = P + {"graph": "GRAPH_TRACE"}.get(o.kind, o.kind.upper())
            self._row(table, when, o.start + shift, o.end + shift, **row)
        of_event = "timestamp streamId correlationId eventId eventSyncId"
        for r in w.records:
            event = r.t + shift, r.stream, r.call.correlation, r.event, r.sync_id
            self._row(P + "CUDA_EVENT", of_event, *event, **where)
        of_range = f"{when} text globalTid eventType domainId"
        for r in w.ranges:
            text, thread = self.style.rename + r.text, pid | r.thread
            self._row("NVTX_EVENTS", of_range, r.start + shift, r.end + shift, text, thread, 59, 0)
        for o in w.overheads:
            flush = pid | o.thread, self._string("CUPTI buffer flush")
            of_flush = f"{when} globalTid nameId"
            self._row("PROFILER_OVERHEAD", of_flush, o.start + shift, o.end + shift, *flush)


def global_pid(world: World) -> int:
    return (1 << 48) | (world.pid << 24)


def _column(name: str) -> str:
    plain = name.rstrip("+")
    return f'"{plain}" {"TEXT" if plain in TEXT else "INTEGER"}{" NOT NULL" * (name != plain)}'
