"""A trace to share: only the tables, columns and strings that the analysis reads, in a new file.

Nothing is removed from the original; only what is known to be needed (`schema`, the keys of
`eventlog`) is copied, so future additions by nsys are left out as well.  The environment, the
command line, host, user and process names, what the script printed, and every string that no kept
row refers to are never copied.  A new file has no free pages that could still hold them.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nsysalign import untrusted
from nsysalign.errors import TraceError
from nsysalign.files import new_file
from nsysalign.paths import short_path, without_paths
from nsysalign.trace import schema
from nsysalign.trace.eventlog import PLAIN_KEYS, TEXT_KEYS
from nsysalign.trace.lines import json_or_none, lines_of
from nsysalign.trace.read import MARK, kept_diagnostic
from nsysalign.trace.sqlite import AGAIN, Source, open_readonly
from nsysalign.trace.stacks import FORMAT as STACKS_FORMAT

Rename = Callable[[str], str]
_VERSIONS = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
#: Small tables: their columns, and which rows are kept.
_SMALL: dict[str, tuple[tuple[str, ...], Callable[[dict[str, Any]], bool]]] = {
    **{
        table: (("name", "value"), lambda row: row.get("name") in _VERSIONS)
        for table in schema.META_TABLES
    },
    "TARGET_INFO_SYSTEM_ENV": (
        ("name", "value"),
        lambda row: row.get("name") == "NvDriverVersion",
    ),
    "TARGET_INFO_GPU": (schema.GPU_COLUMNS, lambda row: True),
    "TARGET_INFO_SESSION_START_TIME": (("utcEpochNs",), lambda row: True),
    "ANALYSIS_DETAILS": (("startTime", "stopTime"), lambda row: True),
    "DIAGNOSTIC_EVENT": (
        ("severity", "text"),
        lambda row: kept_diagnostic(row.get("severity"), row.get("text")),
    ),
}
_STACKS_KEYS = {"format", "version", "frequency_hz", "stack", "process", "thread", "main"}
_SAMPLES_KEYS = {"type", "format", "version", "columns", "period_ns", "devices", "order"}
#: table -> what is in it.  nsys 2024.2 writes all of them; META_DATA_EXPORT names the host and the
#: user as well.
PRIVATE_TABLES = {
    "META_DATA_CAPTURE": "the command line and environment",
    "ProcessStreams": "the program's output",
    "ANALYSIS_FILE": "log files",
    "PROCESSES": "all processes of the machine",
    "ThreadNames": "thread names",
}


def redact(trace: Path, out: Path, *, rename: Rename | None = None) -> int:
    """Write what analysis needs of an SQLite export to `out`, a new file; returns how many strings
    were left behind.

    `rename` gives kernels and ranges other names.  Raises TraceError if the trace cannot be read,
    UsageError if `out` exists: nothing is ever overwritten.
    """

    def shared(text: bytes | None) -> str | None:
        if text is None:
            return None
        name = without_paths(text.decode("utf-8", "replace"))
        return rename(name) if rename and not name.startswith(MARK) else name

    with open_readonly(trace) as connection:
        source = Source(connection)  # which refuses what is no plain table
        columns = {name: source.columns(name) for name in source.tables & schema.NAMES}
        small = {}
        for table, (wanted, keep) in _SMALL.items():
            names = [name for name in wanted if name in columns.get(table, ())]
            rows = (dict(zip(names, row, strict=True)) for row in source.rows(table, names))
            small[table] = [
                [without_paths(v) if isinstance(v, str) else v for v in row.values()]
                for row in rows
                if keep(row)
            ]
    with new_file(out) as partial, untrusted.copying(trace, partial, TraceError, AGAIN) as db:
        db.create_function("shared", 1, shared, deterministic=True)
        strings = {"id", "value"} <= columns.get("StringIds", set())
        if strings:
            db.execute("create table main.StringIds (id INTEGER, value TEXT)")
        spoken, named = ["select null"], ["select null"]  # ids of nsys's own words, of names
        for table in dict.fromkeys(t.name for t in schema.TABLES if t.name in columns):
            ids = _copy(db, table, columns[table], strings=strings)
            (named if table in (schema.NVTX.name, schema.KERNEL.name) else spoken).extend(ids)
        for table, kept in small.items():
            names = [f'"{name}"' for name in _SMALL[table][0] if name in columns.get(table, ())]
            if names:
                db.execute(f'create table main."{table}" ({", ".join(names)})')
                marks = ", ".join("?" * len(names))
                db.executemany(f'insert into main."{table}" values ({marks})', kept)
        if not strings:
            return 0
        # the name of an API call says what it does, even where a range has the same
        db.execute(
            "insert into main.StringIds (rowid, id, value) select rowid, id, "
            f"case when id in ({' union '.join(spoken)}) then value "
            "else shared(cast(value as blob)) end from source.StringIds "
            f"where value is not null and id in ({' union '.join([*named, *spoken])})"
        )
        count = "select count(distinct id) from {}.StringIds where value is not null"
        had, have = (db.execute(count.format(of)).fetchone()[0] for of in ("source", "main"))
        return had - have


def _copy(db: sqlite3.Connection, table: str, there: set[str], *, strings: bool) -> list[str]:
    """Copy what is read of a table of activities, with its row numbers; returns SELECTs of the ids
    of strings that it names.

    Of NVTX: ranges with their texts, and of marks and payloads only the harness's own.
    """
    fields = [f for t in schema.TABLES if t.name == table for f in t.fields]
    names = [c for c in dict.fromkeys(c for f in fields for c in f.candidates) if c in there]
    values, also = [f't."{name}"' for name in names], ""
    if table == schema.NVTX.name:
        text = 'cast(t."text" as blob)' if "text" in there else "null"
        inside = f"coalesce({text}, s.value)" if strings and "textId" in there else text
        if inside != text:
            also = " left join source.StringIds s on s.id = t.textId"
        mark = f"t.eventType = 34 and substr(cast({inside} as text), 1, {len(MARK)}) = '{MARK}'"
        also += f" where t.eventType in (59, 60) or {mark}"
        values = [
            f"case when t.eventType = 34 then {value} end"
            if name in ("int64Value", "uint64Value")
            else value
            for name, value in zip(names, values, strict=True)
        ]
        if "text" in there:
            names, values = [*names, "text"], [*values, f"shared({text})"]
    listed = ", ".join(f'"{name}"' for name in names)
    declared = ", ".join(f'"{name}" {"TEXT" if name == "text" else "INTEGER"}' for name in names)
    db.execute(f'create table main."{table}" ({declared})')
    db.execute(
        f'insert into main."{table}" (rowid, {listed}) '
        f'select t.rowid, {", ".join(values)} from source."{table}" t{also}'
    )
    wrong = " or ".join(f"typeof(\"{c}\") in ('text', 'blob')" for c in names if c != "text")
    if db.execute(f'select 1 from main."{table}" where {wrong} limit 1').fetchone():
        raise TraceError(
            f"{table}: a column of numbers holds something else", "export the report again"
        )
    ids = ("demangledName", "shortName", "nameId", "textId")
    return [f'select "{name}" from main."{table}"' for name in names if name in ids]


def pseudonyms() -> Rename:
    """A function that maps every name to another one, always the same, which cannot be traced back.

    `#3` at the end, which numbers repetitions, and the harness's own names stay.
    """
    key = secrets.token_bytes(
        32
    )  # it goes with the process, so that names cannot be guessed from a list

    def rename(name: str) -> str:
        if not name or name.startswith(MARK):
            return name
        stem, dash, repetition = name.rpartition("#")
        if not (dash and repetition.isdigit()):
            stem, dash, repetition = name, "", ""
        text = stem.encode("utf-8", "surrogatepass")
        return f"name-{hashlib.blake2s(text, key=key, digest_size=5).hexdigest()}{dash}{repetition}"

    return rename


def redact_log(log: Path, out: Path, *, rename: Rename | None = None) -> None:
    """Write the lines of an event log that analysis reads, with the keys that it reads, to `out`, a
    new file.

    Line for line: an unusable line is replaced by a placeholder (`null`; `{}` for an unknown type),
    because it is an error before the first header and counted in a note after it.  So both files
    are refused for the same reasons and yield the same notes.
    """

    def kept(item: Any) -> Any:
        if not isinstance(item, dict):
            return None
        kind = item.get("type")
        if not isinstance(kind, str) or kind not in PLAIN_KEYS:
            return {}
        line: dict[str, Any] = {"type": kind}
        for key, value in item.items():
            if key in PLAIN_KEYS[kind] and (value is None or isinstance(value, int | float)):
                line[key] = value
            elif key == "clock" and isinstance(value, dict):
                line[key] = {
                    k: v for k, v in value.items() if k.endswith("_ns") and isinstance(v, int)
                }
            elif key in ("callers", "stores", "subtracts") and isinstance(value, list):
                line[key] = [_place(str(v), rename) for v in value]
            elif key in TEXT_KEYS[kind] and isinstance(value, str):
                if key in ("site", "function"):
                    line[key] = _place(value, rename)
                elif rename and key in ("text", "error"):  # what was said may name anything
                    line[key] = ""
                else:
                    name = without_paths(value)
                    line[key] = rename(name) if rename and key == "region" else name
        return line

    _line_by_line(log, out, kept)


def redact_samples(samples: Path, out: Path) -> None:
    """Write the clock samples that analysis reads to `out`, a new file: numbers, and the header's
    own words."""

    def kept(item: Any) -> Any:
        if isinstance(item, dict):
            return {k: v for k, v in item.items() if k in _SAMPLES_KEYS}
        return (
            [v if isinstance(v, int | float) else None for v in item]
            if isinstance(item, list)
            else None
        )

    _line_by_line(samples, out, kept)


def redact_stacks(stacks: Path, out: Path, *, rename: Rename | None = None) -> None:
    """Write the sampled Python stacks that analysis reads to `out`, a new file: functions, short
    file names, numbers."""

    def frame(raw: Any) -> list[Any]:
        if not isinstance(raw, list) or len(raw) != 4:
            return []
        function, file, line, own = raw
        name = rename(str(function)) if rename else without_paths(str(function))
        return [name, _place(str(file), rename), line if type(line) is int else 0, int(own == 1)]

    def kept(item: Any) -> Any:
        if not isinstance(item, dict):
            return None
        line = {
            key: value
            for key, value in item.items()
            if key in _STACKS_KEYS
            and (isinstance(value, int) or (key, value) == ("format", STACKS_FORMAT))
        }
        for key in ("t_ns", "stack_of"):
            if isinstance(item.get(key), list):
                line[key] = [n for n in item[key] if type(n) is int]
        if isinstance(item.get("frames"), list):
            line["frames"] = [frame(f) for f in item["frames"]]
        return line

    _line_by_line(stacks, out, kept)


def _place(text: str, rename: Rename | None) -> str:
    """A place in the code, `file:line` or `file:line:name`, as others may see it."""
    text = short_path(text)
    if rename is None:
        return text
    # every part is digits or a dot, or nothing, and then a name
    parts = (re.findall(r"\A(\d+|\.?)(.*)\Z", part, re.DOTALL)[0] for part in text.split(":"))
    return ":".join(kept + rename(name) for kept, name in parts)


def _line_by_line(path: Path, out: Path, kept: Callable[[Any], Any]) -> None:
    with new_file(out) as partial, partial.open("w", encoding="utf-8") as file:
        for line in lines_of(path):
            text = (
                json.dumps(kept(json_or_none(line)), separators=(",", ":")) if line.strip() else ""
            )
            file.write(text + "\n")
