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
from collections.abc import Callable, Iterable, Mapping, Sequence
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
MEMCPY, MEMSET, DRIVER, RUNTIME, CONTEXT, KERNEL, OVERHEAD, MEMCPY2, EVENT, STREAM, SYNC, GRAPH = (
    *(1, 2, 4, 5, 9, 10, 17, 22, 36, 37, 38, 51),
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
#: The conditions that are understood: `rowid in (3, 4)`, `"demangledName" in (17)`.
_ROWS = re.compile(r"(?:rowid|\"?(\w+)\"?) in \(([\d, ]+)\)")
#: Columns of a table by nsys's names, arrays of equal length.
_Arrays = dict[str, np.ndarray]


def is_recording(path: Path) -> bool:
    """Whether a file is one of these, by how it begins.  Raises OSError."""
    with open(path, "rb") as file:
        return file.read(len(RECORDING)) == RECORDING


class Recording:
    """Answers what `trace.sqlite.Source` answers of an export.

    content: table -> column -> array, a row per record of CUPTI's, with nsys's names
    """

    def __init__(self, path: Path) -> None:
        """Read the whole file.  Raises TraceError if it is no recording, or damaged."""
        self.path = path
        self._strings: dict[str, int] = {}
        #: Small tables as they are: table -> rows, with the columns `_COLUMNS`.
        self._rows: dict[str, list[tuple]] = defaultdict(list)
        parts: dict[str, list[_Arrays]] = defaultdict(list)
        processes = _processes(path)
        for process in processes:
            for table, columns in process.tables(self._string).items():
                parts[table].append(columns)
            for table, rows in process.rows.items():
                self._rows[table] += rows
        self.content = {table: _stacked(of_processes) for table, of_processes in parts.items()}
        self._rows["StringIds"] = [(number, text) for text, number in self._strings.items()]
        self._rows |= _about(processes)
        self._rows = {table: rows for table, rows in self._rows.items() if rows}

    @property
    def tables(self) -> dict[str, list[str]]:
        """The columns of each table."""
        return {name: [*columns] for name, columns in self.content.items()} | {
            name: [*_COLUMNS[name]] for name, rows in self._rows.items() if rows
        }

    def _string(self, text: str) -> int:
        """Return the number of a text, a new one if it has none."""
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
        count = _length(content)
        out: Columns = {"row": np.arange(1, count + 1, dtype=np.int64)}
        for field in table.fields:
            column = next((c for c in field.candidates if c in content), None)
            if column is not None:
                out[field.name] = content[column]
            elif field.default is None:
                raise TraceError(f"{self.path.name}: {table.name} has no {field.name}", _AGAIN)
            else:
                out[field.name] = np.broadcast_to(np.int64(field.default), count)
        if condition := _ROWS.fullmatch(where):
            column, numbers = condition.groups()
            values = content[column] if column in content else out["row"]
            wanted = np.array([*map(int, numbers.split(","))], np.int64)
            is_wanted = np.isin(values, wanted)
            out = {name: values[is_wanted] for name, values in out.items()}
        return {name: narrow(values, name) for name, values in out.items()}

    def _table(self, name: str) -> _Arrays:
        """Return a table, {} if there is none; of a small one its columns of numbers."""
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
    """What the chunks of one header say of one process.

    image:    how many programs the process had executed before (exec)
    records:  kind of record -> its records, as arrays of bytes (records, size)
    events:   the events of NVTX ranges, arrays of `_NVTX`
    rows:     small tables, as in `Recording`
    left, back: when CUPTI left the process and came back, (begin, end) of each switch (ns).  One session
              lies before each pair of switches, one behind the last.
    stayed:   when it could not leave

    sessions     [ session 0 )left[  nothing traced  )back[ session 1 )left[ ...
    """

    def __init__(self, header: dict[str, Any], image: int) -> None:
        self.header = header
        self.pid, self.image = header["pid"], image
        self.process = self.pid << 24
        self.texts: dict[int, str] = {}
        self.calls: dict[int, str] = {}
        self.gpus: dict[int, dict[str, Any]] = {}
        self.messages: list[str] = []
        self.records: dict[int, list[np.ndarray]] = defaultdict(list)
        self.events: list[np.ndarray] = []
        self.rows: dict[str, list[tuple]] = {}
        self.left: list[tuple[int, int]] = []
        self.back: list[tuple[int, int]] = []
        self.stayed: list[tuple[int, int]] = []
        #: Kind of record -> the session of each array of `records`.
        self._session_of: dict[int, list[int]] = defaultdict(list)
        #: Kind of record -> bytes of one, for kinds that had a successor in some buffer.
        self._sizes: dict[int, int] = {}
        #: Context -> its legacy default stream, where CUPTI says it.
        self._null: dict[int, int] = {}

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
        """Sort the records of a buffer by kind.

        A record begins with its kind, and is a multiple of 8 bytes long.  Where the next one begins follows from
        the size of its kind.
        """
        kind_at = np.frombuffer(data, "<u4", len(data) // 4)[::2]  # if a record begins there
        count = len(kind_at)
        length_of_kind = np.zeros(_KINDS, np.int64)  # in steps of 8 bytes, 0 for not known
        for kind, size in self._sizes.items():
            length_of_kind[kind] = size // 8
        length = np.where(kind_at < _KINDS, length_of_kind[np.minimum(kind_at, _KINDS - 1)], 0)
        following = np.where(length > 0, np.arange(count) + length, count)
        begins = _chain(following)
        all_bytes = np.frombuffer(data, np.uint8)
        kinds = kind_at[begins]
        for kind in np.unique(kinds).tolist():
            first_byte = begins[kinds == kind] * 8
            # a kind that never had a successor is the last one of its buffer
            size = self._sizes.get(kind) or len(data) - int(first_byte[0])
            is_whole = first_byte + size <= len(data)
            of_records = first_byte[is_whole][:, None] + np.arange(size)
            self.records[kind].append(all_bytes[of_records])
            self._session_of[kind].append(len(self.back))

    def fields(self, kind: int) -> _Arrays:
        """Return the columns of all records of a kind, int64.  Raises TraceError if their layout is not known."""
        arrays = self.records[kind]
        size = arrays[0].shape[1]
        if size not in SIZES[kind]:
            raise TraceError(
                f"CUPTI {self.header['cupti']} writes records of kind {kind} of {size} bytes, and this nsysalign knows "
                f"{', '.join(map(str, SIZES[kind]))}",
                "use a newer nsysalign, or record with nsys: nsysalign run --recorder nsys ...",
            )
        description = _FIELDS[kind] + (_LONGER.get(kind, "") if size == SIZES[kind][-1] else "")
        fields = [re.split("[:@]", field) for field in description.split()]
        layout = np.dtype(
            {
                "names": [name for name, _, _ in fields],
                "formats": [f"<{number}" for _, number, _ in fields],
                "offsets": [int(offset) for _, _, offset in fields],
                "itemsize": size,
            }
        )
        rows = np.ascontiguousarray(np.concatenate(arrays)).view(layout)[:, 0]
        # what is above 2**63 is none of ours: -1 is "none", too
        columns = {name: rows[name].astype(np.int64) for name, _, _ in fields}
        if "correlationId" in columns:
            # they begin anew with every program that the process executes, and with every session
            if self.image:
                columns["correlationId"] += self.image << _BITS_OF_IMAGE
            if self.back:
                columns["correlationId"] += self._sessions(kind) << _BITS_OF_CORRELATION
        return columns

    def _sessions(self, kind: int) -> np.ndarray:
        """In which session each record of a kind was made."""
        counts = [len(records) for records in self.records[kind]]
        return np.repeat(np.array(self._session_of[kind], np.int64), counts)

    def turns(self) -> None:
        """Make the rows of `schema.UNTRACED`: (begin, end, process, plain) of each stretch in which nothing was
        traced (plain 1: the program ran as it would without us), or nothing of use (plain 0)."""
        stretches = [(begin, end, 0) for begin, end in (*self.left, *self.back, *self.stayed)]
        for (_, begin), (end, _) in zip_longest(self.left, self.back, fillvalue=(_FAR, _FAR)):
            stretches.append((begin, end, 1))  # between leaving and coming back
        wrong_from = self._wrong_graphs()
        if wrong_from:
            self.messages.append(
                "launches of CUDA graphs cannot be told apart after CUPTI had left the process once (until 13.1 Update 1): "
                "what follows the first of them is left out"
            )
        end_of_session = [*(begin for begin, _ in self.left), _FAR]
        for session, launch in wrong_from.items():
            end = end_of_session[session]
            stretches = [stretch for stretch in stretches if not launch <= stretch[0] < end]
            stretches.append((launch, end, 0))
        self.rows[schema.UNTRACED.name] = [
            (begin, end, self.process, plain)
            for begin, end, plain in sorted(stretches)
            if end > begin
        ]

    def _wrong_graphs(self) -> dict[int, int]:
        """Return session -> when the first launch of a graph began in it (ns) whose correlation id cannot be right:
        before CUPTI 13.1 Update 1 in all sessions but the first."""
        launches = [n for n, name in self.calls.items() if "GraphLaunch" in name]
        wrong: dict[int, int] = {}
        earlier = self.header.get("session", 1) - 1  # of this process, before this file
        if not earlier + len(self.back) or self.header["cupti"] >= _GRAPHS_IN_EVERY_SESSION:
            return wrong
        for kind in {DRIVER, RUNTIME} & self.records.keys():
            columns, session = self.fields(kind), self._sessions(kind)
            is_launch = np.isin(columns["call"] | _domain(kind), launches)
            late = is_launch & (session + earlier > 0)
            for number in np.unique(session[late]).tolist():
                first = int(columns["start"][late & (session == number)].min())
                wrong[number] = min(first, wrong.get(number, first))
        return wrong

    def tables(self, string: Callable[[str], int]) -> dict[str, _Arrays]:
        """Return nsys's tables of this process, by name; those without rows are left out.

        string: the number of a text in the whole file
        """
        self.turns()
        text_number = _lookup({number: string(text) for number, text in self.texts.items()})
        parts: dict[str, list[_Arrays]] = defaultdict(list)
        for kind in [kind for kind in _TABLES if kind in self.records]:
            columns = self.fields(kind)
            if kind == OVERHEAD:
                columns = self._overheads(columns, string)
            elif kind in (DRIVER, RUNTIME):
                columns = self._of_calls(kind, columns, string)
            else:
                columns["globalPid"] = np.full(len(columns["correlationId"]), self.process)
            if kind == KERNEL:
                columns["demangledName"] = text_number(columns["demangledName"])
                columns["shortName"] = columns["demangledName"]
            for name in ("srcKind", "dstKind", "memKind"):
                if name in columns:  # CUpti_ActivityMemoryKind counts from "unknown"
                    columns[name] = columns[name] - 1
            for name in ("graphNodeId", "eventSyncId", "timestamp"):  # 0 is none
                if name in columns:
                    columns[name] = np.where(columns[name] > 0, columns[name], -1)
            parts[_TABLES[kind]].append(columns)
        if self.events:
            parts[schema.NVTX.name].append(self._ranges(text_number))
        tables = {table: _stacked(of_kinds) for table, of_kinds in parts.items()}
        device_of_context = self._contexts()
        self._streams(device_of_context)
        if events := tables.get(schema.CUDA_EVENT.name):
            events["deviceId"] = _lookup(device_of_context)(events["contextId"])
        return {table: columns for table, columns in tables.items() if _length(columns)}

    def _of_calls(self, kind: int, columns: _Arrays, string: Callable[[str], int]) -> _Arrays:
        """Return the columns of calls of the driver or the runtime: their numbers become names."""
        domain = _domain(kind)
        name_of = {
            number & 0xFFFFFF: string(text)
            for number, text in self.calls.items()
            if number & 0xFF000000 == domain
        }
        columns["nameId"] = _lookup(name_of)(columns.pop("call"))
        columns["globalTid"] = thread_of(self.process, columns.pop("tid"))
        columns["eventClass"] = np.full(len(columns["start"]), int(kind == RUNTIME))
        return columns

    def _overheads(self, columns: _Arrays, string: Callable[[str], int]) -> _Arrays:
        """Return the columns of the profiler's own work on threads; that of the driver is left out."""
        names = {work: string(text) for work, text in _OVERHEADS.items()}
        ours = np.isin(columns["work"], [*names]) & (columns["object"] == _OF_THREAD)
        columns = {name: values[ours] for name, values in columns.items()}
        return {
            "start": columns["start"],
            "end": columns["end"],
            "globalTid": thread_of(self.process, columns["tid"]),
            "nameId": _lookup(names)(columns["work"]),
        }

    def _ranges(self, text_number: Callable[[np.ndarray], np.ndarray]) -> _Arrays:
        """Return NVTX ranges: pushes with their pops, per thread and domain, and starts with their ends; what was
        never closed has the end -1.

        text_number: numbers of texts in this process -> in the whole file
        """
        rows: list[list[int]] = []
        pushed: dict[tuple[int, int], list[int]] = defaultdict(list)  # thread, domain -> open rows
        started: dict[int, int] = {}  # number of a range -> its row
        # `number` is the domain of a push or pop, and the range's own number of a start or end
        for what, tid, ns, text, number in np.concatenate(self.events).tolist():
            if what == _PUSH:
                pushed[tid, number].append(len(rows))
                rows.append([ns, -1, tid, _PUSHED, text])
            elif what == _START:
                started[number] = len(rows)
                rows.append([ns, -1, tid, _STARTED, text])
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
            "textId": text_number(text),
        }

    def _contexts(self) -> dict[int, int]:
        """Return context -> device, by its own records and by what ran in it, and make the rows of `schema.CONTEXT`."""
        device_of: dict[int, int] = {}
        for kind in (KERNEL, MEMCPY, MEMSET, GRAPH, CONTEXT):
            if kind not in self.records:
                continue
            columns = self.fields(kind)
            contexts = columns["contextId"].tolist()
            device_of |= dict(zip(contexts, columns["deviceId"].tolist(), strict=True))
            if kind == CONTEXT:
                self._null = dict(zip(contexts, columns["nullStreamId"].tolist(), strict=True))
        self.rows[schema.CONTEXT.name] = [
            (self.pid, device, context, self._null.get(context, 0))
            for context, device in device_of.items()
        ]
        return device_of

    def _streams(self, device_of_context: dict[int, int]) -> None:
        """Make the rows of `schema.STREAM`: what CUPTI says of streams, and of each context the legacy default stream:
        of one that was made before the recording began it is known by its usual number."""
        flags: dict[tuple[int, int], int] = {}  # context, stream -> flag
        for context in device_of_context:
            flags[context, self._null.get(context, DEFAULT_STREAM)] = _LEGACY
        if STREAM in self.records:
            columns = self.fields(STREAM)
            names = ("contextId", "streamId", "flag")
            for context, stream, flag in zip(*(columns[n].tolist() for n in names), strict=True):
                flags.setdefault((context, stream), flag)
        self.rows[schema.STREAM.name] = [
            (stream, self.pid, context, flag) for (context, stream), flag in flags.items()
        ]


def _domain(kind: int) -> int:
    """Return what the numbers of calls begin with in the recorder's file: whether of the driver or the runtime."""
    return (1 if kind == DRIVER else 2) << 24


def _length(columns: _Arrays) -> int:
    """Return how many rows columns have."""
    return len(next(iter(columns.values())))


def _stacked(parts: Sequence[_Arrays]) -> _Arrays:
    """Return the rows of all parts, one part after the other; -1 in columns that a part does not have."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {
        name: np.concatenate(
            [part.get(name, np.full(_length(part), -1, np.int64)) for part in parts]
        )
        for name in names
    }


def _chain(following: np.ndarray) -> np.ndarray:
    """Return the places 0, following[0], following[following[0]], ... up to one that lies behind the end.

    following [2, 9, 3, 4]:      0, 2, 3

    Each step doubles what is known: the places that follow the first 4 at a distance of 4 are the next 4.
    """
    end = len(following)
    jump = np.append(following, end).clip(max=end)  # from each place 1, 2, 4, ... places on
    places = np.zeros(min(end, 1), np.int64)
    while True:
        further = jump[places]
        further = further[further < end]
        if not len(further):
            return places
        places = np.concatenate([places, further])
        jump = jump[jump]


def _lookup(numbers: Mapping[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function of an array of keys: their values, -1 for keys that have none.

    _lookup({7: 70})(np.array([7, 8])):      70, -1
    """
    keys = np.array(sorted(numbers), np.int64)
    values = np.array([*(numbers[key] for key in keys.tolist()), -1], np.int64)

    def values_of(wanted: np.ndarray) -> np.ndarray:
        place = np.searchsorted(keys, wanted)
        is_known = np.append(keys, -1)[place] == wanted
        return np.where(is_known, values[place], -1)

    return values_of


def _text(data: memoryview) -> str:
    text = bytes(data[: LONGEST_NAME - 3]).decode("utf-8", "replace")
    return text if len(data) <= LONGEST_NAME - 3 else text + "…"


def _processes(path: Path) -> list[_Process]:
    """Return the processes of a file, each with its records: one per header.

    The file is a row of chunks, the first of them a header: a head (`_HEAD`), as many bytes as it says, and up to 7 more
    to a multiple of 8.  Raises TraceError if the file is none of ours, damaged, or newer than we know.
    """
    try:
        content = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise TraceError(f"{path.name}: cannot be read ({error})", _AGAIN) from None
    data, place = content.data, 0
    if bytes(data[: len(RECORDING)]) != RECORDING:
        raise TraceError(f"{path.name} is no recording of CUPTI's", _AGAIN)
    processes: list[_Process] = []
    try:
        while place + _HEAD.size <= len(data):
            kind, number, size = _HEAD.unpack_from(data, place)
            begin = place + _HEAD.size
            if begin + size > len(data):
                processes[-1].messages.append("its end was cut off: the last records are lost")
                break
            chunk = data[begin : begin + size]
            if kind == ord("H"):
                header = _header(path, chunk)
                images = sum(process.pid == header["pid"] for process in processes)
                processes.append(_Process(header, images))
            else:
                processes[-1].add(kind, number, chunk)
            place = begin + (size + 7 & ~7)
    except (ValueError, IndexError, KeyError, TypeError, struct.error) as error:
        raise TraceError(f"{path.name}: damaged at byte {place:,} ({error})", _AGAIN) from None
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
    """Return the tables about the whole recording: table -> rows, with the columns `_COLUMNS`."""
    header = processes[0].header
    used = [p for p in processes if p.records] or list(processes)
    cupti = used[0].header["cupti"]
    messages = [(2, f"recorder: {text}") for p in processes for text in dict.fromkeys(p.messages)]
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
        "DIAGNOSTIC_EVENT": messages,
    }  # fmt: skip


def version_of(number: int) -> str:
    """CUPTI's number of its version as people write it: 130001 is 13.0.1."""
    if number < 100_000:
        return f"API {number}"
    major, below = divmod(number, 10_000)
    return f"{major}.{below // 100}" + (f".{below % 100}" if below % 100 else "")
