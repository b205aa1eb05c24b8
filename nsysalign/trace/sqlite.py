"""The tables of an nsys export, read-only and by declared names, as narrow integer columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign import untrusted
from nsysalign.errors import TraceError
from nsysalign.memory import together
from nsysalign.trace import schema
from nsysalign.trace.schema import Table

AGAIN = "nsys export --type sqlite REPORT.nsys-rep"
#: Bytes: C++ kernels have names of some kilobytes; the rest of a longer one is cut.
_LONGEST_NAME = 16 << 10
#: Smaller files are read before the faster reader is imported.
_WORTH_BYTES = 1 << 20
_BATCH_ROWS = 1 << 16
#: No row of an nsys table is shorter; more rows than that are pages that point at each other.
_BYTES_PER_ROW = 8
_ROWIDS_AT_ONCE = 10_000
_INT32 = np.iinfo(np.int32)


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """A guarded view of an export (`nsysalign.untrusted`); TraceError says what the file is
    instead."""
    with untrusted.opened(
        path, TraceError, expected="an nsys SQLite export", again=AGAIN, longest_text=_LONGEST_NAME
    ) as connection:
        yield Source(connection, path)


def lost_its_end(text: str) -> bool:
    """Whether a text was too long and cut."""
    return text.endswith("…") and len(text.encode("utf-8", "replace")) > _LONGEST_NAME - 4


class _Query(NamedTuple):
    """What is read of one table: our names, SQL for each, and the values of columns that it lacks."""

    table: Table
    names: list[str]
    expressions: list[str]
    constants: dict[str, int]

    def select(self, where: str = "") -> str:
        """In the order of the rows' numbers: an index with all the columns would have another."""
        where = " and ".join(filter(None, (self.table.where, where)))
        head = f'select {", ".join(["rowid", *self.expressions])} from "{self.table.name}"'
        return f"{head} not indexed{' where ' + where if where else ''}"


class Source:
    """The tables of one open export."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path
        self.tables = untrusted.ordinary_tables(connection)
        self._columns: dict[str, list[str]] = {}
        for name, what in untrusted.unlike_tables(connection, schema.NAMES).items():
            raise TraceError(
                f"{name} {what}, where nsys export writes a plain table: this file was made by something else",
                f"export the report again: {AGAIN}",
            )

    def columns(self, table: str) -> list[str]:
        """In their order; [] where the table is absent."""
        if table not in self._columns:
            there = untrusted.columns(self.connection, table) if table in self.tables else ()
            self._columns[table] = [*there]
        return self._columns[table]

    def column(self, table: Table, name: str) -> str | None:
        """nsys's name of one of our columns, as this export has it; None where it has none."""
        (field,) = (f for f in table.fields if f.name == name)
        return next((c for c in field.candidates if c in self.columns(table.name)), None)

    def read(self, table: Table) -> pd.DataFrame | None:
        """All rows as int64 columns plus `row` (rowid); None where the table is absent.

        Columns that this version does not have hold their default; a missing needed column is a
        TraceError.
        """
        (columns,) = self.columns_of(table)
        if columns is None:
            return None
        return pd.DataFrame({n: v.astype(np.int64, copy=False) for n, v in columns.items()})

    def columns_of(self, *tables: Table) -> list[dict[str, np.ndarray] | None]:
        """The same of several tables as arrays, each as narrow as its values allow (`Gathered`):
        for the big ones, which are read side by side."""
        queries = [self._query(t) if t.name in self.tables else None for t in tables]
        fast = together(self._fast, queries)
        return [
            None if query is None else self._whole(query, columns or self._slow(query))
            for query, columns in zip(queries, fast, strict=True)
        ]

    def read_rows(self, table: Table, rows: np.ndarray) -> pd.DataFrame:
        """The rows with these rowids, where they exist, in the order of their rowids."""
        wanted = np.unique(rows)
        if table.name not in self.tables or not len(wanted):
            return pd.DataFrame(
                {name: np.empty(0, np.int64) for name in ("row", *(f.name for f in table.fields))}
            )
        query, parts = self._query(table), []
        for first in range(0, len(wanted), _ROWIDS_AT_ONCE):
            some = ", ".join(map(str, wanted[first : first + _ROWIDS_AT_ONCE].tolist()))
            parts.append(self._whole(query, self._slow(query, f"rowid in ({some})")))
        return pd.concat(map(pd.DataFrame, parts), ignore_index=True)

    def row_numbers(self, table: Table) -> tuple[int, int]:
        """Least and greatest; (0, -1) where the table is absent or empty."""
        if table.name not in self.tables:
            return 0, -1
        # each by itself is a look at one page, both at once a look at all
        sql = (f'select {end}(rowid) from "{table.name}"' for end in ("min", "max"))
        first, last = (self.connection.execute(one).fetchone()[0] for one in sql)
        return (0, -1) if first is None else (first, last)

    def texts(self, table: Table, column: str) -> dict[int, str]:
        """rowid -> text of the rows that carry the text inline."""
        if column not in self.columns(table.name):
            return {}
        where = f" where {table.where}" if table.where else ""
        sql = f'select rowid, cast("{column}" as text) from "{table.name}" not indexed{where}'
        return {row: text for row, text in self._rows(sql) if text is not None}

    def strings(self, ids: Iterable[int] | None = None) -> dict[int, str]:
        """StringIds as a dict, or those of it with these ids."""
        if not {"id", "value"} <= {*self.columns("StringIds")}:
            return {}
        some = "" if ids is None else f" where id in ({', '.join(map(str, ids))})"
        # not `where value is not null`: SQLite believes a column that is declared so, damaged or not
        rows = self._rows(f"select id, cast(value as text) from StringIds{some}")
        return {number: text for number, text in rows if text is not None}

    def failures(self, table: str, name: str, status: str) -> list[tuple]:
        """(name's id, status, count) of the rows whose status is not 0, [] where the table or a
        column is absent."""
        if not {name, status} <= {*self.columns(table)}:
            return []
        return self._rows(
            f'select "{name}", "{status}", count(*) from "{table}" where "{status}" != 0 group by 1, 2'
        )

    def pairs(self, table: str, key: str, value: str) -> list[tuple]:
        """Two columns of a small table, [] where it or one of them is absent."""
        return self.rows(table, [key, value]) if {key, value} <= {*self.columns(table)} else []

    def rows(self, table: str, names: Sequence[str]) -> list[tuple]:
        """Columns of a small table as they are; bytes, which nsys puts into none of them, are
        None."""
        if not names:
            return []
        values = (f"""case typeof("{n}") when 'blob' then null else "{n}" end""" for n in names)
        return self._rows(f'select {", ".join(values)} from "{table}"')

    def _rows(self, sql: str) -> list[tuple]:
        with untrusted.long_values(self.connection):
            return self.connection.execute(sql).fetchall()

    def _query(self, table: Table) -> _Query:
        query = _Query(table, [], [], {})
        for field in table.fields:
            column = self.column(table, field.name)
            if column is not None:
                query.names.append(field.name)
                absent = -1 if field.default is None else field.default
                query.expressions.append(f'coalesce("{column}", {absent})')
            elif field.default is None:
                raise TraceError(
                    f"{table.name} has no column {' or '.join(field.candidates)}: not an nsys export this version knows",
                    AGAIN,
                )
            else:
                query.constants[field.name] = field.default
        return query

    def _fast(self, query: _Query | None) -> dict[str, np.ndarray] | None:
        """None where there is no faster reader, or it stumbles: over a text where a number belongs,
        a damaged page, more rows than the file has room for.  `_slow` says which."""
        if query is None or self.path.stat().st_size < _WORTH_BYTES or not _arrow_is_there():
            return None
        return self._gathered(query, _arrow_batches(self.path, query.select()))

    def _slow(self, query: _Query, where: str = "") -> dict[str, np.ndarray]:
        columns = self._gathered(query, self._batches(query, where))
        if columns is None:
            raise sqlite3.DatabaseError("it holds more rows than a file of its size can")
        return columns

    def _batches(self, query: _Query, where: str) -> Iterator[Sequence[np.ndarray]]:
        cursor = self.connection.execute(query.select(where))
        while rows := cursor.fetchmany(untrusted.ROWS_AT_ONCE):
            try:
                yield np.array(rows, dtype=np.int64).T
            except (ValueError, TypeError, OverflowError) as error:
                raise TraceError(
                    f"{query.table.name}: a column of numbers holds something else ({error})",
                    "export the report again",
                ) from error

    def _gathered(
        self, query: _Query, batches: Iterable[Sequence[np.ndarray] | None]
    ) -> dict[str, np.ndarray] | None:
        into = {name: Gathered(wide=name.endswith("_ns")) for name in ("row", *query.names)}
        left = self.path.stat().st_size // _BYTES_PER_ROW
        for batch in batches:
            if batch is None or len(batch[0]) > left:
                return None
            left -= len(batch[0])
            for column, values in zip(into.values(), batch, strict=True):
                column.add(values)
        return {name: column.column() for name, column in into.items()}

    def _whole(self, query: _Query, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        row = columns["row"]
        # whatever joins rows by their numbers would join wrong ones
        if (row[1:] <= row[:-1]).any():
            raise TraceError(f"{query.table.name}: damaged SQLite file (rows out of order)", AGAIN)
        return columns | {
            name: np.broadcast_to(np.int64(value), len(row))
            for name, value in query.constants.items()
        }


@cache
def _arrow_is_there() -> bool:
    """Whether the ADBC driver is installed, which has no wheel for some platforms."""
    try:
        import adbc_driver_sqlite  # noqa: F401
        import nanoarrow  # noqa: F401
    except ImportError:
        return False
    return True


def _arrow_batches(path: Path, sql: str) -> Iterator[list[np.ndarray] | None]:
    """Batches of integer columns at Arrow speed, each good until the next; ends with None where
    something else comes.

    A connection of its own, to a file at which `untrusted.opened` has looked: nothing is written
    beside it.
    """
    import adbc_driver_manager as adbc
    import adbc_driver_sqlite
    import nanoarrow

    uri = path.resolve().as_uri() + "?mode=ro&immutable=1"
    try:
        with (
            adbc_driver_sqlite.connect(uri) as database,
            adbc.AdbcConnection(database) as connection,
        ):
            for pragma in ("query_only = on", "trusted_schema = off", "cell_size_check = on"):
                with adbc.AdbcStatement(connection) as statement:
                    statement.set_sql_query(f"pragma {pragma}")
                    statement.execute_update()
            with adbc.AdbcStatement(connection) as statement:
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
                statement.set_sql_query(sql)
                with nanoarrow.c_array_stream(statement.execute_query()[0]) as stream:
                    for batch in filter(len, stream):  # what has no rows has no types either
                        columns = [batch.child(n) for n in range(batch.n_children)]
                        integers = all(c.schema.format == "l" for c in columns)
                        if not integers or any(c.view().null_count for c in columns):
                            yield None
                        yield [np.asarray(c.view().buffer(1))[: len(c)] for c in columns]
    except (adbc.Error, RuntimeError):  # the latter is nanoarrow's
        yield None


class Gathered:
    """A column that is built batch by batch from int64 values and kept as small as they allow: one
    process, one stream, names by number need far less than nsys declares.

    `column()` returns all values, once.  One value only: an int64 view with stride 0, read-only,
    without memory of its own.  Otherwise int32 if that holds every value and the column is not
    `wide`, else int64.
    """

    def __init__(self, *, wide: bool = False) -> None:
        self._wide = wide
        self._parts: list[np.ndarray] = []
        self._low = self._high = 0

    def add(self, values: np.ndarray) -> None:
        """Copies the values: the caller may reuse the memory."""
        if not len(values):
            return
        low, high = int(values.min()), int(values.max())
        if low == high:
            self._parts.append(np.broadcast_to(np.int64(low), len(values)))
        else:
            narrow = not self._wide and _INT32.min <= low and high <= _INT32.max
            self._parts.append(values.astype(np.int32 if narrow else np.int64))
        first = len(self._parts) == 1
        self._low = low if first else min(self._low, low)
        self._high = high if first else max(self._high, high)

    def column(self) -> np.ndarray:
        parts, self._parts = self._parts, []
        if not parts or self._low == self._high:
            return np.broadcast_to(np.int64(self._low if parts else 0), sum(map(len, parts)))
        narrow = not self._wide and _INT32.min <= self._low and self._high <= _INT32.max
        return np.concatenate(parts, dtype=np.int32 if narrow else np.int64, casting="unsafe")
