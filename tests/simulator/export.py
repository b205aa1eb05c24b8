"""Writes worlds as an nsys-schema SQLite file and event logs (design: section 5)."""

from __future__ import annotations

import json
import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from .world import World

P = "CUPTI_ACTIVITY_KIND_"
NONE = 4294967295
NOT_READY = 600  # cudaErrorNotReady: simulated queries prove nothing

#: Columns as in a real export of schema 3.11; `+` marks those that are NOT NULL.
TABLES = {
    P + "KERNEL": "start+ end+ deviceId+ contextId+ greenContextId streamId+ correlationId globalPid demangledName+ "
    "shortName+ mangledName launchType cacheConfig registersPerThread+ gridX+ gridY+ gridZ+ blockX+ blockY+ blockZ+ "
    "staticSharedMemory+ dynamicSharedMemory+ localMemoryPerThread+ localMemoryTotal+ gridId+ sharedMemoryExecuted "
    "graphNodeId sharedMemoryLimitConfig",
    P + "MEMCPY": "start+ end+ deviceId+ contextId+ greenContextId streamId+ correlationId globalPid bytes+ copyKind+ "
    "deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId migrationCause graphNodeId "
    "virtualAddress",
    P + "MEMSET": "start+ end+ deviceId+ contextId+ greenContextId streamId+ correlationId globalPid value+ bytes+ "
    "graphNodeId memKind",
    P + "RUNTIME": "start+ end+ eventClass+ globalTid correlationId nameId+ returnValue+ callchainId",
    P + "SYNCHRONIZATION": "start+ end+ deviceId+ contextId+ greenContextId streamId+ correlationId globalPid "
    "syncType+ eventId+",
    P + "GRAPH_TRACE": "start+ end+ deviceId+ contextId+ greenContextId streamId+ correlationId globalPid graphId+ "
    "graphExecId+",
    P + "CUDA_EVENT": "deviceId+ contextId+ greenContextId streamId+ correlationId globalPid eventId+",
    "NVTX_EVENTS": "start+ end eventType+ rangeId category color text globalTid endGlobalTid textId domainId",
    "PROFILER_OVERHEAD": "start+ end+ globalTid nameId+ returnValue+",
    "TARGET_INFO_CUDA_STREAM": "streamId+ hwId+ vmId+ processId+ contextId+ priority+ flag+",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId+ hwId+ vmId+ processId+ deviceId+ contextId+ parentContextId",
    "TARGET_INFO_GPU": "vmId+ id+ name busLocation isDiscrete l2CacheSize totalMemory smCount cuDevice",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "META_DATA_EXPORT": "name+ value",
    "DIAGNOSTIC_EVENT": "timestamp+ timestampType+ source+ severity+ text+ globalPid",
}
TEXT = {"text", "name", "value", "utcTime", "localTime", "busLocation"}
ENUMS = {
    "ENUM_CUDA_MEMCPY_OPER": {1: "CUDA_MEMCPY_KIND_HTOD", 2: "CUDA_MEMCPY_KIND_DTOH", 8: "CUDA_MEMCPY_KIND_DTOD"},
    "ENUM_CUDA_MEM_KIND": {0: "CUDA_MEMOPR_MEMORY_KIND_PAGEABLE", 1: "CUDA_MEMOPR_MEMORY_KIND_PINNED",
                           2: "CUDA_MEMOPR_MEMORY_KIND_DEVICE"},
}
SYNC_TYPES = {"sync_event": 1, "wait_event": 2, "sync_stream": 3, "sync_device": 4}


@dataclass(frozen=True)
class Style:
    """How an export looks; none of it may change a result."""

    event_rows: str = "timestamps"  # timestamps, untimed (the stream is known), none
    shift: int = 0  # added to every time, taken off utcEpochNs
    utc_epoch: int = 1_795_229_128_000_000_000
    monotonic: int = 41_000_000_000  # monotonic clock minus trace clock
    clock_lines: bool = True  # with trace_ns
    shuffle: int | None = None  # seed that permutes the rows of every table
    rename: str = ""  # put before every kernel and region name
    stream_id_shift: int = 1  # cuStreamGetId's answer minus CUPTI's, for created streams
    log_stream: bool = True


def write(worlds: World | list[World], folder: Path, style: Style = Style(), name: str = "trace"):
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
            extra = {P + "CUDA_EVENT": " timestamp eventSyncId", P + "SYNCHRONIZATION": " eventSyncId"}
            names = (columns + (extra.get(table, "") if timed else "")).split()
            db.execute(f"CREATE TABLE {table} ({', '.join(map(_column, names))})")
            plain = [n.rstrip("+") for n in names]
            rows = [tuple(r.get(n, 0 if n + "+" in names else None) for n in plain) for r in self.rows[table]]
            if self.style.shuffle is not None:
                shuffle.shuffle(rows)
            db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(plain))})", rows)
        for table, values in ENUMS.items():
            db.execute(f"CREATE TABLE {table} (id INTEGER, name TEXT, label TEXT)")
            db.executemany(f"INSERT INTO {table} VALUES (?,?,?)", [(i, n, n) for i, n in values.items()])
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        db.executemany("INSERT INTO StringIds VALUES (?,?)", [(i, s) for s, i in self.strings.items()])
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
                {"vmId": 1, "id": device, "name": "Simulated H200", "isDiscrete": 1, "cuDevice": device})

    def _world(self, w: World) -> None:
        shift, pid = self.style.shift, global_pid(w)
        where = {"deviceId": w.device, "contextId": w.context, "globalPid": pid}
        for stream, flag in w.streams.items():
            self.rows["TARGET_INFO_CUDA_STREAM"].append(
                {"streamId": stream, "vmId": 1, "processId": w.pid, "contextId": w.context, "flag": flag})
        self.rows["TARGET_INFO_CUDA_CONTEXT_INFO"].append(
            {"nullStreamId": 7, "vmId": 1, "processId": w.pid, "deviceId": w.device, "contextId": w.context})
        for c in w.calls:
            inner = c.nested if c.api.startswith("cuda") else ()
            for number, (name, start, end) in enumerate(((c.api, c.start, c.end), *inner)):
                self.rows[P + "RUNTIME"].append(
                    {"start": start + shift, "end": end + shift, "eventClass": 0 if name.startswith("cuda") else 1,
                     "globalTid": pid | c.thread, "correlationId": c.correlation + 500_000 * number, "nameId": self._string(name),
                     "returnValue": NOT_READY if c.kind.startswith("query") else 0})
            if c.kind in SYNC_TYPES:
                row = {"start": c.start + shift, "end": c.end + shift, "correlationId": c.correlation, **where,
                       "deviceId": 0, "streamId": c.stream if c.stream >= 0 else NONE,
                       "eventId": c.event if c.event >= 0 else NONE,
                       "eventSyncId": c.record.sync_id if c.record else NONE, "syncType": SYNC_TYPES[c.kind]}
                self.rows[P + "SYNCHRONIZATION"].append(row)
        for o in w.ops:
            row = {"start": o.start + shift, "end": o.end + shift, "streamId": o.stream,
                   "correlationId": o.call.correlation if o.call else 900_000 + w.ops.index(o),
                   "bytes": o.bytes, "copyKind": o.copy_kind, "srcKind": o.src_kind, "dstKind": o.dst_kind,
                   "memKind": 2, "graphNodeId": o.graph_node or None, **where}
            if o.kind == "kernel":
                text = self._string(self.style.rename + o.name)
                row |= {"demangledName": text, "shortName": text, "mangledName": text, "gridX": 1, "gridY": 1,
                        "gridZ": 1, "blockX": 32, "blockY": 1, "blockZ": 1}
            self.rows[P + {"graph": "GRAPH_TRACE"}.get(o.kind, o.kind.upper())].append(row)
        for r in w.records:
            self.rows[P + "CUDA_EVENT"].append(
                {"timestamp": r.t + shift, "streamId": r.stream, "correlationId": r.call.correlation,
                 "eventId": r.event, "eventSyncId": r.sync_id, **where})
        for r in w.ranges:
            self.rows["NVTX_EVENTS"].append(
                {"start": r.start + shift, "end": r.end + shift, "eventType": 59, "text": self.style.rename + r.text,
                 "globalTid": pid | r.thread, "domainId": 0})
        for o in w.overheads:
            self.rows["PROFILER_OVERHEAD"].append(
                {"start": o.start + shift, "end": o.end + shift, "globalTid": pid | o.thread,
                 "nameId": self._string("CUPTI buffer flush")})


def global_pid(world: World) -> int:
    return (1 << 48) | (world.pid << 24)


def _column(name: str) -> str:
    plain = name.rstrip("+")
    return f'"{plain}" {"TEXT" if plain in TEXT else "INTEGER"}{" NOT NULL" if name != plain else ""}'


def log_lines(w: World, style: Style) -> list[dict]:
    """The event log of one process, in the order of the host's clock."""
    mono = style.monotonic
    real = style.utc_epoch  # realtime = trace time + epoch; a shift of the trace's clock cancels out
    clock = {"monotonic_ns": w.end + mono, "realtime_ns": w.end + real}
    head = {"type": "header", "format": "nsysalign-events", "version": 1, "pid": w.pid, "torch": "2.11.0",
            "device_name": "Simulated H200", "clock": clock}
    lines: list[tuple[int, dict]] = []
    if style.clock_lines:
        times = [c.start for c in w.calls] or [0]
        for t in (min(times) - 50_000, w.end):
            lines.append((t, {"type": "clock", "monotonic_ns": t + mono, "realtime_ns": t + real,
                              "trace_ns": t + style.shift}))

    def host(call, stream: int) -> dict:
        out = {"tid": call.thread, "t0_ns": call.start - 300 + mono, "t1_ns": call.end + 300 + mono}
        if style.log_stream:
            handle = 0 if stream == 7 else 0x5500_0000 + stream * 0x100
            out |= {"stream_handle": handle, "stream_id": stream + (style.stream_id_shift if stream != 7 else 0)}
        return out

    for r in w.records:
        if r.seq >= 0:
            line = {"type": "record", "seq": r.seq, "device": w.device, **host(r.call, r.stream)}
            if r.region:
                line["region"] = style.rename + r.region
            lines.append((r.call.start, line | {"site": "bench.py:10"}))
    for x in w.waits:
        if x.seq >= 0:
            known = {"record": x.record.seq} if x.record.seq >= 0 else {}
            lines.append((x.call.start, {"type": "wait", "seq": x.seq, **known, **host(x.call, x.stream)}))
    for pair in w.pairs:
        asked = pair.asked if pair.asked >= 0 else w.end
        line = {"type": "elapsed", "start": _seq(pair.start), "end": _seq(pair.end), "ms": pair.ms,
                "region": style.rename + pair.name, "site": "bench.py:20"}
        if pair.ms is None:
            line["error"] = "not ready"
        if pair.asked >= 0:
            line["t1_ns"] = asked + 900 + mono
        lines.append((asked, line))
    for h in w.host_intervals:
        lines.append((h.end, {"type": "host", "region": style.rename + h.name, "t0_ns": h.start + mono,
                              "t1_ns": h.end + mono, "tid": h.thread, "site": "bench.py:30"}))
    return [head] + [line for _, line in sorted(lines, key=lambda x: x[0])]


def _seq(record) -> int | None:
    return record.seq if record.seq >= 0 else None
