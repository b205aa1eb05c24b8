"""A trace to share: only the tables, columns and strings that the analysis reads, in a new file.

Nothing is removed from the original; only what is known to be needed (`schema`) is copied, so future additions by nsys are left
out as well.  The environment, the command line, host, user and process names, what the script printed, and every string that no
kept row refers to are never copied.  A new file has no free pages that could still hold them.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from nsysalign.errors import TraceError, UsageError
from nsysalign.private import short_path, without_paths
from nsysalign.trace import schema
from nsysalign.trace.eventlog import PLAIN_KEYS, TEXT_KEYS
from nsysalign.trace.lines import lines_of
from nsysalign.trace.read import MARK, kept_diagnostic
from nsysalign.trace.sqlite import Source, open_readonly
from nsysalign.trace.stacks import FORMAT as STACKS_FORMAT

_AT_ONCE = 5_000
#: Tables of names and texts: the columns and rows that are read.
_VERSIONS = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION")
_SMALL: tuple[tuple[str, tuple[str, ...], Callable[[dict[str, Any]], bool]], ...] = (
    *(
        (table, ("name", "value"), lambda row: row.get("name") in _VERSIONS)
        for table in schema.META_TABLES
    ),
    ("TARGET_INFO_SYSTEM_ENV", ("name", "value"), lambda row: row.get("name") == "NvDriverVersion"),
    ("TARGET_INFO_GPU", ("id", "name"), lambda row: True),
    ("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",), lambda row: True),
    (
        "DIAGNOSTIC_EVENT",
        ("severity", "text"),
        lambda row: kept_diagnostic(row.get("severity"), row.get("text")),
    ),
)
_TEXTS = {"name", "value", "text"}

Rename = Callable[[str], str]
#: What is kept of stacks.jsonl.
_STACKS_KEYS = ("format", "version", "frequency_hz", "stack", "frames", "process", "thread", "main", "t_ns", "stack_of")  # fmt: skip
_STACKS_LISTS = ("t_ns", "stack_of")
#: What is kept of the first line of clocks.jsonl.
_SAMPLES_HEADER = ("type", "format", "version", "columns", "period_ns", "devices", "order")


def redact(trace: Path, out: Path, *, rename: Rename | None = None) -> int:
    """Write what analysis needs of an SQLite export to `out`, a new file; returns how many strings were left behind.

    `rename` gives kernels and ranges other names.  Raises TraceError if the trace cannot be read, UsageError if `out` exists:
    nothing is ever overwritten.
    """
    with (
        new_file(out) as partial,
        closing(sqlite3.connect(partial)) as target,
        open_readonly(trace) as connection,
    ):
        target.execute("pragma journal_mode = off")
        target.execute("pragma secure_delete = on")
        source = Source(connection)
        strings = source.strings()
        used, named, spoken = (
            set(),
            set(),
            set(),
        )  # ids of strings: all that are kept, those that `rename` applies to, nsys's own
        for table in dict.fromkeys(t.name for t in schema.TABLES if t.name in source.tables):
            if table == schema.NVTX.name:
                ids = _ranges(source, target, strings, rename)
            else:
                ids = _copy(source, target, table)
            used |= ids
            if table in (schema.NVTX.name, schema.KERNEL.name):
                named |= ids
            else:
                spoken |= ids
        named -= spoken  # the name of an API call says what it does
        for table, names, keep in _SMALL:
            _small(source, target, table, names, keep)
        if "StringIds" in source.tables:
            _create(target, "StringIds", ["id", "value"])
            kept = (
                (i, i, rename(t) if rename and i in named else t)
                for i, t in strings.items()
                if i in used
            )
            _insert(target, "StringIds", 2, kept)
        target.commit()
    return len(strings.keys() - used)


def pseudonyms() -> Rename:
    """A function that maps every name to another one, always the same, which cannot be traced back.

    `#3` at the end, which numbers repetitions, and the harness's own names stay.
    """
    key = secrets.token_bytes(
        32
    )  # the key is forgotten with the process, so that names cannot be guessed from a list

    def rename(name: str) -> str:
        if not name or name.startswith(MARK):
            return name
        stem, dash, repetition = name.rpartition("#")
        if not (dash and repetition.isdigit()):
            stem, dash, repetition = name, "", ""
        digest = hashlib.blake2s(
            stem.encode("utf-8", "surrogatepass"), key=key, digest_size=5
        ).hexdigest()
        return f"name-{digest}{dash}{repetition}"

    return rename


def redact_log(log: Path, out: Path, *, rename: Rename | None = None) -> None:
    """Write the lines of an event log that analysis reads, with the keys that it reads, to `out`, a new file.

    Line for line: an unusable line is replaced by a placeholder (`null`; `{}` for an unknown type), because it is an error
    before the first header and counted in a note after it.  So both files are refused for the same reasons and yield the same
    notes.
    """
    with new_file(out) as partial, partial.open("w", encoding="utf-8") as file:
        for line in lines_of(log):
            file.write(_shared(line, rename) + "\n")


def _shared(line: str, rename: Rename | None) -> str:
    if not line.strip():
        return ""
    try:
        item = json.loads(line)
        kept = _line(item, rename) if isinstance(item, dict) else None
    except (ValueError, RecursionError):
        return "null"  # truncated: analysis cannot use it either
    return json.dumps(kept, separators=(",", ":"))


def redact_samples(samples: Path, out: Path) -> None:
    """Write the clock samples that analysis reads to `out`, a new file: numbers, and the header's own words."""
    with new_file(out) as partial, partial.open("w", encoding="utf-8") as file:
        for number, line in enumerate(lines_of(samples)):
            try:
                item = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if number == 0 and isinstance(item, dict):
                item = {key: item[key] for key in _SAMPLES_HEADER if key in item}
            elif isinstance(
                item, list
            ):  # the analysis also treats anything but a number as unknown
                item = [v if isinstance(v, int | float) else None for v in item]
            else:
                continue
            file.write(json.dumps(item, separators=(",", ":")) + "\n")


def redact_stacks(stacks: Path, out: Path, *, rename: Rename | None = None) -> None:
    """Write the sampled Python stacks that analysis reads to `out`, a new file: functions, short file names, numbers."""
    with new_file(out) as partial, partial.open("w", encoding="utf-8") as file:
        for line in lines_of(stacks):
            try:
                item = json.loads(line)
            except (ValueError, RecursionError):
                continue
            kept = (
                {k: v for k, v in item.items() if k in _STACKS_KEYS}
                if isinstance(item, dict)
                else {}
            )
            kept |= {
                k: [n for n in v if type(n) is int]
                for k, v in kept.items()
                if k in _STACKS_LISTS and isinstance(v, list)
            }
            if isinstance(kept.get("frames"), list):
                kept["frames"] = [_frame(f, rename) for f in kept["frames"]]
            if not all(
                isinstance(v, int | list) or (k, v) == ("format", STACKS_FORMAT)
                for k, v in kept.items()
            ):
                continue
            file.write(json.dumps(kept, separators=(",", ":")) + "\n")


def _frame(raw: Any, rename: Rename | None) -> list[Any]:
    if not isinstance(raw, list) or len(raw) != 4:
        return []
    function, file, line, own = raw
    name = rename(str(function)) if rename else without_paths(str(function))
    return [name, short_path(str(file)), line if type(line) is int else 0, int(own == 1)]


def _line(item: dict[str, Any], rename: Rename | None) -> dict[str, Any]:
    if not isinstance(item.get("type"), str) or item["type"] not in PLAIN_KEYS:
        return {}
    kept: dict[str, Any] = {"type": item["type"]}
    for key, value in item.items():
        if key in PLAIN_KEYS[item["type"]] and (value is None or isinstance(value, int | float)):
            kept[key] = value
        elif key in TEXT_KEYS[item["type"]] and isinstance(value, str):
            kept[key] = _text(key, value, rename)
        elif key in ("callers", "stores", "subtracts") and isinstance(value, list):
            kept[key] = [short_path(str(caller)) for caller in value]
        elif key == "clock" and isinstance(value, dict):
            kept[key] = {k: v for k, v in value.items() if k.endswith("_ns") and isinstance(v, int)}
    return kept


def _text(key: str, value: str, rename: Rename | None) -> str:
    if key in ("site", "function"):
        return short_path(value)
    if key == "region":
        return rename(value) if rename else value
    return without_paths(value)


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """A temporary path that becomes `out` if the block succeeds.  Raises UsageError if `out` already exists."""
    refuse(out)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent)
    except OSError as error:
        raise UsageError(
            f"{out.parent}: cannot be written ({error.strerror})", "name another OUT"
        ) from error
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        try:
            os.link(
                partial, out
            )  # unlike a rename it never replaces a file created in the meantime
        except FileExistsError:
            refuse(out)
        except OSError:  # a file system without links
            refuse(out)
            partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)


def refuse(out: Path) -> None:
    """Raises UsageError if `out` exists, even as a dangling link."""
    if out.exists() or out.is_symlink():
        raise UsageError(
            f"{out} already exists and is never overwritten", "name another OUT, or remove it"
        )


def _copy(source: Source, target: sqlite3.Connection, table: str) -> set[int]:
    """Copy the columns that are read; returns the ids of the strings they name."""
    have = source.columns(table)
    fields = [f for t in schema.TABLES if t.name == table for f in t.fields]
    chosen = {f.name: next((c for c in f.candidates if c in have), None) for f in fields}
    columns = list(dict.fromkeys(c for c in chosen.values() if c is not None))
    _create(target, table, columns)
    _insert(target, table, len(columns), _numbers(source, table, columns))
    name = chosen.get("name_id")
    if name is None:
        return set()
    return {
        i
        for (i,) in target.execute(f'select distinct "{name}" from "{table}"')
        if isinstance(i, int)
    }


def _ranges(
    source: Source, target: sqlite3.Connection, strings: dict[int, str], rename: Rename | None
) -> set[int]:
    """NVTX ranges with their texts, but only the harness's own marks."""
    have = source.columns(schema.NVTX.name)
    fields = [f for table in (schema.NVTX, schema.NVTX_MARKS) for f in table.fields]
    columns = [c for c in dict.fromkeys(c for f in fields for c in f.candidates) if c in have]
    texts = ["text"] if "text" in have else []
    _create(target, schema.NVTX.name, columns + texts)
    ids: set[int] = set()

    def rows() -> Iterator[tuple]:
        inline: dict[int, str] = {}
        for table in (schema.NVTX, schema.NVTX_MARKS):
            inline |= source.texts(table.name, "text", table.where)
        for row in _numbers(source, schema.NVTX.name, columns):
            values = dict(zip(columns, row[1:], strict=True))
            text, number = inline.get(row[0]), values.get("textId")
            kind = values.get("eventType")
            mark = kind == 34 and (text or strings.get(number or 0, "")).startswith(MARK)
            if kind not in (59, 60) and not mark:
                continue
            if not mark:  # a payload of the program's own
                row = (
                    row[0],
                    *(None if c in ("int64Value", "uint64Value") else values[c] for c in columns),
                )
            if number is not None:
                ids.add(number)
            yield (*row, rename(text) if rename and text else text) if texts else row

    _insert(target, schema.NVTX.name, len(columns) + len(texts), rows())
    return ids


def _small(
    source: Source,
    target: sqlite3.Connection,
    table: str,
    names: Iterable[str],
    keep: Callable[[dict[str, Any]], bool],
) -> None:
    if table not in source.tables:
        return
    have = [n for n in names if n in source.columns(table)]
    _create(target, table, have)
    kept = []
    for row in source.rows(table, have):
        values = dict(zip(have, row, strict=True))
        if keep(values):
            kept.append(
                (None, *(without_paths(v) if isinstance(v, str) else v for v in values.values()))
            )
    _insert(target, table, len(have), kept)


def _numbers(source: Source, table: str, columns: list[str]) -> Iterator[tuple]:
    """(rowid, *columns) of a table, unchanged.  Raises TraceError if a value is not a number."""
    listed = "".join(f', "{c}"' for c in columns)
    cursor = source.connection.execute(f'select rowid{listed} from "{table}"')
    while rows := cursor.fetchmany(_AT_ONCE):
        for row in rows:
            if not all(v is None or isinstance(v, int | float) for v in row):
                raise TraceError(
                    f"{table}: a column of numbers holds something else", "export the report again"
                )
            yield row


def _create(target: sqlite3.Connection, table: str, columns: list[str]) -> None:
    declared = (
        ", ".join(f'"{c}" {"TEXT" if c in _TEXTS else "INTEGER"}' for c in columns) or '"none"'
    )
    target.execute(f'create table "{table}" ({declared})')


def _insert(target: sqlite3.Connection, table: str, width: int, rows: Iterable[tuple]) -> None:
    """Rows (rowid or None, *values): the row numbers of the original are what an analysis refers to."""
    if width:
        names = [r[1] for r in target.execute(f'pragma table_info("{table}")')]
        listed = ", ".join(["rowid", *(f'"{n}"' for n in names)])
        target.executemany(
            f'insert into "{table}" ({listed}) values ({", ".join("?" * (width + 1))})', rows
        )


#: table -> what is in it.  nsys 2024.2 writes all of them; META_DATA_EXPORT names the host and the user as well.
PRIVATE_TABLES = {
    "META_DATA_CAPTURE": "the command line and environment",
    "ProcessStreams": "the program's output",
    "ANALYSIS_FILE": "log files",
    "PROCESSES": "all processes of the machine",
    "ThreadNames": "thread names",
}


def private_content(path: Path) -> list[str]:
    """What should be redacted from an export, in words; [] if it can be shared.  Raises TraceError if it is unreadable."""
    with open_readonly(path) as connection:
        source = Source(connection)
        found = [what for table, what in PRIVATE_TABLES.items() if table in source.tables]
        environment = {
            str(name) for name, _ in source.pairs("TARGET_INFO_SYSTEM_ENV", "name", "value")
        }
        about = {str(name) for name, _ in source.pairs("META_DATA_EXPORT", "name", "value")}
    if "DeviceEnvironment" in environment and "the command line and environment" not in found:
        found.insert(0, "the environment")
    if {"EXPORT_HOST", "EXPORT_USER"} & about:
        found.append("host and user name")
    return found
