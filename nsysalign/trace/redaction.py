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
from nsysalign.trace.info import kept_diagnostic
from nsysalign.trace.lines import json_or_none, lines_of
from nsysalign.trace.read import MARK
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
_STACKS_KEYS = {"format", "version", "frequency_hz", "stack", "process", "thread", "main"}
_SAMPLES_KEYS = {"type", "format", "version", "columns", "period_ns", "devices", "order"}


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
    with new_file(out) as partial, untrusted.copying(trace, partial, TraceError, AGAIN) as db:
        for function, arguments in ((shared, 1), (renamed, 1), (kept_diagnostic, 2)):
            db.create_function(function.__name__, arguments, function, deterministic=True)
        # ids of strings: of nsys's and CUDA's own, and of those that the program's author chose
        nsys_says, user_says = ["select null"], ["select null"]
        for table, columns in tables.items():
            needed, condition = _ROWS.get(table, ((), "true"))
            if not {*needed} <= {*columns}:
                continue
            numbers, values = _NUMBERS.get(table, set()), []
            quoted = ['"' + column.replace('"', '""') + '"' for column in columns]
            for column, quote in zip(columns, quoted, strict=True):
                if column in _TEXTS:
                    by = "renamed" if table == schema.NVTX.name else "shared"
                    values.append(f"{by}(cast({quote} as blob))")
                elif column in numbers:
                    values.append(quote)
                else:  # which nsys reads; what a text says is not known
                    values.append(f"case when typeof({quote}) in ('integer', 'real') then {quote} end")  # fmt: skip
                if column in _STRINGS:
                    ids = user_says if table in (schema.NVTX.name, schema.KERNEL.name) else nsys_says  # fmt: skip
                    ids.append(f'select "{column}" from main."{table}"')
            db.execute(f'create table main."{table}" ({", ".join(quoted)})')
            db.execute(
                f'insert into main."{table}" (rowid, {", ".join(quoted)}) '
                f'select rowid, {", ".join(values)} from source."{table}" where {condition}'
            )
            wrong = [f"typeof(\"{c}\") in ('text', 'blob')" for c in numbers.intersection(columns)]
            any_wrong = (
                f'select 1 from main."{table}" where {" or ".join(wrong) or "false"} limit 1'
            )
            if db.execute(any_wrong).fetchone():
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
    `#3` at the end, which numbers repetitions, and the harness's own names stay."""
    key = secrets.token_bytes(32)  # goes with the process: names cannot be guessed from a list

    def rename(name: str) -> str:
        if not name or name.startswith(MARK):
            return name
        stem, number = re.findall(r"\A(.*?)(#\d+)?\Z", name, re.DOTALL)[0]
        text = stem.encode("utf-8", "surrogatepass")
        return f"name-{hashlib.blake2s(text, key=key, digest_size=5).hexdigest()}{number}"

    return rename


def redact_log(log: Path, out: Path, *, rename: Rename | None = None) -> None:
    """Write the lines of an event log that analysis reads, with the keys that it reads, to `out`, a new file.
    An unusable line is replaced by a placeholder (`null`; `{}` for an unknown type), so that both files are
    refused for the same reasons and yield the same notes."""

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
                times = {k: v for k, v in value.items() if k.endswith("_ns")}
                line[key] = {k: v for k, v in times.items() if isinstance(v, int)}
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
        if isinstance(item, list):
            return [v if isinstance(v, int | float) else None for v in item]
        return None

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
        numbers = {k: v for k, v in item.items() if isinstance(v, int)}
        line: dict[str, Any] = {k: v for k, v in numbers.items() if k in _STACKS_KEYS}
        if item.get("format") == STACKS_FORMAT:
            line["format"] = STACKS_FORMAT
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
            item = kept(json_or_none(line))
            file.write(json.dumps(item, separators=(",", ":")) * bool(line.strip()) + "\n")
