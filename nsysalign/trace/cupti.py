"""A trace recorded by `recorder/library.c`: CUPTI's own records, read with numpy, as the tables of an nsys
export.

The file (`recorder/library.c` says what its chunks are) may hold several processes, one header after
another, and may end in the middle of a chunk: the process was killed.  Fields stand where they stood in
every version from 11.8 to 13.0, while records grew at their ends; a size that is not known is refused,
because what grew in the middle would be read wrongly.
"""

from __future__ import annotations

import json
import re
import sqlite3
import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nsysalign.errors import TraceError
from nsysalign.files import replacing
from nsysalign.frames import narrow
from nsysalign.model import DEFAULT_STREAM, thread_of
from nsysalign.trace import schema
from nsysalign.trace.schema import Table
from nsysalign.trace.sqlite import LONGEST_NAME, RECORDED_BY, RECORDING, Columns

#: Version 2 may hold switches (chunks X).
FORMAT, VERSION = "nsysalign-cupti", 2
_HEAD = struct.Struct("<III4x")  # kind of chunk, its number, bytes that follow (padded to 8)
_LARGEST_HEADER = 1 << 16
_AGAIN = "record it again: nsysalign run --recorder cupti SCRIPT.py"

#: Kinds of records (CUpti_ActivityKind), and the sizes that are known of each: CUDA 11.8 to 13.0.
MEMCPY, MEMSET, DRIVER, RUNTIME, CONTEXT, KERNEL, OVERHEAD, MEMCPY2, EVENT, SYNC, STREAM, GRAPH = (
    *(1, 2, 4, 5, 9, 10, 17, 22, 36, 38, 39, 51),
)
SIZES = {
    KERNEL: (200, 208, 216),
    MEMCPY: (88, 96),
    MEMCPY2: (96,),
    MEMSET: (88,),
    GRAPH: (48, 56),
    DRIVER: (40,),
    RUNTIME: (40,),
    SYNC: (40, 56),
    EVENT: (24, 56),
    OVERHEAD: (40, 56),
    CONTEXT: (16, 24, 32),
    STREAM: (24,),
}
#: Where the fields of each kind stand: nsys's name of the column, numpy's type, offset.
_SPAN = "start:u8@16 end:u8@24 deviceId:u4@32 contextId:u4@36 streamId:u4@40"
_FIELDS = {
    KERNEL: "start:u8@16 end:u8@24 deviceId:u4@40 contextId:u4@44 streamId:u4@48 gridX:i4@52 gridY:i4@56 gridZ:i4@60 "
    "blockX:i4@64 blockY:i4@68 blockZ:i4@72 registersPerThread:u2@6 staticSharedMemory:i4@76 dynamicSharedMemory:i4@80 "
    "localMemoryPerThread:u4@84 correlationId:u4@92 gridId:i8@96 demangledName:u8@104 graphNodeId:u8@144",
    MEMCPY: f"{_SPAN} correlationId:u4@44 copyKind:u1@4 srcKind:u1@5 dstKind:u1@6 bytes:u8@8 graphNodeId:u8@64",
    MEMCPY2: f"{_SPAN} correlationId:u4@60 copyKind:u1@4 srcKind:u1@5 dstKind:u1@6 bytes:u8@8 graphNodeId:u8@72",
    MEMSET: f"{_SPAN} correlationId:u4@44 value:u4@4 bytes:u8@8 memKind:u2@50 graphNodeId:u8@64",
    GRAPH: "start:u8@8 end:u8@16 deviceId:u4@24 graphId:u4@28 contextId:u4@32 streamId:u4@36 correlationId:u4@4",
    DRIVER: "start:u8@8 end:u8@16 call:u4@4 tid:u4@28 correlationId:u4@32 returnValue:u4@36",
    SYNC: "start:u8@8 end:u8@16 syncType:u4@4 correlationId:u4@24 contextId:u4@28 streamId:u4@32 eventId:u4@36",
    EVENT: "correlationId:u4@4 contextId:u4@8 streamId:u4@12 eventId:u4@16",
    OVERHEAD: "start:u8@24 end:u8@32 work:u4@4 object:u4@8 tid:u4@16",
    CONTEXT: "contextId:u4@4 deviceId:u4@8 nullStreamId:u2@14",
    STREAM: "contextId:u4@4 streamId:u4@8 flag:u4@16",
}
_FIELDS[RUNTIME] = _FIELDS[DRIVER]
#: Fields of the longer of two sizes.
_LONGER = {SYNC: " eventSyncId:u8@40", EVENT: " deviceId:u4@24 timestamp:u8@40 eventSyncId:u8@48"}
_TABLES = {
    KERNEL: schema.KERNEL.name,
    MEMCPY: schema.MEMCPY.name,
    MEMCPY2: schema.MEMCPY.name,
    MEMSET: schema.MEMSET.name,
    GRAPH: schema.GRAPH.name,
    DRIVER: schema.RUNTIME.name,
    RUNTIME: schema.RUNTIME.name,
    SYNC: schema.SYNCHRONIZATION.name,
    EVENT: schema.CUDA_EVENT.name,
    OVERHEAD: schema.OVERHEAD.name,
}
#: The profiler's own work among CUpti_ActivityOverheadKind; the others are the driver's: compiling,
#: loading modules and functions, a full queue.
_OVERHEADS = {
    1 << 16: "CUPTI buffer flush",
    2 << 16: "CUPTI instrumentation",
    3 << 16: "CUPTI resource",
    7 << 16: "CUPTI buffer request",
    8 << 16: "CUPTI initialisation",
}
_BITS_OF_IMAGE = 48
_LEGACY = 3  # nsys's and CUPTI's flag of the legacy default stream
_KINDS = 64
#: CUPTI's correlation ids begin anew in each session of a process.
_BITS_OF_CORRELATION = 32
_GRAPHS_IN_EVERY_SESSION = 130_101
_FAR = 1 << 61
_OF_THREAD = 2  # CUPTI_ACTIVITY_OBJECT_THREAD
_NVTX = np.dtype([("what", "u4"), ("tid", "u4"), ("ns", "u8"), ("a", "u8"), ("b", "u8")])
_PUSH, _POP, _START, _END = 1, 2, 3, 4
_PUSHED, _STARTED = 59, 60  # nsys's eventType
_ROWS = re.compile(r"(?:rowid|\"?(\w+)\"?) in \(([\d, ]+)\)")


def is_recording(path: Path) -> bool:
    """Whether a file is one of these, by how it begins.  Raises OSError."""
    with open(path, "rb") as file:
        return file.read(len(RECORDING)) == RECORDING


class Recording:
    """Answers what `trace.sqlite.Source` answers of an export.  `content`: table -> column -> array, with
    nsys's names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._strings: dict[str, int] = {}
        self.content: dict[str, dict[str, np.ndarray]] = {}
        self._rows: dict[str, list[tuple]] = defaultdict(list)
        parts: dict[str, list[dict[str, np.ndarray]]] = defaultdict(list)
        processes = _processes(path)
        for process in processes:
            for table, columns in process.tables(self._string).items():
                parts[table].append(columns)
            for name, rows in process.rows.items():
                self._rows[name] += rows
        for table, found in parts.items():
            names = dict.fromkeys(name for part in found for name in part)
            self.content[table] = {
                name: np.concatenate(
                    [p.get(name, np.full(len(next(iter(p.values()))), -1, np.int64)) for p in found]
                )
                for name in names
            }
        self._rows["StringIds"] = [(number, text) for text, number in self._strings.items()]
        self._rows |= _about(processes)
        self._rows = {name: rows for name, rows in self._rows.items() if rows}

    @property
    def tables(self) -> dict[str, list[str]]:
        """The columns of each table."""
        return {name: [*columns] for name, columns in self.content.items()} | {
            name: [*_COLUMNS[name]] for name, rows in self._rows.items() if rows
        }

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 1)

    def has(self, table: str, *columns: str) -> bool:
        """Whether it has the table, with these columns."""
        tables = self.tables
        return table in tables and {*columns} <= {*tables[table]}

    def column(self, table: Table, name: str) -> str | None:
        """nsys's name of one of our columns; None where there is none."""
        (field,) = (f for f in table.fields if f.name == name)
        return next((c for c in field.candidates if self.has(table.name, c)), None)

    def columns_of(self, table: Table, where: str = "") -> Columns:
        """All rows with their numbers from 1 (`row`); of a column that is absent the default."""
        names = ("row", *(field.name for field in table.fields))
        content = self._table(table.name)
        if not content or "eventType = 34" in table.where:  # marks: there is one clock
            return {name: np.empty(0, np.int64) for name in names}
        count = len(next(iter(content.values())))
        out: Columns = {"row": np.arange(1, count + 1, dtype=np.int64)}
        for field in table.fields:
            given = next((c for c in field.candidates if c in content), None)
            if given is not None:
                out[field.name] = content[given]
            elif field.default is None:
                raise TraceError(f"{self.path.name}: {table.name} has no {field.name}", _AGAIN)
            else:
                out[field.name] = np.broadcast_to(np.int64(field.default), count)
        if found := _ROWS.fullmatch(where):
            wanted = np.array([*map(int, found[2].split(","))], np.int64)
            kept = np.isin(content[found[1]] if found[1] in content else out["row"], wanted)
            out = {name: values[kept] for name, values in out.items()}
        return {name: narrow(values, name) for name, values in out.items()}

    def _table(self, name: str) -> dict[str, np.ndarray]:
        if name in self.content or name not in self._rows:
            return self.content.get(name, {})
        columns = zip(*self._rows[name], strict=True)
        return {
            c: np.array(values, np.int64)
            for c, values in zip(_COLUMNS[name], columns, strict=True)
            if all(isinstance(value, int) for value in values)
        }

    def read(self, table: Table, where: str = "") -> pd.DataFrame:
        """The same as int64 columns of a table."""
        return pd.DataFrame(self.columns_of(table, where)).astype("int64")

    def texts(self, table: Table, column: str) -> dict[int, str]:
        """No table holds a text inline."""
        return {}

    def strings(self) -> dict[int, str]:
        """Number -> text."""
        return {number: text for text, number in self._strings.items()}

    def rows(self, table: str, *columns: str) -> list[tuple]:
        """Columns of a small table as they are, [] where it or one of them is absent."""
        if table not in self._rows or not {*columns} <= {*_COLUMNS[table]}:
            return []
        at = [_COLUMNS[table].index(column) for column in columns]
        return [tuple(row[i] for i in at) for row in self._rows[table]]


#: Columns of the small tables.
_COLUMNS = {
    "StringIds": ("id", "value"),
    schema.UNTRACED.name: ("start", "end", "globalPid", "plain"),
    schema.CONTEXT.name: ("processId", "deviceId", "contextId", "nullStreamId"),
    schema.STREAM.name: ("streamId", "processId", "contextId", "flag"),
    "TARGET_INFO_GPU": ("id", "cuDevice", "name", "smCount", "l2CacheSize", "memoryBandwidth"),
    "TARGET_INFO_SYSTEM_ENV": ("name", "value"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
    "DIAGNOSTIC_EVENT": ("severity", "text"),
    "META_DATA_EXPORT": ("name", "value"),
}
#: Columns in which nsys has NULL for what is -1 here.
_NULL = ("end", "graphNodeId", "eventSyncId", "timestamp", "deviceId", "nameId", "textId")


def write_export(recording: Path, out: Path) -> None:
    """The same trace as an export in nsys's layout, a new file, for other tools and to be shared.  Raises
    TraceError."""
    source = Recording(recording)
    with replacing(out) as partial, closing(sqlite3.connect(partial)) as database:
        for name, columns in source.content.items():
            values = [
                [None if v == -1 else v for v in column.tolist()] if c in _NULL else column.tolist()
                for c, column in columns.items()
            ]
            _write(database, name, [*columns], zip(*values, strict=True))
        for name in source.tables.keys() - source.content.keys():
            _write(database, name, _COLUMNS[name], source.rows(name, *_COLUMNS[name]))
        database.commit()


def _write(
    database: sqlite3.Connection, table: str, columns: Sequence[str], rows: Iterable[tuple]
) -> None:
    names = ", ".join(f'"{column}"' for column in columns)
    database.execute(f'create table "{table}" ({names})')
    database.executemany(f'insert into "{table}" values ({", ".join("?" * len(columns))})', rows)


class _Process:
    """The chunks of one header.  `image`: how many programs the process had executed before (exec)."""

    def __init__(self, header: dict[str, Any], image: int) -> None:
        self.header = header
        self.pid, self.image = header["pid"], image
        self.process = self.pid << 24
        self.texts: dict[int, str] = {}
        self.calls: dict[int, str] = {}
        self.gpus: dict[int, dict[str, Any]] = {}
        self.messages: list[str] = []
        #: Of each kind its records, as arrays of bytes (records, size).
        self.records: dict[int, list[np.ndarray]] = defaultdict(list)
        self.events: list[np.ndarray] = []
        self.rows: dict[str, list[tuple]] = {}
        #: Times of switches: when CUPTI left the process, and came back.  One session lies before each
        #: pair of them, one behind the last.
        self.left: list[tuple[int, int]] = []
        self.back: list[tuple[int, int]] = []
        self.stayed: list[tuple[int, int]] = []  # when it could not leave
        self._session_of: dict[int, list[int]] = defaultdict(list)  # of each array of `records`
        self._sizes: dict[int, int] = {}

    def add(self, kind: int, number: int, data: memoryview) -> None:
        """Take a chunk."""
        match chr(kind):
            case "V":
                self.header["cupti"] = number
            case "T":
                self.texts[number] = _text(data)
            case "C":
                self.calls[number] = _text(data)
            case "M":
                self.messages.append(_text(data))
            case "G":
                self.gpus[number] = json.loads(bytes(data))
            case "S":
                self._sizes[number] = int.from_bytes(data, "little")
            case "N":
                self.events.append(np.frombuffer(data, _NVTX, len(data) // _NVTX.itemsize))
            case "B":
                self._buffer(data)
            case "X":
                begin, end = struct.unpack("<QQ", data)
                (self.left, self.back, self.stayed)[number].append((begin, end))

    def _buffer(self, data: memoryview) -> None:
        """Sort the records of a buffer by kind."""
        words = np.frombuffer(data, "<u4", len(data) // 4)[::2]  # kinds, where records begin
        count = len(words)
        lengths = np.zeros(_KINDS, np.int64)
        for kind, size in self._sizes.items():
            lengths[kind] = size // 8
        known = np.where(words < _KINDS, lengths[np.minimum(words, _KINDS - 1)], 0)
        begins = _chain(np.where(known > 0, np.arange(count) + known, count))
        whole = np.frombuffer(data, np.uint8)
        kinds = words[begins]
        for kind in np.unique(kinds).tolist():
            own = begins[kinds == kind] * 8
            # a kind that never had a successor is the last one of its buffer
            length = self._sizes.get(kind) or len(data) - int(own[0])
            own = own[own + length <= len(data)]
            self.records[kind].append(whole[own[:, None] + np.arange(length)])
            self._session_of[kind].append(len(self.back))

    def fields(self, kind: int) -> dict[str, np.ndarray]:
        """Columns of all records of a kind, int64.  Raises TraceError if their layout is not known."""
        found = self.records[kind]
        size = found[0].shape[1]
        if size not in SIZES[kind]:
            raise TraceError(
                f"CUPTI {self.header['cupti']} writes records of kind {kind} of {size} bytes, and this nsysalign knows "
                f"{', '.join(map(str, SIZES[kind]))}",
                "use a newer nsysalign, or record with nsys: nsysalign run --recorder nsys ...",
            )
        text = _FIELDS[kind] + (_LONGER.get(kind, "") if size == SIZES[kind][-1] else "")
        names, types, offsets = zip(*(re.split("[:@]", f) for f in text.split()), strict=True)
        layout = np.dtype(
            {"names": names, "formats": [f"<{t}" for t in types], "offsets": [*map(int, offsets)], "itemsize": size}
        )  # fmt: skip
        rows = np.ascontiguousarray(np.concatenate(found)).view(layout)[:, 0]
        # what is above 2**63 is none of ours: -1 is "none", too
        columns = {name: rows[name].astype(np.int64) for name in names}
        if self.image and "correlationId" in columns:  # which begin anew
            columns["correlationId"] += self.image << _BITS_OF_IMAGE
        if self.back and "correlationId" in columns:
            columns["correlationId"] += self._sessions(kind) << _BITS_OF_CORRELATION
        return columns

    def _sessions(self, kind: int) -> np.ndarray:
        """In which session each record of a kind was made."""
        counts = [len(records) for records in self.records[kind]]
        return np.repeat(np.array(self._session_of[kind], np.int64), counts)

    def turns(self) -> None:
        """When nothing was traced, or nothing of use: rows of `schema.UNTRACED`."""
        rows = [(*span, 0) for span in (*self.left, *self.back, *self.stayed)]
        rows += [
            (left[1], back[0], 1)
            for left, back in zip_longest(self.left, self.back, fillvalue=(_FAR, _FAR))
        ]
        ends = [*(begin for begin, _ in self.left), _FAR]
        wrong = self._wrong_graphs()
        if wrong:
            self.messages.append(
                "launches of CUDA graphs cannot be told apart after CUPTI had left the process once (until 13.1 Update 1): "
                "what follows the first of them is left out"
            )
        for session, launch in wrong.items():
            rows = [row for row in rows if not launch <= row[0] < ends[session]]
            rows.append((launch, ends[session], 0))
        self.rows[schema.UNTRACED.name] = [
            (begin, end, self.process, plain) for begin, end, plain in sorted(rows) if end > begin
        ]

    def _wrong_graphs(self) -> dict[int, int]:
        """By session the first launch of a graph whose correlation id cannot be right: before CUPTI 13.1
        Update 1 in all sessions but the first."""
        launches = [n for n, name in self.calls.items() if "GraphLaunch" in name]
        wrong: dict[int, int] = {}
        earlier = self.header.get("session", 1) - 1  # of this process, before this file
        if not earlier + len(self.back) or self.header["cupti"] >= _GRAPHS_IN_EVERY_SESSION:
            return wrong
        for kind in {DRIVER, RUNTIME} & self.records.keys():
            domain = (1 if kind == DRIVER else 2) << 24
            columns, session = self.fields(kind), self._sessions(kind)
            late = np.isin(columns["call"] | domain, launches) & (session + earlier > 0)
            for number in np.unique(session[late]).tolist():
                first = int(columns["start"][late & (session == number)].min())
                wrong[number] = min(first, wrong.get(number, first))
        return wrong

    def tables(self, string: Any) -> dict[str, dict[str, np.ndarray]]:
        """nsys's tables of this process; `string`: the number of a text in the whole file."""
        self.turns()
        numbers = _lookup({n: string(text) for n, text in self.texts.items()})
        out: dict[str, list[dict[str, np.ndarray]]] = defaultdict(list)
        for kind in [k for k in _TABLES if k in self.records]:
            columns = self.fields(kind)
            if kind == OVERHEAD:
                columns = self._overheads(columns, string)
            elif kind in (DRIVER, RUNTIME):
                domain = (1 if kind == DRIVER else 2) << 24
                called = {
                    number & 0xFFFFFF: string(text)
                    for number, text in self.calls.items()
                    if number & 0xFF000000 == domain
                }
                columns["nameId"] = _lookup(called)(columns.pop("call"))
                columns["globalTid"] = thread_of(self.process, columns.pop("tid"))
                columns["eventClass"] = np.full(len(columns["start"]), int(kind == RUNTIME))
            else:
                columns["globalPid"] = np.full(len(columns["correlationId"]), self.process)
            if kind == KERNEL:
                columns["demangledName"] = numbers(columns["demangledName"])
                columns["shortName"] = columns["demangledName"]
            for name in ("srcKind", "dstKind", "memKind"):
                if name in columns:  # CUpti_ActivityMemoryKind counts from "unknown"
                    columns[name] = columns[name] - 1
            for name in ("graphNodeId", "eventSyncId", "timestamp"):  # 0 is none
                if name in columns:
                    columns[name] = np.where(columns[name] > 0, columns[name], -1)
            out[_TABLES[kind]].append(columns)
        if self.events:
            out[schema.NVTX.name].append(self._ranges(numbers))
        devices = self._contexts()
        self._streams(devices)
        tables = {}
        for table, parts in out.items():
            names = dict.fromkeys(name for part in parts for name in part)
            tables[table] = {
                n: np.concatenate(
                    [p.get(n, np.full(len(next(iter(p.values()))), -1, np.int64)) for p in parts]
                )
                for n in names
            }
        if events := tables.get(schema.CUDA_EVENT.name):
            events["deviceId"] = _lookup(devices)(events["contextId"])
        return {
            name: columns for name, columns in tables.items() if len(next(iter(columns.values())))
        }

    def _overheads(self, columns: dict[str, np.ndarray], string: Any) -> dict[str, np.ndarray]:
        names = {work: string(text) for work, text in _OVERHEADS.items()}
        ours = np.isin(columns["work"], [*names]) & (columns["object"] == _OF_THREAD)
        columns = {name: values[ours] for name, values in columns.items()}
        return {
            "start": columns["start"],
            "end": columns["end"],
            "globalTid": thread_of(self.process, columns["tid"]),
            "nameId": _lookup(names)(columns["work"]),
        }

    def _ranges(self, numbers: Any) -> dict[str, np.ndarray]:
        """Pushes with their pops, per thread and domain, and starts with their ends; what was never
        closed has the end -1."""
        rows: list[list[int]] = []
        pushed: dict[tuple[int, int], list[int]] = defaultdict(list)
        started: dict[int, int] = {}
        for what, tid, ns, text, number in np.concatenate(self.events).tolist():
            if what in (_PUSH, _START):
                (pushed[tid, number].append if what == _PUSH else _at(started, number))(len(rows))
                rows.append([ns, -1, tid, _PUSHED if what == _PUSH else _STARTED, text])
            elif what == _POP and pushed[tid, number]:
                rows[pushed[tid, number].pop()][1] = ns
            elif what == _END and number in started:
                rows[started.pop(number)][1] = ns
        start, end, tid, kind, text = np.array(rows, np.int64).reshape(-1, 5).T
        return {
            "start": start,
            "end": end,
            "eventType": kind,
            "globalTid": thread_of(self.process, tid),
            "textId": numbers(text),
        }

    def _contexts(self) -> dict[int, int]:
        """Context -> device, by its own records and by what ran in it."""
        devices: dict[int, int] = {}
        null: dict[int, int] = {}
        for kind in (KERNEL, MEMCPY, MEMSET, GRAPH, CONTEXT):
            if kind in self.records:
                columns = self.fields(kind)
                pairs = zip(
                    columns["contextId"].tolist(), columns["deviceId"].tolist(), strict=True
                )
                devices |= dict(pairs)
                if kind == CONTEXT:
                    null |= dict(zip(columns["contextId"].tolist(), columns["nullStreamId"].tolist(), strict=True))  # fmt: skip
        self._null = null
        self.rows[schema.CONTEXT.name] = [
            (self.pid, device, context, null.get(context, 0)) for context, device in devices.items()
        ]
        return devices

    def _streams(self, devices: dict[int, int]) -> None:
        """What CUPTI says of streams, and of each context the legacy default stream: of one that was made
        before the recording began it is known by its usual number."""
        null = {context: self._null.get(context, DEFAULT_STREAM) for context in devices}
        flags: dict[tuple[int, int], int] = {(c, s): _LEGACY for c, s in null.items()}
        if STREAM in self.records:
            columns = self.fields(STREAM)
            names = ("contextId", "streamId", "flag")
            for context, stream, flag in zip(*(columns[n].tolist() for n in names), strict=True):
                flags.setdefault((context, stream), flag)
        self.rows[schema.STREAM.name] = [
            (stream, self.pid, context, flag) for (context, stream), flag in flags.items()
        ]


def _chain(following: np.ndarray) -> np.ndarray:
    """The places 0, following[0], following[following[0]], ... that are inside: twice as many with every
    step."""
    end = len(following)
    jump = np.append(following, end).clip(max=end)
    places = np.zeros(min(end, 1), np.int64)
    while True:
        more = jump[places]
        more = more[more < end]
        if not len(more):
            return places
        places = np.concatenate([places, more])
        jump = jump[jump]


def _at(table: dict[int, int], key: int) -> Any:
    return lambda value: table.__setitem__(key, value)


def _lookup(numbers: dict[int, int]) -> Any:
    """A function of an array of keys: their values, -1 for others."""
    keys = np.array(sorted(numbers), np.int64)
    values = np.array([numbers[k] for k in keys.tolist()] + [-1], np.int64)

    def found(wanted: np.ndarray) -> np.ndarray:
        at = np.searchsorted(keys, wanted)
        known = np.append(keys, -1)[at] == wanted
        return np.where(known, values[at], -1)

    return found


def _text(data: memoryview) -> str:
    text = bytes(data[: LONGEST_NAME - 3]).decode("utf-8", "replace")
    return text if len(data) <= LONGEST_NAME - 3 else text + "…"


def _processes(path: Path) -> list[_Process]:
    """Its processes.  Raises TraceError if it is none of ours, or newer than we know."""
    try:
        content = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise TraceError(f"{path.name}: cannot be read ({error})", _AGAIN) from None
    data, at = content.data, 0
    if bytes(data[: len(RECORDING)]) != RECORDING:
        raise TraceError(f"{path.name} is no recording of CUPTI's", _AGAIN)
    processes: list[_Process] = []
    try:
        while at + _HEAD.size <= len(data):
            kind, number, size = _HEAD.unpack_from(data, at)
            begin = at + _HEAD.size
            if begin + size > len(data):
                processes[-1].messages.append("its end was cut off: the last records are lost")
                break
            piece = data[begin : begin + size]
            if kind == ord("H"):
                header = _header(path, piece)
                images = sum(p.pid == header["pid"] for p in processes)
                processes.append(_Process(header, images))
            else:
                processes[-1].add(kind, number, piece)
            at = begin + (size + 7 & ~7)
    except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
        raise TraceError(f"{path.name}: damaged at byte {at:,} ({error})", _AGAIN) from None
    return processes


def _header(path: Path, data: memoryview) -> dict[str, Any]:
    header = json.loads(bytes(data[:_LARGEST_HEADER]))
    if header.get("format") != FORMAT or type(header.get("pid")) is not int:
        raise ValueError("a header of something else")
    if header.get("version") not in range(1, VERSION + 1):
        raise TraceError(
            f"{path.name}: version {header.get('version')!r} of the recorder's file, and this nsysalign knows {VERSION}",
            "use a newer nsysalign",
        )
    return header


def _about(processes: Sequence[_Process]) -> dict[str, list[tuple]]:
    """The tables about the whole recording."""
    header = processes[0].header
    used = [p for p in processes if p.records] or list(processes)
    cupti = used[0].header["cupti"]
    said = [(2, f"recorder: {text}") for p in processes for text in dict.fromkeys(p.messages)]
    gpus = {number: gpu for p in processes for number, gpu in p.gpus.items()}
    values = ("name", "smCount", "l2CacheSize", "memoryBandwidth")
    return {
        "META_DATA_EXPORT": [
            ("EXPORT_SCHEMA_VERSION", "3.24.0"),
            ("EXPORT_PRODUCT_VERSION", f"{RECORDED_BY}{version_of(cupti)}"),
        ],
        "TARGET_INFO_SESSION_START_TIME": [(header["realtime_ns"] - header["monotonic_ns"],)],
        "TARGET_INFO_SYSTEM_ENV": [("NvDriverVersion", header["driver"])] if header.get("driver") else [],
        "TARGET_INFO_GPU": [(n, n, *(gpu.get(v) for v in values)) for n, gpu in sorted(gpus.items())],
        "DIAGNOSTIC_EVENT": said,
    }  # fmt: skip


def version_of(number: int) -> str:
    """CUPTI's number of its version as people write it: 130001 is 13.0.1."""
    if number < 100_000:
        return f"API {number}"
    major, rest = divmod(number, 10_000)
    return f"{major}.{rest // 100}" + (f".{rest % 100}" if rest % 100 else "")
