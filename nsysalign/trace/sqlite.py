"""Reading columns out of an nsys export: read-only, by declared names, straight into int64 arrays."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from nsysalign.errors import TraceError
from nsysalign.trace.schema import Table

_CHUNK = 200_000


@contextmanager
def open_readonly(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write: `mode=ro`, `query_only`, and text that never fails to decode.

    TraceError says what the file is instead of an nsys SQLite export.
    """
    if not path.is_file():
        raise TraceError(f"{path}: no such file", "nsys export --type sqlite REPORT.nsys-rep")
    try:
        with path.open("rb") as file:
            head = file.read(16)
    except OSError as error:
        raise TraceError(
            f"{path.name}: cannot be read ({error.strerror})", "check the file's permissions"
        ) from error
    if head != b"SQLite format 3\x00":
        what = "is empty" if not head else "is not an SQLite database"
        raise TraceError(
            f"{path.name}: {what}; an nsys SQLite export was expected",
            "nsys export --type sqlite REPORT.nsys-rep",
        )
    connection = sqlite3.connect(path.resolve().as_uri() + "?mode=ro", uri=True)
    try:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("pragma query_only = on")
        # a prepared file must not run anything of its own: views and triggers cannot call functions
        connection.execute("pragma trusted_schema = off")
        connection.execute("select count(*) from sqlite_master").fetchone()
        yield connection
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
    ) as error:  # the latter: a damaged name inside a message
        raise TraceError(
            f"{path.name}: damaged SQLite file ({error})",
            "export the report again: nsys export --type sqlite",
        ) from error
    finally:
        connection.close()


class Source:
    """The tables of one open export."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        rows = connection.execute("select name from sqlite_master where type = 'table'")
        self.tables = {name for (name,) in rows}
        self._columns: dict[str, set[str]] = {}

    def columns(self, table: str) -> set[str]:
        if table not in self._columns:
            rows = self.connection.execute("select name from pragma_table_info(?)", (table,))
            self._columns[table] = {name for (name,) in rows} if table in self.tables else set()
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
        return dict(self.connection.execute(sql))

    def strings(self) -> dict[int, str]:
        """StringIds as a dict."""
        if not {"id", "value"} <= self.columns("StringIds"):
            return {}
        return dict(
            self.connection.execute("select id, cast(value as text) from StringIds where value is not null")
        )

    def pairs(self, table: str, key: str, value: str) -> list[tuple]:
        """Two columns of a small table, [] where it or one of them is absent."""
        if not {key, value} <= self.columns(table):
            return []
        return self.connection.execute(f'select "{key}", "{value}" from "{table}"').fetchall()


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
