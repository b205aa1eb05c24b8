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
from nsysalign.trace.sqlite import AGAIN, opened
from nsysalign.trace.stacks import FORMAT as STACKS_FORMAT

Rename = Callable[[str], str]
#: Rows that are copied of tables which hold other things as well: columns, and a condition on them.
_ROWS = {
    **dict.fromkeys(schema.META_TABLES, (("name", "value"), "name like 'EXPORT_%_VERSION%'")),
    "TARGET_INFO_SYSTEM_ENV": (("name", "value"), "name = 'NvDriverVersion'"),
    "DIAGNOSTIC_EVENT": (("severity", "text"), "kept_diagnostic(severity, cast(text as blob))"),
}
#: Columns that may hold a text, and those whose numbers are ids of strings.
_TEXTS = ("text", "name", "value", "label")
_STRINGS = ("nameId", "textId", "demangledName", "shortName", "mangledName")
#: Columns that must hold numbers, as the analysis reads them.
_NUMBERS = {
    table.name: {c for t in schema.TABLES if t.name == table.name for f in t.fields for c in f.candidates}
    for table in schema.TABLES
}  # fmt: skip
#: Tables whose strings the program's author chose; the others' are nsys's and CUDA's own.
_NAMED_BY_THE_USER = (schema.NVTX.name, schema.KERNEL.name)
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
        enums = {
            name for name in source.tables if re.fullmatch(r"ENUM_\w+", name)
        }  # nsys reads them
        enums -= untrusted.unlike_tables(source.connection, enums).keys()
        tables = {
            name: source.columns(name)
            for name in sorted(source.tables & (schema.NAMES - {"StringIds"}) | enums)
            if name not in _ROWS or {*_ROWS[name][0]} <= {*source.columns(name)}
        }
        strings = {"id", "value"} <= {*source.columns("StringIds")}
    with new_file(out) as partial, untrusted.copying(trace, partial, TraceError, AGAIN) as db:
        for function, arguments in ((shared, 1), (renamed, 1), (kept_diagnostic, 2)):
            db.create_function(function.__name__, arguments, function, deterministic=True)
        nsys_says, user_says = ["select null"], ["select null"]  # SELECTs of ids of strings
        for table, columns in tables.items():
            copy, numbers = f'main."{table}"', _NUMBERS.get(table, set())
            quoted = ['"' + column.replace('"', '""') + '"' for column in columns]
            values = list(quoted)
            for number, column in enumerate(columns):
                if column in _TEXTS:
                    by = "renamed" if table == schema.NVTX.name else "shared"
                    values[number] = f"{by}(cast({quoted[number]} as blob))"
                elif column not in numbers:  # which nsys reads; what a text says is not known
                    is_number = f"typeof({quoted[number]}) in ('integer', 'real')"
                    values[number] = f"case when {is_number} then {quoted[number]} end"
                if column in _STRINGS:
                    ids = user_says if table in _NAMED_BY_THE_USER else nsys_says
                    ids.append(f'select "{column}" from {copy}')
            rows = f" where {_ROWS[table][1]}" if table in _ROWS else ""
            db.execute(f"create table {copy} ({', '.join(quoted)})")
            db.execute(
                f"insert into {copy} (rowid, {', '.join(quoted)}) "
                f'select rowid, {", ".join(values)} from source."{table}"{rows}'
            )
            wrong = [f"typeof(\"{c}\") in ('text', 'blob')" for c in numbers.intersection(columns)]
            if (
                wrong
                and db.execute(
                    f"select 1 from {copy} where {' or '.join(wrong)} limit 1"
                ).fetchone()
            ):
                raise TraceError(
                    f"{table}: a column of numbers holds something else", "export the report again"
                )
        if not strings:
            return 0
        # the name of an API call says what it does, even where a range has the same
        nsys_ids, all_ids = " union ".join(nsys_says), " union ".join([*nsys_says, *user_says])
        db.execute("create table main.StringIds (id INTEGER, value TEXT)")
        db.execute(
            "insert into main.StringIds (rowid, id, value) select rowid, id, "
            f"case when id in ({nsys_ids}) then shared(cast(value as blob)) "
            "else renamed(cast(value as blob)) end "
            f"from source.StringIds where value is not null and id in ({all_ids})"
        )
        count = "select count(distinct id) from {}.StringIds where value is not null"
        had, have = (db.execute(count.format(of)).fetchone()[0] for of in ("source", "main"))
        return had - have


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
