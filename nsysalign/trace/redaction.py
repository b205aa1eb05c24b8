"""A trace to share: the tables that the analysis reads, whole, in a new file.

Nothing is removed from the original; only tables that are listed here are copied, so whatever nsys
adds in future stays behind, and so do the environment, the command line, host, user and process
names and what the script printed.  Of StringIds only the strings are copied that copied rows name.
Texts lose their paths, and stand only in columns of names.  A new file has no free pages that could
still hold the rest.  nsys itself opens the copy, too.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from nsysalign import untrusted
from nsysalign.errors import TraceError
from nsysalign.files import replacing
from nsysalign.paths import short_path, without_paths
from nsysalign.trace import schema
from nsysalign.trace.eventlog import PLAIN_KEYS, TEXT_KEYS
from nsysalign.trace.info import kept_diagnostic
from nsysalign.trace.read import MARK
from nsysalign.trace.samples import CLOCKS, STACKS
from nsysalign.trace.sqlite import AGAIN, opened
from nsysalign.untrusted import json_or_none, lines_of

Rename = Callable[[str], str]
#: Rows that are copied of tables which hold other things as well: columns, and a condition on them.
_ROWS = {
    **dict.fromkeys(schema.META_TABLES, (("name", "value"), "name like 'EXPORT_%_VERSION%'")),
    "TARGET_INFO_SYSTEM_ENV": (("name", "value"), "name = 'NvDriverVersion'"),
    "DIAGNOSTIC_EVENT": (("severity", "text"), "kept_diagnostic(severity, cast(text as blob))"),
}
#: Columns that may hold a text, and those whose numbers are ids of strings; tables of names that the
#: program's author chose.
_TEXTS = ("text", "name", "value", "label")
_STRINGS = ("nameId", "textId", "demangledName", "shortName", "mangledName")
_OF_AUTHOR = (schema.NVTX.name, schema.KERNEL.name)
#: Columns that must hold numbers, as the analysis reads them.
_NUMBERS = {
    table.name: {c for t in schema.TABLES if t.name == table.name for f in t.fields for c in f.candidates}
    for table in schema.TABLES
}  # fmt: skip
#: Keys of lines without a type, and of the header of clock samples.
_OF_STACKS = {"version", "frequency_hz", "stack", "process", "thread", "main"}
_OF_SAMPLES = {"type", "format", "version", "columns", "period_ns", "devices", "order"}


class _Copied(NamedTuple):
    """How a table is copied: its columns in quotes, what is copied of each, which rows, the conditions under
    which a number is none, and which columns hold ids of strings."""

    columns: list[str]
    values: list[str]
    rows: str
    wrong: list[str]
    strings: list[str]


def redact(trace: Path, out: Path, *, rename: Rename | None = None) -> int:
    """Write what can be shared of an SQLite export to `out`, a new file; returns how many strings
    were left behind.

    `rename` gives kernels and ranges other names.  Raises TraceError if the trace cannot be read,
    UsageError if `out` exists: nothing is ever overwritten.
    """

    def shared(text: bytes | None) -> str | None:
        return None if text is None else without_paths(text.decode("utf-8", "replace"))

    def renamed(text: bytes | None) -> str | None:
        name = shared(text)
        return rename(name) if rename and name and not name.startswith(MARK) else name

    with opened(trace) as source:  # which refuses what is no plain table
        tables = {
            name: columns
            for name, columns in sorted(source.tables.items())
            if name in schema.NAMES or re.fullmatch(r"ENUM_\w+", name)  # which nsys reads
        }
    strings = {"id", "value"} <= {*tables.pop("StringIds", ())}
    with replacing(out) as partial, untrusted.copying(trace, partial, TraceError, AGAIN) as db:
        for function, arguments in ((shared, 1), (renamed, 1), (kept_diagnostic, 2)):
            db.create_function(function.__name__, arguments, function, deterministic=True)
        ids = {"shared": ["select null"], "renamed": ["select null"]}  # of strings
        for table, columns in tables.items():
            needed, _ = _ROWS.get(table, ((), ""))
            if not {*needed} <= {*columns}:
                continue
            treatment = "renamed" if table in _OF_AUTHOR else "shared"
            copied = _how_copied(table, columns, treatment)
            _copy(db, table, copied)
            ids[treatment] += [f'select {name} from main."{table}"' for name in copied.strings]
        return _copy_strings(db, ids["shared"], ids["renamed"]) if strings else 0


def _how_copied(table: str, columns: Iterable[str], treatment: str) -> _Copied:
    """treatment: the SQL function that texts go through, shared or renamed."""
    _, rows = _ROWS.get(table, ((), "true"))
    copied = _Copied([], [], rows, [], [])
    for column in columns:
        name = '"' + column.replace('"', '""') + '"'
        # what nsys reads as well; what a text of another column says is not known
        value = f"case when typeof({name}) in ('integer', 'real') then {name} end"
        if column in _TEXTS:
            value = f"{treatment}(cast({name} as blob))"
        copied.columns.append(name)
        copied.values.append(value)
        if column in _NUMBERS.get(table, ()):
            copied.wrong.append(f"typeof({name}) in ('text', 'blob')")
        if column in _STRINGS:
            copied.strings.append(name)
    return copied


def _copy(db: sqlite3.Connection, table: str, copied: _Copied) -> None:
    """Raises TraceError where a column of numbers holds something else."""
    wrong = " or ".join(copied.wrong) or "0"
    if db.execute(
        f'select 1 from source."{table}" where {copied.rows} and ({wrong}) limit 1'
    ).fetchone():
        raise TraceError(
            f"{table}: a column of numbers holds something else", "export the report again"
        )
    columns = ", ".join(copied.columns)
    db.execute(f'create table main."{table}" ({columns})')
    db.execute(
        f'insert into main."{table}" (rowid, {columns}) '
        f'select rowid, {", ".join(copied.values)} from source."{table}" where {copied.rows}'
    )


def _copy_strings(db: sqlite3.Connection, shared: list[str], renamed: list[str]) -> int:
    """Copy the strings whose ids these queries give; how many others there are."""
    # the name of an API call says what it does, even where a range has the same
    plain = " union ".join(shared)
    wanted = " union ".join([*shared, *renamed])
    db.execute("create table main.StringIds (id INTEGER, value TEXT)")
    db.execute(
        "insert into main.StringIds (rowid, id, value) select rowid, id, "
        f"case when id in ({plain}) then shared(cast(value as blob)) "
        "else renamed(cast(value as blob)) end "
        f"from source.StringIds where value is not null and id in ({wanted})"
    )
    count = "select count(distinct id) from {}.StringIds where value is not null"
    texts = db.execute(count.format("source")).fetchone()[0]
    return texts - db.execute(count.format("main")).fetchone()[0]


def pseudonyms() -> Rename:
    """A function that maps every name to another one, always the same, which cannot be traced back.
    `#3` at the end, which numbers repetitions, and the harness's own names stay."""
    key = secrets.token_bytes(32)  # goes with the process: names cannot be guessed from a list

    def rename(name: str) -> str:
        if not name or name.startswith(MARK):
            return name
        stem, number = re.findall(r"\A(.*?)(#\d+)?\Z", name, re.DOTALL)[0]
        text = stem.encode("utf-8", "surrogatepass")
        return f"name-{hashlib.blake2s(text, key=key, digest_size=5).hexdigest()}{number}"

    return rename


def redact_lines(lines: Path, out: Path, *, rename: Rename | None = None) -> None:
    """Write what analysis reads of an event log, of clock samples or of sampled Python stacks to `out`, a new
    file.  An unusable line is replaced by a placeholder (`null`; `{}` for an unknown type), so that both
    files are refused for the same reasons and yield the same notes."""
    with replacing(out) as partial, partial.open("w", encoding="utf-8") as file:
        for line in lines_of(lines):
            item = _shared(json_or_none(line), rename)
            file.write(json.dumps(item, separators=(",", ":")) * bool(line.strip()) + "\n")


def _shared(item: Any, rename: Rename | None) -> Any:
    """Return what may be seen of a line: numbers, and the texts that analysis reads, with `rename` under other names.

    {"type": "record", "seq": 3, "site": "/home/me/train.py:7", "secret": "x"}:
        {"type": "record", "seq": 3, "site": "train.py:7"}
    """
    if isinstance(item, list):  # a sample
        return [value if isinstance(value, int | float) else None for value in item]
    if not isinstance(item, dict):
        return None
    if item.get("format") == CLOCKS:
        return {key: value for key, value in item.items() if key in _OF_SAMPLES}
    if "type" not in item:
        return _shared_keys(item, _OF_STACKS, frozenset(), rename)
    kind = item["type"] if isinstance(item["type"], str) else ""
    if kind not in PLAIN_KEYS:
        return {}
    keys = _shared_keys(item, PLAIN_KEYS[kind], TEXT_KEYS[kind], rename)
    return {"type": item["type"]} | keys


def _shared_keys(
    item: dict[str, Any], numbers: Collection[str], texts: Collection[str], rename: Rename | None
) -> dict[str, Any]:
    """Return the keys of a line that may be seen, with what may be seen of their values.

    numbers, texts: the keys whose numbers and whose texts may be seen
    """
    out: dict[str, Any] = {}
    for key, value in item.items():
        if isinstance(value, list):
            if key in ("callers", "stores", "subtracts"):
                out[key] = [_place(str(place), rename) for place in value]
            elif key in ("t_ns", "stack_of"):
                out[key] = [number for number in value if type(number) is int]
            elif key == "frames":
                out[key] = [_frame(frame, rename) for frame in value]
        elif key == "clock" and isinstance(value, dict):
            out[key] = {k: v for k, v in value.items() if k.endswith("_ns") and isinstance(v, int)}
        elif key in numbers and (value is None or isinstance(value, int | float)):
            out[key] = value
        elif value == STACKS or (key in texts and isinstance(value, str)):
            out[key] = _text(key, value, rename)
    return out


def _text(key: str, value: str, rename: Rename | None) -> str:
    """What may be seen of one: with other names, nothing that was said, which may name anything."""
    if key in ("site", "function"):
        return _place(value, rename)
    if rename and key in ("text", "error"):
        return ""
    name = without_paths(value)
    return rename(name) if rename and key == "region" else name


def _frame(frame: Any, rename: Rename | None) -> list[Any]:
    """Of a stack: its function and short file name, numbers."""
    if not isinstance(frame, list) or len(frame) != 4:
        return []
    function, file, line, of_program = frame
    name = rename(str(function)) if rename else without_paths(str(function))
    return [name, _place(str(file), rename), line if type(line) is int else 0, int(of_program == 1)]


def _place(text: str, rename: Rename | None) -> str:
    """A place in the code, `file:line` or `file:line:name`, as others may see it."""
    text = short_path(text)
    if rename is None:
        return text
    # every part is digits or a dot, or nothing, and then a name
    parts = (re.findall(r"\A(\d+|\.?)(.*)\Z", part, re.DOTALL)[0] for part in text.split(":"))
    return ":".join(kept + rename(name) for kept, name in parts)
