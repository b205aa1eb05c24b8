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
            rows = [
                tuple(r.get(n, 0 if n + "+" in names else None) for n in plain)
                for r in self.rows[table]
            ]
            if self.style.shuffle is not None:
                shuffle.shuffle(rows)
            db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(plain))})", rows)
        for table, values in ENUMS.items():
            db.execute(f"CREATE TABLE {table} (id INTEGER, name TEXT, label TEXT)")
            db.executemany(
                f"INSERT INTO {table} VALUES (?,?,?)", [(i, n, n) for i, n in values.items()]
            )
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        db.executemany(
            "INSERT INTO StringIds VALUES (?,?)", [(i, s) for s, i in self.strings.items()]
        )
        db.commit()
        db.close()

    def _string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings) + 1)

    def _session(self, schema: str, devices: set[int]) -> None:
        self.rows["META_DATA_EXPORT"] = [
            {"name": "EXPORT_PRODUCT_VERSION", "value": "2024.2.3.38-simulated"},
            {"name": "EXPORT_SCHEMA_VERSION", "value": schema},
        ]
        epoch = self.style.utc_epoch - self.style.shift
        self.rows["TARGET_INFO_SESSION_START_TIME"] = [{"utcEpochNs": epoch}]
        for device in sorted(devices):
            self.rows["TARGET_INFO_GPU"].append(
                {
                    "vmId": 1,
                    "id": device,
                    "name": "Simulated H200",
                    "isDiscrete": 1,
                    "l2CacheSize": 62_914_560,
                    "memoryBandwidth": 4_814_304_000_000,
                    "cuDevice": device,
                    "smCount": 1,
                }
            )

    def _world(self, w: World) -> None:
        shift, pid = self.style.shift, global_pid(w)
        where = {"deviceId": w.device, "contextId": w.context, "globalPid": pid}
        for stream, flag in w.streams.items():
            self.rows["TARGET_INFO_CUDA_STREAM"].append(
                {
                    "streamId": stream,
                    "vmId": 1,
                    "processId": w.pid,
                    "contextId": w.context,
                    "flag": flag,
                }
            )
        self.rows["TARGET_INFO_CUDA_CONTEXT_INFO"].append(
            {
                "nullStreamId": 7,
                "vmId": 1,
                "processId": w.pid,
                "deviceId": w.device,
                "contextId": w.context,
            }
        )
        for c in w.calls:
            inner = c.nested if c.api.startswith("cuda") else ()
            for number, (name, start, end) in enumerate(((c.api, c.start, c.end), *inner)):
                self.rows[P + "RUNTIME"].append(
                    {
                        "start": start + shift,
                        "end": end + shift,
                        "eventClass": 0 if name.startswith("cuda") else 1,
                        "globalTid": pid | c.thread,
                        "correlationId": c.correlation + 500_000 * number,
                        "nameId": self._string(name),
                        "returnValue": NOT_READY if c.kind.startswith("query") else 0,
                    }
                )
            if c.kind in SYNC_TYPES:
                row = {
                    "start": c.start + shift,
                    "end": c.end + shift,
                    "correlationId": c.correlation,
                    **where,
                    "deviceId": 0,
                    "streamId": c.stream if c.stream >= 0 else NONE,
                    "eventId": c.event if c.event >= 0 else NONE,
                    "eventSyncId": c.record.sync_id if c.record else NONE,
                    "syncType": SYNC_TYPES[c.kind],
                }
                self.rows[P + "SYNCHRONIZATION"].append(row)
        for o in w.ops:
            row = {
                "start": o.start + shift,
                "end": o.end + shift,
                "streamId": o.stream,
                "correlationId": o.call.correlation if o.call else 900_000 + w.ops.index(o),
                "bytes": o.bytes,
                "copyKind": o.copy_kind,
                "srcKind": o.src_kind,
                "dstKind": o.dst_kind,
                "memKind": 2,
                "graphNodeId": o.graph_node or None,
                **where,
            }
            if o.kind == "kernel":
                text = self._string(self.style.rename + o.name)
                row |= {
                    "demangledName": text,
                    "shortName": text,
                    "mangledName": text,
                    "gridX": o.grid,
                    "gridY": 1,
                    "gridZ": 1,
                    "blockX": o.block,
                    "blockY": 1,
                    "blockZ": 1,
                }
            self.rows[P + {"graph": "GRAPH_TRACE"}.get(o.kind, o.kind.upper())].append(row)
        for r in w.records:
            self.rows[P + "CUDA_EVENT"].append(
                {
                    "timestamp": r.t + shift,
                    "streamId": r.stream,
                    "correlationId": r.call.correlation,
                    "eventId": r.event,
                    "eventSyncId": r.sync_id,
                    **where,
                }
            )
        for r in w.ranges:
            self.rows["NVTX_EVENTS"].append(
                {
                    "start": r.start + shift,
                    "end": r.end + shift,
                    "eventType": 59,
                    "text": self.style.rename + r.text,
                    "globalTid": pid | r.thread,
                    "domainId": 0,
                }
            )
        for o in w.overheads:
            self.rows["PROFILER_OVERHEAD"].append(
                {
                    "start": o.start + shift,
                    "end": o.end + shift,
                    "globalTid": pid | o.thread,
                    "nameId": self._string("CUPTI buffer flush"),
                }
            )


def global_pid(world: World) -> int:
    return (1 << 48) | (world.pid << 24)


def _column(name: str) -> str:
    plain = name.rstrip("+")
    return (
        f'"{plain}" {"TEXT" if plain in TEXT else "INTEGER"}{" NOT NULL" if name != plain else ""}'
    )
