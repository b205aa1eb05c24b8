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
            needed, condition = _ROWS.get(table, ((), "true"))
            if not {*needed} <= {*columns}:
                continue
            by, names, values, wrong = "renamed" if table in _OF_AUTHOR else "shared", [], [], []
            for column in columns:
                name = '"' + column.replace('"', '""') + '"'
                names.append(name)
                # what nsys reads as well; what a text of another column says is not known
                number = f"case when typeof({name}) in ('integer', 'real') then {name} end"
                values.append(f"{by}(cast({name} as blob))" if column in _TEXTS else number)
                if column in _NUMBERS.get(table, ()):
                    wrong.append(f"typeof({name}) in ('text', 'blob')")
                if column in _STRINGS:
                    ids[by].append(f'select {name} from main."{table}"')
            sql = (
                f'select 1 from source."{table}" where {condition} and ({" or ".join(wrong) or 0})'
            )
            if db.execute(f"{sql} limit 1").fetchone():
                raise TraceError(
                    f"{table}: a column of numbers holds something else", "export the report again"
                )
            db.execute(f'create table main."{table}" ({", ".join(names)})')
            db.execute(
                f'insert into main."{table}" (rowid, {", ".join(names)}) '
                f'select rowid, {", ".join(values)} from source."{table}" where {condition}'
            )
        if not strings:
            return 0
        # the name of an API call says what it does, even where a range has the same
        plain, every = (
            " union ".join(some) for some in (ids["shared"], [*ids["shared"], *ids["renamed"]])
        )
        db.execute("create table main.StringIds (id INTEGER, value TEXT)")
        db.execute(
            "insert into main.StringIds (rowid, id, value) select rowid, id, "
            f"case when id in ({plain}) then shared(cast(value as blob)) "
            "else renamed(cast(value as blob)) end "
            f"from source.StringIds where value is not null and id in ({every})"
        )
        count = "select count(distinct id) from {}.StringIds where value is not null"
        had, have = (db.execute(count.format(of)).fetchone()[0] for of in ("source", "main"))
        return had - have


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
    """What may be seen of a line."""
    if isinstance(item, list):  # a sample
        return [value if isinstance(value, int | float) else None for value in item]
    if not isinstance(item, dict):
        return None
    if item.get("format") == CLOCKS:
        return {key: value for key, value in item.items() if key in _OF_SAMPLES}
    line = {"type": item["type"]} if "type" in item else {}
    numbers, texts = _OF_STACKS, set[str]()
    if line:
        kind = item["type"] if isinstance(item["type"], str) else ""
        if kind not in PLAIN_KEYS:
            return {}
        numbers, texts = PLAIN_KEYS[kind], TEXT_KEYS[kind]
    for key, value in item.items():
        if isinstance(value, list):
            if key in ("callers", "stores", "subtracts"):
                line[key] = [_place(str(place), rename) for place in value]
            elif key in ("t_ns", "stack_of"):
                line[key] = [number for number in value if type(number) is int]
            elif key == "frames":
                line[key] = [_frame(frame, rename) for frame in value]
        elif key == "clock" and isinstance(value, dict):
            line[key] = {k: v for k, v in value.items() if k.endswith("_ns") and isinstance(v, int)}
        elif key in numbers and (value is None or isinstance(value, int | float)):
            line[key] = value
        elif value == STACKS or (key in texts and isinstance(value, str)):
            line[key] = _text(key, value, rename)
    return line


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
    function, file, line, own = frame
    name = rename(str(function)) if rename else without_paths(str(function))
    return [name, _place(str(file), rename), line if type(line) is int else 0, int(own == 1)]


def _place(text: str, rename: Rename | None) -> str:
    """A place in the code, `file:line` or `file:line:name`, as others may see it."""
    text = short_path(text)
    if rename is None:
        return text
    # every part is digits or a dot, or nothing, and then a name
    parts = (re.findall(r"\A(\d+|\.?)(.*)\Z", part, re.DOTALL)[0] for part in text.split(":"))
    return ":".join(kept + rename(name) for kept, name in parts)
