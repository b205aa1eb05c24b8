"""Reading columns out of an nsys export: read-only, by declared names, straight into int64 arrays."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign import untrusted
from nsysalign.errors import TraceError
from nsysalign.trace import schema
from nsysalign.trace.schema import Table

_CHUNK = untrusted.ROWS_AT_ONCE
_LONGEST_NAME = 16 << 10  # bytes: C++ kernels have names of some kilobytes; the rest of a longer one is cut


def open_readonly(path: Path) -> AbstractContextManager[sqlite3.Connection]:
    """A guarded connection to an export (`nsysalign.untrusted`); TraceError says what the file is instead."""
    return untrusted.opened(
        path,
        TraceError,
        expected="an nsys SQLite export",
        again="nsys export --type sqlite REPORT.nsys-rep",
        longest_text=_LONGEST_NAME,
    )


class Source:
    """The tables of one open export."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.tables = untrusted.ordinary_tables(connection)
        self._columns: dict[str, dict[str, bool]] = {}
        for name, what in untrusted.unlike_tables(connection, schema.NAMES).items():
            raise TraceError(
                f"{name} {what}, where nsys export writes a plain table: this file was made by something else",
                "export the report again: nsys export --type sqlite REPORT.nsys-rep",
            )

    def columns(self, table: str) -> set[str]:
        return set(self._declared(table))

    def plain_table(self, table: str) -> bool:
        """Whether a reader that knows only ordinary rowid tables may read it: it is there, its rows are numbered by
        SQLite, and no column is computed or takes the place of that number."""
        declared = self._declared(table)
        return (
            table in self.tables
            and not any(declared.values())
            and not {"rowid", "_rowid_", "oid"} & {name.lower() for name in declared}
            and untrusted.has_rowid(self.connection, table)
        )

    def _declared(self, table: str) -> dict[str, bool]:
        """Column -> whether it is computed; {} for a table that is absent."""
        if table not in self._columns:
            present = table in self.tables
            self._columns[table] = untrusted.columns(self.connection, table) if present else {}
        return self._columns[table]

    def read(self, table: Table) -> pd.DataFrame | None:
        """All rows as int64 columns plus `row` (rowid); None where the table is absent.

        Columns that this version does not have hold their default; a missing needed column is a TraceError.
        """
        if table.name not in self.tables:
            return None
        have, expressions, names, constants = self.columns(table.name), [], [], {}
        for field in table.fields:
            column = next((c for c in field.candidates if c in have), None)
            if column is None and field.default is None:
                raise TraceError(
                    f"{table.name} has no column {' or '.join(field.candidates)}: not an nsys export this version knows"
                )
            if column is None:
                constants[field.name] = field.default
            else:
                names.append(field.name)
                expressions.append(f'coalesce("{column}", {-1 if field.default is None else field.default})')
        where = f" where {table.where}" if table.where else ""
        cursor = self.connection.execute(f'select rowid, {", ".join(expressions)} from "{table.name}"{where}')
        data = _to_int64(cursor, len(names) + 1, table.name)
        frame = pd.DataFrame({"row": data[0]} | dict(zip(names, data[1:], strict=True)))
        for name, value in constants.items():
            frame[name] = np.full(len(frame), value, dtype=np.int64)
        return frame

    def texts(self, table: str, column: str, where: str) -> dict[int, str]:
        """rowid -> text of the rows that carry the text inline."""
        if column not in self.columns(table):
            return {}
        sql = (
            f'select rowid, cast("{column}" as text) from "{table}" where "{column}" is not null and {where}'
        )
        with untrusted.long_values(self.connection):
            return dict(self.connection.execute(sql))

    def strings(self) -> dict[int, str]:
        """StringIds as a dict."""
        if not {"id", "value"} <= self.columns("StringIds"):
            return {}
        sql = "select id, cast(value as text) from StringIds where value is not null"
        with untrusted.long_values(self.connection):
            return dict(self.connection.execute(sql))

    def pairs(self, table: str, key: str, value: str) -> list[tuple]:
        """Two columns of a small table, [] where it or one of them is absent."""
        return self.rows(table, [key, value]) if {key, value} <= self.columns(table) else []

    def rows(self, table: str, names: Sequence[str]) -> list[tuple]:
        """Columns of a small table as they are; bytes, which nsys puts into none of them, are None."""
        if not names:
            return []
        values = ", ".join(f"""case typeof("{n}") when 'blob' then null else "{n}" end""" for n in names)
        with untrusted.long_values(self.connection):
            return self.connection.execute(f'select {values} from "{table}"').fetchall()

    def cut(self) -> int:
        """How many texts so far were too long and lost their end."""
        return self.connection.text_factory.cut


def _to_int64(cursor: sqlite3.Cursor, width: int, table: str) -> list[np.ndarray]:
    chunks = []
    while rows := cursor.fetchmany(_CHUNK):
        try:
            chunks.append(np.array(rows, dtype=np.int64).T)
        except (ValueError, TypeError, OverflowError) as error:
            raise TraceError(
                f"{table}: a number column holds something else ({error})", "export the report again"
            ) from error
    if not chunks:
        return [np.empty(0, dtype=np.int64)] * width
    return list(np.concatenate(chunks, axis=1))
